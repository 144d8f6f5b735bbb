"""Which members count as silent, missing or leaving."""

from __future__ import annotations

import pytest
from distro_node.protocol.member.liveness import Liveness
from distro_node.protocol.wire.messages import Heartbeat, Leave
from simulation.swarm import identity

ME, A, B, STRANGER = (identity(index).peer for index in range(4))
LEASE = 20.0


@pytest.fixture
def presence() -> Liveness:
    presence = Liveness(ME, 0.0)
    presence.set_members([ME, A, B], 0.0)
    return presence


def run(presence: Liveness, start: float, end: float) -> None:
    """Run the clock of an active node."""
    for tick in range(int(start * 2), int(end * 2) + 1):
        presence.tick(tick / 2)


def test_silent_is_who_sent_nothing_for_a_lease(presence: Liveness) -> None:
    presence.note_message(A, 15.0)
    assert presence.silent(LEASE, 20.0) == set()
    assert presence.silent(LEASE, 20.5) == {B}
    assert presence.silent(LEASE, 36.0) == {A, B}
    presence.note_message(B, 36.0)
    assert presence.silent(LEASE, 36.0) == {A}
    assert presence.last_message_time(B) == 36.0


def test_nobody_is_silent_to_itself(presence: Liveness) -> None:
    assert ME not in presence.silent(LEASE, 1e9)


def test_strangers_are_not_listened_for(presence: Liveness) -> None:
    presence.note_message(STRANGER, 5.0)
    assert presence.last_message_time(STRANGER) is None
    assert STRANGER not in presence.silent(LEASE, 100.0)


def test_newcomers_get_a_whole_lease_and_old_members_keep_their_time(presence: Liveness) -> None:
    presence.note_message(A, 5.0)
    presence.set_members([ME, A, STRANGER], 22.0)
    assert presence.last_message_time(A) == 5.0
    assert presence.silent(LEASE, 26.0) == {A}
    assert presence.silent(LEASE, 42.5) == {A, STRANGER}


def test_who_is_admitted_gives_everybody_a_whole_lease() -> None:
    newcomer = Liveness(ME, 0.0)
    newcomer.set_members([A, B], 0.0)
    run(newcomer, 0.0, 50.0)
    assert newcomer.silent(LEASE, 50.0) == {A, B}
    newcomer.set_members([ME, A, B], 50.0)
    assert newcomer.silent(LEASE, 70.0) == set()
    assert newcomer.silent(LEASE, 70.5) == {A, B}


def test_heartbeats_count_once(presence: Liveness) -> None:
    """A dead member's heartbeats keep travelling."""
    presence.note_heartbeat(A, Heartbeat(3, 7), 1.0)
    presence.note_heartbeat(A, Heartbeat(3, 7), 19.0)
    presence.note_heartbeat(A, Heartbeat(2, 6), 19.0)
    assert presence.last_message_time(A) == 1.0
    presence.note_heartbeat(A, Heartbeat(3, 8), 19.0)
    assert presence.last_message_time(A) == 19.0


def test_who_lost_its_numbers_counts_from_the_next_round_on(presence: Liveness) -> None:
    """Its clock was ahead, and then its disk was lost. Its earlier messages still count for nothing."""
    ahead, right = 3600 << 20, 60 << 20
    presence.note_heartbeat(A, Heartbeat(3, ahead), 1.0)
    presence.note_heartbeat(A, Heartbeat(4, right), 5.0)
    assert presence.last_message_time(A) == 5.0
    for replayed in (Heartbeat(3, ahead), Heartbeat(4, right), Heartbeat(4, right + 1)):
        presence.note_heartbeat(A, replayed, 19.0)
    assert presence.last_message_time(A) == 5.0
    presence.note_heartbeat(A, Heartbeat(5, right + 2), 20.0)
    assert presence.last_message_time(A) == 20.0


def test_who_was_away_itself_blames_nobody(presence: Liveness) -> None:
    run(presence, 0.0, 10.0)
    presence.note_message(A, 9.0)
    presence.tick(3610.0)
    assert presence.silent(LEASE, 3610.0) == set()
    # The silence before its absence still counts.
    run(presence, 3610.0, 3620.5)
    assert presence.silent(LEASE, 3620.5) == {B}


def test_nobody_was_received_in_the_future(presence: Liveness) -> None:
    """A message that came before the clock noticed the absence is not counted twice."""
    run(presence, 0.0, 10.0)
    presence.note_message(A, 3610.0)
    presence.tick(3610.0)
    assert presence.last_message_time(A) == 3610.0


def test_a_pause_of_a_busy_machine_is_no_absence(presence: Liveness) -> None:
    for second in range(0, 25, 4):
        presence.tick(float(second))
    assert presence.silent(LEASE, 24.0) == {A, B}


def test_missing_is_a_broken_connection_that_does_not_come_back(presence: Liveness) -> None:
    presence.note_disconnected(A, 10.0)
    assert presence.missing(11.0) == set()
    assert presence.missing(13.0) == {A}
    presence.note_connected(A)
    assert presence.missing(13.0) == set()
    presence.note_disconnected(B, 10.0)
    presence.note_message(B, 12.0)
    assert presence.missing(13.0) == set()


def test_leaves_last_as_long_as_the_membership(presence: Liveness) -> None:
    leave = (Leave(3), bytes(64))
    presence.note_leave(A, *leave)
    assert presence.leaving() == {A}
    assert presence.leave_of(A) == leave
    presence.set_members([ME, A, B], 1.0)
    assert presence.leaving() == {A}
    presence.set_members([ME, B], 2.0)
    assert presence.leaving() == set()
    assert presence.leave_of(A) is None


def test_the_departed_are_forgotten(presence: Liveness) -> None:
    presence.note_heartbeat(A, Heartbeat(1, 9), 1.0)
    presence.note_disconnected(A, 1.0)
    presence.set_members([ME, B], 2.0)
    assert presence.missing(100.0) == set()
    presence.set_members([ME, A, B], 3.0)
    presence.note_heartbeat(A, Heartbeat(1, 1), 4.0)
    assert presence.last_message_time(A) == 4.0
