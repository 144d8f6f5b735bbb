"""Multiaddresses: strict parsing, error texts, and the choice of our own addresses to announce.

A listening address is `/ip4|ip6/<address>/tcp/<port>`. An address to dial may also begin with a name
(`dns`, `dns4`, `dns6`) and ends in `/p2p/<peer>`, or it is `/dnsaddr/<name>/p2p/<peer>`. With the suffix
`/p2p-circuit/p2p/<other peer>` it leads to that other peer through the first one.
"""

from __future__ import annotations

import errno
import ipaddress
import socket
from collections.abc import Iterable, Sequence
from contextlib import closing

from libp2p.peer.id import ID
from multiaddr import Multiaddr

from ...crypto.identity import PeerId, peer_from_text, peer_text
from ...protocol.wire.introductions import MAX_ADDRESS_CHARACTERS
from ..util.operating_system import reuse_address
from .errors import AddressMissing, BadAddress, PortInUse
from .interfaces import reachable_hosts

# How many addresses a peer announces; more than a machine with a few interfaces needs.
MAX_ADDRESSES = 8

# The protobuf of an Ed25519 public key inside an identity multihash, up to the key itself.
_ID_PREFIX = bytes.fromhex("002408011220")


def peer_of(identifier: ID) -> PeerId | None:
    """Return the peer of a libp2p id, None if its key is not an Ed25519 key."""
    data = identifier.to_bytes()
    if len(data) != len(_ID_PREFIX) + 32 or not data.startswith(_ID_PREFIX):
        return None
    return PeerId(data[len(_ID_PREFIX) :])


def id_of(peer: PeerId) -> ID:
    """Return the libp2p id of a peer."""
    return ID(_ID_PREFIX + peer)


def parse_listen(text: str) -> Multiaddr:
    """Parse an address to listen on. Raises `BadAddress` if it is invalid."""
    address, names = _parse(text)
    if len(names) != 2 or names[0] not in ("ip4", "ip6") or names[1] != "tcp":
        raise BadAddress(text, "expected /ip4/<address>/tcp/<port> or /ip6/<address>/tcp/<port>")
    return address


def parse_announce(text: str) -> Multiaddr:
    """Parse an address to announce; it may begin with a name. Raises `BadAddress` if it is invalid."""
    address, names = _parse(text)
    if len(names) != 2 or names[0] not in _HOSTS or names[1] != "tcp":
        raise BadAddress(text, "expected /ip4/<address>/tcp/<port> or /dns/<name>/tcp/<port>")
    _, host, port = _parts(address)
    if names[0] in ("ip4", "ip6") and ipaddress.ip_address(host).is_unspecified:
        raise BadAddress(text, "it stands for every address of a machine, and nobody can dial it")
    if port == 0:
        raise BadAddress(text, "port 0 stands for any free one, and nobody can dial it")
    return address


def parse_dial(text: str) -> tuple[Multiaddr, PeerId]:
    """Parse an address to dial; return it with the peer that must answer there. Raises `BadAddress` if
    it is invalid."""
    address, names = _parse(text)
    if "p2p" not in names:
        raise BadAddress(text, "it does not name the peer: append /p2p/<peer id>")
    direct = len(names) == 3 and names[0] in _HOSTS and names[1:] == ["tcp", "p2p"]
    if not direct and names != ["dnsaddr", "p2p"]:
        raise BadAddress(text, "expected /ip4/<address>/tcp/<port>/p2p/<peer id>")
    try:
        peer = peer_from_text(str(address.value_for_protocol("p2p")))
    except ValueError as error:
        raise BadAddress(text, str(error)) from None
    return address, peer


def split_circuit(text: str) -> tuple[str, PeerId] | None:
    """Return the relay's own address and the peer reached through it; None if this is not a circuit
    address.

    Raises `BadAddress` if the peer's id is invalid.
    """
    relay, circuit, peer = text.partition(_CIRCUIT)
    if not circuit:
        return None
    try:
        return relay, peer_from_text(peer)
    except ValueError as error:
        raise BadAddress(text, str(error)) from None


def through_relay(text: str) -> bool:
    """Whether an address leads through a relay."""
    return _CIRCUIT in text


def circuit_through(relay: str, peer: PeerId) -> str:
    """Return the address of a peer through a relay that holds a reservation for it."""
    return f"{relay}{_CIRCUIT}{peer_text(peer)}"


def advertised(bound: Sequence[Multiaddr], announce: Sequence[Multiaddr]) -> list[Multiaddr]:
    """Return the addresses others should dial: the announced ones, else the bound sockets' own.

    A socket bound to all interfaces reports 0.0.0.0 or ::, which no other machine can dial, so the
    addresses of the interfaces replace it. Loopback is announced only if there is nothing else, and a
    link-local address never.
    """
    if announce:
        return list(announce[:MAX_ADDRESSES])
    named: list[Multiaddr] = []
    loopback: list[Multiaddr] = []
    everywhere: dict[str, list[int]] = {}
    for address in bound:
        family, host, port = _parts(address)
        ip = ipaddress.ip_address(host)
        if ip.is_unspecified:
            everywhere.setdefault(family, []).append(port)
        elif ip.is_loopback:
            loopback.append(address)
        elif not ip.is_link_local:
            named.append(address)
    if everywhere:
        named += [
            multiaddress(host, port)
            for host in reachable_hosts()
            for port in everywhere.get(_family(host), ())
        ]
        loopback += [
            multiaddress("::1" if family == "ip6" else "127.0.0.1", port)
            for family, ports in everywhere.items()
            for port in ports
        ]
    return (list(dict.fromkeys(named)) or loopback)[:MAX_ADDRESSES]


def ip_address_from_peer(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    """Return the IP address that a peer names. Raises `ValueError` if it is none, or has a scope.

    A scope (`fe80::1%eth0`) is the name of an interface of the peer's machine, and has no multiaddress.
    """
    if "%" in text:
        raise ValueError("an address with a scope")
    return ipaddress.ip_address(text)


def multiaddress(host: str, port: int) -> Multiaddr:
    """Return the multiaddress of a TCP port at an IP address."""
    return Multiaddr(f"/{_family(host)}/{host}/tcp/{port}")


def versions_of(addresses: Iterable[str]) -> set[int]:
    """Return the IP versions in which the addresses that use no relay may be dialled."""
    found: set[int] = set()
    for text in addresses:
        if not through_relay(text):
            found |= _VERSIONS.get(text.split("/", 2)[1], set())
    return found


def endpoint(address: Multiaddr) -> tuple[str, int]:
    """Return the host and the port of a listening address."""
    _, host, port = _parts(address)
    return host, port


def check_free(address: Multiaddr) -> None:
    """Check that `address` can be listened on; libp2p itself silently shares a port with another
    program.

    Raises `PortInUse` if another program listens there, `AddressMissing` if this machine does not have
    the address, and `BadAddress` if it cannot be used for another reason.
    """
    _, host, port = _parts(address)
    kind = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        with closing(socket.socket(kind, socket.SOCK_STREAM)) as probe:
            # Connections of an earlier run in TIME_WAIT do not count as in use.
            reuse_address(probe)
            if kind == socket.AF_INET6:
                # Nor does an IPv4 socket at the same port count: see `ip_families`.
                probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            probe.bind((host, port))
            probe.listen(1)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise PortInUse(str(address)) from None
        if error.errno == errno.EADDRNOTAVAIL:
            raise AddressMissing(str(address)) from None
        if error.errno in (errno.EACCES, errno.EPERM):
            why = "no permission to listen there (ports below 1024 need privileges)"
            raise BadAddress(str(address), why) from None
        raise BadAddress(str(address), error.strerror or str(error)) from None


_CIRCUIT = "/p2p-circuit/p2p/"
_HOSTS = ("ip4", "ip6", "dns", "dns4", "dns6")
_VERSIONS = {"ip4": {4}, "ip6": {6}, "dns4": {4}, "dns6": {6}, "dns": {4, 6}, "dnsaddr": {4, 6}}


def _parts(address: Multiaddr) -> tuple[str, str, int]:
    family = next(iter(address.protocols())).name
    host, port = address.value_for_protocol(family), address.value_for_protocol("tcp")
    return family, str(host), int(str(port))


def _parse(text: str) -> tuple[Multiaddr, list[str]]:
    if len(text) > MAX_ADDRESS_CHARACTERS:
        raise BadAddress(text[:40] + "…", f"longer than {MAX_ADDRESS_CHARACTERS} characters")
    try:
        address = Multiaddr(text)
        names = [protocol.name for protocol in address.protocols()]
    except Exception as error:
        # The library raises a dozen types here, some of them plain ValueError or KeyError.
        raise BadAddress(text, f"not a multiaddress ({error})") from None
    return address, names


def _family(host: str) -> str:
    return "ip6" if ":" in host else "ip4"
