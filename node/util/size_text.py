"""Numbers of bytes, as people read them."""

from __future__ import annotations


def size_text(count: float) -> str:
    """Return a number of bytes for people: three digits and a unit, `12.3 kB`."""
    for unit in ("B", "kB", "MB", "GB"):
        # A number that would round up to 1000 is shown in the next unit.
        if count < 999.5:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.1f} TB"
