"""The optimizer's state on disk, so that a restarted member continues with it.

The state is worth keeping but never required: if anything is wrong with the file, the trainer starts
with an empty momentum instead of failing.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import safetensors
import torch
from blake3 import blake3
from safetensors.torch import save_file

from ....protocol.wire.manifest import ParameterSpec
from ...storage.atomic_write import replacing
from ..memory.optimizer_state import PARTS, StateTensor, decode_parts, restore
from .optimizer import LocalOptimizer

_log = logging.getLogger(__name__)

_STEPS = "steps"
# Key of the hash of all tensors: without it, a bit flipped on disk would go unnoticed.
_CHECK = "blake3"


def save_momentum(optimizer: LocalOptimizer, table: Sequence[ParameterSpec], path: Path) -> None:
    """Write all moments as safetensors; the file is replaced whole or not at all.

    Pending updates (sent, not yet counted) are not saved: after a restart it is unknown here whether
    they were counted, and counting one twice would be worse than losing it.
    """
    tensors = {
        f"{key}{part}": tensor.cpu()
        for key, state in _states(optimizer, table).items()
        for part, tensor in state.parts().items()
    }
    tensors[_STEPS] = torch.tensor(optimizer.steps)
    digest = blake3()
    for key in sorted(tensors):
        _update_hash(digest, key, tensors[key])
    # safetensors writes to a temporary file of its own, which remains if the process is killed.
    for leftover in path.parent.glob(".tmp*"):
        leftover.unlink(missing_ok=True)
    with replacing(path) as file:
        save_file(tensors, file, metadata={_CHECK: digest.hexdigest()})


@torch.no_grad()
def load_momentum(optimizer: LocalOptimizer, table: Sequence[ParameterSpec], path: Path) -> bool:
    """Read the state back. Return False, with nothing changed, if the file is missing, corrupt or of
    another model.

    A file in another precision than the optimizer's is converted. Pending updates are dropped.
    """
    wanted = _states(optimizer, table)
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            keys = set(file.keys())
            # Every state has the part whose name is empty, stored under the state's own key.
            known = {f"{key}{part}" for key in wanted for part in PARTS}
            if not {*wanted, _STEPS} <= keys <= known | {_STEPS}:
                return _discard(path, "it belongs to another model")
            steps = file.get_tensor(_STEPS)
            if steps.dtype != torch.int64 or steps.shape != () or not 0 <= int(steps) < 1 << 62:
                return _discard(path, "its step count is invalid")
            # All is checked before anything changes; a tensor at a time, so that memory stays small.
            digest = blake3()
            for name in sorted(keys):
                _update_hash(digest, name, file.get_tensor(name))
            if (file.metadata() or {}).get(_CHECK) != digest.hexdigest():
                return _discard(path, "its checksum is wrong")
            for key, state in wanted.items():
                decode_parts(_parts(file, keys, key), state)
            for key, state in wanted.items():
                parts = _parts(file, keys, key)
                restore(state, parts, decode_parts(parts, state))
    except FileNotFoundError:
        return False
    except (OSError, safetensors.SafetensorError) as error:
        return _discard(path, str(error))
    except ValueError as error:
        return _discard(path, f"it contains {error}")
    optimizer.steps = int(steps)
    optimizer.forget_all()
    return True


def _states(optimizer: LocalOptimizer, table: Sequence[ParameterSpec]) -> dict[str, StateTensor]:
    """Return the optimizer's states by their keys in the file: kind of state, then parameter."""
    names = [spec.name for spec in table]
    momentum = zip(names, optimizer.coefficients, strict=True)
    states = {f"coefficients.{name}": state for name, state in momentum}
    for kind, some in optimizer.by_rows.items():
        states |= {f"{kind}.{name}": state for name, state in zip(names, some, strict=True)}
    return states


def _parts(file: Any, keys: Collection[str], key: str) -> dict[str, torch.Tensor]:
    """Return the tensors of the file that make up one state."""
    return {part: file.get_tensor(f"{key}{part}") for part in PARTS if f"{key}{part}" in keys}


def _update_hash(digest: blake3, key: str, tensor: torch.Tensor) -> None:
    digest.update(key.encode())
    digest.update(tensor.contiguous().view(-1).view(torch.uint8).numpy().data)


def _discard(path: Path, problem: str) -> bool:
    _log.warning(
        "the saved momentum %s is discarded, and momentum starts at zero: %s", path, problem
    )
    return False
