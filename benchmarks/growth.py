"""How the bytes grow with the swarm: more members, fewer coefficients, at equal tokens.

    python benchmarks/growth.py --work DIR [--workers 8] [--sequences 8] [--hidden 64] [--layers 2]
        [--steps 400] [--seeds 1 2 3] [--variants …] [--known] [--json FILE] [--plot FILE]

Every member downloads every update, so with the same number of coefficients twice the members mean
twice the bytes. Here a round always has --workers times --sequences sequences, assigned to 8, 16, 32
or 64 members that send 1 to 8 coefficients of each block of 4,096. For comparison there are dense
Muon and AdamW, for which the number of members makes no difference. `received` in the JSON is what a
member downloads in a round, in updates of the others.

Swarms train with `orthogonal` and sign steps, or with a new swarm's current defaults (defaults.py);
or one member aggregates each block for all, from bits that the others send it (speakers.py); or
committees of three do, with the program's own code, while all members are honest or some of them lie
(panels.py).

`trend` is a plane through each swarm's excess loss over dense Muon's, in percent (doublings.py), and
`k_each` the factor by which k may change for each doubling of the members at the same loss: at 0.5 a
member's download does not grow with the swarm.

Runs are stored in --work and resumed, and rates are found, as in frontier.py.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from defaults import OPTIMIZERS
from dense import AdamW, Muon
from distro_node.protocol.wire.manifest import OptimizerSpec
from doublings import trend
from frontier import follow, speaking
from panels import Panels
from recipes import Recipe
from speakers import Speakers
from text_runs import (
    MUON,
    TextBench,
    Tried,
    chosen_ways,
    document,
    parsed,
    plot_over_bytes,
    report,
)

_KINDS = {"signs": "", "default": ", the default now"}


@dataclass(frozen=True)
class Swarm:
    """A number of members that train with one of `OPTIMIZERS`."""

    members: int
    top_k: int
    kind: str

    @property
    def line(self) -> str:
        """Its line in the plot, shared with swarms that send other numbers of coefficients."""
        return f"{self.members} members{_KINDS[self.kind]}"

    @property
    def optimizer(self) -> OptimizerSpec:
        """All of its settings."""
        return replace(OPTIMIZERS[self.kind], top_k=self.top_k)


@dataclass(frozen=True)
class Speaking:
    """Members, one of them the aggregator of each block."""

    members: int
    rotation_steps: int

    @property
    def line(self) -> str:
        """Its line in the plot."""
        return f"{self.members} members, one speaks for all"

    @property
    def recipe(self) -> Recipe:
        """All of its choices."""
        return speaking(Speakers(rotation_steps=self.rotation_steps))


@dataclass(frozen=True)
class Panelled:
    """A number of members, of which committees aggregate the sections, while some of them lie."""

    members: int
    rotation_steps: int
    term: int
    liars: int = 0

    @property
    def line(self) -> str:
        """Its line in the plot."""
        return f"{self.members} members, panels" + (", liars" if self.liars else "")

    @property
    def recipe(self) -> Recipe:
        """All of its choices."""
        return speaking(
            Panels(rotation_steps=self.rotation_steps, term=self.term, liars=self.liars)
        )


_DENSE = {MUON: Muon(), "dense AdamW": AdamW()}
SWARMS = {
    f"{members} members, k = {top_k}{suffix}": Swarm(members, top_k, kind)
    for kind, suffix in _KINDS.items()
    for members in (8, 16, 32, 64)
    for top_k in (8, 4, 2, 1)
}
SPEAKING = {
    f"{members} members, one speaks for all by 1 bit of {rotation_steps}": Speaking(
        members, rotation_steps
    )
    for members in (8, 16, 32, 64)
    for rotation_steps in (2, 4, 8, 16)
}
PANELLED = {
    f"{members} members, panels by 1 bit of {rotation_steps}{words}{longer}": Panelled(
        members, rotation_steps, term, members // part if part else 0
    )
    for members in (8, 16, 32, 64)
    for rotation_steps in (2, 4, 8, 16)
    for part, words in ((0, ""), (8, ", an eighth lie"), (4, ", a quarter lie"))
    for term, longer in ((10, ""), (40, ", terms of 40"))
}
_SHARED: dict[str, Swarm | Speaking | Panelled] = {**SWARMS, **SPEAKING, **PANELLED}
WAYS = [*_DENSE, *_SHARED]
_FIRST = next(iter(SWARMS))


class Growth(TextBench):
    """The runs of one size of model."""

    def default_rate(self, way: str) -> float:
        """Return the rate at which the search starts."""
        return 4e-3 if way in _DENSE else 8e-3

    def train(self, way: str, rate: float, seed: int) -> Tried:
        """Make one run."""
        if way in _DENSE:
            return self.trained(way, rate, self.trial(seed), _DENSE[way])
        swarm = _SHARED[way]
        sequences = self.options.workers * self.options.sequences // swarm.members
        trial = self.trial(seed, workers=swarm.members, sequences=sequences)
        if isinstance(swarm, Swarm):
            return self.trained(way, rate, trial, swarm.optimizer)
        return follow(self, way, rate, trial, swarm.recipe)


def received(way: str, sent: float) -> float | None:
    """Return what a member downloads in a round; None for dense training, which can be done in many
    ways."""
    return sent * (_SHARED[way].members - 1) if way in _SHARED else None


def trend_of(ways: dict[str, dict[str, Any]], kind: str) -> dict[str, Any]:
    """Return the plane through the excess losses over Muon's of swarms that train in this way; empty
    where too little is measured."""
    distances = []
    for way, found in ways.items():
        swarm = SWARMS.get(way)
        if swarm is not None and swarm.kind == kind and "above_muon" in found:
            place = {"members": float(swarm.members), "k": float(swarm.top_k)}
            distances.append((place, found["above_muon"]["percent"]))
    return trend(distances, "members")


def plot(file: Path, written: dict[str, Any]) -> None:
    """Plot loss over the bytes that a member downloads, a line for each number of members."""
    levels, lines = {}, defaultdict(list)
    for way, found in written["ways"].items():
        if found["received"] is None:
            levels[way] = found["loss"]
        else:
            lines[_SHARED[way].line].append((found["received"], found["loss"]))
    plot_over_bytes(file, lines, "bytes that a member downloads a round", levels)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the benchmark."""
    options = parsed("How bytes grow with the swarm.", WAYS, arguments, sequences=8)
    bench = Growth(options)
    ways = chosen_ways(bench, WAYS)
    for members in sorted({_SHARED[way].members for way in ways if way in _SHARED}):
        if options.workers * options.sequences % members:
            sys.exit(
                f"--workers times --sequences has to be a multiple of {members}, the members of a swarm"
            )
    swept = bench.sweep(ways)
    written = document(
        swept, bench.settings, {way: {"above_muon": MUON, "beside": _FIRST} for way in WAYS}
    )
    for way, found in written["ways"].items():
        found["received"] = received(way, found["bytes_a_round"])
    written |= trend_of(written["ways"], "signs")
    written["now"] = trend_of(written["ways"], "default")
    report(options, written)
    if options.plot:
        plot(options.plot, written)


if __name__ == "__main__":
    main()
