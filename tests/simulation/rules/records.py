"""Rules of what a leader puts into a record, and of what may still be said by then."""

from __future__ import annotations

from functools import cache

from distro_node.crypto.envelope import Envelope
from distro_node.crypto.identity import PeerId
from distro_node.protocol.chain import admissions, ledger
from distro_node.protocol.chain.admissions import admission_problem
from distro_node.protocol.member import (
    proposing,
)
from distro_node.protocol.member.looking import Looking
from distro_node.protocol.member.presence import Presence
from distro_node.protocol.member.proposing import Accusations, JoinRequests, compose_record
from distro_node.protocol.wire.errors import ProtocolError
from distro_node.protocol.wire.messages import JoinRequest, Leave, Record

from ..chain import FINGERPRINT, Chain, identity
from .rule import Rule, edited, put

ME, MEMBER, STRANGER = identity(0).peer, identity(1).peer, identity(40).peer


@cache
def _chain() -> Chain:
    return Chain(4).grow_until(2)


def _letter(number: int, size: int, sender: PeerId = MEMBER) -> Envelope:
    body = number.to_bytes(8, "big").ljust(size, b"\0")
    return Envelope(kind="vote", swarm=bytes(32), sender=sender, body=body, signature=bytes(64))


@cache
def _crowd() -> Chain:
    """Seventy members, who have done nothing yet."""
    chain = Chain(70)
    chain.grow(updates=[])
    chain.grow(updates=[])
    return chain


def _signs(kind: str, body: bytes) -> Envelope:
    raise AssertionError("it is not asked to sign anything")


def _proposed(chain: Chain, *, now: float = 0.0, **known: object) -> Record:
    watch = Presence(ME, 0.0)
    watch.set_members(chain.membership.peers, 0.0)
    for peer, leave, signature in known.pop("leaves", ()):  # type: ignore[misc]
        watch.took_leave(peer, leave, signature)
    settings = {"joins": JoinRequests(), "accusations": Accusations(), "updates": []}
    settings["looking"] = Looking(ME, _signs)
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


RULES = (
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
        "old requests are replays",
        _old_requests_are_replays,
        put(admissions, "REQUEST_WINDOW", 1000),
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
)
