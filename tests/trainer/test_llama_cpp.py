"""llama.cpp computes from a GGUF file what transformers computes from the model, and reads texts alike.

Needs llama.cpp: `pip install cyllama`, which brings it compiled.
"""

from __future__ import annotations

from importlib import import_module
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
pytest.importorskip("cyllama")
from trainer.gguf_examples import (
    EXAMPLES,
    SAMPLES,
    TEXT,
    TOKENIZERS,
    example_model,
    seen_tokens,
    write_example,
)

pytestmark = pytest.mark.soak


class LlamaCpp:
    """A model opened by llama.cpp."""

    def __init__(self, path: Path) -> None:
        self._library: Any = import_module("cyllama.llama.llama_cpp")
        self._library.disable_logging()
        parameters = self._library.LlamaModelParams()
        parameters.n_gpu_layers = 0
        # Its context asks the model for a number that release 0.2 has in the vocabulary alone.
        kind: Any = type("Model", (self._library.LlamaModel,), {})
        self._model = kind(path_model=str(path), params=parameters)
        self._vocabulary = self._model.get_vocab()
        kind.n_vocab = self._vocabulary.n_vocab

    def logits(self, tokens: list[int]) -> np.ndarray:
        """Return the logits after each token."""
        parameters = self._library.LlamaContextParams()
        parameters.n_ctx, parameters.n_threads = 64, 1
        # Float32 throughout, as in transformers.
        parameters.flash_attn_type = parameters.type_k = parameters.type_v = 0
        context = self._library.LlamaContext(model=self._model, params=parameters)
        batch = self._library.LlamaBatch(n_tokens=len(tokens), embd=0, n_seq_max=1)
        batch.set_batch(tokens, 0, True)
        context.decode(batch)
        return np.array([context.get_logits_ith(i)[:] for i in range(len(tokens))])

    def cut(self, text: str) -> list[int]:
        """Return a text's tokens, without any around it."""
        return list(self._vocabulary.tokenize(text, False, True)) if text else []

    def end(self) -> int:
        """Return the token that ends a text."""
        return self._vocabulary.token_eos()


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
