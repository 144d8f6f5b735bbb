"""Ranks that torch's elastic launcher has started, on one machine or several (`launched`).

All of them find each other through the launcher's store. Rank 0 is the node's trainer, which may be
started again at any time; each time is a *generation*. The others wait for the next one, do what it
says, and when it is lost begin again as new processes: a library that has lost a connection is not to
be relied upon. Nothing that they say to each other is encrypted or signed, so it has to stay in a
network whose machines trust each other.
"""

from __future__ import annotations

import base64
import logging
import os
import time
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import torch
from torch.distributed.distributed_c10d import PrefixStore, Store

# Documented, though the library's own list of what it offers lacks it.
from torch.distributed import TCPStore  # isort: skip # pyright: ignore[reportPrivateImportUsage]

from ..launched import Launch, launch_of
from .errors import TrainerFailed
from .ranks import RankLost, pack, unpack

_log = logging.getLogger(__name__)

POLL_SECONDS = 0.5
"""How often a rank looks for a new generation."""
# In which the launcher's store answers, or its machine is gone.
_STORE_SECONDS = 60.0
_GENERATION, _OVER = "generation", "over"


class Gathering:
    """The launcher's store, as the ranks of one start see it."""

    def __init__(self, launch: Launch) -> None:
        """Raises `RankLost`."""
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

    def begin(self, opened: Mapping[str, Any]) -> Store:
        """Rank 0: begin a new generation, in which all ranks `open` with these arguments.

        Returns its store.
        """
        number = self._store.add(_GENERATION, 1)
        # The store's own word for a value is a text.
        self._store.set(f"{number}/open", base64.b64encode(pack(dict(opened))).decode())
        return self._of(number)

    def next(self, after: int) -> tuple[int, Store, dict[str, Any]] | None:
        """All others: wait for a generation behind this one; None when the node has ended."""
        while not self.is_over:
            number = self.generation
            if number > after:
                opened = base64.b64decode(self._store.get(f"{number}/open"))
                return number, self._of(number), unpack(opened)
            time.sleep(POLL_SECONDS)
        return None

    @property
    def generation(self) -> int:
        """The newest one; 0 before the first."""
        return self._store.add(_GENERATION, 0)

    @property
    def is_over(self) -> bool:
        """Whether the node has ended."""
        return self._store.check([_OVER])

    def end(self) -> None:
        """The node has ended."""
        self._store.set(_OVER, "1")

    def _of(self, number: int) -> Store:
        return PrefixStore(f"{number}", self._store)


def launch_here() -> Launch:
    """The launch that this process is of. Raises `TrainerFailed`."""
    launch = launch_of(os.environ)
    if launch is None:
        raise TrainerFailed("internal", "torchrun has not started this process")
    return launch


def local_device(name: str, launch: Launch) -> str:
    """The device of this rank, where all were asked to take one called `name`."""
    if name == "cpu" or (name == "auto" and not torch.cuda.is_available()):
        return "cpu"
    return f"cuda:{launch.local_rank}"


def end_all() -> None:
    """Tell all ranks that the node has ended; nobody may be there any more to hear it."""
    try:
        Gathering(launch_here()).end()
    except (RankLost, RuntimeError) as error:
        _log.info("the other ranks are not told: %s", error)
