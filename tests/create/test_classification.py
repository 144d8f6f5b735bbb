"""Texts and images with a class: what files become, a founder's plan, and what is refused in a line."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
import tokenizers
from create.test_images import picture
from distro_node.node.create.class_labels import ClassLabels
from distro_node.node.create.corpus import TokenisedCorpus
from distro_node.node.create.images import ImageColumns
from distro_node.node.create.labelled_texts import LabelledColumns, LabelledTokenizer
from distro_node.node.create.manifest_draft import ManifestDraft, read_draft, read_model
from distro_node.node.create.manifest_file import read_manifest_file
from distro_node.node.create.rows import BadRow
from distro_node.node.create.tokens import ByteTokenizer, FileTokenizer
from distro_node.node.errors import ExitCode, UserError
from distro_node.node.storage.blob_store import BlobStore
from distro_node.node.storage.data_dir import DataDir
from distro_node.node.training.task_names import ImageClassSettings
from distro_node.protocol.wire.blobs import decode_blob_list
from distro_node.protocol.wire.manifest import ShardSpec
from tokenizers import processors

SEA_SKY = 'classes = ["sea", "sky"]'
BERT = 'model_type = "bert"\nhidden_size = 16\nnum_attention_heads = 2\nnum_hidden_layers = 1'
RESNET = 'model_type = "resnet"\nembedding_size = 8\nhidden_sizes = [8]\ndepths = [1]'
VIT = 'model_type = "vit"\nhidden_size = 16\nnum_attention_heads = 2\npatch_size = 4'


@dataclass
class Founder:
    """A founder's file, and what is made from it."""

    root: Path
    task: str = "text_classification"
    settings: str = SEA_SKY
    model: str = BERT
    data: str = "sequence_length = 12"

    def file(self) -> Path:
        path = self.root / "run.toml"
        path.write_text(
            f'name = "a"\ntask = "{self.task}"\n[task_settings]\n{self.settings}\n[model]\n'
            f"{self.model}\n[data]\n{self.data}\n"
        )
        return path

    def draft(self, *data: Path) -> ManifestDraft:
        return read_draft(self.file(), data)

    def read(self, *data: Path) -> tuple[TokenisedCorpus, np.ndarray]:
        """Return the corpus and the numbers of all samples, training ones first."""
        draft = self.draft(*data)
        place = DataDir(self.root / "data")
        place.create()
        store = BlobStore(place.blobs)
        corpus = draft.corpus(place, lambda *_: None)
        shards, heldout = corpus.store(store, lambda *_: None)
        width = draft.tokenizer.token_bytes
        length = corpus.summary.sequence_length
        rows = [_numbers(store, shard, width)[:-1] for shard in (*shards, heldout)]
        return corpus, np.concatenate(rows).reshape(-1, length)

    def refused(self, words: str, *data: Path, code: ExitCode = ExitCode.MANIFEST) -> None:
        with pytest.raises(UserError) as caught:
            self.read(*data)
        assert caught.value.code == code
        assert words in caught.value.problem, caught.value.problem
        assert "\n" not in caught.value.problem
        assert caught.value.remedy


def _numbers(store: BlobStore, shard: ShardSpec, width: int) -> np.ndarray:
    blobs = decode_blob_list(store.get(shard.blob) or b"", "shard", shard.tokens * width)
    return np.frombuffer(b"".join(store.get(chunk) or b"" for chunk in blobs.chunks), f"<u{width}")


TEXTS = [(f"wave {number}", "sea") for number in range(20)] + [
    (f"cloud {number}", "sky") for number in range(20)
]


def expected_rows(length: int = 12) -> set[bytes]:
    return {
        (bytes([label == "sky"]) + text.encode())[:length].ljust(length, b"\0")
        for text, label in TEXTS
    }


def write_rows(path: Path, rows: list[dict[str, Any]]) -> Path:
    if path.suffix == ".csv":
        names = list(rows[0])
        lines = [",".join(names), *(",".join(str(row[name]) for name in names) for row in rows)]
        path.write_text("\n".join(lines) + "\n")
    elif path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    else:
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    return path


@pytest.mark.parametrize("ending", ["csv", "jsonl", "parquet"])
@pytest.mark.parametrize("as_number", [False, True])
def test_rows_become_a_class_tokens_and_padding(
    ending: str, as_number: bool, tmp_path: Path
) -> None:
    founder = Founder(tmp_path, data='sequence_length = 12\ntext = "said"\nlabel = "about"')
    rows = [
        {"id": 1, "about": int(label == "sky") if as_number else label, "said": text}
        for text, label in TEXTS
    ]
    corpus, found = founder.read(write_rows(tmp_path / f"texts.{ending}", rows))
    assert {bytes(row.tolist()) for row in found} == expected_rows()
    assert len(found) == len(TEXTS)
    assert corpus.samples + len(found) - corpus.samples == 40
    lines = "\n".join(corpus.summary.lines())
    assert f"40 documents, {corpus.samples} of them to train on" in lines


def test_a_template_makes_the_text_of_several_columns(tmp_path: Path) -> None:
    founder = Founder(tmp_path, data='sequence_length = 8\ntemplate = "{a}-{b}"')
    rows = [{"a": n, "b": "x", "label": "sea"} for n in range(30)]
    _, found = founder.read(write_rows(tmp_path / "texts.csv", rows))
    assert bytes(found[0].tolist()).startswith(b"\0")
    assert {bytes(row[1:].tolist()).rstrip(b"\0") for row in found} == {
        f"{n}-x".encode() for n in range(30)
    }


def test_longer_texts_are_cut_and_counted(tmp_path: Path) -> None:
    founder = Founder(tmp_path)
    rows = [{"text": f"{n:02}" + "x" * 9 * (n == 7), "label": "sea"} for n in range(30)]
    rows.append({"text": "  ", "label": "sky"})
    corpus, found = founder.read(write_rows(tmp_path / "texts.jsonl", rows))
    assert len(found) == 30
    assert "07xxxxxxxxx" in {bytes(row[1:].tolist()).decode().rstrip("\0") for row in found}
    rows[7]["text"] += "yz"
    corpus, found = founder.read(write_rows(tmp_path / "longer.jsonl", rows))
    assert "07xxxxxxxxx" in {bytes(row[1:].tolist()).decode().rstrip("\0") for row in found}
    lines = "\n".join(corpus.summary.lines())
    assert "longer than a sequence: 1 text cut:" in lines
    assert "line 8: has 13 tokens: cut to 11" in lines
    assert "1 row or file without text" in lines


def bert_like(root: Path, pad: bool = True) -> FileTokenizer:
    library = tokenizers.Tokenizer.from_str(ByteTokenizer().definition.decode())
    library.add_special_tokens(["[CLS]", "[SEP]", *(["[PAD]"] if pad else [])])
    library.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 256), ("[SEP]", 257)]
    )
    library.save(str(root / "tokenizer.json"))
    return FileTokenizer(root / "tokenizer.json")


def test_the_tokenizers_own_tokens_surround_a_text(tmp_path: Path) -> None:
    bert_like(tmp_path)
    data = 'sequence_length = 8\ntokenizer = "tokenizer.json"'
    founder = Founder(tmp_path, data=data)
    rows = [{"text": f"{n:02}", "label": "sky"} for n in range(30)]
    rows.append({"text": "long text", "label": "sea"})
    _, found = founder.read(write_rows(tmp_path / "texts.jsonl", rows))
    assert [1, 256, ord("0"), ord("7"), 257, 258, 258, 258] in found.tolist()
    # A cut text still ends as others do.
    assert [0, 256, *b"long ", 257] in found.tolist()
    draft = founder.draft(tmp_path / "texts.jsonl")
    assert draft.task.settings == {"classes": ["sea", "sky"], "pad_token": 258}
    assert draft.special.pad_token == "[PAD]"
    assert (draft.model["num_labels"], draft.model["pad_token_id"]) == (2, 258)
    path = founder.file()
    alone = read_model(read_manifest_file(path), path).config
    assert alone == {key: value for key, value in draft.model.items() if key != "pad_token_id"}


def test_another_process_makes_the_same_tokenizer(tmp_path: Path) -> None:
    for inner in (ByteTokenizer(), bert_like(tmp_path)):
        one = LabelledTokenizer(inner, (5,), (6, 7), 10, 3)
        other = LabelledTokenizer.of(*one.remade)
        text = b"12\nab\nc"
        assert one.encode([text])[0].tolist() == [12, 5, *b"ab\nc", 6, 7]
        assert other.encode([text])[0].tolist() == one.encode([text])[0].tolist()
        assert other.facts == one.facts


def test_the_class_does_not_decide_what_is_held_out() -> None:
    """A text or an image with two classes is not trained on with one and measured with the other."""
    texts = LabelledColumns(None, None, None, ("no", "yes"))
    samples = [str(texts.text({"text": "a\nb", "label": label})).encode() for label in (0, 1)]
    assert samples == [b"0\na\nb", b"1\na\nb"]
    assert {texts.subject_of(sample) for sample in samples} == {b"a\nb"}
    pixels = ImageColumns(None, None, ImageClassSettings(size=4, classes=("no", "yes")))
    assert {pixels.subject_of(bytes([label]) + b"pixels") for label in (0, 1)} == {b"pixels"}


def test_what_a_cell_names() -> None:
    words = ClassLabels(["no", "yes"])
    assert [words.number(each) for each in ("no", "yes", 0, 1, "1")] == [0, 1, 0, 1, 1]
    for wrong in (2, -1, "2", "01", "maybe", True, None, 1.0, ""):
        assert isinstance(words.number(wrong), BadRow), wrong
    # The stars of a review: a number is a name, not a place in the list.
    stars = ClassLabels(["1", "2", "3"])
    assert [stars.number(each) for each in ("1", 1, 3, "3")] == [0, 0, 2, 2]
    for wrong in (0, 4, "0"):
        assert isinstance(stars.number(wrong), BadRow), wrong


def test_rows_that_cannot_be_used_are_named(tmp_path: Path) -> None:
    founder = Founder(tmp_path)
    good = [{"text": f"{n}", "label": "sea"} for n in range(9)]
    for row, words in (
        ({"text": "a", "label": "land"}, "line 10: the row is of a class that is not in `classes`"),
        ({"text": "a", "label": None}, "is of a class that is not in `classes`: 'None'"),
        ({"text": "a"}, "has no column 'label'"),
        ({"text": 3, "label": "sea"}, "holds 3 in the column 'text', not text"),
    ):
        path = write_rows(tmp_path / "rows.jsonl", [*good, row])
        founder.refused(words, path, code=ExitCode.DATA_MISSING)
    (tmp_path / "plain.txt").write_text("text")
    founder.refused(
        "holds no texts with a class", tmp_path / "plain.txt", code=ExitCode.DATA_MISSING
    )
    table = pyarrow.table({"text": ["a"], "label": [0.5]})
    pyarrow.parquet.write_table(table, tmp_path / "odd.parquet")
    founder.refused("label", tmp_path / "odd.parquet", code=ExitCode.DATA_MISSING)


def test_what_does_not_go_with_a_text_is_refused(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "texts.csv", [{"text": "a", "label": "sea"}])
    bert_like(tmp_path, pad=False)
    length = "sequence_length = 12\n"
    file_tokens = length + 'tokenizer = "tokenizer.json"'
    many = json.dumps([str(n) for n in range(300)])
    for changes, words in (
        ({"settings": ""}, "neither the data nor the checkpoint names the classes: name two or more"),
        ({"settings": "classes = []"}, "name two or more"),
        ({"settings": 'classes = ["a"]'}, "name two or more"),
        ({"settings": 'classes = ["a", "a"]'}, "a name occurs twice"),
        ({"settings": f"{SEA_SKY}\npad_token = 256"}, "the tokenizer has 256 tokens"),
        ({"settings": f"classes = {many}"}, "cannot be stored beside tokens of 1 byte"),
        ({"settings": f"{SEA_SKY}\nsize = 3"}, "size"),
        ({"data": file_tokens}, "it has no padding token such as [PAD]"),
        ({"data": length + 'document_end = "x"'}, "data.document_end"),
        ({"data": length + 'attention = "document"'}, "data.attention"),
        ({"data": length + 'label = "text"'}, "which is part of the text as well"),
        ({"data": length + 'messages = "m"'}, "are for conversations"),
        ({"data": length + 'image = "m"'}, "belong to a task that learns from images"),
        ({"data": length + 'policy = "private"'}, "private data has no classes"),
        ({"data": ""}, "'sequence_length' is missing"),
        ({"model": 'model_type = "llama"'}, "set task = 'causal_lm'"),
        ({"model": VIT}, 'set task = "image_classification"'),
        ({"model": f"{BERT}\nnum_labels = 3"}, "make it 2"),
        ({"model": f"{BERT}\n[model.lora]\nrank = 2"}, "trains whole models"),
        ({"task": "masked_lm", "settings": "mask_token = 1", "model": f"{BERT}\nnum_labels = 2"},
         "belongs to tasks that name classes"),
        ({"task": "causal_lm", "settings": "", "data": length + 'label = "x"',
          "model": 'model_type = "llama"'}, "belongs to a task that learns from images or names"),
    ):  # fmt: skip
        Founder(tmp_path, **changes).refused(words, path)


def images(root: Path) -> Path:
    folder = root / "images"
    for name, shade in (("sea", 40), ("sky", 200)):
        (folder / name).mkdir(parents=True)
        for number in range(20):
            picture(shade + number, side=16).save(folder / name / f"{number}.png")
    return folder


def test_images_in_folders_become_samples(tmp_path: Path) -> None:
    founder = Founder(
        tmp_path,
        "image_classification",
        f"size = 8\nchannels = 1\n{SEA_SKY}",
        RESNET,
        data="",
    )
    _, found = founder.read(images(tmp_path))
    assert found.shape == (40, 65)
    for row in found:
        assert (row[0] == 1) == (np.median(row[1:]) > 128)
    draft = founder.draft(tmp_path / "images")
    assert draft.model["num_channels"] == 1
    assert draft.model["num_labels"] == 2
    assert "image_size" not in draft.model
    assert draft.task.settings is not None
    assert draft.task.settings["mean"] == [0.5]


def test_a_checkpoint_states_the_values_of_its_pixels(tmp_path: Path) -> None:
    model = tmp_path / "model"
    model.mkdir()
    config = {"model_type": "vit", "hidden_size": 16, "num_attention_heads": 2, "patch_size": 4}
    config |= {"image_size": 8, "encoder_stride": 16, "id2label": {"0": "a"}}
    (model / "config.json").write_text(json.dumps(config))
    path = images(tmp_path)
    settings = f"size = 8\n{SEA_SKY}"
    founder = Founder(tmp_path, "image_classification", settings, 'checkpoint = "model"', data="")
    said = founder.draft(path).task.settings or {}
    assert (said["mean"], said["std"]) == ([0.5], [0.5])
    file = model / "preprocessor_config.json"
    file.write_text(json.dumps({"image_mean": [0.1, 0.2, 0.3], "image_std": [0.4, 0.5, 0.6]}))
    said = founder.draft(path).task.settings or {}
    assert (said["mean"], said["std"]) == ([0.1, 0.2, 0.3], [0.4, 0.5, 0.6])
    founder.settings += "\nmean = [0.3]"
    said = founder.draft(path).task.settings or {}
    assert (said["mean"], said["std"]) == ([0.3], [0.5])
    founder.settings = settings
    for written, words in (
        ("[]", "is not the settings of an image processor"),
        ('{"image_std": [0.0]}', "task_settings.std"),
        ('{"image_mean": [0.1, 0.2]}', "mean: has 2 numbers"),
    ):
        file.write_text(written)
        founder.refused(words, path)
    file.unlink()
    founder.settings = settings.replace("8", "16")
    founder.refused("model.image_size: is 8, but the images", path)


def test_what_does_not_go_with_images_is_refused(tmp_path: Path) -> None:
    path = images(tmp_path)
    size = f"size = 8\n{SEA_SKY}"
    for changes, words in (
        ({"settings": "size = 8\nclasses = []"}, "name two or more"),
        ({"settings": SEA_SKY}, "'size' is missing"),
        ({"settings": f"{size}\nsteps = 100"}, "steps"),
        ({"settings": f"{size}\nstd = [0.0]"}, "task_settings.std"),
        ({"settings": f"size = 4\n{SEA_SKY}"}, "needs images of 8 pixels or more"),
        ({"model": BERT}, "classifies no images"),
        ({"model": 'model_type = "unet2d"'}, "classifies no images"),
        ({"model": f"{RESNET}\nnum_channels = 1"}, "model.num_channels: is 1"),
        ({"model": f"{RESNET}\nnum_labels = 5"}, "make it 2"),
        ({"model": VIT.replace("4", "3")}, "does not divide the 8 pixels"),
        ({"model": VIT.replace("16", "15")}, "is not a multiple of num_attention_heads"),
        ({"model": RESNET.replace("[1]", "[1, 1]")}, "has 2 items, but hidden_sizes has 1"),
        ({"model": RESNET.replace("[1]", "[]").replace("[8]", "[]")}, "needs one stage or more"),
        ({"model": f"{VIT}\n[model.lora]\nrank = 2"}, "trains whole models"),
        ({"data": "sequence_length = 12"}, "follows from the size of images"),
        ({"data": 'policy = "private"'}, "private data must be text"),
        ({"data": 'tokenizer = "bytes"'}, "is for text"),
    ):
        arguments = {"settings": size, "model": RESNET, "data": ""} | changes
        Founder(tmp_path, "image_classification", **arguments).refused(words, path)
