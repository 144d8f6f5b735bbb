"""Budgets of formats and tables: how long a thing may be, how many are kept, how much is answered."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any
from unittest.mock import patch

from distro_node.crypto.envelope import Envelope
from distro_node.crypto.hashing import content_id
from distro_node.crypto.identity import PeerId, peer_text
from distro_node.protocol.chain import entries, memberships, sync
from distro_node.protocol.chain.memberships import Memberships
from distro_node.protocol.chain.sync import SyncRequest, compose_response
from distro_node.protocol.wire import (
    blobs,
    encoding,
    introductions,
    manifest,
    membership,
    messages,
    relay_requests,
    structure,
    swarm_id,
)
from distro_node.protocol.wire.allowance import Allowance, Budgets
from distro_node.protocol.wire.backoff import Backoff, Pause
from distro_node.protocol.wire.bounded import Bounded
from distro_node.protocol.wire.errors import ProtocolError
from distro_node.protocol.wire.introductions import PeerRecord, Registry
from distro_node.protocol.wire.manifest import SwarmId
from distro_node.protocol.wire.membership import Change, Membership, founding
from distro_node.protocol.wire.structure import StructureError

from ..chain import identity
from .rule import Rule, edited, put

# Private here: `_free`: values of any depth, which no format has; `_kept`: how much is kept shows
# nowhere else.

SWARM = SwarmId(bytes(32))


def _peer(number: int) -> PeerId:
    return PeerId(number.to_bytes(32, "big"))


# How long a thing may be


def _refused_for_length(decode: Callable[[bytes], Any], most: int) -> Callable[[], bool]:
    """Before any of it is read: of zeros, which are no such thing either."""

    def holds() -> bool:
        reasons = []
        for size in (most, most + 1):
            try:
                decode(bytes(size))
            except ProtocolError as error:
                reasons.append(error.reason)
        return len(reasons) == 2 and reasons[0] != "oversized" == reasons[1]

    return holds


def _message(body: bytes) -> object:
    envelope = Envelope(kind="vote", swarm=SWARM, sender=_peer(1), body=body, signature=bytes(64))
    return messages.decode_message(envelope)


LONGEST: tuple[tuple[str, ModuleType, str, Callable[[bytes], Any], int], ...] = (
    ("a message", messages, "MAX_MESSAGE_BYTES", _message, 256 << 10),
    ("an entry", entries, "MAX_DECIDED_BYTES", entries.decode_decided, 4 << 20),
    ("a question", sync, "MAX_SYNC_REQUEST_BYTES", sync.decode_request, 512),
    ("an answer", sync, "MAX_SYNC_RESPONSE_BYTES", sync.decode_response, 8 << 20),
    ("a list of chunks", blobs, "MAX_BLOB_LIST_BYTES", blobs.decode_any_blob_list, 5 << 20),
    (
        "a request for introductions",
        introductions,
        "MAX_REQUEST_BYTES",
        introductions.decode_request,
        3200,
    ),
    (
        "introductions",
        introductions,
        "MAX_RESPONSE_BYTES",
        introductions.decode_response,
        64 * 3080,
    ),
)


def _too_many_items() -> bool:
    """Half a megabyte that asks for half a million objects."""
    most = 1 << 19
    try:
        encoding.decode_plain(b"\xdd" + most.to_bytes(4, "big") + b"\xc0" * most, max_bytes=1 << 20)
    except ProtocolError as error:
        return error.reason == "malformed"
    return False


def _too_deep() -> bool:
    value: Any = 1
    for _ in range(14):
        value = [value]
    try:
        structure._free(value, 0)
    except StructureError:
        return True
    return False


def _manifests_have_a_length() -> bool:
    """Longer ones are not even hashed."""
    data = bytes((2 << 20) + 1)
    try:
        manifest.decode_manifest(data, SwarmId(content_id(data)))
    except ProtocolError as error:
        return error.reason == "oversized"
    return False


def _relay_requests_have_a_length() -> bool:
    try:
        relay_requests.open_relay_request(bytes(32 + 513))
    except ProtocolError as error:
        return error.reason == "oversized"
    return False


def _peer_records_have_a_length() -> bool:
    try:
        introductions.open_peer_record(bytes(3073), SWARM)
    except ProtocolError as error:
        return error.reason == "oversized"
    return False


def _links_have_a_length() -> bool:
    try:
        swarm_id.parse_invite("distro:" + "x" * 9000)
    except swarm_id.SwarmIdError as error:
        return "more than" in str(error)
    return False


# How much is answered


class _Tall:
    """A ledger that says how high it is."""

    def __len__(self) -> int:
        return 100_000


def _answered(request: SyncRequest) -> tuple[range, list[Envelope]]:
    letter = Envelope(kind="vote", swarm=SWARM, sender=_peer(1), body=b"", signature=bytes(64))
    ledger: Any = _Tall()
    _, _, rounds, said = sync.answer_to(request, ledger, lambda round_: [letter])
    return rounds, said


def _an_answer_has_so_many_entries() -> bool:
    rounds, _ = _answered(SyncRequest(SWARM, 0, (), 1 << 60))
    return len(rounds) == 65_536


def _who_wants_no_entries_gets_no_messages() -> bool:
    """Whoever only compares chains; and a liar that asks for ids all the time."""
    said = [_answered(SyncRequest(SWARM, 100_000, (), most))[1] for most in (0, 1)]
    return [len(messages_) for messages_ in said] == [0, 1]


def _answers_fit() -> bool:
    """Entries of the greatest length, and messages of it."""
    entry, letter = bytes(4 << 20), bytes(256 << 10)
    made = compose_response(9, [entry] * 9, [letter] * 99)
    size = sum(map(len, made.entries)) + sum(map(len, made.envelopes))
    return size <= (8 << 20) - 4096


# How many are kept


def _record(peer: int, swarm: int, number: int = 1) -> PeerRecord:
    return PeerRecord(_peer(peer), SwarmId(swarm.to_bytes(32, "big")), (), number, b"")


def _registry(records: list[PeerRecord], now: float = 0.0) -> Registry:
    registry = Registry()
    for record in records:
        registry.add(record, now)
    return registry


def _a_swarm_has_so_many_peers() -> bool:
    registry = _registry([_record(n, 0) for n in range(600)])
    return len(registry.peer_records(_record(0, 0).swarm, 0.0)) == 512


def _so_many_swarms_are_known() -> bool:
    return _registry([_record(n, n) for n in range(80)]).swarms() == 64


def _a_peer_is_in_so_many_swarms() -> bool:
    """Or one peer pushes all others out."""
    return _registry([_record(1, n) for n in range(20)]).swarms() == 4


def _a_swarm_with_fewer_peers_goes_first() -> bool:
    """Whoever has many keys and swarms pushes out none that people are in."""
    people = [_record(n, 0) for n in range(3)]
    registry = _registry([*people, *(_record(100 + n, 1 + n) for n in range(80))])
    return len(registry.peer_records(people[0].swarm, 0.0)) == 3


def _an_answer_has_so_many_records() -> bool:
    registry = _registry([_record(n, 0) for n in range(100)])
    return len(registry.sample(_record(0, 0).swarm, 0.0, b"", _peer(500))) == 64


def _an_introduction_holds_for_a_while() -> bool:
    registry = _registry([_record(1, 0)])
    held = [len(registry.peer_records(_record(1, 0).swarm, now)) for now in (119.0, 121.0)]
    return held == [1, 0]


def _an_older_record_replaces_no_newer_one() -> bool:
    """Whoever repeats it sends others where its peer is no more."""
    registry = _registry([_record(1, 0, 5), _record(1, 0, 4)])
    (kept,) = registry.peer_records(_record(1, 0).swarm, 0.0)
    return kept.number == 5


def _so_many_expelled_are_remembered() -> bool:
    members = Membership(since={_peer(0): 0})
    return len(members.changed(Change(1, expelled=tuple(map(_peer, range(5000))))).expelled) == 4096


def _the_departed_are_forgotten() -> bool:
    """When nothing that they said before can be repeated any more."""
    members = Membership(since={_peer(0): 0, _peer(1): 0}).changed(Change(1, departed=(_peer(1),)))
    gone = [members.changed(Change(round_)).gone for round_ in (65, 66)]
    return list(map(len, gone)) == [1, 0]


def _a_table_is_bounded() -> bool:
    table: Bounded[int, int] = Bounded(3)
    for number in range(10):
        table[number] = 0
    return list(table) == [7, 8, 9]


def _who_is_active_stays_in_a_table() -> bool:
    table: Bounded[int, int] = Bounded(3)
    for key in (0, 1, 2, 0, 3):
        table[key] = 0
    return list(table) == [2, 0, 3]


# Allowances


FEW = Allowance(at_once=4.0, per_second=0.5)


def _taken(budgets: Budgets[str], key: str, now: float, tries: int = 10) -> int:
    return sum(budgets.take(key, FEW, now) for _ in range(tries))


def _a_pause_saves_up_so_much() -> bool:
    budgets: Budgets[str] = Budgets(2)
    return [_taken(budgets, "a", now) for now in (0.0, 4.0, 1e6)] == [4, 2, 4]


def _who_asks_for_too_much_has_used_nothing() -> bool:
    budgets: Budgets[str] = Budgets(2)
    refused = not budgets.take("a", FEW, 0.0, 5.0)
    return refused and _taken(budgets, "a", 0.0) == 4


def _who_asks_in_vain_is_not_forgotten() -> bool:
    """Two others come, and it asks all the time."""
    budgets: Budgets[str] = Budgets(2)
    used = _taken(budgets, "a", 0.0)
    for other in "bcdefgh":
        _taken(budgets, other, 0.0, tries=1)
        used += _taken(budgets, "a", 0.0, tries=1)
    return used == 4


def _each_pause_is_twice_as_long() -> bool:
    left: Backoff[str] = Backoff(2.0, 5.0)
    for now in (0.0, 2.0, 6.0):
        left.failed("a", now)
    return left.due("a") == 11.0


def _tries_become_rarer_and_do_not_end() -> bool:
    pause = Pause(1.0, 5.0)
    return [pause.after_failure() for _ in range(5)] == [1.0, 2.0, 4.0, 5.0, 5.0]


def _so_many_are_left_alone() -> bool:
    left: Backoff[int] = Backoff(2.0, 5.0)
    for number in range(5000):
        left.failed(number, 0.0)
    return len(left) == 4096


def _memberships_take_little_memory() -> bool:
    """Of a chain that changes its members in each round: some are made again when they are asked for."""
    made = Memberships(founding(_peer(0)))
    with patch.object(Change, "of", staticmethod(lambda change: change)):
        for number in range(1000):
            change: Any = Change(number, (_peer(number),), (_peer(number + 1),))
            made.follow(change)
    return len(made._kept) < 300 and made[500].peers == (_peer(500),)


def _a_link_names(query: str) -> str:
    """What is wrong with a link."""
    try:
        swarm_id.parse_invite(f"distro:{swarm_id.swarm_text(SWARM)}?{query}")
    except swarm_id.SwarmIdError as error:
        return error.fault
    return ""


ADDRESS = f"/ip4/192.0.2.1/tcp/4001/p2p/{peer_text(identity(1).peer)}"


def _links_name_few_bootstrap_peers() -> bool:
    """The node calls all of them."""
    return [_a_link_names("&".join([f"bootstrap={ADDRESS}"] * n)) for n in (16, 17)] == ["", "link"]


def _tickets_have_a_length() -> bool:
    return [_a_link_names("ticket=" + "a" * n) for n in (2048, 2049)] == ["", "ticket"]


def _addresses_have_a_length() -> bool:
    # The last 24 characters are the port's and what stands around.
    found = []
    for more in (0, 1):
        name = "a" * (256 + more - len("/dns4/") - len(ADDRESS[len("/ip4/192.0.2.1") :]))
        found.append(_a_link_names(f"bootstrap=/dns4/{name}{ADDRESS[len('/ip4/192.0.2.1') :]}"))
    return found == ["", "bootstrap"]


def _named(addresses: list[str]) -> int:
    """How many of its addresses a peer tells of itself, as others read it."""
    sealed = introductions.seal_peer_record(identity(1), SWARM, addresses, 1)
    return len(introductions.open_peer_record(sealed, SWARM).addresses)


def _a_peer_tells_of_few_addresses() -> bool:
    """More would not be read."""
    return _named([ADDRESS] * 20) == 8


def _a_peer_tells_of_no_long_address() -> bool:
    return _named([ADDRESS, f"/dns4/{'a' * 300}{ADDRESS}"]) == 1


RULES = (
    *(
        Rule(f"{name} has a length", _refused_for_length(decode, most), put(module, bound, 1 << 40))
        for name, module, bound, decode, most in LONGEST
    ),
    Rule(
        "a manifest has a length",
        _manifests_have_a_length,
        put(manifest, "MAX_MANIFEST_BYTES", 1 << 40),
    ),
    Rule(
        "a request to a relay has a length",
        _relay_requests_have_a_length,
        put(relay_requests, "MAX_RELAY_REQUEST_BYTES", 1 << 40),
    ),
    Rule(
        "a peer record has a length",
        _peer_records_have_a_length,
        put(introductions, "MAX_PEER_RECORD_BYTES", 1 << 40),
    ),
    Rule(
        "a link has a length", _links_have_a_length, put(swarm_id, "MAX_INVITE_CHARACTERS", 1 << 40)
    ),
    Rule("items are limited", _too_many_items, put(encoding, "MAX_ITEMS", 1 << 40)),
    Rule("free values end at a depth", _too_deep, put(structure, "_MAX_DEPTH", 1000)),
    Rule(
        "an answer has so many entries",
        _an_answer_has_so_many_entries,
        put(sync, "MAX_ENTRIES", 1 << 60),
    ),
    Rule(
        "who wants no entries gets no messages",
        _who_wants_no_entries_gets_no_messages,
        edited(sync, "answer_to", (" and request.most > 0", "")),
    ),
    Rule("entries of an answer fit", _answers_fit, put(sync, "_ENTRIES_BYTES", 1 << 40)),
    Rule("messages of an answer fit", _answers_fit, put(sync, "_MESSAGES_BYTES", 1 << 40)),
    Rule(
        "a swarm has so many peers",
        _a_swarm_has_so_many_peers,
        put(introductions, "MAX_PEERS_PER_SWARM", 9999),
    ),
    Rule(
        "so many swarms are known",
        _so_many_swarms_are_known,
        put(introductions, "MAX_SWARMS", 9999),
    ),
    Rule(
        "a peer is in so many swarms",
        _a_peer_is_in_so_many_swarms,
        put(introductions, "MAX_SWARMS_PER_PEER", 9999),
    ),
    Rule(
        "a swarm with fewer peers goes first",
        _a_swarm_with_fewer_peers_goes_first,
        put(Registry, "_emptiest", lambda self: next(iter(self._swarms))),
    ),
    Rule(
        "an answer has so many records",
        _an_answer_has_so_many_records,
        put(introductions, "MAX_PEER_RECORDS", 9999),
    ),
    Rule(
        "an introduction holds for a while",
        _an_introduction_holds_for_a_while,
        put(introductions, "PEER_RECORD_SECONDS", 1e9),
    ),
    Rule(
        "an older record replaces no newer one",
        _an_older_record_replaces_no_newer_one,
        edited(Registry, "add", ("known is not None and", "False and")),
    ),
    Rule(
        "so many expelled are remembered",
        _so_many_expelled_are_remembered,
        put(membership, "MAX_EXPELLED", 1 << 40),
    ),
    Rule(
        "the departed are forgotten",
        _the_departed_are_forgotten,
        put(membership, "REQUEST_WINDOW", 1 << 40),
    ),
    Rule(
        "a table is bounded",
        _a_table_is_bounded,
        edited(Bounded, "__setitem__", ("len(self._entries) > self.most", "False")),
    ),
    Rule(
        "who is active stays in a table",
        _who_is_active_stays_in_a_table,
        edited(Bounded, "__setitem__", ("self._entries.pop(key, None)", "")),
    ),
    Rule(
        "a pause saves up so much",
        _a_pause_saves_up_so_much,
        edited(
            Allowance,
            "grown",
            (
                "min(self.at_once, left + seconds * self.per_second)",
                "left + seconds * self.per_second",
            ),
        ),
    ),
    Rule(
        "who asks for too much has used nothing",
        _who_asks_for_too_much_has_used_nothing,
        edited(Budgets, "take", ("left - amount if enough else left", "max(0.0, left - amount)")),
    ),
    Rule(
        "who asks in vain is not forgotten",
        _who_asks_in_vain_is_not_forgotten,
        edited(
            Budgets,
            "take",
            (
                "self._left[key] = (left - amount if enough else left), now",
                "self._left.update({key: (left - amount, now)} if enough else {})",
            ),
        ),
    ),
    Rule(
        "each pause is twice as long",
        _each_pause_is_twice_as_long,
        edited(Backoff, "failed", ("min(2 * pause, self._longest)", "pause")),
    ),
    Rule(
        "tries become rarer and do not end",
        _tries_become_rarer_and_do_not_end,
        edited(
            Pause, "after_failure", ("min(2 * self.seconds, self._longest)", "2 * self.seconds")
        ),
    ),
    Rule(
        "so many are left alone",
        _so_many_are_left_alone,
        put(Backoff.__init__, "__defaults__", (1 << 40,)),
    ),
    Rule(
        "memberships take little memory",
        _memberships_take_little_memory,
        put(memberships, "_APART", 1 << 40),
    ),
    Rule(
        "links name few bootstrap peers",
        _links_name_few_bootstrap_peers,
        put(swarm_id, "MAX_BOOTSTRAP", 1000),
    ),
    Rule(
        "a ticket has a length",
        _tickets_have_a_length,
        put(swarm_id, "MAX_TICKET_CHARACTERS", 1 << 40),
    ),
    Rule(
        "an address has a length",
        _addresses_have_a_length,
        put(swarm_id, "MAX_MULTIADDR_CHARACTERS", 1 << 40),
    ),
    Rule(
        "a peer tells of few addresses",
        _a_peer_tells_of_few_addresses,
        put(introductions, "MAX_ADDRESSES", 1000),
    ),
    Rule(
        "a peer tells of no long address",
        _a_peer_tells_of_no_long_address,
        put(introductions, "MAX_ADDRESS_CHARACTERS", 1 << 40),
    ),
)
