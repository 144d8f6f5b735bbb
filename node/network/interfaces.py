"""The IP addresses of this machine's interfaces, the most likely reachable first.

A peer record holds eight addresses, and a machine with containers has more bridges than that. The source
address of the default route comes first; then the other addresses of its interface, other interfaces
with a carrier, bridges, and interfaces without a carrier. The system is queried again every two seconds,
because addresses change.
"""

from __future__ import annotations

import ipaddress
import logging
import socket
import time
from collections import Counter
from contextlib import closing
from pathlib import Path

import psutil

log = logging.getLogger(__name__)

# Addresses that only the default route leads to (RFC 5737, RFC 3849). No packet is sent.
_DESTINATIONS = ((socket.AF_INET, "192.0.2.1"), (socket.AF_INET6, "2001:db8::1"))
# IPv6 adds a temporary address to an interface every day; these must not displace other interfaces.
_LIKELY_PER_INTERFACE = 2
# Linux lists bridges in /sys; elsewhere they are recognised by the names that virtual machines use.
_BRIDGES = ("bridge", "docker", "vboxnet", "veth", "virbr", "vmnet", "vnic")


# How long the addresses are cached: several parts of a node query them every second, and the system
# takes milliseconds to answer.
_FRESH_SECONDS = 2.0


class HostAddresses:
    """The addresses of this machine, cached for a moment."""

    def __init__(self) -> None:
        self._hosts: list[str] = []
        self._queried_at = float("-inf")

    def __call__(self) -> list[str]:
        """Return the addresses of both families that other machines can use, in order.

        Loopback and link-local addresses are left out. While the system cannot answer (no descriptor is
        left), the last known addresses stay valid.
        """
        now = time.monotonic()
        if now - self._queried_at >= _FRESH_SECONDS:
            self._queried_at = now
            try:
                self._hosts = query_hosts()
            except OSError as error:
                log.debug("the system does not report its addresses: %s", error)
        return list(self._hosts)


reachable_hosts = HostAddresses()


def query_hosts() -> list[str]:
    """Query the current addresses without the cache. Raises `OSError` if the system does not report
    them."""
    sources = _default_sources()
    statuses = psutil.net_if_stats()
    ranked: list[tuple[bool, int, str]] = []
    for interface, entries in psutil.net_if_addrs().items():
        hosts = [
            host
            for entry in entries
            if entry.family in (socket.AF_INET, socket.AF_INET6)
            and (host := _usable_host(entry.address)) is not None
        ]
        # The kernel lists the newest first, but prefers its source address itself.
        hosts.sort(key=lambda host: host not in sources)
        status = statuses.get(interface)
        running = status is None or status.isup
        counts: Counter[bool] = Counter()
        for host in hosts:
            counts[":" in host] += 1
            if host in sources:
                rank = 0
            elif not sources.isdisjoint(hosts):
                rank = 1
            else:
                rank = 4 if not running else 3 if _is_bridge(interface) else 2
            ranked.append((counts[":" in host] > _LIKELY_PER_INTERFACE, rank, host))
    # Stable sort: within a rank the system's order is kept.
    ranked.sort(key=lambda entry: entry[:2])
    return list(dict.fromkeys(host for _, _, host in ranked))


def link_hosts() -> list[tuple[str, int]]:
    """Return the link-local IPv6 addresses that are usable now, each with its interface's index."""
    found: list[tuple[str, int]] = []
    try:
        for interface, entries in psutil.net_if_addrs().items():
            for entry in entries:
                host = entry.address.partition("%")[0]
                if entry.family == socket.AF_INET6 and ipaddress.ip_address(host).is_link_local:
                    index = socket.if_nametoindex(interface)
                    if _is_usable(host, index):
                        found.append((host, index))
    except OSError as error:
        log.debug("the link-local addresses are not known: %s", error)
    return found


def _is_usable(host: str, interface: int) -> bool:
    # For a second after an interface is up the system checks that no other machine has the address.
    try:
        with closing(socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)) as probe:
            probe.bind((host, 0, 0, interface))
    except OSError:
        return False
    return True


def _usable_host(text: str) -> str | None:
    try:
        host = ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return None
    return None if host.is_loopback or host.is_link_local or host.is_unspecified else str(host)


def _default_sources() -> set[str]:
    """Return the source addresses of the default routes; none without a default route."""
    found: set[str] = set()
    for family, destination in _DESTINATIONS:
        try:
            with closing(socket.socket(family, socket.SOCK_DGRAM)) as probe:
                # Connecting a datagram socket chooses a route and sends nothing.
                probe.connect((destination, 9))
                found.add(str(ipaddress.ip_address(probe.getsockname()[0].partition("%")[0])))
        except OSError:
            # This family or its default route is missing.
            continue
    return found


def _is_bridge(interface: str) -> bool:
    return Path(f"/sys/class/net/{interface}/bridge").exists() or interface.startswith(_BRIDGES)
