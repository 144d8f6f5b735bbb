"""Completions that the model itself samples for a prompt, all of a group at once.

A token is drawn by inverting the distribution's cumulative sum at a seeded uniform number, in float64 on
the CPU. So the same device repeats a completion exactly; another one may differ in a score's last bit,
and then in all tokens after it.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch


@dataclass(frozen=True)
class Completions:
    """The completions of one prompt."""

    tokens: torch.Tensor
    """int64 (completions, longest), on the model's device; after its end a completion is padded."""
    lengths: tuple[int, ...]
    """The number of tokens of each, with the token that ends it."""
    ended: tuple[bool, ...]
    """Whether the last token of each ends it; otherwise the limit did."""

    def texts(self) -> Iterator[list[int]]:
        """Yield the tokens of each completion without the one that ends it."""
        for row, length, ended in zip(self.tokens.tolist(), self.lengths, self.ended, strict=True):
            yield row[: length - ended]


@torch.no_grad()
def sample_completions(
    model: Any,
    prompt: Sequence[int],
    uniform: np.ndarray,
    *,
    vocabulary: int,
    ends: frozenset[int],
    temperature: float,
) -> Completions:
    """Sample completions of a prompt until each has one of the tokens `ends` or is as long as allowed.

    `uniform`: float64 (completions, most tokens), from 0 to below 1, one number for each token.
    The model is in evaluation mode meanwhile.
    """
    count, limit = uniform.shape
    device = next(model.parameters()).device
    # Ranks that hold shards of one model must call it equally often.
    together = torch.distributed.is_available() and torch.distributed.is_initialized()
    chosen, lengths = np.zeros((count, limit), np.int64), np.full(count, limit)
    ended = np.zeros(count, bool)
    inputs = torch.tensor([list(prompt)] * count, device=device)
    last = {"logits_to_keep": 1} if keeps_logits(model) else {}
    past = None
    with _evaluating(model):
        for place in range(limit):
            output = model(input_ids=inputs, past_key_values=past, use_cache=True, **last)
            past = output.past_key_values
            # Rows beyond the vocabulary only pad the matrix's size; they are not tokens.
            scores = output.logits[:, -1, :vocabulary].float() / temperature
            drawn = _invert(torch.softmax(scores, -1).cpu().double().numpy(), uniform[:, place])
            chosen[:, place] = np.where(ended, 0, drawn)
            now = ~ended & np.isin(drawn, list(ends))
            lengths[now] = place + 1
            ended |= now
            if ended.all() and not together:
                break
            inputs = torch.from_numpy(chosen[:, place : place + 1].copy()).to(device)
    tokens = torch.from_numpy(chosen[:, : int(lengths.max())].copy()).to(device)
    return Completions(tokens, tuple(lengths.tolist()), tuple(ended.tolist()))


def keeps_logits(model: Any) -> bool:
    """Whether the model can compute the scores after some last tokens alone."""
    return "logits_to_keep" in inspect.signature(model.forward).parameters


def _invert(chances: np.ndarray, uniform: np.ndarray) -> np.ndarray:
    """Return the token of each row (rows, vocabulary) at which its cumulative sum passes `uniform`
    (rows,) of its total: int64 (rows,). Rows that are not numbers yield token 0."""
    sums = np.nan_to_num(chances).cumsum(1)
    passed = sums <= (uniform * sums[:, -1])[:, None]
    return np.minimum(passed.sum(1), chances.shape[1] - 1) * np.isfinite(chances).all(1)


@contextmanager
def _evaluating(model: Any) -> Iterator[None]:
    """Set the model to evaluation mode, and its compiled layers aside: every length would compile them
    again."""
    was_training = model.training
    compiled = any(getattr(each, "_compiled_call_impl", None) for each in model.modules())
    model.eval()
    try:
        with torch.compiler.set_stance("force_eager") if compiled else nullcontext():
            yield
    finally:
        model.train(was_training)
        # Autocast may have kept weights that were cast without a graph; what follows needs one.
        torch.clear_autocast_cache()
