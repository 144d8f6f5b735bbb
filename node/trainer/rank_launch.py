"""Ranks that torch's elastic launcher has started, on one machine or several (`launched`).

All of them find each other through the launcher's store. Rank 0 is the node's trainer, which may be
started again at any time; each time is a *generation*. The others wait for the next one, do what it
says, and when it is lost begin again as new processes: a library that has lost a connection is not to
be relied upon. Nothing that they say to each other is encrypted or signed, so it has to stay in a
network whose machines trust each other.
"""

from __future__ import annotations

import argparse
import base64
import logging
import os
import threading
import time
from collections.abc import Mapping
from datetime import timedelta
from typing import Any, NoReturn

import msgpack
import torch
from torch.distributed.distributed_c10d import PrefixStore, Store

# Documented, though the library's own list of what it offers lacks it.
from torch.distributed import TCPStore  # isort: skip # pyright: ignore[reportPrivateImportUsage]

from ..launched import Launch, launch_of
from .errors import TrainerFailed
from .follower import NO_STORE, OVER
from .ranks import RankLost

_log = logging.getLogger(__name__)

_POLL_SECONDS = 0.5
# In which the launcher's store answers, or its machine is gone.
_STORE_SECONDS = 60.0
_GENERATION, _OVER = "generation", "over"
_AGAIN = 3


class Gathering:
    """The launcher's store, as the ranks of one start see it."""

    def __init__(self, launch: Launch) -> None:
        """Raises `RankLost`."""
        self.launch = launch
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
        self._store.set(f"{number}/open", _text(msgpack.packb(dict(opened), use_bin_type=True)))
        return self._of(number)

    def next(self, after: int) -> tuple[int, Store, dict[str, Any]] | None:
        """All others: wait for a generation behind this one; None when the node has ended."""
        while not self.is_over:
            number = self.generation
            if number > after:
                opened = _data(self._store.get(f"{number}/open"))
                return number, self._of(number), msgpack.unpackb(opened, raw=False)
            time.sleep(_POLL_SECONDS)
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


def _text(data: object) -> str:
    """As the store takes it, which knows text alone."""
    assert isinstance(data, bytes)
    return base64.b64encode(data).decode()


def _data(stored: bytes) -> bytes:
    return base64.b64decode(stored)


def launch_here() -> Launch:
    """The launch that this process is of. Raises `TrainerFailed`."""
    launch = launch_of(os.environ)
    if launch is None:
        raise TrainerFailed("internal", "torchrun has not started this process")
    return launch


def local_device(name: str, launch: Launch) -> str:
    """The device of this rank, where all were asked to take one called `name`."""
    if name == "cpu" or (name in ("auto", "all") and not torch.cuda.is_available()):
        return "cpu"
    return f"cuda:{launch.local_rank}"


def follow(arguments: argparse.Namespace) -> NoReturn:
    """Take part in the next generation, to its end or to that of this process; its number is noted in
    the file `arguments.generations`."""
    # Loaded late: it needs what is here.
    from .rank_worker import RankWorker

    launch, noted = launch_here(), arguments.generations
    try:
        gathering = Gathering(launch)
        found = gathering.next(int(noted.read_text()) if noted.exists() else 0)
        if found is None:
            os._exit(OVER)
        number, store, asked = found
        noted.write_text(str(number))
        threading.Thread(target=_watch, args=(launch, number), daemon=True).start()
        worker = RankWorker(_gives_up, arguments.patience, arguments.split, launch)
        device = local_device(asked["device"], launch)
        worker.follow(store, launch.rank, launch.size, device, asked)
    except RankLost as error:
        _log.info("rank %d begins again: %s", launch.rank, error)
        os._exit(_AGAIN)
    except RuntimeError as error:
        # The launcher of the first machine is gone, and ends this one's as well.
        _log.warning("rank %d ends: %s", launch.rank, error)
        os._exit(NO_STORE)


def end_all() -> None:
    """Tell all ranks that the node has ended; nobody may be there any more to hear it."""
    try:
        Gathering(launch_here()).end()
    except (RankLost, RuntimeError) as error:
        _log.info("the other ranks are not told: %s", error)


def _gives_up(reason: str, micro_batch: int | None) -> NoReturn:
    """Only rank 0 has a node to tell."""
    raise RankLost(reason)


def _watch(launch: Launch, number: int) -> None:
    """End this process once rank 0 has begun again, however long it would wait in its own generation."""
    code = _AGAIN
    try:
        # A connection of its own: the other one may be waiting for something.
        gathering = Gathering(launch)
        while gathering.generation == number and not gathering.is_over:
            time.sleep(_POLL_SECONDS)
    except (RankLost, RuntimeError) as error:
        _log.warning("rank %d ends: %s", launch.rank, error)
        code = NO_STORE
    os._exit(code)
