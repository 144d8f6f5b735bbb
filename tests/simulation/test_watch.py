"""What the watch's own checks report as a fault."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import pytest
from distro_node.crypto.envelope import verify_detached
from distro_node.crypto.hashing import content_id
from distro_node.crypto.identity import PeerId
from distro_node.protocol.wire.encoding import encode
from distro_node.protocol.wire.membership import Votes
from distro_node.protocol.wire.messages import NO_BLOCK, Record, RecordId, UpdateEntry
from simulation.invariants import Violation, Watch
from simulation.keys import identity
from simulation.oracle import Judgement
from simulation.whole.liars import LyingNetwork

# Private here: `_swarm`, `_cast`, `_exclude_each_other`, `_check_one_chain`: the observations of a check
# are made up. No seed of thousands produces two decisions of which one rests on silence.
# Private here: `_update_of`, `_announced`, `_machine`, `_dice`, `_varied`: a lie without a swarm.

PARENT = RecordId(b"p" * 32)
BLOCKS = RecordId(b"1" * 32), RecordId(b"2" * 32)
PEERS = [PeerId(bytes([number]) * 32) for number in range(3)]
ONE_EACH = Votes(dict.fromkeys(PEERS, 1), equal=True)


def watch_of(skipped: int) -> Watch:
    """Return a watch that saw `skipped` members skip slot 2, and nothing else."""
    watch = object.__new__(Watch)
    swarm: Any = SimpleNamespace(manifest=SimpleNamespace(fault_model="crash"))
    watch._swarm = swarm
    watch._cast = {(PARENT, 2, "skip"): {NO_BLOCK: {peer: {0} for peer in PEERS[:skipped]}}}
    return watch


@pytest.mark.parametrize(
    ("slots", "skipped", "excluded"),
    [
        # A full quorum of three skipped what another full quorum decided.
        ((2, 4), 2, True),
        ((4, 2), 3, True),
        # One alone did, by calling the others silent.
        ((2, 4), 1, False),
        ((1, 4), 3, False),
        # Two records in one slot, whichever members skipped.
        ((2, 2), 0, True),
    ],
)
def test_two_decisions_of_full_quorums(
    slots: tuple[int, int], skipped: int, excluded: bool
) -> None:
    assert watch_of(skipped)._exclude_each_other(PARENT, *slots, votes=ONE_EACH) is excluded


@pytest.mark.parametrize("skipped", [1, 2])
def test_a_decision_that_rests_on_silence_is_distinguished_from_one_that_does_not(
    skipped: int,
) -> None:
    """Of two siblings decided in slots 2 and 4 none is a fault where one member skipped slot 2 alone."""
    watch = watch_of(skipped)
    watch.cut, watch.forks_explained = False, True
    judgements = {
        block: [Judgement("", frozenset(), 2, ONE_EACH, slot)]
        for block, slot in zip(BLOCKS, (2, 4), strict=True)
    }
    chains: Any = SimpleNamespace(children={PARENT: judgements}, votes=lambda _: ONE_EACH)
    watch.chains = chains
    node: Any = None
    record: Any = SimpleNamespace(parent=PARENT, id=BLOCKS[1])
    if skipped == 1:
        watch._check_one_chain(node, record, "the second")
        return
    with pytest.raises(Violation) as told:
        watch._check_one_chain(node, record, "the second")
    assert told.value.invariant == "one chain"
    assert set(told.value.concerned) == set(BLOCKS)


def test_the_watch_sees_an_announcement_that_is_only_in_a_liars_record() -> None:
    """Otherwise it takes a vote for a record that rightly accuses the liar for an incomplete one."""
    watch, liar = object.__new__(Watch), object.__new__(LyingNetwork)
    watch._update_of, watch._announced = {}, {}
    manifest: Any = SimpleNamespace(swarm=b"s" * 32)
    swarm: Any = SimpleNamespace(manifest=manifest, watch=watch)
    machine: Any = SimpleNamespace(identity=identity(1))
    liar._swarm, liar._machine, liar._dice = swarm, machine, random.Random(1)
    liar.peer = identity(1).peer
    entry = UpdateEntry(liar.peer, content_id(b"update"), 1000, 100, 2.0, bytes(64))
    record = Record(3, PARENT, 7, (entry,), (), (), None)
    varied = liar._varied(entry, record)
    said = record.announcement(varied)
    assert said.tokens != entry.tokens
    assert watch._announced[PARENT, liar.peer] == {varied.signature: said}
    assert verify_detached(
        "announcement", manifest.swarm, liar.peer, encode(said), varied.signature
    )
