"""Ranks that torch's elastic launcher has started, on one machine or several (`torchrun`).

The ranks find each other through the launcher's store. Rank 0 is the node's trainer, which may be
restarted at any time; each start is a *generation*. The other ranks wait for the next generation and
carry out its requests. When a generation is lost, they start again as new processes, because a library
that has lost a connection cannot be relied upon. A rank that starts again tells rank 0, which may still
be waiting for its connection. The ranks' traffic is neither encrypted nor signed, so
it must stay in a network whose machines trust each other.
"""

from __future__ import annotations

import base64
import logging
import os
import threading
import time
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any, NoReturn

import torch
from torch.distributed.distributed_c10d import PrefixStore, Store

# Documented, though missing from the library's own list of exports.
from torch.distributed import TCPStore  # isort: skip # pyright: ignore[reportPrivateImportUsage]

from ...training.errors import TrainerFailed
from ...training.torchrun import RankAssignment, launch_of
from .processes import RankSupervision
from .ranks import RankLost, pack, unpack

_log = logging.getLogger(__name__)

POLL_SECONDS = 0.5
"""How often a rank checks for a new generation."""
# If the launcher's store does not answer within this time, it counts as gone.
_STORE_SECONDS = 60.0
_GENERATION, _NODE_ENDED = "generation", "over"


class LauncherStore:
    """The launcher's store, shared by the ranks of one launch."""

    def __init__(self, launch: RankAssignment) -> None:
        """Connect to the store. Raises `RankLost`."""
        try:
            store = TCPStore(
                launch.host,
                launch.port,
                is_master=False,
                timeout=timedelta(seconds=_STORE_SECONDS),
            )
        except RuntimeError as error:
            raise RankLost(f"the launcher's store cannot be reached: {error}") from None
        self._store = PrefixStore(f"distro-node/{launch.name}", store)
        self._rank = launch.rank

    def begin(self, open_arguments: Mapping[str, Any]) -> tuple[int, Store]:
        """Start a new generation and return its number and its store. Only rank 0 calls this.

        `open_arguments` are the arguments of the trainer's request `open`; every rank of the generation
        opens the model with them (`RankWorker`).
        """
        number = self._store.add(_GENERATION, 1)
        # The store's interface takes values as text.
        self._store.set(f"{number}/open", base64.b64encode(pack(dict(open_arguments))).decode())
        return number, self._generation_store(number)

    def next(self, after: int) -> tuple[int, Store, dict[str, Any]] | None:
        """Wait for a generation after number `after`; return its number, its store and the arguments of
        `begin`, or None if the node has ended. All ranks except rank 0 call this.

        `after` is the last generation that this rank took part in, or 0; rank 0 is told that the rank is
        no longer in it.
        """
        if after > 0:
            self._store.set(f"{after}/left", str(self._rank))
        while not self.node_ended:
            number = self.generation
            if number > after:
                open_arguments = base64.b64decode(self._store.get(f"{number}/open"))
                return number, self._generation_store(number), unpack(open_arguments)
            time.sleep(POLL_SECONDS)
        return None

    @property
    def generation(self) -> int:
        """Number of the newest generation; 0 before the first."""
        return self._store.add(_GENERATION, 0)

    def left(self, number: int) -> int | None:
        """Return a rank that took part in generation `number` and has ended, or None."""
        key = f"{number}/left"
        return int(self._store.get(key)) if self._store.check([key]) else None

    @property
    def node_ended(self) -> bool:
        """Whether the node has ended."""
        return self._store.check([_NODE_ENDED])

    def end(self) -> None:
        """Announce that the node has ended."""
        self._store.set(_NODE_ENDED, "1")

    def _generation_store(self, number: int) -> Store:
        return PrefixStore(f"{number}", self._store)


class LaunchedRanks(RankSupervision):
    """The ranks that the launcher has started, on any machine."""

    def __init__(self, launch: RankAssignment, end: Callable[[str, bool], NoReturn]) -> None:
        super().__init__(end)
        self._launch = launch

    def start(self, open_arguments: Mapping[str, Any]) -> Store:
        """Start a new generation, watch its ranks, and return its store."""
        try:
            number, store = LauncherStore(self._launch).begin(open_arguments)
        except RankLost as error:
            self.lost(str(error))
        threading.Thread(target=self._watch, args=(number,), daemon=True).start()
        return store

    def _watch(self, number: int) -> None:
        """Give up the generation when a rank has left it. Rank 0 itself may not notice: it waits for a
        connection to that rank for as long as the slowest disk may take."""
        try:
            # It needs a connection of its own, since the other one may be blocked.
            launcher_store = LauncherStore(self._launch)
            while (rank := launcher_store.left(number)) is None:
                time.sleep(POLL_SECONDS)
        except (RankLost, RuntimeError) as error:
            # The launcher with the store is gone, and this machine's launcher will end too.
            _log.warning("the other ranks are no longer watched: %s", error)
            return
        self.lost(f"the process of rank {rank} has ended")


def launch_here() -> RankAssignment:
    """Return this process's place in its launch. Raises `TrainerFailed` (`internal`) if it has none."""
    launch = launch_of(os.environ)
    if launch is None:
        raise TrainerFailed("internal", "torchrun has not started this process")
    return launch


def local_device(name: str, launch: RankAssignment) -> str:
    """Return this rank's device, given the `name` of the device that the owner chose for all ranks."""
    if name == "cpu" or (name == "auto" and not torch.cuda.is_available()):
        return "cpu"
    return f"cuda:{launch.local_rank}"


def end_all() -> None:
    """Announce to all ranks that the node has ended. If they have ended already, only log that."""
    try:
        LauncherStore(launch_here()).end()
    except (RankLost, RuntimeError) as error:
        _log.info("the other ranks are not notified: %s", error)
