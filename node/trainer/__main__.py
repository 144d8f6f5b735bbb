"""The trainer process: requests in on one inherited pipe, answers out on another.

Standard output is never used, so nothing that a library prints can end up between the frames. The
process ends when its parent does: a thread watches the pipe, whatever the main thread computes.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import logging
import os
import queue
import signal
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .frames import FrameDecoder, FrameError, encode_frame
from .sandbox import confine

if TYPE_CHECKING:
    from .worker import Worker

_READ_BYTES = 1 << 20


def main() -> None:
    """Answer requests until the pipe closes or an `exit` arrives."""
    parser = argparse.ArgumentParser(prog="python -m distro_node.node.trainer")
    parser.add_argument("--requests", type=int, required=True, help="file descriptor to read")
    parser.add_argument("--answers", type=int, required=True, help="file descriptor to write")
    parser.add_argument("--readable", type=Path, action="append", default=[], metavar="PATH")
    parser.add_argument("--writable", type=Path, action="append", default=[], metavar="PATH")
    parser.add_argument("--unconfined", action="store_true", help="give up nothing (`sandbox`)")
    parser.add_argument("--nice", type=int, default=0, help="step back behind other processes")
    arguments = parser.parse_args()
    os.nice(arguments.nice)
    # Ctrl-C in a terminal reaches every process there; only the parent decides what it means.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    logging.basicConfig(stream=sys.stderr, format="%(levelname)s %(message)s")

    # Before any thread begins, which would keep its rights, and before any library is loaded.
    if not arguments.unconfined:
        confine(arguments.readable, arguments.writable)
    requests: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
    # Before torch is imported, which takes seconds in which the parent may die, too.
    threading.Thread(target=_read, args=(arguments.requests, requests), daemon=True).start()

    worker = _new_worker()
    while (request := requests.get())["method"] != "exit":
        answer = worker.answer(request)
        if answer is not None:
            _write(arguments.answers, answer)
    # Threads of torch and its kernels may hang in an orderly exit; there is nothing left to save.
    _end(0)


def _new_worker() -> Worker:
    """A worker, with the libraries that it stands on.

    They make half a million objects, and all of them stay: looking through them again and again for
    what could be freed is a fifth of the time that a trainer takes to start. Later collections pass
    them over as well.
    """
    gc.disable()
    from .worker import Worker

    gc.freeze()
    gc.enable()
    return Worker()


def _read(descriptor: int, requests: queue.SimpleQueue[dict[str, Any]]) -> None:
    """Pass requests on; end the process when there will be no more."""
    decoder = FrameDecoder()
    while data := os.read(descriptor, _READ_BYTES):
        try:
            for request in decoder.feed(data):
                requests.put(request)
        except FrameError as error:
            logging.getLogger(__name__).error("the requests are garbled: %s", error)
            _end(1)
    _end(0)


def _write(descriptor: int, answer: dict[str, Any]) -> None:
    data = memoryview(encode_frame(answer))
    try:
        while data:
            data = data[os.write(descriptor, data) :]
    except BrokenPipeError:
        _end(0)


def _end(code: int) -> None:
    # Nobody may be there any more to read what was said.
    with contextlib.suppress(OSError, ValueError):
        sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    main()
