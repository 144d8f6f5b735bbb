"""IPv4 and IPv6 at the socket level: remote addresses, and listeners of one family each.

Two of these functions replace libp2p's (see `library_patches`). The others normalise addresses, and
leave out listening addresses of a family that this machine lacks.
"""

from __future__ import annotations

import contextlib
import ipaddress
import logging
import socket
from collections.abc import Sequence
from contextlib import closing
from typing import Any

from libp2p.io.trio import TrioTCPStream
from multiaddr import Multiaddr

from ..util.operating_system import SHARED_PORT_OPTIONS
from .addresses import endpoint

log = logging.getLogger(__name__)

_WILDCARDS = {"0.0.0.0": socket.AF_INET, "::": socket.AF_INET6}
_NAMES = {socket.AF_INET: "IPv4", socket.AF_INET6: "IPv6"}


def plain_host(host: str) -> str:
    """Return an IP address without its scope, and an IPv4-mapped one as IPv4."""
    address = ipaddress.ip_address(host.partition("%")[0])
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    return str(address)


def remote_address(self: TrioTCPStream) -> tuple[str, int] | None:
    """Return the remote address, also after the socket has closed. Replaces
    `TrioTCPStream.get_remote_address`, which accepts only socket names of two parts, while IPv6 names
    have four."""
    if self._cached_remote_address is None:
        try:
            name = self.stream.socket.getpeername()
            self._cached_remote_address = plain_host(name[0]), int(name[1])
        except (OSError, AttributeError, ValueError):
            # The socket closed before its remote address was first requested.
            return None
    return self._cached_remote_address


def share_port(sock: Any) -> None:
    """Let several sockets share one port, and restrict each to one family. Replaces libp2p's
    `_set_reuse_flags`.

    Otherwise a system setting decides whether a socket at `::` accepts IPv4 connections as well.
    """
    options = [(socket.SOL_SOCKET, option) for option in SHARED_PORT_OPTIONS]
    if sock.family == socket.AF_INET6:
        options.append((socket.IPPROTO_IPV6, socket.IPV6_V6ONLY))
    for level, option in options:
        # If an option cannot be set, hole punching may fail, or a listener is missing, which
        # `start_listening` reports.
        with contextlib.suppress(OSError):
            sock.setsockopt(level, option, 1)


def with_family(listen: Sequence[Multiaddr]) -> list[Multiaddr]:
    """Leave out "all interfaces" of a family that this machine lacks, unless nothing else remains."""
    usable: list[Multiaddr] = []
    missing: list[str] = []
    for address in listen:
        family = _WILDCARDS.get(endpoint(address)[0])
        if family is None or _has_family(family):
            usable.append(address)
        else:
            missing.append(f"{address}: this machine has no {_NAMES[family]}")
    if not usable:
        return list(listen)
    for line in missing:
        log.info("not listening at %s", line)
    return usable


def _has_family(family: socket.AddressFamily) -> bool:
    try:
        with closing(socket.socket(family, socket.SOCK_STREAM)) as probe:
            probe.bind(("::" if family == socket.AF_INET6 else "0.0.0.0", 0))
    except OSError:
        return False
    return True
