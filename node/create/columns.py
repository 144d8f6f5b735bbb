"""The text of a row: one column, or a template over several.

Rows of Parquet and Arrow are read here too, because their columns have types, which can be refused
before the first row is read.
"""

from __future__ import annotations

import json
import logging
import math
import mmap
import os
import string
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ..errors import UserError
from ..storage.data_dir import size_text
from ..util.first_line import first_line
from ..util.regular_files import open_regular
from .arrow_batches import unpacked_bytes
from .class_metadata import ClassNames, schema_classes
from .formats import BadFile, Format, needs
from .parquet_pages import largest_pages
from .rows import MAX_ROW_BYTES, BadRow, RepeatedKeys, Rows, too_long
from .working_memory import memory_shortage

DEFAULT_COLUMN = "text"

# Rows may be books: a batch in memory has about this many bytes, and at most this many rows.
_BATCH_BYTES = 4 << 20
_BATCH_ROWS = 64
# Rows of a batch if all columns are dictionary-encoded: then a row has only indices of the dictionary's
# entries, and every batch has the whole dictionary.
_DICTIONARY_BATCH_ROWS = 1 << 16
# The beginning of a file in Arrow's file format, padded to eight bytes; the streaming format has none.
_ARROW_FILE = b"ARROW1\0\0"
# Memory needed to read a page, relative to its size: the page, what the library notes about it, and
# the values taken from it; and the same with a dictionary-encoded column, whose dictionary is kept.
_PAGE_MEMORY_FACTOR = 3
_DICTIONARY_MEMORY_FACTOR = 4
_SHOWN_COLUMNS = 12
# Up to this number a float holds every whole number exactly.
_LARGEST_EXACT = 1 << 53


class Columns:
    """The columns that make up a document's text. Raises `ValueError` for an invalid template."""

    content = "text"
    """The word for what they contain, for messages."""
    units = "text"
    """What a row is, in the plural, for messages."""
    remedy = (
        "name the column with `text`, several with `template`, or leave the file out with `exclude`"
    )
    nested = False
    """Whether they may contain lists of tables (dictionaries) instead of text."""
    whole = False
    """Whether a row's text must not be split, so that files without rows will not do."""
    images = False
    """Whether they contain images."""
    optional: tuple[str, ...] = ()
    """Columns that are read if they exist."""
    label: str | None = None
    """The column that names or numbers the class of a row."""

    def __init__(self, column: str | None, template: str | None) -> None:
        if column is not None and template is not None:
            raise ValueError("give `text` or `template`, not both")
        self.parts: list[tuple[str, str | None]] = []
        if template is None:
            self.names: tuple[str, ...] = (column or DEFAULT_COLUMN,)
            return
        try:
            parts = list(string.Formatter().parse(template))
        except ValueError as error:
            raise ValueError(f"template: {error}") from None
        for before, name, spec, conversion in parts:
            if name is not None and (not name or spec or conversion):
                raise ValueError("template: write a column as {name} and a brace as {{ or }}")
            self.parts.append((before, name))
        self.names = tuple(dict.fromkeys(name for _, name in self.parts if name is not None))
        if not self.names:
            raise ValueError("template: names no column; write one as {title}")

    def text(self, row: Mapping[str, Any]) -> str | bytes | BadRow:
        """Return the text of a row; without a template the value of the one column must be text."""
        fault = self.column_fault(row)
        if fault is not None:
            return fault
        if not self.parts:
            value = row[self.names[0]]
            return value if isinstance(value, str) else self._wrong_type(self.names[0], value)
        pieces = []
        for before, name in self.parts:
            pieces.append(before)
            if name is not None:
                value = text_of(row[name])
                if value is None:
                    return self._wrong_type(name, row[name])
                pieces.append(value)
        return "".join(pieces)

    def of_file(self, classes: ClassNames | None) -> Columns:
        """Return the columns of a file that states these classes. Raises `BadFile` if they are others
        than the swarm's."""
        return self

    def class_of(self, sample: bytes) -> int | None:
        """Return the number of the class in what `text` returned; None if there are no classes."""

    def subject_of(self, sample: bytes) -> bytes | None:
        """Return what is asked in what `text` returned, without the answer: samples of one subject are
        all trained on or all held out. None: it is all of the text."""

    def column_fault(self, row: Mapping[str, Any]) -> BadRow | None:
        """Return the fault of a row that lacks a column or has it twice; None if it has each once."""
        for name in (*self.names, *self.optional):
            if name not in row and name in self.names:
                return BadRow(missing(name, list(row)))
            if isinstance(row, RepeatedKeys) and name in row.repeated:
                return BadRow(f"has the key {name!r} twice")
        return None

    def accepts(self, arrow: Any, name: str, kind: Any) -> bool:
        """Whether a column may have this Arrow type."""
        types = arrow.types
        if types.is_dictionary(kind):
            kind = kind.value_type
        texts = (types.is_string, types.is_large_string, types.is_string_view)
        if any(is_text(kind) for is_text in texts):
            return True
        tables = types.is_list(kind) or types.is_large_list(kind)
        if self.nested and tables and types.is_struct(kind.value_type):
            return True
        return bool(self.parts) and (types.is_integer(kind) or types.is_floating(kind))

    @property
    def facts(self) -> tuple[Any, ...]:
        """Everything that the text of a row depends on."""
        return self.names, self.parts

    def require(self, columns: Sequence[str]) -> None:
        """Raise `BadFile` if a file with these columns lacks a required one, or has one that would be
        read more than once."""
        for name in (*self.names, *self.optional):
            if name not in columns and name in self.names:
                raise BadFile(missing(name, columns), self.remedy)
            if list(columns).count(name) > 1:
                raise BadFile(
                    f"has {list(columns).count(name)} columns {name!r}, so the name is ambiguous",
                    "rename all but one of them, name another column, or leave the file out with "
                    "`exclude`",
                )

    def to_read(self, columns: Sequence[str]) -> list[str]:
        """Return which columns to read from a file with these."""
        return [*self.names, *(name for name in self.optional if name in columns)]

    def _wrong_type(self, name: str, value: Any) -> BadRow:
        shown = "nothing" if value is None else json.dumps(value, default=lambda _: "…")[:40]
        return BadRow(f"holds {shown} in the column {name!r}, not text")


def text_of(value: Any) -> str | None:
    """Return the text of a cell with text or a number, a whole one without ".0", as columns of fractions
    hold it; None for anything else, such as no number (NaN) or infinity."""
    if isinstance(value, str):
        return value
    if isinstance(value, float):
        whole = value.is_integer() and abs(value) <= _LARGEST_EXACT
        return str(int(value) if whole else value) if math.isfinite(value) else None
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else None


def missing(name: str, columns: Sequence[str]) -> str:
    """Return the message that a column is missing, with the names of the existing ones."""
    known = ", ".join(str(column)[:40] for column in columns[:_SHOWN_COLUMNS])
    more = ", …" if len(columns) > _SHOWN_COLUMNS else ""
    return f"has no column {name!r} (it has: {known}{more})" if columns else "has no columns"


def file_classes(path: Path, kind: Format, label: str) -> ClassNames | None:
    """Return the classes that a Parquet or Arrow file states for its column `label`. Raises as
    `ParquetFile` does."""
    arrow = _library(f"{'a .parquet' if kind == 'parquet' else 'an .arrow'} file")
    import pyarrow.parquet

    try:
        source = _MappedFile(arrow, path).source
        if kind == "parquet":
            schema = pyarrow.parquet.read_schema(source)
        else:
            schema = _open_arrow(arrow, source).schema
    except (arrow.ArrowException, OSError, ValueError) as error:
        raise _broken(kind.capitalize(), error) from None
    return schema_classes(schema.metadata, label)


class ParquetFile:
    """Reader of a Parquet file, a few rows at a time. Raises `BadFile` for a file that cannot be used,
    and `UserError` if pyarrow is not installed."""

    def __init__(self, path: Path, columns: Columns) -> None:
        self._arrow = _library("a .parquet file")
        import pyarrow.parquet

        self._columns = columns
        try:
            self._mapped = _MappedFile(self._arrow, path)
            # Reading ahead would bring whole row groups into memory.
            self._file = pyarrow.parquet.ParquetFile(self._mapped.source, pre_buffer=False)
            schema = self._file.schema_arrow
            metadata = self._file.metadata
            self.count = metadata.num_rows
        except (self._arrow.ArrowException, OSError, ValueError) as error:
            raise _broken("Parquet", error) from None
        columns.require(schema.names)
        _check_types(self._arrow, schema, columns)
        self.classes = schema_classes(schema.metadata, columns.label) if columns.label else None
        self._names = columns.to_read(schema.names)
        kinds = [schema.field(name).type for name in self._names]
        coded = [self._arrow.types.is_dictionary(kind) for kind in kinds]
        self._batch_rows = _DICTIONARY_BATCH_ROWS if all(coded) else _rows_per_batch(metadata)
        size = self._mapped.largest_pages(metadata, self._names)
        times = _DICTIONARY_MEMORY_FACTOR if any(coded) else _PAGE_MEMORY_FACTOR
        if (shortage := memory_shortage(size * times)) is not None:
            raise BadFile(
                f"has pages of {size_text(size)}; a page must be unpacked whole, and that {shortage}",
                "write it again with smaller pages, such as by pyarrow.parquet.write_table with "
                "use_dictionary=False and write_batch_size=16",
            )

    def rows(self) -> Rows:
        """Yield numbered rows, from 1 on."""
        names = self._names
        try:
            batches = self._file.iter_batches(self._batch_rows, columns=names, use_threads=False)
            yield from self._mapped.intact(
                _numbered(self._mapped.released(batches), names, self._columns)
            )
        except (self._arrow.ArrowException, OSError) as error:
            raise _broken("Parquet", error) from None


class ArrowFile:
    """Reader of an Arrow file, such as `datasets` writes. Raises as `ParquetFile` does."""

    def __init__(self, path: Path, columns: Columns) -> None:
        self._arrow = _library("an .arrow file")
        self._columns = columns
        try:
            self._mapped = _MappedFile(self._arrow, path)
            schema = self._open().schema
        except (self._arrow.ArrowException, OSError, ValueError) as error:
            raise _broken("Arrow", error) from None
        columns.require(schema.names)
        _check_types(self._arrow, schema, columns)
        self.classes = schema_classes(schema.metadata, columns.label) if columns.label else None
        self._names = columns.to_read(schema.names)
        size = self._unpacked_bytes(schema)
        if (shortage := memory_shortage(size)) is not None:
            raise BadFile(
                f"has packed batches of {size_text(size)}; a batch must be unpacked whole, and that "
                f"{shortage}",
                "write it again with smaller batches, such as by "
                "pyarrow.ipc.RecordBatchFileWriter.write_table with max_chunksize=1000",
            )
        # Opened again for these columns alone, so that no other column is decompressed.
        self._reader = self._open([schema.names.index(name) for name in self._names])

    def _unpacked_bytes(self, schema: Any) -> int:
        """Return how many bytes the wanted columns of the largest batch take once they are unpacked."""
        source, wanted, start = self._mapped.source, set[int](), 0
        for field in schema:
            count = len(self._arrow.array([], field.type).buffers())
            if field.name in self._names:
                wanted.update(range(start, start + count))
            start += count
        # The number of a view's buffers differs from batch to batch.
        has_views = any("view" in str(field.type) for field in schema)
        source.seek(0)
        if source.read(len(_ARROW_FILE)) != _ARROW_FILE:
            source.seek(0)
        return unpacked_bytes(self._arrow.ipc, source, None if has_views else frozenset(wanted))

    def _open(self, fields: list[int] | None = None) -> Any:
        """Return the library's reader of these fields, or of all."""
        return _open_arrow(self._arrow, self._mapped.source, fields)

    def rows(self) -> Rows:
        """Yield numbered rows, from 1 on."""
        try:
            pieces = self._mapped.released(self._pieces(self._names))
            yield from self._mapped.intact(_numbered(pieces, self._names, self._columns))
        except (self._arrow.ArrowException, OSError) as error:
            raise _broken("Arrow", error) from None

    def position(self) -> int:
        """Return the number of bytes read so far."""
        return self._mapped.source.tell()

    def _pieces(self, names: list[str]) -> Iterator[Any]:
        # The two kinds of Arrow files have different readers.
        if hasattr(self._reader, "num_record_batches"):
            batches = map(self._reader.get_batch, range(self._reader.num_record_batches))
        else:
            batches = iter(self._reader)
        for batch in batches:
            for start in range(0, batch.num_rows, _BATCH_ROWS):
                yield batch.slice(start, _BATCH_ROWS).select(names)


def _open_arrow(arrow: Any, source: Any, fields: list[int] | None = None) -> Any:
    options = arrow.ipc.IpcReadOptions(included_fields=fields, use_threads=False)
    source.seek(0)
    try:
        return arrow.ipc.open_stream(source, options=options)
    except arrow.ArrowInvalid:
        source.seek(0)
        return arrow.ipc.open_file(source, options=options)


class _MappedFile:
    """A file mapped into memory, from which Arrow reads without copying."""

    def __init__(self, arrow: Any, path: Path) -> None:
        with open_regular(path) as file:
            self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        self.source = arrow.BufferReader(arrow.py_buffer(self._map))

    def largest_pages(self, metadata: Any, names: list[str]) -> int:
        """Return how many bytes the largest pages of these columns have together, unpacked."""
        return largest_pages(self._map, metadata, names)

    def intact(self, rows: Rows) -> Rows:
        """Yield the rows as long as the file keeps its length. Raises `BadFile` if it does not: the
        system ends a process that reads what was cut off from a mapped file (SIGBUS)."""
        while True:
            # This is the size of the mapped file, even if another file has its name now.
            if self._map.size() < len(self._map):
                raise BadFile(
                    "was cut short by another program while it was read",
                    "run the command again when no program writes to the file; replacing it by "
                    "renaming another file is safe",
                )
            row = next(rows, None)
            if row is None:
                return
            yield row

    def released(self, batches: Iterator[Any]) -> Iterator[Any]:
        """Yield each batch, then release the mapped memory that was read for it: it stays in the
        system's cache, but no longer counts as this process's."""
        for batch in batches:
            yield batch
            if hasattr(mmap, "MADV_DONTNEED"):
                self._map.madvise(mmap.MADV_DONTNEED)


class HubData:
    """Reader of hf://owner/name[/config][:split], streamed through `datasets`.

    Raises `BadFile` for every error of the library and the network, and `UserError` if the library is
    not installed.
    """

    def __init__(
        self, address: str, split: str | None, columns: Columns, config: str | None = None
    ) -> None:
        try:
            import datasets
        except ImportError:
            raise needs("datasets", address, "hub") from None
        # The library logs every retry twice, in the middle of the progress shown to the founder.
        logging.getLogger("huggingface_hub").setLevel(logging.ERROR)
        place, _, named = address.removeprefix("hf://").partition(":")
        owner, _, rest = place.partition("/")
        name, _, named_config = rest.partition("/")
        if not owner or not name or "/" in named_config:
            raise BadFile("is not a data set", "write it as hf://owner/name[/config][:split]")
        self._columns = columns
        self.classes: ClassNames | None = None
        with _fetching():
            self._data: Any = datasets.load_dataset(
                f"{owner}/{name}",
                named_config or config,
                split=named or split or "train",
                streaming=True,
            )
            feature = (self._data.features or {}).get(columns.label)
            if isinstance(feature, datasets.ClassLabel) and feature.names:
                self.classes = tuple(feature.names)

    def rows(self) -> Rows:
        """Yield numbered rows, from 1 on."""
        with _fetching():
            if self._data.column_names is not None:
                self._columns.require(self._data.column_names)
            for number, row in enumerate(self._data, 1):
                yield number, _without_empty_keys(row) if self._columns.nested else row


@contextmanager
def _fetching() -> Iterator[None]:
    try:
        yield
    except (BadFile, UserError, MemoryError):
        raise
    # The library raises whatever its file formats and its network raise.
    except Exception as error:
        reason = first_line(error, 300)
        raise BadFile(
            f"cannot be fetched: {reason}",
            "check the name, the configuration, the split and this computer's internet connection",
        ) from None


def _numbered(batches: Iterator[Any], names: list[str], columns: Columns) -> Rows:
    number = 0
    for batch in batches:
        # Images have a limit of their own.
        large = not columns.images and batch.nbytes > MAX_ROW_BYTES
        # Converted cell by cell, not all at once: Python objects take several times as many bytes as the
        # same text in Arrow.
        for index, cells in enumerate(zip(*(batch.column(name) for name in names), strict=True)):
            number += 1
            if large and _row_bytes(batch, index) > MAX_ROW_BYTES:
                yield number, too_long()
                continue
            row = {name: cell.as_py() for name, cell in zip(names, cells, strict=True)}
            yield number, _without_empty_keys(row) if columns.nested else row


def _row_bytes(batch: Any, index: int) -> int:
    """Return the size of a row in bytes, with only those entries of dictionaries that it refers to."""
    size = 0
    for column in batch.columns:
        if hasattr(column, "dictionary"):
            entry = column.indices[index].as_py()
            size += 0 if entry is None else column.dictionary.slice(entry, 1).nbytes
        else:
            size += column.slice(index, 1).nbytes
    return size


def _without_empty_keys(row: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a row whose tables have no keys with a null: Arrow gives every table of a column all keys
    of the column's type."""
    return {name: _without_nulls(cell) for name, cell in row.items()}


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _without_nulls(item) for k, item in value.items() if item is not None}
    return [_without_nulls(item) for item in value] if isinstance(value, list) else value


def _rows_per_batch(metadata: Any) -> int:
    """Return how many rows of a Parquet file have about `_BATCH_BYTES`, by the row group with the
    largest rows."""
    groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    mean = max((group.total_byte_size // max(1, group.num_rows) for group in groups), default=0)
    return max(1, min(_BATCH_ROWS, _BATCH_BYTES // max(1, mean)))


def _check_types(arrow: Any, schema: Any, columns: Columns) -> None:
    for name in columns.names:
        kind = schema.field(name).type
        if not columns.accepts(arrow, name, kind):
            raise BadFile(
                f"holds {str(kind)[:60]} in the column {name!r}, not {columns.content}",
                columns.remedy,
            )


def _broken(kind: str, error: Exception) -> BadFile:
    reason = first_line(error, empty="unknown")
    return BadFile(f"is not a valid {kind} file ({reason})")


def _library(what: str) -> Any:
    # Read when the library is loaded. Its readers take the memory for what they unpack from this pool,
    # whatever `pyarrow.set_memory_pool` has set, and pools other than the system's keep what is freed.
    os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")
    try:
        import pyarrow
        import pyarrow.ipc
    except ImportError:
        raise needs("pyarrow", what) from None
    return pyarrow
