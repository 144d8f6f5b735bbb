"""Prometheus metrics of a node: a table with every metric, its meaning, and how a reading gives it.

A scrape renders one `Status`, as the screen, the dashboard and `distro-node status` do, and the counts
that a status leaves out. `docs/reference.md` lists the metrics. Label values come from fixed sets, so
the number of series does not grow with the swarm, with its age or with what peers send.
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable, Mapping
from typing import Literal, get_args

import psutil

from .audit_metrics import AUDIT_METRICS
from .counts import NodeReading, RoundPhase
from .families import MetricLabel, MetricRow, values_of
from .own_rounds import OwnRound
from .status import MemberStatus, State, Status

StateLabel = Literal[State, "other"]
# The kinds of traffic, as in network/traffic.py.
Kind = Literal["update", "relayed", "blob", "gossip", "ledger", "other"]
_JOULES_PER_KWH = 3.6e6
_RELAYED = "; `relayed`: updates passed on for other members"
Scope = Literal["own", "swarm", "other"]
Side = Literal["own", "peer", "other"]
# The tasks of the preset `gpt4all`; others count as `other`.
Task = Literal[
    "arc_challenge",
    "arc_easy",
    "heldout",
    "hellaswag",
    "openbookqa",
    "piqa",
    "winogrande",
    "other",
]
Owner = Literal["node", "trainer", "device", "other"]
# The reasons for which envelopes, decoders and the protocol's checks refuse a message.
Reason = Literal[
    "bad_hash",
    "bad_signature",
    "certificate",
    "checkpoint",
    "equivocation",
    "evidence",
    "frozen",
    "impersonation",
    "invalid",
    "audit",
    "malformed",
    "mismatch",
    "not_leader",
    "not_due",
    "not_member",
    "not_public",
    "other_round",
    "oversized",
    "record",
    "refused_peer",
    "silences_us",
    "stale",
    "too_far",
    "too_many",
    "unknown_kind",
    "version",
    "wrong_parent",
    "wrong_swarm",
    "other",
]


def _disk_free(at: NodeReading) -> float | None:
    if at.folder is None:
        return None
    try:
        return shutil.disk_usage(at.folder).free
    except OSError:
        # The free space is unknown; 0 would look like a full disk.
        return None


def _events(*kinds: str) -> Callable[[NodeReading], int]:
    return lambda at: sum(at.counts.events[kind] for kind in kinds)


def _me(status: Status) -> MemberStatus | None:
    members = (status.swarm and status.swarm.members) or ()
    return next((member for member in members if member.me), None)


def _share(at: NodeReading) -> float:
    me = _me(at.status)
    return 0.0 if me is None else me.share or 0.0


def _capacity(at: NodeReading) -> int:
    me = _me(at.status)
    return 0 if me is None else me.capacity or 0


def _members(at: NodeReading) -> int:
    return len((at.status.swarm and at.status.swarm.members) or ())


def _memory(at: NodeReading) -> Mapping[str, float]:
    trainer = at.status.training.trainer
    return {
        "node": psutil.Process().memory_info().rss,
        "trainer": trainer.process_bytes or 0,
        "device": trainer.device_bytes or 0,
    }


def _mismatches(at: NodeReading) -> Mapping[str, float]:
    own = at.counts.own_mismatches
    return {"own": own, "peer": at.counts.events["mismatch"] - own}


def _task_scores(at: NodeReading) -> Mapping[str, float]:
    if at.status.scores is None:
        return {}
    known = {task: score.value for task, score in at.status.scores.main().items()}
    others = [known.pop(task) for task in [*known] if task not in get_args(Task)]
    return known | ({"other": sum(others) / len(others)} if others else {})


def _tokens_per_second(at: NodeReading) -> Mapping[str, float]:
    training = at.status.training
    speeds = {"own": training.own.tokens_per_second, "swarm": training.tokens_per_second}
    return {scope: speed or 0.0 for scope, speed in speeds.items()}


def _own_rounds(at: NodeReading) -> Mapping[str, float]:
    own = at.status.training.own
    return {each: getattr(own, each) for each in get_args(OwnRound)}


def _reachable(at: NodeReading) -> float | None:
    reach = at.status.reach
    if reach is None or reach.verdict == "unknown":
        return None
    return float(reach.verdict != "unreachable")


NODE_METRICS: tuple[MetricRow[NodeReading], ...] = (
    MetricRow(
        "info",
        "build",
        "The version of distro-node.",
        lambda at: {"version": at.status.node.version},
        MetricLabel(name="version"),
    ),
    MetricRow(
        "gauge",
        "state",
        "1 for the state that the node is in, 0 for the others.",
        lambda at: {at.status.state: 1},
        values_of("state", StateLabel),
    ),
    MetricRow(
        "counter",
        "trainer_restarts_total",
        "Restarts of the trainer process.",
        lambda at: at.status.training.trainer.restarts,
    ),
    MetricRow(
        "counter",
        "trainer_idle_seconds_total",
        "Seconds in which the trainer was idle, or waited for training data.",
        lambda at: at.counts.idle_seconds,
    ),
    MetricRow(
        "gauge",
        "memory_bytes",
        "Memory in use: resident in the node or trainer process, or allocated on the device.",
        _memory,
        values_of("owner", Owner),
    ),
    MetricRow(
        "gauge", "disk_free_bytes", "Free space on the disk of the data directory.", _disk_free
    ),
    MetricRow(
        "histogram",
        "event_loop_stall_seconds",
        "Steps of a task that blocked the node process's event loop for more than 10 ms.",
        lambda at: at.stalls,
    ),
    MetricRow(
        "gauge",
        "round",
        "Rounds applied since the swarm began.",
        lambda at: at.status.training.round or 0,
    ),
    MetricRow(
        "gauge",
        "final_round",
        "The last final round: no record up to it can change.",
        lambda at: (at.status.swarm and at.status.swarm.final_round) or 0,
    ),
    MetricRow("gauge", "members", "Members in the current round.", _members),
    MetricRow("gauge", "share", "This node's share of the swarm's work, from 0 to 1.", _share),
    MetricRow(
        "gauge",
        "capacity",
        "Sequences a day that this node last announced it can train; 0: it has announced none.",
        _capacity,
    ),
    MetricRow(
        "gauge",
        "training_loss",
        "Mean training loss of the last round, nats per token.",
        lambda at: at.status.training.losses.training,
    ),
    MetricRow(
        "gauge",
        "heldout_loss",
        "Loss on the held-out data when last measured, nats per token.",
        lambda at: at.status.training.losses.heldout,
    ),
    MetricRow(
        "gauge",
        "task_score",
        "The last result of `distro-node evaluate`: a task's accuracy or other main metric; "
        "`heldout` is the accuracy on held-out data, `other` the mean over custom tasks.",
        _task_scores,
        values_of("task", Task, math.nan),
    ),
    MetricRow(
        "gauge",
        "privacy_epsilon",
        "Differential privacy: the ε spent so far for one sequence of this node's private "
        "data; no number: it trains without it.",
        lambda at: None if at.status.privacy is None else at.status.privacy.epsilon,
    ),
    MetricRow(
        "counter",
        "tokens_total",
        "Tokens trained on in the rounds that this node has applied.",
        lambda at: {"own": at.status.training.own.tokens, "swarm": at.status.training.tokens},
        values_of("scope", Scope),
    ),
    MetricRow(
        "gauge",
        "tokens_per_second",
        "Tokens per second over the last round.",
        _tokens_per_second,
        values_of("scope", Scope),
    ),
    MetricRow(
        "gauge",
        "model_flops_utilisation",
        "Floating-point operations a second that the model needed for this node's own updates over "
        "the last rounds, over what a large matrix product reaches on its device, from 0 to 1.",
        lambda at: at.status.training.trainer.utilisation,
    ),
    MetricRow(
        "counter",
        "own_rounds_total",
        "Rounds by this node's part in them: its update counted, was late, was left out; it had no "
        "work, or none was needed of it.",
        _own_rounds,
        values_of("own", Literal[OwnRound, "other"]),
    ),
    MetricRow(
        "histogram",
        "round_phase_seconds",
        "Duration of the phases of a round.",
        lambda at: at.counts.phases,
        values_of("phase", RoundPhase),
    ),
    MetricRow(
        "counter",
        "slots_skipped_total",
        "Slots of the consensus that ended without a record.",
        _events("skipped", "incomplete"),
    ),
    MetricRow(
        "counter",
        "updates_late_total",
        "Updates of other members that arrived after their round was decided.",
        _events("late"),
    ),
    MetricRow(
        "counter",
        "updates_refunded_total",
        "Own updates that missed their round and went back into the momentum.",
        _events("refunded"),
    ),
    MetricRow(
        "counter",
        "updates_filtered_total",
        "Updates left out of the step by the outlier filter, since most others contradict them.",
        lambda at: at.counts.updates_filtered,
    ),
    MetricRow(
        "counter",
        "fingerprint_mismatches_total",
        "Parameters found to differ from the swarm's: this node's own, or a peer's.",
        _mismatches,
        values_of("side", Side),
    ),
    *AUDIT_METRICS,
    MetricRow(
        "counter",
        "members_expelled_total",
        "Members expelled by a record for contradicting themselves.",
        _events("expelled"),
    ),
    MetricRow(
        "counter",
        "resyncs_total",
        "Times this node dropped its state and fetched the swarm's.",
        _events("resync", "forked"),
    ),
    MetricRow(
        "gauge",
        "peers_connected",
        "Peers with an open connection.",
        lambda at: at.status.line.peers,
    ),
    MetricRow(
        "gauge",
        "peers_relayed",
        "Peers that are connected only through a relay.",
        lambda at: at.status.line.peers_relayed,
    ),
    MetricRow(
        "gauge",
        "reachable",
        "1 if others can dial this node, 0 if not; no number: not known yet.",
        _reachable,
    ),
    MetricRow(
        "gauge",
        "update_bytes",
        "Size of the update that this node sent last.",
        lambda at: at.status.training.own.last_update_bytes or 0,
    ),
    MetricRow(
        "counter",
        "sent_bytes_total",
        f"Bytes sent to peers{_RELAYED}.",
        lambda at: at.traffic.sent,
        values_of("kind", Kind),
    ),
    MetricRow(
        "counter",
        "received_bytes_total",
        f"Bytes received from peers{_RELAYED}.",
        lambda at: at.traffic.received,
        values_of("kind", Kind),
    ),
    MetricRow(
        "gauge",
        "power_watts",
        "Power draw of the GPUs in use, including other programs; no number: not known.",
        lambda at: at.status.energy.watts,
    ),
    MetricRow(
        "counter",
        "energy_joules_total",
        "Energy of the GPUs, measured while the node was working.",
        lambda at: (at.status.energy.kwh or 0.0) * _JOULES_PER_KWH,
    ),
    MetricRow(
        "gauge",
        "joules_per_token",
        "That energy, divided by the tokens of this node's counted updates; no number: not known.",
        lambda at: at.status.energy.joules_per_token,
    ),
    MetricRow(
        "counter",
        "messages_rejected_total",
        "Messages and blobs from peers that were rejected as invalid, or (`frozen`) never arrived.",
        lambda at: at.traffic.rejected,
        values_of("reason", Reason),
    ),
)
