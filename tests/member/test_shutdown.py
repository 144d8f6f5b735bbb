"""A member with the result of a run stays while a peer fetches it, but not for ever."""

from __future__ import annotations

from distro_node.protocol.member.shutdown import ShutdownTimer


def goes(parting: ShutdownTimer, began: int, *, watched: bool = True) -> int:
    """Return the second in which it exits, asked once a second."""
    return next(
        now for now in range(began, began + 100_000) if parting.may_go(now, watched=watched)
    )


def test_nobody_to_give_to_is_not_waited_for() -> None:
    assert goes(ShutdownTimer(), 50, watched=False) == 50


def test_a_viewer_has_time_to_read_the_page() -> None:
    assert goes(ShutdownTimer(), 50) == 52


def test_who_follows_gets_the_next_record() -> None:
    parting = ShutdownTimer()
    assert not parting.may_go(50, watched=True)
    parting.note_request(51.5, blob=False)
    assert goes(parting, 51) == 54
    parting.note_request(54, blob=True)
    assert goes(parting, 54) == 84


def test_a_chunk_that_is_under_way_is_sent() -> None:
    parting = ShutdownTimer()
    parting.note_request(40, blob=True)
    assert goes(parting, 50) == 70


def test_nobody_is_kept_for_ever() -> None:
    parting = ShutdownTimer()
    assert not parting.may_go(50, watched=True)
    for now in range(50, 4000, 10):
        parting.note_request(now, blob=True)
        assert parting.may_go(now, watched=True) == (now >= 50 + 3600)
