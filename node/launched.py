"""A node whose devices are in several machines: its processes are started by torch's elastic launcher.

`torchrun … -m distro_node.node join LINK` starts the same command once for each device, on all machines,
and tells each by its environment which of them it is. The first one, rank 0, is the node. Each of the
others is one rank of its trainer, and has nothing to do with the swarm's network.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from .errors import ExitCode, UserError
from .settings import Split

_WAYS = (
    "start it as docs/guides/cluster.md does it, with --rdzv-backend c10d, or without torchrun: "
    "--device all takes all GPUs of this machine"
)
# With what a process that was one of the ranks for one generation ends; with any other code it was lost.
OVER, NO_STORE, AGAIN = 0, 4, 3
_PROGRAM = (sys.executable, "-P", "-m", "distro_node.node.trainer.follower")


@dataclass(frozen=True)
class Launch:
    """Which of the launched processes this one is."""

    rank: int
    size: int
    """How many there are, on all machines."""
    local_rank: int
    """Its number on this machine."""
    local_size: int
    host: str
    port: int
    """Where the launcher's store is, by which they find each other."""
    name: str
    """Of this start: a new one each time the launcher starts all of them again."""


def launch_of(environment: Mapping[str, str]) -> Launch | None:
    """What the launcher says; None where no launcher has started this process, or for one process alone.

    Raises `UserError` (`USAGE`) for a launch that cannot be taken part in.
    """
    run = environment.get("TORCHELASTIC_RUN_ID")
    if run is None:
        return None
    try:
        found = Launch(
            rank=int(environment["RANK"]),
            size=int(environment["WORLD_SIZE"]),
            local_rank=int(environment["LOCAL_RANK"]),
            local_size=int(environment["LOCAL_WORLD_SIZE"]),
            host=environment["MASTER_ADDR"],
            port=int(environment["MASTER_PORT"]),
            name=f"{run}/{int(environment['TORCHELASTIC_RESTART_COUNT'])}",
        )
    except (KeyError, ValueError) as error:
        problem = f"torchrun has said too little, or something strange: {error}"
        raise UserError(ExitCode.USAGE, problem, _WAYS) from None
    if found.size == 1:
        return None
    if environment.get("TORCHELASTIC_USE_AGENT_STORE") != str(True):
        problem = "torchrun's rendezvous has no store that outlives a trainer"
        raise UserError(ExitCode.USAGE, problem, _WAYS)
    return found


def become_rank(data: Path, split: Split, *, confined: bool) -> NoReturn:
    """Turn this process into one of the trainer's ranks. It ends when the node does.

    `data` is the node's data directory, which all machines have in common.
    """
    folders = [(data / name).resolve() for name in ("blobs", "swarms")]
    words = [f"--split={split}", *(f"--writable={folder}" for folder in folders)]
    if not confined:
        words.append("--unconfined")
    os.execv(_PROGRAM[0], [*_PROGRAM, *words])


def end_ranks() -> None:
    """Tell the other ranks that the node has ended, and not only its trainer."""
    # A process of its own: this one never loads torch, whose store it is.
    subprocess.run([*_PROGRAM, "--over"], check=False, stdin=subprocess.DEVNULL)
