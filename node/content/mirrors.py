"""Sources that are no peers and have blobs: a web server, a disk, another node's directory.

A mirror is a folder of files that are named by their content id, such as a data directory's `blobs/`.
Nothing of it is believed: a blob is taken if it hashes to its id. A mirror that fails is left alone for
a while, and blobs that no mirror has come from the peers.
"""

from __future__ import annotations

import ipaddress
import logging
import ssl
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urljoin

import trio

from ...crypto.hashing import ContentId, content_id, content_text
from ..network.exchange.blobs import BlobFetcher
from ..storage.blob_store import BlobStore

_log = logging.getLogger(__name__)

# A mirror that failed three times in a row, or has not what is wanted, is asked again after this.
_REST_SECONDS = 60.0
_FAILURES = 3
_CONNECT_SECONDS = 10.0
_IDLE_SECONDS = 10.0
# No slower than 64 kbit/s, as with peers.
_SLOWEST_BYTES_PER_SECOND = 8_000
_MAX_REDIRECTS = 3
_MOVED = frozenset({301, 302, 303, 307, 308})


class Mirrors:
    """Mirrors in the order of preference: the owner's, then those that the swarm's founder names.

    The owner's are URLs that begin with http:// or https://, and paths. The founder's are URLs, and
    lead to the public internet alone, also by their redirects: a stranger must not make a thousand
    nodes ask somebody's router or printer.
    """

    def __init__(self, own: Sequence[str], founders: Sequence[str] = ()) -> None:
        self._mirrors: list[_Mirror] = [
            _Web(mirror, public=False) if is_url(mirror) else _Folder(Path(mirror))
            for mirror in own
        ]
        self._mirrors += [_Web(mirror, public=True) for mirror in founders]

    def __bool__(self) -> bool:
        return bool(self._mirrors)

    async def get(self, cid: ContentId, max_bytes: int) -> bytes | None:
        """A blob of at most `max_bytes`, checked; None if no mirror has it at present."""
        for mirror in self._mirrors:
            if mirror.rests_until > trio.current_time():
                continue
            data = None
            with trio.move_on_after(30.0 + max_bytes / _SLOWEST_BYTES_PER_SECOND):
                data = await mirror.read(content_text(cid), max_bytes)
            if data is not None and content_id(data) == cid:
                mirror.failures = 0
                return data
            if data is not None:
                _log.warning("the mirror %s has something else under %s", mirror, content_text(cid))
            mirror.failures += 1
            if mirror.failures >= _FAILURES:
                mirror.failures, mirror.rests_until = 0, trio.current_time() + _REST_SECONDS
        return None


class MirroredFetcher:
    """A `BlobFetcher` that asks mirrors before it asks peers."""

    def __init__(self, fetcher: BlobFetcher, store: BlobStore, mirrors: Mirrors) -> None:
        self._fetcher = fetcher
        self._store = store
        self._mirrors = mirrors

    async def fetch(self, cid: ContentId, *, max_bytes: int, **how: Any) -> bytes:
        """As `BlobFetcher.fetch`."""
        if self._mirrors and not self._store.has(cid):
            data = await self._mirrors.get(cid, max_bytes)
            if data is not None:
                await trio.to_thread.run_sync(self._store.put, data)
                return data
        return await self._fetcher.fetch(cid, max_bytes=max_bytes, **how)


def is_url(mirror: str) -> bool:
    """Whether a mirror is on the web, and not a path."""
    return mirror.startswith(("http://", "https://"))


class _Mirror(ABC):
    rests_until = float("-inf")
    failures = 0

    @abstractmethod
    async def read(self, name: str, max_bytes: int) -> bytes | None: ...


class _Folder(_Mirror):
    def __init__(self, root: Path) -> None:
        self._root = root

    def __str__(self) -> str:
        return str(self._root)

    async def read(self, name: str, max_bytes: int) -> bytes | None:
        def read() -> bytes | None:
            try:
                with (self._root / name).open("rb") as file:
                    data = file.read(max_bytes + 1)
            except OSError:
                return None
            return data if len(data) <= max_bytes else None

        return await trio.to_thread.run_sync(read)


class _Web(_Mirror):
    def __init__(self, url: str, *, public: bool) -> None:
        self._url = url.rstrip("/") + "/"
        self._public = public
        self._pool: Any = None

    def __str__(self) -> str:
        return self._url

    async def read(self, name: str, max_bytes: int) -> bytes | None:
        # Only where there is a mirror on the web: it takes a third of a second to load.
        import httpcore

        if self._pool is None:
            self._pool = _new_pool(self._public)
        url = urljoin(self._url, name)
        try:
            for _ in range(_MAX_REDIRECTS + 1):
                async with self._pool.stream("GET", url, **_REQUEST) as answer:
                    if answer.status == 200:
                        return await _body(answer, max_bytes)
                    location = dict(answer.headers).get(b"location")
                    if answer.status not in _MOVED or location is None:
                        return None
                    target = urljoin(url, location.decode("ascii"))
                # Never from the encrypted to the open web, nor to anything that is no web.
                if not target.startswith("https://" if url.startswith("https://") else "http"):
                    return None
                url = target
        except (*_failures(httpcore), OSError, ValueError) as error:
            _log.info("the mirror %s: %s", self._url, error or type(error).__name__)
        return None


# As it is: what is compressed could grow without bound.
_REQUEST: dict[str, Any] = {
    "headers": {"accept-encoding": "identity", "user-agent": "distro-node"},
    "extensions": {
        "timeout": {
            "connect": _CONNECT_SECONDS,
            "pool": _CONNECT_SECONDS,
            "read": _IDLE_SECONDS,
            "write": _IDLE_SECONDS,
        }
    },
}


def _new_pool(public: bool) -> Any:
    import certifi
    import httpcore

    backend: Any = httpcore.TrioBackend()
    return httpcore.AsyncConnectionPool(
        ssl_context=ssl.create_default_context(cafile=certifi.where()),
        network_backend=_public_only(httpcore, backend) if public else backend,
        max_connections=4,
    )


def _public_only(httpcore: Any, inner: Any) -> Any:
    """A backend that connects to addresses of the public internet alone.

    It resolves names itself and connects to what it has looked at: a name that is public when it is
    asked for and private when it is dialled gains nothing.
    """

    class PublicBackend(httpcore.AsyncNetworkBackend):
        async def connect_tcp(self, host: str, port: int, **options: Any) -> Any:
            found = await trio.socket.getaddrinfo(host, port, type=trio.socket.SOCK_STREAM)
            for address in dict.fromkeys(str(entry[4][0]) for entry in found):
                if is_public(address):
                    return await inner.connect_tcp(address, port, **options)
            raise httpcore.ConnectError(f"{host} is not on the public internet")

    return PublicBackend()


def is_public(address: str) -> bool:
    """Whether an IP address is one of the public internet's, also where it carries another in itself."""
    try:
        ip = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return False
    if isinstance(ip, ipaddress.IPv6Address):
        # Mapped, 6to4 and Teredo addresses lead wherever the one inside leads.
        inside = ip.ipv4_mapped or ip.sixtofour or (ip.teredo[1] if ip.teredo else None)
        if inside is not None and not is_public(str(inside)):
            return False
        # NAT64's prefix, RFC 6052.
        if ip in ipaddress.ip_network("64:ff9b::/96"):
            return is_public(str(ipaddress.IPv4Address(int(ip) & 0xFFFFFFFF)))
    return ip.is_global and not ip.is_multicast


def _failures(httpcore: Any) -> tuple[type[Exception], ...]:
    return (
        httpcore.NetworkError,
        httpcore.ProtocolError,
        httpcore.ProxyError,
        httpcore.TimeoutException,
        httpcore.UnsupportedProtocol,
    )


async def _body(answer: Any, max_bytes: int) -> bytes | None:
    data = bytearray()
    async for piece in answer.aiter_stream():
        data += piece
        if len(data) > max_bytes:
            return None
    return bytes(data)
