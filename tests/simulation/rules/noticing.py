"""Rules of noticing others: who is there, who has parted, and how often that makes us ask."""

from __future__ import annotations

from functools import cache

from distro_node.crypto.hashing import content_id
from distro_node.crypto.identity import PeerId
from distro_node.protocol.chain import apart
from distro_node.protocol.chain.apart import Apart
from distro_node.protocol.member import (
    admission,
    divergence,
    presence,
    replica,
)
from distro_node.protocol.member.admission import AdmissionRequest
from distro_node.protocol.member.divergence import Divergence
from distro_node.protocol.member.effects import AskSync, Effect, Fork
from distro_node.protocol.member.presence import Presence
from distro_node.protocol.member.replica import Replica
from distro_node.protocol.wire.messages import Heartbeat, RecordId

from ..chain import FINGERPRINT, Chain, identity
from .rule import Rule, edited, put

# Private here: `_chains`: that it is bounded shows nowhere else.

ME, MEMBER, STRANGER = identity(0).peer, identity(1).peer, identity(40).peer


@cache
def _chain() -> Chain:
    return Chain(4).grow_until(2)


def _a_heartbeat_counts_once() -> bool:
    """Whoever repeats it would keep the dead alive."""
    watch, beat = Presence(ME, 0.0), Heartbeat(3, 7)
    watch.set_members([ME, MEMBER], 0.0)
    for now in (1.0, 30.0):
        watch.beat(MEMBER, beat, now)
    return watch.last_heard(MEMBER) == 1.0


def _who_slept_accuses_nobody() -> bool:
    watch = Presence(ME, 0.0)
    watch.set_members([ME, MEMBER], 0.0)
    watch.tick(1000.0)
    return watch.silent(20.0, 1000.0) == set()


def _a_connection_may_come_back() -> bool:
    watch = Presence(ME, 0.0)
    watch.set_members([ME, MEMBER], 0.0)
    watch.lost(MEMBER, 10.0)
    return [watch.missing(now) for now in (11.0, 13.0)] == [set(), {MEMBER}]


def _asked(kind: type[Effect], seconds: int, *, news: bool = False) -> int:
    """How often, where somebody hints ten times a second that there is something new."""
    noticed, effects = Divergence(0.0), list[Effect]()
    for step in range(1, 10 * seconds + 1):
        now = step / 10
        if not news:
            noticed.behind()
        noticed.parted()
        effects += noticed.questions(
            _chain().ledger, last=now if news else 0.0, patience=0.0, follows=False, now=now
        )
    return sum(isinstance(effect, kind) for effect in effects)


def _who_seems_behind_asks_now_and_then() -> bool:
    return _asked(AskSync, 10) <= 20


def _who_hears_news_asks_all_the_same() -> bool:
    """Gossip queues: nothing in it tells where the others are."""
    return 9 <= _asked(AskSync, 100, news=True) <= 10


def _who_hears_nothing_asks() -> bool:
    noticed, count = Divergence(0.0), 0
    for now in range(100):
        effects = noticed.questions(
            _chain().ledger, last=0.0, patience=0.0, follows=False, now=now / 10
        )
        count += len(effects)
    return 3 <= count <= 5


def _chains_are_compared_now_and_then() -> bool:
    return _asked(Fork, 100) <= 10


def _seen(count: int) -> tuple[Apart, list[PeerId]]:
    parted, told = Apart(), []
    for number in range(count):
        peer = PeerId(number.to_bytes(32, "big"))
        told += parted.seen({peer: RecordId(content_id(peer))})
    return parted, told


def _so_many_who_parted_are_known() -> bool:
    return len(_seen(2000)[0].peers) == 1024


def _so_many_other_chains_are_known() -> bool:
    return len(_seen(2000)[0]._chains) == 1024


def _a_liar_is_told_of_once() -> bool:
    parted, told = Apart(), []
    for number in range(10):
        told += parted.seen({MEMBER: RecordId(content_id(bytes([number])))})
    return told == [MEMBER]


def _a_chain_is_told_of_once() -> bool:
    parted, chain = Apart(), RecordId(content_id(b"theirs"))
    return parted.seen({MEMBER: chain}) == [MEMBER] and parted.seen({ME: chain}) == []


def _admission_is_asked_for_now_and_then() -> bool:
    """Every request goes to everybody."""
    request = AdmissionRequest(b"", 0.0)
    asked = [request.renew(5, True, step / 10) for step in range(100)]
    return sum(one is not None for one in asked) == 5


def _who_never_gets_to_the_end_asks_all_the_same() -> bool:
    """Where rounds are shorter than an update's way it never does."""
    request = AdmissionRequest(b"", 0.0)
    return [request.renew(5, False, now) is not None for now in (9.0, 11.0)] == [False, True]


def _who_is_far_behind_does_not_ask() -> bool:
    """Once it is a member, the others wait for it."""
    chain, state = Chain(1).grow_until(9), Replica(ME, 5)
    near = []
    for round_ in (3, 4):
        state.loaded(round_, FINGERPRINT, None)
        near.append(state.is_near(chain.ledger))
    return near == [False, True]


RULES = (
    Rule(
        "so many who parted are known",
        _so_many_who_parted_are_known,
        put(apart, "_MOST_PEERS", 9999),
    ),
    Rule(
        "so many other chains are known",
        _so_many_other_chains_are_known,
        put(apart, "_MOST_CHAINS", 9999),
    ),
    Rule(
        "a liar is told of once",
        _a_liar_is_told_of_once,
        edited(Apart, "seen", ("peer not in self._told and ", "")),
    ),
    Rule(
        "another chain is told of once",
        _a_chain_is_told_of_once,
        edited(Apart, "seen", (" and record not in self._chains", "")),
    ),
    Rule(
        "a heartbeat counts once",
        _a_heartbeat_counts_once,
        edited(Presence, "beat", ("beat.count > count or beat.round > round_", "True")),
    ),
    Rule(
        "who slept accuses nobody",
        _who_slept_accuses_nobody,
        put(presence, "_OWN_ABSENCE_SECONDS", 1e9),
    ),
    Rule(
        "a connection may come back",
        _a_connection_may_come_back,
        put(presence, "_RECONNECT_SECONDS", 0.0),
    ),
    Rule(
        "who seems behind asks now and then",
        _who_seems_behind_asks_now_and_then,
        put(divergence, "_SYNC_BEHIND_SECONDS", 0.0),
    ),
    Rule(
        "who hears news asks all the same",
        _who_hears_news_asks_all_the_same,
        put(divergence, "_TIP_SECONDS", 1e9),
    ),
    Rule("who hears nothing asks", _who_hears_nothing_asks, put(divergence, "_SYNC_SECONDS", 1e9)),
    Rule(
        "chains are compared now and then",
        _chains_are_compared_now_and_then,
        put(divergence, "_COMPARE_SECONDS", 0.0),
    ),
    Rule(
        "admission is asked for now and then",
        _admission_is_asked_for_now_and_then,
        put(admission, "_REPEAT_SECONDS", 0.0),
    ),
    Rule(
        "who never gets to the end asks all the same",
        _who_never_gets_to_the_end_asks_all_the_same,
        put(admission, "_BEHIND_SECONDS", 1e9),
    ),
    Rule(
        "who is far behind does not ask",
        _who_is_far_behind_does_not_ask,
        put(replica, "_NEAR_ROUNDS", 1000),
    ),
)
