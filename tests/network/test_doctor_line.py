"""The doctor's check of the line with real peers: which answer, which dial back, and the download
rate."""

from __future__ import annotations

import os
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import trio
from distro_node.crypto.identity import peer_text
from distro_node.node.bootstrap import BootstrapSettings, run_bootstrap
from distro_node.node.doctor import line as line_module
from distro_node.node.doctor.findings import Finding
from distro_node.node.doctor.line import examine_line
from distro_node.node.errors import ExitCode, UserError
from distro_node.node.memory_fit import fetch_manifest
from distro_node.node.network.discovery.introductions import Introducer
from distro_node.node.network.exchange.blobs import serve_blobs
from distro_node.node.network.network import open_network
from distro_node.node.settings.components import LineSettings
from distro_node.node.storage.blob_store import BlobStore
from distro_node.protocol.wire.blobs import CHUNK_BYTES, BlobList
from distro_node.protocol.wire.manifest import Manifest
from distro_node.protocol.wire.swarm_id import Invite
from network.support import LOOPBACK, PATIENCE_SECONDS, identity
from simulation.chain import Chain


async def examined(invite: Invite) -> dict[str, Finding]:
    with trio.fail_after(PATIENCE_SECONDS):
        return {each.subject: each for each in await examine_line(invite, LOOPBACK.listen)}


def stored_swarm(store: BlobStore) -> Manifest:
    chunks = tuple(store.put(os.urandom(CHUNK_BYTES)) for _ in range(2))
    listed = BlobList("snapshot", 2 * CHUNK_BYTES, chunks)
    manifest = replace(Chain(0).manifest, initial=store.put(listed.encode()))
    store.put(manifest.encode())
    return manifest


@asynccontextmanager
async def a_swarm(tmp_path: Path, max_upload: float | None = None) -> AsyncIterator[Invite]:
    """A member that has what the doctor fetches, and a bootstrap peer that knows it."""
    store = BlobStore(tmp_path)
    manifest = stored_swarm(store)
    settings = BootstrapSettings(identity=identity(99), line=LineSettings(listen=LOOPBACK.listen))

    async def bootstrap(task_status: Any) -> None:
        await run_bootstrap(settings, ready=task_status.started)

    line = replace(LOOPBACK, max_upload=max_upload)
    async with trio.open_nursery() as nursery, open_network(line, identity(1)) as network:
        addresses = await nursery.start(bootstrap)
        introducer = Introducer(network, identity(1), manifest.swarm, addresses)
        serve_blobs(network, store)
        nursery.start_soon(introducer.run)
        await introducer.first_contact(PATIENCE_SECONDS)
        yield Invite(swarm=manifest.swarm, bootstrap=tuple(addresses))
        nursery.cancel_scope.cancel()


async def test_a_swarm_that_is_there(tmp_path: Path) -> None:
    async with a_swarm(tmp_path) as invite:
        found = await examined(invite)
        manifest = await fetch_manifest(invite, LOOPBACK.listen)
        assert manifest.swarm == invite.swarm
        assert {each.severity for each in found.values()} == {"good"}, found
        assert repr(manifest.name) in found["swarm"].what
        assert "Mbit/s" in found["line"].what
        assert "local" in found["reach"].what or "this network" in found["reach"].what


async def test_a_line_on_which_no_chunk_arrives_in_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Below 3.4 Mbit/s a chunk takes longer than the doctor waits: that is slow, not unknown."""
    monkeypatch.setattr(line_module, "_SPEED_SECONDS", 4.0)
    monkeypatch.setattr(line_module, "_ROUND_SECONDS", 0.0)
    async with a_swarm(tmp_path, max_upload=250_000.0) as invite:
        line = (await examined(invite))["line"]
    assert line.severity == "hurts"
    assert (rate := re.match(r"members send ([\d.]+) Mbit/s", line.what)), line.what
    assert 0.5 < float(rate[1]) < 4


async def test_nobody_is_there() -> None:
    dead = f"/ip4/127.0.0.1/tcp/1/p2p/{peer_text(identity(98).peer)}"
    found = await examined(Invite(swarm=Chain(0).manifest.swarm, bootstrap=(dead,)))
    assert found.keys() == {"bootstrap"}
    assert found["bootstrap"].severity == "stops"
    assert "refused" in found["bootstrap"].what
    with pytest.raises(UserError, match="refused") as caught:
        await fetch_manifest(
            Invite(swarm=Chain(0).manifest.swarm, bootstrap=(dead,)), LOOPBACK.listen
        )
    assert caught.value.code is ExitCode.NO_BOOTSTRAP
