"""Packing of conversations into samples: several whole conversations in each, none across samples.

A sample is `sequence_length` marked tokens and one more, the first of the next sample. So a shard
consists of rows of `sequence_length` tokens, and one token after the last row. No row teaches what the
next one begins with, because the first token of a row begins a conversation and is not to be learned.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

# Rows that wait, partly filled, for a conversation that fits. With this many, a row is nearly full when
# it is yielded, and conversations stay close to their places in the mix.
_OPEN_ROWS = 64


def rows(
    blocks: Iterable[np.ndarray], length: int, filler: int, begin_bit: int
) -> Iterator[np.ndarray]:
    """Yield rows of `length` tokens from arrays of whole conversations, none of which is longer.

    A conversation goes into the row that it fills best. The rest of a row is filled with `filler`,
    as a document of its own; `begin_bit` is the bit that marks the first token of a document.
    """
    waiting: list[list[np.ndarray]] = []
    free: list[int] = []
    for conversation in _conversations(blocks, begin_bit):
        fitting = [(room, row) for row, room in enumerate(free) if room >= len(conversation)]
        if fitting:
            _, row = min(fitting)
        else:
            if len(waiting) == _OPEN_ROWS:
                _, fullest = min((room, row) for row, room in enumerate(free))
                yield _filled(waiting.pop(fullest), free.pop(fullest), filler, begin_bit)
            waiting.append([])
            free.append(length)
            row = len(free) - 1
        waiting[row].append(conversation)
        free[row] -= len(conversation)
        if free[row] == 0:
            yield np.concatenate(waiting.pop(row))
            free.pop(row)
    for each, room in zip(waiting, free, strict=True):
        yield _filled(each, room, filler, begin_bit)


def _conversations(blocks: Iterable[np.ndarray], begin_bit: int) -> Iterator[np.ndarray]:
    for block in blocks:
        starts = np.flatnonzero(block & begin_bit)
        yield from np.split(block, starts[1:]) if len(starts) else ()


def _filled(parts: list[np.ndarray], room: int, filler: int, begin_bit: int) -> np.ndarray:
    rest = np.full(room, filler, parts[0].dtype)
    rest[:1] |= begin_bit
    return np.concatenate([*parts, rest])
