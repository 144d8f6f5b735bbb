"""Initial sync before a node takes part: which peers to ask, how far to follow them, and when to stop.

A single byzantine peer can sign thousands of rounds a second and so offer an endless chain. Therefore a
node first fixes a *goal*, a height that more than half of the asked peers on its chain have reached,
and fetches entries from a peer whose record at the goal is the one that most peers name. If as many
name another, it waits some seconds for further peers, since one of two peers that it reaches first may
be byzantine. It syncs beyond the goal only to a record whose certificate is signed by members with more
votes than byzantine members may have together. A node with a checkpoint follows no chain that lacks the
checkpoint's record; if an entry before it does not fit, all entries are fetched again from other peers.
docs/protocol.md has the rules, under "Sync".

`requests` returns the requests to send now, `on_answer` processes the answer to one, and `drain` returns
the entries that were checked and added to the ledger, so that they can be written to disk together.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from ...crypto.identity import PeerId
from ..wire.errors import ProtocolError
from ..wire.membership import max_byzantine_votes
from ..wire.messages import Decided, RecordId
from .certificates import check_signatures
from .fork_search import PATIENCE_SECONDS, PeerFault
from .ledger import Ledger
from .request_failover import DAWDLE_SECONDS
from .sync import SyncAnswer, SyncQuery

MAX_ASKED_PEERS = 5
"""Peers that are asked for the chain's height. A peer that is behind is not byzantine, but a newcomer
should not rely on it alone."""

# Most strangers to ask while a present or former member of our chain is connected; if more than this
# many such members are connected, the limit is their number.
_MAX_STRANGERS = 2
# How long to wait for further peers after as many named one record at the goal as another, and how often
# to look for them meanwhile.
_TIE_SECONDS = 3.0
_POLL_SECONDS = 0.25
# A peer that is more rounds behind our ledger than this is not just ordinarily delayed.
_STALE_ROUNDS = 8
# Most rounds that are synced before the node takes part (weeks of them); later ones, while it runs.
_MOST_ROUNDS = 1 << 16
# Reasons for refusing an entry that may be valid on another chain.
_OTHER_CHAIN = ("checkpoint", "wrong_parent")
# Entries per request. Answers are bounded in bytes as well.
_PORTION = 1024


@dataclass
class ChainReport:
    """A peer's report about its chain."""

    height: int
    """Number of its decided rounds."""
    same: bool
    """Whether our last record is on its chain."""
    goal: RecordId | None = None
    """Id of its record at the goal (the one of round goal - 1), once it has reported it."""
    asked_goal: int = -1
    """The goal for which this id was last requested."""


class InitialSync:
    """Initial sync of one node. Times are in seconds of any steady clock."""

    def __init__(self, ledger: Ledger) -> None:
        """`ledger` is extended in place."""
        self._ledger = ledger
        self._began = len(ledger)
        self._tip = len(ledger) - 1
        # Open requests by peer, with the time at which each was sent.
        self._asked: dict[PeerId, tuple[SyncQuery, float]] = {}
        self._reports: dict[PeerId, ChainReport] = {}
        # Peers that are not asked any more: they did not answer, or their answers are of no use.
        self._dropped: set[PeerId] = set()
        self._goal: int | None = None
        # After a tie: until when to wait for further peers, and how many had reported by then.
        self._tie: tuple[float, int] | None = None
        # Peers asked for their last certificate, the latest such request, and whether one of these
        # certificates has proved a height beyond the goal.
        self._heads: set[PeerId] = set()
        self._head_asked: SyncQuery | None = None
        self._height_proved = False
        # Entries added since the last `drain`, and the peers that sent entries of this ledger.
        self._added: list[Decided] = []
        self._sources: set[PeerId] = set()
        self._rewound = False
        self.done = False
        """Whether the sync has ended: nothing more will be requested."""

    @property
    def found(self) -> bool:
        """Whether any asked peer has reported a chain that may be followed."""
        return bool(self._reports)

    @property
    def height(self) -> int:
        """The height to sync to; before it is chosen, the ledger's own height."""
        return max(self._goal or 0, len(self._ledger))

    @property
    def stale(self) -> int:
        """How many of the asked peers are more than `_STALE_ROUNDS` behind this ledger."""
        return sum(
            report.height < len(self._ledger) - _STALE_ROUNDS for report in self._reports.values()
        )

    def rewound(self) -> bool:
        """Whether the ledger was restarted from round 0 since the last call: the entries on disk are
        void."""
        rewound, self._rewound = self._rewound, False
        return rewound

    def drain(self) -> list[Decided]:
        """Return the entries that were added to the ledger since the last call."""
        added, self._added = self._added, []
        return added

    def deadline(self, now: float) -> float:
        """Return the latest time for the next call of `requests`."""
        asked = [at for _, at in self._asked.values()] or [now]
        until = min(asked) + PATIENCE_SECONDS
        if self._goal is None and self._reports:
            # The goal is chosen once the latest of the open requests is this old, too.
            until = min(until, max(asked) + DAWDLE_SECONDS)
        if self._tie is not None and self._awaits_further(now):
            until = min(until, self._tie[0], now + _POLL_SECONDS)
        return max(now, until)

    def requests(self, connected: Iterable[PeerId], now: float) -> list[SyncQuery]:
        """Return the requests to send now. `connected`: the connected peers, in random order."""
        for peer, (_, at) in list(self._asked.items()):
            if now >= at + PATIENCE_SECONDS:
                del self._asked[peer]
                self._dropped.add(peer)
        connected = [peer for peer in connected if peer not in self._dropped]
        asked = self._report_requests(connected) if self._goal is None else []
        if not asked and self._goal is None and self._all_reported(now):
            self._choose_goal()
        if self._goal is not None and not self.done:
            # If the ledger is outdated, later rounds use a protocol version that this program does not
            # support, so nothing more is requested.
            asked = [] if self._ledger.versions.outdated else self._requests_to_goal(now)
            if self._goal is None:
                asked = self._report_requests(connected)
        for request in asked:
            self._asked[request.peer] = (request, now)
        if not self._asked and not self._awaits_further(now):
            self.done = True
        return asked

    def on_answer(self, peer: PeerId, answer: SyncAnswer | None, now: float) -> PeerFault | None:
        """Process the answer of `peer`; None if it gave none. Returns the fault to charge it with, if
        any."""
        request, _ = self._asked.pop(peer, (None, 0.0))
        if request is None or self.done:
            return None
        if answer is None:
            self._dropped.add(peer)
            return None
        try:
            self._take(peer, request, answer)
        except ProtocolError as error:
            return self._refused(peer, error)
        return None

    def _refused(self, peer: PeerId, error: ProtocolError) -> PeerFault | None:
        other_chain = error.reason == "wrong_parent"
        if not self._ledger.anchored and self._sources and error.reason in _OTHER_CHAIN:
            # This peer or an earlier source of entries is byzantine. Start again without the other
            # sources, or without this peer if it is the only source or contradicts the checkpoint.
            # Whether the remaining peers are honest shows when the ledger reaches the checkpoint. Each
            # restart drops at least one peer, so restarts end.
            others = self._sources - {peer}
            self._dropped |= others if other_chain and others else {peer}
            self._rewind()
        else:
            self._dropped.add(peer)
        # The peer may be on another valid chain, so it is not charged with a fault: once the member
        # runs, fork choice examines that chain.
        return None if other_chain else PeerFault(peer, error.reason, str(error))

    def _rewind(self) -> None:
        """Restart with an empty ledger."""
        self._ledger.cut(0)
        self._added.clear()
        self._sources.clear()
        self._began, self._tip, self._rewound = 0, -1, True
        for report in self._reports.values():
            report.same = True

    # Before the goal is chosen: the peers' reports

    def _report_requests(self, connected: list[PeerId]) -> list[SyncQuery]:
        known = [peer for peer in connected if self._is_known(peer)]
        strangers = [peer for peer in connected if not self._is_known(peer)]
        if known:
            # Identities are free, so few strangers are asked; but some are, since the only known member
            # may be byzantine. Strangers that were asked already come first.
            asked = [p for p in strangers if p in self._asked or p in self._reports]
            strangers = [*asked, *(p for p in strangers if p not in asked)]
            strangers = strangers[: max(_MAX_STRANGERS, len(known))]
        waiting = [
            peer
            for peer in (*known, *strangers)
            if peer not in self._asked and peer not in self._reports
        ]
        room = MAX_ASKED_PEERS - len(self._reports) - len(self._asked)
        at = self._ledger.checkpoint
        known = {at.round} if at is not None and not self._ledger.anchored else set[int]()
        probes = tuple(sorted({self._tip, *known} - {-1}))
        return [
            SyncQuery(peer, len(self._ledger), probes=probes, most=0)
            for peer in waiting[: max(0, room)]
        ]

    def _is_known(self, peer: PeerId) -> bool:
        """Whether our chain shows `peer` as a present or former member. False for every peer while the
        ledger is empty: it shows only the founder."""
        return len(self._ledger) > 0 and self._ledger.has_been_member(peer)

    def _all_reported(self, now: float) -> bool:
        dawdling = all(now >= at + DAWDLE_SECONDS for _, at in self._asked.values())
        return bool(self._reports) and dawdling and not self._awaits_further(now)

    def _awaits_further(self, now: float) -> bool:
        """Whether, after a tie, it is still time to wait for a peer that has not reported."""
        if self._tie is None or self._goal is not None:
            return False
        until, reports = self._tie
        return now < until and len(self._reports) <= reports

    def _choose_goal(self) -> None:
        """Set the goal to the greatest height that more than half of the peers on our chain have
        reached, but to no less than our own and at most `_MOST_ROUNDS` above where the sync began."""
        heights = sorted((o.height for o in self._reports.values() if o.same), reverse=True)
        # With two reports this is the lesser height, since only one peer has reached the greater.
        goal = heights[len(heights) // 2] if heights else 0
        self._goal = min(max(goal, len(self._ledger)), self._began + _MOST_ROUNDS)
        # Do not wait for peers that have not answered yet.
        self._asked.clear()

    # Towards the goal

    def _requests_to_goal(self, now: float) -> list[SyncQuery]:
        assert self._goal is not None  # `requests` ensures it
        if len(self._ledger) >= self._goal:
            return self._requests_beyond_goal()
        able = [p for p in self._reports if p not in self._dropped and self._reaches(p)]
        unsure = [
            peer
            for peer in able
            if self._reports[peer].asked_goal != self._goal and peer not in self._asked
        ]
        for peer in unsure:
            self._reports[peer].asked_goal = self._goal
        if unsure:
            # Ask for their records at the goal: the one that most peers name is followed.
            probes = (self._goal - 1,)
            return [SyncQuery(p, self._goal, probes=probes, most=0) for p in unsure]
        if self._asked:
            return []
        namers = [(p, goal) for p in able if (goal := self._reports[p].goal) is not None]
        if not namers:
            self.done = True
            return []
        named = Counter(goal for _, goal in namers)
        by_known = Counter(goal for peer, goal in namers if self._is_known(peer))
        first, *others = sorted(named, key=lambda goal: (-named[goal], -by_known[goal], goal))
        best = named[first], by_known[first]
        tied = any((named[goal], by_known[goal]) == best for goal in others)
        if tied and self._reopened(now):
            return []
        source = next(peer for peer in able if self._reports[peer].goal == first)
        missing = self._goal - len(self._ledger)
        return [SyncQuery(source, len(self._ledger), most=min(_PORTION, missing))]

    def _reopened(self, now: float) -> bool:
        """After a tie, go back to asking for reports if further peers may still be heard; return whether
        this was done."""
        if self._tie is None:
            self._tie = now + _TIE_SECONDS, 0
        until, _ = self._tie
        if now >= until or len(self._reports) >= MAX_ASKED_PEERS or len(self._ledger) > self._began:
            return False
        self._tie = until, len(self._reports)
        self._goal = None
        for report in self._reports.values():
            report.goal, report.asked_goal = None, -1
        return True

    def _reaches(self, peer: PeerId) -> bool:
        report = self._reports[peer]
        return report.same and report.height >= (self._goal or 0)

    def _requests_beyond_goal(self) -> list[SyncQuery]:
        """Ask a peer that is beyond the goal for its last certificate."""
        if self._asked:
            return []
        ahead = [
            peer
            for peer, report in self._reports.items()
            if report.same
            and report.height > len(self._ledger)
            and peer not in self._dropped
            and peer not in self._heads
        ]
        if self._height_proved or not ahead:
            self.done = True
            return []
        # The first peer that proves its height sets the new goal. Ask one after another, the most
        # advanced first.
        peer = max(ahead, key=lambda one: self._reports[one].height)
        self._heads.add(peer)
        height = min(self._reports[peer].height, self._began + _MOST_ROUNDS)
        if height <= len(self._ledger):
            return self._requests_beyond_goal()
        self._head_asked = SyncQuery(peer, height - 1, most=1)
        return [self._head_asked]

    # Answers

    def _take(self, peer: PeerId, request: SyncQuery, answer: SyncAnswer) -> None:
        if self._goal is None:
            self._take_report(peer, answer.height, answer.ids_of(request.probes))
        elif request.probes:
            self._reports[peer].goal = answer.ids_of(request.probes).get(request.probes[0])
        elif request is self._head_asked:
            self._judge_head(peer, request, answer)
        else:
            self._append(peer, answer)

    def _take_report(self, peer: PeerId, height: int, ids: dict[int, RecordId]) -> None:
        at = self._ledger.checkpoint
        same = self._tip < 0 or ids.get(self._tip) in (None, self._ledger.head)
        if at is not None and not self._ledger.anchored:
            if at.round not in ids:
                # The peer has not reached the checkpoint.
                self._dropped.add(peer)
                return
            if ids[at.round] != at.record:
                raise ProtocolError(
                    "checkpoint",
                    f"its record of round {at.round} is not the final one that the "
                    "checkpoint names",
                )
            if not same:
                # Our last records are on another chain.
                self._rewind()
                same = True
        self._reports[peer] = ChainReport(height, same)

    def _judge_head(self, peer: PeerId, request: SyncQuery, answer: SyncAnswer) -> None:
        head = next(iter(answer.entries()), None)
        if head is None:
            raise ProtocolError(
                "invalid", "it states a height, but sends none of the records up to it"
            )
        if head.record.round != request.round or head.certificate.block != head.record.id:
            raise ProtocolError("invalid", "another record than the one requested")
        votes = self._ledger.votes(len(self._ledger))
        signers = check_signatures(head.certificate, self._ledger.swarm, self._ledger.verify)
        if votes.among(signers) > max_byzantine_votes(
            self._ledger.manifest.fault_model, votes.total
        ):
            # At least one signer is honest.
            self._goal = request.round + 1
            for report in self._reports.values():
                report.goal = None
            self._reports[peer].goal = head.record.id
            self._reports[peer].asked_goal = self._goal
            self._height_proved = True

    def _append(self, peer: PeerId, answer: SyncAnswer) -> None:
        before = len(self._ledger)
        assert self._goal is not None  # otherwise no entries were requested
        for decided in answer.entries():
            if len(self._ledger) >= self._goal or self._ledger.versions.outdated:
                break
            self._ledger.append(decided)
            self._added.append(decided)
            self._sources.add(peer)
        if len(self._ledger) == before:
            raise ProtocolError(
                "invalid", "it states a height, but sends none of the records up to it"
            )
