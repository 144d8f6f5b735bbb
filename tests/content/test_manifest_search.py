"""The search for a swarm's manifest says where it looks, and at once if there is nowhere."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio
from distro_node.node.content.manifest_search import ManifestSearch
from distro_node.node.errors import ExitCode, UserError
from distro_node.node.network.discovery.introductions import Introducer
from distro_node.node.network.exchange.blobs import BlobFetcher
from distro_node.node.network.network import open_network
from distro_node.node.storage.blob_store import BlobStore
from distro_node.node.util.progress import Progress
from distro_node.protocol.wire.manifest import SwarmId
from network.support import LOOPBACK
from simulation.keys import identity

SWARM = SwarmId(bytes(32))


@pytest.mark.parametrize(("local_seconds", "place"), [(0.0, ""), (0.01, "in the local network")])
async def test_a_bare_id_has_the_local_network_or_nobody_to_ask(
    tmp_path: Path, local_seconds: float, place: str
) -> None:
    """It said that it searched the local network, where it had been told not to (`--no-mdns`)."""
    reports: list[Progress] = []
    async with open_network(LOOPBACK, identity(1)) as network, trio.open_nursery() as nursery:
        introducer = Introducer(network, identity(1), SWARM, (), suggestion_seconds=local_seconds)
        nursery.start_soon(introducer.run)
        fetcher = BlobFetcher(network, BlobStore(tmp_path))
        search = ManifestSearch(list, introducer, fetcher, reports.append)
        with pytest.raises(UserError, match="there is no peer to ask") as caught:
            await search.manifest(SWARM, wait=False)
        nursery.cancel_scope.cancel()
    assert caught.value.code is ExitCode.NO_BOOTSTRAP
    (report,) = reports
    assert report.what.startswith("searching for the swarm")
    assert ("in the local network" in report.what) is bool(place)
