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
from distro_node.protocol.wire.manifest import Step
from trainer.exactness import layout_of
from trainer.faulty_trainer import fused
from trainer.support import CPU

Transform = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]

# Two sizes of stripes in the first, one block row in the second, a vector, and blocks of odd sides.
MODEL = layout_of([(1024, 1024), (64, 8192), (96,), (43, 67), ()])
OTHER_SIZES = layout_of([(128, 192), (62, 62)])


def refused(match: str, layout: UpdateLayout = MODEL) -> None:
    with pytest.raises(TrainerFailed, match=match) as caught:
        check_exactness(CPU, layout)
    assert caught.value.kind == "no_device"


@pytest.mark.parametrize("layout", [MODEL, layout_of([(64, 64), (7,)], 4096)])
def test_this_processor_is_exact(layout: UpdateLayout) -> None:
    check_exactness(CPU, layout)


def with_ten_bits(sums: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Compute the inverse transform as TF32 does."""
    first = (sums.reshape(-1, len(b)) @ b).to(torch.bfloat16).to(sums.dtype)
    columns = sums.shape[1]
    return torch.matmul(a.T, first.view(-1, len(a), columns)).view(sums.shape)


def in_float32(sums: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Compute it on a device whose float64 is float32 in disguise."""
    return blocks.inverse_transform_rows(sums.float(), a.float(), b.float()).to(sums.dtype)


def rounding_large_sums(sums: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Round sums which float32 would not hold."""
    found = blocks.inverse_transform_rows(sums, a, b)
    return found if found.abs().max() < 1 << 24 else found.to(torch.bfloat16).to(sums.dtype)


def wrong_for(rows: int, columns: int) -> Transform:
    """Return a transform that errs in the last element of products of one size."""

    def by_size(sums: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        found = blocks.inverse_transform_rows(sums, a, b)
        if found.shape == (rows, columns):
            found[-1, -1] += 1
        return found

    return by_size


@pytest.mark.parametrize(
    ("transform", "layout", "words", "passes"),
    [
        (with_ten_bits, MODEL, "products of .* in float32", None),
        (in_float32, MODEL, "products of .* in float64", None),
        # Of many members, in a model without a large product.
        (rounding_large_sums, layout_of([()]), "parameters after a scaled step", None),
        *(
            (wrong_for(*size), MODEL, "products of {} x {} in float32".format(*size), OTHER_SIZES)
            for size in ((64, 8192), (43, 67))
        ),
    ],
)
def test_inexact_products_are_found_where_a_model_has_them(
    transform: Transform,
    layout: UpdateLayout,
    words: str,
    passes: UpdateLayout | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(exact_step, "inverse_transform_rows", transform)
    refused(words, layout)
    if passes:
        check_exactness(CPU, passes)


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


def wrong_when_scaled(parameters: Sequence[torch.Tensor], *others: Any, step: Step) -> None:
    """Take a step that errs in one bit of one element, if it is scaled."""
    apply_step(parameters, *others, step=step)
    if step == "scaled":
        parameters[3][5] = torch.nextafter(parameters[3][5], torch.tensor(1.0))


@pytest.mark.parametrize(
    ("name", "fault", "words"),
    [
        ("apply_step", fused(apply_step), "parameters after a sign step with some weight decay"),
        ("apply_step", wrong_when_scaled, "1 of .* parameters after a scaled step"),
        ("fingerprint", lambda parameters: 0, "fingerprint"),
    ],
)
def test_a_wrong_step_or_fingerprint_is_found(
    name: str, fault: Any, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device_check, name, fault)
    refused(words)


def test_variables_that_change_arithmetic_do_not_reach_a_trainer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    inexact = (
        *("CUBLAS_EMULATE_SINGLE_PRECISION", "CUBLAS_EMULATION_STRATEGY", "NVIDIA_TF32_OVERRIDE"),
        *("TORCH_ALLOW_TF32_CUBLAS_OVERRIDE", "HIPBLASLT_ALLOW_TF32", "PYTORCH_MPS_FAST_MATH"),
        "ONEDNN_DEFAULT_FPMATH_MODE",
    )
    for name in (*inexact, "CUDA_VISIBLE_DEVICES"):
        monkeypatch.setenv(name, "1")
    left = environment(None, "scratch")
    assert not left.keys() & set(inexact)
    assert left["CUDA_VISIBLE_DEVICES"] == "1"
