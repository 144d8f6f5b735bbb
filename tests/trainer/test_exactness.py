"""A device that computes the shared step or the fingerprint inexactly is refused at the start."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from distro_node.node.trainer.optimizer import blocks, exact_step, exactness
from distro_node.node.trainer.optimizer.exact_step import apply_step
from distro_node.node.trainer.optimizer.exactness import check_exactness
from distro_node.node.training.environment import environment
from distro_node.node.training.errors import TrainerFailed
from trainer.support import CPU

Step = Callable[..., None]


def refused(match: str) -> None:
    with pytest.raises(TrainerFailed, match=match) as caught:
        check_exactness(CPU)
    assert caught.value.kind == "no_device"


def test_this_processor_is_exact() -> None:
    check_exactness(CPU)


def with_ten_bits(sums: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Compute the inverse transform as TF32 does."""
    first = (sums.reshape(-1, len(b)) @ b).to(torch.bfloat16).to(sums.dtype)
    columns = sums.shape[1]
    return torch.matmul(a.T, first.view(-1, len(a), columns)).view(sums.shape)


def test_products_with_fewer_bits_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exact_step, "inverse_transform_rows", with_ten_bits)
    refused("products in float32")


def test_a_kernel_that_is_inexact_for_large_products_alone_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def by_size(sums: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        chosen = with_ten_bits if sums.numel() > 1 << 18 else blocks.inverse_transform_rows
        return chosen(sums, a, b)

    monkeypatch.setattr(exact_step, "inverse_transform_rows", by_size)
    refused("products in float32")


def in_one_rounding(
    parameters: Sequence[torch.Tensor],
    layout: Any,
    updates: Any,
    rate: float,
    decay: float,
    counts: Any = None,
    **others: Any,
) -> None:
    """Fuse decay and subtraction, as compilers do: the difference is exact and rounded once."""
    start = [parameter.clone() for parameter in parameters]
    moved = [torch.zeros_like(parameter) for parameter in parameters]
    apply_step(moved, layout, updates, rate, 0.0, counts, **others)
    for parameter, old, step in zip(parameters, start, moved, strict=True):
        kept = float(torch.tensor(1 - rate * decay, dtype=torch.float32))
        parameter.copy_(old.double() * kept + step.double())


def test_a_step_that_fuses_two_roundings_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exactness, "apply_step", in_one_rounding)
    refused("parameters after a sign step with some weight decay")


@pytest.mark.parametrize("of", ["sign", "scaled"])
def test_a_wrong_step_of_one_kind_is_found(of: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(parameters: Sequence[torch.Tensor], *others: Any, step: str) -> None:
        apply_step(parameters, *others, step=step)  # pyright: ignore[reportArgumentType]
        if step == of:
            parameters[3][5] = torch.nextafter(parameters[3][5], torch.tensor(1.0))

    monkeypatch.setattr(exactness, "apply_step", wrong)
    refused(f"1 of .* parameters after a {of} step")


def test_sums_beyond_float32_are_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """A device whose float64 is float32 internally gives other sums once many updates count."""

    def narrow(sums: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        found = blocks.inverse_transform_rows(sums, a, b)
        return found if found.abs().max() < 1 << 24 else found.to(torch.bfloat16).to(sums.dtype)

    monkeypatch.setattr(exact_step, "inverse_transform_rows", narrow)
    refused("parameters after a scaled step")


def test_a_wrong_fingerprint_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exactness, "fingerprint", lambda parameters: 0)
    refused("fingerprint")


def test_variables_that_change_arithmetic_do_not_reach_a_trainer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    inexact = (
        "CUBLAS_EMULATE_SINGLE_PRECISION",
        "CUBLAS_EMULATION_STRATEGY",
        "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE",
        "NVIDIA_TF32_OVERRIDE",
        "HIPBLASLT_ALLOW_TF32",
        "PYTORCH_MPS_FAST_MATH",
        "ONEDNN_DEFAULT_FPMATH_MODE",
    )
    for name in (*inexact, "CUDA_VISIBLE_DEVICES"):
        monkeypatch.setenv(name, "1")
    left = environment(None, "scratch")
    assert not left.keys() & set(inexact)
    assert left["CUDA_VISIBLE_DEVICES"] == "1"
