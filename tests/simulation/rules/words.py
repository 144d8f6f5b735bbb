"""Budgets of words: what is read of whom, what is kept of it and for how long, and how often it makes us
ask."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache

from distro_node.crypto.envelope import Envelope
from distro_node.crypto.hashing import content_id
from distro_node.crypto.identity import PeerId
from distro_node.protocol.chain import apart, entries, ledger
from distro_node.protocol.chain.apart import Apart
from distro_node.protocol.chain.entries import Entries
from distro_node.protocol.chain.ledger import admission_problem
from distro_node.protocol.member import (
    divergence,
    inbox,
    mailbox,
    own_words,
    presence,
    proposing,
)
from distro_node.protocol.member.divergence import Divergence
from distro_node.protocol.member.effects import AskSync, Effect, FetchUpdate, Fork
from distro_node.protocol.member.inbox import Inbox
from distro_node.protocol.member.inputs import Heard
from distro_node.protocol.member.mailbox import Mailbox
from distro_node.protocol.member.own_words import OwnWords
from distro_node.protocol.member.presence import Presence
from distro_node.protocol.member.proposing import Accusations, JoinRequests, compose_record
from distro_node.protocol.member.round import Round
from distro_node.protocol.wire.errors import ProtocolError
from distro_node.protocol.wire.messages import Heartbeat, JoinRequest, Leave, Record, RecordId

from ..chain import FINGERPRINT, Chain, identity
from .rule import Rule, edited, put

# Private here: `_latest`, `_chains`: that a table is bounded shows nowhere else; `_screen_evidence` and
# bounds: what is broken on purpose.

ME, MEMBER, STRANGER = identity(0).peer, identity(1).peer, identity(40).peer


@cache
def _chain() -> Chain:
    return Chain(4).grow_until(2)


def _letter(number: int, size: int, sender: PeerId = MEMBER) -> Envelope:
    body = number.to_bytes(8, "big").ljust(size, b"\0")
    return Envelope(kind="vote", swarm=bytes(32), sender=sender, body=body, signature=bytes(64))


def _inbox() -> Inbox:
    watch = Presence(ME, 0.0)
    watch.set_members(_chain().membership.peers, 0.0)
    joins, accusations = JoinRequests(), Accusations()
    return Inbox(_chain().manifest, watch, Divergence(0.0), joins, accusations)


def _refused(envelope: Envelope) -> str:
    """Why it is not let in."""
    try:
        _inbox().screen(envelope, _chain().ledger, 0.0)
    except ProtocolError as error:
        return error.reason
    return ""


# What is read


def _long_words_of_strangers_are_not_read() -> bool:
    """It would be no message, but who knows after how long."""
    return _refused(_letter(1, 5000, STRANGER)) == "not_member"


def _long_words_of_members_are_read() -> bool:
    return _refused(_letter(1, 5000)) == "malformed"


def _rounds_far_ahead_are_not_let_in() -> bool:
    ahead = [_chain().announcement(1, round=_chain().round + by) for by in (8, 9)]
    said = [_chain().envelope(1, "announcement", announcement) for announcement in ahead]
    return [_refused(envelope) for envelope in said] == ["", "other_round"]


def _strangers_have_no_say() -> bool:
    said = _chain().envelope(40, "announcement", _chain().announcement(40))
    return _refused(said) == "not_member"


def _strangers_accuse_nobody() -> bool:
    """To check a proof takes two signatures."""
    return _refused(_chain().envelope(40, "evidence", _chain().evidence(1))) == "not_member"


def _one_update_of_a_round_counts() -> bool:
    member, effects, refused = _chain().member(0), list[Effect](), 0
    for number in range(20):
        said = _chain().announcement(1, update=content_id(b"%d" % number))
        try:
            effects += member.handle(Heard(_chain().envelope(1, "announcement", said)), 0.0)
        except ProtocolError:
            refused += 1
    return refused == 19 and sum(isinstance(one, FetchUpdate) for one in effects) == 1


# What is kept


def _kept(envelopes: Iterable[Envelope], *, member: bool) -> int:
    kept = _inbox()
    for envelope in envelopes:
        kept.keep(envelope, 9, member=member)
    return sum(len(envelope.body) for envelope in kept.enter(9))


def _little_is_kept_of_newcomers() -> bool:
    return 0 < _kept((_letter(n, 500, STRANGER) for n in range(100)), member=False) <= 4 << 10


def _a_bounded_part_is_kept_of_members() -> bool:
    return 0 < _kept((_letter(n, 100_000) for n in range(20)), member=True) <= 1 << 20


def _short_words_count_for_what_they_cost() -> bool:
    return _kept((_letter(n, 8) for n in range(3000)), member=True) <= 8 << 10


def _what_is_over_is_forgotten() -> bool:
    """And makes room for what comes."""
    box = Mailbox()
    for number in range(20):
        box.put(number, _letter(number, 60_000), 1 << 20)
    box.forget_before(19)
    box.put(19, _letter(50, 60_000), 1 << 20)
    return len(box.of_round(19)) == 1 and not box.of_round(5)


def _own_words_of_some_rounds_are_kept() -> bool:
    """Oneself can say any number, and goes back to a chain that was left."""
    kept = _inbox()
    for number in range(600):
        kept.stand_by(_letter(number, 8, ME), ME)
    return len(kept.start_over()) == 512


def _so_many_wait_for_admission() -> bool:
    joins, request = JoinRequests(), JoinRequest(5, b"")
    crowd = [PeerId(number.to_bytes(32, "big")) for number in range(1100)]
    for peer in crowd:
        joins.put(peer, request, bytes(64), 0.0)
    return sum(map(joins.has, crowd)) == 1024


def _who_stops_asking_is_forgotten() -> bool:
    joins, request = JoinRequests(), JoinRequest(5, b"")
    joins.put(STRANGER, request, bytes(64), 0.0)
    joins.put(MEMBER, request, bytes(64), 16.0)
    return joins.has(MEMBER) and not joins.has(STRANGER)


def _an_old_request_replaces_no_newer_one() -> bool:
    """Whoever repeats it would keep a peer from being admitted."""
    joins = JoinRequests()
    new = _chain().admission(40, _chain().round)
    for entry in (new, _chain().admission(40, 0)):
        joins.put(entry.peer, entry.request, entry.signature, 0.0)
    return joins.admissible(_chain().manifest, _chain().ledger, 0.0) == [new]


def _so_many_accusations_wait() -> bool:
    accusations, proof = Accusations(), _chain().evidence(1)
    for number in range(100):
        accused = Accused(PeerId(number.to_bytes(32, "big")))
        accusations.put(accused, _letter(number, 8))  # type: ignore[arg-type]  # whose is all it asks
    return len(accusations.envelopes()) == 64 and not accusations.wants(proof.peer)


class Accused:
    """A proof against somebody."""

    def __init__(self, peer: PeerId) -> None:
        self.peer = peer


def _many_own_words_go_sooner() -> bool:
    said: OwnWords[str] = OwnWords(1000)
    said.note(6, "a long proposal", 1 << 20)
    said.note(7, "a vote", 100)
    return said.forget(7) == ["a long proposal"]


def _entries_go_to_the_disk() -> bool:
    class Drawer:
        def put(self, entry: bytes) -> int:
            return 0

        def get(self, offset: int) -> bytes:
            return b""

    kept, entry = Entries(Drawer()), _chain().ledger[0]
    for _ in range(600):
        kept.append(entry)
    return len(kept._latest) < 256


# What is told of chains that part before the floor


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


# Records


@cache
def _crowd() -> Chain:
    """Seventy members, who have done nothing yet."""
    chain = Chain(70)
    chain.grow(updates=[])
    chain.grow(updates=[])
    return chain


def _proposed(chain: Chain, *, now: float = 0.0, **known: object) -> Record:
    watch = Presence(ME, 0.0)
    watch.set_members(chain.membership.peers, 0.0)
    for peer, leave, signature in known.pop("leaves", ()):  # type: ignore[misc]
        watch.took_leave(peer, leave, signature)
    settings = {"joins": JoinRequests(), "accusations": Accusations(), "updates": []}
    return compose_record(
        manifest=chain.manifest,
        ledger=chain.ledger,
        fingerprint=FINGERPRINT,
        presence=watch,
        lease=20.0,
        snapshot=None,
        now=now,
        **(settings | known),  # type: ignore[arg-type]
    )


def _so_many_are_admitted_at_once() -> bool:
    joins = JoinRequests()
    for who in range(100, 170):
        entry = _chain().admission(who)
        joins.put(entry.peer, entry.request, entry.signature, 0.0)
    return len(_proposed(_chain(), joins=joins).admitted) == 64


def _so_many_leave_at_once() -> bool:
    said = Leave(_crowd().round)
    leaves = [
        (peer, said, _crowd().signature(peer, "leave", said)) for peer in _crowd().membership.peers
    ]
    departed = _proposed(_crowd(), leaves=leaves).departed
    return sum(entry.reason == "left" for entry in departed) == 64


def _so_many_are_expelled_at_once() -> bool:
    accusations = Accusations()
    for peer in _crowd().membership.peers[:20]:
        accusations.put(_crowd().evidence(peer), _letter(1, 8))
    return len(_proposed(_crowd(), accusations=accusations).evidence) == 16


def _who_is_behind_is_not_admitted() -> bool:
    """It asked three rounds ago, and could not train."""
    chain, joins = Chain(2).grow_until(5), JoinRequests()
    for who, round_ in ((20, 2), (21, 3)):
        entry = chain.admission(who, round_)
        joins.put(entry.peer, entry.request, entry.signature, 0.0)
    admitted = _proposed(chain, joins=joins).admitted
    return [entry.peer for entry in admitted] == [identity(21).peer]


def _a_leader_accuses_later_than_others_agree() -> bool:
    """Their clocks need not match; a lease is 20 seconds."""
    silent = [len(_proposed(_chain(), now=now).departed) for now in (22.0, 26.0)]
    return silent == [0, 3]


# What may still be said, and what is a replay


def _old_requests_are_replays() -> bool:
    chain = Chain(1).grow_until(70)
    members = chain.membership
    problems = [
        admission_problem(STRANGER, JoinRequest(round_, b""), 70, chain.manifest, members)
        for round_ in (5, 6)
    ]
    return [problem is None for problem in problems] == [False, True]


def _old_leaves_are_replays() -> bool:
    members = _chain().membership
    return [ledger.leave_is_current(said, MEMBER, 20, members) for said in (11, 12)] == [
        False,
        True,
    ]


def _a_leave_of_before_is_a_replay() -> bool:
    """Said in an earlier membership: whoever repeats it would count out who came back."""
    members = _chain().membership
    since = members.since[MEMBER]
    found = [ledger.leave_is_current(said, MEMBER, 5, members) for said in (since, since + 1)]
    return found == [False, True]


def _old_contradictions_are_not_recorded() -> bool:
    chain = Chain(1).grow_until(2)
    proof = chain.evidence(0)
    chain.grow_until(67)
    try:
        chain.ledger.check_evidence(proof)
    except ProtocolError:
        return True
    return False


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


# What makes us ask


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


RULES = (
    Rule(
        "long words of strangers are not read",
        _long_words_of_strangers_are_not_read,
        put(inbox, "_STRANGER_BYTES", 1 << 20),
    ),
    Rule(
        "long words of members are read",
        _long_words_of_members_are_read,
        put(Inbox, "_may_say_much", lambda self, sender, chain: False),
    ),
    Rule(
        "rounds far ahead are not let in",
        _rounds_far_ahead_are_not_let_in,
        put(divergence, "FUTURE_ROUNDS", 1 << 40),
    ),
    Rule(
        "strangers have no say",
        _strangers_have_no_say,
        edited(Divergence, "screen", ("sender not in ledger.membership(ours)", "False")),
    ),
    Rule(
        "strangers accuse nobody",
        _strangers_accuse_nobody,
        edited(
            Inbox,
            "_screen_evidence",
            ("sender not in ledger.membership(max(0, len(ledger) - 1))", "False"),
        ),
    ),
    Rule(
        "one update of a round counts",
        _one_update_of_a_round_counts,
        edited(
            Round,
            "take",
            ('raise ProtocolError("equivocation", "a second update for one round")', "pass"),
        ),
    ),
    Rule(
        "little is kept of newcomers",
        _little_is_kept_of_newcomers,
        put(inbox, "NEWCOMER_BYTES", 1 << 20),
    ),
    Rule(
        "a bounded part is kept of members",
        _a_bounded_part_is_kept_of_members,
        put(inbox, "MEMBER_BYTES", 1 << 40),
    ),
    Rule(
        "short words count for what they cost",
        _short_words_count_for_what_they_cost,
        put(mailbox, "_OVERHEAD_BYTES", 0),
    ),
    Rule(
        "what is over is forgotten",
        _what_is_over_is_forgotten,
        put(Mailbox, "forget_before", lambda self, round: None),
    ),
    Rule(
        "own words of some rounds are kept",
        _own_words_of_some_rounds_are_kept,
        put(inbox, "_OWN_WORDS", 1 << 20),
    ),
    Rule(
        "so many wait for admission",
        _so_many_wait_for_admission,
        put(proposing, "_MAX_WAITING", 1 << 20),
    ),
    Rule(
        "who stops asking is forgotten",
        _who_stops_asking_is_forgotten,
        put(proposing, "_REQUEST_SECONDS", 1e9),
    ),
    Rule(
        "an old request replaces no newer one",
        _an_old_request_replaces_no_newer_one,
        edited(JoinRequests, "put", ("request.round >= known[0].round", "True")),
    ),
    Rule(
        "so many accusations wait",
        _so_many_accusations_wait,
        put(proposing, "_MAX_ACCUSED", 1 << 20),
    ),
    Rule(
        "many own words go sooner",
        _many_own_words_go_sooner,
        put(own_words, "FORGET_BYTES", 1 << 40),
    ),
    Rule("entries go to the disk", _entries_go_to_the_disk, put(entries, "AT_HAND", 1 << 40)),
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
        "so many are admitted at once",
        _so_many_are_admitted_at_once,
        put(proposing, "_MAX_ADMISSIONS", 1000),
    ),
    Rule("so many leave at once", _so_many_leave_at_once, put(proposing, "_MAX_LEAVES", 1000)),
    Rule(
        "so many are expelled at once",
        _so_many_are_expelled_at_once,
        put(proposing, "MAX_EVIDENCE", 1000),
    ),
    Rule(
        "who is behind is not admitted",
        _who_is_behind_is_not_admitted,
        put(proposing, "_IN_SYNC_ROUNDS", 1000),
    ),
    Rule(
        "a leader accuses later than others agree",
        _a_leader_accuses_later_than_others_agree,
        put(proposing, "_ACCUSE_MARGIN", 1.0),
    ),
    Rule(
        "old requests are replays", _old_requests_are_replays, put(ledger, "REQUEST_WINDOW", 1000)
    ),
    Rule("old leaves are replays", _old_leaves_are_replays, put(ledger, "LEAVE_WINDOW", 1000)),
    Rule(
        "a leave of before is a replay",
        _a_leave_of_before_is_a_replay,
        edited(ledger, "leave_is_current", ("since < said and ", "")),
    ),
    Rule(
        "old contradictions are not recorded",
        _old_contradictions_are_not_recorded,
        put(ledger, "EVIDENCE_WINDOW", 1000),
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
)
