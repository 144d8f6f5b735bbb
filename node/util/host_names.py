"""Host names of served pages: which a request may name (against DNS rebinding), and which to open."""

from __future__ import annotations

import ipaddress
import re
import socket
from contextlib import closing

_HOST = re.compile(r"(\[[0-9A-Fa-f:.]{2,45}\]|[A-Za-z0-9._-]{1,253})(?::(\d{1,5}))?")

_LOCAL_NAME = re.compile(r"[a-z_-][a-z0-9_-]*")
# By IP version: a documentation address, to which only the default route leads, and loopback.
_PROBES = {
    4: (socket.AF_INET, "192.0.2.1", "127.0.0.1"),
    6: (socket.AF_INET6, "2001:db8::1", "::1"),
}


def host_name(text: str) -> str | None:
    """Return the name or address in a `Host` header, in lower case, without brackets and port; None if
    the header is invalid."""
    found = _HOST.fullmatch(text)
    if found is None or int(found.group(2) or 0) > 65535:
        return None
    return found.group(1).strip("[]").lower()


def is_loopback(host: str) -> bool:
    """Whether a host to serve at can be reached from this machine only."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        # A name may resolve to anything.
        return False


def openable_host(host: str) -> str:
    """Return the host to open in a browser for a page that is served at `host`.

    It is `host` itself. If that stands for all addresses of this machine, it is the source address of
    the default route or, without such a route, loopback.
    """
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host
    if not address.is_unspecified:
        return host
    family, elsewhere, loopback = _PROBES[address.version]
    try:
        with closing(socket.socket(family, socket.SOCK_DGRAM)) as probe:
            # Connecting a datagram socket chooses a route and sends nothing.
            probe.connect((elsewhere, 9))
            return str(probe.getsockname()[0]).partition("%")[0]
    except OSError:
        return loopback


def is_own_host(name: str, served: str) -> bool:
    """Whether the name or address in a `Host` header may stand for a page that is served at `served`."""
    if name in (served.lower(), "localhost"):
        return True
    # A name without a dot belongs to the owner's network, such as a container's: no stranger can
    # register it.
    if not is_loopback(served) and _LOCAL_NAME.fullmatch(name):
        return True
    # DNS rebinding needs a name: an address cannot be made to resolve to another one.
    try:
        address = ipaddress.ip_address(name)
    except ValueError:
        return False
    return address.is_loopback or not is_loopback(served)
