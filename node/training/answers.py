"""The trainer's answers, as values that the node process passes on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ...protocol.audit.sign_score import SignSums
from ...protocol.member.auditor import AuditScored
from ...protocol.wire.manifest import AdapterSpec, ParameterSpec
from ...protocol.wire.messages import AuditScore
from ...protocol.wire.work_specs import ProbeSpec


@dataclass(frozen=True)
class StepApplied:
    """Result of a step: the new parameters' fingerprint, and the seconds that the step took."""

    fingerprint: int
    seconds: float
    left_out: int
    """Number of updates that the outlier filter left out of the step, because others contradict them."""


@dataclass(frozen=True)
class Judgement:
    """How well an audited update agrees with a sample."""

    full_sample: SignSums
    first_half: SignSums | None
    """The agreement with the first half of the sample's targets alone; None if the task's samples cannot
    be halved."""

    @classmethod
    def read(cls, found: dict[str, Any]) -> Judgement:
        """Read a judgement from the trainer process's answer."""
        half = found["first_half"]
        whole = SignSums(**found["full_sample"])
        return cls(whole, None if half is None else SignSums(**half))

    def to_input(self, round_: int) -> AuditScored:
        """Return the judgement as the input of the member's state machine."""
        whole, half = self.full_sample, self.first_half
        beginning = (
            AuditScore(half.total, half.squares) if half is not None and half.squares else None
        )
        return AuditScored(round_, whole.total, whole.squares, beginning)


@dataclass(frozen=True)
class SnapshotResult:
    """The encoded blob list of a snapshot whose chunks are in the store, and its size in bytes."""

    blob_list: bytes
    size: int


@dataclass(frozen=True)
class ExportedParameters:
    """Parameters of an exported model: their fingerprint and the blob list of their snapshot, and which
    files of the export differ from the swarm's."""

    fingerprint: int
    blob_list: bytes
    differing: list[str]
    """The files, and keys in them, that differ from those that the swarm's export has."""
    unchecked: list[str]
    """Files that a program might read and that could not be compared."""


@dataclass(frozen=True)
class InitialModel:
    """A manifest's parameter table and its initial snapshot, as in `SnapshotResult`."""

    parameters: tuple[ParameterSpec, ...]
    blob_list: bytes
    size: int
    adapter: AdapterSpec | None = None
    """The manifest's entry for adapters, if any. The base's chunks and their list are in the store."""
    probe: ProbeSpec | None = None
    """The probe by which members prove that they compute this model; None if its task offers none."""
