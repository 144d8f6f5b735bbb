"""The indexes of a swarm's chain: each is registered here and nowhere else."""

from __future__ import annotations

from collections.abc import Iterator

from ..wire.membership import founding
from .assignments import SampleAssignments
from .audits import AuditLedger
from .beacon import Beacon, draws_lots
from .certified_snapshots import CertifiedSnapshots
from .chain_index import ChainIndex, ChainView, EqualVotes
from .committees import CommitteeChain
from .finality import Finality
from .leaders import LeaderHistory
from .memberships import MembershipHistory, PastMembers
from .record_ids import RecordIds
from .update_bytes import UpdateBytes
from .versions import VersionHistory


def new_indexes(chain: ChainView, max_version: int) -> Iterator[ChainIndex]:
    """Yield the indexes of a chain without records, in the order in which they follow a record: each
    after those whose new state it reads. `max_version`: the highest protocol version that this program
    supports."""
    manifest = chain.manifest
    yield MembershipHistory(founding(manifest.founder))
    yield PastMembers(manifest.founder)
    yield RecordIds(manifest.swarm)
    yield LeaderHistory(chain)
    if draws_lots(manifest):
        yield Beacon(chain)
    yield SampleAssignments(chain)
    if manifest.committees is not None:
        yield CommitteeChain(chain, manifest.committees)
    if manifest.audits is not None:
        yield AuditLedger(chain, manifest.audits)
    else:
        yield EqualVotes(chain)
    yield Finality(chain)
    yield UpdateBytes(chain)
    yield VersionHistory(chain, max_version)
    yield CertifiedSnapshots()
