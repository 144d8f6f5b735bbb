"""The daemon: one node in one swarm, from the start of the process to its polite end.

It opens the network, finds the swarm, brings what is missing to the disk and then runs the member; a
pause ends that stay in the swarm, and another one begins after it. All
that a user can mend ends in a `UserError`; whatever was stored stays good, and the same command resumes.
"""

from __future__ import annotations

import base64
import binascii
import logging
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import trio

from .. import __version__
from ..crypto.hashing import ContentId
from ..crypto.identity import Identity, PeerId, peer_text
from ..protocol.chain.ledger import Ledger
from ..protocol.wire.manifest import Manifest
from ..protocol.wire.swarm_id import swarm_text
from .content.downloads import Downloads
from .content.manifest_search import Search, read_manifest
from .content.mirrors import MirroredFetcher, Mirrors
from .content.prefetch import Prefetch, data_budget, upcoming_samples
from .content.replication import Replication
from .content.snapshots import HELD, Snapshots
from .control.shifts import Shifts
from .control.supervisor import Supervisor
from .errors import ExitCode, UserError
from .network.addresses import parse_dial
from .network.circuit_relay import MEMBER_CIRCUITS
from .network.discovery.introductions import Introducer
from .network.discovery.mdns import LocalDiscovery
from .network.errors import BadAddress, PortInUse
from .network.exchange.blobs import BlobFetcher, serve_blobs
from .network.exchange.chunks import ChunkFetcher, Fetcher, serve_chunks
from .network.exchange.relays import Relays
from .network.exchange.update_relay import UpdateRelay
from .network.explain import explain_network
from .network.nat.reach import Reach
from .network.network import Network, NetworkSettings, open_network
from .network.scopes import open_scope
from .runner import Runner
from .settings import DaemonSettings
from .storage.blob_store import BlobStore
from .storage.data_dir import DataDir, open_identity
from .storage.swarm_store import SwarmStore
from .sync import catch_up
from .telemetry.metrics import Follower, Metrics
from .telemetry.telemetry import Telemetry
from .trainer.client import TrainerSpec
from .trainer.trainer_supervisor import TrainerSupervisor

_log = logging.getLogger(__name__)

# What it waits for members in its own network if nobody else answers.
_LOCAL_SECONDS = 10.0
# What a polite leave waits for the others to take note.
_LEAVE_SECONDS = 5.0
_EVALUATE_ROUNDS = 10
# What a node that could start by itself waits for others to turn up.
_COMPANY_SECONDS = 3.0
_POLL_SECONDS = 0.1
_TICKET_BYTES = 64
_METRICS_SECONDS = 1.0


async def run_daemon(settings: DaemonSettings) -> None:
    """Take part in a swarm until told to leave. Raises `UserError`."""
    data = DataDir(settings.data_dir)
    data.create()
    with data.lock():
        identity = open_identity(data, settings.passphrase)
        metrics = Metrics(version=__version__)
        telemetry = Telemetry(identity.peer, metrics)
        page = metrics.serve(settings.metrics_address) if settings.metrics_address else None
        facts = {
            "version": __version__,
            "peer": peer_text(identity.peer),
            "swarm": swarm_text(settings.swarm),
            "metrics": page.url if page is not None else None,
            "until_round": settings.until_round,
        }
        supervisor = Supervisor(
            socket=data.socket,
            shifts=Shifts(settings.active),
            telemetry=telemetry,
            facts=facts,
            screen=settings.screen,
        )
        try:
            async with supervisor.open():
                while await supervisor.next_stay():
                    async with _network(settings, identity) as network:
                        daemon = _Daemon(
                            settings, data, identity, network, metrics, telemetry, facts
                        )
                        with supervisor.serving(daemon):
                            await daemon.run()
                    if not daemon.told_to_leave:
                        break
        finally:
            if page is not None:
                page.close()


@asynccontextmanager
async def _network(settings: DaemonSettings, identity: Identity) -> AsyncIterator[Network]:
    listen = settings.listen or NetworkSettings().listen
    try:
        for address in settings.bootstrap:
            parse_dial(address)
        network_settings = NetworkSettings(
            listen=listen,
            announce=settings.announce,
            max_upload=settings.max_upload,
            max_download=settings.max_download,
            carry=MEMBER_CIRCUITS,
        )
        async with open_network(network_settings, identity) as network:
            yield network
    except (BadAddress, PortInUse) as error:
        raise explain_network(error) from None


class _Daemon:
    def __init__(
        self,
        settings: DaemonSettings,
        data: DataDir,
        identity: Identity,
        network: Network,
        metrics: Metrics,
        telemetry: Telemetry,
        facts: Mapping[str, Any],
    ) -> None:
        self._settings = settings
        self._ticket = _ticket(settings.ticket)
        self._data = data
        self._directory = data.swarm(settings.swarm)
        self._identity = identity
        self._network = network
        self._metrics = metrics
        self._store = BlobStore(data.blobs)
        self._relays = Relays(network)
        self._fetcher = BlobFetcher(network, self._store, self._relays)
        self._telemetry = telemetry
        self._facts = facts
        self._manifest: Manifest | None = None
        self._runner: Runner | None = None
        self._introducer: Introducer | None = None
        self._reach: Reach | None = None
        self._snapshots: Snapshots | None = None
        self._leaving = trio.Event()

    async def run(self) -> None:
        self._directory.root.mkdir(parents=True, exist_ok=True, mode=0o700)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._update_metrics)
            nursery.start_soon(self._relays.run)
            if self._settings.relay is not None:
                UpdateRelay(self._network, self._settings.relay)
            with open_scope() as joining:
                nursery.start_soon(self._stop_joining, joining)
                self._introducer = Introducer(
                    self._network,
                    self._identity,
                    self._settings.swarm,
                    self._settings.bootstrap,
                    known_path=self._directory.root / "peers.json",
                    patience=_LOCAL_SECONDS if self._looks_around else 0.0,
                )
                if self._looks_around:
                    discovery = LocalDiscovery(
                        self._network, self._settings.swarm, self._introducer.suggest
                    )
                    nursery.start_soon(discovery.run)
                nursery.start_soon(self._introducer.run)
                self._reach = Reach(self._network, self._introducer, upnp=self._settings.upnp)
                nursery.start_soon(self._reach.run)
                runner, trainer_supervisor = await self._join(self._introducer)
                self._runner = runner
                self._network.favours = lambda peer: peer in runner.member.members
            # Told to leave at the last instant of joining, nobody has said goodbye yet.
            if self._runner is not None and not self._leaving.is_set():
                await self._runner.run(trainer_supervisor, until_round=self._settings.until_round)
                self._check_standing(self._runner.member.ledger)
            nursery.cancel_scope.cancel()

    # Joining

    async def _join(self, introducer: Introducer) -> tuple[Runner, TrainerSupervisor]:
        """Everything up to the point where the member can run."""
        telemetry, network = self._telemetry, self._network
        telemetry.enter("connecting")
        manifest = await self._get_manifest(introducer)
        self._manifest = manifest
        swarm_store = SwarmStore(self._directory, manifest)
        await trio.to_thread.run_sync(telemetry.keep_history, swarm_store.history)
        update_ids: dict[ContentId, None] = {}
        serve_blobs(
            network,
            self._store,
            kind_of=lambda cid: "update" if cid in update_ids else "blob",
            asked=self._note_request,
            relays=self._relays,
        )
        serve_chunks(network, self._store)
        telemetry.enter("syncing")
        ledger = await trio.to_thread.run_sync(swarm_store.load_ledger)
        await self._catch_up(ledger, swarm_store, introducer)
        self._check_standing(ledger)
        prefetch = self._feed(manifest)
        await prefetch.begin()
        runner = Runner(
            manifest=manifest,
            identity=self._identity,
            network=network,
            store=self._store,
            fetcher=self._fetcher,
            relays=self._relays,
            swarm_store=swarm_store,
            ledger=ledger,
            telemetry=telemetry,
            session=int(time.time()),
            ticket=self._ticket,
            update_ids=update_ids,
        )
        self._snapshots = Snapshots(
            manifest=manifest,
            store=self._store,
            swarm_store=swarm_store,
            downloads=self._downloads(self._fetcher),
            ledger=lambda: runner.member.ledger,
            # Whoever counts bytes has none for others' snapshots.
            held=HELD if self._settings.max_disk is None else 0,
        )
        spec = TrainerSpec(
            manifest=manifest.encode(),
            blobs=self._data.blobs,
            device=self._settings.device,
            threads=self._settings.threads,
            micro_batch=self._settings.micro_batch,
            writable=(swarm_store.momentum.parent,),
            confined=self._settings.sandbox,
        )

        def upcoming(rounds: int) -> list[int]:
            return upcoming_samples(runner.member.ledger, self._identity.peer, rounds)

        network.spawn(prefetch.run, upcoming)
        trainer_supervisor = TrainerSupervisor(
            manifest=manifest,
            spec=spec,
            store=self._store,
            snapshots=self._snapshots,
            momentum=swarm_store.momentum,
            telemetry=telemetry,
            evaluate_every=self._settings.evaluate_every or _EVALUATE_ROUNDS,
            last_round=self._settings.until_round,
            data_ready=prefetch.ready,
        )
        return runner, trainer_supervisor

    @property
    def _looks_around(self) -> bool:
        """Whether to look for members in the local network; on loopback there are none."""
        return self._settings.mdns and bool(self._network.listening_ports)

    def _downloads(self, fetcher: Fetcher) -> Downloads:
        chunks = ChunkFetcher(self._network, self._store, fetcher)
        return Downloads(self._store, fetcher, chunks, self._connected, self._telemetry.report)

    def _feed(self, manifest: Manifest) -> Prefetch:
        mirrors = Mirrors(self._settings.mirrors, manifest.data.mirrors)
        fetcher = MirroredFetcher(self._fetcher, self._store, mirrors)
        return Prefetch(
            data=manifest.data,
            store=self._store,
            downloads=self._downloads(fetcher),
            fetcher=fetcher,
            providers=self._connected,
            budget=data_budget(self._settings.max_disk, manifest),
            # Else whoever leaves could take the last copy of something along.
            scarce=None
            if manifest.data.mirrors
            else Replication(self._network, self._connected).scarce,
        )

    def _connected(self) -> list[PeerId]:
        return list(self._network.connected())

    async def _get_manifest(self, introducer: Introducer) -> Manifest:
        """The manifest from disk, or from whoever has it."""
        swarm = self._settings.swarm
        data = self._store.get(ContentId(swarm))
        if data is None:
            search = Search(self._network, introducer, self._fetcher, self._telemetry.report)
            data = await search.manifest(swarm, wait=self._settings.wait)
        manifest = read_manifest(data, swarm)
        self._directory.manifest.write_bytes(data)
        return manifest

    async def _catch_up(
        self, ledger: Ledger, swarm_store: SwarmStore, introducer: Introducer
    ) -> None:
        """Bring the ledger up to what the others have, as far as anybody answers.

        Without anybody there, a node with nothing but the manifest waits, unless it is the founder,
        who starts the swarm; one that took part before goes on from its own disk.
        """
        manifest = self._manifest
        assert manifest is not None  # `_join` has just set it
        begun = len(ledger) > 0 or manifest.founder == self._identity.peer
        if begun and not await self._has_company(introducer):
            return
        while not await catch_up(
            self._network,
            manifest,
            ledger,
            keep=swarm_store.keep,
            report=lambda done, total: self._telemetry.report("fetching the ledger", done, total),
        ):
            if begun:
                return
            self._telemetry.report("waiting for a member of the swarm", 0, 0)
            await trio.sleep(1.0)

    def _check_standing(self, ledger: Ledger) -> None:
        """Raise `UserError` if the swarm has expelled this identity."""
        expelled = ledger.membership(len(ledger)).expelled
        if self._identity.peer in expelled:
            raise UserError(
                ExitCode.EXPELLED,
                f"the swarm has expelled this node's identity in round "
                f"{expelled[self._identity.peer]}: it signed two things that contradict each other",
                "the same identity.key runs on two machines, or was restored from a backup; "
                "stop the other one, move the key away and join as a new peer",
            )

    async def _has_company(self, introducer: Introducer) -> bool:
        """Give the network a moment to find somebody; whether it did."""
        deadline = trio.current_time() + _COMPANY_SECONDS
        while trio.current_time() < deadline:
            if any(peer in introducer.records for peer in self._network.connected()):
                return True
            await trio.sleep(_POLL_SECONDS)
        return False

    # While running

    def _note_request(self, peer: PeerId, blob: ContentId) -> None:
        if self._snapshots is not None:
            self._snapshots.asked(peer, blob)

    def status(self) -> dict[str, Any]:
        """What `distro-node status` shows."""
        network, runner, telemetry = self._network, self._runner, self._telemetry
        connected = network.connected()
        sent, received = network.wire_bytes()
        status = telemetry.status() | {
            **self._facts,
            "name": self._manifest.name if self._manifest is not None else None,
            "members": self._members(connected),
            "sent_bytes": sent,
            "received_bytes": received,
            "peers_connected": len(connected),
            "addresses": network.addresses,
            "bootstrap_connected": (
                self._introducer is not None and self._introducer.bootstrap_connected()
            ),
            "reach": self._reach.status() if self._reach is not None else None,
        }
        if self._manifest is not None and not status["parameters"]:
            status["parameters"] = self._manifest.elements
        if runner is not None:
            status["round_in_work"] = runner.member.round
        return status

    def _members(self, connected: frozenset[PeerId]) -> list[dict[str, Any]]:
        if self._runner is None:
            return []
        now = trio.current_time()
        member = self._runner.member
        rows = []
        for peer in member.members:
            heard = member.presence.last_heard(peer)
            me = peer == self._identity.peer
            rows.append(
                {
                    "peer": peer_text(peer),
                    "me": me,
                    "connected": me or peer in connected,
                    "heard_seconds": None if me or heard is None else max(0.0, now - heard),
                }
            )
        return rows

    @property
    def told_to_leave(self) -> bool:
        """Whether somebody wanted this stay to end; else it came to its own end."""
        return self._leaving.is_set()

    def leave(self) -> None:
        """Say goodbye and end; while joining there is nobody to say it to."""
        self._leaving.set()
        if self._runner is not None:
            self._runner.leave(_LEAVE_SECONDS)

    async def _stop_joining(self, joining: trio.CancelScope) -> None:
        """A leave while still joining has nobody to say goodbye to."""
        await self._leaving.wait()
        if self._runner is None:
            joining.cancel()

    async def _update_metrics(self) -> None:
        metrics, network = self._metrics, self._network
        sent, received = Follower(metrics.sent), Follower(metrics.received)
        rejected = Follower(metrics.rejected)
        while True:
            sent.update(network.traffic.sent)
            received.update(network.traffic.received)
            rejected.update(network.traffic.rejected)
            metrics.peers_connected.set(len(network.connected()))
            metrics.peers_relayed.set(len(network.relayed()))
            if self._reach is not None and self._reach.dialable is not None:
                metrics.reachable.set(self._reach.dialable)
            await trio.sleep(_METRICS_SECONDS)


def _ticket(text: str | None) -> bytes:
    if text is None:
        return b""
    try:
        ticket = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
    except (ValueError, binascii.Error):
        ticket = b""
    # A signature. Whoever passed anything else on for us would be scored for it.
    if len(ticket) != _TICKET_BYTES:
        raise UserError(
            ExitCode.BAD_SWARM_ID,
            "the invite link's ticket is damaged",
            "copy the whole link once more",
        )
    return ticket
