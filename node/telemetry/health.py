"""The verdict on a node: one sentence on whether it does what its owner wants, with the cause and remedy
if not.

This is what an owner wants to know first. The verdict is derived from the status alone, in the terms
that the screen, the dashboard and `distro-node status` share.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from .audit_messages import is_trouble, own_audits_text, trouble_sentence
from .audit_status import UNAUDITED
from .messages import (
    awaited_sentence,
    is_result_missing,
    reachability_text,
    state_remedy,
    state_sentence,
)
from .status import State, Status, is_over

Tone = Literal["good", "busy", "rest", "warn", "bad"]

_TONES: dict[State, Tone] = {
    "starting": "busy",
    "connecting": "warn",
    "syncing": "busy",
    "joining": "busy",
    "waiting": "busy",
    "training": "good",
    "observing": "good",
    "finished": "good",
    "paused": "rest",
    "leaving": "rest",
}
# Number of due updates in a row that did not count after which the verdict is a warning; fewer may be
# bad luck.
_UPDATES_MISSED = 5
# A swarm counts as stalled if nothing was decided for the duration of this many rounds, and for at least
# `_LONG_SECONDS`.
_ROUNDS_OF_SILENCE = 10
_LONG_SECONDS = 60.0


@dataclass(frozen=True)
class Health:
    """How a node is doing. `remedy` is empty if nothing has to be done."""

    tone: Tone
    sentence: str
    remedy: str = ""


def verdict(status: Status) -> Health:
    """Return the verdict on a node."""
    if status.state == "observing":
        return _observer_health(status)
    sentence = state_sentence(status)
    swarm, own = status.swarm, status.training.own
    own_audits = (swarm and swarm.audits and swarm.audits.own) or UNAUDITED
    if status.state == "joining" and own_audits.reason == "dismissed":
        why = own_audits_text(own_audits)
        return Health("bad", why.meaning, why.remedy)
    waits = status.progress is not None and status.progress.waits
    if status.state != "training" or is_result_missing(status):
        tone: Tone = "warn" if waits and status.state == "syncing" else _TONES[status.state]
        return Health(tone, sentence, state_remedy(status))
    members = (swarm and swarm.members) or ()
    others = [member for member in members if not member.me]
    if others and not any(member.connected for member in others):
        return Health(
            "bad",
            "this node is connected to no other member",
            "check this computer's network; the node keeps trying to connect",
        )
    if is_trouble(own_audits.reason):
        tone: Tone = "warn" if own_audits.counts else "bad"
        return Health(tone, trouble_sentence(own_audits), own_audits_text(own_audits).remedy)
    if swarm is not None and swarm.awaited:
        return Health(
            "warn",
            awaited_sentence(swarm.awaited),
            "no action needed: after its lease the others continue without it",
        )
    if own.missed_in_a_row >= _UPDATES_MISSED:
        missed = f"your last {own.missed_in_a_row:,} updates"
        return Health(
            "warn",
            f"{missed} did not count, so the swarm assigns you less work",
            "raise --max-upload, or give the trainer more threads or a faster device (--threads, "
            "--device)",
        )
    if (
        status.reach is not None
        and status.reach.verdict == "unreachable"
        and not status.reach.relays
    ):
        reach = reachability_text(status.reach)
        return Health("warn", f"{sentence}; this node is {reach.meaning}", reach.remedy)
    return Health("good", sentence)


def longest_silence(round_seconds: float | None) -> float:
    """Return the seconds without a decided round after which a swarm with rounds of this duration counts
    as stalled."""
    return max(_LONG_SECONDS, _ROUNDS_OF_SILENCE * (round_seconds or 0.0))


def _observer_health(status: Status) -> Health:
    """Return the verdict on the swarm, as seen by an observer."""
    sentence, swarm, training = state_sentence(status), status.swarm, status.training
    if not status.line.peers:
        return Health(
            "bad",
            "there is no connection to any peer: this page shows the last known state",
            "check this computer's network, and that the bootstrap peers are online",
        )
    if swarm is None or swarm.decided_seconds is None or is_over(training, swarm):
        return Health("good", sentence)
    if swarm.decided_seconds > longest_silence(training.round_seconds):
        return Health("warn", sentence, "the swarm waits for members: a quorum has to be online")
    return Health("good", sentence)
