"""The tasks in a trainer: the targets of a loss, random numbers, refusals, and that they learn."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from distro_node.node.errors import ExitCode, UserError
from distro_node.node.storage.blob_store import BlobStore
from distro_node.node.trainer.audit_score import AssignedSample
from distro_node.node.trainer.models.initial_parameters import initialise
from distro_node.node.trainer.tasks.task_batches import Loss, StoredSample
from distro_node.node.trainer.tasks.tasks import HasBeginnings, open_task
from distro_node.node.trainer.training_session import TrainingSession
from distro_node.node.training.error_messages import explain_trainer
from distro_node.node.training.errors import TrainerFailed
from distro_node.node.training.task_names import entry_point, require_task
from distro_node.protocol.wire.manifest import Manifest, decode_manifest
from trainer.support import CPU, TINY_LLAMA, example_text, make_manifest, store_shard

# Private here: `_corpus`: what is read.

BEGINS, LEARNED = 1 << 15, 1 << 14
TINY_BERT: dict[str, Any] = {
    "model_type": "bert",
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "vocab_size": 257,
    "max_position_embeddings": 64,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
    "pad_token_id": None,
}
MASK = 256


def answers(samples: int) -> np.ndarray:
    """Return rows of two conversations: a number, one that follows from it by a rule, and then a
    number that follows no rule."""
    generator = np.random.default_rng(1)
    rows = []
    for _ in range(samples * 2):
        asked = int(generator.integers(0, 8))
        said = [(asked * 31 + place) % 200 | LEARNED for place in range(7)]
        rows.append([asked | BEGINS, *said, *generator.integers(0, 256, 8).tolist()])
    return np.array([*np.concatenate(rows).tolist(), BEGINS], "<u2")


def sft_manifest(root: Path, **changes: Any) -> tuple[Manifest, Sequence[Any]]:
    manifest, chunks = make_manifest(root, TINY_LLAMA)
    store = BlobStore(root)
    data = replace(
        manifest.data,
        token_bytes=2,
        shards=(store_shard(store, answers(32)),),
        heldout=store_shard(store, answers(4)),
        marked=True,
        attention="document",
        **changes,
    )
    return replace(manifest, task="sft", data=data), chunks


def masked_manifest(root: Path, **settings: Any) -> tuple[Manifest, Sequence[Any]]:
    manifest, chunks = make_manifest(root, TINY_BERT)
    store = BlobStore(root)
    text = example_text(8000).astype("<u2")
    data = replace(
        manifest.data,
        token_bytes=2,
        vocabulary=257,
        shards=(store_shard(store, text[:6000]),),
        heldout=store_shard(store, text[6000:]),
        end_token=10,
    )
    settings = {"mask_token": MASK} | settings
    return replace(manifest, task="masked_lm", data=data, task_settings=settings), chunks


def opened(made: tuple[Manifest, Sequence[Any]], root: Path, **options: Any) -> TrainingSession:
    session = TrainingSession(made[0], BlobStore(root), CPU, **options)
    session.load(made[1])
    return session


def refused(manifest: Manifest, root: Path, words: str) -> TrainerFailed:
    with pytest.raises(TrainerFailed, match=words) as caught:
        TrainingSession(manifest, BlobStore(root), CPU)
    assert "\n" not in str(caught.value)
    return caught.value


def train(session: TrainingSession, rounds: int) -> None:
    samples = session.manifest.data.samples
    for round_number in range(1, rounds + 1):
        share = [(round_number * 8 + place) % samples for place in range(8)]
        made = session.train(round_number, share)
        session.apply(round_number, [made.body], 8e-3, True)


def test_old_manifests_keep_their_bytes(tmp_path: Path) -> None:
    manifest, _ = make_manifest(tmp_path)
    assert b"task_settings" not in manifest.encode()
    assert b"marked" not in manifest.encode()
    told, _ = masked_manifest(tmp_path)
    assert decode_manifest(told.encode(), told.swarm) == told
    with pytest.raises(ValueError, match="small letters"):
        replace(manifest, task="../x")


def test_the_assistants_text_is_learned_and_no_other(tmp_path: Path) -> None:
    session = opened(sft_manifest(tmp_path), tmp_path)
    made = session.train(1, [0, 1, 2])
    assert made.tokens == 3 * 2 * 7
    before = session.evaluate(4)
    # Eight beginnings with their continuations: there is nothing else to be learned.
    train(session, 40)
    assert session.evaluate(4) < 0.7 * before


def test_the_loss_is_the_mean_over_marked_tokens(tmp_path: Path) -> None:
    session = opened(sft_manifest(tmp_path), tmp_path)
    row = answers(4)
    losses = []
    for start in range(0, 128, 16):
        ids = torch.from_numpy((row[start : start + 16] & (LEARNED - 1)).astype(np.int64))[None]
        with torch.no_grad():
            # Each conversation alone: text before it must not matter.
            logits = session.model(input_ids=ids, use_cache=False).logits[0, :7]
        losses.append(torch.nn.functional.cross_entropy(logits, ids[0, 1:8]))
    assert session.evaluate(4) == pytest.approx(float(torch.stack(losses).mean()), rel=1e-5)


def test_the_gradient_is_that_of_the_mean_whatever_the_micro_batch(tmp_path: Path) -> None:
    made = sft_manifest(tmp_path)
    gradients = []
    for micro_batch in (1, 4):
        session = opened(made, tmp_path, micro_batch=micro_batch)
        session.gradient(1, [0, 1, 2, 3, 4])
        gradients.append([parameter.grad for parameter in session.parameters])
    session = opened(made, tmp_path)
    stored = session._corpus.training([0, 1, 2, 3, 4])
    batch = session.task.batch([StoredSample(data, n, 1) for n, data in enumerate(stored)])
    loss = session.task.loss(session.model.train(), batch)
    (loss.total / loss.count).backward()
    for one, other, parameter in zip(*gradients, session.parameters, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-7)
        torch.testing.assert_close(one, parameter.grad, rtol=1e-4, atol=1e-7)


def test_samples_without_an_answer_are_nogradient(tmp_path: Path) -> None:
    manifest, chunks = sft_manifest(tmp_path)
    silent = store_shard(BlobStore(tmp_path), answers(4) & ~np.uint16(LEARNED))
    data = replace(manifest.data, shards=(silent,), heldout=silent)
    session = opened((replace(manifest, data=data), chunks), tmp_path)
    made = session.train(1, [0, 1])
    assert (made.loss, made.tokens) == (0.0, 0)
    with pytest.raises(TrainerFailed, match="no tokens to learn"):
        session.evaluate(1)


@pytest.mark.parametrize("kind", ["causal_lm", "sft", "masked_lm"])
def test_the_beginning_of_a_sample_is_half_of_what_is_learned(tmp_path: Path, kind: str) -> None:
    makers = {"causal_lm": make_manifest, "sft": sft_manifest, "masked_lm": masked_manifest}
    session = opened(makers[kind](tmp_path), tmp_path)
    task = session.task
    assert isinstance(task, HasBeginnings)
    (data,) = session._corpus.training([5])
    batch = task.batch([StoredSample(data, 5, 1)])
    beginning = task.beginning(batch)
    assert beginning is not None
    whole, half = task.loss(session.model, batch), task.loss(session.model, beginning)
    assert half.count == whole.count // 2
    for name, tensor in beginning.items():
        assert torch.equal(tensor, batch[name][:, : tensor.shape[1]])
    # Nothing else is in it, in the gradient as well.
    (half.total / half.count).backward()
    expected = [parameter.grad for parameter in session.parameters]
    loss, counted = session.gradient(1, [5], beginning=True)
    assert (counted, loss) == (half.count, pytest.approx(float(half.total.detach()) / counted))
    for one, parameter in zip(expected, session.parameters, strict=True):
        torch.testing.assert_close(one, parameter.grad, rtol=1e-4, atol=1e-7)
    assert session.gradient(1, [5])[1] == whole.count


def test_a_sample_in_which_one_thing_is_learned_has_no_beginning(tmp_path: Path) -> None:
    manifest, chunks = sft_manifest(tmp_path)
    row = answers(4) & ~np.uint16(LEARNED)
    # One in each sample of 32 and in the number after it.
    row[5::32] |= LEARNED
    single = store_shard(BlobStore(tmp_path), row)
    data = replace(manifest.data, shards=(single,), heldout=single)
    session = opened((replace(manifest, data=data), chunks), tmp_path)
    assert session.gradient(1, [0])[1] == 1
    assert session.gradient(1, [0], beginning=True) == (0.0, 0)
    session.train(1, [1], audits=True)
    assert session.audit(1, AssignedSample(sample=0, share=2))
    found = session.judge(1, opened((manifest, chunks), tmp_path).train(1, [0]).body)
    assert found is not None
    assert found.first_half is None


def test_gaps_are_the_same_for_everybody_and_others_each_round(tmp_path: Path) -> None:
    session = opened(masked_manifest(tmp_path), tmp_path)
    (data,) = session._corpus.training([5])
    first = session.task.batch([StoredSample(data, 5, 1)])
    for other, same in (
        (StoredSample(data, 5, 1), True),
        (StoredSample(data, 5, 2), False),
        (StoredSample(data, 6, 1), False),
        (StoredSample(data, 5, 1, heldout=True), False),
    ):
        again = session.task.batch([other])
        assert torch.equal(first["targets"], again["targets"]) is same
    # A sample in a batch with others is the same, too.
    both = session.task.batch([StoredSample(data, 4, 1), StoredSample(data, 5, 1)])
    assert torch.equal(both["tokens"][1], first["tokens"][0])
    # The members of a swarm must agree on these random numbers.
    assert np.flatnonzero(first["targets"][0] != -100).tolist() == [0, 7, 15, 17]


def test_a_share_is_hidden_and_never_where_a_document_ends(tmp_path: Path) -> None:
    manifest, _ = masked_manifest(tmp_path, share=0.3)
    session = TrainingSession(manifest, BlobStore(tmp_path), CPU)
    samples = [
        StoredSample(data, n, 3) for n, data in enumerate(session._corpus.training(range(180)))
    ]
    batch = session.task.batch(samples)
    ids = session.task.read(samples).ids[:, :-1]  # type: ignore[attr-defined]  # this task has it
    found = (batch["targets"] != -100).numpy()
    assert found[ids != 10].mean() == pytest.approx(0.3, abs=0.02)
    assert not found[ids == 10].any()
    assert (batch["targets"].numpy()[found] == ids[found]).all()
    assert (batch["tokens"].numpy()[~found] == ids[~found]).all()
    hidden = batch["tokens"].numpy()[found]
    assert (hidden == MASK).mean() == pytest.approx(0.8, abs=0.03)
    assert (hidden == ids[found]).mean() == pytest.approx(0.1, abs=0.03)


@pytest.mark.parametrize("attention", ["sequence", "document"])
def test_a_model_learns_to_fill_gaps(tmp_path: Path, attention: str) -> None:
    manifest, chunks = masked_manifest(tmp_path)
    data = replace(manifest.data, attention=attention)
    session = opened((replace(manifest, data=data), chunks), tmp_path)
    before = session.evaluate(16)
    assert session.evaluate(16) == before
    train(session, 40)
    assert session.evaluate(16) < 0.7 * before


def test_what_does_not_go_together_is_refused(tmp_path: Path) -> None:
    masked, _ = masked_manifest(tmp_path)
    sft, _ = sft_manifest(tmp_path)
    plain, _ = make_manifest(tmp_path)
    for manifest, words in (
        (replace(masked, task="causal_lm", task_settings=None), "which does not only see"),
        (replace(plain, task="masked_lm", task_settings={"mask_token": 1}), "which sees only"),
        (replace(sft, task="causal_lm"), "takes no marked data"),
        (replace(plain, task="sft"), "needs data whose tokens are marked"),
        (replace(masked, task_settings=None), "'mask_token' is missing"),
        (replace(masked, task_settings={"mask_token": 257}), "not in the vocabulary"),
        (replace(masked, task_settings={"mask_token": 1, "shar": 1.0}), "'share'"),
        (replace(plain, task_settings={"x": 1}), "unknown key 'x'"),
    ):
        refused(manifest, tmp_path, words)


def test_roberta_counts_its_positions_from_after_the_padding(tmp_path: Path) -> None:
    config = TINY_BERT | {"model_type": "roberta", "max_position_embeddings": 34, "pad_token_id": 1}
    made = initialise(config, 0, None, BlobStore(tmp_path), CPU)
    manifest, _ = masked_manifest(tmp_path)
    manifest = replace(manifest, model=config, parameters=made.table)
    session = opened((manifest, made.blobs.chunks), tmp_path)
    assert session.train(1, [0, 1]).tokens > 0
    longer = replace(manifest, data=replace(manifest.data, sequence_length=33))
    refused(longer, tmp_path, "sequences of 33 tokens, but the model takes at most 32")


# --- tasks of packages ---------------------------------------------------------------------------

PACKAGE = """
import torch
from distro_node.node.trainer.tasks.task_batches import Loss
from distro_node.node.trainer.tasks.data import read_tokens

class LastToken:
    unit = "nats a sample"

    def __init__(self, manifest, config):
        if manifest.task_settings != {"scale": 2.0}:
            raise ValueError("scale is 2")
        self.data = manifest.data

    def batch(self, samples):
        return {"tokens": torch.from_numpy(read_tokens(self.data, [s.data for s in samples]).ids)}

    def loss(self, model, batch):
        tokens = batch["tokens"]
        logits = model(input_ids=tokens[:, :-1], use_cache=False).logits[:, -1].float()
        total = torch.nn.functional.cross_entropy(logits, tokens[:, -1], reduction="sum")
        return Loss(2.0 * total, len(tokens))
"""


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make a package that brings tasks, and appears installed to Python."""
    root = tmp_path / "site"
    about = root / "lasttoken-1.0.dist-info"
    about.mkdir(parents=True)
    (root / "lasttoken.py").write_text(PACKAGE)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: lasttoken\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(
        "[distro_node.tasks]\nlast = lasttoken:LastToken\nbroken = nowhere.at.all:Task\n"
    )
    monkeypatch.syspath_prepend(str(root))
    return root


def test_a_task_of_an_installed_package_is_trained(tmp_path: Path, package: Path) -> None:
    require_task("last")
    manifest, chunks = make_manifest(tmp_path)
    manifest = replace(manifest, task="last", task_settings={"scale": 2.0})
    session = opened((manifest, chunks), tmp_path)
    made = session.train(1, [0, 1, 2])
    assert made.tokens == 3
    assert session.evaluate(4) == pytest.approx(2 * np.log(256), rel=0.1)
    refused(
        replace(manifest, task_settings=None), tmp_path, "'last' refuses the manifest.*scale is 2"
    )


def test_a_task_that_is_not_there_is_one_line_and_never_a_peers(
    tmp_path: Path, package: Path
) -> None:
    manifest, _ = make_manifest(tmp_path)
    with pytest.raises(UserError, match="'poetry', which is not installed here") as told:
        require_task("poetry")
    assert told.value.code == ExitCode.NO_TASK
    for name, words in (("poetry", "not installed"), ("broken", "cannot be loaded")):
        error = refused(replace(manifest, task=name), tmp_path, words)
        assert error.kind == "no_task"
        assert explain_trainer(error).code == ExitCode.NO_TASK


def test_two_packages_with_one_task_are_none(
    package: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    about = package / "other-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: other\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("[distro_node.tasks]\nlast = other:Task\n")
    with pytest.raises(UserError, match="several packages provide the task 'last'"):
        entry_point("last")


def test_an_audit_needs_no_beginnings(tmp_path: Path, package: Path) -> None:
    """A third-party task need not be able to truncate samples."""
    manifest, chunks = make_manifest(tmp_path)
    manifest = replace(manifest, task="last", task_settings={"scale": 2.0})
    session = opened((manifest, chunks), tmp_path)
    assert not isinstance(session.task, HasBeginnings)
    body = session.train(1, [1], audits=True).body
    assert session.audit(1, AssignedSample(sample=0, share=2))
    found = session.judge(1, body)
    assert found is not None
    assert found.first_half is None


def test_the_interface_is_all_that_a_session_asks_for(tmp_path: Path) -> None:
    manifest, _ = make_manifest(tmp_path)
    session = opened(make_manifest(tmp_path), tmp_path)
    task = open_task(manifest, session.model.config)
    assert task.unit == "nats a token"
    stored = session._corpus.heldout([0, 1])
    batch = task.batch([StoredSample(data, n, 0, heldout=True) for n, data in enumerate(stored)])
    loss = task.loss(session.model.eval(), batch)
    assert isinstance(loss, Loss)
    assert loss.count == 64
    assert session.evaluate(2) == pytest.approx(float(loss.total.detach()) / 64, rel=1e-5)
