"""Mirrors: whatever they serve, the result is the requested blob, or nothing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trio
from distro_node.crypto.hashing import ContentId, content_id, content_text
from distro_node.crypto.identity import PeerId
from distro_node.node.content import mirrors
from distro_node.node.content.mirrors import MirroredFetcher, Mirrors
from distro_node.node.network import web as web_module
from distro_node.node.storage.blob_store import BlobStore
from web_server import Answer, WebServer

DATA = b"a chunk of the corpus" * 1000
CID = content_id(DATA)


class Web(WebServer):
    """Server whose answers are set by path: status, headers, body."""

    def __init__(self) -> None:
        self.answers: dict[str, tuple[int, dict[str, str], bytes]] = {}
        super().__init__(self._answer)
        self.name = f"/{content_text(CID)}"

    def _answer(self, path: str) -> Answer:
        status, headers, body = self.answers.get(path, (404, {}, b"no"))
        return status, headers, lambda write: write(body)


@pytest.fixture
def web() -> Iterator[Web]:
    server = Web()
    with server.serving():
        yield server


async def test_a_blob_comes_from_the_web(web: Web) -> None:
    web.answers[web.name] = (200, {}, DATA)
    assert await Mirrors([web.url]).get(CID, len(DATA)) == DATA
    assert await Mirrors([web.url + "/"]).get(CID, 1 << 20) == DATA
    assert web.asked == [web.name] * 2


async def test_a_blob_comes_from_a_folder(tmp_path: Path) -> None:
    store = BlobStore(tmp_path / "blobs")
    store.put(DATA)
    assert await Mirrors([str(store.root)]).get(CID, len(DATA)) == DATA
    assert await Mirrors([str(tmp_path / "nowhere"), str(store.root)]).get(CID, 1 << 20) == DATA


@pytest.mark.parametrize(
    ("status", "headers", "body"),
    [
        (200, {}, DATA[::-1]),
        (200, {}, DATA + b"more"),
        (200, {}, b""),
        (404, {}, DATA),
        (500, {}, DATA),
        (200, {"content-length": "9999999"}, DATA),
        (302, {}, DATA),
        (302, {"location": "file:///etc/passwd"}, b""),
        (302, {"location": "gopher://127.0.0.1/"}, b""),
        (302, {"location": "http://[broken"}, b""),
    ],
)
async def test_nothing_else_is_taken(
    web: Web, status: int, headers: dict[str, str], body: bytes
) -> None:
    web.answers[web.name] = (status, headers, body)
    assert await Mirrors([web.url]).get(CID, len(DATA)) is None


async def test_redirects_are_followed_a_few_times(web: Web) -> None:
    web.answers |= {
        web.name: (302, {"location": "/elsewhere"}, b""),
        "/elsewhere": (200, {}, DATA),
    }
    assert await Mirrors([web.url]).get(CID, len(DATA)) == DATA
    web.answers["/elsewhere"] = (302, {"location": web.name}, b"")
    web.asked.clear()
    assert await Mirrors([web.url]).get(CID, len(DATA)) is None
    assert len(web.asked) <= 1 + web_module.MAX_REDIRECTS


async def test_a_mirror_that_fails_is_left_alone_for_a_while(web: Web) -> None:
    places = Mirrors([web.url])
    for _ in range(10):
        assert await places.get(CID, len(DATA)) is None
    assert len(web.asked) == mirrors._MAX_FAILURES
    # A mirror that is not there at all.
    assert await Mirrors(["http://127.0.0.1:1"]).get(CID, len(DATA)) is None


async def test_a_founders_mirror_leads_to_no_private_address(web: Web) -> None:
    web.answers[web.name] = (200, {}, DATA)
    assert await Mirrors([], [web.url]).get(CID, len(DATA)) is None
    assert await Mirrors([], [web.url.replace("127.0.0.1", "localhost")]).get(CID, 1 << 20) is None
    assert web.asked == []
    assert await Mirrors([web.url], [web.url]).get(CID, len(DATA)) == DATA


async def test_nor_does_its_redirect(web: Web, monkeypatch: pytest.MonkeyPatch) -> None:
    """The mirror itself counts as public here; the target of its redirect does not."""
    real = web_module.is_public
    first = iter([True])
    monkeypatch.setattr(
        web_module, "is_public", lambda address: next(first, False) or real(address)
    )
    target = web.url.replace("127.0.0.1", "127.0.0.2") + "/inside"
    web.answers |= {web.name: (302, {"location": target}, b""), "/inside": (200, {}, DATA)}
    assert await Mirrors([], [web.url]).get(CID, len(DATA)) is None
    assert web.asked == [web.name]


@pytest.mark.parametrize(
    ("address", "public"),
    [
        ("93.184.216.34", True),
        ("2606:2800:220:1:248:1893:25c8:1946", True),
        ("127.0.0.1", False),
        ("10.1.2.3", False),
        ("192.168.1.1", False),
        ("172.16.0.1", False),
        ("169.254.169.254", False),
        ("100.64.0.1", False),
        ("0.0.0.0", False),
        ("224.0.0.1", False),
        ("::1", False),
        ("fe80::1%eth0", False),
        ("fd00::1", False),
        ("::ffff:192.168.1.1", False),
        ("2002:c0a8:0101::1", False),
        ("64:ff9b::7f00:1", False),
        ("64:ff9b::5db8:d822", True),
        ("not an address", False),
    ],
)
def test_what_is_public(address: str, public: bool) -> None:
    assert web_module.is_public(address) == public


class Peers:
    """Substitute for a `BlobFetcher`."""

    def __init__(self) -> None:
        self.asked: list[ContentId] = []

    async def fetch(self, cid: ContentId, **_: object) -> bytes:
        self.asked.append(cid)
        return DATA


@pytest.mark.parametrize("has", [True, False])
async def test_peers_are_asked_for_what_no_mirror_has(tmp_path: Path, has: bool) -> None:
    mirror, mine = BlobStore(tmp_path / "mirror"), BlobStore(tmp_path / "mine")
    if has:
        mirror.put(DATA)
    peers: Any = Peers()
    fetcher = MirroredFetcher(peers, mine, Mirrors([str(mirror.root)]))
    nobody: list[PeerId] = []
    with trio.fail_after(30):
        data = await fetcher.fetch(
            CID,
            max_bytes=len(DATA),
            providers=lambda: nobody,
            timeout=1.0,
            wanted=lambda: True,
        )
    assert data == DATA
    assert mine.has(CID) == has
    assert peers.asked == ([] if has else [CID])
