"""The fast paths behave like the library: locks in order, complete messages however they are split."""

from __future__ import annotations

import struct
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import trio
import trio.testing
from distro_node.crypto.identity import PeerId
from distro_node.node.network import fast_paths
from distro_node.node.network.cancel_scopes import open_scope
from distro_node.node.network.circuit_client import write_patiently
from distro_node.node.network.fast_paths import BufferedNoise, EagerLock
from distro_node.node.network.flow_control import NotifyingAttribute
from distro_node.node.network.streams import reset, write_frame
from hypothesis import given
from hypothesis import strategies as st
from libp2p.custom_types import TProtocol
from libp2p.io.exceptions import ConnectionClosedError, IncompleteReadError
from libp2p.security.noise.io import MAX_PLAINTEXT_LENGTH
from libp2p.stream_muxer.exceptions import MuxedStreamError
from libp2p.stream_muxer.yamux.yamux import HEADER_SIZE, YAMUX_HEADER_FORMAT
from network.support import star

# Private here: `_host`: a peer that opens a stream and never reads.

KEY = 0x5A


class Plank:
    """Replaces a Noise session and all layers below it by a wire that delivers `pieces`."""

    def __init__(self, pieces: list[bytes], negotiated: bytes = b"") -> None:
        self._pieces = pieces
        self._negotiated = negotiated
        self.sent: list[bytes] = []
        self.conn = self.read_writer = self.read_write_closer = self
        self.stream = None

    def _drain(self, n: int | None) -> bytes:
        return self._negotiated

    def encrypt(self, data: bytes) -> bytes:
        return bytes(byte ^ KEY for byte in data) + b"tag"

    def decrypt(self, data: bytes) -> bytes:
        assert data.endswith(b"tag")
        return bytes(byte ^ KEY for byte in data[:-3])

    async def read(self, n: int) -> bytes:
        piece = self._pieces.pop(0) if self._pieces else b""
        if len(piece) > n:
            self._pieces.insert(0, piece[n:])
        return piece[:n]

    async def write(self, data: bytes) -> None:
        self.sent.append(data)


def wire(pieces: list[bytes], negotiated: bytes = b"") -> BufferedNoise:
    plank: Any = Plank(pieces, negotiated)
    return BufferedNoise(plank)


def run(function: Callable[[], Any]) -> Any:
    """Run in virtual time, for tests that Hypothesis calls."""
    return trio.run(function, clock=trio.testing.MockClock(autojump_threshold=0))


async def sealed(*messages: bytes) -> bytes:
    """Return what the other end puts on the wire."""
    other: Any = Plank([])
    sender = BufferedNoise(other)
    for message in messages:
        await sender.write(message)
    return b"".join(other.sent)


@given(
    st.lists(st.binary(min_size=1, max_size=6000), max_size=5),
    st.lists(st.integers(1, 9000), max_size=12),
    st.lists(st.integers(1, 5000), min_size=1, max_size=8),
    st.binary(max_size=20),
)
def test_messages_come_whole_however_they_are_cut(
    messages: list[bytes], cuts: list[int], reads: list[int], negotiated: bytes
) -> None:
    async def check() -> None:
        stream = await sealed(*messages)
        pieces = []
        for cut in cuts:
            pieces.append(stream[:cut])
            stream = stream[cut:]
        reader = wire([piece for piece in [*pieces, stream] if piece], negotiated)
        got, wanted = b"", negotiated + b"".join(messages)
        while len(got) < len(wanted):
            count = reads[len(got) % len(reads)]
            ready = reader.take(count)
            piece = await reader.read(count) if ready is None else ready
            assert 1 <= len(piece) <= count
            got += piece
        assert got == wanted
        with pytest.raises(IncompleteReadError) as ended:
            await reader.read(1)
        assert ended.value.is_clean_close

    run(check)


async def test_a_message_that_breaks_off_is_no_proper_end() -> None:
    stream = await sealed(b"whole", b"broken")
    reader = wire([stream[:-1]])
    assert await reader.read() == b"whole"
    with pytest.raises(IncompleteReadError) as ended:
        await reader.read()
    assert not ended.value.is_clean_close


async def test_an_empty_message_ends_the_connection() -> None:
    """As in the library; a peer has no reason to send one."""
    reader = wire([b"\0\3tag"])
    with pytest.raises(ConnectionClosedError):
        await reader.read(1)


async def test_what_is_too_long_for_one_message_takes_several() -> None:
    data = bytes(range(256)) * 600
    reader = wire([await sealed(data)])
    got = [await reader.read(), await reader.read(), await reader.read()]
    assert b"".join(got) == data
    assert max(map(len, got)) == MAX_PLAINTEXT_LENGTH


# --- locks ---------------------------------------------------------------------------------------


async def test_a_free_lock_lets_nobody_run_before() -> None:
    lock, others = EagerLock(), []

    async def other() -> None:
        others.append("ran")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(other)
        for _ in range(100):
            async with lock:
                assert not others


async def test_a_taken_lock_is_handed_on_in_order_past_those_who_gave_up() -> None:
    lock, taken = EagerLock(), []
    impatient = open_scope()

    async def take(name: str, scope: Any) -> None:
        with scope:
            async with lock:
                taken.append(name)
                await trio.lowlevel.checkpoint()

    async with trio.open_nursery() as nursery, lock:
        for name in "abcd":
            nursery.start_soon(take, name, impatient if name == "b" else open_scope())
            await trio.testing.wait_all_tasks_blocked()
        impatient.cancel()
        await trio.testing.wait_all_tasks_blocked()
        assert not taken
    assert taken == ["a", "c", "d"]


async def test_who_is_cancelled_does_not_take_a_free_lock() -> None:
    lock = EagerLock()
    with open_scope() as scope:
        scope.cancel()
        async with lock:
            raise AssertionError("it was taken")
    assert scope.cancelled_caught
    with trio.fail_after(60):
        async with lock:
            pass


# --- streams -------------------------------------------------------------------------------------


class Sender:
    """What `write_stream` needs of a stream and its connection."""

    send_window = NotifyingAttribute("send_window")
    closed = NotifyingAttribute("closed")
    send_closed = NotifyingAttribute("send_closed")

    def __init__(self, window: int) -> None:
        self.send_window = window
        self.closed = self.send_closed = False
        self.stream_id = 1
        self.conn = self
        self.sent = b""

        self.calls = 0

    async def _write_frame(self, data: bytes) -> None:
        self.calls += 1
        assert len(data) <= 4 * MAX_PLAINTEXT_LENGTH
        while data:
            size = struct.unpack(YAMUX_HEADER_FORMAT, data[:HEADER_SIZE])[-1]
            assert HEADER_SIZE + size <= MAX_PLAINTEXT_LENGTH
            self.sent, data = self.sent + data[HEADER_SIZE:][:size], data[HEADER_SIZE + size :]


async def test_a_writer_keeps_to_its_credit(autojump_clock: trio.testing.MockClock) -> None:
    stream: Any = Sender(100_000)
    data = bytes(range(256)) * 1000
    async with trio.open_nursery() as nursery:
        nursery.start_soon(fast_paths.write_stream, stream, data)
        await trio.sleep(1)
        assert stream.sent == data[:100_000]
        assert stream.send_window == 0
        stream.send_window = 1_000_000
    assert stream.sent == data
    assert stream.send_window == 1_000_000 - (len(data) - 100_000)


async def test_four_frames_are_written_at_once() -> None:
    stream: Any = Sender(10**6)
    data = bytes(range(256)) * 1500
    await fast_paths.write_stream(stream, data)
    assert stream.sent == data
    assert stream.calls == 2


async def test_a_writer_without_credit_gives_up(autojump_clock: trio.testing.MockClock) -> None:
    stream: Any = Sender(0)
    begun = trio.current_time()
    with pytest.raises(MuxedStreamError, match="credit"):
        await fast_paths.write_stream(stream, b"x")
    assert trio.current_time() - begun == pytest.approx(5.0)


@pytest.mark.parametrize("end", ["closed", "send_closed"])
async def test_a_writer_notices_the_end(end: str, autojump_clock: trio.testing.MockClock) -> None:
    stream: Any = Sender(0)

    async def write() -> None:
        with pytest.raises(MuxedStreamError, match="closed"):
            await fast_paths.write_stream(stream, b"x")

    begun = trio.current_time()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(write)
        await trio.sleep(1)
        setattr(stream, end, True)
    assert not stream.sent
    assert trio.current_time() - begun == pytest.approx(1.0)


class Steps(trio.abc.Instrument):
    """Counts how often any task runs."""

    def __init__(self) -> None:
        self.count = 0

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self.count += 1


@pytest.mark.parametrize("write", [fast_paths.write_stream, write_patiently])
async def test_a_writer_without_credit_sleeps_until_it_comes(
    write: Any, autojump_clock: trio.testing.MockClock
) -> None:
    """And does not poll for it: nothing runs in between."""
    stream: Any = Sender(0)
    stream.muxed_stream, steps = stream, Steps()
    stream.write = partial(fast_paths.write_stream, stream)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(write, stream, b"data")
        await trio.testing.wait_all_tasks_blocked()
        trio.lowlevel.add_instrument(steps)
        await trio.sleep(4)
        # This task itself.
        assert steps.count <= 2
        trio.lowlevel.remove_instrument(steps)
        begun = trio.current_time()
        stream.send_window = 10
    assert stream.sent == b"data"
    assert trio.current_time() == begun


async def test_nobody_looks_for_credit_on_a_real_connection() -> None:
    """Before: a hundred times a second, so that the tasks were never all asleep."""
    async with star(2) as (a, b):

        async def never_read(stream: Any) -> None:
            await trio.sleep_forever()

        b._host.set_stream_handler(TProtocol("/test/deaf"), never_read)
        stream = await a.requests.open_stream(b.peer, "/test/deaf")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_write_in_vain, stream)
            with trio.fail_after(4):
                while stream.muxed_stream.send_window:  # noqa: ASYNC110  (whenever it is used up)
                    await trio.sleep(0.01)
                await trio.testing.wait_all_tasks_blocked(0.1)
            nursery.cancel_scope.cancel()
        await reset(stream)


async def _write_in_vain(stream: Any) -> None:
    await stream.write(bytes(1 << 20))


async def test_a_read_that_is_cancelled_loses_nothing() -> None:
    """The bytes of a stream are there for the next read, however often one is given up."""
    data = bytes(range(256)) * 2000
    async with star(2) as (a, b):

        async def answer(peer: PeerId, request: bytes) -> bytes:
            return data

        b.serve("/test/1", answer, max_request=1, max_concurrent=1)
        stream = await a.requests.open_stream(b.peer, "/test/1")
        await write_frame(stream, b"")
        got, cancelled = b"", 0
        while len(got) < 5 + len(data):
            with open_scope() as scope:
                # Every other read is cancelled before it can begin.
                if cancelled * 5000 <= len(got):
                    scope.cancel()
                got += await stream.read(5000)
            cancelled += scope.cancelled_caught
        assert got[5:] == data
        assert cancelled > 50
        await reset(stream)
