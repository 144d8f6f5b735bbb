"""Ways to train between dense Muon and the program's own, one choice at a time, for frontier.py.

A round: each member's gradient is orthogonalised approximately (by matrix or by block), before or
after it enters a momentum; some coefficients of the blockwise cosine transform are sent; what all
members sent is added up, and a step follows from the sum. Everything here is in floating point:
these are experiments, and only the program's own step is exact. The recipe with every choice at its
default represents the program; it learns as `training.py` does with the program's own code.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Literal

import torch
from dense import AdamW, adam, is_hidden_matrix, tensors_of
from distro_node.node.trainer.optimizer.blocks import float_basis
from distro_node.node.trainer.optimizer.optimizer import orthogonalised
from distro_node.protocol.codec.schedule import learning_rate
from distro_node.protocol.codec.update import TensorLayout, update_layout
from going import Going, Part, Stand
from panels import Panels, Spoken
from speakers import Speakers
from training import Trial, default_schedule

EPSILON = 1e-12


def _nobody(number: int, members: Sequence[Member]) -> None:
    """The default watcher, which does nothing."""


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """The choices. The defaults are the program's."""

    even: Literal["matrix", "block"] = "block"
    """What is made orthogonal: whole matrices, or blocks of 64 × 64."""
    when: Literal["momentum", "gradient", "never"] = "gradient"
    """What is orthogonalised: the momentum (as in Muon, with Nesterov's look-ahead and five rounds
    of the quintic), or the gradient before it enters the momentum; `never`: neither, at the member."""
    smoothing: float = 0.0
    """The fraction of its last smoothed gradient that is added to a member's next one, before the
    gradient is made orthogonal."""
    ahead: bool = False
    """Whether smoothing looks one step ahead, as Nesterov's does: the gradient counts once more."""
    divided: bool = True
    """Whether the gradient is first divided by its root mean square."""
    rounds: int = 3
    """Of the quintic, for a gradient."""
    others: Literal["adam", "same"] = "same"
    """Whether embedding, head and norms have Adam's step, or the same as all other tensors."""
    own: bool = True
    """Whether every member has its own momentum, or all share that of the mean gradient."""
    momentum: float = 0.95
    top_k: int | None = 8
    """Coefficients of each block that are sent; None: all."""
    send: Literal["value", "sign"] = "sign"
    keep: float = 0.0
    """The fraction of a sent coefficient that remains where it was taken from."""
    counted: int | None = None
    """The number of coefficients of a block's sum, the strongest, that count, as if a few members
    computed the sums for all; the others are returned to their senders. None: all count."""
    speakers: Speakers | Panels | None = None
    """The aggregators of a block; None: every member sends updates of everything."""
    basis: Literal["cosine", "random"] = "cosine"
    """The basis of a block's coefficients: the cosine transform, or a random orthogonal one."""
    unsent: float | None = None
    """The decay of an error-feedback buffer of what has not been sent, apart from the momentum,
    which sending then leaves unchanged; None: coefficients are taken out of the momentum itself."""
    step: Literal["scaled", "sign", "both", "matrix", "blocks"] = "sign"
    """How the sum becomes a step: it is divided by its root mean square, or reduced to its signs, or
    the former in matrices and the latter in vectors (`both`, the program's `scaled` without its
    bound of two learning rates), or every hidden matrix is made orthogonal, or all blocks are."""
    smooth: float = 0.0
    """The decay of a momentum of the sums, which is the same in all members."""


def train(
    recipe: Recipe,
    rate: float,
    trial: Trial,
    watch: Callable[[int, Sequence[Member]], None] = _nobody,
    going: Going | None = None,
) -> list[tuple[int, float]]:
    """Train to the end; return rounds and held-out loss, ten times in the run. `watch` receives each
    round's members after they have sent. With `going` the run can be interrupted, unless it has
    committees."""
    setting = trial.setting
    schedule = default_schedule(rate, setting.steps)
    members = [Member(recipe, trial) for _ in range(setting.workers if recipe.own else 1)]
    together = Together(recipe, trial)
    heard = None if recipe.speakers is None else recipe.speakers.listener(trial)
    parts: list[Part] = [trial, *members, together]
    if going is None or isinstance(heard, Spoken):
        going = Going(None, {})
    elif heard is not None:
        parts.append(heard)
    stand = going.take_up(parts, trial.order) or Stand(curve=[(0, trial.evaluate())])
    curve = stand.curve
    for number in range(stand.number + 1, setting.steps + 1):
        batch = trial.next_batch()
        shares = (
            [batch] if len(members) == 1 else list(batch.reshape(len(members), -1, batch.shape[1]))
        )
        sums: list[torch.Tensor] | None = None
        for index, (member, share) in enumerate(zip(members, shares, strict=True)):
            sent = member.speak([gradient.clone() for gradient in trial.gradients(share)])
            if heard is not None:
                sent = heard.told(index, sent, number)
            sums = sent if sums is None else [a + b for a, b in zip(sums, sent, strict=True)]
        assert sums is not None
        watch(number, members)
        if recipe.counted is not None:
            counted = [strongest(total, recipe.counted) for total in sums]
            sums = [total * mask for total, mask in zip(sums, counted, strict=True)]
            for member in members:
                member.take_back(counted)
        if heard is not None:
            sums = heard.speak(sums, number)
        together.step(sums, learning_rate(schedule, number))
        if number % max(1, setting.steps // 10) == 0:
            curve.append((number, trial.evaluate()))
        going.keep(Stand(number, curve), parts, trial.order)
    return curve


class Member:
    """One member's state of each tensor: momentum, what was taken out of it at the last send (both
    as coefficients: blocks, a, b), second moment."""

    def __init__(self, recipe: Recipe, trial: Trial) -> None:
        self._recipe = recipe
        self.tensors = update_layout(trial.table, 64, recipe.top_k or 8).tensors
        self._hidden = hidden_matrices(trial)
        self.momentum = [
            torch.zeros(tensor.blocks, tensor.block_rows, tensor.block_columns)
            for tensor in self.tensors
        ]
        self._unsent = [] if recipe.unsent is None else [torch.zeros_like(m) for m in self.momentum]
        self._smoothed, self._squares = (
            [torch.zeros(tensor.rows, tensor.columns) for tensor in self.tensors] for _ in range(2)
        )
        self.taken = [torch.zeros_like(m) for m in self.momentum]
        self._steps = 0

    def held(self) -> list[torch.Tensor]:
        """Return its state between rounds."""
        return [*self.momentum, *self._unsent, *self._smoothed, *self._squares]

    def stands_after(self, number: int) -> None:
        """Set the number of gradients in the second moment."""
        self._steps = number

    @torch.no_grad()
    def speak(self, gradients: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Return what is sent of each tensor: coefficients (blocks, a, b); the plain gradient for
        Adam's."""
        self._steps += 1
        return [self._of(index, gradient) for index, gradient in enumerate(gradients)]

    def _of(self, index: int, gradient: torch.Tensor) -> torch.Tensor:
        recipe, tensor = self._recipe, self.tensors[index]
        gradient = gradient.reshape(tensor.rows, tensor.columns)
        if recipe.others == "adam" and not self._hidden[index]:
            return gradient
        if recipe.when == "gradient":
            gradient = self._divided(index, self._smooth(index, gradient))
            gradient = self._even(index, gradient, recipe.rounds)
        momentum = self.momentum[index]
        coefficients = transformed(gradient, tensor, recipe.basis)
        momentum.mul_(recipe.momentum).add_(coefficients)
        said = momentum
        if recipe.when == "momentum":
            ahead = coefficients + recipe.momentum * momentum
            even = self._even(index, restored(ahead, tensor, recipe.basis), 5)
            said = transformed(even, tensor, recipe.basis)
        if recipe.top_k is None:
            return said.sign() if recipe.send == "sign" else said.clone()
        source = momentum
        if recipe.unsent is not None:
            source = said = self._unsent[index].mul_(recipe.unsent).add_(said)
        flat = said.reshape(tensor.blocks, -1)
        positions = flat.abs().topk(tensor.top_k, dim=1).indices
        values = flat.gather(1, positions)
        own = source.view(tensor.blocks, -1)
        taken = (1 - recipe.keep) * own.gather(1, positions)
        own.scatter_add_(1, positions, -taken)
        self.taken[index] = torch.zeros_like(flat).scatter_(1, positions, taken).view_as(momentum)
        if recipe.send == "sign":
            values = values.sign()
        return torch.zeros_like(flat).scatter_(1, positions, values).view_as(momentum)

    @torch.no_grad()
    def take_back(self, counted: Sequence[torch.Tensor]) -> None:
        """Put back what was sent last and does not count: `counted` is one where it does."""
        sources = self._unsent or self.momentum
        for source, taken, mask in zip(sources, self.taken, counted, strict=True):
            source.add_(taken * (1 - mask))

    def _smooth(self, index: int, gradient: torch.Tensor) -> torch.Tensor:
        smoothed = self._smoothed[index].mul_(self._recipe.smoothing).add_(gradient)
        return gradient + self._recipe.smoothing * smoothed if self._recipe.ahead else smoothed

    def _divided(self, index: int, gradient: torch.Tensor) -> torch.Tensor:
        if not self._recipe.divided:
            return gradient
        squares = self._squares[index]
        squares.mul_(0.95).addcmul_(gradient, gradient, value=0.05)
        return gradient / ((squares / (1 - 0.95**self._steps)).sqrt_() + EPSILON)

    def _even(self, index: int, matrix: torch.Tensor, rounds: int) -> torch.Tensor:
        """Return the matrix with its blocks, or the whole, nearly orthogonal; vectors are unchanged."""
        if self._recipe.even == "matrix" and self._hidden[index]:
            return orthogonalised(matrix[None], rounds)[0]
        return even_blocks(matrix, self.tensors[index], rounds)


class Together:
    """The shared state of all members: the parameters, Adam's state, the momentum of the sums."""

    def __init__(self, recipe: Recipe, trial: Trial) -> None:
        self._recipe = recipe
        self._parameters = [parameter.data for parameter in trial.parameters]
        self._tensors = update_layout(trial.table, 64, recipe.top_k or 8).tensors
        self._hidden = hidden_matrices(trial)
        self._smooth = [
            torch.zeros(tensor.blocks, tensor.block_rows, tensor.block_columns)
            for tensor in self._tensors
            if recipe.smooth
        ]
        self._members = trial.setting.workers if recipe.own else 1
        rest = [
            parameter
            for parameter, hidden in zip(trial.parameters, self._hidden, strict=True)
            if not hidden
        ]
        self._adam = adam(rest, AdamW()) if recipe.others == "adam" else None
        self._rest = rest

    def held(self) -> list[torch.Tensor]:
        """Return the shared state besides the parameters."""
        return [*self._smooth, *tensors_of([] if self._adam is None else [self._adam])]

    def stands_after(self, number: int) -> None:
        """Do nothing: Adam's step count is in its tensors."""

    @torch.no_grad()
    def step(self, sums: Sequence[torch.Tensor], rate: float) -> None:
        """Update the parameters."""
        adams = []
        for index, (parameter, total) in enumerate(zip(self._parameters, sums, strict=True)):
            if self._adam is not None and not self._hidden[index]:
                adams.append(total.view(parameter.shape) / self._members)
                continue
            if self._recipe.smooth:
                total = self._smooth[index].mul_(self._recipe.smooth).add_(total)
            total = restored(total, self._tensors[index], self._recipe.basis)
            direction = self._direction(index, total)
            parameter.sub_(direction.view(parameter.shape), alpha=rate)
        if self._adam is not None:
            for parameter, gradient in zip(self._rest, adams, strict=True):
                parameter.grad = gradient
            self._adam.param_groups[0]["lr"] = rate
            self._adam.step()

    def _direction(self, index: int, total: torch.Tensor) -> torch.Tensor:
        vector = self._tensors[index].sides < 2
        if self._recipe.step == "sign" or (self._recipe.step == "both" and vector):
            return total.sign()
        if self._recipe.step == "matrix" and self._hidden[index]:
            total = orthogonalised(total[None], 5)[0]
        if self._recipe.step == "blocks":
            total = even_blocks(total, self._tensors[index], 5)
        return total / (total.square().mean().sqrt() + EPSILON)


def hidden_matrices(trial: Trial) -> list[bool]:
    """Return for each tensor whether Muon takes it."""
    return [is_hidden_matrix(described) for described in trial.table]


def cut(matrix: torch.Tensor, tensor: TensorLayout) -> torch.Tensor:
    """Return a matrix as its blocks: (blocks, a, b)."""
    a, b = tensor.block_rows, tensor.block_columns
    return matrix.view(tensor.down, a, tensor.across, b).transpose(1, 2).reshape(-1, a, b)


def joined(blocks: torch.Tensor, tensor: TensorLayout) -> torch.Tensor:
    """Inverse of `cut`."""
    a, b = tensor.block_rows, tensor.block_columns
    rows = blocks.view(tensor.down, tensor.across, a, b).transpose(1, 2)
    return rows.reshape(tensor.rows, tensor.columns)


def even_blocks(matrix: torch.Tensor, tensor: TensorLayout, rounds: int) -> torch.Tensor:
    """Return a matrix whose blocks are nearly orthogonal; vectors are unchanged."""
    if tensor.sides != 2:
        return matrix
    return joined(orthogonalised(cut(matrix, tensor), rounds), tensor)


def transformed(matrix: torch.Tensor, tensor: TensorLayout, basis: str = "cosine") -> torch.Tensor:
    """Return the blocks' coefficients."""
    a, b = _sides(tensor, basis, matrix.device)
    return a @ cut(matrix, tensor) @ b.T


def restored(
    coefficients: torch.Tensor, tensor: TensorLayout, basis: str = "cosine"
) -> torch.Tensor:
    """Return the matrix whose blocks have these coefficients."""
    a, b = _sides(tensor, basis, coefficients.device)
    return joined(a.T @ coefficients @ b, tensor)


def _sides(
    tensor: TensorLayout, basis: str, device: torch.device
) -> tuple[torch.Tensor, torch.Tensor]:
    of = random_basis if basis == "random" else float_basis
    return of(tensor.block_rows, device), of(tensor.block_columns, device)


@cache
def random_basis(side: int, device: torch.device) -> torch.Tensor:
    """Return a random orthogonal matrix (side, side), the same one in every call."""
    drawn = torch.randn(side, side, generator=torch.Generator().manual_seed(side))
    return torch.linalg.qr(drawn)[0].to(device)


def strongest(total: torch.Tensor, count: int) -> torch.Tensor:
    """Return one for the strongest coefficients of each block (blocks, a, b) of a sum, zero for all
    others."""
    flat = total.flatten(1)
    positions = flat.abs().topk(min(count, flat.shape[1]), dim=1).indices
    return torch.zeros_like(flat).scatter_(1, positions, 1.0).view_as(total)
