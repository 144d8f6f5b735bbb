"""The layout of a preference pair in a sample: two conversations and the initial model's margin.

A sample of `sequence_length` numbers begins with two halves of equal length: the marked tokens of the
chosen conversation and those of the rejected one, each padded at its end. Its last numbers are, bit by
bit, one float32 (little-endian): the *reference margin*, which is log p(chosen) - log p(rejected) of the
initial model in nats, over the tokens to be learned. One unused number may lie between.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

_FLOAT_BYTES = 4


@dataclass(frozen=True)
class PairLayout:
    """Where the parts of a pair are in a sample."""

    sequence_length: int
    token_bytes: int

    @property
    def half(self) -> int:
        """The most tokens that a conversation may have."""
        return max(0, (self.sequence_length - self._margin_numbers) // 2)

    @property
    def _margin_numbers(self) -> int:
        return _FLOAT_BYTES // self.token_bytes

    def row(
        self, chosen: np.ndarray, rejected: np.ndarray, filler: int, begin_bit: int
    ) -> np.ndarray:
        """Return the numbers of a pair, uint32, with 0 as the reference margin. The rest of a half is
        `filler`, as a document of its own (`begin_bit`).

        The row of a pair that does not fit is longer than `sequence_length`: as long as a sample would
        have to be."""
        half = max(self.half, len(chosen), len(rejected))
        extra = half - self.half
        row = np.full(self.sequence_length + 2 * extra, filler, np.uint32)
        for start, tokens in ((0, chosen), (half, rejected)):
            row[start : start + len(tokens)] = tokens
            if len(tokens) < half:
                row[start + len(tokens)] |= begin_bit
        row[2 * half :] = 0
        return row

    def with_margins(self, rows: np.ndarray, margins: np.ndarray) -> np.ndarray:
        """Return a copy of rows (pairs, sequence_length) with these reference margins, float32
        (pairs,)."""
        made = rows.astype(f"<u{self.token_bytes}")
        stored = np.ascontiguousarray(margins, "<f4").view(made.dtype)
        made[:, -self._margin_numbers :] = stored.reshape(len(rows), self._margin_numbers)
        return made

    def halves(self, rows: np.ndarray) -> np.ndarray:
        """Return the halves of rows (pairs, sequence_length), a pair's chosen one before its rejected
        one: (2 × pairs, half)."""
        return rows[:, : 2 * self.half].reshape(2 * len(rows), self.half)

    def margins(self, rows: np.ndarray) -> np.ndarray:
        """Return the reference margins of rows (pairs, sequence_length): float32 (pairs,). They may be
        any bits, and so not finite."""
        stored = np.ascontiguousarray(rows[:, -self._margin_numbers :], f"<u{self.token_bytes}")
        return stored.view("<f4")[:, 0].astype(np.float32)
