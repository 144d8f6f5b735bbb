"""Rules of fetching updates: which peers to ask, when to stop, and what to do with invalid bytes."""

from __future__ import annotations

import dataclasses
from functools import cache

from distro_node.crypto.hashing import content_id
from distro_node.protocol.chain.ledger import Ledger
from distro_node.protocol.member.effects import FetchUpdate
from distro_node.protocol.member.inputs import UpdatesGone
from distro_node.protocol.member.update_fetch import UpdateDownloads
from simulation.chain import Chain, identity
from simulation.known_chains import true_chain

_WANTED = FetchUpdate(2, identity(1).peer, content_id(b"wanted"), 100)


def test_who_was_a_member_is_asked_last() -> None:
    """The author first, then members, then a former member; no stranger."""
    chain = true_chain().fork()
    left, member, _, _ = chain.membership.peers
    chain.grow(departed=[chain.leave(left)])
    author, stranger = identity(50).peer, identity(51).peer
    wanted = dataclasses.replace(_WANTED, peer=author)
    asked = UpdateDownloads().providers(wanted, chain.ledger, [stranger, left, member, author])
    assert asked == [author, member, left]


def test_what_a_snapshot_contains_is_given_up() -> None:
    """It is kept nowhere: a replaying node then takes the snapshot, and waits if there is none."""
    chain, fetching = _certified(), UpdateDownloads()
    newest = chain.snapshot
    assert newest is not None
    inside = dataclasses.replace(_WANTED, round=newest.round)
    after = dataclasses.replace(_WANTED, round=newest.round + 1)
    gone = [fetching.in_vain(wanted, chain, 0) for wanted in (inside, after)]
    assert gone == [[UpdatesGone(newest.round)], []]


@cache
def _certified() -> Ledger:
    chain = Chain(4, snapshot_interval=5)
    while chain.round < 9:
        chain.grow()
    return chain.ledger


def test_what_was_here_before_stays() -> None:
    """A liar names bytes of ours, such as a snapshot's chunk, as its update: they are not deleted."""
    fetching = UpdateDownloads()
    fetching.begin(_WANTED, stored=True)
    assert not fetching.arrived(_WANTED, decodes=False).discard


def test_what_is_no_update_goes() -> None:
    """Otherwise a liar fills the disk; and its announcer is to blame."""
    fetching = UpdateDownloads()
    fetching.begin(_WANTED, stored=False)
    verdict = fetching.arrived(_WANTED, decodes=False)
    assert verdict.discard
    assert verdict.culprit == _WANTED.peer


def test_one_download_at_a_time() -> None:
    """The state of the first is not overwritten: the store has the bytes by then."""
    fetching = UpdateDownloads()
    begun = [fetching.begin(_WANTED, stored=stored) for stored in (False, True)]
    assert begun == [True, False]
    assert fetching.is_new(_WANTED)


def test_what_is_applied_is_not_asked_for() -> None:
    fetching = UpdateDownloads()
    assert [fetching.continues(_WANTED, applied) for applied in (1, 2, 3)] == [True, False, False]


def test_nothing_is_asked_for_while_a_state_is_loaded() -> None:
    """It contains some of the updates, and needs the line: on a slow one they kept each other waiting,
    until no peer had either any more."""
    assert not UpdateDownloads().continues(_WANTED, 1, loaded=False)


def test_what_is_applied_is_not_waited_for() -> None:
    """Nor is what a snapshot contains, or anything except updates of future rounds."""
    newest = _certified().snapshot
    assert newest is not None
    wanted = newest.round + 1
    needed = [UpdateDownloads().is_needed(wanted, _certified(), wanted + by) for by in (-1, 0)]
    assert needed == [True, False]
