"""How often honest work fails an audit because too few usual scores were known.

    python benchmarks/usual.py [--swarms 20000] [--json FILE]

The passing bound follows from the scores that members with votes have had
(`protocol/audit/verdict.py`), and a new swarm has had few. A member without votes is removed after
one failure. Here members contribute to the usual score once they were audited once, twice, four
times (the rule) or eight times: each swarm draws that many scores of each of its voters, the
program's own rule computes the passing bound from them, and the probability of a failure follows
from that bound: a low score in the audit, and in the re-audits by two more members two low sequences
of four. Scores are normal around 1 with the measured deviation (`benchmarks/checks.py`), and
independent.

Two swarms: three voters with the same number of votes, and one in which a voter has six tenths of
all votes, as a founder may at the beginning, so that its scores alone decide.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest import mock

from distro_node.protocol.audit import verdict
from distro_node.protocol.audit.verdict import BaselineSample, ScoreBaseline, passing

MEAN, SHARE, SECOND_LOOKS = 15_000, 4, 2
DEVIATIONS = (0.20, 0.24)
LOOKS = (1, 2, 4, 8)
VOTES = {"three alike": (1, 1, 1), "one has most": (6, 2, 2)}
_NEEDED = next(
    count
    for count in range(1, SHARE + 1)
    if verdict.failed(0, [0] * count + [MEAN] * (SHARE - count), MEAN)
)
"""The number of low sequences of a share with which a check fails."""


def chance_of_failure(bound: float, deviation: float) -> float:
    """Return the probability that an honest update fails one audit: P · Qᴺ. P: a score is below the
    bound. Q: for one of the N re-auditors enough of the share's scores are."""
    low = 0.5 * math.erfc((1 - bound) / (deviation * math.sqrt(2)))
    share = sum(
        math.comb(SHARE, count) * low**count * (1 - low) ** (SHARE - count)
        for count in range(_NEEDED, SHARE + 1)
    )
    return low * share**SECOND_LOOKS


def measure(
    votes: Sequence[int], looks: int, deviation: float, swarms: int, chance: random.Random
) -> dict[str, float]:
    """Return over all swarms the mean probability of a failure, and the height of the usual score."""
    chances, found = [], []
    for _ in range(swarms):
        seen = [
            (
                [
                    BaselineSample(round(MEAN * chance.gauss(1, deviation)), SHARE)
                    for _ in range(looks)
                ],
                number,
            )
            for number in votes
        ]
        usual = ScoreBaseline(seen).of(SHARE)
        found.append(usual / MEAN)
        chances.append(chance_of_failure(passing(usual) / MEAN, deviation))
    found.sort()
    return {
        "failures_a_look": statistics.fmean(chances),
        "usual_mean": statistics.fmean(found),
        "usual_once_in_a_thousand": found[-max(1, swarms // 1000)],
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description="What too few looks say of what is usual.")
    parser.add_argument("--swarms", type=int, default=20_000)
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args(arguments)
    rule = verdict.MIN_AUDITS
    cases: list[dict[str, Any]] = []
    print(
        f"{'votes':14}{'deviation':>10}{'looks':>6}{'usual':>8}{'1 in 1,000':>12}{'failures a look':>17}"
    )
    for name, votes in VOTES.items():
        for deviation in DEVIATIONS:
            for looks in LOOKS:
                case = {"votes": name, "deviation": deviation, "looks": looks}
                with mock.patch.object(verdict, "MIN_AUDITS", looks):
                    case |= measure(votes, looks, deviation, options.swarms, random.Random(1))
                cases.append(case)
                print(
                    f"{name:14}{deviation:10.2f}{looks:6}{case['usual_mean']:8.2f}"
                    f"{case['usual_once_in_a_thousand']:12.2f}{case['failures_a_look']:17.1e}"
                    f"{'  the rule' if looks == rule else ''}",
                    flush=True,
                )
    if options.json:
        written = {"rule": rule, "swarms": options.swarms, "cases": cases}
        options.json.write_text(json.dumps(written, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
