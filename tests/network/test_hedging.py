"""Competitors of a slow transfer, on simulated lines: useful where a provider is slow, and no burden
where our own line is."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import trio
from distro_node.crypto.hashing import content_id
from distro_node.crypto.identity import PeerId
from distro_node.node.network.exchange.attempt import TransferAttempt, superfluous
from distro_node.node.network.exchange.blobs import FOUND, BlobFetcher
from distro_node.node.network.traffic import Traffic
from distro_node.node.storage.blob_store import BlobStore
from trio.testing import MockClock
from virtual_time import jumping_clock

DATA = bytes(range(256)) * 4096
CID = content_id(DATA)
PEERS = [PeerId(bytes([number]) * 32) for number in range(1, 5)]
_PIECE_BYTES = 16_384


class SlowLine:
    """The network of a node whose downloads share one line, from providers with lines of their own."""

    peer = PeerId(bytes(32))

    def __init__(self, nursery: trio.Nursery, down: float, up: dict[PeerId, float]) -> None:
        """`down` and `up` in bytes per second; a provider not in `up` is as fast as our line."""
        self._nursery = nursery
        self._down, self._up = down, up
        self._free = 0.0
        self.traffic = Traffic()
        self.arrived: Counter[PeerId] = Counter()

    def connected(self) -> list[PeerId]:
        return PEERS

    def spawn(self, task: Callable[..., Awaitable[object]], *arguments: object) -> None:
        self._nursery.start_soon(task, *arguments)

    async def request(
        self, peer: PeerId, *_: object, progress: Callable[[int], None], **options: object
    ) -> bytes:
        done = 0
        while done < len(DATA):
            size = min(_PIECE_BYTES, len(DATA) - done)
            await trio.sleep(size / self._up.get(peer, math.inf))
            self._free = max(self._free, trio.current_time()) + size / self._down
            await trio.sleep_until(self._free)
            done += size
            self.arrived[peer] += size
            progress(done)
        return FOUND + DATA


async def fetched(folder: Path, down: float, up: dict[PeerId, float]) -> tuple[SlowLine, float]:
    """Fetch the blob; return the network and the seconds that it took."""
    async with trio.open_nursery() as nursery:
        line: Any = SlowLine(nursery, down, up)
        began = trio.current_time()
        data = await BlobFetcher(line, BlobStore(folder)).fetch(
            CID, max_bytes=len(DATA), providers=lambda: PEERS, timeout=10_000.0
        )
        assert data == DATA
        return line, trio.current_time() - began


@pytest.fixture
def clock() -> Iterator[MockClock]:
    with jumping_clock() as clock:
        yield clock


@pytest.mark.parametrize("down", [15_000, 34_000])
async def test_a_slow_line_carries_a_blob_about_once(
    clock: MockClock, tmp_path: Path, down: int
) -> None:
    """Three providers at once took two and a half times as long."""
    line, seconds = await fetched(tmp_path, down, {})
    assert sum(line.arrived.values()) < 1.4 * len(DATA)
    assert seconds < 1.4 * len(DATA) / down


async def test_a_provider_that_is_slower_than_our_line_is_left(
    clock: MockClock, tmp_path: Path
) -> None:
    up = dict.fromkeys(PEERS, 2_000.0)
    up[PEERS[2]] = 200_000.0
    line, seconds = await fetched(tmp_path, 1e6, up)
    assert line.arrived[PEERS[2]] >= len(DATA)
    # A competitor comes after a few seconds each time, and one of four is fast.
    assert seconds < 60.0


def attempt(now: float) -> TransferAttempt:
    return TransferAttempt(PEERS[0], now, stall=1.0, total=2.0, size=1_000_000, is_relay=False)


async def test_the_first_stays_unless_another_is_clearly_faster_since_they_compete(
    clock: MockClock,
) -> None:
    first = attempt(0.0)
    # Fast until then.
    first.note(600_000)
    await trio.sleep(10.0)
    first.note_competitor(10.0)
    second = attempt(10.0)
    await trio.sleep(2.0)
    first.note(601_000)
    assert superfluous([first, second], 12.0) is None
    second.note(500_000)
    assert superfluous([first, second], 12.0) is first
    first.note(800_000)
    assert superfluous([first, second], 12.0) is second
    assert superfluous([first], 12.0) is None
