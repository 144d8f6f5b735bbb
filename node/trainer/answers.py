"""What a trainer answers, as values that the node process hands on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ...protocol.checks.agreement import Agreement
from ...protocol.member.inputs import Judged
from ...protocol.wire.manifest import AdapterSpec, ParameterSpec
from ...protocol.wire.messages import Score
from ...protocol.wire.work_specs import ProbeSpec


@dataclass(frozen=True)
class Applied:
    """The parameters after a step."""

    fingerprint: int
    seconds: float
    left_out: int
    """Updates that the others contradict and the audit has therefore left out of the step."""


@dataclass(frozen=True)
class Judgement:
    """How well an update agrees with a sample that was looked at."""

    whole: Agreement
    beginning: Agreement | None
    """With the first half of what is learned in it alone; None where a task's samples have no halves."""

    @classmethod
    def read(cls, found: dict[str, Any]) -> Judgement:
        """As the trainer process has written it."""
        half = found["beginning"]
        whole = Agreement(**found["whole"])
        return cls(whole, None if half is None else Agreement(**half))

    def said_of(self, round_: int) -> Judged:
        """What the member is told of it."""
        whole, half = self.whole, self.beginning
        beginning = Score(half.total, half.squares) if half is not None and half.squares else None
        return Judged(round_, whole.total, whole.squares, beginning)


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
    probe: ProbeSpec | None = None
    """By which members prove that they compute this model; None if its task offers none."""
