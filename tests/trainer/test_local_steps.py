"""A member's own steps: what they move takes the gradient's place, and the shared parameters come back
to the bit."""

from __future__ import annotations

import dataclasses
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from distro_node.node.storage.blob_store import BlobStore
from distro_node.node.trainer.optimizer.background_gradient import BackgroundGradient
from distro_node.node.trainer.optimizer.local_steps import LocalSteps
from distro_node.node.trainer.optimizer.optimizer import LocalOptimizer
from distro_node.node.trainer.optimizer.orthogonal import MUON, orthogonalise
from distro_node.node.trainer.training_session import TrainingSession
from distro_node.node.training.errors import TrainerFailed
from distro_node.node.training.local_policy import Clipping, LocalPolicy
from distro_node.node.training.memory_model import Workload, needs
from distro_node.node.training.memory_options import MemoryOptions, Precision, StateOptions
from distro_node.protocol.codec.schedule import learning_rate
from distro_node.protocol.wire.manifest import OptimizerSpec, RoundSpec, ScheduleSpec
from trainer.exactness import assert_equal_bits, bits_of
from trainer.ranks import Together
from trainer.support import CPU, TINY_LLAMA, make_manifest, make_session, opened, refused

# Private here: `_local_steps`: the inner optimizer, whose rates and times are noted.

# Blocks of 16, so that most matrices have several.
SPEC = OptimizerSpec(
    chunk=16, preconditioner="none", momentum=0.9, step="scaled", outlier_filter=False
)
FOUR = RoundSpec(local_steps=4)
TWO = RoundSpec(local_steps=2)


def session_of(root: Path, rounds: RoundSpec = FOUR, **changes: Any) -> TrainingSession:
    return make_session(root, optimizer=SPEC, rounds=rounds, **changes)


def copies(session: TrainingSession) -> list[torch.Tensor]:
    return [parameter.detach().clone() for parameter in session.parameters]


def test_one_step_a_round_is_what_it_was(tmp_path: Path) -> None:
    """The gradient reaches the momentum unchanged, and nothing is kept for steps."""
    spec = OptimizerSpec()
    session = make_session(tmp_path, optimizer=spec)
    alone = LocalOptimizer(session.layout, session.parameters, spec)
    for round_ in (1, 2):
        session.computation.gradient(round_, [3, 4, 5])
        alone.accumulate([parameter.grad for parameter in session.parameters])
        alone.take(round_)
        session.train(round_, [3, 4, 5])
    assert_equal_bits(bits_of(session.optimizer.momentum), bits_of(alone.momentum))


def by_hand(session: TrainingSession, batches: list[list[int]], rate: float) -> list[torch.Tensor]:
    """Return what Muon by blocks of 16 moves on these batches, over `rate`, with plain torch."""
    start = copies(session)
    momenta = [torch.zeros_like(parameter) for parameter in start]
    for batch in batches:
        session.computation.gradient(1, batch)
        for parameter, momentum in zip(session.parameters, momenta, strict=True):
            assert parameter.grad is not None
            momentum.mul_(0.95).add_(parameter.grad)
            ahead = parameter.grad + 0.95 * momentum
            if parameter.dim() == 1:
                moved = ahead / ahead.square().mean().sqrt()
            else:
                rows = [
                    torch.cat(
                        [orthogonalise(block[None], MUON)[0] for block in band.split(16, dim=1)],
                        dim=1,
                    )
                    for band in ahead.split(16, dim=0)
                ]
                moved = torch.cat(rows)
            with torch.no_grad():
                parameter.sub_(rate * moved)
    with torch.no_grad():
        found = [(s - p) / rate for s, p in zip(start, session.parameters, strict=True)]
        for kept, parameter in zip(start, session.parameters, strict=True):
            parameter.copy_(kept)
    return [each.detach() for each in found]


@pytest.mark.parametrize(
    ("samples", "batches"), [([0, 1, 2, 3], [[0, 1], [2, 3]]), ([4, 5, 6], [[4], [5, 6]])]
)
def test_two_steps_are_those_of_plain_torch(
    tmp_path: Path, samples: list[int], batches: list[list[int]]
) -> None:
    session, other = session_of(tmp_path, TWO), session_of(tmp_path, TWO)
    rate = learning_rate(session.manifest.schedule, 1) / 2
    expected = [each / 2 for each in by_hand(other, batches, rate)]
    alone = LocalOptimizer(other.layout, other.parameters, SPEC)
    alone.accumulate(expected)
    session.train(1, samples)
    session.optimizer.refund(1)
    for ours, theirs in zip(session.optimizer.momentum, alone.momentum, strict=True):
        assert torch.allclose(ours, theirs, rtol=1e-3, atol=1e-3 * float(theirs.abs().max()))


@pytest.mark.parametrize("precision", ["float32", "bfloat16", "int8"])
def test_parameters_come_back_to_the_bit(tmp_path: Path, precision: Any) -> None:
    """Also those that are not numbers, after each number of steps, with each kind of state."""
    options = MemoryOptions(state=StateOptions(precision=precision))
    session = session_of(tmp_path, options=options)
    before = bits_of(copies(session))
    printed = session.part.fingerprint()
    for round_, count in enumerate((8, 3, 1, 0), 1):
        body = session.train(round_, range(count)).body
        assert session.part.fingerprint() == printed
        assert_equal_bits(bits_of(copies(session)), before)
        assert body != session.train(round_, range(20, 20 + max(1, count))).body
    # Steps do move something meanwhile, or this would prove nothing.
    assert any(float(each.abs().max()) > 0 for each in session.optimizer.momentum)


def test_members_with_local_steps_hold_the_same_bits_in_each_round(tmp_path: Path) -> None:
    made = make_manifest(tmp_path, optimizer=SPEC, rounds=FOUR)
    members = [opened(made, tmp_path, micro_batch=size) for size in (1, 3)]
    before, seen = members[0].computation.evaluate(30), set()
    for round_ in range(1, 7):
        trained = [
            member.train(round_, range(16 * (2 * round_ + me), 16 * (2 * round_ + me) + 16))
            for me, member in enumerate(members)
        ]
        assert all(each.tokens == 16 * 32 and 0 < each.loss < 10 for each in trained)
        rate, bodies = learning_rate(made[0].schedule, round_), [each.body for each in trained]
        prints = [member.apply(round_, bodies, rate, True) for member in members]
        assert len(set(prints)) == 1
        seen.add(prints[0])
    assert len(seen) == 6
    assert members[0].computation.evaluate(30) < before - 0.1
    # A restarted member has no momentum to begin its steps with; neither has any other.
    late = opened(made, tmp_path)
    late.load([*_chunks(members[0])])
    late.optimizer.start_over()
    members[0].optimizer.start_over()
    assert late.train(9, range(8)).body == members[0].train(9, range(8)).body


def _chunks(session: TrainingSession) -> tuple[Any, ...]:
    return session.snapshot().chunks


def test_steps_are_those_of_the_parameters_a_round_ago_with_overlap(tmp_path: Path) -> None:
    rounds = dataclasses.replace(FOUR, overlap=True)
    ahead, before = session_of(tmp_path, rounds), session_of(tmp_path, rounds)
    first = ahead.train(1, range(8)).body
    assert before.train(1, range(8)).body == first
    early = ahead.train(2, range(8, 16)).body
    ahead.apply(1, [first], 2.0**-8, True)
    assert ahead.train(2, range(8, 16)).body != early
    assert before.train(2, range(8, 16)).body == early


def test_a_step_without_a_finite_gradient_is_left_out(tmp_path: Path) -> None:
    session, other = session_of(tmp_path, TWO), session_of(tmp_path, TWO)
    printed, gradient, calls = session.part.fingerprint(), session.computation.gradient, []

    def broken(round_number: int, samples: Any, **options: Any) -> tuple[float, int]:
        calls.append(list(samples))
        loss, count = gradient(round_number, samples, **options)
        return (float("nan"), count) if len(calls) in spoiled else (loss, count)

    session.computation.gradient = broken
    spoiled = {1}
    result = session.train(1, [0, 1, 2, 3])
    assert calls == [[0, 1], [2, 3]]
    assert result.tokens == 64
    assert result.loss == pytest.approx(other.train(1, [2, 3]).loss, rel=0.1)
    spoiled = {3, 4}
    result = session.train(2, [0, 1, 2, 3])
    assert result.loss == 1e30
    assert session.part.fingerprint() == printed
    assert all(bool(torch.isfinite(each).all()) for each in session.optimizer.momentum)


def test_a_failure_between_steps_leaves_the_shared_parameters(tmp_path: Path) -> None:
    session = session_of(tmp_path)
    printed, gradient, calls = session.part.fingerprint(), session.computation.gradient, []

    def failing(round_number: int, samples: Any, **options: Any) -> tuple[float, int]:
        calls.append(samples)
        if len(calls) == 3:
            raise failure
        return gradient(round_number, samples, **options)

    session.computation.gradient = failing
    failure: Exception = TrainerFailed("missing_data", "some of it is missing")
    with refused("missing_data"):
        session.train(1, range(8))
    assert session.part.fingerprint() == printed
    assert session.train(1, range(8)).tokens == 8 * 32
    # Of any other failure nobody knows where it came.
    calls, failure = [], ZeroDivisionError()
    with pytest.raises(ZeroDivisionError):
        session.train(2, range(8))
    with refused("internal", "no parameters"):
        session.train(3, range(8))


def test_who_stops_early_sends_what_its_steps_have_moved(tmp_path: Path) -> None:
    session, other = session_of(tmp_path), session_of(tmp_path)
    gradient, calls = session.computation.gradient, []

    def counted(round_number: int, samples: Any, **options: Any) -> tuple[float, int]:
        calls.append(samples)
        if round_number == 2 and len(calls) == 2:
            session.stop_steps.round = 2
        return gradient(round_number, samples, **options)

    session.computation.gradient = counted
    stopped = session.train(2, range(8))
    assert len(calls) == 2
    assert stopped.tokens == 4 * 32
    assert session.part.fingerprint() == other.part.fingerprint()
    assert stopped.body != other.train(2, range(8)).body
    calls.clear()
    session.train(3, range(8))
    assert len(calls) == 4


def test_a_sequence_that_takes_several_rounds_makes_one_step(tmp_path: Path) -> None:
    session, other = session_of(tmp_path), session_of(tmp_path)
    aside = BackgroundGradient(session, 4, [7])
    while not aside.done:
        time.sleep(0.01)
    assert aside.finish().body == other.train(4, [7]).body
    # Which is not its gradient.
    assert make_session(tmp_path, optimizer=SPEC).train(4, [7]).body != other.train(5, [7]).body


def test_without_a_learning_rate_one_step_is_taken_of_all(tmp_path: Path) -> None:
    schedule = ScheduleSpec(peak=4e-3, warmup_rounds=0, total_rounds=4, decay_rounds=2, final=0.0)
    session = session_of(tmp_path, schedule=schedule)
    printed = session.part.fingerprint()
    result = session.train(4, range(8))
    assert result.tokens == 8 * 32
    assert session.part.fingerprint() == printed


def test_the_rate_of_a_step_follows_from_the_round_and_its_factor(tmp_path: Path) -> None:
    rates: list[float] = []

    class Noted(LocalSteps):
        def step(self, gradients: Any, rate: float) -> None:
            rates.append(rate)
            super().step(gradients, rate)

    rounds = dataclasses.replace(FOUR, local_rate=0.5)
    session = session_of(tmp_path, rounds)
    session._local_steps = Noted(session.part.layout, session.part.parameters)
    session.train(5, range(8))
    assert rates == [learning_rate(session.manifest.schedule, 5) * 0.5 / 4] * 4


def test_steps_count_as_time_of_the_sequences(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A member's capacity follows from it."""
    now = 0.0

    class Slow(LocalSteps):
        def step(self, gradients: Any, rate: float) -> None:
            nonlocal now
            now += 10.0
            super().step(gradients, rate)

    session = session_of(tmp_path)
    session._local_steps = Slow(session.part.layout, session.part.parameters)
    monkeypatch.setattr(time, "perf_counter", lambda: now)
    result = session.train(5, range(8))
    assert (result.compute_seconds, result.encode_seconds) == (40.0, 0.0)


@pytest.mark.parametrize("size", [2, 3])
def test_ranks_take_local_steps_as_one_member(tmp_path: Path, size: int) -> None:
    config = {**TINY_LLAMA, "hidden_size": 48, "tie_word_embeddings": False}
    manifest, chunks = make_manifest(tmp_path, config=config, optimizer=SPEC, rounds=FOUR)
    alone = opened((manifest, chunks), tmp_path)
    together = Together(tmp_path, manifest, chunks, size)
    together.call("load", chunks)
    for round_, count in enumerate((12, 4, 1, 0), 1):
        samples = range(20 * round_, 20 * round_ + count)
        ours, theirs = together.train(round_, samples), alone.train(round_, samples)
        assert ours.tokens == theirs.tokens == 32 * count
        assert ours.loss == pytest.approx(theirs.loss, rel=1e-4)
        fingerprint = alone.apply(round_, [theirs.body], 2.0**-8, True)
        assert together.apply(round_, [theirs.body], 2.0**-8, True) == fingerprint
    assert together.call("snapshot") == [alone.snapshot()] * size


@pytest.mark.parametrize("place", ["device", "host"])
def test_the_estimate_grows_by_what_is_kept(tmp_path: Path, place: Any) -> None:
    manifest, _ = make_manifest(tmp_path, optimizer=SPEC, rounds=FOUR)
    work = Workload.of(manifest)
    sizes: tuple[tuple[Precision, int], ...] = (("float32", 4), ("bfloat16", 2))
    for precision, each in sizes:
        options = MemoryOptions(state=StateOptions(precision=precision, place=place))
        with_steps = needs(work, "cuda", options)
        without = needs(dataclasses.replace(work, local_steps=1), "cuda", options)
        # A copy of the parameters, and the momentum.
        kept = (4 + each) * manifest.elements
        more = with_steps.device - without.device, with_steps.host - without.host
        assert more == ((kept, 0) if place == "device" else (0, kept))
    session = opened((manifest, make_manifest(tmp_path)[1]), tmp_path)
    steps = LocalSteps(session.part.layout, session.part.parameters)
    held = sum(t.nbytes for t in steps.start) + sum(
        part.nbytes for state in steps.momentum for part in state.parts().values()
    )
    assert held == 8 * manifest.elements


def test_private_noise_is_refused(tmp_path: Path) -> None:
    manifest, _ = make_manifest(tmp_path, optimizer=SPEC, rounds=FOUR)
    policy = LocalPolicy(clipping=Clipping(norm=1.0, noise=1.0, sequences=8))
    with refused("internal", "differential privacy"):
        TrainingSession(manifest, BlobStore(tmp_path), CPU, policy=policy)
