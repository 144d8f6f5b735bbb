"""The final prefix: up to which record nobody ever goes back.

Leases keep a chain available: whoever is left goes on. By themselves they would also let anybody who was
once the last survivor, or the founder after its leave, write another history from that time on. So a
chain has a final prefix beside its available end, as in Neu, Tas and Tse, "Ebb-and-Flow Protocols" (IEEE
S&P 2021). Everything here follows from the records alone, so whoever has the same chain has the same
final prefix, whichever certificates it holds.

A *statement* of round k is an update of that round, or a finalize of round k that the next record quotes
as a witness: its signer stood on the chain that ends with record k - 1. It supports that record and all
before it, and shows that the signer knew them. With F the *finality set*, at first the founder:

- A record is *justified* when more than two thirds of F (half in the model `crash`), nobody discounted
  as silent, have made statements that support it. A member does not leave a chain behind the last
  record that is justified there, unless the other chain has a final record that contradicts it.
- A record is *final* when as many have made statements that show that they knew it to be justified.
- F then becomes the membership after that record. For the next one, a quorum of the F before is needed
  as well, and only statements count that were made after it was seen that the last one is final.

Who takes leave in a record, or is expelled by one, no longer belongs to F; who is called silent does. If
a whole set has gone, its heirs are the members after that record. Why two contradicting records are
never both final is argued in docs/protocol.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from ...crypto.identity import PeerId
from ..wire.membership import FaultModel, Membership, quorum
from ..wire.messages import Record, UpdateEntry, WitnessEntry


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
    """Who left or was expelled after the final record, and by which record."""


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
        self._count(record.round, _supporters(record), memberships)

    def move_on(self, round: int, memberships: Sequence[Membership]) -> None:
        """Take the record of `round`, of a chain as long as the memberships say, for final.

        For a member before whose eyes finality has stood still for very long: no record can prove that
        to others. Nobody does so yet.
        """
        tip = len(memberships) - 2
        gone = {peer: at for peer, at in self._gone.items() if at > round}
        members = frozenset(memberships[round + 1].peers) - gone.keys()
        if members:
            justified = max(round, self._justified)
            self._steps.append(_Step(tip + 1, round, justified, members, members, gone))
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
            place = round_ - step.first
            said = known[place] if place < len(known) else _supporters(records(round_))
            copy._count(round_, said, memberships)
        return copy

    def _start_over(self) -> None:
        """Begin to count after the last step."""
        step = self._steps[-1]
        self._justified = step.justified
        self._sets = step.before, step.members
        self._gone = dict(step.gone)
        # Who said what in each round since, for `before`; who said something last in which round; and
        # how far the statements up to each round reached.
        self._supporters: list[_Supporters] = []
        self._last: dict[PeerId, int] = {}
        self._reached: list[int] = []

    def _count(self, round_: int, said: _Supporters, memberships: Sequence[Membership]) -> None:
        step = self._steps[-1]
        if self._supporters and self._supporters[-1] == said:
            # One for all the rounds that are alike.
            said = self._supporters[-1]
        self._supporters.append(said)
        contributors, witnesses, gone = said
        for at, peers in ((round_ - 1, witnesses), (round_, contributors)):
            if at >= step.first:
                self._last |= {peer: max(at, self._last.get(peer, at)) for peer in peers}
        if gone:
            self._gone |= dict.fromkeys(gone, round_)
            heirs = frozenset(memberships[round_ + 1].peers)
            before, members = (left.difference(gone) or heirs for left in self._sets)
            self._sets = before, members
        supported = min(map(self._supported, self._sets))
        self._reached.append(supported)
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


_Supporters = tuple[tuple[PeerId, ...], tuple[PeerId, ...], tuple[PeerId, ...]]


def _supporters(record: Record) -> _Supporters:
    """Whose statements a record holds: of its own round, of the one before; and who has gone by it."""
    left = [entry.peer for entry in record.departed if entry.reason == "left"]
    return (
        _peers(record.updates),
        _peers(record.witnesses),
        (*left, *(proof.peer for proof in record.evidence)),
    )


def _peers(entries: Iterable[UpdateEntry | WitnessEntry]) -> tuple[PeerId, ...]:
    return tuple(entry.peer for entry in entries)
