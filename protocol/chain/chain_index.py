"""Indexes of a chain: state that follows from its records, extended record by record.

A chain of decided records is the only truth, and reading all of it for each question would take too
long. So each subject (members, leaders, samples, finality, …) keeps an index with the state before
every round. `indexes` lists the indexes of a swarm, in the order in which they follow a record. A
feature that not every swarm has is an index that is only in the list of a swarm with this feature.

Indexes refer to each other by the `ChainView` that each is given: its own chain. So the indexes of a
copied chain never read those of the original.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from typing import Any, Protocol, Self, TypeVar

from ...crypto.envelope import Verify
from ...crypto.identity import PeerId
from ..codec.exchange_size import ExchangeSize
from ..wire.errors import ProtocolError
from ..wire.manifest import Manifest
from ..wire.membership import Membership, Votes
from ..wire.messages import Record, RecordId, SnapshotEntry
from ..wire.saved_state import Restorable, RestoreScope
from ..wire.work_specs import FeatureSpec

T = TypeVar("T")


class ChainView(Protocol):
    """Read access of an index, or of a check, to its chain. While the last record is being followed,
    this includes that record, and the indexes before the one that reads have followed it."""

    def __len__(self) -> int:
        """Return the number of decided rounds, which is also the number of the next round."""
        ...

    @property
    def manifest(self) -> Manifest: ...

    def record(self, round: int) -> Record:
        """Return the record of a round."""
        ...

    def parent(self, round: int) -> RecordId:
        """Return the id of the record before a round, at most the next one."""
        ...

    def membership(self, round: int) -> Membership:
        """Return the members of a round, at most the next one."""
        ...

    def votes(self, round: int) -> Votes:
        """Return the votes of each member in a round, at most the next one."""
        ...

    def update_weights(self, record: Record) -> tuple[int, ...]:
        """Return the update weights of a record in its step, in the order of its updates. An update of
        weight 0 is not applied. The record must have been checked, and is the next one at most."""
        ...

    def index(self, kind: type[T]) -> T:
        """Return the chain's index of this class. Raises `LookupError` if it has none."""
        ...

    def find(self, kind: type[T]) -> T | None:
        """Return the chain's index of this class; None if the swarm lacks this feature."""
        ...


class ChainIndex(Protocol):
    """State that follows from the records of one chain; extended by one thread."""

    def follow(self, record: Record) -> None:
        """Process the last `record` of the chain, which must have been checked."""
        ...

    def before(self, length: int, chain: ChainView) -> Self:
        """Return the state after the first `length` records, as an index of `chain`, a copy of these
        records whose earlier indexes are there already. The copy is extended independently; another
        thread may extend the original meanwhile."""
        ...

    def state(self) -> list[Any]:
        """Return the state after the last record, as plain data: as it follows from the records."""
        ...

    def restore(self, state: Any, scope: RestoreScope) -> None:
        """Take over the state of an index of the same chain (`Restorable.restore`)."""
        ...


class VoteSource(ABC):
    """The index that gives members their votes, by their audited work if work is audited; each chain has
    one. What an audit has to decide is here as without audits."""

    @abstractmethod
    def votes_in(self, round: int) -> Votes:
        """Return the votes of each member in a round, at most the next one."""

    def dismisses(self, peer: PeerId) -> bool:
        """Whether a peer loses its place from the next round on because its work failed an audit."""
        return False

    def root_due(self, snapshot: SnapshotEntry | None) -> bytes:
        """Return the Merkle root of all contributions, which the next record must contain; empty unless
        that record certifies a `snapshot` and work is audited."""
        return b""

    def check_audits(self, record: Record, verify: Verify) -> None:
        """Check the audits and re-audits of the next record. Raises `ProtocolError` (`record`,
        `audit`)."""
        if record.audits or record.reaudits:
            raise ProtocolError("audit", "audits in a swarm that does not audit work")


class StepSource(ABC):
    """The index that determines of which updates a step consists; each chain has one."""

    needs_all = True
    """Whether the step of a record needs all of its updates. If not, only a later record shows which it
    needs."""

    @abstractmethod
    def due(self, round: int) -> frozenset[PeerId]:
        """Return the members whose update is due in a round that does not begin a step, at most the next
        one."""

    @abstractmethod
    def needed(self, record: Record) -> Mapping[PeerId, bytes]:
        """Return the authors of the updates that the step of a record needs, each with the bytes with
        which its body has to begin. The record must have been checked, and is the next one at most."""


class WeightRule(ABC):
    """An index that determines update weights."""

    @abstractmethod
    def weights(self, record: Record, given: Mapping[PeerId, int]) -> Mapping[PeerId, int]:
        """Return the update weights of a record in its step, by author. `given`: the weights by the
        rules before this one. The record must have been checked, and is the next one at most."""


class ChainFeature:
    """A feature that not every swarm has, as far as the chain is concerned. Here every hook leaves the
    chain as it is. `features` lists all of them."""

    table: type[FeatureSpec]
    """The table of the manifest with which a swarm has this feature."""
    rebuilt_rounds = 0
    """How many rounds back a state may have to be rebuilt for this feature."""

    def indexes(self, chain: ChainView, table: Any) -> Iterable[ChainIndex]:
        """Return the feature's indexes of a chain without records. `table` is the manifest's."""
        return ()

    def exchange_size(self, table: Any) -> ExchangeSize | None:
        """Return how many bytes members exchange, if the feature changes this."""
        return None


class EqualVotes(VoteSource, Restorable):
    """One vote for each member, in a swarm where nothing else determines the votes."""

    def __init__(self, chain: ChainView) -> None:
        self._chain = chain

    def votes_in(self, round: int) -> Votes:
        return Votes.one_each(self._chain.membership(round))

    def follow(self, record: Record) -> None:
        pass

    def before(self, length: int, chain: ChainView) -> EqualVotes:
        return EqualVotes(chain)


class WholeUpdates(StepSource, Restorable):
    """Steps of all updates of their record, in a swarm where nothing else determines the steps."""

    def due(self, round: int) -> frozenset[PeerId]:
        return frozenset()

    def needed(self, record: Record) -> Mapping[PeerId, bytes]:
        return dict.fromkeys((entry.peer for entry in record.updates), b"")

    def follow(self, record: Record) -> None:
        pass

    def before(self, length: int, chain: ChainView) -> WholeUpdates:
        return WholeUpdates()
