"""The bounds of the list: spam, impersonation and emptying."""

from __future__ import annotations

import pytest
from distro_node.crypto.identity import Identity
from distro_node.node.listing import swarm_list
from distro_node.node.listing.entries import (
    MAX_ENTRIES_PER_SWARM,
    MAX_LISTED_SWARMS,
    MAX_LISTING_BYTES,
    Entry,
    decode_listing,
)
from distro_node.node.listing.swarm_list import (
    ENTRY_SECONDS,
    MAX_ENTRIES_PER_ADDRESS,
    MAX_SWARMS_PER_ADDRESS,
    SwarmList,
)
from distro_node.protocol.wire.manifest import SwarmId
from listing.listed import entry, sealed
from network.support import identity

MANIFEST = b"checked elsewhere"
HOME, OTHER_HOME = "192.0.2.1", "192.0.2.2"


def swarm(number: int) -> SwarmId:
    return SwarmId(number.to_bytes(32, "big"))


REAL = swarm(2**64)


class Crowd:
    """Quickly made entries of invented swarms: no list looks at a signature again."""

    def __init__(self) -> None:
        self._data = sealed(identity(9), swarm(0))

    def entry(self, publisher: Identity, invented: SwarmId, number: int = 1) -> Entry:
        return Entry(publisher.peer, invented, number, 0, 3, 20, 1000, self._data)


def listed(kept: SwarmList, now: float) -> set[SwarmId]:
    return {SwarmId(each.swarm) for each in kept.listing(now).swarms}


def test_entries_expire_unless_they_are_renewed() -> None:
    kept = SwarmList()
    kept.add(entry(identity(1), REAL), HOME, MANIFEST, 0.0)
    kept.add(entry(identity(2), REAL), OTHER_HOME, None, 1.0)
    kept.add(entry(identity(1), REAL, 2), HOME, None, ENTRY_SECONDS - 1)
    (only,) = kept.listing(ENTRY_SECONDS + 2).swarms
    assert only.entries == (sealed(identity(1), REAL, 2),)
    assert kept.manifest(REAL, ENTRY_SECONDS + 2) == MANIFEST
    assert listed(kept, 2 * ENTRY_SECONDS) == set()
    assert kept.manifest(REAL, 2 * ENTRY_SECONDS) is None
    assert len(kept) == 0


def test_an_unlisted_swarm_needs_its_manifest() -> None:
    with pytest.raises(LookupError):
        SwarmList().add(entry(identity(1), REAL), HOME, None, 0.0)


def test_an_older_entry_replaces_no_newer_one() -> None:
    kept = SwarmList()
    newer = entry(identity(1), REAL, 5)
    assert kept.add(newer, HOME, MANIFEST, 0.0) is None
    assert kept.add(entry(identity(1), REAL, 4), HOME, None, 1.0) == newer
    assert kept.listing(2.0).swarms[0].entries == (newer.sealed,)
    # And it does not keep the newer one alive.
    assert listed(kept, ENTRY_SECONDS + 0.5) == set()


def test_ten_thousand_invented_swarms_of_one_address_push_nothing_out() -> None:
    kept, crowd = SwarmList(), Crowd()
    kept.add(entry(identity(1), REAL), HOME, MANIFEST, 0.0)
    for number in range(10_000):
        invented = crowd.entry(identity(2), swarm(number))
        kept.add(invented, OTHER_HOME, MANIFEST, number / 100)
    assert REAL in listed(kept, 100.0)
    assert len(kept) == MAX_SWARMS_PER_ADDRESS + 1


def test_a_swarm_of_two_addresses_stays_whatever_crowds_of_single_ones_come() -> None:
    kept, crowd = SwarmList(), Crowd()
    for number, home in ((1, HOME), (2, OTHER_HOME)):
        kept.add(entry(identity(number), REAL), home, MANIFEST, 0.0)
    for number in range(10_000):
        invented = crowd.entry(identity(3), swarm(number))
        kept.add(invented, f"198.51.{number // 250}.{number % 250}", MANIFEST, number / 100)
        assert kept.manifest(REAL, number / 100) is not None
    assert len(kept) == MAX_LISTED_SWARMS
    # It comes first.
    assert kept.listing(100.0).swarms[0].swarm == REAL


def test_a_swarm_of_one_address_returns_with_its_renewal() -> None:
    kept, crowd = SwarmList(), Crowd()
    kept.add(entry(identity(1), REAL), HOME, MANIFEST, 0.0)
    number = 0
    for number in range(1000):
        invented = crowd.entry(identity(3), swarm(number))
        kept.add(invented, f"198.51.{number // 250}.{number % 250}", MANIFEST, 1.0)
    assert REAL not in listed(kept, 1.0)
    kept.add(entry(identity(1), REAL, 2), HOME, MANIFEST, 2.0)
    assert REAL in listed(kept, 2.0)
    assert len(kept) == MAX_LISTED_SWARMS


def test_an_address_with_many_swarms_weighs_little_in_each() -> None:
    """Eight swarms each of many addresses go before one swarm of one address."""
    kept, crowd = SwarmList(), Crowd()
    for address in range(MAX_LISTED_SWARMS // MAX_SWARMS_PER_ADDRESS):
        for number in range(MAX_SWARMS_PER_ADDRESS):
            invented = swarm(address * MAX_SWARMS_PER_ADDRESS + number)
            kept.add(crowd.entry(identity(3), invented), f"198.51.100.{address}", MANIFEST, 0.0)
    assert len(kept) == MAX_LISTED_SWARMS
    kept.add(entry(identity(1), REAL), HOME, MANIFEST, 1.0)
    for address in range(50):
        for number in range(MAX_SWARMS_PER_ADDRESS):
            invented = swarm(10_000 + address * MAX_SWARMS_PER_ADDRESS + number)
            kept.add(crowd.entry(identity(3), invented), f"203.0.113.{address}", MANIFEST, 2.0)
    assert REAL in listed(kept, 2.0)


def test_many_identities_in_one_home_are_no_majority() -> None:
    kept = SwarmList()
    for number, home in ((1, HOME), (2, OTHER_HOME), (3, "192.0.2.3")):
        kept.add(entry(identity(number), REAL), home, MANIFEST, 0.0)
    for number in range(100, 200):
        kept.add(entry(identity(number), REAL, members=1000), "203.0.113.9", None, 1.0)
    (only,) = kept.listing(1.0).swarms
    assert len(only.entries) == 3 + MAX_ENTRIES_PER_ADDRESS
    assert {sealed(identity(number), REAL) for number in (1, 2, 3)} < set(only.entries)


def test_a_swarm_keeps_few_entries_and_the_busiest_address_makes_room() -> None:
    kept = SwarmList()
    for number in range(4):
        for other in range(MAX_ENTRIES_PER_ADDRESS):
            publisher = identity(10 * number + other + 1)
            kept.add(entry(publisher, REAL), f"198.51.100.{number}", MANIFEST, 0.0)
    assert len(kept.listing(0.0).swarms[0].entries) == MAX_ENTRIES_PER_SWARM
    for number in range(4):
        kept.add(entry(identity(100 + number), REAL), f"203.0.113.{number}", None, 1.0)
    (only,) = kept.listing(1.0).swarms
    assert len(only.entries) == MAX_ENTRIES_PER_SWARM
    # Each of the eight addresses has one place now.
    assert {sealed(identity(100 + number), REAL) for number in range(4)} < set(only.entries)
    assert {sealed(identity(10 * n + 2), REAL) for n in range(4)} < set(only.entries)


def test_the_longest_list_can_be_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(swarm_list, "MAX_SWARMS_PER_ADDRESS", MAX_LISTED_SWARMS)
    most = 2**63 - 1
    kept = SwarmList()
    for number in range(MAX_LISTED_SWARMS):
        for home in range(MAX_ENTRIES_PER_SWARM):
            longest = entry(
                identity(home + 1),
                swarm(number),
                most,
                written=most,
                members=1024,
                rounds_done=most,
                tokens_per_second=most,
            )
            kept.add(longest, f"192.0.2.{home}", MANIFEST, 0.0)
    data = kept.listing(0.0).encode()
    assert len(data) <= MAX_LISTING_BYTES
    assert len(decode_listing(data).swarms) == MAX_LISTED_SWARMS
