"""Names of classes that the founder's file leaves out: from data, folders, or a checkpoint."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pyarrow.parquet
import pytest
from create.test_classification import BERT, RESNET, SEA_SKY, VIT, Founder, picture, write_rows
from distro_node.node.create.class_labels import ClassLabels
from distro_node.node.create.class_metadata import (
    card_classes,
    checkpoint_classes,
    infos_classes,
    schema_classes,
)
from distro_node.node.create.formats import BadFile
from distro_node.node.create.manifest_draft import read_model
from distro_node.node.create.manifest_file import read_manifest_file
from distro_node.node.create.rows import BadRow
from distro_node.node.errors import ExitCode

CARD = """---
dataset_info:
  features:
  - name: text
    dtype: string
  - name: label
    dtype:
      class_label:
        names:
          '0': sky
          '1': sea
---
Texts about weather.
"""


def labelled(names: list[str], column: str = "label", count: int = 40) -> datasets.Dataset:
    """Return texts of `datasets` whose label is their number modulo the number of classes."""
    features = datasets.Features(
        {"text": datasets.Value("string"), column: datasets.ClassLabel(names=names)}
    )
    cells = [number % len(names) for number in range(count)]
    texts = [f"{number:02} {names[cell]}" for number, cell in enumerate(cells)]
    return datasets.Dataset.from_dict({"text": texts, column: cells}, features=features)


def said(founder: Founder, *data: Path) -> list[str]:
    """Return the names of the classes in the manifest."""
    settings = founder.draft(*data).task.settings
    assert settings is not None
    return settings["classes"]


def classes_of_texts(rows: np.ndarray) -> dict[str, set[int]]:
    """Return the numbers in samples, by the name that their text ends with."""
    found: dict[str, set[int]] = {}
    for row in rows:
        name = bytes(row[1:].tolist()).rstrip(b"\0").decode().split()[1]
        found.setdefault(name, set()).add(int(row[0]))
    return found


@pytest.mark.parametrize("kind", ["parquet", "arrow"])
def test_the_schema_of_datasets_names_the_classes(kind: str, tmp_path: Path) -> None:
    founder = Founder(tmp_path, settings="", data='sequence_length = 12\nlabel = "about"')
    made, path = labelled(["sky", "sea", "mud"], "about"), tmp_path / "texts"
    if kind == "parquet":
        path.mkdir()
        made.to_parquet(path / "a.parquet")
    else:
        made.save_to_disk(str(path))
    assert said(founder, path) == ["sky", "sea", "mud"]
    _, rows = founder.read(path)
    assert classes_of_texts(rows) == {"sky": {0}, "sea": {1}, "mud": {2}}
    # Other classes by name: the numbers in the file still stand for the file's.
    founder.settings = 'classes = ["mud", "sea", "rock", "sky"]'
    corpus, rows = founder.read(path)
    assert classes_of_texts(rows) == {"sky": {3}, "sea": {1}, "mud": {0}}
    assert "1 class without a document: rock" in list(corpus.summary.lines())
    # As many others: the same classes by other names.
    founder.settings = 'classes = ["a", "b", "c"]'
    corpus, rows = founder.read(path)
    assert classes_of_texts(rows) == {"sky": {0}, "sea": {1}, "mud": {2}}
    assert "without a document" not in "\n".join(corpus.summary.lines())
    data_fault = ExitCode.DATA_MISSING
    founder.settings = 'classes = ["a", "b"]'
    founder.refused("states 3 classes (sky, sea, mud), but `classes`", path, code=data_fault)
    founder.settings = 'classes = ["sky", "sea"]'
    founder.refused("is of a class that is not in `classes`: 'mud'", path, code=data_fault)


@pytest.mark.parametrize("ending", ["csv", "jsonl", "parquet"])
def test_the_card_of_a_data_set_names_the_classes(ending: str, tmp_path: Path) -> None:
    founder = Founder(tmp_path, settings="")
    folder = tmp_path / "set"
    folder.mkdir()
    (folder / "README.md").write_text(CARD)
    rows = [{"text": f"{n:02} {('sky', 'sea')[n % 2]}", "label": n % 2} for n in range(40)]
    write_rows(folder / f"train.{ending}", rows)
    assert said(founder, folder) == ["sky", "sea"]
    path = founder.file()
    path.write_text(path.read_text() + 'paths = ["set"]\n')
    assert read_model(read_manifest_file(path), path).config["num_labels"] == 2
    founder.settings = SEA_SKY
    _, found = founder.read(folder)
    assert classes_of_texts(found) == {"sky": {1}, "sea": {0}}
    # Another card is read again, although no file of rows changed.
    (folder / "README.md").write_text(
        CARD.replace("'0'", "'2'").replace("'1'", "0").replace("'2'", "1")
    )
    _, found = founder.read(folder)
    assert classes_of_texts(found) == {"sky": {0}, "sea": {1}}
    write_rows(folder / f"train.{ending}", [*rows, {"text": "40 mud", "label": 2}])
    words = "has the class '2', but the data set numbers its classes from 0 to 1"
    founder.refused(words, folder, code=ExitCode.DATA_MISSING)


@pytest.mark.parametrize("card", ["", "---\nlicense: mit\ntask_categories: []\n---\n"])
def test_a_data_set_of_before_cards_names_its_classes(card: str, tmp_path: Path) -> None:
    founder = Founder(tmp_path, settings="")
    folder = tmp_path / "set"
    folder.mkdir()
    if card:
        (folder / "README.md").write_text(card)
    label = {"num_classes": 2, "names": ["sky", "sea"], "names_file": None, "_type": "ClassLabel"}
    infos = {"plain_text": {"features": {"text": {"_type": "Value"}, "label": label}}}
    (folder / "dataset_infos.json").write_text(json.dumps(infos))
    rows = [{"text": f"{n:02} {('sky', 'sea')[n % 2]}", "label": n % 2} for n in range(40)]
    write_rows(folder / "train.csv", rows)
    assert said(founder, folder) == ["sky", "sea"]
    founder.settings = SEA_SKY
    _, found = founder.read(folder)
    assert classes_of_texts(found) == {"sky": {1}, "sea": {0}}


@pytest.mark.parametrize(
    "content",
    [
        *("", "[", "[]", "5", "{}", '{"a": 5}', '{"a": {"features": []}}'),
        '{"a": {"features": {"label": {"_type": "Value"}}}}',
        '{"a": {"features": {"label": {"_type": "ClassLabel", "names": ["a", "a"]}}}}',
        '{"a": {}, "b": {"features": {"label": {"_type": "ClassLabel", "names": ["a", "b"]}}}}',
    ],
)
def test_descriptions_that_state_no_classes(content: str, tmp_path: Path) -> None:
    (tmp_path / "dataset_infos.json").write_text(content)
    assert infos_classes(tmp_path, "label") is None


def test_cards_that_state_no_classes() -> None:
    names = {"0": "a", "1": "b"}

    def card(dtype: Any, **keys: Any) -> dict[str, Any]:
        return {"features": [{"name": "label", "dtype": dtype}], **keys}

    label = {"class_label": {"names": names}}
    assert card_classes({"dataset_info": card(label)}, None, "label") == ("a", "b")
    # A subset that is named alone is the default one.
    several = [card(label, config_name="one"), card("int64", config_name="two")]
    assert card_classes({"dataset_info": several}, "one", "label") == ("a", "b")
    assert card_classes({"dataset_info": several[:1]}, None, "label") == ("a", "b")
    for given, config in (
        ({}, None),
        ({"dataset_info": None}, None),
        ({"dataset_info": several}, None),
        ({"dataset_info": several}, "two"),
        ({"dataset_info": several}, "three"),
        ({"dataset_info": [3, "x", {"features": 3}]}, None),
        ({"dataset_info": {"features": [None, [], {"name": "label"}]}}, None),
        ({"dataset_info": card({"class_label": 3})}, None),
        ({"dataset_info": card({"class_label": {"names": {"0": "a", "2": "b"}}})}, None),
        ({"dataset_info": card({"class_label": {"names": {"0": "a", "1": False}}})}, None),
        ({"dataset_info": card({"class_label": {"names": ["a", "a"]}})}, None),
        ({"dataset_info": card({"class_label": {"names": []}})}, None),
    ):
        assert card_classes(given, config, "label") is None, given
    assert card_classes({"dataset_info": card(label)}, None, "other") is None


def test_schemas_that_state_no_classes() -> None:
    def schema(value: Any) -> Mapping[bytes, bytes]:
        return {b"huggingface": json.dumps(value).encode()}

    stated = {"names": ["a", "b"], "_type": "ClassLabel"}
    whole = {"info": {"features": {"label": stated}}}
    assert schema_classes(schema(whole), "label") == ("a", "b")
    assert schema_classes(schema(whole), "other") is None
    for metadata in (
        None,
        {},
        {b"huggingface": b""},
        {b"huggingface": b"\xff{"},
        {b"huggingface": b"[" * 100_000},
        {b"huggingface": json.dumps(whole).encode() + b" " * (4 << 20)},
        schema(3),
        schema({"info": None}),
        schema({"info": {"features": [stated]}}),
        schema({"info": {"features": {"label": {"dtype": "int64", "_type": "Value"}}}}),
        schema({"info": {"features": {"label": {"_type": "ClassLabel"}}}}),
        schema({"info": {"features": {"label": stated | {"names": ["a", 3]}}}}),
    ):
        assert schema_classes(metadata, "label") is None, metadata


def test_checkpoints_that_name_no_classes() -> None:
    assert checkpoint_classes({"id2label": {"1": "b", "0": "a"}}) == ("a", "b")
    for table in (None, 3, [], {}, {"0": "LABEL_0", "1": "LABEL_1"}, {"0": "a", "1": "a"}):
        assert checkpoint_classes({"id2label": table}) is None, table


def test_a_file_numbers_its_classes_by_itself() -> None:
    swarm = ClassLabels(["no", "yes"]).of_file(("yes", "no", "maybe"))
    assert [swarm.number(each) for each in (0, 1, "0", "1", "no")] == [1, 0, 1, 0, 0]
    for wrong in (2, "2", "maybe", 3, -1, "-1", "x", "9" * 5000, None, True, 1.0):
        assert isinstance(swarm.number(wrong), BadRow), wrong
    # Digits: the names are numbers, and the file numbers them from 0 on.
    stars = ClassLabels(["1", "2", "3"]).of_file(("1", "2", "3"))
    assert [stars.number(each) for each in (0, 2, "2")] == [0, 2, 1]
    renamed = ClassLabels(["bad", "good"]).of_file(("neg", "pos"))
    assert [renamed.number(each) for each in (0, 1, "pos", "good", "1")] == [0, 1, 1, 1, 1]
    with pytest.raises(BadFile, match="states 3 classes"):
        ClassLabels(["bad", "good"]).of_file(("a", "b", "c"))


def test_sources_with_other_classes_are_refused(tmp_path: Path) -> None:
    founder = Founder(tmp_path, settings="")
    for name, classes in (("a", ["sea", "sky"]), ("b", ["sky", "sea"]), ("c", ["sea", "mud"])):
        labelled(classes).to_parquet(tmp_path / f"{name}.parquet")
    plain = write_rows(tmp_path / "d.csv", [{"text": f"{n} sea", "label": "sea"} for n in range(9)])
    data = [tmp_path / f"{name}.parquet" for name in "abc"]
    # In another order they are the same classes; a file that states none has those of the others.
    assert said(founder, plain, *data[:2]) == ["sea", "sky"]
    _, rows = founder.read(plain, *data[:2])
    assert classes_of_texts(rows) == {"sea": {0}, "sky": {1}}
    founder.refused("a.parquet has the classes sea, sky, and ", *data)
    labelled(["one"]).to_parquet(tmp_path / "one.parquet")
    founder.refused("the data has one class alone (one)", tmp_path / "one.parquet")
    (tmp_path / "e.parquet").write_bytes(b"PAR1" + bytes(20))
    words = "is not a valid Parquet file"
    founder.refused(words, tmp_path / "e.parquet", code=ExitCode.DATA_MISSING)


def test_the_hub_names_the_classes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "owner" / "name").mkdir(parents=True)
    labelled(["sky", "sea"]).to_parquet(tmp_path / "owner" / "name" / "train.parquet")
    data = 'sequence_length = 12\npaths = ["hf://owner/name"]'
    assert said(Founder(tmp_path, settings="", data=data)) == ["sky", "sea"]
    founder = Founder(tmp_path, data=data)
    _, rows = founder.read()
    assert classes_of_texts(rows) == {"sky": {1}, "sea": {0}}
    founder.data = data.replace("name", "nothing")
    founder.settings = ""
    founder.refused("cannot be fetched", code=ExitCode.DATA_MISSING)


def draw(folder: Path, *places: str) -> None:
    """Put ten images into each of these folders; their shade is the place's number."""
    for shade, place in enumerate(places):
        (folder / place).mkdir(parents=True, exist_ok=True)
        for number in range(10):
            picture(20 * shade + number, side=16).save(folder / place / f"{number}.png")


def images(root: Path, model: str = RESNET) -> Founder:
    return Founder(root, "image_classification", "size = 8\nchannels = 1", model, data="")


def test_folders_name_the_classes_of_images(tmp_path: Path) -> None:
    founder, folder = images(tmp_path), tmp_path / "animals"
    draw(folder, "train/dog", "train/cat", "test/dog", "test/cat")
    assert said(founder, folder) == ["cat", "dog"]
    _, rows = founder.read(folder)
    assert len(rows) == 20
    assert all((row[0] == 1) == (np.median(row[1:]) < 20) for row in rows)
    # Named ones may have folders of their own within them.
    draw(folder, "train/cat/young")
    founder.refused("images are in the folder train/cat and in train/cat/young within it", folder)
    founder.settings += '\nclasses = ["dog", "cat"]'
    _, rows = founder.read(folder)
    assert sorted(rows[:, 0].tolist()) == [0] * 10 + [1] * 20
    draw(folder, "train")
    founder.settings = "size = 8\nchannels = 1"
    founder.refused("an image is in no folder that is named after its class", folder / "train")
    draw(tmp_path / "one", "cat")
    founder.refused("the data has one class alone (cat)", tmp_path / "one")


def test_tables_of_images_name_the_classes(tmp_path: Path) -> None:
    founder = images(tmp_path)
    draw(tmp_path / "animals", "dog", "cat")
    made = datasets.load_dataset("imagefolder", data_dir=str(tmp_path / "animals"), split="train")
    made.save_to_disk(str(tmp_path / "saved"))
    assert said(founder, tmp_path / "saved") == ["cat", "dog"]
    _, rows = founder.read(tmp_path / "saved")
    assert sorted(rows[:, 0].tolist()) == [0] * 10 + [1] * 10
    draw(tmp_path / "animals", "hen")
    founder.refused("name those of the swarm", tmp_path / "saved", tmp_path / "animals")


def test_a_checkpoint_with_a_head_decides_the_order(tmp_path: Path) -> None:
    model = tmp_path / "model"
    model.mkdir()
    config: dict[str, Any] = {"model_type": "bert", "hidden_size": 16, "num_attention_heads": 2}
    config |= {"num_hidden_layers": 1, "id2label": {"0": "sky", "1": "sea"}}
    file = model / "config.json"
    file.write_text(json.dumps(config))
    founder = Founder(tmp_path, settings="", model='checkpoint = "model"')
    rows = [{"text": f"{n:02} {('sky', 'sea')[n % 2]}", "label": n % 2} for n in range(40)]
    plain = write_rows(tmp_path / "plain.csv", rows)
    labelled(["sea", "sky"]).to_parquet(tmp_path / "named.parquet")
    for data in (plain, tmp_path / "named.parquet"):
        assert said(founder, data) == ["sky", "sea"]
        assert classes_of_texts(founder.read(data)[1]) == {"sky": {0}, "sea": {1}}
    founder.settings = SEA_SKY
    founder.refused("the checkpoint's head has the same classes in another order: sky, sea", plain)
    # A head of other classes says nothing about these.
    file.write_text(json.dumps(config | {"id2label": {"0": "good", "1": "bad"}}))
    assert said(founder, plain) == ["sea", "sky"]
    founder.settings = ""
    assert said(founder, tmp_path / "named.parquet") == ["sea", "sky"]
    file.write_text("[]")
    founder.refused("is not a model's configuration", plain)


def test_classes_need_a_place_that_names_them(tmp_path: Path) -> None:
    founder = Founder(tmp_path, settings="", model=BERT)
    words = "neither the data nor the checkpoint names the classes"
    founder.refused(words)
    path = founder.file()
    plain = write_rows(tmp_path / "a.jsonl", [{"text": "a", "label": 0}])
    founder.refused(words, plain)
    # Columns of numbers alone, as programs other than `datasets` write them.
    pyarrow.parquet.write_table(
        pyarrow.table({"text": ["a"], "label": [0]}), tmp_path / "b.parquet"
    )
    founder.refused(words, tmp_path / "b.parquet")
    assert path.exists()
    vit = images(tmp_path, VIT)
    draw(tmp_path / "animals", "cat", "dog")
    assert vit.draft(tmp_path / "animals").model["num_labels"] == 2
