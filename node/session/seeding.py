"""Hosting a swarm's result without being a member: an option of observers and bootstrap peers.

A host keeps everything needed to use the parameters (the records, the newest snapshot that they
certify, the tokenizer, the held-out text, the base weights below adapters) and serves it to any peer, so
a run's result stays available after its last member has left. It keeps no updates and no training
data: peers that still train get those from members.
"""

from __future__ import annotations

import logging

import trio

from ...protocol.chain.ledger import Ledger
from ...protocol.wire.manifest import Manifest
from ...protocol.wire.messages import SnapshotEntry
from ..content.snapshots import Snapshots
from ..errors import UserError
from ..network.exchange.blobs import serve_blobs
from ..network.exchange.chunks import serve_chunks
from ..storage.blob_files import DiskFull
from ..storage.swarm_store import SwarmStore
from .join import JoinContext, fetch_base, fetch_data
from .sync import serve_ledger

_log = logging.getLogger(__name__)

_CHECK_INTERVAL_SECONDS = 3.0
# Short enough to notice space freed on a full disk.
_FULL_SECONDS = 60.0


class ResultSeeder:
    """Keeps and serves the result of one swarm."""

    def __init__(
        self,
        means: JoinContext,
        manifest: Manifest,
        store: SwarmStore,
        ledger: Ledger,
        *,
        shared: bool,
    ) -> None:
        """`ledger`: the swarm's records; `shared`: as in `serve_ledger`."""
        self._means = means
        self._manifest = manifest
        self.tell(ledger)
        self._snapshots = Snapshots(
            manifest=manifest,
            store=means.store,
            swarm_store=store,
            downloads=means.downloads(means.fetcher),
            ledger=lambda: self._ledger,
            holds=False,
        )
        # The snapshot kept here; None for the one that the manifest names.
        self._kept: SnapshotEntry | None = None
        self.round: int | None = None
        """The round after which the parameters kept here were taken; None: there are none yet."""
        serve_blobs(means.network, means.store)
        serve_chunks(means.network, means.store)
        serve_ledger(means.network, manifest, lambda: self._ledger, store.written, shared=shared)

    def tell(self, ledger: Ledger) -> None:
        """Copy the swarm's records. Another thread may extend the ledger afterwards."""
        self._ledger = ledger.truncated(len(ledger))

    async def run(self) -> None:
        """Fetch what is missing, for ever. An unusable base model is logged, and nothing more is
        fetched."""
        prepared = False
        while True:
            try:
                if not prepared:
                    await fetch_data(self._means, self._manifest)
                    await fetch_base(self._means, self._manifest)
                    prepared = True
                await self._follow()
            except DiskFull as error:
                _log.warning("the run's result cannot be stored: %s", error)
                await trio.sleep(_FULL_SECONDS)
            except UserError as error:
                _log.error("the run's result cannot be stored: %s", error.problem)
                return
            await trio.sleep(_CHECK_INTERVAL_SECONDS)

    async def _follow(self) -> None:
        """Fetch the newest snapshot unless it is already here."""
        if self.round is not None and self._ledger.snapshot == self._kept:
            return
        here = await self._snapshots.best(certified_only=True)
        self._means.telemetry.progress = None
        # Before the first snapshot, these are the parameters that the founder provided.
        self._kept, self.round = self._snapshots.entry(here), max(0, here.round)
        _log.info(
            "the parameters after round %d are stored here, and served on request", self.round
        )
