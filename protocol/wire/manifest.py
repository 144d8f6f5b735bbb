"""The manifest: the immutable description of a run.

Whoever knows a swarm-id knows the content id of this and of nothing else; everything a member must
agree on with the others (model, data, optimizer, schedule, rules of membership) is therefore in here
and cannot change during the run.
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
from .work_specs import ChecksSpec, ProbeSpec, SpeakersSpec

PROTOCOL_VERSION = 4

# A manifest is fetched before anything about its sender is known. The largest honest part is the
# parameter table: 20,000 tensors at 50 bytes.
MAX_MANIFEST_BYTES = 2 << 20

MAX_MEMBERS = 1024
"""The most members of a swarm. A record names the update of each at some 160 bytes and travels in
one proposal, which must fit an envelope of 256 KiB beside admissions and departures."""

CLOSING_ROUNDS = 8
"""How many rounds without updates end a run. The record of the first certifies what comes out. A record
is final four such rounds later (each is quoted by the next, and it takes two quorums), or eight, where
another one became final just before (`protocol.chain.finality`)."""

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
Say = Literal["equal", "share"]
Step = Literal["sign", "scaled"]
TokenType = Literal["uint8", "uint16", "uint32", "uint64", "int16", "int32", "int64"]


@dataclass(frozen=True, kw_only=True)
class ParameterSpec:
    """One parameter tensor: its name in the model and its shape. All are float32."""

    name: Annotated[str, Length(1, 256)]
    shape: Annotated[tuple[Annotated[int, Range(1, 2**31)], ...], Length(0, 8)]

    @property
    def elements(self) -> int:
        """How many numbers the tensor holds."""
        return math.prod(self.shape)


@dataclass(frozen=True, kw_only=True)
class AdapterSpec:
    """Low-rank adapters (LoRA; Hu et al., arXiv 2106.09685): what is trained instead of the weights.

    Beside each frozen matrix W of a target stands (alpha / rank) · B · A: A is rank × inputs and drawn
    at random, B outputs × rank and zero at the beginning. The manifest's `parameters` and `initial` are
    those of the adapters alone, named as in a file of `peft`, without its prefix.
    """

    rank: Annotated[int, Range(1, 4096)]
    alpha: Annotated[float, Range(2.0**-10, 65_536.0)]
    targets: Annotated[tuple[Name, ...], Length(1, 64)]
    """The last parts of the names of the linear layers that have adapters, sorted."""
    base: ContentId
    """The blob list of the frozen weights, laid out as a snapshot is."""
    base_parameters: Annotated[tuple[ParameterSpec, ...], Length(1, 20_000)]
    """The table of the frozen weights, in the order in which they lie in the blobs."""

    def __post_init__(self) -> None:
        if list(self.targets) != sorted(set(self.targets)):
            raise ValueError("targets are sorted, each once")

    @property
    def base_elements(self) -> int:
        """How many frozen weights there are."""
        return sum(parameter.elements for parameter in self.base_parameters)


@dataclass(frozen=True, kw_only=True)
class ShardSpec:
    """A piece of the corpus: `tokens` token ids, stored as the blob list `blob`."""

    blob: ContentId
    tokens: Count


@dataclass(frozen=True, kw_only=True)
class SourceSpec:
    """Where a part of the corpus comes from, in the founder's words. Nothing follows from it."""

    name: Name
    documents: Annotated[int, Range(0, 2**40)]
    """Those that were read, without such as repeat an earlier one."""
    tokens: Annotated[int, Range(0, 2**40)]
    """Of what is trained on, each once."""
    share: Fraction
    """Of the tokens of an epoch: a small source may come several times in it, a large one in part."""


@dataclass(frozen=True, kw_only=True)
class PrivateSpec:
    """What members agree on about data that each keeps to itself (federated learning).

    It says how each reads files that nobody else sees, so that all train one thing.
    """

    epoch: Count
    """How many sequences count as an epoch. Nobody knows how much data there is: lanes, spans and what
    is said of progress go by this number, and nothing is learned from it."""
    raw_bytes: bool = False
    """Each byte of a text is a token, whatever bytes they are."""
    end: Annotated[tuple[Annotated[int, Range(0, 2**31)], ...], Length(0, 64)] = ()
    """The tokens behind every document."""
    filler: Annotated[int, Range(0, 2**31)] = 0
    """The token in places of a sample that nothing is in."""
    format: Name | None = None
    """What the files are, where their endings do not say it."""
    text: Column | None = None
    """The column that holds the text."""
    template: Annotated[str, Length(1, 65_536)] | None = None
    """The text made of several columns."""
    messages: Column | None = None
    """The column that holds a conversation."""
    prompt: Column | None = None
    """Two columns instead: what the assistant is asked, …"""
    completion: Column | None = None
    """… and what it answers."""
    token_type: TokenType | None = None
    """The type of the numbers in an array of tokens, where no file beside it says it."""
    deduplicate: bool = False
    """Documents that are equal to an earlier one of the same member are left out."""
    max_bad: Annotated[int, Range(0, 2**40)] = 0
    """How many rows of a member's may be unusable."""
    max_epsilon: Annotated[float, Range(2.0**-20, 1e6)] | None = None
    """Every member has to keep to local differential privacy with an ε of at most this much. Each does
    so by itself: nobody can check it."""
    max_delta: Annotated[float, Range(1e-30, 0.5)] | None = None
    """And with a δ of at most this much."""


@dataclass(frozen=True, kw_only=True)
class DataSpec:
    """What is trained on.

    A shard is a flat array of little-endian unsigned token ids of `token_bytes` bytes each. Sample
    i of a shard is tokens [i·L, (i+1)·L + 1) with L = `sequence_length`: L inputs and L targets.
    """

    sequence_length: Annotated[int, Range(2, 1 << 20)]
    token_bytes: Literal[1, 2, 4]
    vocabulary: Annotated[int, Range(2, 2**31)]
    shards: Annotated[tuple[ShardSpec, ...], Length(0, 65_536)]
    """What is trained on; none where members train on data of their own (`private`)."""
    heldout: ShardSpec
    tokenizer: ContentId
    """Blob with a Hugging Face `tokenizer.json`."""
    mirrors: Annotated[tuple[Url, ...], Length(0, 8)] = ()
    """Folders on the web with these blobs, each a file named by its content id."""
    tokenizer_settings: ContentId | None = field(default=None, metadata=ADDITION)
    """Blob with what a `tokenizer.json` does not say: which tokens begin, end and pad a text, and the
    chat template."""
    end_token: Annotated[int, Range(0, 2**31)] | None = field(default=None, metadata=ADDITION)
    """The token with which every document ends, where it is one token."""
    attention: Literal["sequence", "document"] = field(default="sequence", metadata=ADDITION)
    """With `document` a token looks no further back than to the beginning of its document, the place
    behind an end token, and is counted from there."""
    marked: bool = field(default=False, metadata=ADDITION)
    """Whether a stored number has two marks above its token: its highest bit says that a document begins
    with it, the bit below that it is to be learned. Documents then begin where they are marked, and lie
    whole within samples."""
    sources: Annotated[tuple[SourceSpec, ...], Length(1, 1000)] | None = field(
        default=None, metadata=ADDITION
    )
    """What the corpus was mixed of, where the founder has named that."""
    private: PrivateSpec | None = field(default=None, metadata=ADDITION)
    """With it nothing is dealt but a number of sequences: every member trains on its own data. What is
    held out is public."""

    def __post_init__(self) -> None:
        if self.private is None and not self.shards:
            raise ValueError("there is no shard to train on")
        if self.private is not None and self.shards:
            raise ValueError("what is private has no shards: members train on their own data")
        if self.marked and self.vocabulary > 1 << 8 * self.token_bytes - 2:
            raise ValueError(
                f"{self.token_bytes} bytes do not hold {self.vocabulary} tokens and two marks"
            )
        if self.samples == 0:
            raise ValueError(f"no shard holds a whole sample of {self.sequence_length + 1} tokens")
        if self.end_token is not None and self.end_token >= self.vocabulary:
            raise ValueError(f"end_token ({self.end_token}) is not in the vocabulary")
        if self.attention == "document" and self.end_token is None and not self.marked:
            raise ValueError("attention 'document' needs an end_token")
        for mirror in self.mirrors:
            # Everybody who joins asks there: nothing but the open web, and nobody listening in.
            if not (mirror.startswith("https://") and mirror.isascii() and mirror.isprintable()):
                raise ValueError(f"a mirror is a URL that begins with https://, not {mirror!r}")

    def samples_in(self, shard: ShardSpec) -> int:
        """How many samples a shard holds (its last token is only ever a target)."""
        return max(0, (shard.tokens - 1) // self.sequence_length)

    @property
    def samples(self) -> int:
        """How many training samples there are in an epoch."""
        if self.private is not None:
            return self.private.epoch
        return sum(self.samples_in(shard) for shard in self.shards)


@dataclass(frozen=True, kw_only=True)
class OptimizerSpec:
    """The DisTrO update: what each member sends of its momentum, and the shared step."""

    chunk: Annotated[int, Range(1, 64)] = 64
    """Side of a transform block; shrunk per dimension to the largest divisor."""
    top_k: Annotated[int, Range(1, 4096)] = 8
    """Coefficients kept of each block of chunk × chunk; smaller blocks keep at most an eighth."""
    momentum: Annotated[float, Range(0.0, 0.9999)] = 0.95
    """How much of its momentum a member keeps from round to round."""
    preconditioner: Preconditioner = "orthogonal"
    """`rms`: each member divides its gradient by the root of its own second moment first.
    `orthogonal`: and then makes every block of a matrix nearly orthogonal. `muon`: it does not divide,
    keeps no second moment, and comes nearer to orthogonal; it wants `smoothing`."""
    second_moment: Annotated[float, Range(0.0, 0.9999)] = 0.95
    """How much of its second moment it keeps."""
    smoothing: Annotated[float, Range(0.0, 0.9999)] = field(default=0.0, metadata=ADDITION)
    """How much of its last smoothed gradient a member adds to the next, before anything else is done to
    it. It pays with `orthogonal` and `muon`, since a mean of gradients has less noise to be made
    orthogonal; each member keeps another number a parameter for it."""
    damping: Fraction = 0.0
    """How much of its momentum a member drops at every coefficient that a counted update holds. It
    pays with `rms`, and is not needed with `orthogonal`."""
    weight_decay: Annotated[float, Range(0.0, 1.0)] = 0.0
    """The part of each parameter that a step takes away, times the learning rate."""
    audit: bool = True
    """Leave out of a step the updates that more than half of the others contradict
    (docs/optimizer.md)."""
    say: Say = field(default="equal", metadata=ADDITION)
    """How often an update counts in the step. `equal`: once. `share`: twice if it was made of at least
    as many sequences as the mean update, else once; where all were made of equally many, once."""
    step: Step = field(default="sign", metadata=ADDITION)
    """How a step is made of the sum of all updates, transformed back. `sign`: each parameter moves by
    the learning rate, in the direction of the sum. `scaled`: those of a matrix move in proportion to
    their sums, by about the learning rate in the root mean square and at most by twice that."""

    @property
    def divides(self) -> bool:
        """Whether members divide their gradients by the root of a second moment, which they keep."""
        return self.preconditioner in ("rms", "orthogonal")


@dataclass(frozen=True, kw_only=True)
class ScheduleSpec:
    """Learning rate by round: linear warm-up, then as `shape` says down to `final` × peak."""

    peak: Annotated[float, Range(0.0, 1.0)] = 2e-3
    """The learning rate at its highest. A new and whole model of language whose founder does not say it
    has what learned best with `orthogonal` or `muon` in benchmarks with one of its size: 5e-3 up to a
    million parameters, 4e-4 at 1.2 billion; with `step = "sign"` more in small ones, up to 8e-3."""
    warmup_rounds: Annotated[int, Range(0, 2**31)] = 10
    """Rounds from nothing up to the peak."""
    total_rounds: Annotated[int, Range(1, 2**31)] = 1000
    """The length of the run."""
    decay_rounds: Annotated[int, Range(0, 2**31)] = 0
    """With `wsd`: the last rounds, in which the rate falls."""
    final: Fraction = 0.1
    """The learning rate at the end, as a part of the peak."""
    shape: Literal["wsd", "linear", "cosine"] = field(default="wsd", metadata=ADDITION)
    """`wsd` (warm-up, stable, decay): a plateau, then a straight line over the last `decay_rounds`.
    `linear`: a straight line from the end of the warm-up on. `cosine`: half a cosine from there on."""
    at_end: Literal["finish", "continue"] = field(default="finish", metadata=ADDITION)
    """After `total_rounds` the run is over, for all members in the same round; with `continue` they go
    on at the rate of the last one."""

    def __post_init__(self) -> None:
        if self.shape != "wsd" and self.decay_rounds:
            raise ValueError(
                f"decay_rounds ({self.decay_rounds}) belongs to shape 'wsd': with {self.shape!r} the "
                "rate falls from the end of the warm-up on"
            )
        if self.warmup_rounds + self.decay_rounds > self.total_rounds:
            raise ValueError(
                f"warmup_rounds ({self.warmup_rounds}) and decay_rounds ({self.decay_rounds}) "
                f"do not fit into total_rounds ({self.total_rounds})"
            )

    @property
    def closing_round(self) -> int | None:
        """The round after the last in which anybody trains: its record certifies what came out. None for
        a run without end."""
        return self.total_rounds + 1 if self.at_end == "finish" else None

    @property
    def end_round(self) -> int | None:
        """The last round at all; None for a run without end."""
        closing = self.closing_round
        return None if closing is None else closing + CLOSING_ROUNDS - 1

    def trains(self, round: int) -> bool:
        """Whether members compute updates in this round: in round 0 they gather."""
        closing = self.closing_round
        return round > 0 and (closing is None or round < closing)


@dataclass(frozen=True, kw_only=True)
class RoundSpec:
    """How a round runs. Deadlines adapt to what is observed, inside these limits."""

    sequences: Annotated[int, Range(1, 65_536)] = 32
    """Samples per round, dealt out to the members by what each can do."""
    max_share: Annotated[float, Range(0.0, 1.0)] = 1 / 3
    """The largest part of them for one member, whatever it can do, or twice an equal share, if that is
    more. 0: everybody has an equal share."""
    start_members: Annotated[int, Range(1, MAX_MEMBERS)] = 1
    """Training begins once this many members are there; later any number goes on."""
    snapshot_interval: Annotated[int, Range(1, 100_000)] = 50
    """Rounds between certified snapshots."""
    min_seconds: Annotated[float, Range(0.0, 86_400.0)] = 0.5
    """A round takes at least this long, or a lone fast member would outrun gossip and newcomers."""
    collect_min_seconds: Seconds = 1.0
    """For updates everybody waits so long at least."""
    collect_max_seconds: Seconds = 600.0
    """And so long at most: after it a round is decided with those that are there."""
    slot_min_seconds: Seconds = 1.0
    """A leader has so long at least to make its proposal, before another one takes over."""
    slot_max_seconds: Seconds = 60.0
    """And so long at most."""
    lease_rounds: Annotated[int, Range(1, 1000)] = 4
    """A member not heard of for this many typical rounds is silent."""
    lease_min_seconds: Seconds = 20.0
    """But never sooner than after so many seconds. Until then the round waits for its update."""
    finality_lease_seconds: Annotated[float, Range(60.0, 2_592_000.0)] = field(
        default=259_200.0, metadata=ADDITION
    )
    """Who was no member for so long is not waited for any more before a record is final: three days. In
    a cut of the network that lasts longer, two sides may take different records for final."""
    version_notice: Annotated[int, Range(8, 1_000_000)] = field(default=1000, metadata=ADDITION)
    """When a quorum of the members speaks a newer version of the protocol, so many rounds go by until
    the swarm changes over to it: the time for all others to install it."""
    overlap: bool = field(default=False, metadata=ADDITION)
    """Updates are computed a round ahead, while those of the round before are exchanged and agreed on,
    and so on parameters one round old, which learn less. It pays where the trainer would wait for the
    lines for a third of the time or more."""

    def __post_init__(self) -> None:
        for what in ("collect", "slot"):
            low, high = getattr(self, f"{what}_min_seconds"), getattr(self, f"{what}_max_seconds")
            if low > high:
                raise ValueError(
                    f"{what}_min_seconds ({low:g}) exceeds {what}_max_seconds ({high:g})"
                )


@dataclass(frozen=True, kw_only=True)
class AdmissionSpec:
    """Who may become a member. `invite` wants a ticket signed by `issuer`."""

    policy: Literal["open", "invite"] = "open"
    """`open`: whoever has the link."""
    issuer: PeerId | None = None
    """Whose tickets admit."""
    max_members: Annotated[int, Range(1, MAX_MEMBERS)] = 256
    """Who comes when so many are there has to wait until one goes."""

    def __post_init__(self) -> None:
        if (self.policy == "invite") != (self.issuer is not None):
            raise ValueError("an issuer is needed with policy 'invite' and only there")


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """Everything the members of a swarm agree on before they meet."""

    version: Annotated[int, Range(0, 2**31)] = PROTOCOL_VERSION
    name: Name
    task: TaskName = "causal_lm"
    """What is learned from a sample. Nodes have it built in or installed; no peer sends it."""
    seed: Annotated[int, Range(0, 2**63 - 1)] = 0
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
    founder: PeerId
    """The first member. It starts the swarm and is from then on a member like any other."""
    adapter: AdapterSpec | None = field(default=None, metadata=ADDITION)
    """With it the model's own weights stay as they are, and its adapters are trained."""
    task_settings: dict[str, Any] | None = field(default=None, metadata=ADDITION)
    """What the task alone understands."""
    checks: ChecksSpec | None = field(default=None, metadata=ADDITION)
    """With it work is checked and gives votes; without it every member has one vote."""
    speakers: SpeakersSpec | None = field(default=None, metadata=ADDITION)
    """With it few members speak for all of a section; without it everybody speaks of everything."""
    probe: ProbeSpec | None = field(default=None, metadata=ADDITION)
    """By which a trainer proves that it computes this model; None for a task that offers none."""

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[a-z][a-z0-9_.-]*", self.task):
            raise ValueError("task: a name has small letters, digits, '_', '-' and '.'")
        if self.rounds.start_members > self.admission.max_members:
            raise ValueError(
                f"start_members ({self.rounds.start_members}) exceeds max_members "
                f"({self.admission.max_members}): training would never begin"
            )
        if self.data.private is not None and self.optimizer.audit:
            raise ValueError("optimizer.audit does not go with private data: say audit = false")
        if self.checks is not None and self.data.private is not None:
            raise ValueError("checks do not go with private data: nobody else has it")
        if self.checks is not None and self.optimizer.preconditioner not in ("orthogonal", "muon"):
            # With the others honest scores are too often low (docs/checks.md).
            raise ValueError("checks need optimizer.preconditioner = 'orthogonal' or 'muon'")
        if self.data.private is not None and self.optimizer.say == "share":
            raise ValueError('optimizer.say = "share" does not go with private data: "equal" does')
        if self.speakers is not None:
            self.speakers.check(
                checked=self.checks is not None,
                private=self.data.private is not None,
                overlap=self.rounds.overlap,
                audit=self.optimizer.audit,
                rounds=self.schedule.total_rounds,
                elements=self.elements,
            )

    def speaks(self, round: int) -> bool:
        """Whether panels speak in a round, of what was told in the one before."""
        return self.speakers is not None and self.schedule.trains(round) and round % 2 == 0

    @property
    def elements(self) -> int:
        """How many parameters are trained: the model's, or its adapters'."""
        return sum(parameter.elements for parameter in self.parameters)

    @property
    def frozen_elements(self) -> int:
        """How many weights of the model are not trained."""
        return 0 if self.adapter is None else self.adapter.base_elements

    @property
    def last_round(self) -> int | None:
        """The last round in which members train; None if they go on for ever."""
        return self.schedule.total_rounds if self.schedule.at_end == "finish" else None

    def encode(self) -> bytes:
        """The canonical bytes, whose content id is the swarm-id."""
        return encode(self, named=True)

    @cached_property
    def swarm(self) -> SwarmId:
        """The swarm-id."""
        return SwarmId(content_id(self.encode()))


class OtherVersion(ProtocolError):
    """A swarm speaks another version of the protocol, its `version`."""

    def __init__(self, version: int) -> None:
        super().__init__(
            "version",
            f"the swarm speaks protocol version {version}, this program {PROTOCOL_VERSION}",
        )
        self.version = version


def decode_manifest(data: bytes, swarm: SwarmId) -> Manifest:
    """Check that `data` is the manifest of `swarm` and decode it.

    Raises `ProtocolError` with the reason `mismatch` if it hashes to something else, `version` if
    another version of the software wrote it, and what `wire.decode` raises.
    """
    if len(data) <= MAX_MANIFEST_BYTES and content_id(data) != swarm:
        raise ProtocolError("mismatch", "the manifest does not hash to the swarm-id")
    # The version first: another one may well have keys that this one does not know.
    plain = decode_plain(data, max_bytes=MAX_MANIFEST_BYTES)
    version = plain.get("version") if isinstance(plain, dict) else None
    if type(version) is int and version != PROTOCOL_VERSION:
        raise OtherVersion(version)
    return decode(Manifest, data, max_bytes=MAX_MANIFEST_BYTES, named=True)
