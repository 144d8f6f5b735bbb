"""A node whose trainers' devices have a fault: `distro-node join …` with such trainers.

`python faulty_device.py FAULT PYTHON -P -m distro_node.node ARGUMENTS…`: the words that would run the
node come after it. `trainer.faulty_trainer` has the faults.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import trio
from distro_node.node import cli

sys.path.insert(0, str(Path(__file__).parents[1]))
from trainer.faulty_trainer import command_of


def main(fault: str, arguments: Sequence[str]) -> None:
    """Be a node that starts such trainers."""
    start = trio.lowlevel.open_process

    async def start_faulty(command: Sequence[str], **options: Any) -> trio.Process:
        return await start(command_of(fault, command), **options)

    trio.lowlevel.open_process = start_faulty
    sys.argv = ["distro-node", *arguments[arguments.index("distro_node.node") + 1 :]]
    cli.main()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
