"""TCP segments that fit a path which loses large packets and reports nothing.

A VPN or tunnel carries less than its ends announce, and a filter drops the router's report of it (ICMP).
Then connections come about, small messages pass, and whatever is larger than a packet never arrives. The
caller's kernel shows it: the peer is heard while nothing more is acknowledged to us, or nothing is heard
while our pings are acknowledged. Such a connection is cut, and its address dialled with smaller segments
from then on, which the other end keeps to as well (the option MSS of the first packet).

It takes Linux. macOS finds out by itself, in its kernel.
"""

from __future__ import annotations

import contextlib
import logging
import socket
from typing import Any

import trio
from libp2p.io.trio import TrioTCPStream
from libp2p.network.connection.raw_connection import RawConnection
from libp2p.stream_muxer.yamux.yamux import Yamux
from libp2p.transport.exceptions import OpenConnectionError
from libp2p.transport.tcp.tcp import TCP
from multiaddr import Multiaddr

from ...protocol.util.bounded_dict import BoundedTable
from .addresses import endpoint
from .connection import GuardedConnection
from .ip_families import plain_host
from .ledbat import TcpSample
from .socket_buffers import Gauge, gauge

log = logging.getLogger(__name__)

# With 60 bytes of headers what IPv6 promises to carry, 1280; and what the oldest IPv4 paths carry.
_SIZES = (1200, 536)
_MAX_HOSTS = 1024
# Five repetitions of a lost packet. The other end, which hears nothing either, hangs up after eight.
_LOST_SECONDS = 6.0
# A direction in which so much has passed carries large packets.
_PROOF_BYTES = 1 << 16


class SegmentSizes:
    """The size of the segments with which each address is dialled."""

    def __init__(self) -> None:
        self._sizes: BoundedTable[str, int] = BoundedTable(_MAX_HOSTS)

    def of(self, host: str) -> int | None:
        """Return the largest segment for an IP address, in bytes; None leaves it to the system."""
        return self._sizes.get(plain_host(host))

    def shrink(self, host: str) -> bool:
        """Take the next smaller size for an IP address. Returns whether there is one."""
        host = plain_host(host)
        now = self._sizes.get(host)
        smaller = next((size for size in _SIZES if now is None or size < now), None)
        if smaller is None:
            return False
        self._sizes[host] = smaller
        log.warning(
            "%s answers, but what is larger than a packet does not pass (a VPN or a tunnel?); "
            "calling it again with segments of %d bytes",
            host,
            smaller,
        )
        return True


class SizedTCP(TCP):
    """The library's TCP, whose calls have segments of the size that suits the address."""

    def __init__(self, sizes: SegmentSizes) -> None:
        super().__init__()
        self._segment_sizes = sizes

    async def _dial_resolved(self, maddr: Multiaddr, source: tuple[str, int] | None = None) -> Any:
        host, port = endpoint(maddr)
        size = self._segment_sizes.of(host)
        if size is None or source is not None:
            return await super()._dial_resolved(maddr, source)
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        kernel: trio.socket.SocketType | None = None
        try:
            kernel = trio.socket.socket(family, socket.SOCK_STREAM)
            # A larger one is no reason to call nobody.
            with contextlib.suppress(OSError):
                kernel.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, size)
            await kernel.connect((host, port))
        except BaseException as error:
            if kernel is not None:
                kernel.close()
            if isinstance(error, OSError):
                raise OpenConnectionError(f"cannot call {maddr}: {error}") from error
            raise
        return RawConnection(TrioTCPStream(trio.SocketStream(kernel)), True)


class LossWatch:
    """Looks at one connection that we have dialled, again and again, for large packets that get lost."""

    def __init__(self, muxer: Yamux, wire: GuardedConnection) -> None:
        self._gauge: Gauge = gauge(muxer)
        self._wire = wire
        # What was acknowledged and since when; and what of it when the peer was last heard.
        self._acknowledged, self._since = -1, 0.0
        self._heard, self._before = -1.0, 0
        self._found = False

    def finds_loss(self, now: float) -> bool:
        """Return whether small packets pass and large ones do not, in one direction; once."""
        sample = self._gauge()
        if sample is None or self._found:
            return False
        self._found = self._loses(sample, now)
        return self._found

    def _loses(self, sample: TcpSample, now: float) -> bool:
        wire = self._wire
        if sample.acknowledged != self._acknowledged or not sample.in_flight:
            self._acknowledged, self._since = sample.acknowledged, now
        if wire.heard != self._heard:
            self._heard, self._before = wire.heard, sample.acknowledged
        silent = now - wire.heard >= _LOST_SECONDS
        if silent:
            answers = sample.acknowledged > self._before
            return answers and not sample.in_flight and wire.received < _PROOF_BYTES
        return now - self._since >= _LOST_SECONDS and sample.acknowledged < _PROOF_BYTES
