"""Connections and requests: what works, the reasons of failures, and what a peer cannot do."""

from __future__ import annotations

import errno
import functools
import os
import socket
from collections import Counter
from typing import Any

import pytest
import trio
from distro_node.crypto.identity import PeerId, peer_text
from distro_node.node.network import liveness, requests
from distro_node.node.network.addresses import id_of
from distro_node.node.network.cancel_scopes import open_scope
from distro_node.node.network.dial import dial_from
from distro_node.node.network.errors import BadAddress, DialError, PortInUse, RequestError
from distro_node.node.network.events import PeerDown, PeerUp
from distro_node.node.network.network import Network, NetworkSettings, open_network
from distro_node.protocol.wire.errors import ProtocolError
from libp2p.custom_types import TProtocol
from network.support import (
    LOOPBACK,
    PATIENCE_SECONDS,
    identity,
    muxers,
    networks,
    requests_open,
    star,
    until,
)

# Private here: `_host`, `_swarm`, `_wire`: peers of other programs, which have libp2p and not our
# network; and its faults.
# Private here: `_publish_event`, `_event_queues`: events that 300 real peers would take minutes to
# cause, and queues of readers that have ended.
# Private here: `_connections`, `_last_connect_attempt`, `_recent_disconnects`: what must not accumulate
# shows nowhere else.

ECHO = "/test/echo/1"


async def echo(peer: PeerId, request: bytes) -> bytes:
    return request


def serve_echo(network: Network, **options: Any) -> None:
    network.serve(ECHO, echo, **{"max_request": 1 << 20, "max_concurrent": 8, **options})


async def ask(asker: Network, peer: PeerId, request: bytes = b"hello", **options: Any) -> bytes:
    settings = {"max_response": 1 << 20, "timeout": PATIENCE_SECONDS, **options}
    return await asker.request(peer, ECHO, request, **settings)


async def outcome(asker: Network, peer: PeerId, **options: Any) -> str:
    """Return the reason a request failed, or the answer."""
    try:
        return (await ask(asker, peer, **options)).decode()
    except RequestError as error:
        return error.reason


async def test_two_peers_connect_and_talk() -> None:
    async with star(2) as (a, b):
        serve_echo(b)
        assert a.connected() == {b.peer}
        assert await ask(a, b.peer) == b"hello"
        big = bytes(range(256)) * 4096
        assert await ask(a, b.peer, big) == big
        assert await ask(a, b.peer, b"") == b""
        await until(lambda: requests_open(a) == requests_open(b) == 0)
        sent, received = a.wire_bytes()
        assert sent > len(big)
        assert received > len(big)
        assert a.traffic.sent["other"] == b.traffic.received["other"] == len(big) + 5
        assert a.traffic.received["other"] == b.traffic.sent["other"] == len(big) + 5


async def test_what_breaks_off_is_counted() -> None:
    """Before: the bytes of an unfinished answer were counted on neither side, although a fetch that
    continues keeps them."""
    big = bytes(4 << 20)
    async with star(2) as (a, b):

        async def answer(peer: PeerId, request: bytes) -> bytes:
            return big

        b.serve("/test/big", answer, max_request=8, max_concurrent=4, kind="blob")
        received = bytearray()
        with open_scope() as scope:

            def progress(size: int) -> None:
                if size >= 1 << 20:
                    scope.cancel()

            await a.request(
                *(b.peer, "/test/big", b"request"),
                max_response=len(big),
                timeout=PATIENCE_SECONDS,
                kind="blob",
                progress=progress,
                into=received,
            )
        assert 1 << 20 <= len(received) < len(big)
        assert a.traffic.received["blob"] == len(received)
        assert a.traffic.sent["blob"] == b.traffic.received["blob"] == len(b"request")
        # What was on its way when it broke off may be counted later, or not at all.
        await until(lambda: b.traffic.sent["blob"] >= len(received) - (1 << 18))
        assert b.traffic.sent["blob"] < len(big)


async def test_addresses_can_be_dialled_and_are_never_0_0_0_0() -> None:
    settings = NetworkSettings(listen=("/ip4/0.0.0.0/tcp/0",))
    async with open_network(settings, identity(1)) as a, open_network(LOOPBACK, identity(2)) as b:
        assert a.addresses
        for address in a.addresses:
            assert "/0.0.0.0/" not in address
            assert address.endswith("/p2p/" + peer_text(a.peer))
        assert await b.connect(a.addresses[0]) == a.peer
        # A second time, and by another address, changes nothing.
        assert await b.connect(a.addresses[-1]) == a.peer


async def test_announced_addresses_replace_the_real_ones() -> None:
    settings = NetworkSettings(
        listen=LOOPBACK.listen, announce=("/dns4/node.example.org/tcp/4001",)
    )
    async with open_network(settings, identity(1)) as a:
        assert a.addresses == ["/dns4/node.example.org/tcp/4001/p2p/" + peer_text(a.peer)]


@pytest.mark.parametrize(
    ("addresses", "why"),
    [
        (("/ip4/0.0.0.0/tcp/4001",), "nobody can dial it"),
        (("/ip6/::/tcp/4001",), "nobody can dial it"),
        (("/dns4/node.example.org/tcp/0",), "nobody can dial it"),
        (tuple(f"/ip4/192.0.2.1/tcp/{port}" for port in range(1, 10)), "only 8 are announced"),
    ],
)
async def test_what_nobody_can_dial_is_not_announced(addresses: tuple[str, ...], why: str) -> None:
    settings = NetworkSettings(listen=LOOPBACK.listen, announce=addresses)
    with pytest.raises(BadAddress, match=why) as caught:
        async with open_network(settings, identity(1)):
            pass
    assert caught.value.text == addresses[-1]


async def test_a_name_is_resolved_as_the_system_does() -> None:
    async with networks(2) as (a, b):
        address = b.addresses[0].replace("/ip4/127.0.0.1/", "/dns4/localhost/")
        assert await a.connect(address) == b.peer


async def test_arrivals_and_departures_are_reported() -> None:
    async with networks(2) as (a, b):
        early = a.peer_events()
        await a.connect(b.addresses[0])
        late = a.peer_events()
        with trio.fail_after(PATIENCE_SECONDS):
            assert await early.receive() == PeerUp(b.peer)
            assert await late.receive() == PeerUp(b.peer)
        await b.disconnect(a.peer)
        with trio.fail_after(PATIENCE_SECONDS):
            assert await early.receive() == PeerDown(b.peer)
        assert a.connected() == frozenset()
        await until(lambda: b.connected() == frozenset())
        await b.connect(a.addresses[0])
        with trio.fail_after(PATIENCE_SECONDS):
            assert await early.receive() == PeerUp(b.peer)


async def test_events_that_nobody_reads_hold_nothing_up() -> None:
    async with networks(1) as (a,):
        events = a.peer_events()
        for number in range(3000):
            a._publish_event(PeerUp(PeerId(number.to_bytes(32, "big"))))
        first = events.receive_nowait()
        assert first == PeerUp(PeerId((3000 - 1024).to_bytes(32, "big")))


async def test_the_events_of_a_reader_that_has_ended_are_forgotten() -> None:
    async with networks(1) as (a,):
        kept = a.peer_events()
        for _ in range(3):
            with a.peer_events():
                pass
        a._publish_event(PeerUp(PeerId(bytes(32))))
        assert len(a._event_queues) == 1
        assert kept.receive_nowait() == PeerUp(PeerId(bytes(32)))


async def test_a_port_that_is_taken() -> None:
    async with networks(1) as (a,):
        taken = a.addresses[0].partition("/p2p/")[0]
        with pytest.raises(PortInUse, match=taken) as caught:
            async with open_network(NetworkSettings(listen=(taken,)), identity(2)):
                pass
        assert caught.value.address == taken
    # It is free again as soon as its owner is gone.
    async with open_network(NetworkSettings(listen=(taken,)), identity(2)):
        pass


@pytest.mark.parametrize(
    ("address", "why"),
    [
        ("", "expected"),
        ("nonsense", "not a multiaddress"),
        ("/ip4/127.0.0.1", "expected"),
        ("/ip4/127.0.0.1/udp/1", "expected"),
        ("/ip4/300.0.0.1/tcp/1", "not a multiaddress"),
        ("/ip4/127.0.0.1/tcp/70000", "not a multiaddress"),
        ("/dns4/example.org/tcp/1", "expected"),
        ("/ip4/192.0.2.1/tcp/0", "no such address"),
        ("/ip4/127.0.0.1/tcp/" + "1" * 300, "longer than"),
    ],
)
async def test_an_address_that_cannot_be_listened_on(address: str, why: str) -> None:
    with pytest.raises(BadAddress, match=why):
        async with open_network(NetworkSettings(listen=(address,)), identity(1)):
            pass


async def test_reasons_of_failed_dials() -> None:
    async with networks(2) as (a, b):
        stranger = peer_text(identity(9).peer)
        with socket.socket() as closed:
            closed.bind(("127.0.0.1", 0))
            port = closed.getsockname()[1]
        with pytest.raises(DialError, match="connection refused"):
            await a.connect(f"/ip4/127.0.0.1/tcp/{port}/p2p/{stranger}")
        with pytest.raises(DialError, match="another peer answers there"):
            await a.connect(b.addresses[0].replace(peer_text(b.peer), stranger))
        with pytest.raises(DialError, match="this is the node itself"):
            await a.connect(a.addresses[0])
        with pytest.raises(BadAddress, match="append /p2p/"):
            await a.connect(b.addresses[0].partition("/p2p/")[0])
        with pytest.raises(BadAddress, match="not a"):
            await a.connect(b.addresses[0][:-1])
        with pytest.raises(DialError, match="does not resolve"):
            await a.connect(f"/dns4/nosuch.invalid/tcp/1/p2p/{stranger}")


async def test_dialling_what_is_no_peer() -> None:
    async def chatter(stream: trio.SocketStream) -> None:
        await stream.send_all(b"HTTP/1.1 400 Bad Request\r\n\r\n" * 10)

    async def silence(stream: trio.SocketStream) -> None:
        await trio.sleep_forever()

    serve: Any = trio.serve_tcp
    stranger = peer_text(identity(9).peer)
    async with networks(1) as (a,), trio.open_nursery() as nursery:
        for handler, reason, timeout in (
            (chatter, "not with the libp2p", 60.0),
            (silence, "within", 0.1),
        ):
            listeners = await nursery.start(functools.partial(serve, handler, 0, host="127.0.0.1"))
            port = listeners[0].socket.getsockname()[1]
            with pytest.raises(DialError, match=reason):
                await a.connect(f"/ip4/127.0.0.1/tcp/{port}/p2p/{stranger}", timeout=timeout)
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("as_responder", [True, False])
async def test_who_hangs_up_in_the_handshake_is_not_reached(as_responder: bool) -> None:
    async def hang_up(stream: trio.SocketStream) -> None:
        await stream.send_all(b"\x13/multistream/1.0.0\n\x07/noise\n")
        await stream.receive_some()

    serve: Any = trio.serve_tcp
    async with networks(1) as (a,), trio.open_nursery() as nursery:
        listeners = await nursery.start(functools.partial(serve, hang_up, 0, host="127.0.0.1"))
        port = listeners[0].socket.getsockname()[1]
        peer = identity(9).peer
        there, here = ("127.0.0.1", port), ("127.0.0.1", 0)
        assert not await dial_from(a._swarm, id_of(peer), there, here, 5.0, as_responder)
        with pytest.raises(DialError):
            await a.connect(f"/ip4/127.0.0.1/tcp/{port}/p2p/{peer_text(peer)}")
        nursery.cancel_scope.cancel()


async def test_an_address_that_is_none_is_one_where_nobody_answers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Network, "listening_port", lambda network, version: 4001)
    async with networks(2) as (a, b):
        for responder in (True, False):
            assert not await a.dial_from_port(
                b.peer, "2600::1%x", 4001, 5.0, as_responder=responder
            )
        assert await a.answers_at(b.peer, "2600::1%x", 4001, 5.0) is False


async def test_what_the_body_raises_comes_out_as_it_is() -> None:
    with pytest.raises(KeyError, match="mine"):
        async with open_network(LOOPBACK, identity(1)):
            raise KeyError("mine")


async def test_cancelling_closes_connections_and_the_port() -> None:
    scope, up = open_scope(), trio.Event()
    address: list[str] = []

    async def run_cancelled() -> None:
        with scope:
            async with open_network(LOOPBACK, identity(2)) as network:
                address.extend(network.addresses)
                up.set()
                await trio.sleep_forever()

    async with networks(1) as (a,), trio.open_nursery() as nursery:
        nursery.start_soon(run_cancelled)
        await up.wait()
        await a.connect(address[0])
        # By a closed socket; detecting silence would take eight seconds.
        scope.cancel()
        await until(lambda: not a.connected(), seconds=liveness.SILENT_SECONDS - 2)
        with pytest.raises(DialError, match="connection refused"):
            await a.connect(address[0])


async def test_requests_that_cannot_be_answered() -> None:
    async with star(3) as (a, b, c):
        serve_echo(b, max_request=100)

        async def refuse(peer: PeerId, request: bytes) -> bytes:
            raise ProtocolError("invalid", "no such thing")

        async def fail(peer: PeerId, request: bytes) -> bytes:
            raise ValueError("a bug")

        b.serve("/test/refuse/1", refuse, max_request=10, max_concurrent=1)
        b.serve("/test/fail/1", fail, max_request=10, max_concurrent=1)
        assert await outcome(a, b.peer, max_response=4) == "oversized"
        assert await outcome(a, c.peer) == "refused"
        assert await outcome(b, c.peer) == "not_connected"
        with pytest.raises(RequestError, match="refuses: invalid"):
            await a.request(b.peer, "/test/refuse/1", b"", max_response=1, timeout=60)
        with pytest.raises(RequestError, match="failed: "):
            await a.request(b.peer, "/test/fail/1", b"", max_response=1, timeout=60)
        assert b.traffic.failures == Counter({"/test/fail/1": 1})
        assert b.traffic.rejected["invalid"] == 1
        # A longer request than is served is an offence, too.
        assert await outcome(a, b.peer, request=bytes(101)) == "closed"
        assert b.traffic.rejected["oversized"] == 1
        assert await outcome(a, b.peer) == "hello"
        await until(lambda: requests_open(a) == requests_open(b) == 0)


async def test_a_full_disk_is_no_fault_of_a_handler(caplog: pytest.LogCaptureFixture) -> None:
    """One line, without a traceback: the node prints a remedy when it ends because of it."""
    async with star(2) as (a, b):

        async def write(peer: PeerId, request: bytes) -> bytes:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        b.serve(ECHO, write, max_request=10, max_concurrent=8)
        assert await outcome(a, b.peer) == "failed"
        messages = [record for record in caplog.records if "the handler of" in record.message]
        assert [(record.levelname, record.exc_info) for record in messages] == [("WARNING", None)]
        assert messages[0].message.endswith("failed: No space left on device")


async def test_a_frozen_handler_and_a_dribbling_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requests, "_HANDLER_SECONDS", 0.3)
    async with star(2) as (a, b):

        async def freeze(peer: PeerId, request: bytes) -> bytes:
            await trio.sleep_forever()
            return b""

        async def dribble(stream: Any) -> None:
            await stream.write(b"\0\0\0\0\x08half")
            await trio.sleep_forever()

        b.serve(ECHO, freeze, max_request=10, max_concurrent=8)
        b._host.set_stream_handler(TProtocol("/test/dribble/1"), dribble)
        assert await outcome(a, b.peer, timeout=0.1) == "timeout"
        # Our side gives up on its own handler and reports that.
        assert await outcome(a, b.peer) == "failed"
        with pytest.raises(RequestError, match="no data for"):
            await a.request(
                b.peer, "/test/dribble/1", b"", max_response=10, timeout=60, idle_timeout=0.1
            )
        await until(lambda: requests_open(a) == 0)


async def test_more_requests_than_are_served_get_an_answer() -> None:
    async with star(3) as (hub, a, b):
        gate = trio.Event()

        async def wait(peer: PeerId, request: bytes) -> bytes:
            await gate.wait()
            return b"done"

        hub.serve(ECHO, wait, max_request=10, max_concurrent=4)
        outcomes: dict[str, list[str]] = {"a": [], "b": []}

        async def note(name: str, asker: Network) -> None:
            outcomes[name].append(await outcome(asker, hub.peer))

        async with trio.open_nursery() as nursery:
            for _ in range(5):
                nursery.start_soon(note, "a", a)
            # One peer gets half of the slots …
            await until(lambda: outcomes["a"] == ["busy"] * 3)
            for _ in range(5):
                nursery.start_soon(note, "b", b)
            # … and the other half is still there for the others.
            await until(lambda: outcomes["b"] == ["busy"] * 3)
            gate.set()
        assert outcomes == {"a": ["busy"] * 3 + ["done"] * 2, "b": ["busy"] * 3 + ["done"] * 2}


async def test_sixty_cancelled_requests_leave_nothing_behind() -> None:
    async with star(2) as (a, b):
        answer = bytes(2_000_000)

        async def large(peer: PeerId, request: bytes) -> bytes:
            return answer

        b.serve(ECHO, large, max_request=10, max_concurrent=1000)
        before = muxers(a)
        broken_off = 0
        for attempt in range(60):
            # Cut off after more and more bytes of the answer, and in between at once.
            with open_scope() as scope:

                def cut(size: int, limit: int = attempt * 40_000, scope: Any = scope) -> None:
                    if size >= limit:
                        scope.cancel()

                if attempt % 6 == 0:
                    scope.deadline = trio.current_time() + attempt * 0.0002
                await ask(a, b.peer, b"x", max_response=1 << 22, progress=cut)
            broken_off += scope.cancelled_caught
        assert broken_off >= 40
        assert len(await ask(a, b.peer, b"x", max_response=1 << 22)) == len(answer)
        assert muxers(a) == before, "the connection did not survive"
        await until(lambda: requests_open(a) == requests_open(b) == 0)
        for network in (a, b):
            (muxer,) = muxers(network)
            # What is left is gossip, one stream each way.
            await until(lambda muxer=muxer: len(muxer.streams) <= 2)
            await until(lambda muxer=muxer: not any(map(len, muxer.stream_buffers.values())))
            assert muxer.stream_backlog_semaphore.value >= muxer.stream_backlog_limit - 2


@pytest.mark.parametrize(
    "garbage",
    [b"", b"\xff" * 50, b"\0\0\0\x05abc", b"\xff\xff\xff\xff", bytes(3), b"GET / HTTP/1.1\r\n\r\n"],
)
async def test_garbage_on_every_protocol_is_survived(garbage: bytes) -> None:
    async with star(2) as (a, b):
        serve_echo(b)
        protocols = [name for name in b._host.multiselect.handlers if name]
        assert len(protocols) == 3
        for protocol in protocols:
            stream: Any = await a._host.new_stream(id_of(b.peer), [protocol])
            await stream.write(garbage)
            await stream.close_write()
            await stream.reset()
        # Not even a protocol.
        raw = await a._swarm.new_stream(id_of(b.peer))
        await raw.write(garbage)
        await raw.reset()
        host, port = b.addresses[0].split("/")[2], int(b.addresses[0].split("/")[4])
        plain = await trio.open_tcp_stream(host, port)
        await plain.send_all(garbage)
        await plain.aclose()
        assert await ask(a, b.peer) == b"hello"
        assert b.connected() == {a.peer}


async def test_a_peer_that_misbehaves_is_cut_off_and_refused() -> None:
    async with star(3) as (hub, bad, good):
        serve_echo(hub)
        for _ in range(4):
            assert bad.peer in hub.connected()
            hub.penalise(bad.peer, "malformed")
        assert hub.refuses(bad.peer)
        await until(lambda: hub.connected() == {good.peer})
        with pytest.raises(DialError, match="violated the protocol"):
            await hub.connect(bad.addresses[0])
        # It may dial, but it is not let in.
        await bad.connect(hub.addresses[0])
        await until(lambda: not bad.connected())
        assert hub.connected() == {good.peer}
        assert await ask(good, hub.peer) == b"hello"


async def test_nobody_is_dialled_behind_our_back() -> None:
    async with star(2) as (a, b):
        await a.disconnect(b.peer)
        await until(lambda: not a.connected() and not b.connected())
        a._swarm.peerstore.add_addrs(id_of(b.peer), b._host.get_addrs(), 100)
        connector = a._swarm.auto_connector
        connector.clear_all_cooldowns()
        await connector.maybe_connect()
        # Without the guard, it would be connected by now.
        assert not a._swarm.get_connections()
        assert not connector._last_connect_attempt
        assert not connector._recent_disconnects


async def test_one_peer_has_few_connections() -> None:
    async with networks(2) as (a, b):
        for _ in range(6):
            # Bypasses our own check for an existing connection.
            await a._swarm.dial_addr(b._host.get_addrs()[0], id_of(b.peer))
        await until(lambda: sum(len(group) for group in b._connections.values()) <= 3)
        assert a.peer in b.connected()


async def test_a_frozen_peer_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(liveness, "CHECK_SECONDS", 0.05)
    monkeypatch.setattr(liveness, "QUIET_SECONDS", 0.1)
    monkeypatch.setattr(liveness, "SILENT_SECONDS", 1.0)
    async with star(3) as (a, frozen, lively):
        (muxer,) = muxers(frozen)

        async def read_nothing(n: int | None = None) -> bytes:
            await trio.sleep_forever()
            return b""

        heard = {m.peer_id: m.secured_conn.last_received_at for m in muxers(a)}
        muxer.secured_conn.read = read_nothing
        await until(lambda: a.connected() == {lively.peer})
        # The other is just as quiet, but answers.
        (remaining,) = muxers(a)
        await until(
            lambda: remaining.secured_conn.last_received_at > heard[remaining.peer_id] + 1.0
        )
        assert a.connected() == {lively.peer}


async def test_a_line_that_does_not_move_breaks_the_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from distro_node.node.network import connection

    monkeypatch.setattr(connection, "WRITE_STALL_SECONDS", 0.1)
    async with star(2) as (a, b):
        serve_echo(b)
        (muxer,) = muxers(a)

        async def stuck(data: bytes) -> None:
            await trio.sleep_forever()

        muxer.secured_conn._wire.write = stuck
        assert await outcome(a, b.peer) == "closed"
        await until(lambda: not a.connected() and not b.connected())
