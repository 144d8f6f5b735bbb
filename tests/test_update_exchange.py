"""What happens to updates on disk when their round is over."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from distro_node.crypto.hashing import ContentId
from distro_node.node.content.downloads import Downloads
from distro_node.node.network.exchange.blobs import FetchFailed
from distro_node.node.session.update_exchange import UpdateExchange
from distro_node.node.storage.blob_store import BlobStore
from distro_node.node.util.progress import Progress
from distro_node.protocol.member.effects import FetchUpdate
from distro_node.protocol.member.inputs import Input, UpdatesGone
from distro_node.protocol.util.bounded_dict import BoundedTable
from simulation.chain import Chain
from trio.testing import MockClock

# Private here: `_fetching`: a fetch is under way without a network.

SNAPSHOT_INTERVAL, ROUNDS = 5, 16


@pytest.fixture
def store(tmp_path: Path) -> BlobStore:
    return BlobStore(tmp_path)


def updates_of(chain: Chain, store: BlobStore) -> UpdateExchange:
    unused: Any = None
    member: Any = SimpleNamespace(ledger=chain.ledger)
    return UpdateExchange(
        manifest=chain.manifest,
        member=member,
        network=unused,
        store=store,
        fetcher=unused,
        relays=unused,
        telemetry=unused,
        ids=BoundedTable(100),
        report=unused,
        expect=lambda *_: None,
    )


def grown(update: ContentId, counts_in: int) -> Chain:
    """Return a chain of some rounds, in one of which this update counts."""
    chain = Chain(2, snapshot_interval=SNAPSHOT_INTERVAL)
    while chain.round < ROUNDS:
        author = chain.membership.peers[0]
        counted = [chain.update(author, update=update)] if chain.round == counts_in else []
        chain.grow(updates=counted)
    return chain


async def test_an_update_that_came_for_an_earlier_round_stays_until_it_is_applied(
    store: BlobStore,
) -> None:
    """Its author had announced it for round 3 on one side of a partition, and for round 4 on the
    other."""
    update = store.put(b"an update")
    updates = updates_of(grown(update, counts_in=4), store)
    updates.keep(3, update)
    await updates.sweep(3)
    assert store.has(update)


async def test_an_update_that_is_fetched_again_stays(store: BlobStore) -> None:
    """It missed round 3, and was announced for another while that was applied: its bytes are being
    checked."""
    update = store.put(b"an update")
    chain = grown(update, counts_in=-1)
    updates = updates_of(chain, store)
    updates.keep(3, update)
    again = FetchUpdate(ROUNDS, chain.membership.peers[0], update, 9)
    assert updates._fetching.begin(again, stored=True)
    await updates.sweep(3)
    assert store.has(update)


async def test_an_update_that_missed_its_round_goes(store: BlobStore) -> None:
    update = store.put(b"an update")
    updates = updates_of(grown(update, counts_in=2), store)
    updates.keep(3, update)
    await updates.sweep(3)
    assert not store.has(update)


async def test_updates_that_missed_their_round_go_after_a_restart(store: BlobStore) -> None:
    """Each start left some on the disk for ever, at least this node's own last one."""
    update, counted, again = (store.put(data) for data in (b"missed", b"counted", b"again"))
    chain = grown(counted, counts_in=3)
    author = chain.membership.peers[0]
    chain.grow(updates=[chain.update(author, update=again)])
    before = updates_of(chain, store)
    for each in (update, counted, again):
        before.keep(3, each)
    updates = updates_of(chain, store)
    await updates.sweep(ROUNDS)
    assert [store.has(each) for each in (update, counted, again)] == [False, True, True]


async def test_an_update_that_counted_a_round_later_stays_after_a_restart(store: BlobStore) -> None:
    """Members that were away may still ask for it."""
    update = store.put(b"an update")
    chain = grown(update, counts_in=4)
    updates_of(chain, store).keep(3, update)
    await updates_of(chain, store).sweep(ROUNDS - 1)
    assert store.has(update)


async def test_the_status_shows_which_updates_are_waited_for(
    store: BlobStore, autojump_clock: MockClock
) -> None:
    """Before the fix, it showed "replaying rounds" for minutes, whatever the cause."""
    chain = grown(ContentId(bytes(32)), counts_in=3)
    peer = chain.membership.peers[0]
    reported: list[Progress] = []
    told: list[Input] = []

    async def fetch(cid: ContentId, **_: Any) -> bytes:
        if told:
            # The member loads a snapshot, and stops asking.
            member.applied_round = ROUNDS
        raise FetchFailed(cid, {peer: "not found"})

    member: Any = SimpleNamespace(
        ledger=chain.ledger,
        round=ROUNDS,
        applied_round=2,
        fingerprint=1,
        announcement=lambda *_: None,
    )
    updates = UpdateExchange(
        manifest=chain.manifest,
        member=member,
        network=SimpleNamespace(connected=lambda: {peer}),  # type: ignore[arg-type]  # no more is used
        store=store,
        fetcher=SimpleNamespace(fetch=fetch),  # type: ignore[arg-type]  # likewise
        relays=Any,  # type: ignore[arg-type]  # not used
        telemetry=SimpleNamespace(report=reported.append),  # type: ignore[arg-type]
        ids=BoundedTable(100),
        report=told.append,
        expect=lambda *_: None,
    )
    await updates.fetch(FetchUpdate(3, peer, ContentId(bytes(32)), 9))
    assert told[0] == UpdatesGone(3)
    assert reported[0].what == "waiting for a peer that has the updates of round 3"
    assert reported[0].waits


async def test_the_status_shows_that_a_state_is_fetched_before_its_first_byte() -> None:
    reported: list[Progress] = []

    async def fetch(cid: ContentId, **_: Any) -> bytes:
        assert reported == [Progress(what="the state of round 300", total=12, kind="downloading")]
        raise FetchFailed(cid, {})

    unused: Any = None
    fetcher: Any = SimpleNamespace(fetch=fetch)
    downloads = Downloads(unused, fetcher, unused, lambda: [unused], reported.append)
    cid, name = ContentId(bytes(32)), "the state of round 300"
    assert await downloads.fetch_blob_list(cid, 12, name, wanted=lambda: False) is None
