"""One line of a library's exception."""

from __future__ import annotations

import pytest
from distro_node.node.util.first_line import first_line


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("bad header", "bad header"),
        ("bad header\n  at byte 3", "bad header"),
        ("\n \n  bad header  \n", "bad header"),
        ("the field 'a':\n\n  TypeError: no number\nmore", "the field 'a': TypeError: no number"),
        ("bad header:", "bad header:"),
        ("b" * 1000, "b" * 200),
        ("", "ValueError"),
        (" \n", "ValueError"),
    ],
)
def test_the_first_line_that_is_not_blank(text: str, line: str) -> None:
    assert first_line(ValueError(text)) == line


def test_the_caller_sets_length_and_text_for_nothing() -> None:
    assert first_line(ValueError("bad header"), 3) == "bad"
    assert first_line(ValueError(), empty="no reason") == "no reason"
    assert first_line(ValueError(), empty="") == ""
