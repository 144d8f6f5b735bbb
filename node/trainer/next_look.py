"""Which open dispute a member looks at next: the one that all others choose, too.

A dispute is settled when second looks with enough votes say the same, and is dropped when its rounds
are over. Where looks take longer than rounds do, members that each took the dispute that is the newest
*to them* would look at a different one each, and none would ever be settled. So all go by what the chain
says. Nobody has to: whoever chooses otherwise helps less.
"""

from __future__ import annotations

from collections.abc import Iterable

from ...crypto.hashing import content_id
from ...crypto.identity import PeerId
from ...protocol.checks.accounts import Accounts, FirstLook
from ...protocol.checks.disputes import OPEN, outcome
from ...protocol.wire.encoding import encode


def next_look(
    waiting: Iterable[FirstLook], accounts: Accounts, me: PeerId, now: int, takes: int
) -> FirstLook | None:
    """The one of these that `me` looks at next; None if there is none that waits for it and can still be
    settled.

    `now` is the round whose record comes next, `takes` how many rounds a look took of late.
    """
    useful = [
        first
        for first in waiting
        if accounts.may_look_again(me, first) and _can_be_settled(accounts, first)
    ]
    return min(useful, key=lambda first: _order(accounts, first, now, takes), default=None)


def _can_be_settled(accounts: Accounts, first: FirstLook) -> bool:
    """Whether it would be, if all who have not looked agreed."""
    dispute = accounts.disputes[first]
    missing = accounts.waits_for(first)
    return dispute.called is not None and any(
        outcome(dispute.called, {**dispute.again, **dict.fromkeys(missing, low)}, first.peer)
        != "open"
        for low in (True, False)
    )


def _order(accounts: Accounts, first: FirstLook, now: int, takes: int) -> tuple[bool, int, bytes]:
    dispute = accounts.disputes[first]
    # Last, what would be over before a look is done; first, what others have looked at, which is nearest
    # to its end. Of the rest the hash decides: the best of all that are open seldom changes while
    # somebody is still busy, so who is ready sooner and who is ready later choose the same. It leaves
    # the score out, which its author may choose.
    late = now + takes >= dispute.since + OPEN
    name = content_id(encode([first.round, first.checker, first.peer]))
    return late, -len(dispute.again), name
