"""Tokenising on all cores: worker processes with the tokenizer, and batches returned in order.

A worker is a process (`tokenising_worker`) that ends when the process that started it ends, for whatever
reason, because its pipe closes. A worker has one batch at a time, so that the two processes never both
wait for the other to read.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from typing import Any

import numpy as np

from ..errors import ExitCode, UserError
from ..util.operating_system import OWN_GROUP, can_pass_descriptors, pass_descriptors, usable_cores
from . import tokenising_worker
from .labelled_texts import LabelledTokenizer
from .tokens import FileTokenizer, Tokenizer

# With less text than this the workers would take longer to start than to tokenise it.
_MIN_TEXT_BYTES = 8 << 20
# More workers than this would wait for the one process that reads the files.
_MAX_WORKERS = 64

Encoded = list[np.ndarray]


class TokeniserPool:
    """Tokenises batches of texts and returns their tokens in the order in which the batches were given.

    `open_pool` makes one. Without connections it tokenises in this process.
    """

    def __init__(self, tokenizer: Tokenizer, connections: Sequence[Connection]) -> None:
        self._tokenizer = tokenizer
        self._idle = list(connections)
        self._busy: dict[Connection, int] = {}
        self._done: dict[int, tuple[Any, Encoded]] = {}
        self._tags: dict[int, Any] = {}
        self._submitted = 0
        self._returned = 0
        self._max_done = 2 * len(connections) + 1

    def submit(self, tag: Any, texts: Sequence[bytes]) -> None:
        """Accept a batch; `take_completed` returns `tag` with its tokens. Waits while all workers are
        busy.

        Raises `UnicodeDecodeError` as the tokenizer does, and `UserError` if a worker has died.
        """
        number = self._submitted
        if not (self._idle or self._busy) or not texts:
            self._done[number] = tag, self._tokenizer.encode(texts) if texts else []
            self._submitted += 1
            return
        while not self._idle:
            self._collect(None)
        self._submitted += 1
        self._tags[number] = tag
        connection = self._idle.pop()
        self._busy[connection] = number
        with _report_death():
            connection.send_bytes(np.array([len(text) for text in texts], "<u8").tobytes())
            connection.send_bytes(b"".join(texts))

    def take_completed(self, *, all: bool = False) -> Iterator[tuple[Any, Encoded]]:
        """Yield the tag and the tokens of each completed batch that is next in order; with `all`, wait
        for the other batches too. Raises `UserError` if a worker has died."""
        self._collect(0.0)
        while self._returned < self._submitted:
            if self._returned not in self._done:
                # Wait for a batch that takes long before too many later ones pile up in memory.
                if not all and len(self._done) < self._max_done:
                    return
                self._collect(None)
                continue
            self._returned += 1
            yield self._done.pop(self._returned - 1)

    def _collect(self, seconds: float | None) -> None:
        if not self._busy:
            return
        for ready in wait(list(self._busy), seconds):
            assert isinstance(ready, Connection)
            with _report_death():
                counts = np.frombuffer(ready.recv_bytes(), "<u8").astype(np.int64)
                tokens = np.frombuffer(ready.recv_bytes(), f"<u{self._tokenizer.token_bytes}")
            number = self._busy.pop(ready)
            self._idle.append(ready)
            self._done[number] = self._tags.pop(number), np.split(tokens, np.cumsum(counts)[:-1])


@contextlib.contextmanager
def open_pool(tokenizer: Tokenizer, text_bytes: int | None) -> Iterator[TokeniserPool]:
    """Start workers for about `text_bytes` of text (None: unknown); for little text, and for tokenizers
    that need no library, none is started.

    When the context ends, the workers are killed, whatever they are doing.
    """
    worthwhile = text_bytes is None or text_bytes >= _MIN_TEXT_BYTES
    remade = None
    if worthwhile and isinstance(tokenizer, (FileTokenizer, LabelledTokenizer)):
        remade = type(tokenizer), tokenizer.remade
    count = 0 if remade is None or not can_pass_descriptors() else min(usable_cores(), _MAX_WORKERS)
    started: list[tuple[subprocess.Popen[Any], Connection]] = []
    try:
        for _ in range(count):
            ours, theirs = Pipe()
            # Not forked: a forked process would inherit this one's memory, its threads' locks and its
            # open files. In a session of its own, because Ctrl-C reaches all processes of a terminal,
            # and only this process must end the workers.
            with theirs:
                process = subprocess.Popen(
                    [sys.executable, "-P", "-m", tokenising_worker.__name__, str(theirs.fileno())],
                    **pass_descriptors(theirs.fileno()),
                    # Without threads of the library: each core has a worker already.
                    env={**os.environ, "TOKENIZERS_PARALLELISM": "false"},
                    stdin=subprocess.DEVNULL,
                    **OWN_GROUP,
                )
            started.append((process, ours))
            with _report_death():
                ours.send((remade, tokenizer.token_bytes))
        yield TokeniserPool(tokenizer, [ours for _, ours in started])
    finally:
        for process, ours in started:
            ours.close()
            process.kill()
        for process, _ in started:
            process.wait()


@contextlib.contextmanager
def _report_death() -> Iterator[None]:
    try:
        yield
    except (EOFError, OSError):
        raise UserError(
            ExitCode.TRAINER,
            "a tokenising process was killed (out of memory?)",
            "start the same command again: it resumes where it stopped",
        ) from None
