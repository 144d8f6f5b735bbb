"""Llamas for benchmarks: configurations, parameter tables without weights, random updates."""

from __future__ import annotations

from typing import Any

import numpy as np
from distro_node.protocol.codec.update import DecodedUpdate, UpdateLayout
from distro_node.protocol.wire.manifest import ParameterSpec

# Hidden size, intermediate size, layers, vocabulary. The last is the DisTrO report's
# (node/create/manifests/llama-1.2b.toml).
SIZES = {
    "10M": (256, 704, 8, 6_400),
    "134M": (768, 2048, 12, 32_000),
    "1.2B": (2048, 8192, 16, 32_000),
}


def llama_config(
    hidden: int,
    inner: int,
    layers: int,
    vocabulary: int,
    length: int,
    *,
    heads: int | None = None,
    tied: bool = False,
) -> dict[str, Any]:
    """Return a configuration, by default with heads of 64 and an untied head."""
    heads = heads or max(1, hidden // 64)
    return {
        "model_type": "llama",
        "hidden_size": hidden,
        "intermediate_size": inner,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": heads,
        "vocab_size": vocabulary,
        "max_position_embeddings": length,
        "tie_word_embeddings": tied,
    }


def llama(size: str) -> list[ParameterSpec]:
    """Return the parameter table of a Llama with untied embeddings."""
    hidden, intermediate, layers, vocabulary = SIZES[size]
    table = [("embed", (vocabulary, hidden)), ("head", (vocabulary, hidden)), ("norm", (hidden,))]
    for layer in range(layers):
        table += [(f"{layer}.{name}", (hidden, hidden)) for name in "qkvo"]
        table += [(f"{layer}.{name}", (intermediate, hidden)) for name in ("gate", "up")]
        table += [(f"{layer}.down", (hidden, intermediate))]
        table += [(f"{layer}.norm{number}", (hidden,)) for number in (1, 2)]
    return [ParameterSpec(name=name, shape=shape) for name, shape in table]


def drawn_update(layout: UpdateLayout, seed: int) -> DecodedUpdate:
    """Return a random update that prefers low frequencies, as real ones do."""
    generator = np.random.default_rng(seed)
    update = DecodedUpdate([], [])
    for tensor in layout.tensors:
        shape = (tensor.blocks, tensor.top_k)
        rows = (tensor.block_rows * generator.random(shape, dtype=np.float32) ** 2).astype(np.int32)
        columns = tensor.block_columns * generator.random(shape, dtype=np.float32) ** 2
        places = rows * tensor.block_columns + columns.astype(np.int32)
        # Ascending and then moved apart by one each: a set.
        places = np.sort(places.clip(max=tensor.elements - tensor.top_k), axis=1)
        update.positions.append(places + np.arange(tensor.top_k, dtype=np.int32))
        plus = generator.random(shape, dtype=np.float32) < 0.6
        update.signs.append(np.where(plus, 1, -1).astype(np.int8))
    return update
