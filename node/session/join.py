"""Joining: find a swarm by its swarm-id and fetch everything that a member needs.

Everything fetched stays on the disk, so an interrupted join resumes where it stopped.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

import trio

from ...crypto.hashing import ContentId, content_id
from ...crypto.identity import PeerId
from ...protocol.chain.admissions import invited
from ...protocol.chain.features import exchange_size
from ...protocol.chain.ledger import Ledger
from ...protocol.chain.start_policy import (
    PEER_WAIT_SECONDS,
    RETRY_SECONDS,
    check_point,
    checkpoint_of,
    has_begun,
    may_start,
)
from ...protocol.codec.exchange_size import check_size
from ...protocol.wire.checkpoint import Checkpoint
from ...protocol.wire.errors import ProtocolError
from ...protocol.wire.manifest import MAX_MANIFEST_BYTES, Manifest, SwarmId
from ...protocol.wire.messages import JoinRequest
from ...protocol.wire.swarm_id import Invite
from ..content.downloads import Downloads
from ..content.manifest_search import ManifestSearch, read_manifest
from ..content.mirrors import MirroredFetcher, Mirrors
from ..content.prefetch import Prefetch, data_budget
from ..content.replication import Replication
from ..errors import ExitCode, UserError
from ..network.discovery.introductions import Introducer
from ..network.exchange.blobs import BlobFetcher
from ..network.exchange.chunks import ChunkFetcher, Fetcher
from ..network.network import Network
from ..settings.components import DiskSettings
from ..storage.atomic_write import write_atomically
from ..storage.blob_store import BlobStore
from ..storage.data_dir import SwarmDir
from ..storage.swarm_store import SwarmStore
from ..telemetry.telemetry import Telemetry
from ..training.reward_rules import require_rule
from ..training.task_names import require_task
from ..util.progress import Progress
from ..util.regular_files import read_regular
from .sync import catch_up
from .version_watch import check_version

_log = logging.getLogger(__name__)

_POLL_SECONDS = 0.1


@dataclass(frozen=True, kw_only=True)
class JoinContext:
    """What a join works with: the network, the peers to ask, and the stores for their answers."""

    invite: Invite
    """The link to the swarm; a record that it names must be in the swarm's chain."""
    wait: bool
    """Whether to keep looking for the swarm if no peer can be reached, or none knows it."""
    disk: DiskSettings
    me: PeerId
    network: Network
    introducer: Introducer
    store: BlobStore
    fetcher: BlobFetcher
    directory: SwarmDir
    telemetry: Telemetry
    connected: Callable[[], list[PeerId]]
    """Returns the connected peers that may be asked about the swarm."""

    def downloads(self, fetcher: Fetcher) -> Downloads:
        """Return downloads that fetch through `fetcher` and report their progress."""
        chunks = ChunkFetcher(self.network, self.store, fetcher)
        return Downloads(self.store, fetcher, chunks, self.connected, self.telemetry.report)


async def find_manifest(context: JoinContext, *, takes_part: bool = True) -> Manifest:
    """Return the manifest from the disk, or from any peer that has it. Raises `UserError` if it cannot
    be fetched or is unusable; with `takes_part`, also if this node does not support its task, or no node
    can take part in such a swarm."""
    swarm = context.invite.swarm
    data = await trio.to_thread.run_sync(_stored_manifest, context.store, context.directory, swarm)
    if data is None:
        report = context.telemetry.report
        search = ManifestSearch(context.connected, context.introducer, context.fetcher, report)
        data = await search.manifest(swarm, wait=context.wait)
    # A manifest with 20,000 tensors takes a third of a second to decode.
    manifest = await trio.to_thread.run_sync(read_manifest, data, swarm)
    await trio.to_thread.run_sync(write_atomically, context.directory.manifest, data)
    if takes_part:
        require_task(manifest.task)
        require_rule(manifest.task, manifest.task_settings)
        try:
            await trio.to_thread.run_sync(check_size, manifest, exchange_size(manifest.features))
        except ValueError as error:
            raise UserError(
                ExitCode.MANIFEST,
                f"no node can take part in this swarm: {error}",
                "the founder has to create the swarm again",
            ) from None
    return manifest


def _stored_manifest(store: BlobStore, directory: SwarmDir, swarm: SwarmId) -> bytes | None:
    """Return the manifest's bytes from the blob store or else from its own file, which is then copied to
    the blob store; None if neither has them intact."""
    data = store.get(ContentId(swarm))
    if data is not None:
        return data
    try:
        data = read_regular(directory.manifest, MAX_MANIFEST_BYTES)
    except OSError:
        return None
    if content_id(data) != swarm:
        _log.warning("the swarm's manifest on this disk is damaged, so it is fetched again")
        return None
    store.put(data)
    return data


async def fetch_ledger(context: JoinContext, manifest: Manifest, swarm_store: SwarmStore) -> Ledger:
    """Return the ledger from the disk, extended by what the peers that answer have.

    If no peer answers, a node that has only the manifest waits; the founder starts the swarm instead,
    and a node that took part before continues from its own disk. The ledger must contain the record that
    the link names and the one that this node knew to be final before: without them the node waits, even
    if it is the founder.

    Raises `UserError`: `FINAL` if the link names another chain than the one on the disk, or if the file
    with the final record is damaged; `VERSION` as in `follow_ledger`.
    """
    linked = context.invite.at
    known = await trio.to_thread.run_sync(swarm_store.final)
    ledger = await trio.to_thread.run_sync(_load_ledger, swarm_store, known, linked)
    if len(ledger):
        _log.info("the ledger on this disk reaches round %d", len(ledger) - 1)
    begun = has_begun(ledger, context.me)
    if not begun or await _has_peers(context):

        def report(done: int, total: int) -> None:
            what = "fetching the ledger"
            context.telemetry.report(Progress(what=what, done=done, total=total or None))

        while True:
            found = await follow_ledger(context, manifest, ledger, swarm_store, report)
            if may_start(ledger, begun=begun, found=found):
                break
            context.telemetry.report(_waiting_for(ledger.checkpoint))
            await trio.sleep(RETRY_SECONDS)
    for point in (linked, known):
        _check_point(ledger, point)
    check_version(ledger)
    return ledger


async def follow_ledger(
    context: JoinContext,
    manifest: Manifest,
    ledger: Ledger,
    swarm_store: SwarmStore,
    report: Callable[[int, int], None],
) -> bool:
    """Extend a ledger, in memory and on the disk, by what the other peers have; return whether any peer
    answered whose chain has the ledger's checkpoint. `report` is called with the number of entries so
    far and in all.

    Raises `UserError` (`VERSION`) if the swarm has changed to a protocol version that this program
    lacks.
    """
    found = await catch_up(
        context.network,
        manifest,
        ledger,
        keep=swarm_store.keep,
        replace_chain=swarm_store.replace_chain,
        written=swarm_store.written,
        report=report,
        peers=context.connected,
    )
    swarm_store.keep_indexes(ledger)
    check_version(ledger)
    return found


def _load_ledger(
    swarm_store: SwarmStore, known: Checkpoint | None, linked: Checkpoint | None
) -> Ledger:
    """Load the ledger from the disk and set the later of the two checkpoints in it. Raises `UserError`
    (`FINAL`) if the link names another chain than the one on the disk."""
    try:
        ledger = swarm_store.load_ledger(checkpoint=known)
    except ProtocolError:
        _log.warning("the ledger on this disk lacks the final record, so it is fetched again")
        swarm_store.drop_ledger()
        ledger = swarm_store.load_ledger(checkpoint=known)
    try:
        ledger.checkpoint = checkpoint_of(linked, known, ledger)
    except ProtocolError:
        assert linked is not None  # the link is what was refused
        raise _another_chain(linked) from None
    return ledger


def _check_point(ledger: Ledger, point: Checkpoint | None) -> None:
    """Raise `UserError` (`FINAL`) if the ledger has another record than `point` in that round."""
    try:
        check_point(ledger, point)
    except ProtocolError:
        assert point is not None  # only a checkpoint can be contradicted
        raise _another_chain(point) from None


def _another_chain(point: Checkpoint) -> UserError:
    return UserError(
        ExitCode.FINAL,
        f"the link and this node have different records of round {point.round}",
        "ask a member that you trust for a new link; if it names the same record, this node was "
        "on a chain that the others have abandoned: docs/exit-codes.md describes how to reset it",
    )


def _waiting_for(checkpoint: Checkpoint | None) -> Progress:
    awaited = "a member of the swarm"
    if checkpoint is not None:
        awaited = f"a member whose chain has the final record of round {checkpoint.round}"
    return Progress(what=f"waiting for {awaited}", kind="waiting")


async def fetch_data(context: JoinContext, manifest: Manifest) -> Prefetch:
    """Fetch the training data that every member needs; the rest is fetched during training. Raises
    `DiskFull`, and `UserError` (`DISK_FULL`) if the disk limit is too low for the swarm."""
    mirrors = Mirrors(context.disk.mirrors, manifest.data.mirrors)
    fetcher = MirroredFetcher(context.fetcher, context.store, mirrors)
    scarce = None
    if not manifest.data.mirrors:
        # Without mirrors, a peer that leaves could take the last copy of a blob with it.
        scarce = Replication(context.network, context.connected).scarce
    prefetch = Prefetch(
        data=manifest.data,
        store=context.store,
        downloads=context.downloads(fetcher),
        fetcher=fetcher,
        providers=context.connected,
        budget=data_budget(context.disk.max_disk, manifest),
        scarce=scarce,
        has_originals=scarce is not None and manifest.founder == context.me,
    )
    await prefetch.begin()
    return prefetch


async def fetch_base(context: JoinContext, manifest: Manifest) -> None:
    """Fetch the frozen base weights, if the swarm trains adapters and they are not here already.

    Raises `UserError` (`MANIFEST`) for an unusable base model, and `DiskFull`.
    """
    adapter = manifest.adapter
    if adapter is None:
        return
    mirrors = Mirrors(context.disk.mirrors, manifest.data.mirrors)
    downloads = context.downloads(MirroredFetcher(context.fetcher, context.store, mirrors))
    try:
        size = 4 * adapter.base_elements
        await downloads.fetch_blob_list(adapter.base, size, "the base model")
    except ProtocolError as error:
        raise UserError(
            ExitCode.MANIFEST,
            f"the swarm's base model cannot be used: {error}",
            "the founder has to create the swarm again",
        ) from None


def check_not_expelled(ledger: Ledger, me: PeerId) -> None:
    """Raise `UserError` (`EXPELLED`) if the swarm has expelled this identity."""
    expelled = ledger.membership(len(ledger)).expelled
    if me in expelled:
        raise UserError(
            ExitCode.EXPELLED,
            f"the swarm has expelled this node's identity in round {expelled[me]}: it signed "
            "two messages that contradict each other",
            "either the same identity.key is used on two machines, or it was restored from a "
            "backup: stop the other node, move identity.key away and join as a new peer",
        )


def check_invitation(manifest: Manifest, ledger: Ledger, me: PeerId, ticket: bytes) -> None:
    """Raise `UserError` (`NO_TICKET`) if the swarm is by invitation and this node has no valid
    ticket."""
    if me in ledger.membership(len(ledger)):
        return
    if not invited(me, JoinRequest(len(ledger), ticket), manifest):
        what = "this link has none" if not ticket else "the ticket in this link is for another peer"
        raise UserError(
            ExitCode.NO_TICKET,
            f"the swarm {manifest.name!r} admits only peers with a ticket from its founder, and "
            f"{what}",
            "send the founder your peer id (`distro-node id`), and ask for a link made with "
            "`distro-node invite`",
        )


async def _has_peers(context: JoinContext) -> bool:
    """Wait a moment for the network to find a peer; return whether it did."""
    deadline = trio.current_time() + PEER_WAIT_SECONDS
    while trio.current_time() < deadline:
        if any(peer in context.introducer.known.records for peer in context.network.connected()):
            return True
        await trio.sleep(_POLL_SECONDS)
    return False
