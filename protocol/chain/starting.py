"""Starting: which record a node's chain has to have, and when the chain is good enough to take part.

A link names a record, and so does the node's own disk; the chain has to have the later of the two, and
no other record in the place of either. Who has a chain, or founds one, needs nobody to start; who has
none, or one that does not reach that record, waits for somebody who has.
"""

from __future__ import annotations

from ...crypto.identity import PeerId
from ..wire.checkpoint import Checkpoint
from ..wire.errors import ProtocolError
from .ledger import Ledger

COMPANY_SECONDS = 3.0
"""What a node that could start by itself waits for others to turn up."""

AGAIN_SECONDS = 1.0
"""After which who has found nobody with a chain looks again."""


def checkpoint_of(
    linked: Checkpoint | None, known: Checkpoint | None, ledger: Ledger
) -> Checkpoint | None:
    """The record that the chain has to have: the later of the one that the link names and the one that
    is `known` to be final. Raises `ProtocolError` (`checkpoint`) if the link contradicts the other one
    or the `ledger` on the disk: whose word a link is, nobody knows, so nothing is dropped for it."""
    check_point(ledger, linked)
    if linked is None:
        return known
    if known is None or linked.round > known.round:
        return linked
    if linked.round == known.round and linked != known:
        raise _another_chain(linked)
    return known


def check_point(ledger: Ledger, point: Checkpoint | None) -> None:
    """Raise `ProtocolError` (`checkpoint`) if the ledger has another record in the place of this one.
    What it does not reach contradicts nothing."""
    if point is None or point.round >= len(ledger):
        return
    if ledger.parent(point.round + 1) != point.record:
        raise _another_chain(point)


def has_begun(ledger: Ledger, me: PeerId) -> bool:
    """Whether this node could start by itself."""
    founds = ledger.manifest.founder == me
    return ledger.anchored and (len(ledger) > 0 or founds)


def may_start(ledger: Ledger, *, begun: bool, found: bool) -> bool:
    """Whether to take part now. `begun` is what `has_begun` said of what was on the disk, `found`
    whether anybody was there who has a chain (`catching_up`)."""
    return begun or (found and ledger.anchored)


def _another_chain(point: Checkpoint) -> ProtocolError:
    return ProtocolError("checkpoint", f"not the same record of round {point.round}")
