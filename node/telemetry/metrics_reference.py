"""The tables of `docs/reference.md`: every metric of a node and of a bootstrap peer, from the code."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .bootstrap_metrics import BOOTSTRAP_METRICS
from .families import MetricRow
from .metrics import NODE_METRICS


def reference() -> str:
    """Return the tables of `docs/reference.md`: name, type, label values and meaning of every metric."""
    return (
        _table(NODE_METRICS)
        + "\nA bootstrap peer serves metrics only with `--metrics-addr`: these, and `process_…`:\n\n"
        + _table(BOOTSTRAP_METRICS)
    )


def _table(rows: Sequence[MetricRow[Any]]) -> str:
    lines = ["| metric | type | labels | meaning |", "|---|---|---|---|"]
    for row in rows:
        # Prometheus' text format has no info type and calls it a gauge.
        info = row.kind == "info"
        name, kind = (f"{row.name}_info", "gauge") if info else (row.name, row.kind)
        label = "" if row.label is None else f"`{row.label.name}`"
        if row.label is not None and row.label.values:
            label += f": {', '.join(row.label.values)}"
        lines.append(f"| `distro_{name}` | {kind} | {label} | {row.meaning} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(reference(), end="")
