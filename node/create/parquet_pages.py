"""The size of a Parquet file's pages, read from their headers.

The format compresses each page as a whole, so a page is unpacked as a whole. The library does not return
the headers, which are structures of Thrift's compact protocol before each page:
https://github.com/apache/parquet-format (`PageHeader`).
"""

from __future__ import annotations

from mmap import mmap
from typing import Any

# Fields of a page's header: its size in bytes, uncompressed and compressed.
_UNPACKED, _PACKED = 2, 3
# Types of Thrift's compact protocol.
_STOP, _TRUE, _FALSE, _BYTE, _DOUBLE, _BINARY, _LIST, _SET, _MAP, _STRUCT = (
    *(0, 1, 2, 3, 7, 8),
    *(9, 10, 11, 12),
)
_INTEGERS = frozenset({4, 5, 6})
# How deep structures are nested at most.
_MAX_DEPTH = 8


def largest_pages(file: mmap, metadata: Any, names: list[str]) -> int:
    """Return the sum, over these columns, of the unpacked size of the column's largest page, in bytes.

    `metadata` is what the library has read of `file`. If a header cannot be read, the rest of its column
    chunk is passed over: the library reports the damage when it reads the chunk.
    """
    data = memoryview(file)
    largest = dict.fromkeys(names, 0)
    for group in map(metadata.row_group, range(metadata.num_row_groups)):
        for chunk in map(group.column, range(group.num_columns)):
            path = chunk.path_in_schema
            owners = [each for each in names if f"{path}.".startswith(f"{each}.")]
            name = max(owners, key=len, default=None)
            # A page is not larger than its chunk, so most chunks need not be looked into.
            if name is not None and chunk.total_uncompressed_size > largest[name]:
                largest[name] = max(largest[name], _largest_page(data, chunk))
    return sum(largest.values())


def _largest_page(data: memoryview, chunk: Any) -> int:
    at, largest = chunk.data_page_offset, 0
    if chunk.dictionary_page_offset is not None:
        at = min(at, chunk.dictionary_page_offset)
    end = min(at + chunk.total_compressed_size, len(data))
    while 0 < at < end:
        header = _Header(data[at:end])
        try:
            sizes = header.integers()
        except (IndexError, ValueError):
            break
        largest = max(largest, sizes.get(_UNPACKED, 0))
        packed = sizes.get(_PACKED, -1)
        if packed < 0:
            break
        at += header.length + packed
    return largest


class _Header:
    """Reader of one Thrift structure at the beginning of some bytes."""

    def __init__(self, data: memoryview) -> None:
        self._data = data
        self.length = 0
        """Bytes read so far."""

    def integers(self, depth: int = 0) -> dict[int, int]:
        """Return the structure's integers by the number of their field. Raises `IndexError` if the data
        ends too early, `ValueError` if it is invalid."""
        if depth > _MAX_DEPTH:
            raise ValueError
        found: dict[int, int] = {}
        field = 0
        while (header_byte := self._byte()) & 0x0F != _STOP:
            delta, kind = header_byte >> 4, header_byte & 0x0F
            field = field + delta if delta else self._signed()
            if kind in _INTEGERS:
                found[field] = self._signed()
            elif kind not in (_TRUE, _FALSE):
                self._skip(kind, depth)
        return found

    def _skip(self, kind: int, depth: int) -> None:
        if kind in _INTEGERS:
            self._unsigned()
        elif kind in (_TRUE, _FALSE, _BYTE):
            # In lists, a boolean has a byte of its own.
            self._byte()
        elif kind == _DOUBLE:
            self._pass(8)
        elif kind == _BINARY:
            self._pass(self._unsigned())
        elif kind == _STRUCT:
            self.integers(depth + 1)
        elif kind in (_LIST, _SET):
            header_byte = self._byte()
            count = self._unsigned() if header_byte >> 4 == 0x0F else header_byte >> 4
            for _ in range(count):
                self._skip(header_byte & 0x0F, depth + 1)
        elif kind == _MAP:
            count = self._unsigned()
            kinds = self._byte() if count else 0
            for _ in range(count):
                self._skip(kinds >> 4, depth + 1)
                self._skip(kinds & 0x0F, depth + 1)
        else:
            raise ValueError

    def _byte(self) -> int:
        self.length += 1
        return self._data[self.length - 1]

    def _pass(self, count: int) -> None:
        self.length += count
        if self.length > len(self._data):
            raise IndexError

    def _unsigned(self) -> int:
        value = shift = 0
        while True:
            byte = self._byte()
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value
            if shift > 63:
                raise ValueError

    def _signed(self) -> int:
        value = self._unsigned()
        return (value >> 1) ^ -(value & 1)
