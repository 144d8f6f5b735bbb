"""Poisoning: what a quarter of all compute, hostile and clever, does to learning where work is audited.

    python benchmarks/poison.py [--rounds 300] [--members 12] [--share 2] [--rate 8e-3] [--hidden 64]
        [--layers 2] [--every 5] [--optimizer signs] [--seeds 0 1] [--ways …] [--guards …] [--work DIR]
        [--json FILE] [--plot FILE.png]

Every fourth member is hostile and does its assigned work, so that it knows what honest updates are
like; what it sends is something else. It sees all honest updates first, and knows which of its
coefficients no other member sends. `WAYS` lists the attacks. Each one is compared with a swarm
without the hostile members (`absent`) and with the same guard: the outlier filter alone (`audit`),
or the outlier filter, audits and the update weight of members without votes (`checks`), as in the
program. `honest` is what they would have contributed. In two ways hostile members lead as well
(`leading.py`), with the rule by which the others vote for complete records alone, and without it.

With `checks` the program's own rules decide who audits whom, what follows from a low score, who
votes and whose updates count; and an audit is computed as a node computes it, on the assigned
sequence and the parameters of its round. All members are present from the beginning, and the founder
alone has votes then.

--optimizer default trains as swarms without audits do unless their founder chooses otherwise, with
scaled steps; `signs` as those with audits do. Audits say little about the default in a model as
small as the usual one here: with the guard `checks` it needs --hidden 128 --layers 4.

For the simulated members see training.py. The model has 0.14M parameters and learns the standard
library's sources. --work stores each run when finished: the same command resumes there.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import sysconfig
from collections.abc import Callable, Collection, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import torch
from defaults import OPTIMIZERS
from distro_node.crypto.hashing import content_id
from distro_node.crypto.identity import PeerId
from distro_node.node.trainer.audit_score import changes, score_update
from distro_node.node.trainer.optimizer.exact_step import apply_step
from distro_node.node.trainer.optimizer.optimizer import LocalOptimizer
from distro_node.protocol.audit.disputes import REAUDIT_ROUNDS
from distro_node.protocol.codec.layout import UpdateLayout
from distro_node.protocol.codec.outlier_filter import contradicted
from distro_node.protocol.codec.schedule import learning_rate
from distro_node.protocol.codec.update import DecodedUpdate, update_layout
from distro_node.protocol.sampling.update_weights import audited_weights, once
from leading import Leading, Named
from outlier_filter import signs_said
from runs import append_run, finite, read_runs
from training import Setting, Trial, default_schedule, read_corpus
from votes import Agent, Swarm

Guard = Literal["audit", "checks"]
HOSTILE = 4
"""One in this number of members is hostile."""

Update = DecodedUpdate
Poison = Callable[["Field", Update], Update]
"""What a hostile member sends instead of its own honest update."""


@dataclass
class Field:
    """What a hostile member knows when it sends, as the last of a round."""

    layout: UpdateLayout
    honest: list[Update]
    chance: np.random.Generator
    turn_of: int = 0
    """The number of the sending hostile member, from 0."""

    def heard(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the sum of the honest signs of each coefficient of a tensor, and the number of
        members that send it."""
        tensor = self.layout.tensors[index]
        return signs_said(tensor.blocks, tensor.elements, index, self.honest)

    def turn(self, own: Update, chosen: Callable[[int, np.ndarray], np.ndarray]) -> Update:
        """Return the own update with the signs flipped that `chosen` selects: (tensor, number of
        others that send each coefficient of the update) → mask."""
        signs = []
        for index, (positions, sign) in enumerate(zip(own.positions, own.signs, strict=True)):
            _, uses = self.heard(index)
            others = np.take_along_axis(uses, positions.astype(np.int64), axis=1)
            signs.append(np.where(chosen(index, others), -sign, sign).astype(np.int8))
        return Update(own.positions, signs)


def opposite(now: Field, own: Update) -> Update:
    """Flip all signs."""
    return Update(own.positions, [-signs for signs in own.signs])


def against_the_sum(now: Field, own: Update) -> Update:
    """Send the most used coefficients, with the opposite of the honest sum's sign."""
    positions, signs = [], []
    for index, tensor in enumerate(now.layout.tensors):
        sums, uses = now.heard(index)
        worth = 100.0 * np.abs(sums) + 10.0 * uses + now.chance.random(sums.shape)
        best = np.sort(np.argsort(-worth, axis=1)[:, : tensor.top_k], axis=1)
        said = np.take_along_axis(sums, best, axis=1)
        positions.append(best.astype(np.int32))
        signs.append(np.where(said > 0, -1, 1).astype(np.int8))
    return Update(positions, signs)


def alone(now: Field, own: Update) -> Update:
    """Agree on coefficients that others send, and flip the sign of all that no other sends."""
    return now.turn(own, lambda _, others: others == 0)


def sometimes_alone(now: Field, own: Update) -> Update:
    """The same, for one in four of the coefficients that no other sends."""
    return now.turn(own, lambda _, others: (others == 0) & (now.chance.random(others.shape) < 0.25))


def a_tenth(now: Field, own: Update) -> Update:
    """Flip a tenth of all signs."""
    return now.turn(own, lambda _, others: now.chance.random(others.shape) < 0.1)


def the_head(now: Field, own: Update) -> Update:
    """Flip all signs of the output matrix."""
    names = [tensor.name for tensor in now.layout.tensors]
    return now.turn(own, lambda index, others: np.full(others.shape, "lm_head" in names[index]))


def all_for_one(now: Field, own: Update) -> Update:
    """Send the lowest frequencies of each block, all positive: together they push one corner of it,
    and every hostile member sends the same in every round."""
    return _low_frequencies(now, 0)


def each_its_own(now: Field, own: Update) -> Update:
    """The same, but each hostile member takes the next lowest, so that no two send the same."""
    return _low_frequencies(now, now.turn_of)


def _low_frequencies(now: Field, lot: int) -> Update:
    positions, signs = [], []
    for tensor in now.layout.tensors:
        row, column = np.divmod(np.arange(tensor.elements), tensor.block_columns)
        order = np.argsort(row + column, kind="stable")
        # A small block has too few, and its lots overlap.
        first = lot * tensor.top_k % (tensor.elements - tensor.top_k + 1)
        lowest = np.sort(order[first : first + tensor.top_k])
        positions.append(np.tile(lowest.astype(np.int32), (tensor.blocks, 1)))
        signs.append(np.ones((tensor.blocks, tensor.top_k), dtype=np.int8))
    return Update(positions, signs)


@dataclass(frozen=True)
class Way:
    """One way to poison."""

    says: Poison | None
    """None: an honest member's update."""
    once_it_votes: bool = False
    """Whether it is honest until it has votes."""
    lies: bool = False
    """Whether its audits report that honest members do nothing, and that hostile ones work."""
    leads: bool = False
    """Whether it leaves out what it can of the records that it leads."""
    asked: bool = True
    """Whether the others vote for complete records alone."""
    present: bool = True


WAYS: dict[str, Way] = {
    "absent": Way(None, present=False),
    "honest": Way(None),
    "opposite": Way(opposite),
    "against the sum": Way(against_the_sum),
    "lies where others are silent": Way(alone),
    "in one of four such places": Way(sometimes_alone),
    "the same, once it votes": Way(alone, once_it_votes=True),
    "the same, and false looks": Way(alone, lies=True),
    "a tenth of the signs": Way(a_tenth),
    "the head": Way(the_head),
    "all for one parameter": Way(all_for_one),
    "the same, each with its own": Way(each_its_own),
    "all for one, and it leads": Way(all_for_one, leads=True),
    "the same, unasked": Way(all_for_one, leads=True, asked=False),
}


@dataclass
class Run:
    """The outcome of one attack against one guard."""

    way: str
    guard: Guard
    seed: int
    loss: float
    curve: list[tuple[int, float]]
    lies_in_the_step: float
    """Fraction of all false updates sent that entered the step."""
    honest_in_the_step: float
    found: list[int]
    """Rounds in which each hostile member was first left out of the step."""
    accused: list[int]
    """The same for honest ones."""
    votes: float
    """The hostile fraction of all votes at the end."""
    settings: dict[str, Any] = field(default_factory=dict)
    led: list[float] = field(default_factory=list)
    """Where hostile members lead: the fraction of records that they wrote, and the hostile fraction
    of the updates in these, and in those of others."""


@dataclass
class Past:
    """The inputs of a round."""

    parameters: list[torch.Tensor]
    batches: dict[PeerId, np.ndarray]
    updates: dict[PeerId, Update]


class Members(Swarm):
    """Audits and their consequences by the program's rules, with real audits."""

    def __init__(self, poisoning: Poisoning, agents: list[Agent], every: int) -> None:
        super().__init__(poisoning.setting.seed, agents, every=every)
        self.members = {agent.peer: agent for agent in agents}
        self._waiting = []
        self._poisoning = poisoning

    def _admit(self) -> None:
        """Admit no peer: all members are present."""

    def _show_the_door(self) -> None:
        for peer in list(self.members):
            if self.accounts[peer].dismissed:
                del self.members[peer]

    def _score(self, reauditor: Agent, peer: PeerId, round_: int, sequence: int) -> int:
        if reauditor.lies:
            return super()._score(reauditor, peer, round_, sequence)
        return self._poisoning.look(reauditor.peer, peer, round_, sequence)


class Poisoning:
    """One run."""

    def __init__(self, way: Way, guard: Guard, trial: Trial, options: argparse.Namespace) -> None:
        self.setting = trial.setting
        self._way, self._guard, self._trial = way, guard, trial
        self._spec = OPTIMIZERS[options.optimizer]
        self._layout = update_layout(trial.table, self._spec.chunk, self._spec.top_k)
        self._parameters = [parameter.data for parameter in trial.parameters]
        self._past: dict[int, Past] = {}
        self._chance = np.random.default_rng(trial.setting.seed + 1)
        self._lanes = {
            PeerId(content_id(b"member %d" % number)): number for number in range(options.members)
        }
        # The founder is honest.
        self.hostile = {
            peer for peer, number in self._lanes.items() if number % HOSTILE == HOSTILE - 1
        }
        there = [peer for peer in self._lanes if way.present or peer not in self.hostile]
        self._workers = {
            peer: LocalOptimizer(self._layout, trial.parameters, self._spec) for peer in there
        }
        self.members = Members(
            self,
            [
                Agent(
                    peer,
                    options.share,
                    hostile=peer in self.hostile,
                    lies=way.lies and peer in self.hostile,
                )
                for peer in there
            ],
            options.every,
        )
        self.out: dict[PeerId, int] = {}
        """Members that are out of the step, and since which round."""
        self.said = {True: [0, 0], False: [0, 0]}
        """False and honest updates: how many were sent, and how many were added up."""
        self.records: list[Named] = []
        """The records, where hostile members lead."""
        self._leading = (
            Leading(
                there,
                self.hostile,
                np.random.default_rng(trial.setting.seed + 2),
                asked=way.asked,
            )
            if way.leads
            else None
        )

    def round(self, number: int, rate: float) -> None:
        """Run one round, counted from 0."""
        every = np.split(self._trial.next_batch(), len(self._lanes))
        batches = {peer: every[self._lanes[peer]] for peer in self._workers}
        there = [peer for peer in self._workers if peer in self.members.members]
        updates: dict[PeerId, Update] = {}
        for peer in there:
            worker = self._workers[peer]
            worker.accumulate(self._trial.gradients(batches[peer]))
            taken = worker.take(number)
            updates[peer] = Update(taken.positions, taken.signs)
        honest = [update for peer, update in updates.items() if peer not in self.hostile]
        now = Field(self._layout, honest, self._chance)
        lied = set()
        for turn, peer in enumerate(sorted(self.hostile & updates.keys())):
            now.turn_of = turn
            if self._lies(peer):
                assert self._way.says is not None  # it flips nothing otherwise
                updates[peer] = self._way.says(now, updates[peer])
                lied.add(peer)
        if self._guard == "checks":
            self._past[number] = Past([p.clone() for p in self._parameters], batches, updates)
            self._past.pop(number - 3 * REAUDIT_ROUNDS, None)
        named = self._named(number, updates)
        for peer in updates:
            settle = self._workers[peer].forget if peer in named else self._workers[peer].refund
            settle(number)
        counts = self._counts(number, updates)
        in_step = [peer for peer in updates if counts[peer] and peer in named]
        sent = [updates[peer] for peer in in_step]
        left_out = (
            contradicted(self._layout, sent, number) if self._spec.outlier_filter else set[int]()
        )
        heard = [peer for index, peer in enumerate(in_step) if index not in left_out]
        for peer in updates:
            self.said[peer in lied][0] += 1
            self.said[peer in lied][1] += peer in heard
        step = [updates[peer] for peer in heard]
        for worker in self._workers.values():
            worker.yield_to(step)
        if self._guard == "checks":
            # Before the step: audits use the parameters from which the updates were computed.
            self.members.step()
        often = [counts[peer] for peer in heard]
        spec = self._spec
        apply_step(
            self._parameters, self._layout, step, rate, spec.weight_decay, often, step=spec.step
        )

    def look(self, reauditor: PeerId, peer: PeerId, round_: int, sequence: int) -> int:
        """Return a member's audit score of one sequence, in thousandths, computed as a node does."""
        past = self._past[round_]
        new = [parameter.clone() for parameter in self._parameters]
        self._put(past.parameters)
        one = past.batches[peer][sequence : sequence + 1]
        dealt = [gradient.clone() for gradient in self._trial.gradients(one)]
        own = [gradient.clone() for gradient in self._trial.gradients(past.batches[reauditor])]
        self._put(new)
        share = len(past.batches[peer])
        worker = self._workers[reauditor]
        with torch.no_grad():
            seen = changes([dealt], own, share, self._layout, self._spec, worker)
            return score_update(past.updates[peer], (table for (table,) in seen)).thousandths

    def _named(self, number: int, updates: dict[PeerId, Update]) -> Collection[PeerId]:
        """Return the members whose update the round's record names."""
        if self._leading is None:
            return updates.keys()
        record = self._leading.record(number + 1)
        self.records.append(record)
        return record.peers

    def led(self) -> list[float]:
        """Return the fraction of records that hostile members led, and the hostile fraction of the
        updates in these and in the others; nothing where they lead none."""
        theirs, others = (
            [
                len(record.peers & self.hostile) / len(record.peers)
                for record in self.records
                if record.hostile is hostile
            ]
            for hostile in (True, False)
        )
        if not theirs or not others:
            return []
        share = len(theirs) / len(self.records)
        return [share, statistics.fmean(theirs), statistics.fmean(others)]

    def _lies(self, peer: PeerId) -> bool:
        way = self._way
        votes = self.members.accounts.votes
        return way.says is not None and (not way.once_it_votes or peer in votes)

    def _counts(self, number: int, updates: dict[PeerId, Update]) -> dict[PeerId, int]:
        """Return the weight of each update."""
        counts = once(updates)
        if self._guard == "audit":
            return counts
        accounts = self.members.accounts
        out = accounts.excluded()
        for peer in out | (self._workers.keys() - self.members.members.keys()):
            self.out.setdefault(peer, number)
        return audited_weights(counts, accounts.votes, out, b"%d" % number)

    def _put(self, values: Sequence[torch.Tensor]) -> None:
        for parameter, value in zip(self._parameters, values, strict=True):
            parameter.copy_(value)


def train(name: str, guard: Guard, trial: Trial, options: argparse.Namespace) -> Run:
    """Train one run to its end."""
    poisoning = Poisoning(WAYS[name], guard, trial, options)
    schedule = default_schedule(options.rate, options.rounds)
    curve = [(0, trial.evaluate())]
    for number in range(options.rounds):
        poisoning.round(number, learning_rate(schedule, number + 1))
        if (number + 1) % max(1, options.rounds // 10) == 0:
            curve.append((number + 1, trial.evaluate()))
    votes = poisoning.members.accounts.votes
    hostile = sum(votes.get(peer, 0) for peer in poisoning.hostile)
    out = poisoning.out
    return Run(
        way=name,
        guard=guard,
        seed=trial.setting.seed,
        loss=finite(curve[-1][1]),
        curve=curve,
        lies_in_the_step=_part(poisoning.said[True]),
        honest_in_the_step=_part(poisoning.said[False]),
        found=sorted(out[peer] for peer in poisoning.hostile & out.keys()),
        accused=sorted(out[peer] for peer in out.keys() - poisoning.hostile),
        votes=hostile / sum(votes.values()),
        led=poisoning.led(),
    )


def _part(said: list[int]) -> float:
    return said[1] / said[0] if said[0] else 0.0


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=300)
    parser.add_argument("--members", type=int, default=12, help="of which a quarter is hostile")
    parser.add_argument("--share", type=int, default=2, help="a member's sequences each round")
    parser.add_argument("--rate", type=float, default=8e-3)
    parser.add_argument("--hidden", type=int, default=64, help="a multiple of 64")
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--every", type=int, default=5, help="rounds between a member's looks")
    parser.add_argument("--optimizer", choices=OPTIMIZERS, default="signs")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1])
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS))
    parser.add_argument("--guards", nargs="+", choices=get_args(Guard), default=get_args(Guard))
    parser.add_argument("--work", type=Path, metavar="DIR")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures here, too")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="losses on the way, with checks")
    options = parser.parse_args()
    if options.members % HOSTILE:
        parser.error(f"--members has to be a multiple of {HOSTILE}: every fourth is hostile")
    torch.set_num_threads(1)
    runs = all_runs(options)
    figures = summed_up(runs, options)
    show(figures)
    if options.json:
        options.json.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    if options.plot:
        plot(runs, options.plot)


def settings_of(options: argparse.Namespace) -> dict[str, Any]:
    """Return what a run depends on, besides its attack, guard and seed."""
    named = ("rounds", "members", "share", "rate", "hidden", "layers", "every")
    settings = {name: getattr(options, name) for name in named}
    # Finds runs from before there was a choice.
    return settings if options.optimizer == "signs" else settings | {"optimizer": options.optimizer}


def all_runs(options: argparse.Namespace) -> list[Run]:
    """Return the requested runs; those stored in --work are not repeated."""
    known: list[Run] = []
    if options.work:
        options.work.mkdir(parents=True, exist_ok=True)
        known = read_runs(options.work / "runs.jsonl", Run)
    text, heldout = read_corpus([Path(sysconfig.get_paths()["stdlib"])], [])
    settings, runs = settings_of(options), []
    for seed in options.seeds:
        setting = Setting(
            workers=options.members,
            sequences=options.share,
            steps=options.rounds,
            hidden=options.hidden,
            layers=options.layers,
            seed=seed,
            device="cpu",
        )
        for guard in options.guards:
            for way in options.ways:
                wanted = (way, guard, seed, settings)
                run = next(
                    (r for r in known if (r.way, r.guard, r.seed, r.settings) == wanted), None
                )
                if run is None:
                    run = train(way, guard, Trial(setting, text, heldout), options)
                    run.settings = settings
                    if options.work:
                        append_run(options.work / "runs.jsonl", run)
                    print(f"seed {seed}, {guard}, {way}: {run.loss:.4f}", file=sys.stderr)
                runs.append(run)
    return runs


def summed_up(runs: Sequence[Run], options: argparse.Namespace) -> dict[str, Any]:
    """Return the figures."""
    figures: dict[str, Any] = settings_of(options) | {"seeds": options.seeds, "guards": {}}
    for guard in options.guards:
        mine = [run for run in runs if run.guard == guard]
        beside = {run.seed: run.loss for run in mine if run.way == "absent"}
        figures["guards"][guard] = {
            way: _of_way([run for run in mine if run.way == way], beside) for way in options.ways
        }
    return figures


def _of_way(runs: Sequence[Run], beside: dict[int, float]) -> dict[str, Any]:
    above = [run.loss / beside[run.seed] - 1 for run in runs if run.seed in beside]
    return {
        "loss": statistics.fmean(run.loss for run in runs),
        "above_absent": statistics.fmean(above) if above else None,
        "above_absent_by_seed": above,
        "lies_in_the_step": statistics.fmean(run.lies_in_the_step for run in runs),
        "honest_in_the_step": statistics.fmean(run.honest_in_the_step for run in runs),
        "found": [run.found for run in runs],
        "honest_out": sum(len(run.accused) for run in runs),
        "votes_last": max(run.votes for run in runs),
        "led": [run.led for run in runs],
        "runs": [
            {key: value for key, value in asdict(run).items() if key in ("seed", "loss", "curve")}
            for run in runs
        ],
    }


def show(figures: dict[str, Any]) -> None:
    """Print a table."""
    print(
        f"{'guard':8}{'a quarter':32}{'loss':>8}{'above':>9}{'lies in':>9}{'honest in':>11}"
        f"{'out':>6}{'honest out':>12}{'votes':>8}"
    )
    for guard, ways in figures["guards"].items():
        for way, row in ways.items():
            above = "" if row["above_absent"] is None else f"{row['above_absent']:+.1%}"
            out = sum(len(found) for found in row["found"]) / len(row["found"])
            print(
                f"{guard:8}{way:32}{row['loss']:8.4f}{above:>9}{row['lies_in_the_step']:9.0%}"
                f"{row['honest_in_the_step']:11.0%}{out:6.1f}{row['honest_out']:12}"
                f"{row['votes_last']:8.1%}"
            )


def plot(runs: Sequence[Run], file: Path) -> None:
    """Plot the held-out loss over the rounds with `checks`, the mean over seeds."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(8, 5))
    ways = dict.fromkeys(run.way for run in runs if run.guard == "checks")
    for way in ways:
        curves = [run.curve[1:] for run in runs if run.way == way and run.guard == "checks"]
        means = [statistics.fmean(curve[i][1] for curve in curves) for i in range(len(curves[0]))]
        axes.plot([number for number, _ in curves[0]], means, label=way)
    axes.set_xlabel("rounds")
    axes.set_ylabel("held-out loss, nats a byte")
    axes.legend(title="a quarter of the members")
    figure.tight_layout()
    figure.savefig(file, dpi=120)


if __name__ == "__main__":
    main()
