"""The training loss of a round, and how little one member can change it."""

from __future__ import annotations

import math

import pytest
from distro_node.crypto.hashing import content_id
from distro_node.node.telemetry.mean_loss import mean_loss
from distro_node.protocol.wire.messages import UpdateEntry
from hypothesis import given
from hypothesis import strategies as st
from simulation.keys import identity


def stated(*losses_and_tokens: tuple[float, int]) -> list[UpdateEntry]:
    return [
        UpdateEntry(
            peer=identity(number).peer,
            update=content_id(b"%d" % number),
            size=1,
            tokens=tokens,
            loss=loss,
            signature=bytes(64),
        )
        for number, (loss, tokens) in enumerate(losses_and_tokens)
    ]


def test_it_is_the_mean_over_tokens() -> None:
    assert mean_loss(stated((2.0, 100), (3.0, 300), (2.5, 300))) == pytest.approx(1850 / 700)
    assert mean_loss(stated((4.25, 7))) == 4.25


def test_without_tokens_there_is_none() -> None:
    # The entries of aggregators have no tokens.
    assert mean_loss(stated((0.0, 0), (0.0, 0))) is None
    assert mean_loss([]) is None
    assert mean_loss(stated((0.0, 0), (3.0, 10))) == 3.0


@given(
    honest=st.lists(st.tuples(st.floats(1.9, 2.1), st.integers(50, 100)), min_size=3, max_size=9),
    loss=st.floats(-1e30, 1e30),
    tokens=st.integers(0, 2**63 - 1),
)
def test_one_member_changes_it_little(
    honest: list[tuple[float, int]], loss: float, tokens: int
) -> None:
    found = mean_loss(stated(*honest, (loss, tokens)))
    assert found is not None
    # It weighs as much as all others, and lies no further away than the median is from 0.
    assert abs(found - 2.0) < 0.1 + 2.1 / 2 + 0.1


def test_a_loss_that_is_no_number_is_left_out() -> None:
    assert mean_loss(stated((math.nan, 10), (math.inf, 10), (3.0, 10))) == 3.0
