"""A node that grinds when it leads: `distro-node join …` that looks for a record whose id it likes.

`python grinding_leader.py PYTHON -P -m distro_node.node ARGUMENTS…`: the command that would run the
node follows the script. It varies what no voter can hold against it, which audits its record names and
whom it admits, and lets every other slot of its own pass, as if to keep its secret from the beacon.
Otherwise it is an ordinary node.
"""

from __future__ import annotations

import dataclasses
import itertools
import sys
from collections.abc import Iterator, Sequence
from typing import Any

from distro_node.node import cli
from distro_node.protocol.member import round as rounds
from distro_node.protocol.member.round_io import NOTHING
from distro_node.protocol.wire.messages import Record

# Private here: `_propose`: honest code has no seam between what a leader holds and what it names.

_FIRST_ROUND = 8
"""Before this round the beacon has no secrets to be kept."""
_TRIES = 64


def ground(record: Record) -> Record:
    """Return the variant of a record with the least id."""
    return min(itertools.islice(_variants(record), _TRIES), key=lambda each: each.id)


def _variants(record: Record) -> Iterator[Record]:
    """Yield the record without each set of its audits and admissions, small sets first."""
    varied = (*record.audits, *record.reaudits, *record.admitted)
    for size in range(len(varied) + 1):
        for gone in itertools.combinations(varied, size):
            yield dataclasses.replace(
                record,
                audits=tuple(each for each in record.audits if each not in gone),
                reaudits=tuple(each for each in record.reaudits if each not in gone),
                admitted=tuple(each for each in record.admitted if each not in gone),
            )


class GrindingRound(rounds.Round):
    """A `Round` that proposes ground records, in every other slot that it leads."""

    def _propose(self, round_input: Any, now: float) -> Any:
        if self.number >= _FIRST_ROUND and (self.number + self.consensus.slot) % 2:
            return NOTHING
        honest = rounds.compose_record
        rounds.compose_record = lambda **known: ground(honest(**known))
        try:
            return super()._propose(round_input, now)
        finally:
            rounds.compose_record = honest


def main(arguments: Sequence[str]) -> None:
    """Run a node with such rounds."""
    from distro_node.protocol.member import parts

    parts.Round = GrindingRound
    sys.argv = ["distro-node", *arguments[arguments.index("distro_node.node") + 1 :]]
    cli.main()


if __name__ == "__main__":
    main(sys.argv[1:])
