"""Reasons why a swarm's manifest could not be fetched, each with its own exit code and remedy."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from ...crypto.identity import PeerId
from ...protocol.wire.manifest import SwarmId
from ...protocol.wire.swarm_id import swarm_text
from ..errors import ExitCode, UserError
from ..network.dial import CONNECTION_REFUSED

# Results of requests to connected members whose response did not arrive. The connection was set up with
# small packets; a response with the manifest needs large ones.
_NO_ANSWER = frozenset({"timeout", "closed"})
# Results of requests to members that do not have the manifest yet: a member serves blobs only once it
# has the manifest.
_NO_MANIFEST = frozenset({"refused", "not found"})
# Number of addresses named in an error: more would not fit on a line.
_MAX_NAMED = 3
_BLOCKED = (
    "the routers on both sides block incoming connections: ask a member to forward a port, or join "
    "through a bootstrap peer that relays; `distro-node doctor` tests how this computer is reached"
)
_STOPPED = (
    "no node listens there, and one that has stopped is forgotten after two minutes: ask a member "
    "whether its node runs and which port its router forwards; with --wait the node keeps searching"
)


@dataclass(frozen=True)
class SearchResult:
    """Facts at the end of a failed search."""

    swarm: SwarmId
    connected: frozenset[PeerId]
    """The peers that are connected at the end."""
    asked: Mapping[PeerId, str]
    """The peers asked for the manifest, and the result of each request."""
    known: Mapping[PeerId, Mapping[str, str]]
    """The members that others introduced, with their addresses and the results of dialling them."""


def explain_search(result: SearchResult) -> UserError:
    """Return the error to show for a failed search."""
    # A peer that refuses and that nobody introduced may be a bootstrap peer, which serves no blobs.
    members = {
        peer: outcome
        for peer, outcome in result.asked.items()
        if outcome != "not connected" and (outcome != "refused" or peer in result.known)
    }
    if members:
        return _explain_members(members)
    if result.known.keys() - result.connected:
        return _explain_unreachable(result.known)
    if not result.connected:
        return UserError(
            ExitCode.NO_BOOTSTRAP,
            "every connection broke before the swarm's manifest arrived",
            "check your connection, and start again; with --wait the node keeps searching",
        )
    return UserError(
        ExitCode.UNKNOWN_SWARM,
        f"the peers that answered know no member of the swarm {swarm_text(result.swarm)} that is "
        "online",
        "ask the sender of the link whether the swarm still runs with these bootstrap peers; a "
        "new swarm runs once its founder has joined; with --wait the node keeps searching",
    )


def _explain_members(outcomes: Mapping[PeerId, str]) -> UserError:
    count = _members(len(outcomes))
    if set(outcomes.values()) <= _NO_ANSWER:
        # A member that is overloaded looks the same: nothing larger than a packet arrives in time.
        return UserError(
            ExitCode.LARGE_PACKETS_LOST,
            f"{count} answered, but the swarm's manifest did not arrive: members are overloaded, or "
            "large packets are lost",
            "try again in a minute; if it stays so, a VPN, tunnel or router on the path drops large "
            "packets without reporting it: lower the MTU of this computer's interface (try 1280), or "
            "switch the VPN off",
        )
    if set(outcomes.values()) <= _NO_MANIFEST:
        return UserError(
            ExitCode.NO_DESCRIPTION,
            f"{count} answered, but none has the swarm's manifest yet",
            "the founder has to join first, with the data directory in which the swarm was "
            "created; with --wait the node keeps searching",
        )
    counted = Counter(outcomes.values()).most_common()
    counts_text = ", ".join(f"{count} × {outcome}" for outcome, count in counted)
    return UserError(
        ExitCode.NOT_SERVED,
        f"{count} answered, but none sent the swarm's manifest ({counts_text})",
        "they may be busy: try again in a minute; with --wait the node keeps searching",
    )


def _explain_unreachable(known: Mapping[PeerId, Mapping[str, str]]) -> UserError:
    results = [
        f"{where}: {why}" for addresses in known.values() for where, why in addresses.items()
    ]
    rest = len(results) - _MAX_NAMED
    shown = "; ".join(results[:_MAX_NAMED]) + (f"; and {rest} more" if rest > 0 else "")
    are_known = "is known" if len(known) == 1 else "are known"
    reasons = {why for addresses in known.values() for why in addresses.values()}
    return UserError(
        ExitCode.MEMBERS_UNREACHABLE,
        f"{_members(len(known))} of the swarm {are_known}, but none can be reached "
        f"({shown or 'no address'})",
        _STOPPED if reasons == {CONNECTION_REFUSED} else _BLOCKED,
    )


def _members(count: int) -> str:
    return "1 member" if count == 1 else f"{count} members"
