"""Segment sizes of TCP for paths that lose large packets and report nothing (an MTU black hole).

A VPN or tunnel carries only smaller packets than its ends announce, and a filter drops the router's
report (ICMP). Then connections are established and small messages pass, but no packet of full size
arrives, and so no message that needs one. The dialler's kernel shows it: bytes arrive from the peer
while the peer acknowledges nothing, or the peer acknowledges our pings while no bytes arrive from it.
Such a connection is closed, and its address is dialled with smaller segments from then on, which the
other end adopts (the MSS option of the first packet). When both ends send a large packet at once,
nothing arrives any more, as if the peer had gone; but who has gone does not let us connect again, so the
second such connection in a row counts as well.

This needs Linux. macOS detects such paths in its kernel.
"""

from __future__ import annotations

import logging
from typing import Literal

from libp2p.stream_muxer.yamux.yamux import Yamux

from ...protocol.util.bounded_dict import BoundedTable
from .connection import GuardedConnection
from .ip_families import plain_host
from .ledbat import TcpSample
from .socket_buffers import Gauge, gauge

log = logging.getLogger(__name__)

# Segment sizes in bytes, tried in this order: one that fits, with 60 bytes of headers, into the 1280
# bytes that IPv6 guarantees, and IPv4's default.
_SIZES = (1200, 536)
_MAX_HOSTS = 1024
# The time of five retransmissions. It is less than the eight seconds after which the end that receives
# nothing closes the connection (`liveness`), so that the loss is found before.
_LOST_SECONDS = 6.0
# A connection on which nothing passes is dialled again within seconds, if the peer is there.
_AGAIN_SECONDS = 60.0
# A direction in which this many bytes have passed carries large packets.
_PROOF_BYTES = 1 << 16


class SegmentSizes:
    """Segment size with which to dial each IP address."""

    def __init__(self) -> None:
        self._sizes: BoundedTable[str, int] = BoundedTable(_MAX_HOSTS)
        self._stuck: BoundedTable[str, float] = BoundedTable(_MAX_HOSTS)

    def of(self, host: str) -> int | None:
        """Return the segment size for an IP address in bytes; None for the system's default."""
        return self._sizes.get(plain_host(host))

    def shrink(self, host: str) -> bool:
        """Use the next smaller size for an IP address, and return whether there is one."""
        host = plain_host(host)
        now = self._sizes.get(host)
        smaller = next((size for size in _SIZES if now is None or size < now), None)
        if smaller is None:
            return False
        self._sizes[host] = smaller
        log.warning(
            "%s answers, but large packets are lost on the way (a VPN or a tunnel?); dialling it "
            "again with segments of %d bytes",
            host,
            smaller,
        )
        return True

    def shrink_if_again(self, host: str, now: float) -> bool:
        """Note a connection to an IP address on which nothing passes any more; do what `shrink` does if
        it is the second within a minute."""
        before = self._stuck.get(plain_host(host))
        self._stuck[plain_host(host)] = now
        return before is not None and now - before < _AGAIN_SECONDS and self.shrink(host)


class LossWatch:
    """Detector of lost large packets on one connection that we have dialled."""

    def __init__(self, muxer: Yamux, wire: GuardedConnection) -> None:
        self._gauge: Gauge = gauge(muxer)
        self._wire = wire
        # The number of bytes acknowledged, and since when it has been the same although bytes were in
        # flight.
        self._acknowledged, self._since = -1, 0.0
        # When the last bytes arrived, and how many of ours had been acknowledged then.
        self._last_received_at, self._acknowledged_before = -1.0, 0
        self._found = False

    def finds_loss(self, now: float) -> Literal["certain", "possible"] | None:
        """Return "certain" if small packets pass and large ones do not, in one direction, and "possible"
        if no packets pass at all any more; only once."""
        sample = self._gauge()
        if sample is None or self._found:
            return None
        loss = self._loss(sample, now)
        self._found = loss is not None
        return loss

    def _loss(self, sample: TcpSample, now: float) -> Literal["certain", "possible"] | None:
        wire = self._wire
        if sample.acknowledged != self._acknowledged or not sample.in_flight:
            self._acknowledged, self._since = sample.acknowledged, now
        if wire.last_received_at != self._last_received_at:
            self._last_received_at, self._acknowledged_before = (
                wire.last_received_at,
                sample.acknowledged,
            )
        is_silent = now - wire.last_received_at >= _LOST_SECONDS
        is_deaf = now - self._since >= _LOST_SECONDS and sample.acknowledged < _PROOF_BYTES
        if not is_silent:
            # From us to the peer: its bytes arrive, but it acknowledges nothing of what we sent.
            return "certain" if is_deaf else None
        if wire.received >= _PROOF_BYTES:
            return None
        if sample.in_flight:
            return "possible" if is_deaf else None
        # From the peer to us: it acknowledges what we sent since its last bytes, but sends nothing.
        return "certain" if sample.acknowledged > self._acknowledged_before else None
