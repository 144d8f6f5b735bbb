"""The files of a source, and the files in its folders that are not read, with the reason.

Only one split is read of a data set in the layout of the Hugging Face hub, of its cache or of
`datasets` (`splits`), and of a folder whose files are named for splits. A link to a folder is
followed, unless that folder is read anyway.

The order of the files, and so the corpus, follows from their names below the given folder and not
from where that folder is.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePath, PurePosixPath
from typing import Any

from ...protocol.wire.manifest import TokenType
from ..errors import ExitCode, UserError
from ..util.regular_files import kind_text
from .archives import unread_kind
from .class_metadata import INFOS, ClassNames, card_classes, infos_classes
from .columns import Columns
from .dataset_caches import (
    CACHE_PREFIX,
    cached_split,
    cached_splits,
    is_prepared,
    is_revision,
    listed,
    revision,
)
from .formats import BadFile, Format, bare, format_of, is_image
from .splits import (
    CARD,
    DEFAULT_SPLIT,
    by_names,
    by_patterns,
    configuration,
    glob_pattern,
    is_named_for_a_split,
    read_card,
)

HUB = "hf://"

_DESCRIPTIONS = frozenset(
    {
        CARD,
        "dataset_info.json",
        INFOS,
        "dataset_dict.json",
        "state.json",
        "config.json",
    }
)
"""Files that describe a data set and are not data."""
_OTHER_SPLIT = "of another split"
_NO_SPLIT = "in no split of the data set"
_NOT_DATA = "not of the data set itself"
_LINKED_TWICE = "linked a second time"
_WITHOUT_ROWS: tuple[Format, ...] = ("text", "tokens", "image")
_WITH_IMAGES: tuple[Format, ...] = ("image", "parquet", "arrow")
# For each reason, how many skipped files a message names as examples.
_EXAMPLES = 3
# Endings of the files that nanotron writes next to an array of tokens: they are not arrays.
_COMPANION_ENDINGS = (".ds.index", ".ds.metadata", ".ds.loss")


@dataclass(frozen=True, kw_only=True)
class Source:
    """A part of the training data: where it is, and how its text is extracted."""

    name: str
    paths: tuple[Path | str, ...]
    """Files, folders, and addresses that begin with `HUB`."""
    include: tuple[str, ...] | None = None
    exclude: tuple[str, ...] = ()
    format: Format | None = None
    columns: Columns = field(default_factory=lambda: Columns(None, None))
    split: str | None = None
    config: str | None = None
    """The configuration of a data set that has several."""
    heldout: tuple[str, ...] = ()
    """Patterns of files to hold out, which are read whatever their split."""
    token_type: TokenType | None = None
    """The type of the numbers in arrays of tokens, if the founder states it."""
    weight: float | None = None
    """The source's share of the tokens, relative to the sum of all weights; None: no source has one."""


@dataclass(frozen=True)
class File:
    """A file to read, its name below the folder it was found in, and whether the founder named it
    directly."""

    path: Path | str
    name: PurePath
    format: Format
    named: bool
    classes: ClassNames | None = None
    """The classes that the card of its data set states, by their numbers in the file."""

    @property
    def size(self) -> int:
        """Its size in bytes; 0 for a remote file."""
        return 0 if isinstance(self.path, str) else self.path.stat().st_size


@dataclass
class Skipped:
    """Files that are not read: for each reason their number and the first few names."""

    reasons: dict[str, tuple[int, list[str]]] = field(default_factory=dict)

    def add(self, reason: str, name: str, count: int = 1) -> None:
        """Add one or several files."""
        before, names = self.reasons.get(reason, (0, []))
        self.reasons[reason] = (before + count, [*names, name][:_EXAMPLES])

    @property
    def count(self) -> int:
        """Number of files."""
        return sum(count for count, _ in self.reasons.values())

    def lines(self) -> list[str]:
        """Return a line for each reason."""
        return [
            f"{count} {reason} ({', '.join(names)}{', …' if count > len(names) else ''})"
            for reason, (count, names) in self.reasons.items()
        ]


def find_files(source: Source) -> tuple[list[File], Skipped]:
    """Return the files of a source in the order in which they are read, and those skipped.

    Raises `UserError` (`DATA_MISSING`) if a path does not exist or cannot be used, if no file is left to
    read, or if a pattern in `exclude` matches nothing.
    """
    found: dict[Path | str, File] = {}
    skipped = Skipped()
    unused = set(source.exclude)
    for path in source.paths:
        for file in _files_at(path, source, skipped, unused):
            key = file.path if isinstance(file.path, str) else file.path.resolve()
            if not isinstance(file.path, str) and file.path.stat().st_size == 0:
                skipped.add("empty", str(file.name))
            elif key in found:
                skipped.add("named a second time", str(file.name))
            else:
                found[key] = file
    if not found:
        raise _nothing_to_read(source, skipped)
    if unused := [pattern for pattern in source.exclude if pattern in unused]:
        _refuse_unused(unused, source)
    return list(found.values()), skipped


def matches(name: PurePath, patterns: Iterable[str]) -> bool:
    """Whether a file's name, or the last parts of it, with or without the ending of a compressed
    file, match a pattern. One that names a folder matches everything in it, `**` any number of folders;
    upper and lower case are equal."""
    names = {each.as_posix().lower() for each in (name, bare(name))}
    ends = {
        "/".join(parts[start:])
        for parts in (each.split("/") for each in names)
        for start in range(len(parts))
    }
    compiled = [glob_pattern(_normalised(pattern)) for pattern in patterns]
    return any(pattern.fullmatch(end) for pattern in compiled for end in ends)


def _normalised(pattern: str) -> str:
    """Return a founder's pattern in lower case, without "./" and doubled slashes; one that ends with a
    slash stands for what is in a folder."""
    inside = "/**" if pattern.endswith("/") else ""
    return PurePosixPath(pattern.lower()).as_posix() + inside


def _files_at(
    path: Path | str, source: Source, skipped: Skipped, unused: set[str]
) -> Iterator[File]:
    if isinstance(path, str) and source.columns.images:
        raise BadFile(
            "cannot be taken from the hub as images",
            "save it with `datasets` (save_to_disk) or as Parquet, and give the saved folder or file",
        ).at(path)
    if isinstance(path, str):
        yield File(path, PurePath(path), "parquet", True)
    elif path.is_dir():
        yield from _FolderWalk(path, source, skipped, unused).files()
    elif path.is_file():
        if source.format is None and (unread := unread_kind(bare(path))) is not None:
            raise BadFile(f"is {unread.what}", unread.remedy).at(path)
        kind = source.format or _format(path, source) or _default_format(source)
        if source.columns.images and kind not in _WITH_IMAGES:
            raise BadFile(
                "holds no images, which this task learns from",
                "give folders of images, or Parquet or Arrow files with a column of them",
            ).at(path)
        if source.columns.whole and kind in _WITHOUT_ROWS:
            raise BadFile(
                f"holds no {source.columns.units}, which this task learns from",
                f"give rows, for example as JSON lines or Parquet: {source.columns.remedy}",
            ).at(path)
        yield File(path, PurePath(path.name), kind, True)
    else:
        problem = f"there is no file or directory {path}"
        with suppress(OSError):
            problem = f"{path} cannot be read: {kind_text(path.stat().st_mode)}"
        raise UserError(
            ExitCode.DATA_MISSING, problem, "give the training text with --data or in [data]"
        )


class _FolderWalk:
    """The walk through the files below a given folder."""

    def __init__(self, root: Path, source: Source, skipped: Skipped, unused: set[str]) -> None:
        """`unused`: the patterns in `exclude` that have matched no file yet."""
        self._root = root
        self._source = source
        self._skipped = skipped
        self._unused = unused
        self._visited: set[tuple[int, int]] = set()
        """Device and inode of each folder read so far, so that no folder is read twice through links."""
        self._data_set_roots: dict[Path, Path] = {}
        """For each folder, the hub data set that it is part of, or the root."""
        self._cards: dict[Path, dict[str, Any]] = {}
        """The card of each of these data sets, empty if it has none; the root is missing here unless
        it is a data set."""

    def files(self) -> Iterator[File]:
        """Yield the files to read, in order."""
        found = list(self._walk())
        left_out: dict[int, str] = {}
        classes: dict[Path, ClassNames | None] = {}
        for root in dict.fromkeys(root for _, root in found if root is not None):
            files_by_name = {
                _below(file, root): file for file, file_root in found if file_root == root
            }
            for name, reason in self._other_splits(root, files_by_name).items():
                left_out[id(files_by_name[name])] = reason
            classes[root] = self._stated_classes(root)
        for file, root in found:
            if reason := left_out.get(id(file)):
                self._skipped.add(reason, str(file.name))
            else:
                yield replace(file, classes=None if root is None else classes[root])

    def _walk(self) -> Iterator[tuple[File, Path | None]]:
        """Yield each file that its name and format do not exclude, with the folder (a data set, or
        the root) among whose files a split must still be chosen; None if it is chosen already."""
        for folder, folders, names in os.walk(
            self._root, onerror=_raise_unreadable, followlinks=True
        ):
            here = Path(folder)
            if (identity := _identity(here)) in self._visited:
                self._skipped.add(_LINKED_TWICE, f"{self._name(here)}/")
                folders.clear()
                continue
            self._visited.add(identity)
            prepared = self._prepared(here, folders, names)
            if prepared is not None:
                within, files = prepared
                folders[:] = [name for name in folders if name in within]
                for path in files:
                    if reason := self._pattern_reason(self._name(path)):
                        self._skipped.add(reason, str(self._name(path)))
                    else:
                        yield File(path, self._name(path), "arrow", False), None
                continue
            root = self._data_set_root(here, folders, names)
            folders[:] = [name for name in sorted(folders) if self._is_entered(here / name)]
            for name in sorted(names):
                file = self._file(here / name, names)
                if file is not None:
                    yield file, root

    def _name(self, path: Path) -> PurePath:
        return PurePath(path.relative_to(self._root))

    def _file(self, path: Path, names: Sequence[str]) -> File | None:
        name, source = self._name(path), self._source
        if path.name.endswith(_COMPANION_ENDINGS) or _is_index(path.name, names):
            return None
        if not path.is_file():
            reason = "no files"
        elif path.name.startswith("."):
            reason = "hidden"
        else:
            reason = self._pattern_reason(name) or _exclusion_reason(name, source)
        if reason is not None:
            self._skipped.add(reason, str(name))
            return None
        return File(
            path, name, source.format or _format(name, source) or _default_format(source), False
        )

    def _pattern_reason(self, name: PurePath) -> str | None:
        """Return why the founder's patterns leave a file out; None if they do not."""
        matching = {pattern for pattern in self._source.exclude if matches(name, (pattern,))}
        self._unused -= matching
        if matching:
            return "left out by `exclude`"
        include = self._source.include
        return None if include is None or matches(name, include) else "not in `include`"

    def _is_entered(self, folder: Path) -> bool:
        """Whether to read a folder: not if it is hidden, and not if it is a link to a folder that
        contains the link or is read anyway."""
        name = f"{self._name(folder)}/"
        if folder.name.startswith("."):
            self._skipped.add("hidden", name)
            return False
        real = folder.resolve()
        if folder.is_symlink() and folder.parent.resolve().is_relative_to(real):
            self._skipped.add("links to a folder that contains them", name)
            return False
        if folder.is_symlink() and self._is_read_anyway(real):
            self._skipped.add(_LINKED_TWICE, name)
            return False
        return True

    def _is_read_anyway(self, real: Path) -> bool:
        """Whether a linked folder is below the root and not hidden there."""
        root = self._root.resolve()
        if not real.is_relative_to(root):
            return False
        return not any(part.startswith(".") for part in real.relative_to(root).parts)

    def _data_set_root(self, here: Path, folders: list[str], names: Sequence[str]) -> Path:
        """Return the data set that the files here belong to, or the root."""
        root = self._data_set_roots.get(here.parent, self._root)
        if CARD in names and (card := read_card(here / CARD)) is not None:
            root, self._cards[here] = here, card
        elif INFOS in names or is_revision(here):
            root, self._cards[here] = here, {}
        self._data_set_roots[here] = root
        # In the hub's cache, a data set's folder has blobs, revisions that link to them, and the name
        # of the latest revision: only that revision is read.
        if here.name.startswith(CACHE_PREFIX) and "snapshots" in folders:
            self._leave_out_folders(here, folders, ["snapshots"], "internal to the cache")
        if here.name == "snapshots" and here.parent.name.startswith(CACHE_PREFIX):
            self._leave_out_folders(here, folders, [revision(here, folders)], "of other revisions")
        return root

    def _leave_out_folders(
        self, here: Path, folders: list[str], kept: Sequence[str], reason: str
    ) -> None:
        for name in folders:
            if name not in kept and not name.startswith("."):
                self._skipped.add(reason, f"{self._name(here / name)}/")
        folders[:] = [name for name in folders if name in kept]

    def _prepared(
        self, folder: Path, folders: Sequence[str], names: Sequence[str]
    ) -> tuple[list[str], list[Path]] | None:
        """Return what `datasets` has saved or prepared here: the folders to look into, and the
        files; None if nothing."""
        if "dataset_dict.json" in names:
            wanted = self._source.split or DEFAULT_SPLIT
            splits = listed(folder / "dataset_dict.json", "splits")
            _check_split(wanted, splits, folder)
            for split in splits:
                if split != wanted:
                    self._skipped.add(_OTHER_SPLIT, f"{folder.name}/{split}")
            return [wanted], []
        if "dataset_info.json" not in names:
            versions = [name for name in folders if is_prepared(folder / name)]
            if len(versions) > 1:
                raise BadFile(
                    f"is a cache with {len(versions)} versions of one data set "
                    f"({', '.join(sorted(versions))})",
                    "name one of them",
                ).at(folder)
            return None
        if "state.json" in names:
            entries = listed(folder / "state.json", "_data_files")
            files = [
                folder / str(entry.get("filename")) for entry in entries if type(entry) is dict
            ]
            for path in files:
                if not path.is_file():
                    raise BadFile(f"names {path.name}, which does not exist").at(
                        folder / "state.json"
                    )
        elif is_prepared(folder):
            files = self._cached(folder, names)
        else:
            return None
        for name in sorted(names):
            if folder / name not in files and name not in _DESCRIPTIONS:
                other = cached_split(name, cached_splits(folder)) is not None
                self._skipped.add(
                    _OTHER_SPLIT if other else _NOT_DATA, str(self._name(folder / name))
                )
        return [], files

    def _cached(self, folder: Path, names: Sequence[str]) -> list[Path]:
        """Return the files of the wanted split of a data set in the cache of `datasets`."""
        known = cached_splits(folder)
        wanted = self._source.split or DEFAULT_SPLIT
        _check_split(wanted, known, folder)
        return [folder / name for name in sorted(names) if cached_split(name, known) == wanted]

    def _stated_classes(self, root: Path) -> ClassNames | None:
        """Return the classes that the card of a data set, or else its `dataset_infos.json`, states for
        the column that is read."""
        card, label = self._cards.get(root), self._source.columns.label
        if card is None or label is None:
            return None
        chosen = configuration(card, self._source.config, root / CARD)
        stated = card_classes(card, None if chosen is None else chosen.name, label)
        return stated or infos_classes(root, label)

    def _other_splits(self, root: Path, files_by_name: dict[str, File]) -> dict[str, str]:
        """Return which files of a data set, or of the root, are not read, each with the reason;
        `files_by_name` are all its files by their name below `root`."""
        source, card = self._source, self._cards.get(root)
        wanted, left_out = source.split or DEFAULT_SPLIT, {}
        chosen_config = None if card is None else configuration(card, source.config, root / CARD)
        if card is not None:
            left_out = {
                name: _NOT_DATA for name in files_by_name if PurePath(name).name in _DESCRIPTIONS
            }
        if card is None and source.config is not None:
            raise BadFile("is not a data set with configurations", "leave `config` out").at(root)
        names = [name for name in files_by_name if name not in left_out]
        if chosen_config is not None and chosen_config.splits is not None:
            splits = by_patterns(names, chosen_config)
        elif card is not None:
            inside = [
                name
                for name in names
                if chosen_config is None or name.startswith(chosen_config.folder)
            ]
            left_out |= {name: _NO_SPLIT for name in names if name not in inside}
            splits = by_names(inside) or {DEFAULT_SPLIT: set(inside)}
        else:
            splits = by_names(name for name in names if _may_be_of_a_split(files_by_name[name]))
            if source.split is None and (wanted not in splits or len(splits) == 1):
                # This is no data set: its files only happen to have such names.
                return {}
        _check_split(wanted, splits, root)
        strict = card is not None or source.split is not None
        others = set().union(*(files for split, files in splits.items() if split != wanted))
        for name in names:
            if name in splits[wanted] or name in left_out:
                continue
            if name in others:
                left_out[name] = _OTHER_SPLIT
            elif strict:
                left_out[name] = _NO_SPLIT
        if card is not None and (chosen_config is None or chosen_config.splits is None):
            left_out |= _texts_next_to_rows(
                {n: f for n, f in files_by_name.items() if n not in left_out}
            )
        return {
            name: reason
            for name, reason in left_out.items()
            if not (source.heldout and matches(files_by_name[name].name, source.heldout))
        }


def _below(file: File, root: Path) -> str:
    """Return a file's name below a folder, as patterns use it."""
    assert isinstance(file.path, Path)
    return file.path.relative_to(root).as_posix()


def _identity(folder: Path) -> tuple[int, int]:
    status = folder.stat()
    return status.st_dev, status.st_ino


def _check_split(wanted: str, splits: Iterable[str], folder: Path) -> None:
    if wanted not in splits:
        known = ", ".join(splits) or "none"
        raise BadFile(
            f"has no split {wanted!r} (it has: {known})", "name one with `split` in [data]"
        ).at(folder)


def _may_be_of_a_split(file: File) -> bool:
    """Whether a file's name may state a split in a folder that is not a data set.

    The names of programs and prose contain "test" or "train" for other reasons, so the name of a text
    file must be exactly such a word; for .txt the name of one of its folders suffices.
    """
    name = bare(file.name)
    exact = (name.stem, *(name.parent.parts if name.suffix.lower() == ".txt" else ()))
    return file.format != "text" or any(map(is_named_for_a_split, exact))


def _texts_next_to_rows(files_by_name: dict[str, File]) -> dict[str, str]:
    """Return the text files of a data set that has files of rows, each with the reason why it is not
    read: they are notes, licences, and programs that read the data set."""
    if not any(file.format not in _WITHOUT_ROWS for file in files_by_name.values()):
        return {}
    return {name: _NOT_DATA for name, file in files_by_name.items() if file.format == "text"}


def _is_index(name: str, names: Sequence[str]) -> bool:
    """Whether a file is the index of an array of tokens next to it, one of `names`."""
    return name.endswith(".idx") and f"{name.removesuffix('.idx')}.bin" in names


def _raise_unreadable(error: OSError) -> None:
    """Raise for an unreadable folder: without an error nobody would notice that its files are missing
    from the training data."""
    linked = Path(error.filename).is_symlink()
    raise UserError(
        ExitCode.DATA_MISSING,
        f"{error.filename}{', which is a link,' if linked else ''} cannot be read: {error.strerror}",
        "name the folder that it links to as well, or remove the link"
        if linked
        else "make it readable, or name the folders next to it instead of their parent folder",
    )


def _exclusion_reason(name: PurePath, source: Source) -> str | None:
    """Return why a file in a folder, which no pattern leaves out, is not read; None if it is."""
    by_name = _format(name, source)
    kind = (
        source.format
        or by_name
        or (_default_format(source) if source.include is not None else None)
    )
    if source.columns.images and kind is not None and kind not in _WITH_IMAGES:
        return "without images"
    if source.columns.whole and kind in _WITHOUT_ROWS:
        return f"without {source.columns.units}"
    if source.include is not None:
        return None
    if source.format is not None:
        return None if by_name in (source.format, None) else f"not {source.format} by their ending"
    if by_name is None:
        unread = unread_kind(bare(name))
        return "with an unknown ending" if unread is None else unread.reason
    if by_name == "tokens" and bare(name).suffix.lower() != ".ds":
        return 'possibly arrays of tokens, which are read only with format = "tokens"'
    return None


def _format(name: PurePath, source: Source) -> Format | None:
    """Return the format that a file's name implies: an image only if the swarm trains on images."""
    if source.columns.images and is_image(name):
        return "image"
    return format_of(name)


def _default_format(source: Source) -> Format:
    """Return the format of a file that the founder wants to be read and whose name implies none."""
    return "image" if source.columns.images else "text"


def _refuse_unused(patterns: Sequence[str], source: Source) -> None:
    """Raise for patterns in `exclude` that match no file in the folders of a source, not even one left
    out for another reason."""
    folders = [path for path in source.paths if isinstance(path, Path) and path.is_dir()]
    unused = [
        pattern
        for pattern in patterns
        if not any(
            matches(path.relative_to(folder), (pattern,))
            for folder in folders
            for path in folder.rglob("*")
        )
    ]
    if unused:
        raise UserError(
            ExitCode.DATA_MISSING,
            f"patterns in `exclude` match no file in a folder of the source: {' '.join(unused)}",
            "fix them, or leave them out; a file that `paths` or --data names itself is always read",
        )


def _nothing_to_read(source: Source, skipped: Skipped) -> UserError:
    where = ", ".join(str(path) for path in source.paths)
    wanted = "training images" if source.columns.images else "training text"
    there_is = "there are no" if source.columns.images else "there is no"
    if not where:
        return UserError(
            ExitCode.DATA_MISSING,
            f"{there_is} {wanted} (no path was given)",
            "give files or directories with --data, or `paths` in [data]",
        )
    found = "; ".join(skipped.lines()) or "nothing"
    return UserError(
        ExitCode.DATA_MISSING,
        f"{there_is} {wanted} in {where}, only files that are not read: {found}"
        if skipped.count
        else f"{there_is} {wanted} in {where}: there is {found}",
        "name other files with --data, widen `include` in [data], or set the `format` of files "
        "whose names do not show it",
    )
