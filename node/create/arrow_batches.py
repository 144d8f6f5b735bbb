"""The memory that the batches of an Arrow file take once they are unpacked, read from their headers.

Arrow's format compresses each buffer of a batch as a whole, so a batch is unpacked as a whole. Each
compressed buffer begins with its unpacked size. The library returns the headers only as FlatBuffers:
https://arrow.apache.org/docs/format/Columnar.html (`Message`, `RecordBatch`).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

# Numbers of the fields in the tables.
_HEADER_TYPE, _HEADER = 1, 2
_DICTIONARY_DATA = 1
_BUFFERS, _COMPRESSION = 2, 3
# Values of `_HEADER_TYPE`.
_DICTIONARY_BATCH, _RECORD_BATCH = 2, 3
# Before each compressed buffer; -1 means that the buffer is not compressed after all.
_SIZE_BYTES = 8


def unpacked_bytes(ipc: Any, source: Any, buffers: frozenset[int] | None) -> int:
    """Return how many bytes the largest batch takes unpacked, together with all dictionaries.

    `source` is the library's reader of the file, at its first message. `buffers`: the numbers of the
    buffers in a batch that are read; None: all. A file without compression takes nothing, because it is
    mapped. If a header cannot be read, the rest of the file is passed over: the library reports the
    damage when it reads the file.
    """
    largest = dictionaries = 0
    try:
        for kind, sizes in _messages(ipc, source):
            if kind == _DICTIONARY_BATCH:
                dictionaries += sum(sizes)
            else:
                wanted = (s for n, s in enumerate(sizes) if buffers is None or n in buffers)
                largest = max(largest, sum(wanted))
    except (struct.error, IndexError, ValueError, OSError):
        # The library's own errors are of these kinds, too.
        pass
    return largest + dictionaries


def _messages(ipc: Any, source: Any) -> Iterator[tuple[int, list[int]]]:
    """Yield the kind of each batch and the unpacked sizes of its buffers."""
    while True:
        try:
            message = ipc.read_message(source)
        except EOFError:
            return
        header = memoryview(message.metadata)
        root = _Table(header, _unsigned(header, 0))
        kind = root.byte(_HEADER_TYPE)
        if kind not in (_DICTIONARY_BATCH, _RECORD_BATCH):
            continue
        batch = root.table(_HEADER)
        if batch is not None and kind == _DICTIONARY_BATCH:
            batch = batch.table(_DICTIONARY_DATA)
        if batch is not None and batch.table(_COMPRESSION) is not None:
            yield kind, [*_sizes(batch, memoryview(message.body))]


def _sizes(batch: _Table, body: memoryview) -> Iterator[int]:
    for offset, length in batch.pairs(_BUFFERS):
        size = 0
        if length >= _SIZE_BYTES:
            (size,) = struct.unpack_from("<q", body, offset)
        yield max(size, 0)


def _unsigned(data: memoryview, at: int) -> int:
    return struct.unpack_from("<I", data, at)[0]


class _Table:
    """A table of FlatBuffers."""

    def __init__(self, data: memoryview, at: int) -> None:
        self._data, self._at = data, at
        self._fields = at - struct.unpack_from("<i", data, at)[0]
        self._size = struct.unpack_from("<H", data, self._fields)[0]

    def byte(self, number: int) -> int:
        """Return the field with this number; 0 if it is missing."""
        place = self._place(number)
        return 0 if place is None else self._data[place]

    def table(self, number: int) -> _Table | None:
        """Return the table in this field; None if it is missing."""
        place = self._place(number)
        return None if place is None else _Table(self._data, place + _unsigned(self._data, place))

    def pairs(self, number: int) -> Iterator[tuple[int, int]]:
        """Yield the pairs of 64-bit integers in this field, a vector."""
        place = self._place(number)
        if place is None:
            return
        start = place + _unsigned(self._data, place)
        for index in range(_unsigned(self._data, start)):
            yield struct.unpack_from("<qq", self._data, start + 4 + 16 * index)

    def _place(self, number: int) -> int | None:
        entry = 4 + 2 * number
        if entry + 2 > self._size:
            return None
        offset = struct.unpack_from("<H", self._data, self._fields + entry)[0]
        return self._at + offset if offset else None
