"""Fine-tuning: a Llama trained on the standard library's source code learns Python's language
reference, with all weights or with low-rank adapters. Both texts come with Python."""

from __future__ import annotations

import os
import sysconfig
from dataclasses import asdict, replace
from functools import cache
from pathlib import Path

import numpy as np
import torch
from distro_node.node.trainer.models.adapters import (
    adapter_parameters,
    adapter_table,
    add_adapters,
    draw_adapters,
    target_names,
)
from distro_node.protocol.wire.manifest import AdapterSpec
from safetensors.torch import load_file, save_file

from .checkpoint import Checkpoint
from .dense import AdamW, Dense
from .trial import Setting, Trial, digest
from .way import train

BASE_RATE = 3e-3
RANK = 8
# Only source code, no tables of numbers; the reference itself is the text to tune on.
_LEFT_OUT = {"test", "encodings", "pydoc_data", "idlelib", "lib2to3", "site-packages"}


@cache
def source_code() -> np.ndarray:
    """Return the standard library's own source code."""
    root = Path(sysconfig.get_paths()["stdlib"])
    files = [
        path
        for path in sorted(root.rglob("*.py"))
        if not _LEFT_OUT & set(path.relative_to(root).parts)
    ]
    return np.frombuffer(b"".join(path.read_bytes() for path in files), dtype=np.uint8)


@cache
def reference() -> tuple[np.ndarray, np.ndarray]:
    """Return the language reference, and its held-out part: every tenth topic."""
    from pydoc_data.topics import topics

    texts = [text.encode() for _, text in sorted(topics.items())]
    parts = (
        b"".join(text for number, text in enumerate(texts) if (number % 10 == 0) is held)
        for held in (False, True)
    )
    text, heldout = (np.frombuffer(part, dtype=np.uint8) for part in parts)
    return text, heldout


class TuningTrial(Trial):
    """A trained base that is tuned."""

    gradient_bytes = 4

    def __init__(
        self, setting: Setting, seed: int, base: dict[str, torch.Tensor], *, adapters: bool
    ) -> None:
        super().__init__(setting, seed, *reference())
        with torch.no_grad():
            for spec, parameter in zip(self.table, self.parameters, strict=True):
                parameter.copy_(base[spec.name])
        if adapters:
            self._adapt()

    def _adapt(self) -> None:
        """Insert adapters, and train only them; `dense_bytes` stays that of the whole model."""
        targets = target_names(self.model)
        table = adapter_table(self.model, RANK, targets)
        adapter = AdapterSpec(
            rank=RANK,
            alpha=2.0 * RANK,
            targets=targets,
            # The base is local, so its id is not needed.
            base=bytes(32),  # pyright: ignore[reportArgumentType]
            base_parameters=tuple(self.table),
        )
        add_adapters(self.model, adapter)
        named = adapter_parameters(self.model)
        self.table = list(table)
        self.parameters = [named[spec.name] for spec in table]
        draw_adapters(self.parameters, table, self.seed)


def trained_base(setting: Setting, rounds: int, work: Path | None) -> dict[str, torch.Tensor]:
    """Return the base's weights, trained by dense AdamW unless `work` has them."""
    of_base = replace(setting, data="base", rounds=rounds)
    named = {"settings": asdict(of_base), "code": digest(source_code())}
    checkpoint = Checkpoint(work, named)
    file = None if work is None else work / f"base-{checkpoint.name}.safetensors"
    if file and file.exists():
        return load_file(file)
    if work is not None:
        work.mkdir(parents=True, exist_ok=True)
    trial = Trial(of_base, 0, source_code(), reference()[1])
    print(f"the base trains for {rounds:,} rounds", flush=True)
    train(Dense(optimizer=AdamW()), BASE_RATE, trial, checkpoint)
    weights = {
        spec.name: parameter.detach().clone()
        for spec, parameter in zip(trial.table, trial.parameters, strict=True)
    }
    if file:
        save_file(weights, file.with_suffix(".partial"))
        os.replace(file.with_suffix(".partial"), file)
    checkpoint.remove()
    return weights
