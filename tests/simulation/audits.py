"""One simulated node's audits: what its trainer does when it is told to audit.

An audit takes about as long as three more sequences. For a re-audit the earlier parameters are
recomputed from a snapshot and the updates since: a node that does not have all of that on its disk
reports nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from distro_node.crypto.hashing import ContentId
from distro_node.protocol.member.auditor import AuditScored, ReauditDone, RunReaudit, ScoreAudit
from distro_node.protocol.member.effects import Train
from distro_node.protocol.wire.messages import AuditScore

if TYPE_CHECKING:
    from simulation.node import Node

AUDIT_SEQUENCES = 3
"""The cost of an audit, in sequences."""
_JUDGE_SECONDS = 0.02
_RETRY_SECONDS = 2.0


class Audits:
    """Audits beside a node's trainer. Its memory is lost with the process."""

    def __init__(self, node: Node) -> None:
        self._node = node
        # By round: the sample that was computed, and the size of the share that it belongs to.
        self._computed: dict[int, tuple[int, int]] = {}

    def beside(self, effect: Train) -> None:
        """Compute what is to be audited along with an update."""
        if effect.audit is not None:
            self._computed[effect.round] = effect.audit, effect.audit_share

    def judge(self, effect: ScoreAudit) -> None:
        """Report how well an update agrees with what was computed; nothing if that is lost."""
        node, found = self._node, self._computed.pop(effect.round, None)
        for old in [number for number in self._computed if number < effect.round]:
            del self._computed[old]
        said = AuditScored(effect.round, 0, 0)
        if found is not None and effect.update in node.disk.blobs:
            score = self._seen(effect.update, *found)
            half = node.swarm.scores.beginning(node.peer, effect.update, *found)
            beginning = node.halves(effect.update, half)
            said = AuditScored(effect.round, score.total, score.squares, beginning)
        node.swarm.clock.after(_JUDGE_SECONDS, node.tell, said)

    def again(self, effect: RunReaudit) -> None:
        """Recompute the earlier parameters, and audit these samples."""
        node, scores = self._node, ()
        if self._can_go_back(effect.low_audit.round) and effect.update in node.disk.blobs:
            scores = tuple(
                self._seen(effect.update, sample, effect.share_size) for sample in effect.samples
            )
        node.swarm.clock.after(_RETRY_SECONDS, node.tell, ReauditDone(effect.low_audit, scores))

    def _seen(self, update: ContentId, sample: int, share: int) -> AuditScore:
        node, scores = self._node, self._node.swarm.scores
        return node.judges(update, scores.seen(node.peer, update, sample, share))

    def _can_go_back(self, round_: int) -> bool:
        """Whether a state from before `round_` is on the disk, and the updates since."""
        node, ledger = self._node, self._node.member.view.ledger
        start = max((at for at in (-1, *node.disk.snapshots) if at < round_), default=-1)
        return all(
            entry.update in node.disk.blobs
            for number in range(start + 1, round_)
            for entry in ledger[number].record.updates
        )
