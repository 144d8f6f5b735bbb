"""An entropy coder made of array operations: many rANS states in step over one stack of words.

Asymmetric numeral systems (Duda, arXiv 1311.2540), range variant: a symbol that owns the interval
[start, start + width) of 2^16 takes 16 - log2(width) bits. Encoding and decoding a step are exact
inverses, so a stack has one reading and a message one spelling. Symbol i of a step belongs to lane
i: two million symbols one after the other would take Python seconds, thousands abreast do not.
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import numpy.typing as npt

from ..wire.errors import ProtocolError

Words = npt.NDArray[np.uint16]

Units = npt.NDArray[np.uint32]
"""Numbers of up to 2^16, or of a product of two such."""

PRECISION = 16
"""Intervals are given in units of 2^-16."""

LAST_SLOT = (1 << PRECISION) - 1
"""No interval holds it; see `Popularity.find`."""

WORD_BITS = 16

STATE_WORDS = 3
"""A lane's state lies in [2^32, 2^48). So large, it loses under 2^-14 bits a symbol to rounding."""

_LOWEST = 1 << 32

# With 8192 states a step's arrays stay in a processor's second cache and Python's share of the time is
# a few per cent. A state wastes 8 bits of its last word on average, hence the least number of symbols.
_MOST_LANES = 8192
_COEFFICIENTS_A_LANE = 128


def lane_count(coefficients: int) -> int:
    """How many lanes code so many coefficients."""
    return max(1, min(_MOST_LANES, coefficients // _COEFFICIENTS_A_LANE))


def symbol_bits(symbols: int) -> Fraction:
    """What one of so many equally likely symbols takes at most, in 1024ths of a bit.

    Without floating point: it decides which bodies are valid, so it must be the same everywhere.
    """
    scale = 1 << 10
    power = Fraction(1 << PRECISION, ((1 << 2 * PRECISION) - 1) // symbols >> PRECISION) ** scale
    # The bit length is above the logarithm; one more for what the state loses to rounding.
    return Fraction((power.numerator // power.denominator).bit_length() + 1, scale)


class Decoder:
    """Takes steps from a stack and puts words back on it.

    Raises `ProtocolError` (`malformed`) when the stack has too few words.
    """

    def __init__(self, words: Words, lanes: int, returned: int) -> None:
        """`words` from the top of the stack on; `returned`: how many may be put back in all."""
        states = words[: STATE_WORDS * lanes]
        if len(states) < STATE_WORDS * lanes:
            raise _too_short()
        high, middle, low = states.astype(np.uint64).reshape(lanes, STATE_WORDS).T
        self._states = (high << 32) | (middle << 16) | low
        if (self._states < _LOWEST).any():
            raise ProtocolError("malformed", "a state is too small")
        self.lanes = lanes
        self._top = returned + 2 * lanes
        free = np.zeros(self._top, dtype=np.uint16)
        self._words = np.concatenate([free, words[STATE_WORDS * lanes :]])
        self._fewest = self._size

    @property
    def _size(self) -> int:
        return len(self._words) - self._top

    def slots(self, count: int) -> Units:
        """Where in [0, 2^16) the next symbols of the first `count` lanes lie."""
        return (self._states[:count] & LAST_SLOT).astype(np.uint32)

    def advance(self, slots: Units, starts: Units, widths: Units) -> None:
        """Take the symbols whose intervals hold the slots."""
        states = self._states[: len(slots)]
        states >>= PRECISION
        states *= widths
        states += slots - starts
        (low,) = (states < _LOWEST).nonzero()
        if len(low):
            states[low] = (states[low] << WORD_BITS) | self._pop(len(low))

    def push(self, words: Words) -> None:
        """Put words back; the first one comes to lie on top."""
        self._fewest = min(self._fewest, self._size)
        self._top -= len(words)
        self._words[self._top : self._top + len(words)] = words

    def finish(self, bottom: int) -> Words:
        """The stack's first `bottom` words, once everything else is taken.

        Raises `ProtocolError` (`malformed`) unless an encoder that began with them ends so.
        """
        if (self._states >= 2 * _LOWEST).any():
            raise ProtocolError("malformed", "a state does not end where one begins")
        low = self._states - _LOWEST
        self.push(np.stack([low >> WORD_BITS, low & LAST_SLOT], axis=1).ravel().astype(np.uint16))
        missing = self._size - bottom
        if missing < 0:
            raise _too_short()
        # What an encoder takes from below the bottom is zero, and it takes no more than it needs.
        if missing and (self._fewest or self._words[len(self._words) - missing :].any()):
            raise ProtocolError("malformed", "there are words that nothing needs")
        return self._words[self._top : self._top + bottom]

    def _pop(self, count: int) -> Words:
        end = self._top + count
        if end > len(self._words):
            raise _too_short()
        popped = self._words[self._top : end]
        self._top = end
        return popped


class Encoder:
    """The inverse of `Decoder`: the last thing to be decoded is encoded first."""

    def __init__(self, bottom: Words, lanes: int, taken: int, symbols: int) -> None:
        """Begin with the stack `bottom`.

        `taken`: how many words may be taken off in all, `symbols`: how many symbols will come.
        """
        self.lanes = lanes
        below = np.zeros(taken + 2 * lanes, dtype=np.uint16)
        # A symbol pushes one word at most.
        self._words = np.concatenate([np.zeros(symbols, dtype=np.uint16), bottom, below])
        self._top = symbols
        self._end = symbols + len(bottom)
        first, second = self.pop(2 * lanes).astype(np.uint64).reshape(lanes, 2).T
        self._states = _LOWEST | (first << WORD_BITS) | second

    def pop(self, count: int) -> Words:
        """Take words off the stack; below its bottom there are zeros."""
        popped = self._words[self._top : self._top + count]
        self._top += count
        self._end = max(self._end, self._top)
        return popped

    def push(self, starts: Units, widths: Units) -> None:
        """Code a step: symbol i owns [starts[i], starts[i] + widths[i])."""
        states = self._states[: len(starts)]
        # Otherwise the new state would be 2^48 or more.
        (high,) = (states >> 32 >= widths).nonzero()
        if len(high):
            self._top -= len(high)
            self._words[self._top : self._top + len(high)] = states[high] & LAST_SLOT
            states[high] >>= WORD_BITS
        states += states // widths * ((1 << PRECISION) - widths)
        states += starts

    def finish(self) -> Words:
        """All words, from the top of the stack on."""
        parts = [self._states >> 32, self._states >> 16 & LAST_SLOT, self._states & LAST_SLOT]
        states = np.stack(parts, axis=1).ravel().astype(np.uint16)
        return np.concatenate([states, self._words[self._top : self._end]])


def _too_short() -> ProtocolError:
    return ProtocolError("malformed", "the body ends too early")
