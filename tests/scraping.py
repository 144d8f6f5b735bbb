"""Reading of metrics in tests, as Prometheus would read them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from distro_node.node.telemetry.counts import Durations, NodeReading
from distro_node.node.telemetry.families import registry_of
from distro_node.node.telemetry.metrics import NODE_METRICS
from distro_node.node.telemetry.status import NO_LINE, BootstrapStatus, Status
from distro_node.node.telemetry.telemetry import Telemetry
from statuses import EARLY

BOOTSTRAP = BootstrapStatus(
    version="1.2.3",
    peer="12D3KooWaaaaaaBBBBBB",
    started=0.0,
    swarms=0,
    reservations=0,
    circuits=0,
    observes=None,
    dashboard=None,
    line=NO_LINE,
)
UNBORN = replace(EARLY, node=replace(EARLY.node, version="1.2.3"), state="starting", progress=None)
"""The status of a node to which nothing has happened yet."""
NOTHING = NodeReading(status=UNBORN)


def told_by(telemetry: Telemetry, status: Status = UNBORN) -> NodeReading:
    """Return the reading of a node with this telemetry, and otherwise this status."""
    shown = replace(
        status,
        state=telemetry.state,
        training=telemetry.status(),
        scores=telemetry.scores,
        privacy=telemetry.privacy,
    )
    return NodeReading(status=shown, counts=telemetry.counts.snapshot())


def sample(reading: NodeReading, name: str, **labels: str) -> float:
    """Return one number of a scrape."""
    value = registry_of(NODE_METRICS, lambda: reading).get_sample_value(f"distro_{name}", labels)
    assert value is not None, f"no series {name}{labels}"
    return value


def series(reading: NodeReading) -> Iterator[tuple[str, dict[str, str], float]]:
    """Yield name, labels and number of all of a node's own series."""
    for row in NODE_METRICS:
        for found in row.family(reading).samples:
            yield found.name, found.labels, found.value


def durations(*seconds: float) -> Durations:
    """Return a histogram of these."""
    made = Durations((0.1, 1.0))
    for each in seconds:
        made.add(each)
    return made
