"""Training a small language model with simulated members, for the benchmarks that compare learning.

All members run in one process, with the program's own optimizer, codec, outlier filter and shared
step. The codec is lossless, so only one member's update per round, in turn, is encoded, for its
size. All runs of a seed read the same sequences in the same order.
"""

from __future__ import annotations

import argparse
import hashlib
import math
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from dense import AdamW, Muon, dense_optimizers, tensors_of
from distro_node.node.trainer.models.model import build_model, ordered_parameters
from distro_node.node.trainer.optimizer.exact_step import apply_step
from distro_node.node.trainer.optimizer.optimizer import LocalOptimizer
from distro_node.node.training.memory_options import IN_FLOAT32, StateOptions
from distro_node.protocol.codec.outlier_filter import contradicted
from distro_node.protocol.codec.schedule import learning_rate
from distro_node.protocol.codec.update import DecodedUpdate, encode_update, update_layout
from distro_node.protocol.wire.manifest import OptimizerSpec, ParameterSpec, ScheduleSpec
from going import Going, Part, Stand

SEQUENCE = 128
HELDOUT_SEQUENCES = 256
SUFFIXES = (".py", ".txt", ".md")


Optimizer = OptimizerSpec | AdamW | Muon


@dataclass(frozen=True, kw_only=True)
class Variant:
    """One way to train."""

    name: str
    rate: float
    optimizer: Optimizer = field(default_factory=OptimizerSpec)
    state: StateOptions = IN_FLOAT32
    """How members of DisTrO store momentum and second moment."""


@dataclass(frozen=True, kw_only=True)
class Trouble:
    """What goes wrong in every round; the affected members are drawn each time, but liars stay liars."""

    overlap: bool = False
    """Gradients are computed on parameters one round old."""
    flipped: float = 0.0
    """Fraction of the members that send the opposite of every sign."""
    late: float = 0.0
    """Fraction of the members whose update misses the round and goes back into their momentum."""
    absent: float = 0.0
    """Fraction of the members that compute nothing and send nothing."""
    again: bool = False
    """The absent members' sequences are assigned again, as in the program: there are more rounds,
    until the number of tokens trained on, in the same order, is the same as without absences."""

    def concerns(self, optimizer: Optimizer) -> bool:
        """Whether it applies to this optimizer: with dense averaging members can only be absent."""
        dense = not isinstance(optimizer, OptimizerSpec)
        return not (dense and (self.overlap or self.flipped or self.late))


@dataclass(frozen=True, kw_only=True)
class Setting:
    """What all runs of a comparison share."""

    workers: int
    sequences: int
    steps: int
    hidden: int
    layers: int
    seed: int
    device: str

    @staticmethod
    def add_arguments(parser: argparse.ArgumentParser, *, steps: int, sequences: int) -> None:
        """Add the options for it, except the seeds."""
        parser.add_argument("--workers", type=int, default=8)
        parser.add_argument(
            "--sequences", type=int, default=sequences, help="a worker's sequences each round"
        )
        parser.add_argument("--steps", type=int, default=steps)
        parser.add_argument("--hidden", type=int, default=128, help="a multiple of 64")
        parser.add_argument("--layers", type=int, default=4)
        parser.add_argument("--device", default="cpu")

    @staticmethod
    def of(options: argparse.Namespace, seed: int) -> Setting:
        """Return the command line's setting, with one of its seeds."""
        return Setting(
            workers=options.workers,
            sequences=options.sequences,
            steps=options.steps,
            hidden=options.hidden,
            layers=options.layers,
            seed=seed,
            device=options.device,
        )


@dataclass
class Run:
    """The outcome of one variant."""

    name: str
    heldout_loss: float
    received_bytes_per_round: float
    reduction: float
    settings: dict[str, Any]
    curve: list[tuple[int, float]]
    """Rounds and held-out loss, ten times in a run."""


@dataclass
class Tally:
    """The cost of a round and the outlier filter's decisions in it, or the sums over all rounds."""

    received: float = 0.0
    """Bytes that a member receives, on average."""
    lies: int = 0
    lies_left_out: int = 0
    honest: int = 0
    honest_left_out: int = 0

    def add(self, other: Tally) -> None:
        """Add another one."""
        for name, value in asdict(other).items():
            setattr(self, name, getattr(self, name) + value)


class Trial:
    """One model in training: the same data order for every variant of a seed."""

    def __init__(
        self,
        setting: Setting,
        train: np.ndarray,
        heldout: np.ndarray,
        heldout_sequences: int = HELDOUT_SEQUENCES,
    ) -> None:
        torch.manual_seed(setting.seed)
        self.setting = setting
        self.device = torch.device(setting.device)
        config = _model(setting)
        self.table = _table(config)
        self.model = build_model(config, self.table, self.device)
        self.parameters = ordered_parameters(self.model, self.table)
        with torch.no_grad():
            for parameter in self.parameters:
                # The initialisation of transformers: norms at one, all others from N(0, 0.02).
                parameter.copy_(
                    torch.ones(parameter.shape)
                    if parameter.dim() == 1
                    else torch.randn(parameter.shape) * 0.02
                )
        self.text = train
        self.order = np.random.default_rng(setting.seed)
        """The generator that draws the sequences."""
        stride = (len(heldout) - SEQUENCE - 1) // heldout_sequences
        self._heldout = windows(heldout, np.arange(heldout_sequences) * stride)

    def held(self) -> list[torch.Tensor]:
        """Return the parameters."""
        return [*self.parameters]

    def stands_after(self, number: int) -> None:
        """Do nothing: only the order of the sequences changes in addition."""

    @property
    def elements(self) -> int:
        return sum(parameter.numel() for parameter in self.parameters)

    def next_batch(self, workers: int | None = None) -> np.ndarray:
        """Return the next sequences of all, or of `workers`, workers: (workers × sequences, SEQUENCE
        + 1)."""
        count = (self.setting.workers if workers is None else workers) * self.setting.sequences
        starts = self.order.integers(0, len(self.text) - SEQUENCE - 1, count)
        return windows(self.text, starts)

    def gradients(self, batch: np.ndarray) -> list[torch.Tensor]:
        for parameter in self.parameters:
            parameter.grad = None
        self._loss(batch).backward()
        return [p.grad if p.grad is not None else torch.zeros_like(p) for p in self.parameters]

    @torch.no_grad()
    def evaluate(self) -> float:
        """Return the held-out nats per byte."""
        parts = np.array_split(self._heldout, 8)
        return sum(float(self._loss(part)) * len(part) for part in parts) / len(self._heldout)

    def _loss(self, batch: np.ndarray) -> torch.Tensor:
        tokens = torch.from_numpy(batch.astype(np.int64)).to(self.device)
        logits = self.model(input_ids=tokens[:, :-1], use_cache=False).logits
        return torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())


def train(
    variant: Variant,
    trouble: Trouble,
    trial: Trial,
    progress: Callable[[int, float], None],
    going: Going | None = None,
) -> Run:
    """Train one variant to the end. With `going` it can be interrupted, if nothing is to go wrong."""
    if going is not None and trouble != Trouble():
        raise ValueError("a run in which something goes wrong cannot be taken up again")
    going = going or Going(None, {})
    setting = trial.setting
    rounds = round(setting.steps / (1 - trouble.absent)) if trouble.again else setting.steps
    schedule = default_schedule(variant.rate, rounds)
    step: _Step
    if isinstance(variant.optimizer, OptimizerSpec):
        step = _DistroStep(variant.optimizer, variant.state, trouble, trial)
    else:
        step = _DenseStep(variant.optimizer, trouble, trial)
    parts = [trial, step]
    stand = going.take_up(parts, trial.order) or Stand(curve=[(0, trial.evaluate())])
    tally, curve = Tally(**stand.tally), stand.curve
    for number in range(stand.number + 1, rounds + 1):
        tally.add(step(learning_rate(schedule, number), number))
        if number % max(1, rounds // 10) == 0:
            curve.append((number, trial.evaluate()))
            progress(*curve[-1])
        going.keep(Stand(number, curve, asdict(tally)), parts, trial.order)
    dense = 2.0 * trial.elements * (setting.workers - 1)
    mean = tally.received / rounds
    described = {
        "parameters": trial.elements,
        "schedule": asdict(schedule),
        **known_settings(variant, trouble, setting),
        "audit": {name: value for name, value in asdict(tally).items() if name != "received"},
    }
    name = run_name(variant, trouble)
    return Run(name, curve[-1][1], mean, dense / mean if mean else 1.0, described, curve)


def default_schedule(peak: float, rounds: int) -> ScheduleSpec:
    """Return the schedule of all these runs: a warm-up, a plateau, and a linear decay over the
    second half."""
    return ScheduleSpec(
        peak=peak,
        warmup_rounds=min(20, rounds // 4),
        total_rounds=rounds,
        decay_rounds=rounds // 2,
        final=0.1,
    )


def run_name(variant: Variant, trouble: Trouble) -> str:
    """Return a run's name: its variant, and in brackets what goes wrong."""
    return f"{variant.name}{_in_words(trouble)}"


def known_settings(variant: Variant, trouble: Trouble, setting: Setting) -> dict[str, Any]:
    """Return the settings of a run that are known before it begins."""
    known = {
        "rate": variant.rate,
        **asdict(setting),
        "optimizer": asdict(variant.optimizer),
        "trouble": asdict(trouble),
    }
    # Finds runs from before there was a choice.
    return known if variant.state == IN_FLOAT32 else known | {"state": asdict(variant.state)}


class _Step(Part, Protocol):
    """The step of a round, and the state that all members have for it."""

    def __call__(self, rate: float, number: int) -> Tally:
        """Make round `number` at a learning rate; return its cost."""
        ...


class _DenseStep(_Step):
    """Dense averaging."""

    def __init__(self, spec: AdamW | Muon, trouble: Trouble, trial: Trial) -> None:
        self._trouble = trouble
        self._trial = trial
        self._optimizers = dense_optimizers(spec, trial.table, trial.parameters)
        self._chance = np.random.default_rng(trial.setting.seed + 1)

    def held(self) -> list[torch.Tensor]:
        return tensors_of(optimizer for optimizer, _ in self._optimizers)

    def stands_after(self, number: int) -> None:
        """Do nothing: the optimizers' step counts are in their tensors."""

    def __call__(self, rate: float, number: int) -> Tally:
        trial = self._trial
        shares = _shares(trial, self._trouble, self._chance)
        # The mean over all present members is the gradient of all their sequences at once.
        gradients = trial.gradients(np.concatenate(list(shares.values())))
        for parameter, gradient in zip(trial.parameters, gradients, strict=True):
            parameter.grad = gradient
        for optimizer, factor in self._optimizers:
            optimizer.param_groups[0]["lr"] = factor * rate
            optimizer.step()
        return Tally(received=2.0 * trial.elements * (trial.setting.workers - 1))


class _DistroStep(_Step):
    """The program's step."""

    def __init__(
        self, spec: OptimizerSpec, state: StateOptions, trouble: Trouble, trial: Trial
    ) -> None:
        self._spec = spec
        self._trouble = trouble
        self._trial = trial
        self._layout = update_layout(trial.table, spec.chunk, spec.top_k)
        self._workers = [
            LocalOptimizer(self._layout, trial.parameters, spec, state)
            for _ in range(trial.setting.workers)
        ]
        self._parameters = [parameter.data for parameter in trial.parameters]
        self._stale = _Stale(self._parameters)
        self._chance = np.random.default_rng(trial.setting.seed + 1)
        self._record: list[DecodedUpdate] = []

    def held(self) -> list[torch.Tensor]:
        return [
            part
            for worker in self._workers
            for states in (worker.coefficients, *worker.by_rows.values())
            for state in states
            for part in state.parts().values()
        ]

    def stands_after(self, number: int) -> None:
        for worker in self._workers:
            worker.steps = number

    def __call__(self, rate: float, number: int) -> Tally:
        spec, trouble, trial, layout = self._spec, self._trouble, self._trial, self._layout
        count = trial.setting.workers
        shares = _shares(trial, trouble, self._chance)
        late = set(self._chance.permutation(count)[: round(trouble.late * count)].tolist())
        if trouble.overlap:
            self._stale.swap()
        sent: list[DecodedUpdate] = []
        lies: list[bool] = []
        for index, share in shares.items():
            worker = self._workers[index]
            worker.accumulate(trial.gradients(share))
            taken = worker.take(number)
            if index in late:
                worker.refund(number)
                continue
            worker.forget(number)
            lies.append(index < round(trouble.flipped * count))
            signs = [-sign for sign in taken.signs] if lies[-1] else taken.signs
            sent.append(DecodedUpdate(taken.positions, signs))
        if trouble.overlap:
            self._stale.swap()
            self._stale.keep()
        left_out = contradicted(layout, sent, number) if spec.outlier_filter else set()
        updates = [update for index, update in enumerate(sent) if index not in left_out]
        # With overlap an update is taken before the previous round's record exists.
        heard, self._record = self._record if trouble.overlap else updates, updates
        for worker in self._workers:
            worker.yield_to(heard)
        apply_step(self._parameters, layout, updates, rate, spec.weight_decay, step=spec.step)
        tally = Tally(
            lies=sum(lies),
            lies_left_out=sum(lies[index] for index in left_out),
            honest=len(lies) - sum(lies),
            honest_left_out=sum(not lies[index] for index in left_out),
        )
        if sent:
            weighed = sent[number % len(sent)]
            size = len(encode_update(layout, weighed.positions, weighed.signs))
            tally.received = size * len(sent) * (count - 1) / count
        return tally


def _shares(trial: Trial, trouble: Trouble, chance: np.random.Generator) -> dict[int, np.ndarray]:
    """Return the sequences of this round by member, for the members that are present."""
    count = trial.setting.workers
    absent = chance.permutation(count)[: round(trouble.absent * count)].tolist()
    present = sorted(set(range(count)) - set(absent))
    if trouble.again:
        batch = trial.next_batch(len(present))
        return dict(zip(present, np.array_split(batch, len(present)), strict=True))
    shares = np.array_split(trial.next_batch(), count)
    return {index: shares[index] for index in present}


class _Stale:
    """The parameters of the round before, to compute gradients on."""

    def __init__(self, parameters: Sequence[torch.Tensor]) -> None:
        self._parameters = parameters
        self._old = [parameter.clone() for parameter in parameters]

    def swap(self) -> None:
        """Exchange the old and the new ones."""
        for parameter, old in zip(self._parameters, self._old, strict=True):
            new = parameter.clone()
            parameter.copy_(old)
            old.copy_(new)

    def keep(self) -> None:
        """Store the new ones as the old ones of the next round."""
        for parameter, old in zip(self._parameters, self._old, strict=True):
            old.copy_(parameter)


def percent_apart(losses: Sequence[float], beside: Sequence[float]) -> tuple[float, float]:
    """Return the mean of the differences, seed by seed, in per cent of the loss, and its standard
    error."""
    shares = [100 * (loss / other - 1) for loss, other in zip(losses, beside, strict=True)]
    error = statistics.stdev(shares) / math.sqrt(len(shares)) if len(shares) > 1 else math.nan
    return statistics.fmean(shares), error


def read_corpus(
    paths: Sequence[Path], heldout_paths: Sequence[Path]
) -> tuple[np.ndarray, np.ndarray]:
    """Return training and held-out bytes.

    Held out are the files of `heldout_paths`; without them every twentieth file by the hash of its
    content; with fewer than twenty files the last twentieth of each.
    """
    train = [file.read_bytes() for file in _files(paths)]
    if heldout_paths:
        heldout = [file.read_bytes() for file in _files(heldout_paths)]
    elif len(train) < 20:
        cuts = [len(text) * 19 // 20 for text in train]
        heldout = [text[cut:] for text, cut in zip(train, cuts, strict=True)]
        train = [text[:cut] for text, cut in zip(train, cuts, strict=True)]
    else:
        held = [hashlib.sha256(text).digest()[0] < 13 for text in train]
        heldout = [text for text, out in zip(train, held, strict=True) if out]
        train = [text for text, out in zip(train, held, strict=True) if not out]
    return _joined(train), _joined(heldout)


def _files(paths: Sequence[Path]) -> Iterator[Path]:
    for path in paths:
        if path.is_file():
            yield path
            continue
        for file in sorted(path.rglob("*")):
            # The packages installed in the standard library's folder differ between machines.
            inside = file.relative_to(path).parts
            if file.suffix in SUFFIXES and file.is_file() and "site-packages" not in inside:
                yield file


def _joined(texts: Sequence[bytes]) -> np.ndarray:
    return np.frombuffer(b"".join(texts), dtype=np.uint8)


def _model(setting: Setting) -> dict[str, Any]:
    """Return a byte-level Llama; all sizes are multiples of 64, so that blocks are whole as in large
    models."""
    return {
        "model_type": "llama",
        "vocab_size": 256,
        "hidden_size": setting.hidden,
        "intermediate_size": 3 * setting.hidden,
        "num_hidden_layers": setting.layers,
        "num_attention_heads": setting.hidden // 32,
        "num_key_value_heads": setting.hidden // 32,
        "max_position_embeddings": SEQUENCE,
        "tie_word_embeddings": False,
    }


def _table(config: dict[str, Any]) -> list[ParameterSpec]:
    from transformers import AutoConfig, AutoModelForCausalLM

    settings = {key: value for key, value in config.items() if key != "model_type"}
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(config["model_type"], **settings))
    return [ParameterSpec(name=n, shape=tuple(p.shape)) for n, p in model.named_parameters()]


def windows(text: np.ndarray, starts: np.ndarray) -> np.ndarray:
    """Return a sample from each of these places: (len(starts), SEQUENCE + 1)."""
    return text[starts[:, None] + np.arange(SEQUENCE + 1)]


def _in_words(trouble: Trouble) -> str:
    """Return the suffix of a variant's name; empty if nothing goes wrong."""
    words = [
        name if value is True else f"{name} {value:g}"
        for name, value in asdict(trouble).items()
        if value
    ]
    return f" [{', '.join(words)}]" if words else ""
