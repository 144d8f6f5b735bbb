"""A change of the swarm to a newer protocol version, done or scheduled, as shown to its members.

The version and the round of the change follow from the swarm's records (`protocol.chain.versions`).
"""

from __future__ import annotations

from ...protocol.chain.ledger import Ledger
from ..telemetry.status import ChangeStatus
from ..util.protocol_version import explain_too_old


def check_version(ledger: Ledger) -> None:
    """Raise `UserError` (`VERSION`) if the swarm uses a newer version than this program, or will so soon
    that joining makes no sense."""
    if not ledger.versions.soon_outdated:
        return
    change = ledger.versions.change
    if change is None:
        version, since = ledger.versions[len(ledger)].now, f"since round {len(ledger):,}"
    else:
        version, since = change.version, f"from round {change.round:,} on"
    raise explain_too_old(
        version,
        f"the swarm uses protocol version {version} {since}, this program {ledger.versions.max_version}",
    )


def change_status(ledger: Ledger) -> ChangeStatus | None:
    """Return the scheduled change of version; None if there is none."""
    change = ledger.versions.change
    if change is None:
        return None
    supported = change.version <= ledger.versions.max_version
    return ChangeStatus(version=change.version, round=change.round, supported=supported)
