"""The framing: whole or byte by byte, bounded, and strict."""

from __future__ import annotations

from typing import Any

import pytest
from distro_node.node.training.frames import (
    MAX_FRAME_BYTES,
    FrameDecoder,
    FrameError,
    encode_frame,
)
from hypothesis import given
from hypothesis import strategies as st

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.binary() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)


@given(st.lists(VALUES, max_size=4), st.integers(1, 50))
def test_messages_arrive_however_they_are_cut(values: list[Any], size: int) -> None:
    stream = b"".join(encode_frame(value) for value in values)
    decoder = FrameDecoder()
    received = []
    for start in range(0, len(stream), size):
        received += decoder.feed(stream[start : start + size])
    assert received == values


@given(st.binary(max_size=60))
def test_any_bytes_give_messages_or_a_frame_error(data: bytes) -> None:
    decoder = FrameDecoder()
    try:
        for index in range(len(data)):
            decoder.feed(data[index : index + 1])
    except FrameError:
        return


def test_a_length_beyond_the_bound_is_refused_at_its_header() -> None:
    with pytest.raises(FrameError, match="at most"):
        FrameDecoder().feed((MAX_FRAME_BYTES + 1).to_bytes(4, "big"))


@pytest.mark.parametrize("payload", [b"", b"\x01\x02", b"\xc1", b"\x92\x01", b"\x81\x01\x02"])
def test_a_frame_is_exactly_one_value(payload: bytes) -> None:
    with pytest.raises(FrameError):
        FrameDecoder().feed(len(payload).to_bytes(4, "big") + payload)


def test_a_message_that_is_too_long_is_not_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("distro_node.node.training.frames.MAX_FRAME_BYTES", 100)
    with pytest.raises(FrameError):
        encode_frame(bytes(101))
