"""The inputs of a step: the bodies that a record counts, read from disk."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ...protocol.chain.step_inputs import StepBody
from ..storage.blob_store import BlobStore


@dataclass(frozen=True)
class StepInputs:
    """Bodies with their update weights."""

    bodies: list[bytes]
    update_weights: list[int]


def counted_bodies(store: BlobStore, needed: Sequence[StepBody]) -> StepInputs | None:
    """Return the needed bodies that fit; None if one of them is missing on this disk. On arrival it was
    checked that a body decodes; whether it is for the expected section (`StepBody.fits`) is checked only
    here, and every member leaves out the same bodies."""
    found = StepInputs([], [])
    for each in needed:
        body = store.get(each.entry.update)
        if body is None:
            return None
        if each.fits(body):
            found.bodies.append(body)
            found.update_weights.append(each.update_weight)
    return found
