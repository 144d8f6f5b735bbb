"""Tokens per second of a node, in a swarm of one and in a swarm of four, beside a plain torch loop.

    python benchmarks/throughput.py [--device cpu] [--hidden 256] [--layers 4] [--share 64] [--rounds 4]
        [--work FOLDER] [--json FILE]

The plain loop trains the same model on sequences of the same length with fused AdamW, one step for
the number of sequences that a member has in a round, at the best of several micro-batches. It runs
alone, and in four processes in parallel, as the four nodes do: where they share two cores, a fourth
of those is what each of them could have. Every trainer and every loop has one thread. On a GPU the
layers of both are compiled, which is a node's default.

The nodes are real ones on loopback, with overlap. The difference between a node and the loop is
reported by phase: seconds per round of computing gradients, of making an update of them (momentum,
transform, the strongest coefficients, encoding), of the shared step (including decoding all
updates), and of waiting for the line or for others.

    --device cuda    not run on a GPU
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import statistics
import time
from collections.abc import Sequence
from multiprocessing.synchronize import Barrier
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from distro_node.node.demo.history import History
from distro_node.node.trainer.models.model import layers_of, model_config, new_model
from local_nodes import LocalNodes, timing_manifest, wait_for_round

SEQUENCE = 256
MICRO_BATCHES = (1, 2, 4, 8, 16)
MEMBERS = 4
SETTLE_ROUNDS = 2


def model_of(options: argparse.Namespace) -> dict[str, Any]:
    """Return a Llama over bytes."""
    return {
        "model_type": "llama",
        "vocab_size": 256,
        "hidden_size": options.hidden,
        "intermediate_size": options.hidden * 8 // 3 // 8 * 8,
        "num_hidden_layers": options.layers,
        "num_attention_heads": max(1, options.hidden // 64),
        "num_key_value_heads": max(1, options.hidden // 64),
        "max_position_embeddings": SEQUENCE,
        "tie_word_embeddings": True,
    }


def plain_loop(
    model: dict[str, Any], device: str, micro_batch: int, share: int, steps: int, ready: Barrier
) -> float:
    """Return the tokens per second of these steps, after one that determines the memory; all
    processes begin at once."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    where = torch.device(device)
    trained = new_model(model_config(model), where)
    if where.type == "cuda":
        for layer in layers_of(trained):
            layer.compile()
    optimizer = torch.optim.AdamW(trained.parameters(), lr=1e-4, fused=True)
    tokens = torch.randint(0, 256, (share, SEQUENCE), device=where)
    seconds = 0.0
    for step in range(steps + 1):
        ready.wait()
        started = time.perf_counter()
        for batch in tokens.split(micro_batch):
            with torch.autocast("cuda", dtype=torch.bfloat16, enabled=where.type == "cuda"):
                loss = trained(input_ids=batch, labels=batch).loss
            (loss * len(batch) / share).backward()
        optimizer.step()
        optimizer.zero_grad()
        if where.type == "cuda":
            torch.cuda.synchronize()
        seconds += (time.perf_counter() - started) * (step > 0)
    return steps * share * SEQUENCE / seconds


def _in_process(results: Any, *arguments: Any) -> None:
    results.put(plain_loop(*arguments))


def plain(options: argparse.Namespace, micro_batch: int, processes: int, steps: int) -> float:
    """Return the tokens per second of one of `processes` loops that run in parallel."""
    spawning = multiprocessing.get_context("spawn")
    ready, results = spawning.Barrier(processes), spawning.Queue()
    arguments = (model_of(options), options.device, micro_batch, options.share, steps, ready)
    loops = [
        spawning.Process(target=_in_process, args=(results, *arguments)) for _ in range(processes)
    ]
    for loop in loops:
        loop.start()
    speeds = [results.get() for _ in loops]
    for loop in loops:
        loop.join()
    return statistics.mean(speeds)


def in_swarm(options: argparse.Namespace, work: Path, members: int) -> dict[str, Any]:
    """Return the figures of a node in a swarm of `members`, over the last rounds."""
    # Shares are equal and constant, so that a node's rounds equal those of the loop.
    manifest = timing_manifest(
        "throughput",
        model_of(options),
        sequence=SEQUENCE,
        sequences=members * options.share,
        members=members,
        max_share=0.0,
    )
    nodes = LocalNodes(work, manifest, members, options.device)
    last = SETTLE_ROUNDS + options.rounds
    with nodes.running() as programs:
        wait_for_round(nodes.history(), last, programs)
        histories = [nodes.history(number) for number in range(members)]
        for history in histories:
            wait_for_round(history, last, programs)
    return _account(histories[0], members, last)


def _account(history: History, members: int, last: int) -> dict[str, Any]:
    facts = history.rounds
    seconds = facts[last]["time"] - facts[SETTLE_ROUNDS]["time"]
    numbers = range(SETTLE_ROUNDS + 1, last + 1)
    tokens = sum(facts[number]["tokens"] for number in numbers)

    def mean(values: Sequence[float | None]) -> float | None:
        known = [value for value in values if value is not None]
        return statistics.mean(known) if known else None

    phases = {
        phase: mean([facts[number]["seconds"].get(phase) for number in numbers])
        for phase in ("compute", "encode", "apply")
    }
    return {
        "tokens_per_second": tokens / members / seconds,
        "round_seconds": seconds / len(numbers),
        "phases": phases | {"idle": mean([facts[number]["idle_seconds"] for number in numbers])},
    }


def measure(options: argparse.Namespace, work: Path) -> dict[str, Any]:
    """Return all results; print each figure as it is measured."""
    swept = {size: plain(options, size, 1, 1) for size in MICRO_BATCHES if size <= options.share}
    best = max(swept, key=swept.__getitem__)
    alone_loop = plain(options, best, 1, options.rounds)
    print(f"plain loop, micro-batch {best}: {alone_loop:.0f} tokens a second", flush=True)
    four_loops = plain(options, best, MEMBERS, options.rounds)
    print(f"plain loop, one of four at once: {four_loops:.0f}", flush=True)
    alone = in_swarm(options, work / "alone", 1)
    print(_line("node alone", alone, alone_loop), flush=True)
    four = in_swarm(options, work / "four", MEMBERS)
    print(_line("node, one of four", four, four_loops), flush=True)
    return {
        "device": options.device,
        "model": model_of(options),
        "sequence": SEQUENCE,
        "share": options.share,
        "micro_batch": {"swept": swept, "chosen": best},
        "tokens_per_second": {
            "plain": alone_loop,
            "plain_four": four_loops,
            "alone": alone["tokens_per_second"],
            "swarm_of_four": four["tokens_per_second"],
        },
        "of_plain": {
            "alone": alone["tokens_per_second"] / alone_loop,
            "swarm_of_four": four["tokens_per_second"] / four_loops,
        },
        "rounds": {"alone": alone, "swarm_of_four": four},
    }


def _line(name: str, found: dict[str, Any], loop: float) -> str:
    speed = found["tokens_per_second"]
    phases = ", ".join(
        f"{name} {seconds:.2f}" for name, seconds in found["phases"].items() if seconds is not None
    )
    return (
        f"{name}: {speed:.0f} tokens a second, {speed / loop:.3f} of the loop; of the "
        f"{found['round_seconds']:.2f} s of a round: {phases}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--share", type=int, default=64, help="sequences of a member in a round")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--work", type=Path, help="keep logs and data here")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    with TemporaryDirectory(prefix="distro-throughput-") as temporary:
        found = measure(options, options.work or Path(temporary))
    if options.json:
        options.json.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
