"""The errors by which a trainer's failures reach the node process."""

from __future__ import annotations

from typing import Literal, get_args

FailureKind = Literal[
    "out_of_memory",
    "no_device",
    "model_too_large",
    "bad_model",
    "other_model",
    "bad_data",
    "missing_data",
    "bad_snapshot",
    "not_convertible",
    "no_task",
    "disk_full",
    "disk_broken",
    "internal",
]

FAILURE_KINDS: tuple[FailureKind, ...] = get_args(FailureKind)


class TrainerDied(Exception):
    """The trainer process ended or never answered; it can be started again.

    `micro_batch`: if it ended for lack of memory, the number of sequences at once to try next, 0 if a
    single one was too much; otherwise None.
    """

    def __init__(self, message: str, micro_batch: int | None = None) -> None:
        super().__init__(message)
        self.micro_batch = micro_batch


class TrainerFailed(Exception):
    """The trainer could not carry out a request and reported why; the process lives on.

    `kind` tells who can mend it: the user can mend `no_device`, `out_of_memory`, `model_too_large`,
    `disk_full` and `disk_broken`; `other_model` means that this computer computes another function
    than the swarm's model; `bad_model`, `bad_data` and `bad_snapshot` are faults of the manifest or of
    the blobs that it names; `not_convertible` is a limit of the format that an export was asked for;
    `no_task` means that the task is not installed; `missing_data` is mended
    by fetching the data again; `internal` is a bug in this program.
    """

    def __init__(self, kind: FailureKind, message: str) -> None:
        super().__init__(message)
        self.kind: FailureKind = kind
