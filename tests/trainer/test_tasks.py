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
from distro_node.node.trainer.models.model import model_config, new_model
from distro_node.node.trainer.tasks.data import Corpus, Tokens, read_tokens
from distro_node.node.trainer.tasks.language_tasks import CausalLM
from distro_node.node.trainer.tasks.packing import check_attention, document_inputs, starts_after
from distro_node.node.trainer.tasks.task_batches import StoredSample
from distro_node.node.trainer.tasks.tasks import HasBeginnings
from distro_node.node.trainer.training_session import TrainingSession
from distro_node.node.training.architectures import is_bidirectional
from distro_node.node.training.error_messages import explain_trainer
from distro_node.node.training.errors import TrainerFailed
from distro_node.node.training.task_names import entry_point, require_task
from distro_node.protocol.wire.manifest import Manifest, decode_manifest
from trainer.support import (
    CPU,
    TINY_LLAMA,
    example_text,
    make_manifest,
    opened,
    refused,
    store_shard,
)
from trainer.test_adapters import TINY_GPT2

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
# The number of its padding, which no text here contains, decides where its positions begin.
TINY_ROBERTA = TINY_BERT | {"model_type": "roberta", "pad_token_id": 5}
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


def train(session: TrainingSession, rounds: int) -> None:
    samples = session.manifest.data.samples
    for round_number in range(1, rounds + 1):
        share = [(round_number * 8 + place) % samples for place in range(8)]
        made = session.train(round_number, share)
        session.apply(round_number, [made.body], 8e-3, True)


def test_the_assistants_text_is_learned_and_no_other(tmp_path: Path) -> None:
    session = opened(sft_manifest(tmp_path), tmp_path)
    made = session.train(1, [0, 1, 2])
    assert made.tokens == 3 * 2 * 7
    before = session.computation.evaluate(4)
    # Eight beginnings with their continuations: there is nothing else to be learned.
    train(session, 40)
    assert session.computation.evaluate(4) < 0.7 * before


def test_the_loss_is_the_mean_over_marked_tokens(tmp_path: Path) -> None:
    session = opened(sft_manifest(tmp_path), tmp_path)
    rows = torch.from_numpy((answers(4)[:128] & (LEARNED - 1)).astype(np.int64)).view(8, 16)
    with torch.no_grad():
        # Each conversation alone: text before it must not matter.
        logits = session.model(input_ids=rows, use_cache=False).logits[:, :7]
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), rows[:, 1:8].flatten())
    assert session.computation.evaluate(4) == pytest.approx(float(loss), rel=1e-5)


def test_the_gradient_is_that_of_the_mean_whatever_the_micro_batch(tmp_path: Path) -> None:
    made = sft_manifest(tmp_path)
    gradients = []
    for micro_batch in (1, 4):
        session = opened(made, tmp_path, micro_batch=micro_batch)
        session.computation.gradient(1, [0, 1, 2, 3, 4])
        gradients.append([parameter.grad for parameter in session.parameters])
    session = opened(made, tmp_path)
    stored = session.computation.corpus.training([0, 1, 2, 3, 4])
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
        session.computation.evaluate(1)


@pytest.mark.parametrize("make", [make_manifest, sft_manifest, masked_manifest])
def test_the_beginning_of_a_sample_is_half_of_what_is_learned(tmp_path: Path, make: Any) -> None:
    session = opened(make(tmp_path), tmp_path)
    task = session.task
    assert isinstance(task, HasBeginnings)
    (data,) = session.computation.corpus.training([5])
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
    loss, counted = session.computation.gradient(1, [5], beginning=True)
    assert (counted, loss) == (half.count, pytest.approx(float(half.total.detach()) / counted))
    for one, parameter in zip(expected, session.parameters, strict=True):
        torch.testing.assert_close(one, parameter.grad, rtol=1e-4, atol=1e-7)
    assert session.computation.gradient(1, [5])[1] == whole.count


def test_a_sample_in_which_one_thing_is_learned_has_no_beginning(tmp_path: Path) -> None:
    manifest, chunks = sft_manifest(tmp_path)
    row = answers(4) & ~np.uint16(LEARNED)
    # One in each sample of 32 and in the number after it.
    row[5::32] |= LEARNED
    single = store_shard(BlobStore(tmp_path), row)
    data = replace(manifest.data, shards=(single,), heldout=single)
    session = opened((replace(manifest, data=data), chunks), tmp_path)
    assert session.computation.gradient(1, [0])[1] == 1
    assert session.computation.gradient(1, [0], beginning=True) == (0.0, 0)
    session.train(1, [1], audits=True)
    assert session.audit(1, AssignedSample(sample=0, share=2))
    found = session.judge(1, opened((manifest, chunks), tmp_path).train(1, [0]).body)
    assert found is not None
    assert found.first_half is None


def test_gaps_are_the_same_for_everybody_and_others_each_round(tmp_path: Path) -> None:
    session = opened(masked_manifest(tmp_path), tmp_path)
    (data,) = session.computation.corpus.training([5])
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
    session = opened(masked_manifest(tmp_path, share=0.3), tmp_path)
    stored = session.computation.corpus.training(range(180))
    samples = [StoredSample(data, n, 3) for n, data in enumerate(stored)]
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
    before = session.computation.evaluate(16)
    assert session.computation.evaluate(16) == before
    train(session, 20)
    assert session.computation.evaluate(16) < 0.7 * before


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
        with refused("bad_model", words):
            TrainingSession(manifest, BlobStore(tmp_path), CPU)
    with pytest.raises(ValueError, match="small letters"):
        replace(plain, task="../x")
    assert decode_manifest(masked.encode(), masked.swarm) == masked


def test_roberta_counts_its_positions_from_after_the_padding(tmp_path: Path) -> None:
    config = TINY_BERT | {"model_type": "roberta", "max_position_embeddings": 34, "pad_token_id": 1}
    made = initialise(config, 0, None, BlobStore(tmp_path), CPU)
    manifest = replace(masked_manifest(tmp_path)[0], model=config, parameters=made.table)
    session = opened((manifest, made.blobs.chunks), tmp_path)
    assert session.train(1, [0, 1]).tokens > 0
    longer = replace(manifest, data=replace(manifest.data, sequence_length=33))
    with refused("bad_model", "sequences of 33 tokens, but the model takes at most 32"):
        TrainingSession(longer, BlobStore(tmp_path), CPU)


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
    assert session.train(1, [0, 1, 2]).tokens == 3
    assert session.computation.evaluate(4) == pytest.approx(2 * np.log(256), rel=0.1)
    with refused("bad_model", "'last' refuses the manifest.*scale is 2"):
        TrainingSession(replace(manifest, task_settings=None), BlobStore(tmp_path), CPU)
    # An audit needs no beginnings: the task need not be able to truncate samples.
    assert not isinstance(session.task, HasBeginnings)
    body = session.train(2, [1], audits=True).body
    assert session.audit(2, AssignedSample(sample=0, share=2))
    found = session.judge(2, body)
    assert found is not None
    assert found.first_half is None


def test_a_task_that_is_not_there_is_one_line_and_never_a_peers(
    tmp_path: Path, package: Path
) -> None:
    manifest, _ = make_manifest(tmp_path)
    with pytest.raises(UserError, match="'poetry', which is not installed here") as told:
        require_task("poetry")
    assert told.value.code == ExitCode.NO_TASK
    for name, words in (("poetry", "not installed"), ("broken", "cannot be loaded")):
        with refused("no_task", words):
            TrainingSession(replace(manifest, task=name), BlobStore(tmp_path), CPU)
    assert explain_trainer(TrainerFailed("no_task", "")).code == ExitCode.NO_TASK
    # Nor is one that two packages provide.
    about = package / "other-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: other\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("[distro_node.tasks]\nlast = other:Task\n")
    with pytest.raises(UserError, match="several packages provide the task 'last'"):
        entry_point("last")


# Attention within documents: text before a border has no effect.


END = 7
DOCUMENTS = [[1, 2, 3, END], [END], [50, 60, 70, 80, 90, END], [11, 12]]
SOFT_CAPPED = TINY_LLAMA | {"model_type": "gemma2", "head_dim": 16, "sliding_window": 4096}


@pytest.mark.parametrize(
    ("config", "reserved"),
    [(TINY_LLAMA, 0), (TINY_GPT2, 0), (SOFT_CAPPED, 0), (TINY_BERT, 0), (TINY_ROBERTA, 6)],
)
def test_each_document_is_computed_as_if_it_were_alone(
    config: dict[str, Any], reserved: int
) -> None:
    torch.manual_seed(0)
    model = new_model(model_config(config), CPU).eval()
    packed = torch.tensor([[token for document in DOCUMENTS for token in document]])
    packed = torch.cat([packed, packed.flip(1)])
    bidirectional = is_bidirectional(config["model_type"])
    begins = starts_after(packed, END)
    inputs = document_inputs(begins, model.config, bidirectional=bidirectional)
    positions = (inputs["position_ids"][0] - reserved).tolist()
    assert positions == [0, 1, 2, 3, 0, 0, 1, 2, 3, 4, 5, 0, 1]
    with torch.no_grad():
        together = model(input_ids=packed, **inputs).logits[0]
        across = model(input_ids=packed).logits[0]
        start = 0
        for document in DOCUMENTS:
            alone = model(input_ids=torch.tensor([document])).logits[0]
            stop = start + len(document)
            torch.testing.assert_close(together[start:stop], alone, atol=1e-5, rtol=1e-4)
            start = stop
    assert (together - across).abs().max() > 1e-3


def test_a_token_between_documents_that_starts_them_is_seen_by_the_later_one(
    tmp_path: Path,
) -> None:
    manifest, _ = make_manifest(tmp_path)
    ids = [[1, 2, 32, 3, 4, 32, 32, 5]]
    begins = {}
    for start in (None, 31, 32):
        data = replace(manifest.data, end_token=32, start_token=start, attention="document")
        task = CausalLM(replace(manifest, data=data), model_config(manifest.model))
        borders = task.borders(Tokens(np.array(ids), None, None))
        begins[start] = borders["begins"].int().tolist()[0]
        positions = task.document_inputs(borders, len(ids[0]))["position_ids"].tolist()[0]
        if start == 32:
            assert positions == [0, 1, 0, 1, 2, 0, 0, 1]
    assert begins[None] == begins[31] == [0, 0, 0, 1, 0, 0, 1, 1]
    assert begins[32] == [0, 0, 1, 0, 0, 1, 1, 0]


def test_a_window_that_slides_within_a_sequence_is_refused(tmp_path: Path) -> None:
    config = model_config(TINY_LLAMA | {"model_type": "mistral", "sliding_window": 16})
    data = replace(make_manifest(tmp_path)[0].data, end_token=END, attention="document")
    with refused("bad_model", "sliding window of 16"):
        check_attention(data, config)
    check_attention(replace(data, sequence_length=16), config)
    check_attention(replace(data, attention="sequence"), config)
    for end, words in ((None, "needs an end_token"), (256, "not in the vocabulary")):
        with pytest.raises(ValueError, match=words):
            replace(data, end_token=end)


def test_a_session_trains_within_documents(tmp_path: Path) -> None:
    """With a frequent token as the end token, each token sees little: the loss is that of such a
    mask."""
    manifest, chunks = make_manifest(tmp_path)
    losses = []
    # A space ends what the session takes for documents.
    for attention in ("sequence", "document"):
        data = replace(manifest.data, end_token=32, attention=attention)
        session = opened((replace(manifest, data=data), chunks), tmp_path)
        # An untrained model hardly attends to earlier tokens: only sharp scores reveal what it sees.
        with torch.no_grad():
            for parameter in session.parameters:
                parameter.mul_(8.0)
        losses.append(session.computation.evaluate(4))
    assert abs(losses[0] - losses[1]) > 1e-3
    stored = Corpus(manifest.data, BlobStore(tmp_path)).heldout(range(4))
    batch = torch.from_numpy(read_tokens(manifest.data, stored).ids)
    inputs = batch[:, :-1]
    with torch.no_grad():
        borders = document_inputs(starts_after(inputs, 32), session.model.config)
        logits = session.model(input_ids=inputs, use_cache=False, **borders).logits
    expected = torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())
    assert losses[1] == pytest.approx(float(expected), rel=1e-5)
