"""A swarm of three real nodes: it trains, and goes on whatever happens to its members.

One swarm serves all tests. Each starts with three training nodes, restored if necessary, and ends
with equal parameters at all survivors.
"""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator

import pytest
from distro_node.crypto.envelope import open_envelope
from distro_node.crypto.identity import peer_from_text
from distro_node.node.demo.processes import is_running
from distro_node.node.errors import ExitCode
from distro_node.protocol.chain.replay_start import worth_replaying
from distro_node.protocol.wire.messages import Ballot, Proposal, decode_message
from e2e.program import wait_for
from e2e.support import Node, Swarm, check_agreement, wait_for_round

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

NAMES = ("founder", "second", "third")
SNAPSHOT_INTERVAL = 3


@pytest.fixture(scope="module")
def swarm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Swarm]:
    root = tmp_path_factory.mktemp("swarm")
    with Swarm(root, start_members=3, snapshot_interval=SNAPSHOT_INTERVAL) as swarm:
        swarm.create()
        yield swarm


@pytest.fixture
def nodes(swarm: Swarm) -> list[Node]:
    """Return the three training nodes, with their bootstrap peer."""
    swarm.restore_bootstrap()
    return swarm.start(*NAMES)


def test_a_killed_member_costs_nobody_anything_and_goes_on_as_it_was(
    swarm: Swarm, nodes: list[Node]
) -> None:
    """The bootstrap peer is dead by then, and needed by none of them."""
    founder, second, third = nodes
    for node in nodes:
        wait_for((node.directory.root / "peers.json").exists, "the peers to be remembered")
    swarm.bootstrap.kill()
    wait_for(
        lambda: not any(node.told().line.bootstrap for node in nodes),
        "the nodes to notice that the bootstrap peer is dead",
    )
    trainer, began, me = second.trainer(), founder.round, second.peer
    second.program.kill()
    wait_for(lambda: not is_running(trainer), "the trainer of a dead node to end by itself")
    height = len(second.ledger())
    said = _ballots(swarm, second)
    blobs = {cid: second.blobs.path(cid).stat().st_mtime_ns for cid in second.blobs.ids()}
    wait_for(lambda: founder.events("silent", me, began), "the death to be recorded")
    # Its own snapshots are older then than those that the others keep.
    wait_for_round([founder, third], height + 3 * SNAPSHOT_INTERVAL)
    last = check_agreement([founder, third], 0)
    assert founder.rounds()[last]["members"] == 2
    departed = [
        entry.reason
        for round_ in range(began, last)
        for entry in founder.ledger()[round_].record.departed
        if entry.peer == peer_from_text(me)
    ]
    assert departed == ["silent"]

    second.start()
    wait_for(lambda: second.counted(last), "the restarted node to contribute again")
    assert second.told().node.peer == me
    assert not second.told().line.bootstrap
    check_agreement(nodes)

    # Its votes now never contradict its earlier ones.
    for subject, block in _ballots(swarm, second).items():
        assert said.get(subject, block) == block

    # It fetched nothing again that it had, and only the updates that it had missed.
    ledger = second.ledger()
    earlier = {entry.update for number in range(height) for entry in ledger[number].record.updates}
    for cid in second.blobs.ids():
        if cid in blobs:
            # The node deletes blobs that have become old meanwhile.
            with contextlib.suppress(FileNotFoundError):
                assert second.blobs.path(cid).stat().st_mtime_ns == blobs[cid]
        assert cid in blobs or cid not in earlier
    _check_received(second, second.received(), height)


def test_a_newcomer_is_assigned_work_soon_after_its_admission_and_may_leave(
    swarm: Swarm, nodes: list[Node]
) -> None:
    founder = nodes[0]
    newcomer = swarm.node("newcomer")
    newcomer.start()
    wait_for(lambda: newcomer.counted(), "the newcomer's first contribution")
    text = newcomer.peer
    peer = peer_from_text(text)
    check_agreement([*nodes, newcomer])
    ledger = founder.ledger()
    admitted = [
        number
        for number in range(len(ledger))
        if peer in [entry.peer for entry in ledger[number].record.admitted]
    ]
    contributed = [
        number
        for number in range(len(ledger))
        if peer in [entry.peer for entry in ledger[number].record.updates]
    ]
    # It starts with a quarter of the usual share: in the next round, or, where that is less than a
    # sequence at the others' current capacity, some rounds later.
    due = next(number for number in range(len(ledger)) if peer in ledger.assignments.due(number))
    assert admitted[0] < due <= admitted[0] + 8
    # The swarm does not wait for it: on a slow machine its first update is late.
    assert contributed[0] >= due

    began = founder.round
    newcomer.program.signal(signal.SIGTERM)
    # A node that only becomes silent is recorded as silent.
    wait_for(lambda: founder.events("left", text, began), "the leave to be recorded")
    assert newcomer.program.wait() == ExitCode.OK
    assert not newcomer.program.children()
    assert not founder.events("silent", text, began)


def _check_received(node: Node, received: dict[str, float], height: int) -> None:
    """Check that a node that was at `height` has fetched what it lacked, and no more."""
    ledger = node.ledger()
    missed = {
        entry.update: entry.size
        for number in range(height, len(ledger))
        for entry in ledger[number].record.updates
    }
    print(f"updates since: {sum(missed.values())} bytes; received {received}")
    # The round in progress at the start, or now, may not be among those.
    assert received["update"] <= sum(missed.values()) + 6 * max(missed.values())
    # And no snapshot, unless that was the shorter way; but others may request data from it.
    snapshot = 4 * node.swarm.manifest.elements
    begun = max(-1, height - 2 * SNAPSHOT_INTERVAL)
    is_shorter = not worth_replaying(ledger, begun, snapshot)
    assert received["blob"] <= snapshot * is_shorter + 4000


def test_a_trainer_that_is_killed_is_started_again(nodes: list[Node]) -> None:
    founder, second, _ = nodes
    began = founder.round
    trainer = second.trainer()
    trainer.kill()
    wait_for(lambda: second.told().training.trainer.restarts, "the trainer's death to be noticed")
    after = founder.round
    wait_for(lambda: second.counted(after), "the node to contribute again")
    assert second.trainer() != trainer
    # It was a member throughout.
    assert not [
        *founder.events("silent", second.peer, began),
        *founder.events("left", second.peer, began),
    ]
    assert not second.events("mismatch")
    check_agreement(nodes)


def test_a_second_signal_ends_a_node_at_once(nodes: list[Node]) -> None:
    founder, second, third = nodes
    trainer, lost, began = third.trainer(), third.peer, founder.round
    try:
        # No other node is running to record the leave.
        founder.program.signal(signal.SIGSTOP)
        second.program.signal(signal.SIGSTOP)
        third.program.signal(signal.SIGTERM)
        wait_for(lambda: third.state == "leaving", "the first signal's effect")
        third.program.signal(signal.SIGTERM)
        assert third.program.wait() == ExitCode.INTERRUPTED
    finally:
        founder.program.resume()
        second.program.resume()
    wait_for(lambda: not is_running(trainer), "its trainer to end")
    wait_for(
        lambda: [*founder.events("left", lost, began), *founder.events("silent", lost, began)],
        "the departure to be recorded",
    )
    check_agreement([founder, second])


def test_a_paused_node_gives_the_computer_back_and_returns(swarm: Swarm, nodes: list[Node]) -> None:
    founder, second, third = nodes
    trainer, peer, began = third.trainer(), third.peer, founder.round
    assert swarm.run("pausing", "pause", "--data-dir", third.data.root).wait() == ExitCode.OK
    wait_for(lambda: founder.events("left", peer, began), "the goodbye to be recorded")
    wait_for(lambda: third.state == "paused", "the pause")
    assert not is_running(trainer)
    assert third.told().line.peers == 0
    paused, height, before = founder.round, len(third.ledger()), third.received()
    wait_for_round([founder, second], paused + 2)
    assert swarm.run("resuming", "resume", "--data-dir", third.data.root).wait() == ExitCode.OK
    after = founder.round
    wait_for(lambda: third.counted(after), "the node to contribute again")
    check_agreement(nodes)
    received = {kind: count - before[kind] for kind, count in third.received().items()}
    _check_received(third, received, height)


def test_training_lowers_the_heldout_loss(nodes: list[Node]) -> None:
    founder = nodes[0]
    losses = wait_for(
        lambda: [line["heldout"] for line in founder.history() if "heldout" in line][4:],
        "five measurements of the held-out loss",
    )
    first = next(line["heldout"] for line in founder.history() if "heldout" in line)
    assert losses[-1] < first - 0.5
    for node in nodes:
        bits = node.told().training.own.bits_per_coefficient
        assert bits is not None and bits < 13  # noqa: PT018
        assert node.counted()
    assert any(len(line["counted"]) == 3 for line in founder.rounds().values())
    check_agreement(nodes)


def _ballots(swarm: Swarm, node: Node) -> dict[tuple[str, int, int], bytes]:
    """Return a node's votes, by kind, round and slot; it must never have sent two different ones."""
    said: dict[tuple[str, int, int], bytes] = {}
    for raw in node.signed():
        envelope = open_envelope(raw, swarm=swarm.manifest.swarm)
        message = decode_message(envelope)
        if isinstance(message, Ballot):
            subject, block = (envelope.kind, message.round, message.slot), message.block
        elif isinstance(message, Proposal):
            subject, block = ("proposal", message.record.round, message.slot), message.record.id
        else:
            continue
        assert said.setdefault(subject, block) == block, f"two different ballots for {subject}"
    return said
