"""Bandwidth limits: exact in virtual time, and at least as slow over real connections."""

from __future__ import annotations

from dataclasses import replace

import pytest
import trio
import trio.testing
from distro_node.crypto.identity import PeerId
from distro_node.node.network.network import NetworkSettings, open_network
from distro_node.node.network.rate_limits import Rate
from network.support import LOOPBACK, identity

BURST_SECONDS = 0.1


async def test_without_a_limit_nothing_waits(autojump_clock: trio.testing.MockClock) -> None:
    begun = trio.current_time()
    rate = Rate()
    for _ in range(100):
        await rate.spend(1 << 30)
    assert rate.piece(77) == 77
    assert trio.current_time() == begun


async def test_what_is_spent_takes_its_time(autojump_clock: trio.testing.MockClock) -> None:
    rate = Rate(1000.0)
    begun = trio.current_time()
    for _ in range(10):
        await rate.spend(500)
    assert trio.current_time() - begun == pytest.approx(5.0 - BURST_SECONDS)


async def test_a_limit_may_be_changed_and_lifted(autojump_clock: trio.testing.MockClock) -> None:
    rate = Rate()
    rate.limit = 1000.0
    begun = trio.current_time()
    await rate.spend(1000)
    assert trio.current_time() - begun == pytest.approx(1.0 - BURST_SECONDS)
    rate.limit = None
    begun = trio.current_time()
    await rate.spend(1 << 30)
    assert trio.current_time() == begun
    assert not rate.is_limited


async def test_what_waits_follows_a_new_limit(autojump_clock: trio.testing.MockClock) -> None:
    """Before: whoever waited went on waiting by the old limit, and so did all that came after."""
    rate = Rate(100.0)
    begun = trio.current_time()
    ends: list[float] = []

    async def spend(size: int) -> None:
        await rate.spend(size)
        ends.append(trio.current_time() - begun)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(spend, 1010)
        await trio.sleep(5.0)
        rate.limit = 1000.0
        nursery.start_soon(spend, 1000)
    # 500 bytes in the first five seconds, besides the burst, and then ten times as many a second.
    assert ends == pytest.approx([5.5, 6.5])
    async with trio.open_nursery() as nursery:
        nursery.start_soon(spend, 100_000)
        await trio.sleep(1.0)
        rate.limit = None
    assert ends[-1] == pytest.approx(7.5)
    rate.limit = 1000.0
    await spend(1000)
    assert ends[-1] == pytest.approx(8.5)


async def test_gossip_never_stops_bulk_for_long(autojump_clock: trio.testing.MockClock) -> None:
    """Before: gossip beyond the limit added to a debt without bound, which all else had to pay."""
    rate = Rate(1000.0)
    for _ in range(3600):
        rate.note(1100)
        await trio.sleep(1.0)
    begun = trio.current_time()
    await rate.spend(1000)
    assert trio.current_time() - begun < 7.0


async def test_a_line_that_rested_owes_only_a_burst(autojump_clock: trio.testing.MockClock) -> None:
    rate = Rate(1000.0)
    await rate.spend(500)
    await trio.sleep(3600)
    begun = trio.current_time()
    await rate.spend(1000)
    assert trio.current_time() - begun == pytest.approx(1.0 - BURST_SECONDS)


async def test_all_share_one_line(autojump_clock: trio.testing.MockClock) -> None:
    rate = Rate(1000.0)
    begun, ends = trio.current_time(), []

    async def send() -> None:
        for _ in range(4):
            await rate.spend(250)
        ends.append(trio.current_time() - begun)

    async with trio.open_nursery() as nursery:
        for _ in range(4):
            nursery.start_soon(send)
    assert max(ends) == pytest.approx(4.0 - BURST_SECONDS)
    # And no one finishes before all others.
    assert min(ends) > 3.0


async def test_gossip_does_not_wait_but_bulk_pays(autojump_clock: trio.testing.MockClock) -> None:
    rate = Rate(1000.0)
    begun = trio.current_time()
    rate.note(2000)
    assert trio.current_time() == begun
    await rate.spend(1000)
    assert trio.current_time() - begun == pytest.approx(3.0 - BURST_SECONDS)


async def test_a_piece_keeps_the_other_end_from_waiting() -> None:
    assert Rate(64_000.0).piece(1 << 18) == 8000
    assert Rate(1e9).piece(1 << 18) == 1 << 18
    assert Rate(1.0).piece(1 << 18) == 1


SIZE, LIMIT = 300_000, 400_000.0


async def test_a_slow_reader_of_much_is_not_given_up() -> None:
    """The sender waits five seconds for new credit; half of a window takes this reader longer."""

    async def answer(peer: PeerId, request: bytes) -> bytes:
        return bytes(1_500_000)

    slow = replace(LOOPBACK, max_download=100_000.0)
    async with (
        open_network(LOOPBACK, identity(1)) as server,
        open_network(slow, identity(2)) as client,
    ):
        server.serve("/bulk", answer, max_request=1, max_concurrent=4)
        await client.connect(server.addresses[0])
        answered = await client.request(
            server.peer, "/bulk", b"x", max_response=1_500_000, timeout=120
        )
    assert len(answered) == 1_500_000


@pytest.mark.parametrize(
    ("server_settings", "client_settings"),
    [
        (replace(LOOPBACK, max_upload=LIMIT), LOOPBACK),
        (LOOPBACK, replace(LOOPBACK, max_download=LIMIT)),
    ],
    ids=["upload", "download"],
)
async def test_a_transfer_keeps_to_the_limit(
    server_settings: NetworkSettings, client_settings: NetworkSettings
) -> None:
    """A busy machine takes longer, none is faster."""

    async def answer(peer: PeerId, request: bytes) -> bytes:
        return bytes(SIZE)

    async with (
        open_network(server_settings, identity(1)) as server,
        open_network(client_settings, identity(2)) as client,
    ):
        server.serve("/bulk", answer, max_request=1, max_concurrent=4)
        await client.connect(server.addresses[0])
        begun = trio.current_time()
        heard: list[int] = []
        answered = await client.request(
            server.peer, "/bulk", b"x", max_response=SIZE, timeout=60, progress=heard.append
        )
        assert len(answered) == SIZE
        assert trio.current_time() - begun >= SIZE / LIMIT - 2 * BURST_SECONDS
        # It arrives steadily, so that a slow line is not taken for a dead one.
        assert len(heard) >= SIZE / (LIMIT * 0.125)
