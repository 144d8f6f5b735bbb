"""Four members with texts of four kinds: federated, centralised, each alone; and the cost of ε.

    python benchmarks/private.py --json FILE

*Centralised*: the same members and rounds, but every share is drawn from all texts together.
*Alone*: one member with its own text, in the same number of rounds, hence with a quarter of the
tokens. *Stateless*: no member keeps momentum. With ε a share is larger and there are fewer rounds;
the same without clipping and noise is the comparison. The same command resumes an interrupted run.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import torch
from federation import DELTA, SEQUENCE, TEXT_BYTES, Federation, Results, Way, texts


def ways(options: argparse.Namespace) -> list[Way]:
    """Return everything that is compared."""
    rounds, sequences = options.rounds, options.sequences
    noisy, large = options.noisy_rounds, options.noisy_sequences
    names = [text.name for text in texts()]
    return [
        Way(name="federated", rounds=rounds, sequences=sequences),
        Way(name="centralised", rounds=rounds, sequences=sequences, mixed=True),
        *(
            Way(name=f"alone: {name}", rounds=rounds, sequences=sequences, members=(index,))
            for index, name in enumerate(names)
        ),
        Way(name="stateless", rounds=rounds, sequences=sequences, stateless=True),
        Way(name="large shares", rounds=noisy, sequences=large),
        Way(name="clipped", rounds=noisy, sequences=large, clip=options.clip),
        *(
            Way(
                name=f"epsilon {epsilon:g}",
                rounds=noisy,
                sequences=large,
                clip=options.clip,
                epsilon=epsilon,
            )
            for epsilon in options.epsilons
        ),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--sequences", type=int, default=4, help="a member's share of a round")
    parser.add_argument("--noisy-rounds", type=int, default=60)
    parser.add_argument("--noisy-sequences", type=int, default=32)
    parser.add_argument("--epsilons", type=float, nargs="+", default=[32.0, 8.0, 2.0])
    parser.add_argument("--clip", type=float, default=1.0)
    parser.add_argument("--hidden", type=int, default=64)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    torch.set_num_threads(1)
    own = texts()
    head = {
        "hidden": options.hidden,
        "layers": options.layers,
        "seed": options.seed,
        "sequence": SEQUENCE,
        "delta": DELTA,
        "texts": {text.name: len(text.train) + len(text.heldout) for text in own},
        "text_bytes": TEXT_BYTES,
    }
    results = Results(options.json, head)
    for way in results.missing(ways(options)):
        began = time.process_time()
        made = Federation(way, own, hidden=options.hidden, layers=options.layers, seed=options.seed)
        results.content["parameters"] = made.trial.elements
        before = made.heldout(own)
        made.run()
        noise = [clipping.noise for clipping in made.clippings if clipping is not None]
        results.add(
            way,
            begin=before,
            heldout=made.heldout(own),
            sequences=[len(data) for data in made.data],
            noise=noise,
            processor_seconds=time.process_time() - began,
        )
        show(way.name, results)
    for name in results.content["runs"]:
        show(name, results)


def show(name: str, results: Results) -> None:
    """Print one line for a way."""
    losses = results.content["runs"][name]["heldout"]
    mean = sum(losses.values()) / len(losses)
    line = "  ".join(f"{text} {loss:.3f}" for text, loss in losses.items())
    print(f"{name:<16} {line}  mean {mean:.3f}", flush=True)


if __name__ == "__main__":
    main()
