"""The program's own training: its optimizer, outlier filter and shared step, for simulated members."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import numpy as np
import torch
from distro_node.node.create.manifest_file import OptimizerTable
from distro_node.node.trainer.optimizer.exact_step import apply_step
from distro_node.node.trainer.optimizer.local_steps import LocalSteps
from distro_node.node.trainer.optimizer.optimizer import LocalOptimizer, Taken
from distro_node.protocol.codec.outlier_filter import contradicted
from distro_node.protocol.codec.update import DecodedUpdate, UpdateLayout, update_layout
from distro_node.protocol.wire.manifest import OptimizerSpec

from .dense import is_hidden_matrix
from .trial import Trial

OPTIMIZERS = {"signs": OptimizerSpec(), "default": OptimizerTable().spec()}
"""`default`: of new swarms without audits; `signs`: with audits."""
_MEASURED_ROUNDS = 20


@dataclass(frozen=True, kw_only=True)
class Program:
    """The program's settings, and what goes wrong in a run. Shares are parts of all members; which
    members they are is drawn in every round, but liars stay liars."""

    optimizer: OptimizerSpec
    overlap: bool = False
    """Gradients are computed on parameters that lack the last step."""
    ahead: float = 0.0
    """With overlap: how much of the step before is added to these parameters once more."""
    flipped: float = 0.0
    """Share of members that send the opposite of every sign."""
    late: float = 0.0
    """Share of members whose update misses the round and goes back into their momentum."""
    absent: float = 0.0
    """Share of members that compute and send nothing."""
    local_steps: int = 1
    """Rounds of the setting that make one of the program's: a member takes a step of its own on its
    share of each, and then all exchange."""
    moves: bool = True
    """False: in place of these steps, one gradient over all these shares."""
    keeps_momentum: bool = False
    """Whether the momentum of a member's own steps is kept from exchange to exchange."""

    def learner(self, trial: Trial) -> ProgramLearner:
        """Return the members of a run."""
        return ProgramLearner(self, trial)

    def at(self, top_k: int) -> Program:
        """Return the same with this number of coefficients a block."""
        return replace(self, optimizer=replace(self.optimizer, top_k=top_k))


class Workers:
    """The members' private optimizers and the shared step, for every way that has both."""

    def __init__(self, spec: OptimizerSpec, trial: Trial) -> None:
        self.spec, self.trial = spec, trial
        self.layout = update_layout(trial.table, spec.chunk, spec.top_k)
        self.parameters = [parameter.data for parameter in trial.parameters]
        self.workers = [
            LocalOptimizer(self.layout, trial.parameters, spec)
            for _ in range(trial.setting.members)
        ]
        self.sent = float(self.layout.body_bytes)

    def tensors(self) -> list[torch.Tensor]:
        """Return the members' momenta and other moments."""
        return [
            part
            for worker in self.workers
            for states in (worker.coefficients, *worker.by_rows.values())
            for state in states
            for part in state.parts().values()
        ]

    def resume(self, number: int) -> None:
        """Set the number of gradients in the second moments."""
        for worker in self.workers:
            worker.steps = number

    def apply(self, updates: Sequence[DecodedUpdate], rate: float) -> None:
        """Take the shared step."""
        spec = self.spec
        apply_step(self.parameters, self.layout, updates, rate, spec.weight_decay, step=spec.step)


class ProgramLearner(Workers):
    """A swarm of the program's members."""

    def __init__(self, way: Program, trial: Trial) -> None:
        super().__init__(way.optimizer, trial)
        if way.overlap and way.optimizer.damping:
            raise ValueError(
                "with overlap, damping follows a record that this learner does not keep"
            )
        self._way = way
        # The parameters one round old, and the step that led to them.
        overlapping = self.parameters if way.overlap else []
        self._old = [parameter.clone() for parameter in overlapping]
        self._last_step = [torch.zeros_like(parameter) for parameter in overlapping]
        count = trial.setting.members if way.local_steps > 1 else 0
        self._local = [LocalSteps(self.layout, self.parameters) for _ in range(count)]
        self.sent /= way.local_steps

    def tensors(self) -> list[torch.Tensor]:
        """Return all state besides the parameters."""
        kept = [state for steps in self._local for state in steps.momentum]
        inner = [part for state in kept for part in state.parts().values()]
        return [*super().tensors(), *self._old, *self._last_step, *inner]

    def resume(self, number: int) -> None:
        """Set the number of gradients in the second moments."""
        super().resume(number // self._way.local_steps)

    def step(self, rate: float, number: int) -> dict[str, float]:
        """Train one round; return what members have in common (`in_common`), in some of the rounds."""
        way, trial, count = self._way, self.trial, self.trial.setting.members
        if number % way.local_steps and number < trial.setting.rounds:
            return {}
        rounds = range(number - (number - 1) % way.local_steps, number + 1)
        shares = [list(each) for each in zip(*map(trial.shares, rounds), strict=True)]
        chance = np.random.default_rng((trial.seed, number, count))
        absent = set(chance.permutation(count)[: round(way.absent * count)].tolist())
        late = set(chance.permutation(count)[: round(way.late * count)].tolist())
        sent: list[DecodedUpdate] = []
        taken: list[Taken] = []
        with self._where_gradients_are_taken():
            for index, share in enumerate(shares):
                if index in absent:
                    continue
                worker = self.workers[index]
                worker.accumulate(self._moved(index, share, rate, number))
                own = worker.take(number)
                if index in late:
                    worker.refund(number)
                    continue
                worker.forget(number)
                taken.append(own)
                lies = index < round(way.flipped * count)
                signs = [-sign for sign in own.signs] if lies else own.signs
                sent.append(DecodedUpdate(own.positions, signs))
        figures = self._figures(number, taken) if len(taken) == count > 1 else {}
        left_out = contradicted(self.layout, sent, number) if self.spec.outlier_filter else set()
        updates = [update for index, update in enumerate(sent) if index not in left_out]
        if left_out:
            figures["left_out"] = len(left_out) / len(sent)
        for worker in self.workers:
            worker.damp(updates)
        self._remember()
        # As long as the steps of a member's own together.
        self.apply(updates, float(np.float32(rate * len(rounds))))
        return figures

    def _moved(
        self, index: int, batches: Sequence[np.ndarray], rate: float, number: int
    ) -> list[torch.Tensor]:
        """Return what takes the gradient's place: what a member's steps on these batches moved."""
        trial = self.trial
        if not self._local or not self._way.moves:
            return trial.gradients(np.concatenate(batches), number)
        steps = self._local[index]
        steps.begin(keep_momentum=self._way.keeps_momentum)
        gradients = []
        for batch in batches:
            gradients = trial.gradients(batch, number)
            steps.step(gradients, rate)
        moved = steps.displacement(gradients, rate * len(batches))
        steps.restore()
        return moved

    @contextmanager
    def _where_gradients_are_taken(self) -> Iterator[None]:
        """Set the parameters to those on which gradients are computed, and restore them."""
        current = [parameter.clone() for parameter in self.parameters[: len(self._old)]]
        for parameter, old, step in zip(self.parameters, self._old, self._last_step, strict=False):
            parameter.copy_(old).add_(step, alpha=self._way.ahead)
        yield
        for parameter, value in zip(self.parameters, current, strict=False):
            parameter.copy_(value)

    def _remember(self) -> None:
        for parameter, old, step in zip(self.parameters, self._old, self._last_step, strict=False):
            step.copy_(parameter).sub_(old)
            old.copy_(parameter)

    def _figures(self, number: int, taken: Sequence[Taken]) -> dict[str, float]:
        rounds = self.trial.setting.rounds
        if number <= rounds // 2 or number % max(1, rounds // (2 * _MEASURED_ROUNDS)):
            return {}
        hidden = [is_hidden_matrix(described) for described in self.trial.table]
        momenta = [worker.momentum for worker in self.workers]
        return in_common(momenta, taken, hidden, self.layout)


def in_common(
    momenta: Sequence[Sequence[torch.Tensor]],
    taken: Sequence[Taken],
    hidden: Sequence[bool],
    layout: UpdateLayout,
) -> dict[str, float]:
    """Return what members have in common in the coefficients of hidden matrices.

    - `common`: the mean product of two members' momenta over their mean square; the rest is the noise
      of each member's own sequences.
    - `again`: the share of sent coefficients that at least one other member sends in the same round.
    - `sent`: the share of a momentum, in squares, that leaves it in a round.
    """
    squares = products = left = 0.0
    chosen = again = 0
    for index, (tensor, matters) in enumerate(zip(layout.tensors, hidden, strict=True)):
        if not matters:
            continue
        out = torch.zeros(len(momenta), tensor.blocks, tensor.elements)
        for own, one in zip(out, taken, strict=True):
            positions = torch.from_numpy(one.positions[index].astype(np.int64))
            own.scatter_(1, positions, torch.from_numpy(one.values[index]))
        whole = torch.stack([momentum[index].cpu() for momentum in momenta]) + out
        total = float(whole.square().sum())
        squares += total
        products += (float(whole.sum(0).square().sum()) - total) / (len(momenta) - 1)
        left += float(out.square().sum())
        senders = (out != 0).sum(0)
        chosen += int(senders.sum())
        again += int(senders[senders > 1].sum())
    if not squares or not chosen:
        return {}
    return {"common": products / squares, "again": again / chosen, "sent": left / squares}
