"""A node's network in a simulation: the interface of `Network`, over simulated lines.

Requests, their framing, slots and timeouts are the daemon's own (`node.network.requests`), and so are
scores and hearsay; connections, streams and gossip are simulated. Gossip is flooded: a node that
receives a message for the first time validates it as the daemon does and forwards it to all connected
nodes.
"""

from __future__ import annotations

import itertools
from collections.abc import Awaitable, Callable, Iterable
from contextvars import copy_context
from functools import lru_cache
from types import SimpleNamespace
from typing import Any

import trio
from distro_node.crypto.identity import PeerId, peer_text
from distro_node.node.network.addresses import endpoint, parse_dial
from distro_node.node.network.dial_policy import AddressSource, DialPolicy, Scope
from distro_node.node.network.errors import DialError
from distro_node.node.network.events import Events, PeerDown, PeerUp
from distro_node.node.network.gossip import MAX_MESSAGE_BYTES, Validator
from distro_node.node.network.negotiation import proposal, read_agreement
from distro_node.node.network.network import _OFFENCES
from distro_node.node.network.remote_addr import Remote
from distro_node.node.network.requests import Handler, Requests
from distro_node.node.network.scores import OffenceScores
from distro_node.node.network.streams import StreamEnded, StreamIdle
from distro_node.node.network.traffic import Traffic
from libp2p.custom_types import TProtocol
from libp2p.host.exceptions import StreamFailure
from libp2p.network.exceptions import SwarmException
from libp2p.network.stream.exceptions import StreamError
from libp2p.protocol_muxer.exceptions import MultiselectError
from libp2p.protocol_muxer.multiselect import Multiselect
from libp2p.protocol_muxer.multiselect_communicator import MultiselectCommunicator
from simulation.whole.wires import End, Link, Stream, Wires

# As much as the daemon's reader may lag.
_BUFFERED_MESSAGES = 1024
_PORT = 4001


def address_of(index: int, peer: PeerId) -> str:
    """Return the address of the node with this number: a public one, different for each node."""
    return f"/ip4/45.0.{index}.1/tcp/{_PORT}/p2p/{peer_text(peer)}"


@lru_cache(4096)
def _read_address(address: str) -> tuple[str, PeerId]:
    multiaddr, peer = parse_dial(address)
    return endpoint(multiaddr)[0], peer


class SimulatedNetwork:
    """One process's network. `open` it in a nursery that ends with the process."""

    def __init__(self, wires: Wires, index: int, peer: PeerId) -> None:
        self.wires = wires
        self.index = index
        self.peer = peer
        self.traffic = Traffic()
        self.announcements = 0
        self.accepts_reservations = False
        self.knows: Callable[[PeerId], bool] = lambda peer: True
        self.unsent_bytes = 0
        self.is_exempt: Callable[[PeerId], bool] = lambda peer: False
        self.is_open = False
        self.on_publish: Callable[[bytes], None] = lambda data: None
        """Called with every message before any other node receives it."""
        self.on_serve: Callable[[str, Handler], Handler] = lambda protocol, handler: handler
        """May wrap a protocol's handler."""
        self.circuits = self
        self._scores = OffenceScores()
        self._dial_policy = DialPolicy()
        self.scope_of = self._dial_policy.scope_of
        self._listeners: list[Events] = []
        self._ends: dict[PeerId, list[End]] = {}
        self._handlers = Multiselect()
        self._numbers = itertools.count()
        self._seen: set[tuple[PeerId, int]] = set()
        self._topics: dict[str, tuple[Validator, trio.MemorySendChannel[tuple[PeerId, bytes]]]] = {}

    def open(self, nursery: trio.Nursery) -> None:
        """Listen; tasks run in this nursery, in the context of the caller."""
        self._nursery = nursery
        self._context = copy_context()
        self._requests = Requests(
            self,  # type: ignore[arg-type]  # replaces the library's host
            nursery,
            self.traffic,
            self.connected,
            self.refuses,
            self.penalise,
        )
        self.request = self._requests.request
        self.wires.nodes[_read_address(address_of(self.index, self.peer))[0]] = self
        self.is_open = True

    def close(self, *, dark: bool = False) -> None:
        """End the process; if `dark`, no peer is notified."""
        if self.is_open:
            self.is_open = False
            self.wires.vanish(self, dark=dark)

    # Peers

    @property
    def addresses(self) -> list[str]:
        return [address_of(self.index, self.peer)]

    own_addresses = dialable_addresses = addresses

    @property
    def listening_ports(self) -> list[int]:
        return [_PORT]

    def listening_port(self, version: int) -> int | None:
        return _PORT if version == 4 else None

    def connected(self) -> frozenset[PeerId]:
        return frozenset(self._ends)

    def relayed(self) -> frozenset[PeerId]:
        return frozenset()

    spare_circuits = relayed

    def remote(self, peer: PeerId) -> Remote | None:
        if peer not in self._ends:
            return None
        end = self._ends[peer][0]
        host = _read_address(address_of(end.other.home.index, peer))[0]
        return Remote(host=host, port=_PORT if end.dialled else 50_000, dialled=end.dialled)

    def links(self) -> list[Link]:
        """Return all connections."""
        return [end.link for group in self._ends.values() for end in group]

    def source_of(self, peer: PeerId) -> AddressSource:
        return self._dial_policy.source_of(peer)

    def peer_events(self) -> trio.MemoryReceiveChannel[PeerUp | PeerDown]:
        events = Events()
        self._listeners.append(events)
        for peer in self._ends:
            events.put(PeerUp(peer))
        return events.receiver

    def announce(self, source: str, addresses: Iterable[str]) -> None:
        # Every node can be dialled, so none has more than one address.
        assert not list(addresses)

    def relayed_bytes(self) -> int:
        # No node relays here.
        return 0

    def wire_bytes(self) -> tuple[int, int]:
        ends = [end for group in self._ends.values() for end in group]
        return sum(end.sent for end in ends), sum(end.received for end in ends)

    async def connect(
        self,
        address: str,
        timeout: float = 5.0,
        *,
        direct: bool = False,
        source: AddressSource | None = None,
    ) -> PeerId:
        host, peer = _read_address(address)
        if peer == self.peer:
            raise DialError(address, "this is the node itself")
        if self.refuses(peer):
            raise DialError(
                address, "the peer violated the protocol, and is refused for some minutes"
            )
        if peer in self._ends:
            return peer
        now = trio.current_time()
        reason = self._dial_policy.refusal(source, host, now) if source is not None else None
        if reason is not None:
            raise DialError(address, reason)
        try:
            with trio.fail_after(timeout):
                link = await self.wires.connect(self, host)
        except trio.TooSlowError:
            raise DialError(address, f"no answer within {timeout:g} s") from None
        except OSError:
            raise DialError(address, "connection refused") from None
        if link.ends[1].home.peer != peer:
            link.break_off()
            raise DialError(address, "another peer answers there")
        if source is not None:
            self._dial_policy.refund(source, host, now)
        return peer

    async def reserve(self, relay: PeerId) -> None:
        """As `circuits.reserve`: no node relays."""
        await trio.sleep(0.1)
        raise DialError(address_of(self.index, relay), "it carries nobody")

    async def answers_at(self, peer: PeerId, host: str, port: int, timeout: float) -> bool | None:
        there = self.wires.nodes.get(host)
        await trio.sleep(0.1)
        return there is not None and there.peer == peer and port == _PORT

    async def disconnect(self, peer: PeerId) -> None:
        for end in list(self._ends.get(peer, ())):
            end.link.break_off()
        await trio.lowlevel.checkpoint()

    def penalise(self, peer: PeerId, reason: str) -> None:
        if self._scores.penalise(peer, reason, trio.current_time()):
            self.traffic.reject("refused_peer")
            self._nursery.start_soon(self.disconnect, peer)

    def refuses(self, peer: PeerId) -> bool:
        return self._scores.refused(peer, trio.current_time())

    def spawn(self, function: Callable[..., Awaitable[Any]], *arguments: Any) -> None:
        self._nursery.start_soon(function, *arguments)

    # Reports from the lines

    def arrived(self, end: End) -> None:
        """Note a new connection."""
        peer = end.other.home.peer
        if not self.is_open or self.refuses(peer):
            self.wires.at(trio.current_time(), end.link.break_off)
            return
        group = self._ends.setdefault(peer, [])
        group.append(end)
        self._dial_policy.note_connection(peer, Scope.WORLD, additional=len(group) > 1)
        if len(group) == 1:
            self._publish_event(PeerUp(peer))

    def departed(self, end: End) -> None:
        """Note the end of a connection."""
        peer = end.other.home.peer
        group = self._ends.get(peer, [])
        if end in group:
            group.remove(end)
            self.traffic.wire_sent += end.sent
            self.traffic.wire_received += end.received
        if peer in self._ends and not group:
            del self._ends[peer]
            self._publish_event(PeerDown(peer))

    def _publish_event(self, event: PeerUp | PeerDown) -> None:
        if self.is_open:
            for listener in self._listeners:
                listener.put(event)

    # Requests: replaces the library's host

    def serve(self, protocol: str, handler: Handler, **limits: Any) -> None:
        self._requests.serve(protocol, self.on_serve(protocol, handler), **limits)

    def set_stream_handler(self, protocol: str, handler: Callable[[Any], Awaitable[None]]) -> None:
        self._handlers.add_handler(TProtocol(protocol), handler)

    def get_network(self) -> Any:
        return SimpleNamespace(new_stream=self._open_stream)

    async def new_stream(self, identifier: Any, protocols: list[TProtocol]) -> Stream:
        (protocol,), stream = protocols, await self._open_stream(identifier)
        try:
            await stream.write(proposal(protocol))
            if await read_agreement(stream, protocol, 5.0):
                return stream
        except (StreamIdle, StreamEnded, StreamError) as error:
            await stream.reset()
            raise StreamFailure("no answer") from error
        await stream.reset()
        raise StreamFailure("refused") from ValueError("protocols not supported")

    async def _open_stream(self, identifier: Any) -> Stream:
        await trio.lowlevel.checkpoint()
        ends = [end for group in self._ends.values() for end in group]
        end = next((end for end in ends if end.peer_id == identifier), None)
        if end is None:
            raise SwarmException("no connection")
        number = 2 * next(self._numbers) + end.dialled
        stream, there = Stream(end, number), end.other
        end.send(12, lambda: there.home.take(Stream(there, number)))
        return stream

    def take(self, stream: Stream) -> None:
        """Accept a stream opened by a peer."""
        if self.is_open:
            self._context.copy().run(self._nursery.start_soon, self._negotiate, stream)

    async def _negotiate(self, stream: Any) -> None:
        try:
            _, handler = await self._handlers.negotiate(MultiselectCommunicator(stream))
        except MultiselectError:
            await stream.reset()
            return
        assert handler is not None
        await handler(stream)

    # Gossip

    async def subscribe(
        self, topic: str, validate: Validator
    ) -> trio.MemoryReceiveChannel[tuple[PeerId, bytes]]:
        await trio.lowlevel.checkpoint()
        send, receive = trio.open_memory_channel[tuple[PeerId, bytes]](_BUFFERED_MESSAGES)
        self._topics[topic] = (validate, send)
        return receive

    async def publish(self, topic: str, data: bytes) -> None:
        assert len(data) <= MAX_MESSAGE_BYTES
        await trio.lowlevel.checkpoint()
        if self.is_open:
            self.on_publish(data)
            self.pass_on(topic, self.peer, data, None)

    def pass_on(
        self,
        topic: str,
        author: PeerId,
        data: bytes,
        source: PeerId | None,
        targets: frozenset[PeerId] | None = None,
        name: tuple[PeerId, int] | None = None,
    ) -> None:
        """Send a message to all connected nodes, or only to these; not back to `source`.

        Without a `name` it is a new one, though its content may have been sent before."""
        name = name or (self.peer, next(self.wires.messages))
        self._seen.add(name)
        for peer, group in self._ends.items():
            if peer in (author, source) or (targets is not None and peer not in targets):
                continue
            if self.wires.chance.random() >= self.wires.loss:
                there = group[0].other.home
                group[0].send(
                    len(data) + 150,
                    lambda there=there: there.hear(topic, name, author, data, self.peer),
                )

    def hear(
        self,
        topic: str,
        name: tuple[PeerId, int],
        author: PeerId,
        data: bytes,
        source: PeerId,
    ) -> None:
        """Receive a message from `source`."""
        if not self.is_open or name in self._seen or topic not in self._topics:
            return
        self._seen.add(name)
        if self.refuses(source) or self.refuses(author):
            return
        validate, reader = self._topics[topic]
        reason = self._context.run(validate, author, data)
        if reason is not None:
            self.traffic.reject(reason)
            if reason in _OFFENCES:
                self.penalise(source, reason)
            return
        try:
            reader.send_nowait((author, data))
        except trio.WouldBlock:
            self.traffic.drop(topic)
        except trio.BrokenResourceError:
            return
        self.pass_on(topic, author, data, source, name=name)
