"""Which files a source has, and what else lies there and why it does not count.

The order of the files, and so the corpus, follows from their names below the folder that was given and
not from where that folder lies.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePath, PurePosixPath

from ...protocol.wire.manifest import TokenType
from ..errors import ExitCode, UserError
from .columns import Columns
from .formats import BadFile, Format, bare, format_of, is_image

HUB = "hf://"
USUAL_SPLIT = "train"

_WITHOUT_ROWS: tuple[Format, ...] = ("text", "tokens", "image")
_WITH_IMAGES: tuple[Format, ...] = ("image", "parquet", "arrow")
# As many as help to see what is meant.
_EXAMPLES = 3
_MAX_STATE_BYTES = 4 << 20
# What other programs lay beside an array of tokens belongs to it.
_COMPANIONS = (".ds.index", ".ds.metadata", ".ds.loss")


@dataclass(frozen=True, kw_only=True)
class Source:
    """A part of the training data: where it lies, and how text is got out of it."""

    name: str
    paths: tuple[Path | str, ...]
    """Files, folders, and addresses that begin with `HUB`."""
    include: tuple[str, ...] | None = None
    exclude: tuple[str, ...] = ()
    format: Format | None = None
    columns: Columns = field(default_factory=lambda: Columns(None, None))
    split: str | None = None
    token_type: TokenType | None = None
    weight: float | None = None


@dataclass(frozen=True)
class File:
    """A file to read, its name below the folder it was found in, and whether it was named itself."""

    path: Path | str
    name: PurePath
    format: Format
    named: bool

    @property
    def size(self) -> int:
        """Its bytes; 0 for what lies elsewhere."""
        return 0 if isinstance(self.path, str) else self.path.stat().st_size


@dataclass
class Skipped:
    """Files that do not count, by the reason: how many, and the first few."""

    reasons: dict[str, tuple[int, list[str]]] = field(default_factory=dict)

    def add(self, reason: str, name: str, count: int = 1) -> None:
        """One more file, or several."""
        before, names = self.reasons.get(reason, (0, []))
        self.reasons[reason] = (before + count, [*names, name][:_EXAMPLES])

    @property
    def count(self) -> int:
        """How many files."""
        return sum(count for count, _ in self.reasons.values())

    def words(self) -> list[str]:
        """A line for each reason."""
        return [
            f"{count} {reason} ({', '.join(names)}{', …' if count > len(names) else ''})"
            for reason, (count, names) in self.reasons.items()
        ]


def find_files(source: Source) -> tuple[list[File], Skipped]:
    """The files of a source in the order in which they are read, and what else is there.

    Raises `UserError` (`DATA_MISSING`) for a path that is not there, and where nothing is left.
    """
    found: dict[Path | str, File] = {}
    skipped = Skipped()
    for path in source.paths:
        for file in _files_at(path, source, skipped):
            key = file.path if isinstance(file.path, str) else file.path.resolve()
            if not isinstance(file.path, str) and file.path.stat().st_size == 0:
                skipped.add("empty", str(file.name))
            elif key in found:
                skipped.add("named a second time", str(file.name))
            else:
                found[key] = file
    if not found:
        raise _nothing(source, skipped)
    return list(found.values()), skipped


def matches(name: PurePath, patterns: Sequence[str]) -> bool:
    """Whether a file's name, or what it is called unpacked, fits a pattern, in either case."""
    names = {PurePosixPath(each.as_posix().lower()) for each in (name, bare(name))}
    return any(each.match(pattern.lower()) for each in names for pattern in patterns)


def _files_at(path: Path | str, source: Source, skipped: Skipped) -> Iterator[File]:
    if isinstance(path, str) and source.columns.images:
        raise BadFile(
            "cannot be taken from the hub as images",
            "save it with `datasets` (save_to_disk) or as Parquet, and give that",
        ).at(path)
    if isinstance(path, str):
        yield File(path, PurePath(path), "parquet", True)
    elif path.is_dir():
        yield from _walk(path, source, skipped)
    elif path.is_file():
        kind = source.format or _format(path, source) or _usual(source)
        if source.columns.images and kind not in _WITH_IMAGES:
            raise BadFile(
                "holds no images, which this task learns from",
                "give folders of images, or Parquet or Arrow files with a column of them",
            ).at(path)
        if source.columns.nested and kind in _WITHOUT_ROWS:
            raise BadFile(
                "holds no conversations, which this task learns from",
                "give rows with `messages`, or with `prompt` and `completion`, as JSON lines or "
                "Parquet, say",
            ).at(path)
        yield File(path, PurePath(path.name), kind, True)
    else:
        raise UserError(
            ExitCode.DATA_MISSING,
            f"there is no file or directory {path}",
            "give the training text with --data or in [data]",
        )


def _walk(root: Path, source: Source, skipped: Skipped) -> Iterator[File]:
    for folder, folders, names in os.walk(root, onerror=_refuse):
        here = Path(folder)
        dataset = _saved_dataset(here, names, source, skipped)
        if dataset is not None:
            within, files = dataset
            folders[:] = [name for name in folders if name in within]
            for path in files:
                yield File(path, PurePath(path.relative_to(root)), "arrow", False)
            continue
        for name in folders:
            if name.startswith("."):
                skipped.add("hidden", f"{name}/")
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(names):
            path = here / name
            relative = PurePath(path.relative_to(root))
            if name.endswith(_COMPANIONS) or _is_index(name, names):
                continue
            if not path.is_file():
                skipped.add("no files", str(relative))
                continue
            reason = _why_not(relative, source)
            if reason is not None:
                skipped.add(reason, str(relative))
            else:
                kind = source.format or _format(relative, source) or _usual(source)
                yield File(path, relative, kind, False)


def _is_index(name: str, names: Sequence[str]) -> bool:
    """Whether a file is the index of an array of tokens beside it."""
    return name.endswith(".idx") and f"{name.removesuffix('.idx')}.bin" in names


def _refuse(error: OSError) -> None:
    """What a closed folder holds would be missing from the training data without a word."""
    raise UserError(
        ExitCode.DATA_MISSING,
        f"{error.filename} cannot be read: {error.strerror}",
        "make it readable, or name the folders beside it instead of the one around it",
    )


def _why_not(name: PurePath, source: Source) -> str | None:
    """Why a file in a folder does not count; None if it does."""
    if name.name.startswith("."):
        return "hidden"
    if source.exclude and matches(name, source.exclude):
        return "left out by `exclude`"
    if source.include is not None and not matches(name, source.include):
        return "not in `include`"
    by_name = _format(name, source)
    kind = source.format or by_name or (_usual(source) if source.include is not None else None)
    if source.columns.images and kind is not None and kind not in _WITH_IMAGES:
        return "without images"
    if source.columns.nested and kind in _WITHOUT_ROWS:
        return "without conversations"
    if source.include is not None:
        return None
    if source.format is not None:
        return None if by_name in (source.format, None) else f"not {source.format} by their name"
    if by_name is None:
        return "of no known ending"
    if by_name == "tokens" and bare(name).suffix.lower() != ".ds":
        return 'possibly arrays of tokens, which count with format = "tokens"'
    return None


def _format(name: PurePath, source: Source) -> Format | None:
    """What a file is by its name: an image only where images are learned from."""
    if source.columns.images and is_image(name):
        return "image"
    return format_of(name)


def _usual(source: Source) -> Format:
    """What a file is that was named and whose own name says nothing."""
    return "image" if source.columns.images else "text"


def _saved_dataset(
    folder: Path, names: Sequence[str], source: Source, skipped: Skipped
) -> tuple[list[str], list[Path]] | None:
    """What `datasets` has saved here: the folders to look into, and the files; None if nothing."""
    if "dataset_dict.json" in names:
        splits = _listed(folder / "dataset_dict.json", "splits")
        wanted = source.split or USUAL_SPLIT
        if wanted not in splits:
            raise BadFile(
                f"has no split {wanted!r} (it has: {', '.join(splits)})", "name one with `split`"
            ).at(folder)
        for split in splits:
            if split != wanted:
                skipped.add("of another split", f"{folder.name}/{split}")
        return [wanted], []
    if "state.json" in names and "dataset_info.json" in names:
        entries = _listed(folder / "state.json", "_data_files")
        files = [folder / str(entry.get("filename")) for entry in entries if type(entry) is dict]
        for path in files:
            if not path.is_file():
                raise BadFile(f"names {path.name}, which is not there").at(folder / "state.json")
        return [], files
    return None


def _listed(path: Path, key: str) -> list:
    """A list in a JSON file that `datasets` has written."""
    try:
        with path.open("rb") as file:
            value = json.loads(file.read(_MAX_STATE_BYTES))[key]
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        value = None
    if not isinstance(value, list):
        raise BadFile(f"is damaged: it has no list {key!r}").at(path)
    return value


def _nothing(source: Source, skipped: Skipped) -> UserError:
    where = ", ".join(str(path) for path in source.paths)
    wanted = "training images" if source.columns.images else "training text"
    there_is = "there are no" if source.columns.images else "there is no"
    if not where:
        return UserError(
            ExitCode.DATA_MISSING,
            f"{there_is} {wanted} (no path was given)",
            "give files or directories with --data, or `paths` in [data]",
        )
    there = "; ".join(skipped.words()) or "nothing at all"
    return UserError(
        ExitCode.DATA_MISSING,
        f"{there_is} {wanted} in {where}, only files that do not count: {there}"
        if skipped.count
        else f"{there_is} {wanted} in {where}: there is {there}",
        "name other files with --data, widen `include` in [data], or say the `format` of files whose "
        "names do not",
    )
