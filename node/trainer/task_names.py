"""Which tasks there are on this machine, by name, and what a manifest may say of the built-in ones.

A task is built in or comes with a package that the owner has installed (entry points of the group
`distro_node.tasks`). A manifest only names it: nothing of a task ever comes from a peer. Both processes
use this, so nothing here imports torch, and no package is loaded to see whether it is there.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec
from typing import Annotated, Any, Literal

from ...protocol.wire.manifest import Name
from ...protocol.wire.structure import Length, Range, StructureError, from_plain
from ..errors import ExitCode, UserError

ENTRY_POINTS = "distro_node.tasks"
"""The group under which packages offer tasks."""

CAUSAL_LM = "causal_lm"
SFT = "sft"
MASKED_LM = "masked_lm"
DIFFUSION = "diffusion"
NO_TOKENIZER = b"{}"
"""The blob in the place of a `tokenizer.json` where no text is learned from."""
BUILT_IN = (CAUSAL_LM, SFT, MASKED_LM, DIFFUSION)


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


@dataclass(frozen=True, kw_only=True)
class ImageSettings:
    """Of `diffusion`.

    A sample is the number of its class, if there are classes, in `label_bytes` bytes, the lowest first,
    and then the values of its pixels: row by row, the channels of a pixel beside each other.
    """

    size: Annotated[int, Range(4, 512)]
    """Pixels on each side of an image."""
    channels: Literal[1, 3] = 3
    """1: shades of grey, 3: red, green and blue."""
    classes: Annotated[tuple[Name, ...], Length(0, 4096)] = ()
    """What the images are of, if the model is told. The number of a class is its place in here."""
    schedule: Literal["cosine", "linear"] = "cosine"
    """How noise grows from step to step."""
    steps: Annotated[int, Range(50, 10_000)] = 1000
    """From an image to nothing but noise."""

    def __post_init__(self) -> None:
        if len(set(self.classes)) < len(self.classes):
            raise ValueError("classes: a name stands there twice")

    @property
    def values(self) -> int:
        """Numbers of an image."""
        return self.channels * self.size**2

    @property
    def label_bytes(self) -> int:
        """Bytes in front of them."""
        return 0 if not self.classes else 1 if len(self.classes) <= 1 << 8 else 2

    @property
    def sample_bytes(self) -> int:
        """Bytes of a sample."""
        return self.label_bytes + self.values


Settings = NoSettings | MaskedSettings | ImageSettings


def built_in_settings(task: str, settings: dict[str, Any] | None) -> Settings:
    """The settings of a built-in task. Raises `StructureError`."""
    kinds: dict[str, type[Settings]] = {MASKED_LM: MaskedSettings, DIFFUSION: ImageSettings}
    kind = kinds.get(task, NoSettings)
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
    """Raise `UserError` (`NO_TASK`) unless the task, and what it needs, is built in or installed."""
    if task == DIFFUSION:
        for package in ("diffusers", "PIL"):
            if find_spec(package) is None:
                raise _lacking(package)
    if task not in BUILT_IN and entry_point(task) is None:
        raise no_task(f"the swarm trains the task {task!r}, which is not installed here")


def _lacking(package: str) -> UserError:
    return UserError(
        ExitCode.NO_TASK,
        f"the task 'diffusion' needs the package {package}, which is not installed here",
        "install it with: pip install 'distro-node[train,diffusion]'",
    )


def no_task(problem: str) -> UserError:
    """The error for a task that cannot be had."""
    return UserError(
        ExitCode.NO_TASK,
        problem,
        "install the package that brings it, from a source that you trust; built in are "
        + ", ".join(BUILT_IN),
    )
