"""The lengths at which a model turns to other rotary positions.

With `longrope` (Phi-3 with 128k tokens) a pass over more tokens than the model's original context
rotates all of them by other factors than a shorter pass does. Keys that a shorter pass has cached do
not go with those of a longer one.
"""

from __future__ import annotations

from transformers import PretrainedConfig


def rotary_switches(config: PretrainedConfig) -> frozenset[int]:
    """Return the numbers of tokens beyond which a pass uses other factors; empty: there is none."""
    # Some models have one table for each kind of layer.
    rope = getattr(config, "rope_parameters", None) or {}
    tables = [rope, *(each for each in rope.values() if isinstance(each, dict))]
    return frozenset(
        each["original_max_position_embeddings"]
        for each in tables
        if each.get("rope_type") == "longrope"
    )


def switch_within(config: PretrainedConfig, length: int) -> int | None:
    """Return the first switch that a sequence of this many tokens goes beyond; None if none."""
    return min((each for each in rotary_switches(config) if each < length), default=None)
