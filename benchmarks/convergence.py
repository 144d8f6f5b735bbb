"""Learning at equal tokens: AdamW with dense averaging beside DisTrO variants, and the bytes of each.

    python benchmarks/convergence.py [--workers 8] [--steps 200] [--corpus PATH…] [--variants …]
                                     [--seeds 1] [--device cpu] [--json FILE] [--plot FILE]

The members are simulated in one process, with the program's own optimizer, codec and shared step. All
runs of a seed read the same sequences in the same order. Bytes are counted as the DisTrO report counts
them: a bf16 all-reduce receives 2 bytes × parameters × (members - 1) a round, ours one update of each
other member. The held-out files are never trained on.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sysconfig
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
import torch
from distro_node.node.trainer.exact import apply_step
from distro_node.node.trainer.model import build_model, ordered_parameters
from distro_node.node.trainer.optimizer import LocalOptimizer
from distro_node.protocol.manifest import OptimizerSpec, ParameterSpec, ScheduleSpec
from distro_node.protocol.schedule import learning_rate
from distro_node.protocol.update import decode_update, encode_update, update_layout

SEQUENCE = 128
HELDOUT_SEQUENCES = 256

MODEL = {
    "model_type": "llama",
    "vocab_size": 256,
    "hidden_size": 128,
    "intermediate_size": 344,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "max_position_embeddings": SEQUENCE,
    "tie_word_embeddings": False,
}


@dataclass(frozen=True)
class Variant:
    """One way to train. `optimizer` is None for AdamW with dense averaging."""

    name: str
    rate: float
    optimizer: OptimizerSpec | None


# The rates are the best of 1e-3, 2e-3 (AdamW: 3e-3) and 4e-3 at the default setting; k 32 had 2e-3 only.
VARIANTS = {
    "adamw": Variant("AdamW, dense", 1e-3, None),
    "demo": Variant(
        "DeMo / Psyche: k 8, β 0.999, no preconditioner",
        4e-3,
        OptimizerSpec(momentum=0.999, preconditioner="none"),
    ),
    "plain": Variant(
        "k 8, β 0.95, no preconditioner", 2e-3, OptimizerSpec(momentum=0.95, preconditioner="none")
    ),
    "ours": Variant("ours: k 8, β 0.95, rms", 1e-3, OptimizerSpec()),
    "ours-32": Variant("ours: k 32, β 0.95, rms", 2e-3, OptimizerSpec(top_k=32)),
}


@dataclass(frozen=True, kw_only=True)
class Setting:
    """What all runs of a comparison share."""

    workers: int
    sequences: int
    steps: int
    seed: int
    device: str


@dataclass
class Run:
    """What came of one variant."""

    name: str
    heldout_loss: float
    received_bytes_per_round: float
    reduction: float
    settings: dict[str, object]
    curve: list[tuple[int, float]]


def read_corpus(paths: Sequence[Path]) -> tuple[np.ndarray, np.ndarray]:
    """Training and held-out bytes; every twentieth file, by the hash of its content, is held out.

    A single file gives its last twentieth.
    """
    files = sorted(f for path in paths for f in ([path] if path.is_file() else path.rglob("*.py")))
    contents = [file.read_bytes() for file in files]
    if len(contents) == 1:
        cut = len(contents[0]) * 19 // 20
        parts = [contents[0][:cut]], [contents[0][cut:]]
    else:
        held = [hashlib.sha256(c).digest()[0] < 13 for c in contents]
        parts = (
            [c for c, h in zip(contents, held, strict=True) if not h],
            [c for c, h in zip(contents, held, strict=True) if h],
        )
    train, heldout = (np.frombuffer(b"".join(part), dtype=np.uint8) for part in parts)
    return train, heldout


class Trial:
    """One model under training: the same data order for every variant of a seed."""

    def __init__(self, setting: Setting, train: np.ndarray, heldout: np.ndarray) -> None:
        torch.manual_seed(setting.seed)
        self.setting = setting
        self.device = torch.device(setting.device)
        self.table = _table()
        self.model = build_model(MODEL, self.table, self.device)
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
        logits = self.model(input_ids=tokens[:, :-1]).logits
        return torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())


def train(variant: Variant, trial: Trial, progress: Callable[[int, float], None]) -> Run:
    """Train one variant to the end."""
    setting = trial.setting
    schedule = ScheduleSpec(
        peak=variant.rate,
        warmup_rounds=min(20, setting.steps // 4),
        total_rounds=setting.steps,
        decay_rounds=setting.steps // 2,
        final=0.1,
    )
    step = (
        _dense_step(trial) if variant.optimizer is None else _distro_step(variant.optimizer, trial)
    )
    received = 0.0
    curve = [(0, trial.evaluate())]
    for number in range(1, setting.steps + 1):
        received += step(learning_rate(schedule, number), number)
        if number % max(1, setting.steps // 10) == 0:
            curve.append((number, trial.evaluate()))
            progress(*curve[-1])
    dense = 2.0 * trial.elements * (setting.workers - 1)
    mean = received / setting.steps
    described = {"rate": variant.rate, "schedule": asdict(schedule), **asdict(setting)}
    if variant.optimizer is not None:
        described["optimizer"] = asdict(variant.optimizer)
    return Run(variant.name, curve[-1][1], mean, dense / mean if mean else 1.0, described, curve)


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


def _distro_step(spec: OptimizerSpec, trial: Trial) -> Callable[[float, int], float]:
    layout = update_layout(trial.table, spec.chunk, spec.top_k)
    workers = [LocalOptimizer(layout, trial.parameters, spec) for _ in range(trial.setting.workers)]

    def step(rate: float, number: int) -> float:
        bodies = []
        for worker, share in zip(
            workers, np.array_split(trial.next_batch(), len(workers)), strict=True
        ):
            worker.accumulate(trial.gradients(share))
            taken = worker.take(number)
            bodies.append(encode_update(layout, taken.positions, taken.signs))
            worker.forget(number)
        updates = [decode_update(layout, body) for body in bodies]
        apply_step([p.data for p in trial.parameters], layout, updates, rate, spec.weight_decay)
        return sum(map(len, bodies)) * (len(workers) - 1) / len(workers)

    return step


def _table() -> list[ParameterSpec]:
    from transformers import AutoConfig, AutoModelForCausalLM

    settings = {key: value for key, value in MODEL.items() if key != "model_type"}
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model("llama", **settings))
    return [ParameterSpec(name=n, shape=tuple(p.shape)) for n, p in model.named_parameters()]


def _windows(text: np.ndarray, starts: np.ndarray) -> np.ndarray:
    return text[starts[:, None] + np.arange(SEQUENCE + 1)]


def main() -> None:
    parser = argparse.ArgumentParser(description="Held-out loss and bytes of DisTrO beside AdamW.")
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--sequences", type=int, default=2, help="a worker's sequences each round")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--seeds", type=int, default=1, help="so many runs of each variant")
    parser.add_argument("--corpus", type=Path, nargs="*", help="files or directories of text")
    parser.add_argument("--variants", nargs="*", choices=list(VARIANTS), default=list(VARIANTS))
    parser.add_argument("--rate", type=float, help="the peak learning rate of all variants")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--plot", type=Path, metavar="FILE")
    options = parser.parse_args()
    if options.device == "cpu":
        torch.set_num_threads(1)
    text, heldout = read_corpus(options.corpus or [Path(sysconfig.get_paths()["stdlib"])])
    runs: list[Run] = []
    for seed in range(options.seeds):
        for name in options.variants:
            variant = VARIANTS[name]
            if options.rate:
                variant = replace(variant, rate=options.rate)
            setting = Setting(
                workers=options.workers,
                sequences=options.sequences,
                steps=options.steps,
                seed=seed,
                device=options.device,
            )
            began = time.monotonic()
            runs.append(
                train(
                    variant,
                    Trial(setting, text, heldout),
                    lambda n, loss, v=variant: print(f"  {v.name}: round {n}, held-out {loss:.3f}"),
                )
            )
            print(f"{variant.name}, seed {seed}: {time.monotonic() - began:.0f} s", flush=True)
    print(f"\n{'variant':50} {'held-out':>9} {'received/round':>15} {'reduction':>10}")
    for run in runs:
        print(
            f"{run.name:50} {run.heldout_loss:9.3f} {run.received_bytes_per_round:13,.0f} B "
            f"{run.reduction:9.0f}×"
        )
    if options.json:
        options.json.write_text(
            json.dumps({"runs": [asdict(run) for run in runs]}, indent=1) + "\n"
        )
    if options.plot:
        _plot(options.plot, runs)


def _plot(path: Path, runs: Sequence[Run]) -> None:
    """Loss against tokens, and against bytes received."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (by_tokens, by_bytes) = pyplot.subplots(1, 2, figsize=(14, 6), sharey=True)
    for run in runs:
        setting = run.settings
        tokens = int(setting["workers"]) * int(setting["sequences"]) * SEQUENCE  # type: ignore[call-overload]  # integers, by `Setting`
        losses = [loss for _, loss in run.curve]
        by_tokens.plot([step * tokens for step, _ in run.curve], losses, label=run.name)
        received = [step * run.received_bytes_per_round for step, _ in run.curve]
        by_bytes.plot(received[1:], losses[1:], label=run.name)
    by_tokens.set(xlabel="tokens", ylabel="held-out loss (nats per byte)")
    by_bytes.set(xlabel="bytes received by a member", xscale="log")
    by_tokens.legend()
    figure.tight_layout()
    figure.savefig(path)


if __name__ == "__main__":
    main()
