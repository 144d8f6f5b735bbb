"""Mean reward of the task `grpo` with the program's optimizer, beside AdamW on dense gradients.

    python benchmarks/rewards.py [--rounds 50] [--seeds 1 2 3] [--json FILE]

A small byte-level Llama is asked for the largest of three digits, "381>", and rewarded by the rule
`exact` for "8" and a line end. It starts from a few steps on right answers, after which it earns some
reward. Then four members sample completions of eight prompts each in a round; all ways start from the
same model and train on the same prompts. *AdamW* takes the mean gradient of all prompts on one machine:
its bytes are those of that gradient in float32. The learning rate of each way is the better of two on
a seed of its own (`--tuning-seed`). The reward is that of eight completions for each of the 200 held-out
prompts.
"""

from __future__ import annotations

import math
import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from command_line import new_parser, write_json
from distro_node.crypto.hashing import ContentId
from distro_node.crypto.identity import PeerId
from distro_node.node.create.prompts import PromptTokenizer
from distro_node.node.create.tokens import ByteTokenizer
from distro_node.node.storage.blob_store import BlobStore
from distro_node.node.trainer.tasks.group_rewards import GroupRewards
from distro_node.node.trainer.tasks.task_batches import StoredSample
from distro_node.node.training.task_names import GRPO
from distro_node.protocol.wire.manifest import DataSpec, Manifest, ShardSpec
from learners.dense import AdamW, Dense
from learners.program import OPTIMIZERS, Program
from learners.trial import Setting, Trial
from learners.way import Method

LENGTH, COMPLETION = 8, 2
GROUP = 8
HELDOUT = 200
START_STEPS, START_BATCH, START_RATE = 60, 64, 2e-3
WAYS: dict[str, tuple[Method, tuple[float, ...]]] = {
    "default": (Program(optimizer=OPTIMIZERS["default"]), (1e-3, 3e-3)),
    "adamw": (Dense(optimizer=AdamW()), (5e-4, 2e-3)),
}


class RewardTrial(Trial):
    """A small Llama that is rewarded for the largest of three digits."""

    gradient_bytes = 4

    def __init__(self, setting: Setting, seed: int, store: BlobStore) -> None:
        nothing = np.zeros(2 * (LENGTH + 1), np.uint8)
        super().__init__(setting, seed, nothing, nothing)
        nowhere = ContentId(bytes(32))
        shard = ShardSpec(blob=nowhere, tokens=LENGTH + 1)
        manifest = Manifest(
            name="largest",
            task=GRPO,
            task_settings={"max_new_tokens": COMPLETION, "group": GROUP},
            seed=seed,
            model=self.model.config.to_dict(),
            parameters=tuple(self.table),
            initial=nowhere,
            data=DataSpec(
                sequence_length=LENGTH,
                token_bytes=2,
                vocabulary=256,
                shards=(shard,),
                heldout=shard,
                tokenizer=store.put(ByteTokenizer().definition),
                end_token=ord("\n"),
                marked=True,
            ),
            founder=PeerId(bytes(32)),
        )
        self.task = GroupRewards(manifest, self.model.config)
        self.task.use_blobs(store)
        texts = [f"{number:03}" for number in range(1000)]
        order = np.random.default_rng(0).permutation(1000)
        self._texts = [texts[place] for place in order]
        tokenizer = PromptTokenizer(ByteTokenizer(), None, COMPLETION, filler=0, length=LENGTH)
        encoded = tokenizer.encode([f'"{max(t)}"\n{t}>'.encode() for t in self._texts])
        self._stored = [np.append(row, 0).astype("<u2").tobytes() for row in encoded]
        self._start()

    def shares(self, number: int) -> list[np.ndarray]:
        """Return the numbers of the members' prompts in a round."""
        count = self.setting.members * self.setting.sequences
        generator = np.random.default_rng((self.seed, number))
        chosen = generator.choice(1000 - HELDOUT, count, replace=False)
        return np.split(chosen + HELDOUT, self.setting.members)

    def loss(self, batch: np.ndarray, number: int) -> torch.Tensor:
        """Return the mean missed reward of the prompts' completions, with its policy gradient."""
        stored = [StoredSample(self._stored[each], each, number) for each in batch.tolist()]
        found = self.task.loss(self.model, self.task.batch(stored))
        return found.total / found.count

    @torch.no_grad()
    def evaluate(self) -> float:
        """Return the mean reward of held-out prompts."""
        stored = [StoredSample(self._stored[n], n, 0, heldout=True) for n in range(HELDOUT)]
        found = self.task.loss(self.model, self.task.batch(stored))
        return 1.0 - float(found.total) / found.count

    def _start(self) -> None:
        """Train a few steps on right answers."""
        optimizer = torch.optim.AdamW(self.parameters, START_RATE)
        generator = np.random.default_rng(self.seed)
        for _ in range(START_STEPS):
            chosen = generator.integers(HELDOUT, 1000, START_BATCH)
            texts = [f"{self._texts[n]}>{max(self._texts[n])}\n".encode() for n in chosen]
            tokens = torch.tensor([list(text) for text in texts])
            logits = self.model(input_ids=tokens[:, :-1], use_cache=False).logits[:, 3:]
            targets = tokens[:, 4:].flatten()
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets).backward()
            optimizer.step()


def run(
    setting: Setting, method: Method, peak: float, seed: int, store: BlobStore
) -> dict[str, Any]:
    """Train one way and return its figures."""
    started = time.process_time()
    trial = RewardTrial(setting, seed, store)
    learner = method.learner(trial)
    before = trial.evaluate()
    for number in range(1, setting.rounds + 1):
        learner.step(setting.rate(peak, number), number)
    return {
        "peak": peak,
        "seed": seed,
        "start": before,
        "reward": trial.evaluate(),
        "bytes": learner.sent,
        "seconds": time.process_time() - started,
    }


def standard_error(values: list[float]) -> float:
    """Return the standard error of the mean."""
    return statistics.stdev(values) / math.sqrt(len(values))


def main() -> None:
    parser = new_parser(__doc__)
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--tuning-seed", type=int, default=100)
    parser.add_argument(
        "--peaks", type=float, nargs=len(WAYS), help=f"known rates of {', '.join(WAYS)}: not tuned"
    )
    parser.add_argument("--work", type=Path, required=True, help="a folder for the tokenizer")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    store = BlobStore(arguments.work)
    setting = Setting(
        data="digits",
        hidden=64,
        layers=2,
        members=4,
        sequences=8,
        length=LENGTH,
        rounds=arguments.rounds,
    )
    ways: dict[str, Any] = {}
    for place, (name, (method, peaks)) in enumerate(WAYS.items()):
        tuned = []
        if arguments.peaks is None:
            tuned = [run(setting, method, peak, arguments.tuning_seed, store) for peak in peaks]
            peak = max(tuned, key=lambda each: each["reward"])["peak"]
        else:
            peak = arguments.peaks[place]
        runs = [run(setting, method, peak, seed, store) for seed in arguments.seeds]
        rewards = [each["reward"] for each in runs]
        ways[name] = {
            "peak": peak,
            "start": statistics.mean(each["start"] for each in runs),
            "reward": statistics.mean(rewards),
            "standard_error": standard_error(rewards),
            "bytes_a_round": runs[0]["bytes"],
            "tuning": tuned,
            "runs": runs,
        }
        found = ways[name]
        print(
            f"{name}: reward {found['start']:.3f} at the start, {found['reward']:.3f} ± "
            f"{found['standard_error']:.3f} at the end, {found['bytes_a_round']:,.0f} bytes a round, "
            f"rate {peak:g}",
            flush=True,
        )
    ours, dense = ways["default"], ways["adamw"]
    pairs = zip(ours["runs"], dense["runs"], strict=True)
    differences = [one["reward"] - other["reward"] for one, other in pairs]
    result = {
        "setting": {
            "rounds": arguments.rounds,
            "members": setting.members,
            "prompts_a_member": setting.sequences,
            "group": GROUP,
            "parameters": RewardTrial(setting, 0, store).elements,
        },
        "ways": ways,
        "difference": statistics.mean(differences),
        "difference_standard_error": standard_error(differences),
        "times_fewer_bytes": dense["bytes_a_round"] / ours["bytes_a_round"],
    }
    print(
        f"difference {result['difference']:+.3f} ± {result['difference_standard_error']:.3f} at "
        f"{result['times_fewer_bytes']:,.0f} times fewer bytes"
    )
    write_json(arguments.json, result)


if __name__ == "__main__":
    main()
