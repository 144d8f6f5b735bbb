"""A node's network: connections, requests, gossip, and a misbehaviour score per peer.

`open_network` yields a `Network` that is listening. Nothing that a peer sends raises an exception out of
this module. Offences of a peer add to its score; beyond a limit it is disconnected and refused for ten
minutes.
"""

from __future__ import annotations

import ipaddress
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any

import trio
from libp2p.host.basic_host import BasicHost
from libp2p.network.swarm import Swarm
from libp2p.stream_muxer.yamux.yamux import Yamux
from multiaddr import Multiaddr

from ...crypto.identity import Identity, PeerId, short_peer
from . import liveness
from .addresses import (
    MAX_ADDRESSES,
    check_free,
    endpoint,
    id_of,
    parse_announce,
    parse_dial,
    parse_listen,
    peer_of,
    split_circuit,
    through_relay,
)
from .cancel_scopes import close_all, close_quietly, shielded
from .circuit_client import Circuits, is_relayed
from .circuit_relay import CircuitLimits, CircuitRelay
from .connection_limits import MAX_HANDSHAKES, HandshakeLimit, choose_eviction
from .descriptors import make_room
from .dial import answers_at, dial_from, dial_reason, most_informative_failure
from .dial_policy import AddressSource, DialPolicy, Scope, household_of
from .errors import BadAddress, DialError
from .events import ConnectionNotifee, Events, PeerDown, PeerEvent, PeerUp
from .gossip import Gossip, open_gossip
from .happy_eyeballs import Candidates, race
from .host import MAX_CONNECTIONS_PER_PEER, build_host, start_listening
from .interfaces import reachable_hosts
from .ip_families import with_family
from .library_patches import HANDSHAKE_LIMIT_ATTRIBUTE
from .name_resolution import resolve
from .rate_limits import Rate
from .remote_addr import Remote, evictable_connections, find_remote, host_of, scope_of_connection
from .requests import Requests
from .scores import OffenceScores
from .segment_size import SegmentSizes
from .socket_buffers import UNSENT_BYTES, limit_unsent
from .tcp_transport import LinkScopes
from .traffic import Traffic, TrafficTotals

log = logging.getLogger(__name__)

_CLOSE_SECONDS = 2.0
# Connections kept free for newcomers: if fewer are free, the oldest connection of the address with the
# most connections is closed.
_SPARE_CONNECTIONS = 16
# Reasons for rejecting a gossip message that also penalise the peer that forwarded it, because no honest
# peer causes them by being late or early.
_OFFENCES = frozenset({"malformed", "oversized", "invalid", "bad_signature", "wrong_swarm"})


@dataclass(frozen=True, kw_only=True)
class NetworkSettings:
    """Listening addresses and limits of the network."""

    listen: tuple[str, ...] = ("/ip4/0.0.0.0/tcp/0", "/ip6/::/tcp/0")
    """Multiaddresses `/ip4/<address>/tcp/<port>` or `/ip6/…`; port 0 is any free port, the same for all
    of them. An address family that the machine lacks is left out."""
    announce: tuple[str, ...] = ()
    """Addresses to announce instead of this machine's own, for a node behind a forwarded port or with a
    name."""
    max_connections: int = 256
    """Connections to all peers together; fewer if the process may not open as many files."""
    max_connections_per_address: int | None = None
    """Per IPv4 address or IPv6 /64, loopback excepted; None: no limit per address."""
    max_upload: float | None = None
    """Payload bytes per second for all peers together; None: unlimited."""
    max_download: float | None = None
    """The same for received bytes."""
    circuit_limits: CircuitLimits | None = None
    """Limits for relaying to peers that cannot be dialled; None: no relaying."""


@asynccontextmanager
async def open_network(
    settings: NetworkSettings, identity: Identity, totals: TrafficTotals | None = None
) -> AsyncIterator[Network]:
    """Listen, and close everything at the end. Traffic is added to `totals`, if they are given.

    Raises `PortInUse` if another program listens on one of the ports, and `BadAddress` for an address
    that cannot be used. An exception of the body is passed on as it is, not in an exception group.
    """
    listen = with_family([parse_listen(text) for text in settings.listen])
    announce = [parse_announce(text) for text in settings.announce]
    if len(announce) > MAX_ADDRESSES:
        raise BadAddress(settings.announce[MAX_ADDRESSES], f"only {MAX_ADDRESSES} are announced")
    for address in listen:
        check_free(address)
    room = make_room(settings.max_connections, MAX_HANDSHAKES)
    settings = replace(settings, max_connections=room.connections)
    sizes, scopes = SegmentSizes(), LinkScopes()
    host, swarm = build_host(
        identity,
        max_connections=settings.max_connections,
        announce=announce,
        sizes=sizes,
        scopes=scopes,
    )
    vars(swarm)[HANDSHAKE_LIMIT_ATTRIBUTE] = HandshakeLimit(room.handshakes)
    failure: Exception | None = None
    async with trio.open_nursery() as nursery:
        traffic = Traffic(Rate(settings.max_upload), Rate(settings.max_download), totals)
        network = Network(host, swarm, identity.peer, nursery, traffic, settings, scopes)
        async with host.run([]), open_gossip(network.gossip):
            nursery.start_soon(liveness.watch, network._muxers, sizes)
            try:
                await start_listening(swarm, listen)
                yield network
            except Exception as error:
                # Passed out of the nurseries, which would wrap it in groups.
                failure = error
            finally:
                await network._close()
        nursery.cancel_scope.cancel()
    if failure is not None:
        raise failure


class Network:
    """One node's network. Created by `open_network`."""

    def __init__(
        self,
        host: BasicHost,
        swarm: Swarm,
        peer: PeerId,
        nursery: trio.Nursery,
        traffic: Traffic,
        settings: NetworkSettings,
        scopes: LinkScopes,
    ) -> None:
        self.peer = peer
        self.link_scopes = scopes
        """The interfaces of link-local addresses."""
        self.traffic = traffic
        self.unsent_bytes = UNSENT_BYTES
        """Unsent bytes that the kernel may hold for each new connection."""
        self.gossip = Gossip(host, self.traffic, self.refuses, self._gossip_rejected)
        self.subscribe, self.publish = self.gossip.subscribe, self.gossip.publish
        self._host = host
        self._swarm = swarm
        self._nursery = nursery
        self.requests = Requests(
            host, nursery, self.traffic, self.connected, self.refuses, self.penalise
        )
        self.serve, self.request = self.requests.serve, self.requests.request
        self.circuits = Circuits(
            host, swarm, open_stream=self.requests.open_stream, refuses=self.refuses
        )
        self.knows: Callable[[PeerId], bool] = lambda peer: False
        """Whether a peer is in our swarm, or was introduced to it; set by the component that knows."""
        self.accepts_reservations = True
        """Whether `circuit_relay` accepts reservations; set by the component that knows."""
        self.circuit_relay = settings.circuit_limits and CircuitRelay(
            host,
            settings.circuit_limits,
            open_stream=self.requests.open_stream,
            connected=self.connected,
            refuses=self.refuses,
            willing=lambda: self.accepts_reservations,
            knows=lambda peer: self.knows(peer),
            rates=(traffic.upload, traffic.download),
        )
        """The relay's side of circuits; None if this node does not relay."""
        self.announcements = 0
        """How often `announce` has changed the addresses."""
        self._announced: dict[str, tuple[str, ...]] = {}
        self._max_per_address = settings.max_connections_per_address
        self._scores = OffenceScores()
        self._dial_policy = DialPolicy(reachable_hosts)
        self.scope_of = self._dial_policy.scope_of
        self._connections: dict[PeerId, set[Any]] = {}
        self.is_exempt: Callable[[PeerId], bool] = lambda peer: False
        """Whether a peer is exempt from making room for newcomers; set by the component that knows."""
        self._max_connections = max(1, settings.max_connections - _SPARE_CONNECTIONS)
        self._event_queues: list[Events] = []
        self._closing = False
        swarm.register_notifee(ConnectionNotifee(self._on_connected, self._on_disconnected))

    @property
    def addresses(self) -> list[str]:
        """Addresses at which others can dial us: full multiaddresses ending in `/p2p/<peer>`.

        Those added by `announce` come last, but are never displaced.
        """
        added = [address for group in self._announced.values() for address in group]
        return [*self.own_addresses[: MAX_ADDRESSES - len(added)], *added]

    @property
    def own_addresses(self) -> list[str]:
        """This machine's own addresses, or those configured to be announced."""
        return [str(address) for address in self._host.get_addrs()]

    @property
    def dialable_addresses(self) -> list[str]:
        """Those of our addresses that do not lead through a relay."""
        return [address for address in self.addresses if not through_relay(address)]

    @property
    def listening_ports(self) -> list[int]:
        """The TCP ports that we listen on at all interfaces, or at one that is not loopback."""
        return list(dict.fromkeys(port for _, port in self._ports_by_version()))

    def listening_port(self, version: int) -> int | None:
        """Return the first of the ports at which we listen in IPv4 or IPv6; None if there is none."""
        return next((port for family, port in self._ports_by_version() if family == version), None)

    def _ports_by_version(self) -> Iterator[tuple[int, int]]:
        for listener in self._swarm.listeners.values():
            for address in listener.get_addrs():
                host, port = endpoint(address)
                ip = ipaddress.ip_address(host)
                if not ip.is_loopback:
                    yield ip.version, port

    def listens_on_all(self, version: int) -> bool:
        """Whether we listen on all interfaces in IPv4 or IPv6."""
        bound = (
            each for listener in self._swarm.listeners.values() for each in listener.get_addrs()
        )
        hosts = (ipaddress.ip_address(endpoint(address)[0]) for address in bound)
        return any(host.is_unspecified and host.version == version for host in hosts)

    def announce(self, component: str, addresses: Iterable[str]) -> None:
        """Announce these addresses too, replacing what `component` announced before."""
        group = tuple(addresses)
        if group != self._announced.get(component, ()):
            self._announced[component] = group
            self.announcements += 1

    def relayed(self) -> frozenset[PeerId]:
        """Return the peers that are connected only through relays."""
        return frozenset(
            peer for peer, group in self._connections.items() if all(map(is_relayed, group))
        )

    def spare_circuits(self) -> frozenset[PeerId]:
        """Return the peers that are connected both directly and through relays."""
        return frozenset(
            peer
            for peer, group in self._connections.items()
            if {is_relayed(connection) for connection in group} == {True, False}
        )

    async def close_circuits(self, peer: PeerId) -> None:
        """Close the connections to a peer that go through relays."""
        await close_all(filter(is_relayed, list(self._connections.get(peer, ()))))

    def remote(self, peer: PeerId) -> Remote | None:
        """Return the other end of a direct connection to a peer, preferably of one that we dialled."""
        return find_remote(self._connections.get(peer, ()))

    def source_of(self, peer: PeerId) -> AddressSource:
        """Return a peer as a source of addresses, with its distance when it was last connected."""
        return self._dial_policy.source_of(peer)

    def connected(self) -> frozenset[PeerId]:
        """Return the peers that are connected at present."""
        return frozenset(self._connections)

    def peer_events(self) -> trio.MemoryReceiveChannel[PeerEvent]:
        """Return a channel of connects and disconnects, beginning with the peers connected now.

        A reader that lags by a thousand events loses the oldest; `connected` stays right. A reader that
        ends has to close the channel.
        """
        events = Events()
        self._event_queues.append(events)
        for peer in self._connections:
            events.put(PeerUp(peer))
        return events.receiver

    def relayed_bytes(self) -> int:
        """Return the bytes relayed between others since the start: circuits and updates."""
        circuits = self.circuit_relay.relayed_bytes if self.circuit_relay else 0
        return circuits + self.traffic.relayed

    def wire_bytes(self) -> tuple[int, int]:
        """Return all bytes sent and received, with protocol overhead and without encryption."""
        # Traffic of a circuit goes over the connection to its relay and is counted there.
        wires: list[Any] = [muxer.secured_conn for muxer in self._muxers() if not is_relayed(muxer)]
        return (
            self.traffic.wire_sent + sum(wire.sent for wire in wires),
            self.traffic.wire_received + sum(wire.received for wire in wires),
        )

    async def connect(
        self,
        address: str,
        timeout: float = 5.0,
        *,
        direct: bool = False,
        source: AddressSource | None = None,
    ) -> PeerId:
        """Dial one multiaddress that ends in `/p2p/<peer>` and return the peer.

        Returns at once if that peer is already connected; with `direct`, only if it is connected
        directly. An address through a relay also connects to the relay. If `source` is given, it is the
        source of the address, and only what `dial_policy` allows for that source is dialled. `timeout`
        is in seconds. Raises `DialError` if no connection is made, and `BadAddress` if the text is not
        an address.
        """
        circuit = split_circuit(address)
        target, peer = parse_dial(address) if circuit is None else (None, circuit[1])
        if peer == self.peer:
            raise DialError(address, "this is the node itself")
        if self.refuses(peer):
            raise DialError(
                address, "the peer violated the protocol, and is refused for some minutes"
            )
        if peer in self._connections and not (direct and peer in self.relayed()):
            return peer
        try:
            with trio.fail_after(timeout):
                if circuit is not None:
                    relay = await self.connect(circuit[0], timeout, source=source)
                    await self.circuits.dial(relay, peer)
                    return peer
                assert target is not None
                return await self._dial(address, target, peer, source)
        except trio.TooSlowError:
            raise DialError(address, f"no answer within {timeout:g} s") from None
        except DialError:
            raise
        except Exception as error:
            raise DialError(address, dial_reason(error)) from error

    async def _dial(
        self, address: str, target: Multiaddr, peer: PeerId, source: AddressSource | None
    ) -> PeerId:
        """Dial all IP addresses to which a direct address resolves, in short succession, until the peer
        answers.

        Raises `DialError`, and anything the library raises.
        """

        async def attempt(candidate: Multiaddr) -> PeerId:
            host, now = endpoint(candidate)[0], trio.current_time()
            reason = self._dial_policy.refusal(source, host, now) if source is not None else None
            if reason is not None:
                raise DialError(address, reason)
            # Most failures are a `SwarmException`, but the library raises others as well.
            await self._swarm.dial_addr(candidate, id_of(peer))
            if source is not None:
                self._dial_policy.refund(source, host, now)
            return peer

        lookups = 0

        def permit() -> str | None:
            nonlocal lookups
            assert source is not None
            reason = self._dial_policy.lookup_refusal(source, trio.current_time())
            lookups += reason is None
            return reason

        candidates: Candidates[Multiaddr] = Candidates()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(resolve, target, candidates, None if source is None else permit)
            connected, failures = await race(candidates, attempt)
            nursery.cancel_scope.cancel()
        if connected is not None:
            if source is not None:
                self._dial_policy.refund_lookups(source, lookups, trio.current_time())
            return connected
        if failures:
            raise most_informative_failure(failures)
        raise DialError(address, next(iter(candidates.reasons), "the name has no address"))

    async def answers_at(self, peer: PeerId, host: str, port: int, timeout: float) -> bool | None:
        """Return whether a peer proves its key at a TCP port within `timeout` seconds; the connection is
        closed at once.

        None: not tried, because too many dials of that address have failed.
        """
        source, now = AddressSource(peer, self.scope_of(host)), trio.current_time()
        if self._dial_policy.refusal(source, host, now) is not None:
            return None
        answered = await answers_at(self._swarm, id_of(peer), host, port, timeout)
        if answered:
            self._dial_policy.refund(source, host, now)
        return answered

    async def dial_from_port(
        self, peer: PeerId, host: str, port: int, timeout: float, *, as_responder: bool
    ) -> bool:
        """Dial a peer from the port that we listen on; `as_responder`: take the responder's role in the
        handshakes.

        Returns whether a connection was made within `timeout` seconds. An address in our own network is
        not dialled: a distant peer has named it.
        """
        port_here = self.listening_port(6 if ":" in host else 4)
        if port_here is None or self.scope_of(host) is not Scope.WORLD:
            return False
        source = ("::" if ":" in host else "0.0.0.0", port_here)
        return await dial_from(
            self._swarm, id_of(peer), (host, port), source, timeout, as_responder
        )

    async def disconnect(self, peer: PeerId) -> None:
        """Close every connection to a peer."""
        await close_all(self._connections.get(peer, ()))

    def penalise(self, peer: PeerId, reason: str) -> None:
        """Score an offence. A peer with too many is disconnected and refused for ten minutes."""
        if self._scores.penalise(peer, reason, trio.current_time()):
            log.warning("peer %s is refused for some minutes: %s", short_peer(peer), reason)
            self.traffic.reject("refused_peer")
            if not self._closing:
                self._nursery.start_soon(self.disconnect, peer)

    def refuses(self, peer: PeerId) -> bool:
        """Whether this peer has misbehaved enough to be refused at present."""
        return self._scores.refused(peer, trio.current_time())

    def spawn(self, function: Callable[..., Awaitable[Any]], *arguments: Any) -> None:
        """Run a task while the network is open. An exception in it ends the network."""
        self._nursery.start_soon(function, *arguments)

    def _gossip_rejected(self, forwarder: PeerId, reason: str) -> None:
        if reason in _OFFENCES:
            self.penalise(forwarder, reason)

    def _muxers(self) -> Iterator[Yamux]:
        for connections in self._connections.values():
            for connection in connections:
                yield connection.muxed_conn

    def _on_connected(self, connection: Any) -> None:
        if connection.is_closed:
            return
        peer = peer_of(connection.muxed_conn.peer_id)
        known = self._connections.get(peer, set()) if peer is not None else set()
        too_many = len(known) >= MAX_CONNECTIONS_PER_PEER or self._is_over_address_limit(connection)
        if peer is None or self.refuses(peer) or too_many:
            self._nursery.start_soon(close_all, [connection])
            return
        limit_unsent(connection.muxed_conn, self.unsent_bytes)
        self._connections.setdefault(peer, known).add(connection)
        self._dial_policy.note_connection(
            peer, scope_of_connection(connection, self.scope_of), additional=len(known) > 1
        )
        self._make_room()
        if len(known) == 1:
            self._publish_event(PeerUp(peer))

    def _make_room(self) -> None:
        connections = [each for group in self._connections.values() for each in group]
        if len(connections) > self._max_connections:
            exempt = {peer for peer in self._connections if self.is_exempt(peer)}
            evicted = choose_eviction(evictable_connections(self._connections, exempt))
            if evicted is not None:
                self.traffic.reject("crowded_out")
                self._nursery.start_soon(close_all, [evicted])

    def _is_over_address_limit(self, connection: Any) -> bool:
        """Whether the address that a connection comes from has reached its limit."""
        if self._max_per_address is None:
            return False
        host = host_of(connection)
        if host is None or ipaddress.ip_address(host).is_loopback:
            return False
        household = household_of(host)
        hosts = (host_of(each) for group in self._connections.values() for each in group)
        same = sum(each is not None and household_of(each) == household for each in hosts)
        return same >= self._max_per_address

    def _on_disconnected(self, connection: Any) -> None:
        peer = peer_of(connection.muxed_conn.peer_id)
        if peer is None or connection not in self._connections.get(peer, ()):
            return
        wire = connection.muxed_conn.secured_conn
        if not is_relayed(connection):
            self.traffic.wire_sent += wire.sent
            self.traffic.wire_received += wire.received
        self._connections[peer].remove(connection)
        if not self._connections[peer]:
            del self._connections[peer]
            self._publish_event(PeerDown(peer))

    def _publish_event(self, event: PeerEvent) -> None:
        self._event_queues = [each for each in self._event_queues if not each.abandoned]
        for events in self._event_queues:
            events.put(event)

    async def _close(self) -> None:
        # The library closes one connection after another, a fifth of a second each, and closes nothing
        # at all when it is cancelled.
        self._closing = True
        with shielded(_CLOSE_SECONDS):
            async with trio.open_nursery() as nursery:
                for listener in list(self._swarm.listeners.values()):
                    nursery.start_soon(close_quietly, listener)
                for group in self._connections.values():
                    nursery.start_soon(close_all, group)
        with shielded(_CLOSE_SECONDS):
            for muxer in list(self._muxers()):
                await close_quietly(muxer.secured_conn)
