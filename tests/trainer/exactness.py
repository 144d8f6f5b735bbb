"""A second implementation of the shared step, in integers, and the cases on which it is tested."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from distro_node.protocol.codec.basis import integer_basis
from distro_node.protocol.codec.update import DecodedUpdate, UpdateLayout, update_layout
from distro_node.protocol.wire.manifest import ParameterSpec, Step

Bits = list[npt.NDArray[np.uint32]]

# Full blocks beside every odd shape: primes, vectors, a scalar, three and four dimensions, less than
# a block in one direction or both, and blocks that shrink to a divisor.
SHAPES: list[tuple[int, ...]] = [
    (128, 192),
    (64, 64),
    (43, 67),
    (101, 103),
    (1, 61),
    (61, 1),
    (100, 30),
    (96,),
    (7,),
    (127,),
    (),
    (1,),
    (2, 3, 40),
    (3, 5, 7),
    (2, 2, 3, 32),
    (1, 1),
    (5, 64),
    (63, 65),
]
RATE = float(np.float32(4e-3))


def layout_of(shapes: Sequence[tuple[int, ...]], top_k: int = 8, chunk: int = 64) -> UpdateLayout:
    specs = [ParameterSpec(name=f"p{i}", shape=shape) for i, shape in enumerate(shapes)]
    return update_layout(specs, chunk, top_k)


def random_updates(layout: UpdateLayout, members: int, seed: int = 0) -> list[DecodedUpdate]:
    """Return updates like those of training: low frequencies are sent more often, and signs are
    biased."""
    generator = np.random.default_rng(seed)
    updates = []
    for _ in range(members):
        positions, signs = [], []
        for tensor in layout.tensors:
            rows, columns = np.divmod(np.arange(tensor.elements), tensor.block_columns)
            height = 3 * (rows / tensor.block_rows + columns / tensor.block_columns)
            # The k smallest of exponential variables scaled in this way are a weighted draw without
            # repetition.
            draw = generator.exponential(size=(tensor.blocks, tensor.elements)) * np.exp(height)
            chosen = np.argpartition(draw, tensor.top_k - 1, axis=1)[:, : tensor.top_k]
            positions.append(np.sort(chosen, axis=1).astype(np.int32))
            plus = generator.random((tensor.blocks, tensor.top_k)) < 0.7
            signs.append(np.where(plus, 1, -1).astype(np.int8))
        updates.append(DecodedUpdate(positions, signs))
    return updates


def random_parameters(
    shapes: Sequence[tuple[int, ...]], seed: int = 1, rate: float = RATE
) -> list[torch.Tensor]:
    """Return weights of the usual size, with a few that test rounding and the sign of zero."""
    generator = np.random.default_rng(seed)
    special = np.array([0.0, -0.0, rate, -rate, 2.0**-126, -(2.0**-100), 1.0, 1e30], np.float32)
    parameters = []
    for shape in shapes:
        values = np.atleast_1d(generator.standard_normal(shape).astype(np.float32) * 0.02)
        odd = generator.random(values.shape) < 0.05
        values[odd] = generator.choice(special, int(odd.sum()))
        parameters.append(torch.from_numpy(values.reshape(shape)))
    return parameters


def reference_step(
    parameters: Sequence[torch.Tensor],
    layout: UpdateLayout,
    updates: Sequence[DecodedUpdate],
    rate: float,
    decay: float,
    step: Step = "sign",
) -> Bits:
    """Compute the parameters that `apply_step` must produce, block by block in int64."""
    factor = np.float32(1 - np.longdouble(rate) * np.longdouble(decay))
    results = []
    for index, (parameter, tensor) in enumerate(zip(parameters, layout.tensors, strict=True)):
        a, b = tensor.block_rows, tensor.block_columns
        sign_sums = np.zeros((tensor.blocks, tensor.elements), dtype=np.int64)
        block = np.arange(tensor.blocks)[:, None]
        for update in updates:
            # No position occurs twice in a block of one update.
            sign_sums[block, update.positions[index]] += update.signs[index]
        left, right = integer_basis(a).astype(np.int64), integer_basis(b).astype(np.int64)
        sums = left.T @ sign_sums.reshape(-1, a, b) @ right
        if step == "sign" or min(a, b) == 1:
            moved = np.float32(rate) * np.sign(sums).astype(np.float32)
        else:
            larger = np.longdouble(127**2 / 2) ** 2
            mean_square = np.longdouble((sign_sums**2).sum()) / tensor.blocks * larger
            unit = rate / np.sqrt(mean_square) if mean_square else 0
            furthest = np.float32(2 * rate)
            moved = np.clip(sums.astype(np.float32) * np.float32(unit), -furthest, furthest)
        grid = moved.reshape(tensor.rows // a, tensor.columns // b, a, b)
        whole = grid.transpose(0, 2, 1, 3).reshape(parameter.shape)
        old = parameter.numpy()
        scaled = old * factor if factor != 1 else old
        results.append(np.atleast_1d(scaled - whole).view(np.uint32))
    return results


def bits_of(parameters: Sequence[torch.Tensor]) -> Bits:
    return [np.atleast_1d(parameter.cpu().numpy()).view(np.uint32) for parameter in parameters]


def assert_equal_bits(left: Bits, right: Bits) -> None:
    for a, b in zip(left, right, strict=True):
        np.testing.assert_array_equal(a, b)
