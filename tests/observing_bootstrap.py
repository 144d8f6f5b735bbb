"""A bootstrap peer that follows the toy swarm, and access to its page."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import trio
from distro_node.crypto.identity import Identity
from distro_node.node.bootstrap import BootstrapSettings, run_bootstrap
from distro_node.node.control.command_socket import ask
from distro_node.node.settings.components import DashboardSettings, LineSettings
from distro_node.node.storage.data_dir import DataDir
from distro_node.node.telemetry.status import BootstrapStatus, decode_any_status
from network.support import LOOPBACK, PATIENCE_SECONDS, until
from network.victim import quiet_settings
from simulation.whole.trainer import toy_swarm

BOOTSTRAP = Identity.from_seed(bytes(31) + b"b")


@dataclass
class Peer:
    """A bootstrap peer that follows the toy swarm."""

    address: str
    socket: Path

    async def ask(self, command: str) -> dict[str, Any]:
        return await trio.to_thread.run_sync(ask, self.socket, command, 60.0)

    async def status(self) -> BootstrapStatus:
        status = decode_any_status(await self.ask("status"))
        assert isinstance(status, BootstrapStatus)
        return status


@asynccontextmanager
async def introducing(
    root: Path,
    *,
    bootstrap: tuple[str, ...] = (),
    serve_result: bool = False,
    list_swarms: bool = False,
    **changes: Any,
) -> AsyncIterator[Peer]:
    """Run a bootstrap peer in this directory. `changes` as in `toy_swarm`."""
    manifest, _, _ = toy_swarm(min_seconds=0.2, **changes)
    DataDir(root).create()
    page = DashboardSettings(address=("127.0.0.1", 0), public=True)
    settings = BootstrapSettings(
        identity=BOOTSTRAP,
        line=LineSettings(listen=LOOPBACK.listen),
        socket=root / "socket",
        list_swarms=list_swarms,
        observe=quiet_settings(
            manifest, root, bootstrap=bootstrap, dashboard=page, serve_result=serve_result
        ),
    )
    async with trio.open_nursery() as nursery:
        told: list[str] = []

        async def run() -> None:
            await run_bootstrap(settings, ready=told.extend)

        nursery.start_soon(run)
        await until(lambda: bool(told))
        yield Peer(told[0], root / "socket")
        nursery.cancel_scope.cancel()


async def get(url: str, body: bytes | None = None) -> Any:
    """Return the page's answer; with a body the request is an action."""
    request = Request(url, data=body, headers={"Content-Type": "application/json"})

    def answer() -> Any:
        with urlopen(request, timeout=PATIENCE_SECONDS) as reply:
            return json.load(reply)

    return await trio.to_thread.run_sync(answer)


async def shown(page: str) -> Any:
    return (await get(page + "api/status"))["status"]


async def shown_once(page: str, condition: Callable[[Any], bool]) -> Any:
    """Return the status that the page shows, as soon as the condition holds for it."""
    with trio.fail_after(PATIENCE_SECONDS):
        while True:
            status = await shown(page)
            if condition(status):
                return status
            await trio.sleep(0.1)
