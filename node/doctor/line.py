"""Examination of the network connection: whether a swarm's members can be reached and can reach this
computer, and how fast data arrives.

It uses a throw-away identity, because the node's own may be in use. Nothing is kept. The upload speed
cannot be measured this way; a running node shows how much it has sent.
"""

from __future__ import annotations

import tempfile
from contextlib import suppress
from pathlib import Path

import trio

from ...crypto.hashing import ContentId
from ...crypto.identity import Identity
from ...protocol.chain.features import exchange_size
from ...protocol.codec.layout import manifest_layout
from ...protocol.wire.blobs import MAX_BLOB_BYTES, MAX_BLOB_LIST_BYTES, decode_any_blob_list
from ...protocol.wire.errors import ProtocolError
from ...protocol.wire.manifest import MAX_MANIFEST_BYTES, Manifest
from ...protocol.wire.swarm_id import Invite
from ..content.manifest_search import read_manifest
from ..errors import UserError
from ..network.discovery.introductions import Introducer, NoBootstrap
from ..network.ephemeral_network import open_ephemeral_network
from ..network.exchange.blobs import BlobFetcher, FetchFailed
from ..network.nat.traversal import NatTraversal
from ..network.network import Network
from ..storage.blob_store import BlobStore
from .findings import Finding, good

_CONTACT_SECONDS = 30.0
_REACH_SECONDS = 15.0
_MANIFEST_SECONDS = 20.0
_SPEED_SECONDS = 10.0
_MAX_CHUNKS = 8
# Less than this may be messages instead of a part of a chunk.
_LEAST_BYTES = 64 << 10
_POLL_SECONDS = 0.2
# If receiving a round's updates takes longer than this, the connection is too slow to be useful.
_ROUND_SECONDS = 60.0


async def examine_line(invite: Invite, listen: tuple[str, ...] = ()) -> list[Finding]:
    """Examine the connection to this swarm. Raises `UserError` with `ExitCode.PORT_IN_USE` or
    `ExitCode.BAD_ADDRESS` if this computer cannot listen at `listen`."""
    async with open_ephemeral_network(invite.bootstrap, listen) as (network, identity):
        with tempfile.TemporaryDirectory(prefix="distro-node-doctor-") as folder:
            return await _examine(network, identity, invite, BlobStore(Path(folder)))


async def _examine(
    network: Network, identity: Identity, invite: Invite, store: BlobStore
) -> list[Finding]:
    findings: list[Finding] = []
    async with trio.open_nursery() as nursery:
        introducer = Introducer(network, identity, invite.swarm, invite.bootstrap)
        traversal = NatTraversal(network, introducer, upnp=False)
        nursery.start_soon(introducer.run)
        nursery.start_soon(traversal.run)
        try:
            await introducer.first_contact(_CONTACT_SECONDS)
        except NoBootstrap as error:
            tried = "; ".join(f"{address}: {why}" for address, why in error.outcomes.items())
            if tried:
                what = f"no bootstrap peer can be reached (tried {tried})"
                remedy = "check your connection and the addresses, or ask for a newer invite link"
            else:
                what = "no address of a bootstrap peer is known"
                remedy = "use an invite link that names one, or give its address with --bootstrap"
            findings.append(
                Finding(subject="bootstrap", severity="stops", what=what, remedy=remedy)
            )
        else:
            peers = len(network.connected())
            peers_text = "1 peer" if peers == 1 else f"{peers} peers"
            findings.append(good("bootstrap", f"reached; connected to {peers_text}"))
            manifest = await _fetch_manifest(network, invite, store)
            if isinstance(manifest, Finding):
                findings.append(manifest)
            else:
                findings.append(
                    good("swarm", f"{manifest.name!r}, {manifest.elements:,} parameters")
                )
                findings.append(await _examine_speed(network, introducer, manifest, store))
            findings.append(await _examine_reachability(traversal))
        nursery.cancel_scope.cancel()
    return findings


async def _fetch_manifest(network: Network, invite: Invite, store: BlobStore) -> Manifest | Finding:
    fetcher = BlobFetcher(network, store)
    try:
        data = await fetcher.fetch(
            ContentId(invite.swarm),
            max_bytes=MAX_MANIFEST_BYTES,
            providers=lambda: list(network.connected()),
            timeout=_MANIFEST_SECONDS,
        )
        return read_manifest(data, invite.swarm)
    except FetchFailed:
        return Finding(
            subject="swarm",
            severity="hurts",
            what="no reachable peer knows the swarm",
            remedy="ask the sender of the link whether the swarm runs; `join --wait` waits for it",
        )
    except UserError as error:
        return Finding(subject="swarm", severity="stops", what=error.problem, remedy=error.remedy)


async def _examine_speed(
    network: Network, introducer: Introducer, manifest: Manifest, store: BlobStore
) -> Finding:
    """Compare the speed at which members send with the size of a round's updates."""
    fetcher = BlobFetcher(network, store)
    received, seconds = 0, 0.0
    # Members keep the initial parameters until there is a newer snapshot; they always keep the held-out
    # text.
    for blobs in (manifest.initial, manifest.data.heldout.blob):
        if not received:
            received, seconds = await _fetch_sample(network, fetcher, blobs)
    if not received:
        return Finding(
            subject="line",
            severity="unknown",
            what=f"no member sent data within {_SPEED_SECONDS:.0f} seconds, so the download "
            "speed is not known",
            remedy="try again while members are online",
        )
    rate = received / seconds
    layout = manifest_layout(manifest)
    others = max(1, len(introducer.known.records))
    others_text = "1 member" if others == 1 else f"{others} members"
    size = exchange_size(manifest.features).received(layout, others + 1)
    needed = size / rate
    what = (
        f"members send {8 * rate / 1e6:.1f} Mbit/s; the updates of {others_text} are "
        f"{size / 1e6:.1f} MB per {'round' if manifest.rounds_per_step == 1 else 'step'} and take "
        f"{needed:.1f} s"
    )
    if needed <= _ROUND_SECONDS:
        return good("line", what)
    return Finding(
        subject="line",
        severity="hurts",
        what=what,
        remedy="use a faster line, or join a swarm with smaller updates (`top_k`) or one that "
        "sends them while it computes (`overlap`)",
    )


async def _fetch_sample(
    network: Network, fetcher: BlobFetcher, blobs: ContentId
) -> tuple[int, float]:
    """Fetch some of the chunks that a blob list names, one at a time; return bytes and seconds until
    the last that arrived whole, or of the first one as far as it arrived."""
    # A running node fetches several chunks at once, so it is no slower than this.
    received, started, ended = 0, trio.current_time(), None
    before = network.wire_bytes()[1]

    async def fetch(cid: ContentId, max_bytes: int) -> bytes:
        return await fetcher.fetch(
            cid,
            max_bytes=max_bytes,
            providers=lambda: list(network.connected()),
            timeout=_SPEED_SECONDS,
        )

    with trio.move_on_after(_SPEED_SECONDS), suppress(FetchFailed, ProtocolError):
        listed = await fetch(blobs, MAX_BLOB_LIST_BYTES)
        started, before = trio.current_time(), network.wire_bytes()[1]
        for chunk in decode_any_blob_list(listed).chunks[:_MAX_CHUNKS]:
            received += len(await fetch(chunk, MAX_BLOB_BYTES))
            ended = trio.current_time()
    if ended is None:
        # On a slow line not even one chunk arrives whole in this time.
        ended, arrived = trio.current_time(), network.wire_bytes()[1] - before
        received = arrived if arrived >= _LEAST_BYTES else 0
    return received, max(ended - started, 1e-3)


async def _examine_reachability(traversal: NatTraversal) -> Finding:
    with trio.move_on_after(_REACH_SECONDS):
        while traversal.dialable is None:  # noqa: ASYNC110  (the verdict is not an event)
            await trio.sleep(_POLL_SECONDS)
    match traversal.verdict:
        case "reachable":
            return good("reach", "peers on the internet can reach this computer")
        case "local":
            return good(
                "reach",
                "peers in the local network can reach this computer; no peer outside of it has "
                "tried",
            )
        case "unknown":
            return Finding(
                subject="reach",
                severity="unknown",
                what="not known, because no peer has dialled this computer",
                remedy="try again while more members are online",
            )
        case "unreachable":
            port = "a TCP port" if traversal.port is None else f"TCP port {traversal.port}"
            return Finding(
                subject="reach",
                severity="hurts",
                what="peers on the internet cannot reach this computer, so a relay will carry its "
                "connections",
                remedy=f"forward {port} to this computer in your router, and listen on that "
                "port with --listen",
            )
