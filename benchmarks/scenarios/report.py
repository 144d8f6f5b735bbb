"""The DisTrO report's round: 32 members at 100 Mbit/s down and 10 up, 2.8 MB updates, one relay.

The relay has an unshaped line. The report's own arithmetic is 6.94 s of download and 2.24 s of
upload per round; the measurement is the time from the first announcement until the last member has
all updates. Without a relay (`--relays 0`) every member sends its update to all others, so the limit is
the upload: 69 s with 32 members. With `--relay-dies` the first relay is killed when half of the bytes
are transferred; members then use a second one, or else have only each other.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from scenarios import exchange
from scenarios.exchange import DOWN, MEMBERS, UP, Relay


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this scenario alone."""
    exchange.add_arguments(parser)
    parser.add_argument("--relays", type=int, default=1, metavar="N")
    parser.add_argument("--relay-dies", action="store_true")


def measure(
    members: int | None, update_bytes: int, slower: float, relays: int, relay_dies: bool
) -> dict[str, Any]:
    """Run the scenario."""
    members = members or MEMBERS
    bits = 8 * update_bytes
    down, all_up = (members - 1) * bits / DOWN, (members - 1) * bits / UP
    limit = max(down, bits / UP) if relays else all_up
    if relay_dies:
        # The authors send what the dead relay held again, to the second relay or else to all members.
        limit = max(down, 2 * bits / UP) if relays > 1 else (down + all_up) / 2

    def kill(serving: Sequence[Relay]) -> None:
        serving[0].kill()

    return exchange.run_exchange(
        members,
        relays=relays,
        update_bytes=update_bytes,
        slower=slower,
        limit_seconds=limit,
        midway=kill if relay_dies else None,
    )
