"""The public swarms on an observer's page: read from its bootstrap peers, only for visitors."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trio
from distro_node.node.control.command_socket import ask
from distro_node.node.listing import bootstrap_directory
from distro_node.node.listing.bootstrap_directory import BootstrapDirectory
from distro_node.node.listing.entries import LIST_PROTOCOL
from distro_node.node.listing.listing_service import ListingService
from distro_node.node.listing.swarm_list import SwarmList
from distro_node.node.network.errors import NotHere
from distro_node.node.observer import run_observer
from distro_node.node.settings.components import DashboardSettings
from distro_node.node.storage.data_dir import DataDir
from distro_node.protocol.wire.swarm_id import parse_invite, swarm_text
from listing.listed import public, sealed
from listing.test_list_over_network import bootstrap_peer, now, publish
from network.support import identity, networks, star, until
from network.victim import quiet_settings
from observing_bootstrap import get


async def test_the_lists_of_bootstrap_peers_are_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bootstrap_directory, "_FRESH_SECONDS", 0.0)
    manifest = public("mea\u202edow")
    async with star(3) as (me, lists, silent), trio.open_nursery() as nursery:
        ListingService(lists, SwarmList())
        directory, addresses = BootstrapDirectory(), [lists.addresses[0], silent.addresses[0]]
        asked: list[Any] = []

        async def refuse(*arguments: Any) -> bytes:
            asked.append(arguments)
            raise NotHere

        silent.serve(LIST_PROTOCOL, refuse, max_request=1, max_concurrent=1)
        nursery.start_soon(directory.run, me, addresses)
        # Nobody looks, so nobody is asked: by the time of another exchange it would have been.
        await publish(me, lists, sealed(identity(1), manifest.swarm, written=now()), manifest)
        assert asked == []
        rows = await directory.rows()
        assert rows is not None
        (only,) = rows
        assert only["name"] == "mea\\u202edow"
        assert (only["swarm"], only["members"]) == (swarm_text(manifest.swarm), 3)
        assert parse_invite(only["invite"]).bootstrap == (lists.addresses[0],)
        assert len(asked) == 1
        nursery.cancel_scope.cancel()
    # A list that cannot be read any more is shown for a while, as bootstrap peers keep an entry.
    async with networks(1) as (me,), trio.open_nursery() as nursery:
        nursery.start_soon(directory.run, me, addresses)
        assert await directory.rows() == rows
        monkeypatch.setattr(bootstrap_directory, "ENTRY_SECONDS", -1.0)
        assert await directory.rows() is None
        nursery.cancel_scope.cancel()


async def test_without_a_list_there_is_nothing_to_show() -> None:
    async with star(2) as (me, silent), trio.open_nursery() as nursery:
        directory = BootstrapDirectory()
        nursery.start_soon(directory.run, me, [silent.addresses[0]])
        assert await directory.rows() is None
        nursery.cancel_scope.cancel()


async def test_an_observers_page_shows_them(tmp_path: Path) -> None:
    manifest = public()
    async with bootstrap_peer() as addresses, networks(1) as (member,):
        lists: Any = SimpleNamespace(peer=await member.connect(addresses[0]))
        async with trio.open_nursery() as nursery:
            page = DashboardSettings(address=("127.0.0.1", 0), public=True)
            root = tmp_path / "observer"
            DataDir(root).create()
            settings = quiet_settings(manifest, root, bootstrap=(addresses[0],), dashboard=page)
            nursery.start_soon(run_observer, settings)
            await until(DataDir(root).socket.exists)
            answer = await trio.to_thread.run_sync(ask, DataDir(root).socket, "dashboard", 60.0)
            found: Any = None
            while not found:
                entry = sealed(identity(1), manifest.swarm, written=now())
                await publish(member, lists, entry, manifest)
                found = (await get(answer["url"] + "api/directory"))["swarms"]
            assert [each["swarm"] for each in found] == [swarm_text(manifest.swarm)]
            nursery.cancel_scope.cancel()
