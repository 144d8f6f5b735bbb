"""Updates: which peers to ask, and when to stop asking."""

from __future__ import annotations

import pytest
from distro_node.crypto.hashing import content_id
from distro_node.protocol.member.effects import FetchUpdate
from distro_node.protocol.member.inputs import LeaveRequested, UpdateBad, UpdateHeld, UpdatesGone
from distro_node.protocol.member.update_fetch import UpdateDownloads
from simulation.chain import Chain
from simulation.keys import identity
from simulation.node import Disk
from simulation.swarm import Swarm, toy_manifest

UPDATE = content_id(b"an update")


@pytest.fixture(scope="module")
def chain() -> Chain:
    """Return nine rounds of four members, one of which has left; the state of round 5 is certified."""
    chain = Chain(4, snapshot_interval=5)
    while chain.round < 8:
        chain.grow()
    chain.grow(departed=[chain.leave(chain.membership.peers[0])])
    return chain


def wanted(chain: Chain, round_: int) -> FetchUpdate:
    return FetchUpdate(round_, chain.membership.peers[0], UPDATE, 100)


def test_the_author_comes_first_then_members_then_who_was_one(chain: Chain) -> None:
    one, *others = chain.membership.peers
    gone = next(identity(n).peer for n in range(4) if identity(n).peer not in chain.membership)
    asked = UpdateDownloads().providers(
        wanted(chain, 8), chain.ledger, [identity(70).peer, gone, *others, one]
    )
    assert asked == [one, *others, gone]
    assert UpdateDownloads().providers(wanted(chain, 8), chain.ledger, [gone, *others]) == [
        *others,
        gone,
    ]


def test_what_a_snapshot_contains_is_not_waited_for(chain: Chain) -> None:
    fetching = UpdateDownloads()
    assert fetching.in_vain(wanted(chain, 5), chain.ledger, 2) == [UpdatesGone(5)]
    assert fetching.in_vain(wanted(chain, 6), chain.ledger, 2) == []
    assert fetching.is_needed(6, chain.ledger, 2)
    assert not fetching.is_needed(6, chain.ledger, 6)


def test_bytes_that_were_here_before_stay_though_they_are_no_update(chain: Chain) -> None:
    fetching, update = UpdateDownloads(), wanted(chain, 8)
    assert fetching.begin(update, stored=True)
    assert not fetching.begin(update, stored=False)
    verdict = fetching.arrived(update, decodes=False)
    assert (verdict.report, verdict.discard) == (UpdateBad(UPDATE), False)
    fetching.end(update)
    assert fetching.begin(update, stored=False)
    verdict = fetching.arrived(update, decodes=False)
    # Otherwise a liar fills the disk; its announcer is to blame.
    assert (verdict.discard, verdict.culprit) == (True, update.peer)
    assert fetching.arrived(update, decodes=True).report == UpdateHeld(UPDATE)


def test_what_is_applied_is_not_asked_for_nor_anything_while_a_state_is_loaded(
    chain: Chain,
) -> None:
    """A state contains some of the updates, and needs the line: on a slow one they kept each other
    waiting, until no peer had either any more."""
    update = wanted(chain, 2)
    found = [UpdateDownloads().continues(update, applied) for applied in (1, 2, 3)]
    assert found == [True, False, False]
    assert not UpdateDownloads().continues(update, 1, loaded=False)


def test_a_lone_member_that_lost_its_updates_gets_them_from_who_has_left() -> None:
    """That may have the only copy, even of the member's own update."""
    swarm = Swarm(toy_manifest(start_members=2, snapshot_interval=100))
    stays, leaves = swarm.add(0), swarm.add(1)
    swarm.run_until(lambda: leaves.member.view.applied_round >= 4, 60)
    leaves.tell(LeaveRequested())
    swarm.run_until(lambda: set(stays.member.view.members) == {stays.peer}, 60)

    def level() -> bool:
        heights = {node.member.view.applied_round + 1 for node in swarm.alive}
        return heights == {stays.member.view.round}

    swarm.run_until(level, 60)
    stays.stop()
    before = stays.disk
    disk = Disk(entries=list(before.entries), said=list(before.said), salt=before.salt)
    again = swarm.add(0, disk)
    swarm.run_until(lambda: again.member.view.applied_round > len(before.entries), 60)
