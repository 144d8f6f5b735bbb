"""The trainer's device: its choice, its memory, and the types it can compute in."""

from __future__ import annotations

import importlib
import platform

import torch

from ..training.errors import TrainerFailed
from ..training.main_memory import free_main_memory
from ..training.memory_plan import FreeMemory

# Device types whose names torch knows, but on which it computes only with an additional package.
_BACKEND_PACKAGES = {"vulkan": "torchvulkan"}


def choose_device(name: str) -> torch.device:
    """Return the named device. `auto` takes CUDA (or ROCm, which torch calls the same), then MPS,
    then the CPU.

    Raises `TrainerFailed` with the kind `no_device` for a device that does not exist.
    """
    if name == "auto":
        if torch.cuda.is_available():
            return torch.device("cuda")
        return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
    try:
        # The package is imported first, because it registers the device type with torch.
        if (package := _BACKEND_PACKAGES.get(name.partition(":")[0])) is not None:
            importlib.import_module(package)
        device = torch.device(name)
        torch.zeros(1, device=device)
    except ImportError as error:
        raise TrainerFailed(
            "no_device", f"{name!r} needs a package that is missing: {error}"
        ) from None
    # Which of the three is raised depends on the backend and on torch's build.
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).splitlines()[0][:200]
        raise TrainerFailed("no_device", f"no device {name!r} here: {reason}") from None
    return device


def device_kind(device: torch.device) -> str:
    """Return the name of the device's kind in the memory model: torch's device type, or `cuda-float32`
    for a GPU whose layers compute in float32."""
    return "cuda-float32" if device.type == "cuda" and narrow_type(device) is None else device.type


def synchronize(device: torch.device) -> None:
    """Wait until the device has finished all queued work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()


def copies_while_computing(device: torch.device) -> bool:
    """Whether copies to and from the device may run asynchronously (`non_blocking`).

    CUDA runs a copy before what uses it, and keeps the source's memory until then. On MPS the memory of
    a source tensor that is dropped at once may be overwritten before the copy. So copies are
    asynchronous on CUDA only.
    """
    return device.type == "cuda"


def narrow_type(device: torch.device) -> torch.dtype | None:
    """Return the 16-bit type in which layers compute on the device, None for float32.

    bfloat16 is preferred, because it needs no loss scale; NVIDIA's GPUs before Ampere and AMD's RDNA 1
    and 2 have no units for it and emulate it. NVIDIA's GPUs before Volta have none for float16 either.
    """
    if device.type != "cuda":
        return None
    properties = torch.cuda.get_device_properties(device)
    if torch.version.hip is not None:
        # gfx10 is RDNA 1 and 2; gfx906 and older are GCN.
        name = properties.gcnArchName.split(":")[0]
        emulated = name.startswith("gfx10") or name in ("gfx803", "gfx900", "gfx906")
        return torch.float16 if emulated else torch.bfloat16
    capability = (properties.major, properties.minor)
    if capability >= (8, 0):
        return torch.bfloat16
    return torch.float16 if capability >= (7, 0) else None


def free_bytes(device: torch.device) -> int:
    """Return the memory that a model may take on the device, in bytes."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    if device.type == "mps":
        return torch.mps.recommended_max_memory() - torch.mps.current_allocated_memory()
    return free_main_memory()


def available_bytes(device: torch.device) -> int:
    """Return the memory that this process can still use on the device, in bytes: free memory, plus
    what torch's allocator has reserved and not given out."""
    cached = 0
    if device.type == "cuda":
        cached = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return free_bytes(device) + cached


def free_memory(device: torch.device, limit: int | None = None) -> FreeMemory:
    """Return the memory that a model may take on the device and in main memory; with `limit`, that
    many bytes on the device, whatever is free."""
    wanted = free_bytes(device) if limit is None else limit
    return FreeMemory(
        device=wanted, host=0 if device.type == "cpu" else free_bytes(torch.device("cpu"))
    )


def spills_to_main_memory(device: torch.device) -> bool:
    """Whether the driver falls back to main memory, a hundred times slower, instead of refusing when
    the GPU's memory is full: NVIDIA's does so on Windows and in its Linux subsystem (WSL)."""
    kernel = platform.uname()
    windows = kernel.system == "Windows" or "microsoft" in kernel.release.lower()
    return device.type == "cuda" and windows


def limit_memory(device: torch.device, limit: int) -> None:
    """Limit this process to `limit` bytes on a GPU; main memory is left to the owner."""
    if device.type == "cuda":
        total = torch.cuda.get_device_properties(device).total_memory
        torch.cuda.set_per_process_memory_fraction(min(1.0, limit / total), device)


def allocated_bytes(device: torch.device) -> int:
    """Return the bytes of device memory that this process holds; 0 on the CPU, where tensors are in the
    process's own memory."""
    if device.type == "cuda":
        return torch.cuda.memory_reserved(device)
    if device.type == "mps":
        return torch.mps.driver_allocated_memory()
    return 0


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an exception means that memory ran out, on any kind of device."""
    if isinstance(error, (MemoryError, torch.OutOfMemoryError)):
        return True
    # The CPU's allocator and MPS raise a plain RuntimeError.
    text = str(error).lower()
    return isinstance(error, RuntimeError) and (
        "out of memory" in text or "can't allocate memory" in text
    )
