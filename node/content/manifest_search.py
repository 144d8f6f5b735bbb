"""Search for a manifest: a newcomer has the swarm-id, some addresses, and no manifest yet.

If no peer can be reached, or none knows the swarm, the search fails. With `wait` it goes on instead, for
nodes that start at boot or before the swarm's founder.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

import trio

from ...crypto.hashing import ContentId
from ...crypto.identity import PeerId
from ...protocol.wire.errors import ProtocolError
from ...protocol.wire.manifest import (
    MAX_MANIFEST_BYTES,
    Manifest,
    OtherVersion,
    SwarmId,
    decode_manifest,
)
from ..errors import ExitCode, UserError
from ..network.discovery.introductions import Introducer, NoBootstrap
from ..network.exchange.blobs import BlobFetcher, FetchFailed
from ..util.progress import Progress, ReportProgress
from ..util.protocol_version import explain_version, explain_versions
from .search_failure import SearchResult, explain_search

_log = logging.getLogger(__name__)

# How long a newcomer tries to reach a first peer, and then to fetch the manifest, before it reports an
# error.
_CONTACT_SECONDS = 30.0
_FETCH_SECONDS = 30.0
# Pause of a waiting node before it asks again (it dials the addresses all the time), and the shortest
# time between its log messages about that.
_RETRY_SECONDS = 5.0
_LOG_INTERVAL_SECONDS = 60.0


class ManifestSearch:
    """Search that asks all reachable peers for a manifest."""

    def __init__(
        self,
        connected: Callable[[], Sequence[PeerId]],
        introducer: Introducer,
        fetcher: BlobFetcher,
        report: ReportProgress,
    ) -> None:
        self._connected = connected
        self._introducer = introducer
        self._fetcher = fetcher
        self._report = report

    async def manifest(self, swarm: SwarmId, *, wait: bool) -> bytes:
        """Return the bytes of the manifest; they hash to the swarm-id.

        Raises `UserError` (`NO_BOOTSTRAP`, `VERSION`, and the codes of `search_failure`), unless `wait`
        makes it search for as long as it takes.
        """
        introducer = self._introducer
        lan_only = introducer.waits_for_suggestions and not introducer.has_peers_to_dial
        where = " in the local network, because no bootstrap peer is known" if lan_only else ""
        self._report(Progress(what=f"searching for the swarm{where}"))
        logged_at = float("-inf")
        while True:
            try:
                await self._first_contact()
                return await self._ask(swarm)
            except UserError as error:
                if not wait:
                    raise
                if trio.current_time() - logged_at >= _LOG_INTERVAL_SECONDS:
                    logged_at = trio.current_time()
                    _log.warning("%s; still searching", error.problem)
            self._report(Progress(what="waiting for a peer that knows the swarm", kind="waiting"))
            await trio.sleep(_RETRY_SECONDS)

    async def _ask(self, swarm: SwarmId) -> bytes:
        try:
            return await self._fetcher.fetch(
                ContentId(swarm),
                max_bytes=MAX_MANIFEST_BYTES,
                providers=self._connected,
                timeout=_FETCH_SECONDS,
            )
        except FetchFailed as error:
            other = explain_versions(await self._introducer.versions())
            raise other or explain_search(self._result(swarm, error)) from None

    def _result(self, swarm: SwarmId, failure: FetchFailed) -> SearchResult:
        introducer = self._introducer
        return SearchResult(
            swarm=swarm,
            connected=frozenset(self._connected()),
            asked=failure.outcomes,
            known={peer: introducer.outcomes(peer) for peer in introducer.known.records},
        )

    async def _first_contact(self) -> None:
        try:
            await self._introducer.first_contact(_CONTACT_SECONDS)
        except NoBootstrap as error:
            other = explain_versions(await self._introducer.versions())
            if other is not None:
                raise other from None
            tried = "; ".join(f"{address}: {why}" for address, why in error.outcomes.items())
            if not tried:
                raise UserError(
                    ExitCode.NO_BOOTSTRAP,
                    "there is no peer to ask about this swarm",
                    "join with an invite link that names a bootstrap peer, or give its address "
                    "with --bootstrap",
                ) from None
            raise UserError(
                ExitCode.NO_BOOTSTRAP,
                f"no bootstrap peer can be reached (tried {tried})",
                "check your connection and the addresses, or ask for a newer invite link",
            ) from None


def read_manifest(data: bytes, swarm: SwarmId) -> Manifest:
    """Decode the manifest of `swarm`. Raises `UserError`: `VERSION` for another protocol version,
    `MANIFEST` if it is invalid."""
    try:
        return decode_manifest(data, swarm)
    except OtherVersion as error:
        raise explain_version(error) from None
    except ProtocolError as error:
        raise UserError(
            ExitCode.MANIFEST,
            f"the swarm's manifest cannot be used: {error}",
            "the founder has to create the swarm again",
        ) from None
