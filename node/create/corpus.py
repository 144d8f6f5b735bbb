"""From files to shards: finding the text, holding a part of it out, mixing, tokenising, storing.

The same files, patterns and tokenizer give the same shards on every machine, wherever the files
lie. Memory stays at a few megabytes however long a file is.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath

import numpy as np
from blake3 import blake3

from ...crypto.hashing import ContentId
from ...protocol.sampling.sampler import Order
from ...protocol.wire.blobs import CHUNK_BYTES, BlobList
from ...protocol.wire.manifest import ShardSpec
from ..errors import ExitCode, UserError
from ..storage.blob_store import BlobStore
from .tokens import Tokenizer

# The manifest names all shards in two megabytes, so that 40,000 of them make 2.5 TB; and the list of one
# is fetched in no time.
SHARD_BYTES = 16 * CHUNK_BYTES

# What stays together when text is mixed: some samples, and a hundredth of a chunk; and there are never
# more pieces than a founder's memory holds.
_PIECE_BYTES = 1 << 16
_MOST_PIECES = 1 << 20
# What is read and tokenised at once.
_BLOCK_BYTES = 1 << 20
# How far behind a cut the end of the line is looked for.
_CUT_WINDOW = 1 << 16

Progress = Callable[[str, int, int], None]
"""Called with what is being done, and how far: done and total in one unit."""


@dataclass(frozen=True)
class Piece:
    """The bytes from `start` to `end` of a file; `last` if the file ends there."""

    path: Path
    start: int
    end: int
    last: bool

    @property
    def size(self) -> int:
        """How many bytes the piece has."""
        return self.end - self.start


@dataclass(frozen=True, kw_only=True)
class Corpus:
    """Files, split into a part to train on and one held out for evaluation."""

    training: Sequence[Piece]
    heldout: Sequence[Piece]

    @property
    def size(self) -> int:
        """Bytes of both parts."""
        return sum(piece.size for piece in (*self.training, *self.heldout))


def find_files(paths: Sequence[Path], include: Sequence[str]) -> list[tuple[Path, PurePath]]:
    """List the files to use, each with its name relative to the directory it was found under.

    A file named itself always counts; below a directory those that match a pattern do, hidden ones
    excepted. Empty files and second mentions are left out. Raises `UserError` (`DATA_MISSING`).
    """
    found: dict[Path, tuple[Path, PurePath]] = {}
    for root in paths:
        if root.is_dir():
            candidates = list(_walk(root, include))
        elif root.is_file():
            candidates = [(root, PurePath(root.name))]
        else:
            raise _missing(
                f"there is no file or directory {root}", "give the training text with --data"
            )
        for path, name in candidates:
            if path.stat().st_size > 0:
                found.setdefault(path.resolve(), (path, name))
    if not found:
        where = ", ".join(str(path) for path in paths) or "no path was given"
        raise _missing(
            f"there is no training text ({where}; patterns: {' '.join(include)})",
            "give files or directories with --data, or widen `include` in [data]",
        )
    return list(found.values())


def split(
    files: Sequence[tuple[Path, PurePath]], heldout: Sequence[str], fraction: float
) -> Corpus:
    """Hold some of the text out for evaluation.

    With patterns in `heldout` those files. Otherwise the files whose content's hash falls into the
    first `fraction` of all hashes: the choice depends on nothing else, and copies of one file fall
    on one side. Where that comes out far from `fraction`, as with a handful of files, the end of
    every file. Raises `UserError` (`DATA_MISSING`).
    """
    pieces = [_whole(path) for path, _ in files]
    if heldout:
        chosen = [any(name.match(pattern) for pattern in heldout) for _, name in files]
        if not any(chosen) or all(chosen):
            raise _missing(
                f"the patterns in `heldout` ({' '.join(heldout)}) match "
                f"{'every file' if all(chosen) else 'no file'}",
                "some files must be held out, and some be left to train on",
            )
    else:
        chosen = [_hash(path) < fraction * 2**64 for path, _ in files]
        total = sum(piece.size for piece in pieces)
        share = sum(piece.size for piece, out in zip(pieces, chosen, strict=True) if out) / total
        if not fraction / 2 <= share <= fraction * 2:
            return _split_each(pieces, fraction)
    return Corpus(
        training=[piece for piece, out in zip(pieces, chosen, strict=True) if not out],
        heldout=[piece for piece, out in zip(pieces, chosen, strict=True) if out],
    )


def mixed(pieces: Sequence[Piece]) -> list[Piece]:
    """The same text in pieces of some 64 KiB, whose order is random and always the same.

    Members read chunk by chunk (`protocol.order`), and what is mixed is what is near. So a chunk has
    to hold something of everything, whatever order the files have.
    """
    size = max(_PIECE_BYTES, sum(piece.size for piece in pieces) // _MOST_PIECES)
    parts = [part for piece in pieces for part in _cut(piece, size)]
    if not parts:
        return []
    order = Order(seed=0, samples=len(parts), lanes=1, block=1, mixed=1)
    places = np.arange(len(parts))
    return [parts[place] for place in order.samples_at(np.zeros_like(places), places)]


def write_shards(
    pieces: Sequence[Piece],
    tokenizer: Tokenizer,
    document_end: str,
    store: BlobStore,
    advance: Callable[[int], None],
) -> list[ShardSpec]:
    """Tokenise and store pieces as shards; `advance` hears how many bytes have been read since.

    Raises `UserError` (`DATA_MISSING`) for text the tokenizer cannot take, `OSError` as files do.
    """
    writer = _ShardWriter(store, tokenizer.token_bytes)
    for piece in pieces:
        for block in _blocks(piece, advance):
            writer.add(_tokenise(tokenizer, block, piece.path))
        if document_end and piece.last:
            writer.add(_tokenise(tokenizer, document_end.encode(), piece.path))
    return writer.finish()


class _ShardWriter:
    """Cuts a stream of tokens into chunks, and those into shards, storing each as it fills."""

    def __init__(self, store: BlobStore, token_bytes: int) -> None:
        self._store = store
        self._token_bytes = token_bytes
        self._type = np.dtype(f"<u{token_bytes}")
        self._buffer = bytearray()
        self._chunks: list[ContentId] = []
        self._size = 0
        self._shards: list[ShardSpec] = []

    def add(self, tokens: np.ndarray) -> None:
        self._buffer += tokens.astype(self._type).tobytes()
        # A chunk is a multiple of 4 bytes, so no token is cut in two.
        while len(self._buffer) >= CHUNK_BYTES:
            self._put(bytes(self._buffer[:CHUNK_BYTES]))
            del self._buffer[:CHUNK_BYTES]
            if self._size >= SHARD_BYTES:
                self._close()

    def finish(self) -> list[ShardSpec]:
        if self._buffer:
            self._put(bytes(self._buffer))
            self._buffer.clear()
        if self._chunks:
            self._close()
        return self._shards

    def _put(self, chunk: bytes) -> None:
        self._chunks.append(self._store.put(chunk))
        self._size += len(chunk)

    def _close(self) -> None:
        blobs = BlobList("shard", self._size, tuple(self._chunks))
        tokens = self._size // self._token_bytes
        self._shards.append(ShardSpec(blob=self._store.put(blobs.encode()), tokens=tokens))
        self._chunks, self._size = [], 0


def _walk(root: Path, include: Sequence[str]) -> Iterator[tuple[Path, PurePath]]:
    for folder, folders, names in os.walk(root):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(names):
            path = Path(folder, name)
            relative = PurePath(path.relative_to(root))
            wanted = any(relative.match(pattern) for pattern in include)
            if wanted and not name.startswith(".") and path.is_file():
                yield path, relative


def _whole(path: Path) -> Piece:
    return Piece(path, 0, path.stat().st_size, last=True)


def _hash(path: Path) -> int:
    hasher = blake3()
    with path.open("rb") as file:
        while block := file.read(_BLOCK_BYTES):
            hasher.update(block)
    return int.from_bytes(hasher.digest()[:8], "big")


def _split_each(pieces: Sequence[Piece], fraction: float) -> Corpus:
    training, heldout = [], []
    for piece in pieces:
        cut = _line_end(piece.path, piece.size - int(piece.size * fraction), piece.size)
        if cut > 0:
            training.append(Piece(piece.path, 0, cut, last=cut == piece.size))
        if cut < piece.size:
            heldout.append(Piece(piece.path, cut, piece.size, last=True))
    return Corpus(training=training, heldout=heldout)


def _cut(piece: Piece, size: int) -> Iterator[Piece]:
    """The piece in parts of about this size, which end with a line or, without any, a character."""
    start = piece.start
    while piece.end - start > 2 * size:
        cut = _line_end(piece.path, start + size, piece.end)
        yield Piece(piece.path, start, cut, last=False)
        start = cut
    yield Piece(piece.path, start, piece.end, last=piece.last)


def _line_end(path: Path, offset: int, size: int) -> int:
    """The first place from `offset` on where a line, or at least a UTF-8 character, begins."""
    with path.open("rb") as file:
        file.seek(offset)
        window = file.read(_CUT_WINDOW)
    newline = window.find(b"\n")
    # Not at the very end: that would leave nothing behind the cut.
    if newline >= 0 and offset + newline + 1 < size:
        return offset + newline + 1
    return offset + _character_start(window)


def _character_start(data: bytes) -> int:
    """The index of the first byte that is no continuation byte of UTF-8 (0b10xxxxxx)."""
    for index, byte in enumerate(data[:4]):
        if byte & 0xC0 != 0x80:
            return index
    # Four of them in a row are no UTF-8, and any place is as good; fewer are the end of the file.
    return 0 if len(data) >= 4 else len(data)


def _blocks(piece: Piece, advance: Callable[[int], None]) -> Iterator[bytes]:
    """Read a piece in blocks that end with a line or, where there is none, with a character."""
    remaining = piece.size
    kept = b""
    with piece.path.open("rb") as file:
        file.seek(piece.start)
        while remaining > 0:
            read = file.read(min(_BLOCK_BYTES, remaining))
            if not read:
                raise _missing(f"{piece.path} became shorter while it was read", "try again")
            remaining -= len(read)
            advance(len(read))
            block = kept + read
            cut = block.rfind(b"\n") + 1
            if remaining == 0:
                cut = len(block)
            elif cut == 0:
                cut = len(block) - _cut_character(block)
            yield block[:cut]
            kept = block[cut:]


def _cut_character(block: bytes) -> int:
    """How many bytes at the end belong to a character whose last byte is not there yet."""
    for back in range(1, min(4, len(block)) + 1):
        byte = block[-back]
        if byte & 0xC0 != 0x80:
            # The leading byte says how long its character is.
            length = 1 if byte < 0xC0 else 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
            return back if length > back else 0
    return 0


def _tokenise(tokenizer: Tokenizer, block: bytes, path: Path) -> np.ndarray:
    try:
        return tokenizer.encode(block)
    except UnicodeDecodeError:
        raise _missing(
            f"{path} is not text in UTF-8, as this tokenizer wants it",
            'leave the file out with `include` in [data], or use tokenizer = "bytes"',
        ) from None


def _missing(problem: str, remedy: str) -> UserError:
    return UserError(ExitCode.DATA_MISSING, problem, remedy)
