"""The kinds of models and numbers that an export to GGUF, the format of llama.cpp, supports.

Both processes use it: the node's refuses a model before anything is read, the trainer's converts it.
"""

from __future__ import annotations

from enum import StrEnum

GGUF_FAMILIES = (*("gemma", "gemma2", "gemma3_text", "llama", "mistral", "phi3", "qwen2", "qwen3"),)
"""The model types that can be written as GGUF."""


class GgufType(StrEnum):
    """The type of the numbers in a model's matrices; vectors are always float32."""

    F32 = "f32"
    F16 = "f16"
    BF16 = "bf16"
    Q8_0 = "q8_0"
    """Blocks of 32 whole numbers of 8 bits, with a float16 factor each."""


def gguf_name(kind: GgufType) -> str:
    """Return the name of the file in an export."""
    return f"model-{kind}.gguf"


def unsupported_family(model_type: str) -> str | None:
    """Return why a model type cannot be written as GGUF; None if it can."""
    if model_type in GGUF_FAMILIES:
        return None
    return f"it is a {model_type!r}, and the supported model types are {', '.join(GGUF_FAMILIES)}"
