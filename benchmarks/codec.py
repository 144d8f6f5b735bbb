"""Size and speed of an update: our codec beside the formats of other systems, on the same coefficients.

    python benchmarks/codec.py [--k 8] [--steps 60] [--json FILE]

Two byte-level Llamas train on the standard library's sources, one member alone; the coefficients are
those of its momentum. The larger one (3.4 million parameters) has sides that are multiples of 64, so
nearly all its blocks are full ones of 64 × 64, as in large models; the smaller one is the demo's.

Speed, and the size of an update of the report's 1.2B Llama 2, need more coefficients than that. They are
drawn at random, with frequencies as unevenly used in each strip of blocks as in the strips of the larger
model, evened out a little by the codec's own prior. One core, CPU seconds.
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
from distro_node.node.content.downloads import blob_list_at
from distro_node.node.create.new_swarm import CreateSettings, create_swarm
from distro_node.node.storage.blob_store import BlobStore
from distro_node.node.storage.data_dir import DataDir
from distro_node.node.trainer.session import TrainingSession
from distro_node.protocol.codec.schedule import learning_rate
from distro_node.protocol.codec.update import (
    DecodedUpdate,
    TensorLayout,
    UpdateLayout,
    decode_update,
    encode_update,
    update_layout,
)
from llamas import llama

Encoder = Callable[[UpdateLayout, DecodedUpdate], bytes]
Decoder = Callable[[UpdateLayout, bytes], object]

MANIFEST = """
name = "codec benchmark"
[model]
model_type = "llama"
hidden_size = {hidden}
intermediate_size = {intermediate}
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


FULL_BLOCK = 64 * 64


@dataclass(frozen=True)
class Model:
    """Sides of a Llama with four layers."""

    name: str
    hidden: int
    intermediate: int


LARGER = Model("larger", 256, 704)
DEMO = Model("demo", 128, 344)


@dataclass(frozen=True)
class Format:
    """A way to write an update down. Ours needs the layout alone; so do the others here."""

    name: str
    encode: Encoder
    decode: Decoder


def real_updates(model: Model, k: int, steps: int) -> tuple[UpdateLayout, list[DecodedUpdate]]:
    """Train one member alone and return its updates of the later half of the steps."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        (root / "manifest.toml").write_text(
            MANIFEST.format(hidden=model.hidden, intermediate=model.intermediate, k=k)
        )
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


def drawn_update(layout: UpdateLayout, update: DecodedUpdate, large: UpdateLayout) -> DecodedUpdate:
    """An update of the large layout whose strips are as uneven as those of a real one.

    Each strip takes the frequencies of a random strip of a real tensor, shuffled, and a block draws
    row and column independently, until it has k different positions.
    """
    generator = np.random.default_rng(0)
    full = [i for i, tensor in enumerate(layout.tensors) if tensor.elements == FULL_BLOCK]
    drawn = DecodedUpdate([], [])
    for number, tensor in enumerate(large.tensors):
        if tensor.elements == FULL_BLOCK:
            source = full[number % len(full)]
            rows, columns = strip_shares(layout.tensors[source], update.positions[source])
            positions = draw_blocks(tensor, rows, columns, generator)
        else:
            positions = np.tile(np.arange(tensor.top_k, dtype=np.int32), (tensor.blocks, 1))
        drawn.positions.append(positions)
        signs = generator.integers(0, 2, positions.shape)
        drawn.signs.append((1 - 2 * signs).astype(np.int8))
    return drawn


def strip_shares(
    tensor: TensorLayout, positions: npt.NDArray[np.int32]
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Shares of the frequencies in rows of blocks (down, 64) and in columns of blocks (across, 64)."""
    down, across = np.divmod(np.arange(tensor.blocks)[:, None], tensor.across)
    shares = []
    for strips, strip, place in (
        (tensor.down, down, positions // 64),
        (tensor.across, across, positions % 64),
    ):
        seen = np.bincount((strip * 64 + place).ravel(), minlength=64 * strips).reshape(strips, 64)
        weights = seen + 0.25
        shares.append(weights / weights.sum(axis=1, keepdims=True))
    return shares[0], shares[1]


def draw_blocks(
    tensor: TensorLayout,
    rows: npt.NDArray[np.float64],
    columns: npt.NDArray[np.float64],
    generator: np.random.Generator,
) -> npt.NDArray[np.int32]:
    """Positions (blocks, k) of a tensor whose strips have such shares."""
    down, across = np.divmod(np.arange(tensor.blocks)[:, None], tensor.across)
    # With three times as many draws, fewer than one block in a thousand lacks k different ones.
    shape = (tensor.blocks, 3 * tensor.top_k)
    places = []
    for strips, strip, shares in (
        (tensor.down, down, rows),
        (tensor.across, across, columns),
    ):
        chosen = generator.permuted(shares[generator.integers(0, len(shares), strips)], axis=1)
        below = np.minimum(np.cumsum(chosen, axis=1), 1) + np.arange(strips)[:, None]
        below[:, -1] = np.arange(1, strips + 1)
        found = np.searchsorted(below.ravel(), strip + generator.random(shape), side="right")
        places.append(found - strip * 64)
    draws = (places[0] * 64 + places[1]).astype(np.int32)
    order = np.argsort(draws, axis=1, kind="stable")
    ranked = np.take_along_axis(draws, order, axis=1)
    again = np.zeros_like(draws, dtype=bool)
    np.put_along_axis(again, order[:, 1:], ranked[:, 1:] == ranked[:, :-1], axis=1)
    first = np.argsort(again, axis=1, kind="stable")[:, : tensor.top_k]
    positions = np.sort(np.take_along_axis(draws, first, axis=1), axis=1)
    lacking = (np.diff(positions, axis=1) == 0).any(axis=1)
    positions[lacking] = np.arange(tensor.top_k)
    return positions


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


def best_seconds(act: Callable[[], object], repeats: int = 5) -> float:
    """The least processor time of a few runs: what else the machine does only adds to it."""
    times = []
    for _ in range(repeats):
        start = time.process_time()
        act()
        times.append(time.process_time() - start)
    return min(times)


def main() -> None:
    parser = argparse.ArgumentParser(
        description="Size and speed of an update, beside others' formats."
    )
    parser.add_argument("--k", type=int, default=8, help="coefficients of a block of 64 × 64")
    parser.add_argument(
        "--steps", type=int, default=60, help="training steps; updates of the later half count"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures here, too")
    options = parser.parse_args()
    torch.set_num_threads(1)

    sizes: dict[str, dict[str, float]] = {}
    last: dict[str, tuple[UpdateLayout, DecodedUpdate]] = {}
    for model in (LARGER, DEMO):
        layout, updates = real_updates(model, options.k, options.steps)
        sizes[model.name] = {f.name: bits_per_coefficient(f, layout, updates) for f in FORMATS}
        sizes[model.name]["uniform bound"] = uniform_bound(layout)
        print_sizes(model, layout, updates, sizes[model.name])
        last[model.name] = layout, updates[-1]

    large = update_layout(llama("1.2B"), 64, options.k)
    update = drawn_update(*last[LARGER.name], large)
    print(
        f"\nCPU seconds for one update of {large.coefficients:,} coefficients (1.2B parameters)\n"
    )
    print(f"{'format':38} {'encode s':>9} {'decode s':>9} {'MB':>7}")
    encode_seconds, decode_seconds = {}, {}
    for format_ in FORMATS:
        body = format_.encode(large, update)
        encode_seconds[format_.name] = best_seconds(lambda f=format_: f.encode(large, update))
        decode_seconds[format_.name] = best_seconds(lambda f=format_, b=body: f.decode(large, b))
        print(
            f"{format_.name:38} {encode_seconds[format_.name]:9.3f} "
            f"{decode_seconds[format_.name]:9.3f} {len(body) / 1e6:7.2f}"
        )
    print()
    large_bytes = {}
    for k in (4, 7, 8):
        if k != options.k:
            layout, updates = real_updates(LARGER, k, options.steps)
            last[LARGER.name] = layout, updates[-1]
        whole = update_layout(llama("1.2B"), 64, k)
        drawn = drawn_update(*last[LARGER.name], whole)
        large_bytes[str(k)] = len(FORMATS[0].encode(whole, drawn))
        share = 8 * large_bytes[str(k)] / whole.coefficients
        print(
            f"one update of 1.2B parameters at k = {k}: {large_bytes[str(k)] / 1e6:.2f} MB, "
            f"{share:.2f} bits a coefficient (uniform bound {uniform_bound(whole):.2f}, "
            f"never more than {8 * whole.max_bytes / whole.coefficients:.2f})"
        )
    if options.json:
        result = {
            "k": options.k,
            "steps": options.steps,
            "bits_per_coefficient": sizes[LARGER.name],
            "bits_per_coefficient_demo_model": sizes[DEMO.name],
            "encode_seconds": encode_seconds,
            "decode_seconds": decode_seconds,
            "bytes_1.2b": large_bytes,
            "processor": platform.processor() or platform.machine(),
        }
        options.json.write_text(json.dumps(result, indent=2) + "\n")


def print_sizes(
    model: Model,
    layout: UpdateLayout,
    updates: Sequence[DecodedUpdate],
    bits: dict[str, float],
) -> None:
    parameters = sum(tensor.rows * tensor.columns for tensor in layout.tensors)
    full = sum(t.coefficients for t in layout.tensors if t.elements == FULL_BLOCK)
    print(
        f"\n{model.name} model, {parameters:,} parameters: {len(updates)} real updates of "
        f"{layout.coefficients:,} coefficients, {full / layout.coefficients:.0%} in full blocks\n"
    )
    print(f"{'format':38} {'bits/coef.':>10}")
    for name, value in bits.items():
        print(f"{name:38} {value:10.2f}")


if __name__ == "__main__":
    main()
