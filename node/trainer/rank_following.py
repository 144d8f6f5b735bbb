"""One generation of a rank that torch's elastic launcher has started, behind the first."""

from __future__ import annotations

import argparse
import logging
import os
import threading
import time
from typing import NoReturn

from ..launched import AGAIN, NO_STORE, OVER, Launch
from .rank_launch import POLL_SECONDS, Gathering, launch_here, local_device
from .rank_worker import RankWorker
from .ranks import RankLost

_log = logging.getLogger(__name__)


def follow(arguments: argparse.Namespace) -> NoReturn:
    """Take part in the next generation, to its end or to that of this process; its number is told to
    the descriptor `arguments.tell`."""
    launch = launch_here()
    try:
        gathering = Gathering(launch)
        found = gathering.next(arguments.after)
        if found is None:
            os._exit(OVER)
        number, store, asked = found
        os.write(arguments.tell, str(number).encode())
        threading.Thread(target=_watch, args=(launch, number), daemon=True).start()
        worker = RankWorker(_gives_up, arguments.patience, arguments.split, launch)
        device = local_device(asked["device"], launch)
        worker.follow(store, launch.rank, launch.size, device, asked)
    except RankLost as error:
        _log.info("rank %d begins again: %s", launch.rank, error)
        os._exit(AGAIN)
    except RuntimeError as error:
        # The launcher of the first machine is gone, and ends this one's as well.
        _log.warning("rank %d ends: %s", launch.rank, error)
        os._exit(NO_STORE)


def _gives_up(reason: str, micro_batch: int | None) -> NoReturn:
    """Only rank 0 has a node to tell."""
    raise RankLost(reason)


def _watch(launch: Launch, number: int) -> None:
    """End this process once rank 0 has begun again, however long it would wait in its own generation."""
    try:
        # A connection of its own: the other one may be waiting for something.
        gathering = Gathering(launch)
        while gathering.generation == number and not gathering.is_over:
            time.sleep(POLL_SECONDS)
        code = OVER if gathering.is_over else AGAIN
    except (RankLost, RuntimeError) as error:
        _log.warning("rank %d ends: %s", launch.rank, error)
        code = NO_STORE
    os._exit(code)
