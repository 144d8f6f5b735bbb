"""The tokenised parts on disk: some megabytes each, which survive an interruption of `create`.

The parts of a source are in a folder whose name is a hash of everything that they depend on:
tokenizer, files with sizes and times, columns. A part is used if it has a `.json`, which is written
last. The same command therefore resumes after the last complete part, and a command with other files
starts from the beginning.

The index of a part has an entry (`INDEX_ENTRY`) for every short document and every piece of a long
one.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ..storage.atomic_write import replacing, write_atomically

INDEX_ENTRY = np.dtype(
    [
        # The first half of the 128-bit hash of the document's text, or of its subject.
        ("hash", "<u8"),
        # The second half of that of the text, increased by the piece's index: pieces with both numbers
        # equal are equal.
        ("hash2", "<u8"),
        # Number of tokens of this piece.
        ("tokens", "<u4"),
        # Index of the file in the source.
        ("file", "<u4"),
        # 1 if it is the first piece of its document, else 0.
        ("starts_document", "<u4"),
    ]
)

# How many bad rows are named; all are counted.
_NAMED_ROWS = 1000


@dataclass
class ReadCounts:
    """Counts of what was read: of a part, a batch, or a whole source."""

    documents: int = 0
    sections: int = 0
    """Number of short documents and of pieces of long ones: the entries of an index."""
    tokens: int = 0
    text_bytes: int = 0
    empty: int = 0
    """Number of rows and files without text."""
    bad: int = 0
    """Number of rows and images that cannot be used."""
    learned: int = 0
    """Number of tokens marked as to be learned: they count in the loss."""
    cut: int = 0
    """Conversations that were shortened to the length of a sequence."""
    too_long: int = 0
    """Conversations without an answer that ends within a sequence; they are left out."""
    bad_rows: list[tuple[str, int, str]] = field(default_factory=list)
    """File, line or row, and the problem."""
    long_rows: list[tuple[str, int, str]] = field(default_factory=list)
    """File, line or row, and what was done, of conversations that were cut or left out."""
    unstarted: int = 0
    """Documents in arrays of tokens that lacked the start token and got it."""
    no_text: list[str] = field(default_factory=list)
    """Files with the name of a text file that are not text."""
    classes: list[int] = field(default_factory=list)
    """The numbers of the classes that documents have, sorted."""

    def add(self, other: ReadCounts) -> None:
        """Add another count to this one."""
        for name in _COUNTS:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.long_rows = [*self.long_rows, *other.long_rows][:_NAMED_ROWS]
        self.bad_rows = [*self.bad_rows, *other.bad_rows][:_NAMED_ROWS]
        self.no_text += other.no_text
        self.classes = sorted({*self.classes, *other.classes})

    def add_bad(self, file: str, line: int, problem: str) -> None:
        """Count a bad row and record its place."""
        self.bad += 1
        if len(self.bad_rows) < _NAMED_ROWS:
            self.bad_rows.append((file, line, problem))

    def add_long(self, file: str, line: int, tokens: int, kept: int) -> None:
        """Count a conversation, or a text with a class, longer than a sequence, and record its place."""
        if kept:
            self.cut += 1
        else:
            self.too_long += 1
            self.documents -= 1
        if len(self.long_rows) < _NAMED_ROWS:
            outcome = f"cut to {kept}" if kept else "left out"
            self.long_rows.append((file, line, f"has {tokens} tokens: {outcome}"))


_COUNTS = (
    *("documents", "sections", "tokens", "text_bytes", "empty", "bad", "learned", "cut"),
    *("too_long", "unstarted"),
)


@dataclass(frozen=True)
class Position:
    """Where reading a source resumes: after this many items (`documents.Item`) of this file."""

    file: int = 0
    items: int = 0
    read_bytes: int = 0
    """Bytes read of all files of the source, for the progress bar."""
    ended: bool = False
    """Whether the source has been read to its end."""


class TokenCache:
    """The parts of one source below `root`, a folder of their own."""

    def __init__(self, root: Path, token_bytes: int) -> None:
        self.root = root
        self.dtype = np.dtype(f"<u{token_bytes}")
        self.read_counts = ReadCounts()
        self.position = Position()
        self.counts: list[tuple[int, int]] = []
        """For each part, the number of entries in its index and the number of its tokens."""
        root.mkdir(parents=True, exist_ok=True)
        while (stored := self._read(len(self.counts))) is not None:
            read_counts, self.position = stored
            self.counts.append((read_counts.sections, read_counts.tokens))
            self.read_counts.add(read_counts)

    def add(
        self,
        entries: np.ndarray,
        tokens: Sequence[np.ndarray],
        read_counts: ReadCounts,
        position: Position,
    ) -> None:
        """Write the next part, durably. Raises `OSError` as files do."""
        number = len(self.counts)
        read_counts.sections, read_counts.tokens = len(entries), sum(map(len, tokens))
        with replacing(self._path(number, "tokens")) as path, path.open("wb") as file:
            for each in tokens:
                file.write(each.astype(self.dtype, copy=False).data)
        write_atomically(self._path(number, "index"), entries.astype(INDEX_ENTRY).tobytes())
        stored = {"counts": asdict(read_counts), "position": asdict(position)}
        write_atomically(self._path(number, "json"), json.dumps(stored).encode())
        self.counts.append((len(entries), read_counts.tokens))
        self.read_counts.add(read_counts)
        self.position = position

    def index(self, part: int, start: int = 0, count: int = -1) -> np.ndarray:
        """Return entries of a part's index: `INDEX_ENTRY` (count,), by default all from `start` on."""
        path = self._path(part, "index")
        return np.fromfile(path, INDEX_ENTRY, count, offset=start * INDEX_ENTRY.itemsize)

    def tokens(self, part: int, start: int, count: int) -> np.ndarray:
        """Return `count` tokens of a part, from `start` on: `self.dtype` (count,)."""
        path, width = self._path(part, "tokens"), self.dtype.itemsize
        return np.fromfile(path, self.dtype, count, offset=start * width)

    def remove(self) -> None:
        """Remove all parts."""
        shutil.rmtree(self.root, ignore_errors=True)

    def _path(self, number: int, ending: str) -> Path:
        return self.root / f"{number:06}.{ending}"

    def _read(self, number: int) -> tuple[ReadCounts, Position] | None:
        """Return a part's counts and position, if it exists and is complete."""
        try:
            stored: dict[str, Any] = json.loads(self._path(number, "json").read_bytes())
            read_counts, position = ReadCounts(**stored["counts"]), Position(**stored["position"])
            read_counts.bad_rows = [(str(f), int(p), str(w)) for f, p, w in read_counts.bad_rows]
            read_counts.long_rows = [(str(f), int(p), str(w)) for f, p, w in read_counts.long_rows]
            sizes = [self._path(number, ending).stat().st_size for ending in ("index", "tokens")]
        except (OSError, ValueError, TypeError, LookupError):
            return None
        expected = [
            read_counts.sections * INDEX_ENTRY.itemsize,
            read_counts.tokens * self.dtype.itemsize,
        ]
        return (read_counts, position) if sizes == expected else None


def remove_others(folder: Path, wanted: Sequence[TokenCache]) -> None:
    """Remove all other sources' parts, which earlier runs left, from the folder that contains the
    folders of all sources."""
    kept = {cache.root.name for cache in wanted}
    for path in _children(folder):
        if path.name not in kept:
            shutil.rmtree(path, ignore_errors=True)


def _children(folder: Path) -> Iterator[Path]:
    yield from sorted(folder.iterdir()) if folder.is_dir() else ()
