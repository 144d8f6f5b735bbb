"""The client against real trainer processes: a whole session, deaths, cancellations, refusals."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
import trio
from distro_node.crypto.hashing import ContentId
from distro_node.node.settings.components import TrainerSettings
from distro_node.node.storage.blob_store import BlobStore
from distro_node.node.trainer.audit_score import AssignedSample
from distro_node.node.training import trainer_pipe
from distro_node.node.training.client import (
    TrainerClient,
    TrainerDied,
    TrainerSpec,
    open_trainer,
)
from distro_node.node.training.frames import ExpectedUpdate, StopSteps
from distro_node.node.util.system_errors import is_shortage
from distro_node.protocol.wire.blobs import decode_blob_list
from distro_node.protocol.wire.manifest import Manifest, RoundSpec
from trainer.faulty_trainer import DEAD, command_of
from trainer.support import make_manifest, make_session, refused

RATE = 2.0**-8

# Starting a trainer takes seconds, and every test here starts one.
pytestmark = pytest.mark.slow


def spec_of(root: Path, manifest: Manifest, device: str = "cpu") -> TrainerSpec:
    """Return a spec whose trainer writes, besides blobs, to `out` next to them."""
    return TrainerSpec(
        manifest=manifest.encode(),
        blobs=root,
        settings=TrainerSettings(device=device, threads=1),
        writable=(root.parent / "out",),
    )


def ended(pid: int) -> bool:
    """Whether a process has ended, including one not yet reaped."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


async def until_ended(pid: int) -> None:
    with trio.fail_after(60):
        while not ended(pid):  # noqa: ASYNC110 (not our child: nothing would wake us)
            await trio.sleep(0.02)


async def test_local_steps_end_early_for_the_round_that_is_named(tmp_path: Path) -> None:
    root = tmp_path / "blobs"
    manifest, chunks = make_manifest(root, rounds=RoundSpec(local_steps=4))
    async with open_trainer(spec_of(root, manifest)) as trainer:
        await trainer.load(chunks)
        whole = await trainer.train(1, range(8))
        # Both come through the same pipe, so the first step of the round finds it.
        await trainer.stop_steps(StopSteps(2))
        assert (await trainer.train(2, range(8))).tokens == whole.tokens // 4 == 2 * 32
        assert (await trainer.train(3, range(8))).tokens == whole.tokens


@pytest.mark.usefixtures("cold_trainers")
async def test_a_whole_life(tmp_path: Path) -> None:
    root = tmp_path / "blobs"
    manifest, chunks = make_manifest(root)
    twin = make_session(root)
    async with open_trainer(spec_of(root, manifest)) as trainer:
        assert trainer.device == "cpu"
        # Ctrl-C is for the daemon to handle.
        os.kill(trainer.pid, signal.SIGINT)

        with refused("bad_snapshot"):
            await trainer.load([ContentId(bytes(32))])
        start = await trainer.load(chunks)

        trained = await trainer.train(1, [3, 1], audits=True)
        expected = twin.train(1, [3, 1], audits=True)
        assert trained.body == expected.body
        assert trained.loss == pytest.approx(expected.loss)
        assert (trained.tokens, trained.coefficients) == (64, twin.layout.coefficients)
        other = make_session(root).train(1, [5]).body
        stored = BlobStore(root).put(other)
        async with trio.open_nursery() as nursery:
            # During a call; what is not in the store is left to the step.
            nursery.start_soon(trainer.evaluate, 10)
            for update in (stored, ContentId(bytes(32))):
                nursery.start_soon(trainer.expect, ExpectedUpdate(1, update))
        assert twin.audit(1, AssignedSample(sample=7, share=4))
        seconds = await trainer.audit(1, 7, 4)
        assert seconds is not None
        assert seconds > 0
        # The result is given only once.
        assert await trainer.audit(1, 7, 4) is None
        again = await trainer.run_reaudit(1, other, [5, 6], [9], 1)
        judged = await trainer.judge(1, other)
        assert judged == twin.judge(1, other)
        assert judged is not None
        assert [each.squares > 0 for each in again] == [True, True]
        assert again[0].score > again[1].score
        assert await trainer.judge(1, other) is None
        applied = await trainer.apply(1, [other, trained.body], RATE, True, [2, 1])
        step = [trained.body, other]
        assert applied.fingerprint == twin.apply(1, step, RATE, True, [1, 2])
        assert applied.fingerprint != start

        with refused("bad_data"):
            await trainer.train(3, [10**9])
        assert await trainer.evaluate(10) == pytest.approx(twin.computation.evaluate(10))

        snapshot = await trainer.snapshot()
        blobs = decode_blob_list(snapshot.blob_list, "snapshot", snapshot.size)
        assert twin.load(blobs.chunks) == applied.fingerprint
        assert snapshot.size == 4 * manifest.elements

        out = tmp_path / "out"
        await trainer.save_momentum(out / "momentum")
        assert await trainer.load_momentum(out / "momentum")
        assert not await trainer.load_momentum(out / "nothing")

        await trainer.export(out / "model")
        assert (out / "model" / "model.safetensors").stat().st_size > snapshot.size

        memory = await trainer.memory()
        assert memory["process_bytes"] > 50_000_000
        assert memory["device_bytes"] == 0
    assert ended(trainer.pid)
    with pytest.raises(TrainerDied, match="closed"):
        await trainer.memory()
    with pytest.raises(TrainerDied, match="closed"):
        await trainer.expect(ExpectedUpdate(1, stored))


async def frozen_call(trainer: TrainerClient, size: int) -> None:
    """Cancel a call that a stopped trainer cannot answer."""
    os.kill(trainer.pid, signal.SIGSTOP)
    with trio.move_on_after(0.05) as scope:
        await trainer.apply(1, [bytes(size)] * 3, RATE, False, [1] * 3)
    assert scope.cancelled_caught
    os.kill(trainer.pid, signal.SIGCONT)


@pytest.mark.usefixtures("cold_trainers")
async def test_cancelled_calls_leave_it_usable_and_a_stuck_one_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest, chunks = make_manifest(tmp_path)
    async with open_trainer(spec_of(tmp_path, manifest)) as trainer:
        start = await trainer.load(chunks)
        for size in (10, 100_000, 10, 3_000_000):
            # The short request is sent whole and answered late; the long ones are cut within a frame.
            await frozen_call(trainer, size)
            assert await trainer.load(chunks) == start
        body = (await trainer.train(1, [0])).body
        # Nothing that the cancelled calls staged is left.
        applied = await trainer.apply(1, [body], RATE, True, [1])
        assert applied.fingerprint != start

        async with trio.open_nursery() as nursery:
            # Calls from several tasks queue up.
            for sequences in (1, 2, 3):
                nursery.start_soon(trainer.evaluate, sequences)

        monkeypatch.setattr(trainer_pipe, "_EXIT_SECONDS", 0.2)
        os.kill(trainer.pid, signal.SIGSTOP)
    assert ended(trainer.pid)


@pytest.mark.usefixtures("cold_trainers")
@pytest.mark.skipif(
    not Path("/proc/self/autogroup").exists(), reason="the kernel has no autogroups"
)
async def test_a_trainer_that_yields_loads_at_full_priority(tmp_path: Path) -> None:
    manifest, chunks = make_manifest(tmp_path)
    spec = replace(spec_of(tmp_path, manifest), yields=True)

    def niceness(pid: int) -> str:
        return Path(f"/proc/{pid}/autogroup").read_text().split()[-1]

    async with open_trainer(spec) as trainer:
        await trainer.load(chunks)
        assert niceness(trainer.pid) == "0"
        await trainer.evaluate(1)
        assert niceness(trainer.pid) == "19"


@pytest.mark.usefixtures("cold_trainers")
async def test_a_killed_trainer_is_reported(tmp_path: Path) -> None:
    manifest, chunks = make_manifest(tmp_path)
    # Around the whole block, to show that the exception arrives unchanged, in no group.
    with pytest.raises(TrainerDied, match="signal 9"):  # noqa: PT012
        async with open_trainer(spec_of(tmp_path, manifest)) as trainer:
            await trainer.load(chunks)
            # Stopped first, so that it certainly has not answered when it dies.
            os.kill(trainer.pid, signal.SIGSTOP)
            with trio.move_on_after(0.05):
                await trainer.train(1, [0])
            os.kill(trainer.pid, signal.SIGKILL)
            with pytest.raises(TrainerDied):
                await trainer.train(1, [0])
            await trainer.train(1, [0])


@pytest.mark.parametrize(
    ("fault", "code"),
    # The twin: one that ends as Python does waits for what never ends, and is killed in the end.
    [("dead", 0), pytest.param("orderly", -9, marks=pytest.mark.soak)],
)
async def test_a_trainer_whose_device_is_dead_ends_at_once(
    fault: str, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a GPU is after an illegal access. The supervisor starts another trainer."""
    started: list[trio.Process] = []
    start = trio.lowlevel.open_process

    async def start_faulty(command: Any, **options: Any) -> trio.Process:
        started.append(await start(command_of(fault, command), **options))
        return started[-1]

    monkeypatch.setattr(trio.lowlevel, "open_process", start_faulty)
    manifest, chunks = make_manifest(tmp_path)
    with refused("internal", f"RuntimeError: {DEAD}"):
        async with open_trainer(spec_of(tmp_path, manifest)) as trainer:
            await trainer.load(chunks)
            await trainer.apply(1, [], RATE, False, [])
    assert [process.returncode for process in started] == [code]


PARENT = """
import sys, trio
from pathlib import Path
from distro_node.node.settings.components import TrainerSettings
from distro_node.node.training.client import TrainerSpec, open_trainer
from distro_node.protocol.wire.blobs import decode_blob_list

async def main():
    root = Path(sys.argv[1])
    spec = TrainerSpec(
        (root / "manifest").read_bytes(), root / "blobs", TrainerSettings(device="cpu", micro_batch=1)
    )
    chunks = bytes.fromhex(sys.argv[2])
    async with open_trainer(spec) as trainer:
        await trainer.load([chunks[i : i + 32] for i in range(0, len(chunks), 32)])
        print(trainer.pid, flush=True)
        await trainer.train(1, [0] * 1_000_000)

trio.run(main)
"""


async def test_a_trainer_does_not_outlive_its_parent(tmp_path: Path) -> None:
    """Not even if the parent is killed while the trainer computes."""
    manifest, chunks = make_manifest(tmp_path / "blobs")
    (tmp_path / "manifest").write_bytes(manifest.encode())
    parent = subprocess.Popen(  # noqa: ASYNC220 (returns at once)
        [sys.executable, "-c", PARENT, str(tmp_path), b"".join(chunks).hex()],
        stdout=subprocess.PIPE,
    )
    try:
        assert parent.stdout is not None
        pid = int(await trio.to_thread.run_sync(parent.stdout.readline))
        assert not ended(pid)
    finally:
        parent.kill()
        parent.communicate()
    await until_ended(pid)


def test_the_node_process_imports_no_torch() -> None:
    program = (
        "import sys, distro_node.node.training.client; "
        "sys.exit(any(name in sys.modules for name in ('torch', 'transformers', 'safetensors')))"
    )
    assert subprocess.run([sys.executable, "-P", "-c", program], check=False).returncode == 0


@pytest.mark.parametrize("lacking", ["pipe", "thread"])
async def test_a_start_that_the_system_refuses_leaves_no_file_open(
    lacking: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The supervisor tries again: each try would take more of what there is too little of."""
    opened: list[int] = []
    real = os.pipe

    def pipe() -> tuple[int, int]:
        if lacking == "pipe" and opened:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        ends = real()
        opened.extend(ends)
        return ends

    def start(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(os, "pipe", pipe)
    if lacking == "thread":
        monkeypatch.setattr(threading.Thread, "start", start)
    with pytest.raises(OSError, match=r"open files|new thread") as caught:
        async with trainer_pipe.open_pipe((), {}):
            pass
    assert is_shortage(caught.value)
    for descriptor in opened:
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(descriptor)
