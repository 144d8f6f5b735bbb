"""Tokenising of a source: its files are read once, tokenised on all cores, and the tokens are stored.

The tokens are stored in parts of some megabytes (`TokenCache`), and an interrupted run resumes after
the last complete part. Memory holds some batches of text and one part, whatever the size of the source.

A long document is tokenised in pieces (`_Piece`); a short one is a single piece.
"""

from __future__ import annotations

import itertools
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
from ..training.chat import REFUSED_BY_TEMPLATE
from .borders import Borders
from .conversations import MAX_CONVERSATION_BYTES, ConversationTokenizer
from .disk_room import DiskRoom
from .documents import WHOLE_FILE, Document, Empty, NoText, ReadOptions, TokenDocument, items
from .files import File, Source
from .images import ImageTokenizer
from .labelled_texts import LabelledTokenizer
from .rows import BadRow
from .token_cache import INDEX_ENTRY, Position, ReadCounts, TokenCache
from .tokeniser_pool import TokeniserPool
from .tokens import Tokenizer

# A part is complete at this many bytes of tokens or this many pieces: it fits into memory, and is soon
# made again after an interruption.
_PART_BYTES = 16 << 20
_PART_PIECES = 1 << 18
# A worker's batch has this many bytes or pieces: it takes some tenths of a second.
_BATCH_BYTES = 1 << 20
_BATCH_PIECES = 4096
# A document is tokenised, and mixed with others, in pieces. The usual size of a piece is `_PIECE_BYTES`
# of text, or `_PIECE_SAMPLES` samples if that is more, but at most `_MAX_PIECE_BYTES`. With such long
# pieces a sequence rarely contains the end of one and goes on with another document.
_PIECE_BYTES = 1 << 16
_PIECE_SAMPLES = 8
_MAX_PIECE_BYTES = 1 << 20
# A longer piece is tokenised as several texts of about this many bytes: a tokenizer takes some 150
# times as much memory as a text.
_TEXT_BYTES = 1 << 17
# Bytes of text per token, roughly.
_BYTES_A_TOKEN = 4
# A piece is cut at the first line end within this many bytes after its usual size.
_CUT_WINDOW = 1 << 14
# Seconds between two reports of progress, and between two checks of the disk space.
_PROGRESS_SECONDS = 0.1
_DISK_CHECK_SECONDS = 0.5
_ROW_REMEDY = (
    "fix the row, name the text's columns with `text` or `template` in [data], or leave some bad rows "
    "out with `max_bad`"
)
_TEMPLATE_REMEDY = (
    "if it refuses every row, the template is at fault: fix it, or name another as chat_template in "
    "[data]; else fix the row, or leave some bad rows out with `max_bad`"
)
_IMAGE_REMEDY = (
    "fix or remove it, leave it out with `exclude` in [data], or leave some out with `max_bad`"
)
# A new number invalidates all parts: a change of how rows become text, and of how documents are cut,
# marked or hashed, requires one.
_FORMAT = 7


@dataclass(frozen=True)
class TokenisationOptions:
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
    def labelled(self) -> LabelledTokenizer | None:
        """The tokenizer, if documents are texts with a class, each a sample; else None."""
        return self.tokenizer if isinstance(self.tokenizer, LabelledTokenizer) else None

    @property
    def documents_are_samples(self) -> bool:
        """Whether each document is one sample: an image, a pair of conversations, or a text with a
        class."""
        conversations = self.conversations
        pairs = conversations is not None and conversations.documents_are_samples
        return self.images or pairs or self.labelled is not None

    @property
    def piece_bytes(self) -> int:
        """Usual size of a piece, in bytes of text."""
        samples = _PIECE_SAMPLES * _BYTES_A_TOKEN * self.sequence_length
        return max(_PIECE_BYTES, min(samples, _MAX_PIECE_BYTES))

    @property
    def read_options(self) -> ReadOptions:
        """What the readers of files need to know."""
        return ReadOptions(self.tokenizer.needs_utf8, self.tokenizer.vocabulary, self.borders)


def cache_name(source: Source, files: Sequence[File], options: TokenisationOptions) -> str:
    """Return a name that changes with the source, its files and the way of tokenising them."""
    facts = [
        *(
            _FORMAT,
            content_id(options.tokenizer.definition).hex(),
            astuple(options.borders),
            options.piece_bytes,
        ),
        *(source.columns.facts, source.split, source.config, source.token_type),
        # Conversations are cut to this length, and pairs padded. The definition, which is first in
        # `remade`, is above.
        options.sequence_length if options.conversations is not None else 0,
        *(options.conversations.remade[1:] if options.conversations is not None else ()),
        options.labelled.facts if options.labelled is not None else (),
        [
            [str(file.path), str(file.name), file.format, file.classes, _size_and_time(file)]
            for file in files
        ],
    ]
    return blake3(json.dumps(facts).encode()).hexdigest()[:32]


class _Piece(NamedTuple):
    """A short document, or a piece of a long one."""

    hash: int
    """The first 64 bits of the hash of the document, or of its subject; the same for all its pieces."""
    hash2: int
    """The other 64 bits, increased by the piece's index: pieces are equal if both numbers are."""
    file: int
    """Index of the source's file."""
    starts_document: bool
    """Whether it is the first piece of a document. Readers split a text above 4 MB into stretches,
    and mixing and deduplication count each stretch as a document."""
    starts_text: bool
    """Whether the whole text begins with it, so that the start token comes before it. The first piece of
    a later stretch of a long text starts a document, but no text."""
    ends_text: bool
    """Whether the end tokens must be added after it: the whole text ends with it and, if the source
    stores tokens, does not have them yet."""
    tokens: np.ndarray | None
    """The tokens, if the source stores tokens; None if the text is still to be tokenised."""
    texts: int
    """Number of texts as which it is tokenised: several if it is long."""


@dataclass
class _Batch:
    """Documents that a worker tokenises together, their counts, and the reading position after them."""

    texts: list[bytes] = field(default_factory=list)
    """The texts, until they are with the tokeniser."""
    pieces: list[_Piece] = field(default_factory=list)
    lines: list[tuple[str, int, int]] = field(default_factory=list)
    """For each conversation or text with a class, the file's name, the number of the line or row, and
    the length in bytes."""
    size: int = 0
    read_bytes: dict[int, int] = field(default_factory=dict)
    """By the file's index, how many bytes of it were read for this batch."""
    read_counts: ReadCounts = field(default_factory=ReadCounts)
    position: Position = field(default_factory=Position)

    def add_piece(
        self,
        hashes: tuple[int, int],
        number: int,
        file_index: int,
        starts_text: bool,
        ends_text: bool,
        tokens: np.ndarray | None = None,
        texts: int = 1,
    ) -> None:
        """Append piece `number` of the document with these hashes. `starts_text`: the whole text begins
        with the document; the others as in `_Piece`."""
        document_hash, hash2 = hashes
        starts_document = number == 0
        self.pieces.append(
            _Piece(
                document_hash,
                # Of two equal documents, pieces with the same number have the same two hashes.
                (hash2 + number) & (2**64 - 1),
                file_index,
                starts_document,
                starts_document and starts_text,
                ends_text,
                tokens,
                texts,
            )
        )


def tokenise(
    source: Source,
    files: Sequence[File],
    options: TokenisationOptions,
    cache: TokenCache,
    pool: TokeniserPool,
    totals: ReadCounts,
    advance: Callable[[int], None],
    room: DiskRoom,
) -> None:
    """Complete the parts of a source.

    `advance` is called with the number of the source's bytes read so far; `totals`, which counts what
    was read of all sources, is increased; `room` predicts the disk space that the rest will take.

    Raises `UserError` with `DATA_MISSING` for a file that cannot be used, and as soon as `totals` has
    more bad rows than `max_bad`; with `DISK_FULL` if the rest will not fit on the disk.
    """
    writer = _PartWriter(cache, options, files, room)
    shown_at = 0.0
    totals.add(cache.read_counts)
    _check_bad(totals, options.max_bad)
    for batch in _batches(source, files, options, cache.position):
        texts, batch.texts = batch.texts, []
        pool.submit(batch, texts)
        del texts
        for done, encoded in pool.take_completed():
            writer.add(done, encoded)
        if time.monotonic() - shown_at > _PROGRESS_SECONDS:
            shown_at = time.monotonic()
            advance(batch.position.read_bytes)
        totals.add(batch.read_counts)
        _check_bad(totals, options.max_bad)
    for done, encoded in pool.take_completed(all=True):
        writer.add(done, encoded)
    writer.finish()
    advance(cache.position.read_bytes)


def _batches(
    source: Source, files: Sequence[File], options: TokenisationOptions, position: Position
) -> Iterator[_Batch]:
    batch = _Batch()
    if position.ended:
        return
    bytes_before = sum(file.size for file in files[: position.file])
    for file_index in range(position.file, len(files)):
        file = files[file_index]
        skip = position.items if file_index == position.file else 0
        count = counted_bytes = 0
        continued = False
        for line, item, read in items(file, source, options.read_options):
            count += 1
            starts_text = not continued
            if isinstance(item, (Document, TokenDocument)):
                continued = not item.ends_text
            if count <= skip:
                continue
            _add_item(batch, item, file_index, str(file.name), line, options, starts_text)
            # Else its text would be held while the next one is read.
            del item
            batch.position = Position(file_index, count, bytes_before + read)
            batch.read_bytes[file_index] = (
                batch.read_bytes.get(file_index, 0) + read - counted_bytes
            )
            counted_bytes = read
            if (
                batch.size >= _BATCH_BYTES
                or len(batch.pieces) >= _BATCH_PIECES
                or batch.read_counts.bad
            ):
                yield batch
                batch = _Batch()
        bytes_before += file.size
        batch.read_bytes[file_index] = (
            batch.read_bytes.get(file_index, 0) + file.size - counted_bytes
        )
        batch.position = Position(file_index + 1, 0, bytes_before)
    yield batch


def _add_item(
    batch: _Batch,
    item: object,
    file_index: int,
    file_name: str,
    line: int,
    options: TokenisationOptions,
    starts_text: bool,
) -> None:
    """Append an item of this file to the batch. `starts_text`: the item does not continue a text
    that readers have split."""
    borders = options.borders
    if isinstance(item, Document):
        hashes = _hashes(item.text, item.subject)
        if options.conversations is not None or options.documents_are_samples:
            # Not split, because the assistant's parts are marked by offsets in the whole text, and
            # because an image, or a text with a class, is one sample.
            pieces = [[item.text]]
        else:
            split = _split(item.text, options.piece_bytes)
            pieces = [list(_split(piece, _TEXT_BYTES)) for piece in split]
        if options.conversations is not None or options.labelled is not None:
            batch.lines.append((file_name, line, len(item.text)))
        for number, texts in enumerate(pieces):
            batch.texts += texts
            ends_text = number == len(pieces) - 1 and item.ends_text
            count = len(texts)
            batch.add_piece(hashes, number, file_index, starts_text, ends_text, texts=count)
        if item.label is not None and item.label not in batch.read_counts.classes:
            batch.read_counts.classes.append(item.label)
        batch.read_counts.documents += 1
        batch.read_counts.text_bytes += len(item.text)
        batch.size += len(item.text)
    elif isinstance(item, TokenDocument):
        hashes = _hashes(item.tokens.tobytes())
        ended = not borders.end or int(item.tokens[-1]) == borders.single_end
        if starts_text and borders.before is not None and int(item.tokens[0]) != borders.before:
            batch.read_counts.unstarted += 1
        size = options.piece_bytes // _BYTES_A_TOKEN
        for start in range(0, len(item.tokens), size):
            last = start + size >= len(item.tokens)
            ends_text = last and item.ends_text and not ended
            tokens_here = item.tokens[start : start + size]
            batch.add_piece(hashes, start // size, file_index, starts_text, ends_text, tokens_here)
        batch.read_counts.documents += 1
        batch.size += item.tokens.nbytes
    elif isinstance(item, BadRow):
        batch.read_counts.add_bad(file_name, line, item.problem)
    elif isinstance(item, Empty):
        batch.read_counts.empty += 1
    elif isinstance(item, NoText):
        batch.read_counts.no_text.append(file_name)


class _PartWriter:
    """Collects batches until a part is full."""

    def __init__(
        self, cache: TokenCache, options: TokenisationOptions, files: Sequence[File], room: DiskRoom
    ) -> None:
        self._cache = cache
        self._files = files
        self._room = room
        self._checked_at = time.monotonic()
        self._end = np.array(options.borders.end, cache.dtype)
        before = options.borders.before
        self._start = np.array(() if before is None else (before,), cache.dtype)
        self._length = options.sequence_length
        self._conversations = options.conversations
        self._labelled = options.labelled
        self._begin()

    def add(self, batch: _Batch, encoded: list[np.ndarray]) -> None:
        if self._conversations is not None:
            encoded = self._fit(batch, encoded, self._conversations)
        elif self._labelled is not None:
            encoded = self._padded(batch, encoded, self._labelled)
        tokenised, token_bytes = iter(encoded), Counter[int]()
        entries = np.zeros(len(batch.pieces), INDEX_ENTRY)
        for index, piece in enumerate(batch.pieces):
            stored = piece.tokens
            texts = (
                tuple(itertools.islice(tokenised, piece.texts))
                if stored is None
                else (stored.astype(self._cache.dtype),)
            )
            # A text that spells out the start token at its beginning does not get another.
            needs_start = piece.starts_text and not np.array_equal(texts[0][:1], self._start)
            parts = (
                *((self._start,) if needs_start and len(self._start) else ()),
                *texts,
                *((self._end,) if piece.ends_text and len(self._end) else ()),
            )
            self._tokens += parts
            count = sum(map(len, parts))
            entries[index] = (piece.hash, piece.hash2, count, piece.file, piece.starts_document)
            token_bytes[piece.file] += count * self._cache.dtype.itemsize
        self._size += token_bytes.total()
        for file_index, read in batch.read_bytes.items():
            self._room.add(self._files[file_index], read, token_bytes[file_index])
        self._entries.append(entries)
        self._count += len(entries)
        self._read_counts.add(batch.read_counts)
        self._position = batch.position
        # A part ends only where a batch ends, so that reading can resume there: a part made again
        # after an interruption is the same.
        if self._size >= _PART_BYTES or self._count >= _PART_PIECES:
            self._put(batch.position)
        if batch.read_bytes and time.monotonic() - self._checked_at > _DISK_CHECK_SECONDS:
            self._checked_at = time.monotonic()
            self._room.check(self._files[max(batch.read_bytes)], self._size)

    def _fit(
        self, batch: _Batch, encoded: list[np.ndarray], tokenizer: ConversationTokenizer
    ) -> list[np.ndarray]:
        """Return the conversations cut to the length of a sequence, and leave out of the batch those
        that cannot be cut. Conversations cut or left out are counted and recorded."""
        fitting, fitting_tokens = [], []
        for piece, (file, line, length), tokens in zip(
            batch.pieces, batch.lines, encoded, strict=True
        ):
            kept = tokenizer.fitted(tokens, self._length)
            if len(kept) < len(tokens) or length > MAX_CONVERSATION_BYTES:
                batch.read_counts.add_long(file, line, len(tokens), len(kept))
            if len(kept):
                fitting.append(piece)
                fitting_tokens.append(kept)
                batch.read_counts.learned += int(np.count_nonzero(kept & tokenizer.learned_bit))
        batch.pieces = fitting
        return fitting_tokens

    def _padded(
        self, batch: _Batch, encoded: list[np.ndarray], tokenizer: LabelledTokenizer
    ) -> list[np.ndarray]:
        """Return texts with a class as samples. Texts that are cut are counted and recorded."""
        for (file, line, _), numbers in zip(batch.lines, encoded, strict=True):
            if len(numbers) > tokenizer.length:
                batch.read_counts.add_long(file, line, len(numbers) - 1, tokenizer.length - 1)
        return [tokenizer.fitted(numbers) for numbers in encoded]

    def finish(self) -> None:
        self._put(replace(self._position, ended=True))

    def _put(self, position: Position) -> None:
        entries = np.concatenate(self._entries or [np.zeros(0, INDEX_ENTRY)])
        self._cache.add(entries, self._tokens, self._read_counts, position)
        self._begin()

    def _begin(self) -> None:
        self._entries: list[np.ndarray] = []
        self._tokens: list[np.ndarray] = []
        self._read_counts = ReadCounts()
        self._size = self._count = 0
        self._position = self._cache.position


def _check_bad(totals: ReadCounts, max_bad: int) -> None:
    if totals.bad <= max_bad:
        return
    file, line, problem = totals.bad_rows[-1]
    is_row = line != WHOLE_FILE
    count_text = (
        f"; {totals.bad} {'rows' if is_row else 'images'} are bad, and max_bad is {max_bad}"
    )
    where = f"{file}, line {line}: the row" if is_row else f"{file}: the image"
    row_remedy = _TEMPLATE_REMEDY if problem.startswith(REFUSED_BY_TEMPLATE) else _ROW_REMEDY
    raise UserError(
        ExitCode.DATA_MISSING,
        f"{where} {problem}{count_text if max_bad else ''}",
        row_remedy if is_row else _IMAGE_REMEDY,
    )


def _hashes(data: bytes, subject: bytes | None = None) -> tuple[int, int]:
    """Return the two halves of a document's hash: documents with the same first half are on one side,
    training or held out, and those with the same halves are equal."""
    digest = blake3(data).digest(16)
    first = digest[:8] if subject is None else blake3(subject).digest(8)
    return int.from_bytes(first, "big"), int.from_bytes(digest[8:], "big")


def _split(text: bytes, size: int) -> Iterator[bytes]:
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


def _size_and_time(file: File) -> list[int]:
    if isinstance(file.path, str):
        return []
    status = file.path.stat()
    return [status.st_size, status.st_mtime_ns]
