"""Inputs of a record's step: the update bodies and their weights."""

from __future__ import annotations

from dataclasses import dataclass

from ..wire.messages import Record, UpdateEntry
from .chain_index import ChainView, StepSource


@dataclass(frozen=True, slots=True)
class StepBody:
    """One update body that the step needs."""

    entry: UpdateEntry
    update_weight: int
    """Its weight in the step; a body of weight 0 is not applied."""
    beginning: bytes = b""
    """The bytes with which it must begin: with committees, those that name its author's section."""

    def fits(self, body: bytes) -> bool:
        """Whether `body`, which is valid in itself, may take part in the step."""
        return body.startswith(self.beginning)


def needed_for(chain: ChainView, record: Record) -> tuple[StepBody, ...]:
    """Return the bodies for the step of a record, in its order. The record must have been checked, and
    is the next one at most."""
    beginnings = chain.index(StepSource).needed(record)
    weighted = zip(record.updates, chain.update_weights(record), strict=True)
    return tuple(
        StepBody(entry, update_weight, beginnings[entry.peer])
        for entry, update_weight in weighted
        if entry.peer in beginnings
    )
