"""Reading the list of public swarms: from the bootstrap peers' answers to swarms with checked manifests.

A bootstrap peer can leave swarms out, and show an entry for an hour after it was written. It cannot
change what a manifest states. Members, speed and progress are what publishers report, and anybody can
publish: the median is shown, with the number of reports.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median_low
from typing import Any

import trio

from ...crypto.identity import PeerId
from ...protocol.wire.errors import ProtocolError
from ...protocol.wire.manifest import Manifest, OtherVersion, SwarmId, decode_manifest
from ...protocol.wire.swarm_id import Invite, invite_text, swarm_text
from ..errors import ExitCode, UserError
from ..network.ephemeral_network import open_ephemeral_network
from ..network.errors import BadAddress, DialError, RequestError
from ..network.network import Network
from ..util.sanitize import harmless
from .entries import (
    ENTRY_CLOCK_SECONDS,
    LIST_PROTOCOL,
    MANIFEST_PROTOCOL,
    MAX_LISTED_MANIFEST_BYTES,
    MAX_LISTING_BYTES,
    Entry,
    ListedSwarm,
    SwarmListing,
    check_public,
    decode_listing,
    open_entry,
)
from .swarm_list import SwarmList

_FetchManifest = Callable[[SwarmId], Awaitable[bytes | None]]

_DIAL_SECONDS = 10.0
# The failure of a bootstrap peer that keeps no list.
_LISTS_NONE = "it lists no swarms"
_REQUEST_TIMEOUT_SECONDS = 30.0
# For all manifests of one bootstrap peer.
_MANIFESTS_SECONDS = 60.0


@dataclass(frozen=True, kw_only=True)
class PublicSwarm:
    """A listed swarm."""

    manifest: Manifest
    entries: tuple[Entry, ...]
    """The newest entry of each publisher; at least one."""
    bootstrap: tuple[str, ...]
    """The addresses of the bootstrap peers that list it."""

    @property
    def swarm(self) -> SwarmId:
        """The swarm-id."""
        return self.manifest.swarm

    @property
    def members(self) -> int:
        """The number of members that the publishers report."""
        return median_low(entry.members for entry in self.entries)

    @property
    def rounds_done(self) -> int:
        """The number of training rounds done that the publishers report."""
        done, last = (
            median_low(entry.rounds_done for entry in self.entries),
            self.manifest.last_round,
        )
        return done if last is None else min(done, last)

    @property
    def tokens_per_second(self) -> int | None:
        """The swarm's speed that the publishers report; None: none knows it yet."""
        known = [e.tokens_per_second for e in self.entries if e.tokens_per_second is not None]
        return median_low(known) if known else None

    @property
    def link(self) -> str:
        """The link to the swarm, without a ticket."""
        return invite_text(Invite(swarm=self.swarm, bootstrap=self.bootstrap))

    def plain(self) -> dict[str, Any]:
        """Return the swarm as a table for JSON. The name is any stranger's text."""
        manifest = self.manifest
        return {
            "name": manifest.name,
            "swarm": swarm_text(self.swarm),
            "invite": self.link,
            "task": manifest.task,
            "parameters": manifest.elements,
            "policy": manifest.admission.policy,
            "private_data": manifest.data.private is not None,
            "reports": len(self.entries),
            "members": self.members,
            "tokens_per_second": self.tokens_per_second,
            "rounds_done": self.rounds_done,
            "last_round": manifest.last_round,
        }


@dataclass
class Directory:
    """The answers of some bootstrap peers."""

    swarms: list[PublicSwarm] = field(default_factory=list)
    """Those that most publishers report come first."""
    failures: dict[str, str] = field(default_factory=dict)
    """The reason for each address that gave no list."""
    other_versions: int = 0
    """Number of swarms of another protocol version, which this program cannot describe."""
    unusable: int = 0
    """Number of swarms left out because their manifest or entries are missing, invalid or too old."""


def shown_rows(directory: Directory) -> list[dict[str, Any]]:
    """Return the swarms as tables for a page: without characters that a terminal obeys."""
    rows = (each.plain() for each in directory.swarms)
    return [{**row, "name": harmless(row["name"])} for row in rows]


async def read_directory(
    addresses: Sequence[str], now: float, listen: tuple[str, ...] = ()
) -> Directory:
    """Ask the bootstrap peers at these addresses for their lists. `now` is the wall clock.

    Raises `UserError`: `NO_BOOTSTRAP` if no address is given or none gave a list, and those of
    `open_ephemeral_network`.
    """
    if not addresses:
        raise UserError(
            ExitCode.NO_BOOTSTRAP,
            "there is no bootstrap peer to ask for a list of swarms",
            "name one that lists swarms with --bootstrap",
        )
    reader = DirectoryReader(now)
    async with (
        open_ephemeral_network(addresses, listen) as (network, _),
        trio.open_nursery() as each,
    ):
        for address in addresses:
            each.start_soon(reader.ask, network, address)
    found = reader.directory()
    if len(found.failures) == len(set(addresses)):
        reasons = "; ".join(f"{address}: {why}" for address, why in found.failures.items())
        answered = set(found.failures.values()) == {_LISTS_NONE}
        raise UserError(
            ExitCode.NO_BOOTSTRAP,
            f"no bootstrap peer gave a list of swarms ({reasons})",
            "name a bootstrap peer that runs with --list-swarms, or ask for the invite link of a swarm"
            if answered
            else "check your connection and the addresses, or name another one with --bootstrap",
        )
    return found


class DirectoryReader:
    """What was read so far."""

    def __init__(self, now: float, known: Mapping[SwarmId, Manifest] | None = None) -> None:
        """`now` is the wall clock; the manifests in `known` are not fetched again."""
        self._now = now
        self._failures: dict[str, str] = {}
        self._manifests: dict[SwarmId, Manifest] = dict(known or {})
        self._entries: dict[SwarmId, dict[PeerId, Entry]] = defaultdict(dict)
        self._listed_by: dict[SwarmId, list[str]] = defaultdict(list)
        self._other_versions: set[SwarmId] = set()
        self._unusable: set[SwarmId] = set()

    def directory(self) -> Directory:
        """Return what was read."""
        swarms = [
            PublicSwarm(
                manifest=manifest,
                entries=tuple(self._entries[swarm].values()),
                bootstrap=tuple(sorted(self._listed_by[swarm])),
            )
            for swarm, manifest in self._manifests.items()
            if swarm in self._entries
        ]
        swarms.sort(key=lambda each: (-len(each.entries), each.swarm))
        return Directory(
            swarms=swarms,
            failures=self._failures,
            other_versions=len(self._other_versions),
            unusable=len(self._unusable - self._manifests.keys() - self._other_versions),
        )

    async def ask(self, network: Network, address: str) -> None:
        """Read the list of the bootstrap peer at an address."""
        try:
            peer = await network.connect(address, timeout=_DIAL_SECONDS)
            data = await network.request(
                peer,
                LIST_PROTOCOL,
                b"",
                max_response=MAX_LISTING_BYTES,
                timeout=_REQUEST_TIMEOUT_SECONDS,
            )
            listing = decode_listing(data)
        except (DialError, BadAddress) as error:
            self._failures[address] = error.reason if isinstance(error, DialError) else error.why
            return
        except RequestError as error:
            refused = error.reason == "refused"
            self._failures[address] = _LISTS_NONE if refused else error.reason
            return
        except ProtocolError as error:
            self._failures[address] = f"its list is invalid: {error}"
            return

        async def fetch(swarm: SwarmId) -> bytes | None:
            try:
                return await network.request(
                    peer,
                    MANIFEST_PROTOCOL,
                    swarm,
                    max_response=MAX_LISTED_MANIFEST_BYTES,
                    timeout=_REQUEST_TIMEOUT_SECONDS,
                )
            except RequestError:
                return None

        with trio.move_on_after(_MANIFESTS_SECONDS):
            await self._take_listing(listing, (address,), fetch)

    async def take_own(self, swarms: SwarmList, addresses: Sequence[str]) -> None:
        """Read the list of this node itself, a bootstrap peer at these addresses."""

        async def look_up(swarm: SwarmId) -> bytes | None:
            return swarms.manifest(swarm, trio.current_time())

        await self._take_listing(swarms.listing(trio.current_time()), addresses, look_up)

    async def _take_listing(
        self, listing: SwarmListing, addresses: Sequence[str], fetch: _FetchManifest
    ) -> None:
        for listed in listing.swarms:
            await self._take(listed, addresses, fetch)

    async def _take(
        self, listed: ListedSwarm, addresses: Sequence[str], fetch: _FetchManifest
    ) -> None:
        swarm = SwarmId(listed.swarm)
        opened = (self._fresh(data, swarm) for data in listed.entries)
        entries = [entry for entry in opened if entry is not None]
        if not entries or not await self._know(swarm, fetch):
            self._unusable.add(swarm)
            return
        for entry in entries:
            known = self._entries[swarm].get(entry.publisher)
            if known is None or known.number < entry.number:
                self._entries[swarm][entry.publisher] = entry
        self._listed_by[swarm] += (each for each in addresses if each not in self._listed_by[swarm])

    def _fresh(self, sealed: bytes, swarm: SwarmId) -> Entry | None:
        """Return an entry if it is valid and was written a short while ago."""
        try:
            entry = open_entry(sealed, swarm)
        except ProtocolError:
            return None
        return entry if abs(self._now - entry.written) <= ENTRY_CLOCK_SECONDS else None

    async def _know(self, swarm: SwarmId, fetch: _FetchManifest) -> bool:
        """Fetch and check a swarm's manifest if it is not known; return whether it is now."""
        if swarm in self._manifests:
            return True
        if swarm in self._other_versions:
            return False
        data = await fetch(swarm)
        if data is None:
            return False
        try:
            self._manifests[swarm] = await trio.to_thread.run_sync(_public_manifest, data, swarm)
        except OtherVersion:
            self._other_versions.add(swarm)
            return False
        except ProtocolError:
            return False
        return True


def _public_manifest(data: bytes, swarm: SwarmId) -> Manifest:
    check_public(data, swarm)
    return decode_manifest(data, swarm)
