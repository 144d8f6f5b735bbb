"""The memory model's prediction for training, beside measured peaks.

    python benchmarks/memory.py [--size 100M] [--sequence 128] [--micro-batch 1] [--json FILE]

For each way to store state and activations a session with the program's own model, optimizer and
step trains one round of two micro-batches, and applies its update as if --members members had sent
one. On the CPU the peak is counted: torch's profiler reports every block that its allocator gives or
takes back, including kernels' work memory, so it is the same in every run; numpy's memory for
decoded updates is counted by tracemalloc, and added for the time in which they exist. `gpu.py` has
peaks on a GPU.

A second table, by the model alone, is for the 1.2B preset: what each way takes on a GPU of 12 GB.
"""

from __future__ import annotations

import gc
import tempfile
import tomllib
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from command_line import new_parser, write_json
from distro_node.crypto.hashing import content_id
from distro_node.crypto.identity import PeerId
from distro_node.node.storage.blob_store import BlobStore
from distro_node.node.trainer.memory.optimizer_state import noise_table
from distro_node.node.trainer.models.model import model_config, new_model, parameter_table
from distro_node.node.trainer.training_session import TrainingSession
from distro_node.node.training.memory_model import MemoryNeeds, Workload, needs
from distro_node.node.training.memory_options import MemoryOptions
from distro_node.node.training.memory_plan import FreeMemory, all_options, choices
from distro_node.protocol.wire.blobs import CHUNK_BYTES, BlobList
from distro_node.protocol.wire.manifest import (
    DataSpec,
    Manifest,
    ParameterSpec,
    ScheduleSpec,
    ShardSpec,
)
from llamas import llama_config
from torch.profiler import ProfilerActivity, profile

# Hidden size, intermediate size, layers, vocabulary.
SIZES = {
    "1M": (128, 384, 4, 1_024),
    "100M": (640, 1728, 12, 32_000),
}
PRESET = Path(__file__).parent.parent / "node" / "create" / "manifests" / "llama-1.2b.toml"
CARD = 12 * 1000**3


def table_of(config: dict[str, Any]) -> tuple[ParameterSpec, ...]:
    """Return the parameter table of a model built without memory."""
    return parameter_table(new_model(model_config(config), torch.device("meta")))


def manifest_of(config: dict[str, Any], sequence: int, store: BlobStore, samples: int) -> Manifest:
    """Return a swarm that trains such a model on random tokens."""
    vocabulary = config["vocab_size"]
    tokens = np.random.default_rng(0).integers(0, vocabulary, samples * sequence + 1)
    data = tokens.astype("<u2").tobytes()
    cuts = range(0, len(data), CHUNK_BYTES)
    chunks = tuple(store.put(data[start : start + CHUNK_BYTES]) for start in cuts)
    blobs = BlobList(kind="shard", size=len(data), chunks=chunks)
    shard = ShardSpec(blob=store.put(blobs.encode()), tokens=len(tokens))
    return Manifest(
        name="memory",
        model=config,
        parameters=table_of(config),
        initial=content_id(b""),
        data=DataSpec(
            sequence_length=sequence,
            token_bytes=2,
            vocabulary=vocabulary,
            shards=(shard,),
            heldout=shard,
            tokenizer=content_id(b""),
        ),
        schedule=ScheduleSpec(total_rounds=10, warmup_rounds=1),
        founder=PeerId(bytes(32)),
    )


def peak_on_cpu(act: Callable[[], None], then: Callable[[], None]) -> int:
    """Return the most bytes that `act` and `then` hold: torch's, and for `then` also numpy's.

    (In `act` numpy holds a chunk of training data while it is checked, before anything is computed.)
    """
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded:
        act()
        tracemalloc.start()
        with torch.profiler.record_function("then"):
            then()
        _, beside = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    events: Any = recorded.profiler.kineto_results.events()  # pyright: ignore[reportOptionalMemberAccess]
    start = next(event.start_ns() for event in events if event.name() == "then")
    held = most = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        if event.name() == "[memory]":
            held += event.nbytes()
            most = max(most, held + (beside if event.start_ns() > start else 0))
    return most


class Round:
    """A session from its beginning to the end of its first round."""

    def __init__(
        self,
        manifest: Manifest,
        store: BlobStore,
        device: torch.device,
        options: MemoryOptions,
        micro_batch: int,
        members: int,
    ) -> None:
        self._session: TrainingSession | None = None
        self._body = b""
        self._members = members
        self._micro_batch = micro_batch
        self._open = lambda: TrainingSession(manifest, store, device, micro_batch, options=options)

    def compute(self) -> None:
        """Compute the own update, over two micro-batches."""
        self._session = self._open()
        # The parameters' values do not matter here, but a snapshot of them would take memory.
        self._session._loaded = True
        self._body = self._session.train(1, range(2 * self._micro_batch)).body

    def apply(self) -> None:
        """Take the step as if all members had sent an update."""
        assert self._session is not None
        self._session.apply(1, [self._body] * self._members, 2.0**-12, True)


def measure(
    size: str, sequence: int, micro_batch: int, members: int, device: torch.device
) -> list[dict[str, Any]]:
    """Return every way with its predicted and measured memory."""
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        store = BlobStore(Path(folder))
        manifest = manifest_of(
            llama_config(*SIZES[size], sequence), sequence, store, 2 * micro_batch
        )
        work = Workload.of(manifest)
        for options in all_options(device.type):
            expected = needs(work, device.type, options, micro_batch, members)

            once = Round(manifest, store, device, options, micro_batch, members)
            gc.collect()
            # Cached per process: each way must allocate its own.
            noise_table.cache_clear()
            measured = peak_on_cpu(once.compute, once.apply)
            rows.append(
                {
                    **described(options),
                    "parameters": work.elements,
                    "model_bytes": expected.device,
                    "measured_bytes": measured,
                    "difference": expected.device / measured - 1,
                    "parts": parts_of(expected),
                }
            )
            print(
                f"{rows[-1]['state']:9} {rows[-1]['place']:7} checkpointing "
                f"{options.checkpointing!s:6} model {expected.device / 1e6:9.1f} MB, measured "
                f"{measured / 1e6:9.1f} MB, {rows[-1]['difference']:+.1%}",
                flush=True,
            )
    return rows


def preset_on_a_card() -> list[dict[str, Any]]:
    """Return the 1.2B preset's memory at one sequence at once, by the model."""
    raw = tomllib.loads(PRESET.read_text("utf-8"))
    config = raw["model"]
    work = Workload(
        config=config,
        parameters=table_of(config),
        sequence_length=raw["data"]["sequence_length"],
    )
    rows = []
    print(f"\nThe 1.2B preset, {work.elements:,} parameters, on a GPU, by the model")
    for choice in choices(work, "cuda", FreeMemory(device=CARD, host=1 << 40), micro_batch=1):
        activations = next(p.device for p in choice.needs.phases[0] if p.name == "activations")
        lasting = sum(p.device for p in choice.needs.permanent) + 4 * work.elements
        rows.append(
            {
                **described(choice.options),
                "device_bytes": choice.needs.device,
                "host_bytes": choice.needs.host,
                "activation_bytes": activations,
                "bytes_a_parameter": lasting / work.elements,
                "fits": choice.fits,
            }
        )
        print(
            f"{rows[-1]['state']:9} {rows[-1]['place']:7} checkpointing "
            f"{choice.options.checkpointing!s:6} {choice.needs.device / 1e9:5.1f} GB on the device, "
            f"{choice.needs.host / 1e9:5.1f} GB beside it; "
            f"{rows[-1]['bytes_a_parameter']:.2f} bytes a parameter and "
            f"{activations / 1e9:.1f} GB of activations; "
            f"{'fits' if choice.fits else 'does not fit'} 12 GB"
        )
    return rows


def described(options: MemoryOptions) -> dict[str, Any]:
    """Return the options for a table."""
    state = options.state
    return {
        "state": state.precision,
        "place": state.place,
        "checkpointing": options.checkpointing,
    }


def parts_of(wanted: MemoryNeeds) -> dict[str, int]:
    """Return the parts by name."""
    return {part.name: part.device for part in wanted.parts}


def main() -> None:
    parser = new_parser(__doc__)
    parser.add_argument("--size", choices=list(SIZES), default="100M")
    parser.add_argument("--sequence", type=int, default=128)
    parser.add_argument("--micro-batch", type=int, default=1)
    parser.add_argument("--members", type=int, default=4)
    options = parser.parse_args()
    rows = measure(
        options.size, options.sequence, options.micro_batch, options.members, torch.device("cpu")
    )
    preset = preset_on_a_card()
    write_json(
        options.json,
        {
            "device": "cpu",
            "sequence": options.sequence,
            "micro_batch": options.micro_batch,
            "members": options.members,
            "measured": rows,
            "preset": preset,
        },
    )


if __name__ == "__main__":
    main()
