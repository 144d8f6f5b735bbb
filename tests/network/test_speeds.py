"""The speed estimates of providers, and how long they last."""

from __future__ import annotations

from distro_node.crypto.identity import PeerId
from distro_node.node.network.exchange import speeds
from distro_node.node.network.exchange.speeds import ProviderSpeeds

FAST, SLOW, NEW = (PeerId(bytes([number] * 32)) for number in range(3))


def order(known: ProviderSpeeds) -> list[PeerId]:
    return sorted((FAST, SLOW, NEW), key=lambda peer: known.cost(peer, 0))


def test_the_fast_are_asked_first_and_the_unknown_like_them() -> None:
    known = ProviderSpeeds()
    known.note(FAST, 1_000_000, 1.0, 1)
    known.note(SLOW, 1_000_000, 9.0, 1)
    assert known.cost(NEW, 0) == known.cost(FAST, 0) < known.cost(SLOW, 0)
    # Until it is as busy as the difference is large.
    assert known.cost(FAST, 7) < known.cost(SLOW, 0) < known.cost(FAST, 9)


def test_two_transfers_share_a_line() -> None:
    known = ProviderSpeeds()
    known.note(FAST, 500_000, 1.0, 2)
    known.note(SLOW, 1_000_000, 1.0, 1)
    assert known.cost(FAST, 0) == known.cost(SLOW, 0)


def test_who_freezes_comes_last_and_who_recovers_comes_back() -> None:
    known = ProviderSpeeds()
    for peer in (FAST, SLOW):
        known.note(peer, 1_000_000, 1.0, 1)
    for _ in range(3):
        known.note(SLOW, 0, 20.0, 1)
    assert order(known)[-1] == SLOW
    for _ in range(12):
        known.note(SLOW, 4_000_000, 1.0, 1)
    assert order(known)[0] == SLOW


def test_tiny_transfers_count_for_nothing_and_the_table_is_bounded() -> None:
    known = ProviderSpeeds()
    known.note(SLOW, 10, 0.001, 1)
    assert known.cost(SLOW, 0) == known.cost(NEW, 0)
    crowd = [PeerId(number.to_bytes(32, "big")) for number in range(2 * speeds.MAX_PEERS)]
    known.note(FAST, 1_000_000, 1.0, 1)
    for peer in crowd:
        known.note(peer, 1000, 1.0, 1)
        known.note(FAST, 1_000_000, 1.0, 1)
    slow = [peer for peer in crowd if known.cost(peer, 0) > known.cost(NEW, 0)]
    assert slow == crowd[-speeds.MAX_PEERS + 1 :]
