"""The loss by round for a model card: from the records, and as this node measured it."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from ...protocol.chain.ledger import Ledger
from ..telemetry.mean_loss import mean_loss

CURVE_NAME = "loss.svg"
"""The file in an export that shows the curve."""
# Points of a line: more are not seen, and a run may have a million rounds.
_MOST_POINTS = 200
_WIDTH, _HEIGHT, _LEFT, _BOTTOM, _EDGE = 720, 320, 60, 40, 20
_TRAINING, _HELDOUT = "#888888", "#1f6fb2"

Curve = Sequence[tuple[int, float]]
"""Rounds and losses, in the order of rounds."""


def training_losses(ledger: Ledger, last: int) -> list[tuple[int, float]]:
    """Return, for each round up to `last`, the mean loss that members announced for its samples."""
    losses = ((each, mean_loss(ledger[each].record.updates)) for each in range(1, last + 1))
    return [(round_, loss) for round_, loss in losses if loss is not None]


def thinned(curve: Curve) -> list[tuple[int, float]]:
    """Return at most 200 points: means of as many neighbours, at the last one's round."""
    size = max(1, -(-len(curve) // _MOST_POINTS))
    groups = [curve[start : start + size] for start in range(0, len(curve), size)]
    return [(group[-1][0], sum(loss for _, loss in group) / len(group)) for group in groups]


def curve_image(training: Curve, heldout: Curve, unit: str) -> str | None:
    """Return both curves as SVG; None if neither has two points."""
    points = [*training, *heldout]
    if max(len(training), len(heldout)) < 2:
        return None
    last = max(round_ for round_, _ in points)
    low, high = min(loss for _, loss in points), max(loss for _, loss in points)
    room = (high - low) or abs(high) or 1.0
    low, high = low - room / 20, high + room / 20

    def x(round_: float) -> float:
        return round(_LEFT + (_WIDTH - _LEFT - _EDGE) * round_ / last, 1)

    def y(loss: float) -> float:
        return round(_EDGE + (_HEIGHT - _EDGE - _BOTTOM) * (high - loss) / (high - low), 1)

    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" '
        'font-family="sans-serif" font-size="12">',
        f"<title>Loss by round, in {unit}</title>",
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="white"/>',
    ]
    for step in range(5):
        loss, round_ = low + (high - low) * step / 4, last * step / 4
        lines += [
            f'<path d="M{_LEFT} {y(loss)}H{_WIDTH - _EDGE}" stroke="#dddddd"/>',
            f'<text x="{_LEFT - 6}" y="{y(loss) + 4}" text-anchor="end">{loss:.3g}</text>',
            f'<text x="{x(round_)}" y="{_HEIGHT - _BOTTOM + 18}" text-anchor="middle">'
            f"{round_:,.0f}</text>",
        ]
    for curve, colour in ((training, _TRAINING), (heldout, _HELDOUT)):
        placed = [f"{x(round_)},{y(loss)}" for round_, loss in curve]
        lines += [
            f'<path d="M{a}L{b}" stroke="{colour}" stroke-width="2"/>' for a, b in pairwise(placed)
        ]
        # A single measurement is a dot.
        lines += [
            f'<circle cx="{place.split(",")[0]}" cy="{place.split(",")[1]}" r="3" fill="{colour}"/>'
            for place in placed
            if len(placed) == 1 or colour == _HELDOUT
        ]
    middle = (_LEFT + _WIDTH) // 2
    lines += [
        f'<text x="{middle}" y="{_HEIGHT - 6}" text-anchor="middle">round</text>',
        f'<text x="{_WIDTH - _EDGE}" y="14" text-anchor="end">loss in {unit}: '
        f'<tspan fill="{_TRAINING}">training</tspan>, '
        f'<tspan fill="{_HELDOUT}">held out</tspan></text>',
        "</svg>",
    ]
    return "\n".join(lines) + "\n"
