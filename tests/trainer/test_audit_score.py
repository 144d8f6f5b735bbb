"""Audits of a member's work: the coefficients compared, and honest work distinguished from other
work."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fractions import Fraction
from typing import Literal

import numpy as np
import pytest
import torch
from distro_node.node.trainer.audit_score import (
    at_positions,
    coefficient_changes,
    coefficients,
    score_update,
)
from distro_node.node.trainer.optimizer.exact_step import apply_step
from distro_node.node.trainer.optimizer.optimizer import LocalOptimizer
from distro_node.protocol.audit.sequential_test import PassTest
from distro_node.protocol.audit.verdict import baseline_score, passing
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


@pytest.mark.parametrize("smoothing", [0.0, 0.5])
@pytest.mark.parametrize("preconditioner", ["none", "rms", "orthogonal", "muon"])
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
    assert score_update(update, seen).squares > 0
    nothing = alone(coefficient_changes([[None] * 4], [None] * 4, 3, LAYOUT, spec, auditor))
    assert score_update(update, nothing).score == 0
    # Two at once give the same results as each alone.
    both = list(
        coefficient_changes([random_gradients(3), gradients], own, 3, LAYOUT, spec, auditor)
    )
    for one, (_, other) in zip(seen, both, strict=True):
        torch.testing.assert_close(one, other)


def alone(tables: Iterable[list[torch.Tensor]]) -> list[torch.Tensor]:
    """Return the changes made by one sample."""
    return [table for (table,) in tables]


class Swarm:
    """Four members that train a random net of two layers, three sequences of 16 points each per
    round."""

    MEMBERS, SHARE, POINTS = 4, 3, 16

    def __init__(self) -> None:
        self.spec = OptimizerSpec()
        self.generator = torch.Generator().manual_seed(0)
        shapes = [(256, 128), (128, 256)]
        self.teacher = [torch.randn(shape, generator=self.generator) / 12 for shape in shapes]
        self.parameters = [0.02 * torch.randn(shape, generator=self.generator) for shape in shapes]
        table = [ParameterSpec(name=f"p{i}", shape=shape) for i, shape in enumerate(shapes)]
        self.layout = update_layout(table, 64, 8)
        self.honest = [self.new_optimizer() for _ in range(self.MEMBERS)]

    def new_optimizer(self) -> LocalOptimizer:
        return LocalOptimizer(self.layout, self.parameters, self.spec)

    def assign(self) -> torch.Tensor:
        shape = (self.SHARE, self.POINTS, 128)
        return torch.randn(shape, generator=self.generator)

    def gradients(self, points: torch.Tensor) -> Gradients:
        points = points.reshape(-1, 128)
        own = [parameter.clone().requires_grad_() for parameter in self.parameters]

        def outputs(first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
            return torch.tanh(points @ first.T) @ second.T

        wanted = outputs(*self.teacher)
        wanted = wanted + torch.randn(wanted.shape, generator=self.generator)
        return list(torch.autograd.grad(((outputs(*own) - wanted) ** 2).mean(), own))

    def update(self, optimizer: LocalOptimizer, gradients: Gradients, number: int) -> DecodedUpdate:
        optimizer.accumulate([gradient.clone() for gradient in gradients])
        taken = optimizer.take(number)
        optimizer.forget(number)
        return DecodedUpdate(taken.positions, taken.signs)


def test_honest_work_is_distinguished_from_other_work() -> None:
    """Eighteen audits of each kind in the last six of fourteen rounds, one after the other as if
    each were the only one of its round: members that do not do the work are accused, those that do
    are not."""
    swarm = Swarm()
    idle = swarm.new_optimizer()
    chance = np.random.default_rng(1)
    scores: dict[str, list[float]] = {}
    for number in range(1, 15):
        shares = [swarm.assign() for _ in swarm.honest]
        # Each sequence's noise is drawn once, so its gradient is computed once.
        single = [[swarm.gradients(one) for one in share] for share in shares]
        means = [
            [torch.stack(parts).mean(dim=0) for parts in zip(*own, strict=True)] for own in single
        ]
        updates = [
            swarm.update(optimizer, mean, number)
            for optimizer, mean in zip(swarm.honest, means, strict=True)
        ]
        other = swarm.update(idle, swarm.gradients(swarm.assign()), number)
        if number > 8:
            random = DecodedUpdate(
                updates[0].positions,
                [chance.choice(np.array([-1, 1], np.int8), s.shape) for s in updates[0].signs],
            )
            turned = DecodedUpdate(
                updates[1].positions,
                [
                    np.where(chance.random(s.shape) < 0.2, -s, s).astype(np.int8)
                    for s in updates[1].signs
                ],
            )
            said = {
                "honest": updates[0],
                "other data": other,
                "random": random,
                "copied": updates[1],
                "copied and changed": turned,
                "opposite": DecodedUpdate(updates[0].positions, [-s for s in updates[0].signs]),
            }
            sights = [
                alone(
                    coefficient_changes(
                        [gradients],
                        means[3],  # type: ignore[arg-type]  # sums of tensors
                        swarm.SHARE,
                        swarm.layout,
                        swarm.spec,
                        swarm.honest[3],
                    )
                )
                for gradients in single[0]
            ]
            for name, update in said.items():
                for seen in sights:
                    scores.setdefault(name, []).append(score_update(update, seen).score)
        apply_step(swarm.parameters, swarm.layout, updates, 2e-3, 0.0)
    bound = passing(baseline_score([[round(1000 * score) for score in scores["honest"]]]))
    test = PassTest(
        accused_wrongly=Fraction(1, 10**6),
        missed=Fraction(1, 100),
        honest_fails=Fraction(1, 100),
        idle_fails=Fraction(1, 2),
    )
    found = {}
    for name, each in scores.items():
        standing, decision = 0, "open"
        for score in each:
            failed = round(1000 * score) < bound
            standing, decision = test.after(standing, failed=failed)
            found[name] = found.get(name, False) or decision == "accused"
            if found[name]:
                break
    print({name: [round(score, 1) for score in each] for name, each in scores.items()})
    assert not found.pop("honest")
    assert all(found.values()), found
