"""The `Host` header of an HTTP request: which names belong to this node (against DNS rebinding)."""

from __future__ import annotations

import ipaddress
import re

_HOST = re.compile(r"(\[[0-9A-Fa-f:.]{2,45}\]|[A-Za-z0-9._-]{1,253})(?::(\d{1,5}))?")

_LOCAL_NAME = re.compile(r"[a-z_-][a-z0-9_-]*")


def host_name(text: str) -> str | None:
    """Return the name or address in a `Host` header, in lower case, without brackets and port."""
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


def is_own_host(name: str, served: str) -> bool:
    """Whether the name or address in a `Host` header means what is served at `served`."""
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
