"""A swarm that has come to speak a newer version of the protocol, or will: what its members are told.

Which version it is, and from which round on, follows from its records (`protocol.chain.versions`).
"""

from __future__ import annotations

from ..protocol.chain.ledger import Ledger
from .telemetry.status import ChangeStatus
from .versions import explain_too_old


def check_version(ledger: Ledger) -> None:
    """Raise `UserError` (`VERSION`) if the swarm speaks a newer version than this program, or will in a
    moment: too soon for a part in it."""
    if not ledger.versions.soon_outdated:
        return
    change = ledger.versions.change
    if change is None:
        version, since = ledger.versions[len(ledger)].now, f"since round {len(ledger):,}"
    else:
        version, since = change.version, f"from round {change.round:,} on"
    raise explain_too_old(
        version,
        f"the swarm speaks protocol version {version} {since}, this program {ledger.versions.speaks}",
    )


def change_status(ledger: Ledger) -> ChangeStatus | None:
    """The change of version that is to come."""
    change = ledger.versions.change
    if change is None:
        return None
    spoken = change.version <= ledger.versions.speaks
    return ChangeStatus(version=change.version, round=change.round, spoken=spoken)
