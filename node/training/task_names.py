"""The tasks available on this machine, by name, and the manifest settings of the built-in ones.

A task is built in or comes with a package that the owner has installed (entry points of the group
`distro_node.tasks`). A manifest only names it: code of a task never comes from a peer. The node process
uses this module as well as the trainer, so nothing here imports torch, and looking whether a task's
package is installed does not load it.
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
"""The group of entry points under which packages offer tasks."""

CAUSAL_LM = "causal_lm"
SFT = "sft"
DPO = "dpo"
GRPO = "grpo"
MASKED_LM = "masked_lm"
DIFFUSION = "diffusion"
TEXT_CLASSIFICATION = "text_classification"
IMAGE_CLASSIFICATION = "image_classification"
NO_TOKENIZER = b"{}"
"""The blob used instead of a `tokenizer.json` if the data is not text."""
BUILT_IN = (
    CAUSAL_LM,
    SFT,
    DPO,
    GRPO,
    MASKED_LM,
    DIFFUSION,
    TEXT_CLASSIFICATION,
    IMAGE_CLASSIFICATION,
)
CLASSIFICATION = frozenset({TEXT_CLASSIFICATION, IMAGE_CLASSIFICATION})
"""The tasks whose model names the class of a sample."""
WITH_ACCURACY = CLASSIFICATION | {DPO}
"""The tasks whose held-out samples have right and wrong answers: an accuracy is measured beside the
loss."""
WITHOUT_DROPOUT = frozenset({DPO, GRPO})
"""The tasks that train without dropout, whatever the checkpoint's configuration says."""
OF_MANY_LENGTHS = frozenset({TEXT_CLASSIFICATION})
"""The tasks in whose batches the longest sample determines the length."""
ON_IMAGES = frozenset({DIFFUSION, IMAGE_CLASSIFICATION})
"""The tasks whose samples are images."""

LOSS_UNITS = {
    CAUSAL_LM: "nats a token",
    SFT: "nats a token of the assistant's",
    DPO: "nats a pair of answers",
    GRPO: "missed reward of a completion, of 1",
    MASKED_LM: "nats a hidden token",
    DIFFUSION: "squared error of the noise in a value of a pixel",
    TEXT_CLASSIFICATION: "nats a sample",
    IMAGE_CLASSIFICATION: "nats a sample",
}
"""The unit of the loss of each built-in task."""

_MAX_CLASSES = 4096


@dataclass(frozen=True, kw_only=True)
class NoSettings:
    """Settings of a task that has none."""


@dataclass(frozen=True, kw_only=True)
class PreferenceSettings:
    """Settings of `dpo`."""

    beta: Annotated[float, Range(1e-4, 100.0)] = 0.1
    """How strongly the loss holds the model to the start: the factor of the margin by which it prefers
    the chosen answer more than the start does."""
    label_smoothing: Annotated[float, Range(0.0, 0.49)] = 0.0
    """The share of the pairs whose answers are assumed to be swapped by mistake."""


@dataclass(frozen=True, kw_only=True)
class RewardSettings:
    """Settings of `grpo`."""

    max_new_tokens: Annotated[int, Range(1, 4096)]
    """The most tokens of a completion. A prompt has at most `sequence_length` less this many."""
    checker: Name = "exact"
    """The rule that rewards a completion: `exact`, `regex` or that of an installed package
    (`reward_rules`)."""
    extract: Annotated[str, Length(1, 1000)] | None = None
    """With `exact`: a regular expression whose first group, where it first matches the completion, is
    compared with the answer; None: the whole completion is."""
    group: Annotated[int, Range(2, 64)] = 8
    """Number of completions sampled for a prompt."""
    temperature: Annotated[float, Range(0.01, 10.0)] = 1.0
    """The logits of the sampled policy are divided by this."""
    advantage: Literal["mean", "std"] = "mean"
    """What is taken from a reward: `mean`, the mean of its group; `std`: the result is also divided by
    the group's standard deviation."""

    def __post_init__(self) -> None:
        if self.extract is not None and self.checker != "exact":
            raise ValueError("extract: belongs to checker = 'exact'")


@dataclass(frozen=True, kw_only=True)
class MaskedSettings:
    """Settings of `masked_lm`."""

    mask_token: Annotated[int, Range(0, 2**31)]
    """The token that replaces a masked token."""
    share: Annotated[float, Range(0.01, 0.9)] = 0.15
    """The share of the tokens that are masked."""


def label_width(classes: int) -> int:
    """Return the number of bytes that hold the number of one of so many classes: 0 without classes."""
    return 0 if not classes else 1 if classes <= 1 << 8 else 2


def _require_distinct(classes: tuple[str, ...]) -> None:
    if len(set(classes)) < len(classes):
        raise ValueError("classes: a name occurs twice")


@dataclass(frozen=True, kw_only=True)
class PixelSettings:
    """The form of a sample that is an image.

    A sample is the number of its class, if there are classes, in `label_bytes` bytes (little-endian),
    followed by the values of its pixels: row by row, with all channels of a pixel together.
    """

    size: Annotated[int, Range(4, 512)]
    """Pixels on each side of an image."""
    channels: Literal[1, 3] = 3
    """1: shades of grey, 3: red, green and blue."""
    classes: Annotated[tuple[Name, ...], Length(0, _MAX_CLASSES)] = ()
    """The names of the images' classes, if the model is given them. The number of a class is its
    place in this list."""

    def __post_init__(self) -> None:
        _require_distinct(self.classes)

    @property
    def values(self) -> int:
        """Number of values in an image: one for each channel of each pixel."""
        return self.channels * self.size**2

    @property
    def label_bytes(self) -> int:
        """Number of bytes before the values."""
        return label_width(len(self.classes))

    @property
    def sample_bytes(self) -> int:
        """Number of bytes in a sample."""
        return self.label_bytes + self.values


@dataclass(frozen=True, kw_only=True)
class ImageSettings(PixelSettings):
    """Settings of `diffusion`."""

    schedule: Literal["cosine", "linear"] = "cosine"
    """The noise schedule: how the noise grows from step to step."""
    steps: Annotated[int, Range(50, 10_000)] = 1000
    """Number of steps from an image to pure noise."""


_Values = Annotated[tuple[Annotated[float, Range(0.0, 1.0)], ...], Length(1, 3)]
_Spreads = Annotated[tuple[Annotated[float, Range(0.001, 1.0)], ...], Length(1, 3)]


@dataclass(frozen=True, kw_only=True)
class ImageClassSettings(PixelSettings):
    """Settings of `image_classification`. The model's input is (value / 255 - mean) / std."""

    mean: _Values = (0.5,)
    """The value that becomes 0, of white 1: one number, or one for each channel."""
    std: _Spreads = (0.5,)
    """The distance from `mean` that becomes 1: one number, or one for each channel."""

    def __post_init__(self) -> None:
        super().__post_init__()
        _require_several(self.classes)
        for key, numbers in (("mean", self.mean), ("std", self.std)):
            if len(numbers) not in (1, self.channels):
                raise ValueError(
                    f"{key}: has {len(numbers)} numbers; give one, or one for each of the "
                    f"{self.channels} channels"
                )


@dataclass(frozen=True, kw_only=True)
class TextClassSettings:
    """Settings of `text_classification`.

    A sample is the number of its class, followed by the tokens of its text and padding up to
    `sequence_length` numbers in all.
    """

    classes: Annotated[tuple[Name, ...], Length(0, _MAX_CLASSES)] = ()
    """The names of the classes. The number of a class is its place in this list."""
    pad_token: Annotated[int, Range(0, 2**31)]
    """The token that fills the rest of a sample. The model does not attend to it."""

    def __post_init__(self) -> None:
        _require_distinct(self.classes)
        _require_several(self.classes)


def _require_several(classes: tuple[str, ...]) -> None:
    if len(classes) < 2:
        raise ValueError('classes: name two or more, such as classes = ["no", "yes"]')


Settings = (
    NoSettings
    | PreferenceSettings
    | RewardSettings
    | MaskedSettings
    | ImageSettings
    | ImageClassSettings
    | TextClassSettings
)


def built_in_settings(task: str, settings: dict[str, Any] | None) -> Settings:
    """Return the settings of a built-in task. Raises `StructureError` if they are invalid."""
    kinds: dict[str, type[Settings]] = {
        DPO: PreferenceSettings,
        GRPO: RewardSettings,
        MASKED_LM: MaskedSettings,
        DIFFUSION: ImageSettings,
        IMAGE_CLASSIFICATION: ImageClassSettings,
        TEXT_CLASSIFICATION: TextClassSettings,
    }
    kind = kinds.get(task, NoSettings)
    try:
        return from_plain(kind, settings or {}, named=True)
    except StructureError as error:
        raise error.inside("task_settings") from None


def input_tokens(task: str, sequence_length: int) -> int:
    """Return the most tokens that a model of this task reads at once: those of a sample or, if a sample
    is a pair, half of them."""
    return sequence_length // 2 if task == DPO else sequence_length


def completions(task: str, settings: dict[str, Any] | None) -> int:
    """Return how many completions a built-in task samples of each sample: 0 if it samples none, or if
    the settings are invalid."""
    try:
        found = built_in_settings(task, settings) if task == GRPO else None
    except StructureError:
        return 0
    return found.group if isinstance(found, RewardSettings) else 0


def class_names(task: str, settings: dict[str, Any] | None) -> tuple[str, ...]:
    """Return the names of the classes that a built-in task tells apart, empty for other tasks. Raises
    `StructureError` if the settings are invalid."""
    if task not in CLASSIFICATION:
        return ()
    found = built_in_settings(task, settings)
    return found.classes if isinstance(found, (ImageClassSettings, TextClassSettings)) else ()


def entry_point(task: str) -> EntryPoint | None:
    """Return the entry point of an installed task, as `only_entry_point` does."""
    return only_entry_point(ENTRY_POINTS, "task", task)


def only_entry_point(group: str, what: str, name: str) -> EntryPoint | None:
    """Return the entry point of this group and name; None if there is none. Raises `UserError`
    (`NO_TASK`) if several packages offer it: the choice would decide what is learned. `what` it is
    appears in the error."""
    # Python may list a package twice: by its folder and by a link to it.
    found = {point.value: point for point in entry_points(group=group, name=name)}
    if len(found) > 1:
        raise UserError(
            ExitCode.NO_TASK,
            f"several packages provide the {what} {name!r}: {', '.join(sorted(found))}",
            "uninstall those that the swarm does not use",
        )
    return next(iter(found.values()), None)


def require_task(task: str) -> None:
    """Raise `UserError` (`NO_TASK`) unless the task, and what it needs, is built in or installed."""
    if task == DIFFUSION:
        for package in ("diffusers", "PIL"):
            if find_spec(package) is None:
                raise _missing_package(package)
    if task not in BUILT_IN and entry_point(task) is None:
        raise no_task(f"the swarm trains the task {task!r}, which is not installed here")


def _missing_package(package: str) -> UserError:
    return UserError(
        ExitCode.NO_TASK,
        f"the task 'diffusion' needs the package {package}, which is not installed here",
        "install it with: pip install 'distro-node[train,diffusion]'",
    )


def no_task(problem: str) -> UserError:
    """Return the error for a task that is not available."""
    return UserError(
        ExitCode.NO_TASK,
        problem,
        "install the package that provides it, from a source that you trust; built in are "
        + ", ".join(BUILT_IN),
    )
