"""A differentially private gradient: each sequence's gradient is clipped, and noise is added to the sum.

Later processing (second moment, momentum, strongest coefficients, signs) uses no data again, so it
reveals no more than the noisy sum does.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence

import torch

from ...training.local_policy import Clipping


def private_gradient(
    parameters: Sequence[torch.nn.Parameter],
    losses: Iterator[torch.Tensor | None],
    clipping: Clipping,
) -> None:
    """Store (Σ clipped gradients + noise) / expected number of sequences in `.grad`.

    `losses` gives the mean loss of one sequence at a time, with its graph; None for a sequence
    without targets. A gradient that is not finite adds nothing, so that the influence of its sequence
    is bounded, too.
    """
    sums = [torch.zeros_like(parameter, dtype=torch.float32) for parameter in parameters]
    for loss in losses:
        if loss is None:
            continue
        _clear(parameters)
        loss.backward()
        gradients = [parameter.grad for parameter in parameters]
        norm = _norm(gradients)
        if not bool(torch.isfinite(norm)):
            continue
        scale = (clipping.norm / (norm + 1e-12)).clamp(max=1.0)
        for total, gradient in zip(sums, gradients, strict=True):
            if gradient is not None:
                total.add_(gradient * scale.to(gradient.device))
    deviation = clipping.norm * clipping.noise
    generators: dict[torch.device, torch.Generator] = {}
    for parameter, total in zip(parameters, sums, strict=True):
        generator = generators.get(total.device)
        if generator is None:
            generator = generators[total.device] = _fresh_generator(total.device)
        noise = torch.empty_like(total).normal_(0.0, deviation, generator=generator)
        parameter.grad = total.add_(noise).div_(clipping.sequences).to(parameter.dtype)


def _fresh_generator(device: torch.device) -> torch.Generator:
    """Return a generator seeded by the operating system: no other party may be able to draw the same
    noise and subtract it."""
    generator = torch.Generator(device)
    generator.manual_seed(int.from_bytes(os.urandom(8), "little") >> 1)
    return generator


def _norm(gradients: Sequence[torch.Tensor | None]) -> torch.Tensor:
    """Return the norm of all gradients together, in float64."""
    squares = [
        torch.linalg.vector_norm(each, dtype=torch.float64).square().cpu()
        for each in gradients
        if each is not None and each.numel()
    ]
    return torch.stack(squares).sum().sqrt() if squares else torch.zeros((), dtype=torch.float64)


def _clear(parameters: Sequence[torch.nn.Parameter]) -> None:
    for parameter in parameters:
        parameter.grad = None
