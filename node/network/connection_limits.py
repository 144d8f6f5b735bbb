"""Admission: which handshakes and connections to drop when there are too many.

A connection costs a stranger nothing to open and little to keep. So that strangers who fill all places
cannot keep others out, the oldest entry of the address with the most entries makes room for a newcomer.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable
from typing import Any, TypeVar

from .dial_policy import household_of

Key = TypeVar("Key", bound=Hashable)

MAX_HANDSHAKES = 128
"""Concurrent handshakes. An honest one takes a second on a busy machine; a stranger that sends nothing
holds its place for six seconds at most."""


class HandshakeLimit:
    """The handshakes in progress at one node."""

    def __init__(self, most: int = MAX_HANDSHAKES) -> None:
        self._most = most
        # By address, oldest first: the callbacks that end the handshakes.
        self._waiting: dict[str, dict[int, Callable[[], None]]] = defaultdict(dict)

    def __len__(self) -> int:
        return sum(map(len, self._waiting.values()))

    def enter(self, host: str, give_up: Callable[[], None]) -> Callable[[], None]:
        """Register a handshake with an address; return the callback to call when it is over.

        If there are too many handshakes, `give_up` of one of them is called, possibly of this one.
        """
        household, number = household_of(host), id(give_up)
        self._waiting[household][number] = give_up
        if len(self) > self._most:
            most = max(self._waiting, key=lambda household: len(self._waiting[household]))
            oldest = next(iter(self._waiting[most]))
            self._waiting[most].pop(oldest)()

        def leave() -> None:
            self._waiting[household].pop(number, None)
            if not self._waiting[household]:
                del self._waiting[household]

        return leave


def choose_eviction(candidates: Iterable[tuple[Key, str]]) -> Key | None:
    """Choose which of `candidates`, given with their addresses in order of arrival, makes room.

    It is the oldest candidate of the address that has the most; None if there are no candidates.
    """
    known = [(candidate, household_of(host)) for candidate, host in candidates]
    counts: Counter[str] = Counter(household for _, household in known)
    chosen: Any = max(known, key=lambda entry: counts[entry[1]], default=(None, ""))
    return chosen[0]
