"""Contents of a proposed record: held updates, admissions, departures and expulsions."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import Any

from ...crypto.envelope import Envelope
from ...crypto.identity import PeerId
from ..chain.admissions import admission_problem
from ..chain.chain_index import VoteSource
from ..chain.departures import allows_leave
from ..chain.evidence import check_evidence
from ..chain.ledger import Ledger
from ..wire.errors import ProtocolError
from ..wire.manifest import Manifest
from ..wire.messages import (
    MAX_EVIDENCE,
    AdmissionEntry,
    DepartureEntry,
    Evidence,
    JoinRequest,
    Record,
    SnapshotEntry,
    UpdateEntry,
    WitnessEntry,
)
from .beacon_secrets import BeaconSecrets
from .liveness import Liveness
from .member_part import MemberPart

# Maximum number of join requests that are kept: they cost an attacker only signatures.
_MAX_WAITING = 1024
# Time after which a request is dropped. Requests are repeated every two seconds, so a peer that sent
# none for this long is gone.
_REQUEST_SECONDS = 15.0
# Leases after which a leader declares a member silent. A voter agrees after one, so that slightly
# different observations do not matter.
_ACCUSE_MARGIN = 1.25
# Limits per record for admissions and for departures by leave. They keep a record small when many
# members come or leave at once.
_MAX_ADMISSIONS = 64
_MAX_LEAVES = 64
# Maximum number of proofs of contradictions that wait for a record. A member proven guilty is expelled
# soon. An attacker who wastes more identities than this only gains that some of them stay a while.
_MAX_ACCUSED = 64
# Number of rounds that a request may be old. The peer then has applied everything up to a round or two
# ago, so that it can train soon after its admission.
_IN_SYNC_ROUNDS = 2


class JoinRequests:
    """Pending requests for admission, the newest of each peer."""

    def __init__(self) -> None:
        self._waiting: dict[PeerId, tuple[JoinRequest, bytes, float]] = {}

    def put(self, peer: PeerId, request: JoinRequest, signature: bytes, now: float) -> None:
        """Add a request, and drop requests that were not repeated for a while."""
        self._drop_old(now)
        known = self._waiting.get(peer)
        # A request for an earlier round than the known one is a replay.
        if len(self._waiting) < _MAX_WAITING if known is None else request.round >= known[0].round:
            self._waiting[peer] = (request, signature, now)

    def has(self, peer: PeerId) -> bool:
        """Whether `peer` is waiting."""
        return peer in self._waiting

    def drop(self, peer: PeerId) -> None:
        """Remove the request of `peer`, which was admitted."""
        self._waiting.pop(peer, None)

    def admissible(self, manifest: Manifest, ledger: Ledger, now: float) -> list[AdmissionEntry]:
        """Return entries for the peers that the next record may admit, the longest wait first."""
        self._drop_old(now)
        membership, votes = ledger.membership(len(ledger)), ledger.index(VoteSource)
        return [
            AdmissionEntry(peer, request, signature)
            for peer, (request, signature, _) in self._waiting.items()
            if request.round >= len(ledger) - _IN_SYNC_ROUNDS
            and admission_problem(
                *(peer, request, len(ledger), manifest, membership, ledger.verify),
                dismissed=votes.dismisses(peer),
            )
            is None
        ]

    def _drop_old(self, now: float) -> None:
        self._waiting = {
            peer: entry
            for peer, entry in self._waiting.items()
            if now - entry[2] < _REQUEST_SECONDS
        }


class Accusations:
    """Proofs against members that contradicted themselves, one for each, until a record expels them.

    The signed messages that brought the proofs are kept, to be sent to peers that ask.
    """

    def __init__(self) -> None:
        self._known: dict[PeerId, tuple[Evidence, Envelope]] = {}

    def wants(self, peer: PeerId) -> bool:
        """Whether a proof against `peer` would be kept: one is enough, and their number is limited."""
        return peer not in self._known and len(self._known) < _MAX_ACCUSED

    def put(self, evidence: Evidence, envelope: Envelope) -> None:
        """Keep a checked proof, if it is wanted."""
        if self.wants(evidence.peer):
            self._known[evidence.peer] = (evidence, envelope)

    def envelopes(self) -> list[Envelope]:
        """Return the accusers' signed messages."""
        return [envelope for _, envelope in self._known.values()]

    def entries(self, ledger: Ledger) -> list[Evidence]:
        """Return the proofs for the next record, sorted by peer."""
        self.forget(ledger)
        chosen = list(itertools.islice(self._known.items(), MAX_EVIDENCE))
        return [evidence for _, (evidence, _) in sorted(chosen, key=lambda item: item[0])]

    def forget(self, ledger: Ledger) -> None:
        """Drop proofs that are recorded, or cannot be recorded on this chain any more."""
        for peer, (evidence, _) in list(self._known.items()):
            try:
                check_evidence(evidence, ledger, ledger.verify)
            except ProtocolError:
                del self._known[peer]


def compose_record(
    *,
    manifest: Manifest,
    ledger: Ledger,
    fingerprint: int,
    slot: int,
    updates: list[UpdateEntry],
    joins: JoinRequests,
    accusations: Accusations,
    secrets: BeaconSecrets,
    features: Iterable[MemberPart],
    liveness: Liveness,
    lease: float,
    snapshot: SnapshotEntry | None,
    now: float,
) -> Record:
    """Return the record that the leader of a `slot` proposes for the round at the tip, as known at
    `now`."""
    round_ = len(ledger)
    membership, votes = ledger.membership(round_), ledger.index(VoteSource)
    departed: list[DepartureEntry] = []
    leaves = 0
    evidence = accusations.entries(ledger)
    expelled = {proof.peer for proof in evidence}
    remaining = [peer for peer in membership.peers if peer not in expelled]
    if not remaining:
        evidence, remaining = [], list(membership.peers)
    silent = liveness.silent(lease * _ACCUSE_MARGIN, now)
    for peer in remaining:
        leave = liveness.leave_of(peer)
        if leave is not None and allows_leave(ledger, leave[0].round, peer):
            if leaves == _MAX_LEAVES:
                continue
            leaves += 1
            departed.append(DepartureEntry(peer, "left", leave[0].round, leave[1]))
        elif votes.dismisses(peer):
            departed.append(DepartureEntry(peer, "dismissed", 0, b""))
        elif peer in silent:
            departed.append(DepartureEntry(peer, "silent", 0, b""))
    if len(departed) == len(remaining):
        # At least one member has to remain: otherwise no peer could ever be admitted again.
        departed = []
    gone = {entry.peer for entry in departed if entry.reason == "silent"}
    room = manifest.admission.max_members - (len(remaining) - len(departed))
    # The record of round 0 contains nothing else, and must admit all members that the start requires.
    crowd = max(_MAX_ADMISSIONS, manifest.rounds.start_members if round_ == 0 else 0)
    asking = [
        entry for entry in joins.admissible(manifest, ledger, now) if entry.peer not in expelled
    ]
    admitted = asking[: max(0, min(room, crowd))]
    updates = [entry for entry in updates if entry.peer not in gone]
    of_features: dict[str, Any] = {}
    for feature in features:
        of_features |= feature.record_fields(ledger)
    return Record(
        round=round_,
        parent=ledger.head,
        fingerprint=fingerprint,
        updates=tuple(updates),
        admitted=tuple(sorted(admitted, key=lambda entry: entry.peer)),
        departed=tuple(departed),
        snapshot=snapshot,
        evidence=tuple(evidence),
        witnesses=_witnesses(ledger, {entry.peer for entry in updates}),
        contributions=votes.root_due(snapshot),
        slot=slot,
        opening=secrets.reveal(ledger),
        **of_features,
    )


def _witnesses(ledger: Ledger, contributors: set[PeerId]) -> tuple[WitnessEntry, ...]:
    """Return the finalizes of the last record by members without an update in the next one: they prove
    that these members are on this chain as well."""
    if len(ledger) == 0:
        return ()
    last = ledger[len(ledger) - 1].certificate
    return tuple(
        WitnessEntry(signed.peer, last.slot, signed.silent, signed.signature)
        for signed in last.ballots
        if signed.peer not in contributors
    )
