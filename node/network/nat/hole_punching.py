"""Hole punching: a direct connection between two peers behind routers that admit no connections.

Over their circuit the two exchange their public addresses in IPv4 and IPv6, agree on a moment, and dial
at the same time, each from the port it listens on. A router that preserves ports then takes the other
peer's packets for answers to those of its own peer; so does a firewall that translates nothing, as is
usual in IPv6. With any other router hole punching fails, and the circuit stays.
"""

from __future__ import annotations

from collections.abc import Callable

import trio

from ....crypto.identity import PeerId
from ....protocol.util.bounded_dict import BoundedTable
from ....protocol.wire.errors import ProtocolError
from ..addresses import ip_address_from_peer
from ..errors import RequestError
from ..network import Network

PROTOCOL = "/distro/punch/1"

EXCHANGE = b"?"
"""Prefix of a request that asks for the other side's public endpoints; the asker's own follow. The
answer is the other side's endpoints in the same encoding without a prefix, or empty."""
DIAL = b"!"
"""The signal to dial; the answer is empty."""

_MAX_BYTES = 128
_REQUEST_TIMEOUT_SECONDS = 5.0
# The first packet may arrive before the other router expects it; it is sent again after one second, then
# after two more.
_DIAL_SECONDS = 5.0
# Half of the measured round trip is waited before dialling, but at most this long: the relayed path may
# be a detour, and with a longer delay the two dials start at too different times anyway.
_MAX_DELAY_SECONDS = 1.0
# Least time between two attempts that one peer can make us join.
_PAUSE_SECONDS = 3.0
_MAX_CALLERS = 1024

Endpoint = tuple[str, int]
Endpoints = tuple[Endpoint, ...]
"""At most one endpoint of each family."""


class HolePunching:
    """The hole punching of one node; `observed` returns our public address in the given IP version, 4 or
    6, or None if it is not known."""

    def __init__(self, network: Network, observed: Callable[[int], str | None]) -> None:
        self._network = network
        self._observed = observed
        # By peer: its public endpoints, and when it may ask again.
        self._expected_endpoints: BoundedTable[PeerId, Endpoints] = BoundedTable(_MAX_CALLERS)
        self._next_allowed: BoundedTable[PeerId, float] = BoundedTable(_MAX_CALLERS)
        network.serve(PROTOCOL, self._answer, max_request=_MAX_BYTES, max_concurrent=8)

    @property
    def public_endpoints(self) -> Endpoints:
        """Our public endpoints, if the router preserves the port; empty until a peer reports an
        address."""
        found: list[Endpoint] = []
        for version in (4, 6):
            port, address = self._network.listening_port(version), self._observed(version)
            if port is not None and address is not None:
                found.append((address, port))
        return tuple(found)

    async def punch(self, peer: PeerId) -> bool:
        """Try once with a peer connected through a relay; return whether the connection is direct
        now."""
        own = self.public_endpoints
        if not own:
            return False
        try:
            requested_at = trio.current_time()
            answer = decode_endpoints(await self._ask(peer, EXCHANGE + encode_endpoints(own)))
            remote_endpoints = _of_families(answer, own)
            delay = (trio.current_time() - requested_at) / 2
            if not remote_endpoints:
                return False
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._ask_quietly, peer, DIAL)
                # After this delay the other side has received the signal, too.
                await trio.sleep(min(delay, _MAX_DELAY_SECONDS))
                # The asker takes the responder's role in the handshake: two initiators at the ends of
                # one connection would wait for each other's answers.
                await self._dial_all(peer, remote_endpoints, as_responder=True)
        except RequestError:
            return False
        except ProtocolError as error:
            self._network.penalise(peer, error.reason)
            return False
        return peer not in self._network.relayed()

    async def _answer(self, peer: PeerId, data: bytes) -> bytes:
        now, own = trio.current_time(), self.public_endpoints
        if data[:1] == DIAL:
            remote_endpoints = self._expected_endpoints.pop(peer, None)
            if remote_endpoints:
                self._network.spawn(self._answer_dial, peer, remote_endpoints)
            return b""
        if data[:1] != EXCHANGE:
            raise ProtocolError("malformed", "the request is neither of the two known kinds")
        remote_endpoints = _of_families(decode_endpoints(data[1:]), own)
        too_soon = self._next_allowed.get(peer, now) > now
        if not remote_endpoints or too_soon or peer not in self._network.relayed():
            return b""
        self._expected_endpoints[peer] = remote_endpoints
        self._next_allowed[peer] = now + _PAUSE_SECONDS
        return encode_endpoints(own)

    async def _answer_dial(self, peer: PeerId, remote_endpoints: Endpoints) -> None:
        await self._dial_all(peer, remote_endpoints, as_responder=False)

    async def _dial_all(
        self, peer: PeerId, remote_endpoints: Endpoints, *, as_responder: bool
    ) -> None:
        async def dial(endpoint: Endpoint) -> None:
            await self._network.dial_from_port(
                peer, *endpoint, _DIAL_SECONDS, as_responder=as_responder
            )

        # All endpoints at the same time: each dial has to start at the agreed moment.
        async with trio.open_nursery() as nursery:
            for endpoint in remote_endpoints:
                nursery.start_soon(dial, endpoint)

    async def _ask(self, peer: PeerId, question: bytes) -> bytes:
        return await self._network.request(
            peer, PROTOCOL, question, max_response=_MAX_BYTES, timeout=_REQUEST_TIMEOUT_SECONDS
        )

    async def _ask_quietly(self, peer: PeerId, question: bytes) -> None:
        try:
            await self._ask(peer, question)
        except RequestError:
            # The circuit has gone, so there is nothing left to improve.
            return


def encode_endpoints(endpoints: Endpoints) -> bytes:
    """Encode endpoints as `<address> <port>`, separated by commas."""
    return ",".join(f"{host} {port}" for host, port in endpoints).encode("ascii")


def decode_endpoints(data: bytes) -> Endpoints:
    """Return those endpoints of a message that may be dialled, at most one per family. Raises
    `ProtocolError` if an entry is not an address and a port."""
    found: dict[int, Endpoint] = {}
    for part in data.split(b",") if data else []:
        try:
            host, _, port = part.decode("ascii").partition(" ")
            address, number = ip_address_from_peer(host), int(port)
        except ValueError:
            raise ProtocolError("malformed", "not an address and a port") from None
        # No peer may make us dial into our own network, or at well-known ports.
        if address.is_global and not address.is_multicast and 1024 <= number <= 65535:
            found.setdefault(address.version, (str(address), number))
    return tuple(found.values())


def _of_families(endpoints: Endpoints, own: Endpoints) -> Endpoints:
    """Return the endpoints of the families in which we have a public address, too."""
    families = {":" in host for host, _ in own}
    return tuple(each for each in endpoints if (":" in each[0]) in families)
