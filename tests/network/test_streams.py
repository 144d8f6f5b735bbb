"""Streams that a peer gives up, never ends or hoards: neither side keeps anything of them."""

from __future__ import annotations

from typing import Any

import pytest
import trio
import trio.testing
from distro_node.crypto.identity import PeerId
from distro_node.node.network import library_patches, requests, streams
from distro_node.node.network.addresses import id_of, parse_dial, peer_of
from distro_node.node.network.cancel_scopes import open_scope
from distro_node.node.network.errors import RequestError
from distro_node.node.network.network import Network
from distro_node.node.network.streams import read_frame, write_frame
from libp2p.custom_types import TProtocol
from network.support import ECHO, echo, muxers, requests_open, star, until

# Private here: `_host`, `_write_lock`: a peer that opens a stream and sends nothing, and a connection
# that is stuck.


async def ask(asker: Network, peer: PeerId) -> bytes:
    return await asker.request(peer, ECHO, b"x", max_response=100, timeout=1000, idle_timeout=1000)


def quiet(*opened: Network) -> bool:
    """Whether only gossip is open, one stream each way on every connection."""
    return not any(map(requests_open, opened)) and all(
        len(muxer.streams) == 2 for each in opened for muxer in muxers(each)
    )


@pytest.fixture(autouse=True)
def patient_handlers(monkeypatch: pytest.MonkeyPatch) -> None:
    """The handlers' own timeout must not be what ends them."""
    monkeypatch.setattr(requests, "_HANDLER_SECONDS", 1000.0)


class Frozen:
    """A handler that never answers."""

    def __init__(self, network: Network, max_concurrent: int = 1000) -> None:
        self.begun = trio.Event()
        self.working = 0
        network.serve(ECHO, self._answer, max_request=10, max_concurrent=max_concurrent)

    async def _answer(self, peer: PeerId, request: bytes) -> bytes:
        self.begun.set()
        self.working += 1
        try:
            await trio.sleep_forever()
            return b""
        finally:
            self.working -= 1


class CancelAt(trio.abc.Instrument):
    """Cancels a scope as soon as the task that created this has run `step` times."""

    def __init__(self, step: int, scope: trio.CancelScope) -> None:
        self.left = step
        self._task = trio.lowlevel.current_task()
        self._scope = scope

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        if task is self._task:
            self.left -= 1
            if not self.left:
                self._scope.cancel()


async def test_what_is_given_up_is_not_worked_on() -> None:
    async with star(2) as (a, b):
        frozen = Frozen(b, max_concurrent=1)
        for _ in range(5):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(ask, a, b.peer)
                # It is served each time: the slot of the one before is free again.
                await frozen.begun.wait()
                frozen.begun = trio.Event()
                nursery.cancel_scope.cancel()
            await until(lambda: not frozen.working)
        await until(lambda: quiet(a, b))


async def test_nor_is_what_a_peer_asked_for_that_has_gone() -> None:
    async with star(2) as (a, b):
        frozen = Frozen(b)
        async with trio.open_nursery() as nursery:

            async def fail() -> None:
                with pytest.raises(RequestError, match="closed"):
                    await ask(a, b.peer)

            nursery.start_soon(fail)
            await frozen.begun.wait()
            await a.disconnect(b.peer)
        await until(lambda: not frozen.working)


@pytest.mark.parametrize("answered", [True, False])
async def test_a_request_can_be_cancelled_at_every_step(answered: bool) -> None:
    async with star(2) as (a, b):
        if answered:
            b.serve(ECHO, echo, max_request=10, max_concurrent=1000)
        before = muxers(a)
        step, more = 0, True
        while more:
            step += 1
            frozen = None if answered else Frozen(b)
            with open_scope() as scope:
                canceller = CancelAt(step, scope)
                trio.lowlevel.add_instrument(canceller)
                try:
                    async with trio.open_nursery() as nursery:
                        if frozen is not None:
                            nursery.start_soon(cancel_when, frozen.begun, scope)
                        await ask(a, b.peer)
                finally:
                    trio.lowlevel.remove_instrument(canceller)
            more = canceller.left <= 0
        assert step > 5
        await until(lambda: quiet(a, b))
        assert muxers(a) == before
        (muxer,) = before
        assert muxer.stream_backlog_semaphore.value == muxer.stream_backlog_limit - 1


async def cancel_when(event: trio.Event, scope: trio.CancelScope) -> None:
    await event.wait()
    # The asker may still have steps to go before it waits for the answer.
    await trio.testing.wait_all_tasks_blocked(0.01)
    scope.cancel()


async def test_a_reset_gets_through_although_nobody_waits_for_the_line() -> None:
    async with star(2) as (a, b):
        frozen = Frozen(b)
        (muxer,) = muxers(a)
        given_up = trio.Event()

        async def give_up(scope: trio.CancelScope) -> None:
            with scope:
                await ask(a, b.peer)
            given_up.set()

        async with trio.open_nursery() as nursery:
            scope = open_scope()
            nursery.start_soon(give_up, scope)
            await frozen.begun.wait()
            async with muxer._write_lock:
                scope.cancel()
                await given_up.wait()
        await until(lambda: not frozen.working)
        await until(lambda: quiet(a, b))


async def test_who_asks_and_never_ends_the_question_is_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with star(2) as (a, b):
        b.serve(ECHO, echo, max_request=10, max_concurrent=1000)
        for seconds, more in ((0.05, b""), (1000.0, b"more than the question")):
            monkeypatch.setattr(streams, "_END_SECONDS", seconds)
            for _ in range(10):
                stream = await a.requests.open_stream(b.peer, ECHO)
                await write_frame(stream, b"x")
                assert await read_frame(stream, 10, 60) == b""
                if more:
                    await stream.write(more)
            await until(lambda: quiet(b))


async def test_so_is_who_answers_and_never_ends_the_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    async with star(2) as (a, b):
        for seconds, more in ((0.05, b""), (1000.0, b"more than the answer")):

            async def answer(stream: Any, more: bytes = more) -> None:
                await stream.write(b"\0\0\0\0\x01x" + more)
                await trio.sleep_forever()

            b._host.set_stream_handler(TProtocol(ECHO), answer)
            monkeypatch.setattr(streams, "_END_SECONDS", seconds)
            for _ in range(10):
                assert await ask(a, b.peer) == b"x"
            await until(lambda: quiet(a))


async def test_a_peer_that_hoards_streams_gets_so_many_and_keeps_nobody_out() -> None:
    async with star(3) as (hub, hoarder, other):
        hub.serve(ECHO, echo, max_request=10, max_concurrent=2)
        # The negotiation timeout must not be what ends them.
        hub._swarm.connection_config.inbound_stream_protocol_negotiation_timeout = 1000.0
        # A second connection does not help.
        await hoarder._swarm.dial_addr(parse_dial(hub.addresses[0])[0], id_of(hub.peer))
        await until(lambda: len(muxers(hub)) == 3)
        hoard = [
            await muxer.open_stream()
            for muxer in muxers(hoarder)
            for _ in range(library_patches.MAX_STREAMS_PER_PEER)
        ]
        await until(lambda: opened_by(hoarder, hub) <= library_patches.MAX_STREAMS_PER_PEER)
        assert opened_by(hoarder, hub) == library_patches.MAX_STREAMS_PER_PEER
        assert await ask(other, hub.peer) == b"x"
        for stream in hoard:
            await stream.reset()
        await until(lambda: opened_by(hoarder, hub) < 10)
        assert await ask(hoarder, hub.peer) == b"x"


def opened_by(peer: Network, other: Network) -> int:
    """Return how many streams of a peer another has in its tables."""
    groups = [
        muxer.streams.values() for muxer in muxers(other) if peer_of(muxer.peer_id) == peer.peer
    ]
    return sum(not stream.is_initiator for group in groups for stream in group)
