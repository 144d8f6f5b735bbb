"""A node that does not do its work: `distro-node join …` that trains on other samples than it is dealt.

`python idle_node.py PYTHON -P -m distro_node.node ARGUMENTS…`: what would run the node is put behind it.
All else is a node as it is: it fetches, follows the chain, looks at others' work and says what it saw.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace

from distro_node.node import cli, stay
from distro_node.node.trainer.trainer_supervisor import TrainerSupervisor
from distro_node.protocol.member.effects import Train

_SAMPLES = 256


class IdleSupervisor(TrainerSupervisor):
    """A `TrainerSupervisor` that takes what it likes."""

    def train(self, effect: Train) -> None:
        # Among the first samples, which nearly nobody is dealt in the rounds of a test.
        first = 2 * effect.round % _SAMPLES
        others = range(first, first + len(effect.samples))
        super().train(replace(effect, samples=tuple(others)))


def main(arguments: Sequence[str]) -> None:
    """Be a node with such a supervisor."""
    stay.TrainerSupervisor = IdleSupervisor
    sys.argv = ["distro-node", *arguments[arguments.index("distro_node.node") + 1 :]]
    cli.main()


if __name__ == "__main__":
    main(sys.argv[1:])
