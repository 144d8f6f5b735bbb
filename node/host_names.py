"""The `Host` of an HTTP request: which names are this node's own (DNS rebinding)."""

from __future__ import annotations

import ipaddress
import re

_HOST = re.compile(r"(\[[0-9A-Fa-f:.]{2,45}\]|[A-Za-z0-9._-]{1,253})(?::(\d{1,5}))?")


def host_name(text: str) -> str | None:
    """The name or address in a `Host` header, in small letters and without brackets or port."""
    found = _HOST.fullmatch(text)
    if found is None or int(found.group(2) or 0) > 65535:
        return None
    return found.group(1).strip("[]").lower()


def is_loopback(host: str) -> bool:
    """Whether a host that somebody wants to serve at is reached from this machine alone."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        # A name may mean anything.
        return False


def is_own_host(name: str, served: str) -> bool:
    """Whether a name or address from a `Host` header means the page that is served at `served`."""
    if name in (served.lower(), "localhost"):
        return True
    # An address cannot be made to mean another one, as a name can.
    try:
        address = ipaddress.ip_address(name)
    except ValueError:
        return False
    return address.is_loopback or not is_loopback(served)
