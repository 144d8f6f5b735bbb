"""Export of a model as one GGUF file for llama.cpp, Ollama and LM Studio: weights, settings, tokenizer.

Tensors are converted and written one after the other, and large ones in pieces: beside a model of 167
million parameters that takes 25 MB.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
from gguf import (
    GGML_QUANT_SIZES,
    GGML_QUANT_VERSION,
    GGUF_DEFAULT_ALIGNMENT,
    GGMLQuantizationType,
    GGUFWriter,
    LlamaFileType,
    quantize,
)
from transformers import PreTrainedModel

from ...training.gguf_formats import GgufType
from ...training.tokenizer_settings import TokenizerSettings
from .gguf_families import ConvertedModel, not_convertible
from .gguf_vocabulary import Vocabulary, vocabulary

_TYPES = {
    GgufType.F32: (GGMLQuantizationType.F32, LlamaFileType.ALL_F32),
    GgufType.F16: (GGMLQuantizationType.F16, LlamaFileType.MOSTLY_F16),
    GgufType.BF16: (GGMLQuantizationType.BF16, LlamaFileType.MOSTLY_BF16),
    GgufType.Q8_0: (GGMLQuantizationType.Q8_0, LlamaFileType.MOSTLY_Q8_0),
}
# Numbers of a tensor that are converted at once.
_PIECE = 1 << 20
# llama.cpp treats special tokens as Phi-3's tokenizer does if a model's name has one of these in it, and
# does not load the model if it has no such tokens. A swarm's name is free.
_NAMED_AS_TOKENIZER = re.compile("(phi)-?3", re.IGNORECASE)


class TextTokens:
    """The tokens with a role in a text, from an export's settings."""

    def __init__(self, ids: dict[str, Any], settings: TokenizerSettings, adds_start: bool) -> None:
        ends = ids["eos_token_id"]
        self._ends: list[int] = (
            ends if isinstance(ends, list) else [ends] if ends is not None else []
        )
        self._start: int | None = ids["bos_token_id"]
        self._padding: int | None = ids["pad_token_id"]
        self._adds_start = adds_start
        self._template = settings.chat_template

    def write(self, writer: GGUFWriter, tokens: Vocabulary) -> None:
        """Add the tokens' ids and the chat template to a file's metadata."""
        # Without a key llama.cpp takes fixed numbers, which are ordinary tokens here.
        nothing = tokens.never_written()
        end = self._ends[0] if self._ends else nothing
        if end is None:
            raise not_convertible(
                "its tokenizer has no end token, and llama.cpp would end texts at an ordinary one"
            )
        writer.add_eos_token_id(end)
        for add, number in _further_ends(writer, self._ends[1:]):
            add(number)
        writer.add_bos_token_id(end if self._start is None else self._start)
        if self._padding is not None:
            writer.add_pad_token_id(self._padding)
        writer.add_add_bos_token(self._adds_start)
        writer.add_add_eos_token(False)
        if self._template is not None:
            writer.add_chat_template(self._template)


def _further_ends(
    writer: GGUFWriter, tokens: list[int]
) -> Iterator[tuple[Callable[[int], None], int]]:
    return zip((writer.add_eot_token_id, writer.add_eom_token_id), tokens, strict=False)


def write_gguf(
    model: PreTrainedModel,
    definition: bytes,
    roles: TextTokens,
    path: Path,
    kind: GgufType,
    *,
    name: str,
    description: str,
) -> None:
    """Write a model and its tokenizer (`definition`: its `tokenizer.json`) to `path`.

    Raises `TrainerFailed` (`not_convertible`) before anything is written, and `OSError`.
    """
    converted = ConvertedModel(model)
    tokens = vocabulary(definition, converted.vocabulary)
    writer = GGUFWriter(None, converted.architecture)
    writer.add_type("model")
    writer.add_name(_NAMED_AS_TOKENIZER.sub(r"\1 3", name))
    writer.add_description(description)
    number_type, file_type = _TYPES[kind]
    writer.add_file_type(file_type)
    if kind == GgufType.Q8_0:
        writer.add_quantization_version(GGML_QUANT_VERSION)
    converted.write_metadata(writer)
    tokens.write(writer)
    roles.write(writer, tokens)
    for spelled, tensor in converted.tensors():
        fitting = _fitting(tensor, number_type)
        if fitting == GGMLQuantizationType.F16:
            _check_range(tensor)
        writer.add_tensor_info(
            *(spelled, _stored_shape(tensor, fitting), np.dtype(np.uint8)),
            _stored_bytes(tensor, fitting),
            raw_dtype=fitting,
        )
    try:
        writer.write_header_to_file(path)
        writer.write_kv_data_to_file()
        writer.write_ti_data_to_file()
    finally:
        writer.close()
    with path.open("ab") as file:
        _pad(file)
        for _, tensor in converted.tensors():
            for piece in _pieces(tensor, _fitting(tensor, number_type)):
                file.write(piece)
            _pad(file)


def _fitting(tensor: torch.Tensor, wanted: GGMLQuantizationType) -> GGMLQuantizationType:
    """Return the type in which a tensor is stored: llama.cpp computes with vectors in float32, and
    quantised rows are whole blocks."""
    if tensor.dim() < 2:
        return GGMLQuantizationType.F32
    block, _ = GGML_QUANT_SIZES[wanted]
    return wanted if tensor.shape[-1] % block == 0 else GGMLQuantizationType.F16


def _stored_bytes(tensor: torch.Tensor, kind: GGMLQuantizationType) -> int:
    block, size = GGML_QUANT_SIZES[kind]
    return tensor.numel() // block * size


def _stored_shape(tensor: torch.Tensor, kind: GGMLQuantizationType) -> tuple[int, ...]:
    block, size = GGML_QUANT_SIZES[kind]
    return (*tensor.shape[:-1], tensor.shape[-1] // block * size)


def _check_range(tensor: torch.Tensor) -> None:
    # Unlike `abs`, this makes no second tensor.
    low, high = tensor.aminmax()
    largest = max(-float(low), float(high))
    if largest > float(np.finfo(np.float16).max):
        raise not_convertible(
            f"a weight is {largest:g}, and float16 ends at 65,504: use --quantise bf16"
        )


def _pieces(tensor: torch.Tensor, kind: GGMLQuantizationType) -> Iterator[bytes]:
    rows = tensor.reshape(-1, tensor.shape[-1])
    at_once = max(1, _PIECE // rows.shape[1])
    for start in range(0, rows.shape[0], at_once):
        values = rows[start : start + at_once].cpu().numpy().astype("<f4", copy=False)
        yield np.ascontiguousarray(quantize(values, kind)).tobytes()


def _pad(file: BinaryIO) -> None:
    file.write(bytes(-file.tell() % GGUF_DEFAULT_ALIGNMENT))
