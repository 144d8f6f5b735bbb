"""Learning at equal tokens: AdamW with dense averaging beside DisTrO variants, and the bytes of each.

    python benchmarks/convergence.py [--workers 8] [--sequences 2] [--steps 400] [--seeds 0 …]
        [--hidden 128] [--layers 4] [--corpus PATH…] [--heldout PATH…] [--variants …] [--rate RATE]
        [--overlap] [--flipped SHARE] [--late SHARE] [--absent SHARE]
        [--device cpu] [--json FILE] [--plot FILE]

The members are simulated in one process, with the program's own optimizer, codec and shared step; the
codec loses nothing, so only one member's update a round, in turn, is encoded, for its size. All runs of
a seed read the same sequences in the same order. Bytes are counted as the DisTrO report counts them: a
bf16 all-reduce receives 2 bytes × parameters × (members - 1) a round, ours one update of each other
member. The held-out text is never trained on.

For each of the troubles of the third line every DisTrO variant is trained once more, beside without.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sysconfig
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from distro_node.node.trainer.exact import apply_step
from distro_node.node.trainer.model import build_model, ordered_parameters
from distro_node.node.trainer.optimizer import LocalOptimizer
from distro_node.protocol.manifest import OptimizerSpec, ParameterSpec, ScheduleSpec
from distro_node.protocol.schedule import learning_rate
from distro_node.protocol.update import DecodedUpdate, encode_update, update_layout

SEQUENCE = 128
HELDOUT_SEQUENCES = 256
SUFFIXES = (".py", ".txt", ".md")


@dataclass(frozen=True, kw_only=True)
class Variant:
    """One way to train. `optimizer` is None for AdamW with dense averaging."""

    name: str
    rate: float
    optimizer: OptimizerSpec | None = None


VARIANTS = {
    "adamw": Variant(name="AdamW, dense", rate=2e-3),
    "demo": Variant(
        name="DeMo / Psyche: k 8, β 0.999, not preconditioned",
        rate=4e-3,
        optimizer=OptimizerSpec(momentum=0.999, preconditioner="none"),
    ),
    "rms": Variant(
        name="k 8, β 0.95, rms", rate=2e-3, optimizer=OptimizerSpec(preconditioner="rms")
    ),
    "rms-damped": Variant(
        name="k 8, β 0.95, rms, damped",
        rate=2e-3,
        optimizer=OptimizerSpec(preconditioner="rms", damping=0.5),
    ),
    "damped": Variant(name="ours, damped", rate=4e-3, optimizer=OptimizerSpec(damping=0.5)),
    "ours": Variant(name="ours: k 8, β 0.95, orthogonal", rate=4e-3, optimizer=OptimizerSpec()),
    "ours-7": Variant(name="ours with k 7", rate=4e-3, optimizer=OptimizerSpec(top_k=7)),
    "ours-6": Variant(name="ours with k 6", rate=4e-3, optimizer=OptimizerSpec(top_k=6)),
}


@dataclass(frozen=True, kw_only=True)
class Trouble:
    """What goes wrong in every round; members are drawn anew each time, but liars stay liars."""

    overlap: bool = False
    """Gradients are computed on parameters one round old."""
    flipped: float = 0.0
    """Share of the members that send the opposite of every sign."""
    late: float = 0.0
    """Share of the members whose update misses the round and goes back into their momentum."""
    absent: float = 0.0
    """Share of the members that compute nothing and send nothing."""


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
    def of(options: argparse.Namespace, seed: int) -> Setting:
        """What the command line says, with one of its seeds."""
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
    """What came of one variant."""

    name: str
    heldout_loss: float
    received_bytes_per_round: float
    reduction: float
    settings: dict[str, Any]
    curve: list[tuple[int, float]]


class Trial:
    """One model under training: the same data order for every variant of a seed."""

    def __init__(self, setting: Setting, train: np.ndarray, heldout: np.ndarray) -> None:
        torch.manual_seed(setting.seed)
        self.setting = setting
        self.device = torch.device(setting.device)
        config = _model(setting)
        self.table = _table(config)
        self.model = build_model(config, self.table, self.device)
        self.parameters = ordered_parameters(self.model, self.table)
        with torch.no_grad():
            for parameter in self.parameters:
                # As transformers draws them: norms at one, all else from N(0, 0.02).
                parameter.copy_(
                    torch.ones(parameter.shape)
                    if parameter.dim() == 1
                    else torch.randn(parameter.shape) * 0.02
                )
        self._train = train
        self._order = np.random.default_rng(setting.seed)
        stride = (len(heldout) - SEQUENCE - 1) // HELDOUT_SEQUENCES
        self._heldout = _windows(heldout, np.arange(HELDOUT_SEQUENCES) * stride)

    @property
    def elements(self) -> int:
        return sum(parameter.numel() for parameter in self.parameters)

    def next_batch(self) -> np.ndarray:
        """The next sequences of all workers: (workers × sequences, SEQUENCE + 1)."""
        count = self.setting.workers * self.setting.sequences
        starts = self._order.integers(0, len(self._train) - SEQUENCE - 1, count)
        return _windows(self._train, starts)

    def gradients(self, batch: np.ndarray) -> list[torch.Tensor]:
        for parameter in self.parameters:
            parameter.grad = None
        self._loss(batch).backward()
        return [p.grad if p.grad is not None else torch.zeros_like(p) for p in self.parameters]

    @torch.no_grad()
    def evaluate(self) -> float:
        """Held-out nats a byte."""
        parts = np.array_split(self._heldout, 8)
        return sum(float(self._loss(part)) * len(part) for part in parts) / len(self._heldout)

    def _loss(self, batch: np.ndarray) -> torch.Tensor:
        tokens = torch.from_numpy(batch.astype(np.int64)).to(self.device)
        logits = self.model(input_ids=tokens[:, :-1], use_cache=False).logits
        return torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())


def train(
    variant: Variant, trouble: Trouble, trial: Trial, progress: Callable[[int, float], None]
) -> Run:
    """Train one variant to the end."""
    setting = trial.setting
    schedule = ScheduleSpec(
        peak=variant.rate,
        warmup_rounds=min(20, setting.steps // 4),
        total_rounds=setting.steps,
        decay_rounds=setting.steps // 2,
        final=0.1,
    )
    if variant.optimizer is None:
        step = _dense_step(trial)
    else:
        step = _distro_step(variant.optimizer, trouble, trial)
    received = 0.0
    curve = [(0, trial.evaluate())]
    for number in range(1, setting.steps + 1):
        received += step(learning_rate(schedule, number), number)
        if number % max(1, setting.steps // 10) == 0:
            curve.append((number, trial.evaluate()))
            progress(*curve[-1])
    dense = 2.0 * trial.elements * (setting.workers - 1)
    mean = received / setting.steps
    described = {
        "rate": variant.rate,
        "parameters": trial.elements,
        "schedule": asdict(schedule),
        **asdict(setting),
    }
    if variant.optimizer is not None:
        described |= {"optimizer": asdict(variant.optimizer), "trouble": asdict(trouble)}
    name = f"{variant.name}{_in_words(trouble)}"
    return Run(name, curve[-1][1], mean, dense / mean if mean else 1.0, described, curve)


def _dense_step(trial: Trial) -> Callable[[float, int], float]:
    optimizer = torch.optim.AdamW(trial.parameters, lr=0.0, betas=(0.9, 0.95), weight_decay=0.0)

    def step(rate: float, number: int) -> float:
        optimizer.param_groups[0]["lr"] = rate
        # The mean over all workers is the gradient of all their sequences at once.
        for parameter, gradient in zip(
            trial.parameters, trial.gradients(trial.next_batch()), strict=True
        ):
            parameter.grad = gradient
        optimizer.step()
        return 2.0 * trial.elements * (trial.setting.workers - 1)

    return step


def _distro_step(
    spec: OptimizerSpec, trouble: Trouble, trial: Trial
) -> Callable[[float, int], float]:
    count = trial.setting.workers
    layout = update_layout(trial.table, spec.chunk, spec.top_k)
    workers = [LocalOptimizer(layout, trial.parameters, spec) for _ in range(count)]
    parameters = [parameter.data for parameter in trial.parameters]
    stale = _Stale(parameters)
    chance = np.random.default_rng(trial.setting.seed + 1)
    record: list[DecodedUpdate] = []

    def step(rate: float, number: int) -> float:
        nonlocal record
        shares = np.array_split(trial.next_batch(), count)
        absent = set(chance.permutation(count)[: round(trouble.absent * count)].tolist())
        late = set(chance.permutation(count)[: round(trouble.late * count)].tolist())
        if trouble.overlap:
            stale.swap()
        updates: list[DecodedUpdate] = []
        for index, worker in enumerate(workers):
            if index in absent:
                continue
            worker.accumulate(trial.gradients(shares[index]))
            taken = worker.take(number)
            if index in late:
                worker.refund(number)
                continue
            worker.forget(number)
            lies = index < round(trouble.flipped * count)
            signs = [-sign for sign in taken.signs] if lies else taken.signs
            updates.append(DecodedUpdate(taken.positions, signs))
        if trouble.overlap:
            stale.swap()
            stale.keep()
        # With overlap an update is taken before the record of the round before is there.
        heard, record = record if trouble.overlap else updates, updates
        for worker in workers:
            worker.yield_to(heard)
        apply_step(parameters, layout, updates, rate, spec.weight_decay)
        if not updates:
            return 0.0
        weighed = updates[number % len(updates)]
        size = len(encode_update(layout, weighed.positions, weighed.signs))
        return size * len(updates) * (count - 1) / count

    return step


class _Stale:
    """The parameters of a round ago, to compute gradients on."""

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
        """What is new now is old in the next round."""
        for parameter, old in zip(self._parameters, self._old, strict=True):
            old.copy_(parameter)


def read_corpus(
    paths: Sequence[Path], heldout_paths: Sequence[Path]
) -> tuple[np.ndarray, np.ndarray]:
    """Training and held-out bytes.

    What is held out: the files of `heldout_paths`; without them every twentieth file by the hash of
    its content; of fewer than twenty files the last twentieth of each.
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
            # What is installed beside the standard library differs from one machine to the next.
            inside = file.relative_to(path).parts
            if file.suffix in SUFFIXES and file.is_file() and "site-packages" not in inside:
                yield file


def _joined(texts: Sequence[bytes]) -> np.ndarray:
    return np.frombuffer(b"".join(texts), dtype=np.uint8)


def _model(setting: Setting) -> dict[str, Any]:
    """A byte-level Llama; multiples of 64 everywhere, so that blocks are whole as in large models."""
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


def _windows(text: np.ndarray, starts: np.ndarray) -> np.ndarray:
    return text[starts[:, None] + np.arange(SEQUENCE + 1)]


def _in_words(trouble: Trouble) -> str:
    """Behind a variant's name; nothing where nothing goes wrong."""
    words = [f"{name} {value:g}" for name, value in asdict(trouble).items() if value > 0]
    return f" [{', '.join(words)}]".replace("overlap 1", "overlap") if words else ""


def main() -> None:
    parser = argparse.ArgumentParser(description="Held-out loss and bytes of DisTrO beside AdamW.")
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--sequences", type=int, default=2, help="a worker's sequences each round")
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--hidden", type=int, default=128, help="a multiple of 64")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--corpus", type=Path, nargs="+", help="files or directories of text")
    parser.add_argument("--heldout", type=Path, nargs="+", help="the same, never trained on")
    parser.add_argument("--variants", nargs="+", choices=list(VARIANTS), default=list(VARIANTS))
    parser.add_argument("--rate", type=float, help="the peak learning rate of all variants")
    parser.add_argument("--overlap", action="store_true", help="gradients a round late")
    parser.add_argument("--flipped", type=float, default=0.0, help="share of lying members")
    parser.add_argument("--late", type=float, default=0.0, help="share that misses each round")
    parser.add_argument("--absent", type=float, default=0.0, help="share away in each round")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--plot", type=Path, metavar="FILE")
    options = parser.parse_args()
    if options.device == "cpu":
        torch.set_num_threads(1)
    corpus = options.corpus or [Path(sysconfig.get_paths()["stdlib"])]
    text, heldout = read_corpus(corpus, options.heldout or [])
    wanted = {name: getattr(options, name) for name in asdict(Trouble())}
    troubles = [Trouble(), *(Trouble(**{name: value}) for name, value in wanted.items() if value)]
    runs: list[Run] = []
    for seed in options.seeds:
        setting = Setting.of(options, seed)
        for variant in (VARIANTS[name] for name in options.variants):
            if options.rate:
                variant = replace(variant, rate=options.rate)
            for trouble in troubles if variant.optimizer is not None else troubles[:1]:
                began = time.monotonic()
                trial = Trial(setting, text, heldout)
                run = train(
                    variant,
                    trouble,
                    trial,
                    lambda number, loss: print(
                        f"  round {number}, held-out {loss:.3f}", flush=True
                    ),
                )
                print(f"{run.name}, seed {seed}: {time.monotonic() - began:.0f} s", flush=True)
                runs.append(run)
                if options.json:
                    # After each run, so that a long comparison that is cut short is not lost.
                    document = {"runs": [asdict(run) for run in runs]}
                    options.json.write_text(json.dumps(document, indent=1) + "\n")
    _print_summary(runs)
    if options.plot:
        _plot(options.plot, runs)


def _print_summary(runs: Sequence[Run]) -> None:
    """The mean over the seeds, and what trouble cost."""
    print(f"\n{'variant':60} {'held-out':>9} {'runs':>5} {'received/round':>15} {'reduction':>10}")
    means: dict[str, float] = {}
    for name, group in _by_name(runs).items():
        means[name] = float(np.mean([run.heldout_loss for run in group]))
        received = np.mean([run.received_bytes_per_round for run in group])
        reduction = np.mean([run.reduction for run in group])
        clean = means.get(name.partition(" [")[0], means[name])
        cost = f"  {means[name] / clean - 1:+.1%}" if means[name] != clean else ""
        print(
            f"{name:60} {means[name]:9.3f} {len(group):5} {received:13,.0f} B "
            f"{reduction:9.0f}×{cost}"
        )


def _by_name(runs: Sequence[Run]) -> dict[str, list[Run]]:
    groups: dict[str, list[Run]] = {}
    for run in runs:
        groups.setdefault(run.name, []).append(run)
    return groups


def _plot(path: Path, runs: Sequence[Run]) -> None:
    """Loss against tokens, and against bytes received; the mean over the seeds."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (by_tokens, by_bytes) = pyplot.subplots(1, 2, figsize=(14, 6), sharey=True)
    for name, group in _by_name(runs).items():
        setting = group[0].settings
        tokens = setting["workers"] * setting["sequences"] * SEQUENCE
        steps = np.array([step for step, _ in group[0].curve])
        losses = np.mean([[loss for _, loss in run.curve] for run in group], axis=0)
        received = steps * np.mean([run.received_bytes_per_round for run in group])
        by_tokens.plot(steps * tokens, losses, label=name)
        by_bytes.plot(received[1:], losses[1:], label=name)
    by_tokens.set(xlabel="tokens", ylabel="held-out loss (nats per byte)")
    by_bytes.set(xlabel="bytes received by a member", xscale="log")
    by_tokens.legend()
    figure.tight_layout()
    figure.savefig(path)


if __name__ == "__main__":
    main()
