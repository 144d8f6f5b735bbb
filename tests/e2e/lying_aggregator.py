"""A node that lies as an aggregator: `distro-node join …` that sends false aggregates.

`python lying_aggregator.py PYTHON -P -m distro_node.node ARGUMENTS…`: the command that would run the
node follows the script. Otherwise it is an ordinary node. Its aggregates are well-formed and the
opposite of what follows from the sign votes, so its committee contradicts it.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from distro_node.node import cli
from distro_node.node.session import aggregator_task
from distro_node.protocol.committee.aggregate import ABSTAIN, decode_aggregate, encode_aggregate
from distro_node.protocol.committee.sections import sections
from distro_node.protocol.member.aggregation import MakeAggregate

# Private here: `_aggregate`: honest code has no seam between making an aggregate and sending it.


class LyingAggregator(aggregator_task.AggregatorTask):
    """An `AggregatorTask` that sends the opposite aggregate."""

    async def _aggregate(self, effect: MakeAggregate) -> bytes:
        body = await super()._aggregate(effect)
        if body == ABSTAIN:
            return body
        aggregate = decode_aggregate(self._layout, body)
        for signs in aggregate.update.signs:
            signs *= -1
        section = sections(self._layout, aggregate.sections)[aggregate.section]
        return encode_aggregate(section, aggregate)


def main(arguments: Sequence[str]) -> None:
    """Run a node with such an aggregator."""
    aggregator_task.AggregatorTask = LyingAggregator
    sys.argv = ["distro-node", *arguments[arguments.index("distro_node.node") + 1 :]]
    cli.main()


if __name__ == "__main__":
    main(sys.argv[1:])
