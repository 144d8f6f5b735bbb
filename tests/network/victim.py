"""A whole node as the target of attackers: a founder that trains alone, in a process of its own.

It runs a real session in a swarm, with a data directory, gossip, introductions, dial-backs, a circuit
relay, a metrics page and an echo protocol; only the trainer is a toy, so that a round takes as long as
consensus and the disk do. Its chain begins with `PAST` peers that were admitted and left again: their
keys are the attackers' first ones, because former members' messages are examined most.
"""

from __future__ import annotations

import functools
import logging
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import trio
from distro_node.node.dashboard.address import open_metrics_address
from distro_node.node.dashboard.metrics_page import serve_metrics
from distro_node.node.network.circuit_relay import CircuitLimits
from distro_node.node.network.network import NetworkSettings, open_network
from distro_node.node.session.session import SwarmSession
from distro_node.node.settings.components import ConsoleSettings, PeeringSettings, ReachSettings
from distro_node.node.settings.tree import DaemonSettings
from distro_node.node.storage.blob_store import BlobStore
from distro_node.node.storage.data_dir import DataDir
from distro_node.node.storage.swarm_store import SwarmStore
from distro_node.node.telemetry.metrics import NODE_METRICS
from distro_node.node.telemetry.telemetry import Telemetry
from distro_node.protocol.chain.ledger import Ledger
from distro_node.protocol.wire.manifest import Manifest
from distro_node.protocol.wire.swarm_id import Invite
from network.support import ECHO, LOOPBACK, echo, until
from scraping import NOTHING
from simulation.chain import Chain
from simulation.keys import identity
from simulation.whole.trainer import Workshop, toy_swarm

PAST = 50
"""Number of former members, numbered from 1 on (`simulation.keys.identity`)."""


@dataclass(frozen=True)
class Target:
    """What an attacker knows of a node."""

    address: str
    page: int
    """The port of its metrics page."""
    swarm: bytes

    @property
    def topic(self) -> str:
        """The gossip topic of the swarm's members."""
        return f"distro/{self.swarm.hex()}"


@dataclass(frozen=True)
class Figures:
    """A node's report at a moment."""

    at: float
    """Seconds of the machine's steady clock."""
    sent: int
    """Bytes on the wire since its start, with protocol overhead."""
    received: int
    round: int
    """The last applied round."""
    disk: int
    """Bytes of all files in its data directory."""


@functools.cache
def past() -> tuple[Manifest, list[bytes], Chain]:
    """Return the swarm, its initial blobs, and its chain up to where the node continues."""
    manifest, blobs, fingerprint = toy_swarm(snapshot_interval=50, min_seconds=0.2, sequences=16)
    chain = Chain(0)
    chain.manifest, chain.ledger = manifest, Ledger(manifest)
    numbers = range(1, PAST + 1)
    same: dict[str, Any] = {"fingerprint": fingerprint, "updates": ()}
    chain.grow(admitted=[chain.admission(number) for number in numbers], **same)
    chain.grow(departed=[chain.leave(number) for number in numbers], **same)
    return manifest, blobs, chain


def quiet_settings(
    manifest: Manifest, root: Path, *, bootstrap: tuple[str, ...] = (), **more: Any
) -> DaemonSettings:
    """Return the settings of a node without a screen and without local discovery."""
    return DaemonSettings(
        invite=Invite(swarm=manifest.swarm, bootstrap=bootstrap),
        data_dir=root,
        peering=PeeringSettings(wait=True, mdns=False),
        reach=ReachSettings(upnp=False),
        metrics_address=None,
        console=ConsoleSettings(screen=False),
        **more,
    )


def on_disk(root: Path, blobs: list[bytes], chain: Chain) -> DataDir:
    """Return a data directory with these blobs and this chain."""
    data = DataDir(root)
    data.create()
    for blob in blobs:
        BlobStore(data.blobs).put(blob)
    store = SwarmStore(data.swarm(chain.manifest.swarm), chain.manifest)
    for round_ in range(len(chain.ledger)):
        store.keep(chain.ledger.raw(round_))
    store.write()
    return data


async def serve(root: Path, wire: Any) -> None:
    """Run the node in an empty folder; send its `Target`, and for each message that arrives
    `Figures`."""
    manifest, blobs, chain = past()
    data = on_disk(root, blobs, chain)
    settings = quiet_settings(manifest, root)
    me = identity(0)
    workshop = Workshop(me.peer, 0)
    workshop.seconds = 0.1
    telemetry, address = Telemetry(me.peer), open_metrics_address(("127.0.0.1", 0))
    network_settings = NetworkSettings(listen=LOOPBACK.listen, circuit_limits=CircuitLimits())
    async with (
        open_network(network_settings, me) as network,
        serve_metrics(address, NODE_METRICS, lambda: NOTHING),
        trio.open_nursery() as nursery,
    ):
        network.serve(ECHO, echo, max_request=1 << 16, max_concurrent=64)
        session = SwarmSession(settings, data, me, network, telemetry, workshop.start)
        nursery.start_soon(session.run, b"")
        # A round of its own is over: everything is there, and works.
        await until(lambda: (telemetry.status().round or 0) > len(chain.ledger))
        port = address.listeners[0].socket.getsockname()[1]
        wire.send(Target(network.addresses[0], port, manifest.swarm))
        while True:
            await trio.to_thread.run_sync(
                wire.recv,
                abandon_on_cancel=True,  # pyright: ignore[reportCallIssue]
            )
            sent, received = network.wire_bytes()
            round_ = telemetry.status().round or 0
            wire.send(Figures(time.monotonic(), sent, received, round_, _size(root)))


def _size(root: Path) -> int:
    return sum(path.stat().st_size for path in root.rglob("*") if path.is_file())


def run(root: Path, wire: Any) -> None:
    """Run `serve` as the main function of a process."""
    # A real node logs to a file.
    logging.getLogger().addHandler(logging.NullHandler())
    trio.run(serve, root, wire)
