"""Whether a host that listens at `/ip6/::` also takes IPv4 calls is a setting of the system.

Linux decides by `net.ipv6.bindv6only`, which is off as a rule; BSD and Windows decide otherwise. Where
the socket takes both, IPv4 peers appear at addresses such as `::ffff:192.0.2.1`, and a host that listens
at `/ip4/0.0.0.0` and `/ip6/::` has two sockets for one port. The patch has a socket of IPv6 take IPv6.
"""

from __future__ import annotations

import socket

import common
from libp2p.transport.tcp.tcp import _open_reuseport_listeners


async def fault() -> bool:
    """Listen at `::` and look at the socket."""
    (listener,) = await _open_reuseport_listeners("::", 0)
    try:
        return not listener.socket.getsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY)
    finally:
        await listener.aclose()


if __name__ == "__main__":
    common.report(fault)
