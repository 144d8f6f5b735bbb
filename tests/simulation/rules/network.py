"""Budgets of the network: authors, what we call on whose word, what gossip answers, offences.

Each is looked at in the class that keeps it; what takes connections has tests of its own, in
tests/network.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import trio
import trio.testing
from distro_node.crypto.hashing import ContentId, content_id
from distro_node.crypto.identity import PeerId
from distro_node.node.network import authors, connection, gossip_router, hearsay, pubsub, scores
from distro_node.node.network.authors import Authors
from distro_node.node.network.connection import GuardedConnection
from distro_node.node.network.exchange import blobs
from distro_node.node.network.exchange.blobs import BlobFetcher, FetchFailed
from distro_node.node.network.gossip_router import Router, SendQueue
from distro_node.node.network.hearsay import Hearsay, Scope, Word
from distro_node.node.network.patience import Patience
from distro_node.node.network.scores import Scores
from distro_node.protocol.wire.allowance import Allowance, Budgets
from libp2p.peer.id import ID
from libp2p.pubsub.gossipsub import GossipSub
from libp2p.pubsub.pb import rpc_pb2
from libp2p.stream_muxer.yamux.yamux import HEADER_SIZE

from .rule import Patch, Rule, edited, put

# Private here: `_reasonable`: what the library is handed; `_budgets`, `_scores`: that a table is bounded
# shows nowhere else.

ENDLESS = Allowance(1e18, 1e18)


def _peer(number: int) -> PeerId:
    return PeerId(number.to_bytes(32, "big"))


# Authors


def _authors_have_a_pace() -> bool:
    heard = Authors()
    said = [sum(heard.admits(b"author", now) for _ in range(2000)) for now in (0.0, 1.0)]
    return said == [1024, 80] and heard.admits(b"another", 1.0)


def _to_look_costs_nothing() -> bool:
    """Old words that somebody repeats are looked at, and must not silence their author."""
    heard = Authors()
    return all(heard.hears(b"author", 0.0) for _ in range(2000)) and heard.admits(b"author", 0.0)


def _so_many_authors_are_known() -> bool:
    heard = Authors()
    for number in range(5000):
        heard.admits(_peer(number), 0.0)
    return len(heard._budgets) == 4096


# Calls on the word of others


FAR = Word(_peer(1), Scope.WORLD)


def _calls(told: Hearsay, words: list[Word], hosts: list[str], now: float = 0.0) -> int:
    return sum(told.refusal(word, host, now) is None for word in words for host in hosts)


def _a_teller_has_a_budget() -> bool:
    told, hosts = Hearsay(), [f"8.8.{n // 256}.{n % 256}" for n in range(600)]
    return [_calls(told, [FAR], hosts, now) for now in (0.0, 10.0)] == [256, 10]


def _a_target_has_a_budget() -> bool:
    told, words = Hearsay(), [Word(_peer(n), Scope.WORLD) for n in range(50)]
    return [_calls(told, words, ["8.8.8.8"], now) for now in (0.0, 60.0)] == [16, 6]


def _a_near_target_has_a_budget() -> bool:
    told, words = Hearsay(), [Word(_peer(n), Scope.LOCAL) for n in range(100)]
    return _calls(told, words, ["10.0.0.1"]) == 64


def _a_household_is_one_target() -> bool:
    """Whoever has one address in IPv6 has 2^64."""
    told, words = Hearsay(), [Word(_peer(n), Scope.WORLD) for n in range(50)]
    return (
        sum(_calls(told, [word], [f"2001:4860:4860::{n:x}"]) for n, word in enumerate(words)) == 16
    )


def _near_addresses_take_somebody_near() -> bool:
    """Nobody far away sends us knocking at our own router."""
    hosts = ["8.8.8.8", "10.0.0.1", "127.0.0.1"]
    words = [Word(_peer(1), scope) for scope in (Scope.WORLD, Scope.LOCAL, Scope.MACHINE)]
    return [_calls(Hearsay(), [word], hosts) for word in words] == [1, 2, 3]


def _a_call_that_is_answered_costs_nothing() -> bool:
    told = Hearsay()
    for _ in range(100):
        if told.refusal(FAR, "8.8.8.8", 0.0) is not None:
            return False
        told.refund(FAR, "8.8.8.8", 0.0)
    return True


def _so_many_tellers_are_known() -> bool:
    told = Hearsay()
    for number in range(5000):
        told.refusal(Word(_peer(number), Scope.WORLD), f"8.{number >> 8}.{number & 255}.1", 0.0)
    return len(told._budgets) == 4096


# Gossip


def _router(**parts: Any) -> Router:
    """The router without a network."""
    router: Any = Router.__new__(Router)
    vars(router).update({"mesh": {"ours": set()}, "_answers": Budgets(4096)} | parts)
    return router


def _sent_again(wanted: list[bytes]) -> int:
    """How many of thirty messages of 200 kB a peer gets that asks five times at once for those."""
    message = rpc_pb2.Message(data=bytes(200_000))
    router, sent = _router(mcache=dict.fromkeys(NAMES, message)), 0

    async def send(self: Any, iwant: rpc_pb2.ControlIWant, sender: ID) -> None:
        nonlocal sent
        sent += len(iwant.messageIDs)

    async def ask() -> None:
        for _ in range(5):
            await router.handle_iwant(rpc_pb2.ControlIWant(messageIDs=wanted), ID(b"peer"))

    with patch.object(GossipSub, "handle_iwant", send):
        trio.run(ask, clock=trio.testing.MockClock())
    return sent


NAMES = [b"message %d" % number for number in range(30)]


def _what_is_sent_again_has_a_budget() -> bool:
    return _sent_again(NAMES) == 10


def _what_is_named_twice_is_sent_once() -> bool:
    return _sent_again(NAMES[:1] * 10) == 5


class _AsItCame:
    fromkeys = staticmethod(list)


def _reasonable(**parts: Any) -> rpc_pb2.ControlMessage:
    return _router()._reasonable(rpc_pb2.ControlMessage(**parts))


def _topics_are_ours() -> bool:
    """And few of them are looked at: each that is not would leave something behind."""
    graft = [rpc_pb2.ControlGraft(topicID=topic) for topic in ("theirs", "ours", "ours")]
    return [one.topicID for one in _reasonable(graft=graft).graft] == ["ours"]


def _few_topics_are_looked_at() -> bool:
    graft = [rpc_pb2.ControlGraft(topicID=topic) for topic in ("a", "b", "c", "d", "ours")]
    return not _reasonable(graft=graft).graft


def _identifiers_are_so_many_and_so_long() -> bool:
    iwant = [rpc_pb2.ControlIWant(messageIDs=[b"x" * 65] + [b"x" * 64] * 2000)]
    kept = _reasonable(iwant=iwant).iwant[0].messageIDs
    return len(kept) == 1024 and max(map(len, kept)) == 64


def _a_prune_holds_for_an_hour() -> bool:
    (prune,) = _reasonable(prune=[rpc_pb2.ControlPrune(topicID="ours", backoff=10**12)]).prune
    return prune.backoff == 3600


def _nobody_is_named_by_a_prune() -> bool:
    """Whom we call is not up to others."""
    prune = rpc_pb2.ControlPrune(topicID="ours", peers=[rpc_pb2.PeerInfo(peerID=b"somebody")])
    return not _reasonable(prune=[prune]).prune[0].peers


def _so_many_messages_wait() -> bool:
    small, queue = rpc_pb2.RPC(publish=[rpc_pb2.Message(data=b"vote")]), SendQueue()
    return sum(queue.push(small) for _ in range(1000)) == 512


def _so_many_bytes_wait() -> bool:
    large, queue = rpc_pb2.RPC(publish=[rpc_pb2.Message(data=bytes(1 << 20))]), SendQueue()
    return sum(queue.push(large) for _ in range(10)) == 3


# Downloads


class _Taken:
    """A network that notes what it is to do, and does nothing; a store that has nothing."""

    def __init__(self) -> None:
        self.downloads: list[Any] = []

    def spawn(self, run: object, *what: Any) -> None:
        self.downloads += what

    def get(self, cid: ContentId) -> None:
        return None


def _downloads_are_bounded() -> bool:
    """Whatever size was announced."""
    stub: Any = _Taken()

    async def ask() -> None:
        await BlobFetcher(stub, stub).fetch(
            content_id(b"long"), max_bytes=1 << 40, providers=list, timeout=0.0
        )

    try:
        trio.run(ask)
    except FetchFailed:
        return [download.max_bytes for download in stub.downloads] == [16 << 20]
    return False


# The processor, and offences


def _turns_have_a_pace() -> bool:
    """After the first hundred, ten a second: a clock that jumps."""

    async def spend() -> float:
        turns, began = Patience(Allowance(100.0, 10.0)), trio.current_time()
        for _ in range(200):
            await turns.spend()
        return trio.current_time() - began

    return 9.0 < trio.run(spend, clock=trio.testing.MockClock(autojump_threshold=0)) < 11.0


class _Line:
    """A line on which whatever is asked for comes at once, and whoever counts it."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    async def read(self, n: int | None = None) -> bytes:
        return self._data

    def __getattr__(self, name: str) -> Any:
        return self if name == "download" else lambda *what: None


def _seconds(make: Callable[[], Any], n: int) -> float:
    """How long two thousand reads of so many bytes take: a clock that jumps."""

    async def read() -> float:
        reader, began = make(), trio.current_time()
        for _ in range(2000):
            await reader.read(n)
        return trio.current_time() - began

    return trio.run(read, clock=trio.testing.MockClock(autojump_threshold=0))


def _connection(data: bytes) -> float:
    with patch.object(connection, "NoiseWire", lambda inner: inner):
        return _seconds(lambda: GuardedConnection(_Line(data)), HEADER_SIZE)


def _frames_have_a_pace() -> bool:
    """They cost the processor whatever is in them; those that carry something pay for themselves."""
    return 4.5 < _connection(b"") < 5.5 and _connection(bytes(512)) == 0.0


def _words_have_a_pace() -> bool:
    def reads(data: bytes) -> float:
        stub: Any = _Line(data)
        return _seconds(lambda: pubsub._CountingStream(stub, stub), 1)

    return 9.5 < reads(b"") < 10.5 and reads(bytes(128)) == 0.0


def _offences(reason: str, count: int, pause: float = 0.0) -> bool:
    book = Scores()
    return any(book.penalise(_peer(1), reason, pause * number) for number in range(count))


def _who_offends_is_refused() -> bool:
    return _offences("invalid", 4) and _offences("bad_hash", 2)


def _offences_fade() -> bool:
    """An honest peer with a passing fault, once an hour."""
    return not _offences("invalid", 20, 3600.0)


def _refusals_end() -> bool:
    book = Scores()
    book.penalise(_peer(1), "impersonation", 0.0)
    return [book.refused(_peer(1), now) for now in (599.0, 601.0)] == [True, False]


def _so_many_offenders_are_known() -> bool:
    book = Scores()
    for number in range(5000):
        book.penalise(_peer(number), "invalid", 0.0)
    return len(book._scores) == 4096


def _router_edited(name: str, *changes: tuple[str, str]) -> Callable[[], list[Patch]]:
    return edited(Router, name, *changes)


RULES = (
    Rule("authors have a pace", _authors_have_a_pace, put(authors, "_ALLOWANCE", ENDLESS)),
    Rule("to look costs nothing", _to_look_costs_nothing, put(Authors, "hears", Authors.admits)),
    Rule(
        "so many authors are known", _so_many_authors_are_known, put(authors, "_MAX_AUTHORS", 9999)
    ),
    Rule("a teller has a budget", _a_teller_has_a_budget, put(hearsay, "_TELLER", ENDLESS)),
    Rule("a target has a budget", _a_target_has_a_budget, put(hearsay, "_TARGET", ENDLESS)),
    Rule(
        "a near target has a budget",
        _a_near_target_has_a_budget,
        put(hearsay, "_NEAR_TARGET", ENDLESS),
    ),
    Rule(
        "a household is one target",
        _a_household_is_one_target,
        put(hearsay, "household_of", lambda host: host),
    ),
    Rule(
        "near addresses take somebody near",
        _near_addresses_take_somebody_near,
        edited(Hearsay, "refusal", ("scope < word.scope", "False")),
    ),
    Rule(
        "a call that is answered costs nothing",
        _a_call_that_is_answered_costs_nothing,
        put(Hearsay, "refund", lambda self, word, host, now: None),
    ),
    Rule(
        "so many tellers are known", _so_many_tellers_are_known, put(hearsay, "_MAX_ENTRIES", 9999)
    ),
    Rule(
        "what is sent again has a budget",
        _what_is_sent_again_has_a_budget,
        put(gossip_router, "_ANSWER_BYTES", ENDLESS),
    ),
    Rule(
        "what is named twice is sent once",
        _what_is_named_twice_is_sent_once,
        put(gossip_router, "dict", _AsItCame),
    ),
    Rule(
        "topics are ours",
        _topics_are_ours,
        _router_edited("_ours", ("part.topicID in self.mesh", "True")),
    ),
    Rule(
        "few topics are looked at",
        _few_topics_are_looked_at,
        put(gossip_router, "_MAX_TOPICS", 999),
    ),
    Rule(
        "identifiers are so many",
        _identifiers_are_so_many_and_so_long,
        put(gossip_router, "_MAX_IDS", 9999),
    ),
    Rule(
        "identifiers are so long",
        _identifiers_are_so_many_and_so_long,
        put(gossip_router, "_MAX_ID_BYTES", 9999),
    ),
    Rule(
        "a prune holds for an hour",
        _a_prune_holds_for_an_hour,
        put(gossip_router, "_MAX_BACK_OFF_SECONDS", 1 << 60),
    ),
    Rule(
        "nobody is named by a prune",
        _nobody_is_named_by_a_prune,
        put(Router, "_reasonable", lambda self, control: control),
    ),
    Rule(
        "so many messages wait for one peer",
        _so_many_messages_wait,
        put(gossip_router, "MAX_QUEUED_MESSAGES", 9999),
    ),
    Rule(
        "so many bytes wait for one peer",
        _so_many_bytes_wait,
        put(gossip_router, "MAX_QUEUED_BYTES", 1 << 40),
    ),
    Rule(
        "downloads are bounded",
        _downloads_are_bounded,
        put(blobs, "MAX_BLOB_BYTES", 1 << 60),
    ),
    Rule(
        "turns have a pace",
        _turns_have_a_pace,
        edited(Patience, "spend", ("self._left < 0.0", "False")),
    ),
    Rule("frames have a pace", _frames_have_a_pace, put(connection, "_FRAMES", ENDLESS)),
    Rule(
        "frames that carry something are free",
        _frames_have_a_pace,
        put(connection, "_BYTES_PER_FRAME", 1e18),
    ),
    Rule("words of gossip have a pace", _words_have_a_pace, put(pubsub, "_READS", ENDLESS)),
    Rule(
        "words that carry something are free",
        _words_have_a_pace,
        put(pubsub, "_BYTES_PER_READ", 1e18),
    ),
    Rule("who offends is refused", _who_offends_is_refused, put(scores, "LIMIT", 1e9)),
    Rule("lies about content weigh more", _who_offends_is_refused, put(scores, "WEIGHTS", {})),
    Rule("offences fade", _offences_fade, put(scores, "HALF_LIFE_SECONDS", 1e9)),
    Rule("refusals end", _refusals_end, put(scores, "REFUSAL_SECONDS", 1e9)),
    Rule(
        "so many offenders are known", _so_many_offenders_are_known, put(scores, "MAX_PEERS", 9999)
    ),
)
