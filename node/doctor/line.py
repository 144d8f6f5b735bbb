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
from ...protocol.codec.exchange_size import received as received_bytes
from ...protocol.codec.layout import manifest_layout
from ...protocol.wire.blobs import MAX_BLOB_BYTES, MAX_BLOB_LIST_BYTES, decode_any_blob_list
from ...protocol.wire.errors import ProtocolError
from ...protocol.wire.manifest import MAX_MANIFEST_BYTES, Manifest, OtherVersion, decode_manifest
from ...protocol.wire.swarm_id import Invite
from ..network.discovery.introductions import Introducer, NoBootstrap
from ..network.ephemeral_network import open_ephemeral_network
from ..network.exchange.blobs import BlobFetcher, FetchFailed
from ..network.nat.traversal import NatTraversal
from ..network.network import Network
from ..storage.blob_store import BlobStore
from ..util.protocol_version import explain_version
from .findings import Finding, good

_CONTACT_SECONDS = 30.0
_REACH_SECONDS = 15.0
_MANIFEST_SECONDS = 20.0
_SPEED_SECONDS = 10.0
_MOST_CHUNKS = 8
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
    found: list[Finding] = []
    async with trio.open_nursery() as nursery:
        introducer = Introducer(network, identity, invite.swarm, invite.bootstrap)
        reach = NatTraversal(network, introducer, upnp=False)
        nursery.start_soon(introducer.run)
        nursery.start_soon(reach.run)
        try:
            await introducer.first_contact(_CONTACT_SECONDS)
        except NoBootstrap as error:
            tried = "; ".join(f"{address}: {why}" for address, why in error.outcomes.items())
            found.append(
                Finding(
                    subject="bootstrap",
                    severity="stops",
                    what=f"no bootstrap peer can be reached (tried {tried})"
                    if tried
                    else "there is no address to try",
                    remedy="check your connection and the addresses, or ask for a newer invite link",
                )
            )
        else:
            peers = len(network.connected())
            found.append(good("bootstrap", f"reached; connected to {peers} so far"))
            manifest = await _manifest(network, invite, store)
            if isinstance(manifest, Finding):
                found.append(manifest)
            else:
                found.append(good("swarm", f"{manifest.name!r}, {manifest.elements:,} parameters"))
                found.append(await _speed(network, introducer, manifest, store))
            found.append(await _reach(reach))
        nursery.cancel_scope.cancel()
    return found


async def _manifest(network: Network, invite: Invite, store: BlobStore) -> Manifest | Finding:
    fetcher = BlobFetcher(network, store)
    try:
        data = await fetcher.fetch(
            ContentId(invite.swarm),
            max_bytes=MAX_MANIFEST_BYTES,
            providers=lambda: list(network.connected()),
            timeout=_MANIFEST_SECONDS,
        )
        return decode_manifest(data, invite.swarm)
    except FetchFailed:
        return Finding(
            subject="swarm",
            severity="hurts",
            what="no reachable peer knows the swarm",
            remedy="ask the link's sender whether the swarm runs; `join --wait` waits until it does",
        )
    except OtherVersion as error:
        version_error = explain_version(error)
        return Finding(
            subject="swarm",
            severity="stops",
            what=version_error.problem,
            remedy=version_error.remedy,
        )
    except ProtocolError as error:
        return Finding(
            subject="swarm",
            severity="stops",
            what=str(error),
            remedy="install the newest distro-node",
        )


async def _speed(
    network: Network, introducer: Introducer, manifest: Manifest, store: BlobStore
) -> Finding:
    """Compare the speed at which members send with the size of a round's updates."""
    fetcher = BlobFetcher(network, store)
    received, seconds = 0, 0.0
    # Members keep the initial parameters until there is a newer snapshot; they always keep the held-out
    # text.
    for blobs in (manifest.initial, manifest.data.heldout.blob):
        if not received:
            received, seconds = await _fetch_some(network, fetcher, blobs)
    if not received:
        return Finding(
            subject="line",
            severity="unknown",
            what="no member sent data within ten seconds, so the line could not be measured",
            remedy="try again while members train",
        )
    rate = received / seconds
    layout = manifest_layout(manifest)
    others = max(1, len(introducer.peer_records))
    size = received_bytes(layout, manifest.committees, others + 1)
    needed = size / rate
    what = (
        f"{8 * rate / 1e6:.1f} Mbit/s from members; the updates of {others} in a "
        f"{'round' if manifest.committees is None else 'step'} are {size / 1e6:.1f} MB, which takes "
        f"{needed:.1f} s"
    )
    if needed <= _ROUND_SECONDS:
        return good("line", what)
    return Finding(
        subject="line",
        severity="hurts",
        what=what,
        remedy="use a faster line, or a swarm that sends less (`top_k`) or while computing (`overlap`)",
    )


async def _fetch_some(
    network: Network, fetcher: BlobFetcher, blobs: ContentId
) -> tuple[int, float]:
    """Fetch some of the chunks that a blob list names, one at a time; return bytes and seconds."""
    # A running node fetches several chunks at once, so it is no slower than this.
    received, started = 0, trio.current_time()

    async def fetch(cid: ContentId, most: int) -> bytes:
        return await fetcher.fetch(
            cid,
            max_bytes=most,
            providers=lambda: list(network.connected()),
            timeout=_SPEED_SECONDS,
        )

    with trio.move_on_after(_SPEED_SECONDS), suppress(FetchFailed, ProtocolError):
        listed = await fetch(blobs, MAX_BLOB_LIST_BYTES)
        started = trio.current_time()
        for chunk in decode_any_blob_list(listed).chunks[:_MOST_CHUNKS]:
            received += len(await fetch(chunk, MAX_BLOB_BYTES))
    return received, max(trio.current_time() - started, 1e-3)


async def _reach(reach: NatTraversal) -> Finding:
    with trio.move_on_after(_REACH_SECONDS):
        while reach.dialable is None:  # noqa: ASYNC110  (the verdict is not an event)
            await trio.sleep(_POLL_SECONDS)
    match reach.verdict:
        case "reachable":
            return good("reach", "peers outside reach this computer")
        case "local":
            return good(
                "reach", "peers in this network reach this computer; none outside has tried"
            )
        case "unknown":
            return Finding(
                subject="reach",
                severity="unknown",
                what="no peer has called back",
                remedy="try again while more members are up",
            )
        case "unreachable":
            port = "a TCP port" if reach.port is None else f"TCP port {reach.port}"
            return Finding(
                subject="reach",
                severity="hurts",
                what="peers outside cannot reach this computer: a relay will carry its connections",
                remedy=f"forward {port} in your router, and give it with --listen",
            )
