"""Training in memory: several members stay identical, nothing is lost, a lack of memory is handled."""

from __future__ import annotations

import dataclasses
import threading
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from distro_node.node.storage.blob_store import BlobStore
from distro_node.node.trainer import computation, training_session
from distro_node.node.trainer.audit_score import AssignedSample
from distro_node.node.trainer.computation import Computation
from distro_node.node.trainer.models.initial_parameters import Lora
from distro_node.node.trainer.optimizer.background_gradient import BackgroundGradient
from distro_node.node.trainer.optimizer.fingerprint import fingerprint
from distro_node.node.trainer.reaudit_worker import run_reaudit
from distro_node.node.trainer.tasks.data import Corpus
from distro_node.node.trainer.training_session import TrainingSession
from distro_node.node.trainer.worker import Worker
from distro_node.node.training.errors import TrainerFailed
from distro_node.node.training.frames import TrainedUpdate
from distro_node.node.training.memory_model import Workload
from distro_node.node.training.memory_options import MemoryOptions, StateOptions
from distro_node.protocol.codec.schedule import learning_rate
from distro_node.protocol.codec.update import decode_update, encode_update
from distro_node.protocol.wire.manifest import AuditsSpec, OptimizerSpec, Step
from trainer.exactness import assert_equal_bits, bits_of, reference_step
from trainer.support import CPU, TINY_LLAMA, make_manifest, make_session, opened, refused

# Private here: `_shadow`: what a copy of the parameters takes; `_pending`: what is still to be
# subtracted is told to nobody; `_session`: opening one takes a process's settings.

RATE = 2.0**-8
# In models as small as these an update needs many coefficients for audits to recognise it
# (`MUON_MINIMUM` in node/create/audits.py).
LARGER = {**TINY_LLAMA, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2}
WITH_MUON = OptimizerSpec(
    preconditioner="muon", smoothing=0.7, momentum=0.97, step="scaled", top_k=128
)


@pytest.mark.parametrize(
    ("preconditioner", "step"), [("none", "sign"), ("orthogonal", "scaled"), ("muon", "scaled")]
)
def test_members_stay_bit_identical_and_learn(
    tmp_path: Path, preconditioner: Any, step: Step
) -> None:
    spec = OptimizerSpec(preconditioner=preconditioner, smoothing=0.5, weight_decay=0.1, step=step)
    made = make_manifest(tmp_path, optimizer=spec)
    members = [opened(made, tmp_path, micro_batch=size) for size in (1, 2, 3, 8)]
    before, seen = members[0].computation.evaluate(30), set()
    for round_ in range(1, 6):
        shares = (range(8 * (4 * round_ + me), 8 * (4 * round_ + me) + 8) for me in range(4))
        bodies = [m.train(round_, share).body for m, share in zip(members, shares, strict=True)]
        # The third member's update misses its round.
        counted = bodies[:2] + bodies[3:]
        rate = learning_rate(made[0].schedule, round_)
        (fingerprint,) = {
            member.apply(round_, counted[index:] + counted[:index], rate, index != 2)
            for index, member in enumerate(members)
        }
        seen.add(fingerprint)
    assert len(seen) == 5
    assert members[0].computation.evaluate(30) < before - 0.1
    assert len({member.snapshot() for member in members}) == 1


def test_tied_weights_are_stepped_once(tmp_path: Path) -> None:
    """A Llama whose output layer is its embedding: one tensor, two names, one step, one decay."""
    optimizer = OptimizerSpec(weight_decay=0.5)
    session = make_session(tmp_path, config=TINY_LLAMA, optimizer=optimizer)
    model: Any = session.model
    embedding, output = model.model.embed_tokens.weight, model.lm_head.weight
    assert output is embedding
    assert [p is embedding for p in session.parameters].count(True) == 1

    before = [parameter.detach().clone() for parameter in session.parameters]
    body = session.train(1, [0, 1]).body
    covered = sum(tensor.blocks * tensor.elements for tensor in session.layout.tensors)
    assert covered == session.manifest.elements == sum(p.numel() for p in model.parameters())
    session.apply(1, [body], RATE, True)
    updates = [decode_update(session.layout, body)]
    expected = reference_step(before, session.layout, updates, RATE, 0.5)
    assert_equal_bits(bits_of([p.detach() for p in session.parameters]), expected)
    assert output is embedding
    assert output.data_ptr() == embedding.data_ptr()


def test_the_momentum_yields_to_what_was_counted(tmp_path: Path) -> None:
    """Also where its own update missed the round and was refunded."""
    session = make_session(tmp_path, optimizer=OptimizerSpec(damping=0.5))
    stranger = make_session(tmp_path).train(1, [9]).body
    session.train(1, [0, 1])
    session.optimizer.refund(1)
    expected = [momentum.clone() for momentum in session.optimizer.momentum]
    session.optimizer.take(1)
    session.apply(1, [stranger], RATE, False)
    sent = decode_update(session.layout, stranger).positions
    for momentum, places in zip(expected, sent, strict=True):
        index = torch.from_numpy(places).long()
        momentum.scatter_(1, index, momentum.gather(1, index) / 2)
    assert all(map(torch.equal, session.optimizer.momentum, expected))


def opposite(session: TrainingSession, body: bytes) -> bytes:
    update = decode_update(session.layout, body)
    return encode_update(session.layout, update.positions, [-signs for signs in update.signs])


@pytest.mark.parametrize("filtered", [True, False])
def test_the_outlier_filter_leaves_a_lie_out_of_the_step(tmp_path: Path, filtered: bool) -> None:
    """The step equals the one without it, in any order of the updates."""
    members = [
        make_session(tmp_path, optimizer=OptimizerSpec(outlier_filter=filtered)) for _ in range(5)
    ]
    bodies = [
        member.train(1, range(8 * index, 8 * index + 8)).body
        for index, member in enumerate(members)
    ]
    honest, lie = bodies[:4], opposite(members[0], bodies[4])
    without = make_session(tmp_path)
    expected = without.apply(1, honest, RATE, False)
    assert without.left_out == 0
    for index, member in enumerate(members):
        heard = [*honest[index:], lie, *honest[:index]]
        assert (member.apply(1, heard, RATE, True) == expected) == filtered
        assert member.left_out == filtered


def test_in_the_audit_everyone_counts_once(tmp_path: Path) -> None:
    """However often a false update counts, equally many contradict it: the others take the step of
    their own counts without it."""
    members = [make_session(tmp_path) for _ in range(4)]
    bodies = [m.train(1, range(8 * i, 8 * i + 8)).body for i, m in enumerate(members)]
    lie, without = opposite(members[0], bodies[3]), make_session(tmp_path)
    expected = without.apply(1, bodies[:3], RATE, False, [1, 2, 1])
    assert members[0].apply(1, [lie, *bodies[:3]], RATE, True, [2, 1, 2, 1]) == expected
    assert members[0].left_out == 1
    assert members[1].apply(1, bodies[:3], RATE, True) != expected


def test_an_own_update_that_the_audit_leaves_out_is_back_in_the_momentum(tmp_path: Path) -> None:
    """And no other member's is, though it is the opposite of what was sent."""
    left_out, missed, heard = (make_session(tmp_path) for _ in range(3))
    for session in (left_out, missed, heard):
        own = session.train(1, range(8)).body
    lie = opposite(left_out, own)
    kept = [momentum.clone() for momentum in heard.optimizer.momentum]
    left_out.apply(1, [own, lie, lie], RATE, True)
    missed.apply(1, [lie, lie], RATE, False)
    heard.apply(1, [own, own, lie], RATE, True)
    assert [session.left_out for session in (left_out, missed, heard)] == [1, 0, 1]
    assert fingerprint(left_out.parameters) == fingerprint(missed.parameters)
    for index, momentum in enumerate(kept):
        assert torch.equal(left_out.optimizer.momentum[index], missed.optimizer.momentum[index])
        assert torch.equal(heard.optimizer.momentum[index], momentum)
    assert not torch.equal(left_out.optimizer.momentum[0], kept[0])


def test_no_samples_sends_the_momentum(tmp_path: Path) -> None:
    session = make_session(tmp_path)
    first = session.train(1, [0, 1, 2])
    assert (first.tokens, len(first.body) > 50) == (96, True)
    momentum = session.optimizer.momentum[0].norm()
    session.optimizer.forget(1)
    empty = session.train(2, [])
    assert (empty.loss, empty.tokens, empty.coefficients) == (0.0, 0, first.coefficients)
    # The rest has decayed and lost what was taken.
    assert session.optimizer.momentum[0].norm() < 0.95 * momentum


def test_a_gradient_that_is_not_finite_stays_out_of_the_momentum(tmp_path: Path) -> None:
    session = make_session(tmp_path)
    with torch.no_grad():
        session.parameters[1].fill_(float("nan"))
    result = session.train(1, [0])
    assert result.loss == 1e30
    assert all(bool(torch.isfinite(m).all()) for m in session.optimizer.momentum)


class OutOfMemory:
    """Makes the model fail above a number of sequences, as the CPU's allocator does."""

    def __init__(self, session: TrainingSession, fits: int) -> None:
        self.tried: list[int] = []
        self.fits = fits
        forward = session.model.forward

        def limited(*arguments: Any, **options: Any) -> Any:
            self.tried.append(len(options["input_ids"]))
            if self.tried[-1] > self.fits:
                raise RuntimeError("DefaultCPUAllocator: can't allocate memory: 1 bytes")
            return forward(*arguments, **options)

        session.model.forward = limited


def test_out_of_memory_halves_the_micro_batch(tmp_path: Path) -> None:
    whole, session = (make_session(tmp_path, micro_batch=8) for _ in range(2))
    limit = OutOfMemory(session, fits=3)
    loss = session.train(1, range(8)).loss
    assert limit.tried == [8, 4, 2, 2, 2, 2]
    assert session.micro_batch == 2
    assert loss == pytest.approx(whole.train(1, range(8)).loss, abs=1e-5)
    session.computation.micro_batch = 4
    assert session.computation.evaluate(9) == pytest.approx(whole.computation.evaluate(9), abs=1e-5)
    limit.fits = 0
    with refused("out_of_memory", "does not fit"):
        session.train(2, range(4))


def test_a_micro_batch_that_was_halved_grows_back_when_memory_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a game has ended, the trainer must not stay at one sequence at a time."""
    monkeypatch.setattr(computation, "_BEFORE_GROWING", 2)
    session = make_session(tmp_path, micro_batch=8)
    limit, sizes = OutOfMemory(session, fits=2), []
    for round_ in range(1, 9):
        session.train(round_, range(8))
        sizes.append(session.micro_batch)
    # 4 is tried after two gradients that fitted, then only after four more.
    assert sizes == [2, 4, 2, 2, 2, 4, 2, 2]
    limit.fits = 8
    for round_ in range(9, 60):
        session.train(round_, range(8))
        if session.micro_batch == 8:
            break
    assert session.micro_batch == 8


def test_without_parameters_or_after_half_a_step_nothing_is_computed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = make_session(tmp_path)
    body = session.train(1, [0]).body
    half = training_session.apply_step

    def ends_halfway(*arguments: Any, **options: Any) -> None:
        half(*arguments, **options)
        raise RuntimeError("CUDA out of memory")

    monkeypatch.setattr(training_session, "apply_step", ends_halfway)
    with pytest.raises(RuntimeError, match="out of memory"):
        session.apply(1, [body], RATE, True)
    for each in (session, TrainingSession(session.manifest, BlobStore(tmp_path), CPU)):
        for call in (
            each.snapshot,
            lambda each=each: each.train(2, [1]),
            lambda each=each: each.computation.evaluate(1),
            lambda each=each: each.apply(2, [], RATE, False),
        ):
            with pytest.raises(TrainerFailed, match="no parameters"):
                call()


def test_a_body_that_does_not_decode_changes_nothing(tmp_path: Path) -> None:
    session = make_session(tmp_path)
    before = fingerprint(session.parameters)
    good = session.train(1, [0]).body
    with pytest.raises(TrainerFailed, match="decode"):
        session.apply(1, [good, good[:-1]], RATE, True)
    assert fingerprint(session.parameters) == before


def test_loading_drops_what_is_pending_and_keeps_the_momentum(tmp_path: Path) -> None:
    made = make_manifest(tmp_path)
    session = opened(made, tmp_path)
    start = fingerprint(session.parameters)
    body = session.train(1, [0]).body
    momentum = [each.clone() for each in session.optimizer.momentum]
    session.apply(2, [body], RATE, True)
    assert session.load(made[1]) == start
    assert not session.optimizer.refund(1)
    assert all(map(torch.equal, session.optimizer.momentum, momentum))


def test_held_out_data_shorter_than_a_sample(tmp_path: Path) -> None:
    manifest, chunks = make_manifest(tmp_path)
    short = dataclasses.replace(manifest.data.heldout, tokens=20)
    data = dataclasses.replace(manifest.data, heldout=short)
    session = opened((dataclasses.replace(manifest, data=data), chunks), tmp_path)
    with refused("bad_data", "held-out"):
        session.computation.evaluate(5)


def test_a_share_is_never_in_memory_as_a_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A corpus that names one chunk repeatedly makes shares far larger than itself."""
    session = make_session(tmp_path, micro_batch=2)
    read: list[int] = []
    real = Corpus.training

    def training(corpus: Corpus, samples: Sequence[int]) -> list[bytes]:
        read.append(len(samples))
        return real(corpus, samples)

    monkeypatch.setattr(Corpus, "training", training)
    session.train(1, [0, 1, 2, 3, 4])
    assert read == [2, 2, 1]


def finished(aside: BackgroundGradient) -> TrainedUpdate:
    while not aside.done:
        time.sleep(0.01)
    return aside.finish()


def test_a_gradient_aside_is_that_of_the_parameters_when_it_began(tmp_path: Path) -> None:
    """Steps are taken meanwhile, which are exact; and its update is what it would have been before
    them."""
    before, after, beside = (make_session(tmp_path) for _ in range(3))
    step = make_session(tmp_path).train(1, [9]).body
    aside = BackgroundGradient(beside, 4, [0, 1])
    assert aside.is_for(4, [0, 1])
    assert not aside.is_for(4, [0, 2])
    assert len({session.apply(1, [step], RATE, False) for session in (after, beside)}) == 1
    made = finished(aside)
    assert made.body == before.train(4, [0, 1]).body != after.train(4, [0, 1]).body
    assert made.tokens == 2 * beside.manifest.data.sequence_length
    assert made.compute_seconds > 0
    # It is pending like any other: settled by the record of its round.
    assert beside.optimizer.refund(4)


def test_work_that_nobody_waits_for_ends_before_other_work_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise each new assignment and each load would add a thread with a copy of the parameters."""
    real, began, goes_on = Computation.gradient, list[int](), threading.Event()

    def gradient(self: Computation, round_number: int, samples: Sequence[int]) -> Any:
        began.append(round_number)
        goes_on.wait()
        return real(self, round_number, samples)

    monkeypatch.setattr(Computation, "gradient", gradient)
    worker = Worker()
    worker._session = session = make_session(tmp_path)

    def ask(method: str, **arguments: Any) -> Any:
        return (worker.answer({"id": 1, "method": method, "arguments": arguments}) or {})["result"]

    chunks = list(session.snapshot().chunks)
    try:
        for round_number in (4, 5, 6):
            assert ask("train_in_background", round_number=round_number, samples=[0]) is None
            ask("load", chunks=chunks)
        assert ask("train_in_background", round_number=7, samples=[0]) is None
        assert began == [4]
    finally:
        goes_on.set()
    while (made := ask("train_in_background", round_number=7, samples=[0])) is None:
        time.sleep(0.01)
    assert made["tokens"] == session.manifest.data.sequence_length
    assert began == [4, 7]


@pytest.mark.parametrize("lora", [None, Lora(rank=4, alpha=8.0, targets=())])
def test_work_of_several_rounds_takes_no_more_memory_than_the_plan_counts(
    lora: Lora | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where memory has no room for a second set of parameters they are copied in bfloat16, and so is
    their gradient: together they take what the plan counts for one gradient."""
    session, whole = make_session(tmp_path, lora=lora), make_session(tmp_path, lora=lora)
    whole.train(4, [0, 1])
    monkeypatch.setattr(computation, "available_bytes", lambda _: 0)
    aside = BackgroundGradient(session, 4, [0, 1])
    copied = aside._shadow.parameters
    trained = 4 * sum(parameter.numel() for parameter in session.parameters)
    taken = 2 * sum(each.numel() * each.element_size() for each in copied)
    # Vectors stay in float32.
    assert trained <= taken <= 1.01 * trained
    # Frozen parameters are not copied at all.
    frozen = [each.data_ptr() for each in session.model.parameters() if not each.requires_grad]
    shared = [
        each.data_ptr() for each in aside._shadow.model.parameters() if not each.requires_grad
    ]
    assert shared == frozen
    finished(aside)
    # Including what was sent, where small differences may select another part.
    assert session.optimizer.refund(4)
    assert whole.optimizer.refund(4)
    for ours, expected in zip(session.optimizer.momentum, whole.optimizer.momentum, strict=True):
        if expected.any():
            alike = torch.nn.functional.cosine_similarity(ours.view(-1), expected.view(-1), dim=0)
            assert alike > 0.9


def test_what_fails_aside_is_reported_when_it_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gradient(self: Computation, round_number: int, samples: Sequence[int]) -> None:
        raise TrainerFailed("missing_data", "a chunk is damaged")

    monkeypatch.setattr(Computation, "gradient", gradient)
    with refused("missing_data", "damaged"):
        finished(BackgroundGradient(make_session(tmp_path), 4, [0]))


@pytest.mark.parametrize(
    ("optimizer", "rounds"),
    [(WITH_MUON, 4), pytest.param(OptimizerSpec(), 12, marks=pytest.mark.soak)],
    ids=["muon", "adam"],
)
def test_an_audit_changes_nothing_and_recognises_honest_work(
    tmp_path: Path, optimizer: OptimizerSpec, rounds: int
) -> None:
    made = make_manifest(tmp_path, config=LARGER, optimizer=optimizer)
    everybody = [opened(made, tmp_path) for _ in range(5)]
    auditor, other, twin, honest, idle = everybody
    scores: dict[str, list[float]] = defaultdict(list)
    chance = np.random.default_rng(1)
    assert len({each.train(0, range(3)).body for each in (auditor, other, twin)}) == 1
    for round_ in range(1, rounds + 1):
        own, assigned = range(40 * round_, 40 * round_ + 3), 40 * round_ + 20
        samples, audit = range(assigned, assigned + 3), AssignedSample(sample=assigned, share=3)
        body = auditor.train(round_, own, audits=True).body
        assert body == other.train(round_, own, audits=True).body == twin.train(round_, own).body
        audits = [each.audit(round_, audit) for each in (auditor, other, twin)]
        assert audits == [True, True, False]
        bodies = {
            "honest": honest.train(round_, samples).body,
            # It has the same assignment, and trains on the samples it has at hand.
            "idle": idle.train(round_, range(3)).body,
        }
        for session, name in ((auditor, "honest"), (other, "idle")):
            found = session.judge(round_, bodies[name])
            assert found is not None
            # The result is given once.
            assert session.judge(round_, bodies[name]) is None
            if round_ > 2:
                scores[name].append(found.full_sample.score)
        sent = decode_update(auditor.layout, bodies["honest"])
        random = [chance.choice(np.array([-1, 1], np.int8), each.shape) for each in sent.signs]
        bodies |= {
            "copied": body,
            "opposite": opposite(auditor, bodies["honest"]),
            "random": encode_update(auditor.layout, sent.positions, random),
        }
        for name, each in bodies.items() if round_ == rounds else ():
            again = run_reaudit(auditor, round_, each, samples, own, 3)
            scores[f"{name} again"] += [sums.score for sums in again]
        for session in everybody:
            session.apply(round_, [body, bodies["honest"]], RATE / 2, True)
    means = {name: sum(each) / len(each) for name, each in scores.items()}
    for name, mean in means.items():
        best = means["honest again" if name.endswith("again") else "honest"]
        assert "honest" in name or best > max(3, 2 * mean + 1), (name, means)


def test_who_computes_beginnings_alone_agrees_with_them_better_than_with_the_whole(
    tmp_path: Path,
) -> None:
    made = make_manifest(tmp_path, config=LARGER)
    everybody = [opened(made, tmp_path) for _ in range(4)]
    honest, half, *auditors = everybody
    parts: dict[str, list[float]] = {"honest": [], "half": []}
    for round_ in range(1, 9):
        own, assigned = range(30 * round_, 30 * round_ + 3), 30 * round_ + 20
        share = range(assigned, assigned + 3)
        sums = [torch.zeros_like(parameter) for parameter in half.parameters]
        for sample in share:
            assert half.computation.gradient(round_, [sample], beginning=True)[1] == 16
            for total, gradient in zip(sums, half.part.gradients(), strict=True):
                assert gradient is not None
                total += gradient / len(share)
        bodies = {
            "honest": honest.train(round_, share).body,
            "half": half.finish(round_, 1.0, 16, sums, 0.0).body,
        }
        body = b""
        for auditor, name in zip(auditors, bodies, strict=True):
            body = auditor.train(round_, own, audits=True).body
            assert auditor.audit(round_, AssignedSample(sample=assigned, share=3))
            found = auditor.judge(round_, bodies[name])
            assert found is not None
            assert found.first_half is not None
            if round_ > 2 and found.full_sample.score > 1:
                parts[name].append(found.first_half.score / found.full_sample.score)
        for session in everybody:
            session.apply(round_, [body, bodies["honest"]], RATE / 2, True)
    means = {name: sum(each) / len(each) for name, each in parts.items()}
    assert means["honest"] < 1 < means["half"], means


def test_audits_of_the_two_latest_rounds_are_kept(tmp_path: Path) -> None:
    session = make_session(tmp_path)
    body = session.train(1, [1, 2], audits=True).body
    for round_ in (2, 3, 4):
        session.train(round_, [round_], audits=True)
        assert session.audit(round_, AssignedSample(sample=9, share=2))
    assert session.judge(2, body) is None
    assert session.judge(3, body) is not None
    with pytest.raises(TrainerFailed, match="does not decode"):
        session.judge(4, b"no update")
    with pytest.raises(TrainerFailed, match="does not decode"):
        run_reaudit(session, 4, b"no update", [1], [2], 1)


def test_a_gradient_that_is_not_finite_spoils_no_reaudit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a second moment of 8 bits one such number makes its whole group NaN, and every later re-audit
    in the process would compare with nothing."""
    made = make_manifest(tmp_path, optimizer=OptimizerSpec(preconditioner="rms", top_k=128))
    options = MemoryOptions(state=StateOptions(precision="int8"))
    honest, auditor = (opened(made, tmp_path, options=options) for _ in range(2))
    body = honest.train(1, range(3)).body
    compute = auditor.computation.gradient

    def overflow(round_number: int, samples: Sequence[int]) -> tuple[float, int]:
        found = compute(round_number, samples)
        if list(samples) == [11]:
            gradient = auditor.parameters[0].grad
            assert gradient is not None
            gradient[0, 0] = torch.inf
        return found

    monkeypatch.setattr(auditor.computation, "gradient", overflow)
    (found,) = run_reaudit(auditor, 1, body, [0], [10, 11, 12], 3)
    assert auditor.optimizer.steps == 2
    assert all(bool(torch.isfinite(each).all()) for each in auditor.optimizer.second_moment)
    assert found.squares > 0


def test_there_is_no_audit_without_something_to_compare_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = make_session(tmp_path)
    body = session.train(1, [], audits=True).body
    audit = AssignedSample(sample=5, share=3)
    assert not session.audit(1, audit)
    # Without an audit; of another round; on other parameters; without memory.
    session.train(2, [1])
    assert not session.audit(2, audit)
    session.train(3, [1], audits=True)
    assert not session.audit(2, audit)
    session.train(4, [1], audits=True)
    session.apply(4, [body], RATE, False)
    assert not session.audit(4, audit)
    checked = dataclasses.replace(session.manifest, audits=AuditsSpec())
    wanted = Workload.of(checked).audit_bytes
    for number, free in ((5, wanted - 1), (6, wanted)):
        monkeypatch.setattr(training_session, "free_bytes", lambda device, free=free: free)
        session.train(number, [1], audits=True)
        assert session.audit(number, audit) == (free == wanted)


# Training a round ahead: with overlap the node requests the next round's update before it requests
# the application of this round's record.


ROUNDS = 6


def sessions(root: Path) -> list[TrainingSession]:
    made = make_manifest(root)
    return [opened(made, root) for _ in range(2)]


def samples(member: int, round_: int) -> list[int]:
    return [(16 * round_ + 8 * member + place) % 500 for place in range(8)]


def ahead(members: list[TrainingSession]) -> tuple[list[list[bytes]], list[int]]:
    """Use the daemon's order: train for the next round, then apply this round's record."""
    bodies, prints = [train_all(members, 1)], []
    for round_ in range(1, ROUNDS):
        bodies.append(train_all(members, round_ + 1))
        prints.append(apply_all(members, round_, bodies[round_ - 1]))
    return bodies[: ROUNDS - 1], prints


def stale(members: list[TrainingSession]) -> tuple[list[list[bytes]], list[int]]:
    """Train each round by itself, with the parameters of a round ago for the gradient."""
    bodies, prints = [], []
    old = [[p.detach().clone() for p in m.parameters] for m in members]
    for round_ in range(1, ROUNDS):
        new = [[p.detach().clone() for p in m.parameters] for m in members]
        put(members, old)
        bodies.append(train_all(members, round_))
        put(members, new)
        old = new
        prints.append(apply_all(members, round_, bodies[-1]))
    return bodies, prints


def train_all(members: list[TrainingSession], round_: int) -> list[bytes]:
    return [member.train(round_, samples(i, round_)).body for i, member in enumerate(members)]


def apply_all(members: list[TrainingSession], round_: int, bodies: list[bytes]) -> int:
    rate = learning_rate(members[0].manifest.schedule, round_)
    (found,) = {member.apply(round_, bodies, rate, True) for member in members}
    return found


def put(members: list[TrainingSession], parameters: list[list[torch.Tensor]]) -> None:
    with torch.no_grad():
        for member, tensors in zip(members, parameters, strict=True):
            for parameter, tensor in zip(member.parameters, tensors, strict=True):
                parameter.copy_(tensor)


def test_gradients_are_those_of_the_parameters_a_round_ago(tmp_path: Path) -> None:
    members = sessions(tmp_path)
    before = members[0].computation.evaluate(30)
    bodies, prints = ahead(members)
    assert (bodies, prints) == stale(sessions(tmp_path))
    assert members[0].computation.evaluate(30) < before - 0.1
    # And of no others: in order, the second round's update differs.
    members = sessions(tmp_path)
    assert train_all(members, 1) == bodies[0]
    apply_all(members, 1, bodies[0])
    assert train_all(members, 2) != bodies[1]


@pytest.mark.parametrize("counted", [True, False])
def test_what_was_left_out_comes_back_though_the_next_was_taken(
    tmp_path: Path, counted: bool
) -> None:
    """Exactly what was sent; the round that is still open is unaffected."""
    session = make_session(tmp_path)
    stranger = make_session(tmp_path).train(1, [9]).body
    session.train(1, [0, 1])
    pending = {
        index: (places.long(), values.clone())
        for index, (places, values) in enumerate(session.optimizer._pending[1])
    }
    second = session.train(2, [2, 3]).body
    expected = [momentum.clone() for momentum in session.optimizer.momentum]
    if not counted:
        for index, momentum in enumerate(expected):
            momentum.scatter_add_(1, *pending[index])
    session.apply(1, [stranger], RATE, counted)
    assert all(map(torch.equal, session.optimizer.momentum, expected))
    # The second round's update is settled by its own record.
    assert session.optimizer.sent(2, decode_update(session.layout, second))
    assert not session.optimizer.refund(1)
    session.apply(2, [second], RATE, True)
    assert not session.optimizer.refund(2)
