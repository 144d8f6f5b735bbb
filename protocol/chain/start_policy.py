"""Start policy: the record that a node's chain must contain, and when the chain suffices to take part.

Both an invite link and the node's own disk can name a record. The chain must contain the later of the
two, and no other record in the round of either. A node that has a chain, or is the founder, can start
without peers. A node without a chain, or with a chain that does not reach that record, waits for a peer
that has it.
"""

from __future__ import annotations

from ...crypto.identity import PeerId
from ..wire.checkpoint import Checkpoint
from ..wire.errors import ProtocolError
from .ledger import Ledger

PEER_WAIT_SECONDS = 3.0
"""Time for which a node that could start alone waits for peers."""

RETRY_SECONDS = 1.0
"""Time after which a node that found no peer with a chain retries."""


def checkpoint_of(
    linked: Checkpoint | None, known: Checkpoint | None, ledger: Ledger
) -> Checkpoint | None:
    """Return the record that the chain must contain: the later of the one that the link names (`linked`)
    and the one that is `known` to be final; None if there is neither.

    Raises `ProtocolError` (`checkpoint`) if the link contradicts the known record or the `ledger` on
    disk. The origin of a link is unknown, so nothing on disk is dropped because of it.
    """
    check_point(ledger, linked)
    if linked is None:
        return known
    if known is None or linked.round > known.round:
        return linked
    if linked.round == known.round and linked != known:
        raise _another_chain(linked)
    return known


def check_point(ledger: Ledger, point: Checkpoint | None) -> None:
    """Raise `ProtocolError` (`checkpoint`) if the ledger has another record in the round of `point`. A
    ledger that does not reach that round does not contradict it."""
    if point is None or point.round >= len(ledger):
        return
    if ledger.parent(point.round + 1) != point.record:
        raise _another_chain(point)


def has_begun(ledger: Ledger, me: PeerId) -> bool:
    """Whether this node could start alone."""
    founds = ledger.manifest.founder == me
    return ledger.anchored and (len(ledger) > 0 or founds)


def may_start(ledger: Ledger, *, begun: bool, found: bool) -> bool:
    """Whether to take part now. `begun`: the result of `has_begun` for the ledger on disk; `found`:
    whether a peer with a chain was found (`initial_sync`)."""
    return begun or (found and ledger.anchored)


def _another_chain(point: Checkpoint) -> ProtocolError:
    return ProtocolError(
        "checkpoint", f"another record of round {point.round} than the checkpoint names"
    )
