"""The tables of `docs/reference.md`: every metric of a node and of a bootstrap peer, from the code."""

from __future__ import annotations

from prometheus_client import CollectorRegistry

from .bootstrap_metrics import BootstrapMetrics
from .metrics import Metrics


def reference() -> str:
    """Return the tables of `docs/reference.md`: name, type, label values and meaning of every metric."""
    return (
        _table(Metrics(version="").registry)
        + "\nA bootstrap peer serves metrics only with `--metrics-addr`: these, and `process_…`:\n\n"
        + _table(BootstrapMetrics(version="").registry)
    )


def _table(registry: CollectorRegistry) -> str:
    lines = ["| metric | type | labels | meaning |", "|---|---|---|---|"]
    for family in registry.collect():
        if not family.name.startswith("distro_"):
            continue
        name = family.name + {"counter": "_total", "info": "_info"}.get(family.type, "")
        values: dict[str, list[str]] = {}
        for sample in family.samples:
            for label, value in sample.labels.items():
                if label != "le" and value not in values.setdefault(label, []):
                    values[label].append(value)
        labels = "; ".join(
            f"`{label}`" if family.type == "info" else f"`{label}`: {', '.join(of)}"
            for label, of in values.items()
        )
        # Prometheus' text format, which the page uses, has no info type and calls it a gauge.
        shown = "gauge" if family.type == "info" else family.type
        lines.append(f"| `{name}` | {shown} | {labels} | {family.documentation} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(reference(), end="")
