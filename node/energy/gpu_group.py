"""All GPUs of this machine that a member computes on, with the interface of one `Gpu`.

Every method blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from .arithmetic import MeterReading
from .gpu import Gpu, GpuUse


class GpuGroup:
    """Cards, found by their UUIDs. `make` creates a `Gpu` that has no card selected yet."""

    def __init__(self, make: Callable[[], Gpu] = Gpu) -> None:
        self._make = make
        self._cards: dict[str | None, Gpu] = {}
        self.select(())

    def select(self, uuids: Sequence[str]) -> None:
        """Select the cards with these UUIDs, and close the others.

        Without UUIDs the group has one `Gpu` that stands for no card.
        """
        wanted: Sequence[str | None] = uuids or (None,)
        for uuid in self._cards.keys() - set(wanted):
            self._cards.pop(uuid).close()
        for uuid in wanted:
            if uuid not in self._cards:
                self._cards[uuid] = card = self._make()
                card.select(uuid)

    @property
    def why(self) -> str | None:
        """Why readings are unavailable, as text for users; None if they are available."""
        return next((card.why for card in self._all if card.why is not None), None)

    def read(self) -> MeterReading | None:
        """Return all cards' energy counters and total power; None if those of any card are unknown."""
        found = [card.read() for card in self._all]
        known = [reading for reading in found if reading is not None]
        if len(known) < len(found):
            return None
        watts = [reading.watts for reading in known if reading.watts is not None]
        counters = {card: count for reading in known for card, count in reading.counters.items()}
        return MeterReading(
            at=known[0].at,
            # If one card has no counter, power is integrated for all.
            counters=counters if all(reading.counters for reading in known) else {},
            watts=sum(watts) if len(watts) == len(known) else None,
        )

    def use_by_others(self, ours: Collection[int]) -> GpuUse:
        """Return the use of the cards by programs other than the processes `ours` (ids): that of a card
        that others use; if there is none, of a card where this is unknown; else of the first card."""
        uses = [card.use_by_others(ours) for card in self._all]
        busy = [use for use in uses if use.others]
        unknown = [use for use in uses if use.others is None]
        return (busy or unknown or uses)[0]

    @property
    def _all(self) -> list[Gpu]:
        # A thread stuck in the driver may still iterate while another one calls `select`.
        return list(self._cards.values())
