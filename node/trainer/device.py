"""Choosing a device, and whether a model fits on it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import psutil
import torch

from .architectures import makes_images
from .denoisers import image_bytes
from .errors import TrainerFailed

# Parameters, gradients, momentum and second moment, each float32.
_BYTES_A_PARAMETER = 16
# What is not trained: float32, and no more.
_BYTES_A_FROZEN = 4

# Activations kept for the backward pass: 34 bytes per token, layer and hidden unit in 16 bits
# (Korthikanti et al., arXiv 2205.05198, eq. 2, without attention scores); twice that in float32.
_BYTES_A_HIDDEN_UNIT = 68
# Logits, their softmax and their gradient, float32.
_BYTES_A_LOGIT = 12

# More sequences than this at once only cost memory.
_LARGEST_MICRO_BATCH = 32

_CGROUP = Path("/sys/fs/cgroup")


def choose_device(name: str) -> torch.device:
    """`auto` takes CUDA (or ROCm, which torch calls the same), then MPS, then the CPU.

    Raises `TrainerFailed` with the kind `no_device` for a device that is not there.
    """
    if name == "auto":
        if torch.cuda.is_available():
            return torch.device("cuda")
        return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.zeros(1, device=device)
    # Which of the three it is depends on the backend and on how torch was built.
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).splitlines()[0][:200]
        raise TrainerFailed("no_device", f"no device {name!r} here: {reason}") from None
    return device


def free_bytes(device: torch.device) -> int:
    """The memory that a model may take on the device."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    if device.type == "mps":
        return torch.mps.recommended_max_memory() - torch.mps.current_allocated_memory()
    available = psutil.virtual_memory().available
    # A container's limit (cgroup 2), which the machine's own figure does not know.
    try:
        limit = int((_CGROUP / "memory.max").read_text())
        used = int((_CGROUP / "memory.current").read_text())
    except (OSError, ValueError):
        return available
    return max(0, min(available, limit - used))


def allocated_bytes(device: torch.device) -> int:
    """The device memory that this process holds; 0 on the CPU, where it is the process's own."""
    if device.type == "cuda":
        return torch.cuda.memory_reserved(device)
    if device.type == "mps":
        return torch.mps.driver_allocated_memory()
    return 0


def sequence_bytes(config: dict[str, Any], sequence_length: int, vocabulary: int) -> int:
    """An estimate of what one sequence in a micro-batch needs beside the model."""
    if makes_images(str(config.get("model_type"))):
        return image_bytes(config)
    hidden = _whole(config, "hidden_size", "n_embd")
    layers = _whole(config, "num_hidden_layers", "n_layer")
    per_token = _BYTES_A_HIDDEN_UNIT * hidden * layers + _BYTES_A_LOGIT * vocabulary
    return sequence_length * per_token


def needed_bytes(elements: int, per_sequence: int, frozen: int = 0) -> int:
    """What training takes at the least: the optimizer's state, so many `frozen` weights beside it, and
    one sequence at a time."""
    return _BYTES_A_PARAMETER * elements + _BYTES_A_FROZEN * frozen + per_sequence


def check_fits(elements: int, per_sequence: int, device: torch.device, frozen: int = 0) -> None:
    """Raise `TrainerFailed` with the kind `model_too_large` if the model cannot be trained here."""
    needed, free = needed_bytes(elements, per_sequence, frozen), free_bytes(device)
    if needed > free:
        raise TrainerFailed(
            "model_too_large",
            f"training this model takes {needed} bytes ({needed / 2**30:.1f} GiB), "
            f"{device} has {free} ({free / 2**30:.1f} GiB) free",
        )


def default_micro_batch(
    elements: int, per_sequence: int, device: torch.device, frozen: int = 0
) -> int:
    """Sequences at once: as many as fit into half of what the model leaves free."""
    spare = free_bytes(device) - needed_bytes(elements, 0, frozen)
    return max(1, min(_LARGEST_MICRO_BATCH, spare // 2 // max(1, per_sequence)))


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an exception means that memory ran out, on whichever device."""
    if isinstance(error, (MemoryError, torch.OutOfMemoryError)):
        return True
    # The CPU's allocator and MPS raise a plain RuntimeError.
    text = str(error).lower()
    return isinstance(error, RuntimeError) and (
        "out of memory" in text or "can't allocate memory" in text
    )


def _whole(config: dict[str, Any], *names: str) -> int:
    """The first of these keys that holds a number; an unknown kind of model counts as small."""
    return next((config[name] for name in names if type(config.get(name)) is int), 1)
