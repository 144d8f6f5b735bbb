"""Rules of fetching updates: whom to ask, when to stop, and what becomes of bytes that are none."""

from __future__ import annotations

import dataclasses
from functools import cache
from typing import Any

from distro_node.crypto.hashing import content_id
from distro_node.crypto.identity import PeerId
from distro_node.protocol.chain import ledger
from distro_node.protocol.chain.ledger import Ledger
from distro_node.protocol.member.effects import FetchUpdate
from distro_node.protocol.member.fetching import Fetching
from distro_node.protocol.member.inputs import UpdatesGone

from ..chain import Chain, identity
from .chains import true_chain
from .rule import Patch, Rule, edited

_WANTED = FetchUpdate(2, identity(1).peer, content_id(b"wanted"), 100)


def _who_was_a_member_is_asked_last() -> bool:
    """The author first, whoever that is, then members, then one that has left; no stranger."""
    chain = true_chain().fork()
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


def _what_was_here_before_stays() -> bool:
    """A liar names bytes of ours, a chunk of a snapshot say, as its update: they are not thrown away."""
    fetching = Fetching()
    fetching.begin(_WANTED, stored=True)
    return not fetching.arrived(_WANTED, decodes=False).discard


def _what_is_no_update_goes() -> bool:
    """Else a liar fills the disk; and whoever announced it is to blame."""
    fetching = Fetching()
    fetching.begin(_WANTED, stored=False)
    verdict = fetching.arrived(_WANTED, decodes=False)
    return verdict.discard and verdict.culprit == _WANTED.peer


def _one_download_at_a_time() -> bool:
    """And what is known of the first is not overwritten: the store has the bytes by then."""
    fetching = Fetching()
    begun = [fetching.begin(_WANTED, stored=stored) for stored in (False, True)]
    return begun == [True, False] and fetching.is_new(_WANTED)


def _what_is_applied_is_not_asked_for() -> bool:
    fetching = Fetching()
    return [fetching.goes_on(_WANTED, applied) for applied in (1, 2, 3)] == [True, False, False]


def _what_is_applied_is_not_waited_for() -> bool:
    """Nor is what a snapshot contains, or anything else but updates of rounds to come."""
    newest = _certified().snapshot
    assert newest is not None
    wanted = newest.round + 1
    needed = [Fetching().is_needed(wanted, _certified(), wanted + by) for by in (-1, 0)]
    return needed == [True, False]


RULES = (
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
        "what was here before stays",
        _what_was_here_before_stays,
        edited(Fetching, "arrived", ("discard = self.is_new(wanted)", "discard = True")),
    ),
    Rule(
        "what is no update goes",
        _what_is_no_update_goes,
        edited(Fetching, "arrived", ("discard = self.is_new(wanted)", "discard = False")),
    ),
    Rule(
        "one download at a time",
        _one_download_at_a_time,
        edited(Fetching, "begin", ("if key in self._new", "if False")),
    ),
    Rule(
        "what is applied is not asked for",
        _what_is_applied_is_not_asked_for,
        edited(Fetching, "goes_on", ("wanted.round > applied_round", "True")),
    ),
    Rule(
        "what is applied is not waited for",
        _what_is_applied_is_not_waited_for,
        edited(Fetching, "is_needed", ("round > applied_round and ", "")),
    ),
)
