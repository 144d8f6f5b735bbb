"""Size and speed of an update: our codec beside the formats of other systems, on the same coefficients.

    python benchmarks/codec.py [--k 8] [--steps 60] [--json FILE]

A byte-level Llama of 3.3 million parameters trains on the standard library's sources, one member
alone; the coefficients are those of its momentum. Its sides are multiples of 64, so nearly all blocks
are full ones of 64 × 64, as in large models. Beside the formats the table has the uniform bound.

Speed, and the size of an update of the report's 1.2B Llama 2, are measured on random coefficients:
ours has the same length for any. One core, CPU seconds.

The others' formats were implemented from their descriptions: DeMo's reference code (its all-gather
of int64 indices and float32 values); Psyche 0.2.0 with `quantize_1bit`, which sends one sign bit in
place of a value; templar's 72B run, 12-bit indices and 2-bit values (its code of v2.1.3 sends each
value as a byte, 20 bits together). Their additions, such as shapes and scales, are left out.
"""

from __future__ import annotations

import math
import platform
import sysconfig
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
import trio
from command_line import least_cpu_seconds, new_parser, write_json
from distro_node.node.content.downloads import blob_list_at
from distro_node.node.create.new_swarm import CreateSettings, create_swarm
from distro_node.node.storage.blob_store import BlobStore
from distro_node.node.storage.data_dir import DataDir
from distro_node.node.trainer.training_session import TrainingSession
from distro_node.protocol.codec.schedule import learning_rate
from distro_node.protocol.codec.update import (
    DecodedUpdate,
    UpdateLayout,
    decode_update,
    encode_update,
    update_layout,
)
from llamas import drawn_update, llama

Encoder = Callable[[UpdateLayout, DecodedUpdate], bytes]
Decoder = Callable[[UpdateLayout, bytes], object]

MANIFEST = """
name = "codec benchmark"
[model]
model_type = "llama"
hidden_size = 256
intermediate_size = 704
num_hidden_layers = 4
num_attention_heads = 4
max_position_embeddings = 128
[data]
tokenizer = "bytes"
sequence_length = 128
include = ["*.py"]
[optimizer]
top_k = {k}
preconditioner = "orthogonal"
"""

SAMPLES_A_STEP = 16
FULL_BLOCK = 64 * 64


@dataclass(frozen=True)
class Format:
    """A format for an update. Ours needs only the layout, and so do the others here."""

    name: str
    encode: Encoder
    decode: Decoder


def real_updates(k: int, steps: int) -> tuple[UpdateLayout, list[DecodedUpdate]]:
    """Train one member alone and return its updates of the second half of the steps."""
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
        manifest = trio.run(create_swarm, settings, lambda what, done, total: None).manifest
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


# The formats of others, implemented from their descriptions.


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
    """Return a format with positions and values of these numbers of bits; a value of one bit is a
    sign."""

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
    Format("templar (12-bit index + 2-bit value)", *_fields(12, 2)),
    Format("DeMo (int64 index + float32)", _demo_encode, _demo_decode),
)


def uniform_bound(layout: UpdateLayout) -> float:
    """Return the bits per coefficient if all sets of positions and all signs were equally likely."""
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


def main() -> None:
    parser = new_parser(__doc__)
    parser.add_argument("--k", type=int, default=8, help="coefficients of a block of 64 × 64")
    parser.add_argument(
        "--steps", type=int, default=60, help="training steps; updates of the later half count"
    )
    options = parser.parse_args()
    torch.set_num_threads(1)

    found = measure(options.k, options.steps)
    formats = race(update_layout(llama("1.2B"), 64, options.k))
    print()
    large = {str(k): sizes(k) for k in (4, 7, 8)}
    write_json(
        options.json,
        {
            "k": options.k,
            "steps": options.steps,
            "model": found,
            "formats_1.2b": formats,
            "large_1.2b": large,
            "processor": platform.processor() or platform.machine(),
        },
    )


def measure(k: int, steps: int) -> dict[str, object]:
    """Measure the bits per coefficient of real updates, by format, and their bound."""
    layout, updates = real_updates(k, steps)
    full = sum(t.coefficients for t in layout.tensors if t.elements == FULL_BLOCK)
    parameters = sum(tensor.rows * tensor.columns for tensor in layout.tensors)
    print(
        f"{parameters:,} parameters: {len(updates)} real updates of {layout.coefficients:,} "
        f"coefficients, {full / layout.coefficients:.0%} in full blocks\n"
    )
    bits = {f.name: bits_per_coefficient(f, layout, updates) for f in FORMATS}
    bound = uniform_bound(layout)
    print(f"{'format':50} {'bits/coef.':>10}")
    for name, value in (bits | {"uniform bound": bound}).items():
        print(f"{name:50} {value:10.2f}")
    return {
        "parameters": parameters,
        "coefficients": layout.coefficients,
        "bits_per_coefficient": bits,
        "uniform_bound": bound,
    }


def race(layout: UpdateLayout) -> dict[str, dict[str, float]]:
    """Measure seconds and bytes of an update, by format."""
    update = drawn_update(layout, 0)
    print(f"\nCPU seconds for one update of {layout.coefficients:,} coefficients (1.2B parameters)")
    print(f"\n{'format':38} {'encode s':>9} {'decode s':>9} {'MB':>7}")
    figures = {}
    for format_ in FORMATS:
        body = format_.encode(layout, update)
        encode = least_cpu_seconds(lambda f=format_: f.encode(layout, update))
        decode = least_cpu_seconds(lambda f=format_, b=body: f.decode(layout, b))
        print(f"{format_.name:38} {encode:9.3f} {decode:9.3f} {len(body) / 1e6:7.2f}")
        figures[format_.name] = {
            "encode_seconds": encode,
            "decode_seconds": decode,
            "bytes": len(body),
        }
    return figures


def sizes(k: int) -> dict[str, float]:
    """Return the size of an update of a 1.2B model with k coefficients per block: the same for any."""
    layout = update_layout(llama("1.2B"), 64, k)
    bits = 8 * layout.body_bytes / layout.coefficients
    print(
        f"1.2B parameters, k = {k}: {layout.body_bytes / 1e6:.2f} MB, {bits:.2f} bits a coefficient"
    )
    return {"bytes": layout.body_bytes, "bits_per_coefficient": bits}


if __name__ == "__main__":
    main()
