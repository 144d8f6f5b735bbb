"""What we dial because somebody told us to: within what range, and how often in vain.

A peer that introduces others can invent any number of them, at addresses of its choice. So each teller
has a budget of calls that came to nothing, and so has each target; a call that finds the peer costs
nothing. Addresses of one machine, or of one local network, are called only if their teller is there
itself: nobody far away sends us knocking at our own router.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Hashable
from dataclasses import dataclass
from enum import IntEnum

from ...crypto.identity import PeerId
from ...protocol.wire.allowance import Allowance, Budgets
from ...protocol.wire.bounded import Bounded


class Scope(IntEnum):
    """How far away somebody is."""

    MACHINE = 0
    """At a loopback address, or at one of our own."""
    LOCAL = 1
    """At an address that means something in its own network alone: private, link-local, shared."""
    WORLD = 2


@dataclass(frozen=True)
class Word:
    """On whose word we dial, and how far away that one is."""

    teller: PeerId | None
    """None: somebody in our local network, who has not proved any key."""
    scope: Scope


# Calls in vain. An answer names up to 64 peers with up to 8 addresses each. An honest one is about
# peers that were there two minutes ago, and few of them have more than three addresses.
_TELLER = Allowance(256.0, 1.0)
# A house with a dozen members that all went at once; a third party that has nothing to do with us gets
# six calls a minute after that, from however many liars.
_TARGET = Allowance(16.0, 0.1)
# A swarm on one machine, or in one house: hundreds of members at one address.
_NEAR_TARGET = Allowance(64.0, 4.0)
_MAX_ENTRIES = 4096


class Hearsay:
    """The budgets of one node. Times are on any steady clock."""

    def __init__(self) -> None:
        # By teller or target.
        self._budgets: Budgets[Hashable] = Budgets(_MAX_ENTRIES)
        # How near the peers are, or were when they were last connected.
        self._scopes: Bounded[PeerId, Scope] = Bounded(_MAX_ENTRIES)

    def meet(self, peer: PeerId, scope: Scope, *, again: bool) -> None:
        """A connection to a peer has come about; `again`: while there is another."""
        before = self._scopes.get(peer, Scope.WORLD)
        self._scopes[peer] = min(before, scope) if again else scope

    def word_of(self, peer: PeerId) -> Word:
        """What a peer's word is worth: as much as it was near when it was last here."""
        return Word(peer, self._scopes.get(peer, Scope.WORLD))

    def refusal(self, word: Word, host: str, now: float) -> str | None:
        """Why not to dial an IP address on this word; None if it may be dialled, which is charged."""
        scope = scope_of(host)
        if scope < word.scope:
            return "an address of a nearby network, told by somebody who is not there"
        charged = _charged(word, host, scope)
        if any(self._budgets.balance(key, allowance, now) < 1.0 for key, allowance in charged):
            return "too many calls in vain on such a word"
        for key, allowance in charged:
            self._budgets.take(key, allowance, now)
        return None

    def refund(self, word: Word, host: str, now: float) -> None:
        """The call found its peer."""
        for key, allowance in _charged(word, host, scope_of(host)):
            self._budgets.give(key, allowance, now)


def scope_of(host: str) -> Scope:
    """How far away an IP address is. Raises `ValueError` for what is none."""
    address = ipaddress.ip_address(host.partition("%")[0])
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    if address.is_loopback or address.is_unspecified:
        return Scope.MACHINE
    return Scope.WORLD if address.is_global else Scope.LOCAL


def _charged(word: Word, host: str, scope: Scope) -> list[tuple[Hashable, Allowance]]:
    target = _TARGET if scope is Scope.WORLD else _NEAR_TARGET
    return [(word.teller, _TELLER), (household_of(host), target)]


def household_of(host: str) -> str:
    """What counts as one household: an address, or the network that a home gets in IPv6."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if address.version == 6:
        return str(ipaddress.ip_network((address, 64), strict=False))
    return str(address)


def nearer(one: Word | None, other: Word | None) -> Word | None:
    """The one that counts for more of two words that say the same."""
    if one is None or other is None:
        return None
    return min(one, other, key=lambda word: word.scope)
