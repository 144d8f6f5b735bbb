"""Which tasks there are on this machine, by name, and what a manifest may say of the built-in ones.

A task is built in or comes with a package that the owner has installed (entry points of the group
`distro_node.tasks`). A manifest only names it: nothing of a task ever comes from a peer. Both processes
use this, so nothing here imports torch, and no package is loaded to see whether it is there.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from typing import Annotated, Any

from ...protocol.wire.structure import Range, StructureError, from_plain
from ..errors import ExitCode, UserError

ENTRY_POINTS = "distro_node.tasks"
"""The group under which packages offer tasks."""

CAUSAL_LM = "causal_lm"
SFT = "sft"
MASKED_LM = "masked_lm"
BUILT_IN = (CAUSAL_LM, SFT, MASKED_LM)


@dataclass(frozen=True, kw_only=True)
class NoSettings:
    """Of a task that has none."""


@dataclass(frozen=True, kw_only=True)
class MaskedSettings:
    """Of `masked_lm`."""

    mask_token: Annotated[int, Range(0, 2**31)]
    """What stands in the place of a token that is to be found."""
    share: Annotated[float, Range(0.01, 0.9)] = 0.15
    """Of the tokens, how many are to be found."""


def built_in_settings(task: str, settings: dict[str, Any] | None) -> NoSettings | MaskedSettings:
    """The settings of a built-in task. Raises `StructureError`."""
    kind = MaskedSettings if task == MASKED_LM else NoSettings
    try:
        return from_plain(kind, settings or {}, named=True)
    except StructureError as error:
        raise error.inside("task_settings") from None


def entry_point(task: str) -> EntryPoint | None:
    """Where an installed package has a task; None if none has. Raises `UserError` (`NO_TASK`) if several
    have: which of them is meant decides what is learned."""
    # A package may be listed twice, by its folder and by a link to it.
    found = {point.value: point for point in entry_points(group=ENTRY_POINTS, name=task)}
    if len(found) > 1:
        raise UserError(
            ExitCode.NO_TASK,
            f"several packages bring the task {task!r}: {', '.join(sorted(found))}",
            "uninstall those that the swarm does not mean",
        )
    return next(iter(found.values()), None)


def require_task(task: str) -> None:
    """Raise `UserError` (`NO_TASK`) unless the task is built in or installed."""
    if task not in BUILT_IN and entry_point(task) is None:
        raise no_task(f"the swarm trains the task {task!r}, which is not installed here")


def no_task(problem: str) -> UserError:
    """The error for a task that cannot be had."""
    return UserError(
        ExitCode.NO_TASK,
        problem,
        "install the package that brings it, from a source that you trust; built in are "
        + ", ".join(BUILT_IN),
    )
