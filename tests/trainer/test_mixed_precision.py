"""Gradients in float16: a scale preserves small elements, and one that is too large is lowered."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from distro_node.node.trainer.optimizer import mixed_precision
from distro_node.node.trainer.optimizer.mixed_precision import MixedPrecision, all_finite
from distro_node.node.trainer.worker import Worker
from trainer.small_models import SMALL_MODELS
from trainer.support import CPU, TINY_LLAMA, make_session, opened
from trainer.test_classification import VIT, made_of
from transformers.integrations import moe

# Private here: `_finite_in_a_row`: the scale concerns only this device. `_grouped_mm`: the library's
# function that a trainer process replaces.


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


def test_the_scale_is_that_of_the_targets_of_a_sample(tmp_path: Path) -> None:
    """However many samples there are, and however many of their tokens are targets."""
    precision = MixedPrecision(CPU, torch.float16)
    scale = precision.scale
    assert [precision.factor(count) for count in (1, 2, 7)] == [scale, 2 * scale, 4 * scale]
    precision.saw_targets(3000, 0)
    assert precision.factor(1) == scale
    precision.saw_targets(3000, 3)
    assert precision.factor(1) == 512 * scale
    # A denser sample counts, a sparser one does not.
    precision.saw_targets(1000, 250)
    precision.saw_targets(1000, 1)
    assert precision.factor(2) == 8 * scale
    gradient = torch.full((2,), 8 * scale)
    assert precision.unscale([gradient], samples=2)
    assert torch.equal(gradient, torch.ones(2))
    assert MixedPrecision(CPU, torch.bfloat16).factor(4) is None


def test_a_session_tells_its_precision_the_targets_and_the_head_the_scale(tmp_path: Path) -> None:
    session = opened(made_of(VIT, tmp_path / "images"), tmp_path / "images")
    session.computation.precision = precision = MixedPrecision(CPU, torch.float16)
    precision.scale = 2.0**-12
    session.computation.gradient(1, range(4))
    lost = int((gradients(session) == 0).sum())
    # An image is 64 numbers with one target.
    assert precision.factor(1) == 64 * precision.scale
    session.computation.gradient(1, range(4))
    assert int((gradients(session) == 0).sum()) < 0.5 * lost
    session = make_session(tmp_path / "texts", config={**TINY_LLAMA, "tie_word_embeddings": False})
    session.computation.precision = precision = MixedPrecision(CPU, torch.float16)
    head: Any = session.model.get_output_embeddings()
    found = []
    for scale in (2.0**-12, 2.0**4):
        precision.scale = scale
        session.computation.gradient(1, range(4))
        found.append(int((head.weight.grad == 0).sum()))
    assert found[0] > 10 * max(1, found[1])


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


@pytest.mark.parametrize("model_type", ["mixtral", "qwen2_moe", "qwen3_moe", "olmoe"])
def test_experts_compute_in_the_type_of_all_other_layers(
    model_type: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # What a trainer process changes in the library at its start is undone after the test.
    monkeypatch.setattr(moe, "_grouped_mm", moe._grouped_mm)
    Worker().answer(
        {"id": 0, "method": "survey", "arguments": {"device": "cpu", "config": None, "lora": None}}
    )
    multiply, used = torch.nn.functional.grouped_mm, set[torch.dtype]()

    def noted(rows: torch.Tensor, matrices: torch.Tensor, **rest: Any) -> torch.Tensor:
        used.update((rows.dtype, matrices.dtype))
        return multiply(rows, matrices, **rest)

    monkeypatch.setattr(torch.nn.functional, "grouped_mm", noted)
    session = make_session(tmp_path, config=SMALL_MODELS[model_type])
    session.computation.gradient(1, range(2))
    whole, used_whole = gradients(session), {*used}
    used.clear()
    session.computation.precision = MixedPrecision(CPU, torch.bfloat16)
    session.computation.gradient(1, range(2))
    assert (used_whole, used) == ({torch.float32}, {torch.bfloat16})
    assert torch.nn.functional.cosine_similarity(whole, gradients(session), dim=0) > 0.999
