"""Chain comparison: which peers to ask for their chain, what to request, at what cost, when to give up.

One message of one peer can claim that there is another chain, and a byzantine peer can repeat the claim
without end. So examining the claim must be cheap: a peer is first asked for the ids of a few records,
until the fork is located (probes at doubling distances, then between them: three requests for a hundred
thousand rounds). Only then are entries fetched, from the fork on, in portions, each checked before more
are requested. This ends as soon as the chain is preferred whatever follows, or when the peer has used up
its budget. Nothing before our last final record is requested.

Several peers are asked at a time, present and former members first, so slow peers and strangers delay
no one. A peer whose chain was fetched in vain is not asked again for a while.

Nothing here sends anything: `requests` returns the requests to send now, `on_answer` processes answers.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ...crypto.identity import PeerId
from ..util.backoff import Backoff
from ..wire.errors import ProtocolError
from ..wire.messages import RecordId
from .fork_choice import COMPARED_ROUNDS, decided_early, prefers
from .ledger import Ledger
from .sync import MAX_PROBES, SyncAnswer, SyncQuery

AT_ONCE = 4
"""Peers asked at the same time."""

PATIENCE_SECONDS = 10.0
"""Time after which a comparison gives up on a peer's answer."""

# Most peers asked in one comparison, and most strangers among them: a stranger may have joined the other
# chain, or invented it.
_MOST_PEERS = 12
_MAX_STRANGERS = 4
# Most answers in a search for the fork. It takes three, unless they contradict each other.
_MOST_PROBES = 6
# Entries per request, and the most bytes of one peer's entries in one comparison.
_PORTION = 64
_MOST_BYTES = 16 << 20
# A peer whose chain was fetched in vain is not asked for it again for this long, doubled each time.
_FIRST_REST_SECONDS = 20.0
_LONGEST_REST_SECONDS = 160.0


@dataclass(frozen=True)
class PeerFault:
    """A peer and the invalid data that it sent."""

    peer: PeerId
    reason: str
    text: str


class FetchBackoff(Backoff[PeerId]):
    """Backoff of peers whose chains were fetched in vain."""

    def __init__(self) -> None:
        super().__init__(_FIRST_REST_SECONDS, _LONGEST_REST_SECONDS)


class ChainComparison:
    """One comparison with the chains of other peers. Times are in seconds of any steady clock."""

    def __init__(
        self,
        ours: Ledger,
        peers: Iterable[PeerId],
        backoff: FetchBackoff,
        *,
        me: PeerId,
        abandoned: bool,
    ) -> None:
        """`peers` are reachable from `me`, in random order. `backoff`: the pauses of peers whose chains
        were fetched in vain. `abandoned`: no member of our chain is left on it
        (`Member.is_abandoned`)."""
        peers = list(peers)
        known = [peer for peer in peers if ours.has_been_member(peer)]
        strangers = [peer for peer in peers if not ours.has_been_member(peer)]
        chosen = [*known, *strangers[:_MAX_STRANGERS]]
        self.better: Ledger | None = None
        """The chain to follow instead of ours, once one was found."""
        self.reported: dict[PeerId, RecordId | None] = {}
        """For each present or former member that answered, its record of our last final round; None if
        it is the same as ours (`diverged_peers.DivergedPeers`)."""
        self._ours = ours
        self._backoff = backoff
        self._me = me
        self._abandoned = abandoned
        self._fork = 0
        self._waiting = chosen[:_MOST_PEERS]
        self._asked: dict[PeerId, float] = {}
        self._chain_probes: dict[PeerId, ChainProbe] = {}

    @property
    def done(self) -> bool:
        """Whether no request is left."""
        return self.better is not None or not (self._waiting or self._chain_probes)

    def better_than(self, ours: Ledger) -> Ledger | None:
        """Return the chain to follow instead of `ours`, which may have grown since: its new records
        count as well. Takes as long as reading the compared part of both chains."""
        better = self.better
        if better is None or ours.head == self._ours.head:
            return better
        still = prefers(ours, better, self._fork, me=self._me, abandoned=self._abandoned)
        return better if still else None

    def deadline(self, now: float) -> float:
        """Return the latest time for the next call of `requests`."""
        return max(now, min(self._asked.values(), default=now) + PATIENCE_SECONDS)

    def requests(self, now: float) -> list[SyncQuery]:
        """Return the requests to send now. Drops peers that have not answered for too long."""
        for peer in [p for p, at in self._asked.items() if now >= at + PATIENCE_SECONDS]:
            self._drop(peer)
        while not self.done and self._waiting and len(self._chain_probes) < AT_ONCE:
            peer = self._waiting.pop(0)
            self._chain_probes[peer] = ChainProbe(self._ours, self._me, self._abandoned)
        if self.done:
            return []
        requests: list[SyncQuery] = []
        for peer, probe in list(self._chain_probes.items()):
            if peer not in self._asked:
                request = probe.next_request(peer)
                self._asked[peer] = now
                requests.append(request)
        return requests

    def on_answer(self, peer: PeerId, answer: SyncAnswer | None, now: float) -> PeerFault | None:
        """Process the answer of `peer`; None if it gave none. Returns the fault to charge it with, if
        any."""
        probe = self._chain_probes.get(peer)
        if probe is None or peer not in self._asked or self.done:
            return None
        del self._asked[peer]
        if answer is None:
            self._drop(peer)
            return None
        try:
            continues = probe.take(answer)
        except ProtocolError as error:
            self._drop(peer)
            self._backoff.failed(peer, now)
            return PeerFault(peer, error.reason, str(error))
        if probe.reported is not None and self._ours.has_been_member(peer):
            self.reported[peer] = probe.reported if probe.diverged else None
        if probe.better is not None:
            self.better, self._fork = probe.better, probe.fork
        elif continues and not (probe.fetching and self._backoff.rests(peer, now)):
            return None
        elif probe.fetched:
            self._backoff.failed(peer, now)
        self._drop(peer)
        return None

    def _drop(self, peer: PeerId) -> None:
        self._chain_probes.pop(peer, None)
        self._asked.pop(peer, None)


class ChainProbe:
    """Progress through one peer's chain: first to the fork, then through the entries from there on."""

    def __init__(self, ours: Ledger, me: PeerId, abandoned: bool) -> None:
        self.better: Ledger | None = None
        self.fetched = 0
        self.reported: RecordId | None = None
        """The id of its record before our floor (`Ledger.floor`), once it has reported one."""
        self._ours = ours
        self._me = me
        self._abandoned = abandoned
        # Its records are ours up to round `_same`, and differ from round `_other` on, as far as is
        # known. A chain that diverges from ours before the floor is never followed, so nothing before
        # is probed.
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
        """The first round in which its chain differs, once it is known."""
        return self._same + 1

    @property
    def diverged(self) -> bool:
        """Whether its chain diverges from ours before the floor, by its own report."""
        return self.reported is not None and self.reported != self._ours.parent(self._floor)

    @property
    def fetching(self) -> bool:
        """Whether the fork is known and entries from there on are requested."""
        return self._chain is not None

    def next_request(self, peer: PeerId) -> SyncQuery:
        """Return the next request."""
        if self._chain is not None:
            return SyncQuery(peer, len(self._chain), most=_PORTION)
        return SyncQuery(peer, self._end, probes=self._probes, most=0)

    def take(self, answer: SyncAnswer) -> bool:
        """Process an answer. Returns whether there is a further request. Raises `ProtocolError`."""
        return self._follow(answer) if self._chain is not None else self._search(answer)

    def _search(self, answer: SyncAnswer) -> bool:
        self._answers += 1
        ids = answer.ids_of(self._probes)
        self._end = min(len(self._ours), answer.height)
        below = ids.get(self._floor - 1)
        if below is not None:
            self.reported = below
            if self.diverged:
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
            # One chain is a prefix of the other: the node that is behind syncs by other means.
            return False
        if self._other is not None and self._other == self._same + 1:
            self._chain = self._ours.truncated(self._other)
            return True
        self._probes = _between(self._same, self._end if self._other is None else self._other)
        return self._answers < _MOST_PROBES

    def _follow(self, answer: SyncAnswer) -> bool:
        chain = self._chain
        fork = self.fork
        assert chain is not None  # `take` ensures it
        before = len(chain)
        for decided in itertools.islice(answer.entries(), _PORTION):
            if len(chain) == fork and decided.record.id == self._ours.parent(fork + 1):
                raise ProtocolError(
                    "invalid",
                    "the record after the fork is ours, but its list of ids named another",
                )
            chain.append(decided)
            self.fetched += 1
        self._bytes += answer.size
        if len(chain) == before and answer.height > before:
            raise ProtocolError(
                "invalid", "it states a height, but sends none of the records up to it"
            )
        if len(chain) == fork:
            return False
        me, abandoned = self._me, self._abandoned
        if decided_early(self._ours, chain, fork, me=me, abandoned=abandoned):
            self.better = chain
            return False
        # Up to the checkpoint the chain may be forged, so it is fetched at least that far: a forged one
        # cannot contain the checkpoint's record.
        spent = self._bytes >= _MOST_BYTES or len(chain) - fork >= COMPARED_ROUNDS
        if len(chain) < answer.height and not (spent and chain.anchored):
            return True
        if prefers(self._ours, chain, fork, me=me, abandoned=abandoned):
            self.better = chain
        return False


def _backwards(height: int, floor: int) -> tuple[int, ...]:
    """Return rounds at doubling distances from the end, down to the floor, and the round before it."""
    rounds = [floor - 1] if floor else []
    distance = 1
    while distance <= height - floor and len(rounds) < MAX_PROBES - 1:
        rounds.append(height - distance)
        distance *= 2
    return tuple(sorted(rounds))


def _between(same: int, other: int) -> tuple[int, ...]:
    """Return rounds spread over those between `same` and `other`, the last of them included."""
    count = other - same - 1
    if count <= MAX_PROBES:
        return tuple(range(same + 1, other))
    step = count / MAX_PROBES
    spread: Sequence[int] = [same + 1 + int(step * number) for number in range(MAX_PROBES)]
    return tuple(sorted({*spread[1:], other - 1}))
