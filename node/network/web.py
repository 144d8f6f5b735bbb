"""What is fetched from the web: small or large, bounded in bytes and time, and from where it may come.

No proxy, no cookies, no compression. Redirects are followed a few times, never from the encrypted to
the open web. `Reach` says which addresses may be dialled at all: a stranger, or a server that redirects,
must not make a node ask somebody's router or printer.
"""

from __future__ import annotations

import ipaddress
import ssl
from enum import Enum
from typing import Any
from urllib.parse import urljoin

import trio

from .happy_eyeballs import Candidates, race
from .names import resolve_host

_CONNECT_SECONDS = 10.0
_IDLE_SECONDS = 10.0
MAX_REDIRECTS = 3
_MOVED = frozenset({301, 302, 303, 307, 308})


class Reach(Enum):
    """Which addresses may be dialled."""

    ANYWHERE = "anywhere"
    PUBLIC = "public"
    """The public internet alone."""
    AS_NAMED = "as named"
    """Wherever the URL itself leads; from there a redirect leads to a private address only if the URL
    itself did."""


class WebError(Exception):
    """What was asked for did not come; says why. It may hold the server's words."""


class Web:
    """Fetches by HTTP, keeping connections open in between."""

    def __init__(self, reach: Reach) -> None:
        self._reach = reach
        self._pools: dict[bool, Any] = {}

    async def get(self, url: str, max_bytes: int) -> bytes:
        """A body of at most `max_bytes`, however long it takes: bound it with a cancel scope. Raises
        `WebError`."""
        # Only where something comes from the web: it takes a third of a second to load.
        import httpcore

        public = self._reach is Reach.PUBLIC
        try:
            for _ in range(MAX_REDIRECTS + 1):
                async with self._pool(public).stream("GET", url, **_REQUEST) as answer:
                    if answer.status == 200:
                        return await _body(answer, max_bytes)
                    location = dict(answer.headers).get(b"location")
                    if answer.status not in _MOVED or location is None:
                        raise WebError(f"the server answers with the status {answer.status}")
                    target = urljoin(url, location.decode("ascii"))
                    if self._reach is Reach.AS_NAMED:
                        public = public or _led_to_public(answer)
                if not target.startswith("https://" if url.startswith("https://") else "http"):
                    raise WebError("it redirects to what is no web, or to the open one")
                url = target
        except (*_failures(httpcore), OSError, ValueError) as error:
            raise WebError(str(error) or type(error).__name__) from None
        raise WebError("it redirects again and again")

    def _pool(self, public: bool) -> Any:
        if public not in self._pools:
            self._pools[public] = _new_pool(public)
        return self._pools[public]


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


def _led_to_public(answer: Any) -> bool:
    """Whether the server that answered is on the public internet; if nobody can say, it is."""
    stream = answer.extensions.get("network_stream")
    address = stream.get_extra_info("server_addr") if stream is not None else None
    return address is None or is_public(str(address[0]))


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
            candidates: Candidates[str] = Candidates()

            async def resolve() -> None:
                await resolve_host(
                    host, (6, 4), candidates, lambda each: each if is_public(each) else None
                )
                candidates.close()

            async def connect(address: str) -> Any:
                return await inner.connect_tcp(address, port, **options)

            async with trio.open_nursery() as nursery:
                nursery.start_soon(resolve)
                stream, failures = await race(candidates, connect, lambda other: other.aclose())
                nursery.cancel_scope.cancel()
            if stream is not None:
                return stream
            if failures:
                raise failures[0]
            reason = next(iter(candidates.reasons), "it is not on the public internet")
            raise httpcore.ConnectError(f"{host}: {reason}")

    return PublicBackend()


def _failures(httpcore: Any) -> tuple[type[Exception], ...]:
    return (
        httpcore.NetworkError,
        httpcore.ProtocolError,
        httpcore.ProxyError,
        httpcore.TimeoutException,
        httpcore.UnsupportedProtocol,
    )


async def _body(answer: Any, max_bytes: int) -> bytes:
    data = bytearray()
    async for piece in answer.aiter_stream():
        data += piece
        if len(data) > max_bytes:
            raise WebError(f"the answer has more than {max_bytes} bytes")
    return bytes(data)
