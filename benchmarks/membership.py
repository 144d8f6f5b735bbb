"""Was this sequence in a member's share? A membership attack by another member, on the updates it
receives.

    python benchmarks/membership.py --json FILE

The attacker has the parameters, the update, and text of the victim's kind that the victim does not
have. It scores a candidate as an audit would (docs/audits.md): the signs of the update against what
would change if one sequence of a share were the candidate. AUC is how often a sequence of the share
scores above one that the victim has but never trained: 0.5 is chance. *Earlier*: sequences of the
previous ten rounds that are not in this round's share, against those never trained. The same command
resumes where it was stopped.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from distro_node.node.trainer.audit_score import changes, score_update
from distro_node.protocol.codec.update import DecodedUpdate
from federation import DELTA, SEQUENCE, Federation, Results, Text, Way, texts
from training import windows

VICTIM, ATTACKER = 0, 1
CANDIDATES = 8
RECENT_ROUNDS = 10


def ways(options: argparse.Namespace) -> list[Way]:
    """Return the settings of the victim and all other members."""
    rounds, large = options.rounds, options.sequences
    return [
        Way(name="share of 1", rounds=rounds, sequences=1),
        Way(name="share of 4", rounds=rounds, sequences=4),
        Way(name="share of 4, stateless", rounds=rounds, sequences=4, stateless=True),
        Way(name=f"share of {large}", rounds=rounds, sequences=large),
        Way(name=f"share of {large}, clipped", rounds=rounds, sequences=large, clip=options.clip),
        *(
            Way(
                name=f"share of {large}, epsilon {epsilon:g}",
                rounds=rounds,
                sequences=large,
                clip=options.clip,
                epsilon=epsilon,
            )
            for epsilon in options.epsilons
        ),
    ]


def attacked(made: Federation, own: Sequence[Text], every: int) -> dict[str, list[float]]:
    """Train, and score candidates in some of the rounds."""
    data, chance = made.data[VICTIM], np.random.default_rng(1)
    heldout = own[VICTIM].heldout
    known = windows(heldout, np.arange((len(heldout) - 1) // SEQUENCE) * SEQUENCE)
    scores: dict[str, list[float]] = {"in": [], "earlier": [], "never": []}
    drawn: list[np.ndarray] = []
    for number in range(1, made.way.rounds + 1):
        shares = [made.draw(member) for member in range(len(made.own))]
        updates = [made.update(member, number, share) for member, share in enumerate(shares)]
        share = shares[VICTIM]
        if number > RECENT_ROUNDS and number % every == 0 and len(share):
            before = np.unique(np.concatenate(drawn))
            recent = np.unique(np.concatenate(drawn[-RECENT_ROUNDS:]))
            kinds = {
                "in": share,
                "earlier": np.setdiff1d(recent, share),
                "never": np.setdiff1d(np.arange(len(data)), np.union1d(before, share)),
            }
            picked = chance.choice(len(known), made.way.sequences, replace=False)
            usual = [g.clone() for g in made.trial.gradients(known[picked])]
            for kind, numbers in kinds.items():
                count = min(CANDIDATES, len(numbers))
                for each in chance.choice(numbers, count, replace=False):
                    scores[kind].append(score(made, updates[VICTIM], data[each], usual))
        drawn.append(share)
        made.step(updates, number)
    return scores


def score(
    made: Federation, update: DecodedUpdate, candidate: np.ndarray, usual: Sequence[torch.Tensor]
) -> float:
    """Return the attacker's score of one candidate."""
    gradient = [g.clone() for g in made.trial.gradients(candidate[None])]
    share, optimizer = made.way.sequences, made.optimizers[ATTACKER]
    found = changes([gradient], usual, share, made.layout, made.spec, optimizer)
    seen = [table for (table,) in found]
    return score_update(update, seen).score


def auc(above: Sequence[float], below: Sequence[float]) -> tuple[float, float]:
    """Return how often a value of the first list is the larger, and the standard error (Hanley and
    McNeil, 1982)."""
    first, second = np.array(above)[:, None], np.array(below)[None]
    area = float((first > second).mean() + 0.5 * (first == second).mean())
    q1, q2 = area / (2 - area), 2 * area * area / (1 + area)
    n, m = len(above), len(below)
    spread = area * (1 - area) + (n - 1) * (q1 - area**2) + (m - 1) * (q2 - area**2)
    return area, float(np.sqrt(max(0.0, spread) / (n * m)))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--every", type=int, default=4, help="rounds between attacks")
    parser.add_argument("--sequences", type=int, default=32, help="in a large share")
    parser.add_argument("--epsilons", type=float, nargs="+", default=[32.0, 8.0])
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
        "every": options.every,
        "delta": DELTA,
        "texts": {text.name: len(text.train) + len(text.heldout) for text in own},
    }
    results = Results(options.json, head)
    for way in results.missing(ways(options)):
        made = Federation(way, own, hidden=options.hidden, layers=options.layers, seed=options.seed)
        results.content["parameters"] = made.trial.elements
        scores = attacked(made, own, options.every)
        results.add(
            way,
            noise=[clipping.noise for clipping in made.clippings if clipping is not None],
            auc=auc(scores["in"], scores["never"]),
            earlier_auc=auc(scores["earlier"], scores["never"]),
            scores={kind: [round(each, 3) for each in found] for kind, found in scores.items()},
        )
        show(way.name, results)
    for name in results.content["runs"]:
        show(name, results)


def show(name: str, results: Results) -> None:
    """Print one line for a way."""
    run = results.content["runs"][name]
    (area, error), (earlier, _) = run["auc"], run["earlier_auc"]
    count = len(run["scores"]["in"])
    print(f"{name:<28} AUC {area:.3f} ± {error:.3f} of {count}; earlier {earlier:.3f}", flush=True)


if __name__ == "__main__":
    main()
