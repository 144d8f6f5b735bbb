"""Parameter tables of Llamas, for benchmarks that need shapes but no weights."""

from __future__ import annotations

from distro_node.protocol.wire.manifest import ParameterSpec

# Hidden size, intermediate size, layers, vocabulary. The last is the DisTrO report's
# (node/create/manifests/llama-1.2b.toml).
SIZES = {
    "10M": (256, 704, 8, 6_400),
    "134M": (768, 2048, 12, 32_000),
    "1.2B": (2048, 8192, 16, 32_000),
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
