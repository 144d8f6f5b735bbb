"""Seeding a swarm's result without being a member: an option of observers and bootstrap peers.

A seeder keeps everything needed to use the parameters (the records, the newest snapshot that they
certify, the tokenizer, the held-out text and, if the swarm trains adapters, the base weights) and serves
it to any peer, so a run's result stays available after its last member has left. It keeps no updates and
no training data: peers that still train get those from members.
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
# Wait before trying again after the disk was full.
_DISK_FULL_WAIT_SECONDS = 60.0


class ResultSeeder:
    """Keeps and serves the result of one swarm."""

    def __init__(
        self,
        context: JoinContext,
        manifest: Manifest,
        store: SwarmStore,
        ledger: Ledger,
        *,
        shared: bool,
    ) -> None:
        """`ledger`: the swarm's records so far; `shared`: as in `serve_ledger`."""
        self._context = context
        self._manifest = manifest
        self.update_ledger(ledger)
        self._snapshots = Snapshots(
            manifest=manifest,
            store=context.store,
            swarm_store=store,
            downloads=context.downloads(context.fetcher),
            ledger=lambda: self._ledger,
            keeps_for_readers=False,
        )
        # The snapshot kept here; None for the initial one, which the manifest names.
        self._kept: SnapshotEntry | None = None
        self.round: int | None = None
        """The parameters kept here are those after this round; None if there are none yet."""
        serve_blobs(context.network, context.store)
        serve_chunks(context.network, context.store)
        serve_ledger(context.network, manifest, lambda: self._ledger, store.written, shared=shared)

    def update_ledger(self, ledger: Ledger) -> None:
        """From now on serve, and follow, the records in `ledger`. It is copied, because another thread
        may extend it afterwards."""
        self._ledger = ledger.truncated(len(ledger))

    async def run(self) -> None:
        """Keep fetching what is missing, until cancelled. Return early, with an error in the log, if the
        base model is unusable or the disk limit too low; what is here is still served."""
        prepared = False
        while True:
            try:
                if not prepared:
                    await fetch_data(self._context, self._manifest)
                    await fetch_base(self._context, self._manifest)
                    prepared = True
                await self._fetch_newest()
            except DiskFull as error:
                _log.warning("the run's result cannot be stored: %s", error)
                await trio.sleep(_DISK_FULL_WAIT_SECONDS)
            except UserError as error:
                _log.error("the run's result cannot be stored: %s", error.problem)
                return
            await trio.sleep(_CHECK_INTERVAL_SECONDS)

    async def _fetch_newest(self) -> None:
        """Fetch the newest snapshot unless it is already here."""
        if self.round is not None and self._ledger.snapshot == self._kept:
            return
        here = await self._snapshots.best(certified_only=True)
        self._context.telemetry.progress = None
        # The initial snapshot, which the founder provided, has round -1.
        self._kept, self.round = self._snapshots.entry(here), max(0, here.round)
        _log.info(
            "the parameters after round %d are stored here, and served on request", self.round
        )
