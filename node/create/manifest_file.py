"""The file a founder writes: TOML that describes a run, before data and model are made from it.

The result is a `ManifestFile` or, whatever is in the file, one `UserError` that names the file, the key,
the fault and, for an unknown key, the nearest known one.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Annotated, Any, Literal

from ...protocol.wire.manifest import (
    MAX_MEMBERS,
    ChecksSpec,
    Name,
    OptimizerSpec,
    Preconditioner,
    RoundSpec,
    Say,
    ScheduleSpec,
    SpeakersSpec,
    Step,
    TaskName,
    TokenType,
    Url,
)
from ...protocol.wire.structure import Length, Range, StructureError, from_plain
from ..errors import ExitCode, UserError
from ..trainer.task_names import CAUSAL_LM, DIFFUSION
from .formats import Format

# A long comment on every key makes ten kilobytes.
MAX_MANIFEST_FILE_BYTES = 1 << 20

BYTES_TOKENIZER = "bytes"

_Pattern = Annotated[str, Length(1, 256)]
_FilePath = Annotated[str, Length(1, 4096)]


_Patterns = Annotated[tuple[_Pattern, ...], Length(1, 100)]
_Paths = Annotated[tuple[_FilePath, ...], Length(0, 10_000)]
_Column = Annotated[str, Length(1, 256)]


@dataclass(frozen=True, kw_only=True)
class SourceTable:
    """Where text lies, and how it is got out: `[[data.source]]`, or these keys in `[data]` itself."""

    paths: _Paths = ()
    """Files and folders, relative to the manifest file, and hf://owner/name[/config][:split]; in [data],
    `--data` replaces them."""
    include: _Patterns | None = None
    """Which files of a folder count; without it all whose ending says what they are."""
    exclude: Annotated[tuple[_Pattern, ...], Length(0, 100)] = ()
    """Which of them do not."""
    format: Format | None = None
    """What the files are, where their endings do not say it."""
    text: _Column | None = None
    """The column that holds the text; without it and `template` the one called text."""
    template: Annotated[str, Length(1, 65_536)] | None = None
    """The text made of several columns: "{title}\\n\\n{body}"."""
    messages: _Column | None = None
    """The column that holds a conversation, for a task that learns from some; without it and `prompt`
    the one called messages."""
    prompt: _Column | None = None
    """Two columns instead: what the assistant is asked, …"""
    completion: _Column | None = None
    """… and what it answers."""
    image: _Column | None = None
    """The column that holds images, for a task that learns from some; without it the one called
    image."""
    label: _Column | None = None
    """The column that says of which class an image is; without it the one called label."""
    split: _Column | None = None
    """Which split of a data set; without it `train`."""
    config: _Column | None = None
    """Which configuration of a data set, where it has several and none is the default."""
    token_type: TokenType | None = None
    """The type of the numbers in an array of tokens; without it what the array or a file beside it says,
    else `uint16`, or `uint32` for a large vocabulary."""

    @property
    def holds_conversations(self) -> bool:
        """Whether it says where conversations are."""
        return not (self.messages is None and self.prompt is None and self.completion is None)

    @property
    def holds_images(self) -> bool:
        """Whether it says where images are."""
        return self.format == "image" or not (self.image is None and self.label is None)


@dataclass(frozen=True, kw_only=True)
class WeightedTable(SourceTable):
    """One `[[data.source]]`."""

    name: Annotated[str, Length(1, 64)] | None = None
    """What it is called in what `create` says, and in the card of a model, for everybody to see; there
    one without a name has a number."""
    weight: Annotated[float, Range(1e-6, 1e9)] | None = None
    """Its share of the tokens, against the sum of all weights; all sources have one, or none has."""


@dataclass(frozen=True, kw_only=True)
class DataTable(SourceTable):
    """Which text, and how it becomes tokens."""

    sequence_length: Annotated[int, Range(2, 1 << 20)] = 0
    """Tokens in one training sequence. It must be said, but for images, whose size says it."""
    source: Annotated[tuple[WeightedTable, ...], Length(0, 1000)] = ()
    """Several sources instead of the keys above."""
    tokenizer: _FilePath | None = None
    """`bytes`, or the path of a `tokenizer.json`, relative to the manifest file. Without it: bytes, or
    what the checkpoint was trained with."""
    document_end: Annotated[str, Length(0, 64)] | None = None
    """The token behind each document; without it the tokenizer's own, and with "" none. With `bytes`
    any text will do, and without it there is none."""
    attention: Literal["sequence", "document"] | None = None
    """With `document` no token looks beyond the beginning of its document: so it is with conversations
    unless it is said otherwise, and with nothing else."""
    chat_template: _FilePath | None = None
    """A file with a chat template (Jinja), relative to the manifest file, in the place of the
    tokenizer's own."""
    chat_date: Annotated[str, Length(10, 10)] | None = None
    """The day that a chat template takes for today, as "2026-11-28", for all members; without it the day
    on which the swarm is made."""
    deduplicate: bool = False
    """Leave out documents that are equal to an earlier one."""
    max_bad: Annotated[int, Range(0, 2**40)] = 0
    """How many rows may be unusable; they are left out, counted and named."""
    heldout: Annotated[tuple[_Pattern, ...], Length(0, 100)] = ()
    """Which files are held out for evaluation; empty: a fraction of all documents."""
    heldout_fraction: Annotated[float, Range(0.0001, 0.5)] = 0.05
    """The part of all documents that is held out."""
    mirrors: Annotated[tuple[Url, ...], Length(0, 8)] = ()
    """Web folders (https://…) that hold what the data directory's `blobs/` does: members need not serve
    the training data to each other then."""
    policy: Literal["shared", "private"] = "shared"
    """`private`: every member trains on files of its own, which nobody else sees, read as this table
    says; what `paths` or `--data` name is public, and all of it is held out."""
    epoch: Annotated[int, Range(1, 2**40)] | None = None
    """With `private`: how many sequences count as an epoch; without it all those of the run."""
    max_epsilon: Annotated[float, Range(2.0**-20, 1e6)] | None = None
    """With `private`: every member has to give an `--epsilon` of at most this much."""
    max_delta: Annotated[float, Range(1e-30, 0.5)] | None = None
    """With `private`: and a `--delta` of at most this much."""

    def __post_init__(self) -> None:
        if self.policy == "private":
            for name in (
                "source",
                "heldout",
                "include",
                "exclude",
                "split",
                "config",
                "image",
                "label",
            ):
                if getattr(self, name):
                    raise ValueError(f'{name!r} does not go with policy = "private"')
        else:
            for name in ("epoch", "max_epsilon", "max_delta"):
                if getattr(self, name) is not None:
                    raise ValueError(f'{name!r} belongs to policy = "private"')
        if self.source:
            usual = SourceTable()
            for each in fields(SourceTable):
                if getattr(self, each.name) != getattr(usual, each.name):
                    raise ValueError(f"{each.name!r} belongs into each [[data.source]] here")
            if len({table.weight is None for table in self.source}) > 1:
                raise ValueError("all of [[data.source]] have a weight, or none has")


@dataclass(frozen=True, kw_only=True)
class LoraTable:
    """`[model.lora]`: Adapters are trained, and the checkpoint's own weights stay as they are."""

    rank: Annotated[int, Range(1, 4096)] = 8
    """The rows of A and the columns of B: with more of them adapters can learn more, and are larger."""
    alpha: Annotated[float, Range(2.0**-10, 65_536.0)] | None = None
    """What an adapter counts is alpha / rank; without it alpha is twice the rank."""
    targets: Annotated[tuple[Name, ...], Length(0, 64)] = ()
    """The linear layers that have one, by the last part of their names; empty: all but the head."""


@dataclass(frozen=True, kw_only=True)
class OptimizerTable(OptimizerSpec):
    """The DisTrO update: what each member sends of its momentum, and the shared step.

    The defaults are what learned best in benchmarks, and belong together: they are those of `muon`.
    """

    momentum: Annotated[float, Range(0.0, 0.9999)] = 0.97
    """How much of its momentum a member keeps from round to round. Without it 0.97 with `muon`, else
    0.95."""
    preconditioner: Preconditioner = "muon"
    """What a gradient goes through first. `rms`: each member divides it by the root of its own second
    moment. `orthogonal`: and then makes every block of a matrix nearly orthogonal. `muon`: it does not
    divide, keeps no second moment, and comes nearer to orthogonal. Without it `orthogonal` where work is
    checked or data is private. Where work is checked `muon` and `smoothing` want updates of 1,936
    coefficients or more: a million parameters at k = 8."""
    smoothing: Annotated[float, Range(0.0, 0.9999)] = 0.7
    """How much of its last smoothed gradient a member adds to the next, before anything else is done to
    it: a mean of gradients has less noise to be made orthogonal. Each member keeps another number a
    parameter for it. Without it 0.7 with `muon`, else 0."""
    step: Step = "scaled"
    """What a step makes of all updates' sum, transformed back. `sign`: every parameter moves by the
    learning rate. `scaled`: those of a matrix move by as much as is said of each, in the root
    mean square by about the learning rate, and none by more than twice that. Without it `scaled` with
    `muon`, else `sign`."""
    say: Say = "share"
    """How often an update counts in the step. `equal`: each once. `share`: twice if as many of the
    round's sequences are behind it as in the mean, or more; where all have as many, once. Without it,
    `equal` where data is private or `max_share` is 0."""

    def spec(self) -> OptimizerSpec:
        """What of it stands in the manifest, whose own defaults are those of older swarms."""
        return OptimizerSpec(**{each.name: getattr(self, each.name) for each in fields(self)})


@dataclass(frozen=True, kw_only=True)
class AdmissionTable:
    """Who may become a member."""

    policy: Literal["open", "invite"] = "open"
    """`open`: whoever has the link may join; `invite`: every guest needs a ticket, which `distro-node
    invite` writes."""
    issuer: Annotated[str, Length(1, 64)] | None = None
    """The peer id of whoever signs the tickets; without it the founder."""
    max_members: Annotated[int, Range(1, MAX_MEMBERS)] = 256
    """Who comes when so many are there has to wait until one goes."""


@dataclass(frozen=True, kw_only=True)
class ManifestFile:
    """The whole file."""

    name: Name
    """What people see."""
    seed: Annotated[int, Range(0, 2**63 - 1)] = 0
    """Draws the initial model and the order of the samples."""
    task: TaskName = CAUSAL_LM
    """What is learned: one of those built in, or of an installed package."""
    task_settings: dict[str, Any] | None = None
    """What the task alone understands."""
    fault_model: Literal["crash", "byzantine"] = "byzantine"
    """Whose votes decide a round: `byzantine` wants more than two thirds of the members and stands liars
    among the rest; `crash` wants more than half and trusts that members at worst disappear."""
    model: dict[str, Any]
    """A Hugging Face model configuration, key by key as in its `config.json`; or one key, `checkpoint`,
    with the directory of a model to go on from."""
    data: DataTable
    optimizer: OptimizerTable = field(default_factory=OptimizerTable)
    schedule: ScheduleSpec = field(default_factory=ScheduleSpec)
    rounds: RoundSpec = field(default_factory=RoundSpec)
    admission: AdmissionTable = field(default_factory=AdmissionTable)
    checks: ChecksSpec | None = None
    speakers: SpeakersSpec | None = None


@dataclass(frozen=True, kw_only=True)
class FoundersFile(ManifestFile):
    """A file that was read."""

    said: frozenset[str]
    """The keys that its tables `[optimizer]` and `[schedule]` have, as `schedule.peak`: the others go
    with the rest of the file and the model (usual.py)."""


def read_manifest_file(path: Path) -> FoundersFile:
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
        file = from_plain(ManifestFile, content, named=True)
    except StructureError as error:
        raise bad_manifest(path, str(error)) from None
    if file.task == DIFFUSION and file.data.sequence_length:
        raise bad_manifest(
            path, "data.sequence_length: follows from the size of images: leave it out"
        )
    if file.task != DIFFUSION and not file.data.sequence_length:
        raise bad_manifest(path, "data: the key 'sequence_length' is missing")
    if file.task == DIFFUSION and file.data.policy == "private":
        raise bad_manifest(path, "data.policy: private data is text: the task 'diffusion' has none")
    tables = ("optimizer", "schedule")
    said = {f"{table}.{key}" for table in tables for key in content.get(table, ())}
    return FoundersFile(**vars(file), said=frozenset(said))


def bad_manifest(path: Path, problem: str) -> UserError:
    """The error for a manifest file with this problem."""
    return UserError(
        ExitCode.MANIFEST,
        f"{path}: {problem}",
        "mend the file; `distro-node create --example` prints a commented one that works",
    )
