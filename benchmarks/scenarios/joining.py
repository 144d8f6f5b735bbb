"""The processes of a join: members that serve a state, and a newcomer that fetches it.

They run a node's own network, ledger, blob store and download, without a trainer: the state is
random bytes that a record certifies. Run by the scenario `join`, each in a namespace:

    python joining.py serve FOLDER ADDRESS NUMBER [--lies]
    python joining.py fetch FOLDER ADDRESS MEMBER…

Each prints a line of JSON for each event that the scenario waits for.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil
import trio

sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent / "tests"))

from distro_node.crypto.hashing import ContentId
from distro_node.crypto.identity import PeerId
from distro_node.node.content.downloads import Downloads
from distro_node.node.content.snapshots import Snapshots
from distro_node.node.network.exchange.blobs import BlobFetcher, serve_blobs
from distro_node.node.network.exchange.chunks import ChunkFetcher, serve_chunks
from distro_node.node.network.network import NetworkSettings, open_network
from distro_node.node.session.sync import catch_up, serve_sync
from distro_node.node.storage.blob_store import BlobStore
from distro_node.node.storage.data_dir import SwarmDir
from distro_node.node.storage.swarm_store import SwarmStore, blob_of
from distro_node.node.util.progress import Progress
from distro_node.protocol.chain.ledger import Ledger
from distro_node.protocol.wire.blobs import CHUNK_BYTES, BlobList
from distro_node.protocol.wire.manifest import (
    MAX_MANIFEST_BYTES,
    ParameterSpec,
    SwarmId,
    decode_manifest,
)
from distro_node.protocol.wire.messages import SnapshotEntry
from simulation.chain import Chain
from simulation.keys import identity

_INTERVAL = 2
# The newcomer's number; members count from 0.
_NEWCOMER = 50


def make_state(folder: Path, megabytes: int, members: int) -> None:
    """Write the members' data: a state of `megabytes` megabytes, and the name that certifies it."""
    size = megabytes * 1_000_000
    store = BlobStore(folder / "members")
    source = random.Random(1)
    chunks = []
    for start in range(0, size, CHUNK_BYTES):
        chunks.append(store.put(source.randbytes(min(CHUNK_BYTES, size - start))))
    listed = store.put(BlobList("snapshot", size, tuple(chunks)).encode())
    named = {"size": size, "blob": listed.hex(), "members": members}
    (folder / "state.json").write_text(json.dumps(named))
    store.put(_chain(folder).manifest.encode())


def _chain(folder: Path) -> Chain:
    """Return the members' chain: a few rounds, and a record that certifies the state."""
    named = json.loads((folder / "state.json").read_text())
    blob = ContentId(bytes.fromhex(named["blob"]))
    parameters = (ParameterSpec(name="weight", shape=(named["size"] // 4,)),)
    chain = Chain(named["members"], parameters=parameters, snapshot_interval=_INTERVAL)
    while chain.round <= _INTERVAL:
        chain.grow(updates=[])
    chain.grow(updates=[], snapshot=SnapshotEntry(_INTERVAL, blob, named["size"]))
    return chain


async def _serve(folder: Path, address: str, number: int, *, lies: bool) -> None:
    chain = _chain(folder)
    store = _Liar(folder / "members") if lies else BlobStore(folder / "members")
    settings = NetworkSettings(listen=(f"/ip4/{address}/tcp/0",))
    async with open_network(settings, identity(number)) as network:
        serve_blobs(network, store)
        serve_chunks(network, store)
        serve_sync(network, chain.manifest, chain.member(number).view)
        _report(address=network.addresses[0])
        await trio.sleep_forever()


class _Liar(BlobStore):
    """Claims to have every blob, and serves wrong bytes."""

    def get(self, cid: ContentId) -> bytes | None:
        data = super().get(cid)
        return data[::-1] if data is not None and len(data) > CHUNK_BYTES // 2 else data


async def _fetch(folder: Path, address: str, members: Sequence[str]) -> None:
    swarm = SwarmId(_chain(folder).manifest.swarm)
    store = BlobStore(folder / "newcomer")
    settings = NetworkSettings(listen=(f"/ip4/{address}/tcp/0",))
    async with open_network(settings, identity(_NEWCOMER)) as network:
        begun, resting = time.monotonic(), psutil.Process().memory_info().rss
        for member in members:
            await network.connect(member, 30.0)
        connected = time.monotonic() - begun
        fetcher = BlobFetcher(network, store)

        def providers() -> list[PeerId]:
            return list(network.connected())

        data = await fetcher.fetch(
            ContentId(swarm), max_bytes=MAX_MANIFEST_BYTES, providers=providers, timeout=60
        )
        manifest = decode_manifest(data, swarm)
        ledger = Ledger(manifest)
        await catch_up(
            network,
            manifest,
            ledger,
            keep=lambda decided: None,
            replace_chain=lambda ledger: None,
            report=lambda done, total: None,
        )
        peak = resting

        def report(progress: Progress) -> None:
            nonlocal peak
            peak = max(peak, psutil.Process().memory_info().rss)
            _report(done=progress.done, total=progress.total, seconds=time.monotonic() - begun)

        chunks = ChunkFetcher(network, store, fetcher)
        swarm_store = SwarmStore(SwarmDir(folder / "newcomer-swarm"), manifest)
        downloads = Downloads(store, fetcher, chunks, providers, report)
        snapshots = Snapshots(
            manifest=manifest,
            store=store,
            swarm_store=swarm_store,
            downloads=downloads,
            ledger=lambda: ledger,
        )
        found_state = await snapshots.best(certified_only=True)
        _, received = network.wire_bytes()
        _report(
            finished=time.monotonic() - begun,
            connected=connected,
            round=found_state.round,
            blob=blob_of(found_state).hex(),
            received=received,
            memory=peak - resting,
            cpu=_cpu_seconds(),
            rejected=dict(network.traffic.rejected),
        )


def _cpu_seconds() -> float:
    times = psutil.Process().cpu_times()
    return times.user + times.system


def _report(**what: Any) -> None:
    print(json.dumps(what), flush=True)


def main() -> None:
    """Run one of the processes."""
    parser = argparse.ArgumentParser(description="A member or a newcomer of the scenario `join`.")
    roles = parser.add_subparsers(dest="role", required=True)
    serve, fetch = (roles.add_parser(name) for name in ("serve", "fetch"))
    for role in (serve, fetch):
        role.add_argument("folder", type=Path)
        role.add_argument("address")
    serve.add_argument("number", type=int)
    serve.add_argument("--lies", action="store_true")
    fetch.add_argument("members", nargs="+")
    options = parser.parse_args()
    if options.role == "serve":
        trio.run(lambda: _serve(options.folder, options.address, options.number, lies=options.lies))
    else:
        trio.run(_fetch, options.folder, options.address, options.members)


if __name__ == "__main__":
    main()
