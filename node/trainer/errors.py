"""What can go wrong between the node process and its trainer."""

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
    "no_task",
    "disk_full",
    "disk_broken",
    "internal",
]

FAILURE_KINDS: tuple[FailureKind, ...] = get_args(FailureKind)


class TrainerDied(Exception):
    """The trainer process ended, or never spoke; it can be started again.

    `micro_batch`, where it ended for want of memory: how many sequences at once are worth a try, 0 if
    one was too much.
    """

    def __init__(self, message: str, micro_batch: int | None = None) -> None:
        super().__init__(message)
        self.micro_batch = micro_batch


class TrainerFailed(Exception):
    """The trainer could not do what was asked and said why; the process goes on living.

    `kind` says whose matter it is: `no_device`, `out_of_memory`, `model_too_large`, `disk_full` and
    `disk_broken` are for the user to mend, `other_model` says that this computer computes another
    function than the swarm's model, `bad_model`, `bad_data` and `bad_snapshot` come from the
    manifest or the blobs it names, `no_task` is a task that is not installed, `missing_data` is mended
    by fetching it again, `internal` is a bug of ours.
    """

    def __init__(self, kind: FailureKind, message: str) -> None:
        super().__init__(message)
        self.kind: FailureKind = kind
