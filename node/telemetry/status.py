"""The status of a node as one frozen value, the only source of everything that displays a node.

`None` means unknown (yet); no number stands for an unknown value. The JSON form (`encode_status`) has
the same field names; `decode_status` accepts exactly that form. docs/reference.md explains every field,
and tests freeze the fields.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, Literal, TypeVar

from ...protocol.wire.structure import StructureError, from_plain
from ..errors import ExitCode, UserError
from ..util.progress import Progress
from .audit_status import AuditsStatus
from .privacy import PrivacyStatus
from .task_scores import TaskScores

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
HoldKind = Literal["command", "program", "person"]


@dataclass(frozen=True, kw_only=True)
class NodeStatus:
    """Facts that hold from the start of the program to its end."""

    version: str
    """The version of distro-node."""
    peer: str
    """This node's peer id."""
    swarm: str
    """The swarm-id."""
    started: float
    """Seconds since 1970."""
    metrics: str | None
    """The URL of the metrics for Prometheus."""
    dashboard: str | None
    """The URL of the node's dashboard."""
    until_round: int | None
    """The round after which the node leaves."""
    observer: bool
    """Whether the node follows the swarm without being a member."""


@dataclass(frozen=True, kw_only=True)
class Hold:
    """A reason to pause, independent of the node's working hours."""

    kind: HoldKind
    """`command`: `--pause-when`; `program`: another program on the GPU; `person`: a person at the
    computer."""
    text: str
    """The cause, for display."""
    waived: bool
    """Whether the owner wants the node to work despite this cause."""


@dataclass(frozen=True, kw_only=True)
class ScheduleStatus:
    """The node's working hours, and whether it works now."""

    at_work: bool
    """Whether the node is supposed to work now."""
    by_command: bool
    """Whether the owner has overridden its hours or waived a reason to pause."""
    active: str | None
    """Its hours, as the owner wrote them; None: always."""
    until: str | None
    """The time of day at which its hours next begin or end; None: they never do."""
    holds: tuple[Hold, ...]
    """Reasons to pause at present."""


@dataclass(frozen=True, kw_only=True)
class Losses:
    """Losses in nats per token."""

    training: float | None
    """Mean over the last round's tokens, robust to one member."""
    heldout: float | None
    """Loss on text that no member trains on."""
    heldout_round: int | None
    """The round after which it was measured."""


@dataclass(frozen=True, kw_only=True)
class OwnWork:
    """This node's contributions to the swarm since its start."""

    counted: int
    """Rounds in which its update counted."""
    late: int
    """Rounds in which its update was due, but is not in the record."""
    left_out: int
    """Rounds whose record has its update, but whose step leaves it out."""
    no_work: int
    """Rounds in which it was assigned no samples."""
    not_needed: int
    """Rounds that needed no update from it, because committees aggregate those of the round before."""
    missed_in_a_row: int
    """Number of its updates that were due and did not count, since the last one that counted."""
    tokens: int
    """Tokens of its updates that counted."""
    first_round: int | None
    """The first round in which its update counted."""
    last_round: int | None
    """The last round in which its update counted."""
    update_bytes: float | None
    """Mean size of its updates in bytes."""
    bits_per_coefficient: float | None
    """Mean size of its updates in bits per coefficient."""
    last_update_bytes: int | None
    """Size in bytes of the update that it made last."""
    tokens_per_second: float | None
    """Tokens of its update per second of the last round; 0 if it did not count; None before two
    rounds."""


@dataclass(frozen=True, kw_only=True)
class TrainerStatus:
    """The trainer process."""

    device: str | None
    """The device on which it computes."""
    memory_use: str | None
    """Its use of memory there, how it stores its state and activations, and the cost of that."""
    sandbox: tuple[str, ...] | None
    """The restrictions of its sandbox (operations.md); empty: none; None: it has not started."""
    restarts: int
    """How often it was restarted."""
    idle: float | None
    """Fraction of the last rounds in which it was idle, from 0 to 1."""
    tokens_per_second: float | None
    """Tokens of own updates in the last rounds, divided by the whole duration of these rounds."""
    flops_per_second: float | None
    """Floating-point operations per second that the model needed for these tokens; None: torch cannot
    count them."""
    utilisation: float | None
    """`flops_per_second` as a fraction of the device's speed in a large matrix product, from 0 to 1: the
    model FLOPs utilisation."""
    process_bytes: int | None
    """Bytes of main memory that its process uses, as last measured."""
    device_bytes: int | None
    """Bytes of device memory that it uses, as last measured; None also for a CPU."""


@dataclass(frozen=True, kw_only=True)
class TrainingStatus:
    """The swarm's training, as far as this node has applied it."""

    round: int | None
    """The last round in the parameters; None before they are loaded."""
    phase: Phase
    """The current phase of the next round."""
    round_seconds: float | None
    """Mean duration of the last rounds; None before two were applied."""
    fingerprint: str | None
    """Fingerprint of the parameters, in hex; the same at every member."""
    losses: Losses
    tokens: int
    """Tokens trained by the swarm in the rounds since this node's start."""
    tokens_per_second: float | None
    """Tokens of the swarm per second of the last round; None before two rounds."""
    received_bytes_per_round: float | None
    """Bytes of other members' updates received in a round, on average."""
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
    """Whether it is connected; always true for this node."""
    last_message_seconds: float | None
    """Seconds since its last message; None: this node, or none yet."""
    share: float | None = None
    """Its fraction of the swarm's work, from 0 to 1."""
    capacity: int | None = None
    """Sequences per day that it states it can train; None: it has not stated any."""
    share_reason: str | None = None
    """Why its share is below its capacity, for display; None: it is not."""


@dataclass(frozen=True, kw_only=True)
class Awaited:
    """A member whose update is due, and that may be gone."""

    peer: str
    """Its peer id."""
    silent_seconds: float
    """Seconds since its last message."""
    lease_seconds: float
    """Seconds of silence after which it counts as gone, and the others go on without it."""


@dataclass(frozen=True, kw_only=True)
class ChangeStatus:
    """A scheduled change to a newer version of the protocol."""

    version: int
    """The new version."""
    round: int
    """The first round with the new version."""
    supported: bool
    """Whether this node supports it; if not, it leaves shortly before, and needs an update."""


@dataclass(frozen=True, kw_only=True)
class SwarmStatus:
    """The swarm, as far as this node knows it."""

    name: str
    """Its name, chosen by its founder."""
    parameters: int
    """Number of the model's parameters."""
    loss_unit: str | None
    """Unit of the loss; None: unknown."""
    start_members: int
    """Members with whom training starts."""
    round: int | None
    """The round to be decided next."""
    last_round: int | None
    """The last round with training; None: the run has no end."""
    final_round: int | None
    """The last final round, which no member reverts; None: none yet. Departures without a goodbye may
    hold it up for days."""
    members: tuple[MemberStatus, ...] | None
    """The members; None while this node does not take part."""
    awaited: tuple[Awaited, ...]
    """Members whose update is due, and that may be gone."""
    decided_seconds: float | None
    """Seconds since this node learned of the last round's record; None: paused, or none known."""
    ended: bool
    """Whether this node's chain has the run's last record; the result may still be missing."""
    diverged: tuple[str, ...]
    """Peer ids of connected current or former members whose chain forks from this node's before
    `final_round`. Neither side changes over by itself."""
    version: int | None
    """The swarm's protocol version; None: not known yet."""
    version_change: ChangeStatus | None
    """The change scheduled because a quorum of the members supports a newer version; None: none."""
    served_round: int | None
    """The round whose parameters an observer keeps and serves to any peer; None: none, or a member."""
    audits: AuditsStatus | None
    """None: the swarm has no audits."""


@dataclass(frozen=True, kw_only=True)
class LineStatus:
    """The network connection."""

    sent_bytes: int
    """Bytes sent since the start of the program, with protocol overhead."""
    received_bytes: int
    """Bytes received since the start of the program, with protocol overhead."""
    relayed_bytes: int
    """Bytes relayed between others since the node's first start, by its own count."""
    peers: int
    """Number of connected peers."""
    peers_relayed: int
    """Number of connected peers that are reached only through a relay."""
    bootstrap: bool
    """Whether a bootstrap peer is connected."""
    addresses: tuple[str, ...]
    """Addresses at which others reach this node."""
    max_upload: float | None
    """Upload limit in bytes per second; None: unlimited."""
    max_download: float | None
    """Download limit in bytes per second; None: unlimited."""


NO_LINE = LineStatus(
    sent_bytes=0,
    received_bytes=0,
    relayed_bytes=0,
    peers=0,
    peers_relayed=0,
    bootstrap=False,
    addresses=(),
    max_upload=None,
    max_download=None,
)


@dataclass(frozen=True, kw_only=True)
class Connection:
    """A connected peer."""

    peer: str
    """Its peer id."""
    way: Way
    """Whether the connection is direct, or `relayed` through another peer."""


@dataclass(frozen=True, kw_only=True)
class ReachStatus:
    """How others reach this node. None means that no peer has reported it yet."""

    verdict: Verdict
    """`local`: peers in the node's own network can dial it; no others have tried."""
    observed: str | None
    """The address at which others see the node."""
    port: int | None
    """The TCP port at which the node was reached, else the port to open in the router."""
    mapped: str | None
    """The address that the router opened for the node."""
    relays: tuple[str, ...]
    """The relays through which others connect to it."""
    connections: tuple[Connection, ...]
    """The peers connected now."""

    def count(self, way: Way) -> int:
        """Return the number of peers connected in this way."""
        return sum(connection.way == way for connection in self.connections)


@dataclass(frozen=True, kw_only=True)
class EnergyStatus:
    """The energy of the node's work on NVIDIA GPUs, including what other programs use."""

    watts: float | None
    """Current power; None: unknown."""
    kwh: float | None
    """Energy since this node's start, while it was at work; None: none was measured."""
    measured: float | None
    """Fraction of the node's time at work on a GPU in which the energy was measured, from 0 to 1; None:
    it has not worked on one yet."""
    joules_per_token: float | None
    """All measured energy, divided by the tokens of own updates that counted."""
    why: str | None
    """Why the power is unknown now, for display."""


NO_ENERGY = EnergyStatus(watts=None, kwh=None, measured=None, joules_per_token=None, why=None)


@dataclass(frozen=True, kw_only=True)
class EventStatus:
    """An event in the swarm or at this node."""

    time: float
    """Seconds since 1970."""
    round: int
    """The round in which it happened."""
    kind: str
    """The kind of event, for programs."""
    peer: str | None
    """The peer that it concerns."""
    text: str
    """A sentence about it, for display."""


@dataclass(frozen=True, kw_only=True)
class Status:
    """The complete status."""

    node: NodeStatus
    state: State
    """The node's state; `distro-node status` explains it."""
    progress: Progress | None
    schedule: ScheduleStatus
    training: TrainingStatus
    swarm: SwarmStatus | None
    """None before this node has the swarm's manifest."""
    seconds_left: float | None
    """Estimated seconds to the end of the run, at the recent pace; None: unknown, or the run has no
    end."""
    scores: TaskScores | None
    """The last result of `distro-node evaluate`; None: none yet."""
    line: LineStatus
    reach: ReachStatus | None
    """None while this node is not connected."""
    energy: EnergyStatus
    privacy: PrivacyStatus | None
    """None: differential privacy is not used."""
    events: tuple[EventStatus, ...]
    """The last events, the newest last."""


@dataclass(frozen=True, kw_only=True)
class SessionStatus:
    """The parts of a status that belong to one session in the swarm, between two pauses."""

    swarm: SwarmStatus | None
    line: LineStatus
    reach: ReachStatus | None


@dataclass(frozen=True, kw_only=True)
class BootstrapStatus:
    """The status of a bootstrap peer."""

    version: str
    """The version of distro-node."""
    peer: str
    """Its peer id."""
    started: float
    """Seconds since 1970."""
    swarms: int
    """Number of swarms whose peers it introduces now."""
    reservations: int
    """Number of peers with a reservation, which lets others dial them through this bootstrap peer."""
    circuits: int
    """Number of open connections between peers through it."""
    observes: str | None
    """The swarm-id of the swarm that it observes."""
    dashboard: str | None
    """The URL of that swarm's dashboard."""
    line: LineStatus
    """The network connection."""


def seconds_left(training: TrainingStatus, swarm: SwarmStatus | None) -> float | None:
    """Return the estimated seconds to the end of the run at the recent pace; None: unknown."""
    last = None if swarm is None else swarm.last_round
    if last is None or training.round is None or training.round_seconds is None:
        return None
    return max(0, last - training.round) * training.round_seconds


def is_over(training: TrainingStatus, swarm: SwarmStatus | None) -> bool:
    """Whether this node has applied all rounds with training."""
    last = None if swarm is None else swarm.last_round
    return last is not None and training.round is not None and training.round >= last


def encode_status(status: Status | BootstrapStatus) -> dict[str, Any]:
    """Return the status as a table for JSON. A number that is not finite (a loss that diverged) becomes
    null."""
    plain = _plain(status)
    assert isinstance(plain, dict)  # a dataclass always gives a table
    return plain


def decode_status(answer: object) -> Status:
    """Decode the output of `encode_status` of a node.

    Raises `UserError` with `ExitCode.VERSION` for anything else.
    """
    return _decode(Status, answer)


def decode_any_status(answer: object) -> Status | BootstrapStatus:
    """Decode the status of a node or of a bootstrap peer. Raises as `decode_status` does."""
    bootstrap = isinstance(answer, dict) and "swarms" in answer
    return _decode(BootstrapStatus if bootstrap else Status, answer)


def _decode(kind: type[T], answer: object) -> T:
    try:
        return from_plain(kind, answer, named=True)
    except StructureError as error:
        raise UserError(
            ExitCode.VERSION,
            f"the running node reports its status in another format than this command reads: {error}",
            "they are of two versions: start the node again, or use `distro-node status --json`",
        ) from None


def _plain(value: object) -> Any:
    if is_dataclass(value):
        return {field.name: _plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
