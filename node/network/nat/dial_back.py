"""Whether others can dial us: we ask a peer to try, and it says what came of it.

A peer only ever dials the address that the question comes from, at ports that the asker names, and
looks there for the asker's own key: nobody can be sent to a third party. It hangs up at once, so a try
costs one handshake.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import trio

from ....crypto.identity import PeerId
from ....protocol.wire.bounded import Bounded
from ....protocol.wire.errors import ProtocolError
from ..addresses import parse_announce
from ..network import Network

PROTOCOL = "/distro/dial-back/1"

MAX_PORTS = 4
"""A node listens on one port, as a rule, and its router may map another."""

_PORT_BYTES = 2
_MAX_ADDRESS_BYTES = 45
_DIAL_SECONDS = 3.0
_ASK_SECONDS = 10.0
_MAX_CONCURRENT = 8
# Between questions of one peer. Honest ones ask once in minutes, or when their address has changed.
_PAUSE_SECONDS = 5.0
_MAX_ASKERS = 4096

Outcome = Literal["failed", "reached", "untried"]
_OUTCOMES: tuple[Outcome, ...] = ("failed", "reached", "untried")


@dataclass(frozen=True)
class Finding:
    """What a peer found when it called us back."""

    observed: str
    """The IP address that it sees us at."""
    outcomes: dict[int, Outcome]
    """By port."""

    @property
    def reached(self) -> list[int]:
        """The ports at which it reached us."""
        return [port for port, outcome in self.outcomes.items() if outcome == "reached"]


class DialBack:
    """Calls back whoever asks for it."""

    def __init__(self, network: Network) -> None:
        self._network = network
        self._asked: Bounded[PeerId, float] = Bounded(_MAX_ASKERS)
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
            # It reaches us through a relay, and we know no address of it; or at one that leads nowhere
            # without the name of our interface.
            return encode_finding(outcomes.values(), "")

        async def call(port: int) -> None:
            reached = await self._network.answers(peer, remote.host, port, _DIAL_SECONDS)
            if reached is not None:
                outcomes[port] = "reached" if reached else "failed"

        if self._may_ask(peer):
            async with trio.open_nursery() as nursery:
                for port in ports:
                    nursery.start_soon(call, port)
        return encode_finding(outcomes.values(), remote.host)

    def _may_ask(self, peer: PeerId) -> bool:
        now = trio.current_time()
        if self._asked.get(peer, float("-inf")) + _PAUSE_SECONDS > now:
            return False
        self._asked[peer] = now
        return True


async def ask_dial_back(network: Network, peer: PeerId, ports: Sequence[int]) -> Finding | None:
    """Let a connected peer try our ports; None if it cannot say.

    Raises `RequestError`, and `ProtocolError` for an answer that makes no sense.
    """
    chosen = list(dict.fromkeys(ports))[:MAX_PORTS]
    answer = await network.request(
        peer,
        PROTOCOL,
        encode_ports(chosen),
        max_response=MAX_PORTS + _MAX_ADDRESS_BYTES,
        timeout=_ASK_SECONDS,
    )
    return decode_finding(answer, chosen)


def encode_ports(ports: Iterable[int]) -> bytes:
    """A question: two bytes a port, the higher one first."""
    return b"".join(port.to_bytes(_PORT_BYTES, "big") for port in ports)


def decode_ports(data: bytes) -> list[int]:
    """The ports in a question. Raises `ProtocolError`."""
    if not data or len(data) % _PORT_BYTES:
        raise ProtocolError("malformed", "ports have two bytes each")
    ports = [
        int.from_bytes(data[start : start + _PORT_BYTES], "big")
        for start in range(0, len(data), _PORT_BYTES)
    ]
    if 0 in ports or len(set(ports)) < len(ports):
        raise ProtocolError("malformed", "a port that is none, or one twice")
    return ports


def encode_finding(outcomes: Iterable[Outcome], observed: str) -> bytes:
    """An answer: a byte a port, 0 failed, 1 reached, 2 untried; then the address, if it is known."""
    return bytes(map(_OUTCOMES.index, outcomes)) + observed.encode("ascii")


def decode_finding(answer: bytes, ports: Sequence[int]) -> Finding | None:
    """What the answer says of these ports; None without an address. Raises `ProtocolError`."""
    codes, observed = answer[: len(ports)], answer[len(ports) :]
    if len(codes) < len(ports) or any(code >= len(_OUTCOMES) for code in codes):
        raise ProtocolError("malformed", "an answer about our ports that makes no sense")
    if not observed:
        return None
    try:
        address = ipaddress.ip_address(observed.decode("ascii"))
    except ValueError:
        raise ProtocolError("malformed", "we are seen at an address that is none") from None
    outcomes: dict[int, Outcome] = {
        port: _OUTCOMES[code] for port, code in zip(ports, codes, strict=True)
    }
    return Finding(observed=str(address), outcomes=outcomes)


def ports_of(addresses: Iterable[str], version: int | None = None) -> list[int]:
    """The TCP ports in multiaddresses of our own, each once; with `version`, those that lead to us in
    IPv4 or IPv6, where a name may do both."""
    other = {4: "ip6", 6: "ip4"}.get(version or 0)
    found: list[int] = []
    for text in addresses:
        address = parse_announce(text.partition("/p2p/")[0])
        port = int(str(address.value_for_protocol("tcp")))
        if next(iter(address.protocols())).name != other and port not in found:
            found.append(port)
    return found
