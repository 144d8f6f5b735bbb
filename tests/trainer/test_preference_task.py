"""The task `dpo` in a trainer: its loss against plain torch, stored pairs, audits' halves, learning."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from distro_node.node.storage.blob_store import BlobStore
from distro_node.node.trainer.audit_score import AssignedSample
from distro_node.node.trainer.models.initial_parameters import Lora
from distro_node.node.trainer.tasks.stored_pairs import read_pairs
from distro_node.node.trainer.tasks.task_batches import StoredSample
from distro_node.node.trainer.tasks.tasks import HasBeginnings
from distro_node.node.trainer.training_session import TrainingSession
from distro_node.node.training.preference_pairs import PairLayout
from distro_node.protocol.wire.manifest import DataSpec, Manifest, PrivateSpec
from hypothesis import given
from hypothesis import strategies as st
from trainer.support import (
    CPU,
    TINY_LLAMA,
    make_manifest,
    opened,
    refused,
    store_shard,
    write_checkpoint,
)
from trainer.test_adapters import TINY_GPT2
from transformers import AutoModelForCausalLM

LENGTH, HALF = 34, 16
BEGIN, LEARNED = 1 << 15, 1 << 14
FILLER = 7
LAYOUT = PairLayout(LENGTH, 2)


def conversation(asked: Sequence[int], said: Sequence[int]) -> np.ndarray:
    numbers = [*asked, *(token | LEARNED for token in said)]
    return np.array([numbers[0] | BEGIN, *numbers[1:]], np.uint32)


def pairs(count: int, seed: int = 1) -> np.ndarray:
    """Return rows of pairs whose chosen answer follows from the prompt by a rule, and whose rejected
    one is as long or shorter and follows none."""
    chance = np.random.default_rng(seed)
    rows = []
    for _ in range(count):
        asked = [int(chance.integers(0, 8)), 9]
        chosen = [(asked[0] * 31 + place) % 200 for place in range(8)]
        rejected = chance.integers(0, 200, int(chance.integers(3, 9))).tolist()
        halves = conversation(asked, chosen), conversation(asked, rejected)
        rows.append(LAYOUT.row(halves[0], halves[1], FILLER, BEGIN))
    return np.stack(rows)


def with_margins(rows: np.ndarray, margins: np.ndarray) -> np.ndarray:
    """Return a shard's numbers."""
    return np.append(LAYOUT.with_margins(rows, margins).reshape(-1), BEGIN).astype("<u2")


def dpo_manifest(
    root: Path,
    model: dict[str, Any] = TINY_LLAMA,
    settings: dict[str, Any] | None = None,
    margins: bool = True,
    lora: Lora | None = None,
) -> tuple[Manifest, Sequence[Any]]:
    """Return a manifest whose pairs have the initial model's margins."""
    manifest, chunks = make_manifest(root, model, lora=lora)
    store = BlobStore(root)
    sides = pairs(64), pairs(16, seed=2)

    def made(*margins: np.ndarray) -> Manifest:
        shards = [
            store_shard(store, with_margins(rows, each))
            for rows, each in zip(sides, margins, strict=True)
        ]
        data = replace(
            manifest.data,
            sequence_length=LENGTH,
            token_bytes=2,
            shards=(shards[0],),
            heldout=shards[1],
            marked=True,
        )
        return replace(manifest, task="dpo", data=data, task_settings=settings)

    first = made(np.zeros(64), np.zeros(16))
    if not margins:
        return first, chunks
    computation = opened((first, chunks), root).computation
    found = (np.array(computation.margins(range(n), heldout=n == 16)) for n in (64, 16))
    return made(*found), chunks


def plain_margins(model: Any, rows: np.ndarray) -> torch.Tensor:
    """Return the margins of rows, computed conversation by conversation."""
    found = []
    for half in torch.from_numpy(LAYOUT.halves(rows).astype(np.int64)):
        ids, learned = half & (LEARNED - 1), (half & LEARNED) != 0
        # Without padding: it must not matter.
        end = int(learned.nonzero().max()) + 1
        logits = model(input_ids=ids[None, : end - 1]).logits[0].float()
        known = logits.log_softmax(-1).gather(1, ids[1:end, None])[:, 0]
        found.append(known[learned[1:end]].sum())
    chosen, rejected = torch.stack(found).view(-1, 2).T
    return chosen - rejected


@pytest.mark.parametrize("model", [TINY_LLAMA, TINY_GPT2], ids=["llama", "gpt2"])
@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_loss_and_gradient_are_those_of_the_formula(
    tmp_path: Path, model: dict[str, Any], smoothing: float
) -> None:
    settings = {"beta": 0.3, "label_smoothing": smoothing}
    made = dpo_manifest(tmp_path, model, settings)
    reference = copy.deepcopy(opened(made, tmp_path).model).eval()
    rows = pairs(64)
    gradients = []
    for micro_batch in (1, 4):
        session = opened(made, tmp_path, micro_batch=micro_batch)
        # Another model than the reference, so that the margins differ.
        with torch.no_grad():
            torch.manual_seed(3)
            for parameter in session.parameters:
                parameter.add_(torch.randn_like(parameter), alpha=0.05)
        loss, counted = session.computation.gradient(1, [0, 1, 2, 3, 4])
        gradients.append([parameter.grad for parameter in session.parameters])
        assert counted == 5
    with torch.no_grad():
        start = plain_margins(reference, rows[:5])
    z = 0.3 * (plain_margins(session.model, rows[:5]) - start)
    assert z.abs().min() > 0.01
    # Written out, not by the library's function.
    chosen, swapped = (-torch.log(1 / (1 + torch.exp(-each))) for each in (z, -z))
    plain = ((1 - smoothing) * chosen + smoothing * swapped).mean()
    assert loss == pytest.approx(float(plain.detach()), rel=1e-4)
    expected = torch.autograd.grad(plain, session.parameters)
    for one, other, known in zip(*gradients, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-6)
        torch.testing.assert_close(one, known, rtol=1e-3, atol=1e-6)


def test_a_pair_by_hand(tmp_path: Path) -> None:
    """With a model that thinks all tokens alike, a margin is the difference of lengths times log V."""
    manifest, chunks = dpo_manifest(tmp_path, margins=False)
    row = LAYOUT.row(conversation([1, 2], [3, 4]), conversation([1, 2], [3, 4, 5]), FILLER, BEGIN)
    stored = with_margins(row[None], np.array([5.0]))
    shard = store_shard(BlobStore(tmp_path), stored)
    data = replace(manifest.data, shards=(shard,), heldout=shard)
    session = opened((replace(manifest, data=data), chunks), tmp_path)
    for parameter in session.parameters:
        parameter.data.zero_()
    assert session.computation.margins([0]) == [pytest.approx(math.log(256))]
    loss = -math.log(1 / (1 + math.exp(-0.1 * (math.log(256) - 5.0))))
    assert session.computation.evaluate(1) == pytest.approx(loss)
    assert session.task.unit == "nats a pair of answers"


def test_the_initial_model_has_a_loss_of_log_2_and_learns_to_prefer(tmp_path: Path) -> None:
    session = opened(dpo_manifest(tmp_path), tmp_path)
    assert session.computation.evaluate(16) == pytest.approx(math.log(2), abs=1e-5)
    start = np.array(session.computation.margins(range(16), heldout=True))
    for round_number in range(1, 31):
        share = [(round_number * 8 + place) % 64 for place in range(8)]
        made = session.train(round_number, share)
        assert made.tokens == 8
        session.apply(round_number, [made.body], 8e-3, True)
    assert session.computation.evaluate(16) < 0.6
    now = np.array(session.computation.margins(range(16), heldout=True))
    assert (now > start).mean() > 0.8
    assert session.computation.accuracy(16) == ((now > start).mean(), 16)


def test_adapters_learn_to_prefer_to_the_frozen_start(tmp_path: Path) -> None:
    made = dpo_manifest(tmp_path, lora=Lora(rank=4, alpha=8.0))
    session = opened(made, tmp_path)
    assert made[0].adapter is not None
    assert session.computation.evaluate(16) == pytest.approx(math.log(2), abs=1e-5)
    start = np.array(session.computation.margins(range(16), heldout=True))
    # The reference is what the checkpoint itself prefers: adapters start as nothing.
    write_checkpoint(tmp_path / "checkpoint", TINY_LLAMA)
    base = AutoModelForCausalLM.from_pretrained(tmp_path / "checkpoint").eval()
    with torch.no_grad():
        expected = plain_margins(base, pairs(16, seed=2))
    np.testing.assert_allclose(start, expected.numpy(), rtol=1e-4, atol=1e-4)
    for round_number in range(1, 31):
        share = [(round_number * 8 + place) % 64 for place in range(8)]
        body = session.train(round_number, share).body
        session.apply(round_number, [body], 2.0**-6, True)
    assert session.computation.evaluate(16) < 0.6
    assert (session.computation.accuracy(16) or (0.0, 0))[0] > 0.8
    # Another member, and one that starts again, have the same reference without a second model.
    again = opened(made, tmp_path)
    again.load(session.snapshot().chunks)
    assert again.computation.accuracy(16) == session.computation.accuracy(16)


def test_nothing_is_dropped(tmp_path: Path) -> None:
    """The start's margins have no dropout, and neither has what they are compared with."""
    config = TINY_GPT2 | {"attn_pdrop": 0.5, "embd_pdrop": 0.5, "resid_pdrop": 0.5}
    session = opened(dpo_manifest(tmp_path, config), tmp_path)
    loss, _ = session.computation.gradient(1, [0, 1, 2])
    assert loss == pytest.approx(math.log(2), abs=1e-5)
    assert session.model.config.attn_pdrop == 0.5


def test_an_update_can_be_audited(tmp_path: Path) -> None:
    made = dpo_manifest(tmp_path)
    session = opened(made, tmp_path)
    session.train(1, [1, 2, 3], audits=True)
    assert session.audit(1, AssignedSample(sample=0, share=1))
    honest = session.judge(1, opened(made, tmp_path).train(1, [0]).body)
    assert honest is not None
    assert honest.first_half is not None
    session.train(1, [1, 2, 3], audits=True)
    assert session.audit(1, AssignedSample(sample=0, share=1))
    other = session.judge(1, opened(made, tmp_path).train(1, [9]).body)
    assert other is not None
    assert honest.full_sample.total > 2 * other.full_sample.total
    # Who computes the whole sample agrees with the whole more than with its beginning.
    assert honest.full_sample.total > honest.first_half.total


def test_the_beginning_has_half_of_what_is_learned_of_both_answers(tmp_path: Path) -> None:
    session = opened(dpo_manifest(tmp_path), tmp_path)
    task = session.task
    assert isinstance(task, HasBeginnings)
    (data,) = session.computation.corpus.training([5])
    batch = task.batch([StoredSample(data, 5, 1)])
    half = task.beginning(batch)
    assert half is not None
    counts = [each["learned"].sum(1).tolist() for each in (batch, half)]
    assert all(count > 0 for count in counts[1])
    assert abs(sum(counts[0]) / 2 - sum(counts[1])) <= 1
    assert torch.equal(half["reference"], batch["reference"])
    assert session.computation.gradient(1, [5], beginning=True)[1] == 1
    batch["learned"][:] = False
    assert task.beginning(batch) is None


def test_what_cannot_be_a_pair_is_refused(tmp_path: Path) -> None:
    manifest, _ = dpo_manifest(tmp_path, margins=False)
    store = BlobStore(tmp_path)
    private = replace(manifest.data, shards=(), private=PrivateSpec(epoch=9))
    kept = replace(manifest.optimizer, outlier_filter=False, update_weight="equal")
    for changed, words in (
        (replace(manifest, task_settings={"beta": 0.0}), "beta"),
        (replace(manifest, task_settings={"label_smoothing": 0.5}), "label_smoothing"),
        (replace(manifest, task_settings={"gamma": 1.0}), "unknown key 'gamma'"),
        (replace(manifest, data=replace(manifest.data, sequence_length=5)), "5 numbers hold no"),
        (replace(manifest, data=replace(manifest.data, marked=False)), "tokens are marked"),
        (replace(manifest, data=private, optimizer=kept), "margins of private pairs"),
        (replace(manifest, model={**TINY_LLAMA, "model_type": "bert"}), ""),
    ):
        with refused("bad_model", words):
            TrainingSession(changed, store, CPU)
    plain, chunks = make_manifest(tmp_path)
    with refused("bad_model", "margins of pairs"):
        opened((plain, chunks), tmp_path).computation.margins([0])


def test_bad_numbers_are_refused(tmp_path: Path) -> None:
    manifest, _ = dpo_manifest(tmp_path, margins=False)
    for value in (math.nan, math.inf):
        stored = with_margins(pairs(1), np.array([value])).tobytes()
        with refused("bad_data", "margin is not finite"):
            read_pairs(manifest.data, [stored])
    rows = pairs(1)
    rows[0, 3] = 256
    with refused("bad_data", "token 256 is outside the vocabulary"):
        read_pairs(manifest.data, [with_margins(rows, np.zeros(1)).tobytes()])


@given(st.sampled_from([1, 2, 4]), st.integers(8, 80), st.data())
def test_a_pair_is_read_as_it_was_stored(width: int, length: int, data: st.DataObject) -> None:
    layout = PairLayout(length, width)
    assert length - 4 // width - 1 <= 2 * layout.half <= length - 4 // width
    marks = 8 * width - 2
    token = st.integers(0, 31)
    halves = [
        np.array(data.draw(st.lists(token, min_size=1, max_size=layout.half)), np.uint32)
        for _ in range(2)
    ]
    for half in halves:
        half[1:] |= 1 << marks
    row = layout.row(halves[0], halves[1], FILLER, 2 << marks)
    assert len(row) == length
    margin = data.draw(st.floats(width=32, allow_nan=False, allow_infinity=False))
    stored = layout.with_margins(row[None], np.array([margin], np.float32))
    spec = DataSpec.__new__(DataSpec)
    for name, value in (
        ("sequence_length", length),
        ("token_bytes", width),
        ("vocabulary", 32),
        ("marked", True),
    ):
        object.__setattr__(spec, name, value)
    following = np.zeros(1, stored.dtype).tobytes()
    ids, learned, margins = read_pairs(spec, [stored.tobytes() + following])
    assert margins.tolist() == [margin]
    for half, read, marked in zip(halves, ids, learned, strict=True):
        count = len(half)
        assert read[:count].tolist() == (half & 31).tolist()
        assert (read[count:] == FILLER).all()
        assert marked.tolist() == [0 < place < count for place in range(layout.half)]


def test_a_pair_that_does_not_fit_is_longer_than_a_sample() -> None:
    for extra in (1, 5):
        long = np.ones(HALF + extra, np.uint32)
        assert len(LAYOUT.row(long, long[:2], FILLER, BEGIN)) == LENGTH + 2 * extra
        assert len(LAYOUT.row(long[:2], long, FILLER, BEGIN)) == LENGTH + 2 * extra
