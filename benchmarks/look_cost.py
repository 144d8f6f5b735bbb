"""Rounds per hour of two real nodes that audit each other's work, beside the same without audits.

    python benchmarks/look_cost.py [--every 2] [--share 2] [--settle 8] [--rounds 16] [--pairs 1]
        [--work FOLDER] [--json FILE]

Nodes on loopback, whose upload is limited to 512 kbit/s as soon as they train, learn with a Llama
over bytes with three million parameters, with overlap and one thread each. Many coefficients per
block (k = 512) make updates that take longer to transfer than a share to compute: a round waits for
the line, and the CPUs are idle at times. A node audits after sending its own update, and nothing
waits for the audit, so here audits should not slow down rounds. Swarms without and with audits
alternate, in --pairs pairs. The first rounds of each are not counted.
"""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from distro_node.node.control.command_socket import ask
from distro_node.node.results.contributions import read_ledger
from local_nodes import LocalNodes, timing_manifest, wait_for_round

MEMBERS = 2
SEQUENCE = 128
TOP_K = 512
# The least rate with which a node takes part.
UPLOAD = "512kbit"
MODEL = {
    "model_type": "llama",
    "vocab_size": 256,
    "hidden_size": 192,
    "intermediate_size": 512,
    "num_hidden_layers": 6,
    "num_attention_heads": 3,
    "num_key_value_heads": 3,
    "max_position_embeddings": SEQUENCE,
    "tie_word_embeddings": False,
}


def in_swarm(options: argparse.Namespace, work: Path, every: int | None) -> dict[str, Any]:
    """Run the nodes with an audit every `every` rounds each, or none, and return the figures."""
    manifest = timing_manifest(
        "looks",
        MODEL,
        sequence=SEQUENCE,
        sequences=MEMBERS * options.share,
        members=MEMBERS,
        max_share=0.0,
        top_k=TOP_K,
    )
    if every is not None:
        manifest += f"\n[audits]\nevery = {every}\n"
    nodes = LocalNodes(work, manifest, MEMBERS)
    last = options.settle + options.rounds
    with nodes.running() as programs:
        histories = [nodes.history(number) for number in range(MEMBERS)]
        # The initial state is fetched without a limit, as it is not measured.
        wait_for_round(histories[-1], 1, programs)
        for number in range(MEMBERS):
            ask(nodes.data(number).socket, "limits", 10.0, upload=UPLOAD)
        for history in histories:
            wait_for_round(history, last, programs)
        ledger = read_ledger(nodes.data(0), nodes.swarm)
    facts = histories[0].rounds
    seconds = facts[last]["time"] - facts[options.settle]["time"]
    counted = range(options.settle + 1, last + 1)
    return {
        "rounds_per_hour": 3600 * options.rounds / seconds,
        "computing_share": sum(facts[n]["seconds"]["compute"] for n in counted) / seconds,
        "looks": sum(len(ledger[n].record.audits) for n in counted),
        "voters": len(ledger.audits.votes(last)) if ledger.audits else None,
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--every", type=int, default=2, help="rounds from one look to the next")
    parser.add_argument("--share", type=int, default=2, help="sequences of a member in a round")
    parser.add_argument("--settle", type=int, default=8, help="rounds that are not counted")
    parser.add_argument("--rounds", type=int, default=16, help="rounds that are")
    parser.add_argument("--pairs", type=int, default=1)
    parser.add_argument("--work", type=Path, help="keep logs and data here")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    found: dict[str, list[dict[str, Any]]] = {"without": [], "with": []}
    with TemporaryDirectory(prefix="distro-looks-") as temporary:
        work = options.work or Path(temporary)
        for pair in range(options.pairs):
            for name, every in (("without", None), ("with", options.every)):
                found[name].append(in_swarm(options, work / f"{name}-{pair}", every))
                print(name, json.dumps(found[name][-1]), flush=True)
    hours = {
        name: statistics.mean(each["rounds_per_hour"] for each in swarms)
        for name, swarms in found.items()
    }
    slower = 1 - hours["with"] / hours["without"]
    print(
        f"{hours['without']:.1f} rounds an hour without looks, {hours['with']:.1f} with: {slower:.2%}"
    )
    if options.json:
        settings = {key: getattr(options, key) for key in ("every", "share", "settle", "rounds")}
        document = {
            "settings": settings,
            "rounds_per_hour": hours,
            "slower": slower,
            "swarms": found,
        }
        options.json.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
