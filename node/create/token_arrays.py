"""Arrays of tokens made by other programs: plain ones, numpy's, nanotron's and Megatron's.

A plain array does not state the type of its numbers. The type is the one that the founder states, or
that a file next to the array or a header in it states. Otherwise the usual type for the vocabulary is
assumed, and an array that certainly has another type is refused. Every token is checked against the
vocabulary before it is used. Only a few megabytes are in memory, whatever the size of an array and of
its index.
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

import numpy as np

from ...protocol.wire.manifest import TokenType
from ..util.first_line import first_line
from ..util.regular_files import open_regular
from .borders import Borders
from .formats import BadFile, convert_errors

# A document of more tokens than this (4 MB in memory) is yielded in pieces.
_PIECE_TOKENS = 1 << 20
# How many entries of an index are read at once.
_INDEX_ENTRIES = 1 << 16
# The header that GPT-2 and Llama 3 in C, and programs modelled on them, put before their tokens.
_HEADER = struct.Struct("<3i")
_HEADER_BYTES = 1024
_HEADER_TYPES: dict[tuple[int, int], TokenType] = {
    (20240520, 1): "uint16",
    (20240801, 7): "uint32",
}
# The type for each number of bytes per token, which nanotron states.
_WIDTHS: dict[int, TokenType] = {1: "uint8", 2: "uint16", 4: "uint32"}
# Megatron's index: magic, version, type, sequences, entries of the list of documents.
_MEGATRON = struct.Struct("<9sQBQQ")
_MEGATRON_MAGIC = b"MMIDIDX\x00\x00"
_MEGATRON_TYPES: dict[int, TokenType] = {
    1: "uint8",
    3: "int16",
    4: "int32",
    5: "int64",
    8: "uint16",
}
# In an array of fewer numbers than this, zeros between the numbers may be chance.
_EVIDENCE_NUMBERS = 32
_OTHER_TOKENIZER = "give the tokenizer that made them, or set their `token_type` in [data]"


@dataclass(frozen=True)
class _TokenArray:
    """The place of an array's numbers in its file."""

    path: Path
    type: np.dtype
    offset: int
    count: int
    certain: bool
    """Whether the type was stated and not assumed."""

    def read(self, start: int, stop: int) -> np.ndarray:
        at = self.offset + start * self.type.itemsize
        return np.fromfile(self.path, self.type, stop - start, offset=at)


def token_documents(
    path: Path, stated: TokenType | None, vocabulary: int, borders: Borders
) -> Iterator[tuple[np.ndarray, bool, int]]:
    """Yield, for each document of an array or piece of a very long one: its tokens as uint32, whether
    the document ends with them, and the number of the file's bytes read so far.

    Documents end where the array's index states it, else with the end token or before a start token.
    `stated` is the type that the founder stated. Raises `BadFile` for an array that cannot be used.
    """
    with convert_errors():
        tokens, bounds = _open(path, stated, vocabulary)
        if not tokens.certain:
            _refuse_wider(tokens)
    for piece, start, whole in _pieces(tokens, bounds, borders):
        if start == 0 and piece[0] == borders.unwanted:
            raise BadFile(
                f"has the start token ({piece[0]}) before its documents, and the swarm's "
                "documents have none",
                'set document_start = "bos" in [data], or give the array without it',
            )
        if piece.dtype.kind == "i" and piece.min() < 0:
            raise BadFile(f"holds a negative token after token {start}", _OTHER_TOKENIZER)
        largest = int(piece.max())
        if largest >= vocabulary:
            index = start + int(piece.argmax())
            how = "" if tokens.certain else f" (read as {tokens.type.name})"
            raise BadFile(
                f"token {index} is {largest}{how}, but the tokenizer has {vocabulary} tokens",
                _OTHER_TOKENIZER,
            )
        read = tokens.offset + (start + len(piece)) * tokens.type.itemsize
        yield piece.astype(np.uint32), whole, read


def _open(
    path: Path, stated: TokenType | None, vocabulary: int
) -> tuple[_TokenArray, Iterator[np.ndarray] | None]:
    """Open an array; return it and, if an index states them, the ends of its documents, in ascending
    order and in groups."""
    with open_regular(path) as file:
        start = file.read(_HEADER.size)
    ending = path.suffix.lower()
    if ending == ".npy" and (stated is None or start.startswith(b"\x93NUMPY")):
        return _of_numpy(path), None
    if start.startswith((b"PK\x03\x04", b"\x80\x02", b"\x80\x04")):
        raise BadFile("is a model's or a program's file, not an array of tokens")
    # The programs that write such arrays use two bytes for a token unless the vocabulary needs more.
    kind: TokenType = stated or ("uint16" if vocabulary <= 1 << 16 else "uint32")
    if ending == ".ds":
        named, count = _nanotron_type(path)
        tokens = _stored(path, stated or named or kind, 0, count, stated or named)
        return tokens, _nanotron_ends(path, tokens.count)
    if (index := path.with_suffix(".idx")).is_file():
        megatron = _megatron_type(index, stated)
        if megatron is not None:
            tokens = _stored(path, megatron, 0, None, megatron)
            return tokens, _megatron_ends(index, tokens)
    if len(start) == _HEADER.size:
        magic, version, count = _HEADER.unpack(start)
        if (magic, version) in _HEADER_TYPES:
            named = stated or _HEADER_TYPES[magic, version]
            return _stored(path, named, _HEADER_BYTES, count, named), None
    return _stored(path, kind, 0, None, stated), None


def _stored(
    path: Path, kind: TokenType, offset: int, count: int | None, certain: TokenType | None
) -> _TokenArray:
    type_ = np.dtype(kind).newbyteorder("<")
    stored, rest = divmod(path.stat().st_size - offset, type_.itemsize)
    if rest or stored < 0:
        raise BadFile(
            f"is not an array of tokens of {type_.itemsize} bytes ({kind}): {rest} bytes are left over",
            "set their `token_type` in [data], or download the file again",
        )
    if count is not None and count != stored:
        raise BadFile(
            f"is cut short or not of type {kind}: it holds {stored} tokens and declares {count}"
        )
    return _TokenArray(path, type_, offset, stored, certain is not None)


def _refuse_wider(tokens: _TokenArray) -> None:
    """Refuse an array whose numbers are certainly halves or quarters of wider numbers: of every two or
    four, all but the first are 0, which never happens in text."""
    if tokens.count < _EVIDENCE_NUMBERS:
        return
    for factor in (4, 2):
        wider = tokens.type.itemsize * factor
        if wider > 8 or tokens.count % factor:
            continue
        if _is_padded(tokens, factor):
            kinds = [name for name in get_args(TokenType) if np.dtype(name).itemsize == wider]
            raise BadFile(
                f"does not hold tokens of type {tokens.type.name}: of every {factor} numbers all but "
                f"the first are 0, so its tokens have {wider} bytes",
                f'set their type in [data], such as token_type = "{kinds[-1]}"',
            )


def _is_padded(tokens: _TokenArray, factor: int) -> bool:
    # `_PIECE_TOKENS` is a multiple of 4, so that no wider number is cut.
    for start in range(0, tokens.count, _PIECE_TOKENS):
        window = tokens.read(start, min(start + _PIECE_TOKENS, tokens.count))
        rows = window.reshape(-1, factor)
        if rows[:, 1:].any() or not rows[:, 0].any():
            return False
    return True


def _of_numpy(path: Path) -> _TokenArray:
    form = np.lib.format
    try:
        with open_regular(path) as file:
            version = form.read_magic(file)
            read = form.read_array_header_1_0 if version == (1, 0) else form.read_array_header_2_0
            shape, by_columns, kind = read(file)
            offset = file.tell()
    except (ValueError, EOFError) as error:
        reason = first_line(error, empty="unknown")
        raise BadFile(
            f"is not a numpy array ({reason})",
            "set its `token_type` in [data] if it is a plain array, or leave it out with `exclude`",
        ) from None
    if kind.kind not in "ui":
        raise BadFile(f"holds numbers of type {kind}, not tokens")
    if by_columns and len(shape) > 1:
        raise BadFile("is stored column by column", 'save it again with numpy\'s order="C"')
    count = int(np.prod(shape, dtype=np.int64))
    if path.stat().st_size - offset < count * kind.itemsize:
        raise BadFile("is cut short: some of the numpy array's numbers are missing")
    return _TokenArray(path, kind, offset, count, True)


def _nanotron_type(path: Path) -> tuple[TokenType | None, int | None]:
    """Return the type of a token and the number of tokens, from the files next to an array; None for
    what they do not state."""
    metadata = path.with_name(path.name + ".metadata")
    lines = []
    try:
        with open_regular(metadata) as file:
            lines = file.read(4096).decode("utf-8").splitlines()
    except FileNotFoundError:
        return _WIDTHS.get(_width_by_index(path)), None
    except UnicodeDecodeError:
        pass
    name, _, width = lines[0].rpartition("|") if lines else ("", "", "")
    if not name or not width.isdigit() or int(width) not in _WIDTHS or len(lines) < 2:
        raise BadFile(f"{metadata.name} next to it does not name tokenizer, width and count")
    if not lines[1].isdigit():
        raise BadFile(f"{metadata.name} next to it names no count of tokens")
    return _WIDTHS[int(width)], int(lines[1])


def _nanotron_index(path: Path) -> Path:
    return path.with_name(path.name + ".index")


def _width_by_index(path: Path) -> int:
    """Return the bytes of a token, computed from the file's size and the number of tokens at the end of
    the index; 0 if there is no index or it does not fit."""
    index = _nanotron_index(path)
    if not index.is_file() or index.stat().st_size < 8:
        return 0
    last = int(np.fromfile(index, "<u8", 1, offset=index.stat().st_size // 8 * 8 - 8)[0])
    width, rest = divmod(path.stat().st_size, last) if last else (0, 0)
    return 0 if rest else width


def _nanotron_ends(path: Path, stored: int) -> Iterator[np.ndarray]:
    """Yield the ends of the documents in groups, from nanotron's index next to an array."""
    index = _nanotron_index(path)
    if not index.is_file():
        raise BadFile(f"has no index: {index.name} does not exist")
    entries, rest = divmod(index.stat().st_size, 8)
    if rest:
        raise BadFile(f"{index.name} next to it is cut short")
    last = np.fromfile(index, "<u8", 1, offset=8 * entries - 8)[0] if entries else None
    if last != stored:
        raise _unfit(index, stored)

    def ends() -> Iterator[np.ndarray]:
        before = 0
        with open_regular(index) as file:
            while len(some := np.fromfile(file, "<u8", _INDEX_ENTRIES).astype(np.int64)):
                if (np.diff(some, prepend=before) < 0).any() or some[-1] > stored:
                    raise _unfit(index, stored)
                before = int(some[-1])
                yield some

    return ends()


def _megatron_type(index: Path, stated: TokenType | None) -> TokenType | None:
    """Return the type of the tokens from Megatron's index next to an array; None if it is not such an
    index and the founder has stated the type (`stated`)."""
    with open_regular(index) as file:
        start = file.read(_MEGATRON.size)
    if len(start) < _MEGATRON.size or not start.startswith(_MEGATRON_MAGIC):
        if stated is not None:
            return None
        raise BadFile(
            f"{index.name} next to it is not an index of a known format",
            "set the tokens' `token_type` in [data]: documents then end with the end token",
        )
    _, version, code, _, _ = _MEGATRON.unpack(start)
    kind = _MEGATRON_TYPES.get(code)
    if version != 1 or kind is None:
        raise BadFile(f"{index.name} next to it has the unknown version {version} or type {code}")
    if stated is not None and stated != kind:
        raise BadFile(
            f"{index.name} next to it gives the type {kind}, but token_type is {stated}",
            "leave `token_type` out",
        )
    return kind


def _megatron_ends(index: Path, tokens: _TokenArray) -> Iterator[np.ndarray]:
    """Yield the ends of the documents in groups, from Megatron's index.

    The index has the length of each sequence (int32), its position in bytes (int64) and, after those,
    the number of the first sequence of each document and of the end (int64).
    """
    with open_regular(index) as file:
        _, _, _, sequences, entries = _MEGATRON.unpack(file.read(_MEGATRON.size))
    lengths_at = _MEGATRON.size
    places_at = lengths_at + 4 * sequences
    documents_at = places_at + 8 * sequences
    if index.stat().st_size < documents_at + 8 * entries or entries == 0:
        raise BadFile(f"{index.name} next to it is cut short")

    def ends() -> Iterator[np.ndarray]:
        before = sequence = token = 0
        for entry in range(1, entries, _INDEX_ENTRIES):
            count = min(_INDEX_ENTRIES, entries - entry)
            last_sequences = np.fromfile(index, "<i8", count, offset=documents_at + 8 * entry)
            if (np.diff(last_sequences, prepend=before) < 0).any() or last_sequences[
                -1
            ] > sequences:
                raise _unfit(index, tokens.count)
            document_ends = np.full(count, token)
            before = int(last_sequences[-1])
            while sequence < before:
                sequence_count = min(_INDEX_ENTRIES, before - sequence)
                lengths = np.fromfile(
                    index, "<i4", sequence_count, offset=lengths_at + 4 * sequence
                )
                places = np.fromfile(index, "<i8", sequence_count, offset=places_at + 8 * sequence)
                stops = token + np.cumsum(lengths, dtype=np.int64)
                if (lengths < 0).any() or (
                    places != (stops - lengths) * tokens.type.itemsize
                ).any():
                    raise _unfit(index, tokens.count)
                in_group = (last_sequences > sequence) & (
                    last_sequences <= sequence + sequence_count
                )
                document_ends[in_group] = stops[last_sequences[in_group] - sequence - 1]
                token, sequence = int(stops[-1]), sequence + sequence_count
            if token > tokens.count:
                raise _unfit(index, tokens.count)
            yield document_ends
        if sequence != sequences or token != tokens.count:
            raise _unfit(index, tokens.count)

    return ends()


def _unfit(index: Path, stored: int) -> BadFile:
    return BadFile(f"{index.name} next to it does not match its {stored} tokens")


def _pieces(
    tokens: _TokenArray, bounds: Iterator[np.ndarray] | None, borders: Borders
) -> Iterator[tuple[np.ndarray, int, bool]]:
    """Yield each document or piece of one that is not empty, the number of its first token, and whether
    the document ends with it; `bounds` are the documents' ends, in groups."""
    if bounds is None:
        bounds = _ends_by_token(tokens, borders)
    ends = itertools.chain.from_iterable(some.tolist() for some in bounds)
    window, origin, start = tokens.read(0, 0), 0, 0
    for stop in itertools.chain(ends, [None]):
        last = tokens.count if stop is None else stop
        while start < last:
            window_end = origin + len(window)
            # A document that is not longer than a window stays whole: the window is moved to its start.
            if start >= window_end or (last > window_end and start > origin):
                origin = start
                window = tokens.read(start, min(start + _PIECE_TOKENS, tokens.count))
                if len(window) == 0:
                    raise BadFile("is cut short: it became shorter while it was read")
            piece_end = min(last, origin + len(window))
            yield (
                window[start - origin : piece_end - origin],
                start,
                piece_end == last and stop is not None,
            )
            start = piece_end


def _ends_by_token(tokens: _TokenArray, borders: Borders) -> Iterator[np.ndarray]:
    """Yield the ends of documents in groups: after an end token, or before the start token of the next
    document."""
    end, start = borders.single_end, borders.before
    if end is None and start is None:
        return
    for origin in range(0, tokens.count, _PIECE_TOKENS):
        window = tokens.read(origin, min(origin + _PIECE_TOKENS, tokens.count))
        after_ends = () if end is None else np.flatnonzero(window == end) + 1
        before_starts = () if start is None else np.flatnonzero(window == start)
        yield origin + np.union1d(after_ends, before_starts).astype(np.int64)
