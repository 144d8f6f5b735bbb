"""Classification in a trainer: batches, loss against plain torch, agreement, exports, and refusals."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from distro_node.node.create.tokens import ByteTokenizer
from distro_node.node.storage.blob_store import BlobStore
from distro_node.node.trainer import computation
from distro_node.node.trainer.models.classifiers import FixedBatchNorm
from distro_node.node.trainer.models.export import export
from distro_node.node.trainer.models.initial_parameters import initialise, read_checkpoint
from distro_node.node.trainer.models.model import model_config, new_model
from distro_node.node.trainer.models.probe import make_probe
from distro_node.node.trainer.models.read_export import compare_export
from distro_node.node.trainer.optimizer.mixed_precision import MixedPrecision
from distro_node.node.trainer.speed import sequence_flops
from distro_node.node.trainer.tasks.task_batches import StoredSample
from distro_node.node.trainer.training_session import TrainingSession
from distro_node.node.training.errors import TrainerFailed
from distro_node.node.training.task_names import (
    NO_TOKENIZER,
    ImageClassSettings,
    TextClassSettings,
)
from distro_node.protocol.wire.manifest import AdapterSpec, Manifest
from distro_node.protocol.wire.structure import to_plain
from safetensors.torch import load_file, save_file
from trainer.support import CPU, make_manifest, opened, refused, store_shard
from transformers import (
    AutoModelForImageClassification,
    AutoModelForSequenceClassification,
    BertConfig,
    BertForMaskedLM,
    PreTrainedTokenizerFast,
    ResNetConfig,
    ResNetForImageClassification,
)

TOPICS = TextClassSettings(classes=("sea", "sky"), pad_token=0)
SIGNS = ImageClassSettings(size=8, channels=1, classes=("bar", "beam"), mean=(0.2,), std=(0.4,))
LENGTH = 16
BERT: dict[str, Any] = {
    "model_type": "bert",
    "num_labels": 2,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "vocab_size": 256,
    "max_position_embeddings": 32,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
}
ROBERTA = BERT | {"model_type": "roberta", "pad_token_id": 0, "type_vocab_size": 1}
VIT: dict[str, Any] = {
    "model_type": "vit",
    "num_labels": 2,
    "image_size": 8,
    "num_channels": 1,
    "patch_size": 4,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
}
RESNET: dict[str, Any] = {
    "model_type": "resnet",
    "num_labels": 2,
    "num_channels": 1,
    "embedding_size": 8,
    "hidden_sizes": [8, 16],
    "depths": [2, 1],
    "layer_type": "basic",
}
Made = tuple[Manifest, Sequence[Any]]
MODELS = [BERT, ROBERTA, VIT, RESNET]
NAMES = [model["model_type"] for model in MODELS]


def texts(count: int) -> list[tuple[int, bytes]]:
    """Return texts with their class: each has some of its class's letters among others."""
    generator = np.random.default_rng(0)
    found = []
    for number in range(count):
        label = number % 2
        letters = generator.integers(ord("a"), ord("m"), 3 + number % 11)
        letters[generator.integers(0, len(letters), 3)] = ord("z") if label else ord("y")
        found.append((label, bytes(letters.tolist())))
    return found


def text_rows(count: int) -> np.ndarray:
    rows = [bytes([label]) + text.ljust(LENGTH - 1, b"\0") for label, text in texts(count)]
    return np.frombuffer(b"".join(rows) + b"\0", np.uint8)


def images(count: int) -> list[tuple[int, np.ndarray]]:
    """Return vertical and horizontal bars at random places, with their class."""
    generator = np.random.default_rng(0)
    found = []
    for number in range(count):
        image = np.zeros((8, 8), np.uint8)
        place = int(generator.integers(0, 8))
        if number % 2:
            image[place] = 255
        else:
            image[:, place] = 255
        found.append((number % 2, image))
    return found


def image_rows(count: int) -> np.ndarray:
    rows = [bytes([label]) + image.tobytes() for label, image in images(count)]
    return np.frombuffer(b"".join(rows) + b"\0", np.uint8)


def made_of(config: dict[str, Any], root: Path, **changes: Any) -> Made:
    """Return a manifest of a model that classifies, and its initial snapshot's chunks."""
    store = BlobStore(root)
    made = initialise(config, 0, None, store, CPU)
    manifest, _ = make_manifest(root)
    on_images = config["model_type"] in ("vit", "resnet")
    rows = image_rows if on_images else text_rows
    settings: Any = SIGNS if on_images else TOPICS
    data = replace(
        manifest.data,
        sequence_length=SIGNS.sample_bytes if on_images else LENGTH,
        shards=(store_shard(store, rows(32)), store_shard(store, rows(16))),
        heldout=store_shard(store, rows(20)),
    )
    definition = NO_TOKENIZER if on_images else ByteTokenizer().definition
    data = replace(data, tokenizer=store.put(definition))
    manifest = replace(
        manifest,
        task="image_classification" if on_images else "text_classification",
        task_settings=to_plain(settings, named=True),
        model=config,
        parameters=made.table,
        initial=store.put(made.blobs.encode()),
        data=data,
    )
    return replace(manifest, **changes), made.blobs.chunks


def batch_of(session: TrainingSession, numbers: Sequence[int]) -> Any:
    pairs = zip(session.computation.corpus.training(numbers), numbers, strict=True)
    return session.task.batch([StoredSample(data, number, 1) for data, number in pairs])


def test_a_batch_of_texts_leaves_padding_out(tmp_path: Path) -> None:
    session = opened(made_of(BERT, tmp_path), tmp_path)
    batch = batch_of(session, [0, 1, 5])
    expected = [texts(32)[number] for number in (0, 1, 5)]
    assert batch["labels"].tolist() == [label for label, _ in expected]
    longest = max(len(text) for _, text in expected)
    assert batch["input_ids"].shape == batch["attention_mask"].shape == (3, longest)
    for row, mask, (_, text) in zip(
        batch["input_ids"].tolist(), batch["attention_mask"].tolist(), expected, strict=True
    ):
        assert bytes(row).rstrip(b"\0") == text
        assert mask == [1] * len(text) + [0] * (longest - len(text))
    # A sample of padding alone is still computed.
    empty = session.task.batch([StoredSample(bytes(LENGTH + 1), 0, 1)])
    assert empty["attention_mask"].tolist() == [[1]]
    assert torch.isfinite(session.task.loss(session.model, empty).total)


def test_a_batch_of_images_is_normalised(tmp_path: Path) -> None:
    session = opened(made_of(VIT, tmp_path), tmp_path)
    batch = batch_of(session, [0, 1, 33])
    assert batch["labels"].tolist() == [0, 1, 1]
    expected = torch.from_numpy(np.stack([images(32)[n][1] for n in (0, 1, 1)])).float() / 255
    assert torch.allclose(batch["pixel_values"], ((expected - 0.2) / 0.4).view(3, 1, 8, 8))


@pytest.mark.parametrize("config", MODELS, ids=NAMES)
def test_loss_and_gradient_are_those_of_plain_torch(config: Any, tmp_path: Path) -> None:
    session = opened(made_of(config, tmp_path), tmp_path)
    numbers = [0, 3, 8, 9, 40]
    loss, counted = session.computation.gradient(1, numbers)
    assert counted == len(numbers)
    batch = batch_of(session, numbers)
    labels = batch.pop("labels")
    gradients: list[Any] = [each.grad for each in session.parameters]
    ours = [each.clone() for each in gradients]
    session.model.zero_grad()
    # In training mode, as a plain loop does; the normalisations take no notice.
    session.model.train()
    plain = torch.nn.functional.cross_entropy(session.model(**batch).logits, labels)
    plain.backward()
    assert loss == pytest.approx(float(plain.detach()), rel=1e-5)
    theirs: list[Any] = [each.grad for each in session.parameters]
    for one, other in zip(ours, theirs, strict=True):
        assert torch.allclose(one, other, atol=1e-5)
    buffers = {name: each.clone() for name, each in session.model.named_buffers()}
    session.train(1, numbers)
    for name, each in session.model.named_buffers():
        assert torch.equal(each, buffers[name]), name


@pytest.mark.parametrize("narrow", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("config", MODELS, ids=NAMES)
def test_where_memory_is_short_a_copy_computes_in_16_bits(
    config: Any, narrow: torch.dtype, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The copy has bfloat16 weights, also where the device's layers compute in float16."""
    session = opened(made_of(config, tmp_path), tmp_path)
    loss, _ = session.computation.gradient(1, range(4))
    whole: Any = [each.grad for each in session.parameters]
    monkeypatch.setattr(computation, "available_bytes", lambda _: 0)
    if narrow is torch.float16:
        session.computation.precision = MixedPrecision(CPU, narrow)
    shadow = session.computation.shadow()
    assert shadow.precision.dtype is narrow
    assert shadow.gradient(1, range(4))[0] == pytest.approx(loss, rel=1e-2)
    narrowed: Any = [each.grad for each in shadow.parameters]
    assert torch.bfloat16 in {each.dtype for each in narrowed}
    one, other = (torch.cat([each.float().view(-1) for each in g]) for g in (whole, narrowed))
    assert torch.nn.functional.cosine_similarity(one, other, dim=0) > 0.99


@pytest.mark.parametrize("config", MODELS, ids=NAMES)
def test_two_replicas_stay_equal_and_learn(config: Any, tmp_path: Path) -> None:
    made = made_of(config, tmp_path)
    members = [opened(made, tmp_path) for _ in range(2)]
    before = members[0].computation.evaluate(20)
    assert members[0].computation.accuracy(20) == members[1].computation.accuracy(20)
    for round_ in range(1, 25):
        shares = [[(round_ * 8 + i) % 48 for i in range(start, start + 4)] for start in (0, 4)]
        trained = [m.train(round_, share) for m, share in zip(members, shares, strict=True)]
        prints = {m.apply(round_, [t.body for t in trained], 8e-3, True) for m in members}
        assert len(prints) == 1
    for one, other in zip(*(m.model.state_dict().values() for m in members), strict=True):
        assert torch.equal(one, other)
    assert members[0].computation.evaluate(20) < 0.8 * before
    for count in range(1, 21):
        # A share of whole answers, to the last bit: never above 1.
        some = members[0].computation.accuracy(count)
        assert some is not None
        assert some[0] in {right / count for right in range(count + 1)}
    found = members[0].computation.accuracy(20)
    assert found is not None
    share, asked = found
    assert asked == 20
    assert share > 0.7


def exported(config: Any, root: Path) -> tuple[TrainingSession, BlobStore, Path]:
    session = opened(made_of(config, root / "blobs"), root / "blobs")
    for round_ in range(1, 12):
        made = session.train(round_, [(round_ * 8 + i) % 48 for i in range(8)])
        session.apply(round_, [made.body], 8e-3, True)
    directory = root / "model"
    export(session, BlobStore(root / "blobs"), directory)
    return session, BlobStore(root / "blobs"), directory


@pytest.mark.parametrize("config", [BERT, ROBERTA], ids=NAMES[:2])
def test_an_exported_text_classifier_opens_in_the_library(config: Any, tmp_path: Path) -> None:
    session, store, directory = exported(config, tmp_path)
    model: Any = AutoModelForSequenceClassification.from_pretrained(directory)
    tokenizer = PreTrainedTokenizerFast.from_pretrained(directory)
    assert model.config.id2label == {0: "sea", 1: "sky"}
    assert model.config.label2id == {"sea": 0, "sky": 1}
    assert model.config.pad_token_id == tokenizer.pad_token_id == 0
    model.eval()
    # A longer text is cut where `create` cuts it.
    assert len(tokenizer("a" * 99, truncation=True)["input_ids"]) == LENGTH - 1
    held = texts(20)
    inputs: Any = tokenizer([text.decode() for _, text in held], padding=True, return_tensors="pt")
    batch = session.task.batch(
        [StoredSample(bytes([label]) + text.ljust(LENGTH, b"\0"), 0, 0) for label, text in held]
    )
    session.model.eval()
    with torch.no_grad():
        logits = model(input_ids=inputs.input_ids, attention_mask=inputs.attention_mask).logits
        ours = session.model(batch["input_ids"], attention_mask=batch["attention_mask"]).logits
    assert torch.allclose(logits, ours, atol=1e-6)
    right = sum(int(row.argmax()) == label for row, (label, _) in zip(logits, held, strict=True))
    assert session.computation.accuracy(20) == (right / 20, 20)
    assert compare_export(session, store, directory)["differing"] == []


@pytest.mark.parametrize("config", [VIT, RESNET], ids=NAMES[2:])
def test_an_exported_image_classifier_opens_in_the_library(config: Any, tmp_path: Path) -> None:
    session, store, directory = exported(config, tmp_path)
    model: Any = AutoModelForImageClassification.from_pretrained(directory)
    model.eval()
    assert model.config.id2label == {0: "bar", 1: "beam"}
    said = json.loads((directory / "preprocessor_config.json").read_text())
    held = images(20)
    # What the file says, done by hand.
    values = np.stack([image for _, image in held])[:, None].astype(np.float32)
    values = values * said["rescale_factor"] - np.array(said["image_mean"], np.float32)
    inputs = torch.from_numpy(values / np.array(said["image_std"], np.float32))
    stored = [StoredSample(bytes([c]) + image.tobytes() + b"\0", 0, 0) for c, image in held]
    session.model.eval()
    with torch.no_grad():
        logits = model(pixel_values=inputs.float()).logits
        ours = session.model(pixel_values=session.task.batch(stored)["pixel_values"]).logits
    assert torch.allclose(logits, ours, atol=1e-5)
    right = sum(int(row.argmax()) == label for row, (label, _) in zip(logits, held, strict=True))
    assert session.computation.accuracy(20) == (right / 20, 20)
    assert compare_export(session, store, directory)["differing"] == []
    (directory / "preprocessor_config.json").write_text(json.dumps(said | {"image_mean": [0.5]}))
    assert compare_export(session, store, directory)["differing"] == [
        "image_mean in preprocessor_config.json"
    ]


def test_exports_that_name_classes_otherwise_are_told_apart(tmp_path: Path) -> None:
    session, store, directory = exported(BERT, tmp_path)
    path = directory / "config.json"
    said = json.loads(path.read_text())
    path.write_text(json.dumps(said | {"id2label": {"0": "sky", "1": "sea"}}))
    assert compare_export(session, store, directory)["differing"] == ["id2label in config.json"]
    del said["label2id"]
    path.write_text(json.dumps(said))
    assert compare_export(session, store, directory)["differing"] == ["label2id in config.json"]


def test_statistics_in_an_export_count_as_weights(tmp_path: Path) -> None:
    session, store, directory = exported(RESNET, tmp_path)
    own = compare_export(session, store, directory)["fingerprint"]
    path = directory / "model.safetensors"
    tensors = load_file(path)
    name = next(name for name in tensors if name.endswith("running_mean"))
    save_file(tensors | {name: tensors[name] + 1}, path, metadata={"format": "pt"})
    assert compare_export(session, store, directory)["fingerprint"] != own
    save_file(tensors | {name: tensors[name] * torch.nan}, path, metadata={"format": "pt"})
    with refused("bad_model", "are not finite"):
        compare_export(session, store, directory)


def test_a_checkpoints_statistics_are_folded_into_its_weights(tmp_path: Path) -> None:
    torch.manual_seed(3)
    keys = {key: value for key, value in RESNET.items() if key != "model_type"}
    plain = ResNetForImageClassification(ResNetConfig(**keys))
    plain.train()
    with torch.no_grad():
        for _ in range(5):
            plain(pixel_values=3 * torch.randn(8, 1, 8, 8) + 1)
    plain.eval()
    plain.save_pretrained(tmp_path / "plain")
    folded = read_checkpoint(tmp_path / "plain", model_config(RESNET))
    norms: list[Any] = [each for each in folded.modules() if isinstance(each, torch.nn.BatchNorm2d)]
    assert norms
    for norm in norms:
        assert isinstance(norm, FixedBatchNorm)
        assert not norm.training
        kept = norm.state_dict()
        assert not kept["running_mean"].any()
        assert (kept["running_var"] == 1).all()
    values = torch.randn(4, 1, 8, 8)
    with torch.no_grad():
        assert torch.allclose(folded(values).logits, plain(values).logits, rtol=1e-3, atol=1e-3)
    # Folding again changes no bit: what was exported is what was trained.
    folded.save_pretrained(tmp_path / "folded")
    again = read_checkpoint(tmp_path / "folded", model_config(RESNET))
    for one, other in zip(folded.parameters(), again.parameters(), strict=True):
        assert torch.equal(one, other)


def test_a_new_head_is_drawn_from_the_seed(tmp_path: Path) -> None:
    torch.manual_seed(5)
    keys = {key: value for key, value in BERT.items() if key not in ("model_type", "num_labels")}
    pretrained = BertForMaskedLM(BertConfig(**keys))
    pretrained.save_pretrained(tmp_path / "pretrained")
    store = BlobStore(tmp_path / "blobs")
    one, same, other = (
        initialise(BERT, seed, tmp_path / "pretrained", store, CPU) for seed in (1, 1, 2)
    )
    assert one.blobs == same.blobs
    assert one.blobs != other.blobs
    # A head for another number of classes is drawn anew, too; a body must be whole.
    three = new_model(model_config(BERT | {"num_labels": 3}), CPU)
    three.save_pretrained(tmp_path / "three")
    initialise(BERT, 1, tmp_path / "three", store, CPU)
    with refused("bad_model", "classifier.bias has the shape"):
        read_checkpoint(tmp_path / "three", model_config(BERT))
    path = tmp_path / "three" / "model.safetensors"
    tensors = load_file(path)
    del tensors["bert.encoder.layer.0.output.dense.bias"]
    save_file(tensors, path, metadata={"format": "pt"})
    with refused("bad_model", "lacks parameters: bert.encoder"):
        initialise(BERT, 1, tmp_path / "three", store, CPU)


@pytest.mark.parametrize("config", MODELS, ids=NAMES)
def test_a_probe_tells_another_model(config: Any, tmp_path: Path) -> None:
    manifest, chunks = made_of(config, tmp_path)
    probe = make_probe(manifest, BlobStore(tmp_path))
    assert probe is not None
    assert len(set(probe.losses)) > 4
    session = opened((replace(manifest, probe=probe), chunks), tmp_path)
    session.prove()
    wrong = replace(probe, losses=tuple(loss + 3 * probe.tolerance for loss in probe.losses))
    with refused("other_model", "test losses differ"):
        opened((replace(manifest, probe=wrong), chunks), tmp_path).prove()


@pytest.mark.parametrize("config", MODELS, ids=NAMES)
def test_operations_of_a_sample_are_counted(config: Any, tmp_path: Path) -> None:
    assert sequence_flops(made_of(config, tmp_path)[0])


def test_manifests_that_contradict_themselves_are_refused(tmp_path: Path) -> None:
    text, _ = made_of(BERT, tmp_path)
    image, _ = made_of(VIT, tmp_path)
    plain, pixels = text.task_settings or {}, image.task_settings or {}
    masked = make_manifest(tmp_path, {k: v for k, v in BERT.items() if k != "num_labels"})[0]
    masked = replace(masked, task="masked_lm", task_settings={"mask_token": 1})
    adapter = AdapterSpec(
        rank=1,
        alpha=1.0,
        targets=("query",),
        base=text.initial,
        base_parameters=text.parameters,
    )
    long = replace(text.data, sequence_length=64)
    for manifest, words in (
        (replace(text, task_settings=None), "'pad_token' is missing"),
        (replace(text, task_settings=plain | {"classes": ["a"]}), "name two or more"),
        (replace(text, task_settings=plain | {"classes": ["a", "a"]}), "a name occurs twice"),
        (replace(text, task_settings=plain | {"classes": ["a", "b", "c"]}), "the task has 3"),
        (replace(text, task_settings=plain | {"pad_token": 256}), "not in the vocabulary"),
        (replace(text, data=replace(text.data, end_token=0)), "must be whole texts"),
        (replace(text, data=long), "sequences of 64 tokens"),
        (replace(text, task="image_classification", task_settings=pixels), "classifies no images"),
        (replace(text, task="masked_lm", task_settings={"mask_token": 1}), "with num_labels"),
        (replace(text, task="causal_lm", task_settings=None), "with num_labels"),
        (replace(text, adapter=adapter), "only language models can have adapters here"),
        (replace(masked, task=text.task, task_settings=plain), "tells no classes apart"),
        (replace(image, task_settings=pixels | {"size": 4}), "image_size is 8, but the images"),
        (replace(image, task_settings=pixels | {"channels": 3}), "num_channels is 1"),
        (replace(image, task_settings=pixels | {"std": [0.0]}), "task_settings.std"),
        (replace(image, task_settings=pixels | {"mean": [0.1, 0.2]}), "mean: has 2 numbers"),
        (replace(image, data=replace(image.data, sequence_length=64)), "but an image has 65"),
        (replace(image, task="text_classification", task_settings=plain), "classifies no texts"),
        (replace(image, task="causal_lm", task_settings=None), "with num_labels"),
        (replace(image, model=VIT | {"patch_size": 3}), "does not divide the 8 pixels"),
        (replace(image, model={k: v for k, v in VIT.items() if k != "num_labels"}), "needs num_la"),
        (replace(image, model=RESNET | {"depths": [1]}), "has 1 items, but hidden_sizes has 2"),
        (replace(image, model=RESNET | {"depths": [10**9, 1]}), "from 1 to 256"),
    ):
        with refused("bad_model", words):
            TrainingSession(manifest, BlobStore(tmp_path), CPU)


@pytest.mark.parametrize("config", [BERT, RESNET], ids=["bert", "resnet"])
def test_any_bytes_are_a_batch_or_refused(config: Any, tmp_path: Path) -> None:
    session = opened(made_of(config, tmp_path), tmp_path)
    generator = np.random.default_rng(0)
    size = session.manifest.data.sequence_length + 1
    outcomes = set()
    for number in range(300):
        stored = bytearray(generator.bytes(size))
        stored[0] %= 4
        if number % 3 == 0:
            stored[number % size :] = bytes(size - number % size)
        outcome, batch = "read", {}
        try:
            batch = session.task.batch([StoredSample(bytes(stored), number, 1)] * 2)
        except TrainerFailed as failure:
            outcome = failure.kind
        outcomes.add(outcome)
        assert outcome == ("read" if stored[0] < 2 else "bad_data")
        if outcome == "read":
            assert batch["labels"].tolist() == [stored[0]] * 2
            assert all(torch.isfinite(each.float()).all() for each in batch.values())
    assert outcomes == {"read", "bad_data"}


def test_a_class_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    store = BlobStore(tmp_path)
    for config, rows in ((BERT, text_rows(8)), (RESNET, image_rows(8))):
        manifest, chunks = made_of(config, tmp_path)
        wrong = rows.copy()
        wrong[3 * manifest.data.sequence_length] = 2
        data = replace(manifest.data, heldout=store_shard(store, wrong))
        with refused("bad_data", "class 2 of 2"):
            opened((replace(manifest, data=data), chunks), tmp_path).computation.evaluate(8)
    manifest, chunks = made_of(BERT | {"vocab_size": 122}, tmp_path)
    data = replace(manifest.data, vocabulary=122)
    with refused("bad_data", "token 122 is outside the vocabulary of 122"):
        opened((replace(manifest, data=data), chunks), tmp_path).computation.evaluate(8)
