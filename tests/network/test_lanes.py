"""Rounds before newcomers: what each gets of a line, in virtual time."""

from __future__ import annotations

import pytest
import trio
from distro_node.node.network.lanes import Lane, Lanes
from distro_node.node.network.rates import Rate
from trio.testing import MockClock

PIECE = 65_507
SPEED = 1_000_000.0


async def send(lane: Lane, size: int) -> float:
    """Send so many bytes as a transfer does; the seconds that it took."""
    begun = trio.current_time()
    while size > 0:
        piece = min(size, lane.piece(PIECE))
        await lane.spend(piece)
        size -= piece
    return trio.current_time() - begun


class Wire(Rate):
    """A line whose speed is nowhere set but takes its time, as a socket's buffer does."""

    async def spend(self, size: int) -> None:
        self.free = max(getattr(self, "free", 0.0), trio.current_time()) + size / SPEED
        await trio.sleep_until(self.free)


@pytest.mark.parametrize("rate", [Rate(SPEED), Wire()], ids=["limit", "line"])
async def test_a_round_loses_a_twentieth_to_newcomers_and_no_more(
    rate: Rate, autojump_clock: MockClock
) -> None:
    lanes = Lanes(rate)
    size, got = 8_000_000, 0

    async def newcomers() -> None:
        nonlocal got
        while True:
            piece = lanes.patient.piece(PIECE)
            await lanes.patient.spend(piece)
            got += piece

    async with trio.open_nursery() as nursery:
        for _ in range(4):
            nursery.start_soon(newcomers)
        await trio.sleep(2.0)
        # Nobody else sends: all of the line.
        assert got == pytest.approx(2.0 * SPEED, rel=0.15)
        got = 0
        with lanes.urgent() as lane:
            seconds = await send(lane, size)
        # What was under way when the update began goes out before it.
        assert seconds <= (size / 0.95 + 5 * PIECE) / SPEED
        assert 0.03 * size < got < 0.06 * size + 5 * PIECE
        # And again all of it.
        got = 0
        await trio.sleep(2.0)
        assert got == pytest.approx(2.0 * SPEED, rel=0.15)
        nursery.cancel_scope.cancel()


async def test_several_updates_share_what_is_left(autojump_clock: MockClock) -> None:
    lanes = Lanes(Rate(SPEED))
    ends: list[float] = []

    async def update() -> None:
        with lanes.urgent() as lane:
            ends.append(await send(lane, 2_000_000))

    async def newcomer() -> None:
        await send(lanes.patient, 100_000_000)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(newcomer)
        async with trio.open_nursery() as updates:
            for _ in range(3):
                updates.start_soon(update)
        nursery.cancel_scope.cancel()
    assert max(ends) <= 1.06 * 6.0 + 0.2


async def test_an_update_to_somebody_frozen_stops_no_newcomer(autojump_clock: MockClock) -> None:
    lanes = Lanes(Rate(SPEED))
    with lanes.urgent() as lane:
        await lane.spend(1000)
        begun = trio.current_time()
        await send(lanes.patient, 1_000_000)
        assert trio.current_time() - begun < 3.0


async def test_a_newcomer_is_never_left_without_a_word(autojump_clock: MockClock) -> None:
    """The other end takes ten seconds of silence for an end."""
    lanes = Lanes(Rate(1000.0))

    async def updates() -> None:
        with lanes.urgent() as lane:
            await send(lane, 10_000_000)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(updates)
        await trio.sleep(1.0)
        for _ in range(5):
            begun = trio.current_time()
            await lanes.patient.spend(lanes.patient.piece(PIECE))
            assert trio.current_time() - begun < 10.0
        nursery.cancel_scope.cancel()
