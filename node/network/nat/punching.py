"""Hole punching: a direct connection between two peers whose routers let nobody in.

Over their circuit the two tell each other where the world sees them, agree on the moment, and dial at
the same time, each from the port it listens on. Routers that keep ports let the other's packets in as
answers to their own. With a router that does not it fails, and the circuit stays.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable

import trio

from ....crypto.identity import PeerId
from ....protocol.wire.bounded import Bounded
from ....protocol.wire.errors import ProtocolError
from ..errors import RequestError
from ..network import Network

PROTOCOL = "/distro/punch/1"

WHERE = b"?"
"""Begins a question; where the asker is seen is behind it. The answer is the same, or empty."""
NOW = b"!"
"""The moment to dial; the answer is empty."""

_MAX_BYTES = 64
_ASK_SECONDS = 5.0
# The first packet may arrive before the other router expects it and is sent again after one second,
# then after two more.
_DIAL_SECONDS = 5.0
# The relay's way there may be a detour; beyond this the moments differ too much anyway.
_MAX_DELAY_SECONDS = 1.0
# Nobody makes us dial what they like more often than this.
_PAUSE_SECONDS = 3.0
_MAX_CALLERS = 1024

Endpoint = tuple[str, int]


class Punching:
    """The hole punching of one node; `observed` says where the world sees it, if anybody knows."""

    def __init__(self, network: Network, observed: Callable[[], str | None]) -> None:
        self._network = network
        self._observed = observed
        # By peer: where it is seen, and when it may ask again.
        self._expected: Bounded[PeerId, Endpoint] = Bounded(_MAX_CALLERS)
        self._again: Bounded[PeerId, float] = Bounded(_MAX_CALLERS)
        network.serve(PROTOCOL, self._answer, max_request=_MAX_BYTES, max_concurrent=8)

    @property
    def public_endpoint(self) -> Endpoint | None:
        """Where the world sees this node, if its router keeps the port; None: nobody has told yet."""
        ports, outside = self._network.listening_ports, self._observed()
        return (outside, ports[0]) if ports and outside is not None else None

    async def punch(self, peer: PeerId) -> bool:
        """Try once with a peer that is connected through a relay; whether it is direct now."""
        own = self.public_endpoint
        if own is None:
            return False
        try:
            asked = trio.current_time()
            there = decode_endpoint(await self._ask(peer, WHERE + encode_endpoint(own)))
            delay = (trio.current_time() - asked) / 2
            if there is None:
                return False
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._ask_quietly, peer, NOW)
                # By then the other has heard it, too.
                await trio.sleep(min(delay, _MAX_DELAY_SECONDS))
                # The asker takes the answering part in the handshake: two callers at the ends of one
                # connection would wait for each other's answers.
                await self._network.dial_from_port(peer, *there, _DIAL_SECONDS, answering=True)
        except RequestError:
            return False
        except ProtocolError as error:
            self._network.penalise(peer, error.reason)
            return False
        return peer not in self._network.relayed()

    async def _answer(self, peer: PeerId, data: bytes) -> bytes:
        now, own = trio.current_time(), self.public_endpoint
        if data[:1] == NOW:
            there = self._expected.pop(peer, None)
            if there is not None:
                self._network.spawn(self._dial, peer, there)
            return b""
        if data[:1] != WHERE:
            raise ProtocolError("malformed", "neither where nor now")
        there = decode_endpoint(data[1:])
        late = self._again.get(peer, now) > now
        if own is None or there is None or late or peer not in self._network.relayed():
            return b""
        self._expected[peer] = there
        self._again[peer] = now + _PAUSE_SECONDS
        return encode_endpoint(own)

    async def _dial(self, peer: PeerId, there: Endpoint) -> None:
        await self._network.dial_from_port(peer, *there, _DIAL_SECONDS, answering=False)

    async def _ask(self, peer: PeerId, question: bytes) -> bytes:
        return await self._network.request(
            peer, PROTOCOL, question, max_response=_MAX_BYTES, timeout=_ASK_SECONDS
        )

    async def _ask_quietly(self, peer: PeerId, question: bytes) -> None:
        try:
            await self._ask(peer, question)
        except RequestError:
            # The circuit has gone; then there is nothing to be improved.
            return


def encode_endpoint(endpoint: Endpoint) -> bytes:
    """`<address> <port>`."""
    return f"{endpoint[0]} {endpoint[1]}".encode("ascii")


def decode_endpoint(data: bytes) -> Endpoint | None:
    """The endpoint in a message; None if there is none to dial. Raises `ProtocolError`."""
    if not data:
        return None
    try:
        host, _, port = data.decode("ascii").partition(" ")
        address, number = ipaddress.ip_address(host), int(port)
    except ValueError:
        raise ProtocolError("malformed", "no address and port") from None
    # Nobody may have us knock inside our own network, or at services with well-known ports.
    if not address.is_global or address.is_multicast or not 1024 <= number <= 65535:
        return None
    return str(address), number
