"""The training loss of a round, from the losses that its members state."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median

from ...protocol.wire.messages import UpdateEntry

_LEAST_DISTANCE = 1.0


def mean_loss(updates: Sequence[UpdateEntry]) -> float | None:
    """Return the mean loss over the tokens of a record, in nats per token; None without tokens.

    Nobody checks what a member states. So no member weighs more than all others together, and a loss
    that is further from the members' median than the median is from 0, and than one nat, counts as one
    at that distance.
    """
    known = [each for each in updates if each.tokens and math.isfinite(each.loss)]
    if not known:
        return None
    middle = median(each.loss for each in known)
    distance = max(abs(middle), _LEAST_DISTANCE)
    total = sum(each.tokens for each in known)
    weighted = weights = 0.0
    for each in known:
        weight = min(each.tokens, total - each.tokens) or each.tokens
        weighted += weight * min(max(each.loss, middle - distance), middle + distance)
        weights += weight
    return weighted / weights
