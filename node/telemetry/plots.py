"""Plots of a run. matplotlib is imported only when one is drawn, and needs no display."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

Curve = Sequence[tuple[int, float]]
"""(round, nats per token) pairs in the order of rounds."""

# Distinguishable for the colour-blind (Okabe and Ito's palette).
_TRAINING_COLOUR = "#0072B2"
_HELDOUT_COLOUR = "#D55E00"
_EVENT_COLOUR = "#555555"


def plot_losses(
    path: Path,
    *,
    training: Curve,
    heldout: Curve,
    events: Sequence[tuple[int, str]],
    title: str,
) -> None:
    """Write a PNG of 1500 × 900 pixels: both losses by round, and each event as a labelled line."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 6), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    if training:
        axes.plot(*zip(*training, strict=True), color=_TRAINING_COLOUR, label="training")
    if heldout:
        axes.plot(
            *zip(*heldout, strict=True),
            color=_HELDOUT_COLOUR,
            marker="o",
            label="held-out (text that no member trains on)",
        )
    for round_, label in events:
        axes.axvline(round_, color=_EVENT_COLOUR, linestyle="--", linewidth=1)
        # The label runs down along the line from the top, where a falling loss leaves room.
        axes.annotate(
            label,
            (round_, 0.98),
            xycoords=("data", "axes fraction"),
            xytext=(4, 0),
            textcoords="offset points",
            rotation=90,
            ha="left",
            va="top",
            fontsize=9,
            color=_EVENT_COLOUR,
        )
    axes.set_title(title)
    axes.set_xlabel("round")
    axes.set_ylabel("loss (nats per token)")
    axes.grid(alpha=0.3)
    if training or heldout:
        axes.legend(loc="lower left")
    figure.savefig(path, format="png")
