"""The list over real connections: members publish, a bootstrap peer keeps, a reader checks."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
from distro_node.crypto.identity import Identity
from distro_node.node.bootstrap import BootstrapSettings, run_bootstrap
from distro_node.node.errors import ExitCode, UserError
from distro_node.node.listing import publisher
from distro_node.node.listing.directory import Directory, read_directory
from distro_node.node.listing.entries import (
    ENTRY_CLOCK_SECONDS,
    LIST_PROTOCOL,
    MANIFEST_PROTOCOL,
    MAX_LISTED_MANIFEST_BYTES,
    MAX_PUBLISH_RESPONSE_BYTES,
    MAX_TOKENS_PER_SECOND,
    PUBLISH_PROTOCOL,
    ListedSwarm,
    PublishRequest,
    SwarmListing,
    decode_publish_response,
    open_entry,
)
from distro_node.node.listing.listing_service import ListingService
from distro_node.node.listing.publisher import ListingPublisher, SwarmState
from distro_node.node.listing.swarm_list import SwarmList
from distro_node.node.network.errors import RequestError
from distro_node.node.network.network import Network, open_network
from distro_node.node.session.session import SwarmSession
from distro_node.node.settings.components import LineSettings
from distro_node.node.storage.data_dir import DataDir
from distro_node.node.storage.monotonic_counter import MonotonicCounter
from distro_node.node.telemetry.telemetry import Telemetry
from distro_node.protocol.wire.manifest import AdmissionSpec, Manifest
from founder import founding
from listing.listed import public, sealed
from network.support import LOOPBACK, identity, networks, star, until
from network.victim import quiet_settings
from simulation import keys
from simulation.whole.trainer import Workshop


async def publish(
    network: Network, to: Network, entry: bytes, manifest: Manifest, *, attached: bool = True
) -> Any:
    data = PublishRequest(manifest.swarm, entry, manifest.encode() if attached else None).encode()
    return decode_publish_response(
        await network.request(
            to.peer, PUBLISH_PROTOCOL, data, max_response=MAX_PUBLISH_RESPONSE_BYTES, timeout=20
        )
    )


def now() -> int:
    return int(time.time())


@asynccontextmanager
async def bootstrap_peer(*, list_swarms: bool = True) -> AsyncIterator[list[str]]:
    settings = BootstrapSettings(
        identity=identity(99),
        line=LineSettings(listen=LOOPBACK.listen),
        list_swarms=list_swarms,
    )
    async with trio.open_nursery() as nursery:
        told: list[str] = []

        async def run() -> None:
            await run_bootstrap(settings, ready=told.extend)

        nursery.start_soon(run)
        await until(lambda: bool(told))
        yield told
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def joining(
    root: Path, who: Identity, manifest: Manifest, bootstrap: tuple[str, ...]
) -> AsyncIterator[SwarmSession]:
    """Run a second member with a toy trainer."""
    data, telemetry, workshop = DataDir(root), Telemetry(who.peer), Workshop(who.peer, 0)
    data.create()
    workshop.seconds = 0.1
    settings = quiet_settings(manifest, root, bootstrap=bootstrap)
    async with open_network(LOOPBACK, who) as network, trio.open_nursery() as nursery:
        session = SwarmSession(settings, data, who, network, telemetry, workshop.start)
        nursery.start_soon(session.run, b"")
        yield session
        nursery.cancel_scope.cancel()


async def test_two_members_are_listed_and_a_hidden_swarm_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publisher, "RENEWAL_SECONDS", 1.0)
    monkeypatch.setattr(publisher, "_SOON_SECONDS", 0.1)
    async with bootstrap_peer() as addresses:
        async with (
            founding(
                tmp_path / "founder",
                (addresses[0],),
                name="meadow",
                admission=AdmissionSpec(public=True),
            ) as founder,
            joining(tmp_path / "second", keys.identity(1), founder.manifest, (addresses[0],)),
        ):
            await until(lambda: founder.members == 2)
            found = Directory()
            while (
                not found.swarms or len(found.swarms[0].entries) < 2 or found.swarms[0].members < 2
            ):
                await trio.sleep(0.2)
                found = await read_directory(addresses, now())
            (only,) = found.swarms
            assert only.manifest == founder.manifest
            assert only.members == 2
            assert only.rounds_done >= 2
            assert only.bootstrap == tuple(sorted(addresses))
            assert {each.publisher for each in only.entries} == {
                keys.identity(0).peer,
                keys.identity(1).peer,
            }
        async with founding(tmp_path / "hidden", (addresses[0],), name="hidden") as founder:
            told = founder.telemetry.round or 0
            await until(lambda: (founder.telemetry.round or 0) > told + 2)
            found = await read_directory(addresses, now())
            assert "hidden" not in {each.manifest.name for each in found.swarms}


async def test_a_bootstrap_peer_lists_only_if_its_owner_says_so() -> None:
    async with bootstrap_peer(list_swarms=False) as addresses:
        with pytest.raises(UserError, match="it lists no swarms") as refused:
            await read_directory(addresses, now())
        assert refused.value.code is ExitCode.NO_BOOTSTRAP
        # The line is sound: it answered.
        assert "--list-swarms" in refused.value.remedy
        assert "connection" not in refused.value.remedy
    with pytest.raises(UserError) as refused:
        await read_directory((), now())
    assert refused.value.code is ExitCode.NO_BOOTSTRAP


async def test_a_manifest_is_asked_for_once_and_checked() -> None:
    manifest, hidden = public(), public(is_public=False)
    async with star(4) as (host, one, two, liar):
        kept = SwarmList()
        ListingService(host, kept)
        first = sealed(identity(2), manifest.swarm)
        assert (await publish(one, host, first, manifest, attached=False)).wants_manifest
        assert not (await publish(one, host, first, manifest)).wants_manifest
        other = sealed(identity(3), manifest.swarm)
        assert not (await publish(two, host, other, manifest, attached=False)).wants_manifest
        with pytest.raises(RequestError, match="not_public"):
            await publish(liar, host, sealed(identity(4), hidden.swarm), hidden)
        assert [each.swarm for each in kept.listing(trio.current_time()).swarms] == [manifest.swarm]


async def test_nobody_publishes_for_another_peer(caplog: pytest.LogCaptureFixture) -> None:
    manifest = public()
    async with star(2) as (host, liar):
        kept = SwarmList()
        ListingService(host, kept)
        # The connection may end before its reason arrives, so that is read where it is decided.
        with pytest.raises(RequestError):
            await publish(liar, host, sealed(identity(9), manifest.swarm), manifest)
        assert "is refused for some minutes: impersonation" in caplog.text
        assert len(kept) == 0


async def test_a_crowd_of_identities_at_one_address_lists_few_swarms() -> None:
    async with star(5) as (host, *liars):
        kept = SwarmList()
        ListingService(host, kept)
        refused = 0
        for seed in range(40):
            liar = liars[seed % len(liars)]
            manifest = public(f"spam {seed}", seed=seed)
            try:
                await publish(liar, host, sealed(identity(2 + seed % 4), manifest.swarm), manifest)
            except RequestError:
                refused += 1
        # Sixteen manifests at once, and no more than eight swarms of one address.
        assert refused >= 20
        assert len(kept) == 8


async def test_a_publisher_whose_numbers_were_lost_goes_on() -> None:
    manifest = public()
    async with star(2) as (host, member):
        kept = SwarmList()
        ListingService(host, kept)
        await publish(member, host, sealed(identity(2), manifest.swarm, 2**40), manifest)
        state = SwarmState(manifest=manifest, members=2, rounds_done=3, tokens_per_second=None)
        numbers = MonotonicCounter()
        publishing = ListingPublisher(member, identity(2), [host.peer], numbers, lambda: state)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(publishing.run)
            await until(
                lambda: (
                    kept.listing(trio.current_time()).swarms[0].entries
                    != (sealed(identity(2), manifest.swarm, 2**40),)
                )
            )
            nursery.cancel_scope.cancel()
        assert numbers.next() > 2**40


@pytest.mark.parametrize("pace", [2.0**63, 2.0**70])
async def test_a_liar_s_tokens_end_no_publisher(pace: float) -> None:
    """A member may announce 2**63 - 1 tokens, and two rounds may be applied within milliseconds."""
    manifest = public()
    async with star(2) as (host, member):
        kept = SwarmList()
        ListingService(host, kept)
        state = SwarmState(manifest=manifest, members=2, rounds_done=3, tokens_per_second=pace)
        publishing = ListingPublisher(
            member, identity(2), [host.peer], MonotonicCounter(), lambda: state
        )
        async with trio.open_nursery() as nursery:
            nursery.start_soon(publishing.run)
            await until(lambda: len(kept) == 1)
            nursery.cancel_scope.cancel()
        (listed,) = kept.listing(trio.current_time()).swarms
        entry = open_entry(listed.entries[0], manifest.swarm)
        assert entry.tokens_per_second == MAX_TOKENS_PER_SECOND


class Lying:
    """A bootstrap peer that serves whatever list and manifests it is given."""

    def __init__(
        self, network: Network, listing: SwarmListing, manifests: dict[bytes, bytes]
    ) -> None:
        async def lists(*_: Any) -> bytes:
            return listing.encode()

        async def gives(_: Any, swarm: bytes) -> bytes:
            return manifests.get(swarm, b"")

        network.serve(LIST_PROTOCOL, lists, max_request=1, max_concurrent=8)
        network.serve(MANIFEST_PROTOCOL, gives, max_request=32, max_concurrent=8)


async def test_a_reader_believes_no_bootstrap_peer() -> None:
    good, hidden = public("good"), public("hidden", is_public=False)
    swapped, stale, unsigned = (
        public("swapped", seed=1),
        public("stale", seed=2),
        public("u", seed=3),
    )
    missing = public("missing", seed=4)
    long_ago = now() - int(ENTRY_CLOCK_SECONDS) - 60
    one, two = identity(11), identity(12)
    listing = SwarmListing(
        (
            # Twice the same publisher: the newer entry counts, once.
            ListedSwarm(
                good.swarm,
                (
                    sealed(one, good.swarm, 1, written=now(), members=900),
                    sealed(one, good.swarm, 2, written=now(), members=4, rounds_done=10**9),
                    sealed(two, good.swarm, written=now(), members=6, tokens_per_second=None),
                    sealed(identity(13), good.swarm, written=long_ago, members=1000),
                ),
            ),
            ListedSwarm(hidden.swarm, (sealed(one, hidden.swarm, written=now()),)),
            ListedSwarm(swapped.swarm, (sealed(one, swapped.swarm, written=now()),)),
            ListedSwarm(stale.swarm, (sealed(one, stale.swarm, written=long_ago),)),
            ListedSwarm(unsigned.swarm, (sealed(one, good.swarm, written=now()),)),
            ListedSwarm(missing.swarm, (sealed(one, missing.swarm, written=now()),)),
        )
    )
    manifests: dict[bytes, bytes] = {
        each.swarm: each.encode() for each in (good, hidden, stale, unsigned)
    }
    manifests[swapped.swarm] = good.encode()
    async with networks(1) as (host,):
        Lying(host, listing, manifests)
        found = await read_directory(host.addresses, now())
    (only,) = found.swarms
    assert only.manifest == good
    assert {(each.publisher, each.members) for each in only.entries} == {
        (one.peer, 4),
        (two.peer, 6),
    }
    assert (only.members, only.tokens_per_second) == (4, 1000)
    # No more rounds than the run has.
    assert only.rounds_done <= 1000
    assert found.unusable == 5


async def test_too_large_a_manifest_is_neither_sent_nor_taken() -> None:
    large = public(task_settings={"x": ["y" * 1000] * 300})
    assert len(large.encode()) > MAX_LISTED_MANIFEST_BYTES
    state = SwarmState(manifest=large, members=2, rounds_done=3, tokens_per_second=None)
    async with star(2) as (host, member):
        kept = SwarmList()
        ListingService(host, kept)
        publishing = ListingPublisher(
            member, identity(2), [host.peer], MonotonicCounter(), lambda: state
        )
        # It ends, with one line in the log.
        await publishing.run()
        assert len(kept) == 0
