"""Status rows: a name, a value, and a note on what it means.

`distro-node status` prints all rows; the screen of `join` has room for some. Rows contain untrusted text
(the swarm's name) unchanged: the code that shows them sanitizes it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from ..telemetry.messages import (
    duration_text,
    own_rounds_note,
    progress_text,
    reachability_text,
    schedule_sentence,
    short,
    speed_text,
    state_remedy,
    state_sentence,
)
from ..telemetry.privacy import PrivacyStatus
from ..telemetry.status import (
    BootstrapStatus,
    EnergyStatus,
    LineStatus,
    ReachStatus,
    ScheduleStatus,
    Status,
    SwarmStatus,
)
from ..util.size_text import size_text
from .audit_rows import audit_rows, own_audit_rows
from .status_row import StatusRow

UNKNOWN = "–"
# Maximum number of tasks listed; the preset `gpt4all` has six.
_TASKS_SHOWN = 8
_DIVERGED_SHOWN = 4
# Fraction of the time at work from which the measurement of energy counts as complete: the interval
# before the first reading is never measured.
_FULLY_MEASURED = 0.95

# Colours of a node's states on the screens of `join` and the demo; all other states are transient.
# `killed` and `left` occur only in the demo.
OTHER_COLOUR = "yellow"
STATE_COLOURS = {
    "training": "green",
    "finished": "green",
    "paused": "blue",
    "leaving": "magenta",
    "killed": "red",
    "left": "cyan",
}

_DENSE_BYTES = 2
"""Bytes per parameter that a dense all-reduce in bfloat16 moves, as the DisTrO report counts it."""


def rows(status: Status | BootstrapStatus) -> Iterator[StatusRow]:
    """Yield all rows in the order of display; rows that do not apply are left out."""
    if isinstance(status, BootstrapStatus):
        yield from _introducer(status)
    elif status.node.observer:
        yield from _observed(status)
    else:
        yield from _member(status)


def _introducer(status: BootstrapStatus) -> Iterator[StatusRow]:
    """Yield the rows of a bootstrap peer."""
    yield StatusRow("peer", status.peer, "a bootstrap peer: it introduces other peers")
    yield StatusRow("swarms", _count(status.swarms), "with peers registered here")
    if status.observes is not None:
        yield StatusRow("follows", status.observes, "the swarm that its page shows")
    if status.dashboard is not None:
        yield StatusRow("page", status.dashboard, "the page of that swarm")
    yield StatusRow("connections", _count(status.line.peers), "open now, to peers of any kind")
    yield from _line(status.line)


def _member(status: Status) -> Iterator[StatusRow]:
    """Yield the rows of a member."""
    yield _swarm(status)
    yield StatusRow("peer", status.node.peer, "this node's peer id")
    yield StatusRow("state", _state(status), _meaning(status))
    yield from _schedule(status.schedule)
    yield _rounds_done(status)
    yield StatusRow("members", _members(status), "this node included")
    yield from _diverged(status.swarm)
    yield from _change(status)
    yield from _losses(status)
    yield StatusRow("tokens", _count(status.training.tokens), "by all members since the start")
    yield StatusRow("your rounds", _own_rounds(status), own_rounds_note(status.training.own))
    yield from own_audit_rows(status.swarm)
    yield from audit_rows(status.swarm)
    yield from _updates(status)
    yield from _line(status.line)
    yield from _trainer(status)
    yield from _energy(status.energy)
    yield from _privacy(status.privacy)
    yield from _reach(status.reach)
    yield from _pages(status, "`distro-node dashboard` opens it")


def _observed(status: Status) -> Iterator[StatusRow]:
    """Yield the rows of an observer."""
    training, swarm = status.training, status.swarm
    yield _swarm(status)
    yield StatusRow("peer", status.node.peer, "an observer: it is not a member")
    yield StatusRow("state", _state(status), _meaning(status))
    yield _rounds_done(status)
    members = None if swarm is None or swarm.members is None else len(swarm.members)
    yield StatusRow("members", _count(members), "all members of the swarm")
    yield from _change(status)
    yield StatusRow("loss", _loss(training.losses.training), _loss_note(swarm))
    yield StatusRow(
        "tokens", _count(training.tokens), "trained by the swarm since this observer started"
    )
    yield from audit_rows(swarm)
    if training.received_bytes_per_round is not None:
        yield StatusRow(
            "updates",
            size_text(training.received_bytes_per_round),
            "the updates of all members, per round",
        )
    yield from _line(status.line)
    yield StatusRow("connections", _count(status.line.peers), "open now, to peers of any kind")
    if swarm is not None and swarm.served_round is not None:
        yield StatusRow(
            "serves",
            f"round {swarm.served_round:,}",
            "the parameters after this round, to any peer",
        )
    yield from _pages(status, "the page of the swarm")


def _swarm(status: Status) -> StatusRow:
    name = UNKNOWN if status.swarm is None else status.swarm.name
    return StatusRow("swarm", f"{name}  {status.node.swarm}")


def _rounds_done(status: Status) -> StatusRow:
    final = None if status.swarm is None else status.swarm.final_round
    note = "rounds applied" if final is None else f"final up to round {final:,}"
    return StatusRow("round", _round(status), note)


def _change(status: Status) -> Iterator[StatusRow]:
    change = None if status.swarm is None else status.swarm.version_change
    if change is not None:
        note = "this node supports it" if change.supported else "update this node before that"
        yield StatusRow("version", f"{change.version} from round {change.round:,} on", note)


def _schedule(schedule: ScheduleStatus) -> Iterator[StatusRow]:
    if schedule.active is not None:
        when = f"{schedule.active}, now until {_text(schedule.until)}"
        yield StatusRow("hours", when, schedule_sentence(schedule))
    for hold in schedule.holds:
        yield StatusRow(
            "held back",
            hold.text,
            "overridden by your `resume`" if hold.waived else "the node resumes by itself",
        )


def _diverged(swarm: SwarmStatus | None) -> Iterator[StatusRow]:
    if swarm is None or not swarm.diverged:
        return
    names = ", ".join(map(short, swarm.diverged[:_DIVERGED_SHOWN]))
    hidden = len(swarm.diverged) - _DIVERGED_SHOWN
    more = f" +{hidden}" if hidden > 0 else ""
    yield StatusRow(
        "diverged", names + more, "on a chain that diverged before our last final round"
    )


def _loss_note(swarm: SwarmStatus | None) -> str:
    """Return the note where a reader meets the loss first."""
    unit = None if swarm is None else swarm.loss_unit
    return "lower is better" + (f"; {unit}" if unit else "")


def _losses(status: Status) -> Iterator[StatusRow]:
    losses, scores = status.training.losses, status.scores
    yield StatusRow("loss", _loss(losses.training), _loss_note(status.swarm))
    if losses.heldout_round is not None:
        value = f"{_loss(losses.heldout)} (round {losses.heldout_round})"
        yield StatusRow("held-out loss", value, "loss on held-out data")
    if scores is not None:
        shown = [f"{t} {s.value:.3f}" for t, s in scores.main().items()]
        more = f" +{len(shown) - _TASKS_SHOWN}" if len(shown) > _TASKS_SHOWN else ""
        value = ", ".join(shown[:_TASKS_SHOWN]) + more
        by = "on held-out data" if scores.lm_eval is None else "by lm-eval"
        yield StatusRow("tasks", value, f"after round {scores.round:,}, {by}")


def _updates(status: Status) -> Iterator[StatusRow]:
    own, received = status.training.own, status.training.received_bytes_per_round
    if own.update_bytes is not None:
        bits = own.bits_per_coefficient
        each = "" if bits is None else f", {bits:.2f} bits a coefficient"
        yield StatusRow("update", size_text(own.update_bytes) + each, "compressed, mean per round")
    if received is not None:
        yield StatusRow("received", size_text(received), "the others' updates, per round")
    dense = dense_exchange_bytes(status)
    if dense is not None:
        factor = f", {dense / received:,.0f} × as much" if received else ""
        yield StatusRow("instead of", size_text(dense) + factor, "what a dense all-reduce moves")


def _trainer(status: Status) -> Iterator[StatusRow]:
    training = status.training
    trainer, parameters = (
        training.trainer,
        None if status.swarm is None else status.swarm.parameters,
    )
    model = f"{_count(parameters)} parameters on {trainer.device or UNKNOWN}"
    yield StatusRow("model", model, f"fingerprint {_text(training.fingerprint)}")
    if trainer.tokens_per_second is not None:
        yield StatusRow(
            "speed", f"{_count(round(trainer.tokens_per_second))} tokens/s", speed_text(trainer)
        )
    if trainer.idle is not None:
        share = f"{trainer.idle:.0%} of the time"
        yield StatusRow("trainer waits", share, "for the network or other members")
    if trainer.sandbox is not None:
        yield StatusRow(
            "sandbox", ", ".join(trainer.sandbox) or "none", "restrictions on the trainer process"
        )


def _privacy(privacy: PrivacyStatus | None) -> Iterator[StatusRow]:
    if privacy is not None:
        spent = ", spent" if privacy.spent else ""
        value = f"ε {privacy.epsilon:.3g} of {privacy.limit:g}{spent}"
        note = f"spent per sequence of your data, at δ = {privacy.delta:.2g}"
        yield StatusRow("privacy", value, note)


def _reach(reach: ReachStatus | None) -> Iterator[StatusRow]:
    if reach is not None:
        text = reachability_text(reach)
        yield StatusRow("reach", text.meaning, text.remedy)
        connections = f"{reach.count('direct')} direct, {reach.count('relayed')} through a relay"
        yield StatusRow("connections", connections, "open now, to peers of any kind")


def _pages(status: Status, note: str) -> Iterator[StatusRow]:
    if status.node.dashboard is not None:
        yield StatusRow("page", status.node.dashboard, note)
    if status.node.metrics is not None:
        yield StatusRow("metrics", status.node.metrics, "for Prometheus")


def _energy(energy: EnergyStatus) -> Iterator[StatusRow]:
    watts = UNKNOWN if energy.watts is None else f"{energy.watts:.0f} W"
    yield StatusRow("power", watts, energy.why or "of the GPU, including other programs")
    if energy.kwh is None:
        yield StatusRow("energy", UNKNOWN, "nothing could be measured")
        return
    each = energy.joules_per_token
    notes = [] if each is None else [f"{each:.3g} J a token"]
    if (energy.measured or 0.0) < _FULLY_MEASURED:
        notes.append("partly measured")
    digits = 1 if energy.kwh >= 10 else 3
    yield StatusRow("energy", f"{watts}, {energy.kwh:.{digits}f} kWh", ", ".join(notes))


def _line(line: LineStatus) -> Iterator[StatusRow]:
    total = f"{size_text(line.sent_bytes)} up, {size_text(line.received_bytes)} down"
    yield StatusRow("traffic", total, "total since the start")
    if line.relayed_bytes:
        relayed = size_text(line.relayed_bytes)
        yield StatusRow(
            "relayed", relayed, "for other peers, since the first start, as counted here"
        )
    for address in line.addresses:
        yield StatusRow("address", address, "where others can reach this node")


def dense_exchange_bytes(status: Status) -> float | None:
    """Return the bytes that a member would receive in one round of a dense all-reduce in bfloat16; None:
    unknown, or the swarm has fewer than two members."""
    swarm = status.swarm
    if swarm is None or swarm.members is None or len(swarm.members) < 2:
        return None
    return _DENSE_BYTES * swarm.parameters * (len(swarm.members) - 1)


def _state(status: Status) -> str:
    progress = status.progress
    return status.state if progress is None else f"{status.state}: {progress_text(progress)}"


def _meaning(status: Status) -> str:
    remedy = state_remedy(status)
    return state_sentence(status) + (f"; {remedy}" if remedy else "")


def _round(status: Status) -> str:
    done, swarm, left = _count(status.training.round), status.swarm, status.seconds_left
    if swarm is None:
        return f"{done} done"
    far = "done" if swarm.last_round is None else f"of {swarm.last_round:,}"
    about = f", about {duration_text(left)} left" if left else ""
    return f"{done} {far}{about}"


def _members(status: Status) -> str:
    members = None if status.swarm is None else status.swarm.members
    if members is None:
        return UNKNOWN
    return f"{len(members)}, {sum(each.connected for each in members)} connected"


def _own_rounds(status: Status) -> str:
    own = status.training.own
    since = "" if own.first_round is None else f" since round {own.first_round}"
    return f"{own.counted:,} counted{since}"


def _count(number: int | None) -> str:
    return UNKNOWN if number is None else f"{number:,}"


def _loss(loss: float | None) -> str:
    return UNKNOWN if loss is None or not math.isfinite(loss) else f"{loss:.4f}"


def _text(value: str | None) -> str:
    return UNKNOWN if value is None else value
