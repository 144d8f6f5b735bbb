"""Audits of a member's work: the coefficients compared, and honest work distinguished from other
work."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal

import numpy as np
import pytest
import torch
from distro_node.node.trainer.audit_score import (
    at_positions,
    coefficient_changes,
    coefficients,
    signs_agreement,
)
from distro_node.node.trainer.optimizer.optimizer import LocalOptimizer
from distro_node.protocol.codec.update import DecodedUpdate, update_layout
from distro_node.protocol.wire.manifest import OptimizerSpec, ParameterSpec

SHAPES = [(128, 192), (192, 128), (30, 20), (48,)]
TABLE = [ParameterSpec(name=f"p{i}", shape=shape) for i, shape in enumerate(SHAPES)]
LAYOUT = update_layout(TABLE, 64, 8)
Gradients = list[torch.Tensor]


def random_gradients(seed: int) -> Gradients:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator) for shape in SHAPES]


def all_coefficients(
    gradients: Sequence[torch.Tensor | None], spec: OptimizerSpec, auditor: LocalOptimizer
) -> list[torch.Tensor]:
    return [
        coefficients(index, gradient, LAYOUT, spec, auditor)
        for index, gradient in enumerate(gradients)
    ]


@pytest.mark.parametrize(
    ("preconditioner", "smoothing"),
    [("none", 0.0), ("rms", 0.5), ("orthogonal", 0.0), ("muon", 0.5)],
)
def test_coefficients_are_those_that_the_gradient_would_add_to_a_momentum(
    preconditioner: Literal["none", "rms", "orthogonal", "muon"], smoothing: float
) -> None:
    spec = OptimizerSpec(preconditioner=preconditioner, smoothing=smoothing)
    auditor, member = (
        LocalOptimizer(LAYOUT, [torch.zeros(shape) for shape in SHAPES], spec) for _ in range(2)
    )
    member.accumulate(random_gradients(1))
    taken = member.take(1)
    update = DecodedUpdate(taken.positions, taken.signs)
    auditor.accumulate(random_gradients(2))
    gradients = random_gradients(3)
    seen = at_positions(update, all_coefficients(gradients, spec, auditor))
    found = np.concatenate([part.reshape(-1) for part in seen])
    before = [momentum.clone() for momentum in auditor.momentum]
    auditor.accumulate([gradient.clone() for gradient in gradients])
    added = [new - spec.momentum * old for new, old in zip(auditor.momentum, before, strict=True)]
    expected = [
        dense.gather(1, torch.from_numpy(positions.astype(np.int64))).view(-1).numpy()
        for dense, positions in zip(added, update.positions, strict=True)
    ]
    np.testing.assert_allclose(found, np.concatenate(expected), atol=2e-5)
    # The audit changed neither the gradients nor the auditor.
    for gradient, again in zip(gradients, random_gradients(3), strict=True):
        assert torch.equal(gradient, again)


def test_what_is_missing_or_not_finite_counts_for_nothing() -> None:
    spec = OptimizerSpec()
    auditor = LocalOptimizer(LAYOUT, [torch.zeros(shape) for shape in SHAPES], spec)
    taken = auditor.take(1)
    update = DecodedUpdate(taken.positions, taken.signs)
    nothing = all_coefficients([None] * 4, spec, auditor)
    assert not any(part.any() for part in at_positions(update, nothing))
    gradients = random_gradients(1)
    gradients[0][5, 5] = float("nan")
    gradients[1].fill_(float("inf"))
    found = at_positions(update, all_coefficients(gradients, spec, auditor))
    assert all(np.isfinite(part).all() for part in found)
    assert found[-1].any()
    own = random_gradients(2)
    seen = alone(coefficient_changes([gradients], own, 3, LAYOUT, spec, auditor))
    assert signs_agreement(update, at_positions(update, seen)).squares > 0
    nothing = alone(coefficient_changes([[None] * 4], [None] * 4, 3, LAYOUT, spec, auditor))
    assert signs_agreement(update, at_positions(update, nothing)).score == 0
    # Two at once give the same results as each alone.
    both = list(
        coefficient_changes([random_gradients(3), gradients], own, 3, LAYOUT, spec, auditor)
    )
    for one, (_, other) in zip(seen, both, strict=True):
        torch.testing.assert_close(one, other)


def alone(tables: Iterable[list[torch.Tensor]]) -> list[torch.Tensor]:
    """Return the changes made by one sample."""
    return [table for (table,) in tables]
