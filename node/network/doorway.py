"""Who gets in: handshakes that are under way, and connections, when there are too many.

A connection costs a stranger nothing to begin and little to keep. So nobody is turned away because
others fill the doorway: the longest wait at the address that sends the most makes room.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable
from typing import Any, TypeVar

from .hearsay import household_of

Key = TypeVar("Key", bound=Hashable)

MAX_HANDSHAKES = 128
"""Under way at once. An honest one takes a second on a busy machine; a stranger that says nothing keeps
its turn for six at most."""


class Doorway:
    """The handshakes that are under way at one node."""

    def __init__(self, most: int = MAX_HANDSHAKES) -> None:
        self._most = most
        # By address, the longest under way first: what gives each of them up.
        self._waiting: dict[str, dict[int, Callable[[], None]]] = defaultdict(dict)

    def __len__(self) -> int:
        return sum(map(len, self._waiting.values()))

    def enter(self, host: str, give_up: Callable[[], None]) -> Callable[[], None]:
        """A handshake with an address begins; call what is returned when it is over.

        If there are too many, `give_up` of one of them is called, be it this one's.
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


def choose_to_leave(guests: Iterable[tuple[Key, str]]) -> Key | None:
    """Choose, among guests with their addresses in the order in which they came, one to make room.

    It is the one that has been there longest of those at the address with the most; None without any.
    """
    known = [(guest, household_of(host)) for guest, host in guests]
    counts: Counter[str] = Counter(household for _, household in known)
    chosen: Any = max(known, key=lambda entry: counts[entry[1]], default=(None, ""))
    return chosen[0]
