"""The report's round with a relay that is killed when half of the bytes are transferred.

With a second relay (the usual `--relays 2`) members use that; with `--relays 1` they have only each
other, and the limit is the upload of the other half.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from scenarios import exchange
from scenarios.exchange import DOWN, MEMBERS, UP, Relay


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this scenario alone."""
    exchange.add_arguments(parser, relays=2)


def measure(
    members: int | None, update_bytes: int, slower: float, congestion: str, relays: int
) -> dict[str, Any]:
    """Run the scenario."""
    members = members or MEMBERS
    bits = 8 * update_bytes
    down = (members - 1) * bits / DOWN
    # The authors send what the dead relay held again, to the second relay or else to all members.
    limit = max(down, 2 * bits / UP) if relays > 1 else (down + (members - 1) * bits / UP) / 2

    def kill(serving: Sequence[Relay]) -> None:
        serving[0].kill()

    return exchange.run_exchange(
        members,
        relays=relays,
        update_bytes=update_bytes,
        slower=slower,
        congestion=congestion,
        limit_seconds=limit,
        midway=kill,
    )
