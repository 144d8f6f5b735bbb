"""The relay's side of circuits: reservations for peers that cannot be dialled, and circuits to them.

Everything is bounded: the number of reservations (in total and per address), the number of circuits (in
total, per peer and per address), the bytes and the duration of each circuit, and the bytes per second
(in total and per address). A failure of one circuit does not affect others. A member grants reservations
only to peers of its swarm or introduced to it, so nobody else can be called through it.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Awaitable, Callable, Container, Sequence
from dataclasses import dataclass
from typing import Any

import trio
from libp2p.host.basic_host import BasicHost
from libp2p.peer.id import ID
from libp2p.relay.circuit_v2.pb.circuit_pb2 import HopMessage, Status, StopMessage
from libp2p.relay.circuit_v2.utils import read_delimited_msg, write_delimited_msg

from ...crypto.identity import PeerId
from .addresses import id_of, peer_of
from .circuit_client import (
    HOP,
    REPLY_TIMEOUT_SECONDS,
    RESERVATION_SECONDS,
    STOP,
    STREAM_FAILURES,
    is_relayed,
    write_patiently,
)
from .dial_policy import household_of
from .rate_limits import Rate
from .remote_addr import host_of
from .streams import reset

# The most to forward at once: the payload of one Noise message, less yamux's header of 12 bytes.
_PIECE_BYTES = 65_519 - 12
_LEAST_PIECE_BYTES = 4096
# The bound for the pieces of all circuits together, so high that only the relay's rate limits them.
_MOST_PIECES_BYTES = 1 << 30
# Peers ping an idle connection every two seconds, through a circuit too, so a circuit that is silent for
# this long is dead.
_IDLE_SECONDS = 60.0


@dataclass(frozen=True, kw_only=True)
class CircuitLimits:
    """Limits of a relay. A swarm of 32 members, none of them dialable, has 496 circuits."""

    reservations: int = 256
    reservations_per_address: int = 64
    """For one IP address: enough for a household of nodes, without taking every place."""
    reservation_seconds: float = RESERVATION_SECONDS
    circuits: int = 512
    circuits_per_peer: int = 64
    """As many as the connections that a node keeps. A circuit counts for both its ends."""
    circuits_per_address: int = 192
    """For the callers at one IP address."""
    circuit_seconds: float = 86_400.0
    """A day; after that the two peers have to call again, which takes a second."""
    circuit_bytes: int = 64 << 30
    """Both directions together: some 10,000 updates of 2.8 MB each way."""
    bytes_per_second: float = 25e6
    """All circuits together, both directions: 200 Mbit/s."""
    bytes_per_second_per_address: float = 5e6
    """All circuits called from one IP address together: 40 Mbit/s."""
    accept_strangers: bool = True
    """Whether peers get a reservation that are neither in a swarm of ours nor introduced to one."""


MEMBER_CIRCUITS = CircuitLimits(
    reservations=32,
    reservations_per_address=16,
    circuits=64,
    circuits_per_peer=16,
    circuits_per_address=32,
    bytes_per_second=512e3,
    bytes_per_second_per_address=256e3,
    accept_strangers=False,
)
"""Limits of a member that can be dialled: enough to hold a small swarm together without a bootstrap
peer; at most 4 Mbit/s of a home connection, and within the node's own `--max-upload`."""


class CircuitRelay:
    """Serves reservations and circuits on a host. New reservations need `willing`; circuits to peers
    that have one do not. A reservation ends when its peer disconnects, or after some minutes."""

    def __init__(
        self,
        host: BasicHost,
        limits: CircuitLimits,
        *,
        open_stream: Callable[[PeerId, str], Awaitable[Any]],
        connected: Callable[[], Container[PeerId]],
        refuses: Callable[[PeerId], bool],
        willing: Callable[[], bool],
        knows: Callable[[PeerId], bool],
        rates: Sequence[Rate],
    ) -> None:
        """`knows`: whether a peer is in a swarm of ours, or was introduced to it; `rates`: the limits on
        everything that this node sends, and on what it receives."""
        self._host = host
        self._open_stream = open_stream
        self._limits = limits
        self._connected = connected
        self._refuses = refuses
        self._willing = willing
        self._knows = knows
        self._rates = rates
        self._all_circuits = Rate(limits.bytes_per_second)
        self._rates_by_address: dict[str, Rate] = {}
        # Number of circuit directions that are sending at the moment.
        self._sending = 0
        # By peer: the expiry on trio's clock, and the address that it came from.
        self._reservations: dict[PeerId, tuple[float, str]] = {}
        # By peer: the circuits that it is an end of. By IP address: the circuits called from there.
        self._circuits_by_peer: Counter[PeerId] = Counter()
        self._circuits_by_address: Counter[str] = Counter()
        self.circuits = 0
        """Number of open circuits."""
        self.relayed_bytes = 0
        """Bytes relayed since the start, each counted once."""
        self.refused: Counter[str] = Counter()
        """Number of refused requests, by reason."""
        host.set_stream_handler(HOP, self._serve)

    def has_reservation(self, peer: PeerId) -> bool:
        """Whether a peer has a reservation; one that has ended counts until the next request to this
        relay."""
        return peer in self._reservations

    def reservations(self) -> int:
        """Return how many peers hold a reservation."""
        self._drop_ended()
        return len(self._reservations)

    async def _serve(self, stream: Any) -> None:
        peer = peer_of(stream.muxed_conn.peer_id)
        answered = False
        try:
            with trio.fail_after(REPLY_TIMEOUT_SECONDS):
                message = await read_delimited_msg(stream, HopMessage)
            # No relaying over a relayed connection: chains of relays would only hide who asks.
            if peer is None or self._refuses(peer) or is_relayed(stream):
                answer = self._refusal(Status.PERMISSION_DENIED, "refused_peer")
            elif message.type == HopMessage.RESERVE:
                answer = self._reserve(peer, household_of(host_of(stream)))
            elif message.type == HopMessage.CONNECT:
                answer = await self._connect(stream, peer, message.peer.id)
            else:
                answer = self._refusal(Status.MALFORMED_MESSAGE, "malformed")
            if answer is not None:
                await _send(stream, answer)
                await stream.close()
                answered = True
        except STREAM_FAILURES:
            # The peer gave up, closed the stream or sent garbage: the stream is only reset.
            return
        finally:
            if not answered:
                await reset(stream)

    def _reserve(self, peer: PeerId, address: str) -> HopMessage:
        self._drop_ended()
        limits = self._limits
        others = [origin for other, (_, origin) in self._reservations.items() if other != peer]
        if not self._willing():
            return self._refusal(Status.PERMISSION_DENIED, "unwilling")
        if not (limits.accept_strangers or self._knows(peer)):
            return self._refusal(Status.PERMISSION_DENIED, "stranger")
        if (
            len(others) >= limits.reservations
            or others.count(address) >= limits.reservations_per_address
        ):
            return self._refusal(Status.RESERVATION_REFUSED, "reservations")
        self._reservations[peer] = (trio.current_time() + limits.reservation_seconds, address)
        answer = HopMessage(type=HopMessage.STATUS, status=Status.OK)
        answer.reservation.expire = int(time.time() + limits.reservation_seconds)
        answer.reservation.addrs.extend(each.to_bytes() for each in self._host.get_addrs())
        answer.limit.duration = int(limits.circuit_seconds)
        answer.limit.data = limits.circuit_bytes
        return answer

    async def _connect(self, stream: Any, caller: PeerId, data: bytes) -> HopMessage | None:
        """Run a circuit to the peer with the id `data`. Return a refusal, or None after its end."""
        self._drop_ended()
        limits, address = self._limits, household_of(host_of(stream))
        callee = peer_of(ID(data))
        if callee is None or callee == caller:
            return self._refusal(Status.MALFORMED_MESSAGE, "malformed")
        if callee not in self._reservations:
            return self._refusal(Status.NO_RESERVATION, "no_reservation")
        if (
            self.circuits >= limits.circuits
            or self._circuits_by_address[address] >= limits.circuits_per_address
            or max(self._circuits_by_peer[caller], self._circuits_by_peer[callee])
            >= limits.circuits_per_peer
        ):
            return self._refusal(Status.RESOURCE_LIMIT_EXCEEDED, "circuits")
        self.circuits += 1
        self._circuits_by_address[address] += 1
        self._circuits_by_peer.update((caller, callee))
        try:
            return await self._run_circuit(stream, caller, callee)
        finally:
            self.circuits -= 1
            # Counter subtraction drops entries that reach zero.
            self._circuits_by_address -= Counter((address,))
            self._circuits_by_peer -= Counter((caller, callee))
            if address not in self._circuits_by_address:
                self._rates_by_address.pop(address, None)

    async def _run_circuit(self, stream: Any, caller: PeerId, callee: PeerId) -> HopMessage | None:
        """Call the callee and forward bytes both ways until either end closes."""
        other: Any = None
        try:
            try:
                with trio.fail_after(REPLY_TIMEOUT_SECONDS):
                    other = await self._open_stream(callee, STOP)
                    call = StopMessage(type=StopMessage.CONNECT)
                    call.peer.id = id_of(caller).to_bytes()
                    await write_delimited_msg(other, call)
                    answer = await read_delimited_msg(other, StopMessage)
            except STREAM_FAILURES:
                return self._refusal(Status.CONNECTION_FAILED, "unreachable")
            # If the callee were itself connected through a relay, loops of relays could be built.
            if answer.status != Status.OK or is_relayed(other):
                return self._refusal(Status.CONNECTION_FAILED, "unreachable")
            await _send(stream, HopMessage(type=HopMessage.STATUS, status=Status.OK))
            limit = self._limits.bytes_per_second_per_address
            address_rate = self._rates_by_address.setdefault(
                household_of(host_of(stream)), Rate(limit)
            )
            budget = _Budget(
                self._limits.circuit_bytes, (address_rate, self._all_circuits, *self._rates)
            )
            with trio.move_on_after(self._limits.circuit_seconds):
                async with trio.open_nursery() as nursery:
                    for source, target in ((stream, other), (other, stream)):
                        nursery.start_soon(
                            self._forward, source, target, budget, nursery.cancel_scope
                        )
            return None
        finally:
            if other is not None:
                await reset(other)

    async def _forward(
        self, source: Any, target: Any, budget: _Budget, circuit_scope: trio.CancelScope
    ) -> None:
        # Bytes that the source sends ahead stay in our memory until the target takes them. So the
        # source's window stays at its initial 256 KiB: enough for 40 Mbit/s at a round trip of 50 ms,
        # which is more than a home's upload.
        source.muxed_stream._apply_autotune_epoch = lambda buffered: 0
        try:
            while True:
                with trio.fail_after(_IDLE_SECONDS):
                    data = await source.read(self._piece())
                if not data:
                    break
                self._sending += 1
                try:
                    if not await budget.spend(len(data)):
                        break
                    await write_patiently(target, data)
                finally:
                    self._sending -= 1
                self.relayed_bytes += len(data)
        except STREAM_FAILURES:
            # One end has closed or stalled: this circuit is over, others go on.
            pass
        finally:
            circuit_scope.cancel()

    def _piece(self) -> int:
        """Return how many bytes of one circuit to send at once: small enough that all circuits get their
        turn before an end takes the delay for a dead connection."""
        share = self._all_circuits.piece(_MOST_PIECES_BYTES) // max(1, self._sending)
        return min(max(_LEAST_PIECE_BYTES, share), _PIECE_BYTES)

    def _refusal(self, status: Any, reason: str) -> HopMessage:
        self.refused[reason] += 1
        return HopMessage(type=HopMessage.STATUS, status=status)

    def _drop_ended(self) -> None:
        """Drop the reservations that have expired, and those of peers that have disconnected, which
        could not be called."""
        now, connected = trio.current_time(), self._connected()
        self._reservations = {
            peer: (until, address)
            for peer, (until, address) in self._reservations.items()
            if until > now and peer in connected
        }


class _Budget:
    """The bytes that one circuit may still transfer, and the rates that it shares with others."""

    def __init__(self, size: int, rates: Sequence[Rate]) -> None:
        self._remaining = size
        self._rates = rates

    async def spend(self, size: int) -> bool:
        """Wait until `size` bytes may be sent; False if they exceed the circuit's limit."""
        self._remaining -= size
        if self._remaining < 0:
            return False
        for rate in self._rates:
            await rate.spend(size)
        return True


async def _send(stream: Any, message: HopMessage) -> None:
    with trio.fail_after(REPLY_TIMEOUT_SECONDS):
        await write_delimited_msg(stream, message)
