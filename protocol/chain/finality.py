"""The final prefix: up to which record nobody ever goes back.

A *statement* of round k is an update of that round, or a finalize of round k that the next record quotes
as a witness: its signer stood on the chain that ends with record k - 1. A record is *justified* when a
quorum of the *finality set* has made statements after it, and *final* when a quorum has made statements
that show that it knew the record to be justified. The set then becomes the membership after that record,
with the votes that its members have there; where none of those who are left in it has any, they count by
heads. All of it follows from the records alone, as in Neu, Tas and Tse, "Ebb-and-Flow Protocols" (IEEE
S&P 2021). docs/protocol.md has the rules under "What is final", and the reasons; `lease` and
checkpoints, which move finality on for one member alone, come in by `move_on` and `believe`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import NamedTuple

from ...crypto.identity import PeerId
from ..wire.membership import FaultModel, Membership, Votes, quorum
from ..wire.messages import Record

VotesOf = Callable[[int], Votes]
"""The votes of each round, up to the next one."""


@dataclass(frozen=True)
class _Set:
    """A finality set, and the votes of the round after its final record."""

    members: frozenset[PeerId]
    votes: Votes | None
    """None where each has one: a chain can have very many of these."""

    @property
    def counted(self) -> Votes:
        """What a quorum of it is counted in."""
        if self.votes is None:
            return Votes(dict.fromkeys(self.members, 1), equal=True)
        return self.votes.held_by(self.members)

    def __bool__(self) -> bool:
        return bool(self.members)

    def only(self, present: Set[PeerId]) -> _Set:
        """It with these of its members alone."""
        return _Set(self.members & present, self.votes)

    def without(self, gone: Iterable[PeerId]) -> _Set:
        """It with all of its members but these."""
        return _Set(self.members.difference(gone), self.votes)


class _Step(NamedTuple):
    """Where finality stood when a record had just become final, or at the beginning."""

    first: int
    """The first round of which statements count."""
    final: int
    justified: int
    before: _Set
    """The finality set before."""
    members: _Set
    """The one in force."""
    gone: Mapping[PeerId, int]
    """Members that left or were expelled after the final record, and by which record."""


class Finality:
    """Follows one chain, record by record."""

    def __init__(self, model: FaultModel, founding: Membership) -> None:
        self._model: FaultModel = model
        founder = _Set(frozenset(founding.peers), None)
        self._steps = [_Step(0, -1, -1, founder, founder, {})]
        self._start_over()

    @property
    def round(self) -> int:
        """The round of the last final record; -1 if none is."""
        return self._steps[-1].final

    @property
    def justified(self) -> int:
        """The round of the last justified record; -1 if none is."""
        return self._justified

    @property
    def members(self) -> frozenset[PeerId]:
        """The finality set."""
        return self._sets[1].members

    @property
    def votes(self) -> Votes:
        """What its quorums are counted in."""
        return self._sets[1].counted

    def take(self, record: Record, memberships: Sequence[Membership], votes: VotesOf) -> None:
        """Take in the next record; `memberships` are those of its round and all before, and the next."""
        self._count(record.round, _supporters(record, memberships), memberships, votes)

    def move_on(
        self,
        round: int,
        present: frozenset[PeerId],
        memberships: Sequence[Membership],
        votes: VotesOf,
    ) -> None:
        """Discount those of the sets that were not `present`; then the last record that a quorum of the
        rest supports, but none after that of `round`, is final. The chain is as long as the memberships
        say.

        For a member before whose eyes the others were away for a whole lease (`lease`): no record can
        prove that to anybody else.
        """
        heirs = _set_after(round, memberships, votes).only(present)
        before, members = (left.only(present) or heirs for left in self._sets)
        if members and before:
            self._move_to(
                min(round, *map(self._supported, (before, members))), members, memberships, votes
            )

    def believe(self, round: int, memberships: Sequence[Membership], votes: VotesOf) -> None:
        """Take the record of `round` for final, on the word of somebody trusted."""
        self._move_to(round, None, memberships, votes)

    def _move_to(
        self,
        round: int,
        before: _Set | None,
        memberships: Sequence[Membership],
        votes: VotesOf,
    ) -> None:
        gone = {peer: at for peer, at in self._gone.items() if at > round}
        members = _set_after(round, memberships, votes).without(gone)
        if members and round > self.round:
            # Counting begins anew with the round that is being agreed on.
            first, justified = len(memberships) - 1, max(round, self._justified)
            self._steps.append(_Step(first, round, justified, before or members, members, gone))
            self._start_over()

    def before(
        self,
        length: int,
        records: Callable[[int], Record],
        memberships: Sequence[Membership],
        votes: VotesOf,
    ) -> Finality:
        """How finality stood on this chain, of `records`, when it was `length` records long."""
        copy = Finality(self._model, memberships[0])
        copy._steps = [step for step in self._steps if step.first <= length]
        copy._start_over()
        step = copy._steps[-1]
        known = self._supporters if len(copy._steps) == len(self._steps) else []
        for round_ in range(step.first, length):
            index = round_ - step.first
            fresh = index >= len(known)
            said = _supporters(records(round_), memberships) if fresh else known[index]
            copy._count(round_, said, memberships, votes)
        return copy

    def _start_over(self) -> None:
        """Begin to count after the last step."""
        step = self._steps[-1]
        self._justified = step.justified
        self._sets = step.before, step.members
        self._gone = dict(step.gone)
        # The statements of each round since, for `before`; the round of each member's last statement;
        # and how far the statements up to each round reached.
        self._supporters: list[_Supporters] = []
        self._last: dict[PeerId, int] = {}
        self._reached: list[int] = []

    def _count(
        self, round_: int, said: _Supporters, memberships: Sequence[Membership], votes: VotesOf
    ) -> None:
        step = self._steps[-1]
        self._supporters.append(said)
        *masks, gone = said
        for at, mask in zip((round_, round_ - 1), masks, strict=True):
            if at >= step.first and mask:
                for peer in memberships[at].marked(mask):
                    self._last[peer] = max(at, self._last.get(peer, at))
        if gone:
            self._gone |= dict.fromkeys(gone, round_)
            heirs = _set_after(round_, memberships, votes)
            before, members = (left.without(gone) or heirs for left in self._sets)
            self._sets = before, members
        supported = min(map(self._supported, self._sets))
        # A member that knows this record knows what was justified before, too, though those who showed
        # it may have left since.
        self._reached.append(max([supported, *self._reached[-1:]]))
        self._justified = max(self._justified, supported)
        # Statements after `supported` come from a quorum that knew what was justified up to there.
        if (
            supported >= step.first
            and (final := self._reached[supported - step.first]) > step.final
        ):
            gone_since = {peer: at for peer, at in self._gone.items() if at > final}
            before, members = self._sets[1], _set_after(final, memberships, votes)
            members = members.without(gone_since) or before
            self._steps.append(
                _Step(
                    round_ + 1,
                    final,
                    self._justified,
                    before,
                    # One for all the steps that it is in force.
                    before if members == before else members,
                    gone_since,
                )
            )
            self._start_over()

    def _supported(self, among: _Set) -> int:
        """The last record that a quorum of a set supports; the last final one if none later is."""
        votes = among.counted
        missing = quorum(self._model, votes.total)
        known = self._steps[-1].final
        spoke = among.members & self._last.keys()
        for last, said in sorted(((self._last[peer], votes[peer]) for peer in spoke), reverse=True):
            missing -= said
            if missing <= 0:
                return max(known, last - 1)
        return known


def _set_after(round_: int, memberships: Sequence[Membership], votes: VotesOf) -> _Set:
    """The members after the record of a round."""
    known = votes(round_ + 1)
    return _Set(frozenset(memberships[round_ + 1].peers), None if known.equal else known)


# Masks, since a chain without a final record can be long.
_Supporters = tuple[int, int, tuple[PeerId, ...]]


def _supporters(record: Record, memberships: Sequence[Membership]) -> _Supporters:
    """The members whose statements a record holds, of its own round and of the one before, and those
    that are gone by it.

    The first two as masks of the memberships of these rounds."""
    left = [entry.peer for entry in record.departed if entry.reason != "silent"]
    now, before = memberships[record.round], memberships[max(0, record.round - 1)]
    return (
        sum(now.bit(entry.peer) for entry in record.updates),
        sum(before.bit(entry.peer) for entry in record.witnesses),
        (*left, *(proof.peer for proof in record.evidence)),
    )
