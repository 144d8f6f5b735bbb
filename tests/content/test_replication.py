"""Chunks with too few copies: counted from the peers' answers, whatever some of them claim."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from distro_node.crypto.hashing import content_id
from distro_node.crypto.identity import PeerId
from distro_node.node.content.replication import WANTED_COPIES, Replication
from distro_node.node.network.errors import RequestError
from distro_node.node.network.exchange.chunks import serve_chunks
from distro_node.node.storage.blob_store import BlobStore
from distro_node.protocol.wire.blobs import CHUNK_BYTES, BlobList
from network.support import star

CHUNKS = tuple(content_id(bytes([number])) for number in range(6))
LISTED = BlobList("shard", len(CHUNKS) * CHUNK_BYTES, CHUNKS)
BLOB = content_id(LISTED.encode())


async def test_copies_are_counted_among_peers(tmp_path: Path) -> None:
    async with star(5) as (a, *others):
        for index, other in enumerate(others):
            store = BlobStore(tmp_path / str(index))
            # One has not even the list; each of the others has one chunk less than the one before.
            if index:
                store.put(LISTED.encode())
                for number in range(index, len(CHUNKS)):
                    store.put(bytes([number]))
            serve_chunks(other, store)
        peers = [other.peer for other in others]
        few = await Replication(a, lambda: peers).scarce(BLOB, LISTED)
        # Chunks 0 to 2 have no, one and two copies, the others three.
        assert few == list(CHUNKS[:WANTED_COPIES])


class Scripted:
    """Network whose peers give scripted answers."""

    def __init__(self, own: bytes, **says: bytes | None) -> None:
        self.peer = PeerId(own * 32)
        self.says = {PeerId(name.encode() * 32): answer for name, answer in says.items()}
        self.offences: list[str] = []

    def penalise(self, peer: PeerId, reason: str) -> None:
        self.offences.append(reason)

    async def request(self, peer: PeerId, *_: object, **__: object) -> bytes:
        answer = self.says[peer]
        if answer is None:
            raise RequestError("timeout", "gone")
        return answer

    def replication(self) -> Replication:
        network: Any = self
        return Replication(network, lambda: list(self.says))


async def test_silence_and_nonsense_count_as_nothing() -> None:
    network = Scripted(b"x", a=b"\xff", b=b"\xff\xff\xff", c=None, d=b"\x80", e=b"\x80")
    few = await network.replication().scarce(BLOB, LISTED)
    assert set(few) == set(CHUNKS[1:])
    assert network.offences == ["malformed"]


async def test_members_who_look_at_the_same_time_keep_different_chunks() -> None:
    orders = {tuple(await Scripted(own).replication().scarce(BLOB, LISTED)) for own in (b"x", b"y")}
    assert len(orders) == 2
    assert {frozenset(order) for order in orders} == {frozenset(CHUNKS)}
