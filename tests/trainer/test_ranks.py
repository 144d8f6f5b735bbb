"""Several ranks are one member: its updates are equal within float rounding, and all that is shared
to the bit."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from distro_node.crypto.hashing import ContentId
from distro_node.node.storage.blob_store import BlobStore
from distro_node.node.trainer.audit_score import AssignedSample
from distro_node.node.trainer.models import snapshot
from distro_node.node.trainer.optimizer.mixed_precision import MixedPrecision
from distro_node.node.trainer.ranks import part as rank_part
from distro_node.node.trainer.ranks.momentum import load_part, remove_others, save_part
from distro_node.node.trainer.training_session import TrainingSession
from distro_node.node.training.memory_model import Workload, needs
from distro_node.node.training.memory_options import MemoryOptions, Precision, StateOptions
from distro_node.protocol.codec.update import decode_update, encode_update
from distro_node.protocol.committee.aggregate import Aggregate, Momentum, encode_aggregate, summed
from distro_node.protocol.committee.sections import sections
from distro_node.protocol.committee.sign_vote import decode_part
from distro_node.protocol.wire import blobs
from distro_node.protocol.wire.manifest import OptimizerSpec, Step
from distro_node.protocol.wire.work_specs import CommitteesSpec
from trainer.ranks import Together
from trainer.support import CPU, TINY_LLAMA, make_manifest, opened, refused

RATE = 2.0**-8

# Blocks of 16: three block rows in most matrices, so that three ranks have one each, and two have
# unequal numbers.
BLOCKS = OptimizerSpec(chunk=16, weight_decay=0.1, damping=0.1, smoothing=0.5)
TWO_LAYERS = {**TINY_LLAMA, "hidden_size": 48, "num_hidden_layers": 2, "tie_word_embeddings": False}


def coefficients(sessions: Sequence[Any]) -> dict[tuple[str, int], torch.Tensor]:
    """Return the momentum of every tensor by its name and its block."""
    found = {}
    for session in sessions:
        place = session.part.place
        table, tensors = place.plan.table_of(place.rank), session.part.layout.tensors
        for spec, tensor, momentum in zip(table, tensors, session.optimizer.momentum, strict=True):
            name, _, first = spec.name.partition("@")
            start = int(first or 0) // tensor.block_rows * tensor.across
            found |= {(name, start + index): row for index, row in enumerate(momentum)}
    return found


def assert_close_momentum(ours: Sequence[Any], theirs: Any) -> None:
    """Compare except for the few coefficients that only one of them has sent: of two that are equal
    except for rounding, either may be sent."""
    expected, found = coefficients([theirs]), coefficients(ours)
    assert expected.keys() == found.keys()
    largest = max(float(row.abs().max()) for row in expected.values())
    near = [
        torch.isclose(row, found[key], rtol=0, atol=1e-4 * largest) for key, row in expected.items()
    ]
    assert float(torch.cat(near).float().mean()) > 0.999


@pytest.mark.parametrize(
    ("size", "preconditioner", "step"),
    [(2, "none", "sign"), (3, "orthogonal", "sign"), (3, "muon", "scaled")],
)
def test_ranks_are_one_member(tmp_path: Path, size: int, preconditioner: Any, step: Step) -> None:
    """Rounds with some samples for each rank, with fewer samples than ranks, and with none; a missed
    round; a stranger's update in every step."""
    optimizer = dataclasses.replace(BLOCKS, preconditioner=preconditioner, step=step)
    manifest, chunks = make_manifest(tmp_path, config=TWO_LAYERS, optimizer=optimizer)
    alone = TrainingSession(manifest, BlobStore(tmp_path), CPU, micro_batch=4)
    stranger = TrainingSession(manifest, BlobStore(tmp_path), CPU)
    together = Together(tmp_path, manifest, chunks, size)
    assert {alone.load(chunks), stranger.load(chunks)} == set(together.call("load", chunks))
    for round_, count in enumerate((8, 1, 7, 0, 2), 1):
        samples = range(20 * round_, 20 * round_ + count)
        ours, theirs = together.train(round_, samples), alone.train(round_, samples)
        assert ours.tokens == theirs.tokens == 32 * count
        assert ours.loss == pytest.approx(theirs.loss, rel=1e-5)
        assert ours.coefficients == theirs.coefficients
        assert same_signs(alone, ours.body, theirs.body) > 0.99
        # One of the two is the one that the swarm counts.
        counted = round_ != 3
        bodies = [stranger.train(round_, [round_]).body, *([theirs.body] if counted else [])]
        weights = [2, 1][: len(bodies)]
        fingerprint = alone.apply(round_, bodies, RATE, counted, weights)
        assert together.apply(round_, bodies[::-1], RATE, counted, weights[::-1]) == fingerprint
        assert stranger.apply(round_, bodies, RATE, True, weights) == fingerprint
        assert_close_momentum(together.sessions, alone)
    assert together.call("snapshot") == [alone.snapshot()] * size
    assert together.call("computation.evaluate", 7)[0] == pytest.approx(
        alone.computation.evaluate(7), rel=1e-5
    )


def test_ranks_audit_as_one(tmp_path: Path) -> None:
    """Rank 0 returns the same score of an update as a single process; one of the ranks computes the
    sample."""
    manifest, chunks = make_manifest(tmp_path, config=TWO_LAYERS, optimizer=BLOCKS)
    alone = opened((manifest, chunks), tmp_path, micro_batch=4)
    together = Together(tmp_path, manifest, chunks, 3)
    for round_ in (1, 2):
        audit = AssignedSample(sample=90 + round_, share=4)
        body = alone.train(round_, range(5), audits=True).body
        found, *_ = together.call("train", round_, range(5), audits=True)
        assert same_signs(alone, found.body, body) > 0.99
        assert alone.audit(round_, audit)
        assert together.call("audit", round_, audit) == [True] * 3
        expected = alone.judge(round_, body)
        found, *others = together.call("judge", round_, body)
        assert expected is not None
        for name in ("full_sample", "first_half"):
            ours, one = getattr(found, name), getattr(expected, name)
            assert ours.squares == pytest.approx(one.squares, rel=0.02)
            assert ours.score == pytest.approx(one.score, abs=0.3)
        assert others == [None, None]


def test_ranks_send_sign_votes_as_one_member(tmp_path: Path) -> None:
    """With committees: the same signs of nearly all coefficients, and the same step to the bit."""
    optimizer = dataclasses.replace(
        BLOCKS, preconditioner="muon", step="scaled", top_k=16, outlier_filter=False
    )
    manifest, chunks = make_manifest(tmp_path, config=TWO_LAYERS, optimizer=optimizer)
    manifest = dataclasses.replace(manifest, committees=CommitteesSpec(rotation_steps=3))
    alone = opened((manifest, chunks), tmp_path, micro_batch=4)
    together = Together(tmp_path, manifest, chunks, 3)
    (whole,) = sections(alone.layout, 1)
    momentum = Momentum(whole)
    for turn, count in enumerate((8, 1, 0, 5)):
        round_ = 2 * turn + 1
        samples = range(20 * round_, 20 * round_ + count)
        ours, theirs = together.train(round_, samples), alone.train(round_, samples)
        assert ours.coefficients == theirs.coefficients
        told = decode_part(whole, 3, turn, theirs.body)
        pairs = zip(told, decode_part(whole, 3, turn, ours.body), strict=True)
        assert np.mean(np.concatenate([(a == b).ravel() for a, b in pairs])) > 0.99
        momentum.add(summed(whole, 3, turn, [(told, 1)]), 3, turn)
        aggregate = encode_aggregate(whole, Aggregate(0, 1, (True,), momentum.take_strongest(turn)))
        fingerprint = alone.apply(round_ + 1, [aggregate], RATE, False, [1])
        assert together.apply(round_ + 1, [aggregate], RATE, False, [1]) == fingerprint


def same_signs(session: TrainingSession, ours: bytes, theirs: bytes) -> float:
    """Return the share of the coefficients of one update that the other also contains."""

    def parts(body: bytes) -> set[tuple[int, ...]]:
        update, found = decode_update(session.layout, body), set()
        for index, (positions, signs) in enumerate(zip(*vars(update).values(), strict=True)):
            blocks = np.arange(len(positions))[:, None].repeat(positions.shape[1], axis=1)
            columns = (each.ravel().tolist() for each in (blocks, positions, signs))
            found |= {(index, *row) for row in zip(*columns, strict=True)}
        return found

    return len(parts(ours) & parts(theirs)) / len(parts(ours))


def test_masked_targets_weigh_as_in_one_process(tmp_path: Path) -> None:
    """The mean is over all targets in the share, not a mean of each rank's mean."""
    manifest, chunks = make_manifest(tmp_path, optimizer=BLOCKS)
    alone = opened((manifest, chunks), tmp_path, micro_batch=1)
    together = Together(tmp_path, manifest, chunks, 2, micro_batch=1)
    for session in (alone, *together.sessions):
        session.computation.task = Unequal(session.task)  # type: ignore[assignment]
    ours, theirs = together.train(1, range(6)), alone.train(1, range(6))
    assert ours.tokens == theirs.tokens < 6 * 32
    assert ours.loss == pytest.approx(theirs.loss, rel=1e-5)
    assert same_signs(alone, ours.body, theirs.body) > 0.99
    assert_close_momentum(together.sessions, alone)


class Unequal:
    """A task in which a sample counts more tokens the higher its first one is."""

    def __init__(self, task: Any) -> None:
        self._task = task

    def batch(self, samples: Any) -> Any:
        return self._task.batch(samples)

    def loss(self, model: Any, batch: Any) -> Any:
        loss = self._task.loss(model, batch)
        kept = int(next(iter(batch.values()))[0, 0]) % 5 + 1
        return dataclasses.replace(loss, total=loss.total * kept / 8, count=loss.count * kept // 8)


def test_more_ranks_than_there_are_bands(tmp_path: Path) -> None:
    """With blocks of 64 a tiny model has one in most tensors: one rank owns nothing."""
    manifest, chunks = make_manifest(tmp_path)
    together = Together(tmp_path, manifest, chunks, 15)
    alone = opened((manifest, chunks), tmp_path, micro_batch=4)
    assert any(not session.part.parameters for session in together.sessions)
    ours, theirs = together.train(1, range(3)), alone.train(1, range(3))
    assert same_signs(alone, ours.body, theirs.body) > 0.99
    assert together.apply(1, [ours.body], RATE, True) == alone.apply(1, [ours.body], RATE, True)
    assert together.call("snapshot")[0] == alone.snapshot()


def test_an_own_update_that_the_audit_leaves_out_is_back_in_every_rank(tmp_path: Path) -> None:
    optimizer = dataclasses.replace(BLOCKS, damping=0.0)
    manifest, chunks = make_manifest(tmp_path, optimizer=optimizer)
    together = Together(tmp_path, manifest, chunks, 2)
    body = together.train(1, range(4)).body
    before = []
    for session in together.sessions:
        session.optimizer.refund(1)
        before.append([momentum.clone() for momentum in session.optimizer.momentum])
        session.optimizer.take(1)
    layout = together.sessions[0].layout
    decoded = decode_update(layout, body)
    opposite = encode_update(layout, decoded.positions, [-signs for signs in decoded.signs])
    together.apply(1, [opposite, body, opposite, opposite], RATE, True)
    for session, expected in zip(together.sessions, before, strict=True):
        assert session.left_out == 1
        assert all(map(torch.equal, session.optimizer.momentum, expected))


def test_snapshots_in_parts_are_the_same_chunks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Written by several in turn and read by one, and vice versa, with chunks that begin in the
    middle of bands."""
    manifest, chunks = make_manifest(tmp_path, optimizer=BLOCKS)
    together = Together(tmp_path, manifest, chunks, 3)
    alone = opened((manifest, chunks), tmp_path, micro_batch=4)
    body = together.train(1, range(4)).body
    moved = alone.apply(1, [body], RATE, True)
    assert together.apply(1, [body], RATE, True) == moved
    for module in (rank_part, snapshot):
        monkeypatch.setattr(module, "_CHUNK_ITEMS", 1000)
    for module in (blobs, snapshot):
        monkeypatch.setattr(module, "CHUNK_BYTES", 4000)
    written = together.call("snapshot")
    assert written == [alone.snapshot()] * 3
    alone.apply(2, [body], RATE, True)
    assert alone.load(written[0].chunks) == moved
    together.apply(2, [body], RATE, True)
    assert set(together.call("load", written[0].chunks)) == {moved}


def test_a_fault_at_one_rank_is_known_at_all_and_they_go_on(tmp_path: Path) -> None:
    """A snapshot that is none changes nothing; a sample that is missing, and a gradient that is not
    finite, are left out."""
    manifest, chunks = make_manifest(tmp_path, optimizer=BLOCKS)
    together = Together(tmp_path, manifest, chunks, 2)
    before = together.call("snapshot")[0]
    store = BlobStore(tmp_path)
    values = np.frombuffer(store.get(chunks[0]) or b"", "<f4").copy()
    # In a band of the last rank: the first rank's own bands are valid.
    values[-40] = np.nan
    bad = store.put(values.tobytes())
    for wrong in ([bad], [ContentId(bytes(32))], [*chunks, chunks[0]]):
        with refused("bad_snapshot"):
            together.call("load", wrong)
    assert together.call("snapshot")[0] == before
    with refused("bad_data"):
        # The second rank's half contains a sample that does not exist.
        together.train(1, [0, 1, 2, 10**9])
    assert together.train(1, [0, 1, 2, 3]).tokens == 4 * 32
    together.sessions[1].parameters[0].data[:] = torch.nan
    together.train(2, range(4))
    for session in together.sessions:
        assert all(bool(torch.isfinite(each).all()) for each in session.optimizer.momentum)
        assert session.optimizer.steps == 1


def test_a_fault_at_one_rank_is_known_at_all_where_they_agree_on_a_loss_scale(
    tmp_path: Path,
) -> None:
    """In float16. Gradients that are too large at one rank only are computed again at both."""
    manifest, chunks = make_manifest(tmp_path, optimizer=BLOCKS)
    together = Together(tmp_path, manifest, chunks, 2)
    precisions = [MixedPrecision(CPU, torch.float16) for _ in together.sessions]
    for session, precision in zip(together.sessions, precisions, strict=True):
        session.computation.precision = precision
    with refused("bad_data"):
        # The second rank's half contains a sample that does not exist.
        together.train(1, [0, 1, 2, 10**9])
    assert together.train(1, [0, 1, 2, 3]).tokens == 4 * 32
    for precision in precisions:
        precision.scale = 2.0**40
    # The first rank has no sample, and so no gradient that is too large.
    assert together.train(2, [0]).tokens == 32
    assert precisions[0].scale == precisions[1].scale < 2.0**40
    for session in together.sessions:
        assert session.optimizer.steps == 2
    assert together.call("snapshot")[0] == together.call("snapshot")[1]


def test_a_restart_with_another_number_of_ranks_has_the_same_momentum(tmp_path: Path) -> None:
    """From one to three, to two, and back to one; files of an older number are removed."""
    manifest, chunks = make_manifest(tmp_path / "blobs", config=TWO_LAYERS, optimizer=BLOCKS)
    path, spec = tmp_path / "trainer" / "momentum", manifest.optimizer
    alone = opened((manifest, chunks), tmp_path / "blobs", micro_batch=4)
    for round_ in (1, 2):
        alone.train(round_, range(4))
        alone.apply(round_, [], RATE, True)
    expected = coefficients([alone])
    assert not load_part(alone.optimizer, alone.part.place, path, spec)
    save_part(alone.optimizer, alone.part.place, path)
    for size in (3, 2):
        together = Together(tmp_path / "blobs", manifest, chunks, size)
        for session in together.sessions:
            assert load_part(session.optimizer, session.part.place, path, spec)
            assert session.optimizer.steps == 2
            save_part(session.optimizer, session.part.place, path)
        remove_others(together.sessions[0].part.place.division, path)
        assert len([*path.parent.rglob("momentum")]) == size
        found = coefficients(together.sessions)
        assert all(torch.equal(row, found[key]) for key, row in expected.items())
    again = opened((manifest, chunks), tmp_path / "blobs", micro_batch=4)
    assert load_part(again.optimizer, again.part.place, path, spec)
    ours, theirs = again.optimizer, alone.optimizer
    assert all(map(torch.equal, ours.momentum, theirs.momentum))
    assert all(map(torch.equal, ours.second_moment, theirs.second_moment))
    smoothed = ([state.read_all() for state in each.smoothed] for each in (ours, theirs))
    assert all(torch.equal(one, other) and one.any() for one, other in zip(*smoothed, strict=True))

    # One damaged piece invalidates all of it, and nothing is partly read.
    folders = sorted(path.parent.glob("copies-*"))
    spoilt = bytearray((folders[0] / "momentum").read_bytes())
    spoilt[-3] ^= 1
    (folders[0] / "momentum").write_bytes(spoilt)
    fresh = TrainingSession(manifest, BlobStore(tmp_path / "blobs"), CPU, micro_batch=4)
    assert not load_part(fresh.optimizer, fresh.part.place, path, spec)
    assert fresh.optimizer.steps == 0
    assert not any(each.any() for each in fresh.optimizer.momentum)


@pytest.mark.parametrize("precision", ["float32", "int8"])
def test_each_rank_has_the_state_that_the_arithmetic_predicts(
    tmp_path: Path, precision: Precision
) -> None:
    """On CPUs it is the total over all ranks, on GPUs that of the rank with the most."""
    manifest, chunks = make_manifest(tmp_path, config=TWO_LAYERS, optimizer=BLOCKS)
    options = MemoryOptions(state=StateOptions(precision=precision))
    together = Together(tmp_path, manifest, chunks, 2, options=options)
    held = [
        sum(
            part.nbytes
            for states in (session.optimizer.coefficients, *session.optimizer.by_rows.values())
            for state in states
            for part in state.parts().values()
        )
        for session in together.sessions
    ]
    work = dataclasses.replace(Workload.of(manifest), ranks=2)
    for device, expected in (("cpu", sum(held)), ("cuda", max(held))):
        parts = needs(work, device, options).parts
        states = ("momentum", "second moment", "smoothed gradient")
        found = sum(part.device for part in parts if part.name in states)
        assert found == expected


@pytest.mark.parametrize("precision", ["bfloat16", "int8"])
def test_coarse_state_goes_from_one_number_of_ranks_to_another(
    tmp_path: Path, precision: Precision
) -> None:
    """In 8 bits a number may differ by one code."""
    manifest, chunks = make_manifest(tmp_path / "blobs", config=TWO_LAYERS, optimizer=BLOCKS)
    path, spec = tmp_path / "trainer" / "momentum", manifest.optimizer
    options = MemoryOptions(state=StateOptions(precision=precision))
    three = Together(tmp_path / "blobs", manifest, chunks, 3, options=options)
    three.train(1, range(4))
    for session in three.sessions:
        save_part(session.optimizer, session.part.place, path)
    expected = coefficients(three.sessions)
    assert any(bool(row.any()) for row in expected.values())
    two = Together(tmp_path / "blobs", manifest, chunks, 2, options=options)
    for session in two.sessions:
        assert load_part(session.optimizer, session.part.place, path, spec)
        assert session.optimizer.steps == 1
    found = coefficients(two.sessions)
    assert found.keys() == expected.keys()
    for key, row in expected.items():
        near = 0.0 if precision == "bfloat16" else 2 / 127 * float(row.abs().max())
        assert float((found[key] - row).abs().max()) <= near
    body = two.train(2, range(4)).body
    assert two.apply(2, [body], RATE, True) == three.apply(2, [body], RATE, False)
