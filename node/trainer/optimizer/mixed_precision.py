"""The 16-bit arithmetic in which layers compute on a GPU. It affects only the local gradient.

bfloat16 has float32's range. float16, on GPUs without bfloat16, does not: small gradients become 0
and large ones infinite. So the loss is multiplied by a scale before the backward pass, and the gradient
is divided by it afterwards; both are exact for a power of two. If a gradient is infinite, the scale was
too large (loss scaling: Micikevicius et al., arXiv 1710.03740).
"""

from __future__ import annotations

import contextlib
import logging
import math
from collections.abc import Callable, Sequence

import torch

_log = logging.getLogger(__name__)

_FIRST_SCALE = 2.0**16
_LARGEST_SCALE = 2.0**24
# The divisor of the scale after a gradient that is not finite; from the first scale, four such steps
# reach 1.
_STEP_DOWN = 2.0**4
# Consecutive finite gradients before a larger scale is tried.
_BEFORE_LARGER = 200


class MixedPrecision:
    """The type in which a device's layers compute, and the loss scale that it needs."""

    def __init__(self, device: torch.device, dtype: torch.dtype | None) -> None:
        """`dtype` is the device's `narrow_type`, or None for float32."""
        self._device = device
        self.dtype = dtype
        self.scale = _FIRST_SCALE if self.needs_scale else 1.0
        """The loss scale, adapted to what is infinite."""
        self._finite_in_a_row = 0
        self._tokens_a_target: float | None = None

    @property
    def needs_scale(self) -> bool:
        """Whether gradients would lose their small elements without a scale."""
        return self.dtype == torch.float16

    def factor(self, samples: int) -> float | None:
        """Return the factor before the backward pass of a loss that is divided by all tokens of so many
        samples; None if gradients need none.

        The scale is that of a mean over the targets of one sample: the factor makes up for the number
        of samples and for tokens that are no targets (an image of 150,528 values has one target), by
        powers of two. Otherwise the division would undo the scale.
        """
        if not self.needs_scale:
            return None
        return self.scale * _power_of_two(samples) * (self._tokens_a_target or 1.0)

    def saw_targets(self, tokens: int, targets: int) -> None:
        """Take note of the tokens and the targets in the samples of a gradient, at all ranks together.

        The fewest tokens for a target count: by a sample with few targets the factor would be too large
        for all others.
        """
        if targets:
            found = _power_of_two(tokens / targets)
            self._tokens_a_target = min(self._tokens_a_target or found, found)

    def autocast(self) -> contextlib.AbstractContextManager[object]:
        """Return the context in which layers compute in 16 bits."""
        if self.dtype is None:
            return contextlib.nullcontext()
        # Every weight is used once in a pass, so caching its cast would only take memory.
        return torch.autocast(self._device.type, dtype=self.dtype, cache_enabled=False)

    def unscale(
        self,
        gradients: Sequence[torch.Tensor | None],
        everywhere: Callable[[bool], bool] = bool,
        samples: int = 1,
    ) -> bool:
        """Divide gradients of scaled losses by the `factor` of so many samples. Return False if they
        must be recomputed with a smaller scale, which is then set.

        `everywhere` returns whether a condition holds in all processes that compute this gradient
        together. With a scale of 1 a gradient that is not finite is kept, because a smaller scale would
        not help: the loss itself is the cause.
        """
        factor = self.factor(samples)
        if factor is None:
            return True
        finite = everywhere(all_finite(gradients))
        if not finite and self.scale > 1.0:
            self.scale = max(1.0, self.scale / _STEP_DOWN)
            self._finite_in_a_row = 0
            _log.info("the gradient is beyond float16: the loss scale is now %g", self.scale)
            return False
        for gradient in gradients:
            if gradient is not None:
                gradient.div_(factor)
        self._finite_in_a_row += 1
        if self._finite_in_a_row >= _BEFORE_LARGER:
            self.scale = min(2.0 * self.scale, _LARGEST_SCALE)
            self._finite_in_a_row = 0
        return True


def _power_of_two(number: float) -> float:
    """Return the largest power of two that is not above the number."""
    return 2.0 ** math.floor(math.log2(number))


def all_finite(tensors: Sequence[torch.Tensor | None]) -> bool:
    """Whether every element is finite; the host waits for a GPU once."""
    # Norms by the largest magnitude need no temporary array of the gradient's size.
    sizes = [each for each in tensors if each is not None and each.numel()]
    norms = [torch.linalg.vector_norm(each, float("inf")) for each in sizes]
    return not norms or bool(torch.isfinite(torch.stack(norms)).all())
