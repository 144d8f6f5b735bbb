"""Rules of starting: which record a chain has to have, and who may begin without others."""

from __future__ import annotations

from distro_node.protocol.chain import starting
from distro_node.protocol.chain.ledger import Ledger
from distro_node.protocol.wire.checkpoint import Checkpoint
from distro_node.protocol.wire.errors import ProtocolError

from ..chain import Chain
from .chains import checkpoint, checkpoint_is_nobodys_business, forged_chain, true_chain
from .rule import Patch, Rule


def _point(chain: Chain, round_: int) -> Checkpoint:
    return Checkpoint(round_, chain.ledger.parent(round_ + 1))


def _the_later_record_counts() -> bool:
    early, late = _point(true_chain(), 4), _point(true_chain(), 8)
    both = [
        starting.checkpoint_of(*pair, true_chain().ledger)
        for pair in ((early, late), (late, early))
    ]
    return both == [late, late]


def _the_link_counts() -> list[Patch]:
    return [(starting, "checkpoint_of", lambda linked, known, ledger: linked or known)]


def _a_link_of_another_chain_is_refused() -> bool:
    """It names the very round that is known, and one that the ledger has."""
    for known, chain in (
        (_point(true_chain(), 9), Ledger(true_chain().manifest)),
        (None, true_chain().ledger),
    ):
        try:
            starting.checkpoint_of(_point(forged_chain(), 9), known, chain)
        except ProtocolError:
            continue
        return False
    return True


def _nobody_starts_without_the_record() -> bool:
    behind = Ledger(true_chain().manifest, checkpoint=checkpoint())
    begun = starting.has_begun(behind, true_chain().manifest.founder)
    return not starting.may_start(behind, begun=begun, found=True)


RULES = (
    Rule("the later of link and disk counts", _the_later_record_counts, _the_link_counts),
    Rule(
        "a link of another chain is refused", _a_link_of_another_chain_is_refused, _the_link_counts
    ),
    Rule(
        "nobody starts without the record",
        _nobody_starts_without_the_record,
        checkpoint_is_nobodys_business,
    ),
)
