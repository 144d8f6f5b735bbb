"""Dials of a single IP address, and the reasons for the library's exceptions."""

from __future__ import annotations

import errno
from collections.abc import Sequence
from typing import Any

import trio
from libp2p.network.exceptions import SwarmException
from libp2p.network.swarm import Swarm
from libp2p.peer.id import ID
from libp2p.security.noise.exceptions import PeerIDMismatchesPubkey
from libp2p.transport.exceptions import MuxerUpgradeFailure, SecurityUpgradeFailure
from multiaddr import Multiaddr

from .addresses import multiaddress
from .cancel_scopes import shielded
from .errors import DialError

CONNECTION_REFUSED = "connection refused"
"""The reason if nothing listens at the address, or a router answers in its place."""
_NETWORK_ERRORS = {
    errno.ECONNREFUSED: CONNECTION_REFUSED,
    errno.ECONNRESET: CONNECTION_REFUSED,
    errno.ENETUNREACH: "network unreachable",
    errno.EHOSTUNREACH: "host unreachable",
    errno.ETIMEDOUT: "timed out",
}

_NO_ROUTE = {"network unreachable", "host unreachable"}


def dial_reason(error: BaseException) -> str:
    """Return the cause of a failed dial in a few words, found in the library's chain of exceptions."""
    cause: BaseException | None = error
    # The chain is about five deep; the bound protects against a circular one.
    for _ in range(20):
        if cause is None:
            break
        if isinstance(cause, PeerIDMismatchesPubkey):
            return "another peer answers there"
        if isinstance(cause, OSError) and cause.errno in _NETWORK_ERRORS:
            return _NETWORK_ERRORS[cause.errno]
        if isinstance(cause, SwarmException) and "Maximum connections" in str(cause):
            return "this node has reached its limit of connections"
        if isinstance(cause, BaseExceptionGroup):
            cause = cause.exceptions[0]
        else:
            cause = cause.__cause__ or cause.__context__
    if isinstance(error.__cause__, (SecurityUpgradeFailure, MuxerUpgradeFailure)):
        return "something answers there, but not with the libp2p of a node"
    return str(error) or type(error).__name__


def most_informative_failure(failures: Sequence[Exception]) -> Exception:
    """Return the most informative of several dials' failures; a missing route says little."""
    return max(failures, key=_informativeness)


def _informativeness(failure: Exception) -> int:
    # A refusal of our own ranks last: it says nothing about the peer.
    if isinstance(failure, DialError):
        return 0
    return 1 if dial_reason(failure) in _NO_ROUTE else 2


async def answers_at(swarm: Swarm, peer: ID, host: str, port: int, timeout: float) -> bool:
    """Whether a peer proves its key at a TCP port within `timeout` seconds; closes the connection at
    once."""
    connection: Any = None
    try:
        target = multiaddress(host, port)
        transport: Any = swarm.transport_manager.transport_for_dialing(target)
        with trio.fail_after(timeout):
            connection = await transport.dial(target)
            await swarm.upgrader.upgrade_security(connection, True, peer)
            return True
    except Exception:
        # The library raises many types; all of them mean that this peer does not answer there.
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
    as_responder: bool,
) -> bool:
    """Connect to a peer from an address at which we also listen; return whether it succeeded.

    If both ends do so at the same time, TCP makes a single connection of it (simultaneous open).
    `as_responder`: take the responder's role in the handshakes.
    """
    host, port = target
    dial = swarm.dial_addr_as_responder if as_responder else swarm.dial_addr
    try:
        address = Multiaddr(f"{multiaddress(host, port)}/p2p/{peer}")
        with trio.fail_after(timeout):
            await dial(address, peer, source)
    except Exception:
        # The library wraps few of the responder's failures in its own type; see `answers_at`.
        return False
    return True
