"""The remote ends of connections."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from ...crypto.identity import PeerId
from .dial_policy import Scope
from .socket_buffers import is_on_this_machine


@dataclass(frozen=True, kw_only=True)
class Remote:
    """The remote end of a connection; if we dialled it, the peer listens on this port."""

    host: str
    port: int
    dialled: bool


def find_remote(connections: Iterable[Any]) -> Remote | None:
    """Return the remote end of a direct connection, preferably of one that we dialled."""
    found: Remote | None = None
    for connection in connections:
        address = _remote_address(connection)
        if address is not None:
            dialled = bool(connection.muxed_conn.is_initiator)
            if found is None or dialled:
                found = Remote(host=str(address[0]), port=int(address[1]), dialled=dialled)
    return found


def host_of(connection: Any) -> str | None:
    """Return the remote IP address of a connection; None if it goes through a relay, or the address is
    not known."""
    address = _remote_address(connection)
    return str(address[0]) if address is not None else None


def evictable_connections(
    connections: Mapping[PeerId, Iterable[Any]], exempt: Collection[PeerId]
) -> list[tuple[Any, str]]:
    """Return the connections to peers that are not `exempt`, oldest first, each with its address."""
    found = [each for peer, group in connections.items() if peer not in exempt for each in group]
    return [
        (each, host_of(each) or "") for each in sorted(found, key=lambda each: each._created_at)
    ]


def scope_of_connection(connection: Any, scope_of: Callable[[str], Scope]) -> Scope:
    """Return how near the remote end is; without a known address it may be anywhere. `scope_of` returns
    how near an IP address is."""
    host = host_of(connection)
    if host is None:
        return Scope.WORLD
    return Scope.MACHINE if is_on_this_machine(connection.muxed_conn) else scope_of(host)


def _remote_address(connection: Any) -> tuple[str, int] | None:
    """Return the remote address of a connection; a connection through a relay has none
    (`circuit_client.CircuitStream`)."""
    return connection.muxed_conn.secured_conn.get_remote_address()
