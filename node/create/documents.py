"""From a file to its documents, whatever its format.

The results (`Item`) are documents, parts of long ones, or the reason why there is none: an empty row, a
bad row, a file that is not text. Memory stays at some megabytes, however long a file is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ..errors import ExitCode, UserError
from ..training.chat import BadTemplate
from .archives import unread_content
from .borders import Borders
from .columns import ArrowFile, Columns, HubData, ParquetFile
from .files import File, Source
from .formats import BadFile, TextStream, convert_errors, looks_like_text, open_stream
from .images import ImageColumns
from .rows import BadRow, Rows, json_lines, json_values, separated_values
from .token_arrays import token_documents

# A text of more bytes than this is split into several `Document`s, each of about this size.
_MAX_DOCUMENT_BYTES = 4 << 20
WHOLE_FILE = 0
"""Used instead of a line number if a file has no lines, as an image."""


@dataclass(frozen=True)
class Document:
    """A document. A very long text becomes several, and each is counted as a document."""

    text: bytes
    """UTF-8, or any bytes if the tokenizer takes those."""
    ends_text: bool = True
    """Whether the text ends with it."""
    label: int | None = None
    """The number of its class; None if documents have no classes."""
    subject: bytes | None = None
    """What is asked in it (`Columns.subject_of`); None: it is all of the text."""


@dataclass(frozen=True)
class TokenDocument:
    """A document tokenised by another program. A very long text becomes several."""

    tokens: np.ndarray
    ends_text: bool
    """Whether the text ends with it."""


@dataclass(frozen=True)
class Empty:
    """A row or a file without text."""


@dataclass(frozen=True)
class NoText:
    """A file in a folder that has the name of a text file and is not text."""


Item = Document | TokenDocument | Empty | NoText | BadRow


@dataclass(frozen=True)
class ReadOptions:
    """What a file's items depend on besides its source."""

    utf8: bool
    """Whether text must be UTF-8."""
    vocabulary: int
    borders: Borders


def items(file: File, source: Source, options: ReadOptions) -> Iterator[tuple[int, Item, int]]:
    """Yield the items of a file in order: the number of its line or row, the item, and the number of the
    file's bytes read so far.

    Raises `UserError` with `DATA_MISSING` if the file as a whole cannot be used, and with `MANIFEST` if
    the chat template cannot.
    """
    try:
        yield from _items(file, source, options)
    except BadTemplate as error:
        raise UserError(
            ExitCode.MANIFEST,
            f"{file.path}, line {error.line}: the chat template {error}",
            "the fault is in the template, not in the row: name a file with another template as "
            "chat_template in [data], such as one that marks the assistant's text with "
            "{% generation %}",
        ) from None
    except BadFile as error:
        raise error.at(file.path) from None
    except FileNotFoundError:
        raise BadFile("no longer exists", "start again").at(file.path) from None


def _items(file: File, source: Source, options: ReadOptions) -> Iterator[tuple[int, Item, int]]:
    if isinstance(file.path, str):
        hub = HubData(file.path, source.split, source.columns, source.config)
        yield from _of_rows(hub.rows(), source.columns.of_file(hub.classes), lambda: 0)
    elif isinstance(source.columns, ImageColumns) and file.format == "image":
        yield _image(file.path, file, source.columns)
    elif file.format == "tokens":
        arrays = token_documents(file.path, source.token_type, options.vocabulary, options.borders)
        for number, (tokens, ends_text, position) in enumerate(arrays, 1):
            yield number, TokenDocument(tokens, ends_text), position
    elif file.format == "parquet":
        yield from _of_parquet(file.path, file, source.columns)
    elif file.format == "arrow":
        arrow = ArrowFile(file.path, source.columns)
        columns = source.columns.of_file(arrow.classes or file.classes)
        yield from _of_rows(arrow.rows(), columns, arrow.position)
    else:
        with open_stream(file.path, lines=file.format != "text") as stream:
            if file.format == "text":
                yield from _of_text(stream, file.named, options.utf8)
                return
            if file.format == "jsonl":
                rows = json_lines(stream)
            elif file.format == "json":
                rows = json_values(stream)
            else:
                rows = separated_values(
                    stream, "\t" if file.format == "tsv" else ",", source.columns.require
                )
            yield from _of_rows(rows, source.columns.of_file(file.classes), stream.position)


def _image(path: Path, file: File, columns: ImageColumns) -> tuple[int, Item, int]:
    """Return the one sample of an image file, which has no lines."""
    with convert_errors():
        sample = columns.file(path, file.name)
    if isinstance(sample, BadRow):
        return WHOLE_FILE, sample, file.size
    item = _whole(sample, columns)
    return WHOLE_FILE, item, file.size


def _of_parquet(path: Path, file: File, columns: Columns) -> Iterator[tuple[int, Item, int]]:
    parquet = ParquetFile(path, columns)
    columns, size = columns.of_file(parquet.classes or file.classes), path.stat().st_size
    for number, item, _ in _of_rows(parquet.rows(), columns, lambda: 0):
        yield number, item, size * number // parquet.count


def _of_rows(
    rows: Rows, columns: Columns, position: Callable[[], int]
) -> Iterator[tuple[int, Item, int]]:
    for number, row in rows:
        try:
            text = row if isinstance(row, BadRow) else columns.text(row)
        except BadTemplate as error:
            error.line = number
            raise
        if isinstance(text, BadRow):
            yield number, text, position()
        elif not text:
            yield number, Empty(), position()
        elif isinstance(text, bytes):
            yield number, _whole(text, columns), position()
        else:
            try:
                data = text.encode("utf-8")
            except UnicodeEncodeError:
                bad = BadRow("holds half of a surrogate pair, which UTF-8 cannot encode")
                yield number, bad, position()
                continue
            # Conversations are not split, because the assistant's parts are marked by offsets in the
            # whole one; nor are texts with a class.
            if columns.whole:
                yield number, _whole(data, columns), position()
                continue
            for part, ends_text in _with_is_last(_in_parts(data)):
                yield number, Document(part, ends_text), position()


def _whole(data: bytes, columns: Columns) -> Document:
    return Document(data, label=columns.class_of(data), subject=columns.subject_of(data))


def _of_text(stream: TextStream, named: bool, utf8: bool) -> Iterator[tuple[int, Item, int]]:
    """Yield a text file as one document, or a long one in parts. `named`: the founder named the file
    directly, so that it is an error if it is not text."""
    line, is_only_part = 1, True
    carried = stream.read(_MAX_DOCUMENT_BYTES)
    if not looks_like_text(carried):
        if named:
            unread = unread_content(carried)
            raise BadFile(
                "is not text" if unread is None else f"is {unread.what}",
                "set its `format` in [data], or leave it out with `exclude`"
                if unread is None
                else unread.remedy,
            )
        yield 0, NoText(), stream.position()
        return
    while carried:
        part = carried + stream.read(max(0, _MAX_DOCUMENT_BYTES - len(carried)))
        next_byte = stream.read(1)
        cut = _cut(part) if next_byte else len(part)
        carried = part[cut:] + next_byte
        part = part[:cut]
        # Of a text in several parts nothing is left out, not even a part of blank lines.
        is_only_part = is_only_part and not carried
        broken_line = _broken_line(part) if utf8 else None
        blank = is_only_part and not part.strip()
        here, line = line, line + part.count(b"\n")
        if broken_line is not None:
            bad = BadRow("is not UTF-8: the text around it is left out")
            yield here + broken_line, bad, stream.position()
        elif blank:
            yield here, Empty(), stream.position()
        else:
            item = Document(part, ends_text=not carried)
            # Only the caller holds a part while the next one is read.
            del part
            yield here, item, stream.position()
            del item


def _in_parts(text: bytes) -> Iterator[bytes]:
    """Yield the parts of a text, none longer than a `Document may be."""
    start = 0
    while len(text) - start > _MAX_DOCUMENT_BYTES:
        part = text[start : start + _MAX_DOCUMENT_BYTES]
        cut = _cut(part)
        yield part[:cut]
        start += cut
    yield text[start:] if start else text


def _with_is_last(parts: Iterable[bytes]) -> Iterator[tuple[bytes, bool]]:
    """Yield each part, and whether it is the last one."""
    before: bytes | None = None
    for part in parts:
        if before is not None:
            yield before, False
        before = part
    if before is not None:
        yield before, True


def _cut(part: bytes) -> int:
    """Return where to cut a text that continues after `part`: after the last whole line in it or, if it
    has no line end, after the last whole character."""
    return part.rfind(b"\n") + 1 or _character_end(part)


def _broken_line(text: bytes) -> int | None:
    """Return the number of lines before the first byte that is not UTF-8; None if all are."""
    try:
        text.decode("utf-8")
    except UnicodeDecodeError as error:
        return text.count(b"\n", 0, error.start)
    return None


def _character_end(text: bytes) -> int:
    """Return where the last whole UTF-8 character ends."""
    for back in range(1, min(4, len(text)) + 1):
        byte = text[-back]
        if byte & 0xC0 != 0x80:
            # The first byte determines the character's length.
            length = 1 if byte < 0xC0 else 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
            return len(text) - back if length > back else len(text)
    return len(text)
