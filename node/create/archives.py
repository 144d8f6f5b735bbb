"""Files that may contain text and are not read as they are: archives, documents with a layout, and files
compressed in a way that is not supported.

They are recognised by their name. Archives and PDF documents are recognised by their first bytes as
well, because their name may promise text.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import PurePath


@dataclass(frozen=True)
class UnreadKind:
    """Why files of a kind are not read, and what to do instead."""

    what: str
    """What a file is, worded to follow "is"."""
    reason: str
    """Why several files are left out, worded to follow their number."""
    remedy: str


_ARCHIVE = UnreadKind(
    "an archive of files, which is not read as it is",
    "packed as archives, which must be unpacked first",
    "unpack it into a folder, and give that folder with --data or in [data]",
)
_LAID_OUT = UnreadKind(
    "a document with a layout, which is not read as it is",
    "documents with a layout, which must be converted to text first",
    "convert it to text, and give that file with --data or in [data]",
)
_COMPRESSED = UnreadKind(
    "compressed in a way that is not read",
    "compressed in another way than .gz, .zst, .xz or .bz2",
    "unpack it, or compress it as .gz, .zst, .xz or .bz2",
)

_ARCHIVE_ENDINGS = "tar tgz tbz tbz2 txz tzst zip 7z rar cab iso jar cpio dmg"
_LAID_OUT_ENDINGS = "pdf doc docx odt rtf epub mobi djvu ps xls xlsx ods ppt pptx odp"
_COMPRESSED_ENDINGS = "lz4 lz lzma lzo z br sz snappy"
_KINDS = {
    f".{ending}": kind
    for endings, kind in (
        (_ARCHIVE_ENDINGS, _ARCHIVE),
        (_LAID_OUT_ENDINGS, _LAID_OUT),
        (_COMPRESSED_ENDINGS, _COMPRESSED),
    )
    for ending in endings.split()
}
_ARCHIVE_MAGIC = (b"PK\x03\x04", b"PK\x05\x06", b"7z\xbc\xaf\x27\x1c", b"Rar!\x1a\x07")
# Where the header of a tar archive's first file names the format.
_TAR_MAGIC_AT, _TAR_MAGIC = 257, b"ustar"


def unread_kind(name: PurePath) -> UnreadKind | None:
    """Return why a file of this name is not read; None if the name tells nothing of that sort. An
    ending of a supported compression, such as .gz, is already removed from `name`."""
    return _KINDS.get(name.suffix.lower())


def unread_content(start: bytes) -> UnreadKind | None:
    """Return why a file is not read whose unpacked bytes begin with `start`; None if that is unknown."""
    if start.startswith(b"%PDF-"):
        return _LAID_OUT
    is_tar = start.startswith(_TAR_MAGIC, _TAR_MAGIC_AT)
    return _ARCHIVE if is_tar or start.startswith(_ARCHIVE_MAGIC) else None
