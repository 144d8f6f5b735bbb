"""A peer that is not a member keeps a swarm's result, and serves it on request."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest
import trio
from distro_node.crypto.hashing import content_id
from distro_node.node.network.errors import RequestError
from distro_node.node.network.network import open_network
from distro_node.node.session.session import SwarmSession
from distro_node.node.storage.blob_files import DiskFull
from distro_node.node.storage.blob_store import BlobStore
from distro_node.node.storage.data_dir import DataDir
from distro_node.node.storage.swarm_store import SwarmStore
from distro_node.node.telemetry.telemetry import Telemetry
from distro_node.protocol.chain.ledger import Ledger
from distro_node.protocol.chain.sync import MAX_SYNC_RESPONSE_BYTES, SYNC_PROTOCOL, SyncRequest
from distro_node.protocol.wire.encoding import encode
from distro_node.protocol.wire.manifest import Manifest, ScheduleSpec
from founder import Founder, founding
from network.support import LOOPBACK, PATIENCE_SECONDS, until
from network.victim import quiet_settings
from observing_bootstrap import BOOTSTRAP, Peer, introducing, shown_once
from simulation.keys import identity
from simulation.whole.trainer import Workshop, toy_swarm

LAST = 4
ENDS: dict[str, Any] = {
    "schedule": ScheduleSpec(warmup_rounds=0, total_rounds=LAST),
    "snapshot_interval": 3,
}


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("distro_node.node.observer._RETRY_SECONDS", 0.1)
    monkeypatch.setattr("distro_node.node.session.seeding._CHECK_INTERVAL_SECONDS", 0.1)
    monkeypatch.setattr("distro_node.node.content.manifest_search._RETRY_SECONDS", 0.2)
    monkeypatch.setattr("distro_node.protocol.member.shutdown._FETCHED_SECONDS", 2.0)


def founding_at(root: Path, peer: Peer, **changes: Any) -> AbstractAsyncContextManager[Founder]:
    return founding(root / "founder", (peer.address,), **changes)


def in_round(least: int) -> Callable[[Any], bool]:
    """Return a condition: the page shows this round or a later one."""
    return lambda status: (status["training"]["round"] or -1) >= least


async def hosted(peer: Peer, least: int = 0) -> int:
    """Wait until the peer has the parameters after this round or a later one; return the round."""
    page = (await peer.status()).dashboard
    assert page is not None

    def is_here(status: Any) -> bool:
        round_ = (status["swarm"] or {}).get("served_round")
        return round_ is not None and round_ >= least

    return (await shown_once(page, is_here))["swarm"]["served_round"]


def ledger_at(root: Path, manifest: Manifest) -> Ledger:
    return SwarmStore(DataDir(root).swarm(manifest.swarm), manifest).load_ledger()


async def test_what_came_out_is_had_after_the_last_member_has_gone(tmp_path: Path) -> None:
    host = tmp_path / "bootstrap"
    async with introducing(host, serve_result=True, **ENDS) as peer:
        async with founding_at(tmp_path, peer, **ENDS) as founder:
            # It stays until it gets no more requests, including from the host.
            await founder.ended.wait()
        assert await hosted(peer, LAST) == LAST
        manifest = founder.manifest
    # It is restarted without any other peer, and a newcomer arrives that knows no other.
    me, data = identity(1), DataDir(tmp_path / "late")
    data.create()
    telemetry = Telemetry(me.peer)
    async with (
        introducing(host, serve_result=True, **ENDS) as peer,
        open_network(LOOPBACK, me) as network,
    ):
        settings = quiet_settings(manifest, data.root, bootstrap=(peer.address,))
        session = SwarmSession(settings, data, me, network, telemetry, Workshop(me.peer, 0).start)
        with trio.fail_after(PATIENCE_SECONDS):
            await session.run(b"")
    assert session.run_is_over
    late, there = ledger_at(data.root, manifest), ledger_at(tmp_path / "founder", manifest)
    assert late.finished
    assert late.head == there.head
    # The trainer loaded exactly the parameters that the last snapshot certifies.
    assert telemetry.round == LAST
    snapshot = late.snapshot
    assert snapshot is not None
    assert BlobStore(data.blobs).has(snapshot.blob)


async def test_it_goes_with_the_newest_snapshot(tmp_path: Path) -> None:
    root = tmp_path / "bootstrap"
    async with introducing(root, serve_result=True, snapshot_interval=2) as peer:
        async with founding_at(tmp_path, peer, snapshot_interval=2) as founder:
            first = await hosted(peer)
            await hosted(peer, first + 6)
        store = SwarmStore(DataDir(root).swarm(founder.manifest.swarm), founder.manifest)
    # The older ones are gone. One more may be in progress when it stops.
    listed = store.snapshots()
    whole = [each for each in listed if each.whole]
    assert 1 <= len(whole) <= 2
    assert all(each.whole for each in listed[:-1])
    assert all(each.round >= first for each in listed)


async def test_a_full_disk_keeps_it_from_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("distro_node.node.session.seeding._DISK_FULL_WAIT_SECONDS", 0.1)
    root, put = tmp_path / "bootstrap", BlobStore.put
    # There was room for the manifest: without it there is nothing to follow.
    manifest, _, _ = toy_swarm(min_seconds=0.2)
    full = True

    def keep(store: BlobStore, data: bytes) -> Any:
        if full and store.root.is_relative_to(root) and data != manifest.encode():
            raise DiskFull(28, "No space left on device", str(store.root))
        return put(store, data)

    monkeypatch.setattr(BlobStore, "put", keep)
    async with introducing(root, serve_result=True) as peer, founding_at(tmp_path, peer):
        await until(lambda: "result cannot be stored" in caplog.text)
        page = (await peer.status()).dashboard
        assert page is not None
        # Its page keeps updating, and as soon as there is room the rest is fetched.
        then = (await shown_once(page, in_round(0)))["training"]["round"]
        await shown_once(page, in_round(then + 2))
        full = False
        await hosted(peer)


async def test_a_question_about_another_swarm_is_no_offence(tmp_path: Path) -> None:
    async with (
        introducing(tmp_path / "bootstrap", serve_result=True) as peer,
        founding_at(tmp_path, peer) as founder,
        open_network(LOOPBACK, identity(2)) as network,
    ):
        await hosted(peer)
        await network.connect(peer.address)

        async def ask(swarm: bytes) -> bytes:
            return await network.request(
                BOOTSTRAP.peer,
                SYNC_PROTOCOL,
                encode(SyncRequest(swarm, 0, (), 1)),
                max_response=MAX_SYNC_RESPONSE_BYTES,
                timeout=PATIENCE_SECONDS,
            )

        for _ in range(100):
            with pytest.raises(RequestError, match="not_here"):
                await ask(content_id(b"another swarm"))
        assert await ask(founder.manifest.swarm)
