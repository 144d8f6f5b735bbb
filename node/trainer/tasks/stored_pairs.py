"""Preference pairs as stored: their tokens and marks, and the initial model's margins."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ....protocol.wire.manifest import DataSpec
from ...training.errors import TrainerFailed
from ...training.preference_pairs import PairLayout
from .data import decode_tokens

# Fewest tokens of a half: one to be learned, and one before it.
_SHORTEST_HALF = 2


def pair_layout(data: DataSpec) -> PairLayout:
    """Return where a pair's parts are. Raises `TrainerFailed` (`bad_model`) if there is no room."""
    layout = PairLayout(data.sequence_length, data.token_bytes)
    if layout.half < _SHORTEST_HALF:
        raise TrainerFailed(
            "bad_model",
            f"the manifest's task cannot be used: {data.sequence_length} numbers hold no pair",
        )
    return layout


def read_pairs(
    data: DataSpec, samples: Sequence[bytes]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the token ids, int64, and which are to be learned, bool, of both halves of each sample:
    (2 × samples, half), and the reference margins, float32 (samples,).

    Raises `TrainerFailed` (`bad_data`) for a token outside the vocabulary and a margin that is not
    finite.
    """
    layout, dtype = pair_layout(data), f"<u{data.token_bytes}"
    shape = (len(samples), data.sequence_length + 1)
    # The last number is the first of the next sample.
    rows = np.frombuffer(b"".join(samples), dtype).reshape(shape)[:, :-1]
    tokens = decode_tokens(data, layout.halves(rows).astype(np.int64))
    margins = layout.margins(rows)
    if not np.isfinite(margins).all():
        raise TrainerFailed(
            "bad_data", "the training data cannot be read: a reference margin is not finite"
        )
    assert tokens.learned is not None
    return tokens.ids, tokens.learned, margins
