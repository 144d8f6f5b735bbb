"""Members take every transition in the table of states and no other; the document shows this table."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import pytest
from distro_node.protocol.member.inputs import (
    Applied,
    EntryReceived,
    Input,
    LeaveRequested,
    Loaded,
    MessageReceived,
    Rebased,
    Recalled,
    Tick,
    UpdateHeld,
)
from distro_node.protocol.member.member import Member
from distro_node.protocol.member.states import (
    MEANINGS,
    TRANSITIONS,
    MemberState,
)
from distro_node.protocol.wire.manifest import CLOSING_ROUNDS, ScheduleSpec
from distro_node.protocol.wire.messages import BALLOT_KINDS, Proposal
from seeds import seeds
from simulation.chain import FINGERPRINT, Chain
from simulation.node import Node
from simulation.swarm import Swarm, toy_manifest
from state_diagrams import cast_sets, diagrams

STRANGER = 20


class Stage:
    """Member of a chain in some state, and the chain to extend it.

    `unsure` members do not know their earlier messages; with all updates there, they are ready at once.
    """

    def __init__(
        self, state: MemberState, who: int, *, unsure: bool = False, ends: bool = False
    ) -> None:
        """With `ends` the chain belongs to a finished run."""
        schedule = ScheduleSpec(warmup_rounds=0, total_rounds=1) if ends else ScheduleSpec()
        self.chain = Chain(4, schedule=schedule)
        self.chain.grow()
        self.other = self.chain.fork()
        self.closing = {"updates": [], "snapshot": self.chain.snapshot(1)} if ends else {}
        if ends:
            self.end(self.chain)
        self.who = who
        self.steps: list[MemberState] = []
        recall = state == "recalling" or unsure
        self.member: Member = self.chain.member(who, recall=recall, load=False)
        if state == "applying":
            self.member.handle(Loaded(0, FINGERPRINT, None), 0.0)
        elif state != "loading":
            self.member.handle(Loaded(self.chain.round - 1, FINGERPRINT, None), 0.0)
        if state == "agreeing" or (state == "recalling" and unsure):
            self.gather()
        if state in ("leaving", "left"):
            self.member.handle(LeaveRequested(), 0.0)

    def end(self, chain: Chain, **parts: Any) -> None:
        """Decide the rounds without training."""
        chain.grow(**self.closing, **parts)
        for _ in range(CLOSING_ROUNDS - 1):
            chain.grow(updates=[])

    def gather(self) -> None:
        for peer in self.chain.membership.peers:
            said = self.chain.announcement(peer)
            # Its own, too: sent before a restart, and remembered by others.
            self.member.handle(
                MessageReceived(self.chain.envelope(peer, "announcement", said)), 0.0
            )
            self.member.handle(UpdateHeld(said.update), 0.0)

    # What may happen

    def is_loaded(self) -> None:
        self.member.handle(Loaded(self.chain.round - 1, FINGERPRINT, None), 0.0)

    def is_loaded_late(self) -> None:
        self.member.handle(Loaded(0, FINGERPRINT, None), 0.0)

    def has_applied(self) -> None:
        for round_ in range(self.member.view.applied_round + 1, self.chain.round):
            for entry in self.chain.ledger[round_].record.updates:
                self.member.handle(UpdateHeld(entry.update), 0.0)
            self.member.handle(Applied(round_, FINGERPRINT, None), 0.0)

    def has_recalled(self) -> None:
        self.member.handle(Recalled(self.member.view.round), 0.0)

    def has_gathered(self) -> None:
        self.gather()

    def is_loaded_with_all_there(self) -> None:
        self.gather()
        self.is_loaded()

    def has_applied_with_all_there(self) -> None:
        self.gather()
        self.has_applied()

    def decides(self, **parts: Any) -> None:
        self.member.handle(EntryReceived(self.chain.grow(**parts)), 0.0)
        self.steps.append(self.member.view.state)

    def counts_out(self) -> None:
        self.decides(departed=[self.chain.leave(self.who)] if self.who != STRANGER else [])

    def expels(self) -> None:
        if self.who != STRANGER:
            self.decides(evidence=(self.chain.evidence(self.who),))
            return
        # It was a member once, and left before the proof was recorded.
        self.decides(admitted=[self.chain.admission(self.who)])
        proof = self.chain.evidence(self.who)
        self.decides(departed=[self.chain.silence(self.who)])
        self.has_applied()
        self.steps.append(self.member.view.state)
        self.decides(evidence=(proof,))

    def leaves(self) -> None:
        self.member.handle(LeaveRequested(), 0.0)

    def is_removed_and_leaves(self, *, all_there: bool = False) -> None:
        """It is at work, so it does not follow the decision that calls it silent until it leaves."""
        if self.who == STRANGER:
            return
        self.decides()
        self.has_applied()
        self.steps.append(self.member.view.state)
        if all_there:
            self.gather()
            self.steps.append(self.member.view.state)
        self._remove()
        self.leaves()

    def is_removed_and_leaves_with_all_there(self) -> None:
        self.is_removed_and_leaves(all_there=True)

    def _remove(self) -> None:
        me = self.member.view.me
        others = [peer for peer in self.chain.membership.peers if peer != me]
        record = self.chain.record(departed=[self.chain.silence(self.who)])
        leader = self.chain.leaders[0]
        ballot = self.chain.ballot(record.id, silent=[me])
        for envelope in (
            self.chain.envelope(leader, "proposal", Proposal(1, record)),
            *(self.chain.envelope(peer, "finalize", ballot) for peer in others),
        ):
            self.member.handle(MessageReceived(envelope), 0.0)
        self.steps.append(self.member.view.state)

    def changes_chains(self, **parts: Any) -> None:
        if self.closing:
            self.end(self.other, **parts)
        else:
            self.other.grow(**parts)
            self.other.grow()
        self.member.handle(Rebased(self.other.ledger), 0.0)

    def changes_to_one_that_expels(self) -> None:
        if self.who != STRANGER:
            self.changes_chains(evidence=(self.other.evidence(self.who),))

    def is_outdated(self) -> None:
        """Pretend that a newer version is in force: its round is the chain's own affair."""
        self.member.view.ledger.versions.max_version = self.chain.manifest.version - 1
        self.member.handle(Tick(), 0.0)

    def comes_to_one_that_does_not(self) -> None:
        self.expels()
        self.steps.append(self.member.view.state)
        self.changes_chains()


EVENTS: list[Callable[[Stage], None]] = [
    Stage.is_loaded,
    Stage.is_loaded_late,
    Stage.is_loaded_with_all_there,
    Stage.has_applied_with_all_there,
    Stage.has_applied,
    Stage.has_recalled,
    Stage.has_gathered,
    Stage.decides,
    Stage.counts_out,
    Stage.expels,
    Stage.comes_to_one_that_does_not,
    Stage.leaves,
    Stage.is_removed_and_leaves,
    Stage.is_removed_and_leaves_with_all_there,
    Stage.changes_chains,
    Stage.is_outdated,
]

EVENTS_AT_END: list[Callable[[Stage], None]] = [
    Stage.is_loaded,
    Stage.is_loaded_late,
    Stage.has_applied,
    Stage.leaves,
    Stage.changes_chains,
    Stage.changes_to_one_that_expels,
    Stage.is_outdated,
]


def test_all_that_may_happen_in_every_state() -> None:
    seen: set[tuple[MemberState, MemberState]] = set()
    # An outdated member does nothing any more.
    states = [s for s in get_args(MemberState) if s not in ("finished", "outdated")]
    running = itertools.product(states, (1, STRANGER), (False, True), (False,), EVENTS)
    at_end: list[MemberState] = ["loading", "applying", "finished", "leaving"]
    over = itertools.product(at_end, (1, STRANGER), (False,), (True,), EVENTS_AT_END)
    for state, who, unsure, ends, event in itertools.chain(running, over):
        stage = Stage(state, who, unsure=unsure, ends=ends)
        steps: list[MemberState] = [stage.member.view.state]
        stage.steps = steps
        event(stage)
        steps.append(stage.member.view.state)
        seen |= {(old, new) for old, new in itertools.pairwise(steps) if old != new}
    assert seen - TRANSITIONS.keys() == set()
    assert TRANSITIONS.keys() - seen == set()


@pytest.mark.parametrize("seed", seeds(3))
def test_simulated_members_take_no_other_way(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: set[tuple[MemberState, MemberState]] = set()
    states: dict[int, MemberState] = {}
    # Private: whatever a node is told, out of answers as well, goes through it.
    handle = Node._handle

    def watched(node: Node, what: Input) -> bool:
        states.setdefault(id(node), node.member.view.state)
        taken = handle(node, what)
        before, after = states[id(node)], node.member.view.state
        if node.alive and before != after:
            seen.add((before, after))
            states[id(node)] = after
        return taken

    # Private, as above.
    monkeypatch.setattr(Node, "_handle", watched)
    swarm = Swarm(toy_manifest(start_members=5), seed, loss=0.05)
    for index in range(5):
        swarm.add(index)
    swarm.run_until(lambda: all(node.member.view.applied_round >= 2 for node in swarm.alive), 60)
    for index in range(5, 13):
        victim = swarm.random.choice(swarm.alive)
        fate = swarm.random.random()
        if len(swarm.alive) > 2 and fate < 0.3:
            victim.stop()
        elif fate < 0.5:
            swarm.add(index)
        elif fate < 0.6:
            victim.tell(LeaveRequested())
        elif dead := [node for node in swarm.nodes if not node.alive]:
            chosen = swarm.random.choice(dead)
            swarm.nodes.remove(chosen)
            swarm.add(chosen.index, chosen.disk)
        swarm.run_for(8.0)
    assert len(seen) > 6
    assert seen - TRANSITIONS.keys() == set()


def test_states_have_meanings() -> None:
    assert MEANINGS.keys() == set(get_args(MemberState))
    assert {state for way in TRANSITIONS for state in way} == MEANINGS.keys()


def test_what_may_be_cast_in_a_slot() -> None:
    sets = cast_sets()
    assert set(sets) == {
        frozenset(cast)  # type: ignore[arg-type]  # kinds of ballots
        for cast in ([], ["vote"], ["skip"], ["finalize"], ["vote", "skip"], ["vote", "finalize"])
    }
    for cast, further in sets.items():
        assert {"finalize", "skip"} - cast or not cast, "never both"
        assert further.keys() <= set(BALLOT_KINDS) - cast


def test_the_document_shows_the_tables(checkout: Path) -> None:
    text = (checkout / "docs" / "protocol.md").read_text(encoding="utf-8")
    shown = text.partition("<!-- states -->\n")[2].partition("<!-- end of states -->")[0]
    assert shown == diagrams() + "\n", "print it anew with `make docs`"
