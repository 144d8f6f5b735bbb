"""A device that computes the shared step or the fingerprint inexactly is refused at the start."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from distro_node.node.trainer.optimizer import blocks, device_check, exact_step
from distro_node.node.trainer.optimizer.device_check import check_exactness
from distro_node.node.trainer.optimizer.exact_step import apply_step
from distro_node.node.training.environment import environment
from distro_node.node.training.errors import TrainerFailed
from distro_node.protocol.codec.layout import UpdateLayout
from trainer.exactness import layout_of
from trainer.support import CPU

Step = Callable[..., None]

# Two sizes of stripes in the first, one block row in the second, a vector, and blocks of odd sides.
MODEL = layout_of([(1024, 1024), (64, 8192), (96,), (43, 67), ()])


def refused(match: str, layout: UpdateLayout = MODEL) -> None:
    with pytest.raises(TrainerFailed, match=match) as caught:
        check_exactness(CPU, layout)
    assert caught.value.kind == "no_device"


@pytest.mark.parametrize("layout", [MODEL, layout_of([]), layout_of([(64, 64), (7,)], 4096)])
def test_this_processor_is_exact(layout: UpdateLayout) -> None:
    check_exactness(CPU, layout)


def with_ten_bits(sums: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Compute the inverse transform as TF32 does."""
    first = (sums.reshape(-1, len(b)) @ b).to(torch.bfloat16).to(sums.dtype)
    columns = sums.shape[1]
    return torch.matmul(a.T, first.view(-1, len(a), columns)).view(sums.shape)


def test_products_with_fewer_bits_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exact_step, "inverse_transform_rows", with_ten_bits)
    refused("products of .* in float32")


@pytest.mark.parametrize("size", [(64, 8192), (128, 1024), (1, 96), (43, 67)])
def test_a_kernel_that_is_inexact_for_products_of_one_size_is_found_where_a_model_has_them(
    size: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    def by_size(sums: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        found = blocks.inverse_transform_rows(sums, a, b)
        if found.shape == size:
            # The last element alone.
            found[-1, -1] += 1
        return found

    monkeypatch.setattr(exact_step, "inverse_transform_rows", by_size)
    refused(f"products of {size[0]} x {size[1]} in float32")
    check_exactness(CPU, layout_of([(128, 192), (62, 62)]))


def test_a_product_is_tested_in_both_types(monkeypatch: pytest.MonkeyPatch) -> None:
    """A device whose float64 is float32 in disguise."""

    def narrow(sums: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return blocks.inverse_transform_rows(sums.float(), a.float(), b.float()).to(sums.dtype)

    monkeypatch.setattr(exact_step, "inverse_transform_rows", narrow)
    refused("products of .* in float64")


def test_a_model_of_many_sizes_is_tested_for_a_moment_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A hostile manifest names a thousand sizes; the largest of them are tested."""
    tested: list[int] = []

    def counted(sums: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        tested.append(sums.numel())
        return blocks.inverse_transform_rows(sums, a, b)

    monkeypatch.setattr(exact_step, "inverse_transform_rows", counted)
    check_exactness(CPU, layout_of([(64 * n, 64) for n in range(1, 1000)]))
    assert len(tested) < 100
    assert max(tested) == 1 << 17


def in_one_rounding(
    parameters: Sequence[torch.Tensor],
    layout: Any,
    updates: Any,
    rate: float,
    decay: float,
    update_weights: Any = None,
    **others: Any,
) -> None:
    """Fuse decay and subtraction, as compilers do: the difference is exact and rounded once."""
    start = [parameter.clone() for parameter in parameters]
    moved = [torch.zeros_like(parameter) for parameter in parameters]
    apply_step(moved, layout, updates, rate, 0.0, update_weights, **others)
    for parameter, old, step in zip(parameters, start, moved, strict=True):
        kept = float(torch.tensor(1 - rate * decay, dtype=torch.float32))
        parameter.copy_(old.double() * kept + step.double())


def test_a_step_that_fuses_two_roundings_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_check, "apply_step", in_one_rounding)
    refused("parameters after a sign step with some weight decay")


@pytest.mark.parametrize("of", ["sign", "scaled"])
def test_a_wrong_step_of_one_kind_is_found(of: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(parameters: Sequence[torch.Tensor], *others: Any, step: str) -> None:
        apply_step(parameters, *others, step=step)  # pyright: ignore[reportArgumentType]
        if step == of:
            parameters[3][5] = torch.nextafter(parameters[3][5], torch.tensor(1.0))

    monkeypatch.setattr(device_check, "apply_step", wrong)
    refused(f"1 of .* parameters after a {of} step")


def test_a_step_of_many_members_is_tested(monkeypatch: pytest.MonkeyPatch) -> None:
    """A device that rounds sums which float32 would not hold, for a model without a large product."""

    def narrow(sums: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        found = blocks.inverse_transform_rows(sums, a, b)
        return found if found.abs().max() < 1 << 24 else found.to(torch.bfloat16).to(sums.dtype)

    monkeypatch.setattr(exact_step, "inverse_transform_rows", narrow)
    refused("parameters after a scaled step", layout_of([()]))


def test_a_wrong_fingerprint_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_check, "fingerprint", lambda parameters: 0)
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
