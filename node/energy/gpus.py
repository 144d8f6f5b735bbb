"""All the GPUs that a member computes on, on this machine, taken together. See `Gpu`: it is the same for
one of them, and all of it blocks."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from .arithmetic import Reading
from .gpu import Gpu, LimitRefused, Use


class Gpus:
    """Cards, found by their UUIDs. `make` makes one that is not aimed yet."""

    def __init__(self, make: Callable[[], Gpu] = Gpu) -> None:
        self._make = make
        self._cards: dict[str | None, Gpu] = {}
        self.aim(())

    def aim(self, uuids: Sequence[str]) -> None:
        """From now on the cards with these UUIDs are meant; one that is no more has its limit back."""
        wanted: Sequence[str | None] = uuids or (None,)
        for uuid in self._cards.keys() - set(wanted):
            self._cards.pop(uuid).close()
        for uuid in wanted:
            if uuid not in self._cards:
                self._cards[uuid] = card = self._make()
                card.aim(uuid)

    @property
    def why(self) -> str | None:
        """Why not everything is known, for people; None: all is well."""
        return next((card.why for card in self._all if card.why is not None), None)

    def read(self) -> Reading | None:
        """What they have taken so far, and take now; None: unknown, if only of one of them."""
        found = [card.read() for card in self._all]
        known = [reading for reading in found if reading is not None]
        if len(known) < len(found):
            return None
        watts = [reading.watts for reading in known if reading.watts is not None]
        # A card without a counter has its power added up, and so have the others then.
        counters = [
            (f"{name} {index}", value, wraps_at, units)
            for index, reading in enumerate(known)
            for name, value, wraps_at, units in reading.counters
        ]
        return Reading(
            at=known[0].at,
            counters=tuple(counters) if all(reading.counters for reading in known) else (),
            watts=sum(watts) if len(watts) == len(known) else None,
        )

    def set_limit(self, watts: float) -> None:
        """Let each of them draw no more. Raises `LimitRefused`, and then none of them is limited."""
        try:
            for card in self._all:
                card.set_limit(watts)
        except LimitRefused:
            self.put_back()
            raise

    @property
    def limited(self) -> bool:
        """Whether a limit of ours holds on one of them."""
        return any(card.limited for card in self._all)

    def put_back(self) -> bool:
        """Give them the limits that they had; False if the driver does not take one."""
        done = [card.put_back() for card in self._all]
        return all(done)

    def use_by_others(self, ours: Collection[int]) -> Use:
        """Whether a program that is none of `ours` computes on one of them."""
        uses = [card.use_by_others(ours) for card in self._all]
        busy = [use for use in uses if use.others]
        unknown = [use for use in uses if use.others is None]
        return (busy or unknown or uses)[0]

    @property
    def _all(self) -> list[Gpu]:
        # A thread that a driver holds up may still be at it when another one aims.
        return list(self._cards.values())
