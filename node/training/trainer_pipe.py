"""The trainer's process, and the pipe to it: it is started, called, and asked to exit or killed.

Nothing here imports torch. Calls are answered in order, one at a time. A cancelled call leaves the pipe
usable: its answer is dropped on arrival, though the trainer completes the work.
"""

from __future__ import annotations

import errno
import logging
import os
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Any

import trio

from ..util.operating_system import OWN_GROUP, by_signal, pass_descriptors
from ..util.sanitize import MAX_CHARACTERS
from .errors import FAILURE_KINDS, TrainerDied, TrainerFailed
from .frames import FrameDecoder, FrameError, encode_frame

_log = logging.getLogger(__name__)

_READ_BYTES = 1 << 20

# How long a trainer may take to finish its current work when it is asked to exit.
_EXIT_SECONDS = 5.0
# How long a killed trainer may take to die; one that is stuck in a driver does not.
_DEATH_SECONDS = 5.0

# The probable cause of a trainer's end, by signal (`resource_limits` sets the limit behind SIGXCPU).
_HINTS = by_signal(
    {
        "SIGKILL": " (out of memory?)",
        "SIGXCPU": " (the swarm's model or tokenizer exceeded the CPU time limit)",
        "SIGABRT": " (a library aborted: did the swarm's model or tokenizer ask for too much memory?)",
    }
)


class TrainerPipe:
    """A running trainer process, and the frames that go to it and come from it.

    Every call raises `TrainerDied` if the process is gone.
    """

    def __init__(self, process: trio.Process, requests: int, answers: int) -> None:
        self._process = process
        self._requests = requests
        self._answers = answers
        self._decoder = FrameDecoder()
        self._received: list[Any] = []
        # The rest of a frame that a cancelled call began to send: it must go out before any other.
        self._unsent = memoryview(b"")
        # One call at a time; and one frame at a time, since `expect` may be sent during a call.
        self._lock, self._write_lock = trio.Lock(), trio.Lock()
        self._next_id = 0
        self._closed = False

    @property
    def pid(self) -> int:
        """The trainer's process id."""
        return self._process.pid

    async def call(self, method: str, staged: Sequence[bytes] = (), **arguments: Any) -> Any:
        """Send a request, each of `staged` before it in a frame of its own, and return the answer.
        Raises `TrainerFailed` if the trainer refuses it."""
        async with self._lock:
            request_id = self._next_id
            self._next_id += 1
            with _closed_is_death():
                for body in staged:
                    await self._send(request_id, "stage", {"body": body})
                await self._send(request_id, method, arguments)
                answer = await self._receive(request_id)
        if "error" in answer:
            kind = answer["error"]["kind"]
            raise TrainerFailed(
                kind if kind in FAILURE_KINDS else "internal", answer["error"]["message"]
            )
        return answer["result"]

    async def tell(self, method: str, arguments: dict[str, Any]) -> None:
        """Send what has no answer, also while a call is in progress."""
        with _closed_is_death():
            await self._send(-1, method, arguments)

    async def shut_down(self) -> None:
        """Ask the process to exit, then make sure that it has."""
        with trio.move_on_after(_EXIT_SECONDS) as time_limit:
            time_limit.shield = True
            with suppress(TrainerDied):
                async with self._lock:
                    await self._send(self._next_id, "exit", {})
            await self._process.wait()
        if self._process.returncode is None:
            self._process.kill()
        with trio.move_on_after(_DEATH_SECONDS) as time_limit:
            time_limit.shield = True
            await self._process.wait()
        # The closed descriptors' numbers will soon belong to other files: nothing may use them any more.
        self._closed = True
        for descriptor in (self._requests, self._answers):
            trio.lowlevel.notify_closing(descriptor)
            os.close(descriptor)

    async def _send(self, request_id: int, method: str, arguments: dict[str, Any]) -> None:
        frame = encode_frame({"id": request_id, "method": method, "arguments": arguments})
        async with self._write_lock:
            if self._closed:
                raise TrainerDied("the trainer has been closed")
            await self._send_unsent()
            self._unsent = memoryview(frame)
            await self._send_unsent()

    async def _send_unsent(self) -> None:
        while self._unsent:
            await trio.lowlevel.wait_writable(self._requests)
            try:
                self._unsent = self._unsent[os.write(self._requests, self._unsent) :]
            except BlockingIOError:
                continue
            except BrokenPipeError:
                raise await self._died() from None

    async def _receive(self, request_id: int) -> dict[str, Any]:
        while True:
            while self._received:
                answer = self._received.pop(0)
                if "died" in answer:
                    raise TrainerDied(answer["died"], answer["micro_batch"])
                # Any other frame answers a cancelled call.
                if answer["id"] == request_id:
                    return answer
            await trio.lowlevel.wait_readable(self._answers)
            try:
                data = os.read(self._answers, _READ_BYTES)
                self._received += self._decoder.feed(data)
            except BlockingIOError:
                continue
            except FrameError as error:
                self._process.kill()
                raise TrainerDied(f"the trainer's answers cannot be decoded: {error}") from None
            if not data:
                raise await self._died()

    async def _died(self) -> TrainerDied:
        """Return how the process ended or is about to end."""
        with trio.move_on_after(_EXIT_SECONDS):
            await self._process.wait()
        if (report := self._death_report()) is not None:
            return TrainerDied(report["died"], report["micro_batch"])
        code = self._process.returncode
        if code is None:
            return TrainerDied("the trainer closed its pipe")
        if code >= 0:
            return TrainerDied(f"the trainer ended with exit code {code}")
        hint = _HINTS.get(-code, "")
        return TrainerDied(f"the trainer was ended by signal {-code}{hint}")

    def _death_report(self) -> dict[str, Any] | None:
        """Return the reason that it sent for its end while no call was waiting for an answer."""
        with suppress(OSError, FrameError):
            while data := os.read(self._answers, _READ_BYTES):
                self._received += self._decoder.feed(data)
        return next((each for each in self._received if "died" in each), None)


@contextmanager
def _closed_is_death() -> Iterator[None]:
    """Raise `TrainerDied` if the pipe is closed during a call."""
    try:
        yield
    except trio.ClosedResourceError:
        raise TrainerDied("the trainer was closed during a call") from None


@asynccontextmanager
async def open_pipe(
    arguments: Sequence[str], environment: dict[str, str]
) -> AsyncIterator[TrainerPipe]:
    """Start a trainer process with these options of its command line. It never outlives this process,
    however this process dies. Raises `OSError` if the system is short of files, processes or memory."""
    requests_read, requests_write, answers_read, answers_write, output_read, output_write = _pipes(
        3
    )
    try:
        _start_log_thread(output_read)
        process = await trio.lowlevel.open_process(
            [
                sys.executable,
                # The working directory is the user's; it contains none of our modules.
                "-P",
                "-m",
                "distro_node.node.trainer",
                f"--requests={requests_read}",
                f"--answers={answers_write}",
                *arguments,
            ],
            stdin=subprocess.DEVNULL,
            stdout=output_write,
            stderr=output_write,
            **pass_descriptors(requests_read, answers_write),
            # Ctrl-C in a terminal goes to the foreground process group: only the node shall receive it.
            **OWN_GROUP,
            env=environment,
        )
    except BaseException:
        os.close(requests_write)
        os.close(answers_read)
        raise
    finally:
        os.close(requests_read)
        os.close(answers_write)
        # From now on only the trainer holds the write end, so the thread ends with the trainer.
        os.close(output_write)
    os.set_blocking(requests_write, False)
    os.set_blocking(answers_read, False)
    pipe = TrainerPipe(process, requests_write, answers_read)
    try:
        yield pipe
    finally:
        await pipe.shut_down()


def _pipes(count: int) -> list[int]:
    """Return the ends of new pipes, each one's for reading first. If one pipe cannot be made, none stays
    open: a node that is short of open files tries again."""
    ends: list[int] = []
    try:
        for _ in range(count):
            ends += os.pipe()
    except OSError:
        for end in ends:
            os.close(end)
        raise
    return ends


def _start_log_thread(descriptor: int) -> None:
    """Start to log what arrives at this descriptor; the thread closes it."""
    try:
        threading.Thread(target=_log_output, args=(descriptor,), daemon=True).start()
    except RuntimeError as error:
        # Threads count against the limit of processes, but Python reports it by another exception.
        os.close(descriptor)
        raise OSError(errno.EAGAIN, str(error)) from None


def _log_output(descriptor: int) -> None:
    """Log what the trainer and its libraries write, line by line.

    It is a thread because the event loop may be busy, and the writers must not wait for it. Their
    text may contain names from a stranger's model: unfiltered, none of it may reach a terminal.
    """
    with open(descriptor, "rb") as output:
        while line := output.readline(MAX_CHARACTERS):
            text = line.decode("utf-8", "replace").rstrip()
            if text:
                _log.warning("trainer: %s", text)
