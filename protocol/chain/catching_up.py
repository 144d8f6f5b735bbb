"""Catching up with a chain before a node takes part: whom to ask, how far to go on whose word, and when
to stop.

One liar alone can sign thousands of rounds in a second, for ever. So a node walks to a fixed *goal*: a
height that at least half of several peers name, with the records there that most of them name. It goes
further only if a last certificate bears the signatures of more members, known here, than may lie
together. A node with a checkpoint follows no chain that lacks it; if an entry on the way does not fit,
all of them are fetched again from others. docs/protocol.md has the rules, under "Sync".

`questions` says what to ask now, `answered` takes what came, and `drain` returns the entries that were
checked and added to the ledger, to be put on disk together.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from ...crypto.identity import PeerId
from ..wire.errors import ProtocolError
from ..wire.membership import most_liars
from ..wire.messages import Decided, RecordId
from .asking import DAWDLE_SECONDS
from .certificates import check_signatures
from .comparing import PATIENCE_SECONDS, Blame
from .ledger import Ledger
from .sync import Answer, Question

ENOUGH = 5
"""Peers whose word on the chain's height is asked for. A peer that is behind is no liar, but a newcomer
should not believe it alone."""

# With a member of our own chain within reach.
_MOST_STRANGERS = 2
# Behind by more than a node's ordinary delay.
_STALE_ROUNDS = 8
# Weeks of rounds. A running member catches up with more than that as it goes.
_MOST_ROUNDS = 1 << 16
# What entries are refused for that would hold on another chain.
_OTHER_CHAIN = ("checkpoint", "wrong_parent")
# Entries asked for at a time. Answers are bounded in bytes as well.
_PORTION = 1024


@dataclass
class _Offer:
    """What a peer says of its chain."""

    height: int
    same: bool
    """Whether our last record is one of its chain."""
    goal: RecordId | None = None
    """Its record where the goal is."""
    asked_goal: int = -1


class CatchingUp:
    """One node's way to the end of the chain. Times are in seconds of any steady clock."""

    def __init__(self, ledger: Ledger) -> None:
        """`ledger` grows."""
        self._ledger = ledger
        self._began = len(ledger)
        self._tip = len(ledger) - 1
        # Which peers were asked, for what and when.
        self._asked: dict[PeerId, tuple[Question, float]] = {}
        self._offers: dict[PeerId, _Offer] = {}
        # Peers that do not answer, or are of no use any more.
        self._out: set[PeerId] = set()
        self._goal: int | None = None
        self._heads: set[PeerId] = set()
        self._head_asked: Question | None = None
        self._vouched = False
        self._fresh: list[Decided] = []
        self._sources: set[PeerId] = set()
        self._rewound = False
        self.done = False
        """Whether nothing is to be asked any more."""

    @property
    def found(self) -> bool:
        """Whether anybody who was asked has a chain."""
        return bool(self._offers)

    @property
    def height(self) -> int:
        """How far it goes, as far as that is known."""
        return max(self._goal or 0, len(self._ledger))

    @property
    def stale(self) -> int:
        """How many of those who were asked are behind."""
        return sum(
            offer.height < len(self._ledger) - _STALE_ROUNDS for offer in self._offers.values()
        )

    def rewound(self) -> bool:
        """Whether the ledger was begun anew since this was asked last: what was on the disk is void."""
        rewound, self._rewound = self._rewound, False
        return rewound

    def drain(self) -> list[Decided]:
        """The entries that were added to the ledger since this was asked last."""
        fresh, self._fresh = self._fresh, []
        return fresh

    def deadline(self, now: float) -> float:
        """When to call `questions` again at the latest."""
        asked = [at for _, at in self._asked.values()] or [now]
        until = min(asked) + PATIENCE_SECONDS
        if self._goal is None and self._offers:
            # Counted from the last question: nothing is decided until that peer dawdles, too.
            until = min(until, max(asked) + DAWDLE_SECONDS)
        return max(now, until)

    def questions(self, connected: Iterable[PeerId], now: float) -> list[Question]:
        """What to ask now, of the peers that are `connected`, in random order."""
        for peer, (_, at) in list(self._asked.items()):
            if now >= at + PATIENCE_SECONDS:
                del self._asked[peer]
                self._out.add(peer)
        connected = [peer for peer in connected if peer not in self._out]
        asked = self._offers_wanted(connected) if self._goal is None else []
        if not asked and self._goal is None and self._all_offered(now):
            self._choose_goal()
        if self._goal is not None and not self.done:
            # What follows is in a version that we do not speak.
            asked = [] if self._ledger.versions.outdated else self._on_the_way()
        for question in asked:
            self._asked[question.peer] = (question, now)
        if not self._asked and not asked:
            self.done = True
        return asked

    def answered(self, peer: PeerId, answer: Answer | None, now: float) -> Blame | None:
        """Take in what `peer` answered; None if it did not. Returns what it is to be blamed for."""
        question, _ = self._asked.pop(peer, (None, 0.0))
        if question is None or self.done:
            return None
        if answer is None:
            self._out.add(peer)
            return None
        try:
            self._take(peer, question, answer)
        except ProtocolError as error:
            return self._refused(peer, error)
        return None

    def _refused(self, peer: PeerId, error: ProtocolError) -> Blame | None:
        other_chain = error.reason == "wrong_parent"
        if not self._ledger.anchored and self._sources and error.reason in _OTHER_CHAIN:
            # One of those who gave entries lies, or this one does. The checkpoint will tell: either way
            # there is one fewer to ask.
            others = self._sources - {peer}
            self._out |= others if other_chain and others else {peer}
            self._rewind()
        else:
            self._out.add(peer)
        # That may be another chain: once the member runs, fork choice looks into it.
        return None if other_chain else Blame(peer, error.reason, str(error))

    def _rewind(self) -> None:
        """Begin anew with nothing."""
        self._ledger.cut(0)
        self._fresh.clear()
        self._sources.clear()
        self._began, self._tip, self._rewound = 0, -1, True
        for offer in self._offers.values():
            offer.same = True

    # Offers

    def _offers_wanted(self, connected: list[PeerId]) -> list[Question]:
        known = [peer for peer in connected if self._is_known(peer)]
        strangers = [peer for peer in connected if not self._is_known(peer)]
        if known:
            # Names are free; but a single member may be the one that lies. Peers that were asked stay
            # in.
            asked = [p for p in strangers if p in self._asked or p in self._offers]
            strangers = [*asked, *(p for p in strangers if p not in asked)]
            strangers = strangers[: max(_MOST_STRANGERS, len(known))]
        waiting = [
            peer
            for peer in (*known, *strangers)
            if peer not in self._asked and peer not in self._offers
        ]
        room = ENOUGH - len(self._offers) - len(self._asked)
        at = self._ledger.checkpoint
        known = {at.round} if at is not None and not self._ledger.anchored else set[int]()
        probes = tuple(sorted({self._tip, *known} - {-1}))
        return [
            Question(peer, len(self._ledger), probes=probes, most=0)
            for peer in waiting[: max(0, room)]
        ]

    def _is_known(self, peer: PeerId) -> bool:
        """Whether it is or was a member, as far as our chain goes. A chain of no rounds does not count:
        it knows only the founder, who was alone once."""
        return len(self._ledger) > 0 and self._ledger.has_been_member(peer)

    def _all_offered(self, now: float) -> bool:
        dawdling = all(now >= at + DAWDLE_SECONDS for _, at in self._asked.values())
        return bool(self._offers) and dawdling

    def _choose_goal(self) -> None:
        """The height that at least half of the peers on our chain name."""
        heights = sorted((o.height for o in self._offers.values() if o.same), reverse=True)
        # With two the lesser one: the greater is one peer's word alone.
        goal = heights[len(heights) // 2] if heights else 0
        self._goal = min(max(goal, len(self._ledger)), self._began + _MOST_ROUNDS)
        # Peers that have said nothing yet are not waited for.
        self._asked.clear()

    # On the way

    def _on_the_way(self) -> list[Question]:
        assert self._goal is not None  # `questions` saw to it
        if len(self._ledger) >= self._goal:
            return self._further()
        able = [p for p in self._offers if p not in self._out and self._reaches(p)]
        unsure = [
            peer
            for peer in able
            if self._offers[peer].asked_goal != self._goal and peer not in self._asked
        ]
        for peer in unsure:
            self._offers[peer].asked_goal = self._goal
        if unsure:
            # What their records there are: most of them decide.
            probes = (self._goal - 1,)
            return [Question(p, self._goal, probes=probes, most=0) for p in unsure]
        if self._asked:
            return []
        namers = [(p, goal) for p in able if (goal := self._offers[p].goal) is not None]
        if not namers:
            self.done = True
            return []
        named = Counter(goal for _, goal in namers)
        by_known = Counter(goal for peer, goal in namers if self._is_known(peer))
        chosen = min(named, key=lambda goal: (-named[goal], -by_known[goal], goal))
        source = next(peer for peer in able if self._offers[peer].goal == chosen)
        missing = self._goal - len(self._ledger)
        return [Question(source, len(self._ledger), most=min(_PORTION, missing))]

    def _reaches(self, peer: PeerId) -> bool:
        offer = self._offers[peer]
        return offer.same and offer.height >= (self._goal or 0)

    def _further(self) -> list[Question]:
        """Beyond the goal: ask the peers that are further for their last certificates."""
        if self._asked:
            return []
        ahead = [
            peer
            for peer, offer in self._offers.items()
            if offer.same
            and offer.height > len(self._ledger)
            and peer not in self._out
            and peer not in self._heads
        ]
        if self._vouched or not ahead:
            self.done = True
            return []
        # The furthest that proves it sets the goal; one after another, as most prove nothing.
        peer = max(ahead, key=lambda one: self._offers[one].height)
        self._heads.add(peer)
        height = min(self._offers[peer].height, self._began + _MOST_ROUNDS)
        if height <= len(self._ledger):
            return self._further()
        self._head_asked = Question(peer, height - 1, most=1)
        return [self._head_asked]

    # Answers

    def _take(self, peer: PeerId, question: Question, answer: Answer) -> None:
        if self._goal is None:
            self._take_offer(peer, answer.height, answer.ids_of(question.probes))
        elif question.probes:
            self._offers[peer].goal = answer.ids_of(question.probes).get(question.probes[0])
        elif question is self._head_asked:
            self._judge_head(peer, question, answer)
        else:
            self._append(peer, answer)

    def _take_offer(self, peer: PeerId, height: int, ids: dict[int, RecordId]) -> None:
        at = self._ledger.checkpoint
        same = self._tip < 0 or ids.get(self._tip) in (None, self._ledger.head)
        if at is not None and not self._ledger.anchored:
            if at.round not in ids:
                # It is behind the checkpoint.
                self._out.add(peer)
                return
            if ids[at.round] != at.record:
                raise ProtocolError(
                    "checkpoint", f"its record of round {at.round} is not the final one"
                )
            if not same:
                # Our end is on another chain.
                self._rewind()
                same = True
        self._offers[peer] = _Offer(height, same)

    def _judge_head(self, peer: PeerId, question: Question, answer: Answer) -> None:
        head = next(iter(answer.entries()), None)
        if head is None:
            raise ProtocolError("invalid", "a height without the rounds that make it")
        if head.record.round != question.round or head.certificate.block != head.record.id:
            raise ProtocolError("invalid", "another record than was asked for")
        votes = self._ledger.votes(len(self._ledger))
        signers = check_signatures(head.certificate, self._ledger.swarm, self._ledger.verify)
        if votes.among(signers) > most_liars(self._ledger.manifest.fault_model, votes.total):
            # Somebody honest stands there.
            self._goal = question.round + 1
            for offer in self._offers.values():
                offer.goal = None
            self._offers[peer].goal = head.record.id
            self._offers[peer].asked_goal = self._goal
            self._vouched = True

    def _append(self, peer: PeerId, answer: Answer) -> None:
        before = len(self._ledger)
        assert self._goal is not None  # else nothing was asked for
        for decided in answer.entries():
            if len(self._ledger) >= self._goal or self._ledger.versions.outdated:
                break
            self._ledger.append(decided)
            self._fresh.append(decided)
            self._sources.add(peer)
        if len(self._ledger) == before:
            raise ProtocolError("invalid", "a height without the rounds that make it")
