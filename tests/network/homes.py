"""Nodes that cannot be dialled, in one process: they announce an address without a listener."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import trio
from distro_node.node.bootstrap import BootstrapSettings, run_bootstrap
from distro_node.node.network.cancel_scopes import open_scope
from distro_node.node.network.circuit_relay import MEMBER_CIRCUITS
from distro_node.node.network.discovery.introductions import Introducer
from distro_node.node.network.nat.traversal import NatTraversal
from distro_node.node.network.network import Network, NetworkSettings, open_network
from distro_node.node.settings.components import LineSettings
from distro_node.protocol.wire.manifest import SwarmId
from network.support import LOOPBACK, identity

SWARM = SwarmId(bytes(range(32)))
# Port 1 needs privileges, and no program uses it.
NOWHERE = "/ip4/127.0.0.1/tcp/1"


class Home:
    """A network with everything that keeps it connected."""

    def __init__(self, network: Network, introducer: Introducer, reach: NatTraversal) -> None:
        self.network = network
        self.introducer = introducer
        self.reach = reach


@asynccontextmanager
async def home(
    number: int,
    bootstrap: Sequence[str],
    known: Path | None = None,
    *,
    hidden: bool = True,
    swarm: SwarmId = SWARM,
) -> AsyncIterator[Home]:
    """Open a node; `hidden` as if behind a router."""
    settings = NetworkSettings(
        listen=LOOPBACK.listen,
        announce=(NOWHERE,) if hidden else (),
        circuit_limits=MEMBER_CIRCUITS,
    )
    async with open_network(settings, identity(number)) as network:
        introducer = Introducer(network, identity(number), swarm, bootstrap, known)
        reach = NatTraversal(network, introducer)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(introducer.run)
            nursery.start_soon(reach.run)
            yield Home(network, introducer, reach)
            nursery.cancel_scope.cancel()


class Bootstrap:
    """A bootstrap peer that can be stopped and restarted at the same address."""

    def __init__(self, **settings: Any) -> None:
        self._settings: dict[str, Any] = {
            "identity": identity(99),
            "line": LineSettings(listen=LOOPBACK.listen),
            **settings,
        }
        self.scope = open_scope()
        self.stopped = trio.Event()

    async def run(self, task_status: Any) -> None:
        """Run until `stop`; the task status gets the addresses."""

        def ready(addresses: list[str]) -> None:
            listen = (addresses[0].partition("/p2p/")[0],)
            self._settings["line"] = replace(self._settings["line"], listen=listen)
            task_status.started(addresses)

        self.scope, self.stopped = open_scope(), trio.Event()
        with self.scope:
            await run_bootstrap(BootstrapSettings(**self._settings), ready=ready)
        self.stopped.set()

    async def stop(self) -> None:
        """Stop it, and wait until it has stopped."""
        self.scope.cancel()
        await self.stopped.wait()
