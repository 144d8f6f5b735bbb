"""Several devices in one trainer, with its real processes: a session, a death, a hang, and refusals."""

from __future__ import annotations

import os
import queue
import signal
import sys
import threading
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any, NoReturn

import psutil
import pytest
import torch
from distro_node.node.settings.components import Split, TrainerSettings
from distro_node.node.settings.setting import to_plain_settings
from distro_node.node.storage.blob_store import BlobStore
from distro_node.node.trainer import worker
from distro_node.node.trainer.audit_score import AssignedSample
from distro_node.node.trainer.models.probe import make_probe
from distro_node.node.trainer.ranks import processes
from distro_node.node.trainer.ranks import worker as ranks_worker
from distro_node.node.trainer.ranks.part import compute_together
from distro_node.node.trainer.ranks.ranks import RankLost, RankOutOfMemory, Ranks
from distro_node.node.trainer.ranks.worker import RankWorker
from distro_node.node.training.client import TrainerDied, TrainerFailed, TrainerSpec, open_trainer
from distro_node.node.training.text_request import TextRequest
from distro_node.protocol.wire.blobs import decode_blob_list
from distro_node.protocol.wire.structure import to_plain
from trainer.ranks import side_by_side
from trainer.support import CPU, TINY_LLAMA, make_manifest, make_session, refused
from trainer.test_client import until_ended
from trainer.test_group_rewards import GROUP, reward_manifest
from trainer.test_ranks import BLOCKS, same_signs

# Private here: `_take_rank`: what a process does that a launcher or rank 0 has started.

RATE = 2.0**-8

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="several devices in one node need Linux"),
]


def spec_of(root: Path, manifest: bytes, device: str, patience: float = 120.0) -> TrainerSpec:
    return TrainerSpec(
        manifest=manifest,
        blobs=root,
        settings=TrainerSettings(device=device, threads=1),
        patience=patience,
        writable=(root.parent / "out",),
    )


def with_settings(spec: TrainerSpec, **changes: Any) -> TrainerSpec:
    return replace(spec, settings=replace(spec.settings, **changes))


@pytest.mark.usefixtures("cold_trainers")
async def test_a_life_and_a_death(tmp_path: Path) -> None:
    root, momentum = tmp_path / "blobs", tmp_path / "out" / "momentum"
    manifest, chunks = make_manifest(root)
    twin = make_session(root)
    async with open_trainer(spec_of(root, manifest.encode(), "cpu,cpu,cpu")) as trainer:
        assert trainer.device == "cpu × 3"
        assert trainer.memory_use.endswith("in each of 3 processes that share it")
        others = psutil.Process(trainer.pid).children()
        assert len(others) == 2
        await trainer.load(chunks)
        # With several devices the result is there at once; a single device must be polled.
        trained = await trainer.train_in_background(1, range(7))
        assert trained is not None
        assert trained.tokens == twin.train(1, range(7)).tokens
        # Requests that rank 0 handles alone, between joint ones.
        await trainer.begin_text(TextRequest(prompt="gradient ", temperature=0, max_tokens=4))
        while await trainer.next_text() is not None:
            pass
        applied = await trainer.apply(1, [trained.body], RATE, True, [1])
        assert applied.fingerprint == twin.apply(1, [trained.body], RATE, True)
        assert (await trainer.snapshot()).blob_list == twin.snapshot().encode()
        await trainer.save_momentum(momentum)
        assert await trainer.load_momentum(momentum)
        memory = await trainer.memory()
        assert memory["process_bytes"] > psutil.Process(trainer.pid).memory_info().rss

        # The node makes no request at this time; it is informed at its next one.
        os.kill(others[1].pid, signal.SIGKILL)
        await until_ended(others[0].pid)
        with pytest.raises(
            TrainerDied, match=r"its rank 2, on cpu, was ended by signal 9 \(out of"
        ):
            await trainer.train(2, range(7))
    for process in others:
        await until_ended(process.pid)


@pytest.mark.usefixtures("cold_trainers")
async def test_a_life_in_shards_until_one_hangs(tmp_path: Path) -> None:
    """FSDP2, with a model of tied weights, some of whose matrices torch would cut through blocks."""
    root = tmp_path / "blobs"
    model = {**TINY_LLAMA, "num_hidden_layers": 2}
    manifest, chunks = make_manifest(root, config=model, optimizer=BLOCKS)
    twin = make_session(root, config=model, optimizer=BLOCKS)
    spec = with_settings(
        spec_of(root, manifest.encode(), "cpu,cpu", patience=10.0), split=Split.SHARDS
    )
    async with open_trainer(spec) as trainer:
        (other,) = psutil.Process(trainer.pid).children()
        await trainer.load(chunks)
        for round_, count in enumerate((7, 1, 0), 1):
            ours = await trainer.train(round_, range(count), audits=True)
            theirs = twin.train(round_, range(count), audits=True)
            audited = await trainer.audit(round_, 50, 4)
            assert (audited is not None) == twin.audit(round_, AssignedSample(sample=50, share=4))
            assert ours.tokens == theirs.tokens
            judged: Any = await trainer.judge(round_, theirs.body)
            expected: Any = twin.judge(round_, theirs.body)
            assert (judged is None) == (expected is None) == (count == 0)
            for part in () if judged is None else ("full_sample", "first_half"):
                score = getattr(expected, part).score
                assert getattr(judged, part).score == pytest.approx(score, abs=0.3)
            assert ours.loss == pytest.approx(theirs.loss, rel=1e-5)
            assert same_signs(twin, ours.body, theirs.body) > 0.99
            applied = await trainer.apply(round_, [ours.body], RATE, True, [1])
            assert applied.fingerprint == twin.apply(round_, [ours.body], RATE, True)
        assert await trainer.evaluate(5) == pytest.approx(twin.computation.evaluate(5), rel=1e-5)
        written = await trainer.snapshot()
        assert written.blob_list == twin.snapshot().encode()
        chunks = decode_blob_list(written.blob_list, "snapshot", written.size).chunks
        fingerprint = await trainer.load(chunks)
        assert fingerprint == twin.load(chunks)
        with pytest.raises(TrainerFailed, match="no device has all of it"):
            await trainer.begin_text(TextRequest(prompt="gradient ", temperature=0, max_tokens=4))

        os.kill(other.pid, signal.SIGSTOP)
        with pytest.raises(
            TrainerDied, match=r"the devices of this node lost contact with each other: .*10000ms"
        ):
            await trainer.train(4, range(4))
    await until_ended(other.pid)


async def test_completions_are_sampled_in_shards_of_a_model_with_uneven_shares(
    tmp_path: Path,
) -> None:
    """Each prompt takes many passes of all ranks. One rank has three prompts, the other two."""
    root = tmp_path / "blobs"
    model = {**TINY_LLAMA, "num_hidden_layers": 2}
    of_model, chunks = make_manifest(root, config=model, optimizer=BLOCKS)
    manifest = replace(
        reward_manifest(root)[0],
        model=model,
        parameters=of_model.parameters,
        initial=of_model.initial,
        optimizer=BLOCKS,
    )
    spec = spec_of(root, manifest.encode(), "cpu,cpu", patience=30.0)
    spec = with_settings(spec, split=Split.SHARDS, micro_batch=4)
    async with open_trainer(spec) as trainer:
        await trainer.load(chunks)
        trained = await trainer.train(1, range(5))
        assert trained.tokens == 5 * GROUP
        assert 0 <= await trainer.evaluate(3) <= 1 + 1e-6


@pytest.mark.parametrize(
    "split", [pytest.param(Split.COPIES, marks=pytest.mark.soak), Split.SHARDS]
)
async def test_too_little_memory_is_reported_by_all_together(tmp_path: Path, split: Split) -> None:
    """With either split, nothing fits into so little."""
    manifest, _ = make_manifest(tmp_path)
    spec = spec_of(tmp_path, manifest.encode(), "cpu,cpu")
    with refused("model_too_large", r"has 65536 .* free"):
        async with open_trainer(with_settings(spec, split=split, memory=1 << 16)):
            pytest.fail("it does not fit")


async def test_a_device_that_is_not_there_is_reported(tmp_path: Path) -> None:
    """Also to the ranks that have their device, which would wait for it."""
    manifest, _ = make_manifest(tmp_path)
    with refused("no_device", "no device 'cuda:7' here"):
        async with open_trainer(spec_of(tmp_path, manifest.encode(), "cpu,cuda:7")):
            pytest.fail("it is not there")


def test_a_rank_that_cannot_open_the_model_says_why_and_the_others_do_not_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though all of them would exchange parameters next, to prove the model."""
    manifest, _ = make_manifest(tmp_path)
    manifest = replace(manifest, probe=make_probe(manifest, BlobStore(tmp_path)))
    new: Any = torch.distributed
    stores = new.HashStore(), new.HashStore()
    here = threading.local()

    def connect(store: object, rank: int, size: int, *_: object) -> Ranks:
        here.rank = rank
        groups = [new.ProcessGroupGloo(each, rank, size, timedelta(seconds=20)) for each in stores]
        return Ranks(rank, size, CPU, *groups)

    def check(*_: object) -> None:
        if here.rank == 1:
            raise TrainerFailed("no_device", "this device rounds differently")

    def end(reason: str, _: int | None) -> NoReturn:
        raise AssertionError(reason)

    monkeypatch.setattr(ranks_worker, "connect_ranks", connect)
    monkeypatch.setattr(worker, "check_exactness", check)
    # It would hold for all tests of this process.
    monkeypatch.setattr(torch, "set_num_threads", lambda _: None)
    spec = spec_of(tmp_path, manifest.encode(), "cpu")
    arguments = {
        "manifest": spec.manifest,
        "blobs": str(spec.blobs),
        "settings": to_plain_settings(spec.settings),
        "policy": to_plain(spec.policy, named=True),
    }

    def take(rank: int) -> str:
        with refused("no_device", "this device rounds") as told:
            RankWorker(end, 20.0)._take_rank(new.HashStore(), rank, 2, "cpu", arguments)
        return told[0]

    assert len(set(side_by_side(take, range(2)))) == 1


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (RankOutOfMemory("no room"), "ran out of memory"),
        (RankLost("gone"), "ended with exit code 1"),
        (ValueError("a bug"), "ended with exit code 1"),
    ],
)
def test_why_a_rank_ended_is_reported(error: Exception, reason: str) -> None:
    told: queue.Queue[tuple[str, bool]] = queue.Queue()

    def end(reason: str, out_of_memory: bool) -> NoReturn:
        told.put((reason, out_of_memory))
        while True:
            threading.Event().wait()

    def follow(rank: int, meeting: Path) -> None:
        raise error

    processes.RankProcesses(["cuda:4", "cuda:5"], end).start(follow)
    expected = f"its rank 1, on cuda:5, {reason}", isinstance(error, RankOutOfMemory)
    assert told.get(timeout=60) == expected


def test_without_memory_a_pass_of_all_ends_where_it_is() -> None:
    """With shards the others are in the middle of the pass."""

    def compute() -> None:
        raise MemoryError

    with pytest.raises(RankOutOfMemory):
        compute_together(compute)


def test_all_without_a_gpu_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    # Counted in a process that can be forked afterwards.
    assert processes.count_gpus() == torch.cuda.device_count()
    monkeypatch.setattr(processes, "count_gpus", lambda: 2)
    assert processes.devices_of("all") == ["cuda:0", "cuda:1"]
    monkeypatch.setattr(processes, "count_gpus", lambda: 0)
    with refused("no_device", "this computer has none"):
        processes.devices_of("all")


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("split", [Split.COPIES, Split.SHARDS])
async def test_gpus_are_one_member(tmp_path: Path, split: Split) -> None:
    """With any number: everything shared has the same bits as in one process on the CPU."""
    root = tmp_path / "blobs"
    model = {**TINY_LLAMA, "hidden_size": 64, "num_hidden_layers": 2}
    manifest, chunks = make_manifest(root, config=model, optimizer=BLOCKS)
    twin = make_session(root, config=model, optimizer=BLOCKS)
    spec = with_settings(spec_of(root, manifest.encode(), "all"), split=split)
    async with open_trainer(spec) as trainer:
        await trainer.load(chunks)
        for round_, count in enumerate((8, 1, 0, 5), 1):
            ours = await trainer.train(round_, range(count))
            theirs = twin.train(round_, range(count))
            assert (ours.tokens, len(ours.body)) == (theirs.tokens, len(theirs.body))
            bodies = [ours.body, theirs.body]
            applied = await trainer.apply(round_, bodies, RATE, True, [1, 2])
            assert applied.fingerprint == twin.apply(round_, bodies, RATE, True, [1, 2])
        assert (await trainer.snapshot()).blob_list == twin.snapshot().encode()
