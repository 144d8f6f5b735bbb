"""Rules that random schedules never meet, or whose loss costs time alone: each with the smallest case
that it decides, and what is put in its place to see that the case can fail.

What is looked at is the machine itself (`protocol/`), with peers that answer at once.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cache
from typing import Any
from unittest.mock import patch

from distro_node.crypto.envelope import Envelope, EnvelopeError
from distro_node.crypto.hashing import content_id
from distro_node.crypto.identity import PeerId
from distro_node.protocol.chain import (
    asking,
    catching_up,
    comparing,
    finality,
    fork,
    keeping,
    ledger,
    starting,
)
from distro_node.protocol.chain.asking import Asking
from distro_node.protocol.chain.catching_up import CatchingUp
from distro_node.protocol.chain.comparing import Comparison, Rests
from distro_node.protocol.chain.ledger import Ledger
from distro_node.protocol.chain.sync import Answer, Question
from distro_node.protocol.member import lease, vote_recovery
from distro_node.protocol.member.effects import FetchUpdate
from distro_node.protocol.member.fetching import Fetching
from distro_node.protocol.member.inputs import UpdatesGone
from distro_node.protocol.member.lease import FinalityLease
from distro_node.protocol.member.own_words import OwnWords
from distro_node.protocol.member.taking_in import TakingIn
from distro_node.protocol.member.vote_recovery import Recalling
from distro_node.protocol.wire.backoff import Backoff
from distro_node.protocol.wire.checkpoint import Checkpoint
from distro_node.protocol.wire.errors import ProtocolError
from distro_node.protocol.wire.messages import SnapshotEntry

from .chain import Answering, Chain, answers, compared, identity

# Private here: `_start_over`, `_supporters`, `_follow`, `_choose_goal`, `_replace`: the very lines that
# are broken on purpose.
Patch = tuple[object, str, Any]


@dataclass(frozen=True)
class Rule:
    """A rule, the case that it decides, and the rule left out or turned round."""

    name: str
    holds: Callable[[], bool]
    patches: Callable[[], list[Patch]]

    def holds_without(self) -> bool:
        """Whether the case comes out right with the rule gone; an error is a wrong end, too."""
        with ExitStack() as stack:
            for owner, name, value in self.patches():
                stack.enter_context(patch.object(owner, name, value))
            try:
                return self.holds()
            except (AssertionError, LookupError):
                return False


# Chains. They are made before any rule is taken away.


@cache
def _true(rounds: int = 12, members: int = 4) -> Chain:
    return Chain(members).grow_until(rounds)


@cache
def _forged() -> Chain:
    return _true().forged(40)


@cache
def _solo(rounds: int = 400) -> Chain:
    """The true chain, and rounds that a member signed alone after it, everybody else called silent."""
    chain = _true().fork()
    _split(chain, 3)
    while chain.round < rounds:
        chain.grow()
    return chain


def _split(chain: Chain, *stay: int, **parts: Any) -> None:
    """These go on alone: the others are called silent."""
    here = [identity(who).peer for who in stay]
    lost = [peer for peer in chain.membership.peers if peer not in here]
    chain.grow(signers=here, silent=lost, departed=[chain.silence(peer) for peer in lost], **parts)


def _sides(*stay: int, rounds: int = 3) -> Chain:
    side = _true().fork()
    _split(side, *stay)
    for _ in range(rounds):
        side.grow()
    return side


def _catch_up(chain: Ledger, peers: list[Answering], most: int = 60) -> tuple[int, int]:
    """Let it catch up; how many questions were asked, and how many rounds it has then."""
    machine = CatchingUp(chain)
    answering = {identity(100 + place).peer: one for place, one in enumerate(peers)}
    asked, now = 0, 0.0
    while not machine.done:
        questions = machine.questions(list(answering), now)
        for question in questions:
            asked += 1
            assert asked <= most
            answer = answering[question.peer](question)
            if answer is not None:
                machine.answered(question.peer, answer, now)
        if not questions:
            now += 1.0
            assert now < 1000.0
    return asked, len(chain)


def _compare(
    ours: Ledger, peers: dict[PeerId, Answering], rests: Rests | None = None, now: float = 0.0
) -> tuple[list[Question], Ledger | None]:
    """Let it compare; what was asked, and what is better."""
    ours.binding = True
    machine = Comparison(
        ours, peers, Rests() if rests is None else rests, me=identity(0).peer, abandoned=False
    )
    asked: list[Question] = []
    while not machine.done:
        questions = machine.questions(now)
        asked += questions
        assert len(asked) < 1000
        for question in questions:
            answer = peers[question.peer](question)
            if answer is not None:
                machine.answered(question.peer, answer, now)
        if not questions:
            now += 1.0
            assert now < 1000.0
    return asked, machine.better


# The final prefix


def _two_phases() -> bool:
    chain, found = Chain(4), []
    for _ in range(6):
        chain.grow()
        found.append(chain.ledger.final_round)
    return found == [-1, 0, 0, 2, 2, 4]


def _one_phase() -> list[Patch]:
    class Reached(list):  # type: ignore[type-arg]  # what is supported is final at once
        def __init__(self, first: int) -> None:
            super().__init__()
            self.first = first

        def __getitem__(self, place: Any) -> Any:
            return [] if isinstance(place, slice) else place + self.first

    original = finality.Finality._start_over

    def start_over(self: Any) -> None:
        original(self)
        self._reached = Reached(self._steps[-1].first)

    return [(finality.Finality, "_start_over", start_over)]


def _old_set_is_asked() -> bool:
    chain = Chain(6)
    for _ in range(3):
        chain.grow()
    old = chain.membership.peers
    chain.grow(admitted=[chain.admission(who) for who in range(20, 50)])
    while not chain.ledger.finality_set > set(old):
        chain.grow()
    before = chain.ledger.final_round
    new = [peer for peer in chain.membership.peers if peer not in old]
    chain.grow(silent=old, signers=new, departed=[chain.silence(peer) for peer in old])
    for _ in range(12):
        chain.grow()
    return chain.ledger.final_round == before


def _the_last_set_alone() -> list[Patch]:
    original = finality.Finality._start_over

    def start_over(self: Any) -> None:
        self._steps[-1] = self._steps[-1]._replace(before=self._steps[-1].members)
        original(self)

    return [(finality.Finality, "_start_over", start_over)]


def _leavers_are_not_asked() -> bool:
    chain = Chain(3)
    for _ in range(4):
        chain.grow()
    chain.grow(departed=[chain.leave(chain.membership.peers[0])])
    for _ in range(6):
        chain.grow()
    return chain.ledger.final_round >= chain.round - 4


def _leavers_are_asked() -> list[Patch]:
    original = finality._supporters
    return [(finality, "_supporters", lambda *known: (*original(*known)[:2], ()))]


def _justified_binds() -> bool:
    """Three of four make a record justified here; there, as many went on, and the hash is lower."""
    ours, forked = _sides(0, 1, 2, rounds=1).ledger, len(_true().ledger)
    ours.binding = True
    assert ours.final_round < forked <= ours.justified_round
    theirs = _true().fork()
    for number in range(1000):
        theirs = _true().fork()
        _split(theirs, 1, 2, 3, fingerprint=number, updates=[])
        if theirs.ledger[forked].record.id < ours[forked].record.id:
            break
    theirs.grow()
    return not fork.prefers(ours, theirs.ledger, forked, me=identity(0).peer, abandoned=False)


def _nothing_is_justified() -> list[Patch]:
    return [(ledger.Ledger, "justified_round", property(lambda self: -1))]


def _rounds_weigh_nothing() -> bool:
    """One member's 30 rounds against three members' three."""
    return compared(_solo(40).ledger, _sides(0, 1, 2).ledger, who=3) is not None


def _rounds_weigh() -> list[Patch]:
    def prefers(ours: Ledger, other: Ledger, fork: int, **_: Any) -> bool:
        return len(other) > len(ours)

    return [(module, "prefers", prefers) for module in (fork, comparing)]


def _checkpoint() -> Checkpoint:
    return Checkpoint(8, _true().ledger.parent(9))


def _checkpoint_is_asked_for() -> bool:
    chain = Ledger(_true().manifest, checkpoint=_checkpoint())
    liars = [answers(_forged().ledger)] * 4
    asked, _ = _catch_up(chain, [*liars, answers(_true().ledger)])
    # An id of each liar, and nothing more.
    return chain.head == _true().ledger.head and asked <= 5 + 4


def _checkpoint_is_nobodys_business() -> list[Patch]:
    return [(ledger.Ledger, "anchored", property(lambda self: True))]


def _wrong_entries_are_given_up() -> bool:
    honest, liar = answers(_true().ledger), answers(_forged().ledger)

    def two_faced(question: Question) -> Answer | None:
        return honest(question) if question.most == 0 else liar(question)

    chain = Ledger(_true().manifest, checkpoint=_checkpoint())
    _catch_up(chain, [two_faced, two_faced, honest])
    return chain.head == _true().ledger.head


def _keeps_wrong_entries() -> list[Patch]:
    return [(CatchingUp, "_rewind", lambda self: None)]


# The lease


def _look(chain: Chain, seconds: float, alive: bool = True) -> int:
    seen, moved = FinalityLease(100.0, 0.0), -1
    for now in range(1, int(seconds)):
        if now % 5 == 0:
            chain.grow()
        result = seen.look(chain.ledger, is_member=alive, silence=6.0, now=float(now))
        moved = moved if result is None else result
    return moved


def _the_lease_is_waited_for() -> bool:
    return _look(_sides(0, 1), 95) == -1 and _look(_sides(0, 1), 115) >= 0


def _who_is_alone_does_not_move_on() -> bool:
    return _look(_sides(0), 300) == -1


def _who_is_alone_counts() -> list[Patch]:
    original = FinalityLease.look

    def look(self: Any, chain: Any, **options: Any) -> Any:
        class Two:
            peers = chain.membership(len(chain)).peers

            def __len__(self) -> int:
                return 2

        class Company:
            def __getattr__(self, name: str) -> Any:
                return getattr(chain, name)

            def __len__(self) -> int:
                return len(chain)

            def membership(self, round_: int) -> Any:
                return Two()

        return original(self, Company(), **options)  # type: ignore[arg-type]  # it looks like one

    return [(FinalityLease, "look", look)]


def _who_is_there_is_asked() -> bool:
    chain = _true().fork()
    busy = [identity(0).peer, identity(1).peer]
    seen, moved = FinalityLease(100.0, 0.0), []
    for now in range(1, 300):
        if now % 5 == 0:
            chain.grow(updates=[chain.update(peer) for peer in busy])
        moved.append(seen.look(chain.ledger, is_member=True, silence=6.0, now=float(now)))
    # What all four had vouched for before, and nothing of what two of them decide.
    return max(filter(None, moved), default=0) < len(_true().ledger)


def _nobody_is_asked() -> list[Patch]:
    def move_on(self: Any, round: int, present: Any, memberships: Any) -> None:
        self._move_to(round, None, memberships)

    return [(finality.Finality, "move_on", move_on)]


# Comparing


def _a_shorter_chain_is_found() -> bool:
    better = _compare(_solo(200).ledger, {identity(0).peer: answers(_sides(0, 1, 2).ledger)})[1]
    return better is not None


def _steps_back_a_little() -> list[Patch]:
    def backwards(height: int, floor: int) -> tuple[int, ...]:
        return tuple(range(max(floor, height - 8), height))

    ours = len(_solo(200).ledger)
    again = backwards(ours, 0)
    return [
        (comparing, "_backwards", backwards),
        (comparing, "_between", lambda same, other: again),
    ]


def _nothing_before_the_floor_is_asked_for() -> bool:
    ours = _true().fork().ledger
    asked, better = _compare(ours, {identity(1).peer: answers(_forged().ledger)})
    lowest = min((probe for question in asked for probe in question.probes), default=0)
    return better is None and lowest >= ours.final_round and not any(q.most for q in asked)


def _no_floor() -> list[Patch]:
    return [(ledger.Ledger, "floor", property(lambda self: 0))]


def _one_peers_rounds_are_bounded() -> bool:
    """A chain of 400 rounds, of which no more than 100 are looked at."""
    ours = _sides(0, 1, 2, rounds=1).ledger
    with patch.object(comparing, "COMPARED_ROUNDS", 100):
        asked, _ = _compare(ours, {identity(3).peer: answers(_solo().ledger)})
    return sum(question.most for question in asked) <= 3 * comparing._PORTION


def _one_peers_bytes_are_bounded() -> bool:
    ours = _sides(0, 1, 2, rounds=1).ledger
    honest = answers(_solo().ledger)

    def long(question: Question) -> Answer | None:
        answer = honest(question)
        return None if answer is None else dataclasses.replace(answer, size=comparing._MOST_BYTES)

    asked, _ = _compare(ours, {identity(3).peer: long})
    return sum(question.most > 0 for question in asked) == 1


def _no_end() -> list[Patch]:
    original = comparing._Walk._follow

    def follow(self: Any, answer: Answer) -> bool:
        self._bytes = -(1 << 60)
        with patch.object(comparing, "COMPARED_ROUNDS", 1 << 60):
            return original(self, answer)

    return [(comparing._Walk, "_follow", follow)]


def _so_many_are_asked() -> bool:
    ours = _sides(0, 1, 2, rounds=1).ledger
    strangers = {identity(200 + number).peer: answers(_solo().ledger) for number in range(40)}
    asked, _ = _compare(ours, strangers)
    return len({question.peer for question in asked}) <= 4


def _all_are_asked() -> list[Patch]:
    return [(comparing, "_MOST_STRANGERS", 100), (comparing, "_MOST_PEERS", 100)]


def _who_was_asked_in_vain_rests() -> bool:
    ours, rests = _sides(0, 1, 2, rounds=1).ledger, Rests()
    peers = {identity(3).peer: answers(_solo(60).ledger)}
    first, _ = _compare(ours, peers, rests)
    again, _ = _compare(ours, peers, rests, now=5.0)
    later, _ = _compare(ours, peers, rests, now=500.0)
    moved = [any(question.most for question in asked) for asked in (first, again, later)]
    return moved == [True, False, True]


def _nobody_rests() -> list[Patch]:
    return [(Backoff, "rests", lambda self, peer, now: False)]


def _who_does_not_answer_is_given_up() -> bool:
    peers: dict[PeerId, Answering] = {identity(3).peer: lambda question: None}
    _compare(_true().fork().ledger, peers)
    _catch_up(Ledger(_true().manifest), [lambda question: None, answers(_true().ledger)])
    return True


def _waits_for_ever() -> list[Patch]:
    return [(module, "PATIENCE_SECONDS", 1e9) for module in (comparing, catching_up)]


# Catching up


def _the_goal_is_what_most_name() -> bool:
    """One liar of four goes on alone for 400 rounds."""
    chain = Ledger(_true().manifest)
    _, rounds = _catch_up(chain, [answers(_true().ledger)] * 3 + [answers(_solo().ledger)])
    return rounds == len(_true().ledger)


def _the_greatest_height() -> list[Patch]:
    def choose(self: Any) -> None:
        self._goal = max(offer.height for offer in self._offers.values())
        self._asked.clear()

    return [(CatchingUp, "_choose_goal", choose)]


def _any_head_will_do() -> list[Patch]:
    return [(catching_up, "most_liars", lambda model, members: 0)]


def _records_are_what_most_name() -> bool:
    """Of four as high as each other one has another record there."""
    one = _true(11).fork()
    one.grow(fingerprint=666, updates=[])
    chain = Ledger(_true().manifest)
    _catch_up(chain, [answers(one.ledger)] + [answers(_true().ledger)] * 3)
    return chain.head == _true().ledger.head


def _the_first_is_believed() -> list[Patch]:
    class First(dict):  # type: ignore[type-arg]  # counts each as one
        def __init__(self, items: Any) -> None:
            super().__init__(dict.fromkeys(items, 1))

    def lowest(first: Any, *items: Any, **options: Any) -> Any:
        return min(first, *items, **options) if options or items else next(iter(first))

    return [(catching_up, "Counter", First), (catching_up, "min", lowest)]


def _the_goal_is_bounded() -> bool:
    chain = Ledger(_true().manifest)
    with patch.object(catching_up, "_MOST_ROUNDS", 50):
        _, rounds = _catch_up(chain, [answers(_solo().ledger)] * 3)
    return rounds == 50


def _no_most_rounds() -> list[Patch]:
    original = CatchingUp._choose_goal

    def choose(self: Any) -> None:
        with patch.object(catching_up, "_MOST_ROUNDS", 1 << 40):
            original(self)

    return [(CatchingUp, "_choose_goal", choose)]


def _enough_are_asked() -> bool:
    asked, _ = _catch_up(Ledger(_true().manifest), [answers(_true().ledger)] * 30, most=1000)
    return asked <= 2 * 5 + 2


def _members_are_asked_first() -> bool:
    """Twenty names of one who goes on alone, and three members that were there before."""
    chain = _true(8).ledger.truncated(8)
    machine = CatchingUp(chain)
    honest, alone = answers(_true().ledger), answers(_solo().ledger)
    members = {identity(who).peer for who in range(3)}
    names = [*(identity(200 + number).peer for number in range(20)), *members]
    while not machine.done:
        for question in machine.questions(names, 0.0):
            answer = (honest if question.peer in members else alone)(question)
            machine.answered(question.peer, answer, 0.0)
    return len(chain) == len(_true().ledger)


def _nobody_is_known() -> list[Patch]:
    return [(CatchingUp, "_is_known", lambda self, peer: False)]


def _nobody_is_waited_for_alone() -> bool:
    slow, other = identity(1).peer, identity(2).peer
    asking_ = Asking([slow, other], {slow}, 3)
    first = asking_.questions(0.0)
    after = asking_.deadline(0.0)
    second = asking_.questions(after)
    return after < 10.0 and [q.peer for q in (*first, *second)] == [slow, other]


# Taking in what was answered


def _a_forged_word_ends_an_answer() -> bool:
    """Of a thousand forged messages one is checked, and its bearer blamed."""
    checked: list[int] = []

    def opened(word: int) -> Envelope:
        checked.append(word)
        raise EnvelopeError("bad_signature", "nobody signed that")

    taking = TakingIn(identity(1).peer, [], range(1000), opened)
    _take_in(taking)
    return len(checked) == 1 and taking.blame is not None


def _takes_the_next_one() -> list[Patch]:
    original = TakingIn.next_input

    def next_input(self: Any) -> Any:
        what = original(self)
        while what is None and self.blame is not None:
            self.blame, self._ended = None, False
            what = original(self)
        return what

    return [(TakingIn, "next_input", next_input)]


def _a_refused_entry_ends_an_answer() -> bool:
    """A chain of others: one entry of it is looked at, and nobody is blamed."""
    entries = [_true().ledger[round_] for round_ in range(10)]
    taking: TakingIn[Envelope] = TakingIn(identity(1).peer, entries, [], lambda word: word)
    return _take_in(taking, refuses=True) == 1 and taking.blame is None and not taking.all_held


def _take_in(taking: TakingIn[Any], *, refuses: bool = False) -> int:
    """How many inputs the member is handed."""
    count = 0
    while taking.next_input() is not None:
        count += 1
        if refuses:
            taking.refused()
    return count


def _all_are_recalled() -> bool:
    """One of three has nothing to say of us, one says it late, and one is cut short."""
    machine, peers = Recalling(3, _others(), 0.0), _others()
    machine.questions(peers[:2], 0.0)
    machine.answered(peers[0], Answer(3), 0.1)
    _hear(machine, all_held=True)
    first = machine.complete
    machine.questions(peers, 0.5)
    machine.answered(peers[1], Answer(3), 1.0)
    machine.answered(peers[2], Answer(3), 1.0)
    _hear(machine, all_held=False)
    return not first and not machine.complete


def _others() -> list[PeerId]:
    return [identity(number).peer for number in range(1, 4)]


def _hear(machine: Recalling, *, all_held: bool) -> None:
    for peer, _ in machine.drain():
        machine.heard(peer, all_held=all_held)


def _one_is_enough() -> list[Patch]:
    def complete(self: Any) -> bool:
        return len(self._missing) < 3

    return [(Recalling, "complete", property(complete))]


def _half_an_answer_will_do() -> list[Patch]:
    def heard(self: Any, peer: PeerId, *, all_held: bool) -> None:
        self._missing.discard(peer)

    return [(Recalling, "heard", heard)]


def _who_comes_late_is_asked() -> bool:
    machine, peers = Recalling(3, _others(), 0.0), _others()
    asked = [q.peer for now in (0.0, 1.0) for q in machine.questions(peers[: 1 + int(now)], now)]
    return asked == peers[:2] and machine.deadline(1.0) < 1.5


def _asks_only_once() -> list[Patch]:
    original = Recalling.questions

    def questions(self: Any, connected: Any, now: float) -> Any:
        asked = original(self, connected, now)
        self._unasked.clear()
        return asked

    return [(Recalling, "questions", questions)]


def _memory_is_not_waited_for_for_ever() -> bool:
    machine = Recalling(3, _others(), 0.0)
    machine.questions(_others(), 10.0)
    return machine.done


# Starting


def _point(chain: Chain, round_: int) -> Checkpoint:
    return Checkpoint(round_, chain.ledger.parent(round_ + 1))


def _the_later_record_counts() -> bool:
    early, late = _point(_true(), 4), _point(_true(), 8)
    both = [
        starting.checkpoint_of(*pair, _true().ledger) for pair in ((early, late), (late, early))
    ]
    return both == [late, late]


def _the_link_counts() -> list[Patch]:
    return [(starting, "checkpoint_of", lambda linked, known, ledger: linked or known)]


def _a_link_of_another_chain_is_refused() -> bool:
    """It names the very round that is known, and one that the ledger has."""
    for known, chain in ((_point(_true(), 9), Ledger(_true().manifest)), (None, _true().ledger)):
        try:
            starting.checkpoint_of(_point(_forged(), 9), known, chain)
        except ProtocolError:
            continue
        return False
    return True


def _nobody_starts_without_the_record() -> bool:
    behind = Ledger(_true().manifest, checkpoint=_checkpoint())
    begun = starting.has_begun(behind, _true().manifest.founder)
    return not starting.may_start(behind, begun=begun, found=True)


# What is kept, and whom updates are asked of


def _updates_count_once_more() -> bool:
    """An update of round 2 counts in round 12, too."""
    chain = _true().fork()
    old = chain.ledger[2].record.updates[0].update
    chain.grow(updates=[chain.update(chain.membership.peers[0], update=old)])
    return old not in keeping.dispensable_updates(chain.ledger, -1, 5)


def _no_update_counts_again() -> list[Patch]:
    return [(keeping, "updates_from", lambda ledger, first: set())]


def _updates_since_a_snapshot_stay() -> bool:
    entry = SnapshotEntry(5, content_id(b"older"), 1)
    newer = SnapshotEntry(10, content_id(b"newer"), 1)
    return keeping.last_dispensable(_true().ledger, [entry, newer], len(_true().ledger)) == 5


def _the_newest_snapshot_will_do() -> list[Patch]:
    original = keeping.last_dispensable
    return [
        (
            keeping,
            "last_dispensable",
            lambda ledger, kept, *more: original(ledger, kept[-1:], *more),
        )
    ]


def _two_snapshots_stay() -> bool:
    """The newest may not be certified yet: a newcomer is sent to the one before."""
    kept: list[SnapshotEntry] = []
    for round_ in (5, 10, 15):
        new = SnapshotEntry(round_, content_id(b"%d" % round_), 1)
        kept = keeping.kept_with(kept, new, held=lambda old: False, most_held=2)
    return [entry.round for entry in kept] == [10, 15]


def _the_newest_snapshot_stays() -> list[Patch]:
    return [(keeping, "kept_with", lambda kept, new, **_: [new])]


def _a_left_chains_snapshots_stay() -> bool:
    """All may come back to it, and nobody else may have them."""
    own = SnapshotEntry(5, content_id(b"own"), 1)
    return keeping.put_aside([own], [], [], lambda old: False)[1] == [own]


def _what_is_left_goes() -> list[Patch]:
    def put_aside(kept: Any, left: Any, listed: Any, certified: Any) -> Any:
        return [own for own in kept if own in listed], [], [*kept, *left]

    return [(keeping, "put_aside", put_aside)]


def _awaited_updates_stay() -> bool:
    """One that missed round 4 was announced for a round to come."""
    arrivals, update = keeping.Arrivals(), content_id(b"late")
    arrivals.note(4, update)
    arrivals.note(20, update)
    missed = arrivals.missed(4, _true().ledger)
    return missed == {update} and update in arrivals.awaited()


def _nothing_is_awaited() -> list[Patch]:
    return [(keeping.Arrivals, "awaited", lambda self: set())]


_WANTED = FetchUpdate(2, identity(1).peer, content_id(b"wanted"), 100)


def _who_was_a_member_is_asked_last() -> bool:
    """The author first, whoever that is, then members, then one that has left; no stranger."""
    chain = _true().fork()
    left, member, _, _ = chain.membership.peers
    chain.grow(departed=[chain.leave(left)])
    author, stranger = identity(50).peer, identity(51).peer
    wanted = dataclasses.replace(_WANTED, peer=author)
    asked = Fetching().providers(wanted, chain.ledger, [stranger, left, member, author])
    return asked == [author, member, left]


def _anybody_is_asked() -> list[Patch]:
    return [(Fetching, "providers", lambda self, wanted, chain, connected: list(connected))]


def _members_alone_are_asked() -> list[Patch]:
    """As the daemon did: a lone member that lost its disk never asked who had left with all of it."""

    def has_been(self: Any, peer: PeerId) -> bool:
        return peer in self.membership(len(self))

    return [(ledger.Ledger, "has_been_member", has_been)]


def _what_a_snapshot_contains_is_given_up() -> bool:
    """Nobody has it: who replays takes the snapshot then, and waits where there is none."""
    chain, fetching = _certified(), Fetching()
    newest = chain.snapshot
    assert newest is not None
    inside = dataclasses.replace(_WANTED, round=newest.round)
    after = dataclasses.replace(_WANTED, round=newest.round + 1)
    gone = [fetching.in_vain(wanted, chain, 0) for wanted in (inside, after)]
    return gone == [[UpdatesGone(newest.round)], []]


@cache
def _certified() -> Ledger:
    chain = Chain(4, snapshot_interval=5)
    while chain.round < 9:
        chain.grow()
    return chain.ledger


def _waits_for_updates_for_ever() -> list[Patch]:
    return [(Fetching, "is_needed", lambda self, *arguments: True)]


def _words_stay_until_their_round_is_decided() -> bool:
    """What was said of a round to come, when the ledger's end was lost, stays as well."""
    said: OwnWords[str] = OwnWords(1)
    said.note(4, "before", 1)
    said.note(5, "now", 1)
    said.note(6, "to come", 1)
    return (said.forget(5), said.kept()) == (["before"], ["now", "to come"])


def _words_go_too_soon() -> list[Patch]:
    original = OwnWords.forget
    return [(OwnWords, "forget", lambda self, round: original(self, round + 2))]


RULES = (
    Rule("two phases make a record final", _two_phases, _one_phase),
    Rule("the set before is asked as well", _old_set_is_asked, _the_last_set_alone),
    Rule("who took leave is not asked", _leavers_are_not_asked, _leavers_are_asked),
    Rule("what is justified binds", _justified_binds, _nothing_is_justified),
    Rule("members count, and no rounds", _rounds_weigh_nothing, _rounds_weigh),
    Rule(
        "a checkpoint's id is asked for", _checkpoint_is_asked_for, _checkpoint_is_nobodys_business
    ),
    Rule("wrong entries are given up", _wrong_entries_are_given_up, _keeps_wrong_entries),
    Rule(
        "the lease is waited for",
        _the_lease_is_waited_for,
        lambda: [(lease, "max", lambda *_: 20.0)],
    ),
    Rule("who is alone does not move on", _who_is_alone_does_not_move_on, _who_is_alone_counts),
    Rule("who is there is asked", _who_is_there_is_asked, _nobody_is_asked),
    Rule("a shorter chain is found", _a_shorter_chain_is_found, _steps_back_a_little),
    Rule(
        "nothing before the floor is asked for", _nothing_before_the_floor_is_asked_for, _no_floor
    ),
    Rule("one peer's rounds are bounded", _one_peers_rounds_are_bounded, _no_end),
    Rule("one peer's bytes are bounded", _one_peers_bytes_are_bounded, _no_end),
    Rule("so many peers are asked", _so_many_are_asked, _all_are_asked),
    Rule("who was asked in vain rests", _who_was_asked_in_vain_rests, _nobody_rests),
    Rule("who does not answer is given up", _who_does_not_answer_is_given_up, _waits_for_ever),
    Rule("the goal is what most name", _the_goal_is_what_most_name, _the_greatest_height),
    Rule("a head needs somebody honest", _the_goal_is_what_most_name, _any_head_will_do),
    Rule("records are what most name", _records_are_what_most_name, _the_first_is_believed),
    Rule("the goal is bounded", _the_goal_is_bounded, _no_most_rounds),
    Rule("enough are asked", _enough_are_asked, lambda: [(catching_up, "ENOUGH", 30)]),
    Rule("members are asked first", _members_are_asked_first, _nobody_is_known),
    Rule(
        "nobody is waited for alone",
        _nobody_is_waited_for_alone,
        lambda: [(asking, "DAWDLE_SECONDS", 60.0)],
    ),
    Rule("a forged word ends an answer", _a_forged_word_ends_an_answer, _takes_the_next_one),
    Rule(
        "a refused entry ends an answer",
        _a_refused_entry_ends_an_answer,
        lambda: [(TakingIn, "refused", lambda self: None)],
    ),
    Rule("everybody's memory counts", _all_are_recalled, _one_is_enough),
    Rule("half an answer is no memory", _all_are_recalled, _half_an_answer_will_do),
    Rule("who connects late is asked as well", _who_comes_late_is_asked, _asks_only_once),
    Rule(
        "memories are not waited for for ever",
        _memory_is_not_waited_for_for_ever,
        lambda: [(vote_recovery, "RECALL_SECONDS", 1e9)],
    ),
    Rule("the later of link and disk counts", _the_later_record_counts, _the_link_counts),
    Rule(
        "a link of another chain is refused", _a_link_of_another_chain_is_refused, _the_link_counts
    ),
    Rule(
        "nobody starts without the record",
        _nobody_starts_without_the_record,
        _checkpoint_is_nobodys_business,
    ),
    Rule("updates that count again stay", _updates_count_once_more, _no_update_counts_again),
    Rule(
        "updates since the older snapshot stay",
        _updates_since_a_snapshot_stay,
        _the_newest_snapshot_will_do,
    ),
    Rule("two snapshots stay", _two_snapshots_stay, _the_newest_snapshot_stays),
    Rule("snapshots of a left chain stay", _a_left_chains_snapshots_stay, _what_is_left_goes),
    Rule("updates of rounds to come stay", _awaited_updates_stay, _nothing_is_awaited),
    Rule("strangers are not asked for updates", _who_was_a_member_is_asked_last, _anybody_is_asked),
    Rule(
        "who has left is asked as well", _who_was_a_member_is_asked_last, _members_alone_are_asked
    ),
    Rule(
        "what a snapshot contains is given up",
        _what_a_snapshot_contains_is_given_up,
        _waits_for_updates_for_ever,
    ),
    Rule(
        "words stay until their round is decided",
        _words_stay_until_their_round_is_decided,
        _words_go_too_soon,
    ),
)
