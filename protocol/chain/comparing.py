"""Comparing chains: whom to ask for theirs, what to ask, what an answer may cost, when to give up.

One message of one peer can claim that there is another chain, and a liar claims it for ever. So looking
into it must be cheap: a peer is first asked for the ids of a few records, until we know where its chain
parts from ours (with ids at distances that double, and then between them: three questions for a hundred
thousand rounds). Only then are entries fetched, from the fork on, in portions, each checked before more
are asked for. That ends as soon as the chain is to be followed whatever comes after, or when the peer
has cost as much as one may. Nothing before our last final record is asked for.

Several peers are asked at a time, present and former members here first; so slow peers and strangers
hold up nobody. A peer whose chain was moved in vain is left alone for a while.

Nothing here sends anything: `questions` says what to ask now, `answered` takes what came.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ...crypto.identity import PeerId
from ..wire.backoff import Backoff
from ..wire.errors import ProtocolError
from ..wire.messages import RecordId
from .fork import COMPARED_ROUNDS, decided_early, prefers
from .ledger import Ledger
from .sync import MAX_PROBES, Answer, Question

AT_ONCE = 4
"""Peers that are asked at a time."""

PATIENCE_SECONDS = 10.0
"""A peer that takes longer to answer is given up, in this comparison."""

# In one comparison: more than a few that took part in our chain, and some strangers, which may have
# joined the other chain, or invented it.
_MOST_PEERS = 12
_MOST_STRANGERS = 4
# A search for the fork ends after three answers, unless they contradict each other.
_MOST_PROBES = 6
# Entries asked for at a time, and the most bytes of one peer's entries in one comparison.
_PORTION = 64
_MOST_BYTES = 16 << 20
# A peer whose chain was moved in vain is not asked for it again for so long, doubled each time.
_FIRST_REST_SECONDS = 20.0
_LONGEST_REST_SECONDS = 160.0


@dataclass(frozen=True)
class Blame:
    """A peer offered what does not hold."""

    peer: PeerId
    reason: str
    text: str


class Rests(Backoff[PeerId]):
    """Peers that made us move a chain in vain, and until when each is left alone."""

    def __init__(self) -> None:
        super().__init__(_FIRST_REST_SECONDS, _LONGEST_REST_SECONDS)


class Comparison:
    """One look at the chains of others. Times are in seconds of any steady clock."""

    def __init__(
        self,
        ours: Ledger,
        peers: Iterable[PeerId],
        rests: Rests,
        *,
        me: PeerId,
        abandoned: bool,
    ) -> None:
        """`peers` are those within reach of `me`, in random order. `abandoned` says that no member of
        our chain is left on it (`Member.is_abandoned`)."""
        peers = list(peers)
        known = [peer for peer in peers if ours.has_been_member(peer)]
        strangers = [peer for peer in peers if not ours.has_been_member(peer)]
        chosen = [*known, *strangers[:_MOST_STRANGERS]]
        self.better: Ledger | None = None
        """The chain to follow instead of ours, once one was found."""
        self.named: dict[PeerId, RecordId | None] = {}
        """Which record each present or former member here has where our last final one is; None: the
        same (`apart.Apart`)."""
        self._ours = ours
        self._rests = rests
        self._me = me
        self._abandoned = abandoned
        self._fork = 0
        self._waiting = chosen[:_MOST_PEERS]
        self._asked: dict[PeerId, float] = {}
        self._walks: dict[PeerId, _Walk] = {}

    @property
    def done(self) -> bool:
        """Whether nothing is to be asked any more."""
        return self.better is not None or not (self._waiting or self._walks)

    def better_than(self, ours: Ledger) -> Ledger | None:
        """The chain to follow instead of `ours`, which may have grown since: what was decided meanwhile
        counts as well. Takes as long as reading what was compared of both."""
        better = self.better
        if better is None or ours.head == self._ours.head:
            return better
        still = prefers(ours, better, self._fork, me=self._me, abandoned=self._abandoned)
        return better if still else None

    def deadline(self, now: float) -> float:
        """When to call `questions` again at the latest."""
        return max(now, min(self._asked.values(), default=now) + PATIENCE_SECONDS)

    def questions(self, now: float) -> list[Question]:
        """What to ask now. Gives up peers that have not answered for too long."""
        for peer in [p for p, at in self._asked.items() if now >= at + PATIENCE_SECONDS]:
            self._drop(peer)
        while not self.done and self._waiting and len(self._walks) < AT_ONCE:
            peer = self._waiting.pop(0)
            self._walks[peer] = _Walk(self._ours, self._me, self._abandoned)
        if self.done:
            return []
        questions: list[Question] = []
        for peer, walk in list(self._walks.items()):
            if peer not in self._asked:
                question = walk.question(peer)
                self._asked[peer] = now
                questions.append(question)
        return questions

    def answered(self, peer: PeerId, answer: Answer | None, now: float) -> Blame | None:
        """Take in what `peer` answered; None if it did not. Returns what it is to be blamed for."""
        walk = self._walks.get(peer)
        if walk is None or peer not in self._asked or self.done:
            return None
        del self._asked[peer]
        if answer is None:
            self._drop(peer)
            return None
        try:
            goes_on = walk.take(answer)
        except ProtocolError as error:
            self._drop(peer)
            self._rests.failed(peer, now)
            return Blame(peer, error.reason, str(error))
        if walk.named is not None and self._ours.has_been_member(peer):
            self.named[peer] = walk.named if walk.elsewhere else None
        if walk.better is not None:
            self.better, self._fork = walk.better, walk.fork
        elif goes_on and not (walk.fetching and self._rests.rests(peer, now)):
            return None
        elif walk.fetched:
            self._rests.failed(peer, now)
        self._drop(peer)
        return None

    def _drop(self, peer: PeerId) -> None:
        self._walks.pop(peer, None)
        self._asked.pop(peer, None)


class _Walk:
    """The way through one peer's chain: to the fork, and from there on."""

    def __init__(self, ours: Ledger, me: PeerId, abandoned: bool) -> None:
        self.better: Ledger | None = None
        self.fetched = 0
        self.named: RecordId | None = None
        """Their record before our floor, once they have said it."""
        self._ours = ours
        self._me = me
        self._abandoned = abandoned
        # Their records up to this round are ours, and this one is not, as far as is known. A chain that
        # parts from ours before the floor is none to follow, so nothing before is looked for.
        self._floor = ours.floor
        self._same = self._floor - 1
        self._other: int | None = None
        self._end = len(ours)
        self._answers = 0
        self._probes = _backwards(len(ours), self._floor)
        self._chain: Ledger | None = None
        self._bytes = 0

    @property
    def fork(self) -> int:
        """The first round in which their chain is another, once it is known."""
        return self._same + 1

    @property
    def elsewhere(self) -> bool:
        """Whether their chain parts from ours before the floor, by their own word."""
        return self.named is not None and self.named != self._ours.parent(self._floor)

    @property
    def fetching(self) -> bool:
        """Whether the fork is known, and entries from there on are wanted."""
        return self._chain is not None

    def question(self, peer: PeerId) -> Question:
        """The next question."""
        if self._chain is not None:
            return Question(peer, len(self._chain), most=_PORTION)
        return Question(peer, self._end, probes=self._probes, most=0)

    def take(self, answer: Answer) -> bool:
        """Take in an answer; whether there is more to ask. Raises `ProtocolError`."""
        return self._follow(answer) if self._chain is not None else self._search(answer)

    def _search(self, answer: Answer) -> bool:
        self._answers += 1
        ids = answer.ids_of(self._probes)
        self._end = min(len(self._ours), answer.height)
        below = ids.get(self._floor - 1)
        if below is not None:
            self.named = below
            if self.elsewhere:
                return False
        if self._other is None or self._other >= self._end:
            self._other = None
        for round_, record in sorted(ids.items()):
            if round_ >= self._end or round_ <= self._same:
                continue
            if record == self._ours.parent(round_ + 1):
                if self._other is None or round_ < self._other:
                    self._same = round_
            else:
                self._other = round_ if self._other is None else min(self._other, round_)
                break
        if self._same >= self._end - 1:
            # Theirs is a part of ours, or ours of theirs: the one behind asks by other means.
            return False
        if self._other is not None and self._other == self._same + 1:
            self._chain = self._ours.truncated(self._other)
            return True
        self._probes = _between(self._same, self._end if self._other is None else self._other)
        return self._answers < _MOST_PROBES

    def _follow(self, answer: Answer) -> bool:
        chain = self._chain
        fork = self.fork
        assert chain is not None  # else there is nothing to follow
        before = len(chain)
        for decided in itertools.islice(answer.entries(), _PORTION):
            if len(chain) == fork and decided.record.id == self._ours.parent(fork + 1):
                raise ProtocolError("invalid", "a record that is ours where another was named")
            chain.append(decided)
            self.fetched += 1
        self._bytes += answer.size
        if len(chain) == before and answer.height > before:
            raise ProtocolError("invalid", "a height without the rounds that make it")
        if len(chain) == fork:
            return False
        me, abandoned = self._me, self._abandoned
        if decided_early(self._ours, chain, fork, me=me, abandoned=abandoned):
            self.better = chain
            return False
        # Up to the checkpoint nobody can tell whose chain it is; there, a forged one ends.
        spent = self._bytes >= _MOST_BYTES or len(chain) - fork >= COMPARED_ROUNDS
        if len(chain) < answer.height and not (spent and chain.anchored):
            return True
        if prefers(self._ours, chain, fork, me=me, abandoned=abandoned):
            self.better = chain
        return False


def _backwards(height: int, floor: int) -> tuple[int, ...]:
    """Rounds at distances from the end that double, down to the floor, and the one before it."""
    rounds = [floor - 1] if floor else []
    distance = 1
    while distance <= height - floor and len(rounds) < MAX_PROBES - 1:
        rounds.append(height - distance)
        distance *= 2
    return tuple(sorted(rounds))


def _between(same: int, other: int) -> tuple[int, ...]:
    """Rounds spread over those between two, the last of them included."""
    count = other - same - 1
    if count <= MAX_PROBES:
        return tuple(range(same + 1, other))
    step = count / MAX_PROBES
    spread: Sequence[int] = [same + 1 + int(step * number) for number in range(MAX_PROBES)]
    return tuple(sorted({*spread[1:], other - 1}))
