"""The environment variables of a trainer process."""

from __future__ import annotations

import os

_SECRET_WORDS = ("PASSPHRASE", "PASSWORD", "SECRET", "TOKEN", "CREDENTIAL", "API_KEY", "ACCESS_KEY")


def environment(threads: int | None, scratch: str) -> dict[str, str]:
    """The node's own, but for secrets, and with all that libraries write in the folder `scratch`."""
    # A passphrase of the keystore may stand there, and others' secrets; the trainer has no use for them.
    environment = {k: v for k, v in os.environ.items() if not _names_a_secret(k.upper())}
    environment |= {
        # Nothing is ever fetched behind the user's back.
        "HF_HUB_OFFLINE": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "DO_NOT_TRACK": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "TRANSFORMERS_VERBOSITY": "error",
        # Nor written to the user's own caches.
        "TMPDIR": scratch,
        "XDG_CACHE_HOME": scratch,
        "HF_HOME": scratch,
        "CUDA_CACHE_PATH": scratch,
        "TRITON_CACHE_DIR": scratch,
        "TORCHINDUCTOR_CACHE_DIR": scratch,
        # A compiler is started here, and not in helpers that would stay.
        "TORCHINDUCTOR_COMPILE_THREADS": "1",
    }
    if threads is not None:
        environment["OMP_NUM_THREADS"] = str(threads)
    return environment


def _names_a_secret(name: str) -> bool:
    return any(word in name for word in _SECRET_WORDS)
