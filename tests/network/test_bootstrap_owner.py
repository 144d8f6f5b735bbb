"""The owner of a bootstrap peer can see its status, and stop it."""

from __future__ import annotations

from pathlib import Path

import trio
from distro_node.crypto.identity import Identity, peer_text
from distro_node.node.bootstrap import BootstrapSettings, run_bootstrap
from distro_node.node.control.command_socket import ask
from distro_node.node.settings.components import LineSettings
from distro_node.node.telemetry.status import BootstrapStatus, decode_any_status


async def test_status_and_leave_reach_a_bootstrap_peer(tmp_path: Path) -> None:
    identity, socket = Identity.from_seed(bytes(32)), tmp_path / "socket"
    (tmp_path / "relayed").write_text("7000\n")
    settings = BootstrapSettings(
        identity=identity,
        line=LineSettings(listen=("/ip4/127.0.0.1/tcp/0",)),
        relayed=tmp_path / "relayed",
        socket=socket,
    )
    up, told = trio.Event(), []

    def ready(addresses: list[str]) -> None:
        told.extend(addresses)
        up.set()

    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:

            async def run() -> None:
                await run_bootstrap(settings, ready=ready)

            nursery.start_soon(run)
            await up.wait()
            answer = await trio.to_thread.run_sync(ask, socket, "status", 10.0)
            status = decode_any_status(answer)
            assert isinstance(status, BootstrapStatus)
            assert status.peer == peer_text(identity.peer)
            assert (status.swarms, status.line.peers) == (0, 0)
            assert status.line.relayed_bytes == 7000
            assert list(status.line.addresses) == told
            assert await trio.to_thread.run_sync(ask, socket, "leave", 10.0) == {"ok": True}
    assert not socket.exists()
