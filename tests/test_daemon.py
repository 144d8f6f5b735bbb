"""A node's settings that end it before it does any work."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import trio
from distro_node.node import daemon
from distro_node.node.errors import ExitCode, UserError
from distro_node.node.network.network import open_network
from distro_node.node.session.session import SwarmSession
from distro_node.node.settings.components import TrainerSettings
from distro_node.node.storage.data_dir import DataDir
from distro_node.node.telemetry.telemetry import Telemetry
from founder import founding
from network.support import LOOPBACK
from network.victim import quiet_settings
from simulation.chain import Chain
from simulation.keys import identity
from simulation.whole.trainer import Workshop


@pytest.mark.parametrize(("device", "searched"), [("cuda", True), ("cpu,cpu", False)])
async def test_a_device_is_searched_before_anybody_is_connected_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, device: str, searched: bool
) -> None:
    async def survey_device(name: str) -> None:
        raise UserError(ExitCode.NO_DEVICE, f"no device {name!r} here", "name another")

    async def serve_owner(*_: object, **more: object) -> bool:
        assert not searched
        return True

    monkeypatch.setattr(daemon, "survey_device", survey_device)
    monkeypatch.setattr(daemon, "serve_owner", serve_owner)
    settings = quiet_settings(
        Chain(0).manifest, tmp_path / "node", trainer=TrainerSettings(device=device)
    )
    if not searched:
        assert await daemon.run_daemon(settings)
        return
    with pytest.raises(UserError, match="no device 'cuda' here"):
        await daemon.run_daemon(settings)
    assert not (tmp_path / "node").exists()


async def test_a_device_that_the_driver_knows_is_not_searched_with_pytorch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PyTorch, which takes seconds to load, was loaded twice: for the search, and by the trainer."""
    answers = [True, False]
    searched = []

    async def has_cuda(devices: set[str]) -> bool:
        assert devices == {"cuda:0", "cuda:1"}
        return answers.pop(0)

    async def survey_device(name: str) -> None:
        searched.append(name)

    async def serve_owner(*_: object, **more: object) -> bool:
        return True

    monkeypatch.setattr(daemon, "has_cuda", has_cuda)
    monkeypatch.setattr(daemon, "survey_device", survey_device)
    monkeypatch.setattr(daemon, "serve_owner", serve_owner)
    trainer = TrainerSettings(device="cuda:0,cuda:1")
    settings = quiet_settings(Chain(0).manifest, tmp_path / "node", trainer=trainer)
    assert await daemon.run_daemon(settings)
    assert searched == []
    assert await daemon.run_daemon(settings)
    assert searched == ["cuda:0,cuda:1"]


async def test_a_round_that_has_passed_is_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with founding(tmp_path) as founder:
        manifest = founder.manifest
    settings = replace(quiet_settings(manifest, tmp_path), until_round=1)
    me = identity(0)
    telemetry = Telemetry(me.peer)
    start = Workshop(me.peer, 0).start
    async with open_network(LOOPBACK, me) as network:
        session = SwarmSession(settings, DataDir(tmp_path), me, network, telemetry, start)
        with trio.fail_after(30):
            await session.run(b"")
    assert not session.leave_requested
    assert "a node that leaves after round 1 has nothing to do" in caplog.text
