"""Fork choice: which chain is followed after a split, and who cannot bend it."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Sequence

import pytest
from distro_node.crypto.hashing import ContentId, content_id
from distro_node.crypto.identity import PeerId
from distro_node.protocol.chain.comparing import Comparison, Rests
from distro_node.protocol.chain.ledger import Ledger
from distro_node.protocol.chain.sync import Answer, Question
from distro_node.protocol.wire.errors import ProtocolError
from distro_node.protocol.wire.messages import Decided, RecordId
from simulation.chain import Chain, answers, compared
from simulation.swarm import Swarm, toy_manifest


def split(chain: Chain, here: Sequence[PeerId], rounds: int, **first: object) -> Chain:
    """`chain` as the members `here` carry it on, hearing nobody else."""
    side = chain.fork()
    for number in range(rounds):
        gone = [peer for peer in side.membership.peers if peer not in here]
        parts: dict = {
            "updates": [side.update(peer) for peer in here],
            "departed": [side.silence(peer) for peer in gone],
        }
        side.grow(silent=gone, signers=list(here), **(parts | first if number == 0 else parts))
    return side


def entries(chain: Chain, first: int = 0) -> list[Decided]:
    return [chain.ledger[round_] for round_ in range(first, len(chain.ledger))]


def follows(ours: Chain, theirs: Chain) -> bool:
    """Whether a node on `ours` changes to `theirs`; checks that it gets a part of it."""
    better = compared(ours.ledger, theirs.ledger)
    if better is not None:
        assert better.head == theirs.ledger.parent(len(better))
        assert better.head != ours.ledger.parent(min(len(better), len(ours.ledger)))
    return better is not None


@pytest.fixture
def chain() -> Chain:
    chain = Chain(5)
    chain.grow()
    chain.grow()
    return chain


def test_the_side_with_more_members_wins(chain: Chain) -> None:
    peers = chain.membership.peers
    large, small = split(chain, peers[:3], 3), split(chain, peers[3:], 3)
    assert follows(small, large)
    assert not follows(large, small)


def test_it_wins_however_slow_it_is(chain: Chain) -> None:
    peers = chain.membership.peers
    large, small = split(chain, peers[:3], 2), split(chain, peers[3:], 30)
    assert follows(small, large)
    assert not follows(large, small)


def test_a_liar_gains_nothing_by_making_rounds_alone(chain: Chain) -> None:
    """A member that calls all others silent needs nobody to make a long chain, whose rounds cost a
    signature each: a hundred rounds against three."""
    peers = chain.membership.peers
    honest = split(chain, peers[1:], 3)
    alone = split(chain, peers[:1], 100)
    assert alone.ledger.weight_from(3).updates > honest.ledger.weight_from(3).updates
    assert not follows(honest, alone)
    assert follows(alone, honest)


@pytest.mark.parametrize("rounds", [1, 2, 50])
def test_nor_by_splitting_off_at_the_last_record(chain: Chain, rounds: int) -> None:
    """When the chain has but one record since the fork, nothing in it shows yet who follows it."""
    peers = chain.membership.peers
    honest = split(chain, peers[1:], 1)
    # The first record of the liar's chain may hold everybody's updates: they name no side.
    everybody = [chain.update(peer) for peer in peers]
    alone = split(chain, peers[:1], rounds, departed=[], updates=everybody)
    while alone.ledger.head > honest.ledger.head and rounds == 1:
        # The liar even tries until the tie is in its favour.
        everybody.pop()
        alone = split(chain, peers[:1], rounds, departed=[], updates=everybody)
    assert not follows(honest, alone)


def test_whom_liars_lead_astray_comes_back() -> None:
    """Three liars of ten call six others silent: a certificate that accuses not the tenth binds it,
    though it never signed. It follows them until it hears of the others."""
    chain = Chain(10)
    chain.grow()
    peers = chain.membership.peers
    liars, victim, honest = peers[:3], peers[3], peers[4:]
    astray = chain.fork()
    for rounds in range(1, 4):
        astray.grow(
            silent=[peer for peer in honest if peer in astray.membership],
            signers=liars,
            updates=[astray.update(peer) for peer in liars],
            departed=[astray.silence(peer) for peer in honest if peer in astray.membership],
        )
        assert victim in astray.membership
        true = split(chain, honest, 2)
        assert follows(astray, true)
        assert not follows(true, astray), rounds
    # Two such victims are one too many.
    with pytest.raises(ProtocolError):
        chain.fork().grow(silent=honest[1:], signers=liars)


def test_a_majority_is_followed_at_once(chain: Chain) -> None:
    """Who split off a moment ago need not wait to have a second record of its own."""
    peers = chain.membership.peers
    assert follows(split(chain, peers[:1], 1), split(chain, peers[1:], 2))


def test_a_crowd_admitted_after_the_fork_counts_nothing(chain: Chain) -> None:
    peers = chain.membership.peers
    honest = split(chain, peers[1:], 3)
    crowd = split(chain, peers[:1], 1, admitted=[chain.admission(i) for i in range(20, 50)])
    for _ in range(5):
        crowd.grow()
    assert len(crowd.membership) == 31
    assert crowd.ledger.weight_from(3).followers == 1
    assert not follows(honest, crowd)


def test_a_member_that_works_on_both_sides_counts_on_both(chain: Chain) -> None:
    peers = chain.membership.peers
    left, right = split(chain, peers[:3], 3), split(chain, peers[2:], 3)
    assert left.ledger.weight_from(3).followers == right.ledger.weight_from(3).followers == 3


def test_between_equal_sides_work_decides_and_then_the_hash() -> None:
    chain = Chain(4)
    chain.grow()
    peers = chain.membership.peers
    left, right = split(chain, peers[:2], 3), split(chain, peers[2:], 4)
    assert follows(left, right)
    assert not follows(right, left)
    right = split(chain, peers[2:], 3)
    low, high = sorted((left, right), key=lambda side: side.ledger[2].record.id)
    assert follows(high, low)
    assert not follows(low, high)


@pytest.mark.parametrize("seed", range(30))
def test_two_nodes_never_change_places(seed: int) -> None:
    """Of two chains at most one side changes; exactly one once both have gone on for two rounds."""
    chance = random.Random(seed)
    chain = Chain(chance.randrange(2, 7))
    for _ in range(chance.randrange(3)):
        chain.grow()
    fork = len(chain.ledger)
    peers = list(chain.membership.peers)
    chance.shuffle(peers)
    cut = chance.randrange(1, len(peers))
    left = split(chain, peers[:cut], chance.randrange(1, 5))
    right = split(chain, peers[cut:], chance.randrange(1, 5))
    changes = [follows(left, right), follows(right, left)]
    assert sum(changes) <= 1
    if min(len(left.ledger), len(right.ledger)) - fork >= 2:
        assert sum(changes) == 1


def test_who_is_stranded_goes_by_the_hash_alone(chain: Chain) -> None:
    peers = chain.membership.peers
    fork = len(chain.ledger)
    sides = split(chain, peers[:3], 3), split(chain, peers[3:], 2)
    low, high = sorted(sides, key=lambda side: side.ledger[fork].record.id)
    assert compared(low.ledger, high.ledger, abandoned=True) is None
    better = compared(high.ledger, low.ledger, abandoned=True)
    assert better is not None
    assert better.head == low.ledger.head


def test_a_chain_that_only_goes_on_is_no_fork(chain: Chain) -> None:
    longer = chain.fork()
    longer.grow()
    for other in (longer, chain, Chain(0)):
        assert compared(chain.ledger, other.ledger) is None
    assert compared(longer.ledger, chain.ledger) is None


@pytest.mark.parametrize("ahead", [0, 7, 8, 9, 100, 1000])
def test_a_heavier_chain_is_found_however_much_shorter_it_is(ahead: int) -> None:
    """A member cut off ran ahead of the three others, which is no merit."""
    chain = Chain(4)
    chain.grow()
    lone, *three = chain.membership.peers
    heavy = split(chain, three, 10)
    alone = split(chain, [lone], 10 + ahead)
    questions: list[Question] = []

    def answering(question: Question) -> Answer | None:
        questions.append(question)
        return answers(heavy.ledger)(question)

    better = compared(alone.ledger, answering)
    assert better is not None
    assert better.head == heavy.ledger.head
    assert len(questions) <= 4
    assert not follows(heavy, alone)


def test_to_learn_that_a_chain_is_ours_moves_no_entry(chain: Chain) -> None:
    """What a liar can make everybody do with one message must be next to nothing."""
    for _ in range(40):
        chain.grow()
    questions: list[Question] = []

    def answering(question: Question) -> Answer | None:
        questions.append(question)
        return answers(chain.ledger)(question)

    assert compared(chain.ledger, answering) is None
    assert [question.most for question in questions] == [0]


class Crowd:
    """Peers of one comparison; some never answer."""

    def __init__(self, ours: Ledger, peers: Sequence[PeerId], rests: Rests | None = None) -> None:
        self.comparison = Comparison(ours, peers, rests or Rests(), abandoned=False)
        self.asked: list[Question] = []
        self.now = 0.0

    def run(self, answering: Callable[[Question], Answer | str | None], limit: float) -> None:
        """Answer at once, or not at all where a string says so."""
        while not self.comparison.done and self.now <= limit:
            for question in self.comparison.questions(self.now):
                self.asked.append(question)
                answer = answering(question)
                if not isinstance(answer, str):
                    self.comparison.answered(question.peer, answer, self.now)
            if not self.comparison.done:
                self.now = min(self.now + 1.0, self.comparison.deadline(self.now))


def test_strangers_who_are_slow_delay_nothing(chain: Chain) -> None:
    lone, *three = chain.membership.peers
    heavy, alone = split(chain, three, 3), split(chain, [lone], 3)
    strangers = [PeerId(ContentId(bytes([number]) * 32)) for number in range(40)]
    crowd = Crowd(alone.ledger, [*strangers, *three])
    crowd.run(lambda q: answers(heavy.ledger)(q) if q.peer in three else "never", 60)
    assert crowd.comparison.better is not None
    assert crowd.now <= 4.0


def test_members_that_never_answer_delay_it_by_seconds(chain: Chain) -> None:
    lone, *others = chain.membership.peers
    heavy, alone = split(chain, others, 3), split(chain, [lone], 3)
    crowd = Crowd(alone.ledger, others)
    honest = others[-1]
    crowd.run(lambda q: answers(heavy.ledger)(q) if q.peer == honest else "never", 60)
    assert crowd.comparison.better is not None
    assert crowd.now <= 15.0


def test_not_everybody_is_asked_in_a_large_swarm() -> None:
    chain = Chain(60)
    crowd = Crowd(chain.ledger, chain.membership.peers)
    crowd.run(answers(chain.ledger), 60)
    assert crowd.comparison.done
    assert len(crowd.asked) <= 12


def test_what_one_peer_makes_us_fetch_is_bounded(chain: Chain) -> None:
    """A liar that signs rounds alone, for ever."""
    liar, *others = chain.membership.peers
    honest, forged = split(chain, others, 3), split(chain, [liar], 40)
    given = 0

    def endless(question: Question) -> Answer | None:
        nonlocal given
        if question.most:
            while len(forged.ledger) < question.round + question.most:
                forged.grow()
            given += question.most
        return answers(forged.ledger)(question)

    rests = Rests()
    assert compared(honest.ledger, endless, rests=rests) is None
    assert 0 < given <= 1024 + 64
    given = 0
    assert compared(honest.ledger, endless, rests=rests) is None
    assert given == 0, "it is left alone for a while"


@pytest.mark.parametrize("seed", range(20))
def test_no_answer_of_a_liar_raises_anything_else(chain: Chain, seed: int) -> None:
    """Ids and heights that contradict each other end it; only what holds is followed."""
    chance = random.Random(seed)
    peers = chain.membership.peers
    ours, theirs = split(chain, peers[:2], 30), split(chain, peers[2:], 30)

    def liar(question: Question) -> Answer | None:
        true = answers((ours, theirs)[chance.randrange(2)].ledger)(question)
        assert true is not None
        if chance.random() < 0.5:
            return true
        ids = tuple(chance.choice([*true.ids, RecordId(content_id(b"none"))]) for _ in true.ids)
        return Answer(true.height, ids, at_hand=true.at_hand[chance.randrange(3) :])

    try:
        better = compared(ours.ledger, liar)
    except ProtocolError:
        return
    assert better is None or better.head == theirs.ledger.parent(len(better))


def test_every_entry_is_checked(chain: Chain) -> None:
    peers = chain.membership.peers
    ours, theirs = split(chain, peers[:2], 3), split(chain, peers[2:], 3)
    assert follows(ours, theirs)
    run = entries(theirs)
    for place in range(3, len(run)):
        signed = run[place - 1].certificate
        forged = [*run[:place], Decided(run[place].record, signed), *run[place + 1 :]]

        def answering(question: Question, forged: list[Decided] = forged) -> Answer | None:
            true = answers(theirs.ledger)(question)
            assert true is not None
            end = question.round + question.most
            return dataclasses.replace(true, at_hand=forged[question.round : end])

        with pytest.raises(ProtocolError) as caught:
            compared(ours.ledger, answering)
        assert caught.value.reason == "certificate"
    before = ours.ledger.head
    assert len(ours.ledger) == 6
    assert ours.ledger.head == before


# In virtual time


def agreed(swarm: Swarm, rounds: int) -> Callable[[], bool]:
    """Everybody is a member of one chain, `rounds` long and more, with the same parameters."""

    def done() -> bool:
        nodes = swarm.alive
        ledgers: list[Ledger] = [node.member.ledger for node in nodes]
        height = min(map(len, ledgers))
        return (
            height > rounds
            and len({ledger[height - 1].record.id for ledger in ledgers}) == 1
            and all(set(node.member.members) == {n.peer for n in nodes} for node in nodes)
            and all(node.member.at_tip for node in nodes)
        )

    return done


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("count", "cut"), [(5, 2), (6, 3), (4, 1)])
def test_a_swarm_cut_in_two_is_one_again(count: int, cut: int, seed: int) -> None:
    # Snapshots would mix the two sides' states; without, everybody replays from the start.
    swarm = Swarm(toy_manifest(start_members=count, snapshot_interval=1000), seed)
    nodes = [swarm.add(index) for index in range(count)]
    swarm.run_until(agreed(swarm, 4), limit=60)
    before = nodes[0].member.round
    links = [(one, other) for one in range(cut) for other in range(cut, count)]
    swarm.network.cut([*links, *((other, one) for one, other in links)])
    swarm.run_until(lambda: all(node.member.round > before + 6 for node in nodes), limit=300)
    sides = {node.member.ledger[before + 5].record.id for node in nodes}
    assert len(sides) == 2
    swarm.network.mend()
    reached = max(node.member.round for node in nodes)
    swarm.run_until(agreed(swarm, reached + 2), limit=300)
    heights = {len(node.member.ledger) for node in nodes}
    assert len({node.parameters for node in nodes}) <= len(heights)
    if 2 * cut < count:
        winner = nodes[-1].member.ledger
        assert swarm.nodes[-1].peer in winner.membership(before + 6)
        assert not any(nodes[0].peer == e.peer for e in winner[before + 5].record.updates)
