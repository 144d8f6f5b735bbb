"""A trainer process with a fault of its device, for tests: `python -P faulty_trainer.py FAULT OPTIONS…`.

`fused`: the step rounds decay and subtraction as one operation, as compilers make them. `worn`: the
step is exact while it is checked at the start, and wrong in one bit in each round. `dead`: in the first
step a kernel fails, and from then on everything does that is asked of the device, as after an illegal
memory access in CUDA; threads and handlers of libraries hang when the process ends in an orderly way.
`orderly`: the same, in a trainer that ends in an orderly way.
"""

from __future__ import annotations

import atexit
import sys
import threading
from collections.abc import Callable, Sequence
from typing import Any

FAULTS = ("fused", "worn", "dead", "orderly")
DEAD = "CUDA error: an illegal memory access was encountered"

# Private here: `_new_worker`, `_end`: the process has no seam for faults.


def command_of(fault: str, command: Sequence[str]) -> list[str]:
    """Return the command that starts a trainer with a fault, of one that starts a trainer; any other
    command as it is."""
    words, trainer = list(command), ["-m", "distro_node.node.trainer"]
    if words[2:4] == trainer:
        words[2:4] = [__file__, fault]
    return words


def main(fault: str, options: Sequence[str]) -> None:
    """Be a trainer with this fault."""
    from distro_node.node.trainer import __main__ as process

    new_worker = process._new_worker

    def faulty(*others: Any) -> Any:
        # As in any trainer torch is imported here, in the sandbox.
        worker = new_worker(*others)
        break_step(fault)
        return worker

    process._new_worker = faulty
    if fault == "orderly":
        process._end = sys.exit
    sys.argv = ["trainer", *options]
    process.main()


def break_step(fault: str) -> None:
    """Replace the step of this process by a wrong one."""
    from distro_node.node.trainer import training_session
    from distro_node.node.trainer.optimizer import device_check
    from distro_node.node.trainer.optimizer.exact_step import apply_step

    if fault == "fused":
        device_check.apply_step = training_session.apply_step = fused(apply_step)
    elif fault == "worn":
        training_session.apply_step = worn(apply_step)
    else:
        training_session.apply_step = fatal


def fused(apply_step: Callable[..., None]) -> Callable[..., None]:
    """Return a step whose decay and subtraction are rounded once."""
    import torch

    def step(
        parameters: Any,
        layout: Any,
        updates: Any,
        rate: float,
        decay: float,
        *others: Any,
        **more: Any,
    ) -> None:
        moved = [torch.zeros_like(each) for each in parameters]
        apply_step(moved, layout, updates, rate, 0.0, *others, **more)
        for each, move in zip(parameters, moved, strict=True):
            kept = each.detach().cpu().double() * (1 - rate * decay)
            each.detach().copy_((kept + move.cpu().double()).float())

    return step


def worn(apply_step: Callable[..., None]) -> Callable[..., None]:
    """Return a step that makes the first parameter a little larger."""
    import torch

    def step(parameters: Any, *others: Any, **more: Any) -> None:
        apply_step(parameters, *others, **more)
        element = parameters[0].detach().view(-1)[:1]
        element.copy_(torch.nextafter(element.cpu(), torch.tensor([2.0])))

    return step


def fatal(*_: object, **__: object) -> None:
    """Fail, and let everything fail that follows."""
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode

    def fail(*_: object, **__: object) -> None:
        raise RuntimeError(f"{DEAD}\nCUDA kernel errors might be reported at some other call")

    class Dead(TorchDispatchMode):
        __torch_dispatch__ = fail

    torch.cuda.is_available = lambda: True
    torch.cuda.empty_cache = fail
    never = threading.Event()
    threading.Thread(target=never.wait).start()
    atexit.register(never.wait)
    Dead().__enter__()
    fail()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
