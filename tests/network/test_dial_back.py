"""Dial-back: a node learns whether others can dial it, and nobody can be sent to a third party."""

from __future__ import annotations

import pytest
import trio
from distro_node.node.network.errors import RequestError
from distro_node.node.network.nat import dial_back
from distro_node.node.network.nat.dial_back import PROTOCOL, DialBack, ask_dial_back, ports_of
from distro_node.protocol.wire.errors import ProtocolError
from network.homes import Bootstrap, home
from network.support import relayed_pair, star, until


async def test_open_and_closed_ports_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dial_back, "_PAUSE_SECONDS", 0.0)
    async with star(3) as (caller, a, b):
        DialBack(caller)
        (mine,), (others,) = ports_of(a.addresses), ports_of(b.addresses)
        finding = await ask_dial_back(a, caller.peer, [mine, 1, others])
        assert finding is not None
        assert finding.observed == "127.0.0.1"
        # Somebody listens at the last one, but it is not the asker.
        assert finding.outcomes == {mine: "reached", 1: "failed", others: "failed"}
        # Nothing is left of the calls.
        await until(
            lambda: a.connected() == {caller.peer} and caller.connected() == {a.peer, b.peer}
        )


async def test_nobody_is_called_more_often_than_now_and_then() -> None:
    async with star(2) as (caller, a):
        DialBack(caller)
        ports = ports_of(a.addresses)
        first = await ask_dial_back(a, caller.peer, ports)
        second = await ask_dial_back(a, caller.peer, ports)
        assert first is not None
        assert second is not None
        assert [*first.outcomes.values(), *second.outcomes.values()] == ["reached", "untried"]


@pytest.mark.parametrize("question", [b"", b"\x0f", b"\x00\x00", b"\x0f\xa1\x0f\xa1", bytes(10)])
async def test_a_question_that_makes_no_sense_is_refused(question: bytes) -> None:
    async with star(2) as (caller, a):
        DialBack(caller)
        with pytest.raises(RequestError):
            await a.request(caller.peer, PROTOCOL, question, max_response=50, timeout=60)
        assert caller.traffic.rejected.total() == 1


@pytest.mark.parametrize(
    "answer", [b"", b"\x03127.0.0.1", b"\x01nonsense", b"\x01\xff\xff", b"\x01127.0.0.1\n"]
)
async def test_an_answer_that_makes_no_sense_is_the_peers_fault(answer: bytes) -> None:
    async def lie(peer: object, data: bytes) -> bytes:
        return answer

    async with star(2) as (liar, a):
        liar.serve(PROTOCOL, lie, max_request=8, max_concurrent=1)
        with pytest.raises(ProtocolError):
            await ask_dial_back(a, liar.peer, [4001])


async def test_a_node_knows_where_it_stands() -> None:
    bootstrap = Bootstrap()
    async with trio.open_nursery() as nursery:
        addresses = await nursery.start(bootstrap.run)
        async with home(1, addresses) as hidden, home(2, addresses, hidden=False) as open_one:
            assert hidden.reach.dialable is None
            await until(lambda: hidden.reach.dialable is False)
            await until(lambda: open_one.reach.dialable is True)
            await until(lambda: bool(hidden.reach.relays))
            assert hidden.reach.verdict == "unreachable"
            assert hidden.reach.observed == "127.0.0.1"
            assert hidden.reach.port == 1
            # Whoever can be dialled needs no relay, and is one.
            assert open_one.reach.verdict == "local"
            await until(lambda: open_one.reach.relays == [])
            await until(lambda: "circuit" not in " ".join(open_one.network.addresses))
            await until(lambda: open_one.network.carries)
            assert not hidden.network.carries
        bootstrap.scope.cancel()


async def test_a_relayed_peer_is_not_called_back() -> None:
    async with relayed_pair() as (_, a, b):
        DialBack(b)
        assert await ask_dial_back(a, b.peer, ports_of(a.addresses)) is None
