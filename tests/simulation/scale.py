"""The good case at any size: the cost of deciding a round in time, messages, bytes and CPU time.

Nothing goes wrong here, so the protocol's own cost is measured. Also how its deadlines adapt to lines
and machines as different as a home network and volunteers all over the world.
"""

from __future__ import annotations

import itertools
import statistics
import time
from dataclasses import dataclass
from typing import Any

from distro_node.protocol.chain.ledger import Ledger
from distro_node.protocol.wire.encoding import encode
from distro_node.protocol.wire.manifest import AdmissionSpec
from distro_node.protocol.wire.messages import (
    AdmissionEntry,
    Ballot,
    Certificate,
    Decided,
    JoinRequest,
    Record,
    SignedBallot,
)
from simulation.keys import identity
from simulation.message_cache import shared_reading
from simulation.network import HOME, LAN, Links
from simulation.oracle import least_quorum
from simulation.swarm import Swarm
from simulation.toy import INITIAL, toy_manifest

UPDATE_BYTES = 2_800_000
"""Update size of the 1.2B model."""
FIBRE = Links(latency_min=0.01, latency_max=0.12, up=125e6, down=125e6)


@dataclass(frozen=True)
class GoodCase:
    """Averages over rounds in which nothing goes wrong."""

    members: int
    rounds: int
    one_way: float
    """Seconds from sending a ballot to a member's receiving it, the median over pairs."""
    decide: float
    """Seconds from the last update's arrival, at the leader and a quorum, to a member's decision: the
    median over members and rounds."""
    decide_delays: float
    """The same in one-way delays."""
    messages: float
    """Messages that a member sends in a round."""
    said_bytes: float
    """Bytes of these messages."""
    gossip_bytes: float
    """Bytes of gossip that a member sends in a round, forwarding included."""
    update_bytes: float
    """Bytes of updates that a member receives in a round."""
    share: float
    """Fraction of protocol bytes in all bytes."""
    processor: float
    """CPU seconds for a round of the whole swarm, simulator included."""


def run_good_case(count: int, *, rounds: int | None = None, links: Links = FIBRE) -> GoodCase:
    """Measure `count` members. All are members from the start."""
    rounds = rounds or (8 if count <= 64 else 2 if count <= 256 else 1)
    manifest = toy_manifest(
        start_members=min(count, 256),
        sequences=max(64, count),
        snapshot_interval=1000,
        lease_min_seconds=120.0,
        collect_max_seconds=600.0,
        slot_min_seconds=10.0,
        admission=AdmissionSpec(max_members=max(256, count)),
    )
    swarm = Swarm(manifest, 1, links=links, update_bytes=UPDATE_BYTES)
    swarm.tick_seconds = 0.25 if count <= 64 else 1.0
    swarm.training_seconds = 5.0
    if count > 64:
        swarm.trace.mute()
    began_with = [_first_entry(swarm, count)]
    for index in range(count):
        node = swarm.prepare(index)
        node.disk.entries = list(began_with)
    for node in swarm.nodes:
        node.start()
    with shared_reading():
        # The first round is not counted, except for a thousand members, where it takes minutes.
        first = 1 if count <= 256 else 0
        if first:
            _until(swarm, first)
        network = swarm.network
        network.messages = network.gossip_bytes = network.update_bytes = network.other_bytes = 0
        network.said_bytes = 0
        began = time.process_time()
        _until(swarm, first + rounds)
        spent = time.process_time() - began
    watch = swarm.watch
    waits = [
        at - began_at
        for decided in watch.chains.records.values()
        if first < decided.record.round <= first + rounds
        and (began_at := watch.ready(decided)) is not None
        for at in watch.decisions[decided.record.id]
    ]
    one_way = network.typical_delay(300)
    share = count * rounds
    gossip = (network.gossip_bytes + network.other_bytes) / share
    updates = network.update_bytes / share
    decide = statistics.median(waits)
    return GoodCase(
        members=count,
        rounds=rounds,
        one_way=one_way,
        decide=decide,
        decide_delays=decide / one_way,
        messages=network.messages / share,
        said_bytes=network.said_bytes / share,
        gossip_bytes=gossip,
        update_bytes=updates,
        share=gossip / (gossip + updates),
        processor=spent / rounds,
    )


def pace_table() -> list[dict[str, Any]]:
    """Return the deadlines after a dozen rounds, for swarms with the same settings. Also print them."""
    rows = []
    print(f"{'swarm':34} {'round':>8} {'collect':>9} {'slot':>7} {'lease':>8}  (seconds)")
    for name, count, links, training, size in (
        ("4 members on a LAN, 0.4 s a step", 4, LAN, 0.4, 100_000),
        ("64 members on home lines, 20 s", 64, HOME, 20.0, UPDATE_BYTES),
    ):
        manifest = toy_manifest(start_members=count, collect_max_seconds=600.0)
        swarm = Swarm(manifest, 1, links=links, update_bytes=size)
        swarm.training_seconds = training
        for index in range(count):
            swarm.add(index)
        with shared_reading():
            _until(swarm, 12 if count < 10 else 6)
        pacing = swarm.nodes[1].member.parts.timeouts
        decided = sorted(swarm.watch.decided_at.values())
        row = {
            "swarm": name,
            "round": statistics.median(b - a for a, b in itertools.pairwise(decided[2:])),
            "collect": pacing.collect,
            "slot": pacing.slot(1),
            "lease": pacing.lease,
        }
        rows.append(row)
        print(
            f"{name:34} {row['round']:8.2f} {row['collect']:9.2f} {row['slot']:7.2f} "
            f"{row['lease']:8.2f}"
        )
    return rows


def _until(swarm: Swarm, round_: int) -> None:
    clock = swarm.clock
    nodes = swarm.nodes
    while True:
        for _ in range(len(nodes)):
            clock.step()
        if all(node.member.view.round > round_ for node in nodes):
            return


def _first_entry(swarm: Swarm, count: int) -> Decided:
    """Return round 0, in which the founder admits all members: one ballot is a quorum there."""
    manifest, keys = swarm.manifest, swarm.keys
    request = JoinRequest(0, b"")
    body = encode(request)
    entries = [
        AdmissionEntry(
            identity(index).peer, request, keys.sign(index, "join", manifest.swarm, body)
        )
        for index in range(1, count)
    ]
    fresh = Ledger(manifest, verify=keys.verify)
    record = Record(
        round=0,
        parent=fresh.head,
        fingerprint=INITIAL,
        updates=(),
        admitted=tuple(sorted(entries, key=lambda entry: entry.peer)),
        departed=(),
        snapshot=None,
    )
    mask = fresh.membership(0).mask(())
    ballot = Ballot(0, fresh.head, 1, record.id, mask)
    signature = keys.sign(0, "finalize", manifest.swarm, encode(ballot))
    assert least_quorum(manifest.fault_model, 1) == 1
    signed = SignedBallot(identity(0).peer, mask, signature)
    decided = Decided(record, Certificate("finalize", 0, fresh.head, 1, record.id, (signed,)))
    swarm.watch.chains.add(decided)
    return decided
