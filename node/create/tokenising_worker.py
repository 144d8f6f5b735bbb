"""A process that tokenises the batches of a `TokeniserPool` and loads only what its tokenizer needs."""

from __future__ import annotations

import contextlib
import itertools
import sys
from multiprocessing.connection import Connection

import numpy as np

from .tokens import ENCODED_BYTES, Tokenizer, group_spans


def work(connection: Connection) -> None:
    """Tokenise batches until the pipe closes."""
    with contextlib.suppress(EOFError, OSError):
        (kind, facts), width = connection.recv()
        tokenizer = kind.of(*facts)
        while True:
            lengths = np.frombuffer(connection.recv_bytes(), "<u8").tolist()
            counts, tokens = encode(tokenizer, lengths, connection.recv_bytes(), f"<u{width}")
            connection.send_bytes(counts.astype("<u8").tobytes())
            connection.send_bytes(tokens.view(np.uint8).data)


def encode(
    tokenizer: Tokenizer, lengths: list[int], joined: bytes, dtype: str
) -> tuple[np.ndarray, np.ndarray]:
    """Return the number of each text's tokens, and the tokens of all: int64 (texts,) and `dtype`
    (tokens,). `joined` are the texts, which have these `lengths`.

    A few texts at a time, because tokens take several times as much memory until they are `dtype`.
    """
    ends = list(itertools.accumulate(lengths))
    counts: list[int] = []
    done = []
    for span in group_spans(lengths, ENCODED_BYTES):
        bounds = zip(lengths[span], ends[span], strict=True)
        encoded = tokenizer.encode([joined[end - length : end] for length, end in bounds])
        counts += map(len, encoded)
        done.append(np.concatenate(encoded).astype(dtype))
    return np.array(counts, np.int64), np.concatenate(done)


if __name__ == "__main__":
    work(Connection(int(sys.argv[1])))
