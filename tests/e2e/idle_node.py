"""A node that does not do its work: `distro-node join …` that trains on other samples than assigned.

`python idle_node.py PYTHON -P -m distro_node.node ARGUMENTS…`: the command that would run the node
follows the script. Otherwise it is an ordinary node: it fetches, follows the chain, audits others'
work and reports the results.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace

from distro_node.node import cli
from distro_node.node.session import session
from distro_node.node.training.supervisor import TrainerSupervisor
from distro_node.protocol.member.effects import Train

_SAMPLES = 256


class IdleSupervisor(TrainerSupervisor):
    """A `TrainerSupervisor` that ignores its assignment."""

    def train(self, effect: Train) -> None:
        # Among the first samples, which are assigned to almost no member in the rounds of a test.
        first = 2 * effect.round % _SAMPLES
        others = range(first, first + len(effect.samples))
        super().train(replace(effect, samples=tuple(others)))


def main(arguments: Sequence[str]) -> None:
    """Run a node with such a supervisor."""
    session.TrainerSupervisor = IdleSupervisor
    sys.argv = ["distro-node", *arguments[arguments.index("distro_node.node") + 1 :]]
    cli.main()


if __name__ == "__main__":
    main(sys.argv[1:])
