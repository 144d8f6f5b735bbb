"""Swarms of other protocol versions: the user learns which side is too old, and the way out."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import trio
from distro_node import __version__
from distro_node.crypto.identity import PeerId
from distro_node.node.content.manifest_search import Search, read_manifest
from distro_node.node.errors import ExitCode, UserError
from distro_node.node.network.discovery.introductions import Introducer, IntroductionService
from distro_node.node.network.discovery.speaking import SPEAKING, spoken_versions
from distro_node.node.network.exchange.blobs import BlobFetcher
from distro_node.node.network.network import open_network
from distro_node.node.storage.blob_store import BlobStore
from distro_node.protocol.wire.errors import ProtocolError
from distro_node.protocol.wire.introductions import Registry, Spoken, decode_spoken
from distro_node.protocol.wire.manifest import PROTOCOL_VERSION
from network.support import LOOPBACK, identity, until
from simulation.chain import Chain


@pytest.mark.parametrize(
    ("version", "says"),
    [
        (PROTOCOL_VERSION + 1, "this node is too old"),
        (PROTOCOL_VERSION - 1, "the swarm is too old for this node"),
    ],
)
def test_who_is_too_old_is_said(version: int, says: str) -> None:
    other = replace(Chain(0).manifest, version=version)
    with pytest.raises(UserError, match=says) as caught:
        read_manifest(other.encode(), other.swarm)
    assert caught.value.code is ExitCode.VERSION
    assert f"version {version}, this program {PROTOCOL_VERSION}" in caught.value.problem
    assert __version__ in caught.value.remedy


def test_one_of_ours_is_read() -> None:
    manifest = Chain(0).manifest
    assert read_manifest(manifest.encode(), manifest.swarm) == manifest


def test_how_a_version_is_said_stays_the_same() -> None:
    """Programs of all versions must read it of each other."""
    assert SPEAKING == "/distro/version/1"
    assert Spoken(2).encode() == b"\x91\x02"
    assert decode_spoken(b"\x91\xce\x7f\xff\xff\xff").version == 2**31 - 1


def test_a_version_is_not_long() -> None:
    with pytest.raises(ProtocolError, match="17 bytes where at most 16 are allowed"):
        decode_spoken(bytes(17))


async def looking(root: Path, monkeypatch: pytest.MonkeyPatch, spoken: int) -> UserError:
    """What a newcomer is told whose swarm nobody gives it, and that meets members of another version."""
    monkeypatch.setattr("distro_node.node.network.discovery.speaking.PROTOCOL_VERSION", spoken)
    monkeypatch.setattr("distro_node.node.content.manifest_search._UNKNOWN_SECONDS", 0.5)
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
        await until(lambda: member.peer in introducer.peer_records.keys() & newcomer.connected())
        fetcher = BlobFetcher(newcomer, BlobStore(root))
        search = Search(lambda: list(newcomer.connected()), introducer, fetcher, lambda *_: None)
        with pytest.raises(UserError) as caught:
            await search.manifest(swarm, wait=False)
        nursery.cancel_scope.cancel()
    return caught.value


@pytest.mark.parametrize(
    ("spoken", "code", "says"),
    [
        (PROTOCOL_VERSION + 1, ExitCode.VERSION, "this node is too old"),
        (PROTOCOL_VERSION - 1, ExitCode.VERSION, "the swarm is too old for this node"),
        (PROTOCOL_VERSION, ExitCode.UNKNOWN_SWARM, "nobody that could be reached knows"),
    ],
)
async def test_peers_say_what_they_speak_where_the_swarm_is_not_to_be_had(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spoken: int, code: ExitCode, says: str
) -> None:
    error = await looking(tmp_path, monkeypatch, spoken)
    assert error.code is code
    assert says in error.problem
    if spoken != PROTOCOL_VERSION:
        assert f"speak protocol version {spoken}, this program {PROTOCOL_VERSION}" in error.problem
        assert __version__ in error.remedy


async def test_so_do_bootstrap_peers_that_introduce_nobody(tmp_path: Path) -> None:
    """One of a later version has another way to introduce, and the same way to say what it speaks."""
    swarm = Chain(0).manifest.swarm

    async def later(peer: PeerId, data: bytes) -> bytes:
        return Spoken(PROTOCOL_VERSION + 1).encode()

    async with (
        open_network(LOOPBACK, identity(1)) as bootstrap,
        open_network(LOOPBACK, identity(3)) as newcomer,
        trio.open_nursery() as nursery,
    ):
        bootstrap.serve(SPEAKING, later, max_request=1, max_concurrent=1)
        introducer = Introducer(newcomer, identity(3), swarm, (bootstrap.addresses[0],))
        nursery.start_soon(introducer.run)
        fetcher = BlobFetcher(newcomer, BlobStore(tmp_path))
        search = Search(list, introducer, fetcher, lambda *_: None)
        with pytest.raises(UserError, match="this node is too old") as caught:
            await search.manifest(swarm, wait=False)
        assert caught.value.code is ExitCode.VERSION
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("answer", [b"", b"\xff", b"\x91\xff", bytes(17)])
async def test_an_answer_that_is_none_says_nothing(answer: bytes) -> None:
    async def wrong(peer: PeerId, data: bytes) -> bytes:
        return answer

    async with (
        open_network(LOOPBACK, identity(1)) as peer,
        open_network(LOOPBACK, identity(2)) as other,
    ):
        peer.serve(SPEAKING, wrong, max_request=1, max_concurrent=1)
        await other.connect(peer.addresses[0])
        assert await spoken_versions(other, [peer.peer]) == set()
