"""The TCP transport of a node: libp2p's, with the segment size and the interface that an address needs.

A path that loses large packets needs smaller segments (`segment_size`). A link-local IPv6 address
(fe80…) means something on one interface only, and a multiaddress does not name it: the interface is the
one at which the address was announced (`discovery/mdns`), and without one it is not dialled.
"""

from __future__ import annotations

import ipaddress
import socket
from typing import Any

import trio
from libp2p.io.trio import TrioTCPStream
from libp2p.network.connection.raw_connection import RawConnection
from libp2p.transport.exceptions import OpenConnectionError
from libp2p.transport.tcp.tcp import TCP
from multiaddr import Multiaddr

from ...protocol.util.bounded_dict import BoundedTable
from ..util.operating_system import set_socket_option
from .addresses import endpoint
from .ip_families import plain_host
from .segment_size import SegmentSizes

_MAX_HOSTS = 1024


class LinkScopes:
    """The interface of each link-local address, by its index."""

    def __init__(self) -> None:
        self._scopes: BoundedTable[str, int] = BoundedTable(_MAX_HOSTS)

    def note(self, host: str, interface: int) -> None:
        """Note the interface at which a link-local address was announced last."""
        self._scopes[plain_host(host)] = interface

    def of(self, host: str) -> int | None:
        """Return the index of the interface, None if it is unknown; 0 for an address that needs none."""
        if not ipaddress.ip_address(host).is_link_local or ":" not in host:
            return 0
        return self._scopes.get(plain_host(host))


class NodeTCP(TCP):
    """libp2p's TCP, which dials with the segment size and the interface that suit the address."""

    def __init__(self, sizes: SegmentSizes, scopes: LinkScopes) -> None:
        super().__init__()
        self._segment_sizes = sizes
        self._link_scopes = scopes

    async def _dial_resolved(self, maddr: Multiaddr, source: tuple[str, int] | None = None) -> Any:
        host, port = endpoint(maddr)
        size, scope = self._segment_sizes.of(host), self._link_scopes.of(host)
        if scope is None:
            raise OpenConnectionError(f"{maddr} is link-local, and its interface is not known")
        if source is not None or (size is None and not scope):
            return await super()._dial_resolved(maddr, source)
        try:
            sock = await _connect(host, port, scope, size)
        except OSError as error:
            raise OpenConnectionError(f"failed to dial {maddr}: {error}") from error
        return RawConnection(TrioTCPStream(trio.SocketStream(sock)), True)


async def _connect(host: str, port: int, scope: int, size: int | None) -> trio.socket.SocketType:
    """Return a socket connected to a port of an IP address, with the index of its interface (0: any) and
    the segment size (None: the default). Raises `OSError` if connecting fails."""
    version = ipaddress.ip_address(host).version
    sock = trio.socket.socket(
        socket.AF_INET6 if version == 6 else socket.AF_INET, socket.SOCK_STREAM
    )
    try:
        if size is not None:
            # If the system does not allow it, the usual size is tried once more.
            set_socket_option(sock, "TCP_MAXSEG", size)
        await sock.connect((host, port, 0, scope) if version == 6 else (host, port))
    except BaseException:
        sock.close()
        raise
    return sock
