"""The final prefix of a chain: the records that no honest member ever reverts.

A *statement* of round k is an update of that round, or a finalize of round k that the next record
quotes as a witness: its signer followed the chain that ends with record k - 1. A record is *justified*
when a quorum of the *finality set* has made statements after it, and *final* when a quorum has made
statements that show knowledge of the justified record. The finality set then becomes the membership
after that record, with the votes that its members have there; if none of its remaining members has
votes, each counts once. All of this follows from the records alone, as in Neu, Tas and Tse,
"Ebb-and-Flow Protocols" (IEEE S&P 2021). docs/protocol.md has the rules under "What is final", and the
reasons. The finality lease (`lease`) and checkpoints, which advance finality for one member alone,
enter by `move_on` and `believe`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass
from typing import Any, NamedTuple

from ...crypto.identity import PeerId
from ..wire.membership import Votes, quorum
from ..wire.messages import Record
from ..wire.saved_state import Restorable, RestoreScope, apart, collection, numbers, of, runs
from .chain_index import ChainView

# Masks save memory: a chain without a final record can be long.
_Supporters = tuple[int, int, tuple[PeerId, ...]]
# The same as plain data: masks are longer than any number there.
_SUPPORTERS = collection(apart(of(tuple[bytes, bytes, tuple[PeerId, ...]])))


@dataclass(frozen=True)
class FinalitySet:
    """A finality set and the votes of the round after its final record."""

    members: frozenset[PeerId]
    votes: Votes | None
    """None if each member has one vote. This saves memory: a chain can have very many of these sets."""

    @property
    def counted(self) -> Votes:
        """The votes in which a quorum of the set is counted."""
        if self.votes is None:
            return Votes(dict.fromkeys(self.members, 1), equal=True)
        return self.votes.held_by(self.members)

    def __bool__(self) -> bool:
        return bool(self.members)

    def only(self, present: Set[PeerId]) -> FinalitySet:
        """Return the set restricted to `present`."""
        return FinalitySet(self.members & present, self.votes)

    def without(self, gone: Iterable[PeerId]) -> FinalitySet:
        """Return the set without the members that are `gone`."""
        return FinalitySet(self.members.difference(gone), self.votes)


class FinalityStep(NamedTuple):
    """State of finality when a record has just become final, or at the beginning."""

    first: int
    """The first round whose statements count."""
    final: int
    justified: int
    before: FinalitySet
    """The previous finality set."""
    members: FinalitySet
    """The finality set in force."""
    gone: Mapping[PeerId, int]
    """Members that left or were expelled after the final record, each with the record that
    removed it."""


_ROUNDS = numbers(None)
_SETS = collection(apart(of(tuple[tuple[PeerId, ...], dict[PeerId, int] | None])))
_GONE = runs(apart(of(Mapping[PeerId, int])), None)


class Finality(Restorable):
    """Finality of one chain, updated record by record."""

    def __init__(self, chain: ChainView) -> None:
        self._chain = chain
        founder = FinalitySet(frozenset(chain.membership(0).peers), None)
        self._steps = [FinalityStep(0, -1, -1, founder, founder, {})]
        # As the records alone show it, once `move_on` or `believe` has advanced finality here.
        self._shown: Finality | None = None
        self._start_over()

    @property
    def round(self) -> int:
        """The round of the last final record; -1 if none is final."""
        return self._steps[-1].final

    @property
    def justified(self) -> int:
        """The round of the last justified record; -1 if none is justified."""
        return self._justified

    @property
    def members(self) -> frozenset[PeerId]:
        """The finality set."""
        return self._sets[1].members

    @property
    def votes(self) -> Votes:
        """The votes in which its quorums are counted."""
        return self._sets[1].counted

    def follow(self, record: Record) -> None:
        """Process the last `record`, which must have been checked."""
        self._count(record.round, self._supporters_in(record))
        if self._shown is not None:
            self._shown.follow(record)

    def move_on(self, round: int, present: frozenset[PeerId]) -> None:
        """Do not count the members of the finality sets that were not `present`. Then the last record
        that a quorum of the others supports, up to that of `round`, is final.

        For a member that has seen the others away for a whole finality lease (`lease`): no record can
        prove this to another member.
        """
        heirs = self._set_after(round).only(present)
        before, members = (left.only(present) or heirs for left in self._sets)
        if members and before:
            self._move_to(min(round, *map(self._supported, (before, members))), members)

    def believe(self, round: int) -> None:
        """Treat the record of `round` as final, by a trusted checkpoint."""
        self._move_to(round, None)

    def _move_to(self, round: int, before: FinalitySet | None) -> None:
        gone = {peer: at for peer, at in self._gone.items() if at > round}
        members = self._set_after(round).without(gone)
        if members and round > self.round:
            if self._shown is None:
                self._shown = self.before(len(self._chain), self._chain)
            # Counting restarts with the round that is being decided.
            first, justified = len(self._chain), max(round, self._justified)
            self._steps.append(
                FinalityStep(first, round, justified, before or members, members, gone)
            )
            self._start_over()

    def before(self, length: int, chain: ChainView) -> Finality:
        """Return the state of finality when this chain was `length` records long, as an index of
        `chain`."""
        copy = Finality(chain)
        if self._shown is not None:
            copy._shown = self._shown.before(length, chain)
        copy._steps = [step for step in self._steps if step.first <= length]
        copy._start_over()
        step = copy._steps[-1]
        known = self._supporters if len(copy._steps) == len(self._steps) else []
        for round_ in range(step.first, length):
            index = round_ - step.first
            is_new = index >= len(known)
            supporters = copy._supporters_in(chain.record(round_)) if is_new else known[index]
            copy._count(round_, supporters)
        return copy

    def state(self) -> list[Any]:
        if self._shown is not None:
            return self._shown.state()
        # Most steps share their sets.
        sets = {id(each): each for step in self._steps for each in (step.before, step.members)}
        place = {name: index for index, name in enumerate(sets)}
        rows = [
            (s.first, s.final + 1, s.justified + 1, place[id(s.before)], place[id(s.members)])
            for s in self._steps
        ]
        supporters = [
            (*(mask.to_bytes(-(-mask.bit_length() // 8), "little") for mask in masks), gone)
            for *masks, gone in self._supporters
        ]
        return [
            _SETS.pack(
                [(tuple(sorted(s.members)), s.votes and s.votes.by_peer) for s in sets.values()]
            ),
            [_ROUNDS.pack(column) for column in zip(*rows, strict=True)],
            _GONE.pack([step.gone for step in self._steps]),
            _SUPPORTERS.pack(supporters),
        ]

    def restore(self, state: Any, scope: RestoreScope) -> None:
        packed_sets, columns, packed_gone, packed_supporters = state
        sets = [
            FinalitySet(frozenset(members), None if votes is None else Votes(votes))
            for members, votes in _SETS.unpack(packed_sets, scope)
        ]
        rows = zip(*(_ROUNDS.unpack(column, scope) for column in columns), strict=True)
        all_gone = _GONE.unpack(packed_gone, scope)
        self._steps = [
            FinalityStep(first, final - 1, justified - 1, sets[before], sets[members], gone)
            for (first, final, justified, before, members), gone in zip(rows, all_gone, strict=True)
        ]
        self._start_over()
        supporters = _SUPPORTERS.unpack(packed_supporters, scope)
        first = self._steps[-1].first
        if first + len(supporters) != scope.length:
            raise ValueError("finality of another number of rounds")
        for round_, (*masks, gone) in enumerate(supporters, first):
            now, before = (int.from_bytes(mask, "little") for mask in masks)
            self._count(round_, (now, before, gone))

    def _start_over(self) -> None:
        """Restart the count after the last step."""
        step = self._steps[-1]
        self._justified = step.justified
        self._sets = step.before, step.members
        self._gone = dict(step.gone)
        # Statements of each round since, for `before`; the round of each member's last statement; and
        # the last record supported as of each round.
        self._supporters: list[_Supporters] = []
        self._last: dict[PeerId, int] = {}
        self._reached: list[int] = []

    def _count(self, round_: int, supporters: _Supporters) -> None:
        step = self._steps[-1]
        self._supporters.append(supporters)
        *masks, gone = supporters
        for at, mask in zip((round_, round_ - 1), masks, strict=True):
            if at >= step.first and mask:
                for peer in self._chain.membership(at).marked(mask):
                    self._last[peer] = max(at, self._last.get(peer, at))
        if gone:
            self._gone |= dict.fromkeys(gone, round_)
            heirs = self._set_after(round_)
            before, members = (left.without(gone) or heirs for left in self._sets)
            self._sets = before, members
        supported = min(map(self._supported, self._sets))
        # A member that knows this record also knows what was justified before it, even if the members
        # whose statements showed that have left since.
        self._reached.append(max([supported, *self._reached[-1:]]))
        self._justified = max(self._justified, supported)
        # Statements after `supported` come from a quorum that knew what was justified up to there.
        if (
            supported >= step.first
            and (final := self._reached[supported - step.first]) > step.final
        ):
            gone_since = {peer: at for peer, at in self._gone.items() if at > final}
            before, members = self._sets[1], self._set_after(final)
            members = members.without(gone_since) or before
            self._steps.append(
                FinalityStep(
                    round_ + 1,
                    final,
                    self._justified,
                    before,
                    # One object for all steps in which the same set is in force.
                    before if members == before else members,
                    gone_since,
                )
            )
            self._start_over()

    def _supported(self, among: FinalitySet) -> int:
        """Return the last record that a quorum of a set supports; the last final one if none later is
        supported."""
        votes = among.counted
        missing = quorum(self._chain.manifest.fault_model, votes.total)
        known = self._steps[-1].final
        supporters = among.members & self._last.keys()
        for last, weight in sorted(
            ((self._last[peer], votes[peer]) for peer in supporters), reverse=True
        ):
            missing -= weight
            if missing <= 0:
                return max(known, last - 1)
        return known

    def _set_after(self, round_: int) -> FinalitySet:
        """Return the members after the record of a round."""
        members, known = self._chain.membership(round_ + 1), self._chain.votes(round_ + 1)
        return FinalitySet(frozenset(members.peers), None if known.equal else known)

    def _supporters_in(self, record: Record) -> _Supporters:
        """Return the members with statements in a record (of its own round, and of the round before),
        and the members that it removes for another reason than silence.

        The first two are masks of the memberships of these rounds.
        """
        left = [entry.peer for entry in record.departed if entry.reason != "silent"]
        now = self._chain.membership(record.round)
        before = self._chain.membership(max(0, record.round - 1))
        return (
            sum(now.bit(entry.peer) for entry in record.updates),
            sum(before.bit(entry.peer) for entry in record.witnesses),
            (*left, *(proof.peer for proof in record.evidence)),
        )
