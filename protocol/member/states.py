"""The states of a member and of its ballots in a slot, and all transitions between them.

The program uses these tables. After each input a member calls `move`: `CONDITIONS` determine its state,
and `TRANSITIONS` say whether that state can follow the previous one. If not, it is a bug in the program,
and `move` raises `AssertionError`. The ballots that may be cast in a slot follow from `RULED_OUT`, which
members obey. `docs/protocol.md` shows both as diagrams, printed by `make docs`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, get_args

MemberState = Literal[
    "loading",
    "applying",
    "asking",
    "recalling",
    "collecting",
    "agreeing",
    "finished",
    "leaving",
    "left",
    "expelled",
    "outdated",
]

MEANINGS: dict[MemberState, str] = {
    "loading": "has no parameters, or others than the swarm's: loads a snapshot",
    "applying": "applies decided records until it has reached the swarm's round",
    "asking": "is not a member; requests admission",
    "recalling": "is a member again; asks others for what it signed before it was started",
    "collecting": "trains, and waits for updates",
    "agreeing": "has all updates, or the deadline is past: proposes, votes, skips, finalizes",
    "finished": "has the last state of a finished run, and serves it on request",
    "leaving": "has sent its leave; no record contains it yet",
    "left": "is not a member, and does not request admission",
    "expelled": "is excluded for ever: a record proves a contradiction",
    "outdated": "does not support the swarm's protocol version, and sends nothing",
}


@dataclass(frozen=True)
class MemberConditions:
    """Conditions that determine a member's state."""

    expelled: bool
    """A record proves that it contradicted itself."""
    leaving: bool
    """Its node asked it to leave."""
    member: bool
    """It is a member of the round at the tip."""
    loaded: bool
    """It has parameters."""
    at_tip: bool
    """Its parameters contain everything decided."""
    remembers: bool
    """It knows what it signed before it was started."""
    ready: bool
    """The round at the tip need not wait for more updates."""
    finished: bool
    """The run is over: no round follows."""
    outdated: bool = False
    """The swarm requires a version that this node does not support."""


CONDITIONS: tuple[tuple[MemberState, Callable[[MemberConditions], bool]], ...] = (
    ("expelled", lambda conditions: conditions.expelled),
    ("outdated", lambda conditions: conditions.outdated),
    ("leaving", lambda conditions: conditions.leaving and conditions.member),
    ("left", lambda conditions: conditions.leaving),
    ("loading", lambda conditions: not conditions.loaded),
    ("applying", lambda conditions: not conditions.at_tip),
    ("finished", lambda conditions: conditions.finished),
    ("asking", lambda conditions: not conditions.member),
    ("recalling", lambda conditions: not conditions.remembers),
    ("collecting", lambda conditions: not conditions.ready),
    ("agreeing", lambda conditions: True),
)
"""The first state whose condition holds is the member's state."""

# Causes of the transitions from `loading` and `applying`, by the next state. "Decided since" means after
# the loaded snapshot.
_LOADED: dict[MemberState, str] = {
    "applying": "rounds were decided since",
    "asking": "removed as silent, or never a member",
    "recalling": "first time since the start",
    "collecting": "up to date",
    "agreeing": "up to date, all updates are here",
    "finished": "up to date, the run is over",
}
# The state that follows each state when the node asks its member to leave.
_LEAVES: dict[MemberState, MemberState] = {
    "loading": "leaving",
    "applying": "leaving",
    "asking": "left",
    "recalling": "leaving",
    "collecting": "leaving",
    "agreeing": "leaving",
    "finished": "leaving",
}

TRANSITIONS: dict[tuple[MemberState, MemberState], str] = {
    **{("loading", new): why for new, why in _LOADED.items()},
    **{("applying", new): why for new, why in _LOADED.items() if new != "applying"},
    ("applying", "loading"): "other parameters, too far behind, or another chain",
    ("asking", "applying"): "a round is decided",
    ("asking", "loading"): "another chain",
    ("recalling", "collecting"): "all have answered, or time is up",
    ("recalling", "agreeing"): "all have answered, all updates are here",
    ("recalling", "applying"): "a round is decided",
    ("recalling", "loading"): "other parameters, or another chain",
    ("collecting", "agreeing"): "all updates are here, or the deadline is past",
    ("collecting", "applying"): "a round is decided",
    ("collecting", "loading"): "other parameters, or another chain",
    ("agreeing", "applying"): "a round is decided",
    ("agreeing", "loading"): "other parameters, or another chain",
    ("finished", "loading"): "another chain",
    ("finished", "applying"): "the trainer was restarted, with an older state",
    **dict.fromkeys(_LEAVES.items(), "leaves"),
    # Also a member whose removal was decided before its node asked it to leave.
    **{
        (old, "left"): "leaves, is not a member"
        for old in ("loading", "applying", "recalling", "collecting", "agreeing", "finished")
    },
    ("leaving", "left"): "a record contains its leave",
    ("left", "leaving"): "an earlier join request was granted",
    ("expelled", "loading"): "another chain, without that evidence",
    ("expelled", "leaving"): "another chain, after its leave",
    ("expelled", "left"): "another chain, where it is not a member",
    **{
        (old, "expelled"): "a record proves a contradiction"
        for old in get_args(MemberState)
        if old not in ("expelled", "outdated")
    },
    **{
        (old, "outdated"): "the first round of a newer protocol version is reached"
        for old in get_args(MemberState)
        if old not in ("expelled", "outdated")
    },
}
"""Every transition, with its cause."""


def move(old: MemberState, conditions: MemberConditions) -> MemberState:
    """Return the state that follows `old`."""
    new: MemberState = next(state for state, holds in CONDITIONS if holds(conditions))
    assert new == old or (old, new) in TRANSITIONS, f"a member goes from {old} to {new}"
    return new
