"""Update relays: an author sends once, all members get it, and no relay is required or trusted."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
import trio.testing
from distro_node.crypto.envelope import sign
from distro_node.crypto.hashing import ContentId, content_id
from distro_node.node.network.errors import RequestError
from distro_node.node.network.exchange import blobs
from distro_node.node.network.exchange.blobs import FOUND, BlobFetcher, serve_blobs
from distro_node.node.network.exchange.update_relay import UpdateRelay, _RelayedUpdate
from distro_node.node.network.exchange.update_relay_client import PROTOCOL, Relays
from distro_node.node.network.network import Network
from distro_node.node.settings.components import LineSettings, RelayLimits
from distro_node.node.storage.blob_store import BlobStore
from distro_node.protocol.wire.encoding import encode
from distro_node.protocol.wire.errors import ProtocolError
from distro_node.protocol.wire.manifest import SwarmId
from distro_node.protocol.wire.messages import Announcement, RecordId
from distro_node.protocol.wire.relay_requests import RelayRequest, open_relay_request, relay_request
from hypothesis import given
from hypothesis import strategies as st
from network.homes import Bootstrap
from network.support import identity, networks, requests_open, star, until

# Private here: `_scores`: offences below the limit show nowhere else.
# Private here: `_held_bytes`: a relay's memory use, which it reports to no peer.
# Private here: `_updates`, `_close`: a relay that has forgotten everything, and one that dies silently.
# Private here: `_enforce_limits`, `_drop`, `_answer`: a piece that arrives at the moment of a drop, and
# requests of an author that leave no other trace.

SWARM = SwarmId(bytes(32))
UPDATE = bytes(range(256)) * 1000
# The burst after a pause (`rate_limits`).
BURST_SECONDS = 0.1


def announced(
    data: bytes, author: int, round: int = 1, size: int | None = None, swarm: SwarmId = SWARM
) -> RelayRequest:
    """Return the announcement of the author with this number, counting from 0."""
    announcement = Announcement(
        round=round,
        parent=RecordId(bytes(32)),
        update=content_id(data),
        size=len(data) if size is None else size,
        tokens=1,
        loss=1.0,
        fingerprint=1,
    )
    me = identity(author + 1)
    envelope = sign(me, "announcement", swarm, encode(announcement))
    return relay_request(swarm, me.peer, announcement, envelope.signature)


def held_bytes(relay: UpdateRelay) -> int:
    """Return the bytes of updates in a relay's memory."""
    return relay._held_bytes.total()


class Member:
    """A network with a store, a fetcher and a directory of relays."""

    def __init__(self, network: Network, folder: Path) -> None:
        self.network = network
        self.store = BlobStore(folder)
        self.relays = Relays(network)
        self.fetcher = BlobFetcher(network, self.store, self.relays)
        serve_blobs(network, self.store, relays=self.relays)
        network.spawn(self.relays.run)

    async def fetch(self, wanted: RelayRequest, *others: Member, timeout: float = 20.0) -> bytes:
        peers = [wanted.author, *(other.network.peer for other in others)]
        return await self.fetcher.fetch(
            wanted.announcement.update,
            max_bytes=wanted.announcement.size,
            providers=lambda: peers,
            kind="update",
            timeout=timeout,
            relay=wanted,
        )


@asynccontextmanager
async def village(
    folder: Path, members: int, relays: int = 1, limits: RelayLimits | None = None
) -> AsyncIterator[tuple[list[Member], list[Network], list[UpdateRelay]]]:
    """Open members that are all connected to each other and to the relays, and know these."""
    async with networks(members + relays) as opened:
        people = [Member(each, folder / str(i)) for i, each in enumerate(opened[:members])]
        serving = [UpdateRelay(each, limits) for each in opened[members:]]
        for number, one in enumerate(opened[:members]):
            for other in opened[number + 1 :]:
                await one.connect(other.addresses[0])
                await until(lambda one=one, other=other: one.peer in other.connected())
        await until(lambda: all(len(each.relays) == relays for each in people))
        yield people, opened[members:], serving


async def test_an_author_sends_once_and_everybody_gets_it(tmp_path: Path) -> None:
    async with village(tmp_path, 5) as (people, (relay,), (serving,)):
        author, *others = people
        author.store.put(UPDATE)
        wanted = announced(UPDATE, 0)
        async with trio.open_nursery() as nursery:
            for member in others:
                nursery.start_soon(member.fetch, wanted, *others)
        assert all(each.store.get(content_id(UPDATE)) == UPDATE for each in others)
        assert author.network.traffic.sent["update"] < 1.01 * len(UPDATE)
        assert author.network.traffic.sent["blob"] < 1.01 * len(UPDATE)
        assert relay.traffic.received["relayed"] < 1.01 * len(UPDATE)
        assert 4 * len(UPDATE) <= relay.traffic.sent["relayed"] < 4.01 * len(UPDATE)
        # Counted separately from what a member sends and receives for itself.
        assert relay.traffic.sent["update"] == relay.traffic.received["update"] == 0
        assert (serving.fetched, held_bytes(serving)) == (1, len(UPDATE))
        await until(lambda: all(requests_open(each.network) == 0 for each in people))


async def test_what_its_author_offers_is_there_before_anybody_asks(tmp_path: Path) -> None:
    """Of two relays the one that all members will ask has it, and sends its author nothing."""
    async with village(tmp_path, 3, relays=2) as (people, relays, serving):
        author, *others = people
        author.store.put(UPDATE)
        wanted = announced(UPDATE, 0)
        await author.relays.offer(wanted)
        await until(lambda: sum(each.fetched for each in serving) == 1)
        chosen = author.relays.order(content_id(UPDATE))[0]
        assert [each.fetched for each in serving] == [each.peer == chosen for each in relays]
        assert all(each.traffic.sent["relayed"] < 1000 for each in relays)
        for member in others:
            assert await member.fetch(wanted) == UPDATE
        assert author.network.traffic.sent["blob"] < 1.01 * len(UPDATE)


async def test_an_offer_to_nobody_is_no_failure(tmp_path: Path) -> None:
    async with village(tmp_path, 1, relays=0) as ((author,), _, _):
        await author.relays.offer(announced(UPDATE, 0))
    async with village(tmp_path, 1) as ((author,), (relay,), (serving,)):
        # The relay finds out by itself that the author does not have it.
        await author.relays.offer(announced(UPDATE, 0))
        await until(lambda: not held_bytes(serving) and not serving._updates)
        assert author.network.peer in relay.connected()


async def test_a_bootstrap_peer_relays_within_its_limit(tmp_path: Path) -> None:
    """A busy machine takes longer, none is faster."""
    limit = 400_000.0
    relay = Bootstrap(line=LineSettings(listen=("/ip4/127.0.0.1/tcp/0",), max_upload=limit))
    async with networks(2) as opened, trio.open_nursery() as nursery:
        addresses = await nursery.start(relay.run)
        author, member = (Member(each, tmp_path / str(i)) for i, each in enumerate(opened))
        for each in (author, member):
            nursery.start_soon(each.relays.run)
            await each.network.connect(addresses[0])
        await until(lambda: len(member.relays) == len(author.relays) == 1)
        author.store.put(UPDATE)
        begun = trio.current_time()
        assert await member.fetch(announced(UPDATE, 0)) == UPDATE
        assert trio.current_time() - begun >= len(UPDATE) / limit - 2 * BURST_SECONDS
        nursery.cancel_scope.cancel()


async def test_it_passes_on_what_is_still_coming_in(tmp_path: Path) -> None:
    """All but the last piece is at the member while the author still holds the rest back."""
    async with village(tmp_path, 2) as (people, (relay,), _):
        author, member = people
        go_on = trio.Event()
        whole = b"\0" + UPDATE

        class Dawdling:
            size = len(whole)

            async def piece(self, start: int, most: int) -> bytes:
                most = min(most, 10_000)
                if start + most > len(whole) - 100:
                    await go_on.wait()
                return whole[start : start + most]

        async def answer(peer: bytes, request: bytes) -> Dawdling:
            return Dawdling()

        author.network.serve(blobs.PROTOCOL, answer, max_request=32, max_concurrent=4)
        so_far: list[int] = []
        got: list[bytes] = []

        async def ask() -> None:
            got.append(
                await member.network.request(
                    relay.peer,
                    PROTOCOL,
                    announced(UPDATE, 0).sealed,
                    max_response=len(UPDATE),
                    timeout=20,
                    progress=so_far.append,
                )
            )

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask)
            await until(lambda: bool(so_far) and so_far[-1] > len(UPDATE) / 2)
            assert not got
            go_on.set()
        assert got == [UPDATE]


async def test_members_are_woken_for_large_pieces_unless_the_author_is_slow(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """The smaller the rest the smaller the pieces, so that the last one is not late."""
    arriving = 65_000

    async def wake_ends(size: int, seconds: float) -> list[int]:
        relayed = _RelayedUpdate(announced(bytes(size), 0))
        ends: list[int] = []

        async def serve() -> None:
            while not ends or ends[-1] < size:
                start = ends[-1] if ends else 0
                ends.append(start + len(await relayed.piece(start, size)))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(serve)
            relayed.buffer += FOUND
            for start in range(0, size, arriving):
                await trio.sleep(seconds)
                relayed.buffer += bytes(min(arriving, size - start))
                relayed.note_arrival(len(relayed.buffer) - 1)
            await trio.testing.wait_all_tasks_blocked()
            relayed.finish(bytes(size))
        return ends

    ends = await wake_ends(2_800_000, 0.001)
    pieces = [end - start for start, end in itertools.pairwise([0, *ends])]
    assert max(pieces) <= 5 * arriving
    assert len(pieces) < 25
    # At most an eighth of the rest, and what arrived last, waits for more to arrive.
    assert all(
        size <= max(arriving, (2_800_000 - start) / 8 + arriving)
        for start, size in zip([0, *ends], pieces, strict=False)
    )
    assert len(await wake_ends(2_800_000, 1.0)) >= 2_800_000 // arriving


async def test_a_relay_that_dies_midway_costs_no_update(tmp_path: Path) -> None:
    async with village(tmp_path, 3) as (people, (relay,), _):
        author, *others = people
        updates = [bytes([n]) + UPDATE for n in range(6)]
        for data in updates:
            author.store.put(data)
        async with trio.open_nursery() as nursery:
            for member in others:
                for data in updates:
                    nursery.start_soon(member.fetch, announced(data, 0), *others)
            await until(lambda: relay.traffic.sent["relayed"] > 0)
            await relay._close()
        for member in others:
            assert all(member.store.get(content_id(data)) == data for data in updates)
            await until(lambda member=member: len(member.relays) == 0)


async def test_a_frozen_relay_is_overtaken_and_then_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blobs, "_RELAY_PATIENCE_SECONDS", 0.5)
    async with village(tmp_path, 2) as (people, (relay,), _):
        author, member = people

        async def freeze(peer: bytes, request: bytes) -> bytes:
            await trio.sleep_forever()
            return b""

        relay.serve(PROTOCOL, freeze, max_request=512, max_concurrent=4)
        author.store.put(UPDATE)
        assert member.relays.order(content_id(UPDATE)) == [relay.peer]
        assert await member.fetch(announced(UPDATE, 0)) == UPDATE
        assert member.relays.order(content_id(UPDATE)) == []


async def test_an_author_that_lies_is_found_out_before_anybody_is_harmed(tmp_path: Path) -> None:
    """The relay delivers nothing completely, and the member, which gets the correct content elsewhere,
    does not penalise the relay for it."""
    async with village(tmp_path, 3) as (people, (relay,), (serving,)):
        author, member, other = people

        async def lie(peer: bytes, request: bytes) -> bytes:
            return b"\0" + UPDATE[::-1]

        author.network.serve(blobs.PROTOCOL, lie, max_request=32, max_concurrent=4)
        other.store.put(UPDATE)
        wanted = announced(UPDATE, 0)
        with pytest.raises(RequestError) as raised:
            await member.network.request(
                relay.peer, PROTOCOL, wanted.sealed, max_response=len(UPDATE), timeout=20
            )
        assert raised.value.reason == "closed"
        assert relay._scores.score(author.network.peer, trio.current_time()) > 0
        assert await member.fetch(wanted, other) == UPDATE
        assert member.network._scores.score(relay.peer, trio.current_time()) == 0
        assert held_bytes(serving) == 0


async def test_different_updates_go_to_different_relays(tmp_path: Path) -> None:
    async with village(tmp_path, 3, relays=2) as (people, relays, _):
        one, other, _ = people
        ids = [content_id(bytes([n])) for n in range(64)]
        assert [one.relays.order(each) for each in ids] == [
            other.relays.order(each) for each in ids
        ]
        assert {one.relays.order(each)[0] for each in ids} == {relay.peer for relay in relays}


async def test_only_relays_count_as_such_and_only_while_they_are_there(tmp_path: Path) -> None:
    async with village(tmp_path, 3) as (people, (relay,), _):
        member = people[0]
        assert member.relays.order(ContentId(bytes(32))) == [relay.peer]
        await member.network.disconnect(relay.peer)
        await until(lambda: len(member.relays) == 0)
        await member.network.connect(relay.addresses[0])
        await until(lambda: len(member.relays) == 1)


async def test_what_a_relay_keeps_is_bounded(tmp_path: Path) -> None:
    """In bytes for each swarm and in rounds for each author; an old announcement shown again does not
    displace a new update."""
    limits = RelayLimits(max_bytes=5 * len(UPDATE))
    async with village(tmp_path, 3, limits=limits) as (people, (relay,), (serving,)):
        author, second, member = people

        async def ask(wanted: RelayRequest) -> int:
            answer = await member.network.request(
                relay.peer, PROTOCOL, wanted.sealed, max_response=len(UPDATE) + 1, timeout=20
            )
            return len(answer)

        small = [bytes([n]) * 50_000 for n in range(5)]
        for data in small:
            author.store.put(data)
        for round_, data in enumerate(small, 1):
            assert await ask(announced(data, 0, round_)) == len(data)
        assert held_bytes(serving) == 3 * 50_000
        assert await ask(announced(small[0], 0, 1)) == 0
        for number in range(3):
            data = bytes([number]) + UPDATE[1:]
            second.store.put(data)
            assert await ask(announced(data, 1, number)) == len(data)
        assert held_bytes(serving) <= limits.max_bytes_per_swarm < 3 * len(UPDATE)


async def test_a_piece_that_arrives_after_the_drop_is_not_subtracted_again() -> None:
    async with networks(1) as (network,):
        relay, update = UpdateRelay(network), _RelayedUpdate(announced(UPDATE, 0))
        relay._updates[update.key] = update
        update.buffer += UPDATE
        relay._enforce_limits(update)
        assert held_bytes(relay) == len(UPDATE)
        for _ in range(2):
            relay._drop(update)
            relay._enforce_limits(update)
            assert held_bytes(relay) == 0


async def test_an_author_with_many_swarms_is_fetched_from_a_few_times_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def silence(*_: object, **__: object) -> bytes:
        await trio.sleep_forever()
        return b""

    async with star(2) as (relay, author):
        serving = UpdateRelay(relay)
        monkeypatch.setattr(relay, "request", silence)
        for number in range(20):
            swarm = SwarmId(number.to_bytes(32, "big"))
            wanted = announced(UPDATE[number:], 1, swarm=swarm)
            await serving._answer(author.peer, wanted.sealed)
        assert len(serving._updates) == 16


async def test_what_is_too_large_or_from_somebody_absent_is_not_relayed(tmp_path: Path) -> None:
    async with village(tmp_path, 2) as (people, (relay,), _):
        member = people[1]
        for wanted in (announced(UPDATE, 0, size=1 << 30), announced(UPDATE, 77)):
            answer = await member.network.request(
                relay.peer, PROTOCOL, wanted.sealed, max_response=100, timeout=20
            )
            assert answer == b""


async def test_forged_announcements_are_refused(tmp_path: Path) -> None:
    async with village(tmp_path, 2) as (people, (relay,), _):
        member = people[1]
        forged = bytearray(announced(UPDATE, 0).sealed)
        forged[-1] ^= 1
        with pytest.raises(RequestError, match="bad_signature"):
            await member.network.request(
                relay.peer, PROTOCOL, bytes(forged), max_response=100, timeout=20
            )
        assert relay._scores.score(member.network.peer, trio.current_time()) > 0


@given(st.integers(0, 330), st.integers(1, 255))
def test_no_byte_of_a_request_can_be_changed(place: int, change: int) -> None:
    good = announced(UPDATE, 0)
    assert open_relay_request(good.sealed) == good
    changed = bytearray(good.sealed)
    changed[place % len(changed)] ^= change
    with pytest.raises(ProtocolError):
        open_relay_request(bytes(changed))


async def test_an_author_that_is_busy_with_others_serves_its_relays_all_the_same() -> None:
    async with networks(4) as (author, one, other, relay):
        for peer in (one, other, relay):
            await peer.connect(author.addresses[0])
        asked: list[bytes] = []
        go_on = trio.Event()

        async def answer(peer: bytes, request: bytes) -> bytes:
            asked.append(peer)
            if peer == one.peer:
                await go_on.wait()
            return b"here"

        author.serve(
            "/test/1",
            answer,
            max_request=1,
            max_concurrent=1,
            is_prioritised=lambda peer: peer == relay.peer,
        )

        async def ask(who: Network) -> bytes:
            return await who.request(author.peer, "/test/1", b"", max_response=9, timeout=20)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask, one)
            await until(lambda: asked == [one.peer])
            with pytest.raises(RequestError, match="busy"):
                await ask(other)
            assert await ask(relay) == b"here"
            go_on.set()
