"""Rows from JSON lines, JSON and separated values, each with the number of the line it begins in.

A row that cannot be read becomes a `BadRow` in its place, and reading continues after it; the caller
decides what to do with it. Memory holds about one row, and no row may be longer than `MAX_ROW_BYTES`.
"""

from __future__ import annotations

import csv
import itertools
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .formats import BadFile, TextStream

# A whole book is a few megabytes. In memory a row's text takes up to four times its bytes, and
# exists more than once while it is parsed.
MAX_ROW_BYTES = 8 << 20

_READ_BYTES = 2 << 20
# What `surrogateescape` makes of bytes that are not UTF-8.
_UNDECODED = re.compile("[\udc80-\udcff]")
_SEPARATORS = re.compile("[ \\t\\r\\n,\ufeff]*")


@dataclass(frozen=True)
class BadRow:
    """The reason why a row cannot be used, worded to follow "the row"."""

    problem: str


def too_long() -> BadRow:
    """Return the reason for a row above `MAX_ROW_BYTES`."""
    return BadRow(f"is longer than {MAX_ROW_BYTES >> 20} MB")


class RepeatedKeys(dict[str, Any]):
    """A JSON object with repeated keys: it is undefined which of a key's values is meant."""

    repeated: frozenset[str]
    """The keys that occur more than once."""


Rows = Iterator[tuple[int, Mapping[str, Any] | BadRow]]
"""Line or row numbers, from 1 on, each with the row."""


def json_lines(stream: TextStream) -> Rows:
    """Yield the object in each line; empty lines are skipped."""
    for number, line in _lines(stream):
        if line is None:
            yield number, too_long()
        elif line.strip():
            row = _object(line)
            # Part of a file may have lines that end with a carriage return alone. JSON allows those
            # between tokens too, so a line is split at them only if it is no valid row as a whole.
            pieces = line.splitlines() if isinstance(row, BadRow) else ()
            rows = [_object(piece) for piece in pieces if piece.strip()]
            yield from ((number, each) for each in (rows if len(rows) > 1 else [row]))


def json_values(stream: TextStream) -> Rows:
    """Yield the objects of a list, or objects one after another. Raises `BadFile` if the JSON is
    invalid.

    Reading cannot continue after invalid JSON, because the start of the next row is unknown.
    """
    decoder = json.JSONDecoder(object_pairs_hook=_table)
    text, data, line, ended = "", b"", 1, False
    opened = closed = False
    while not ended:
        # A row that was incomplete is parsed again from its start, with what is read now.
        read = stream.read(_READ_BYTES)
        ended = not read
        # `data` has the bytes of an incomplete character, which wait for its remaining bytes.
        text_read, data = _decoded(data + read, line)
        text, at = text + text_read, 0
        while True:
            start = _SEPARATORS.match(text, at).end()  # type: ignore[union-attr]  # matches nothing, too
            line += text.count("\n", at, start)
            at = start
            if text.startswith("[", at) and not opened:
                opened, at = True, at + 1
                continue
            if text.startswith("]", at) and opened:
                opened, closed, at = False, True, at + 1
                continue
            if at == len(text):
                break
            try:
                value, end = decoder.raw_decode(text, at)
            except (ValueError, RecursionError) as error:
                if _is_final(error, len(text)):
                    raise BadFile(f"line {line}: the JSON is broken here") from None
                if len(text) - at > MAX_ROW_BYTES:
                    raise BadFile(
                        f"line {line}: a row is longer than {MAX_ROW_BYTES >> 20} MB, or the JSON is "
                        "broken here"
                    ) from None
                break
            # A number at the end of the text may continue in what is still unread, such as 12 of 123.
            if end == len(text) and not (isinstance(value, dict) or ended):
                break
            yield line, value if isinstance(value, dict) else _no_object(value)
            line += text.count("\n", at, end)
            at = end
        text = text[at:]
    if text or data or (opened and not closed):
        raise BadFile(f"line {line}: the JSON is broken or cut short here")


def separated_values(
    stream: TextStream, delimiter: str, check: Callable[[Sequence[str]], None]
) -> Rows:
    """Yield the rows of a table. Its first line names the columns, and `check` is called with the names.

    Raises `BadFile` if the table is invalid: the start of the next row is then unknown.
    """
    csv.field_size_limit(MAX_ROW_BYTES)
    lines = _TableLines(stream)
    header = next(lines, "")
    if delimiter == "," and "," not in header:
        # In languages with a decimal comma, spreadsheets write another delimiter.
        delimiter = next((other for other in ";\t" if other in header), delimiter)
    reader = csv.reader(itertools.chain([header], lines), delimiter=delimiter, strict=True)
    names: list[str] | None = None
    while True:
        line = reader.line_num + 1
        lines.row_bytes = 0
        try:
            cells = next(reader, None)
        except csv.Error as error:
            raise BadFile(f"line {line}: {_table_fault(error)}") from None
        if cells is None:
            return
        if names is None:
            names = cells
            check(names)
        elif not cells:
            continue
        elif len(cells) != len(names):
            yield (
                line,
                BadRow(f"has {len(cells)} cells, but the first line names {len(names)} columns"),
            )
        elif any(_undecoded(cell) for cell in cells):
            yield line, BadRow("is not UTF-8")
        else:
            yield line, dict(zip(names, cells, strict=True))


def _is_final(error: ValueError | RecursionError, length: int) -> bool:
    """Whether reading more of the file cannot resolve the error, because it is not at the end of the
    text read so far, which has `length` characters."""
    if not isinstance(error, json.JSONDecodeError):
        return True
    # An unterminated string is reported at its start, however long it is. Any other value that more text
    # would complete is a number or a word, of at most 64 characters.
    return not error.msg.startswith("Unterminated string") and error.pos + 64 < length


def _lines(stream: TextStream) -> Iterator[tuple[int, bytes | None]]:
    """Yield the lines with their numbers; None for one longer than `MAX_ROW_BYTES`."""
    number = 0
    while line := stream.readline(MAX_ROW_BYTES):
        number += 1
        complete = line
        while len(line) == MAX_ROW_BYTES and not line.endswith(b"\n"):
            complete, line = None, stream.readline(MAX_ROW_BYTES)
        yield number, complete


def _object(line: bytes) -> Mapping[str, Any] | BadRow:
    try:
        value = parse_json(line.decode("utf-8-sig"))
    except UnicodeDecodeError:
        return BadRow("is not UTF-8")
    except json.JSONDecodeError as error:
        return BadRow(f"is not JSON ({error.msg} at character {error.pos + 1})")
    except (ValueError, RecursionError):
        return BadRow("cannot be read as JSON")
    return value if isinstance(value, dict) else _no_object(value)


def parse_json(text: str) -> Any:
    """Parse JSON; an object with repeated keys becomes `RepeatedKeys`. Raises `ValueError` for invalid
    JSON and `RecursionError` for JSON that is nested too deeply."""
    return json.loads(text, object_pairs_hook=_table)


def repeated_key(value: Any) -> str | None:
    """Return a key that is repeated anywhere in a value, or None."""
    if isinstance(value, RepeatedKeys):
        return min(value.repeated)
    inside = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return next((key for each in inside if (key := repeated_key(each)) is not None), None)


def _table(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    table = dict(pairs)
    if len(table) == len(pairs):
        return table
    repeating = RepeatedKeys(table)
    seen: set[str] = set()
    repeating.repeated = frozenset(key for key, _ in pairs if key in seen or seen.add(key))
    return repeating


def _no_object(value: Any) -> BadRow:
    return BadRow(f"holds {_kind(value)}, not an object")


def _kind(value: Any) -> str:
    kinds = {str: "text", bool: "true or false", int: "a number", float: "a number", list: "a list"}
    return "null" if value is None else kinds.get(type(value), f"a {type(value).__name__}")


def _decoded(data: bytes, line: int) -> tuple[str, bytes]:
    """Return the decoded text, and the bytes of an incomplete character at the end. Raises `BadFile`."""
    try:
        return data.decode("utf-8"), b""
    except UnicodeDecodeError as error:
        if error.reason == "unexpected end of data" and len(data) - error.start < 4:
            return data[: error.start].decode("utf-8"), data[error.start :]
        line += data.count(b"\n", 0, error.start)
        raise BadFile(f"line {line}: is not UTF-8") from None


class _TableLines:
    """The lines of a table as text, with any line ends; a row may span several."""

    def __init__(self, stream: TextStream) -> None:
        self._pieces = self._split(stream)
        self.row_bytes = 0
        """Bytes of the current row so far."""

    def __iter__(self) -> _TableLines:
        return self

    def __next__(self) -> str:
        return next(self._pieces)

    def _split(self, stream: TextStream) -> Iterator[str]:
        for number, line in _lines(stream):
            # The csv reader accepts a lone carriage return only at the end of what it is given, so lines
            # are split there; it joins them again if the carriage return is within quotes.
            for piece in () if line is None else line.splitlines(keepends=True):
                self.row_bytes += len(piece)
                if self.row_bytes > MAX_ROW_BYTES:
                    line = None
                    break
                yield piece.decode("utf-8", "surrogateescape")
            if line is None:
                raise BadFile(
                    f"line {number}: a row is longer than {MAX_ROW_BYTES >> 20} MB, or a quotation "
                    "mark is not closed"
                )


def _table_fault(error: csv.Error) -> str:
    """Return the library's message in words for the author of the table."""
    message = str(error)
    if "unexpected end" in message:
        return "a quotation mark that is opened here is not closed"
    if "expected after" in message:
        return (
            "text follows a closing quotation mark; a quotation mark within a cell must be doubled"
        )
    if "larger than" in message:
        return f"a cell is longer than {MAX_ROW_BYTES >> 20} MB"
    return f"is not a valid row of the table ({message})"


def _undecoded(cell: str) -> bool:
    return not cell.isascii() and _UNDECODED.search(cell) is not None
