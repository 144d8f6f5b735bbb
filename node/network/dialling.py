"""Before and after a dial: names to addresses, and the library's exceptions to a reason."""

from __future__ import annotations

import errno
import socket
from typing import Any

import trio
from libp2p.network.exceptions import SwarmException
from libp2p.network.swarm import Swarm
from libp2p.peer.id import ID
from libp2p.security.noise.exceptions import PeerIDMismatchesPubkey
from libp2p.transport.exceptions import MuxerUpgradeFailure, SecurityUpgradeFailure
from multiaddr import Multiaddr

from .scopes import shielded

_NETWORK_ERRORS = {
    errno.ECONNREFUSED: "connection refused",
    errno.ECONNRESET: "connection refused",
    errno.ENETUNREACH: "network unreachable",
    errno.EHOSTUNREACH: "host unreachable",
    errno.ETIMEDOUT: "timed out",
}


def dial_reason(error: BaseException) -> str:
    """The cause of a failed dial in a few words, dug out of the library's layers."""
    cause: BaseException | None = error
    # The layers are some five deep; the bound is for a chain that bites its own tail.
    for _ in range(20):
        if cause is None:
            break
        if isinstance(cause, PeerIDMismatchesPubkey):
            return "another peer answers there"
        if isinstance(cause, OSError) and cause.errno in _NETWORK_ERRORS:
            return _NETWORK_ERRORS[cause.errno]
        if isinstance(cause, SwarmException) and "Maximum connections" in str(cause):
            return "this node has as many connections as it may"
        if isinstance(cause, BaseExceptionGroup):
            cause = cause.exceptions[0]
        else:
            cause = cause.__cause__ or cause.__context__
    if isinstance(error.__cause__, (SecurityUpgradeFailure, MuxerUpgradeFailure)):
        return "something answers there, but it does not speak libp2p as a node does"
    return str(error) or type(error).__name__


async def resolve(target: Multiaddr) -> list[Multiaddr]:
    """Replace a name by its addresses, as the system knows them; the library asks DNS alone."""
    family = next(iter(target.protocols())).name
    if family in ("ip4", "ip6"):
        return [target]
    name = str(target.value_for_protocol(family))
    kind = {"dns4": socket.AF_INET, "dns6": socket.AF_INET6}.get(family, socket.AF_UNSPEC)
    rest = f"/tcp/{target.value_for_protocol('tcp')}/p2p/{target.value_for_protocol('p2p')}"
    found = await trio.socket.getaddrinfo(name, None, kind, socket.SOCK_STREAM)
    return [
        Multiaddr(f"/{'ip6' if each[0] == socket.AF_INET6 else 'ip4'}/{each[4][0]}{rest}")
        for each in found
    ]


async def answers(swarm: Swarm, peer: ID, host: str, port: int, timeout: float) -> bool:
    """Whether a peer proves its key at a TCP port within so many seconds; hangs up at once."""
    target = Multiaddr(f"/{'ip6' if ':' in host else 'ip4'}/{host}/tcp/{port}")
    transport: Any = swarm.transport_manager.transport_for_dialing(target)
    connection: Any = None
    try:
        with trio.fail_after(timeout):
            connection = await transport.dial(target)
            await swarm.upgrader.upgrade_security(connection, True, peer)
            return True
    except Exception:
        # The library raises many kinds; all of them mean that nobody who is this peer is there.
        return False
    finally:
        if connection is not None:
            with shielded(1):
                await connection.close()


async def dial_from(
    swarm: Swarm,
    peer: ID,
    target: tuple[str, int],
    source: tuple[str, int],
    timeout: float,
    answering: bool,
) -> bool:
    """Connect to a peer from an address of ours at which we also listen; whether it came about.

    When both ends do so at once TCP makes one connection of it. `answering`: take the part of the
    called one in the handshakes.
    """
    host, port = target
    address = Multiaddr(f"/{'ip6' if ':' in host else 'ip4'}/{host}/tcp/{port}/p2p/{peer}")
    dial = swarm.dial_addr_as_responder if answering else swarm.dial_addr
    try:
        with trio.fail_after(timeout):
            await dial(address, peer, source)
    except Exception:
        # The library turns few failures of the answering part into its own kind; see `answers`.
        return False
    return True
