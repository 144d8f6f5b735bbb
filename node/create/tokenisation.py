"""Tokenising of a source: its files are read once, tokenised on all cores, and the tokens are stored.

The tokens are stored in parts of some megabytes (`TokenCache`), and an interrupted run resumes after
the last complete part. Memory holds some batches of text and one part, whatever the size of the source.

A long document is tokenised in pieces. The code's names call a short document, or a piece of a long
one, a section.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import astuple, dataclass, field, replace
from typing import NamedTuple

import numpy as np
from blake3 import blake3

from ...crypto.hashing import content_id
from ..errors import ExitCode, UserError
from ..training.chat import REFUSED
from .borders import Borders
from .conversations import LONGEST_CONVERSATION, ConversationTokenizer, fitted
from .disk_room import DiskRoom
from .documents import WHOLE_FILE, Document, Empty, NoText, ReadOptions, TokenDocument, items
from .files import File, Source
from .images import ImageTokenizer
from .rows import BadRow
from .token_cache import SECTION, Position, ReadCounts, TokenCache
from .tokeniser_pool import Workers
from .tokens import Tokenizer

# A part is complete at this many bytes of tokens or this many pieces: it fits into memory, and is soon
# made again after an interruption.
_PART_BYTES = 16 << 20
_PART_SECTIONS = 1 << 18
# A worker's batch has this many bytes or pieces: it takes some tenths of a second.
_BATCH_BYTES = 1 << 20
_BATCH_SECTIONS = 4096
# A document is tokenised, and mixed with others, in pieces of at least this many bytes of text, or of
# this many samples if that is more. Such long pieces make it rare that a sequence contains the end of
# one and goes on with another document. A tokenizer takes some 60 times as much memory as the piece,
# hence the upper bound, which holds however long sequences are.
_SECTION_BYTES = 1 << 16
_SECTION_SAMPLES = 8
_MOST_SECTION_BYTES = 1 << 20
# Bytes of text per token, roughly.
_BYTES_A_TOKEN = 4
# How many bytes after the end of a piece's usual size the end of a line is searched for.
_CUT_WINDOW = 1 << 14
# Seconds between two reports of progress, and between two checks of the disk space.
_SHOW_SECONDS = 0.1
_ROOM_SECONDS = 0.5
_MEND_ROW = (
    "fix the row, name the text's columns with `text` or `template` in [data], or leave some bad rows "
    "out with `max_bad`"
)
_MEND_TEMPLATE = (
    "if it refuses every row, the template is at fault: fix it, or name another as chat_template in "
    "[data]; else fix the row, or leave some bad rows out with `max_bad`"
)
_MEND_IMAGE = (
    "fix or remove it, leave it out with `exclude` in [data], or leave some out with `max_bad`"
)
# A new number invalidates all parts: a change of how documents are cut or hashed requires one.
_FORMAT = 3


@dataclass(frozen=True)
class Tokenising:
    """How documents become tokens, the same for all sources."""

    tokenizer: Tokenizer
    borders: Borders
    sequence_length: int
    max_bad: int
    """How many bad rows are allowed, over all sources."""

    @property
    def conversations(self) -> ConversationTokenizer | None:
        """The tokenizer, if documents are conversations; else None."""
        return self.tokenizer if isinstance(self.tokenizer, ConversationTokenizer) else None

    @property
    def images(self) -> bool:
        """Whether documents are images, each a sample."""
        return isinstance(self.tokenizer, ImageTokenizer)

    @property
    def section_bytes(self) -> int:
        """Bytes of text in a piece, which is tokenised at once."""
        samples = _SECTION_SAMPLES * _BYTES_A_TOKEN * self.sequence_length
        return max(_SECTION_BYTES, min(samples, _MOST_SECTION_BYTES))

    @property
    def reading(self) -> ReadOptions:
        """What the readers of files need to know."""
        return ReadOptions(self.tokenizer.needs_utf8, self.tokenizer.vocabulary, self.borders)


def parts_name(source: Source, files: Sequence[File], how: Tokenising) -> str:
    """Return a name that changes with the source, its files and the way of tokenising them."""
    facts = [
        *(
            _FORMAT,
            content_id(how.tokenizer.definition).hex(),
            astuple(how.borders),
            how.section_bytes,
        ),
        *(source.columns.facts, source.split, source.config, source.token_type),
        # Conversations are cut to this length.
        how.sequence_length if how.conversations is not None else 0,
        [[str(file.path), str(file.name), file.format, _state(file)] for file in files],
    ]
    return blake3(json.dumps(facts).encode()).hexdigest()[:32]


class _SectionRow(NamedTuple):
    """A short document, or a piece of a long one."""

    hash: int
    """The first 64 bits of the document's hash, the same for all its pieces."""
    check: int
    """The other 64 bits, increased by the piece's index: pieces are equal if both numbers are."""
    file: int
    """Index of the source's file."""
    first: bool
    """Whether it is the first piece of a document, as mixing and deduplication count documents: the
    parts into which readers split a text above 4 MB are a document each."""
    starts: bool
    """Whether the whole text begins with it, so that the start token comes before it; false for the
    first piece of a later part of such a long text."""
    ends: bool
    """Whether the whole text ends with it, so that the end tokens come after it."""
    tokens: np.ndarray | None
    """The tokens, if known."""


@dataclass
class _Batch:
    """Documents that a worker tokenises together, and the counts and the position after them."""

    texts: list[bytes] = field(default_factory=list)
    rows: list[_SectionRow] = field(default_factory=list)
    lines: list[tuple[str, int]] = field(default_factory=list)
    """For each conversation, the file's name and the line or row."""
    size: int = 0
    read: dict[int, int] = field(default_factory=dict)
    """For the index of each file, the bytes of it read for this batch."""
    read_counts: ReadCounts = field(default_factory=ReadCounts)
    position: Position = field(default_factory=Position)


def tokenise(
    source: Source,
    files: Sequence[File],
    how: Tokenising,
    parts: TokenCache,
    workers: Workers,
    seen: ReadCounts,
    advance: Callable[[int], None],
    room: DiskRoom,
) -> None:
    """Complete the parts of a source.

    `advance` is called with the number of the source's bytes read so far; `seen`, which counts what
    was read of all sources, is increased; `room` predicts the disk space that the rest will take.

    Raises `UserError` with `DATA_MISSING` for a file that cannot be used, and as soon as `seen` has
    more bad rows than `max_bad`; with `DISK_FULL` if the rest will not fit on the disk.
    """
    writer = _PartWriter(parts, how, files, room)
    shown = 0.0
    seen.add(parts.read_counts)
    _check_bad(seen, how.max_bad)
    for batch in _batches(source, files, how, parts.position):
        workers.give(batch, batch.texts)
        for done, encoded in workers.take():
            writer.add(done, encoded)
        if time.monotonic() - shown > _SHOW_SECONDS:
            shown = time.monotonic()
            advance(batch.position.read_bytes)
        seen.add(batch.read_counts)
        _check_bad(seen, how.max_bad)
    for done, encoded in workers.take(all=True):
        writer.add(done, encoded)
    writer.finish()
    advance(parts.position.read_bytes)


def _batches(
    source: Source, files: Sequence[File], how: Tokenising, position: Position
) -> Iterator[_Batch]:
    batch = _Batch()
    if position.ended:
        return
    before = sum(file.size for file in files[: position.file])
    for number in range(position.file, len(files)):
        file = files[number]
        skip = position.items if number == position.file else 0
        count = counted = 0
        continued = False
        for line, item, read in items(file, source, how.reading):
            count += 1
            starts = not continued
            if isinstance(item, (Document, TokenDocument)):
                continued = not item.ends
            if count <= skip:
                continue
            _add_item(batch, item, number, str(file.name), line, how, starts)
            batch.position = Position(number, count, before + read)
            batch.read[number] = batch.read.get(number, 0) + read - counted
            counted = read
            if (
                batch.size >= _BATCH_BYTES
                or len(batch.rows) >= _BATCH_SECTIONS
                or batch.read_counts.bad
            ):
                yield batch
                batch = _Batch()
        before += file.size
        batch.read[number] = batch.read.get(number, 0) + file.size - counted
        batch.position = Position(number + 1, 0, before)
    yield batch


def _add_item(
    batch: _Batch,
    item: object,
    number: int,
    name: str,
    line: int,
    how: Tokenising,
    starts: bool,
) -> None:
    """Append an item to the batch; `number` and `name` are the file's, and `starts` states whether no
    part of the same text came before."""
    borders = how.borders
    if isinstance(item, Document):
        document, check = _hashes(item.text)
        sections = list(_sections(item.text, how.section_bytes))
        if how.conversations is not None or how.images:
            # Not split, because the assistant's parts are marked by offsets in the whole text, and
            # because an image is one sample.
            sections = [item.text]
        if how.conversations is not None:
            batch.lines.append((name, line))
        for index, text in enumerate(sections):
            last = index == len(sections) - 1
            batch.texts.append(text)
            # Of two equal documents, pieces with the same index have the same hash and check.
            check_here = (check + index) & (2**64 - 1)
            first, ends = index == 0, last and item.ends
            section = _SectionRow(document, check_here, number, first, first and starts, ends, None)
            batch.rows.append(section)
        batch.read_counts.documents += 1
        batch.read_counts.text_bytes += len(item.text)
        batch.size += len(item.text)
    elif isinstance(item, TokenDocument):
        document, check = _hashes(item.tokens.tobytes())
        ended = not borders.end or int(item.tokens[-1]) == borders.single_end
        if starts and borders.before is not None and int(item.tokens[0]) != borders.before:
            batch.read_counts.unstarted += 1
        size = how.section_bytes // _BYTES_A_TOKEN
        for start in range(0, len(item.tokens), size):
            piece = item.tokens[start : start + size]
            last = start + size >= len(item.tokens)
            check_here = (check + start // size) & (2**64 - 1)
            ends = last and item.ends and not ended
            first = start == 0
            batch.rows.append(
                _SectionRow(document, check_here, number, first, first and starts, ends, piece)
            )
        batch.read_counts.documents += 1
        batch.size += item.tokens.nbytes
    elif isinstance(item, BadRow):
        batch.read_counts.add_bad(name, line, item.problem)
    elif isinstance(item, Empty):
        batch.read_counts.empty += 1
    elif isinstance(item, NoText):
        batch.read_counts.no_text.append(name)


class _PartWriter:
    """Collects batches until a part is full."""

    def __init__(
        self, parts: TokenCache, how: Tokenising, files: Sequence[File], room: DiskRoom
    ) -> None:
        self._parts = parts
        self._files = files
        self._room = room
        self._checked = time.monotonic()
        self._end = np.array(how.borders.end, parts.dtype)
        before = how.borders.before
        self._start = np.array(() if before is None else (before,), parts.dtype)
        self._length = how.sequence_length
        self._conversations = how.conversations
        self._begin()

    def add(self, batch: _Batch, encoded: list[np.ndarray]) -> None:
        if self._conversations is not None:
            encoded = self._fit(batch, encoded, self._conversations.learned)
        texts, made = iter(encoded), Counter[int]()
        sections = np.zeros(len(batch.rows), SECTION)
        for row, section in enumerate(batch.rows):
            known = section.tokens
            tokens = next(texts) if known is None else known.astype(self._parts.dtype)
            # A text that spells out the start token at its beginning does not get another.
            starts = section.starts and not np.array_equal(tokens[:1], self._start)
            whole = (
                *((self._start,) if starts and len(self._start) else ()),
                tokens,
                *((self._end,) if section.ends and len(self._end) else ()),
            )
            self._tokens += whole
            count = sum(map(len, whole))
            sections[row] = (section.hash, section.check, count, section.file, section.first)
            made[section.file] += count * self._parts.dtype.itemsize
        self._size += made.total()
        for number, read in batch.read.items():
            self._room.add(self._files[number], read, made[number])
        self._sections.append(sections)
        self._count += len(sections)
        self._read_counts.add(batch.read_counts)
        self._position = batch.position
        # A part ends only where a batch ends, so that reading can resume there: a part made again
        # after an interruption is the same.
        if self._size >= _PART_BYTES or self._count >= _PART_SECTIONS:
            self._put(batch.position)
        if batch.read and time.monotonic() - self._checked > _ROOM_SECONDS:
            self._checked = time.monotonic()
            self._room.check(self._files[max(batch.read)], self._size)

    def _fit(self, batch: _Batch, encoded: list[np.ndarray], learned: int) -> list[np.ndarray]:
        """Return the conversations cut to the length of a sequence; those cut or left out are
        counted and recorded."""
        rows, kept = [], []
        for row, (file, line), text, numbers in zip(
            batch.rows, batch.lines, batch.texts, encoded, strict=True
        ):
            short = fitted(numbers, self._length, learned)
            if len(short) < len(numbers) or len(text) > LONGEST_CONVERSATION:
                batch.read_counts.add_long(file, line, len(numbers), len(short))
            if len(short):
                rows.append(row)
                kept.append(short)
                batch.read_counts.learned += int(np.count_nonzero(short & learned))
        batch.rows = rows
        return kept

    def finish(self) -> None:
        self._put(replace(self._position, ended=True))

    def _put(self, position: Position) -> None:
        sections = np.concatenate(self._sections or [np.zeros(0, SECTION)])
        self._parts.add(sections, self._tokens, self._read_counts, position)
        self._begin()

    def _begin(self) -> None:
        self._sections: list[np.ndarray] = []
        self._tokens: list[np.ndarray] = []
        self._read_counts = ReadCounts()
        self._size = self._count = 0
        self._position = self._parts.position


def _check_bad(seen: ReadCounts, most: int) -> None:
    if seen.bad <= most:
        return
    file, line, problem = seen.bad_rows[-1]
    many = f"; {seen.bad} {'rows' if line else 'images'} are bad, and max_bad is {most}"
    where = f"{file}, line {line}: the row" if line != WHOLE_FILE else f"{file}: the image"
    mend = _MEND_TEMPLATE if problem.startswith(REFUSED) else _MEND_ROW
    raise UserError(
        ExitCode.DATA_MISSING,
        f"{where} {problem}{many if most else ''}",
        mend if line != WHOLE_FILE else _MEND_IMAGE,
    )


def _hashes(data: bytes) -> tuple[int, int]:
    digest = blake3(data).digest(16)
    return int.from_bytes(digest[:8], "big"), int.from_bytes(digest[8:], "big")


def _sections(text: bytes, size: int) -> Iterator[bytes]:
    """Yield the text in pieces of about `size` bytes. A piece ends with a line or, if no line ends soon
    after `size` bytes, with a whole character."""
    start = 0
    while len(text) - start > 2 * size:
        cut = text.find(b"\n", start + size, start + size + _CUT_WINDOW) + 1
        if cut == 0:
            cut = start + size
            # Skip UTF-8 continuation bytes; a text with four in a row is not UTF-8.
            while cut < start + size + 4 and text[cut] & 0xC0 == 0x80:
                cut += 1
        yield text[start:cut]
        start = cut
    yield text[start:]


def _state(file: File) -> list[int]:
    if isinstance(file.path, str):
        return []
    status = file.path.stat()
    return [status.st_size, status.st_mtime_ns]
