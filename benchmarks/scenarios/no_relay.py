"""The same round without a relay: every member sends its update to all others over its 10 Mbit/s.

The limit is therefore the upload: 69 s with 32 members, ten times the download.
"""

from __future__ import annotations

import argparse
from typing import Any

from scenarios import exchange
from scenarios.exchange import MEMBERS, UP


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this scenario alone."""
    exchange.add_arguments(parser, relays=None)


def measure(
    members: int | None, update_bytes: int, slower: float, congestion: str
) -> dict[str, Any]:
    """Run the scenario."""
    members = members or MEMBERS
    limit = (members - 1) * 8 * update_bytes / UP
    return exchange.run_exchange(
        members,
        relays=0,
        update_bytes=update_bytes,
        slower=slower,
        limit_seconds=limit,
        congestion=congestion,
    )
