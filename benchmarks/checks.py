"""How well an audit, recomputing one of its sequences, distinguishes honest work from other work.

    python benchmarks/checks.py [--sizes 0.14M 0.9M 3M] [--variants usual …] [--seeds 0 …] [--quick]
        [--work FILE] [--known] [--json FILE] [--plot FILE]

Some twenty kinds of opponents (checks_swarm.py) beside honest members, including members on other
hardware, while a small language model is trained on the standard library's sources. Every candidate
for a statistic is computed for every update, and their table shows how well they separate honest
scores from others: d' is the distance of the means in root mean square deviations, AUC the frequency
with which an honest score exceeds the other. Then repeated audits of one member are drawn at random,
with the statistic, the bounds and the sequential tests of `protocol/audit`.

False accusations are too rare to be counted. The counts are reported beside two extrapolations: a
normal distribution fitted to the lower half of a case's honest scores and its mirror image, and
Student's t with the likeliest weight of tails; sequences of one update are correlated as measured.
The larger of the two is used. Audits of one member in different rounds are assumed to be
independent.

A case (size, variant, seed) becomes a line of --work when measured, and is not measured
again: after a kill the same command resumes with the interrupted case. --known measures nothing.
--quick is one short case of the smallest size, to check that everything runs.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import sysconfig
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from checks_swarm import BEGINNING, USUAL, Case, Swarm, Unit
from distro_node.protocol.audit import verdict
from distro_node.protocol.audit.audit_sums import (
    WORK,
    halves_test,
    level_test,
)
from distro_node.protocol.audit.sequential_test import DistributionSums, LevelTest, SumDistribution
from distro_node.protocol.audit.verdict import BaselineSample, ScoreBaseline
from runs import append_run, read_runs
from training import read_corpus

SIZES = {
    "0.14M": Case(size="0.14M", seed=0, hidden=64, layers=2, rounds=100, first=10, stride=10),
    "0.9M": Case(size="0.9M", seed=0, hidden=128, layers=4, rounds=45, first=15, stride=6),
    "3M": Case(size="3M", seed=0, hidden=192, layers=6, rounds=24, first=12, stride=4),
}
VARIANTS: dict[str, dict[str, Any]] = {
    "usual": {},
    "k 2": {"top_k": 2},
    "k 32": {"top_k": 32},
    "rms": {"preconditioner": "rms"},
    "none": {"preconditioner": "none"},
    "smoothing": {"smoothing": 0.5},
    "now": {"preconditioner": "muon", "smoothing": 0.7, "momentum": 0.97, "step": "scaled"},
    "muon": {"preconditioner": "muon", "smoothing": 0.0, "momentum": 0.97, "step": "scaled"},
    "overlap": {"overlap": True},
    "share 1": {"share": 1},
    "share 16": {"share": 16, "members": 4},
}

CHOSEN = "change of own gradient"
"""The statistic used by the tests."""
STRANGERS_WORK = (
    "other data",
    "a small batch repeated",
    "copies another",
    "copies another, a fifth turned",
    "random",
    "half of the signs turned",
)
"""Opponents that know nothing of the assigned sequences: a statistic must detect them."""
DEALT_WORK = (
    "parameters 20 rounds old",
    "the first half of each sequence",
    "the second half of each sequence",
    "a cheaper model, half of the layers",
    "a tenth of the signs turned",
    "poisons the head",
)
"""Opponents that know something of them."""

MIXED = (0.9, 0.8, 0.5)
"""The frequency of honest updates of members that copy another's update in all other rounds."""

COST = 0.03
"""The share of all compute that audits may take."""
WITHIN = 20
COURSES, LONGEST = 300, 120
"""Number of drawn courses of audits, and their greatest length."""


def main() -> None:
    parser = argparse.ArgumentParser(description="Honest work told from other work.")
    parser.add_argument("--sizes", nargs="+", choices=SIZES, default=list(SIZES))
    parser.add_argument("--variants", nargs="+", choices=VARIANTS, default=["usual"])
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--known", action="store_true", help="measure nothing")
    parser.add_argument("--work", type=Path, metavar="FILE")
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--plot", type=Path, metavar="FILE")
    options = parser.parse_args()
    torch.set_num_threads(1)
    units = measured(options)
    if not units:
        sys.exit("nothing is measured yet")
    document = summed_up(units)
    print_summary(document)
    if options.json:
        options.json.write_text(json.dumps(document, indent=1) + "\n")
    if options.plot:
        plot(options.plot, units)


def measured(options: argparse.Namespace) -> list[Unit]:
    """Return all measured units, after measuring those of the command line."""
    units = read_runs(options.work, Unit) if options.work else []
    texts = None
    for case in () if options.known else cases(options):
        described = asdict(case) | {"label": case.label}
        # Lines from before an option existed do not contain it.
        if any(USUAL | unit.case == described for unit in units):
            continue
        texts = texts or read_corpus([Path(sysconfig.get_paths()["stdlib"])], [])
        print(f"{case.size}, {case.label}, seed {case.seed}", flush=True)
        unit = Swarm(case, *texts).run(lambda words: print(f"  {words}", flush=True))
        units.append(unit)
        if options.work:
            append_run(options.work, unit)
    return units


def cases(options: argparse.Namespace) -> Iterator[Case]:
    """Yield the cases of the command line: all variants and sizes with the first seed before the
    next."""
    if options.quick:
        yield replace(SIZES["0.14M"], rounds=12, first=6, stride=3)
        return
    for seed in options.seeds:
        for variant in options.variants:
            for size in options.sizes:
                few = "all" if variant in ("usual", "smoothing", "now") else "few"
                yield replace(SIZES[size], seed=seed, opponents=few, **VARIANTS[variant])


class Group:
    """All units of a size and a variant."""

    def __init__(self, units: Sequence[Unit]) -> None:
        self.units = units
        self.case = units[0].case
        self.share = int(self.case["share"])

    def names(self) -> list[str]:
        """Return all kinds of members, in order."""
        return list(dict.fromkeys(row[0] for unit in self.units for row in unit.rows))

    def statistics(self) -> list[str]:
        """Return all statistics, in order."""
        return list(dict.fromkeys(name for unit in self.units for name in unit.statistics))

    def scores(self, name: str, statistic: str) -> np.ndarray:
        """Return the scores of each update of this kind, where measured: (updates, sequences)."""
        return np.array(
            [
                [score[unit.statistics.index(statistic)] for score in found]
                for unit in self.units
                if statistic in unit.statistics
                for who, _, _, second, found in unit.rows
                if who == name and not second
            ]
        )

    def looks(self, name: str) -> list[list[BaselineSample]]:
        """Return, for each update of this kind, an audit of each of its sequences, as records have
        them."""
        wholes = self.scores(name, CHOSEN)
        halves = self.scores(name, BEGINNING)
        return [
            [
                BaselineSample(round(1000 * whole), self.share, round(1000 * half))
                for whole, half in zip(*row, strict=True)
            ]
            for row in zip(wholes, halves, strict=True)
        ]

    def honest_by_lane(self) -> list[list[BaselineSample]]:
        """Return the audits of the honest members, a list for each."""
        streams = [
            (number, stream)
            for number, unit in enumerate(self.units)
            for who, _, stream, second, _ in unit.rows
            if who == "honest" and not second
        ]
        found: dict[tuple[int, int], list[BaselineSample]] = {}
        for stream, looks in zip(streams, self.looks("honest"), strict=True):
            found.setdefault(stream, []).extend(looks)
        return list(found.values())


def summed_up(units: Sequence[Unit]) -> dict[str, Any]:
    """Return the JSON document. Its top level has the figures of the largest model that was measured
    as usual."""
    groups: dict[tuple[str, str], list[Unit]] = {}
    for unit in units:
        groups.setdefault((unit.case["size"], unit.case["label"]), []).append(unit)
    found = [_case(Group(group)) for group in groups.values()]
    found.sort(key=lambda case: (case["parameters"], case["label"] != "usual"))
    usual = [case for case in found if case["label"] == "usual"] or found
    head = usual[-1]
    # Except the deviation, which differs between cases.
    levels = level_test(1)
    return {
        "size": head["size"],
        "false_accusation_rate": head["false_accusation_rate"],
        "cost_share": head["cost"]["share"],
        "opponents": head["opponents"],
        "statistic": CHOSEN,
        "tests": {
            "passes": {
                name: float(getattr(WORK, name))
                for name in ("accused_wrongly", "missed", "honest_fails", "idle_fails")
            },
            "levels": {
                name: {"usual": test.usual, "low": test.low, "least": test.least}
                for name, test in (("scores", levels), ("halves", halves_test(1)))
            },
            "least passing": verdict.LEAST,
        },
        "cases": found,
    }


def _case(group: Group) -> dict[str, Any]:
    streams = group.honest_by_lane()
    usual = verdict.baseline_score([[look.score for look in looks] for looks in streams])
    usually = ScoreBaseline([(looks, 1) for looks in streams])
    bound = verdict.passing(usual)
    honest = group.scores("honest", CHOSEN)
    fitted = _fitted(honest, bound / 1000)
    first = float((honest < bound / 1000).mean())
    twice = float(np.mean([_fails(row, j, bound) for row in honest for j in range(len(row))]))
    deviation = max(50, math.ceil(1e6 * float(honest.std()) / usual)) if usual else 1000
    levels = level_test(deviation)
    by_passes = max(
        SumDistribution(WORK, fitted[name]["fails"]).check(1000) / 1000 for name in ("normal", "t")
    )
    by_levels = max(
        _accused_by_level(levels, fitted[name], usual / 1000) for name in ("normal", "t")
    )
    halves = halves_test(deviation)
    by_halves, parts = _accused_by_halves(halves, usually, streams)
    courses = Courses(usual, usually, levels, halves)
    looks_at = {name: group.looks(name) for name in group.names() if name != "honest"}
    others = {
        name: courses.drawn(*_evenly(looks)) | {"first_half": courses.first_half(looks)}
        for name, looks in looks_at.items()
    }
    if "copies another" in others:
        good, copies = group.looks("honest"), group.looks("copies another")
        for often in MIXED:
            odds = np.repeat([often, 1 - often], [len(good), len(copies)])
            odds /= np.repeat([len(good), len(copies)], [len(good), len(copies)])
            name = f"honest in {often:.0%} of rounds, else copies"
            others[name] = courses.drawn([*good, *copies], odds)
    seconds = {
        name: float(np.mean([unit.seconds[name] for unit in group.units]))
        for name in ("gradient", "check")
    }
    each = 1 + seconds["check"] / seconds["gradient"]
    # After a failed first audit the whole share is audited.
    looks = 1 + first * group.share
    rounds = math.ceil(each * looks / (group.share * COST))
    return {
        "size": group.case["size"],
        "label": group.case["label"],
        "parameters": group.units[0].parameters,
        "coefficients": group.units[0].coefficients,
        "settings": {
            name: group.case[name]
            for name in (
                "hidden",
                "layers",
                "rounds",
                "first",
                "stride",
                "members",
                "share",
                "peak",
            )
        },
        "seeds": [unit.case["seed"] for unit in group.units],
        "losses": [unit.losses for unit in group.units],
        "false_accusation_rate": by_passes + by_levels + by_halves,
        "usual": usual / 1000,
        "passing": bound / 1000,
        "honest": {
            "checks": int(honest.size),
            "updates": len(honest),
            "mean": float(honest.mean()),
            "deviation": float(honest.std()),
            "lowest": float(honest.min()),
            "correlation": _correlation(honest),
            "correlation_of_checkers": _of_checkers(group),
            "failed_first_look": first,
            "failed_both": twice,
            "fitted": fitted,
            "accused_by_passes": by_passes,
            "accused_by_levels": by_levels,
            "accused_by_halves": by_halves,
            "first_half": parts,
            "level_deviation": deviation,
            "by_round": _by_round(group),
        },
        "honest_elsewhere": {k: v for k, v in others.items() if k.startswith("honest, ")},
        "opponents": {k: v for k, v in others.items() if not k.startswith("honest, ")},
        "cost": {
            "sequences_a_look": each,
            "looks_a_check": looks,
            "rounds_a_check": rounds,
            "share": each * looks / (group.share * rounds),
        },
        "statistics": _separations(group),
        "mixture": _mixture(group),
    }


def _fails(row: Sequence[float], first: int, bound: int) -> bool:
    """Whether an audit fails that begins with this sequence."""
    whole = [round(1000 * score) for score in row]
    return verdict.failed(whole[first], whole, bound)


def _correlation(honest: np.ndarray) -> float:
    """Return the correlation between the scores of two sequences of one update."""
    _, share = honest.shape
    if share < 2:
        return 0.0
    left = honest - honest.mean()
    products = (left.sum(axis=1) ** 2 - (left**2).sum(axis=1)).mean() / (share * (share - 1))
    return float(np.clip(products / left.var(), 0.0, 0.99))


def _of_checkers(group: Group) -> float:
    """Return the correlation between the scores of two auditors for one sequence."""
    first = {}
    for number, unit in enumerate(group.units):
        index = unit.statistics.index(CHOSEN)
        for who, round_number, stream, second, found in unit.rows:
            if who == "honest":
                first.setdefault((number, round_number, stream), {})[second] = found[0][index]
    pairs = np.array([(both[False], both[True]) for both in first.values() if len(both) == 2])
    return float(np.corrcoef(pairs.T)[0, 1])


def _by_round(group: Group) -> dict[str, list[float]]:
    """Return, by round, the mean honest score and that of a member that trains on other data."""
    found: dict[int, dict[str, list[float]]] = {}
    for unit in group.units:
        index = unit.statistics.index(CHOSEN)
        for who, number, _, second, scores in unit.rows:
            if not second and who in ("honest", "other data"):
                at = found.setdefault(number, {"honest": [], "other data": []})
                at[who] += [score[index] for score in scores]
    return {
        str(number): [float(np.mean(values)) for values in at.values() if values]
        for number, at in sorted(found.items())
    }


def _fitted(honest: np.ndarray, bound: float) -> dict[str, dict[str, float]]:
    """Return normal and t distributions fitted to honest scores, and how often an honest member
    fails both audits by them."""
    share = honest.shape[1]
    # The lower half and its mirror image: scores above the median accuse no member, and hide nothing.
    median = float(np.median(honest))
    lower = honest[honest <= median]
    values = np.concatenate([lower, 2 * median - lower])
    correlation = _correlation(honest)
    found = {}
    for name, fit in _fits(values).items():
        middle, scale, degrees = fit["middle"], fit["scale"], fit["degrees"] or math.inf
        grid = np.linspace(-8, 8, 321)
        density = np.exp(-(grid**2) / 2)
        density /= density.sum()
        spread = scale * math.sqrt(1 - correlation)
        shifted = (bound - middle - scale * math.sqrt(correlation) * grid) / spread
        low = np.array([_below(point, degrees) for point in shifted])
        needed = max(min(2, share), -(-share // 4)) - 1
        rest = sum(
            math.comb(share - 1, count) * low**count * (1 - low) ** (share - 1 - count)
            for count in range(needed, share)
        )
        found[name] = {
            **fit,
            "fails_first": float(density @ low),
            "fails": float(density @ (low * rest)),
        }
    return found


def _fits(values: np.ndarray) -> dict[str, dict[str, float]]:
    """Fit a normal and the likeliest t distribution to these values; 0 degrees mean a normal one."""
    found = {}
    for name, degrees in (("normal", math.inf), ("t", _likeliest_degrees(values))):
        middle, scale, likelihood = _student(values, degrees)
        found[name] = {
            "middle": middle,
            "scale": scale,
            "degrees": degrees if math.isfinite(degrees) else 0.0,
            "log_likelihood": likelihood,
        }
    return found


def _likeliest_degrees(values: np.ndarray) -> float:
    return max((3.0, 4.0, 5.0, 7.0, 10.0, 15.0, 30.0, 100.0), key=lambda d: _student(values, d)[2])


def _student(values: np.ndarray, degrees: float) -> tuple[float, float, float]:
    """Return centre, scale and log-likelihood of Student's t, by expectation maximisation."""
    middle, scale = float(values.mean()), float(values.std())
    if math.isinf(degrees):
        spread = ((values - middle) / scale) ** 2
        return (
            middle,
            scale,
            float(-len(values) * math.log(scale * math.sqrt(math.tau)) - spread.sum() / 2),
        )
    for _ in range(200):
        weights = (degrees + 1) / (degrees + ((values - middle) / scale) ** 2)
        middle = float((weights * values).sum() / weights.sum())
        scale = math.sqrt(float((weights * (values - middle) ** 2).mean()))
    constant = (
        math.lgamma((degrees + 1) / 2)
        - math.lgamma(degrees / 2)
        - math.log(scale * math.sqrt(degrees * math.pi))
    )
    spread = np.log1p(((values - middle) / scale) ** 2 / degrees)
    return middle, scale, float(len(values) * constant - (degrees + 1) / 2 * spread.sum())


def _below(point: float, degrees: float) -> float:
    """Return the distribution function of a standard normal or of Student's t."""
    if math.isinf(degrees):
        return math.erfc(-point / math.sqrt(2)) / 2
    if point > 0:
        return 1 - _below(-point, degrees)
    # ∫ (1 + x²/ν)^(-(ν+1)/2) with x = √ν · tan φ is ∫ cos^(ν-1) φ, from -π/2.
    end = math.atan(point / math.sqrt(degrees))
    angles = np.linspace(-math.pi / 2, end, 2001)
    heights = np.cos(angles) ** (degrees - 1)
    area = float(np.trapezoid(heights, angles))
    constant = math.lgamma((degrees + 1) / 2) - math.lgamma(degrees / 2)
    return area * math.exp(constant) / math.sqrt(math.pi)


def _accused_by_level(test: LevelTest, fit: dict[str, float], usual: float) -> float:
    """Return how often, per audit, the test of levels accuses an honest member, with fitted scores."""
    degrees = fit["degrees"] or math.inf
    edges = np.linspace(-1.0, 3.0, 161)
    below = [_below((edge * usual - fit["middle"]) / fit["scale"], degrees) for edge in edges]
    masses = np.diff([0.0, *below[1:-1], 1.0])
    steps = [test.step(round(1000 * edge)) for edge in (edges[:-1] + edges[1:]) / 2]
    odds: dict[int, float] = {}
    for step, mass in zip(steps, masses, strict=True):
        odds[step] = odds.get(step, 0.0) + float(mass)
    checks = 200
    return DistributionSums(test.accuse_at, test.clear_at, odds).check(checks) / checks


def _accused_by_halves(
    test: LevelTest, usually: ScoreBaseline, streams: Sequence[Sequence[BaselineSample]]
) -> tuple[float, dict[str, float]]:
    """Return the same for the tests of halves, and the honest updates' scores on first halves,
    relative to the usual ones."""
    firsts = _first_halves(usually, (look for looks in streams for look in looks))
    if not firsts.size:
        return 0.0, {}
    accused = sum(
        max(_accused_by_level(test, fit, 1.0) for fit in _fits(values).values())
        for values in (firsts, 2 - firsts)
    )
    return accused, _middle(firsts)


def _first_halves(usually: ScoreBaseline, looks: Iterable[BaselineSample]) -> np.ndarray:
    """Return the updates' scores on the first half of each of these sequences, relative to the usual
    ones."""
    found = [halves.first for look in looks if (halves := usually.halves(look))]
    return np.array(found) / 1000


def _middle(values: np.ndarray) -> dict[str, float]:
    """Return mean and deviation; empty without values."""
    return {"mean": float(values.mean()), "deviation": float(values.std())} if values.size else {}


def _evenly(
    looks: Sequence[Sequence[BaselineSample]],
) -> tuple[Sequence[Sequence[BaselineSample]], np.ndarray]:
    return looks, np.full(len(looks), 1 / len(looks))


class Courses:
    """Random courses of audits, drawn from some updates."""

    def __init__(
        self, usual: int, usually: ScoreBaseline, levels: LevelTest, halves: LevelTest
    ) -> None:
        self._usual = usual
        self._bound = verdict.passing(usual)
        self._usually = usually
        self._levels = levels
        self._halves = halves
        # `_says` returns what an audit adds to each of them.
        self._tests = (("passes", WORK), ("levels", levels), ("halves", halves), ("halves", halves))
        self._chance = np.random.default_rng(0)

    def drawn(
        self, updates: Sequence[Sequence[BaselineSample]], odds: np.ndarray
    ) -> dict[str, Any]:
        """Draw courses. `updates`: audits of each sequence of each update; `odds`: the probability
        of each update."""
        bound, share = self._bound, len(updates[0])
        scores = np.array([[look.score for look in looks] for looks in updates])
        fails = np.array([[_fails(row, j, bound) for j in range(share)] for row in scores / 1000])
        until: dict[str, list[int]] = {"passes": [], "levels": [], "halves": [], "either": []}
        steps = [
            [self._says(look, bool(failed)) for look, failed in zip(*row, strict=True)]
            for row in zip(updates, fails, strict=True)
        ]
        for _ in range(COURSES):
            found = self._course(steps, odds, share)
            for name in until:
                times = list(found.values()) if name == "either" else [found.get(name, LONGEST + 1)]
                until[name].append(min(times, default=LONGEST + 1))
        mean = float(odds @ scores.mean(axis=1)) / 1000
        medians = {name: float(np.median(times)) for name, times in until.items()}
        median = medians["either"]
        return {
            "checks_until_found": median if median <= LONGEST else None,
            "found_share": float(np.mean(np.array(until["either"]) <= WITHIN)),
            **{
                f"by_{name}": medians[name] if medians[name] <= LONGEST else None
                for name in ("passes", "levels", "halves")
            },
            "updates": len(updates),
            "mean": mean,
            "deviation": math.sqrt(float(odds @ ((scores / 1000) ** 2).mean(axis=1)) - mean**2),
            "failed_first_look": float(odds @ (scores < bound).mean(axis=1)),
            "failed_both": float(odds @ fails.mean(axis=1)),
        }

    def first_half(self, updates: Sequence[Sequence[BaselineSample]]) -> dict[str, float]:
        """Return these updates' scores on first halves, where audits pass."""
        passed = (look for row in updates for look in row if look.score >= self._bound)
        return _middle(_first_halves(self._usually, passed))

    def _says(self, look: BaselineSample, failed: bool) -> tuple[int | None, ...]:
        """Return what an audit adds to the sum of each test; None where it adds nothing. `failed`:
        whether a low first audit led to a failure."""
        passed = look.score >= self._bound
        halves = self._usually.halves(look) if passed else None
        told = passed or failed
        return (
            (WORK.failure if failed else WORK.success) if told else None,
            self._levels.step(verdict.level(look.score, self._usual)) if told else None,
            halves and self._halves.step(halves.first),
            halves and self._halves.step(halves.second),
        )

    def _course(
        self, steps: list[list[tuple[int | None, ...]]], odds: np.ndarray, share: int
    ) -> dict[str, int]:
        """Return after how many audits each test accuses; tests that do not accuse are left out."""
        updates = self._chance.choice(len(odds), LONGEST, p=odds)
        sequences = self._chance.integers(0, share, LONGEST)
        drawn = [steps[update][one] for update, one in zip(updates, sequences, strict=True)]
        found: dict[str, int] = {}
        for index, (name, test) in enumerate(self._tests):
            standing = 0
            for number, said in enumerate(drawn, 1):
                if (step := said[index]) is None:
                    continue
                standing, decision = test.moved(standing, step)
                if decision == "accused":
                    found[name] = min(number, found.get(name, number))
                    break
        return found


def _separations(group: Group) -> dict[str, dict[str, Any]]:
    """Return how well every statistic separates opponents from honest members."""
    found = {}
    for name in group.statistics():
        honest = group.scores("honest", name).ravel()
        apart = {
            who: _apart(honest, group.scores(who, name).ravel())
            for who in (*STRANGERS_WORK, *DEALT_WORK)
            if who in group.names()
        }
        strangers = [apart[who] for who in STRANGERS_WORK if who in apart]
        bound = max(verdict.LEAST / 1000, float(np.median(honest)) / 2)
        passed = [float((group.scores(who, name) >= bound).mean()) for who in apart]
        fitted = _fitted(group.scores("honest", name), bound) if honest.std() else {}
        found[name] = {
            "honest_mean": float(honest.mean()),
            "honest_deviation": float(honest.std()),
            "least_d": min(d for d, _ in strangers),
            "least_auc": min(auc for _, auc in strangers),
            # One audit, with the bound that the verdict would use.
            "honest_low": max((fit["fails_first"] for fit in fitted.values()), default=1.0),
            "strangers_pass": max(passed[: len(strangers)]),
            "apart": apart,
        }
    return found


def _mixture(group: Group) -> dict[str, float] | None:
    """Return the best linear mixture of all statistics (Fisher's), fitted to every other measured
    round and tested on those between: whether several together separate better than one alone."""
    if sum(len({row[1] for row in unit.rows}) for unit in group.units) < 6:
        # Fitted to two rounds it is meaningless.
        return None
    common = [
        name
        for name in group.units[0].statistics
        if all(name in unit.statistics for unit in group.units)
    ]
    sides: list[dict[str, np.ndarray]] = []
    for parity in (0, 1):
        side: dict[str, list[list[float]]] = {}
        for unit in group.units:
            case, chosen = unit.case, [unit.statistics.index(name) for name in common]
            for who, number, _, second, found in unit.rows:
                measured_as = (number - case["first"]) // case["stride"]
                if not second and measured_as % 2 == parity:
                    side.setdefault(who, []).extend([s[i] for i in chosen] for s in found)
        sides.append({who: np.array(rows) for who, rows in side.items()})
    results = []
    for fitted, tried in (sides, sides[::-1]):
        others = np.concatenate([fitted[who] for who in STRANGERS_WORK if who in fitted])
        spread = np.cov(fitted["honest"].T) + np.cov(others.T)
        spread += 1e-6 * np.trace(spread) * np.eye(len(spread))
        gap = fitted["honest"].mean(axis=0) - others.mean(axis=0)
        weights = np.linalg.solve(spread, gap)
        results += [
            _apart(tried["honest"] @ weights, tried[who] @ weights)
            for who in STRANGERS_WORK
            if who in tried
        ]
    return {"least_d": min(d for d, _ in results), "least_auc": min(auc for _, auc in results)}


def _apart(honest: np.ndarray, other: np.ndarray) -> tuple[float, float]:
    """Return d' and AUC."""
    spread = math.sqrt((honest.var() + other.var()) / 2)
    d = float(honest.mean() - other.mean()) / spread if spread else 0.0
    above = (honest[:, None] > other).mean() + (honest[:, None] == other).mean() / 2
    return d, float(above)


def print_summary(document: dict[str, Any]) -> None:
    """Print all cases as tables."""
    for case in document["cases"]:
        honest, cost = case["honest"], case["cost"]
        print(
            f"\n{case['size']} ({case['parameters']:,} parameters, N = {case['coefficients']:,}), "
            f"{case['label']}, seeds {case['seeds']}: {honest['checks']} honest checks"
        )
        print(
            f"  {'statistic':38} {'honest':>14} {'least d':>8} {'least AUC':>9} {'low':>7} "
            f"{'others pass':>11}"
        )
        for name, found in case["statistics"].items():
            print(
                f"  {name:38} {found['honest_mean']:7.1f} ± {found['honest_deviation']:4.1f} "
                f"{found['least_d']:8.2f} {found['least_auc']:9.4f} {found['honest_low']:7.2%} "
                f"{found['strangers_pass']:11.1%}"
            )
        mixed = case["mixture"]
        if mixed:
            print(f"  {'mixture of all':53} {mixed['least_d']:8.2f} {mixed['least_auc']:9.4f}")
        print(
            f"  usual {case['usual']:.1f}, passing {case['passing']:.1f}, lowest honest "
            f"{honest['lowest']:.1f}; failed the first look {honest['failed_first_look']:.2%}, both "
            f"{honest['failed_both']:.2%}; fitted "
            + ", ".join(
                f"{name} {fit['fails_first']:.1e} / {fit['fails']:.1e}"
                for name, fit in honest["fitted"].items()
            )
        )
        print(
            f"  false accusations a check {case['false_accusation_rate']:.1e} (passes "
            f"{honest['accused_by_passes']:.1e}, levels {honest['accused_by_levels']:.1e}, halves "
            f"{honest['accused_by_halves']:.1e}); a look "
            f"costs {cost['sequences_a_look']:.2f} sequences, one check in "
            f"{cost['rounds_a_check']} rounds is {cost['share']:.2%} of compute"
        )
        print(f"  {'':42} {'score':>13} {'first':>6} {'both':>6} {'until':>6} {'in 20':>6}")
        for name, found in (case["honest_elsewhere"] | case["opponents"]).items():
            until = found["checks_until_found"]
            print(
                f"  {name:42} {found['mean']:6.1f} ± {found['deviation']:4.1f} "
                f"{found['failed_first_look']:6.1%} {found['failed_both']:6.1%} "
                f"{'–' if until is None else format(until, '.0f'):>6} {found['found_share']:6.1%}"
            )


def plot(path: Path, units: Sequence[Unit]) -> None:
    """Plot honest scores beside some others', a panel for each size."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    sizes = list(dict.fromkeys(u.case["size"] for u in units if u.case["label"] == "usual"))
    figure, panels = pyplot.subplots(1, len(sizes), figsize=(4.5 * len(sizes), 3.5), squeeze=False)
    for panel, size in zip(panels[0], sizes, strict=True):
        case = [u for u in units if (u.case["size"], u.case["label"]) == (size, "usual")]
        group = Group(case)
        names = ("honest", "half of its share", "other data", "copies another", "random")
        scores = [group.scores(name, CHOSEN).ravel() for name in names]
        edges = np.linspace(min(map(np.min, scores)), max(map(np.max, scores)), 40)
        for name, values in zip(names, scores, strict=True):
            panel.hist(values, edges, density=True, histtype="step", label=name)
        panel.set_title(f"{case[0].parameters:,} parameters")
        panel.set_xlabel("score, deviations of chance")
    panels[0][0].legend(fontsize=7)
    figure.tight_layout()
    figure.savefig(path, dpi=120)


if __name__ == "__main__":
    main()
