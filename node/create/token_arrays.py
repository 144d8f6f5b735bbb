"""Arrays of tokens that another program has made: plain ones, numpy's, and nanotron's with its index.

Every token is held against the vocabulary before it goes anywhere.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from .formats import BadFile, reading

# For one document that goes on and on: 4 MB.
_PIECE_TOKENS = 1 << 20
# What GPT-2 and Llama 3 in C, and those who took after them, put before their tokens.
_HEADER = struct.Struct("<3i")
_HEADER_BYTES = 1024
_HEADER_WIDTHS = {(20240520, 1): 2, (20240801, 7): 4}
_WIDTHS = {1: "u1", 2: "<u2", 4: "<u4"}
_OTHER_TOKENIZER = "give the tokenizer that they were made with, or `token_width` in bytes"


def token_documents(
    path: Path, width: int | None, vocabulary: int, end: int | None
) -> Iterator[tuple[np.ndarray, bool, int]]:
    """The documents of an array as uint32, whether each ends, and the bytes read until then.

    Documents end where the index of the array says, else with the token `end`. One that is very long
    comes in several pieces. Raises `BadFile`.
    """
    with reading():
        tokens, bounds = _open(path, width, vocabulary)
    size = max(1, len(tokens))
    bytes_each = path.stat().st_size / size
    for start, stop, whole in _pieces(tokens, bounds, end):
        piece = np.asarray(tokens[start:stop])
        if piece.dtype.kind == "i" and piece.min() < 0:
            raise BadFile(f"holds a token below zero behind token {start}", _OTHER_TOKENIZER)
        largest = int(piece.max())
        if largest >= vocabulary:
            index = start + int(piece.argmax())
            raise BadFile(
                f"token {index} is {largest}, and the tokenizer has {vocabulary} tokens",
                _OTHER_TOKENIZER,
            )
        yield piece.astype(np.uint32), whole, int(stop * bytes_each)


def _open(path: Path, width: int | None, vocabulary: int) -> tuple[np.ndarray, np.ndarray | None]:
    ending = path.suffix.lower()
    if ending == ".npy":
        try:
            tokens = np.load(path, mmap_mode="r", allow_pickle=False)
        except (ValueError, EOFError) as error:
            raise BadFile(f"is no array of numpy ({error})") from None
        if tokens.dtype.kind not in "ui":
            raise BadFile(f"holds no tokens but numbers of type {tokens.dtype}")
        return tokens.reshape(-1), None
    with path.open("rb") as file:
        start = file.read(_HEADER.size)
    if start.startswith((b"PK\x03\x04", b"\x80\x02", b"\x80\x04")):
        raise BadFile("is no array of tokens but a model's or a program's file")
    bounds, offset = None, 0
    # A token has two bytes unless the vocabulary needs more: so do the programs that write them.
    usual = 2 if vocabulary <= 1 << 16 else 4
    if ending == ".ds":
        named, count = _metadata(path)
        usual = named or usual
    elif len(start) == _HEADER.size:
        magic, version, count = _HEADER.unpack(start)
        if (magic, version) in _HEADER_WIDTHS:
            usual, offset = _HEADER_WIDTHS[magic, version], _HEADER_BYTES
        else:
            count = None
    else:
        count = None
    width = width or usual
    stored, rest = divmod(path.stat().st_size - offset, width)
    if rest or stored < 0:
        raise BadFile(f"is no array of tokens of {width} bytes: {rest} bytes are left over")
    if count is not None and count != stored:
        raise BadFile(
            f"is cut short, or has another width: {stored} tokens where {count} are named"
        )
    tokens = (
        np.memmap(path, _WIDTHS[width], "r", offset, (stored,)) if stored else np.zeros(0, "u4")
    )
    if ending == ".ds":
        bounds = _index(path, stored)
    return tokens, bounds


def _metadata(path: Path) -> tuple[int | None, int | None]:
    """The width of a token and how many there are, as the file beside an array says."""
    beside = path.with_name(path.name + ".metadata")
    try:
        with beside.open("rb") as file:
            lines = file.read(4096).decode("utf-8").splitlines()
    except FileNotFoundError:
        return None, None
    except UnicodeDecodeError:
        lines = []
    name, _, width = lines[0].rpartition("|") if lines else ("", "", "")
    if not name or not width.isdigit() or int(width) not in _WIDTHS or len(lines) < 2:
        raise BadFile(f"{beside.name} beside it does not say tokenizer, width and count")
    if not lines[1].isdigit():
        raise BadFile(f"{beside.name} beside it names no count of tokens")
    return int(width), int(lines[1])


def _index(path: Path, stored: int) -> np.ndarray:
    """The ends of the documents."""
    beside = path.with_name(path.name + ".index")
    try:
        data = beside.read_bytes()
    except FileNotFoundError:
        raise BadFile(f"has no index: {beside.name} is not there") from None
    if len(data) % 8:
        raise BadFile(f"{beside.name} beside it is cut short")
    ends = np.frombuffer(data, "<u8").astype(np.int64)
    if len(ends) == 0 or ends[-1] != stored or (np.diff(ends, prepend=0) < 0).any():
        raise BadFile(f"{beside.name} beside it does not fit its {stored} tokens")
    return ends


def _pieces(
    tokens: np.ndarray, bounds: np.ndarray | None, end: int | None
) -> Iterator[tuple[int, int, bool]]:
    """Where each piece begins and ends, and whether a document ends with it."""
    if bounds is not None:
        start = 0
        for stop in bounds.tolist():
            while stop - start > _PIECE_TOKENS:
                yield start, start + _PIECE_TOKENS, False
                start += _PIECE_TOKENS
            if stop > start:
                yield start, stop, True
            start = stop
        return
    for origin in range(0, len(tokens), _PIECE_TOKENS):
        window = np.asarray(tokens[origin : origin + _PIECE_TOKENS])
        start = origin
        ends = np.flatnonzero(window == end).tolist() if end is not None else []
        for index in ends:
            yield start, origin + index + 1, True
            start = origin + index + 1
        if start < origin + len(window):
            yield start, origin + len(window), False
