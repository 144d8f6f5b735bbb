"""One generation of a rank other than the first that torch's elastic launcher has started."""

from __future__ import annotations

import argparse
import logging
import os
import threading
import time
from typing import NoReturn

from ...training.torchrun import NO_STORE, NODE_ENDED, RESTART, RankAssignment
from .launch import POLL_SECONDS, LauncherStore, launch_here, local_device
from .ranks import RankLost
from .worker import RankWorker

_log = logging.getLogger(__name__)


def follow(arguments: argparse.Namespace) -> NoReturn:
    """Take part in the next generation until it is lost, then end this process. The generation's number
    is written to the descriptor `arguments.tell`."""
    launch = launch_here()
    try:
        launcher_store = LauncherStore(launch)
        found = launcher_store.next(arguments.after)
        if found is None:
            os._exit(NODE_ENDED)
        number, store, open_arguments = found
        os.write(arguments.tell, str(number).encode())
        threading.Thread(target=_watch, args=(launch, number), daemon=True).start()
        worker = RankWorker(_raise_lost, arguments.patience, launch)
        device = local_device(open_arguments["settings"]["device"], launch)
        worker.follow(store, launch.rank, launch.size, device, open_arguments)
    except RankLost as error:
        _log.info("rank %d starts again: %s", launch.rank, error)
        os._exit(RESTART)
    except RuntimeError as error:
        # The launcher with the store is gone, and this machine's launcher will end too.
        _log.warning("rank %d ends: %s", launch.rank, error)
        os._exit(NO_STORE)


def _raise_lost(reason: str, micro_batch: int | None) -> NoReturn:
    """Raise `RankLost`: only rank 0 has a node to report to."""
    raise RankLost(reason)


def _watch(launch: RankAssignment, number: int) -> None:
    """End this process when rank 0 has started a new generation or the node has ended, however long
    exchanges of its own generation would still wait."""
    try:
        # It needs a connection of its own, since the other one may be blocked.
        launcher_store = LauncherStore(launch)
        while launcher_store.generation == number and not launcher_store.node_ended:
            time.sleep(POLL_SECONDS)
        code = NODE_ENDED if launcher_store.node_ended else RESTART
    except (RankLost, RuntimeError) as error:
        _log.warning("rank %d ends: %s", launch.rank, error)
        code = NO_STORE
    os._exit(code)
