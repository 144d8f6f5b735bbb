"""A node that censors when it leads: `distro-node join …` whose records name only its own update.

`python censoring_leader.py PYTHON -P -m distro_node.node ARGUMENTS…`: the command that would run the
node follows the script. Otherwise it is an ordinary node, and it votes for its own records.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Sequence
from typing import Any

from distro_node.node import cli
from distro_node.protocol.member import round as rounds
from distro_node.protocol.wire.messages import Record

# Private here: `_propose`: honest code has no seam between what a leader holds and what it names.

_FIRST_ROUND = 4
"""Before this round there are not always several updates."""


class CensoringRound(rounds.Round):
    """A `Round` that proposes records with only its own update."""

    def _propose(self, round_input: Any, now: float) -> Any:
        honest = rounds.compose_record

        def censored(**known: Any) -> Record:
            record = honest(**known)
            own = tuple(entry for entry in record.updates if entry.peer == self._me)
            lies = own and record.round >= _FIRST_ROUND
            return dataclasses.replace(record, updates=own) if lies else record

        rounds.compose_record = censored
        try:
            return super()._propose(round_input, now)
        finally:
            rounds.compose_record = honest


def main(arguments: Sequence[str]) -> None:
    """Run a node with such rounds."""
    from distro_node.protocol.member import parts

    parts.Round = CensoringRound
    sys.argv = ["distro-node", *arguments[arguments.index("distro_node.node") + 1 :]]
    cli.main()


if __name__ == "__main__":
    main(sys.argv[1:])
