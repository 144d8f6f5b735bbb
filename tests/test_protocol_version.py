"""Swarms of other protocol versions: the user learns which side is too old, and the remedy."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import trio
from distro_node import __version__
from distro_node.crypto.identity import PeerId
from distro_node.node.content.manifest_search import ManifestSearch, read_manifest
from distro_node.node.control.status_rows import rows
from distro_node.node.errors import ExitCode, UserError, leaves
from distro_node.node.network.discovery.introductions import Introducer, IntroductionService
from distro_node.node.network.discovery.version_query import PROTOCOL as VERSION_QUERY
from distro_node.node.network.discovery.version_query import query_versions
from distro_node.node.network.exchange.blobs import BlobFetcher
from distro_node.node.network.network import open_network
from distro_node.node.session.session import SwarmSession
from distro_node.node.session.version_watch import change_status, check_version
from distro_node.node.storage.blob_store import BlobStore
from distro_node.node.storage.data_dir import DataDir
from distro_node.node.telemetry.status import ChangeStatus
from distro_node.node.telemetry.telemetry import Telemetry
from distro_node.protocol.chain.ledger import Ledger
from distro_node.protocol.chain.versions import READY_ROUNDS
from distro_node.protocol.wire.errors import ProtocolError
from distro_node.protocol.wire.introductions import Registry, VersionMessage, decode_version_message
from distro_node.protocol.wire.manifest import PROTOCOL_VERSION, Manifest
from network.support import LOOPBACK, PATIENCE_SECONDS, until
from network.victim import on_disk, quiet_settings
from simulation.chain import Chain
from simulation.keys import identity
from simulation.whole.trainer import Workshop, toy_swarm
from statuses import SWARM, TRAINING


@pytest.mark.parametrize(
    ("version", "says"),
    [
        (PROTOCOL_VERSION + 1, "this node is too old"),
        (PROTOCOL_VERSION - 1, "the swarm is too old for this node"),
    ],
)
def test_who_is_too_old_is_reported(version: int, says: str) -> None:
    other = replace(Chain(0).manifest, version=version)
    with pytest.raises(UserError, match=says) as caught:
        read_manifest(other.encode(), other.swarm)
    assert caught.value.code is ExitCode.VERSION
    assert f"version {version}, this program {PROTOCOL_VERSION}" in caught.value.problem
    assert __version__ in caught.value.remedy


def test_one_of_ours_is_read() -> None:
    manifest = Chain(0).manifest
    assert read_manifest(manifest.encode(), manifest.swarm) == manifest


def test_the_encoding_of_a_version_stays_the_same() -> None:
    """Programs of all versions must be able to read it."""
    assert VERSION_QUERY == "/distro/version/1"
    assert VersionMessage(2).encode() == b"\x91\x02"
    assert decode_version_message(b"\x91\xce\x7f\xff\xff\xff").version == 2**31 - 1


def test_a_version_is_not_long() -> None:
    with pytest.raises(ProtocolError, match="17 bytes exceed the limit of 16"):
        decode_version_message(bytes(17))


async def version_error(root: Path, monkeypatch: pytest.MonkeyPatch, version: int) -> UserError:
    """Return the error for a newcomer that gets no manifest, and meets members of another version."""
    monkeypatch.setattr(
        "distro_node.node.network.discovery.version_query.PROTOCOL_VERSION", version
    )
    monkeypatch.setattr("distro_node.node.content.manifest_search._FETCH_SECONDS", 0.5)
    swarm = Chain(0).manifest.swarm
    async with (
        open_network(LOOPBACK, identity(1)) as bootstrap,
        open_network(LOOPBACK, identity(2)) as member,
        open_network(LOOPBACK, identity(3)) as newcomer,
        trio.open_nursery() as nursery,
    ):
        IntroductionService(bootstrap, Registry())
        address = (bootstrap.addresses[0],)
        nursery.start_soon(Introducer(member, identity(2), swarm, address).run)
        introducer = Introducer(newcomer, identity(3), swarm, address)
        nursery.start_soon(introducer.run)
        await until(lambda: member.peer in introducer.known.records.keys() & newcomer.connected())
        fetcher = BlobFetcher(newcomer, BlobStore(root))
        search = ManifestSearch(
            lambda: list(newcomer.connected()), introducer, fetcher, lambda *_: None
        )
        with pytest.raises(UserError) as caught:
            await search.manifest(swarm, wait=False)
        nursery.cancel_scope.cancel()
    return caught.value


@pytest.mark.parametrize(
    ("version", "code", "says"),
    [
        (PROTOCOL_VERSION + 1, ExitCode.VERSION, "this node is too old"),
        (PROTOCOL_VERSION - 1, ExitCode.VERSION, "the swarm is too old for this node"),
        (PROTOCOL_VERSION, ExitCode.NO_DESCRIPTION, "none has the swarm's manifest yet"),
    ],
)
async def test_peers_report_their_versions_where_the_swarm_is_not_to_be_had(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: int, code: ExitCode, says: str
) -> None:
    error = await version_error(tmp_path, monkeypatch, version)
    assert error.code is code
    assert says in error.problem
    if version != PROTOCOL_VERSION:
        assert f"use protocol version {version}, this program {PROTOCOL_VERSION}" in error.problem
        assert __version__ in error.remedy


async def test_so_do_bootstrap_peers_that_introduce_nobody(tmp_path: Path) -> None:
    """A peer of a later version introduces in another way, but reports its version in the same way."""
    swarm = Chain(0).manifest.swarm

    async def later(peer: PeerId, data: bytes) -> bytes:
        return VersionMessage(PROTOCOL_VERSION + 1).encode()

    async with (
        open_network(LOOPBACK, identity(1)) as bootstrap,
        open_network(LOOPBACK, identity(3)) as newcomer,
        trio.open_nursery() as nursery,
    ):
        bootstrap.serve(VERSION_QUERY, later, max_request=1, max_concurrent=1)
        introducer = Introducer(newcomer, identity(3), swarm, (bootstrap.addresses[0],))
        nursery.start_soon(introducer.run)
        fetcher = BlobFetcher(newcomer, BlobStore(tmp_path))
        search = ManifestSearch(list, introducer, fetcher, lambda *_: None)
        with pytest.raises(UserError, match="this node is too old") as caught:
            await search.manifest(swarm, wait=False)
        assert caught.value.code is ExitCode.VERSION
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("answer", [b"", b"\xff", b"\x91\xff", bytes(17)])
async def test_an_invalid_answer_is_ignored(answer: bytes) -> None:
    async def wrong(peer: PeerId, data: bytes) -> bytes:
        return answer

    async with (
        open_network(LOOPBACK, identity(1)) as peer,
        open_network(LOOPBACK, identity(2)) as other,
    ):
        peer.serve(VERSION_QUERY, wrong, max_request=1, max_concurrent=1)
        await other.connect(peer.addresses[0])
        assert await query_versions(other, [peer.peer]) == set()


def changing(root: Path, rounds: int, **changes: Any) -> tuple[Chain, DataDir]:
    """Return a founder's disk with `rounds` rounds, after all of which it supported the next version."""
    manifest, blobs, fingerprint = toy_swarm(min_seconds=0.0, version_notice=8, **changes)
    chain = Chain(0)
    chain.manifest, chain.ledger = manifest, Ledger(manifest, max_version=PROTOCOL_VERSION + 1)
    chain.grow(updates=(), fingerprint=fingerprint)
    for _ in range(rounds):
        said = chain.update(0, max_version=PROTOCOL_VERSION + 1, fingerprint=fingerprint)
        chain.grow(updates=[said], fingerprint=fingerprint)
    return chain, on_disk(root, blobs, chain)


async def taking_part(data: DataDir, manifest: Manifest) -> UserError:
    """Return the error for a node that continues from that disk with this program."""
    me, telemetry = identity(0), Telemetry(identity(0).peer)
    settings = quiet_settings(manifest, data.root)
    async with open_network(LOOPBACK, me) as network:
        session = SwarmSession(settings, data, me, network, telemetry, Workshop(me.peer, 0).start)
        told: list[UserError] = []
        with trio.fail_after(PATIENCE_SECONDS):
            try:
                await session.run(b"")
            except* UserError as group:
                told += (error for error in leaves(group) if isinstance(error, UserError))
    (error,) = told
    return error


@pytest.mark.parametrize("beyond", [-2, 0, 3])
async def test_who_does_not_support_the_version_of_the_round_is_warned(
    tmp_path: Path, beyond: int
) -> None:
    """Early enough, too: in the rounds just before, the others must not start to wait for it."""
    at = 1 + READY_ROUNDS + 8
    chain, data = changing(tmp_path, at - 1 + beyond)
    (ledger,) = data.root.glob("swarms/*/ledger*")
    written = ledger.read_bytes()
    error = await taking_part(data, chain.manifest)
    # The files of a newer program stay unchanged.
    assert ledger.read_bytes() == written
    assert error.code is ExitCode.VERSION
    assert f"protocol version {PROTOCOL_VERSION + 1}" in error.problem
    assert f"this program {PROTOCOL_VERSION}" in error.problem
    assert f"round {at}" in error.problem
    assert "this node is too old" in error.problem


def test_before_that_the_round_is_shown(tmp_path: Path) -> None:
    chain, _ = changing(tmp_path, READY_ROUNDS)
    change = change_status(chain.ledger)
    assert change == ChangeStatus(
        version=PROTOCOL_VERSION + 1, round=1 + READY_ROUNDS + 8, supported=True
    )
    ours = Ledger(chain.manifest)
    for round_ in range(len(chain.ledger)):
        ours.append(chain.ledger[round_])
    status = change_status(ours)
    assert status is not None
    assert not status.supported
    check_version(ours)
    swarm = replace(SWARM, version_change=status)
    shown = [row for row in rows(replace(TRAINING, swarm=swarm)) if row.name == "version"]
    assert [(row.value, row.note) for row in shown] == [
        (f"{status.version} from round {status.round} on", "update this node before that")
    ]
