"""HTTP downloads, bounded in bytes and time, with limits on the addresses that may be dialled.

No proxy, no cookies, no compression. A few redirects are followed, never from https to http.
A server's certificate is trusted if the operating system or `certifi` trusts its authority; OpenSSL's
variables `SSL_CERT_FILE` and `SSL_CERT_DIR` name others, as a network that inspects TLS needs.
`AddressScope` decides which addresses may be dialled at all: neither a stranger nor a server that
redirects may make a node access someone's router or printer.
"""

from __future__ import annotations

import ipaddress
import ssl
from enum import Enum
from typing import Any
from urllib.parse import urljoin

import trio

from .happy_eyeballs import Candidates, race
from .name_resolution import resolve_host

_CONNECT_SECONDS = 10.0
_IDLE_SECONDS = 10.0
MAX_REDIRECTS = 3
_REDIRECT_STATUSES = frozenset({301, 302, 303, 307, 308})


class AddressScope(Enum):
    """Which addresses may be dialled."""

    ANYWHERE = "anywhere"
    PUBLIC = "public"
    """Only addresses of the public internet."""
    AS_NAMED = "as named"
    """Any address for the URL itself; a redirect may lead to a private address only if every server
    before it, in the chain of redirects, was at one."""


class WebError(Exception):
    """A download failed, with the reason. The text may contain the server's words."""

    def __init__(self, reason: str, status: int | None = None) -> None:
        """`status` is that of the server's answer, unless it was 200 or there was none."""
        super().__init__(reason)
        self.status = status


class Web:
    """HTTP client that keeps connections open between downloads."""

    def __init__(self, scope: AddressScope) -> None:
        self._scope = scope
        self._pools: dict[bool, Any] = {}

    async def get(self, url: str, max_bytes: int) -> bytes:
        """Return the body at `url`, of at most `max_bytes`. There is no time limit for the whole:
        callers set one with a cancel scope. Raises `WebError` if the download fails or the body is
        larger."""
        # Imported lazily: it takes a third of a second to load.
        import httpcore

        public = self._scope is AddressScope.PUBLIC
        try:
            for _ in range(MAX_REDIRECTS + 1):
                async with self._pool(public).stream("GET", url, **_REQUEST) as answer:
                    if answer.status == 200:
                        return await _body(answer, max_bytes)
                    location = dict(answer.headers).get(b"location")
                    if answer.status not in _REDIRECT_STATUSES or location is None:
                        raise WebError(
                            f"the server answered with status {answer.status}", answer.status
                        )
                    target = urljoin(url, location.decode("ascii"))
                    if self._scope is AddressScope.AS_NAMED:
                        public = public or _led_to_public(answer)
                if not target.startswith("https://" if url.startswith("https://") else "http"):
                    raise WebError(
                        "it redirects to something other than HTTP, or from https:// to http://"
                    )
                url = target
        except (*_failures(httpcore), OSError, ValueError) as error:
            raise WebError(_reason(error)) from None
        raise WebError("it redirects too many times")

    def _pool(self, public: bool) -> Any:
        if public not in self._pools:
            self._pools[public] = _new_pool(public)
        return self._pools[public]


def is_public(address: str) -> bool:
    """Whether an IP address belongs to the public internet, and so does any address embedded in it."""
    try:
        ip = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return False
    if isinstance(ip, ipaddress.IPv6Address):
        # Mapped, 6to4 and Teredo addresses lead wherever the embedded address leads.
        inside = ip.ipv4_mapped or ip.sixtofour or (ip.teredo[1] if ip.teredo else None)
        if inside is not None and not is_public(str(inside)):
            return False
        # NAT64's prefix, RFC 6052.
        if ip in ipaddress.ip_network("64:ff9b::/96"):
            return is_public(str(ipaddress.IPv4Address(int(ip) & 0xFFFFFFFF)))
    return ip.is_global and not ip.is_multicast


# Uncompressed: compressed content could expand without bound.
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
    """Whether the server that answered is on the public internet; true if unknown."""
    stream = answer.extensions.get("network_stream")
    address = stream.get_extra_info("server_addr") if stream is not None else None
    return address is None or is_public(str(address[0]))


def _new_pool(public: bool) -> Any:
    import certifi
    import httpcore

    backend: Any = httpcore.TrioBackend()
    trusted = ssl.create_default_context()
    trusted.load_verify_locations(certifi.where())
    return httpcore.AsyncConnectionPool(
        ssl_context=trusted,
        network_backend=_public_only(httpcore, backend) if public else backend,
        max_connections=4,
    )


def _public_only(httpcore: Any, inner: Any) -> Any:
    """Return a backend that connects only to addresses of the public internet.

    It resolves names itself and connects to the addresses that it has checked, so a name that resolves
    to a public address when checked and to a private one when dialled gains nothing.
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
            reason = next(iter(candidates.reasons), "it is not an address of the public internet")
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


def _reason(error: BaseException) -> str:
    """Return an error's text, or that of what caused it: httpcore's errors of TLS have none of their
    own."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ssl.SSLCertVerificationError):
            return f"its certificate is not trusted: {cause.verify_message}"
        if str(cause):
            return str(cause)
        cause = cause.__cause__ or cause.__context__
    return type(error).__name__


async def _body(answer: Any, max_bytes: int) -> bytes:
    data = bytearray()
    async for piece in answer.aiter_stream():
        data += piece
        if len(data) > max_bytes:
            raise WebError(f"the answer has more than {max_bytes} bytes")
    return bytes(data)
