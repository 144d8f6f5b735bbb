"""The DisTrO report's round: 32 members at 100 Mbit/s down and 10 up, 2.8 MB updates, one relay.

The relay stands on an unshaped line. The report's own arithmetic is 6.94 s of download and 2.24 s of
upload a round; measured is the time from the first announcement until the last member holds everything.
"""

from __future__ import annotations

import argparse
from typing import Any

from scenarios.exchange import DOWN, MEMBERS, UP, UPDATE_BYTES, exchange, show


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of this scenario alone."""
    parser.add_argument("--update-bytes", type=int, default=UPDATE_BYTES, metavar="N")
    parser.add_argument("--relays", type=int, default=1, metavar="N")


def measure(
    members: int | None, update_bytes: int = UPDATE_BYTES, relays: int = 1
) -> dict[str, Any]:
    """Run the scenario."""
    members = members or MEMBERS
    bits = 8 * update_bytes
    figures = exchange(
        members,
        relays=relays,
        update_bytes=update_bytes,
        limit_seconds=max((members - 1) * bits / DOWN, bits / UP),
    )
    show(figures)
    return figures
