"""Joining: only a peer that can never be admitted is refused."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from distro_node.crypto.hashing import ContentId, content_id
from distro_node.node.content.downloads import Downloads
from distro_node.node.errors import ExitCode, UserError
from distro_node.node.session.join import (
    check_invitation,
    check_not_expelled,
    fetch_base,
    find_manifest,
)
from distro_node.node.settings.components import DiskSettings
from distro_node.node.storage.blob_store import BlobStore
from distro_node.node.storage.data_dir import DataDir
from distro_node.protocol.wire.blobs import CHUNK_BYTES, BlobList
from distro_node.protocol.wire.manifest import AdapterSpec, Manifest, OptimizerSpec, ParameterSpec
from simulation.chain import Chain, by_invitation, ticket
from simulation.swarm import identity, toy_manifest


def test_a_guest_needs_a_ticket_of_its_own() -> None:
    issuer, policy = by_invitation()
    chain = Chain(0, admission=policy)
    guest = identity(1).peer
    good = ticket(chain.manifest, issuer, guest)
    check_invitation(chain.manifest, chain.ledger, guest, good)
    for bad, words in (
        (b"", "this link has none"),
        (ticket(chain.manifest, issuer, identity(2).peer), "for another peer"),
    ):
        with pytest.raises(UserError, match=words) as caught:
            check_invitation(chain.manifest, chain.ledger, guest, bad)
        assert caught.value.code is ExitCode.NO_TICKET
    # The issuer may invite itself, so it can return after a pause.
    own = ticket(chain.manifest, issuer, issuer.peer)
    check_invitation(chain.manifest, chain.ledger, issuer.peer, own)


def test_members_and_guests_of_open_swarms_need_none() -> None:
    open_to_all = Chain(2)
    check_invitation(open_to_all.manifest, open_to_all.ledger, identity(9).peer, b"")
    _, policy = by_invitation()
    founded = Chain(0, admission=policy)
    check_invitation(founded.manifest, founded.ledger, founded.manifest.founder, b"")


def test_who_was_expelled_reads_why() -> None:
    chain = Chain(4)
    expelled = identity(3).peer
    check_not_expelled(chain.ledger, expelled)
    chain.grow(updates=[], evidence=(chain.evidence(3),))
    with pytest.raises(UserError, match="contradict") as caught:
        check_not_expelled(chain.ledger, expelled)
    assert caught.value.code is ExitCode.EXPELLED


class Holder:
    """A peer that has blobs, and a newcomer that fetches them; requests are recorded."""

    def __init__(self, root: Path) -> None:
        self.blobs: dict[ContentId, bytes] = {}
        self.asked: list[ContentId] = []
        self.store = BlobStore(root)
        self.disk = DiskSettings()
        self.fetcher: Any = self

    def has(self, data: bytes) -> ContentId:
        self.blobs[content_id(data)] = data
        return content_id(data)

    def downloads(self, fetcher: Any) -> Downloads:
        chunks: Any = SimpleNamespace(fetch=self.fetch_chunks)
        return Downloads(self.store, fetcher, chunks, lambda: (), lambda *_: None)

    async def fetch(self, cid: ContentId, *, max_bytes: int, **_: Any) -> bytes:
        if not self.store.has(cid):
            self.asked.append(cid)
            self.store.put(self.blobs[cid])
        return self.blobs[cid]

    async def fetch_chunks(self, _: ContentId, blobs: BlobList, **__: Any) -> bool:
        for chunk in blobs.chunks:
            await self.fetch(chunk, max_bytes=CHUNK_BYTES)
        return True


def with_base(base: ContentId, weights: int) -> Manifest:
    table = (ParameterSpec(name="w", shape=(weights,)),)
    adapter = AdapterSpec(rank=1, alpha=1.0, targets=("w",), base=base, base_parameters=table)
    return dataclasses.replace(toy_manifest(), adapter=adapter)


async def test_the_base_is_fetched_once(tmp_path: Path) -> None:
    context: Any = Holder(tmp_path)
    await fetch_base(context, toy_manifest())
    assert context.asked == []
    pieces = [bytes(CHUNK_BYTES), b"rest"]
    listed = BlobList("snapshot", CHUNK_BYTES + 4, tuple(map(context.has, pieces)))
    manifest = with_base(context.has(listed.encode()), CHUNK_BYTES // 4 + 1)
    await fetch_base(context, manifest)
    assert len(context.asked) == 3
    await fetch_base(context, manifest)
    assert len(context.asked) == 3
    # Only what the disk lost is fetched again.
    context.store.remove(listed.chunks[1])
    await fetch_base(context, manifest)
    assert context.asked[3:] == [listed.chunks[1]]


@pytest.mark.parametrize(
    "base",
    [
        lambda chunk: b"junk",
        lambda chunk: BlobList("snapshot", 4, (chunk,)).encode(),
        lambda chunk: BlobList("shard", 8, (chunk,)).encode(),
    ],
    ids=["junk", "cut", "data"],
)
async def test_a_base_that_is_none_is_one_line(
    tmp_path: Path, base: Callable[[ContentId], bytes]
) -> None:
    context: Any = Holder(tmp_path)
    manifest = with_base(context.has(base(context.has(bytes(8)))), 2)
    with pytest.raises(UserError, match="the swarm's base model cannot be used") as caught:
        await fetch_base(context, manifest)
    assert caught.value.code is ExitCode.MANIFEST
    assert "\n" not in caught.value.problem


async def test_updates_that_are_too_large_to_be_sent_end_the_join(tmp_path: Path) -> None:
    """Otherwise the node would end with the first update that it makes."""
    data = DataDir(tmp_path)
    data.create()
    manifest = replace(
        Chain(1).manifest,
        parameters=(ParameterSpec(name="weight", shape=(1 << 17, 1 << 13)),),
        optimizer=OptimizerSpec(top_k=512),
    )
    store = BlobStore(data.blobs)
    store.put(manifest.encode())
    directory = data.swarm(manifest.swarm)
    directory.manifest.parent.mkdir(parents=True)
    context: Any = SimpleNamespace(
        invite=SimpleNamespace(swarm=manifest.swarm), store=store, directory=directory
    )
    assert await find_manifest(context, takes_part=False) == manifest
    with pytest.raises(UserError, match=r"top_k \(512\) is too large") as caught:
        await find_manifest(context)
    assert caught.value.code is ExitCode.MANIFEST


async def test_a_task_that_is_not_installed_ends_the_join(tmp_path: Path) -> None:
    data = DataDir(tmp_path)
    data.create()
    for task, known in (("causal_lm", True), ("poetry", False)):
        manifest = replace(Chain(1).manifest, task=task)
        store = BlobStore(data.blobs)
        store.put(manifest.encode())
        directory = data.swarm(manifest.swarm)
        directory.manifest.parent.mkdir(parents=True)
        # Peers only provide the manifest, which is present here.
        context: Any = SimpleNamespace(
            invite=SimpleNamespace(swarm=manifest.swarm), store=store, directory=directory
        )
        if known:
            assert await find_manifest(context) == manifest
            continue
        with pytest.raises(UserError, match="'poetry', which is not installed here") as caught:
            await find_manifest(context)
        assert caught.value.code is ExitCode.NO_TASK
        assert "sft" in caught.value.remedy
