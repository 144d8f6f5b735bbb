"""A node's contact with the peers of one swarm: finding them, being found, and asking them.

Members and observers both have one.
"""

from __future__ import annotations

import time
from dataclasses import replace
from functools import partial

import trio

from ...crypto.identity import Identity, PeerId
from ...protocol.wire.introductions import Registry
from ..control.limits import BandwidthLimits
from ..network.discovery.introductions import Introducer
from ..network.discovery.mdns import LocalDiscovery
from ..network.discovery.member_names import MemberNames
from ..network.exchange.blobs import BlobFetcher
from ..network.exchange.update_relay_client import Relays
from ..network.network import Network
from ..settings.tree import DaemonSettings
from ..storage.blob_store import BlobStore
from ..storage.data_dir import DataDir
from ..storage.monotonic_counter import MonotonicCounter
from ..storage.relayed_bytes import RelayedBytes
from ..telemetry.line_status import line_status
from ..telemetry.status import LineStatus
from ..telemetry.telemetry import Telemetry
from ..util.background import keep_running
from .join import JoinContext
from .relay_counter import store_relayed_count, update_relayed_count

# Time to wait for members in the local network if no other peer answers.
_LOCAL_SECONDS = 10.0


class SwarmPeering:
    """Contact with one swarm's peers over an open network."""

    def __init__(
        self,
        settings: DaemonSettings,
        data: DataDir,
        identity: Identity,
        network: Network,
        telemetry: Telemetry,
        relays: Relays | None = None,
        registry: Registry | None = None,
    ) -> None:
        """`relays` are asked for updates first, if given.

        `registry` is given if this object shares the network of a bootstrap peer: it is that peer's
        registry, and that peer serves introductions itself. The network also has peers of other swarms,
        which would count a request about this swarm as an offence, so only peers known to be in this
        swarm are asked.
        """
        directory = data.swarm(settings.swarm)
        directory.root.mkdir(parents=True, exist_ok=True, mode=0o700)
        # `listening_ports` leaves out ports on loopback: a node that listens on loopback alone has no
        # local network to search.
        self._discovers = settings.peering.mdns and bool(network.listening_ports)
        self._swarm = settings.swarm
        self._network = network
        self._shares_network = registry is not None
        self.message_numbers = MonotonicCounter(data.starts, clock=time.time())
        self._relayed = RelayedBytes(None if self._shares_network else data.relayed)
        self.introducer = Introducer(
            network,
            identity,
            settings.swarm,
            settings.full_invite.bootstrap,
            peers_path=directory.root / "peers.json",
            suggestion_seconds=_LOCAL_SECONDS if self._discovers else 0.0,
            message_numbers=self.message_numbers,
            registry=registry,
        )
        self._names = MemberNames(
            network,
            identity,
            settings.swarm,
            settings.display_name,
            telemetry.names,
            self._askable,
            directory.root / "names.json",
        )
        store = BlobStore(data.blobs)
        self.join_context = JoinContext(
            invite=settings.full_invite,
            wait=settings.peering.wait,
            disk=settings.disk,
            me=identity.peer,
            network=network,
            introducer=self.introducer,
            store=store,
            fetcher=BlobFetcher(network, store, relays),
            directory=directory,
            telemetry=telemetry,
            connected=self._askable,
        )

    def start_tasks(self, nursery: trio.Nursery) -> None:
        """Keep finding peers and being found while the nursery is open."""
        if self._discovers:
            suggest = self.introducer.suggest
            local = LocalDiscovery(self._network, self._swarm, suggest)
            nursery.start_soon(keep_running, local.run)
        nursery.start_soon(keep_running, self.introducer.run)
        nursery.start_soon(keep_running, self._names.run)
        nursery.start_soon(keep_running, partial(store_relayed_count, self._network, self._relayed))

    def apply_limits(self, limits: BandwidthLimits) -> None:
        """Apply these bandwidth limits from now on."""
        traffic = self._network.traffic
        traffic.upload.limit, traffic.download.limit = limits.upload, limits.download

    def line(self) -> LineStatus:
        """Return the status of this node's internet connection."""
        # A bootstrap peer needs no other one.
        bootstrap = self._shares_network or self.introducer.bootstrap_connected()
        relayed = update_relayed_count(self._network, self._relayed)
        line = line_status(self._network, relayed=relayed, bootstrap=bootstrap)
        return replace(line, peers=len(self._askable())) if self._shares_network else line

    def _askable(self) -> list[PeerId]:
        """Return the connected peers that may be asked about this swarm."""
        connected = self._network.connected()
        if not self._shares_network:
            return list(connected)
        known = {*self.introducer.known.records, *self.introducer.bootstrap_peers}
        return [peer for peer in connected if peer in known]
