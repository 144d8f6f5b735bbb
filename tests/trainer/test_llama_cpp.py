"""llama.cpp computes from a GGUF file what transformers computes from the model, and reads texts alike.

llama.cpp is built from the source in `llama-cpp-python`, with a compiler and CMake, unless
`llama_cpp` is installed.
"""

from __future__ import annotations

import os
import subprocess
import sys
from importlib import import_module, invalidate_caches
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from distro_node.node.trainer.models.model import model_config, new_model
from distro_node.node.training.gguf_formats import GgufType
from trainer.small_models import SMALL_MODELS
from transformers import PreTrainedModel

pytest.importorskip("gguf")
from trainer.gguf_examples import (
    EXAMPLES,
    SAMPLES,
    TEXT,
    TOKENIZERS,
    example_model,
    seen_tokens,
    write_example,
)

_RELEASE = "0.3.36"
_LONGEST = 64
_FLOAT32 = 0  # GGML_TYPE_F32 in ggml.h

pytestmark = [pytest.mark.soak, pytest.mark.timeout(3600)]


@pytest.fixture(scope="module", autouse=True)
def llama_cpp(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Have `llama_cpp` importable."""
    if find_spec("llama_cpp") is not None:
        return
    folder = tmp_path_factory.mktemp("llama-cpp")
    packages = [f"--target={folder}", f"llama-cpp-python=={_RELEASE}", "diskcache"]
    # For any processor with AVX2: with AMX this release ends by a segmentation fault when a matrix
    # of q8_0 meets more than one token. pip's cache may hold a wheel that was built otherwise.
    subprocess.run(
        [sys.executable, "-m", "pip", "install", "--no-cache-dir", "--no-deps", *packages],
        env=os.environ | {"CMAKE_ARGS": "-DLLAVA_BUILD=OFF -DGGML_NATIVE=OFF"},
        check=True,
    )
    sys.path.append(str(folder))
    invalidate_caches()


class LlamaCpp:
    """A model opened by llama.cpp."""

    def __init__(self, path: Path) -> None:
        # Float32 throughout, as in transformers.
        self._model: Any = import_module("llama_cpp").Llama(
            str(path),
            n_gpu_layers=0,
            n_ctx=_LONGEST,
            n_threads=1,
            n_threads_batch=1,
            logits_all=True,
            flash_attn=False,
            type_k=_FLOAT32,
            type_v=_FLOAT32,
            verbose=False,
        )

    def logits(self, tokens: list[int]) -> np.ndarray:
        """Return the logits after each token."""
        self._model.reset()
        self._model.eval(tokens)
        return np.array(self._model.scores[: len(tokens)])

    def cut(self, text: str) -> list[int]:
        """Return a text's tokens, without any around it."""
        return (
            list(self._model.tokenize(text.encode(), add_bos=False, special=True)) if text else []
        )

    def end(self) -> int:
        """Return the token that ends a text."""
        return int(self._model.token_eos())


# The largest difference of a logit, in standard deviations of all logits. For Gemma's activation
# llama.cpp has a table of 65,536 values.
_BOUNDS = {GgufType.F32: 1e-2, GgufType.F16: 4e-2, GgufType.BF16: 0.2, GgufType.Q8_0: 0.6}


@pytest.mark.parametrize("kind", GgufType)
@pytest.mark.parametrize("name", EXAMPLES)
def test_logits_are_the_same(tmp_path: Path, name: str, kind: GgufType) -> None:
    model: Any = example_model(name)
    tokens = seen_tokens(name)
    write_example(model, tmp_path / "m.gguf", kind)
    with torch.no_grad():
        meant = model(torch.tensor([tokens])).logits[0].numpy()
    found = LlamaCpp(tmp_path / "m.gguf").logits(tokens)
    same = float(np.mean(found.argmax(1) == meant.argmax(1)))
    difference = float(np.abs(found - meant).max())
    print(f"{name} {kind}: largest difference {difference:.1e}, same argmax {100 * same:.1f} %")
    assert difference < _BOUNDS[kind] * float(meant.std())
    assert same >= {GgufType.F32: 1.0, GgufType.F16: 0.97}.get(kind, 0.85)


@pytest.mark.parametrize("name", TOKENIZERS)
def test_texts_are_cut_alike(tmp_path: Path, name: str) -> None:
    tokenizer = TOKENIZERS[name]()
    size = tokenizer.get_vocab_size() + 3
    model = new_model(
        model_config(SMALL_MODELS["llama"] | {"vocab_size": size}), torch.device("cpu")
    )
    assert isinstance(model, PreTrainedModel)
    write_example(model, tmp_path / "m.gguf", GgufType.F32, tokenizer)
    engine = LlamaCpp(tmp_path / "m.gguf")
    # llama.cpp puts a space before any text, Metaspace before one that has none.
    doubled = name in ("sentencepiece, metaspace", "unigram")
    for text in [*SAMPLES, TEXT, "a<|user|>b<tool>c<|endoftext|>"]:
        if not (doubled and text.startswith(" ")):
            assert engine.cut(text) == tokenizer.encode(text, add_special_tokens=False).ids, text
    # No ordinary text ends at a token that llama.cpp takes for its usual end.
    assert engine.end() not in {token for text in SAMPLES for token in engine.cut(text)}
