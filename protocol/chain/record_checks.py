"""Checks of a record's content: everything that follows from its signatures and the chain before it.

Each subject has a check of its own, beside the index or the conditions that it is about; `CHECKS` lists
all of them.
"""

from __future__ import annotations

from collections.abc import Callable

from ...crypto.envelope import Verify
from ...crypto.identity import PeerId
from ..wire.encoding import encode
from ..wire.errors import ProtocolError
from ..wire.messages import Ballot, Record
from .admissions import check_admissions
from .assignments import SampleAssignments
from .beacon import check_reveal
from .certified_snapshots import check_snapshot
from .chain_index import ChainView, VoteSource
from .departures import check_departures
from .evidence import check_expulsions


def check_record(record: Record, chain: ChainView, verify: Verify) -> None:
    """Check everything about the next record that follows from its signatures and the `chain` before
    it.

    What depends on the checking member (its fingerprint, the updates that it holds, the members that it
    hears) is not checked here. Raises `ProtocolError` with the reason `record` or `audit`.
    """
    for check in CHECKS:
        check(record, chain, verify)


def check_order(record: Record, _chain: ChainView, _verify: Verify) -> None:
    """Check that each list of the record is sorted by peer and names no peer twice. Raises
    `ProtocolError` (`record`)."""
    _check_sorted([entry.peer for entry in record.updates])
    _check_sorted([entry.peer for entry in record.admitted])
    _check_sorted([entry.peer for entry in record.departed])
    _check_sorted([evidence.peer for evidence in record.evidence])
    _check_sorted([witness.peer for witness in record.witnesses])


def check_schedule(record: Record, chain: ChainView, _verify: Verify) -> None:
    """Check that the record may follow, and have updates, in its round. Raises `ProtocolError`
    (`record`)."""
    manifest = chain.manifest
    # The members of one committee announce the same aggregate.
    alone = not manifest.aggregates_in(record.round)
    if alone and len({entry.update for entry in record.updates}) < len(record.updates):
        raise ProtocolError("record", "one update under two members")
    if record.updates and not manifest.schedule.trains(record.round):
        raise ProtocolError(
            "record", f"round {record.round} has updates, but is not a training round"
        )
    end = manifest.schedule.end_round
    if end is not None and len(chain) > end:
        raise ProtocolError("record", "a record after the end of the run")


def check_updates(record: Record, chain: ChainView, verify: Verify) -> None:
    """Check that each update is due, and was announced by its author. Raises `ProtocolError`
    (`record`)."""
    membership, swarm = chain.membership(len(chain)), chain.manifest.swarm
    silent = {entry.peer for entry in record.departed if entry.reason == "silent"}
    assignments = chain.index(SampleAssignments)
    due = assignments.due(record.round) if record.updates else frozenset[PeerId]()
    for entry in record.updates:
        if entry.peer not in membership or entry.peer in silent:
            raise ProtocolError("record", "an update by a non-member")
        if entry.peer not in due:
            raise ProtocolError("record", "an update by a member without an assignment")
        body = encode(record.announcement(entry))
        if not verify("announcement", swarm, entry.peer, body, entry.signature):
            raise ProtocolError("record", "an update that its author did not announce")


def check_witnesses(record: Record, chain: ChainView, verify: Verify) -> None:
    """Check the finalizes of the round before that the record quotes. Raises `ProtocolError`
    (`record`)."""
    authors, swarm = {entry.peer for entry in record.updates}, chain.manifest.swarm
    for witness in record.witnesses:
        if record.round == 0 or witness.peer not in chain.membership(record.round - 1):
            raise ProtocolError("record", "a witness that was not a member")
        if witness.peer in authors:
            raise ProtocolError("record", "a witness whose update is in the record")
        parent = chain.parent(record.round - 1)
        ballot = Ballot(record.round - 1, parent, witness.slot, record.parent, witness.silent)
        if not verify("finalize", swarm, witness.peer, encode(ballot), witness.signature):
            raise ProtocolError("record", "a witness that did not sign")


def check_audits(record: Record, chain: ChainView, verify: Verify) -> None:
    """Check the audits and re-audits of the next record. Raises `ProtocolError` (`record`, `audit`)."""
    chain.index(VoteSource).check_audits(record, verify)


def check_root(record: Record, chain: ChainView, _verify: Verify) -> None:
    """Check the contributions root of the next record. Raises `ProtocolError` (`record`)."""
    due = chain.index(VoteSource).root_due(record.snapshot)
    if record.contributions and not due:
        raise ProtocolError("record", "a contributions root where none is due")
    if record.contributions != due:
        which = "another" if record.contributions else "no"
        raise ProtocolError("record", f"a snapshot with {which} contributions root")


CHECKS: tuple[Callable[[Record, ChainView, Verify], None], ...] = (
    check_order,
    check_schedule,
    check_updates,
    check_departures,
    check_expulsions,
    check_witnesses,
    check_reveal,
    check_audits,
    check_root,
    check_admissions,
    check_snapshot,
)


def _check_sorted(peers: list[PeerId]) -> None:
    if peers != sorted(set(peers)):
        raise ProtocolError("record", "entries are not sorted by peer and distinct")
