"""One model in training, and the batches of each round: the same for all ways of a comparison.

Everything is drawn from the seed and the round's number alone, so a run can resume in any round.
"""

from __future__ import annotations

import hashlib
import sysconfig
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from distro_node.node.trainer.models.model import build_model, ordered_parameters
from distro_node.protocol.codec.schedule import learning_rate
from distro_node.protocol.wire.manifest import ParameterSpec, ScheduleSpec
from llamas import llama_config

HELDOUT_SEQUENCES = 256
_HELDOUT_PARTS = 8
_SUFFIXES = (".py", ".txt", ".md")


@dataclass(frozen=True, kw_only=True)
class Setting:
    """What all ways of a comparison share, besides a seed."""

    data: str
    hidden: int
    layers: int
    members: int
    sequences: int
    """Sequences (or images) of a member in a round."""
    length: int
    """Tokens of a sequence."""
    rounds: int
    device: str = "cpu"
    micro_batch: int = 256
    """Sequences of one forward pass."""

    def rate(self, peak: float, number: int) -> float:
        """Return a round's learning rate: a warm-up, a plateau, and a linear decay over the second
        half."""
        schedule = ScheduleSpec(
            peak=peak,
            warmup_rounds=min(20, self.rounds // 4),
            total_rounds=self.rounds,
            decay_rounds=self.rounds // 2,
            final=0.1,
        )
        return learning_rate(schedule, number)


class Trial:
    """A byte-level Llama that learns a text."""

    gradient_bytes = 2
    """Of a number in the dense gradient with which updates are compared."""

    def __init__(self, setting: Setting, seed: int, text: np.ndarray, heldout: np.ndarray) -> None:
        self.setting, self.seed = setting, seed
        self.device = torch.device(setting.device)
        torch.manual_seed(seed)
        # All sides are multiples of 64, so that blocks are whole as in large models.
        width = setting.hidden
        config = llama_config(
            *(width, 3 * width, setting.layers, 256, setting.length), heads=width // 32
        )
        self.table = _table(config)
        self.model: Any = build_model(config, self.table, self.device)
        self.parameters: list[torch.nn.Parameter] = ordered_parameters(self.model, self.table)
        with torch.no_grad():
            for parameter in self.parameters:
                # The initialisation of transformers: norms at one, all others from N(0, 0.02).
                drawn = torch.ones if parameter.dim() == 1 else torch.randn
                scale = 1.0 if parameter.dim() == 1 else 0.02
                parameter.copy_(drawn(parameter.shape) * scale)
        self.dense_bytes = float(self.gradient_bytes * self.elements)
        """Bytes of the whole model's gradient."""
        self._text = text
        count = min(HELDOUT_SEQUENCES, len(heldout) // (setting.length + 1))
        stride = (len(heldout) - setting.length - 1) // count
        self._heldout = self._windows(heldout, np.arange(count) * stride)

    @property
    def elements(self) -> int:
        """Number of trained parameters."""
        return sum(parameter.numel() for parameter in self.parameters)

    def shares(self, number: int) -> list[np.ndarray]:
        """Return the members' samples in a round."""
        count = self.setting.members * self.setting.sequences
        starts = np.random.default_rng((self.seed, number)).integers(
            0, len(self._text) - self.setting.length - 1, count
        )
        return np.split(self._windows(self._text, starts), self.setting.members)

    def gradients(self, batch: np.ndarray, number: int) -> list[torch.Tensor]:
        """Return the gradients of the mean loss of some samples of a round."""
        for parameter in self.parameters:
            parameter.grad = None
        for first in range(0, len(batch), self.setting.micro_batch):
            part = batch[first : first + self.setting.micro_batch]
            (self.loss(part, number) * (len(part) / len(batch))).backward()
        return [torch.zeros_like(p) if p.grad is None else p.grad.detach() for p in self.parameters]

    @torch.no_grad()
    def evaluate(self) -> float:
        """Return the held-out loss: nats per byte."""
        parts = np.array_split(self._heldout, min(_HELDOUT_PARTS, len(self._heldout)))
        return sum(float(self.loss(part, 0)) * len(part) for part in parts) / len(self._heldout)

    def loss(self, batch: np.ndarray, number: int) -> torch.Tensor:
        """Return the mean loss of some samples; it depends on the round where noise is drawn."""
        tokens = torch.from_numpy(batch.astype(np.int64)).to(self.device)
        logits = self.model(input_ids=tokens[:, :-1], use_cache=False).logits
        return torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())

    def _windows(self, text: np.ndarray, starts: np.ndarray) -> np.ndarray:
        return text[starts[:, None] + np.arange(self.setting.length + 1)]


@cache
def standard_library() -> tuple[np.ndarray, np.ndarray]:
    """Return training and held-out bytes of Python's standard library: held out is about every
    twentieth file, by the hash of its content."""
    texts = [file.read_bytes() for file in _files(Path(sysconfig.get_paths()["stdlib"]))]
    held = [hashlib.sha256(text).digest()[0] < 13 for text in texts]
    parts = ([t for t, h in zip(texts, held, strict=True) if h is out] for out in (False, True))
    train, heldout = (np.frombuffer(b"".join(part), dtype=np.uint8) for part in parts)
    return train, heldout


def digest(data: np.ndarray) -> str:
    """Return a short name of some data: texts differ between versions of Python."""
    return hashlib.sha256(data.tobytes()).hexdigest()[:16]


def _files(folder: Path) -> Iterator[Path]:
    for file in sorted(folder.rglob("*")):
        # Installed packages differ between machines.
        inside = file.relative_to(folder).parts
        if file.suffix in _SUFFIXES and file.is_file() and "site-packages" not in inside:
            yield file


def _table(config: dict[str, Any]) -> Sequence[ParameterSpec]:
    from transformers import AutoConfig, AutoModelForCausalLM

    settings = {key: value for key, value in config.items() if key != "model_type"}
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(
            AutoConfig.for_model(config["model_type"], **settings)
        )
    return [ParameterSpec(name=n, shape=tuple(p.shape)) for n, p in model.named_parameters()]
