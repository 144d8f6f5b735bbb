"""The end of a text at a stop sequence, while the text arrives piece by piece."""

from __future__ import annotations

from collections.abc import Sequence


class StopFilter:
    """Passes a text on up to the first stop sequence; the beginning of a possible one is held back."""

    def __init__(self, stops: Sequence[str]) -> None:
        """`stops`: the sequences, none of which is empty."""
        self._stops = tuple(stops)
        self._held = ""
        self.stopped = False
        """Whether a sequence has occurred: nothing follows."""

    def feed(self, piece: str) -> str:
        """Return the text that may be passed on after this piece."""
        text = self._held + piece
        # The sequence that is complete first counts, so that the pieces make no difference.
        found = [
            (place + len(stop), place) for stop in self._stops if (place := text.find(stop)) >= 0
        ]
        if found:
            self.stopped, self._held = True, ""
            return text[: min(found)[1]]
        keep = max((_overlap(text, stop) for stop in self._stops), default=0)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def rest(self) -> str:
        """Return what is still held back, at the end of the text."""
        held, self._held = self._held, ""
        return held


def _overlap(text: str, stop: str) -> int:
    """Return the length of the longest end of `text` with which `stop` begins."""
    longest = min(len(text), len(stop) - 1)
    return next((n for n in range(longest, 0, -1) if text.endswith(stop[:n])), 0)
