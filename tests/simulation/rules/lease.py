"""Rules of the finality lease: whose time counts, and who is waited for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from distro_node.protocol.chain import finality
from distro_node.protocol.chain.ledger import Ledger
from distro_node.protocol.member import lease
from distro_node.protocol.member.effects import Note
from distro_node.protocol.member.inputs import Learned, Rebased, Tick
from distro_node.protocol.member.lease import FinalityLease
from distro_node.protocol.member.member import Member
from distro_node.protocol.wire.checkpoint import Checkpoint

from ..chain import Chain, identity
from .chains import sides, split, true_chain
from .rule import Patch, Rule, edited, put

# Private here: `_marks`: how much is remembered shows nowhere else.


def _look(chain: Chain, seconds: float, alive: bool = True) -> int:
    seen, moved = FinalityLease(100.0, 0.0), -1
    for now in range(1, int(seconds)):
        if now % 5 == 0:
            chain.grow()
        result = seen.look(chain.ledger, is_member=alive, silence=6.0, now=float(now))
        moved = moved if result is None else result
    return moved


def _the_lease_is_waited_for() -> bool:
    return _look(sides(0, 1), 95) == -1 and _look(sides(0, 1), 115) >= 0


def _who_is_alone_does_not_move_on() -> bool:
    return _look(sides(0), 300) == -1


def _who_is_alone_counts() -> list[Patch]:
    original = FinalityLease.look

    def look(self: Any, chain: Any, **options: Any) -> Any:
        class Two:
            peers = chain.membership(len(chain)).peers

            def __len__(self) -> int:
                return 2

        class Company:
            def __getattr__(self, name: str) -> Any:
                return getattr(chain, name)

            def __len__(self) -> int:
                return len(chain)

            def membership(self, round_: int) -> Any:
                return Two()

        return original(self, Company(), **options)  # type: ignore[arg-type]  # it looks like one

    return [(FinalityLease, "look", look)]


def _who_is_there_is_asked() -> bool:
    chain = true_chain().fork()
    busy = [identity(0).peer, identity(1).peer]
    seen, moved = FinalityLease(100.0, 0.0), []
    for now in range(1, 300):
        if now % 5 == 0:
            chain.grow(updates=[chain.update(peer) for peer in busy])
        moved.append(seen.look(chain.ledger, is_member=True, silence=6.0, now=float(now)))
    # What all four had vouched for before, and nothing of what two of them decide.
    return max(filter(None, moved), default=0) < len(true_chain().ledger)


def _nobody_is_asked() -> list[Patch]:
    def move_on(self: Any, round: int, present: Any, memberships: Any, votes: Any) -> None:
        self._move_to(round, None, memberships, votes)

    return [(finality.Finality, "move_on", move_on)]


def _time_asleep_does_not_count() -> bool:
    chain, seen = sides(0, 1), FinalityLease(100.0, 0.0)
    for now in (*range(1, 10), *range(10_000, 10_010)):
        chain.grow()
        if seen.look(chain.ledger, is_member=True, silence=6.0, now=float(now)) is not None:
            return False
    return True


def _only_a_members_time_counts() -> bool:
    return _look(sides(0, 1), 200, alive=False) == -1


def _before_the_checkpoint_nothing_is_moved() -> bool:
    """The chain may be anybody's."""
    chain = sides(0, 1)
    chain.ledger.checkpoint = Checkpoint(10_000, chain.ledger.head)
    return _look(chain, 200) == -1


def _who_was_there_for_a_while_counts() -> bool:
    """Two came back for some seconds in the middle of the lease, and said nothing."""
    chain, seen, moved = sides(0, 1), FinalityLease(100.0, 0.0), []
    back = {identity(who).peer for who in (2, 3)}
    for now in range(1, 130):
        if now == 60:
            chain.grow(admitted=[chain.admission(who) for who in (2, 3)])
        elif now == 70:
            split(chain, 0, 1)
        elif now % 5 == 0:
            chain.grow(updates=[chain.update(p) for p in chain.membership.peers if p not in back])
        moved.append(seen.look(chain.ledger, is_member=True, silence=6.0, now=float(now)))
    # As above: what all four had vouched for before.
    return max(filter(None, moved), default=0) < len(true_chain().ledger)


def _the_next_lease_begins_anew() -> bool:
    """Four of seven are left at first, and two from second 60 on: these get a whole lease as well."""
    chain, seen, when = Chain(7).grow_until(7), FinalityLease(100.0, 0.0), []
    split(chain, 0, 1, 2, 3)
    for now in range(1, 220):
        if now == 60:
            split(chain, 0, 1)
        elif now % 10 == 0:
            chain.grow()
        if seen.look(chain.ledger, is_member=True, silence=6.0, now=float(now)) is not None:
            when.append(now)
    first, second, *_ = when
    return 100 <= first < 115 and second >= first + 100


def _on_another_chain_the_lease_begins_anew() -> bool:
    """Three quarters of it are over by then."""
    chain = Chain(4, finality_lease_seconds=40.0, lease_min_seconds=1.0).grow_until(7)
    split(chain, 0, 1)
    member, now, notes = chain.member(0), 0.0, []
    for step in range(26):
        now += 2.0
        if step == 15:
            other = chain.fork()
            other.ledger = member.ledger.truncated(member.round - 1)
            other.grow(updates=[])
            notes += member.handle(Rebased(other.ledger), now)
            chain = other
        notes += member.handle(Tick(), now)
        notes += member.handle(Learned(chain.grow()), now)
    return not any(isinstance(note, Note) and note.kind == "moved_on" for note in notes)


def _a_checkpoint_is_believed() -> bool:
    """After an ordinary lease, where the records that follow it do not show it to be final."""
    chain, seen = sides(0, 1, rounds=8), FinalityLease(100.0, 0.0)
    chain.ledger.checkpoint = Checkpoint(14, chain.ledger.parent(15))
    moved = [
        seen.look(chain.ledger, is_member=True, silence=6.0, now=float(now)) for now in range(1, 9)
    ]
    return moved == [None] * 5 + [14, None, None]


def _few_looks_are_remembered() -> bool:
    chain, seen = true_chain(), FinalityLease(100.0, 0.0)
    for number in range(2000):
        seen.look(chain.ledger, is_member=True, silence=6.0, now=number / 10)
    return len(seen._marks) <= 18


def _looks(*changes: tuple[str, str]) -> Callable[[], list[Patch]]:
    return edited(FinalityLease, "look", *changes)


def _a_finality_lease_is_some_ordinary_ones() -> bool:
    """Where rounds are slow, the manifest's may be over before anybody is called silent."""
    chain, seen, moved = sides(0, 1), FinalityLease(10.0, 0.0), []
    for now in range(1, 100):
        if now % 5 == 0:
            chain.grow()
        moved.append(seen.look(chain.ledger, is_member=True, silence=30.0, now=float(now)))
    return not any(moved)


RULES = (
    Rule(
        "the lease is waited for",
        _the_lease_is_waited_for,
        lambda: [(lease, "max", lambda *_: 20.0)],
    ),
    Rule("who is alone does not move on", _who_is_alone_does_not_move_on, _who_is_alone_counts),
    Rule("who is there is asked", _who_is_there_is_asked, _nobody_is_asked),
    Rule(
        "time asleep does not count", _time_asleep_does_not_count, put(lease, "_MOST_SECONDS", 1e9)
    ),
    Rule(
        "only a member's time counts",
        _only_a_members_time_counts,
        _looks(("not is_member or ", "")),
    ),
    Rule(
        "before the checkpoint nothing is moved",
        _before_the_checkpoint_nothing_is_moved,
        _looks(("not ledger.anchored or ", "")),
    ),
    Rule(
        "who was there for a while counts",
        _who_was_there_for_a_while_counts,
        _looks(("for _, height in self._marks", "for _, height in list(self._marks)[-1:]")),
    ),
    Rule(
        "the next lease begins anew", _the_next_lease_begins_anew, _looks(("self.start_over()", ""))
    ),
    Rule(
        "on another chain the lease begins anew",
        _on_another_chain_the_lease_begins_anew,
        edited(Member, "_rebase", ("self._lease.start_over()", "")),
    ),
    Rule(
        "a checkpoint is believed after a lease",
        _a_checkpoint_is_believed,
        _looks(("self._seen >= silence and ", "")),
    ),
    Rule(
        "a checkpoint is believed",
        _a_checkpoint_is_believed,
        edited(Ledger, "believe_checkpoint", ("known is None or", "True or")),
    ),
    Rule("few looks are remembered", _few_looks_are_remembered, put(lease, "_MARKS", 1 << 20)),
    Rule(
        "a finality lease is some ordinary ones",
        _a_finality_lease_is_some_ordinary_ones,
        put(lease, "_LEASES", 0),
    ),
)
