"""Construction of metrics, with label values from fixed sets."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Generic, TypeVar, get_args

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

Metric = TypeVar("Metric", Counter, Gauge, Histogram)


class Family(Generic[Metric]):
    """A metric with one label that has few values: `metrics.sent["update"].inc(size)`.

    A value outside the set counts as `other`, so that peers cannot create series. Every value has its
    series from the start, so that a rate includes the first event.
    """

    def __init__(self, metric: Metric, values: Sequence[str]) -> None:
        self._children: dict[str, Metric] = {value: metric.labels(value) for value in values}

    def __getitem__(self, value: str) -> Metric:
        return self._children.get(value, self._children["other"])


class Follower:
    """Brings counters up to totals that are counted elsewhere, such as the network's."""

    def __init__(self, family: Family[Counter]) -> None:
        self._family = family
        self._seen: dict[str, float] = {}

    def update(self, totals: Mapping[str, float]) -> None:
        """Add the increase since the last call. A total that shrank has restarted from zero."""
        for value, total in totals.items():
            seen = self._seen.get(value, 0)
            self._family[value].inc(total - seen if total >= seen else total)
            self._seen[value] = total


class Maker:
    """Base class that creates a node's metrics in `registry`."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.registry = registry

    def _unknown(self, name: str, text: str) -> Gauge:
        """Return a gauge that has no number, rather than zero, until it is set."""
        gauge = self._single(Gauge, name, text)
        gauge.set(math.nan)
        return gauge

    def _single(self, kind: type[Metric], name: str, text: str, **options: Any) -> Metric:
        return kind(f"distro_{name}", text, registry=self.registry, **options)

    def _family(
        self, kind: type[Metric], name: str, text: str, label: str, values: Any, **options: Any
    ) -> Family[Metric]:
        metric = kind(f"distro_{name}", text, [label], registry=self.registry, **options)
        return Family(metric, get_args(values))
