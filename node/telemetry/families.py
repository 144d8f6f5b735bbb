"""Metrics as rows of a table: name, type, meaning, label values, and how a reading gives the value.

One row is everything that a metric needs. No metric is kept up to date between scrapes: a scrape takes
one reading and renders all rows from it. Label values come from the rows' fixed sets, so that no peer
can create a series; every series exists from the start, so that a rate includes the first event.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeVar, get_args

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from .counts import Durations

T = TypeVar("T")

MetricKind = Literal["counter", "gauge", "histogram", "info"]


@dataclass(frozen=True, kw_only=True)
class MetricLabel:
    """The label of a metric, and all of its values."""

    name: str
    values: tuple[str, ...] = ()
    """The last one is `other`, which stands for every value that is not listed. Empty for an `info`
    metric, whose value is a fact about the program."""
    missing: float = 0.0
    """The number shown for a label value for which a reading has none."""


@dataclass(frozen=True)
class MetricRow(Generic[T]):
    """A metric, and how to get its value from a reading."""

    kind: MetricKind
    name: str
    """Without the prefix `distro_`."""
    meaning: str
    read: Callable[[T], Any]
    """Returns a number (None if it is unknown), or `Durations` for a histogram; with a label, a mapping
    from the label's values to numbers or `Durations`."""
    label: MetricLabel | None = None

    def family(self, reading: T) -> Metric:
        """Return the metric with its samples."""
        name, found = f"distro_{self.name}", self.read(reading)
        if self.kind == "info":
            return InfoMetricFamily(name, self.meaning, value=found)
        label = self.label
        labels = () if label is None else (label.name,)
        samples = [((), found)] if label is None else _samples(label, found)
        if self.kind == "histogram":
            histogram = HistogramMetricFamily(name, self.meaning, labels=labels)
            for values, durations in samples:
                histogram.add_metric(values, _buckets(durations), durations.total)
            return histogram
        kinds = {"counter": CounterMetricFamily, "gauge": GaugeMetricFamily}
        family = kinds[self.kind](name, self.meaning, labels=labels)
        for values, number in samples:
            family.add_metric(values, math.nan if number is None else number)
        return family


def _samples(label: MetricLabel, found: Mapping[str, Any]) -> Iterator[tuple[tuple[str, ...], Any]]:
    *known, other = label.values
    for value in known:
        yield (value,), found.get(value, label.missing)
    rest = [number for value, number in found.items() if value not in known]
    yield (other,), rest[0] if len(rest) == 1 else sum(rest) if rest else label.missing


def _buckets(durations: Durations) -> list[tuple[str, float]]:
    bounds = map(floatToGoString, durations.bounds)
    return [*zip(bounds, durations.cumulative(), strict=True)]


def values_of(name: str, values: Any, missing: float = 0.0) -> MetricLabel:
    """Return a label with the values of a `Literal` type."""
    return MetricLabel(name=name, values=get_args(values), missing=missing)


class TableCollector(Collector, Generic[T]):
    """Collector that takes one reading per scrape and renders the rows from it."""

    def __init__(self, rows: Sequence[MetricRow[T]], read: Callable[[], T]) -> None:
        self._rows = rows
        self._read = read

    def describe(self) -> Iterable[Metric]:
        """Return nothing, because a reading may not be possible yet; tests check the names instead."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """Take a reading and yield all metrics."""
        reading = self._read()
        for row in self._rows:
            yield row.family(reading)


def registry_of(rows: Sequence[MetricRow[T]], read: Callable[[], T]) -> CollectorRegistry:
    """Return a registry with these metrics and the process's statistics.

    It is not the client library's global registry, because libp2p puts counters into that one with a
    label per peer, an unbounded set.
    """
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    registry.register(TableCollector(rows, read))
    return registry
