"""The environment variables of a trainer process."""

from __future__ import annotations

import os
import shutil
from contextlib import suppress
from fnmatch import fnmatchcase
from pathlib import Path

# Variables that make libraries multiply float32 at reduced precision, so that the shared step would
# differ from the swarm's: cuBLAS, torch, hipBLASLt, Metal and oneDNN.
_INEXACT = (
    "CUBLAS_EMULATE_*",
    "CUBLAS_EMULATION_*",
    "DNNL_DEFAULT_FPMATH_MODE",
    "HIPBLASLT_ALLOW_TF32",
    "NVIDIA_TF32_OVERRIDE",
    "ONEDNN_DEFAULT_FPMATH_MODE",
    "PYTORCH_MPS_FAST_MATH",
    "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE",
)

# If any of these is set, the owner has configured torch's allocator.
_ALLOCATOR = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF")

_SECRET_NAMES = ("PASSPHRASE", "PASSWORD", "SECRET", "TOKEN", "CREDENTIAL", "API_KEY", "ACCESS_KEY")

# Larger caches are removed at the next start, because compilers never remove anything themselves.
_CACHES_BYTES = 4 << 30


def drop_if_large(caches: Path, limit: int = _CACHES_BYTES) -> None:
    """Remove a cache folder if it holds more than `limit` bytes. It is recreated on use."""
    sizes = (
        Path(folder, name).lstat().st_size
        for folder, _, names in os.walk(caches, followlinks=False)
        for name in names
    )
    with suppress(OSError):
        if sum(sizes) > limit:
            shutil.rmtree(caches, ignore_errors=True)


def environment(threads: int | None, scratch: str, caches: Path | None = None) -> dict[str, str]:
    """Return the node's own variables, without secrets and without those that change arithmetic, and
    those that make libraries write to the folder `scratch`, and compiled code to `caches`, if given.
    `threads` is the number of CPU threads; None: the library's default."""
    compiled = scratch if caches is None else str(caches.resolve())
    # Variables may hold the keystore's passphrase and other programs' secrets; the trainer needs none.
    environment = {
        name: value
        for name, value in os.environ.items()
        if not _names_a_secret(name.upper())
        and not any(fnmatchcase(name, pattern) for pattern in _INEXACT)
    }
    environment |= {
        # Libraries download nothing without the user's knowledge.
        "HF_HUB_OFFLINE": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "DO_NOT_TRACK": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "TRANSFORMERS_VERBOSITY": "error",
        # Libraries do not write to the user's own caches either.
        "TMPDIR": scratch,
        "XDG_CACHE_HOME": scratch,
        "HF_HOME": scratch,
        "AMD_COMGR_CACHE_DIR": compiled,
        "CUDA_CACHE_PATH": compiled,
        "MIOPEN_CUSTOM_CACHE_DIR": compiled,
        "MIOPEN_USER_DB_PATH": compiled,
        "TORCHINDUCTOR_CACHE_DIR": compiled,
        "TRITON_CACHE_DIR": compiled,
        # Compile in this process, not in helper processes that would stay.
        "TORCHINDUCTOR_COMPILE_THREADS": "1",
    }
    if not environment.keys() & set(_ALLOCATOR):
        # Without segments that can grow, the memory of a full GPU becomes too fragmented to use. Torch
        # 2.9 to 2.11 ignore this setting under the new name, and all know the old one.
        environment["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True"
    if threads is not None:
        environment["OMP_NUM_THREADS"] = str(threads)
    return environment


def _names_a_secret(name: str) -> bool:
    return any(word in name for word in _SECRET_NAMES)
