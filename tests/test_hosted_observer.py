"""A bootstrap peer follows one of its swarms and shows it, with one identity and over one network."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

import pytest
import trio
from distro_node.crypto.hashing import content_id
from distro_node.crypto.identity import PeerId, peer_text
from distro_node.node.bootstrap import BootstrapSettings, run_bootstrap
from distro_node.node.errors import ExitCode, UserError
from distro_node.node.listing import own_directory, publisher
from distro_node.node.network.discovery.introductions import Introducer
from distro_node.node.network.network import open_network
from distro_node.node.settings.components import DashboardSettings, LineSettings
from distro_node.protocol.chain.sync import MAX_SYNC_REQUEST_BYTES, SYNC_PROTOCOL
from distro_node.protocol.wire.errors import ProtocolError
from distro_node.protocol.wire.manifest import AdmissionSpec, SwarmId
from distro_node.protocol.wire.swarm_id import parse_invite, swarm_text
from founder import founding
from network.support import LOOPBACK, identity, until
from network.victim import quiet_settings
from observing_bootstrap import BOOTSTRAP, get, introducing, shown, shown_once
from simulation.whole.trainer import toy_swarm


async def test_its_page_shows_the_swarm(tmp_path: Path) -> None:
    async with introducing(tmp_path / "bootstrap") as peer:
        before = await peer.status()
        manifest, _, _ = toy_swarm(min_seconds=0.2)
        assert before.observes == swarm_text(manifest.swarm)
        assert before.dashboard is not None
        assert await peer.ask("dashboard") == {"url": before.dashboard, "link": None}
        page = before.dashboard
        async with founding(tmp_path / "founder", (peer.address,)) as founder:
            status = await shown_once(page, lambda status: status["state"] == "observing")
            then = status["training"]["round"] + 2
            status = await shown_once(page, lambda status: status["training"]["round"] >= then)
            assert status["node"]["peer"] == peer_text(BOOTSTRAP.peer)
            (member,) = status["swarm"]["members"]
            assert (member["peer"], member["connected"]) == (peer_text(founder.network.peer), True)
            assert status["line"]["peers"] == 1
            # It is not a member of the swarm, and its link leads newcomers to it.
            assert founder.members == 1
            link = parse_invite((await get(page + "api/invitation"))["link"])
            assert link.swarm == manifest.swarm
            assert peer.address in link.bootstrap
            with pytest.raises(HTTPError, match="403"):
                await get(page + "api/act/leave", b"{}")


async def test_its_page_shows_the_list_that_it_keeps_and_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publisher, "_SOON_SECONDS", 0.1)
    monkeypatch.setattr(own_directory, "_FRESH_SECONDS", 0.1)
    run = {"name": "a\u202eb", "admission": AdmissionSpec(public=True)}
    async with introducing(tmp_path / "bootstrap", list_swarms=True, **run) as peer:
        page = (await peer.status()).dashboard
        assert page is not None
        async with founding(
            tmp_path / "founder", (peer.address,), display_name="Ada", **run
        ) as founder:
            swarms: list[Any] = []
            while not swarms:
                swarms = (await get(page + "api/directory"))["swarms"]
            (only,) = swarms
            assert only["swarm"] == swarm_text(founder.manifest.swarm)
            assert only["name"] == "a\\u202eb"
            assert only["members"] == 1
            assert peer.address in parse_invite(only["invite"]).bootstrap
            names: dict[str, str] = {}
            while not names:
                await trio.sleep(0.1)
                names = await get(page + "api/names")
            assert names == {peer_text(founder.network.peer): "Ada"}
    async with introducing(tmp_path / "other") as peer:
        page = (await peer.status()).dashboard
        assert page is not None
        assert await get(page + "api/directory") == {"swarms": None}


async def test_peers_of_other_swarms_are_asked_nothing(tmp_path: Path) -> None:
    """They would take a question about this swarm for an offence."""
    other, asked = SwarmId(content_id(b"another swarm")), list[PeerId]()

    async def refuse(peer: PeerId, data: bytes) -> bytes:
        asked.append(peer)
        raise ProtocolError("wrong_swarm", "a sync request of another swarm")

    async with (
        introducing(tmp_path / "bootstrap") as peer,
        open_network(LOOPBACK, identity(1)) as stranger,
        trio.open_nursery() as nursery,
    ):
        stranger.serve(SYNC_PROTOCOL, refuse, max_request=MAX_SYNC_REQUEST_BYTES, max_concurrent=8)
        introducer = Introducer(stranger, identity(1), other, (peer.address,))
        nursery.start_soon(introducer.run)
        await introducer.first_contact()
        async with founding(tmp_path / "founder", (peer.address,)):
            history = tmp_path / "bootstrap" / "swarms"
            # By the second check it has asked every peer that it asks at all, more than once.
            await until(lambda: len(_rounds(history)) >= 3)
        assert stranger.connected() >= {BOOTSTRAP.peer}
        assert asked == []
        nursery.cancel_scope.cancel()


def _rounds(swarms: Path) -> set[int]:
    found = set()
    for path in swarms.glob("*/history.jsonl"):
        found |= {json.loads(line)["round"] for line in path.read_text().splitlines()}
    return found


async def test_it_does_not_call_itself(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The swarm's links name the bootstrap peer that follows it."""
    address = f"/ip4/127.0.0.1/tcp/4001/p2p/{peer_text(BOOTSTRAP.peer)}"
    async with introducing(tmp_path / "bootstrap", bootstrap=(address,)) as peer:
        status = await peer.status()
        assert status.dashboard is not None
        with caplog.at_level("WARNING"):
            await until(lambda: "there is no peer to ask about this swarm" in caplog.text)
        assert address not in caplog.text


async def test_what_keeps_it_from_following_does_not_end_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    tries = 0

    async def run(session: Any, ticket: bytes) -> None:
        nonlocal tries
        tries += 1
        async with trio.open_nursery():
            raise [
                UserError(ExitCode.FINAL, "the link means another record", "ask for a new link"),
                OSError(28, "No space left on device", str(tmp_path)),
            ][tries % 2]

    monkeypatch.setattr("distro_node.node.observer.ObserverSession.run", run)
    monkeypatch.setattr("distro_node.node.hosted_observer._RETRY_SECONDS", 0.05)
    async with introducing(tmp_path / "bootstrap") as peer:
        await until(lambda: tries >= 4)
        url = (await peer.status()).dashboard
        assert url is not None
        status = await shown(url)
    assert status["progress"]["what"].startswith("the swarm cannot be followed: ")
    assert "ask for a new link" in caplog.text
    assert "the disk is full" in caplog.text


async def test_a_page_that_cannot_be_served_is_reported_at_the_start(tmp_path: Path) -> None:
    manifest, _, _ = toy_swarm()
    page = DashboardSettings(address=("192.0.2.1", 0), public=True, allow_plain=True)
    settings = BootstrapSettings(
        identity=BOOTSTRAP,
        line=LineSettings(listen=LOOPBACK.listen),
        observe=quiet_settings(manifest, tmp_path, dashboard=page),
    )
    with pytest.raises(UserError, match=r"at 192\.0\.2\.1") as caught:
        await run_bootstrap(settings, ready=lambda _: None)
    assert caught.value.code is ExitCode.ADDRESS_MISSING
