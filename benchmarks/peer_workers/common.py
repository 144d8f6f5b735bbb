"""What the peers' workers share: the model, each member's batches, and a file of its steps.

Everything is read from `--folder`: `model/` (as transformers saves it) and `tokens.npy` (whole numbers).
A worker writes a line of JSON to `steps-MEMBER.jsonl` after each step that counted its samples.
"""

from __future__ import annotations

import argparse
import json
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoModelForCausalLM

LEARNING_RATE = 3e-3


class Worker:
    """One member: its model, its samples and its report."""

    def __init__(self, documentation: str | None) -> None:
        """Read the command line and load the model."""
        parser = argparse.ArgumentParser(description=documentation)
        parser.add_argument("--folder", type=Path, required=True)
        parser.add_argument("--member", type=int, required=True, help="from 0")
        parser.add_argument("--members", type=int, required=True)
        parser.add_argument("--sequences", type=int, required=True, help="of a member in a step")
        parser.add_argument("--length", type=int, required=True, help="tokens of a sequence")
        parser.add_argument("--address", required=True, help="where the members meet")
        parser.add_argument("--optimizer", choices=["adamw", "muon"], default="adamw")
        self.options = options = parser.parse_args()
        torch.set_num_threads(1)
        self.model: Any = AutoModelForCausalLM.from_pretrained(options.folder / "model")
        self.model.to(torch.float32).train()
        self._tokens = np.load(options.folder / "tokens.npy").astype(np.int64)
        self._report = (options.folder / f"steps-{options.member}.jsonl").open("a")

    @property
    def batch_tokens(self) -> int:
        """Number of tokens of a member in a step."""
        return self.options.sequences * self.options.length

    def batch(self, step: int) -> torch.Tensor:
        """Return this member's sequences of a step, which no other member has in that step."""
        options = self.options
        first = (step * options.members + options.member % options.members) * self.batch_tokens
        places = (first + np.arange(self.batch_tokens)) % len(self._tokens)
        return torch.from_numpy(self._tokens[places].reshape(options.sequences, options.length))

    def add_gradient(self, step: int, model: Any = None) -> float:
        """Add the gradient of the step's samples to `.grad`; return the loss."""
        batch = self.batch(step)
        loss = (model or self.model)(input_ids=batch, labels=batch, use_cache=False).loss
        loss.backward()
        return loss.item()

    def optimizers(self) -> list[torch.optim.Optimizer]:
        """Return AdamW over everything, or Muon over the hidden matrices and AdamW over the rest."""
        if self.options.optimizer == "adamw":
            return [torch.optim.AdamW(self.model.parameters(), LEARNING_RATE)]
        hidden = {
            name: parameter
            for name, parameter in self.model.named_parameters()
            if parameter.ndim == 2 and "embed" not in name and "lm_head" not in name
        }
        rest = [p for name, p in self.model.named_parameters() if name not in hidden]
        muon: Any = torch.optim.Muon
        return [
            muon(list(hidden.values()), lr=LEARNING_RATE, adjust_lr_fn="match_rms_adamw"),
            torch.optim.AdamW(rest, LEARNING_RATE),
        ]

    def report(self, step: int, loss: float, tokens: int | None = None) -> None:
        """Write down a step that counted this member's samples. Every fifth has a checksum of all
        parameters: its processor time counts as the system's."""
        digest = None
        if step % 5 == 0:
            digest = 0
            for parameter in self.model.parameters():
                digest = zlib.crc32(parameter.detach().contiguous().numpy().tobytes(), digest)
        line = {
            "step": step,
            "loss": loss,
            "tokens": self.batch_tokens if tokens is None else tokens,
            "digest": digest,
        }
        self._report.write(json.dumps(line) + "\n")
        self._report.flush()
