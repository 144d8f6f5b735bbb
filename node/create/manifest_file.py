"""The file a founder writes: TOML that describes a run, before data and model are made from it.

Whatever is in the file, the result is a `ManifestFile` or one `UserError` that names the file, the
key, what is wrong with it and, for an unknown key, the nearest known one.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from ...protocol.wire.manifest import MAX_MEMBERS, Name, OptimizerSpec, RoundSpec, ScheduleSpec, Url
from ...protocol.wire.structure import Length, Range, StructureError, from_plain
from ..errors import ExitCode, UserError

# A long comment on every key makes ten kilobytes.
MAX_MANIFEST_FILE_BYTES = 1 << 20

BYTES_TOKENIZER = "bytes"

_Pattern = Annotated[str, Length(1, 256)]
_FilePath = Annotated[str, Length(1, 4096)]


@dataclass(frozen=True, kw_only=True)
class DataTable:
    """`[data]`: which files, and how they become tokens."""

    sequence_length: Annotated[int, Range(2, 1 << 20)]
    """Tokens in one training sequence."""
    tokenizer: _FilePath = BYTES_TOKENIZER
    """`bytes`, or the path of a `tokenizer.json`, relative to the manifest file."""
    document_end: Annotated[str, Length(0, 64)] = ""
    """Text put behind each file, such as the tokenizer's end-of-text token."""
    paths: Annotated[tuple[_FilePath, ...], Length(0, 10_000)] = ()
    """Files and directories, relative to the manifest file; `--data` replaces them."""
    include: Annotated[tuple[_Pattern, ...], Length(1, 100)] = ("*.txt", "*.md")
    """Which files of a directory count."""
    heldout: Annotated[tuple[_Pattern, ...], Length(0, 100)] = ()
    """Which files are held out for evaluation; empty: a fraction of all."""
    heldout_fraction: Annotated[float, Range(0.0001, 0.5)] = 0.05
    mirrors: Annotated[tuple[Url, ...], Length(0, 8)] = ()
    """Web folders (https://…) that hold what the data directory's `blobs/` does: members need not serve
    the training data to each other then."""


@dataclass(frozen=True, kw_only=True)
class AdmissionTable:
    """`[admission]`: as in the manifest, with the issuer as text; without one it is the founder."""

    policy: Literal["open", "invite"] = "open"
    issuer: Annotated[str, Length(1, 64)] | None = None
    max_members: Annotated[int, Range(1, MAX_MEMBERS)] = 256


@dataclass(frozen=True, kw_only=True)
class ManifestFile:
    """The whole file."""

    name: Name
    seed: Annotated[int, Range(0, 2**63 - 1)] = 0
    task: Literal["causal_lm"] = "causal_lm"
    fault_model: Literal["crash", "byzantine"] = "byzantine"
    model: dict[str, Any]
    data: DataTable
    optimizer: OptimizerSpec = field(default_factory=OptimizerSpec)
    schedule: ScheduleSpec = field(default_factory=ScheduleSpec)
    rounds: RoundSpec = field(default_factory=RoundSpec)
    admission: AdmissionTable = field(default_factory=AdmissionTable)


def read_manifest_file(path: Path) -> ManifestFile:
    """Read a founder's manifest file. Raises `UserError` (`MANIFEST`)."""
    try:
        with path.open("rb") as file:
            data = file.read(MAX_MANIFEST_FILE_BYTES + 1)
    except OSError as error:
        raise bad_manifest(path, f"cannot be read ({error.strerror})") from None
    if len(data) > MAX_MANIFEST_FILE_BYTES:
        raise bad_manifest(path, f"is larger than {MAX_MANIFEST_FILE_BYTES >> 20} MB")
    try:
        content = tomllib.loads(data.decode("utf-8"))
    except UnicodeDecodeError:
        raise bad_manifest(path, "is not text in UTF-8") from None
    except tomllib.TOMLDecodeError as error:
        raise bad_manifest(path, f"is not TOML: {error}") from None
    except RecursionError:
        raise bad_manifest(path, "is nested too deeply") from None
    try:
        return from_plain(ManifestFile, content, named=True)
    except StructureError as error:
        raise bad_manifest(path, str(error)) from None


def bad_manifest(path: Path, problem: str) -> UserError:
    """The error for a manifest file with this problem."""
    return UserError(
        ExitCode.MANIFEST,
        f"{path}: {problem}",
        "mend the file; `distro-node create --example` prints a commented one that works",
    )
