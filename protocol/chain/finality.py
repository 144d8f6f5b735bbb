"""The final prefix: up to which record nobody ever goes back.

A *statement* of round k is an update of that round, or a finalize of round k that the next record quotes
as a witness: its signer stood on the chain that ends with record k - 1. A record is *justified* when a
quorum of the *finality set* has made statements after it, and *final* when a quorum has made statements
that show that it knew the record to be justified. The set then becomes the membership after that record.
All of it follows from the records alone, as in Neu, Tas and Tse, "Ebb-and-Flow Protocols" (IEEE S&P
2021). docs/protocol.md has the rules under "What is final", and the reasons; `lease` and checkpoints,
which move finality on for one member alone, come in by `move_on` and `believe`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from ...crypto.identity import PeerId
from ..wire.membership import FaultModel, Membership, quorum
from ..wire.messages import Record


class _Step(NamedTuple):
    """Where finality stood when a record had just become final, or at the beginning."""

    first: int
    """The first round of which statements count."""
    final: int
    justified: int
    before: frozenset[PeerId]
    """The finality set before."""
    members: frozenset[PeerId]
    """The one in force."""
    gone: Mapping[PeerId, int]
    """Members that left or were expelled after the final record, and by which record."""


class Finality:
    """Follows one chain, record by record."""

    def __init__(self, model: FaultModel, founding: Membership) -> None:
        self._model: FaultModel = model
        founder = frozenset(founding.peers)
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
        return self._sets[1]

    def take(self, record: Record, memberships: Sequence[Membership]) -> None:
        """Take in the next record; `memberships` are those of its round and all before, and the next."""
        self._count(record.round, _supporters(record, memberships), memberships)

    def move_on(
        self, round: int, present: frozenset[PeerId], memberships: Sequence[Membership]
    ) -> None:
        """Discount those of the sets that were not `present`; then the last record that a quorum of the
        rest supports, but none after that of `round`, is final. The chain is as long as the memberships
        say.

        For a member before whose eyes the others were away for a whole lease (`lease`): no record can
        prove that to anybody else.
        """
        heirs = frozenset(memberships[round + 1].peers) & present
        before, members = (left & present or heirs for left in self._sets)
        if members and before:
            self._move_to(
                min(round, *map(self._supported, (before, members))), members, memberships
            )

    def believe(self, round: int, memberships: Sequence[Membership]) -> None:
        """Take the record of `round` for final, on the word of somebody trusted."""
        self._move_to(round, None, memberships)

    def _move_to(
        self, round: int, before: frozenset[PeerId] | None, memberships: Sequence[Membership]
    ) -> None:
        gone = {peer: at for peer, at in self._gone.items() if at > round}
        members = frozenset(memberships[round + 1].peers) - gone.keys()
        if members and round > self.round:
            # Counting begins anew with the round that is being agreed on.
            first, justified = len(memberships) - 1, max(round, self._justified)
            self._steps.append(_Step(first, round, justified, before or members, members, gone))
            self._start_over()

    def before(
        self, length: int, records: Callable[[int], Record], memberships: Sequence[Membership]
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
            copy._count(round_, said, memberships)
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

    def _count(self, round_: int, said: _Supporters, memberships: Sequence[Membership]) -> None:
        step = self._steps[-1]
        self._supporters.append(said)
        *masks, gone = said
        for at, mask in zip((round_, round_ - 1), masks, strict=True):
            if at >= step.first and mask:
                for peer in memberships[at].marked(mask):
                    self._last[peer] = max(at, self._last.get(peer, at))
        if gone:
            self._gone |= dict.fromkeys(gone, round_)
            heirs = frozenset(memberships[round_ + 1].peers)
            before, members = (left.difference(gone) or heirs for left in self._sets)
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
            before, members = self._sets[1], frozenset(memberships[final + 1].peers)
            members = members - gone_since.keys() or before
            self._steps.append(
                _Step(
                    round_ + 1,
                    final,
                    self._justified,
                    before,
                    before if members == before else members,
                    gone_since,
                )
            )
            self._start_over()

    def _supported(self, members: frozenset[PeerId]) -> int:
        """The last record that a quorum of `members` supports; the last final one if none later is."""
        needed = quorum(self._model, len(members))
        rounds = sorted((self._last[peer] for peer in members & self._last.keys()), reverse=True)
        known = self._steps[-1].final
        return max(known, rounds[needed - 1] - 1) if len(rounds) >= needed else known


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
