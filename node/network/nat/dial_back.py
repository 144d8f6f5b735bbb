"""Dial-back: ask a peer whether it can dial us.

A peer dials only the address that the request comes from, at ports that the asker names, and expects the
asker's own key there, so no peer can be directed at a third party. It disconnects at once, so a test
costs one handshake.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import trio

from ....crypto.identity import PeerId
from ....protocol.util.bounded_dict import BoundedTable
from ....protocol.wire.errors import ProtocolError
from ..addresses import ip_address_from_peer, parse_announce
from ..network import Network

PROTOCOL = "/distro/dial-back/1"
"""Request: the ports, two bytes each. Answer: one byte per port (0 failed, 1 reached, 2 untried), then
the asker's IP address as text, or nothing if it is unknown."""

MAX_PORTS = 4
"""A node usually listens on one port, and its router may map another."""

_PORT_BYTES = 2
_MAX_ADDRESS_BYTES = 45
_DIAL_SECONDS = 3.0
_REQUEST_TIMEOUT_SECONDS = 10.0
_MAX_CONCURRENT = 8
# Minimum time between requests of one peer. Honest ones ask every few minutes, or after an address
# change.
_PAUSE_SECONDS = 5.0
_MAX_ASKERS = 4096

Outcome = Literal["failed", "reached", "untried"]
_OUTCOMES: tuple[Outcome, ...] = ("failed", "reached", "untried")


@dataclass(frozen=True)
class DialBackResult:
    """The result of a peer's dial-back."""

    observed: str
    """The IP address at which the peer sees us."""
    outcomes: dict[int, Outcome]
    """The outcome for each port."""

    @property
    def reached(self) -> list[int]:
        """The ports at which the peer reached us."""
        return [port for port, outcome in self.outcomes.items() if outcome == "reached"]


class DialBack:
    """Serves dial-back requests."""

    def __init__(self, network: Network) -> None:
        self._network = network
        self._requested_at: BoundedTable[PeerId, float] = BoundedTable(_MAX_ASKERS)
        network.serve(
            PROTOCOL,
            self._answer,
            max_request=MAX_PORTS * _PORT_BYTES,
            max_concurrent=_MAX_CONCURRENT,
        )

    async def _answer(self, peer: PeerId, data: bytes) -> bytes:
        ports = decode_ports(data)
        outcomes: dict[int, Outcome] = dict.fromkeys(ports, "untried")
        remote = self._network.remote(peer)
        if remote is None or ipaddress.ip_address(remote.host).is_link_local:
            # The peer is connected through a relay, so its address is unknown; or at a link-local
            # address, which is useless without our interface's name.
            return encode_result(outcomes.values(), "")

        async def dial(port: int) -> None:
            reached = await self._network.answers_at(peer, remote.host, port, _DIAL_SECONDS)
            if reached is not None:
                outcomes[port] = "reached" if reached else "failed"

        if self._may_ask(peer):
            async with trio.open_nursery() as nursery:
                for port in ports:
                    nursery.start_soon(dial, port)
        return encode_result(outcomes.values(), remote.host)

    def _may_ask(self, peer: PeerId) -> bool:
        now = trio.current_time()
        if self._requested_at.get(peer, float("-inf")) + _PAUSE_SECONDS > now:
            return False
        self._requested_at[peer] = now
        return True


async def ask_dial_back(
    network: Network, peer: PeerId, ports: Sequence[int]
) -> DialBackResult | None:
    """Ask a connected peer to dial our ports; None if the peer does not know our address.

    Raises `RequestError`, and `ProtocolError` for an invalid answer.
    """
    chosen = list(dict.fromkeys(ports))[:MAX_PORTS]
    answer = await network.request(
        peer,
        PROTOCOL,
        encode_ports(chosen),
        max_response=MAX_PORTS + _MAX_ADDRESS_BYTES,
        timeout=_REQUEST_TIMEOUT_SECONDS,
    )
    return decode_result(answer, chosen)


def encode_ports(ports: Iterable[int]) -> bytes:
    """Encode a request: two bytes per port, big-endian."""
    return b"".join(port.to_bytes(_PORT_BYTES, "big") for port in ports)


def decode_ports(data: bytes) -> list[int]:
    """Return the ports of a request. Raises `ProtocolError` if it is malformed."""
    if not data or len(data) % _PORT_BYTES:
        raise ProtocolError("malformed", "ports have two bytes each")
    ports = [
        int.from_bytes(data[start : start + _PORT_BYTES], "big")
        for start in range(0, len(data), _PORT_BYTES)
    ]
    if 0 in ports or len(set(ports)) < len(ports):
        raise ProtocolError("malformed", "a port is 0, or occurs twice")
    return ports


def encode_result(outcomes: Iterable[Outcome], observed: str) -> bytes:
    """Encode an answer: a byte per port, 0 failed, 1 reached, 2 untried; then the address, if known."""
    return bytes(map(_OUTCOMES.index, outcomes)) + observed.encode("ascii")


def decode_result(answer: bytes, ports: Sequence[int]) -> DialBackResult | None:
    """Decode the answer for these ports; None if it contains no address. Raises `ProtocolError` if it is
    malformed."""
    codes, observed = answer[: len(ports)], answer[len(ports) :]
    if len(codes) < len(ports) or any(code >= len(_OUTCOMES) for code in codes):
        raise ProtocolError("malformed", "an answer that does not fit the ports asked about")
    if not observed:
        return None
    try:
        address = ip_address_from_peer(observed.decode("ascii"))
    except ValueError:
        raise ProtocolError("malformed", "the observed address is not an IP address") from None
    outcomes: dict[int, Outcome] = {
        port: _OUTCOMES[code] for port, code in zip(ports, codes, strict=True)
    }
    return DialBackResult(observed=str(address), outcomes=outcomes)


def ports_of(addresses: Iterable[str], version: int | None = None) -> list[int]:
    """Return the distinct TCP ports in our own multiaddresses; with `version`, only those for IPv4 or
    only those for IPv6, where a name counts for both."""
    other = {4: "ip6", 6: "ip4"}.get(version or 0)
    found: list[int] = []
    for text in addresses:
        address = parse_announce(text.partition("/p2p/")[0])
        port = int(str(address.value_for_protocol("tcp")))
        if next(iter(address.protocols())).name != other and port not in found:
            found.append(port)
    return found
