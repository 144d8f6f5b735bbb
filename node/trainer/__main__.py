"""The trainer process: it reads requests from one inherited pipe and writes answers to another.

Standard output is never used, so nothing that a library prints ends up between the frames. The
process ends when its parent does: a thread watches the pipe, whatever the main thread computes.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import gc
import logging
import os
import queue
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from ..training.frames import (
    EXPECT,
    STOP,
    ExpectedUpdate,
    FrameDecoder,
    FrameError,
    StopSteps,
    encode_frame,
)
from ..training.sandbox import confine
from ..util.operating_system import lower_priority, session_priority

if TYPE_CHECKING:
    from .worker import Worker

_READ_BYTES = 1 << 20
_LOADING = frozenset({"ready", "open", "open_checkpoint", "load"})
"""The requests that come before a trainer's first work."""
_LOWEST_PRIORITY = 19
"""A session of this niceness takes 1.5 % of a core that others use as well (`sched_prio_to_weight` in
Linux: 15 of 1,024)."""


def main() -> None:
    """Answer requests until the pipe closes or an `exit` arrives."""
    parser = argparse.ArgumentParser(prog="python -m distro_node.node.trainer")
    parser.add_argument("--requests", type=int, required=True, help="file descriptor to read")
    parser.add_argument("--answers", type=int, required=True, help="file descriptor to write")
    parser.add_argument("--readable", type=Path, action="append", default=[], metavar="PATH")
    parser.add_argument("--writable", type=Path, action="append", default=[], metavar="PATH")
    parser.add_argument("--unconfined", action="store_true", help="do not enter the sandbox")
    parser.add_argument("--nice", type=int, default=0, help="niceness of the process")
    parser.add_argument(
        "--yields", action="store_true", help="the lowest priority once the model is loaded"
    )
    parser.add_argument(
        "--several", action="store_true", help="one process for each of its devices"
    )
    parser.add_argument(
        "--launched", action="store_true", help="the ranks were started by torchrun"
    )
    parser.add_argument("--patience", type=float, help="seconds that ranks wait for each other")
    arguments = parser.parse_args()
    lower_priority(arguments.nice)
    yield_to_others = session_priority(_LOWEST_PRIORITY) if arguments.yields else None
    # Ctrl-C in a terminal reaches every process of the group; only the parent decides what it means.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    logging.basicConfig(stream=sys.stderr, format="%(levelname)s %(message)s")

    # The sandbox comes before any thread starts, because a running thread would keep its rights, and
    # before any library is loaded.
    enforced: tuple[str, ...] = ()
    if not arguments.unconfined:
        enforced = confine(
            arguments.readable,
            arguments.writable,
            multi_process=arguments.several,
            private_network=not arguments.launched,
        )
        if arguments.several and not arguments.launched and "network" not in enforced:
            logging.getLogger(__name__).warning(
                "this system does not isolate the network of a trainer on several devices: its "
                "code could reach your network"
            )
    requests: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
    # The thread starts before torch is imported: that takes seconds, and the parent may die meanwhile.
    expected: queue.SimpleQueue[ExpectedUpdate] = queue.SimpleQueue()
    stop = StopSteps()
    reading = arguments.requests, requests, expected, stop
    threading.Thread(target=_read, args=reading, daemon=True).start()

    answers = _Answers(arguments.answers)
    # The process ends by `_end`, since an orderly exit may hang on torch's threads and kernels (and
    # does if a device's context is dead); nothing is left to save.
    try:
        worker = _new_worker(answers, expected, arguments if arguments.several else None)
        worker.sandbox, worker.stop_steps = enforced, stop
        while (request := requests.get())["method"] != "exit":
            if yield_to_others is not None and request["method"] not in _LOADING:
                yield_to_others()
                yield_to_others = None
            answer = worker.answer(request)
            if answer is not None:
                answers.write(answer)
    except BaseException:
        logging.getLogger(__name__).exception("the trainer ends")
        _end(1)
    _end(0)


def _new_worker(
    answers: _Answers,
    expected: queue.SimpleQueue[ExpectedUpdate],
    several: argparse.Namespace | None,
) -> Worker:
    """Return a worker with its libraries loaded; with `several`, one for several devices.

    The libraries create half a million long-lived objects. Scanning them again and again for garbage
    takes a fifth of a trainer's start-up time, so collection is off meanwhile, and later collections
    skip them.
    """
    gc.disable()
    from .worker import Worker

    new: Callable[[], Worker] = functools.partial(Worker, expected)
    if several is not None:
        from .ranks.worker import RankWorker

        launch = None
        if several.launched:
            from .ranks.launch import launch_here

            launch = launch_here()
        new = functools.partial(
            RankWorker, answers.report_death, several.patience, launch, expected
        )
    gc.freeze()
    gc.enable()
    return new()


def _read(
    descriptor: int,
    requests: queue.SimpleQueue[dict[str, Any]],
    expected: queue.SimpleQueue[ExpectedUpdate],
    stop: StopSteps,
) -> None:
    """Queue the requests that arrive through the pipe, and in a queue of their own the updates to be
    decoded early; note in `stop` which local steps end; end the process when the pipe closes."""
    decoder = FrameDecoder()
    while data := os.read(descriptor, _READ_BYTES):
        try:
            for request in decoder.feed(data):
                if request["method"] == EXPECT:
                    expected.put(ExpectedUpdate(**request["arguments"]))
                elif request["method"] == STOP:
                    stop.round = StopSteps(**request["arguments"]).round
                else:
                    requests.put(request)
        except FrameError as error:
            logging.getLogger(__name__).error("the requests cannot be decoded: %s", error)
            _end(1)
    _end(0)


class _Answers:
    """The pipe to the node. Any thread may write to it."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._lock = threading.Lock()

    def write(self, answer: dict[str, Any]) -> None:
        """Send an answer; end the process if the reader is gone."""
        data = memoryview(encode_frame(answer))
        with self._lock:
            try:
                while data:
                    data = data[os.write(self._descriptor, data) :]
            except BrokenPipeError:
                _end(0)

    def report_death(self, reason: str, micro_batch: int | None) -> NoReturn:
        """Send the node the reason and the micro-batch that does not fit, then end the process."""
        self.write({"id": -1, "died": reason, "micro_batch": micro_batch})
        _end(1)


def _end(code: int) -> NoReturn:
    # The reader of the log may be gone already.
    with contextlib.suppress(OSError, ValueError):
        sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    main()
