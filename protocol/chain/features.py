"""Features of chains that not every swarm has: each is registered here and nowhere else."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ..codec.exchange_size import ExchangeSize
from ..wire.work_specs import FeatureSpec
from .audits import AuditsOnChain
from .chain_index import ChainFeature
from .committees import CommitteesOnChain

FEATURES: tuple[ChainFeature, ...] = (
    CommitteesOnChain(),
    AuditsOnChain(),
)


def features_of(tables: Iterable[FeatureSpec]) -> Iterator[tuple[ChainFeature, FeatureSpec]]:
    """Yield the features with these tables (`Manifest.features`), each with its table, in order."""
    given = tuple(tables)
    for feature in FEATURES:
        for table in given:
            if isinstance(table, feature.table):
                yield feature, table


def exchange_size(tables: Iterable[FeatureSpec]) -> ExchangeSize:
    """Return how many bytes members exchange in a swarm with these tables."""
    changed = (feature.exchange_size(table) for feature, table in features_of(tables))
    return next((size for size in changed if size is not None), ExchangeSize())
