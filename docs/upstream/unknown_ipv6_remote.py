"""A connection over IPv6 has no remote address.

The name of a socket's other end has two parts in IPv4 and four in IPv6 (address, port, flow, scope).
`TrioTCPStream.get_remote_address` takes those of two parts alone and answers None for the others, so a
host knows neither how many connections come from an IPv6 address nor where to call its peers back. The
patch takes the first two parts.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import common
from libp2p.io.trio import TrioTCPStream

# As `socket.getpeername` spells it; so the program also runs where there is no IPv6.
NAME = ("2001:db8::1", 4001, 0, 0)


async def fault() -> bool:
    """Ask a stream over IPv6 who is at the other end."""
    stream: Any = SimpleNamespace(socket=SimpleNamespace(getpeername=lambda: NAME))
    return TrioTCPStream(stream).get_remote_address() != NAME[:2]


if __name__ == "__main__":
    common.report(fault)
