"""An observer follows a swarm's decisions and shows them without taking part."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
from distro_node.crypto.identity import Identity, peer_text
from distro_node.node.dashboard.run_history import RunHistory
from distro_node.node.network.network import open_network
from distro_node.node.observer import ObservedRounds, ObserverSession, first_new_round, public_link
from distro_node.node.settings.tree import DaemonSettings
from distro_node.node.storage.data_dir import DataDir
from distro_node.node.telemetry.telemetry import Telemetry
from distro_node.protocol.wire.swarm_id import Invite, parse_invite
from founder import Founder, founding
from network.support import LOOPBACK, until
from network.victim import quiet_settings
from simulation.chain import Chain, by_invitation
from simulation.keys import identity


@asynccontextmanager
async def observing(
    founder: Founder, root: Path, me: Identity
) -> AsyncIterator[tuple[ObserverSession, Telemetry]]:
    data, telemetry = DataDir(root), Telemetry(me.peer)
    data.create()
    settings = quiet_settings(founder.manifest, root, bootstrap=(founder.network.addresses[0],))
    async with open_network(LOOPBACK, me) as network, trio.open_nursery() as nursery:
        session = ObserverSession(settings, data, me, network, telemetry)
        nursery.start_soon(session.run, b"")
        await until(lambda: telemetry.state == "observing")
        yield session, telemetry
        session.leave()


async def test_it_follows_shows_and_takes_no_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("distro_node.node.observer._RETRY_SECONDS", 0.2)
    me = Identity.generate()
    async with founding(tmp_path / "founder") as founder:
        async with observing(founder, tmp_path / "observer", me) as (session, telemetry):
            began = telemetry.round or 0
            await until(lambda: (telemetry.round or 0) >= began + 3)
            swarm = session.status().swarm
            assert swarm is not None
            assert [each.peer for each in swarm.members or ()] == [peer_text(identity(0).peer)]
            assert swarm.decided_seconds is not None
            assert telemetry.loss is not None
            assert founder.members == 1
            # Otherwise the alert for a node without peers would fire for ever.
            assert session.status().line.peers == 1
        # It was asked to end, and ended by itself; the founder goes on.
        assert session.leave_requested
        round_ = founder.telemetry.round or 0
        await until(lambda: (founder.telemetry.round or 0) > round_)
    files = DataDir(tmp_path / "observer").swarm(founder.manifest.swarm)
    history = RunHistory(founder.manifest.founder, peer_text(me.peer), files.ledger, files.history)
    while history.refresh():
        pass
    rows = history.everything()["rows"]
    assert rows["round"][-1] >= began + 3
    # It cannot know when earlier rounds were decided, but does for those since its start.
    assert rows["time"][began] is None
    assert rows["time"][began + 3] is not None
    assert not any("checkpoint" in path.name for path in files.root.iterdir())
    lines = [json.loads(line) for line in files.history.read_text().splitlines()]
    assert [line["round"] for line in lines] == list(range(began + 1, began + 1 + len(lines)))


async def test_what_it_knows_outlives_it(tmp_path: Path) -> None:
    me = Identity.generate()
    async with founding(tmp_path / "founder") as founder:
        async with observing(founder, tmp_path / "observer", me) as (_, telemetry):
            known = telemetry.round or 0
        async with observing(founder, tmp_path / "observer", me) as (_, telemetry):
            assert (telemetry.round or 0) >= known


def test_it_reports_from_where_on_its_chain_is_another() -> None:
    chain = Chain(3)
    for _ in range(4):
        chain.grow(updates=[])
    ledger = chain.ledger
    before = ledger.truncated(3)
    assert first_new_round(ledger, len(before), before.head) == 3
    other = Chain(3)
    other.grow(updates=[], fingerprint=99)
    assert first_new_round(other.ledger, len(before), before.head) == 0
    for _ in range(4):
        other.grow(updates=[])
    assert first_new_round(other.ledger, len(before), before.head) == 0


def test_a_chain_that_replaces_another_is_reported_from_where_they_part() -> None:
    chain, other = Chain(3), Chain(3)
    for each in (chain, other):
        for _ in range(4):
            each.grow(updates=[each.update(0, tokens=100)])
    chain.grow(updates=[chain.update(0, tokens=100)])
    for _ in range(3):
        other.grow(updates=[other.update(1, tokens=100)])
    telemetry = Telemetry(identity(0).peer)
    telemetry.caught_up(0)
    observed = ObservedRounds(telemetry, 0.0)
    observed.report(chain.ledger, 0, 50.0)
    before = telemetry.status().tokens
    # 0 stands for another chain, as `first_new_round` returns it.
    observed.report(other.ledger, 0, 51.0)
    assert telemetry.status().tokens == before + 300
    # Three rounds in a second are no pace.
    assert telemetry.status().round_seconds is None
    other.grow(updates=[other.update(1, tokens=100)])
    observed.report(other.ledger, len(other.ledger) - 1, 60.0)
    other.grow(updates=[other.update(1, tokens=100)])
    observed.report(other.ledger, len(other.ledger) - 1, 70.0)
    assert telemetry.status().round_seconds == 10


def test_rounds_learned_after_an_outage_have_the_pace_of_the_swarm() -> None:
    """For five minutes no peer could be reached; then thirty rounds come at once."""
    chain, telemetry = Chain(3), Telemetry(identity(0).peer)
    telemetry.caught_up(0)
    observed = ObservedRounds(telemetry, 0.0)
    observed.report(chain.ledger, 0, 1.0)
    for second in range(4, 300, 3):
        observed.report(chain.ledger, len(chain.ledger), second)
    for _ in range(30):
        chain.grow(updates=[chain.update(0, tokens=1000)])
    observed.report(chain.ledger, len(chain.ledger) - 30, 301.0)
    status = telemetry.status()
    assert status.round_seconds == pytest.approx(10)
    assert status.tokens_per_second == pytest.approx(100)


def test_the_link_for_everybody_holds_no_ticket() -> None:
    chain = Chain(0)
    address = "/ip4/127.0.0.1/tcp/4001/p2p/" + peer_text(identity(0).peer)
    settings = DaemonSettings(
        invite=Invite(swarm=chain.manifest.swarm, bootstrap=(address,), ticket="t" * 86),
        data_dir=Path(),
    )
    link = public_link(settings.full_invite, chain.manifest)
    assert link is not None
    invite = parse_invite(link)
    assert (invite.swarm, invite.bootstrap, invite.ticket) == (settings.swarm, (address,), None)
    _, policy = by_invitation()
    assert public_link(settings.full_invite, Chain(0, admission=policy).manifest) is None
