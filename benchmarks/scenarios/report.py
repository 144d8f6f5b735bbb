"""The DisTrO report's round: 32 members at 100 Mbit/s down and 10 up, 2.8 MB updates, one relay.

The relay has an unshaped line. The report's own arithmetic is 6.94 s of download and 2.24 s of
upload per round; the measurement is the time from the first announcement until the last member has
all updates.
"""

from __future__ import annotations

import argparse
from typing import Any

from scenarios import exchange
from scenarios.exchange import DOWN, MEMBERS, UP


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this scenario alone."""
    exchange.add_arguments(parser, relays=1)


def measure(
    members: int | None, update_bytes: int, slower: float, congestion: str, relays: int
) -> dict[str, Any]:
    """Run the scenario."""
    members = members or MEMBERS
    bits = 8 * update_bytes
    return exchange.run_exchange(
        members,
        relays=relays,
        update_bytes=update_bytes,
        slower=slower,
        congestion=congestion,
        limit_seconds=max((members - 1) * bits / DOWN, bits / UP),
    )
