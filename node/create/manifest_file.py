"""The file that a founder writes: TOML that describes a run, before data and model are made from it.

The result is a `ManifestFile` or, whatever the file contains, one `UserError` that names the file,
the key, the fault and, for an unknown key, the nearest known one.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Annotated, Any, Literal

from ...protocol.wire.manifest import (
    MAX_MEMBERS,
    AuditsSpec,
    CommitteesSpec,
    Name,
    OptimizerSpec,
    Preconditioner,
    RoundSpec,
    ScheduleSpec,
    Step,
    TaskName,
    TokenType,
    UpdateWeightRule,
    Url,
)
from ...protocol.wire.structure import Length, Range, StructureError, from_plain
from ...protocol.wire.work_specs import FeatureSpec
from ..errors import ExitCode, UserError
from ..training.task_names import CAUSAL_LM, ON_IMAGES
from ..util.regular_files import read_regular
from .formats import Format, text_encoding

# This is ample: a file with a long comment on every key has ten kilobytes.
MAX_MANIFEST_FILE_BYTES = 1 << 20

BYTES_TOKENIZER = "bytes"

_Pattern = Annotated[str, Length(1, 256)]
_FilePath = Annotated[str, Length(1, 4096)]


_Patterns = Annotated[tuple[_Pattern, ...], Length(1, 100)]
_Paths = Annotated[tuple[_FilePath, ...], Length(0, 10_000)]
_Column = Annotated[str, Length(1, 256)]


@dataclass(frozen=True, kw_only=True)
class SourceTable:
    """Where the text is and how it is extracted: `[[data.source]]`, or these keys in `[data]` itself."""

    paths: _Paths = ()
    """Files and folders, relative to the manifest file, and hf://owner/name[/config][:split]; in
    [data], `--data` replaces them."""
    include: _Patterns | None = None
    """Patterns of the files of a folder that count; by default all whose endings imply a format."""
    exclude: Annotated[tuple[_Pattern, ...], Length(0, 100)] = ()
    """Patterns of the files that do not count."""
    format: Format | None = None
    """The format of the files, where their endings do not imply it."""
    text: _Column | None = None
    """The column that contains the text; by default, without `template`, the column `text`."""
    template: Annotated[str, Length(1, 65_536)] | None = None
    """The text made from several columns: "{title}\\n\\n{body}"."""
    messages: _Column | None = None
    """The column that contains a conversation, for a task that learns from conversations; by
    default, without `prompt`, the column `messages`."""
    prompt: _Column | None = None
    """Instead of `messages`, and for `dpo` and `grpo`: the column with what the assistant is asked."""
    completion: _Column | None = None
    """With `prompt`: the column with the assistant's answer."""
    answer: _Column | None = None
    """For `grpo`: the column with what the checker compares a completion with; by default `answer`."""
    chosen: _Column | None = None
    """For `dpo`: the column with the better answer; by default `chosen`."""
    rejected: _Column | None = None
    """For `dpo`: the column with the worse answer; by default `rejected`."""
    image: _Column | None = None
    """The column that contains images, for a task that learns from images; by default the column
    `image`."""
    label: _Column | None = None
    """The column with the class of an image or a text; by default the column `label`."""
    split: _Column | None = None
    """The split of a data set; by default `train`."""
    config: _Column | None = None
    """The configuration of a data set, where it has several and none is the default."""
    token_type: TokenType | None = None
    """The type of the numbers in an array of tokens, where it is not stated (docs/data.md)."""

    @property
    def holds_conversations(self) -> bool:
        """Whether it names columns of conversations."""
        return not (self.messages is None and self.prompt is None and self.completion is None)

    @property
    def holds_pairs(self) -> bool:
        """Whether it names columns of preferred and rejected answers."""
        return not (self.chosen is None and self.rejected is None)


@dataclass(frozen=True, kw_only=True)
class WeightedTable(SourceTable):
    """One `[[data.source]]`."""

    name: Annotated[str, Length(1, 64)] | None = None
    """The source's name in the output of `create` and in a model's card, where it is public; there a
    source without a name has a number."""
    weight: Annotated[float, Range(1e-6, 1e9)] | None = None
    """Its share of the tokens, relative to the sum of all weights; either all sources have one, or
    none has."""


@dataclass(frozen=True, kw_only=True)
class DataTable(SourceTable):
    """The text, and how it becomes tokens."""

    sequence_length: Annotated[int, Range(2, 1 << 20)] = 0
    """Tokens in one training sequence. Required, except for images, whose size determines it."""
    source: Annotated[tuple[WeightedTable, ...], Length(0, 1000)] = ()
    """Several sources instead of the keys above."""
    tokenizer: _FilePath | None = None
    """`bytes`, or the path of a `tokenizer.json`, relative to the manifest file. Default: the
    checkpoint's own tokenizer, else bytes."""
    document_end: Annotated[str, Length(0, 64)] | None = None
    """The token after each document; by default the tokenizer's own, and with "" none. With `bytes`
    it may be any text, and by default there is none."""
    document_start: Literal["bos", "none"] | None = None
    """With `bos` the tokenizer's start token comes before each document, with `none` nothing does
    (docs/data.md). Default: what the tokenizer does by itself."""
    attention: Literal["sequence", "document"] | None = None
    """With `document` no token attends beyond the beginning of its document. Default: `document` for
    conversations, else `sequence`."""
    chat_template: _FilePath | None = None
    """A file with a chat template (Jinja), relative to the manifest file, used instead of the
    tokenizer's own."""
    chat_date: Annotated[str, Length(10, 10)] | None = None
    """The date that a chat template takes for today, as "2026-11-28", for all members; by default
    the date on which the swarm is created."""
    deduplicate: bool = False
    """Leave out documents that are equal to an earlier one."""
    max_bad: Annotated[int, Range(0, 2**40)] = 0
    """How many rows may be unusable; they are left out, counted and named."""
    heldout: Annotated[tuple[_Pattern, ...], Length(0, 100)] = ()
    """Patterns of the files that are held out for evaluation; empty: a fraction of all documents."""
    heldout_fraction: Annotated[float, Range(0.0001, 0.5)] = 0.05
    """The fraction of all documents that is held out."""
    mirrors: Annotated[tuple[Url, ...], Length(0, 8)] = ()
    """Web folders (https://…) with the contents of the data directory's `blobs/`: then members need
    not serve the training data to each other."""
    policy: Literal["shared", "private"] = "shared"
    """With `private` every member trains on files of its own, which no other member sees, read as
    this table describes; what `paths` or `--data` name is public, and all of it is held out."""
    epoch: Annotated[int, Range(1, 2**40)] | None = None
    """With `private`: how many sequences count as an epoch; by default all those of the run."""
    max_epsilon: Annotated[float, Range(2.0**-20, 1e6)] | None = None
    """With `private`: every member must set an `--epsilon` of at most this much."""
    max_delta: Annotated[float, Range(1e-30, 0.5)] | None = None
    """With `private`: every member must set a `--delta` of at most this much."""

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
                    raise ValueError(f'{name!r} cannot be combined with policy = "private"')
        else:
            for name in ("epoch", "max_epsilon", "max_delta"):
                if getattr(self, name) is not None:
                    raise ValueError(f'{name!r} needs policy = "private"')
        if self.source:
            defaults = SourceTable()
            for each in fields(SourceTable):
                if getattr(self, each.name) != getattr(defaults, each.name):
                    raise ValueError(f"{each.name!r} must be set in each [[data.source]]")
            if len({table.weight is None for table in self.source}) > 1:
                raise ValueError("give every [[data.source]] a weight, or none")


@dataclass(frozen=True, kw_only=True)
class LoraTable:
    """`[model.lora]`: Adapters are trained, and the checkpoint's own weights are frozen."""

    rank: Annotated[int, Range(1, 4096)] = 8
    """The rows of A and the columns of B: with more of them adapters can learn more, and are larger."""
    alpha: Annotated[float, Range(2.0**-10, 65_536.0)] | None = None
    """An adapter is scaled by alpha / rank; by default alpha is twice the rank."""
    targets: Annotated[tuple[Name, ...], Length(0, 64)] = ()
    """The linear layers that get an adapter, by the last part of their names; empty: all but the
    head."""

    def for_trainer(self) -> dict[str, Any]:
        """Return the trainer's settings of these adapters."""
        alpha = 2.0 * self.rank if self.alpha is None else self.alpha
        return {"rank": self.rank, "alpha": alpha, "targets": list(self.targets)}


@dataclass(frozen=True, kw_only=True)
class OptimizerTable(OptimizerSpec):
    """The DisTrO update: what each member sends of its momentum, and the shared step.

    The defaults learned best in benchmarks, and belong together: they are those for `muon`.
    """

    momentum: Annotated[float, Range(0.0, 0.9999)] = 0.97
    """The share of its momentum that a member keeps from round to round. Default: 0.97 with `muon`,
    else 0.95."""
    preconditioner: Preconditioner = "muon"
    """How a gradient is preconditioned (docs/optimizer.md). Default: `none` with `local_steps`,
    `orthogonal` where work is audited or data is private, else `muon`. Where work is audited, `muon`
    and `smoothing` need updates of 1,936 coefficients or more: a million parameters at k = 8."""
    smoothing: Annotated[float, Range(0.0, 0.9999)] = 0.7
    """The share of its last smoothed gradient that a member adds to the next gradient, for one more
    number per parameter. Default: 0.7 with `muon`, else 0."""
    step: Step = "scaled"
    """How a step uses the sum of all updates. `sign`: every parameter moves by the learning rate.
    `scaled`: those of a matrix move in proportion to the sum, by about the learning rate on average
    and twice that at most. Default: `scaled` with `muon` or `local_steps`, else `sign`."""
    update_weight: UpdateWeightRule = "share"
    """How often an update counts in the step. `equal`: each once. `share`: twice if its author had
    at least the mean number of the round's sequences; where all had the same number, once. Default:
    `equal` where data is private or `max_share` is 0, else `share`."""

    def spec(self) -> OptimizerSpec:
        """Return the manifest's optimizer settings, whose own defaults are those of older swarms."""
        return OptimizerSpec(**{each.name: getattr(self, each.name) for each in fields(self)})


@dataclass(frozen=True, kw_only=True)
class AdmissionTable:
    """The rule that decides which peers may become members."""

    policy: Literal["open", "invite"] = "open"
    """`open`: anyone with the link may join; `invite`: every newcomer needs a ticket, which
    `distro-node invite` writes."""
    issuer: Annotated[str, Length(1, 64)] | None = None
    """The peer id of the signer of the tickets; by default the founder."""
    max_members: Annotated[int, Range(1, MAX_MEMBERS)] = 256
    """The greatest number of members; further peers wait for a free place."""
    public: bool = False
    """Whether members publish the swarm for `distro-node swarms`, as with `create --public`."""


@dataclass(frozen=True, kw_only=True)
class ManifestFile:
    """The whole file."""

    name: Name
    """The swarm's name, for people."""
    seed: Annotated[int, Range(0, 2**63 - 1)] = 0
    """Seed of the initial model and of the order of the samples."""
    task: TaskName = CAUSAL_LM
    """The training task: a built-in one, or one of an installed package."""
    task_settings: dict[str, Any] | None = None
    """Settings that only the task interprets."""
    fault_model: Literal["crash", "byzantine"] = "byzantine"
    """The quorum that decides a round: `byzantine` needs more than two thirds of the members and
    tolerates byzantine ones among the rest; `crash` needs more than half and trusts that members at
    worst disappear."""
    model: dict[str, Any]
    """A Hugging Face model configuration, key by key as in its `config.json`; or one key,
    `checkpoint`, with the directory of a model to continue from."""
    data: DataTable
    optimizer: OptimizerTable = field(default_factory=OptimizerTable)
    schedule: ScheduleSpec = field(default_factory=ScheduleSpec)
    rounds: RoundSpec = field(default_factory=RoundSpec)
    admission: AdmissionTable = field(default_factory=AdmissionTable)
    audits: AuditsSpec | None = None
    committees: CommitteesSpec | None = None

    def __post_init__(self) -> None:
        # The manifest checks this as well, but only once all texts have been read.
        self.rounds.check_local_steps(
            audited=self.audits is not None,
            with_committees=self.committees is not None,
            noisy=self.data.max_epsilon is not None,
        )

    @property
    def features(self) -> tuple[FeatureSpec, ...]:
        """The tables of features that not every swarm has."""
        return tuple(table for table in (self.audits, self.committees) if table is not None)


@dataclass(frozen=True, kw_only=True)
class FoundersFile(ManifestFile):
    """A founder's file as read."""

    given_keys: frozenset[str]
    """The keys given in its tables `[optimizer]` and `[schedule]`, such as `schedule.peak`: the
    others follow from the rest of the file and the model (`defaults.py`)."""


def read_manifest_file(path: Path) -> FoundersFile:
    """Read a founder's manifest file. Raises `UserError` (`MANIFEST`)."""
    try:
        data = read_regular(path, MAX_MANIFEST_FILE_BYTES)
    except OSError as error:
        raise bad_manifest(path, f"cannot be read ({error.strerror})") from None
    if len(data) > MAX_MANIFEST_FILE_BYTES:
        raise bad_manifest(path, f"is larger than {MAX_MANIFEST_FILE_BYTES >> 20} MB")
    try:
        content = tomllib.loads(data.decode("utf-8-sig"))
    except UnicodeDecodeError:
        raise _not_utf8(path, data) from None
    except tomllib.TOMLDecodeError as error:
        # In UTF-16 plain letters are UTF-8 as well, each with a zero beside it.
        if text_encoding(data) is not None:
            raise _not_utf8(path, data) from None
        raise bad_manifest(path, f"is not TOML: {error}") from None
    except ValueError:
        raise bad_manifest(path, "has a number of too many digits") from None
    except RecursionError:
        raise bad_manifest(path, "is nested too deeply") from None
    try:
        file = from_plain(ManifestFile, content, named=True)
    except StructureError as error:
        raise bad_manifest(path, str(error)) from None
    if file.task in ON_IMAGES and file.data.sequence_length:
        raise bad_manifest(
            path, "data.sequence_length: follows from the size of images: leave it out"
        )
    if file.task not in ON_IMAGES and not file.data.sequence_length:
        raise bad_manifest(path, "data: the key 'sequence_length' is missing")
    tables = ("optimizer", "schedule")
    given_keys = {f"{table}.{key}" for table in tables for key in content.get(table, ())}
    return FoundersFile(**vars(file), given_keys=frozenset(given_keys))


def _not_utf8(path: Path, data: bytes) -> UserError:
    encoding = text_encoding(data)
    if encoding is None:
        return bad_manifest(path, "is not text in UTF-8")
    return UserError(
        ExitCode.MANIFEST,
        f"{path}: is text in {encoding[:6].upper()}, and must be in UTF-8",
        "save it again with the encoding UTF-8, in an editor or with iconv",
    )


def bad_manifest(path: Path, problem: str) -> UserError:
    """Return the error for a manifest file with this problem."""
    return UserError(
        ExitCode.MANIFEST,
        f"{path}: {problem}",
        "fix the file; `distro-node create --example` prints a commented one that works",
    )
