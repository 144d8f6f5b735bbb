"""Limits on dialling addresses that other peers name: the permitted range, and the number of failures.

A peer that introduces others can invent any number of them, at addresses of its choice. So each source
has a budget of failed dials, and so has each target; a successful dial costs nothing. Addresses of this
machine, or of its local network, are dialled only if their source is there itself: no distant peer can
make us probe our own router.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Collection, Hashable
from dataclasses import dataclass
from enum import IntEnum

from ...crypto.identity import PeerId
from ...protocol.util.bounded_dict import BoundedTable
from ...protocol.util.token_bucket import TokenBuckets, TokenRate


class Scope(IntEnum):
    """How far away a peer or an address is."""

    MACHINE = 0
    """A loopback address, or the remote address of a connection from this machine."""
    LOCAL = 1
    """An address that is valid only in its own network (private, link-local, shared), and an address in
    our household: one of our own, or in an IPv6 /64 of ours."""
    WORLD = 2


@dataclass(frozen=True)
class AddressSource:
    """The source of an address to dial, and how far away that source is."""

    peer: PeerId | None
    """None: a machine in our local network, which has not proved any key."""
    scope: Scope


# Failed dials per source. An answer to an introduction names up to 64 peers with up to 8 addresses each.
# If the source is honest, these peers were online two minutes ago, and few of them have more than three
# addresses.
_SOURCE_BUDGET = TokenRate(256.0, 1.0)
# Failed dials per target: enough for a household with a dozen members that all left at once. Beyond
# that, an uninvolved third party gets six dials a minute, however many faulty peers name it.
_TARGET_BUDGET = TokenRate(16.0, 0.1)
# The same for targets on this machine or in its network, where a swarm may have hundreds of members at
# one address.
_NEAR_TARGET_BUDGET = TokenRate(64.0, 4.0)
_MAX_ENTRIES = 4096


class DialPolicy:
    """The dial budgets of one node. Times are on any steady clock."""

    def __init__(self, own_hosts: Callable[[], Collection[str]] = tuple) -> None:
        """`own_hosts` returns the current IP addresses of this machine."""
        self._own_hosts = own_hosts
        # By source, and by target.
        self._budgets: TokenBuckets[Hashable] = TokenBuckets(_MAX_ENTRIES)
        # How near each peer is, or was when it was last connected.
        self._scopes: BoundedTable[PeerId, Scope] = BoundedTable(_MAX_ENTRIES)

    def note_connection(self, peer: PeerId, scope: Scope, *, additional: bool) -> None:
        """Note a new connection to a peer; `additional`: another one is still open."""
        before = self._scopes.get(peer, Scope.WORLD)
        self._scopes[peer] = min(before, scope) if additional else scope

    def source_of(self, peer: PeerId) -> AddressSource:
        """Return a peer as a source, with its distance when it was last connected."""
        return AddressSource(peer, self._scopes.get(peer, Scope.WORLD))

    def scope_of(self, host: str) -> Scope:
        """Return how far away an IP address is. Raises `ValueError` if it is not one."""
        scope = scope_of(host)
        if scope is not Scope.WORLD:
            return scope
        # IPv6 has global addresses in a home, and there are cloud machines whose only address is global.
        # They lead to services that trust their own network.
        own = {household_of(each) for each in self._own_hosts()}
        return Scope.LOCAL if household_of(host) in own else scope

    def refusal(self, source: AddressSource, host: str, now: float) -> str | None:
        """Return why not to dial an IP address from this source; None to dial it, after charging the
        budgets."""
        scope = self.scope_of(host)
        if scope < source.scope:
            return "an address in this network, reported by a peer outside of it"
        return self._take(_charged(source, host, scope), now)

    def lookup_refusal(self, source: AddressSource, now: float) -> str | None:
        """Return why not to look up a name from this source; None to do it, after charging the source's
        budget: a look-up occupies a thread, and name servers of others."""
        return self._take([(source.peer, _SOURCE_BUDGET)], now)

    def refund(self, source: AddressSource, host: str, now: float) -> None:
        """Give back what `refusal` charged, since the dial reached its peer."""
        for key, allowance in _charged(source, host, self.scope_of(host)):
            self._budgets.give(key, allowance, now)

    def refund_lookups(self, source: AddressSource, count: int, now: float) -> None:
        """Give back what `lookup_refusal` charged for `count` names, since a dial reached its peer."""
        for _ in range(count):
            self._budgets.give(source.peer, _SOURCE_BUDGET, now)

    def _take(self, charged: list[tuple[Hashable, TokenRate]], now: float) -> str | None:
        if any(self._budgets.balance(key, allowance, now) < 1.0 for key, allowance in charged):
            return "too many failed dials to addresses from this source"
        for key, allowance in charged:
            self._budgets.take(key, allowance, now)
        return None


def scope_of(host: str) -> Scope:
    """Return how far away an IP address is on any machine. Raises `ValueError` if it is not one."""
    address = ipaddress.ip_address(host.partition("%")[0])
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    if address.is_loopback or address.is_unspecified:
        return Scope.MACHINE
    return Scope.WORLD if address.is_global else Scope.LOCAL


def _charged(source: AddressSource, host: str, scope: Scope) -> list[tuple[Hashable, TokenRate]]:
    target = _TARGET_BUDGET if scope is Scope.WORLD else _NEAR_TARGET_BUDGET
    return [(source.peer, _SOURCE_BUDGET), (household_of(host), target)]


def household_of(host: str | None) -> str:
    """Return the key of a household: an IPv4 address, or the /64 network of a home in IPv6. Peers
    without a known address, such as those behind relays, share the empty key."""
    if host is None:
        return ""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    if address.version == 6:
        return str(ipaddress.ip_network((address, 64), strict=False))
    return str(address)


def nearer(one: AddressSource | None, other: AddressSource | None) -> AddressSource | None:
    """Return the nearer of two sources of the same address; None, our own knowledge, is the nearest."""
    if one is None or other is None:
        return None
    return min(one, other, key=lambda source: source.scope)
