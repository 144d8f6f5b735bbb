"""The format of a file, which its name implies, and the decompression of its bytes.

Any fault in a file's bytes is raised as a `BadFile`, which describes it in words; no exception of a
library leaves this module.
"""

from __future__ import annotations

import bz2
import codecs
import contextlib
import gzip
import io
import lzma
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path, PurePath
from typing import Any, BinaryIO, Literal

from ..errors import ExitCode, UserError
from ..util.regular_files import open_regular
from .working_memory import memory_shortage, unpacking_limit

Format = Literal["text", "jsonl", "json", "csv", "tsv", "parquet", "arrow", "tokens", "image"]

_TEXT_ENDINGS = """
    txt text md markdown rst adoc org tex html htm xml srt log
    py pyi ipynb c h cc cpp cxx hpp hh cs java kt kts scala go rs swift m mm js mjs cjs jsx ts tsx vue
    css scss php rb pl pm lua r jl hs ml mli fs clj ex exs erl elm dart zig nim d v sv vhd asm s f f90
    f95 pas lisp el scm sql sh bash zsh ps1 bat cmake mk gradle proto graphql toml yaml yml ini cfg
"""
_ENDINGS: dict[str, Format] = {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "json",
    ".csv": "csv",
    ".tsv": "tsv",
    ".parquet": "parquet",
    ".arrow": "arrow",
    ".feather": "arrow",
    ".bin": "tokens",
    ".npy": "tokens",
    ".ds": "tokens",
}
for _ending in _TEXT_ENDINGS.split():
    _ENDINGS[f".{_ending}"] = "text"
_IMAGE_ENDINGS = frozenset({".png", ".jpg", ".jpeg", ".webp", ".bmp"})
# By ending: what the first bytes of a compressed file can be.
_MAGIC = {
    ".gz": (b"\x1f\x8b",),
    # A frame, or one of the 16 kinds of frames to skip (RFC 8878, 3.1.2), with which the files of
    # `pzstd` begin.
    ".zst": (b"\x28\xb5\x2f\xfd", *(bytes((low, 0x2A, 0x4D, 0x18)) for low in range(0x50, 0x60))),
    ".xz": (b"\xfd7zXZ\x00",),
    ".bz2": (b"BZh",),
}
# Compressed text takes about this many times as many bytes after decompression.
_UNPACKED_FACTOR = 4
_COMPRESSED_ENDINGS = frozenset({*_MAGIC, ".parquet"})
# `zstd --long=31`, used for dumps of forums, needs a window of 2 GB.
_ZSTD_WINDOW = 1 << 31
# Compressed bytes that are decompressed at once: the result may be a thousand times as large, and is in
# memory as a whole.
_ZSTD_READ = 1 << 10
# Bytes of a file that is compressed in another way that are read at once.
_STREAM_READ = 1 << 16
_STREAM_BUFFER = 1 << 18
# Bytes of the longest header of a frame; the header states the size of the window.
_ZSTD_HEADER = 18
_WINDOW_REMEDY = "unpack it first, or pack it again with a smaller window"
# Bytes that texts contain: control characters such as tab, line and page ends and escape, and all bytes
# that are not control characters.
_TEXT_BYTES = frozenset({7, 8, 9, 10, 11, 12, 13, 27, *range(32, 127), *range(128, 256)})
_SNIFF_BYTES = 1 << 13
_RECODED_BYTES = 1 << 16
# Byte-order marks at the beginning of a text, each with the encoding to convert from (None: it is UTF-8
# already). A longer mark comes before a shorter one with which it begins.
_BYTE_ORDER_MARKS: dict[bytes, str | None] = {
    codecs.BOM_UTF32_LE: "utf-32-le",
    codecs.BOM_UTF32_BE: "utf-32-be",
    codecs.BOM_UTF8: None,
    codecs.BOM_UTF16_LE: "utf-16-le",
    codecs.BOM_UTF16_BE: "utf-16-be",
}
# In a text of fewer pairs of bytes than this, zeros may be chance.
_MIN_PAIRS = 8


class BadFile(Exception):
    """A file cannot be used; the message gives the reason, worded to follow the file's name."""

    def __init__(self, problem: str, remedy: str = "") -> None:
        super().__init__(problem)
        self.problem = problem
        self.remedy = remedy or "fix the file, or leave it out with `exclude` in [data]"

    def at(self, path: str | Path) -> UserError:
        """Return the error to show for this file."""
        return UserError(ExitCode.DATA_MISSING, f"{path}: {self.problem}", self.remedy)


def format_of(name: PurePath) -> Format | None:
    """Return the format that a file's ending implies, in upper or lower case, or None."""
    return _ENDINGS.get(bare(name).suffix.lower())


def is_image(name: PurePath) -> bool:
    """Whether a file's ending implies an image. Only swarms that train on images know such endings."""
    return name.suffix.lower() in _IMAGE_ENDINGS


def unpacked_bytes(path: Path | str, size: int) -> int:
    """Estimate how many bytes of text a file of this size has; the exact number is known only after
    reading."""
    return size * (_UNPACKED_FACTOR if Path(path).suffix.lower() in _COMPRESSED_ENDINGS else 1)


def bare(name: PurePath) -> PurePath:
    """Return a file's name without the ending of a compressed file."""
    return name.with_suffix("") if name.suffix.lower() in _MAGIC else name


def looks_like_text(start: bytes) -> bool:
    """Whether bytes from a file's beginning are text, in any byte encoding.

    Texts have almost no control characters; compressed, compiled and packed bytes have many.
    """
    start = start[:_SNIFF_BYTES]
    strange = _count_non_text(start)
    # UTF-8 text contains no zero byte; other encodings of Unicode have been converted already.
    return b"\x00" not in start and strange * 100 <= len(start)


def _count_non_text(data: bytes) -> int:
    """Count the bytes of values that occur in no text."""
    return sum(data.count(byte) for byte in range(256) if byte not in _TEXT_BYTES)


@contextlib.contextmanager
def open_stream(path: Path, *, lines: bool = False) -> Iterator[TextStream]:
    """Open a file as UTF-8, decompressed if necessary. With `lines` each line ends with a line feed,
    even if lines in the file end with a carriage return alone. Raises `BadFile`."""
    with convert_errors(), open_regular(path) as raw:
        start = raw.read(6)
        raw.seek(0)
        ending = path.suffix.lower()
        kind = next((kind for kind, magic in _MAGIC.items() if start.startswith(magic)), None)
        if kind == ".bz2" and ending != kind and not start[3:4].isdigit():
            kind = None
        if ending in _MAGIC and kind != ending:
            raise BadFile(f"is not a {ending} file, despite its name: its first bytes differ")
        yield TextStream(raw, kind, lines)


class TextStream:
    """The bytes of an open file, decompressed and converted from any encoding of Unicode to UTF-8."""

    def __init__(self, raw: BinaryIO, kind: str | None, lines: bool) -> None:
        self._raw = raw
        start = _decompressed(raw, kind).read(_SNIFF_BYTES)
        raw.seek(0)
        self._decompressed = _decompressed(raw, kind)
        encoding, mark = _encoding(start)
        self._decompressed.read(mark)
        if encoding is not None:
            start = start.decode(encoding, "ignore").encode("utf-8", "ignore")
        returns = lines and b"\r" in start and b"\n" not in start
        if encoding is not None or returns:
            recoded = _Recoded(self._decompressed, encoding, returns)
            self._decompressed = io.BufferedReader(recoded, _RECODED_BYTES)

    def position(self) -> int:
        """Return how many bytes of the file itself have been read."""
        return self._raw.tell()

    def read(self, size: int) -> bytes:
        """Return the next bytes: `size`, or fewer at the end. Raises `BadFile`."""
        with convert_errors():
            return self._decompressed.read(size)

    def readline(self, size: int) -> bytes:
        """Return the rest of a line with its end, or its first `size` bytes. Raises `BadFile`."""
        with convert_errors():
            return self._decompressed.readline(size)


def _decompressed(raw: BinaryIO, kind: str | None) -> BinaryIO:
    unpacked: Any = raw
    if kind == ".gz":
        unpacked = gzip.GzipFile(fileobj=raw, mode="rb")
    elif kind == ".bz2":
        unpacked = io.BufferedReader(_Streams(raw, bz2.BZ2Decompressor), _STREAM_BUFFER)
    elif kind == ".xz":
        _check_dictionary(raw)
        unpacked = io.BufferedReader(_Streams(raw, lzma.LZMADecompressor), _STREAM_BUFFER)
    elif kind == ".zst":
        unpacked = io.BufferedReader(_Zstandard(raw), _STREAM_BUFFER)
    return unpacked


def _check_dictionary(raw: BinaryIO) -> None:
    """Raise `BadFile` for an .xz file whose dictionary does not fit into memory."""
    start = raw.read(_SNIFF_BYTES)
    raw.seek(0)
    limit = unpacking_limit()
    try:
        lzma.LZMADecompressor(memlimit=limit).decompress(start, max_length=1)
    except lzma.LZMAError as error:
        # The library has no type or attribute for this error: only the message names memory.
        if "Memory" in str(error):
            raise BadFile(
                f"needs more memory to unpack than the {limit / 1e6:.0f} MB that are free",
                _WINDOW_REMEDY,
            ) from None


def text_encoding(start: bytes) -> str | None:
    """Return the encoding of a text with this beginning: None for UTF-8, and where it is unknown."""
    return _encoding(start)[0]


def _encoding(start: bytes) -> tuple[str | None, int]:
    """Return the encoding of a text with this beginning (None: UTF-8 or unknown), and the length of its
    byte-order mark in bytes."""
    for mark, encoding in _BYTE_ORDER_MARKS.items():
        if start.startswith(mark):
            return encoding, len(mark)
    # Without a mark, UTF-16 is recognised by mostly Latin text: there every second byte is 0, and the
    # others are text.
    pairs = start[: len(start) // 2 * 2]
    for low, encoding in ((0, "utf-16-le"), (1, "utf-16-be")):
        text, zeros = pairs[low::2], pairs[1 - low :: 2].count(0)
        latin = zeros - _count_non_text(text)
        if len(text) >= _MIN_PAIRS and latin * 4 >= len(text) * 3:
            return encoding, 0
    return None, 0


class _Recoded(io.RawIOBase):
    """Text converted to UTF-8 from another encoding of Unicode or from other line ends."""

    def __init__(self, source: BinaryIO, encoding: str | None, returns: bool) -> None:
        self._source = source
        self._encoding = encoding
        self._decoder = codecs.getincrementaldecoder(encoding or "utf-8")()
        self._returns = returns
        self._ready = memoryview(b"")
        self._ended = False

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._ready and not self._ended:
            data = self._source.read(_RECODED_BYTES)
            self._ended = not data
            if self._encoding is not None:
                data = self._as_utf8(data)
            self._ready = memoryview(data.replace(b"\r", b"\n") if self._returns else data)
        count = min(len(buffer), len(self._ready))
        buffer[:count] = self._ready[:count]
        self._ready = self._ready[count:]
        return count

    def _as_utf8(self, data: bytes) -> bytes:
        try:
            return self._decoder.decode(data, final=self._ended).encode("utf-8")
        except UnicodeError:
            name = str(self._encoding).upper()
            raise BadFile(
                f"begins as {name}, and a later part is not",
                "convert it to UTF-8, or fetch it again",
            ) from None


@contextlib.contextmanager
def convert_errors() -> Iterator[None]:
    """Convert errors of reading and decompression to `BadFile`."""
    try:
        yield
    except EOFError:
        raise BadFile(
            "is cut short: the end of the compressed data is missing", _DAMAGED_REMEDY
        ) from None
    except (zlib.error, lzma.LZMAError, gzip.BadGzipFile) as error:
        raise BadFile(f"is damaged ({error})", _DAMAGED_REMEDY) from None
    except OSError as error:
        # bz2 raises a bare OSError for invalid data.
        problem = f"cannot be read ({error.strerror})" if error.errno else f"is damaged ({error})"
        raise BadFile(problem, _DAMAGED_REMEDY) from None


_DAMAGED_REMEDY = "download or make the file again, or leave it out with `exclude` in [data]"


def needs(package: str, what: str, extra: str = "create") -> UserError:
    """Return the error for a format whose library is not installed."""
    return UserError(
        ExitCode.DATA_MISSING,
        f"{what} cannot be read here: the package {package} is not installed",
        f"install it with: pip install 'distro-node[{extra}]'",
    )


class _Streams(io.RawIOBase):
    """Decompresses stream after stream of a .bz2 or .xz file, with zeros between and after them. The
    library's own files take whatever is no valid stream for the end, and lose what follows. Raises
    `EOFError` if the last stream is incomplete."""

    def __init__(
        self, raw: BinaryIO, new: Callable[[], bz2.BZ2Decompressor | lzma.LZMADecompressor]
    ) -> None:
        self._raw = raw
        self._new = new
        self._stream: bz2.BZ2Decompressor | lzma.LZMADecompressor | None = None

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = b""
        while not data:
            if self._stream is not None and self._stream.eof:
                packed = self._stream.unused_data
                self._stream = None
            else:
                packed = b""
            if self._stream is None:
                while not (packed := packed.lstrip(b"\0")):
                    packed = self._raw.read(_STREAM_READ)
                    if not packed:
                        return 0
                self._stream = self._new()
            elif self._stream.needs_input:
                packed = self._raw.read(_STREAM_READ)
                if not packed:
                    raise EOFError
            data = self._stream.decompress(packed, max_length=len(buffer))
        buffer[: len(data)] = data
        return len(data)


class _Zstandard(io.RawIOBase):
    """Decompresses frame after frame. Raises `EOFError` if the last frame is incomplete."""

    def __init__(self, raw: BinaryIO) -> None:
        try:
            import zstandard
        except ImportError:
            raise needs("zstandard", "a .zst file") from None
        self._library = zstandard
        self._raw = raw
        self._frame: Any = None
        self._ready = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._ready:
            data = self._raw.read(_ZSTD_READ)
            if not data:
                if self._frame is not None:
                    raise EOFError
                return 0
            self._ready = memoryview(self._unpack(data))
        count = min(len(buffer), len(self._ready))
        buffer[:count] = self._ready[:count]
        self._ready = self._ready[count:]
        return count

    def _unpack(self, data: bytes) -> bytes:
        parts = []
        while data:
            if self._frame is None:
                if len(data) < _ZSTD_HEADER:
                    data += self._raw.read(_ZSTD_HEADER - len(data))
                self._check_window(data)
                unpacker = self._library.ZstdDecompressor(max_window_size=_ZSTD_WINDOW)
                self._frame = unpacker.decompressobj()
            try:
                parts.append(self._frame.decompress(data))
            except self._library.ZstdError as error:
                raise BadFile(f"is damaged ({error})", _DAMAGED_REMEDY) from None
            if not self._frame.eof:
                break
            data = self._frame.unused_data
            self._frame = None
        return b"".join(parts)

    def _check_window(self, frame: bytes) -> None:
        """Raise `BadFile` for a frame whose window does not fit into memory."""
        try:
            window = self._library.get_frame_parameters(frame).window_size
        except self._library.ZstdError:
            # The frame is damaged, which decompressing it reports, or is of a kind without a window.
            return
        if (shortage := memory_shortage(window)) is not None:
            raise BadFile(f"is packed with a window that {shortage}", _WINDOW_REMEDY)
