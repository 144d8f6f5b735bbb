"""What a trainer answers, as values that the node process hands on."""

from __future__ import annotations

from dataclasses import dataclass

from ...protocol.wire.manifest import AdapterSpec, ParameterSpec


@dataclass(frozen=True)
class Applied:
    """The parameters after a step."""

    fingerprint: int
    seconds: float
    left_out: int
    """Updates that the others contradict and the audit has therefore left out of the step."""


@dataclass(frozen=True)
class SnapshotResult:
    """The encoded blob list of a snapshot whose chunks are in the store, and its size in bytes."""

    blob_list: bytes
    size: int


@dataclass(frozen=True)
class Examined:
    """An exported model's parameters: their fingerprint, and the blob list that a snapshot of them
    has."""

    fingerprint: int
    blob_list: bytes
    differing: tuple[str, ...]
    """The keys of its configuration that are not as the manifest says."""
    tokenizer: bytes
    """The content id of its `tokenizer.json`; of `NO_TOKENIZER` if there is none."""


@dataclass(frozen=True)
class InitialModel:
    """A manifest's parameter table, and its initial snapshot as in `SnapshotResult`."""

    parameters: tuple[ParameterSpec, ...]
    blob_list: bytes
    size: int
    adapter: AdapterSpec | None = None
    """Of adapters: what the manifest says of them. The base's chunks and their list are in the store."""
