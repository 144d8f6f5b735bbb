"""Compiling a model's layers with `torch.compile`, where training gets faster by it.

Compiling takes a minute or two at each start, may fail in ways of its own, and gains little on a
processor. So it is tried before the node takes part, on samples of zeros and with a limit of time, and
kept only where it is measured to be faster. Layers are alike, so that one serves for all of them, and
nothing is compiled later: what does not fit (an evaluation, say) is computed as it always was.

None of it touches the shared step. A member's gradient alone may change, in its last bits.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from .limits import interrupted

_log = logging.getLogger(__name__)

_SECONDS = 180.0
_LEAST_GAIN = 1.05
_TRIES = 3


@dataclass(frozen=True)
class Outcome:
    """What came of trying."""

    faster: bool
    """Whether the layers are compiled now; else they are as they were."""
    words: str
    """For people."""


def compile_if_faster(
    layers: Sequence[torch.nn.Module],
    compute: Callable[[int], object],
    sequences: int,
    *,
    seconds: float = _SECONDS,
    least_gain: float = _LEAST_GAIN,
) -> Outcome:
    """Have these layers compiled if that makes `compute`, which goes through so many sequences forward
    and backward and waits until they are done, faster by `least_gain` or more."""
    if not layers:
        return Outcome(False, "nothing is compiled: the model has no layers that are alike")
    try:
        before = _best(compute, sequences)
        began = time.perf_counter()
        late = TimeoutError(f"it takes more than {seconds:g} s")
        # A library may take the interruption for its own affair, so it comes again.
        with interrupted(seconds, late, again=1.0):
            for layer in layers:
                layer.compile()
            # From two sizes torch learns that there are others. One sequence is a case of its own.
            for size in sorted({1, sequences}):
                compute(size)
        took = time.perf_counter() - began
        after = _best(compute, sequences)
    # A compiler's bugs, a missing C compiler, the end of memory or of patience: it goes as before.
    except Exception as error:
        _leave(layers)
        _log.debug("compiling the model's layers failed", exc_info=error)
        return Outcome(False, f"nothing is compiled: {_first_line(error)}")
    speeds = f"{sequences / after:.3g} sequences a second instead of {sequences / before:.3g}"
    if before < least_gain * after:
        _leave(layers)
        return Outcome(False, f"nothing is compiled: it would be {speeds}")
    torch.compiler.set_stance("eager_on_recompile")
    return Outcome(True, f"the model's layers are compiled, in {took:.0f} s: {speeds}")


def _leave(layers: Sequence[torch.nn.Module]) -> None:
    for layer in layers:
        # What `compile` has set; torch has no word for taking it back.
        layer._compiled_call_impl = None
    torch.compiler.reset()


def _best(compute: Callable[[int], object], sequences: int) -> float:
    """Seconds, of the fastest of a few, after a first one that loads what it needs."""
    compute(sequences)
    taken = []
    for _ in range(_TRIES):
        started = time.perf_counter()
        compute(sequences)
        taken.append(time.perf_counter() - started)
    return min(taken)


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines[0] if lines else type(error).__name__)[:200]
