"""Preference tuning by the program (`dpo`), beside plain torch and AdamW on the same pairs.

    python benchmarks/preferences.py [--members N] [--rounds N] [--pairs N] [--seeds SEED …]
        [--steps N] [--trl] [--json FILE]

A small model first learns the bytes of Python's standard library. Then it learns to prefer the bytes
that really follow in a file to the same words in another order. The program trains in several members,
each a session of the trainer with a part of a round's pairs; the peer is a loop of plain torch with a
second model as the reference, AdamW and dense gradients. Both read the same pairs in the same order.
`--trl` adds the trainer of the package `trl`, which reads them in an order of its own, with a token that
ends each answer; it need not be installed otherwise.

Each is tried at several learning rates with seed 0, which is not reported, and measured with the other
seeds at the best. A held-out pair counts as right if the tuned model prefers the real text by more than
the initial model does (the "reward accuracy" of `trl`).
"""

from __future__ import annotations

import copy
import importlib
import math
import random
import statistics
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from command_line import new_parser, write_json
from distro_node.crypto.identity import PeerId
from distro_node.node.create.tokens import ByteTokenizer
from distro_node.node.storage.blob_store import BlobStore
from distro_node.node.trainer.models.initial_parameters import initialise
from distro_node.node.trainer.models.model import model_config, new_model
from distro_node.node.trainer.training_session import TrainingSession
from distro_node.node.training.preference_pairs import PairLayout
from distro_node.protocol.codec.update import manifest_layout
from distro_node.protocol.wire.blobs import BlobList
from distro_node.protocol.wire.manifest import DataSpec, Manifest, ShardSpec
from learners.program import OPTIMIZERS
from learners.trial import digest, standard_library
from tokenizers import Tokenizer
from torch.nn import functional
from transformers import PreTrainedTokenizerFast

TORCH, OURS, TRL = "plain AdamW", "the program", "trl"
CPU = torch.device("cpu")
CONFIG: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 192,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "vocab_size": 256,
    "max_position_embeddings": 65,
    "tie_word_embeddings": True,
}
PROMPT, ANSWER = 24, 40
LAYOUT = PairLayout(2 * (PROMPT + ANSWER) + 2, 2)
BEGIN, LEARNED = 1 << 15, 1 << 14
BETA = 0.1
HELDOUT = 512
OUR_RATES = (1e-3, 2e-3, 4e-3)
ADAMW_RATES = (3e-4, 1e-3, 3e-3)


@dataclass(frozen=True)
class Measured:
    """What one run learned, over the held-out pairs."""

    loss: float
    gains: list[float]
    """For each pair, by how many nats the model prefers the real text more than at the start."""

    @property
    def accuracy(self) -> float:
        return statistics.fmean(gain > 0 for gain in self.gains)


def trained_base(text: np.ndarray, steps: int) -> Any:
    """Return a model trained on random pieces of text."""
    torch.manual_seed(0)
    model = new_model(model_config(CONFIG), CPU)
    chance = np.random.default_rng(0)
    optimizer = torch.optim.AdamW(model.parameters(), 3e-3, weight_decay=0.01)
    length = PROMPT + ANSWER
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = rate_at(3e-3, step, steps)
        starts = chance.integers(0, len(text) - length, 32)
        batch = torch.from_numpy(np.stack([text[s : s + length] for s in starts]).astype(np.int64))
        logits = model(input_ids=batch[:, :-1]).logits
        loss = functional.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model.eval()


def rate_at(peak: float, step: int, steps: int) -> float:
    """Return the learning rate: up over a tenth of the steps, then down in a straight line."""
    rising = max(1, steps // 10)
    return peak * min((step + 1) / rising, 1 - 0.9 * step / steps)


def rows_of(text: np.ndarray, count: int, seed: int) -> np.ndarray:
    """Return stored pairs: a prompt, what follows, and the same words in another order."""
    chance, rows = random.Random(seed), []
    while len(rows) < count:
        start = chance.randrange(len(text) - PROMPT - ANSWER)
        asked, real = (
            text[start : start + PROMPT],
            text[start + PROMPT : start + PROMPT + ANSWER].tobytes(),
        )
        words = real.split(b" ")
        chance.shuffle(words)
        other = b" ".join(words)
        if other != real and (asked.tobytes() + real).isascii():
            halves = []
            for answer in (real, other):
                learned = np.frombuffer(answer, np.uint8).astype(np.uint32) | LEARNED
                half = np.concatenate([asked.astype(np.uint32), learned])
                half[0] |= BEGIN
                halves.append(half)
            rows.append(LAYOUT.row(halves[0], halves[1], 0, BEGIN))
    return np.stack(rows)


def stored(store: BlobStore, rows: np.ndarray, margins: np.ndarray) -> ShardSpec:
    numbers = np.append(LAYOUT.with_margins(rows, margins).reshape(-1), BEGIN).astype("<u2")
    data = numbers.tobytes()
    blobs = BlobList("shard", len(data), (store.put(data),))
    return ShardSpec(blob=store.put(blobs.encode()), tokens=len(numbers))


def margins_of(model: Any, rows: np.ndarray) -> torch.Tensor:
    """Return log p(real) - log p(other) of each pair, in plain torch."""
    halves = torch.from_numpy(LAYOUT.halves(rows).astype(np.int64))
    ids, learned = halves & (LEARNED - 1), (halves & LEARNED) != 0
    logits = model(input_ids=ids[:, :-1]).logits
    known = logits.log_softmax(-1).gather(2, ids[:, 1:, None])[..., 0]
    sums = (known * learned[:, 1:]).sum(1).view(-1, 2)
    return sums[:, 0] - sums[:, 1]


def measured(gains: torch.Tensor) -> Measured:
    return Measured(float(-functional.logsigmoid(BETA * gains).mean()), gains.tolist())


class Trial:
    """The pairs of one seed, and the model that both start from."""

    def __init__(self, base: Any, data: tuple[np.ndarray, np.ndarray], seed: int, count: int):
        self.base = base
        self.rows = rows_of(data[0], count, seed)
        self.held = rows_of(data[1], HELDOUT, 1 << 20)
        with torch.no_grad():
            self.start = margins_of(base, self.held)

    @torch.no_grad()
    def gains(self, model: Any) -> torch.Tensor:
        return margins_of(model.eval(), self.held) - self.start

    def adamw(self, rate: float, rounds: int, pairs: int) -> Measured:
        """Train by plain torch."""
        model = copy.deepcopy(self.base)
        optimizer = torch.optim.AdamW(model.parameters(), rate, weight_decay=0.0)
        for step in range(rounds):
            rows = self.rows[step * pairs : (step + 1) * pairs]
            with torch.no_grad():
                start = margins_of(self.base, rows)
            gained = margins_of(model.train(), rows) - start
            for group in optimizer.param_groups:
                group["lr"] = rate_at(rate, step, rounds)
            optimizer.zero_grad()
            (-functional.logsigmoid(BETA * gained).mean()).backward()
            optimizer.step()
        return measured(self.gains(model))

    def trl(self, rate: float, rounds: int, pairs: int) -> Measured:
        """Train by `trl`."""
        trl: Any = importlib.import_module("trl")
        datasets: Any = importlib.import_module("datasets")
        tokenizer = PreTrainedTokenizerFast(
            tokenizer_object=Tokenizer.from_str(ByteTokenizer().definition.decode()),
            eos_token="\u0100",
            pad_token="\u0101",
        )
        halves = LAYOUT.halves(self.rows)
        texts = [
            bytes((half[(half & LEARNED) != 0] & 255).astype(np.uint8)).decode("ascii")
            for half in halves
        ]
        asked = [
            bytes((half[:PROMPT] & 255).astype(np.uint8)).decode("ascii") for half in halves[::2]
        ]
        rows = {"prompt": asked, "chosen": texts[::2], "rejected": texts[1::2]}
        with tempfile.TemporaryDirectory() as folder:
            settings = trl.DPOConfig(
                output_dir=folder,
                per_device_train_batch_size=pairs,
                max_steps=rounds,
                learning_rate=rate,
                lr_scheduler_type="linear",
                warmup_steps=max(1, rounds // 10),
                weight_decay=0.0,
                beta=BETA,
                report_to=[],
                save_strategy="no",
                logging_strategy="no",
                use_cpu=True,
                bf16=False,
                gradient_checkpointing=False,
                disable_tqdm=True,
                seed=1,
            )
            trainer = trl.DPOTrainer(
                model=copy.deepcopy(self.base),
                ref_model=copy.deepcopy(self.base),
                args=settings,
                train_dataset=datasets.Dataset.from_dict(rows),
                processing_class=tokenizer,
            )
            trainer.train()
            return measured(self.gains(trainer.model))

    def ours(self, rate: float, rounds: int, pairs: int, members: int) -> tuple[Measured, int]:
        """Train by the program; return as well the bytes of an update."""
        with tempfile.TemporaryDirectory() as folder:
            return self._ours(Path(folder), rate, rounds, pairs, members)

    def _ours(
        self, root: Path, rate: float, rounds: int, pairs: int, members: int
    ) -> tuple[Measured, int]:
        store, checkpoint = BlobStore(root / "blobs"), root / "base"
        self.base.save_pretrained(checkpoint)
        made = initialise(CONFIG, 0, checkpoint, store, CPU)

        def manifest(*margins: np.ndarray) -> Manifest:
            shards = [
                stored(store, rows, each)
                for rows, each in zip((self.rows, self.held), margins, strict=True)
            ]
            return Manifest(
                name="preferences",
                task="dpo",
                task_settings={"beta": BETA},
                model=CONFIG,
                parameters=made.table,
                initial=store.put(made.blobs.encode()),
                data=DataSpec(
                    sequence_length=LAYOUT.sequence_length,
                    token_bytes=2,
                    vocabulary=256,
                    shards=(shards[0],),
                    heldout=shards[1],
                    tokenizer=store.put(b"{}"),
                    marked=True,
                ),
                optimizer=replace(OPTIMIZERS["default"]),
                founder=PeerId(bytes(32)),
            )

        def opened(spec: Manifest) -> TrainingSession:
            session = TrainingSession(spec, store, CPU)
            session.load(made.blobs.chunks)
            return session

        # As `create` does: the initial model's margins are stored with the pairs.
        counts = len(self.rows), len(self.held)
        first = opened(manifest(*map(np.zeros, counts)))
        found = [
            np.array(first.computation.margins(range(count), heldout=held))
            for held, count in zip((False, True), counts, strict=True)
        ]
        spec = manifest(*found)
        sessions = [opened(spec) for _ in range(members)]
        share = pairs // members
        for step in range(rounds):
            start = step * pairs
            bodies = [
                session.train(step + 1, range(start + n * share, start + (n + 1) * share)).body
                for n, session in enumerate(sessions)
            ]
            lr = rate_at(rate, step, rounds)
            states = {session.apply(step + 1, bodies, lr, True) for session in sessions}
            assert len(states) == 1, "the members' parameters differ"
        loss = sessions[0].computation.evaluate(HELDOUT)
        result = measured(self.gains(sessions[0].model))
        # The program's own loss, with stored margins, is that of plain torch.
        assert math.isclose(loss, result.loss, rel_tol=1e-3), (loss, result.loss)
        return result, manifest_layout(spec).body_bytes


def spread(values: Sequence[float]) -> tuple[float, float]:
    """Return the mean and its standard error."""
    error = statistics.stdev(values) / len(values) ** 0.5 if len(values) > 1 else math.nan
    return statistics.fmean(values), error


def main() -> None:
    parser = new_parser(__doc__)
    parser.add_argument("--members", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=32)
    parser.add_argument("--pairs", type=int, default=16, help="in a round, of all members")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--trl", action="store_true", help="train by trl, too")
    parser.add_argument("--steps", type=int, default=200, help="by which the start is trained")
    options = parser.parse_args()
    data = standard_library()
    base = trained_base(data[0], options.steps)
    count = options.rounds * options.pairs

    def trial(seed: int) -> Trial:
        return Trial(base, data, seed, count)

    elements = sum(each.numel() for each in base.parameters())
    print(
        f"{elements:,} parameters, {options.members} members, {options.rounds} rounds", flush=True
    )
    body = 0

    def run(at: Trial, rate: float, name: str) -> Measured:
        nonlocal body
        if name == TORCH:
            return at.adamw(rate, options.rounds, options.pairs)
        if name == TRL:
            return at.trl(rate, options.rounds, options.pairs)
        found, body = at.ours(rate, options.rounds, options.pairs, options.members)
        return found

    document: dict[str, Any] = {
        "data": digest(np.concatenate(data)),
        "options": {key: value for key, value in vars(options).items() if key != "json"},
        "parameters": elements,
        "beta": BETA,
        "heldout_pairs": HELDOUT,
        "rates": {},
        "loss_by_rate": {},
        "results": {},
        "differences": {},
    }
    kinds = [(OURS, OUR_RATES), (TORCH, ADAMW_RATES)]
    if options.trl:
        kinds.append((TRL, ADAMW_RATES))
    for name, rates in kinds:
        first = trial(0)
        losses = {rate: run(first, rate, name).loss for rate in rates}
        chosen = min(losses, key=lambda rate: losses[rate])
        document["rates"][name] = chosen
        document["loss_by_rate"][name] = {f"{rate:g}": loss for rate, loss in losses.items()}
        print(f"{name}: losses by rate {document['loss_by_rate'][name]}", flush=True)
        add(document, name, [run(trial(seed), chosen, name) for seed in options.seeds])
        document |= {
            "update_bytes": body,
            "gradient_bytes": 4 * elements,
            "times_fewer": 4 * elements / body,
        }
        # Written after each, since the last takes longest.
        write_json(options.json, document)
    fewer = document["times_fewer"]
    print(f"an update has {body:,} bytes, {fewer:,.0f} times fewer than a gradient", flush=True)


def add(document: dict[str, Any], name: str, found: Sequence[Measured]) -> None:
    """Add a way's results, and the program's distance to it in each seed's pairs."""
    for what, values in (
        ("accuracy", [each.accuracy for each in found]),
        ("margin", [BETA * statistics.fmean(each.gains) for each in found]),
        ("loss", [each.loss for each in found]),
    ):
        mean, error = spread(values)
        row = {"mean": mean, "error": error, "runs": values}
        document["results"].setdefault(name, {})[what] = row
        print(f"{name}: {what} {mean:.4f} ± {error:.4f}", flush=True)
        if name == OURS:
            continue
        ours = document["results"][OURS][what]["runs"]
        mean, error = spread([one - other for one, other in zip(ours, values, strict=True)])
        document["differences"].setdefault(name, {})[what] = {"mean": mean, "error": error}
        print(f"  {OURS} less {name}: {mean:+.4f} ± {error:.4f}", flush=True)


if __name__ == "__main__":
    main()
