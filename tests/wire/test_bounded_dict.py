"""Tables that others fill, and the pauses between tries."""

from __future__ import annotations

from distro_node.protocol.util.backoff import Backoff, BackoffTimer
from distro_node.protocol.util.bounded_dict import BoundedTable
from hypothesis import given
from hypothesis import strategies as st


@given(st.integers(1, 8), st.lists(st.tuples(st.integers(0, 12), st.integers())))
def test_the_entries_that_were_set_last_are_kept_in_their_order(
    most: int, entries: list[tuple[int, int]]
) -> None:
    table: BoundedTable[int, int] = BoundedTable(most)
    for key, value in entries:
        table[key] = value
        assert len(table) <= most
    newest = list(dict(reversed(entries)))[:most]
    assert list(table) == newest[::-1]
    assert dict(table) == {key: dict(entries)[key] for key in newest}


def test_no_way_of_filling_a_table_goes_around_its_bound() -> None:
    table: BoundedTable[int, int] = BoundedTable(3)
    table.update(dict.fromkeys(range(10), 0))
    assert list(table) == [7, 8, 9]
    assert table.setdefault(10, 5) == 5
    assert table.setdefault(8, 5) == 0
    assert list(table) == [8, 9, 10]
    assert 7 not in table
    assert table.pop(9) == 0
    assert table.get(9) is None
    assert list(table) == [8, 10]


def test_a_pause_doubles_to_the_longest_and_restarts_after_success() -> None:
    pause = BackoffTimer(1.0, 5.0)
    assert [pause.after_failure() for _ in range(5)] == [1.0, 2.0, 4.0, 5.0, 5.0]
    pause.reset()
    assert pause.seconds == pause.after_failure() == 1.0


def test_each_is_left_alone_for_its_own_failures() -> None:
    backoff: Backoff[str] = Backoff(2.0, 5.0, most=2)
    assert not backoff.rests("a", 0.0)
    backoff.failed("a", 0.0)
    assert (backoff.rests("a", 1.9), backoff.rests("a", 2.0)) == (True, False)
    backoff.failed("a", 2.0, part=0.5)
    assert backoff.due("a") == 4.0
    backoff.failed("a", 4.0)
    assert backoff.due("a") == 9.0
    assert not backoff.rests("b", 4.0)
    # News about it resets its pause: the next failure counts as the first.
    backoff.set_due("a", 6.0)
    assert backoff.rests("a", 5.0)
    backoff.failed("a", 6.0)
    assert backoff.due("a") == 8.0
    backoff.failed("b", 6.0)
    backoff.failed("c", 6.0)
    assert list(backoff) == ["b", "c"]
