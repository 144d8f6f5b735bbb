"""A newcomer's ledger: complete and checked, whatever some of those say whom it asks."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest
import trio
from distro_node.crypto.identity import PeerId
from distro_node.node import sync
from distro_node.node.network.network import Network
from distro_node.node.sync import catch_up, serve_sync
from distro_node.protocol.chain.ledger import Ledger
from distro_node.protocol.chain.sync import (
    MAX_SYNC_RESPONSE_BYTES,
    SYNC_PROTOCOL,
    SyncResponse,
    compose_response,
)
from distro_node.protocol.wire.encoding import encode
from network.support import star
from simulation.chain import Chain

Answer = Callable[[PeerId, bytes], Awaitable[bytes]]
ROUNDS = 30


@pytest.fixture(scope="module")
def chain() -> Chain:
    chain = Chain(4)
    while chain.round < ROUNDS:
        chain.grow()
    return chain


def hostile(network: Network, answer: Answer) -> None:
    network.serve(SYNC_PROTOCOL, answer, max_request=1000, max_concurrent=4)


def says(response: SyncResponse) -> Answer:
    async def answer(peer: PeerId, request: bytes) -> bytes:
        return encode(response)

    return answer


async def follow(network: Network, chain: Chain) -> Ledger:
    ledger, kept = Ledger(chain.manifest), []
    await catch_up(
        network, chain.manifest, ledger, keep=kept.append, report=lambda done, total: None
    )
    assert kept == [ledger.raw(number) for number in range(len(ledger))]
    return ledger


async def test_a_ledger_comes_whole_and_each_entry_once(chain: Chain) -> None:
    async with star(4) as (a, *others):
        for number, other in enumerate(others):
            serve_sync(other, chain.manifest, chain.member(number))
        assert len(await follow(a, chain)) == ROUNDS
        assert not a.traffic.rejected


async def test_nobody_there_is_no_ledger(chain: Chain) -> None:
    async with star(2) as (a, _):
        ledger = Ledger(chain.manifest)
        options = {"keep": lambda decided: None, "report": lambda done, total: None}
        assert not await catch_up(a, chain.manifest, ledger, **options)
        assert len(ledger) == 0


async def test_a_stale_head_is_not_the_last_word(chain: Chain) -> None:
    old = compose_response(5, map(chain.ledger.raw, range(5)), [])

    async def stale(peer: PeerId, request: bytes) -> bytes:
        given = sync.decode_request(request).round
        return encode(SyncResponse(5, old.entries[given:], ()))

    async with star(4) as (a, *others):
        for other in others[:2]:
            hostile(other, stale)
        serve_sync(others[2], chain.manifest, chain.member(0))
        assert len(await follow(a, chain)) == ROUNDS
        assert a.traffic.rejected["stale"] == 2
        # To be behind is no offence.
        assert len(a.connected()) == 3


async def test_forged_rounds_and_empty_claims_are_offences(chain: Chain) -> None:
    forger = chain.fork()
    forger.ledger = chain.ledger.truncated(2)
    forged = forger.decide(forger.record(updates=[]), signers=[forger.membership.peers[0]])
    entries = [chain.ledger[0], chain.ledger[1], forged]
    async with star(4) as (a, one, other, honest):
        hostile(one, says(compose_response(3, map(encode, entries), [])))
        hostile(other, says(compose_response(1 << 40, [], [])))
        serve_sync(honest, chain.manifest, chain.member(0))
        assert len(await follow(a, chain)) == ROUNDS
        assert a.traffic.rejected["invalid"] == 1
        assert a._scores.score(other.peer, trio.current_time()) > 0


@pytest.mark.parametrize("fault", ["frozen", "endless", "garbage"])
async def test_who_does_not_come_to_an_end_is_not_waited_for(
    chain: Chain, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sync, "_DAWDLE_SECONDS", 0.5)

    async def answer(peer: PeerId, request: bytes) -> bytes:
        if fault == "garbage":
            return b"\xc1" * 1000
        if fault == "endless":
            return bytes(MAX_SYNC_RESPONSE_BYTES + 1)
        await trio.sleep_forever()
        return b""

    async with star(4) as (a, one, other, honest):
        hostile(one, answer)
        hostile(other, answer)
        serve_sync(honest, chain.manifest, chain.member(0))
        # Far below the sixty seconds that each may take for an answer.
        with trio.fail_after(20):
            assert len(await follow(a, chain)) == ROUNDS
