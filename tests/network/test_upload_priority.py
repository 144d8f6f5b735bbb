"""Rounds before newcomers: the share of each on a line, in virtual time."""

from __future__ import annotations

import pytest
import trio
from distro_node.node.network.ledbat import FEWEST_BYTES, TcpSample
from distro_node.node.network.rate_limits import Rate
from distro_node.node.network.upload_priority import Priority, UploadPriorities
from trio.testing import MockClock

PIECE = 65_507
SPEED = 1_000_000.0


async def send(priority: Priority, size: int) -> float:
    """Send `size` bytes as a transfer does; return the seconds that it took."""
    begun = trio.current_time()
    while size > 0:
        piece = min(size, priority.piece(PIECE))
        await priority.spend(piece)
        size -= piece
    return trio.current_time() - begun


class Connection:
    """A connection without a socket: nothing is known of its line."""


class Wire(Rate):
    """A line whose speed is not configured but takes its time, as a socket's buffer does."""

    async def spend(self, size: int) -> None:
        self.free = max(getattr(self, "free", 0.0), trio.current_time()) + size / SPEED
        await trio.sleep_until(self.free)


@pytest.mark.parametrize("rate", [Rate(SPEED), Wire()], ids=["limit", "line"])
async def test_a_round_loses_a_fiftieth_to_newcomers_and_no_more(
    rate: Rate, autojump_clock: MockClock
) -> None:
    priorities = UploadPriorities(rate)
    size, got = 8_000_000, 0

    async def newcomers() -> None:
        nonlocal got
        bulk = priorities.bulk(Connection())
        while True:
            piece = bulk.piece(PIECE)
            await bulk.spend(piece)
            got += piece

    async with trio.open_nursery() as nursery:
        for _ in range(4):
            nursery.start_soon(newcomers)
        await trio.sleep(2.0)
        # Without other senders: all of the line.
        assert got == pytest.approx(2.0 * SPEED, rel=0.15)
        got = 0
        with priorities.urgent(Connection()) as priority:
            seconds = await send(priority, size)
        # What was being sent when the update began goes out before it.
        assert seconds <= (size / 0.98 + 5 * PIECE) / SPEED
        assert 0.015 * size < got < 0.025 * size + 5 * PIECE
        # And again all of it.
        got = 0
        await trio.sleep(2.0)
        assert got == pytest.approx(2.0 * SPEED, rel=0.15)
        nursery.cancel_scope.cancel()


async def test_several_updates_share_what_is_left(autojump_clock: MockClock) -> None:
    priorities = UploadPriorities(Rate(SPEED))
    ends: list[float] = []

    async def update() -> None:
        with priorities.urgent(Connection()) as priority:
            ends.append(await send(priority, 2_000_000))

    async def newcomer() -> None:
        await send(priorities.bulk(Connection()), 100_000_000)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(newcomer)
        async with trio.open_nursery() as updates:
            for _ in range(3):
                updates.start_soon(update)
        nursery.cancel_scope.cancel()
    assert max(ends) <= 1.06 * 6.0 + 0.2


async def test_an_update_to_somebody_frozen_stops_no_newcomer(autojump_clock: MockClock) -> None:
    priorities = UploadPriorities(Rate(SPEED))
    with priorities.urgent(Connection()) as priority:
        await priority.spend(1000)
        begun = trio.current_time()
        await send(priorities.bulk(Connection()), 1_000_000)
        assert trio.current_time() - begun < 3.0


async def test_a_newcomer_is_never_left_without_an_answer(autojump_clock: MockClock) -> None:
    """The other end takes ten seconds of silence for an end."""
    priorities = UploadPriorities(Rate(1000.0))

    async def updates() -> None:
        with priorities.urgent(Connection()) as priority:
            await send(priority, 10_000_000)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(updates)
        await trio.sleep(1.0)
        bulk = priorities.bulk(Connection())
        for _ in range(5):
            begun = trio.current_time()
            await bulk.spend(bulk.piece(PIECE))
            assert trio.current_time() - begun < 10.0
        nursery.cancel_scope.cancel()


class Socket:
    """The kernel's state of a connection over the line."""

    def __init__(self) -> None:
        self.handed, self.arrived = 0, 0
        self.round_trip = 0.01

    def read(self) -> TcpSample:
        return TcpSample(
            now=trio.current_time(),
            round_trip=self.round_trip,
            deviation=0.0,
            shortest=0.01,
            acknowledged=self.arrived,
            in_flight=self.handed - self.arrived,
            unsent=0,
        )


@pytest.fixture
def sockets(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the tests that use it, the connection object replaces the kernel's state."""
    monkeypatch.setattr(
        "distro_node.node.network.upload_priority.gauge", lambda connection: connection.read
    )


@pytest.mark.usefixtures("sockets")
async def test_newcomers_wait_until_the_end_of_an_update_has_arrived(
    autojump_clock: MockClock,
) -> None:
    """Not only until the kernel has accepted it: that end is a tenth of it or more."""
    priorities, member, newcomer = UploadPriorities(Rate()), Socket(), Socket()
    with priorities.urgent(member) as priority:
        await priority.spend(300_000)
        member.handed = 300_000
        await trio.sleep(1.0)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(priorities.bulk(newcomer).spend, PIECE)
        for arrived in (100_000, 200_000, 299_999):
            member.arrived = arrived
            await trio.sleep(0.1)
            assert nursery.child_tasks
        member.arrived = 300_000
        await trio.sleep(0.1)
        assert not nursery.child_tasks


@pytest.mark.usefixtures("sockets")
@pytest.mark.parametrize(("took", "waited"), [(0.05, 0.05), (3.0, 0.5)], ids=["short", "long"])
async def test_an_update_to_a_slow_reader_holds_up_newcomers_no_longer_than_a_line_would(
    took: float, waited: float, autojump_clock: MockClock
) -> None:
    """Where rounds are short and the other end reads slowly, some tail is always in flight."""
    priorities, member, newcomer = UploadPriorities(Rate()), Socket(), Socket()
    with priorities.urgent(member) as priority:
        await priority.spend(3_000)
        member.handed = 3_000
        await trio.sleep(took)
    begun = trio.current_time()
    await priorities.bulk(newcomer).spend(PIECE)
    assert trio.current_time() - begun == pytest.approx(waited, abs=0.03)


@pytest.mark.usefixtures("sockets")
async def test_newcomers_wait_for_room_on_their_line(autojump_clock: MockClock) -> None:
    priorities, newcomer = UploadPriorities(Rate()), Socket()
    priority = priorities.bulk(newcomer)
    # All transfers of one connection share the bytes that it may have in flight.
    assert priorities.bulk(newcomer) is priority
    piece = priority.piece(PIECE)
    assert piece <= FEWEST_BYTES
    await priority.spend(piece)
    newcomer.handed = FEWEST_BYTES
    async with trio.open_nursery() as nursery:
        nursery.start_soon(priority.spend, piece)
        await trio.sleep(1.0)
        assert nursery.child_tasks
        newcomer.arrived = FEWEST_BYTES
    # Even if nothing is acknowledged, the other end receives something before it gives up.
    newcomer.handed += FEWEST_BYTES
    with trio.fail_after(5.0):
        await priority.spend(piece)
