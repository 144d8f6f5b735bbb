"""Size and speed of an update: our codec beside the formats of other systems, on the same coefficients.

    python benchmarks/codec.py [--k 8] [--steps 30] [--json FILE]

A byte-level Llama of about 0.9 million parameters trains on the standard library's sources; the
coefficients are those of its real momentum. For the speed they are repeated over the layout of the
1.2B Llama 2 of the DisTrO report, whose update has some two million coefficients at k = 7. One core.
"""

from __future__ import annotations

import argparse
import json
import math
import platform
import sysconfig
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
import trio
from distro_node.node.blobstore import BlobStore
from distro_node.node.create import CreateSettings, create_swarm
from distro_node.node.datadir import DataDir
from distro_node.node.provisions import blob_list_at
from distro_node.node.trainer.session import TrainingSession
from distro_node.protocol.manifest import ParameterSpec
from distro_node.protocol.schedule import learning_rate
from distro_node.protocol.update import (
    DecodedUpdate,
    UpdateLayout,
    decode_update,
    encode_update,
    update_layout,
)

Encoder = Callable[[UpdateLayout, DecodedUpdate], bytes]
Decoder = Callable[[UpdateLayout, bytes], object]

MANIFEST = """
name = "codec benchmark"
[model]
model_type = "llama"
hidden_size = 128
intermediate_size = 344
num_hidden_layers = 4
num_attention_heads = 4
max_position_embeddings = 128
[data]
tokenizer = "bytes"
sequence_length = 128
include = ["*.py"]
[optimizer]
top_k = {k}
"""

SAMPLES_A_STEP = 16


@dataclass(frozen=True)
class Format:
    """A way to write an update down. Ours needs the layout alone; so do the others here."""

    name: str
    encode: Encoder
    decode: Decoder


def llama_1b() -> list[ParameterSpec]:
    """The parameter table of the report's 1.2B Llama 2 (node/manifests/llama-1.2b.toml)."""
    hidden, intermediate, layers, vocabulary = 2048, 8192, 16, 32_000
    table = [("embed", (vocabulary, hidden)), ("head", (vocabulary, hidden)), ("norm", (hidden,))]
    for layer in range(layers):
        table += [(f"{layer}.{name}", (hidden, hidden)) for name in "qkvo"]
        table += [(f"{layer}.{name}", (intermediate, hidden)) for name in ("gate", "up")]
        table += [(f"{layer}.down", (hidden, intermediate))]
        table += [(f"{layer}.norm{number}", (hidden,)) for number in (1, 2)]
    return [ParameterSpec(name=name, shape=shape) for name, shape in table]


def real_updates(k: int, steps: int) -> tuple[UpdateLayout, list[DecodedUpdate]]:
    """Train one member alone and return its updates of the later half of the steps."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        (root / "manifest.toml").write_text(MANIFEST.format(k=k))
        sources = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))
        settings = CreateSettings(
            manifest=root / "manifest.toml",
            data=tuple(sources),
            data_dir=root / "data",
            passphrase=None,
        )
        manifest = trio.run(create_swarm, settings, lambda what, done, total: None)
        store = BlobStore(DataDir(root / "data").blobs)
        session = TrainingSession(manifest, store, torch.device("cpu"))
        chunks = blob_list_at(store, "snapshot", manifest.initial, 4 * manifest.elements)
        assert chunks is not None
        session.load(chunks.chunks)
        updates = []
        for step in range(1, steps + 1):
            first = (step - 1) * SAMPLES_A_STEP
            body = session.train(step, range(first, first + SAMPLES_A_STEP)).body
            session.apply(step, [body], learning_rate(manifest.schedule, step), own_counted=True)
            if step > steps // 2:
                updates.append(decode_update(session.layout, body))
        return session.layout, updates


def last_real_update(k: int, steps: int) -> tuple[UpdateLayout, DecodedUpdate]:
    """As `real_updates`, the last one alone."""
    layout, updates = real_updates(k, steps)
    return layout, updates[-1]


def scaled_up(layout: UpdateLayout, update: DecodedUpdate, large: UpdateLayout) -> DecodedUpdate:
    """An update of the large layout whose full blocks are those of a real one, over and over."""
    full = [
        (update.positions[i], update.signs[i])
        for i, tensor in enumerate(layout.tensors)
        if tensor.elements == 4096
    ]
    positions = np.concatenate([p for p, _ in full])
    signs = np.concatenate([s for _, s in full])
    generator = np.random.default_rng(0)
    result = DecodedUpdate([], [])
    for tensor in large.tensors:
        if tensor.elements == 4096:
            chosen = generator.integers(0, len(positions), tensor.blocks)
            result.positions.append(positions[chosen])
            result.signs.append(signs[chosen])
        else:
            spread = np.arange(tensor.top_k, dtype=np.int32)
            result.positions.append(np.tile(spread, (tensor.blocks, 1)))
            result.signs.append(np.ones((tensor.blocks, tensor.top_k), dtype=np.int8))
    return result


# The formats of others, written down from their descriptions.


def _flat(update: DecodedUpdate) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int8]]:
    return (
        np.concatenate([p.ravel() for p in update.positions]),
        np.concatenate([s.ravel() for s in update.signs]),
    )


def _pack(values: npt.NDArray[np.integer], bits: int) -> bytes:
    places = np.arange(bits - 1, -1, -1)
    return np.packbits((values[:, None] >> places & 1).astype(np.uint8)).tobytes()


def _unpack(data: bytes, bits: int, count: int) -> npt.NDArray[np.int64]:
    raw = np.unpackbits(np.frombuffer(data, np.uint8), count=bits * count).reshape(count, bits)
    return raw.astype(np.int64) @ (1 << np.arange(bits - 1, -1, -1))


def _fields(position_bits: int, value_bits: int) -> tuple[Encoder, Decoder]:
    """Positions and values of so many bits each; a value is a sign where it has one bit."""

    def encode(layout: UpdateLayout, update: DecodedUpdate) -> bytes:
        positions, signs = _flat(update)
        values = (signs > 0).astype(np.int64) * ((1 << value_bits) - 1)
        return _pack(positions, position_bits) + _pack(values, value_bits)

    def decode(layout: UpdateLayout, body: bytes) -> object:
        count = layout.coefficients
        split = (count * position_bits + 7) // 8
        return _unpack(body[:split], position_bits, count), _unpack(body[split:], value_bits, count)

    return encode, decode


def _demo_encode(layout: UpdateLayout, update: DecodedUpdate) -> bytes:
    positions, signs = _flat(update)
    return positions.astype("<i8").tobytes() + signs.astype("<f4").tobytes()


def _demo_decode(layout: UpdateLayout, body: bytes) -> object:
    split = 8 * layout.coefficients
    return np.frombuffer(body[:split], "<i8"), np.frombuffer(body[split:], "<f4")


FORMATS = (
    Format(
        "ours",
        lambda layout, update: encode_update(layout, update.positions, update.signs),
        decode_update,
    ),
    Format("raw 12-bit + sign", *_fields(12, 1)),
    Format("Psyche (16-bit index + sign bit)", *_fields(16, 1)),
    Format("templar (12-bit index + 8-bit value)", *_fields(12, 8)),
    Format("DeMo (int64 index + float32)", _demo_encode, _demo_decode),
)


def uniform_bound(layout: UpdateLayout) -> float:
    """Bits a coefficient if all sets of positions and all signs were equally likely."""
    bits = sum(
        tensor.blocks * math.log2(math.comb(tensor.elements, tensor.top_k))
        for tensor in layout.tensors
    )
    return bits / layout.coefficients + 1


def bits_per_coefficient(
    format_: Format, layout: UpdateLayout, updates: Sequence[DecodedUpdate]
) -> float:
    size = sum(len(format_.encode(layout, update)) for update in updates)
    return 8 * size / (layout.coefficients * len(updates))


def best_seconds(act: Callable[[], object], repeats: int = 3) -> float:
    """The shortest of a few runs: what else the machine does only adds time."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        act()
        times.append(time.perf_counter() - start)
    return min(times)


def main() -> None:
    parser = argparse.ArgumentParser(
        description="Size and speed of an update, beside others' formats."
    )
    parser.add_argument("--k", type=int, default=8, help="coefficients of a block of 64 × 64")
    parser.add_argument(
        "--steps", type=int, default=30, help="training steps; updates of the later half count"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures here, too")
    options = parser.parse_args()
    torch.set_num_threads(1)

    layout, updates = real_updates(options.k, options.steps)
    large = update_layout(llama_1b(), 64, options.k)
    big = scaled_up(layout, updates[-1], large)
    bits = {f.name: bits_per_coefficient(f, layout, updates) for f in FORMATS}
    encode_seconds, decode_seconds, large_bytes = {}, {}, {}
    for format_ in FORMATS:
        body = format_.encode(large, big)
        large_bytes[format_.name] = len(body)
        encode_seconds[format_.name] = best_seconds(lambda f=format_: f.encode(large, big))
        decode_seconds[format_.name] = best_seconds(lambda f=format_, b=body: f.decode(large, b))

    print(f"{len(updates)} real updates of {layout.coefficients:,} coefficients, k = {options.k};")
    print(
        f"seconds for one update of {large.coefficients:,} coefficients (1.2B parameters), one core\n"
    )
    print(f"{'format':38} {'bits/coef.':>10} {'encode s':>9} {'decode s':>9} {'MB at 1.2B':>11}")
    for format_ in FORMATS:
        name = format_.name
        megabytes = large_bytes[name] / 1e6
        print(
            f"{name:38} {bits[name]:10.2f} {encode_seconds[name]:9.2f} "
            f"{decode_seconds[name]:9.2f} {megabytes:11.2f}"
        )
    bound = uniform_bound(layout)
    print(f"{'uniform bound':38} {bound:10.2f}")
    print(f"(of the 1.2B layout, all full blocks: {uniform_bound(large):.2f})\n")
    sizes = {}
    for k in (4, 7, 8):
        small, last = (
            (layout, updates[-1]) if k == options.k else last_real_update(k, options.steps)
        )
        whole = update_layout(llama_1b(), 64, k)
        sizes[str(k)] = len(FORMATS[0].encode(whole, scaled_up(small, last, whole)))
        share = 8 * sizes[str(k)] / whole.coefficients
        print(
            f"one update of 1.2B parameters at k = {k}: {sizes[str(k)] / 1e6:.2f} MB, "
            f"{share:.2f} bits a coefficient (bound {uniform_bound(whole):.2f})"
        )
    if options.json:
        result = {
            "k": options.k,
            "steps": options.steps,
            "coefficients": layout.coefficients,
            "bits_per_coefficient": bits | {"uniform bound": bound},
            "encode_seconds": encode_seconds,
            "decode_seconds": decode_seconds,
            "bytes_1.2b": sizes,
            "processor": platform.processor() or platform.machine(),
        }
        options.json.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
