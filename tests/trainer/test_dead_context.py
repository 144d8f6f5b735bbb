"""A device that fails for good, as a GPU does after an illegal access: a new process takes over."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trio
from distro_node.node.settings.components import TrainerSettings
from distro_node.node.storage.blob_store import BlobStore
from distro_node.node.telemetry.telemetry import Telemetry
from distro_node.node.training.client import TrainerSpec
from distro_node.node.training.supervisor import TrainerSupervisor
from distro_node.protocol.member.effects import Apply
from distro_node.protocol.wire.messages import Record, RecordId
from simulation.swarm import identity
from trainer.faulty_trainer import DEAD, command_of
from trainer.support import make_manifest

# Two real trainers are started.
pytestmark = pytest.mark.slow


class Member:
    """What the supervisor of a trainer reports to: it wants round 1 applied."""

    def __init__(self, root: Path) -> None:
        self.manifest, self.initial = make_manifest(root / "blobs")
        self.telemetry = Telemetry(identity(0).peer)
        self.applied_rounds: list[int] = []
        self.done = trio.Event()
        snapshots: Any = self
        self.supervisor = TrainerSupervisor(
            manifest=self.manifest,
            spec=TrainerSpec(
                self.manifest.encode(),
                root / "blobs",
                TrainerSettings(device="cpu", threads=1),
            ),
            store=BlobStore(root / "blobs"),
            snapshots=snapshots,
            momentum=root / "momentum",
            telemetry=self.telemetry,
            evaluate_every=1000,
        )

    async def best(self, *, certified_only: bool) -> SimpleNamespace:
        return SimpleNamespace(round=0)

    def chunks(self, snapshot: object) -> object:
        return self.initial

    def entry(self, snapshot: object) -> None:
        return None

    def loaded(self, round: int, fingerprint: int, snapshot: object) -> None:
        record = Record(1, RecordId(bytes(32)), fingerprint, (), (), (), None)
        self.supervisor.apply(Apply(record, (), own_counted=False, snapshot_due=False))

    async def applied(self, round: int, *_: object) -> None:
        self.applied_rounds.append(round)
        self.done.set()


@pytest.mark.parametrize(
    ("fault", "code"),
    # The twin: one that ends as Python does waits for what never ends, and is killed in the end.
    [("dead", 0), pytest.param("orderly", -9, marks=pytest.mark.soak)],
)
async def test_a_trainer_whose_device_is_dead_ends_at_once_and_another_is_started(
    fault: str, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[trio.Process] = []
    start = trio.lowlevel.open_process

    async def start_first_faulty(command: Any, **options: Any) -> trio.Process:
        words = command if started else command_of(fault, command)
        started.append(await start(words, **options))
        return started[-1]

    monkeypatch.setattr(trio.lowlevel, "open_process", start_first_faulty)
    member = Member(tmp_path)
    reports: Any = member
    async with trio.open_nursery() as nursery:
        nursery.start_soon(member.supervisor.run, reports)
        with trio.fail_after(500):
            await member.done.wait()
        # One that failed, and one that works.
        assert [process.returncode for process in started] == [code, None]
        nursery.cancel_scope.cancel()
    assert member.applied_rounds == [1]
    (event,) = member.telemetry.events
    assert f"internal: RuntimeError: {DEAD}" in event.text
