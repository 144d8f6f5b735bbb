"""What a newcomer costs a member's rounds: its uploads of updates, alone and beside a download.

A member with 20 Mbit/s up sends a peer one update of 2.8 MB after the other, with pauses of the same
length. Then it does so again while a newcomer fetches a state from it as fast as it can.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from pathlib import Path
from typing import Any

from namespaces import Town

from . import joining
from .exchange import CONGESTION
from .join import process

_UP = 20e6
_DOWN = 1e9


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the scenario's own options."""
    parser.add_argument(
        "--congestion",
        default=CONGESTION,
        metavar="NAME",
        help="TCP's congestion control everywhere (%(default)s; bbr is the other one in use)",
    )


def measure(members: int | None, *, congestion: str = CONGESTION) -> dict[str, Any]:
    """Run the scenario; see `benchmarks/network.py`. It always has one member."""
    with tempfile.TemporaryDirectory(prefix="distro-serving-") as name:
        folder = Path(name)
        # More than can arrive in the time that the updates take.
        joining.make_state(folder, 200, 1)
        alone, _ = _run(folder, congestion, newcomer=False)
        beside, fetched = _run(folder, congestion, newcomer=True)
    limit = 8 * joining.UPDATE_BYTES / _UP
    # Other load on the machine delays single updates, so medians are compared.
    usual, slowed = statistics.median(alone), statistics.median(beside)
    print(
        f"an update of 2.8 MB at {_UP / 1e6:.0f} Mbit/s: {usual:.3f} s alone, {slowed:.3f} s beside a "
        f"newcomer ({100 * (slowed / usual - 1):+.1f} %; target of a whole round +5 %), "
        f"the line's limit {limit:.3f} s; {fetched / 1e6:.0f} MB went to the newcomer meanwhile",
        flush=True,
    )
    return {
        "members": 1,
        "congestion": congestion,
        "limit_seconds": limit,
        "measured_seconds": round(slowed, 3),
        "alone_seconds": round(usual, 3),
        "slower_percent": round(100 * (slowed / usual - 1), 2),
        "alone_each": [round(seconds, 3) for seconds in alone],
        "beside_each": [round(seconds, 3) for seconds in beside],
        "upload_bytes_max": fetched + joining.UPDATES * joining.UPDATE_BYTES,
        "download_bytes_max": fetched,
    }


def _run(folder: Path, congestion: str, *, newcomer: bool) -> tuple[list[float], int]:
    """Return the time of each update, and the bytes sent to the newcomer meanwhile."""
    with Town(["member", "other", "newcomer"], congestion) as town:
        town.shape("member", up=_UP, down=_DOWN)
        hosts = town.hosts
        with process(hosts["member"], folder, "serve", hosts["member"].address, "0") as member:
            address = member.said()["address"]
            fetch = process(hosts["newcomer"], folder, "fetch", hosts["newcomer"].address, address)
            rounds = process(hosts["other"], folder, "rounds", hosts["other"].address, address)
            if not newcomer:
                with rounds as other:
                    return _seconds(other), 0
            with fetch as visitor:
                # The newcomer is fetching.
                visitor.said()
                before = town.line_bytes("newcomer")[1]
                with rounds as other:
                    seconds = _seconds(other)
                return seconds, town.line_bytes("newcomer")[1] - before


def _seconds(other: Any) -> list[float]:
    seconds = []
    while "finished" not in (line := other.said()):
        seconds.append(line["seconds"])
    return seconds
