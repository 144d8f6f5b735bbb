"""A newcomer's ledger: complete and verified, even if some of the peers it asks are faulty."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
import trio
from distro_node.crypto.identity import PeerId
from distro_node.node.network import requests
from distro_node.node.network.network import Network
from distro_node.node.session import sync
from distro_node.node.session.sync import catch_up, serve_sync
from distro_node.node.storage.data_dir import DataDir
from distro_node.node.storage.entry_file import EntryFile
from distro_node.node.storage.swarm_store import SwarmStore
from distro_node.protocol.chain import initial_sync
from distro_node.protocol.chain.ledger import Ledger
from distro_node.protocol.chain.sync import (
    MAX_SYNC_RESPONSE_BYTES,
    SYNC_PROTOCOL,
    SyncResponse,
    answer_to,
    compose_response,
    decode_request,
)
from distro_node.protocol.wire.checkpoint import Checkpoint
from distro_node.protocol.wire.encoding import encode
from network.support import PATIENCE_SECONDS, star
from simulation.chain import Chain

# Private here: `_scores`: offences below the limit show nowhere else.
# Private here: `_ledger`: which of the two files is synced.

Answer = Callable[[PeerId, bytes], Awaitable[bytes]]
ROUNDS = 30


@pytest.fixture(scope="module")
def chain() -> Chain:
    return Chain(4).grow_until(ROUNDS)


def hostile(network: Network, answer: Answer) -> None:
    network.serve(SYNC_PROTOCOL, answer, max_request=1000, max_concurrent=4)


def says(response: SyncResponse) -> Answer:
    async def answer(peer: PeerId, request: bytes) -> bytes:
        return encode(response)

    return answer


def serves(ledger: Ledger) -> Answer:
    """Return the answers of an honest member with this ledger."""

    async def answer(peer: PeerId, request: bytes) -> bytes:
        height, ids, rounds, _ = answer_to(decode_request(request), ledger, lambda round_: [])
        return encode(compose_response(height, map(ledger.raw, rounds), [], ids))

    return answer


async def follow(network: Network, chain: Chain, at: Checkpoint | None = None) -> Ledger:
    ledger, kept = Ledger(chain.manifest, checkpoint=at), []
    await catch_up(
        network,
        chain.manifest,
        ledger,
        keep=lambda *entries: kept.extend(entries),
        replace_chain=lambda ledger: kept.clear(),
        report=lambda done, total: None,
    )
    assert kept == [ledger.raw(number) for number in range(len(ledger))]
    return ledger


async def test_a_ledger_comes_whole_and_each_entry_once(chain: Chain) -> None:
    async with star(4) as (a, *others):
        for number, other in enumerate(others):
            serve_sync(other, chain.manifest, chain.member(number).view)
        assert len(await follow(a, chain)) == ROUNDS
        assert not a.traffic.rejected


async def test_many_rounds_share_one_sync(
    chain: Chain, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before: an fsync for every entry. The entries of one answer are on the disk before the next answer
    is read, with one fsync."""
    store = SwarmStore(DataDir(tmp_path).swarm(chain.manifest.swarm), chain.manifest)
    syncs, real = 0, EntryFile.sync

    def counted(self: EntryFile) -> None:
        nonlocal syncs
        syncs += self.path == store._ledger.path
        real(self)

    monkeypatch.setattr(EntryFile, "sync", counted)
    answers: list[int] = []
    async with star(2) as (a, other):
        serve = serves(chain.ledger)

        async def answer(peer: PeerId, request: bytes) -> bytes:
            answers.append(decode_request(request).most)
            return await serve(peer, request)

        hostile(other, answer)
        ledger = Ledger(chain.manifest)
        await catch_up(
            a,
            chain.manifest,
            ledger,
            keep=store.keep,
            replace_chain=store.replace_chain,
            report=lambda done, total: None,
            written=store.written,
        )
    assert len(ledger) == ROUNDS
    assert 1 <= syncs <= len(answers) < ROUNDS // 3
    again = SwarmStore(DataDir(tmp_path).swarm(chain.manifest.swarm), chain.manifest)
    assert again.load_ledger().head == chain.ledger.head


async def test_a_checkpoint_holds_among_liars(chain: Chain) -> None:
    """A founder that has left signs another history, and serves it from four machines."""
    forged = Chain(0)
    forged.manifest = chain.manifest
    forged.grow(fingerprint=666)
    for _ in range(2 * ROUNDS):
        forged.grow()
    async with star(6) as (a, *liars, honest):
        for liar in liars:
            hostile(liar, serves(forged.ledger))
        serve_sync(honest, chain.manifest, chain.member(1).view)
        ledger = await follow(a, chain, chain.ledger.final)
        assert ledger.head == chain.ledger.head
        assert a.traffic.rejected["checkpoint"] == len(liars)


async def test_nobody_there_is_no_ledger(chain: Chain) -> None:
    async with star(2) as (a, _):
        ledger = Ledger(chain.manifest)
        options = {
            "keep": lambda *decided: None,
            "replace_chain": lambda ledger: None,
            "report": lambda done, total: None,
        }
        assert not await catch_up(a, chain.manifest, ledger, **options)
        assert len(ledger) == 0


async def test_a_stale_head_is_not_the_last_word(chain: Chain) -> None:
    stale = serves(chain.ledger.truncated(5))

    async with star(4) as (a, *others):
        for other in others[:2]:
            hostile(other, stale)
        serve_sync(others[2], chain.manifest, chain.member(0).view)
        assert len(await follow(a, chain)) == ROUNDS
        assert a.traffic.rejected["stale"] == 2
        # Lagging is not an offence.
        assert len(a.connected()) == 3


async def test_forged_rounds_and_empty_claims_are_offences(chain: Chain) -> None:
    forger = chain.fork()
    forger.ledger = chain.ledger.truncated(2)
    forged = forger.decide(forger.record(updates=[]), signers=[forger.membership.peers[0]])
    entries = [chain.ledger[0], chain.ledger[1], forged]
    async with star(4) as (a, one, other, honest):
        hostile(one, says(compose_response(3, map(encode, entries), [])))
        hostile(other, says(compose_response(1 << 40, [], [])))
        serve_sync(honest, chain.manifest, chain.member(0).view)
        assert len(await follow(a, chain)) == ROUNDS
        assert a.traffic.rejected["invalid"] == 1
        assert a._scores.score(other.peer, trio.current_time()) > 0


@pytest.mark.parametrize("fault", ["frozen", "endless", "garbage"])
async def test_who_does_not_come_to_an_end_is_not_waited_for(
    chain: Chain, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(initial_sync, "DAWDLE_SECONDS", 0.5)
    # Timeouts for an answer, and for a handler: far more than any wait here.
    monkeypatch.setattr(sync, "_TIMEOUT_SECONDS", 1000.0)
    monkeypatch.setattr(requests, "_HANDLER_SECONDS", 1000.0)

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
        serve_sync(honest, chain.manifest, chain.member(0).view)
        with trio.fail_after(PATIENCE_SECONDS):
            assert len(await follow(a, chain)) == ROUNDS


async def test_a_liar_cannot_keep_a_starting_node_busy(chain: Chain) -> None:
    """It signs rounds alone as fast as they are requested, and claims more and more of them. The others
    report where the chain ends."""
    liar = chain.membership.peers[0]
    forged = chain.fork()
    others = [peer for peer in forged.membership.peers if peer != liar]
    gone = [forged.silence(peer) for peer in others]
    forged.grow(signers=[liar], silent=others, departed=gone)
    asked = 0

    async def endless(peer: PeerId, request: bytes) -> bytes:
        nonlocal asked
        wanted = decode_request(request)
        asked += wanted.most
        while len(forged.ledger) < min(wanted.round + wanted.most, 5000):
            forged.grow()
        height, ids, rounds, _ = answer_to(wanted, forged.ledger, lambda round_: [])
        entries = map(forged.ledger.raw, rounds)
        return encode(compose_response(height + 1000, entries, [], ids))

    async with star(4) as (a, evil, *honest):
        hostile(evil, endless)
        for number, other in enumerate(honest):
            serve_sync(other, chain.manifest, chain.member(number).view)
        ledger = await follow(a, chain)
        assert ledger.head == chain.ledger.head
        # What it has in common with the others, and its last certificate, which proves nothing.
        assert asked <= ROUNDS + 1
