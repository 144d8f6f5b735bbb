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

# Number of labels for which there is room beside each other.
_LABELS_ABREAST = 25


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
    shown = sorted(events)
    for (round_, label), right in zip(shown, labels_right([r for r, _ in shown]), strict=True):
        axes.axvline(round_, color=_EVENT_COLOUR, linestyle="--", linewidth=1)
        # The label runs down along the line from the top, where a falling loss leaves room.
        axes.annotate(
            label,
            (round_, 0.98),
            xycoords=("data", "axes fraction"),
            xytext=(4 if right else -4, 0),
            textcoords="offset points",
            rotation=90,
            ha="left" if right else "right",
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


def labels_right(rounds: Sequence[int]) -> list[bool]:
    """Return for each event, in order, whether its label is to the right of its line: it is to the left
    where the next event's line would run through it."""
    near = max(rounds, default=0) / _LABELS_ABREAST
    return [
        not 0 < following - round_ < near
        for round_, following in zip(rounds, [*rounds[1:], float("inf")], strict=False)
    ]
