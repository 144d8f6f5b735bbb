"""Mermaid diagrams of a member's states and of the ballots of a slot, for docs/protocol.md."""

from __future__ import annotations

from typing import get_args

from distro_node.protocol.chain.evidence import RULED_OUT
from distro_node.protocol.member.states import MEANINGS, TRANSITIONS, MemberState
from distro_node.protocol.wire.messages import BALLOT_KINDS, BallotKind


def cast_sets() -> dict[frozenset[BallotKind], dict[BallotKind, frozenset[BallotKind]]]:
    """Return the sets of ballots that a member may have cast in a slot; for each set, the kinds that it
    may cast next, with the resulting set."""
    sets: dict[frozenset[BallotKind], dict[BallotKind, frozenset[BallotKind]]] = {}
    waiting: list[frozenset[BallotKind]] = [frozenset()]
    while waiting:
        cast = waiting.pop()
        further: dict[BallotKind, frozenset[BallotKind]] = {
            kind: frozenset[BallotKind]([*cast, kind])
            for kind in BALLOT_KINDS
            if not cast & RULED_OUT[kind]
        }
        sets[cast] = further
        waiting += [after for after in further.values() if after not in sets]
    return sets


def diagrams() -> str:
    """Return both tables as Mermaid state diagrams, in Markdown.

    If transitions to one state have the same cause and start from most states, a sentence describes
    them: their arrows would hide the others.
    """
    sources: dict[tuple[MemberState, str], list[MemberState]] = {}
    for (old, new), why in TRANSITIONS.items():
        sources.setdefault((new, why), []).append(old)
    common = {cause: old for cause, old in sources.items() if len(old) > len(MEANINGS) // 2}
    lines = ["A member:", "", "```mermaid", "stateDiagram-v2", "    [*] --> loading"]
    lines += [
        f"    {old} --> {new}: {why}"
        for (old, new), why in TRANSITIONS.items()
        if (new, why) not in common
    ]
    lines += ["    left --> [*]", "    expelled --> [*]", "    outdated --> [*]", "```", ""]
    for (new, why), old in common.items():
        others = [state for state in MEANINGS if state not in (*old, new)]
        lines += [
            f"*{why[0].upper()}{why[1:]}*: to {new} from every state except {', '.join(others)}.",
            "",
        ]
    lines += ["| state | the member |", "|---|---|"]
    lines += [f"| {state} | {MEANINGS[state]} |" for state in get_args(MemberState)]
    lines += ["", "Ballots that it has cast in one slot:", "", "```mermaid", "stateDiagram-v2"]
    sets = sorted(cast_sets().items(), key=lambda item: _name(item[0]))
    lines += ["    [*] --> nothing"]
    for cast, further in sets:
        lines += [
            f"    {_name(cast)} --> {_name(after)}: {kind}" for kind, after in further.items()
        ]
    return "\n".join([*lines, "```"])


def _name(cast: frozenset[BallotKind]) -> str:
    return "_".join(kind for kind in BALLOT_KINDS if kind in cast) or "nothing"
