"""Our optimizer, exchanging float values, follows DeMo as in its paper, step by step.

Ours works in float32 and the oracle in float64. A transform of a 64 × 64 block errs by up to about
1e-6 of its largest coefficient (a few), and subtractions accumulate: after ten steps the two were
observed to differ by less than 5e-6, and 1e-5 is allowed.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from distro_node.node.trainer.optimizer.blocks import Stripe, block_view, float_basis
from distro_node.node.trainer.optimizer.exact_step import apply_step
from distro_node.node.trainer.optimizer.optimizer import LocalOptimizer, Taken
from distro_node.protocol.codec.update import DecodedUpdate
from distro_node.protocol.wire.manifest import OptimizerSpec
from trainer.demo_reference import DemoReference
from trainer.exactness import layout_of
from trainer.support import CPU, dense_momentum, inverse_transform

TOLERANCE = 1e-5
DECAY = 0.9
RATE = 2.0**-7
STEPS = 10

# Full blocks; primes; blocks that shrink; three dimensions; vectors and a scalar.
SHAPES: dict[str, list[tuple[int, ...]]] = {
    "full": [(64, 128)],
    "prime": [(43, 13), (67, 3)],
    "shrunk": [(48, 20), (66, 30)],
    "deep": [(2, 3, 40), (2, 2, 3, 8)],
    "thin": [(96,), (7,), (1,), (), (61, 1)],
}


class Ours:
    """Members with our optimizer, and parameters stepped with their float values."""

    def __init__(self, shapes: Sequence[tuple[int, ...]], members: int, top_k: int) -> None:
        self.layout = layout_of(shapes, top_k)
        self.parameters = [torch.zeros(shape) for shape in shapes]
        spec = OptimizerSpec(momentum=DECAY, preconditioner="none", top_k=top_k)
        self.members = [LocalOptimizer(self.layout, self.parameters, spec) for _ in range(members)]

    def take(self, gradients: Sequence[Sequence[torch.Tensor]], number: int) -> list[Taken]:
        taken = []
        for member, gradient in zip(self.members, gradients, strict=True):
            member.accumulate([g.clone() for g in gradient])
            taken.append(member.take(number))
            member.forget(number)
        return taken

    def mean(self, taken: Sequence[Taken]) -> list[torch.Tensor]:
        """Return the float transform of the mean of the members' coefficients, per tensor."""
        directions = [torch.zeros_like(parameter) for parameter in self.parameters]
        for index, (direction, tensor) in enumerate(
            zip(directions, self.layout.tensors, strict=True)
        ):
            coefficients = torch.zeros(tensor.blocks, tensor.elements)
            for one in taken:
                places = torch.from_numpy(one.positions[index]).long()
                values = torch.from_numpy(one.values[index]) / len(taken)
                coefficients.scatter_add_(1, places, values)
            sides = tensor.block_rows, tensor.block_columns
            bases = (float_basis(side, CPU) for side in sides)
            whole = Stripe(slice(0, tensor.rows), slice(0, tensor.blocks))
            view = block_view(direction, tensor, whole)
            moved = inverse_transform(coefficients.view(-1, *sides), *bases)
            view.copy_(moved.view(view.shape))
        return directions


def noise(shapes: Sequence[tuple[int, ...]], members: int, step: int) -> list[list[torch.Tensor]]:
    generator = torch.Generator().manual_seed(1000 * step + members)
    return [[torch.randn(shape, generator=generator) for shape in shapes] for _ in range(members)]


def assert_follows(ours: Sequence[torch.Tensor], oracle: Sequence[torch.Tensor]) -> None:
    for a, b in zip(ours, oracle, strict=True):
        torch.testing.assert_close(a.double().reshape(b.shape), b, rtol=0, atol=TOLERANCE)


@pytest.fixture(params=SHAPES)
def pair(request: pytest.FixtureRequest) -> tuple[Ours, DemoReference]:
    ours = Ours(SHAPES[request.param], 3, top_k=8)
    return ours, DemoReference(ours.parameters, 3, decay=DECAY, top_k=8)


def test_follows_plain_descent_on_values(pair: tuple[Ours, DemoReference]) -> None:
    """θ ← θ - η·Q, with gradients that depend on the current parameters: errors could grow."""
    ours, oracle = pair
    shapes = [tuple(p.shape) for p in ours.parameters]
    for step in range(1, STEPS + 1):
        drawn = noise(shapes, len(ours.members), step)
        taken = ours.take(
            [[n + 10 * p for n, p in zip(one, ours.parameters, strict=True)] for one in drawn],
            step,
        )
        oracle.share(
            [
                [n + 10 * p.view(n.shape) for n, p in zip(one, oracle.parameters, strict=True)]
                for one in drawn
            ]
        )
        assert_same_coefficients(ours, oracle, taken)
        for parameter, direction in zip(ours.parameters, ours.mean(taken), strict=True):
            parameter.sub_(direction, alpha=RATE)
        oracle.step(RATE)
        assert_follows(ours.parameters, oracle.parameters)
        for mine, theirs in zip(ours.members, oracle.members, strict=True):
            assert_follows(dense_momentum(mine, ours.layout), theirs.momentum)
    # No selection of coefficients was so close that float32 could have selected others.
    assert oracle.closest_call > TOLERANCE


def assert_same_coefficients(ours: Ours, oracle: DemoReference, taken: Sequence[Taken]) -> None:
    for mine, theirs in zip(taken, oracle.members, strict=True):
        for index, tensor in enumerate(ours.layout.tensors):
            for block in range(tensor.blocks):
                down, across = divmod(block, tensor.across)
                sent = theirs.sent[index, down * tensor.block_rows, across * tensor.block_columns]
                positions = [f * tensor.block_columns + g for f, g, _ in sent]
                assert mine.positions[index][block].tolist() == positions
                values = [value for _, _, value in sent]
                np.testing.assert_allclose(mine.values[index][block], values, atol=TOLERANCE)


def test_the_exact_step_is_the_sign_step_on_signs() -> None:
    """The swarm's step: signs are shared, and the basis is rounded to integers.

    Rounding the basis changes at most 0.5 % of the steps, those where Q is close to zero, and
    nothing of the momenta.
    """
    shapes, members = [*SHAPES["full"], *SHAPES["shrunk"]], 8
    ours = Ours(shapes, members, top_k=8)
    oracle = DemoReference(ours.parameters, members, decay=DECAY, top_k=8)
    for step in range(1, 4):
        drawn = noise(shapes, members, step)
        updates = [DecodedUpdate(t.positions, t.signs) for t in ours.take(drawn, step)]
        before = [parameter.clone() for parameter in ours.parameters]
        apply_step(ours.parameters, ours.layout, updates, RATE, 0.0)
        oracle.share(drawn, signs=True)
        steps = zip(ours.parameters, before, oracle.synchronized(), strict=True)
        agree = [((a - b) / -RATE == torch.sign(q).view(a.shape)).float() for a, b, q in steps]
        assert float(torch.cat([part.ravel() for part in agree]).mean()) > 0.995
        for mine, theirs in zip(ours.members, oracle.members, strict=True):
            assert_follows(dense_momentum(mine, ours.layout), theirs.momentum)
    assert oracle.closest_call > TOLERANCE
