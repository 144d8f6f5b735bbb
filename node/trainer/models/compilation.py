"""Compilation of a model's layers with `torch.compile`, if that makes training faster.

Compiling takes a minute or two at each start, may fail, and gains little on a CPU. So it is tried
before the node takes part, on samples of zeros and with a time limit, and kept only if it is
measured to be faster. The layers are alike, so that one compilation serves for all of them, and
nothing is compiled later: inputs of other shapes (in an evaluation, for example) are computed
uncompiled.

The exact step is never compiled. Only a member's own gradient may change, in its last bits.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from ...training.resource_limits import interrupted
from ...util.first_line import first_line

_log = logging.getLogger(__name__)

_MAX_SECONDS = 180.0
_MIN_GAIN = 1.05
_TRIES = 3


@dataclass(frozen=True)
class CompileTrial:
    """Result of a trial compilation."""

    faster: bool
    """Whether the layers are compiled now; otherwise they are as before."""
    summary: str
    """The result in words, for people."""


def compile_if_faster(
    layers: Sequence[torch.nn.Module],
    compute: Callable[[int], object],
    sequences: int,
    *,
    seconds: float = _MAX_SECONDS,
    min_gain: float = _MIN_GAIN,
) -> CompileTrial:
    """Compile these layers if that makes `compute` faster by the factor `min_gain` or more.
    `compute` runs that many sequences forward and backward and waits until they are done."""
    if not layers:
        return CompileTrial(
            False, "nothing is compiled: the model has no layers of the same structure"
        )
    try:
        before = _best(compute, sequences)
        began = time.perf_counter()
        late = TimeoutError(f"it takes more than {seconds:g} s")
        # A library may swallow the interruption as its own exception, so it is repeated.
        with interrupted(seconds, late, again=1.0):
            for layer in layers:
                layer.compile()
            # Two sizes teach torch that the batch size varies; one sequence is a special case for it.
            for size in sorted({1, sequences}):
                compute(size)
        took = time.perf_counter() - began
        after = _best(compute, sequences)
    # A compiler bug, a missing C compiler, too little memory or too much time: training goes on
    # uncompiled.
    except Exception as error:
        _undo_compile(layers)
        _log.debug("compiling the model's layers failed", exc_info=error)
        return CompileTrial(False, f"nothing is compiled: {first_line(error)}")
    speeds = f"{sequences / after:.3g} sequences a second instead of {sequences / before:.3g}"
    if before < min_gain * after:
        _undo_compile(layers)
        return CompileTrial(False, f"nothing is compiled: it would be {speeds}")
    torch.compiler.set_stance("eager_on_recompile")
    return CompileTrial(True, f"the model's layers are compiled, in {took:.0f} s: {speeds}")


def _undo_compile(layers: Sequence[torch.nn.Module]) -> None:
    for layer in layers:
        # This undoes `compile`; torch has no function for that.
        layer._compiled_call_impl = None
    torch.compiler.reset()


def _best(compute: Callable[[int], object], sequences: int) -> float:
    """Return the fastest of a few runs, in seconds, after one to warm up."""
    compute(sequences)
    taken = []
    for _ in range(_TRIES):
        started = time.perf_counter()
        compute(sequences)
        taken.append(time.perf_counter() - started)
    return min(taken)
