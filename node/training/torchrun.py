"""A node with devices in several machines: torch's elastic launcher starts its processes.

`torchrun … -m distro_node.node join LINK` starts the same command once per device on all machines, and
gives each process its rank in the environment. Rank 0 is the node. Each other process is one rank of the
node's trainer and does not touch the swarm's network.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from ..errors import ExitCode, UserError

_HINT = (
    "start it as docs/guides/cluster.md describes, with --rdzv-backend c10d, or without torchrun: "
    "--device all takes all GPUs of this machine"
)
# Exit codes of a rank's process after one generation (`ranks/following`). NODE_ENDED: the node has
# ended. NO_STORE: the launcher's store cannot be reached. RESTART, or any other code: a new process
# takes part in the next generation.
NODE_ENDED, NO_STORE, RESTART = 0, 4, 3
_RANK_COMMAND = (sys.executable, "-P", "-m", "distro_node.node.trainer.ranks.elastic_rank")


@dataclass(frozen=True)
class RankAssignment:
    """A launched process's place among the others."""

    rank: int
    size: int
    """Number of processes on all machines."""
    local_rank: int
    """The process's number on this machine."""
    local_size: int
    """Number of processes on this machine."""
    host: str
    port: int
    """Port, on `host`, of the launcher's store, through which the processes find each other."""
    name: str
    """Name of this start: it changes each time the launcher restarts all processes."""


def launch_of(environment: Mapping[str, str]) -> RankAssignment | None:
    """Read the launcher's variables; return None if no launcher started this process, or if it started
    a single one.

    Raises `UserError` (`USAGE`) if variables are missing or invalid, or if the launcher has no store
    that outlives a trainer.
    """
    run = environment.get("TORCHELASTIC_RUN_ID")
    if run is None:
        return None
    try:
        assignment = RankAssignment(
            rank=int(environment["RANK"]),
            size=int(environment["WORLD_SIZE"]),
            local_rank=int(environment["LOCAL_RANK"]),
            local_size=int(environment["LOCAL_WORLD_SIZE"]),
            host=environment["MASTER_ADDR"],
            port=int(environment["MASTER_PORT"]),
            name=f"{run}/{int(environment['TORCHELASTIC_RESTART_COUNT'])}",
        )
    except (KeyError, ValueError) as error:
        problem = f"torchrun's environment variables are missing or invalid: {error}"
        raise UserError(ExitCode.USAGE, problem, _HINT) from None
    if assignment.size == 1:
        return None
    if environment.get("TORCHELASTIC_USE_AGENT_STORE") != str(True):
        problem = "torchrun's rendezvous has no store that outlives a trainer"
        raise UserError(ExitCode.USAGE, problem, _HINT)
    return assignment


def become_rank(data: Path, *, confined: bool) -> NoReturn:
    """Turn this process into one of the trainer's ranks. It ends when the node does.

    `data` is the node's data directory, which all machines share.
    """
    folders = [(data / name).resolve() for name in ("blobs", "swarms")]
    arguments = [f"--writable={folder}" for folder in folders]
    if not confined:
        arguments.append("--unconfined")
    os.execv(_RANK_COMMAND[0], [*_RANK_COMMAND, *arguments])


def end_ranks() -> None:
    """Tell the other ranks that the node has ended, and not just its trainer."""
    # Runs in a process of its own, because the store is torch's and this process never loads torch.
    subprocess.run([*_RANK_COMMAND, "--over"], check=False, stdin=subprocess.DEVNULL)
