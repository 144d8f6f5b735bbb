"""The indexes of a swarm's chain: each is registered here or, of a feature that not every swarm has, in
`features`."""

from __future__ import annotations

from collections.abc import Iterator

from ..wire.membership import founding
from .assignments import SampleAssignments
from .beacon import Beacon
from .certified_snapshots import CertifiedSnapshots
from .chain_index import ChainIndex, ChainView, EqualVotes, StepSource, VoteSource, WholeUpdates
from .features import features_of
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
    if manifest.draws_lots:
        yield Beacon(chain)
    yield SampleAssignments(chain)
    for feature, table in features_of(manifest.features):
        yield from feature.indexes(chain, table)
    if chain.find(StepSource) is None:
        yield WholeUpdates()
    if chain.find(VoteSource) is None:
        yield EqualVotes(chain)
    yield Finality(chain)
    yield UpdateBytes(chain)
    yield VersionHistory(chain, max_version)
    yield CertifiedSnapshots()
