"""The protocol version of a swarm follows from its chain, and few members cannot change it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import pytest
from distro_node.crypto.identity import PeerId
from distro_node.protocol.chain.initial_sync import InitialSync
from distro_node.protocol.chain.ledger import Ledger
from distro_node.protocol.chain.versions import READY_ROUNDS, VERSION_VOTE_ROUNDS, VersionChange
from distro_node.protocol.member.effects import Note, Publish
from distro_node.protocol.member.inputs import EntryReceived, MessageReceived, Tick
from distro_node.protocol.wire.errors import ProtocolError
from distro_node.protocol.wire.manifest import PROTOCOL_VERSION
from distro_node.protocol.wire.messages import UpdateEntry
from simulation.chain import Chain, answers

# Private here: `_version_votes`: which announcements count is otherwise visible only by a much later
# effect.

NEXT = PROTOCOL_VERSION + 1
NOTICE = 20


def newer(count: int = 4, **changes: int) -> Chain:
    """Return a chain as stored by a program that supports the next version."""
    chain = Chain(count, version_notice=NOTICE, **changes)
    chain.ledger.versions.max_version = NEXT
    return chain


def updates(
    chain: Chain, max_version: Mapping[PeerId, int], who: Iterable[PeerId] | None = None
) -> list[UpdateEntry]:
    peers = chain.membership.peers if who is None else who
    return [
        chain.update(peer, max_version=max_version.get(peer, PROTOCOL_VERSION))
        for peer in sorted(peers)
    ]


def go_on(chain: Chain, max_version: Mapping[PeerId, int], rounds: int) -> None:
    for _ in range(rounds):
        chain.grow(updates=updates(chain, max_version))


def by(chain: Chain, count: int, version: int = NEXT) -> dict[PeerId, int]:
    """Return the version that each of the first `count` members announces."""
    return dict.fromkeys(chain.membership.peers[:count], version)


def test_once_a_quorum_supports_it_the_round_is_known_to_all() -> None:
    chain = newer()
    began = chain.round
    go_on(chain, by(chain, 3), READY_ROUNDS - 1)
    assert chain.ledger.versions.change is None
    go_on(chain, by(chain, 3), 1)
    change = VersionChange(NEXT, began + READY_ROUNDS + NOTICE)
    assert chain.ledger.versions.change == change
    go_on(chain, by(chain, 3), NOTICE)
    assert chain.round == change.round
    versions = {round_: chain.ledger.versions[round_].now for round_ in range(chain.round + 1)}
    assert {r for r, version in versions.items() if version == NEXT} == {change.round}
    # No state of the change is left, and counting restarts for the next one.
    assert chain.ledger.versions.change is None
    go_on(chain, by(chain, 3), 2 * READY_ROUNDS)
    assert chain.ledger.versions.change is None


@pytest.mark.parametrize("liars", [1, 2])
def test_few_bring_nothing_about_and_keep_nothing_from_coming(liars: int) -> None:
    chain = newer(3 * liars + 1)
    go_on(chain, by(chain, liars, 1 << 16), READY_ROUNDS + 5)
    assert chain.ledger.versions.change is None
    # The others cause the change without them, one version at a time.
    honest = dict.fromkeys(chain.membership.peers[liars:], NEXT)
    go_on(chain, honest, READY_ROUNDS)
    assert chain.ledger.versions.change is not None
    assert chain.ledger.versions.change.version == NEXT


def test_a_round_without_a_quorum_restarts_the_count() -> None:
    chain = newer()
    go_on(chain, by(chain, 3), READY_ROUNDS - 1)
    go_on(chain, by(chain, 2), 1)
    go_on(chain, by(chain, 3), READY_ROUNDS - 1)
    assert chain.ledger.versions.change is None
    go_on(chain, by(chain, 3), 1)
    assert chain.ledger.versions.change is not None


def test_a_change_that_is_supported_no_more_is_called_off() -> None:
    chain = newer()
    go_on(chain, by(chain, 3), READY_ROUNDS + NOTICE - 1)
    assert chain.ledger.versions.change is not None
    go_on(chain, {}, 1)
    assert chain.ledger.versions.change is None
    assert chain.ledger.versions[chain.round].now == PROTOCOL_VERSION


def test_who_has_an_update_in_some_rounds_only_counts_for_a_while() -> None:
    chain = newer()
    first, *others = chain.membership.peers
    max_version = by(chain, 3)
    go_on(chain, max_version, 1)
    for _ in range(VERSION_VOTE_ROUNDS - 1):
        chain.grow(updates=updates(chain, max_version, others))
    # It is one of the quorum of three.
    assert (
        chain.ledger.versions.change is not None or chain.ledger.versions[chain.round].now == NEXT
    )
    chain = newer()
    go_on(chain, max_version, 1)
    for _ in range(READY_ROUNDS - 2):
        chain.grow(updates=updates(chain, max_version, others))
    chain.grow(departed=[chain.leave(first)], updates=updates(chain, max_version, others))
    # Three members are left and all are needed for a quorum, but one does not support it.
    for _ in range(READY_ROUNDS):
        go_on(chain, max_version, 1)
    assert chain.ledger.versions.change is None


def test_it_is_the_same_however_the_chain_came_to_be_known() -> None:
    chain = newer()
    go_on(chain, by(chain, 3), READY_ROUNDS // 2)
    go_on(chain, by(chain, 2), 1)
    go_on(chain, by(chain, 3), READY_ROUNDS + NOTICE + VERSION_VOTE_ROUNDS)
    whole = chain.ledger
    for length in range(len(whole) + 1):
        part = whole.truncated(length)
        grown = part.truncated(length // 2)
        for round_ in range(length // 2, length):
            grown.append(whole[round_])
        found = [(known.versions[length].now, known.versions.change) for known in (part, grown)]
        assert found[0] == found[1]
        assert found[0][0] == whole.versions[length].now


def outdated() -> Chain:
    chain = newer()
    go_on(chain, by(chain, 3), READY_ROUNDS + NOTICE + 3)
    return chain


def test_who_does_not_support_it_follows_up_to_that_round_and_blames_nobody() -> None:
    chain = outdated()
    ours = Ledger(chain.manifest)
    catching_up, asked = InitialSync(ours), 0
    answer = answers(chain.ledger)
    peers = chain.membership.peers
    while not catching_up.done:
        for question in catching_up.requests(peers, 0.0):
            assert catching_up.on_answer(question.peer, answer(question), 0.0) is None
            asked += 1
    assert asked
    assert ours.versions.outdated
    assert chain.ledger.versions[len(ours)].now == NEXT > chain.ledger.versions[len(ours) - 1].now
    with pytest.raises(ProtocolError, match="newer protocol version"):
        ours.append(chain.ledger[len(ours)])


def test_a_member_that_does_not_support_it_is_silent() -> None:
    chain = newer()
    go_on(chain, by(chain, 3), READY_ROUNDS + NOTICE - 1)
    me = chain.membership.peers[3]
    chain.ledger.versions.max_version = PROTOCOL_VERSION
    member = chain.member(me)
    assert member.view.ledger.versions.soon_outdated
    assert not member.view.is_outdated
    chain.ledger.versions.max_version = NEXT
    # The last round in the old version is decided by the others.
    chain.grow(updates=updates(chain, by(chain, 3), chain.membership.peers[:3]))
    member.handle(EntryReceived(chain.ledger[chain.round - 1]), 1.0)
    assert member.view.is_outdated
    assert member.view.state == "outdated"
    said = chain.envelope(0, "announcement", chain.announcement(0))
    with pytest.raises(ProtocolError, match="newer protocol version"):
        member.screen(MessageReceived(said), 2.0)
    assert member.handle(MessageReceived(said), 2.0) == []
    for now in range(3, 60):
        assert member.handle(Tick(), float(now)) == []


def test_a_member_states_its_versions_and_learns_of_the_change() -> None:
    chain = newer()
    go_on(chain, by(chain, 3), READY_ROUNDS - 1)
    member = chain.member(chain.membership.peers[0])
    decided = chain.grow(updates=updates(chain, by(chain, 3)))
    effects = member.handle(EntryReceived(decided), 1.0)
    notes = [effect for effect in effects if isinstance(effect, Note) and effect.kind == "version"]
    assert [(note.round, note.text) for note in notes] == [(chain.round + NOTICE, str(NEXT))]
    assert not any(isinstance(effect, Publish) for effect in notes)


def test_what_was_said_is_not_good_for_ever() -> None:
    chain = Chain(4, version_notice=1000)
    chain.ledger.versions.max_version = NEXT
    peers = chain.membership.peers
    for round_ in range(90):
        committees = peers[:3] if round_ == 0 else peers[1:3]
        # One of the three has announced it once, and nothing since.
        chain.grow(updates=[chain.update(peer, max_version=NEXT) for peer in committees])
    # It counted long enough for the change to be scheduled, and no longer.
    assert not chain.ledger.versions._version_votes.is_quorum(
        NEXT, chain.membership.one_each, "byzantine"
    )


def test_who_does_not_support_it_leaves_in_time() -> None:
    chain = newer()
    chain.ledger.versions.max_version = PROTOCOL_VERSION
    go_on(chain, by(chain, 3), READY_ROUNDS + NOTICE - 4)
    assert not chain.ledger.versions.soon_outdated
    go_on(chain, by(chain, 3), 1)
    assert chain.ledger.versions.soon_outdated


def test_what_was_said_is_good_through_rounds_without_any_update() -> None:
    chain = newer()
    go_on(chain, by(chain, 3), 1)
    for _ in range(READY_ROUNDS + 2):
        chain.grow(updates=[])
    assert chain.ledger.versions.change is not None
