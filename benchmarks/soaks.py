"""Totals of a soak's file, which has a line of JSON for each chunk of seeds."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any


def summarise_soak(path: Path, counts: Iterable[str]) -> dict[str, Any]:
    """Add up these counts of all lines; also return the tested versions, by lines, and the failures."""
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    return {count: sum(line.get(count, 0) for line in lines) for count in counts} | {
        "commits": dict(Counter(line["commit"] for line in lines)),
        "failures": [failure for line in lines for failure in line["failures"]],
    }
