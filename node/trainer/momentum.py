"""The optimizer's state on disk, so that a restarted member goes on where it was.

It is worth keeping but never needed: whatever is wrong with the file, the answer is to start with
an empty momentum, not to fail.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

import safetensors
import torch
from safetensors.torch import save_file

from ...protocol.wire.manifest import ParameterSpec
from ..storage.atomic_write import replacing
from .optimizer import LocalOptimizer

_log = logging.getLogger(__name__)

_STEPS = "steps"


def save_momentum(optimizer: LocalOptimizer, table: Sequence[ParameterSpec], path: Path) -> None:
    """Write momentum and second moment as safetensors; the file is replaced whole or not at all.

    What is pending (sent, not yet counted) is not saved: after a restart nobody here can tell
    whether it was counted, and counting it twice would be worse than losing it.
    """
    tensors = {key: tensor.cpu() for key, tensor in _tensors(optimizer, table).items()}
    tensors[_STEPS] = torch.tensor(optimizer.steps)
    with replacing(path) as file:
        save_file(tensors, file)


@torch.no_grad()
def load_momentum(optimizer: LocalOptimizer, table: Sequence[ParameterSpec], path: Path) -> bool:
    """Read it back. False, and nothing changed, if the file is missing, corrupt or of another model.

    Pending rounds are dropped.
    """
    wanted = _tensors(optimizer, table)
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            if set(file.keys()) != {*wanted, _STEPS}:
                return _refuse(path, "it is of another model")
            steps = file.get_tensor(_STEPS)
            if steps.dtype != torch.int64 or steps.shape != () or not 0 <= int(steps) < 1 << 62:
                return _refuse(path, "its step count is no count")
            # Checked before anything is changed; a tensor at a time, so memory stays small.
            for key, target in wanted.items():
                found = file.get_tensor(key)
                if found.dtype != torch.float32 or found.shape != target.shape:
                    return _refuse(path, "it is of another model")
                if not torch.isfinite(found).all():
                    return _refuse(path, "a number in it is not finite")
            for key, target in wanted.items():
                target.copy_(file.get_tensor(key))
    except FileNotFoundError:
        return False
    except (OSError, safetensors.SafetensorError) as error:
        return _refuse(path, str(error))
    optimizer.steps = int(steps)
    optimizer.forget_all()
    return True


def _tensors(optimizer: LocalOptimizer, table: Sequence[ParameterSpec]) -> dict[str, torch.Tensor]:
    names = [spec.name for spec in table]
    momentum = zip(names, optimizer.momentum, strict=True)
    tensors = {f"coefficients.{name}": tensor for name, tensor in momentum}
    # Without a preconditioner there is no second moment.
    second = zip(names, optimizer.second_moment, strict=False)
    return tensors | {f"second_moment.{name}": tensor for name, tensor in second}


def _refuse(path: Path, problem: str) -> bool:
    _log.warning("the saved momentum %s is not used: %s", path, problem)
    return False
