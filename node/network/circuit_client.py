"""Circuits: connections between two peers through a third, a relay, that both can reach.

The wire protocol is libp2p's circuit relay v2. Over the relay's two streams the peers use Noise and
yamux with each other as over TCP, so a relay can neither read nor forge anything; it can only delay or
drop. This module is the peers' side; `circuit_relay` is the relay's.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import trio
from google.protobuf.message import DecodeError
from libp2p.connection_types import ConnectionType
from libp2p.custom_types import TProtocol
from libp2p.exceptions import BaseLibp2pError
from libp2p.host.basic_host import BasicHost
from libp2p.network.connection.raw_connection import RawConnection
from libp2p.network.exceptions import SwarmException
from libp2p.network.swarm import Swarm
from libp2p.peer.id import ID
from libp2p.relay.circuit_v2.pb.circuit_pb2 import HopMessage, Status, StopMessage
from libp2p.relay.circuit_v2.utils import read_delimited_msg, write_delimited_msg
from multiaddr import Multiaddr

from ...crypto.identity import PeerId
from .addresses import id_of, parse_dial, peer_of
from .errors import BadAddress, DialError, RequestError
from .flow_control import wait_for_credit
from .streams import reset

HOP = TProtocol("/libp2p/circuit/relay/0.2.0/hop")
STOP = TProtocol("/libp2p/circuit/relay/0.2.0/stop")

REPLY_TIMEOUT_SECONDS = 10.0
"""Timeout for one message of either end of a circuit or of the relay: a busy machine or a saturated line
takes seconds."""

RESERVATION_SECONDS = 600.0
"""How long a relay holds a reservation. A relay reports the expiry by its own wall clock, which may be
hours off, so both ends count these seconds on their own steady clocks."""

STREAM_FAILURES = (
    # Base class of all errors of the library; for a length of more than 64 bits it raises a
    # `ParseError`.
    BaseLibp2pError,
    RequestError,
    DecodeError,
    trio.TooSlowError,
    # The reader of protobuf frames raises this for an invalid length.
    ValueError,
)
"""Exceptions of reading from and writing to a stream whose other end is a stranger."""

# How many of the addresses that a relay reports are used; more would not fit into our record.
_MAX_RELAY_ADDRESSES = 2
# The relay's line may be saturated. The library itself waits five seconds for a full window, which a
# busy home connection exceeds without any fault.
_STALL_SECONDS = 30.0

_REFUSALS = {
    Status.NO_RESERVATION: "the relay has no reservation of that peer",
    Status.RESOURCE_LIMIT_EXCEEDED: "the relay is full",
    Status.RESERVATION_REFUSED: "the relay is full",
    Status.PERMISSION_DENIED: "the relay refuses the request",
    Status.CONNECTION_FAILED: "the relay cannot reach the peer",
}


@dataclass(frozen=True)
class Reservation:
    """A reservation at a relay, under which others can call us."""

    expires: float
    """Expiry on trio's clock."""
    addresses: tuple[str, ...]
    """The relay's own addresses, as it reports them, each ending in `/p2p/<relay>`."""


class Circuits:
    """The circuits of one node: reservations at relays, outgoing calls and incoming calls."""

    def __init__(
        self,
        host: BasicHost,
        swarm: Swarm,
        *,
        open_stream: Callable[[PeerId, str], Awaitable[Any]],
        refuses: Callable[[PeerId], bool],
    ) -> None:
        self._swarm = swarm
        self._open_stream = open_stream
        self._refuses = refuses
        self._reservations: dict[PeerId, Reservation] = {}
        host.set_stream_handler(STOP, self._accept_call)

    async def reserve(self, relay: PeerId) -> Reservation:
        """Request a reservation at a connected relay, or renew it. Raises `DialError` if the relay
        refuses or does not answer."""
        # Taken before the request, so that our copy expires no later than the relay's.
        requested_at = trio.current_time()
        try:
            stream, answer = await self._ask(relay, HopMessage(type=HopMessage.RESERVE))
            await reset(stream)
            if not answer.HasField("reservation"):
                raise DialError(str(id_of(relay)), "the relay's answer is malformed")
        except DialError:
            self._reservations.pop(relay, None)
            raise
        reservation = Reservation(
            expires=requested_at + RESERVATION_SECONDS,
            addresses=tuple(_addresses(answer.reservation.addrs, relay)),
        )
        self._reservations[relay] = reservation
        return reservation

    async def dial(self, relay: PeerId, peer: PeerId) -> None:
        """Connect to a peer through a connected relay.

        Raises `DialError` if the relay refuses or does not answer, and `SwarmException` if the handshake
        with the peer fails.
        """
        request = HopMessage(type=HopMessage.CONNECT)
        request.peer.id = id_of(peer).to_bytes()
        stream, _ = await self._ask(relay, request)
        upgraded = False
        try:
            connection = _raw_connection(stream, True, relay, peer)
            await self._swarm.upgrade_outbound_raw_conn(connection, id_of(peer))
            upgraded = True
        except SwarmException:
            raise
        except Exception as error:
            # The library does not expect a connection to end during a handshake; circuits do.
            raise SwarmException("the circuit ended during the handshake") from error
        finally:
            if not upgraded:
                await reset(stream)

    async def _ask(self, relay: PeerId, request: HopMessage) -> tuple[Any, HopMessage]:
        stream: Any = None
        answered = False
        try:
            with trio.fail_after(REPLY_TIMEOUT_SECONDS):
                stream = await self._open_stream(relay, HOP)
                await write_delimited_msg(stream, request)
                answer = await read_delimited_msg(stream, HopMessage)
            if answer.type != HopMessage.STATUS or answer.status != Status.OK:
                reason = _REFUSALS.get(answer.status, "the relay refuses the request")
                raise DialError(str(id_of(relay)), reason)
            answered = True
            return stream, answer
        except STREAM_FAILURES as error:
            if isinstance(error, RequestError) and error.reason == "refused":
                raise DialError(str(id_of(relay)), "the peer is not a relay") from None
            raise DialError(str(id_of(relay)), "the relay does not answer") from None
        finally:
            if stream is not None and not answered:
                await reset(stream)

    async def _accept_call(self, stream: Any) -> None:
        """Accept a call that a relay forwards; run as long as the circuit lasts."""
        relay = peer_of(stream.muxed_conn.peer_id)
        try:
            with trio.fail_after(REPLY_TIMEOUT_SECONDS):
                message = await read_delimited_msg(stream, StopMessage)
                caller = peer_of(ID(message.peer.id))
                status = Status.OK
                if message.type != StopMessage.CONNECT or caller is None:
                    status = Status.MALFORMED_MESSAGE
                # Only relays where we hold a reservation may forward calls: any other peer can call us
                # directly.
                elif relay is None or relay not in self._reservations or self._refuses(relay):
                    status = Status.PERMISSION_DENIED
                answer = StopMessage(type=StopMessage.STATUS, status=status)
                await write_delimited_msg(stream, answer)
            if status != Status.OK or relay is None or caller is None:
                return
            connection = _raw_connection(stream, False, relay, caller)
            # Noise authenticates the caller; the id that the relay gives is only a hint.
            muxed: Any = await self._swarm.upgrade_inbound_raw_conn(
                connection, connection.get_transport_addresses()[0]
            )
            await muxed.event_closed.wait()
        except STREAM_FAILURES:
            # A failed call; the caller tries again.
            return
        finally:
            await reset(stream)


class CircuitStream:
    """A relayed stream that replaces a TCP connection."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    async def read(self, n: int | None = None) -> bytes:
        return await self._stream.read(n)

    async def write(self, data: bytes) -> None:
        await write_patiently(self._stream, data)

    async def close(self) -> None:
        # The Noise connection above cannot be half closed, so no data is outstanding.
        await reset(self._stream)

    def get_remote_address(self) -> None:
        return None


async def write_patiently(stream: Any, data: bytes) -> None:
    """Write to a stream, waiting while its send window is closed.

    The stream must have no other writer. Raises one of `STREAM_FAILURES`.
    """
    view = memoryview(data)
    muxed = stream.muxed_stream
    while view:
        if not await wait_for_credit(muxed, _STALL_SECONDS):
            raise trio.TooSlowError
        size = max(1, min(len(view), muxed.send_window))
        await stream.write(bytes(view[:size]))
        view = view[size:]


def is_relayed(connection: Any) -> bool:
    """Whether a connection (or a stream's connection) goes through a relay."""
    muxed = getattr(connection, "muxed_conn", connection)
    return muxed.get_connection_type() is not ConnectionType.DIRECT


def _raw_connection(stream: Any, initiator: bool, relay: PeerId, peer: PeerId) -> RawConnection:
    route = Multiaddr(f"/p2p/{id_of(relay)}/p2p-circuit/p2p/{id_of(peer)}")
    circuit: Any = CircuitStream(stream)
    return RawConnection(circuit, initiator, ConnectionType.RELAYED, [route])


def _addresses(reported: Any, relay: PeerId) -> list[str]:
    """Return the dialable addresses among those that a relay reports; the relay is not trusted."""
    found: list[str] = []
    for data in list(reported)[:8]:
        try:
            text = str(Multiaddr(data))
            if parse_dial(text)[1] == relay and text not in found:
                found.append(text)
        except (BadAddress, ValueError, KeyError):
            continue
    return found[:_MAX_RELAY_ADDRESSES]
