"""Gradients in float16: a scale preserves small elements, and one that is too large is lowered."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from distro_node.node.trainer.optimizer import mixed_precision
from distro_node.node.trainer.optimizer.mixed_precision import MixedPrecision, all_finite
from trainer.support import CPU, make_session

# Private here: `_finite_in_a_row`: the scale concerns only this device.


def gradients(session: object) -> torch.Tensor:
    return torch.cat([p.grad.reshape(-1) for p in session.parameters])  # pyright: ignore


def test_a_gradient_in_float16_is_that_of_float32_to_its_digits(tmp_path: Path) -> None:
    session = make_session(tmp_path)
    loss, _ = session.computation.gradient(1, range(4))
    whole = gradients(session)
    session.computation.precision = MixedPrecision(CPU, torch.float16)
    narrow_loss, _ = session.computation.gradient(1, range(4))
    narrow = gradients(session)
    assert narrow_loss == pytest.approx(loss, rel=2e-3)
    assert torch.nn.functional.cosine_similarity(whole, narrow, dim=0) > 0.999
    # Divided by the scale again.
    assert narrow.norm() == pytest.approx(float(whole.norm()), rel=1e-2)
    # One that is too large is lowered, and the gradient is computed again.
    session.computation.precision.scale = 2.0**40
    session.computation.gradient(1, range(2))
    assert all_finite([p.grad for p in session.parameters])
    assert 1.0 <= session.computation.precision.scale < 2.0**40


def test_without_a_scale_small_elements_would_be_lost(tmp_path: Path) -> None:
    """The purpose of the scale: the same gradient, of a loss a ten-thousandth as large."""
    session = make_session(tmp_path)
    session.computation.precision = MixedPrecision(CPU, torch.float16)
    session.computation.gradient(1, range(1))
    kept = int((gradients(session) != 0).sum())
    session.computation.precision.scale = 2.0**-14
    session.computation.precision._finite_in_a_row = -1
    session.computation.gradient(1, range(1))
    assert int((gradients(session) != 0).sum()) < 0.9 * kept


def test_the_scale_grows_again_and_not_beyond_its_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mixed_precision, "_BEFORE_LARGER", 2)
    precision = MixedPrecision(CPU, torch.float16)
    first = precision.scale
    for _ in range(4):
        assert precision.unscale([torch.ones(3), None])
    assert precision.scale == 4 * first
    for _ in range(100):
        precision.unscale([torch.ones(3)])
    assert precision.scale == mixed_precision._LARGEST_SCALE


def test_with_a_scale_of_one_the_loss_is_to_blame() -> None:
    precision = MixedPrecision(CPU, torch.float16)
    infinite = [torch.tensor([float("inf")])]
    tries = 0
    while not precision.unscale(infinite):
        tries += 1
    assert (tries, precision.scale) == (4, 1.0)
    # One rank whose gradient is infinite has all compute again.
    precision = MixedPrecision(CPU, torch.float16)
    assert not precision.unscale([torch.ones(2)], lambda here: False)
    assert precision.scale < mixed_precision._FIRST_SCALE
    # Bfloat16 and float32 need no scale.
    for dtype in (torch.bfloat16, None):
        precision = MixedPrecision(CPU, dtype)
        assert precision.scale == 1.0
        assert precision.unscale(infinite)
