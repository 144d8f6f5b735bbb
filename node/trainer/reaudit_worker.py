"""A re-audit: recomputing a share that another member's audit scored low, some rounds later.

The session holds the parameters from which the update was made, and is used for nothing else. From
the gradient of an audited sample that of samples which were not assigned to the audited member is
subtracted. The second moment is the auditor's own if it has one; otherwise it is computed from those
other samples.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from ...protocol.audit.sign_score import SignSums
from ...protocol.codec.update import decode_update
from ...protocol.wire.errors import ProtocolError
from ..training.errors import TrainerFailed
from .audit_score import at_positions, coefficient_changes, signs_agreement
from .optimizer.mixed_precision import all_finite
from .training_session import TrainingSession


def run_reaudit(
    session: TrainingSession,
    round_number: int,
    body: bytes,
    samples: Sequence[int],
    others: Sequence[int],
    share: int,
) -> list[SignSums]:
    """Return how well an update of this round agrees with each of these samples, in order.

    `body` is the update. `samples` are some of the `share` samples that were assigned to its author;
    `others`, at least one, were not assigned to it. Raises `TrainerFailed`, also if `body` is not an
    update.
    """
    try:
        update = decode_update(session.layout, body)
    except ProtocolError as error:
        raise TrainerFailed("internal", f"the audited update does not decode: {error}") from None
    if not session.optimizer.steps:
        _initialise_second_moment(session, round_number, others)
    session.computation.gradient(round_number, others)
    own = session.part.gradients()
    agreements = []
    for sample in samples:
        # This leaves `own` unchanged: the parameters get new gradient tensors.
        session.computation.gradient(round_number, [sample])
        changes = coefficient_changes(
            [session.part.gradients()],
            own,
            share,
            session.part.layout,
            session.manifest.optimizer,
            session.optimizer,
        )
        agreements.append(
            signs_agreement(update, at_positions(update, (table for (table,) in changes)))
        )
    return agreements


def _initialise_second_moment(
    session: TrainingSession, round_number: int, others: Sequence[int]
) -> None:
    """Initialise an auditor's empty second moment from these samples, one by one. A gradient that is
    not finite is left out, because it would stay in the second moment for ever."""
    for sample in others:
        loss, _ = session.computation.gradient(round_number, [sample])
        gradients = session.part.gradients()
        if session.part.everywhere(math.isfinite(loss) and all_finite(gradients)):
            session.optimizer.accumulate(gradients)
