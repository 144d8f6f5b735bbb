"""Resolving a swarm's name to its id: names are not unique, so an ambiguous one is refused."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Mapping

from ...protocol.wire.manifest import Manifest, SwarmId
from ...protocol.wire.swarm_id import Invite, swarm_text
from ..errors import ExitCode, UserError
from .directory import PublicSwarm


def same_name(one: str, other: str) -> bool:
    """Return whether two names differ at most in case, blanks and the encoding of characters.

    Letters of different alphabets that look alike differ: a person who types a name means the letters
    typed.
    """
    return _plain(one) == _plain(other)


def joined_before(name: str, stored: Iterable[Manifest]) -> SwarmId | None:
    """Return the swarm of this name among those stored here; None: there is none. It goes before every
    list, so that the same command leads to the same swarm. Raises `UserError` if there are several."""
    found = [manifest.swarm for manifest in stored if same_name(name, manifest.name)]
    if len(found) > 1:
        raise _ambiguous(name, found, "are stored here")
    return found[0] if found else None


def listed_swarm(name: str, swarms: Iterable[PublicSwarm]) -> Invite:
    """Return the link to the listed swarm of this name. Raises `UserError` (`UNKNOWN_SWARM`, or `USAGE`
    if several swarms have the name)."""
    found: Mapping[SwarmId, PublicSwarm] = {
        each.swarm: each for each in swarms if same_name(name, each.manifest.name)
    }
    if not found:
        raise UserError(
            ExitCode.UNKNOWN_SWARM,
            f"no public swarm with the name {name!r} is listed",
            "see the names with `distro-node swarms`, or give a swarm-id or an invite link",
        )
    if len(found) > 1:
        raise _ambiguous(name, found, "are listed")
    (only,) = found.values()
    return Invite(swarm=only.swarm, bootstrap=only.bootstrap)


def ambiguous_names(swarms: Iterable[PublicSwarm]) -> list[str]:
    """Return one spelling of each name that several of these swarms have."""
    spellings: dict[str, list[str]] = {}
    for each in swarms:
        spellings.setdefault(_plain(each.manifest.name), []).append(each.manifest.name)
    return sorted(group[0] for group in spellings.values() if len(group) > 1)


def _ambiguous(name: str, swarms: Iterable[SwarmId], where: str) -> UserError:
    ids = [swarm_text(swarm) for swarm in swarms]
    return UserError(
        ExitCode.USAGE,
        f"{len(ids)} swarms with the name {name!r} {where}, and anybody can use a name twice",
        f"ask the founder for the id, and give it instead of the name: {', '.join(sorted(ids))}",
    )


def _plain(name: str) -> str:
    return "".join(unicodedata.normalize("NFKC", name).casefold().split())
