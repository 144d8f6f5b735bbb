"""The tables of metrics in `docs/reference.md`, made from the code: a node's and a bootstrap peer's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from distro_node.node.telemetry.bootstrap_metrics import BOOTSTRAP_METRICS
from distro_node.node.telemetry.families import MetricRow
from distro_node.node.telemetry.metrics import NODE_METRICS


def reference() -> str:
    """Return the tables of `docs/reference.md`: name, meaning and label values of every metric.

    A counter's name ends in `_total`, and a histogram is marked; the others are gauges.
    """
    return (
        _table(NODE_METRICS)
        + "\nA bootstrap peer serves metrics only with `--metrics-addr`: these, and `process_…`:\n\n"
        + _table(BOOTSTRAP_METRICS)
    )


def _table(rows: Sequence[MetricRow[Any]]) -> str:
    lines = ["| metric | meaning |", "|---|---|"]
    for row in rows:
        name, parts = f"{row.name}_info" if row.kind == "info" else row.name, [row.meaning]
        if row.kind == "histogram":
            parts.append("Histogram.")
        if row.label is not None:
            values = row.label.values
            label = f"`{row.label.name}`"
            parts.append(f"By {label}: {', '.join(values)}." if values else f"Label {label}.")
        lines.append(f"| `distro_{name}` | {' '.join(parts)} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(reference(), end="")
