"""A text ends at its first stop sequence, however it is split into pieces."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from distro_node.node.serve.stop_sequences import StopFilter
from hypothesis import given
from hypothesis import strategies as st


def passed(pieces: Sequence[str], stops: Sequence[str]) -> str:
    stop, text = StopFilter(stops), ""
    for piece in pieces:
        text += stop.feed(piece)
        if stop.stopped:
            return text
    return text + stop.rest()


def cut(text: str, stops: Sequence[str]) -> str:
    """Return the text up to the first stop sequence, found in the whole text."""
    return text[: min((place for stop in stops if (place := text.find(stop)) >= 0), default=None)]


@pytest.mark.parametrize(
    ("pieces", "stops", "text"),
    [
        (["one", " two"], [], "one two"),
        (["one\n", "two"], ["\n"], "one"),
        (["one<", "|end|", ">two"], ["<|end|>"], "one"),
        (["one<", "|", "and"], ["<|end|>"], "one<|and"),
        (["aab"], ["ab", "aa"], ""),
        (["one<|en"], ["<|end|>"], "one<|en"),
        # The sequence that is complete first counts.
        (["abcd"], ["abcd", "c"], "ab"),
        (["abc", "d"], ["abcd", "c"], "ab"),
    ],
)
def test_examples(pieces: list[str], stops: list[str], text: str) -> None:
    assert passed(pieces, stops) == text


_texts = st.text(alphabet="ab", max_size=4)


@given(st.lists(_texts, max_size=8), st.lists(_texts.filter(bool), max_size=4))
def test_pieces_make_no_difference(pieces: list[str], stops: list[str]) -> None:
    assert passed(pieces, stops) == passed("".join(pieces), stops)
    if len(stops) == 1:
        assert passed(pieces, stops) == cut("".join(pieces), stops)


def test_what_can_no_longer_be_a_stop_is_passed_on_at_once() -> None:
    stop = StopFilter(["abc"])
    assert stop.feed("xab") == "x"
    assert stop.feed("d") == "abd"
    assert stop.rest() == ""
