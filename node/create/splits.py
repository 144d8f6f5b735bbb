"""Splits of a data set as the Hugging Face hub defines them: which of its files are `train`.

A data set states its splits in its card, the YAML at the beginning of its README.md, by patterns for
each split of each of its configurations. Otherwise they follow from the names of its files:
`data/SPLIT-00000-of-00001.parquet`; if there are none, folders, and after those files, with a word
such as *train*, *validation* or *test* in their names.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from ..util.regular_files import NotRegularFile, open_regular
from .formats import BadFile, needs

DEFAULT_SPLIT = "train"
CARD = "README.md"

_KEYWORDS = {
    "train": ("train", "training"),
    "validation": ("validation", "valid", "dev", "val"),
    "test": ("test", "testing", "eval", "evaluation"),
}
_SEPARATOR_CLASS = "[-._ 0-9]"
_SHARD_PATTERN = re.compile(r"data/(\w+(?:\.\w+)*)-\d{5}-of-\d{5}[^/]*\.[^/]*")
_FOLDER_PATTERNS, _FILE_PATTERNS = (
    {
        # In capitals or not, unlike the hub: a test set would be trained on otherwise.
        split: re.compile(f"(?:.*{_SEPARATOR_CLASS})?(?:{'|'.join(words)}){ending}", re.IGNORECASE)
        for split, words in _KEYWORDS.items()
    }
    for ending in (f"(?:{_SEPARATOR_CLASS}.*)?", f"{_SEPARATOR_CLASS}.*")
)
_SPLIT_WORD = re.compile("|".join(word for words in _KEYWORDS.values() for word in words))
_MAX_CARD_BYTES = 4 << 20
# Keys of a card that the front matter of other README.md files does not have.
_CARD_KEYS = frozenset(
    (
        *("configs", "dataset_info", "size_categories", "task_categories", "task_ids", "viewer"),
        *("annotations_creators", "language_creators", "source_datasets", "pretty_name"),
    )
)


@dataclass(frozen=True)
class Configuration:
    """A subset of a data set, as its card names several."""

    name: str
    default: bool
    """Whether the card marks it as the default one."""
    folder: str
    """The folder of its files, with "/" at the end; empty: the whole data set."""
    splits: dict[str, tuple[str, ...]] | None
    """The patterns of the files of each split; None: the splits follow from the files' names."""


def by_names(names: Iterable[str]) -> dict[str, set[str]]:
    """Return the files of each split, which follow from their names: paths below the data set, with "/"
    between folders. The result is empty if the names imply no splits."""
    names = list(names)
    found: dict[str, set[str]] = {}
    for name in names:
        if sharded := _SHARD_PATTERN.fullmatch(name):
            found.setdefault(sharded[1], set()).add(name)
    if found:
        return found
    for name in names:
        for split in _splits_of(_folders(name), _FOLDER_PATTERNS):
            found.setdefault(split, set()).add(name)
    if found:
        return found
    for name in names:
        for split in _splits_of([name.rpartition("/")[2]], _FILE_PATTERNS):
            found.setdefault(split, set()).add(name)
    return found


def is_named_for_a_split(stem: str) -> bool:
    """Whether a file's name without its ending is exactly the word for a split."""
    return _SPLIT_WORD.fullmatch(stem.lower()) is not None


def by_patterns(names: Iterable[str], configuration: Configuration) -> dict[str, set[str]]:
    """Return the files of each split of a configuration that names their patterns."""
    names = list(names)
    found = {}
    for split, patterns in (configuration.splits or {}).items():
        compiled = [glob_pattern(configuration.folder + glob) for glob in patterns]
        found[split] = {
            name for name in names if any(pattern.fullmatch(name) for pattern in compiled)
        }
    return found


@lru_cache(maxsize=1024)
def glob_pattern(glob: str) -> re.Pattern[str]:
    """Convert a pattern of the hub to a regular expression; one that names a folder matches
    everything in it."""
    expression, index = "", 0
    while index < len(glob):
        if glob.startswith("**/", index):
            expression, index = expression + "(?:.*/)?", index + 3
        elif glob.startswith("**", index):
            expression, index = expression + ".*", index + 2
        elif glob[index] == "*":
            expression, index = expression + "[^/]*", index + 1
        elif glob[index] == "?":
            expression, index = expression + "[^/]", index + 1
        elif glob[index] == "[" and (end := glob.find("]", index + 2)) > 0:
            letters = glob[index + 1 : end].replace("\\", "\\\\")
            letters = f"^{letters[1:]}" if letters.startswith("!") else letters
            expression, index = f"{expression}[{letters}]", end + 1
        else:
            expression, index = expression + re.escape(glob[index]), index + 1
    inside = "" if any(character in glob for character in "*?[") else "(?:/.*)?"
    try:
        return re.compile(expression + inside)
    except re.error:
        return re.compile(re.escape(glob))


def read_card(path: Path) -> dict[str, Any] | None:
    """Return the YAML at the beginning of a data set's README.md; None if it is not a card.

    Raises `UserError` for a card that cannot be read, and if the library for YAML is not installed.
    """
    try:
        with open_regular(path) as file:
            if file.read(4).rstrip() != b"---":
                return None
            text = file.read(_MAX_CARD_BYTES).decode("utf-8", "replace")
    except (FileNotFoundError, NotRegularFile):
        return None
    except OSError as error:
        # Not ignored, because it may state which files belong to the test split.
        raise BadFile(f"cannot be read ({error.strerror})", "make it readable, or remove it").at(
            path
        ) from None
    head, end, _ = text.partition("\n---")
    if not end:
        return None
    try:
        import yaml
    except ImportError:
        raise needs("PyYAML", "the card of a data set") from None
    try:
        card = yaml.safe_load(head)
    except (yaml.YAMLError, RecursionError, ValueError):
        # Other README.md files begin with "---" too. Only a file with `configs` is certainly a card, and
        # then its splits are unknown.
        if re.search(r"^configs:", head, re.MULTILINE):
            raise BadFile("begins with invalid YAML", "fix it, or remove the file").at(
                path
            ) from None
        return None
    if not isinstance(card, dict):
        return None
    is_card = not _CARD_KEYS.isdisjoint(card) or (path.parent / ".gitattributes").is_file()
    return card if is_card else None


def configuration(card: dict[str, Any], wanted: str | None, path: Path) -> Configuration | None:
    """Return the wanted configuration, or the default one; None if the card names no configurations.

    Raises `UserError` (`DATA_MISSING`) if the wanted one does not exist, if there are several and no
    default, or if the card's `configs` are invalid.
    """
    listed = card.get("configs")
    if listed is None:
        if wanted is not None:
            raise BadFile(f"has no configuration {wanted!r}", "leave `config` out").at(path.parent)
        return None
    try:
        known = [_configuration(each) for each in _list(listed)]
    except (TypeError, ValueError, LookupError, AttributeError):
        raise BadFile("has `configs` that cannot be read", "fix them").at(path) from None
    names = ", ".join(each.name for each in known)
    if wanted is not None:
        found = [each for each in known if each.name == wanted]
    else:
        found = [each for each in known if each.default or each.name == "default"]
        found = found or known if len(known) == 1 else found
    if len(found) != 1:
        problem = (
            f"has several configurations and no default ({names})"
            if wanted is None
            else f"has no configuration {wanted!r} (it has: {names})"
        )
        raise BadFile(problem, "name one with `config` in [data]").at(path.parent)
    return found[0]


def _configuration(entry: dict[str, Any]) -> Configuration:
    name = str(entry.get("config_name", "default"))
    folder = str(entry.get("data_dir") or "").strip("/").removeprefix("./")
    files = entry.get("data_files")
    splits: dict[str, tuple[str, ...]] | None = None
    if isinstance(files, dict):
        splits = {str(split): _texts(patterns) for split, patterns in files.items()}
    elif isinstance(files, list) and any(isinstance(each, dict) for each in files):
        splits = {str(each["split"]): _texts(each["path"]) for each in files}
    elif files is not None:
        splits = {DEFAULT_SPLIT: _texts(files)}
    return Configuration(name, entry.get("default") is True, f"{folder}/" if folder else "", splits)


def _list(value: Any) -> Sequence[Any]:
    if not isinstance(value, list):
        raise TypeError
    return value


def _texts(value: Any) -> tuple[str, ...]:
    texts = (value,) if isinstance(value, str) else tuple(_list(value))
    if not all(isinstance(text, str) for text in texts):
        raise TypeError
    return tuple(text.removeprefix("./").strip("/") for text in texts)


def _folders(name: str) -> list[str]:
    return name.split("/")[:-1]


def _splits_of(parts: Sequence[str], patterns: dict[str, re.Pattern[str]]) -> list[str]:
    return [
        split
        for split, pattern in patterns.items()
        if any(pattern.fullmatch(part) for part in parts)
    ]
