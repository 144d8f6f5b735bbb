"""From a swarm-id to everything that a member needs: the swarm is found, and what is missing is fetched.

What arrived stays on the disk, so a join that was broken off goes on where it was.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import trio

from ..crypto.hashing import ContentId
from ..crypto.identity import PeerId
from ..protocol.chain.ledger import Ledger, invited
from ..protocol.wire.manifest import Manifest
from ..protocol.wire.messages import JoinRequest
from .content.downloads import Downloads
from .content.manifest_search import Search, read_manifest
from .content.mirrors import MirroredFetcher, Mirrors
from .content.prefetch import Prefetch, data_budget
from .content.replication import Replication
from .errors import ExitCode, UserError
from .network.discovery.introductions import Introducer
from .network.exchange.blobs import BlobFetcher
from .network.exchange.chunks import ChunkFetcher, Fetcher
from .network.network import Network
from .settings import DaemonSettings
from .storage.atomic_write import write_atomically
from .storage.blob_store import BlobStore
from .storage.data_dir import SwarmDir
from .storage.swarm_store import SwarmStore
from .sync import catch_up
from .telemetry.telemetry import Telemetry

# What a node that could start by itself waits for others to turn up.
_COMPANY_SECONDS = 3.0
_POLL_SECONDS = 0.1
_AGAIN_SECONDS = 1.0


@dataclass(frozen=True, kw_only=True)
class Means:
    """What a join works with: how peers are asked, and where what they say is kept."""

    settings: DaemonSettings
    me: PeerId
    network: Network
    introducer: Introducer
    store: BlobStore
    fetcher: BlobFetcher
    directory: SwarmDir
    telemetry: Telemetry

    def connected(self) -> list[PeerId]:
        """Whom one could ask."""
        return list(self.network.connected())

    def downloads(self, fetcher: Fetcher) -> Downloads:
        """Downloads that fetch through `fetcher` and report their progress."""
        chunks = ChunkFetcher(self.network, self.store, fetcher)
        return Downloads(self.store, fetcher, chunks, self.connected, self.telemetry.report)


async def find_manifest(means: Means) -> Manifest:
    """The manifest from disk, or from whoever has it. Raises `UserError`."""
    swarm = means.settings.swarm
    data = await trio.to_thread.run_sync(means.store.get, ContentId(swarm))
    if data is None:
        report = means.telemetry.report
        search = Search(means.network, means.introducer, means.fetcher, report)
        data = await search.manifest(swarm, wait=means.settings.wait)
    manifest = read_manifest(data, swarm)
    await trio.to_thread.run_sync(write_atomically, means.directory.manifest, data)
    return manifest


async def fetch_ledger(
    means: Means, manifest: Manifest, swarm_store: SwarmStore, ticket: bytes
) -> Ledger:
    """The ledger from disk, brought up to what the others have, as far as anybody answers.

    Without anybody there, a node with nothing but the manifest waits, unless it is the founder, who
    starts the swarm; one that took part before goes on from its own disk. Raises `UserError` for a node
    that the swarm would never admit (`EXPELLED`, `NO_TICKET`).
    """
    ledger = await trio.to_thread.run_sync(swarm_store.load_ledger)
    begun = len(ledger) > 0 or manifest.founder == means.me
    if not begun or await _has_company(means):
        while not await catch_up(
            means.network,
            manifest,
            ledger,
            keep=swarm_store.keep,
            written=swarm_store.written,
            report=partial(means.telemetry.report, "fetching the ledger"),
        ):
            if begun:
                break
            means.telemetry.report("waiting for a member of the swarm", 0, 0)
            await trio.sleep(_AGAIN_SECONDS)
    check_standing(ledger, means.me)
    check_invitation(manifest, ledger, means.me, ticket)
    return ledger


async def fetch_data(means: Means, manifest: Manifest) -> Prefetch:
    """What every member needs of the training data; more is fetched while it trains."""
    mirrors = Mirrors(means.settings.mirrors, manifest.data.mirrors)
    fetcher = MirroredFetcher(means.fetcher, means.store, mirrors)
    scarce = None
    if not manifest.data.mirrors:
        # Else whoever leaves could take the last copy of something along.
        scarce = Replication(means.network, means.connected).scarce
    prefetch = Prefetch(
        data=manifest.data,
        store=means.store,
        downloads=means.downloads(fetcher),
        fetcher=fetcher,
        providers=means.connected,
        budget=data_budget(means.settings.max_disk, manifest),
        scarce=scarce,
    )
    await prefetch.begin()
    return prefetch


def check_standing(ledger: Ledger, me: PeerId) -> None:
    """Raise `UserError` (`EXPELLED`) if the swarm has expelled this identity."""
    expelled = ledger.membership(len(ledger)).expelled
    if me in expelled:
        raise UserError(
            ExitCode.EXPELLED,
            f"the swarm has expelled this node's identity in round {expelled[me]}: "
            "it signed two things that contradict each other",
            "the same identity.key runs on two machines, or was restored from a backup; "
            "stop the other one, move the key away and join as a new peer",
        )


def check_invitation(manifest: Manifest, ledger: Ledger, me: PeerId, ticket: bytes) -> None:
    """Raise `UserError` (`NO_TICKET`) if the swarm admits guests alone, and this node is none."""
    if me in ledger.membership(len(ledger)):
        return
    if not invited(me, JoinRequest(len(ledger), ticket), manifest):
        what = "this link has none" if not ticket else "the one in this link is for somebody else"
        raise UserError(
            ExitCode.NO_TICKET,
            f"the swarm {manifest.name!r} admits only whom its founder has invited, by a ticket in "
            f"the link, and {what}",
            "tell the founder your peer id (`distro-node id`), who makes you a link with "
            "`distro-node invite`",
        )


async def _has_company(means: Means) -> bool:
    """Give the network a moment to find somebody; whether it did."""
    deadline = trio.current_time() + _COMPANY_SECONDS
    while trio.current_time() < deadline:
        if any(peer in means.introducer.records for peer in means.network.connected()):
            return True
        await trio.sleep(_POLL_SECONDS)
    return False
