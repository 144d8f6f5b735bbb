"""What a node says of itself, as one frozen value: whatever shows a node reads this and nothing else.

`None` stands for what is not known (yet), never a number that only looks like an answer. As JSON
(`encode_status`) it has the same names; `decode_status` takes back exactly that. docs/status.md explains
every field, and tests freeze them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, Literal, TypeVar

from ...protocol.wire.structure import StructureError, from_plain
from ..errors import ExitCode, UserError
from .checked import ChecksStatus
from .privacy import PrivacyStatus
from .scores import Scores

T = TypeVar("T")

State = Literal[
    "starting",
    "connecting",
    "syncing",
    "joining",
    "waiting",
    "training",
    "observing",
    "finished",
    "paused",
    "leaving",
]
Phase = Literal["idle", "compute", "transfer", "agree", "apply"]
Verdict = Literal["unknown", "reachable", "local", "unreachable"]
Way = Literal["direct", "relayed"]
HoldKind = Literal["signal", "program", "person"]


@dataclass(frozen=True, kw_only=True)
class NodeStatus:
    """What holds from the start of the program to its end."""

    version: str
    """Of distro-node."""
    peer: str
    """This node's peer id."""
    swarm: str
    """The swarm-id."""
    started: float
    """Seconds since 1970."""
    metrics: str | None
    """The URL for Prometheus."""
    dashboard: str | None
    """The URL of its page."""
    until_round: int | None
    """The node leaves after this round."""
    observer: bool
    """It follows the swarm and takes no part in it."""


@dataclass(frozen=True, kw_only=True)
class Progress:
    """How far something long is."""

    what: str
    """What it is about, for people."""
    done: int
    """Bytes, rounds or entries."""
    total: int | None
    """None: nobody can say how much it will be."""


@dataclass(frozen=True, kw_only=True)
class Hold:
    """Why a node is not to work beside its hours."""

    kind: HoldKind
    """What `--pause-when` asks, another program on the GPU, or a person at the computer."""
    text: str
    """The cause, for people."""
    waived: bool
    """The owner wants the node to work all the same, until this cause is over."""


@dataclass(frozen=True, kw_only=True)
class ShiftStatus:
    """When the node works."""

    at_work: bool
    """Whether the node is to work now."""
    by_command: bool
    """The owner has told it otherwise than its hours say."""
    active: str | None
    """Its hours, as the owner wrote them; None: always."""
    until: str | None
    """The time of day at which that changes."""
    holds: tuple[Hold, ...]
    """What else speaks against it now."""


@dataclass(frozen=True, kw_only=True)
class Losses:
    """Losses in nats a token."""

    training: float | None
    """Mean over the last round's tokens of all members."""
    heldout: float | None
    """On text that nobody trains on."""
    heldout_round: int | None
    """The round after which it was measured."""


@dataclass(frozen=True, kw_only=True)
class OwnWork:
    """What this node has added to the swarm since its start."""

    counted: int
    """Rounds in which its update counted."""
    tokens: int
    """What its updates in these rounds were computed on."""
    first_round: int | None
    """The first of them."""
    last_round: int | None
    """The last of them."""
    update_bytes: float | None
    """The mean size of its updates."""
    bits_per_coefficient: float | None
    """What a coefficient of an update costs on the line."""


@dataclass(frozen=True, kw_only=True)
class TrainerStatus:
    """The trainer process."""

    device: str | None
    """What it computes on."""
    memory_use: str | None
    """What it takes of the memory there, how it keeps its state and activations, and what that costs."""
    sandbox: tuple[str, ...] | None
    """What its sandbox holds (operations.md); empty: nothing; None: it has not started."""
    restarts: int
    """How often it had to be started again."""
    idle: float | None
    """Which part of the last rounds it had nothing to do, from 0 to 1."""
    tokens_per_second: float | None
    """Tokens of own updates in the last rounds, over all the time that these took."""
    flops_per_second: float | None
    """Floating-point operations that the model needed for them; None: torch cannot count them."""
    utilisation: float | None
    """The same over what a large matrix product reaches on the device, from 0 to 1: the model FLOPs
    utilisation."""
    process_bytes: int | None
    """Main memory of its process, when it was last asked."""
    device_bytes: int | None
    """Memory on the device, likewise; None on a processor, too."""


@dataclass(frozen=True, kw_only=True)
class TrainingStatus:
    """How far the swarm's training is, as this node has applied it."""

    round: int | None
    """The last round in the parameters; None before they are loaded."""
    phase: Phase
    """What is being done for the next round."""
    round_seconds: float | None
    """What a round takes, by those of late; None before two were seen."""
    fingerprint: str | None
    """Of the parameters, in hex; the same at every member."""
    losses: Losses
    tokens: int
    """What the swarm has trained on in the rounds since this node's start."""
    received_bytes_per_round: float | None
    """Updates of others, on average."""
    own: OwnWork
    trainer: TrainerStatus


@dataclass(frozen=True, kw_only=True)
class MemberStatus:
    """A member of the swarm."""

    peer: str
    """Its peer id."""
    me: bool
    """Whether it is this node."""
    connected: bool
    """Whether there is a connection to it; to oneself always."""
    heard_seconds: float | None
    """Since it was last heard; None: it is this node, or was never heard."""
    share: float | None = None
    """Which part of the swarm's work it has, from 0 to 1."""
    capacity: int | None = None
    """How many sequences a day it says that it can train; None: it has not said."""
    why: str | None = None
    """Why its share is smaller than that comes to, for people; None: it is not."""


@dataclass(frozen=True, kw_only=True)
class Awaited:
    """A member whose update is still to come, and that may have gone."""

    peer: str
    """Its peer id."""
    silent_seconds: float
    """How long nothing was heard of it."""
    lease_seconds: float
    """After so many it counts as gone, and the others go on without it."""


@dataclass(frozen=True, kw_only=True)
class ChangeStatus:
    """A change to a newer version of the protocol."""

    version: int
    """The new one."""
    round: int
    """From this round on the swarm speaks it."""
    spoken: bool
    """Whether this node speaks it; else it leaves shortly before, and has to be updated."""


@dataclass(frozen=True, kw_only=True)
class SwarmStatus:
    """The swarm, as far as this node knows it."""

    name: str
    """As its founder called it."""
    parameters: int
    """How many the model has."""
    round: int | None
    """The round that is being agreed on."""
    last_round: int | None
    """The last one in which anybody trains; None: the run has no end."""
    final_round: int | None
    """The last round that nobody goes back behind; null if there is none yet. Where members have gone
    without a word it may stand still for days."""
    members: tuple[MemberStatus, ...] | None
    """None while this node does not take part."""
    awaited: tuple[Awaited, ...]
    """Members whose update is still to come, and that may have gone."""
    decided_seconds: float | None
    """Since this node learned of the last round's record; None: it knows of none."""
    apart: tuple[str, ...]
    """Peer ids of those in reach, members here once or still, whose chain parts from this one before
    `final_round`. Neither side follows the other by itself."""
    version: int | None
    """Of the protocol, that the swarm speaks now; None: it is not known yet."""
    change: ChangeStatus | None
    """What a quorum of the members has brought about by speaking a newer one; None: nothing."""
    hosted_round: int | None
    """An observer keeps the parameters after this round for whoever asks; None: it keeps none, or this
    is a member."""
    checks: ChecksStatus | None
    """None: nobody's work is checked in this swarm."""


@dataclass(frozen=True, kw_only=True)
class LineStatus:
    """The network connection."""

    sent_bytes: int
    """Since the start of the program, all included."""
    received_bytes: int
    """Likewise."""
    carried_bytes: int
    """Carried between others as a relay, since the node's first start, by its own count."""
    peers: int
    """To how many peers it is connected."""
    bootstrap: bool
    """Whether one of them is a bootstrap peer."""
    addresses: tuple[str, ...]
    """Where others reach it."""
    max_upload: float | None
    """The most that it sends, in bytes a second; None: no limit."""
    max_download: float | None
    """The most that it receives, likewise."""


NO_LINE = LineStatus(
    sent_bytes=0,
    received_bytes=0,
    carried_bytes=0,
    peers=0,
    bootstrap=False,
    addresses=(),
    max_upload=None,
    max_download=None,
)


@dataclass(frozen=True, kw_only=True)
class Connection:
    """A peer to which there is a connection."""

    peer: str
    """Its peer id."""
    way: Way
    """`relayed`: a relay carries it."""


@dataclass(frozen=True, kw_only=True)
class ReachStatus:
    """How others reach this node. None stands for what nobody has told it yet."""

    verdict: Verdict
    """`local`: whoever shares its network can dial it; nobody else has tried."""
    observed: str | None
    """The address that others see it at."""
    port: int | None
    """The TCP port at which it was reached, else the one to open."""
    mapped: str | None
    """The address that the router opened for it."""
    relays: tuple[str, ...]
    """The peers that carry connections to it."""
    connections: tuple[Connection, ...]
    """The peers to which there is a connection now."""

    def count(self, way: Way) -> int:
        """To how many peers it is connected in this way."""
        return sum(connection.way == way for connection in self.connections)


@dataclass(frozen=True, kw_only=True)
class EnergyPart:
    """What one part of the computer takes. It is the whole part's: other programs' share is in it."""

    watts: float | None
    """Drawn now; None: nobody can say."""
    joules: float | None
    """Measured while the node was at work, since its start; None: nothing was."""
    measured: float | None
    """Of which part of that time it was measured, from 0 to 1; None: it has not worked yet."""
    why: str | None
    """Why it is not known now, for people."""


@dataclass(frozen=True, kw_only=True)
class EnergyStatus:
    """What the node's work costs. Sums are over the parts that could be measured, and no others."""

    gpu: EnergyPart | None
    """None: the trainer computes on none, as far as is known."""
    processor: EnergyPart
    """Its packages and, where it has a counter, the memory."""
    watts: float | None
    """Drawn now by the parts that are known; None: none is."""
    kwh: float | None
    """Since this node's start, while it was at work; None: nothing was measured."""
    price: float | None
    """Of a kWh, as the owner gave it."""
    currency: str | None
    """The price's, likewise."""
    cost: float | None
    """Of `kwh`; None without a price, or where nothing was measured."""
    joules_per_token: float | None
    """Of all that was measured, over the tokens of own updates that counted."""
    power_limit: float | None
    """Watts that the GPU was told to stay under; None: it was not, or refused."""
    signal: float | None
    """The number that `--pause-when` was told last, while it holds."""


NO_ENERGY = EnergyStatus(
    gpu=None,
    processor=EnergyPart(watts=None, joules=None, measured=None, why=None),
    watts=None,
    kwh=None,
    price=None,
    currency=None,
    cost=None,
    joules_per_token=None,
    power_limit=None,
    signal=None,
)


@dataclass(frozen=True, kw_only=True)
class EventStatus:
    """Something that happened."""

    time: float
    """Seconds since 1970."""
    round: int
    """The round in which it happened."""
    kind: str
    """What it was, for programs."""
    peer: str | None
    """Whom it is about."""
    text: str
    """What it was, for people."""


@dataclass(frozen=True, kw_only=True)
class Status:
    """All of it."""

    node: NodeStatus
    state: State
    """What it does; `distro-node status` says what that means."""
    progress: Progress | None
    shift: ShiftStatus
    training: TrainingStatus
    swarm: SwarmStatus | None
    """None before its manifest is here."""
    seconds_left: float | None
    """Until the run is over, at the pace of late; None: nobody can say, or it has no end."""
    scores: Scores | None
    """What `distro-node evaluate` measured last; None: nothing yet."""
    line: LineStatus
    reach: ReachStatus | None
    """None while this node is not connected."""
    energy: EnergyStatus
    privacy: PrivacyStatus | None
    """None: it does not keep to differential privacy."""
    events: tuple[EventStatus, ...]
    """The last ones, the newest last."""


@dataclass(frozen=True, kw_only=True)
class StayStatus:
    """The parts of a status that hold for one stay in the swarm, between two pauses."""

    swarm: SwarmStatus | None
    line: LineStatus
    reach: ReachStatus | None


@dataclass(frozen=True, kw_only=True)
class BootstrapStatus:
    """What a bootstrap peer says of itself."""

    version: str
    """Of distro-node."""
    peer: str
    """Its peer id."""
    started: float
    """Seconds since 1970."""
    swarms: int
    """To how many swarms it introduces peers now."""
    observes: str | None
    """The swarm-id of the swarm that it follows."""
    dashboard: str | None
    """The URL of that swarm's page."""
    line: LineStatus
    """The network connection."""


def seconds_left(training: TrainingStatus, swarm: SwarmStatus | None) -> float | None:
    """How long the run takes from now on, at the pace of late; None: nobody can say."""
    last = None if swarm is None else swarm.last_round
    if last is None or training.round is None or training.round_seconds is None:
        return None
    return max(0, last - training.round) * training.round_seconds


def is_over(training: TrainingStatus, swarm: SwarmStatus | None) -> bool:
    """Whether all rounds in which anybody trains are behind this node."""
    last = None if swarm is None else swarm.last_round
    return last is not None and training.round is not None and training.round >= last


def encode_status(status: Status | BootstrapStatus) -> dict[str, Any]:
    """As a table for JSON. A number that is no number there (a loss that diverged) becomes null."""
    plain = _plain(status)
    assert isinstance(plain, dict)  # as a dataclass does
    return plain


def decode_status(answer: object) -> Status:
    """Read what `encode_status` wrote of a node. Raises `UserError` (`VERSION`) for anything else."""
    return _decode(Status, answer)


def decode_any_status(answer: object) -> Status | BootstrapStatus:
    """Likewise, of a node or a bootstrap peer."""
    bootstrap = isinstance(answer, dict) and "swarms" in answer
    return _decode(BootstrapStatus if bootstrap else Status, answer)


def _decode(kind: type[T], answer: object) -> T:
    try:
        return from_plain(kind, answer, named=True)
    except StructureError as error:
        raise UserError(
            ExitCode.VERSION,
            f"the node that runs here speaks of itself in other words than this command: {error}",
            "they are of two versions: start the node anew, or use `distro-node status --json`",
        ) from None


def _plain(value: object) -> Any:
    if is_dataclass(value):
        return {field.name: _plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
