"""The cache of verified signatures gives the answers of `verify_detached`, with fewer checks."""

from __future__ import annotations

import threading
from collections import Counter
from typing import Any

import pytest
from distro_node.crypto.envelope import EnvelopeError, open_envelope, seal, sign, verify_detached
from distro_node.crypto.identity import Identity, PeerId
from distro_node.crypto.signature_cache import MOST_SIGNATURES, SignatureCache
from hypothesis import given
from hypothesis import strategies as st

ALICE = Identity.from_seed(bytes(range(32)))
MALLORY = Identity.from_seed(bytes(range(1, 33)))
SWARM = bytes(range(100, 132))
OTHER_SWARM = bytes(range(101, 133))
SIGNED = sign(ALICE, "vote", SWARM, b"body")
FIELDS: dict[str, Any] = {
    "kind": "vote",
    "swarm": SWARM,
    "sender": ALICE.peer,
    "body": b"body",
    "signature": SIGNED.signature,
}


class Counting:
    """A cache in front of the real check, which is counted."""

    def __init__(self, most: int = MOST_SIGNATURES) -> None:
        self.checks = 0
        self.cache = SignatureCache(self.check, most)

    def check(self, *fields: Any) -> bool:
        self.checks += 1
        return verify_detached(*fields)

    def verify(self, **changed: Any) -> bool:
        return self.cache.verify(*(FIELDS | changed).values())


def test_a_valid_signature_is_checked_once() -> None:
    counting = Counting()
    assert [counting.verify() for _ in range(5)] == [True] * 5
    assert counting.checks == 1


@pytest.mark.parametrize(
    "changed",
    [
        {"signature": SIGNED.signature[:-1] + bytes([SIGNED.signature[-1] ^ 1])},
        {"signature": bytes(64)},
        {"signature": sign(MALLORY, "vote", SWARM, b"body").signature},
        {"signature": SIGNED.signature + b"\0"},
        {"signature": b""},
        {"kind": "skip"},
        {"kind": "vote\0"},
        {"kind": ""},
        {"swarm": OTHER_SWARM},
        {"swarm": SWARM + b"b", "body": b"ody"},
        {"swarm": SWARM[:-1], "body": SWARM[-1:] + b"body"},
        {"sender": MALLORY.peer},
        {"sender": PeerId(ALICE.peer + SIGNED.signature[:1]), "signature": SIGNED.signature[1:]},
        {"sender": PeerId(b"")},
        {"body": b"bod"},
        {"body": b""},
    ],
)
def test_a_forgery_after_a_valid_signature_is_found_and_not_remembered(
    changed: dict[str, Any],
) -> None:
    counting = Counting()
    assert counting.verify()
    assert not any(counting.verify(**changed) for _ in range(3))
    assert len(counting.cache) == 1
    assert counting.verify()


@given(st.data())
def test_answers_equal_those_of_the_check_itself(data: st.DataObject) -> None:
    """Fields are drawn from a few values, so that most combinations share some with a valid one."""
    most = data.draw(st.sampled_from([1, 2, 1000]))
    counting = Counting(most)
    signatures = [
        sign(who, kind, swarm, body).signature
        for who in (ALICE, MALLORY)
        for kind in ("vote", "skip")
        for swarm in (SWARM, OTHER_SWARM)
        for body in (b"", b"body")
    ]
    for _ in range(20):
        fields = (
            data.draw(st.sampled_from(["vote", "skip", "Vote"])),
            data.draw(st.sampled_from([SWARM, OTHER_SWARM, b""])),
            data.draw(st.sampled_from([ALICE.peer, MALLORY.peer])),
            data.draw(st.sampled_from([b"", b"body"])),
            data.draw(st.sampled_from(signatures)),
        )
        assert counting.cache.verify(*fields) == verify_detached(*fields)
        assert len(counting.cache) <= most


def test_invalid_signatures_do_not_fill_the_cache() -> None:
    counting = Counting(most=4)
    assert counting.verify()
    assert not any(counting.verify(body=b"%d" % number) for number in range(100))
    assert counting.verify()
    assert counting.checks == 101


def test_a_flood_of_valid_signatures_costs_checks_and_no_memory() -> None:
    """The flood evicts the entries of others, which are then checked again; answers stay right."""
    counting = Counting(most=8)
    assert counting.verify()
    for number in range(50):
        flood = sign(MALLORY, "vote", SWARM, b"%d" % number)
        assert counting.verify(sender=MALLORY.peer, body=flood.body, signature=flood.signature)
        assert len(counting.cache) <= 8
    assert counting.checks == 51
    assert counting.verify()
    assert counting.checks == 52
    assert not counting.verify(signature=bytes(64))


def test_signatures_in_use_outlast_a_flood() -> None:
    counting = Counting(most=8)
    for number in range(50):
        assert counting.verify()
        flood = sign(MALLORY, "vote", SWARM, b"%d" % number)
        assert counting.verify(sender=MALLORY.peer, body=flood.body, signature=flood.signature)
    assert counting.checks == 51


def test_a_cache_that_starts_is_empty() -> None:
    """As after a restart of the node."""
    before, after = Counting(), Counting()
    assert before.verify()
    assert after.verify()
    assert (before.checks, after.checks) == (1, 1)


def test_opening_an_envelope_fills_the_cache_and_uses_it() -> None:
    counting = Counting()
    data = seal(ALICE, "vote", SWARM, b"body")
    for _ in range(3):
        assert open_envelope(data, swarm=SWARM, verify=counting.cache.verify) == SIGNED
    assert counting.verify()
    assert counting.checks == 1
    with pytest.raises(EnvelopeError) as caught:
        open_envelope(data[:-1] + bytes([data[-1] ^ 1]), swarm=SWARM, verify=counting.cache.verify)
    assert caught.value.reason == "bad_signature"


def test_threads_share_a_cache() -> None:
    """Chains are compared in threads of their own; a small cache is evicted from all the time."""
    cache, wrong = SignatureCache(most=3), Counter[str]()
    messages = [sign(ALICE, "vote", SWARM, b"%d" % number) for number in range(6)]

    def work(offset: int) -> None:
        for step in range(300):
            each = messages[(step * offset) % len(messages)]
            fields = each.kind, each.swarm, each.sender, each.body
            try:
                wrong["refused"] += not cache.verify(*fields, each.signature)
                wrong["accepted"] += cache.verify(*fields, bytes(64))
            except Exception as error:
                wrong[repr(error)] += 1

    threads = [threading.Thread(target=work, args=(offset,)) for offset in (1, 2, 3, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not +wrong
    # A thread that was interrupted between its insertion and its eviction leaves one more at most.
    assert len(cache) <= 3 + len(threads)
