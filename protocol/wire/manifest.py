"""Manifest: the immutable description of a run.

A swarm-id is the content id of the manifest and commits to nothing else; everything a member must agree
on with the others (model, data, optimizer, schedule, rules of membership) is therefore in here and
cannot change during the run.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from functools import cached_property
from typing import Annotated, Any, Literal, NewType

from ...crypto.hashing import ContentId, content_id
from ...crypto.identity import PeerId
from .encoding import decode, decode_plain, encode
from .errors import ProtocolError
from .structure import ADDITION, Length, Range
from .work_specs import (
    AuditsSpec,
    CommitteesSpec,
    FeatureSettings,
    FeatureSpec,
    ProbeSpec,
    rounds_per_step,
)

PROTOCOL_VERSION = 4

# A manifest is fetched before anything is known about its sender, so its size is limited. The largest
# part of an honest one is the parameter table: 20,000 tensors at 50 bytes each.
MAX_MANIFEST_BYTES = 2 << 20

MAX_MEMBERS = 1024
"""Maximum number of members of a swarm. A record takes 160 to 200 bytes for the update of each member
and travels in one proposal, which must fit an envelope of 256 KiB together with admissions and
departures."""

CLOSING_ROUNDS = 8
"""Number of rounds without updates that end a run. The record of the first one certifies the result. It
is final four rounds later at the earliest (finality takes the statements of two quorums, which later
records quote), and seven at the latest: the count restarts whenever another record becomes final
(`protocol.chain.finality`)."""

SwarmId = NewType("SwarmId", bytes)
"""Content id of the manifest's canonical encoding, 32 bytes."""

Count = Annotated[int, Range(1, 2**40)]
Fraction = Annotated[float, Range(0.0, 1.0)]
Seconds = Annotated[float, Range(0.01, 86_400.0)]
Name = Annotated[str, Length(1, 64)]
TaskName = Annotated[str, Length(1, 64)]
Url = Annotated[str, Length(9, 256)]
Column = Annotated[str, Length(1, 256)]
Preconditioner = Literal["none", "rms", "orthogonal", "muon"]
UpdateWeightRule = Literal["equal", "share"]
Step = Literal["sign", "scaled"]
TokenType = Literal["uint8", "uint16", "uint32", "uint64", "int16", "int32", "int64"]


@dataclass(frozen=True, kw_only=True)
class ParameterSpec:
    """One parameter tensor: its name in the model and its shape. All are float32."""

    name: Annotated[str, Length(1, 256)]
    shape: Annotated[tuple[Annotated[int, Range(1, 2**31)], ...], Length(0, 8)]

    @property
    def elements(self) -> int:
        """Number of elements of the tensor."""
        return math.prod(self.shape)


@dataclass(frozen=True, kw_only=True)
class AdapterSpec:
    """Low-rank adapters (LoRA; Hu et al., arXiv 2106.09685), trained instead of the model's weights.

    To each frozen matrix W of a target, (alpha / rank) · B · A is added: A is rank × inputs and drawn at
    random, B is outputs × rank and initially zero. The manifest's `parameters` and `initial` describe
    the adapters alone, with the names used in a file of the `peft` library, without its prefix.
    """

    rank: Annotated[int, Range(1, 4096)]
    alpha: Annotated[float, Range(2.0**-10, 65_536.0)]
    targets: Annotated[tuple[Name, ...], Length(1, 64)]
    """The last name components of the linear layers with adapters, sorted."""
    base: ContentId
    """The blob list of the frozen weights, in the format of a snapshot."""
    base_parameters: Annotated[tuple[ParameterSpec, ...], Length(1, 20_000)]
    """The table of the frozen weights, in their order in the blobs."""

    def __post_init__(self) -> None:
        if list(self.targets) != sorted(set(self.targets)):
            raise ValueError("targets must be sorted and distinct")

    @property
    def base_elements(self) -> int:
        """Number of frozen weights."""
        return sum(parameter.elements for parameter in self.base_parameters)


@dataclass(frozen=True, kw_only=True)
class ShardSpec:
    """A piece of the corpus: `tokens` token ids, stored as the blob list `blob`."""

    blob: ContentId
    tokens: Count


@dataclass(frozen=True, kw_only=True)
class SourceSpec:
    """Origin of a part of the corpus, in the founder's words. It has no effect on training."""

    name: Name
    documents: Annotated[int, Range(0, 2**40)]
    """Number of documents read, without those that repeat an earlier one."""
    tokens: Annotated[int, Range(0, 2**40)]
    """Number of the source's tokens that are trained on, each counted once."""
    share: Fraction
    """Share of an epoch's tokens: a small source may occur several times in it, a large one in part."""


@dataclass(frozen=True, kw_only=True)
class PrivateSpec(FeatureSpec):
    """Settings that members agree on for private data, which each keeps to itself (federated learning).

    They define how each member reads its files, which no other member sees, so that all members train on
    samples of the same form.
    """

    epoch: Count
    """Number of sequences that count as an epoch. The true amount of data is unknown: the order of
    samples (`protocol.sampling`) and reported progress use this number, which reveals nothing."""
    raw_bytes: bool = False
    """Whether each byte of a text is a token, whatever the text's encoding."""
    end: Annotated[tuple[Annotated[int, Range(0, 2**31)], ...], Length(0, 64)] = ()
    """The tokens that are added after every document."""
    filler: Annotated[int, Range(0, 2**31)] = 0
    """The token that pads samples."""
    format: Name | None = None
    """Format of the files, if their suffixes do not show it."""
    text: Column | None = None
    """The column with the text."""
    template: Annotated[str, Length(1, 65_536)] | None = None
    """Template of a text made of several columns."""
    messages: Column | None = None
    """The column with a conversation. Instead, `prompt` and `completion` may be given."""
    prompt: Column | None = None
    """The column with the request to the assistant."""
    completion: Column | None = None
    """The column with the assistant's answer."""
    token_type: TokenType | None = None
    """Number type of token arrays, if no accompanying file states it."""
    deduplicate: bool = False
    """Whether documents that equal an earlier one of the same member are left out."""
    max_bad: Annotated[int, Range(0, 2**40)] = 0
    """Maximum number of unusable rows in a member's files."""
    max_epsilon: Annotated[float, Range(2.0**-20, 1e6)] | None = None
    """Maximum ε of local differential privacy, required of every member. Each enforces it by itself; it
    cannot be verified."""
    max_delta: Annotated[float, Range(1e-30, 0.5)] | None = None
    """Maximum δ of local differential privacy."""

    def check(self, rest: FeatureSettings) -> None:
        if rest.outlier_filter:
            raise ValueError(
                "optimizer.outlier_filter does not work with private data: set it to false"
            )
        if rest.update_weight == "share":
            raise ValueError(
                'optimizer.update_weight = "share" does not work with private data: use "equal"'
            )


@dataclass(frozen=True, kw_only=True)
class DataSpec:
    """Training data.

    A shard is a flat array of little-endian unsigned token ids of `token_bytes` bytes each. Sample i of
    a shard is tokens [i·L, (i+1)·L + 1) with L = `sequence_length`: L inputs and L targets.
    """

    sequence_length: Annotated[int, Range(2, 1 << 20)]
    token_bytes: Literal[1, 2, 4]
    vocabulary: Annotated[int, Range(2, 2**31)]
    shards: Annotated[tuple[ShardSpec, ...], Length(0, 65_536)]
    """Shards to train on; empty if members train on their own data (`private`)."""
    heldout: ShardSpec
    tokenizer: ContentId
    """Blob with a Hugging Face `tokenizer.json`."""
    mirrors: Annotated[tuple[Url, ...], Length(0, 8)] = ()
    """URLs of folders with copies of the swarm's blobs, each a file named by its content id."""
    tokenizer_settings: ContentId | None = field(default=None, metadata=ADDITION)
    """Blob with tokenizer settings missing from `tokenizer.json`: the tokens that begin, end and pad a
    text, and the chat template."""
    end_token: Annotated[int, Range(0, 2**31)] | None = field(default=None, metadata=ADDITION)
    """The token that ends every document, if it is a single token."""
    start_token: Annotated[int, Range(0, 2**31)] | None = field(default=None, metadata=ADDITION)
    """The token that starts every document in the data, every prompt that the model continues, and
    every text that an exported tokenizer encodes; None: there is none. If it equals `end_token`, one
    token between two documents is both."""
    attention: Literal["sequence", "document"] = field(default="sequence", metadata=ADDITION)
    """With `sequence`, a token attends to all earlier tokens of its sample. With `document`, it attends
    to those of its own document only, and its position is counted from the beginning of that document,
    which is the place after an end token."""
    marked: bool = field(default=False, metadata=ADDITION)
    """Whether a stored number has two flag bits above its token: its highest bit marks the first token
    of a document, the next bit a token to be learned. Documents then begin where they are marked, and
    are never split between samples."""
    sources: Annotated[tuple[SourceSpec, ...], Length(1, 1000)] | None = field(
        default=None, metadata=ADDITION
    )
    """Sources of the corpus, if the founder has named them."""
    private: PrivateSpec | None = field(default=None, metadata=ADDITION)
    """Settings of private data; None if all members train on the same shards. With private data every
    member trains on its own, and is assigned only a number of sequences. The held-out data is public."""

    def __post_init__(self) -> None:
        if self.private is None and not self.shards:
            raise ValueError("there is no shard to train on")
        if self.private is not None and self.shards:
            raise ValueError("private data has no shards: members train on their own data")
        if self.marked and self.vocabulary > 1 << 8 * self.token_bytes - 2:
            raise ValueError(
                f"{self.token_bytes} bytes do not hold {self.vocabulary} tokens and two marks"
            )
        if self.samples == 0:
            raise ValueError(f"no shard holds a whole sample of {self.sequence_length + 1} tokens")
        for name, token in (("start_token", self.start_token), ("end_token", self.end_token)):
            if token is not None and token >= self.vocabulary:
                raise ValueError(f"{name} ({token}) is not in the vocabulary")
        if self.attention == "document" and self.end_token is None and not self.marked:
            raise ValueError("attention = 'document' needs an end_token")
        for mirror in self.mirrors:
            # Every newcomer connects to it, so nothing but HTTPS is allowed.
            if not (mirror.startswith("https://") and mirror.isascii() and mirror.isprintable()):
                raise ValueError(
                    f"a mirror must be a URL that begins with https://, not {mirror!r}"
                )

    def samples_in(self, shard: ShardSpec) -> int:
        """Return the number of samples in a shard (its last token is only ever a target)."""
        return max(0, (shard.tokens - 1) // self.sequence_length)

    @property
    def trains_on_conversations(self) -> bool:
        """Whether documents are conversations: only their tokens are `marked`."""
        return self.marked

    @property
    def samples(self) -> int:
        """Number of training samples in an epoch."""
        if self.private is not None:
            return self.private.epoch
        return sum(self.samples_in(shard) for shard in self.shards)


@dataclass(frozen=True, kw_only=True)
class OptimizerSpec:
    """DisTrO optimizer: what each member sends of its momentum, and the shared step."""

    chunk: Annotated[int, Range(1, 64)] = 64
    """Maximum side of a transform block. In each dimension of a tensor the side is that dimension's
    largest divisor up to this."""
    top_k: Annotated[int, Range(1, 4096)] = 8
    """Coefficients sent per block of chunk × chunk; smaller blocks send at most an eighth of theirs."""
    momentum: Annotated[float, Range(0.0, 0.9999)] = 0.95
    """Fraction of its momentum that a member keeps from round to round."""
    preconditioner: Preconditioner = "orthogonal"
    """`rms`: each member first divides its gradient by the root of its own second moment. `orthogonal`:
    it then also makes every block of a matrix nearly orthogonal. `muon`: it does not divide, keeps no
    second moment, and gets closer to orthogonal; use it with `smoothing`."""
    second_moment: Annotated[float, Range(0.0, 0.9999)] = 0.95
    """Fraction of its second moment that a member keeps from round to round."""
    smoothing: Annotated[float, Range(0.0, 0.9999)] = field(default=0.0, metadata=ADDITION)
    """Fraction of its last smoothed gradient that a member adds to the next, before any other
    processing. It helps with `orthogonal` and `muon`, which would amplify noise: a mean of gradients has
    less of it. It costs each member the memory of one more number per parameter."""
    damping: Fraction = 0.0
    """Fraction of its momentum that a member drops at every coefficient of a counted update. It helps
    with `rms`, and is not needed with `orthogonal`."""
    weight_decay: Annotated[float, Range(0.0, 1.0)] = 0.0
    """Fraction of each parameter that a step removes, times the learning rate."""
    outlier_filter: bool = True
    """Outlier filter: leave out of a step the updates that more than half of the others contradict
    (docs/optimizer.md)."""
    update_weight: UpdateWeightRule = field(default="equal", metadata=ADDITION)
    """Weight of an update in the step. `equal`: 1. `share`: 2 if it was computed from at least as many
    sequences as the mean update, else 1; 1 for all if all were computed from equally many."""
    step: Step = field(default="sign", metadata=ADDITION)
    """How the step is made from the sum of all updates, transformed back to parameters. `sign`: each
    parameter moves by the learning rate, in the direction of its sum. `scaled`: parameters of a matrix
    move in proportion to their sums: the root mean square of their moves is about the learning rate, and
    none moves by more than twice that."""

    @property
    def divides(self) -> bool:
        """Whether members divide their gradients by the root of a second moment, which they keep."""
        return self.preconditioner in ("rms", "orthogonal")


@dataclass(frozen=True, kw_only=True)
class ScheduleSpec:
    """Learning rate by round: linear warm-up, then a decay of the given `shape` to `final` × peak."""

    peak: Annotated[float, Range(0.0, 1.0)] = 2e-3
    """The highest learning rate. For a new language model trained as a whole, `create` by default takes
    the rate that learned best in benchmarks with models of its size (docs/research.md): 8e-3 for the
    smallest models, down to 4e-4 at 1.2 billion parameters."""
    warmup_rounds: Annotated[int, Range(0, 2**31)] = 10
    """Number of rounds in which the rate rises from zero to the peak."""
    total_rounds: Annotated[int, Range(1, 2**31)] = 1000
    """The length of the run in training rounds."""
    decay_rounds: Annotated[int, Range(0, 2**31)] = 0
    """With `wsd`: the number of rounds at the end in which the rate falls."""
    final: Fraction = 0.1
    """The learning rate at the end, as a fraction of the peak."""
    shape: Literal["wsd", "linear", "cosine"] = field(default="wsd", metadata=ADDITION)
    """`wsd` (warm-up, stable, decay): a plateau, then a straight line over the last `decay_rounds`.
    `linear`: a straight line from the end of the warm-up on. `cosine`: half a cosine from there on."""
    at_end: Literal["finish", "continue"] = field(default="finish", metadata=ADDITION)
    """With `finish` the run ends after `total_rounds`, for all members in the same round; with
    `continue` it goes on at the rate of the last round."""

    def __post_init__(self) -> None:
        if self.shape != "wsd" and self.decay_rounds:
            raise ValueError(
                f"decay_rounds ({self.decay_rounds}) belongs to shape = 'wsd': with "
                f"{self.shape!r} the rate falls from the end of the warm-up on"
            )
        if self.warmup_rounds + self.decay_rounds > self.total_rounds:
            raise ValueError(
                f"warmup_rounds ({self.warmup_rounds}) and decay_rounds ({self.decay_rounds}) "
                f"exceed total_rounds ({self.total_rounds}) together"
            )

    @property
    def closing_round(self) -> int | None:
        """The round after the last training round, whose record certifies the result; None for a run
        without end."""
        return self.total_rounds + 1 if self.at_end == "finish" else None

    @property
    def end_round(self) -> int | None:
        """The last round of the run; None for a run without end."""
        closing = self.closing_round
        return None if closing is None else closing + CLOSING_ROUNDS - 1

    def trains(self, round: int) -> bool:
        """Whether members compute updates in this round: in round 0 they only gather."""
        closing = self.closing_round
        return round > 0 and (closing is None or round < closing)


@dataclass(frozen=True, kw_only=True)
class RoundSpec:
    """Size and timing of rounds. Deadlines adapt to the observed rounds, within these limits."""

    sequences: Annotated[int, Range(1, 65_536)] = 32
    """Samples per round, assigned to the members by capacity."""
    max_share: Annotated[float, Range(0.0, 1.0)] = 1 / 3
    """Maximum fraction of these samples for one member, whatever its capacity, or twice an equal share
    if that is more. 0: all members have equal shares."""
    start_members: Annotated[int, Range(1, MAX_MEMBERS)] = 1
    """Number of members at which training begins; later any number suffices."""
    snapshot_interval: Annotated[int, Range(1, 100_000)] = 50
    """Number of rounds from one certified snapshot to the next."""
    min_seconds: Annotated[float, Range(0.0, 86_400.0)] = 0.5
    """Minimum duration of a round; otherwise a lone fast member would outrun gossip and newcomers."""
    collect_min_seconds: Seconds = 1.0
    """Minimum wait for updates."""
    collect_max_seconds: Seconds = 600.0
    """Maximum wait for updates: then the round is decided with those that have arrived."""
    slot_min_seconds: Seconds = 1.0
    """Minimum time for a leader to make its proposal before another one takes over."""
    slot_max_seconds: Seconds = 60.0
    """Maximum time for a leader to make its proposal."""
    lease_rounds: Annotated[int, Range(1, 1000)] = 4
    """Number of typical rounds after which an unheard member counts as silent."""
    lease_min_seconds: Seconds = 20.0
    """Minimum time until an unheard member counts as silent. Until then the round waits for its
    update."""
    finality_lease_seconds: Annotated[float, Range(60.0, 2_592_000.0)] = field(
        default=259_200.0, metadata=ADDITION
    )
    """Time outside the membership after which a member is no longer needed to make a record final: three
    days by default. In a network partition that lasts longer, the two sides may make different records
    final."""
    version_notice: Annotated[int, Range(8, 1_000_000)] = field(default=1000, metadata=ADDITION)
    """Number of rounds by which a change to a newer protocol version is scheduled ahead, once a quorum
    of the members supports it. This is the time for all others to install it."""
    overlap: bool = field(default=False, metadata=ADDITION)
    """Whether updates are computed a round ahead, on parameters one round old, so that each round learns
    less. This is worth it if the trainer would otherwise wait for a third of the time or more
    (docs/optimizer.md)."""
    local_steps: Annotated[int, Range(1, 4096)] = field(default=1, metadata=ADDITION)
    """Steps of its own that a member takes on its share of a round (docs/optimizer.md)."""
    local_rate: Annotated[float, Range(2.0**-10, 1024.0)] = field(default=1.0, metadata=ADDITION)
    """Length of a round's local steps together, in lengths of the shared step."""

    def __post_init__(self) -> None:
        for what in ("collect", "slot"):
            low, high = getattr(self, f"{what}_min_seconds"), getattr(self, f"{what}_max_seconds")
            if low > high:
                raise ValueError(
                    f"{what}_min_seconds ({low:g}) exceeds {what}_max_seconds ({high:g})"
                )
        if self.local_steps > self.sequences:
            raise ValueError(
                f"local_steps ({self.local_steps}) exceeds sequences ({self.sequences}): no member "
                "would have a sequence for each step"
            )
        if self.local_steps == 1 and self.local_rate != 1.0:
            raise ValueError("local_rate needs local_steps of 2 or more")

    def check_local_steps(self, *, audited: bool, with_committees: bool, noisy: bool) -> None:
        """Raise `ValueError` if local steps cannot be combined with the rest of a manifest; `noisy`:
        differential privacy is required."""
        for applies, what in (
            (audited, "[audits]: an audit recomputes one sample, not the steps of a share"),
            (with_committees, "[committees]: sign votes keep no error feedback"),
            (noisy, "data.max_epsilon: noise is added to one gradient a round"),
        ):
            if applies and self.local_steps > 1:
                raise ValueError(f"rounds.local_steps above 1 does not work with {what}")


@dataclass(frozen=True, kw_only=True)
class AdmissionSpec:
    """Rules of admission. `invite` requires a ticket signed by `issuer`."""

    policy: Literal["open", "invite"] = "open"
    """`open`: any node with the link may join. `invite`: it also needs a ticket."""
    issuer: PeerId | None = None
    """The peer that signs the tickets."""
    max_members: Annotated[int, Range(1, MAX_MEMBERS)] = 256
    """Member limit; further peers wait for a free place."""
    public: bool = field(default=False, metadata=ADDITION)
    """Whether members publish the swarm to bootstrap peers that list public swarms."""

    def __post_init__(self) -> None:
        if (self.policy == "invite") != (self.issuer is not None):
            raise ValueError("policy = 'invite' needs an issuer; no other policy has one")


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """Everything the members of a swarm agree on before they meet."""

    version: Annotated[int, Range(0, 2**31)] = PROTOCOL_VERSION
    name: Name
    task: TaskName = "causal_lm"
    """What is learned from a sample. Tasks are built into nodes or installed; no peer sends them."""
    seed: Annotated[int, Range(0, 2**63 - 1)] = 0
    """Seed of the initial model, of the order of the samples, and of what the task draws at random."""
    model: dict[str, Any]
    """A Hugging Face model configuration (`config.json`), with its `model_type`."""
    parameters: Annotated[tuple[ParameterSpec, ...], Length(1, 20_000)]
    initial: ContentId
    """The blob list of the initial parameters: a fresh initialisation or a checkpoint."""
    data: DataSpec
    optimizer: OptimizerSpec = field(default_factory=OptimizerSpec)
    schedule: ScheduleSpec = field(default_factory=ScheduleSpec)
    rounds: RoundSpec = field(default_factory=RoundSpec)
    admission: AdmissionSpec = field(default_factory=AdmissionSpec)
    fault_model: Literal["crash", "byzantine"] = "byzantine"
    """Which faults the quorum tolerates. `byzantine`: members that do anything; a quorum has more than
    two thirds of the votes. `crash`: members that stop; it has more than half."""
    founder: PeerId
    """The first member. It starts the swarm and is from then on a member like any other; with audits,
    once enough members have earned votes."""
    adapter: AdapterSpec | None = field(default=None, metadata=ADDITION)
    """If given, the model's own weights are frozen, and its adapters are trained."""
    task_settings: dict[str, Any] | None = field(default=None, metadata=ADDITION)
    """Settings that only the task interprets."""
    audits: AuditsSpec | None = field(default=None, metadata=ADDITION)
    """If given, work is audited and earns votes; otherwise every member has one vote."""
    committees: CommitteesSpec | None = field(default=None, metadata=ADDITION)
    """If given, committees aggregate sections of the model; otherwise every member sends whole
    updates."""
    probe: ProbeSpec | None = field(default=None, metadata=ADDITION)
    """Losses by which a trainer proves that it computes this model; None if the task offers no probe."""

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[a-z][a-z0-9_.-]*", self.task):
            raise ValueError(
                "task: a name begins with a small letter, and has small letters, digits, '_', "
                "'-' and '.'"
            )
        if self.rounds.start_members > self.admission.max_members:
            raise ValueError(
                f"start_members ({self.rounds.start_members}) exceeds max_members "
                f"({self.admission.max_members}): training would never begin"
            )
        private = self.data.private
        self.rounds.check_local_steps(
            audited=self.audits is not None,
            with_committees=self.committees is not None,
            noisy=private is not None and private.max_epsilon is not None,
        )
        settings = FeatureSettings(
            audited=self.audits is not None,
            private=self.data.private is not None,
            overlap=self.rounds.overlap,
            outlier_filter=self.optimizer.outlier_filter,
            preconditioner=self.optimizer.preconditioner,
            update_weight=self.optimizer.update_weight,
            rounds=self.schedule.total_rounds,
            elements=self.elements,
        )
        for table in self.features:
            table.check(settings)

    @property
    def features(self) -> tuple[FeatureSpec, ...]:
        """The tables of this swarm's features, among those that not every swarm has."""
        tables = (self.data.private, self.audits, self.committees)
        return tuple(table for table in tables if table is not None)

    @cached_property
    def rounds_per_step(self) -> int:
        """Number of rounds from an assignment of samples to the next: 1, or 2 with committees."""
        return rounds_per_step(self.features)

    @cached_property
    def draws_lots(self) -> bool:
        """Whether this swarm draws something, and so has a randomness beacon (`chain/beacon`)."""
        return any(table.draws_lots for table in self.features)

    def aggregates_in(self, round: int) -> bool:
        """Whether committees aggregate in this round what members sent in the one before."""
        return self.rounds_per_step == 2 and self.schedule.trains(round) and round % 2 == 0

    @property
    def elements(self) -> int:
        """Number of trained parameters: the model's, or its adapters'."""
        return sum(parameter.elements for parameter in self.parameters)

    @property
    def frozen_elements(self) -> int:
        """Number of the model's weights that are not trained."""
        return 0 if self.adapter is None else self.adapter.base_elements

    @property
    def last_round(self) -> int | None:
        """The last training round; None for a run without end."""
        return self.schedule.total_rounds if self.schedule.at_end == "finish" else None

    def encode(self) -> bytes:
        """The canonical bytes, whose content id is the swarm-id."""
        return encode(self, named=True)

    @cached_property
    def swarm(self) -> SwarmId:
        """The swarm-id."""
        return SwarmId(content_id(self.encode()))


class OtherVersion(ProtocolError):
    """Raised for a swarm whose protocol version, `version`, differs from this program's."""

    def __init__(self, version: int) -> None:
        super().__init__(
            "version",
            f"the swarm uses protocol version {version}, this program {PROTOCOL_VERSION}",
        )
        self.version = version


def decode_manifest(data: bytes, swarm: SwarmId) -> Manifest:
    """Check that `data` is the manifest of `swarm` and decode it.

    Raises `ProtocolError` with the reason `mismatch` if it hashes to something else, `OtherVersion` if
    its protocol version is another one, and `ProtocolError` as `encoding.decode` does.
    """
    if len(data) <= MAX_MANIFEST_BYTES and content_id(data) != swarm:
        raise ProtocolError("mismatch", "the manifest does not hash to the swarm-id")
    # Check the version first: a manifest of another version may have keys that this one does not know.
    plain = decode_plain(data, max_bytes=MAX_MANIFEST_BYTES)
    version = plain.get("version") if isinstance(plain, dict) else None
    if type(version) is int and version != PROTOCOL_VERSION:
        raise OtherVersion(version)
    return decode(Manifest, data, max_bytes=MAX_MANIFEST_BYTES, named=True)
