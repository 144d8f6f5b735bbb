"""Processor time of a member's round in its trainer, beside a plain step on as many sequences.

    python benchmarks/member_round.py [--sizes 0.9M 14M] [--sequences 16] [--length 128]
                                      [--members 4] [--repeats 5] [--json FILE]

Ours, by the program's own session with a new swarm's optimizer: the gradient of a member's sequences;
its update, taken and encoded; and the step with the updates of all members, decoded, and its
fingerprint. The peers are a gradient of plain torch and a step of AdamW or Muon. Nothing is sent: what a
network costs on either side is in `peers.py`.

Times are seconds of one thread, the least of several runs; `times_plain` is a round of ours over the
plain one with AdamW.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from command_line import least_cpu_seconds, new_parser, write_json
from distro_node.node.storage.blob_store import BlobStore
from distro_node.node.trainer.models.model import model_config, new_model, parameter_table
from distro_node.node.trainer.training_session import TrainingSession
from learners.dense import AdamW, Muon, dense_optimizers
from learners.program import OPTIMIZERS
from llamas import llama_config

# Small manifests are the tests' own.
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
from trainer.support import make_manifest

CPU = torch.device("cpu")
# Hidden size, intermediate size, layers, vocabulary: the demo's and a larger model.
SIZES = {"0.9M": (128, 384, 4, 1_024), "14M": (384, 1_024, 7, 5_120)}


def plain_seconds(
    config: dict[str, Any], sequences: int, length: int, optimizer: AdamW | Muon, repeats: int
) -> dict[str, float]:
    """Return the seconds of the parts of a plain step."""
    model = new_model(model_config(config), CPU)
    parameters = list(model.parameters())
    steps = [each for each, _ in dense_optimizers(optimizer, parameter_table(model), parameters)]
    tokens = torch.randint(0, 256, (sequences, length))

    def gradient() -> None:
        model.zero_grad(set_to_none=True)
        model(input_ids=tokens, labels=tokens, use_cache=False).loss.backward()

    def step() -> None:
        for each in steps:
            each.step()

    return {
        "gradient": least_cpu_seconds(gradient, repeats),
        "step": least_cpu_seconds(step, repeats),
    }


@contextmanager
def opened(config: dict[str, Any], length: int) -> Iterator[TrainingSession]:
    """Yield a member's session with random parameters."""
    with tempfile.TemporaryDirectory() as folder:
        made, chunks = make_manifest(Path(folder), config=config, optimizer=OPTIMIZERS["default"])
        manifest = replace(made, data=replace(made.data, sequence_length=length))
        session = TrainingSession(manifest, BlobStore(Path(folder)), CPU)
        session.load(chunks)
        yield session


def our_seconds(
    config: dict[str, Any], sequences: int, length: int, members: int, repeats: int
) -> dict[str, float]:
    """Return the seconds of the parts of a round."""
    with opened(config, length) as session:
        rounds = iter(range(1, 1 << 20))
        share = range(sequences)
        others = [session.train(next(rounds), share).body for _ in range(members - 1)]

        def train() -> None:
            session.train(next(rounds), share)

        def apply() -> None:
            # New members' updates in each round: the same ones would be found decoded.
            session.updates.forget()
            session.apply(next(rounds), others, 1e-4, own_counted=False)

        gradient = least_cpu_seconds(lambda: session.computation.gradient(1, share), repeats)
        trained = least_cpu_seconds(train, repeats)
        return {
            "gradient": gradient,
            "encode": trained - gradient,
            "step": least_cpu_seconds(apply, repeats) * members / (members - 1),
        }


def measure(size: str, sequences: int, length: int, members: int, repeats: int) -> dict[str, Any]:
    """Return the figures of a size."""
    config = llama_config(*SIZES[size], length, tied=True)
    peers = {"AdamW": AdamW(), "Muon": Muon()}
    found: dict[str, Any] = {
        name: plain_seconds(config, sequences, length, peer, repeats)
        for name, peer in peers.items()
    }
    found["ours"] = our_seconds(config, sequences, length, members, repeats)
    plain = sum(found["AdamW"].values())
    table = parameter_table(new_model(model_config(config), torch.device("meta")))
    return {
        "parameters": sum(spec.elements for spec in table),
        "seconds": found,
        "times_plain": sum(found["ours"].values()) / plain,
        "muon_times_plain": sum(found["Muon"].values()) / plain,
    }


def main() -> None:
    parser = new_parser(__doc__)
    parser.add_argument("--sizes", nargs="+", choices=SIZES, default=list(SIZES))
    parser.add_argument("--sequences", type=int, default=16, help="of the member")
    parser.add_argument("--length", type=int, default=128, help="tokens of a sequence")
    parser.add_argument("--members", type=int, default=4)
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    rows = {}
    for size in options.sizes:
        row = rows[size] = measure(
            size, options.sequences, options.length, options.members, options.repeats
        )
        print(f"{size}: {row['parameters']:,} parameters")
        for name, parts in row["seconds"].items():
            words = ", ".join(f"{part} {seconds:.3f} s" for part, seconds in parts.items())
            print(f"  {name}: {words}; {sum(parts.values()):.3f} s in all")
        print(f"  ours {row['times_plain']:.2f} times AdamW's, Muon {row['muon_times_plain']:.2f}")
    settings = {name: getattr(options, name) for name in ("sequences", "length", "members")}
    write_json(options.json, {**settings, "torch": torch.__version__, "sizes": rows})


if __name__ == "__main__":
    main()
