"""A founder that trains alone, with a toy trainer: the smallest swarm with real records."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import trio
from distro_node.node.network.network import Network, open_network
from distro_node.node.session.session import SwarmSession
from distro_node.node.storage.blob_store import BlobStore
from distro_node.node.storage.data_dir import DataDir
from distro_node.node.telemetry.telemetry import Telemetry
from distro_node.protocol.wire.manifest import Manifest
from network.support import LOOPBACK, until
from network.victim import quiet_settings
from simulation.keys import identity
from simulation.whole.trainer import Workshop, toy_swarm


@dataclass
class Founder:
    """A node that trains alone, with a toy trainer."""

    manifest: Manifest
    network: Network
    telemetry: Telemetry
    session: SwarmSession
    ended: trio.Event
    """Set when it has left by itself, at the end of its run."""

    @property
    def members(self) -> int:
        swarm = self.session.status().swarm
        return 0 if swarm is None else len(swarm.members or ())


@asynccontextmanager
async def founding(
    root: Path,
    bootstrap: tuple[str, ...] = (),
    *,
    display_name: str | None = None,
    **changes: Any,
) -> AsyncIterator[Founder]:
    """Run a founder until the end of the `with`, or of the run. `changes` as in `toy_swarm`."""
    manifest, blobs, _ = toy_swarm(min_seconds=0.2, **changes)
    data = DataDir(root)
    data.create()
    for blob in blobs:
        BlobStore(data.blobs).put(blob)
    me, telemetry = identity(0), Telemetry(identity(0).peer)
    workshop = Workshop(me.peer, 0)
    workshop.seconds = 0.1
    settings = quiet_settings(manifest, root, bootstrap=bootstrap, display_name=display_name)
    async with open_network(LOOPBACK, me) as network, trio.open_nursery() as nursery:
        session = SwarmSession(settings, data, me, network, telemetry, workshop.start)
        ended = trio.Event()

        async def run() -> None:
            await session.run(b"")
            ended.set()

        nursery.start_soon(run)
        await until(lambda: (telemetry.round or 0) >= 2)
        yield Founder(manifest, network, telemetry, session, ended)
        nursery.cancel_scope.cancel()
