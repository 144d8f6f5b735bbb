"""Checks of the audit accounts: what they must show, whatever the records contain.

They run with each record that any member follows.

- *accounts*: two members on one chain have the same accounts, and so do accounts recomputed for an
  earlier record. Votes in earlier rounds do not change.
- *votes*: no member has more votes than sequences of its own that count, up to the last round in which
  an audit saw its work; but the founder has two thirds of all as long as few have any. A member that
  never worked has none.
- *accused*: a member that does its work and reports its audits truthfully has a clean reputation.
- *idle*: a member that does no work is out of the step before `IDLE_ROUNDS` of its updates have counted
  in a row. Rounds in which another liar has votes are not counted: while honest members are away it may
  be enough to keep a dispute open. Nor are the rounds of a dispute about it that was dropped since too
  few were there to settle it. Work that cannot be audited never counts.

Which updates are work is known from what was really computed (`scores`), and not from the audits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from distro_node.crypto.hashing import ContentId, content_id
from distro_node.crypto.identity import PeerId
from distro_node.protocol.audit.disputes import OPEN_ROUNDS
from distro_node.protocol.audit.reputation import (
    EPOCH_ROUNDS,
    FRESH,
    ReputationTable,
)
from distro_node.protocol.audit.sign_score import SignSums
from distro_node.protocol.audit.verdict import LEAST
from distro_node.protocol.chain.audits import AuditLedger
from distro_node.protocol.chain.ledger import Ledger
from distro_node.protocol.wire.manifest import Manifest
from distro_node.protocol.wire.messages import Record, RecordId
from simulation.scores import Scores

# Private here: `_states`, `_audited`: every field of an account is compared.

IDLE_ROUNDS = FRESH + OPEN_ROUNDS + EPOCH_ROUNDS
"""An audit is recorded within `FRESH` rounds of the audited one and settled within `OPEN_ROUNDS` more. A
member with most votes audits in every second round at least, so that three failures (`WORK_TEST`) come
together; but for an epoch of the founding, its founder may be the only one that audits."""


@dataclass
class _Page:
    """The observations about one member on a chain."""

    sequences: int = 0
    """Sequences of its updates that count."""
    shown: int = 0
    """Those of them up to the last round in which an audit saw its work."""
    by_round: dict[int, int] = field(default_factory=dict)
    worked: bool = False
    """Whether it ever worked."""
    idle: int = 0
    """Number of consecutive updates without work that counted."""


class AuditInvariants:
    """The watch's own account of every chain."""

    def __init__(
        self, manifest: Manifest, scores: Scores, honest: Callable[[PeerId], bool]
    ) -> None:
        self._founder = manifest.founder
        self._scores = scores
        self._honest = honest
        self._pages: dict[RecordId, Mapping[PeerId, _Page]] = {}
        self._after: dict[RecordId, ContentId] = {}
        self._votes: dict[RecordId, dict[PeerId, int]] = {}

    def add(self, ledger: Ledger) -> str:
        """Check a chain that ends with a new record. Return the error; usually the empty string."""
        work, record = ledger.find(AuditLedger), ledger[len(ledger) - 1].record
        if work is None or record.id in self._after:
            return ""
        self._after[record.id] = fingerprint(work.reputation)
        self._votes[record.id] = dict(work.reputation.votes)
        pages = self._pages_after(record, ledger, work)
        self._pages[record.id] = pages
        return self._votes_are_earned(work.reputation, pages, ledger) or self._standings_are_just(
            work.reputation, pages
        )

    def compare(self, ledger: Ledger) -> str:
        """Compare a member's accounts, which it has built up itself, with those of the records."""
        work = ledger.find(AuditLedger)
        if work is None:
            return ""
        if fingerprint(work.reputation) != self._after.get(ledger.head):
            return f"it has other accounts after {len(ledger)} rounds"
        # Another round each time.
        earlier = int.from_bytes(ledger.head[:4], "big") % len(ledger)
        known = self._votes.get(ledger.parent(earlier))
        if known is not None and dict(work.votes(earlier)) != known:
            return f"it takes other votes for those of round {earlier}"
        return ""

    def compare_again(self, ledger: Ledger) -> str:
        """Compare accounts that are recomputed for an earlier record."""
        if ledger.find(AuditLedger) is None:
            return ""
        length = 1 + int.from_bytes(ledger.head[4:8], "big") % len(ledger)
        shorter = ledger.truncated(length)
        known = self._after.get(shorter.head)
        if known is not None and fingerprint(shorter.index(AuditLedger).reputation) != known:
            return f"cut to {length} rounds it has other accounts"
        return ""

    # Private helpers

    def _pages_after(
        self, record: Record, ledger: Ledger, work: AuditLedger
    ) -> Mapping[PeerId, _Page]:
        pages = dict(self._pages.get(record.parent, {}))
        sizes = ledger.assignments.shares(record.round).sequences if record.updates else {}
        lying = {peer for peer in work.votes(record.round) if not self._honest(peer)}
        for entry in record.updates:
            page = pages.get(entry.peer, _Page())
            real = set(self._scores.samples(entry.update))
            worked = bool(
                real.intersection(ledger.assignments.share(record.round, entry.peer) or ())
            )
            seen = entry.peer in work.share_sizes(record.round)
            counts = seen and work.reputation.updates_count(entry.peer)
            pages[entry.peer] = replace(
                page,
                sequences=page.sequences + seen * sizes[entry.peer],
                by_round=page.by_round | {record.round: seen * sizes[entry.peer]},
                worked=page.worked or worked,
                idle=0 if worked or not counts else page.idle + (not lying - {entry.peer}),
            )
        for audit in record.audits:
            drawn = work.drawn(audit.auditor, audit.opening, audit.round)
            if drawn is None or SignSums(audit.total, audit.squares).thousandths < LEAST:
                continue
            page = pages[drawn.peer]
            shown = sum(n for round_, n in page.by_round.items() if round_ <= audit.round)
            pages[drawn.peer] = replace(page, shown=max(page.shown, shown))
        for first, ending in work.reputation.ended:
            if ending == "dropped" and first.peer in pages:
                page = pages[first.peer]
                pages[first.peer] = replace(page, idle=max(0, page.idle - OPEN_ROUNDS))
        # Members after this record: a member that departs with it has no votes.
        members = ledger.membership(record.round + 1).peers
        epoch = work.epoch(record.round)
        voters = epoch.present(members)
        if len(voters) == 1 and epoch.founder in voters:
            # No other member could vouch for it.
            (alone,) = voters
            page = pages.get(alone, _Page())
            pages[alone] = replace(page, shown=page.sequences)
        return pages

    def _votes_are_earned(
        self, accounts: ReputationTable, pages: Mapping[PeerId, _Page], ledger: Ledger
    ) -> str:
        votes, earned = accounts.votes, accounts.earned
        members = set(ledger.membership(len(ledger)).peers)
        if not votes or not votes.keys() <= members:
            return "votes are those of no members"
        if accounts.founding and self._founder not in votes:
            if votes == dict.fromkeys(members, 1):
                return ""
            # Those that work decide, by their work in the epoch before.
            now = len(ledger) // EPOCH_ROUNDS * EPOCH_ROUNDS
            for peer, number in votes.items():
                by_round = pages.get(peer, _Page()).by_round
                done = sum(by_round.get(round_, 0) for round_ in range(now - EPOCH_ROUNDS, now))
                if not 0 < number <= done:
                    return f"{number} votes for {done} sequences of an epoch"
            return ""
        if set(votes.values()) == {1}:
            # The founder's at the beginning, or one each if no member has any.
            known = votes.keys() in ({self._founder}, members)
            return "" if known else "votes that nobody earned"
        others = sum(number for peer, number in earned.items() if peer != self._founder)
        for peer, number in votes.items():
            if peer == self._founder and accounts.founding and number == 2 * others + 1:
                continue
            page = pages.get(peer, _Page())
            if not 0 < number <= page.shown:
                return f"{number} votes for {page.shown} sequences"
            if not page.worked:
                return "votes without work"
        return ""

    def _standings_are_just(self, accounts: ReputationTable, pages: Mapping[PeerId, _Page]) -> str:
        for peer, page in pages.items():
            standings = accounts[peer].sums
            if self._honest(peer) and not (standings.updates_count and standings.credible):
                return f"an honest member is accused: {standings}"
            if page.idle > IDLE_ROUNDS and standings.updates_count:
                return f"{page.idle} updates in a row count that are no work"
        return ""


def fingerprint(accounts: ReputationTable) -> ContentId:
    """Return a hash of everything in the accounts."""
    known = accounts._states
    pages: list[object] = [
        (
            peer,
            *(account.sums, [*account.waiting], sorted(account.vouched.items())),
            *(sorted(account.vouchers.items()), [*account.scores], account.last_round),
            *(account.audited, account.dismissed),
        )
        for peer, account in sorted(known.items())
    ]
    disputes = sorted(
        (first.auditor, first.round, first, repr(dispute))
        for first, dispute in accounts.disputes.items()
    )
    votes = [
        sorted(each.items()) for each in (accounts.votes, accounts.earned, accounts.epoch.recent)
    ]
    usual = [accounts.baseline_score(share) for share in (1, 2, 4, 8)]
    everything = pages, disputes, votes, usual, accounts.founding, sorted(accounts._audited)
    return content_id(repr(everything).encode())
