"""Choosing a device, and what memory it has."""

from __future__ import annotations

import torch

from .errors import TrainerFailed
from .main_memory import free_main_memory
from .memory_plan import Room


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
    return free_main_memory()


def free_room(device: torch.device, limit: int | None = None) -> Room:
    """The memory that a model may take, on the device and beside it; with `limit` so much on the
    device, whatever is free."""
    wanted = free_bytes(device) if limit is None else limit
    return Room(device=wanted, host=0 if device.type == "cpu" else free_bytes(torch.device("cpu")))


def limit_memory(device: torch.device, limit: int) -> None:
    """Have no more than so many bytes taken on a GPU; main memory is the owner's own affair."""
    if device.type == "cuda":
        total = torch.cuda.get_device_properties(device).total_memory
        torch.cuda.set_per_process_memory_fraction(min(1.0, limit / total), device)


def allocated_bytes(device: torch.device) -> int:
    """The device memory that this process holds; 0 on the CPU, where it is the process's own."""
    if device.type == "cuda":
        return torch.cuda.memory_reserved(device)
    if device.type == "mps":
        return torch.mps.driver_allocated_memory()
    return 0


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an exception means that memory ran out, on whichever device."""
    if isinstance(error, (MemoryError, torch.OutOfMemoryError)):
        return True
    # The CPU's allocator and MPS raise a plain RuntimeError.
    text = str(error).lower()
    return isinstance(error, RuntimeError) and (
        "out of memory" in text or "can't allocate memory" in text
    )
