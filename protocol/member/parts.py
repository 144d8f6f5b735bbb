"""Parts of a member, and how they are wired together."""

from __future__ import annotations

from collections.abc import Callable

from ...crypto.envelope import Envelope
from ...crypto.identity import PeerId
from ..chain.ledger import Ledger
from ..wire.checkpoint import Checkpoint
from ..wire.manifest import Manifest
from .auditor import Auditor
from .join_request import AdmissionRequest
from .lag_detector import LagDetector
from .lease import FinalityLease
from .liveness import Liveness
from .local_updates import Training
from .message_filter import MessageFilter
from .proposal import Accusations, JoinRequests
from .replica import Replica
from .round import Round
from .solo_quorum_guard import SoloQuorumGuard
from .states import MemberConditions, MemberState
from .timeouts import RoundTimeouts
from .update_collection import HeldUpdates
from .view import MemberView
from .vote_recovery import VoteRecovery

Sign = Callable[[str, bytes], Envelope]
"""(kind, body) → the signed envelope of this member."""


class MemberParts(MemberView):
    """Parts of one node's membership in a swarm. All times are seconds of any steady clock."""

    def __init__(
        self,
        *,
        manifest: Manifest,
        me: PeerId,
        sign: Sign,
        ledger: Ledger,
        now: float,
        start_number: int,
        ticket: bytes = b"",
        recall: bool = False,
    ) -> None:
        """`start_number` must be larger at each start of the node than at the one before.

        With `recall`, the member asks the others for its own earlier messages before it casts a ballot.
        """
        self._ledger = ledger
        self._me = me
        self._replica = Replica(me, manifest.rounds.snapshot_interval)
        self._timeouts = RoundTimeouts(manifest.rounds)
        self._liveness = Liveness(me, now)
        self._manifest = manifest
        self._sign = sign
        self._lease = FinalityLease(manifest.rounds.finality_lease_seconds, now)
        self._kept_final: Checkpoint | None = None
        self._admission = AdmissionRequest(ticket, now)
        self._lag_detector = LagDetector(now)
        self._joins = JoinRequests()
        self._accusations = Accusations()
        self._auditor = Auditor(me, sign)
        self._message_filter = MessageFilter(
            manifest,
            self._liveness,
            self._lag_detector,
            self._joins,
            self._accusations,
            self._auditor,
        )
        self._vote_recovery = VoteRecovery(needed=recall)
        self._held_updates = HeldUpdates()
        self._training = Training(me, overlap=manifest.rounds.overlap)
        self._solo_guard = SoloQuorumGuard(now)
        self._leaving = False
        # Whether it has announced that it has the whole of a finished run.
        self._sent_end = False
        # -inf: no decision was observed yet. Until then, the others know better what is going on.
        self._last_decision = self._last_undoubted = float("-inf")
        self._began = self._last_sent = now
        self._count = start_number << 20
        self._current = self._new_round(now)
        self._last_ready: float | None = None
        self._state: MemberState = "loading"
        self._liveness.set_members(self.members, now)

    def _enter_round(self, now: float) -> None:
        self._liveness.set_members(self.members, now)
        self._accusations.forget(self._ledger)
        self._auditor.forget(self._ledger)
        self._current = self._new_round(now)

    def _new_round(self, now: float) -> Round:
        return Round(
            manifest=self._manifest,
            ledger=self._ledger,
            me=self._me,
            liveness=self._liveness,
            timeouts=self._timeouts,
            joins=self._joins,
            accusations=self._accusations,
            auditor=self._auditor,
            solo_guard=self._solo_guard,
            began=self._began,
            last_undoubted=self._last_undoubted,
            now=now,
        )

    def _conditions(self) -> MemberConditions:
        return MemberConditions(
            expelled=self.is_expelled,
            leaving=self._leaving,
            member=self.is_member,
            loaded=self.fingerprint is not None,
            at_tip=self.at_tip,
            remembers=self._vote_recovery.complete,
            ready=self._current.ready_since is not None,
            finished=self._ledger.finished,
            outdated=self.is_outdated,
        )
