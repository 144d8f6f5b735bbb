"""Data sets in their usual layouts on disk: one split counts, linked folders count, and the rest is
named."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import datasets
import pyarrow
import pyarrow.parquet
import pytest
from distro_node.node.create.files import Source, find_files
from distro_node.node.create.splits import by_names
from distro_node.node.errors import ExitCode, UserError

CARD = """---
license: mit
task_categories:
- text-generation
{configs}---
# A data set

About it.
"""


def lay(root: Path, *names: str, card: str | None = None) -> Path:
    """Make a folder with files of these names, each with a row that contains its name."""
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if name.endswith(".parquet"):
            pyarrow.parquet.write_table(pyarrow.table({"text": [name]}), path)
        elif path.suffix in (".jsonl", ".json"):
            path.write_text(json.dumps({"text": name}) + "\n")
        else:
            path.write_text(name)
    if card is not None:
        (root / "README.md").write_text(CARD.format(configs=card))
    return root


def find(*paths: Path, **options: Any) -> tuple[list[str], dict[str, list[str]]]:
    """Return the files that count, and the others by reason."""
    files, skipped = find_files(Source(name="s", paths=paths, **options))
    for count, names in skipped.reasons.values():
        assert len(names) == min(count, 3)
    return [file.name.as_posix() for file in files], {
        reason: sorted(names) for reason, (_, names) in skipped.reasons.items()
    }


def refusal(*paths: Path, **options: Any) -> UserError:
    with pytest.raises(UserError) as refused:
        find(*paths, **options)
    assert refused.value.code == ExitCode.DATA_MISSING
    assert "\n" not in refused.value.problem
    assert refused.value.remedy
    return refused.value


OTHER, NONE, BESIDE = (
    "of another split",
    "in no split of the data set",
    "not of the data set itself",
)


def test_a_clone_of_the_hub_is_read_as_the_hub_reads_it(tmp_path: Path) -> None:
    root = lay(
        tmp_path / "clone",
        "data/train-00000-of-00002.parquet",
        "data/train-00001-of-00002.parquet",
        "data/test-00000-of-00001-a1b2.parquet",
        "data/validation-00000-of-00001.parquet",
        "extra.jsonl",
        "LICENSE.txt",
        "load.py",
        card="",
    )
    train = ["data/train-00000-of-00002.parquet", "data/train-00001-of-00002.parquet"]
    names, skipped = find(root)
    assert names == train
    assert skipped == {
        BESIDE: ["README.md"],
        OTHER: ["data/test-00000-of-00001-a1b2.parquet", "data/validation-00000-of-00001.parquet"],
        NONE: ["LICENSE.txt", "extra.jsonl", "load.py"],
    }
    assert find(root, include=("*.parquet",))[0] == train
    assert find(root, split="test")[0] == ["data/test-00000-of-00001-a1b2.parquet"]
    error = refusal(root, split="dev")
    assert "has no split 'dev' (it has: train, validation, test)" in error.problem or all(
        split in error.problem for split in ("train", "validation", "test")
    )
    # Files to be held out count whatever their names.
    assert find(root, heldout=("test-*",))[0] == ["data/test-00000-of-00001-a1b2.parquet", *train]


@pytest.mark.parametrize(
    ("names", "train"),
    [
        (["train.jsonl", "test.jsonl", "valid.jsonl"], ["train.jsonl"]),
        (["c4-train.00000-of-2.json", "c4-validation.00000-of-1.json"], 1),
        (["my_train_file_0.jsonl", "my_test_file.jsonl", "eval-1.jsonl"], 1),
        (["training/a.jsonl", "testing/a.jsonl", "dev/a.jsonl"], ["training/a.jsonl"]),
        (["Training/a.jsonl", "TESTING/a.jsonl"], ["Training/a.jsonl"]),
        (["Train.jsonl", "Test.jsonl"], ["Train.jsonl"]),
        (["en/train/a.jsonl", "en/test/b.jsonl", "de/train/c.jsonl"], 2),
        # Folders take precedence over files.
        (["train/test.jsonl", "test/train.jsonl"], ["train/test.jsonl"]),
    ],
)
@pytest.mark.parametrize("card", ["", None])
def test_names_show_which_split_a_file_is_of(
    tmp_path: Path, names: list[str], train: list[str] | int, card: str | None
) -> None:
    """With a card, and without one too, since rows with such names are intended as splits."""
    found, skipped = find(lay(tmp_path / "set", *names, card=card))
    assert len(found) == train if isinstance(train, int) else found == train
    assert len(skipped[OTHER]) == len(names) - len(found)


def test_names_without_a_split_leave_nothing_out(tmp_path: Path) -> None:
    for number, names in enumerate(
        (
            # None contains such a word on its own.
            ["trainer.jsonl", "contest.jsonl", "devices.jsonl", "latest.jsonl"],
            # No file for `train`, or none for any other split: coincidental words.
            ["test.jsonl", "other.jsonl"],
            ["train.jsonl", "other.jsonl"],
            # Programs and prose have such names for other reasons.
            ["train.py", "test_train.py", "src/test/a.py", "train/model.md", "test/model.md"],
        )
    ):
        found, skipped = find(lay(tmp_path / str(number), *names))
        assert (sorted(found), skipped) == (sorted(names), {})


def test_texts_that_are_called_as_a_split_and_nothing_else(tmp_path: Path) -> None:
    root = lay(tmp_path / "a", "train.txt", "test.txt", "valid.txt", "notes.txt")
    assert find(root) == (["notes.txt", "train.txt"], {OTHER: ["test.txt", "valid.txt"]})
    imdb = lay(tmp_path / "b", "train/pos/0.txt", "train/neg/1.txt", "test/pos/2.txt")
    assert find(imdb) == (["train/neg/1.txt", "train/pos/0.txt"], {OTHER: ["test/pos/2.txt"]})


def test_a_split_that_is_named_is_looked_for(tmp_path: Path) -> None:
    root = lay(tmp_path / "a", "train.jsonl", "test.jsonl", "other.jsonl")
    assert find(root, split="test")[0] == ["test.jsonl"]
    assert find(root, split="train") == (
        ["train.jsonl"],
        {OTHER: ["test.jsonl"], NONE: ["other.jsonl"]},
    )
    assert "has no split 'validation'" in refusal(root, split="validation").problem
    plain = lay(tmp_path / "b", "a.jsonl")
    assert "has no split 'validation' (it has: none)" in refusal(plain, split="validation").problem


CONFIGS = """configs:
- config_name: de
  data_files:
  - split: train
    path: de/*.jsonl
  - split: holdout
    path:
    - de/more/**
- config_name: en
  default: true
  data_files:
  - split: train
    path: [en/first.jsonl, "en/s[ae]cond*"]
  - split: test
    path: en/rest
"""


def test_a_card_states_which_files_are_of_which_split(tmp_path: Path) -> None:
    root = lay(
        tmp_path / "set",
        *("de/a.jsonl", "de/b.jsonl", "de/more/x/c.jsonl"),
        *("en/first.jsonl", "en/second-1.jsonl", "en/third.jsonl", "en/rest/a/b.jsonl"),
        card=CONFIGS,
    )
    names, skipped = find(root)
    assert names == ["en/first.jsonl", "en/second-1.jsonl"]
    assert skipped[OTHER] == ["en/rest/a/b.jsonl"]
    assert skipped[NONE] == ["de/a.jsonl", "de/b.jsonl", "de/more/x/c.jsonl"]
    assert find(root, split="test")[0] == ["en/rest/a/b.jsonl"]
    assert find(root, config="de")[0] == ["de/a.jsonl", "de/b.jsonl"]
    assert find(root, config="de", split="holdout")[0] == ["de/more/x/c.jsonl"]
    assert (
        "no split 'test' (it has: train, holdout)"
        in refusal(root, config="de", split="test").problem
    )
    assert "no configuration 'fr' (it has: de, en)" in refusal(root, config="fr").problem
    (root / "README.md").write_text(CARD.format(configs=CONFIGS.replace("  default: true\n", "")))
    error = refusal(root)
    assert "has several configurations and no default (de, en)" in error.problem
    assert "`config`" in error.remedy


@pytest.mark.parametrize(
    ("configs", "names"),
    [
        ("configs:\n- config_name: a\n  data_files: b.jsonl\n", ["b.jsonl"]),
        ("configs:\n- config_name: a\n  data_files: ['*.jsonl']\n", ["a.jsonl", "b.jsonl"]),
        ("configs:\n- config_name: a\n  data_files: {train: '**/c*'}\n", ["in/c.jsonl"]),
        ("configs:\n- config_name: a\n  data_dir: ./in\n", ["in/c.jsonl"]),
        ("configs:\n- config_name: a\n  data_dir: in\n  data_files: '*'\n", ["in/c.jsonl"]),
        ("dataset_info: {}\n", ["a.jsonl", "b.jsonl", "in/c.jsonl"]),
    ],
)
def test_the_ways_to_write_a_card(tmp_path: Path, configs: str, names: list[str]) -> None:
    root = lay(tmp_path / "set", "a.jsonl", "b.jsonl", "in/c.jsonl", card=configs)
    assert find(root)[0] == names


@pytest.mark.parametrize(
    "configs", ["configs: x\n", "configs: [1]\n", "configs: [{data_files: [{split: train}]}]\n"]
)
def test_a_card_that_cannot_be_understood_is_one_line(tmp_path: Path, configs: str) -> None:
    root = lay(tmp_path / "set", "a.jsonl", card=configs)
    assert "has `configs` that cannot be read" in refusal(root).problem
    (root / "README.md").write_text("---\nconfigs:\n- : [\n---\n")
    assert "begins with invalid YAML" in refusal(root).problem


def test_other_notes_are_no_cards(tmp_path: Path) -> None:
    for number, text in enumerate(
        ("# Notes\n", "---\ntitle: x\n---\n", "---\n: [\n---\n", "---\n")
    ):
        root = lay(tmp_path / str(number), "a.jsonl")
        (root / "README.md").write_text(text)
        assert find(root) == (["README.md", "a.jsonl"], {})


def test_the_cache_of_the_hub(tmp_path: Path) -> None:
    root = tmp_path / "hub" / "datasets--someone--things"
    for name, revision in (("old", "a" * 40), ("new", "b" * 40)):
        blob = lay(root / "blobs", f"{name}.jsonl") / f"{name}.jsonl"
        blob.rename(root / "blobs" / name)
        for split in ("train", "test"):
            link = root / "snapshots" / revision / f"{split}.jsonl"
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(os.path.relpath(root / "blobs" / name, link.parent))
        lay(root / "snapshots" / revision, card="")
    assert "has 2 revisions, and none of them is main" in refusal(root).problem
    lay(root, "refs/main")
    (root / "refs" / "main").write_text("b" * 40)
    names, skipped = find(root)
    assert names == [f"snapshots/{'b' * 40}/train.jsonl"]
    assert skipped == {
        "internal to the cache": ["blobs/", "refs/"],
        "of other revisions": [f"snapshots/{'a' * 40}/"],
        OTHER: [f"snapshots/{'b' * 40}/test.jsonl"],
        BESIDE: [f"snapshots/{'b' * 40}/README.md"],
    }
    assert find(root.parent)[0] == [f"{root.name}/snapshots/{'b' * 40}/train.jsonl"]
    assert find(root / "snapshots" / ("a" * 40))[0] == ["train.jsonl"]


def test_the_cache_of_datasets(tmp_path: Path) -> None:
    source = lay(tmp_path / "set", "train.jsonl", "test.jsonl")
    cache = tmp_path / "cache"
    files = {split: str(source / f"{split}.jsonl") for split in ("train", "test")}
    made: Any = datasets.load_dataset("json", data_files=files, cache_dir=str(cache))
    made["train"].map(lambda row: {"text": row["text"] + "!"})
    names, skipped = find(cache)
    assert [Path(name).name for name in names] == ["json-train.arrow"]
    assert [Path(name).name for name in skipped[OTHER]] == ["json-test.arrow"]
    assert any(Path(name).name.startswith("cache-") for name in skipped[BESIDE])
    assert [Path(name).name for name in find(cache, split="test")[0]] == ["json-test.arrow"]
    assert "has no split 'dev' (it has: train, test)" in refusal(cache, split="dev").problem
    (version,) = {(cache / name).parent for name in names}
    (version.parent / "other").symlink_to(version)
    assert "is a cache with 2 versions of one data set" in refusal(cache).problem


def test_what_lies_beside_a_saved_data_set_is_named(tmp_path: Path) -> None:
    datasets.Dataset.from_dict({"text": ["a"]}).save_to_disk(str(tmp_path / "one"))
    with pytest.raises(UserError, match="left out by `exclude`"):
        find(tmp_path, exclude=("one/*.arrow",))
    lay(tmp_path / "one", "notes.txt", "cache-1.arrow")
    names, skipped = find(tmp_path)
    assert [Path(name).suffix for name in names] == [".arrow"]
    assert skipped == {BESIDE: ["one/cache-1.arrow", "one/notes.txt"]}


def test_names_are_taken_apart_as_on_the_hub() -> None:
    assert by_names(["data/a.b-00000-of-00001.parquet", "train.jsonl"]) == {
        "a.b": {"data/a.b-00000-of-00001.parquet"}
    }
    assert by_names(["train_test.csv", "x"]) == {
        "train": {"train_test.csv"},
        "test": {"train_test.csv"},
    }
    assert by_names(["a.csv", "strain.csv", "train"]) == {}


# --- linked folders --------------------------------------------------------------------------------


def test_linked_folders_are_read_once(tmp_path: Path) -> None:
    disk = lay(tmp_path / "disk", "b.txt", "deep/c.txt")
    root = lay(tmp_path / "root", "a.txt")
    (root / "link").symlink_to(disk)
    (root / "link2").symlink_to(disk / "deep")
    (root / "link3").symlink_to(disk)
    names, skipped = find(root)
    assert names == ["a.txt", "link/b.txt", "link/deep/c.txt"]
    assert skipped == {"linked a second time": ["link2/", "link3/"]}


def test_a_folder_that_is_linked_into_itself_is_named(tmp_path: Path) -> None:
    root = lay(tmp_path / "root", "in/a.txt")
    (root / "in" / "again").symlink_to(root)
    (root / "in" / "self").symlink_to(root / "in")
    (root / "above").symlink_to(tmp_path)
    assert find(root) == (
        ["in/a.txt"],
        {"links to a folder that contains them": ["above/", "in/again/", "in/self/"]},
    )
    # Two folders with links to each other.
    one, two = lay(tmp_path / "one", "1.txt"), lay(tmp_path / "two", "2.txt")
    (one / "two").symlink_to(two)
    (two / "one").symlink_to(one)
    assert find(one) == (["1.txt", "two/2.txt"], {"linked a second time": ["two/one/"]})


def test_a_link_to_a_folder_beside_it_changes_no_names(tmp_path: Path) -> None:
    root = lay(tmp_path / "root", "z/a.txt", ".store/b.txt")
    (root / "first").symlink_to(root / "z")
    (root / "hidden").symlink_to(root / ".store")
    names, skipped = find(root)
    assert names == ["hidden/b.txt", "z/a.txt"]
    assert skipped == {"linked a second time": ["first/"], "hidden": [".store/"]}


def test_links_that_lead_nowhere_are_named(tmp_path: Path) -> None:
    root = lay(tmp_path / "root", "a.txt")
    (root / "gone").symlink_to(tmp_path / "nowhere")
    (root / "b.txt").symlink_to(root / "a.txt")
    assert find(root) == (["a.txt"], {"no files": ["gone"], "named a second time": ["b.txt"]})
