"""Texts for people: every state with its cause and remedy, and every event.

The screen, the dashboard, `distro-node status`, the demo and the log take their sentences from here, so
that a thing has the same name everywhere. Untrusted text is not changed here: the code that displays it
sanitizes it.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..util.progress import Progress
from ..util.size_text import size_text
from .status import (
    Awaited,
    OwnWork,
    Phase,
    ReachStatus,
    ScheduleStatus,
    State,
    Status,
    TrainerStatus,
    is_over,
)


@dataclass(frozen=True)
class UserMessage:
    """What something means, and what helps if it persists; an empty remedy: nothing has to be done."""

    meaning: str
    remedy: str = ""


def starting_trainer(seconds: float) -> Progress:
    """Return the progress to report while the trainer process starts, for `seconds` so far."""
    return Progress(what="starting the trainer", done=int(seconds), kind="starting_trainer")


def progress_text(progress: Progress) -> str:
    """Return what is in progress and how far it is."""
    if progress.kind == "starting_trainer":
        if not progress.done:
            return f"{progress.what}, which takes up to half a minute"
        return f"{progress.what}: {progress.done} s so far"
    if progress.total is None:
        return progress.what
    if progress.kind == "downloading":
        return f"{progress.what}: {size_text(progress.done)} of {size_text(progress.total)}"
    return f"{progress.what}: {progress.done:,} of {progress.total:,}"


STATES: dict[State, UserMessage] = {
    "starting": UserMessage(
        "opening this node's data, device and ports",
        "if it takes more than a minute, see the log",
    ),
    "connecting": UserMessage(
        "looking for members of the swarm",
        "check the addresses of the bootstrap peers, and that a member is online",
    ),
    "syncing": UserMessage(
        "loading the model's current parameters; training starts after that",
        "no action needed: a large model takes long on a slow line",
    ),
    "joining": UserMessage(
        "asking for admission, which the next round's record decides",
        "wait until a quorum of the members is online",
    ),
    "waiting": UserMessage(
        "the swarm starts training once enough members have joined",
        "invite more members",
    ),
    "training": UserMessage("training with the swarm"),
    "observing": UserMessage("following the swarm's records, without being a member"),
    "finished": UserMessage(
        "the run is over, and its result is on this disk",
        "`distro-node export` writes the model",
    ),
    "paused": UserMessage(
        "this node uses neither the device nor the network", "`distro-node resume` ends the pause"
    ),
    "leaving": UserMessage(
        "telling the others, so that they do not wait for this node",
        "a second Ctrl-C ends the node at once",
    ),
}

TRAINER_STARTS = UserMessage(
    "the trainer process starts; PyTorch takes some seconds to load",
    "if it takes more than a minute, see the log",
)

WEIGHTS: dict[str, str | None] = {
    "": None,
    "new": "new: starts small",
    "late": "reduced: update was late",
    "careful": "grows slowly: update was late",
    "growing": "still growing",
}
"""By cause: why a member's share is smaller than its stated capacity would give; None: it is not."""

_PHASES: dict[Phase, str] = {
    "idle": "round {round} is about to begin",
    "compute": "your {device} computes round {round}'s share",
    "transfer": "the members exchange the updates of round {round}",
    "agree": "the members agree on which updates of round {round} count",
    "apply": "your node applies the step of round {round}",
}

_EVENTS = {
    "joined": "{who} joined the swarm",
    "left": "{who} left the swarm",
    "silent": "{who} was silent for its whole lease and counts as departed",
    "presumed_gone": "the other members counted this node as departed; it rejoins",
    "expelled": "{who} signed two messages that contradict each other, as a record proves, and "
    "is expelled for good",
    "late": "the update of {who} arrived after round {round} was decided",
    "refunded": "this node's update missed round {round}, but is not lost: later updates "
    "contain it",
    "skipped": "{who}, a leader of round {round}, was too slow; the next leader takes over",
    "incomplete": "{who}, a leader of round {round}, proposed a record that leaves out updates "
    "which this node has, or changes announced ones; the next leader takes over",
    "mismatch": "nodes have different parameters: {detail}",
    "forked": "after a network partition the swarm continued on another chain; this node "
    "changes over to it",
    "diverged": "{who} is on another chain, which diverged before the end of round {detail}; "
    "that round is final here, so this node stays on its own chain",
    "finalized": "records up to round {round} are final now, without the members that were "
    "away for too long",
    "version": "a quorum of the members supports protocol version {detail}, so the swarm "
    "changes to it in round {round}",
    "resync": "fetching the swarm's state again: {detail}",
    "finished": "the run is over, and this node has its result",
    "trainer": "the trainer process was restarted: {detail}",
    "started": "{detail}",
    "private_data": "{detail}",
    "audit_low": "an audit gave the update of {who} for round {detail} a low score; other "
    "members repeat the audit",
    "audit_failed": "other members recomputed samples of {who}: its update of round {detail} does "
    "not match them",
    "contradicted": "{who} gave another member a low score for round {detail}, but re-audits "
    "gave it a normal one",
    "dismissed": "{who} was dismissed: an audit of its work failed, and no member has "
    "confirmed any of it yet",
    "excluded": "the updates of {who} no longer count, because audits of its work failed; {detail}",
    "reinstated": "the updates of {who} count again: enough audits of its work have passed",
    "scores_low": "the updates of {who} score lower in audits than those of others, so it will "
    "soon lose its votes",
    "halves_missing": "audits find only one half of each sample in the updates of {who}, so it "
    "will soon lose its votes",
    "distrusted": "re-audits contradict the audits by {who}, so it may not audit for now and "
    "will soon lose its votes",
    "votes_gained": "{who} has votes from now on: enough other members have audited its work",
    "votes_lost": "{who} has lost its votes: {detail}",
    "voters": "from now on {detail} members have votes, for work that others have audited",
}
# The text for each identifier, for kinds of events whose detail is an identifier.
_DETAILS = {
    "excluded": {
        "failed": "they count again once enough audits pass",
        "dismissed": "no member has confirmed any of it yet, so it is dismissed",
    },
    "votes_lost": {
        "dismissed": "it was dismissed",
        "failed": "audits of its work failed",
        "scores": "its updates score lower in audits than those of others",
        "halves": "audits find only one half of each sample in its updates",
        "contradicted": "re-audits contradict its audits",
        "unconfirmed": "no member has confirmed its recent work",
    },
}


def state_sentence(status: Status) -> str:
    """Return a sentence about what the node does now, and what it waits for."""
    if status.state == "observing":
        return _observed_sentence(status)
    if status.state == "paused" and (causes := hold_text(status.schedule)):
        return f"{causes}: {STATES['paused'].meaning}"
    if is_result_missing(status):
        return f"the run is over; {_result_search(status)}"
    if status.state == "syncing" and status.progress is not None and status.progress.waits:
        return f"no connected peer has what this node needs: {status.progress.what}"
    if status.state == "syncing" and _starts_trainer(status):
        return TRAINER_STARTS.meaning
    if status.state == "waiting" and status.swarm is not None and status.swarm.start_members > 1:
        return f"training starts once {status.swarm.start_members:,} members are there"
    if status.state != "training":
        return STATES[status.state].meaning
    if status.swarm is not None and status.swarm.awaited:
        return awaited_sentence(status.swarm.awaited)
    training = status.training
    device = "processor" if (training.trainer.device or "").startswith("cpu") else "GPU"
    if training.trainer.device is None:
        device = "trainer"
    round_ = 0 if training.round is None else training.round + 1
    if is_over(training, status.swarm):
        return "the last round is done; the members sign the result"
    return _PHASES[training.phase].format(device=device, round=round_)


def _starts_trainer(status: Status) -> bool:
    return status.progress is not None and status.progress.kind == "starting_trainer"


def is_result_missing(status: Status) -> bool:
    """Whether the run is over and its result is not here yet."""
    ended = status.swarm is not None and status.swarm.ended
    return ended and status.state in ("connecting", "syncing", "joining", "training")


def _result_search(status: Status) -> str:
    if status.progress is not None and status.progress.waits:
        return "no peer that has the result can be reached"
    return "this node fetches the result"


def state_remedy(status: Status) -> str:
    """Return what helps if the state persists; empty: nothing has to be done."""
    if is_result_missing(status):
        return (
            "ask a member to start its node again with `--serve-result`; this node keeps asking, "
            "ever less often"
            if status.progress is not None and status.progress.waits
            else "no action needed: a large model takes long on a slow line"
        )
    if status.state == "syncing" and _starts_trainer(status):
        return TRAINER_STARTS.remedy
    if status.state == "leaving" and not status.schedule.at_work:
        return "then it pauses"
    return STATES[status.state].remedy


def own_rounds_note(own: OwnWork) -> str:
    """Return in how many rounds a node's update did not count, by cause."""
    parts = (
        (own.late, "late"),
        (own.left_out, "left out"),
        (own.no_work, "without an assignment"),
        (own.not_needed, "that needed no update of yours"),
    )
    notes = [f"{number:,} {what}" for number, what in parts if number]
    return ", ".join(notes) or "none late, none left out"


def speed_text(trainer: TrainerStatus) -> str:
    """Return the trainer's speed compared to what its device can do."""
    if trainer.flops_per_second is None:
        return "by this node, averaged over the last rounds"
    flops = _flops(trainer.flops_per_second)
    if trainer.utilisation is None:
        return f"by this node: {flops}"
    return (
        f"by this node: {flops}, {trainer.utilisation:.0%} of the device's speed in a matrix "
        "product"
    )


def _flops(number: float) -> str:
    for unit in ("", "k", "M", "G", "T"):
        if number < 999.5:
            return f"{number:.3g} {unit}FLOP/s"
        number /= 1000
    return f"{number:.3g} PFLOP/s"


def _observed_sentence(status: Status) -> str:
    swarm, round_ = status.swarm, status.training.round
    if swarm is None or round_ is None or swarm.decided_seconds is None:
        return STATES["observing"].meaning
    if is_over(status.training, swarm):
        return "the swarm's run is over"
    since = duration_text(swarm.decided_seconds)
    return f"the last decided round is {round_:,}, received {since} ago"


def awaited_sentence(awaited: tuple[Awaited, ...]) -> str:
    """Return for which member the round waits: the one with the most time left."""
    last = max(awaited, key=lambda each: each.lease_seconds - each.silent_seconds)
    others = f" and {len(awaited) - 1} more" if len(awaited) > 1 else ""
    return (
        f"waiting for {short(last.peer)}{others}, silent for {last.silent_seconds:.0f} s of a lease "
        f"of {last.lease_seconds:.0f} s"
    )


def event_sentence(kind: str, round: int, peer: str | None, me: bool, detail: str) -> str:
    """Return a sentence about an event in a round. `peer`: the peer that it concerns, if any; `me`:
    whether that is this node; `detail`: depends on the kind."""
    who = "this node" if me else f"peer {short(peer)}" if peer else "a peer"
    detail = _DETAILS.get(kind, {}).get(detail, detail)
    return _EVENTS.get(kind, "{detail}").format(who=who, round=round, detail=detail)


def reachability_text(reach: ReachStatus) -> UserMessage:
    """Return whether others can reach the node, with the remedy or the cause."""
    match reach.verdict:
        case "reachable":
            return UserMessage("reachable from outside", "relays for members that are not")
        case "local":
            return UserMessage("reachable in this network", "no peer outside has tried")
        case "unknown":
            return UserMessage("not known yet", "no peer has dialled back")
        case "unreachable":
            port = "its port" if reach.port is None else f"TCP {reach.port}"
            if reach.relays:
                return UserMessage("reachable through a relay", f"to avoid it, open {port}")
            return UserMessage("not reachable from outside", f"open {port}, or --bootstrap")


def schedule_sentence(schedule: ScheduleStatus) -> str:
    """Return whether the node keeps to its working hours."""
    kept = "overridden by your last command" if schedule.by_command else "the node keeps to them"
    return f"working hours; {kept}"


def hold_text(schedule: ScheduleStatus) -> str:
    """Return the present reasons to pause that the owner has not waived; empty: there are none."""
    return "; ".join(hold.text for hold in schedule.holds if not hold.waived)


def duration_text(seconds: float) -> str:
    """Return an approximate duration in one unit."""
    for size, unit in ((86_400, "d"), (3600, "h"), (60, "min")):
        if seconds >= 1.5 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"


def short(peer: str) -> str:
    """Return the end of a peer id, which distinguishes peers; the beginning is the same for all."""
    return peer[-6:]
