"""A swarm with audits for `checks.py`: honest members, opponents, and what auditors compute.

Members train as in training.py, and only their updates move the parameters. An opponent is a shadow
of the first member: it is assigned the same sequences, has its own momentum and makes an update in
every round in its own way, which moves nothing. In measured rounds every assigned sequence's
gradient is computed separately, as seen by auditors with other second moments than the audited
member's, and every update is compared with each of the sequences from which it should be made, by
several statistics (`STATISTICS`).
"""

from __future__ import annotations

import functools
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

import numpy as np
import torch
from distro_node.node.trainer.audit_score import at_positions, coefficients
from distro_node.node.trainer.optimizer.exact_step import apply_step
from distro_node.node.trainer.optimizer.optimizer import LocalOptimizer
from distro_node.protocol.audit.sign_score import agreement, whole_weights
from distro_node.protocol.codec.schedule import learning_rate
from distro_node.protocol.codec.update import DecodedUpdate, UpdateLayout, update_layout
from distro_node.protocol.wire.manifest import OptimizerSpec, Preconditioner, Step
from training import SEQUENCE, Setting, Trial, default_schedule, windows

LATER = (1, 5, 20)
"""Delays in rounds of an audit by a member that has kept no parameters."""
POISONED = 0.05
"""The share of all blocks that a poisoning opponent flips, spread over the model."""

BEGINNING = "change of own gradient by the first half"
"""Compared with the same of the whole sequence (`verdict.Halves`)."""

Gradients = list[torch.Tensor]
Dense = list[torch.Tensor]
"""Coefficients of all parameters, (blocks, elements) for each tensor."""


USUAL: dict[str, Any] = {
    "share": 4,
    "top_k": 8,
    "preconditioner": "orthogonal",
    "smoothing": 0.0,
    "momentum": 0.95,
    "step": "sign",
    "overlap": False,
}
"""The options of a case unless it sets others."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """What is trained, and how."""

    size: str
    seed: int
    hidden: int
    layers: int
    rounds: int
    """Number of training rounds."""
    first: int
    """The first measured round."""
    stride: int
    """Rounds between measurements."""
    members: int = 8
    share: int = 4
    """Number of sequences assigned to a member in a round."""
    top_k: int = 8
    preconditioner: Preconditioner = "orthogonal"
    smoothing: float = 0.0
    momentum: float = 0.95
    step: Step = "sign"
    overlap: bool = False
    peak: float = 4e-3
    opponents: Literal["all", "few"] = "all"
    """Whether to include all kinds of opponents, or those that take the least time."""

    @property
    def label(self) -> str:
        """The options that differ from the usual ones, in words."""
        unlike = [
            name if value is True else f"{name} {value}"
            for name, value in asdict(self).items()
            if name in USUAL and value != USUAL[name]
        ]
        return ", ".join(unlike) or "usual"


@dataclass
class Unit:
    """The measurements of one case: a line of the file of runs."""

    case: dict[str, Any]
    parameters: int
    coefficients: int
    """Coefficients of an update: N."""
    rows: list[list[Any]]
    """[subject, round, lane, by a second auditor, [for each sequence: a score by each statistic]]."""
    statistics: list[str]
    losses: list[list[float]]
    """Rounds and held-out loss, at the beginning and at the end."""
    seconds: dict[str, float] = field(default_factory=dict)
    """CPU time of a sequence's gradient, and of everything else in an audit."""


@dataclass
class Sight:
    """What an auditor compares with an update: dense coefficients by their source."""

    dealt: Dense
    """Of the assigned sequence."""
    plain: Dense
    """Of the same, only divided by its root, without orthogonal blocks."""
    mixed: Dense
    """The change in the auditor's own gradient if one sequence of its share were replaced by it."""
    beginning: Dense
    """The same for the sequence's first half."""


@dataclass
class Controls:
    """An auditor's controls, none assigned to the audited member."""

    stranger: Dense
    """Of a sequence that was assigned to no member."""
    own: Dense
    """Of the auditor's own share."""
    plain: Dense
    """Of the same, without orthogonal blocks."""
    momentum: Dense
    """The auditor's momentum, with its own gradient and before its update is taken out."""
    others: Dense
    """The sums of the signs of all other members' updates."""


Statistic = Callable[[dict[str, np.ndarray], np.ndarray, UpdateLayout], float]


def _score(signs: np.ndarray, weights: np.ndarray) -> float:
    return agreement(signs, whole_weights(weights)).score


def remainder(values: np.ndarray, controls: Sequence[np.ndarray]) -> np.ndarray:
    """Return the residual of the values after a least-squares fit by the controls."""
    if not controls:
        return values
    table = np.stack(controls, axis=1)
    shares, *_ = np.linalg.lstsq(table, values, rcond=1e-9)
    return values - table @ shares


def _without(target: str, *controls: str) -> Statistic:
    """Return a statistic from the weights of one view, less their fit by the controls."""

    def score(view: dict[str, np.ndarray], signs: np.ndarray, layout: UpdateLayout) -> float:
        return _score(signs, remainder(view[target], [view[name] for name in controls]))

    return score


def _copied(view: dict[str, np.ndarray], signs: np.ndarray, layout: UpdateLayout) -> float:
    """Score on the assumption that one of the others has copied the audited update."""
    return _score(signs, remainder(view["dealt"], [view["others"] + signs]))


def _by_tensor(
    view: dict[str, np.ndarray], layout: UpdateLayout, *controls: str
) -> list[np.ndarray]:
    """Return the weights of each tensor, less their fit by the controls within this tensor."""
    ends = np.cumsum([tensor.coefficients for tensor in layout.tensors])[:-1]
    split = {name: np.split(values, ends) for name, values in view.items()}
    return [
        remainder(split["dealt"][index], [split[name][index] for name in controls])
        for index in range(len(layout.tensors))
    ]


def _others_by_tensor(
    view: dict[str, np.ndarray], signs: np.ndarray, layout: UpdateLayout
) -> float:
    """Score with a separate weight of the others' signs for each tensor."""
    return _score(signs, np.concatenate(_by_tensor(view, layout, "others")))


def _least_tensor(view: dict[str, np.ndarray], signs: np.ndarray, layout: UpdateLayout) -> float:
    """Return the smallest score of a tensor that sends 64 coefficients or more."""
    ends = np.cumsum([tensor.coefficients for tensor in layout.tensors])[:-1]
    parts = zip(np.split(signs, ends), _by_tensor(view, layout, "others"), strict=True)
    return min((_score(s, w) for s, w in parts if len(s) >= 64), default=0.0)


def _least_plain_tensor(
    view: dict[str, np.ndarray], signs: np.ndarray, layout: UpdateLayout
) -> float:
    """Return the same without controls."""
    ends = np.cumsum([tensor.coefficients for tensor in layout.tensors])[:-1]
    parts = zip(np.split(signs, ends), np.split(view["dealt"], ends), strict=True)
    return min((_score(s, w) for s, w in parts if len(s) >= 64), default=0.0)


def _by_block(view: dict[str, np.ndarray], signs: np.ndarray, layout: UpdateLayout) -> float:
    """Score with equal influence of every block, whatever the size of its coefficients."""
    ends = np.cumsum([tensor.coefficients for tensor in layout.tensors])[:-1]
    weights = []
    for tensor, part in zip(layout.tensors, np.split(view["dealt"], ends), strict=True):
        blocks = part.reshape(tensor.blocks, tensor.top_k)
        size = np.sqrt((blocks**2).sum(axis=1, keepdims=True))
        weights.append((blocks / np.maximum(size, 1e-12)).ravel())
    return _score(signs, np.concatenate(weights))


STATISTICS: dict[str, Statistic] = {
    "plain sum of signs": lambda view, signs, _: _score(signs, np.sign(view["dealt"])),
    "root of magnitude": lambda view, signs, _: _score(
        signs, np.sign(view["dealt"]) * np.sqrt(np.abs(view["dealt"]))
    ),
    "magnitude": _without("dealt"),
    "magnitude, even blocks": _by_block,
    "less a stranger's score": lambda view, signs, _: (
        (_score(signs, view["dealt"]) - _score(signs, view["stranger"])) / np.sqrt(2)
    ),
    "less own gradient": _without("dealt", "own"),
    "less others' signs": _without("dealt", "others"),
    "less others' signs, by tensor": _others_by_tensor,
    "less others' signs, one a copy": _copied,
    "less own momentum": _without("dealt", "momentum"),
    "less others' signs and own gradient": _without("dealt", "own", "others"),
    "less others' signs and a stranger": _without("dealt", "others", "stranger"),
    "less all three": _without("dealt", "own", "others", "momentum"),
    "less all three and a stranger": _without("dealt", "own", "others", "momentum", "stranger"),
    "change of own gradient": _without("mixed"),
    BEGINNING: _without("beginning"),
    "change, less all three": _without("mixed", "own", "others", "momentum"),
    "rms, magnitude": _without("plain"),
    "rms, less all three": _without("plain", "own plain", "others", "momentum"),
    "change, less others' signs": _without("mixed", "others"),
    "least tensor, others by tensor": _least_tensor,
    "least tensor, plain": _least_plain_tensor,
    "control: a stranger": _without("stranger"),
    "control: own gradient": _without("own"),
    "control: others' signs": _without("others"),
    "control: own momentum": _without("momentum"),
}


class Subject:
    """A subject that makes an update per round."""

    def __init__(self, name: str, make: Callable[[Round], DecodedUpdate]) -> None:
        self.name = name
        self.update = make


class Trained:
    """Makes updates from gradients, with its own momentum; None means that nothing was computed."""

    def __init__(self, swarm: Swarm, gradients: Callable[[Round], Gradients | None]) -> None:
        self._optimizer = swarm.new_optimizer()
        self._gradients = gradients

    def __call__(self, now: Round) -> DecodedUpdate:
        if (gradients := self._gradients(now)) is None:
            self._optimizer.decay()
        else:
            self._optimizer.accumulate([gradient.clone() for gradient in gradients])
        taken = self._optimizer.take(now.number)
        self._optimizer.forget(now.number)
        return DecodedUpdate(taken.positions, taken.signs)


@dataclass
class Round:
    """The data of one round for members and opponents."""

    swarm: Swarm
    number: int
    batch: np.ndarray
    """(members, share, SEQUENCE + 1)."""
    single: list[Gradients]
    """The first member's sequences, each separately."""
    updates: list[DecodedUpdate]
    """The members' updates, in order."""

    def mean(self, count: int) -> Gradients:
        """Return the mean gradient of the first `count` sequences of the first member."""
        return _mean(self.single[:count])


class Swarm:
    """The members of a case."""

    def __init__(self, case: Case, text: np.ndarray, heldout: np.ndarray) -> None:
        setting = Setting(
            workers=case.members,
            sequences=case.share,
            steps=case.rounds,
            hidden=case.hidden,
            layers=case.layers,
            seed=case.seed,
            device="cpu",
        )
        self.case = case
        self.trial = Trial(setting, text, heldout)
        self.spec = OptimizerSpec(
            top_k=case.top_k,
            preconditioner=case.preconditioner,
            smoothing=case.smoothing,
            momentum=case.momentum,
            step=case.step,
        )
        self.layout = update_layout(self.trial.table, self.spec.chunk, self.spec.top_k)
        self.members = [self.new_optimizer() for _ in range(case.members)]
        self.parameters = [parameter.data for parameter in self.trial.parameters]
        self.chance = np.random.default_rng(case.seed + 1)
        self.noise = torch.Generator().manual_seed(case.seed)
        self.history: deque[list[torch.Tensor]] = deque(maxlen=max(LATER) + 2)
        """Parameters of earlier rounds, the newest last, including this round's."""
        self.seconds = {"gradient": 0.0, "gradients": 0.0, "check": 0.0, "checks": 0.0}
        self.few = self.strangers(case.share)
        self._schedule = default_schedule(case.peak, case.rounds)
        self.subjects = _subjects(self)

    def new_optimizer(self) -> LocalOptimizer:
        """Return an optimizer with an empty momentum."""
        return LocalOptimizer(self.layout, self.trial.parameters, self.spec)

    def strangers(self, count: int) -> np.ndarray:
        """Return sequences that are assigned to no member."""
        text = self.trial.text
        return windows(text, self.chance.integers(0, len(text) - SEQUENCE - 1, count))

    def gradients(self, batch: np.ndarray, age: int = 0) -> Gradients:
        """Return the mean gradient of some sequences on this round's parameters, or older ones."""
        if not age:
            return self.trial.gradients(batch)
        new = [parameter.clone() for parameter in self.parameters]
        self._put(self.history[max(0, len(self.history) - 1 - age)])
        found = self.trial.gradients(batch)
        self._put(new)
        return found

    def _put(self, values: Sequence[torch.Tensor]) -> None:
        for parameter, value in zip(self.parameters, values, strict=True):
            parameter.copy_(value)

    def run(self, progress: Callable[[str], None]) -> Unit:
        """Train and measure to the end."""
        case = self.case
        rows: list[list[Any]] = []
        losses = [[0, self.trial.evaluate()]]
        began = time.monotonic()
        age = int(case.overlap)
        for number in range(1, case.rounds + 1):
            self.history.append([parameter.clone() for parameter in self.parameters])
            measured = number >= case.first and (number - case.first) % case.stride == 0
            batch = self.trial.next_batch().reshape(case.members, case.share, -1)
            singles = {
                stream: [self.timed_gradient(one[None], age) for one in batch[stream]]
                for stream in range(case.members)
                if measured or stream == 0
            }
            now = Round(self, number, batch, singles.get(0, []), [])
            momenta: list[Dense] = []
            owns: list[Gradients] = []
            for stream, member in enumerate(self.members):
                own = (
                    _mean(singles[stream])
                    if stream in singles
                    else self.gradients(batch[stream], age)
                )
                if measured:
                    owns.append(own)
                member.accumulate([gradient.clone() for gradient in own])
                if measured:
                    momenta.append([momentum.clone() for momentum in member.momentum])
                taken = member.take(number)
                member.forget(number)
                now.updates.append(DecodedUpdate(taken.positions, taken.signs))
            made = [(subject.name, subject.update(now)) for subject in self.subjects]
            if measured:
                rows += self._measured(now, singles, owns, momenta, made)
                seconds = time.monotonic() - began
                progress(f"round {number} of {case.rounds}, {len(rows)} checks, {seconds:.0f} s")
            rate = learning_rate(self._schedule, number)
            apply_step(self.parameters, self.layout, now.updates, rate, 0.0, step=self.spec.step)
        losses.append([case.rounds, self.trial.evaluate()])
        seconds = {
            "gradient": self.seconds["gradient"] / max(1, self.seconds["gradients"]),
            "check": self.seconds["check"] / max(1, self.seconds["checks"]),
        }
        described = asdict(case) | {"label": case.label}
        return Unit(
            case=described,
            parameters=self.trial.elements,
            coefficients=self.layout.coefficients,
            rows=rows,
            statistics=list(STATISTICS),
            losses=losses,
            seconds=seconds,
        )

    def timed_gradient(self, batch: np.ndarray, age: int) -> Gradients:
        """Return the same, and record its CPU time."""
        began = time.process_time()
        found = self.gradients(batch, age)
        self.seconds["gradient"] += time.process_time() - began
        self.seconds["gradients"] += 1
        return found

    def _measured(
        self,
        now: Round,
        singles: dict[int, list[Gradients]],
        owns: list[Gradients],
        momenta: list[Dense],
        made: list[tuple[str, DecodedUpdate]],
    ) -> list[list[Any]]:
        """Return the rows of a round: every update against every sequence from which it should be
        made."""
        case, rows = self.case, []
        for stream in range(case.members):
            # By two auditors: the second re-audits only the first sequence.
            first = int(self.chance.integers(1, case.members))
            second = 1 + (first + int(self.chance.integers(0, case.members - 2))) % (
                case.members - 1
            )
            subjects = [("honest", now.updates[stream]), *(made if stream == 0 else [])]
            scores: dict[str, list[list[float]]] = {name: [] for name, _ in subjects}
            for again, offset in ((False, first), (True, second)):
                auditor = (stream + offset) % case.members
                controls = self._controls(now, stream, auditor, owns, momenta)
                looked = singles[stream][:1] if again else singles[stream]
                for gradient, sequence in zip(looked, now.batch[stream], strict=False):
                    half = self._half(sequence)
                    sight = self._sight(gradient, half, auditor, owns[auditor], controls)
                    for name, update in subjects:
                        found = self._scores(update, sight, controls)
                        if again:
                            rows.append([name, now.number, stream, True, [found]])
                        else:
                            scores[name].append(found)
                if stream == 0 and not again:
                    # The same honest update, audited with other parameters or arithmetic.
                    rows += self._looked_at_otherwise(now, auditor, owns[auditor], controls)
            rows += [[name, now.number, stream, False, found] for name, found in scores.items()]
        return rows

    def _looked_at_otherwise(
        self, now: Round, auditor: int, own: Gradients, controls: Controls
    ) -> list[list[Any]]:
        rows = []
        one = now.batch[0, :1]
        base = int(self.case.overlap)
        for age in LATER:
            if len(self.history) > age + base:
                # Old parameters here, new ones there: it makes no difference which of the two are older.
                gradient = self.gradients(one, age + base)
                half = self._half(one[0], age)
                sight = self._sight(gradient, half, auditor, own, controls)
                found = self._scores(now.updates[0], sight, controls)
                name = f"honest, parameters {age} rounds apart"
                rows.append([name, now.number, 0, False, [found]])
        return rows

    def _controls(
        self,
        now: Round,
        stream: int,
        auditor: int,
        owns: list[Gradients],
        momenta: list[Dense],
    ) -> Controls:
        # The sum that the auditor receives, without the audited member's own signs.
        heard = [update for index, update in enumerate(now.updates) if index != stream]
        sums = [torch.zeros((tensor.blocks, tensor.elements)) for tensor in self.layout.tensors]
        for update in heard:
            for dense, positions, signs in zip(sums, update.positions, update.signs, strict=True):
                places = torch.from_numpy(positions.astype(np.int64))
                dense.scatter_add_(1, places, torch.from_numpy(signs.astype(np.float32)))
        age = int(self.case.overlap)
        return Controls(
            stranger=self._dense(self.gradients(self.strangers(1), age), auditor),
            own=self._dense(owns[auditor], auditor),
            plain=self._dense(owns[auditor], auditor, orthogonal=False),
            momentum=momenta[auditor],
            others=sums,
        )

    def _half(self, sequence: np.ndarray, age: int = 0) -> Gradients:
        """Return the gradient of a sequence's first half, and record its CPU time as an audit's."""
        began = time.process_time()
        found = self.gradients(sequence[None, : SEQUENCE // 2 + 1], age + int(self.case.overlap))
        self.seconds["check"] += time.process_time() - began
        return found

    def _sight(
        self,
        gradient: Gradients,
        half: Gradients,
        auditor: int,
        own: Gradients,
        controls: Controls,
    ) -> Sight:
        # An audit's cost besides the sequence's gradient: that of its beginning, and three of these.
        began = time.process_time()
        before = self._dense(own, auditor)
        mixed, beginning = (
            [new - old for new, old in zip(self._mixed(each, own, auditor), before, strict=True)]
            for each in (gradient, half)
        )
        self.seconds["check"] += time.process_time() - began
        self.seconds["checks"] += 1
        return Sight(
            dealt=self._dense(gradient, auditor),
            plain=self._dense(gradient, auditor, orthogonal=False),
            mixed=mixed,
            beginning=beginning,
        )

    def _mixed(self, gradient: Gradients, own: Gradients, auditor: int) -> Dense:
        """Return the auditor's coefficients if one sequence of its share were another."""
        share = self.case.share
        mixed = [o + (g - o) / share for o, g in zip(own, gradient, strict=True)]
        return self._dense(mixed, auditor)

    @torch.no_grad()
    def _dense(self, gradients: Gradients, auditor: int, *, orthogonal: bool = True) -> Dense:
        """Return all coefficients of a gradient as an auditor sees them."""
        spec = self.spec if orthogonal else replace(self.spec, preconditioner="rms")
        if self.spec.preconditioner == "none":
            spec = self.spec
        return [
            coefficients(index, gradient, self.layout, spec, self.members[auditor])
            for index, gradient in enumerate(gradients)
        ]

    def _scores(self, update: DecodedUpdate, sight: Sight, controls: Controls) -> list[float]:
        def gathered(dense: Dense) -> np.ndarray:
            parts = at_positions(update, dense)
            return np.concatenate([part.ravel() for part in parts]).astype(np.float64)

        view = {
            "dealt": gathered(sight.dealt),
            "plain": gathered(sight.plain),
            "mixed": gathered(sight.mixed),
            "beginning": gathered(sight.beginning),
            "stranger": gathered(controls.stranger),
            "own": gathered(controls.own),
            "own plain": gathered(controls.plain),
            "momentum": gathered(controls.momentum),
            "others": gathered(controls.others),
        }
        signs = np.concatenate([part.ravel() for part in update.signs])
        return [round(statistic(view, signs, self.layout), 2) for statistic in STATISTICS.values()]


def _mean(gradients: Sequence[Gradients]) -> Gradients:
    """Return the mean of several gradients."""
    sums = [functools.reduce(torch.add, parts) for parts in zip(*gradients, strict=True)]
    return [total / len(gradients) for total in sums]


def _subjects(swarm: Swarm) -> list[Subject]:
    """Return honest members on other hardware, and the opponents."""
    share, age = swarm.case.share, int(swarm.case.overlap)
    trained: dict[str, Callable[[Round], Gradients | None]] = {
        "other data": lambda now: swarm.gradients(swarm.strangers(share), age),
        "parameters 20 rounds old": lambda now: swarm.gradients(now.batch[0], age + 20),
    }
    if share > 1:
        trained["half of its share"] = lambda now: now.mean(share // 2)
    if swarm.case.opponents == "all":
        trained |= {
            "honest, bfloat16": lambda now: _bfloat16(swarm, now.batch[0]),
            "honest, gradients off by 10 %": lambda now: _perturbed(now, 0.1),
            "parameters 5 rounds old": lambda now: swarm.gradients(now.batch[0], age + 5),
            "a small batch repeated": lambda now: swarm.gradients(swarm.few, age),
            "the first half of each sequence": lambda now: swarm.gradients(
                now.batch[0][:, : SEQUENCE // 2 + 1], age
            ),
            "the second half of each sequence": lambda now: swarm.gradients(
                now.batch[0][:, SEQUENCE // 2 :], age
            ),
            "three quarters of each sequence": lambda now: swarm.gradients(
                now.batch[0][:, : 3 * SEQUENCE // 4 + 1], age
            ),
            "a cheaper model, half of the layers": lambda now: _shallow(swarm, now.batch[0]),
            "only the upper half's gradients": lambda now: _upper(swarm, now.mean(share)),
            "honest in half of the rounds": lambda now: _sometimes(now, 0.5),
        }
        if share > 2:
            trained["one sequence of its share"] = lambda now: now.mean(1)
    spoiled: dict[str, Callable[[Round], DecodedUpdate]] = {
        "copies another": lambda now: now.updates[1],
        "copies another, a fifth turned": lambda now: _turned(swarm, now.updates[1], 0.2),
        "random": lambda now: _random(swarm),
        "half of the signs at random": lambda now: _turned(swarm, now.updates[0], 0.25),
        "half of the signs turned": lambda now: _turned(swarm, now.updates[0], 0.5),
        "a tenth of the signs turned": lambda now: _turned(swarm, now.updates[0], 0.1),
        "poisons the head": lambda now: _poisoned(swarm, now.updates[0], head=True),
        "poisons blocks everywhere": lambda now: _poisoned(swarm, now.updates[0], head=False),
    }
    subjects = [Subject(name, Trained(swarm, make)) for name, make in trained.items()]
    return subjects + [Subject(name, make) for name, make in spoiled.items()]


def _sometimes(now: Round, often: float) -> Gradients | None:
    """Return the honest gradient, or None: then the update comes from the momentum alone."""
    swarm = now.swarm
    return now.mean(swarm.case.share) if swarm.chance.random() < often else None


def _perturbed(now: Round, size: float) -> Gradients:
    """Perturb every element by a share of itself: far more than two devices differ."""
    generator = now.swarm.noise
    return [
        gradient * (1 + size * torch.randn(gradient.shape, generator=generator))
        for gradient in now.mean(now.swarm.case.share)
    ]


def _bfloat16(swarm: Swarm, batch: np.ndarray) -> Gradients:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return swarm.gradients(batch, int(swarm.case.overlap))


def _shallow(swarm: Swarm, batch: np.ndarray) -> Gradients:
    """Compute with a model of half the cost: every second layer is left out, and gets no gradient."""
    inner: Any = swarm.trial.model.model
    layers = inner.layers
    inner.layers = torch.nn.ModuleList(list(layers)[::2])
    try:
        return swarm.gradients(batch, int(swarm.case.overlap))
    finally:
        inner.layers = layers


def _upper(swarm: Swarm, gradients: Gradients) -> Gradients:
    """Return the gradient of a backward pass that ends in the middle."""
    lower = tuple(f".layers.{number}." for number in range(swarm.case.layers // 2))
    return [
        torch.zeros_like(gradient)
        if any(name in spec.name for name in lower) or "embed" in spec.name
        else gradient
        for spec, gradient in zip(swarm.trial.table, gradients, strict=True)
    ]


def _turned(swarm: Swarm, update: DecodedUpdate, part: float) -> DecodedUpdate:
    """Flip some signs, drawn afresh in each round."""
    signs = [
        np.where(swarm.chance.random(sign.shape) < part, -sign, sign).astype(np.int8)
        for sign in update.signs
    ]
    return DecodedUpdate(update.positions, signs)


def _random(swarm: Swarm) -> DecodedUpdate:
    positions, signs = [], []
    for tensor in swarm.layout.tensors:
        keys = swarm.chance.random((tensor.blocks, tensor.elements))
        chosen = np.sort(np.argpartition(keys, tensor.top_k - 1, axis=1)[:, : tensor.top_k], 1)
        positions.append(chosen.astype(np.int32))
        signs.append(swarm.chance.choice(np.array([-1, 1], np.int8), chosen.shape))
    return DecodedUpdate(positions, signs)


def _poisoned(swarm: Swarm, update: DecodedUpdate, *, head: bool) -> DecodedUpdate:
    """Flip all signs of some blocks: those of the head, or every n-th of all."""
    signs, passed = [], 0
    for tensor, sign in zip(swarm.layout.tensors, update.signs, strict=True):
        numbers = passed + np.arange(tensor.blocks)
        passed += tensor.blocks
        chosen = (
            np.full(tensor.blocks, tensor.name == "lm_head.weight")
            if head
            else numbers % round(1 / POISONED) == 0
        )
        signs.append(np.where(chosen[:, None], -sign, sign).astype(np.int8))
    return DecodedUpdate(update.positions, signs)
