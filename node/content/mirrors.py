"""Mirrors: sources of blobs other than peers, such as a web server, a disk, another node's directory.

A mirror is a folder of files that are named by their content id, such as a data directory's `blobs/`. It
is not trusted: a blob is accepted if it hashes to its id. A failing mirror is left alone for a while.
If no mirror has a blob, it comes from a peer.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urljoin

import trio

from ...crypto.hashing import ContentId, content_id, content_text
from ..network.exchange.blobs import BlobFetcher
from ..network.web import AddressScope, Web, WebError
from ..storage.blob_store import BlobStore
from ..util.regular_files import read_regular

_log = logging.getLogger(__name__)

# How long a mirror is left alone after three failures in a row; a missing blob is a failure.
_PAUSE_SECONDS = 60.0
_MAX_FAILURES = 3
# Slowest transfer that is waited for: 64 kbit/s, as with peers.
_MIN_BYTES_PER_SECOND = 8_000


class Mirrors:
    """Mirrors in order of preference: the owner's, then the ones named by the swarm's founder.

    The owner's are URLs that begin with http:// or https://, and paths. The founder's are URLs, which
    may lead only to the public internet, also by their redirects: an untrusted founder must not make a
    thousand nodes send requests to a victim's router or printer.
    """

    def __init__(self, own: Sequence[str], founders: Sequence[str] = ()) -> None:
        self._mirrors: list[_Mirror] = [
            _WebMirror(mirror, public=False) if is_url(mirror) else _FolderMirror(Path(mirror))
            for mirror in own
        ]
        self._mirrors += [_WebMirror(mirror, public=True) for mirror in founders]

    def __bool__(self) -> bool:
        return bool(self._mirrors)

    async def get(self, cid: ContentId, max_bytes: int) -> bytes | None:
        """Return a blob of at most `max_bytes`, checked; None if no mirror has it at present."""
        for mirror in self._mirrors:
            if mirror.paused_until > trio.current_time():
                continue
            data = None
            with trio.move_on_after(30.0 + max_bytes / _MIN_BYTES_PER_SECOND):
                data = await mirror.read(content_text(cid), max_bytes)
            if data is not None and content_id(data) == cid:
                mirror.failures = 0
                return data
            if data is not None:
                _log.warning("the mirror %s has other content under %s", mirror, content_text(cid))
            mirror.failures += 1
            if mirror.failures >= _MAX_FAILURES:
                mirror.failures, mirror.paused_until = 0, trio.current_time() + _PAUSE_SECONDS
        return None


class MirroredFetcher:
    """`BlobFetcher` that asks mirrors before peers."""

    def __init__(self, fetcher: BlobFetcher, store: BlobStore, mirrors: Mirrors) -> None:
        self._fetcher = fetcher
        self._store = store
        self._mirrors = mirrors

    async def fetch(self, cid: ContentId, *, max_bytes: int, **options: Any) -> bytes:
        """Return the blob, as `BlobFetcher.fetch` does."""
        if self._mirrors and not self._store.has(cid):
            data = await self._mirrors.get(cid, max_bytes)
            if data is not None:
                await trio.to_thread.run_sync(self._store.put, data)
                return data
        return await self._fetcher.fetch(cid, max_bytes=max_bytes, **options)


def is_url(mirror: str) -> bool:
    """Whether a mirror is a URL, not a path."""
    return mirror.startswith(("http://", "https://"))


class _Mirror(ABC):
    paused_until = float("-inf")
    failures = 0

    @abstractmethod
    async def read(self, name: str, max_bytes: int) -> bytes | None: ...


class _FolderMirror(_Mirror):
    def __init__(self, root: Path) -> None:
        self._root = root

    def __str__(self) -> str:
        return str(self._root)

    async def read(self, name: str, max_bytes: int) -> bytes | None:
        def read() -> bytes | None:
            try:
                data = read_regular(self._root / name, max_bytes)
            except OSError:
                return None
            return data if len(data) <= max_bytes else None

        return await trio.to_thread.run_sync(read)


class _WebMirror(_Mirror):
    def __init__(self, url: str, *, public: bool) -> None:
        self._url = url.rstrip("/") + "/"
        self._web = Web(AddressScope.PUBLIC if public else AddressScope.ANYWHERE)

    def __str__(self) -> str:
        return self._url

    async def read(self, name: str, max_bytes: int) -> bytes | None:
        try:
            return await self._web.get(urljoin(self._url, name), max_bytes)
        except WebError as error:
            _log.info("the mirror %s: %s", self._url, error)
            return None
