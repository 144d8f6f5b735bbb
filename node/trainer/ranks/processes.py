"""The processes of the ranks other than the first, on rank 0's machine: started, watched and ended.

They are forked from rank 0 after it has loaded torch and before it has touched a device, so they
start at once and share the libraries' memory. All of them live and die with rank 0: when one ends,
all do, and the supervisor restarts them together.
"""

from __future__ import annotations

import contextlib
import logging
import os
import tempfile
import threading
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import NoReturn

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import Store

from ...training.errors import TrainerFailed
from ...util.operating_system import IS_LINUX, by_signal, end_with_parent, fork
from ..device import choose_device
from .ranks import RankLost, RankOutOfMemory, Ranks, open_ranks

_log = logging.getLogger(__name__)

# When rank 0 cannot reach another rank, it waits this long for the report that the rank's process
# has ended, which is more informative than a closed connection.
_DEATH_SECONDS = 2.0

# The exit code of a rank whose device ran out of memory while all computed together.
_NO_MEMORY = 3

_ENDED_BY = by_signal({"SIGKILL": " (out of memory?)"})


class RankSupervision:
    """Rank 0's view of the other ranks: when one is lost, all end. `end` ends this process; it is given
    the reason, and whether memory ran out."""

    def __init__(self, end: Callable[[str, bool], NoReturn]) -> None:
        self._end = end
        self._ending = threading.Lock()

    def lost(self, reason: str) -> NoReturn:
        """End all ranks, because one cannot be reached."""
        self._give_up(f"the devices of this node lost contact with each other: {reason}")

    def out_of_memory(self, reason: str) -> NoReturn:
        """End all ranks, because rank 0 has no memory left for the joint computation."""
        self._give_up(f"its rank 0 ran out of memory: {reason}", out_of_memory=True)

    def _give_up(self, reason: str, *, out_of_memory: bool = False) -> NoReturn:
        # One reason is enough, so a second caller waits here for the end. When this process ends, the
        # kernel kills the processes that it has forked, even stopped ones.
        self._ending.acquire()
        self._end(reason, out_of_memory)


class RankProcesses(RankSupervision):
    """The ranks that rank 0 forks."""

    def __init__(self, devices: Sequence[str], end: Callable[[str, bool], NoReturn]) -> None:
        super().__init__(end)
        self._devices = devices
        self._pids: dict[int, int] = {}

    def start(self, follow: Callable[[int, Path], None]) -> Path:
        """Fork the processes; each runs `follow` with its rank and the file by which ranks find each
        other.

        Returns that file, in rank 0's process only.
        """
        # A file, which only this user can open, whereas other programs might reach a listening socket.
        rendezvous = Path(tempfile.mkdtemp(prefix="ranks-")) / "meeting"
        for rank in range(1, len(self._devices)):
            pid = fork()
            if pid == 0:
                _run_forked_rank(rank, rendezvous, follow)
            self._pids[pid] = rank
        for pid, rank in self._pids.items():
            threading.Thread(target=self._watch, args=(pid, rank), daemon=True).start()
        return rendezvous

    def lost(self, reason: str) -> NoReturn:
        """End all ranks. If the process of one has ended, that is given as the reason."""
        # The watching thread reports first, if it has anything to report.
        threading.Event().wait(_DEATH_SECONDS)
        super().lost(reason)

    def _watch(self, pid: int, rank: int) -> None:
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        end = f"ended with exit code {code}"
        if code == _NO_MEMORY:
            end = "ran out of memory"
        if code < 0:
            end = f"was ended by signal {-code}{_ENDED_BY.get(-code, '')}"
        reason = f"its rank {rank}, on {self._devices[rank]}, {end}"
        self._give_up(reason, out_of_memory=code == _NO_MEMORY)


def count_gpus() -> int:
    """Return the number of CUDA devices. A separate process counts them, since a process that has
    initialised CUDA can no longer be forked."""
    reading, writing = os.pipe()
    pid = fork()
    if pid == 0:
        with contextlib.suppress(BaseException):
            os.write(writing, str(torch.cuda.device_count()).encode())
        os._exit(0)
    os.close(writing)
    with open(reading, "rb") as answer:
        text = answer.read()
    os.waitpid(pid, 0)
    return int(text) if text.isdigit() else 0


def devices_of(name: str) -> list[str]:
    """Return the devices that a list such as `cuda:0,cuda:1`, or `all`, names.

    Raises `TrainerFailed` (`no_device`).
    """
    if not IS_LINUX:
        raise TrainerFailed("no_device", "several devices in one node need Linux")
    if name != "all":
        return name.split(",")
    gpus = count_gpus()
    if gpus == 0:
        raise TrainerFailed("no_device", "`all` means all GPUs, and this computer has none")
    return [f"cuda:{index}" for index in range(gpus)]


def rendezvous_store(rendezvous: Path, size: int) -> Store:
    """Return the store by which `size` processes of one machine find each other."""
    # Their traffic stays on the loopback interface.
    os.environ |= {"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo"}
    # Documented, though missing from the library's own list of exports.
    return dist.FileStore(str(rendezvous), size)  # pyright: ignore[reportPrivateImportUsage]


def connect_ranks(store: Store, rank: int, size: int, name: str, patience: float) -> Ranks:
    """Open the device of this name, and connect to the other ranks.

    Raises `TrainerFailed` (`no_device`) at all of them if one cannot open its device, and `RankLost`.
    """
    device, failure = torch.device("cpu"), None
    try:
        device = choose_device(name)
    except TrainerFailed as error:
        failure = error
    store.set_timeout(timedelta(seconds=patience))
    # Failures are exchanged before NCCL starts, which would wait for a rank without a device.
    store.set(f"device/{rank}", "" if failure is None else str(failure))
    for other in range(size):
        try:
            problem = store.get(f"device/{other}").decode()
        except RuntimeError as error:
            raise RankLost(f"rank {other} did not start: {error}") from None
        if problem:
            raise TrainerFailed("no_device", problem)
    return open_ranks(store, rank, size, device, patience)


def _run_forked_rank(rank: int, rendezvous: Path, follow: Callable[[int, Path], None]) -> NoReturn:
    code = 1
    try:
        if end_with_parent():
            follow(rank, rendezvous)
            code = 0
    except RankOutOfMemory as error:
        _log.warning("rank %d ran out of memory: %s", rank, error)
        code = _NO_MEMORY
    except RankLost as error:
        # Usually another rank has ended, and rank 0 reports that one.
        _log.info("rank %d ends: %s", rank, error)
    except BaseException:
        _log.exception("rank %d ends", rank)
    finally:
        # Nothing is lost: the log is unbuffered.
        os._exit(code)
