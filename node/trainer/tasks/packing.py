"""Attention that stays within documents, although several of them are packed into one sequence.

A document begins where the data marks it, otherwise after the manifest's end token, or at it if it is
the start token as well. With `attention = "document"` a token attends back to its document's first
token and no further, and its position is counted from there.
"""

from __future__ import annotations

import torch
from transformers import PretrainedConfig, masking_utils

from ....protocol.wire.manifest import DataSpec
from ...training.architectures import reserved_positions
from ...training.errors import TrainerFailed
from ..models.rotary_switch import switch_within


def document_starts(data: DataSpec, tokens: torch.Tensor) -> torch.Tensor:
    """Return where in unmarked tokens (batch, length) documents begin: bool, of the same shape."""
    assert data.end_token is not None  # or the manifest would have been refused
    if data.start_token == data.end_token:
        # One token between two documents is both. It belongs to the later one, as at the beginning of a
        # prompt; the earlier one only predicts it.
        return tokens == data.end_token
    return starts_after(tokens, data.end_token)


def starts_after(tokens: torch.Tensor, end_token: int) -> torch.Tensor:
    """Return where in tokens (batch, length) documents begin if each ends with `end_token`: bool, of
    the same shape."""
    # A document's end token belongs to it, so the next document begins one place later.
    begins = torch.zeros_like(tokens, dtype=torch.bool)
    begins[:, 1:] = tokens[:, :-1] == end_token
    return begins


def document_inputs(
    begins: torch.Tensor, config: PretrainedConfig, *, bidirectional: bool = False
) -> dict[str, torch.Tensor]:
    """Return a model's inputs other than the tokens, given where documents begin, (batch, length):
    `position_ids` of the same shape, and an `attention_mask` (batch, 1, length, length) in the form
    that its attention implementation takes.

    With `bidirectional` a token also attends to later tokens of its document.
    """
    length = begins.shape[1]
    positions = torch.arange(length, device=begins.device)
    document = begins.cumsum(1)
    first = torch.where(begins, positions, 0).cummax(1).values
    visible = document[:, :, None] == document[:, None, :]
    if not bidirectional:
        visible &= positions[:, None] >= positions[None, :]
    mask = visible[:, None]
    if config._attn_implementation != "sdpa":
        # Torch's own attention takes a boolean mask; other implementations add the mask to the scores.
        lowest = torch.finfo(torch.float32).min
        mask = torch.where(mask, 0.0, lowest)
    # The library adds reserved positions only where it counts the positions itself.
    numbered = positions - first + reserved_positions(config.to_dict())
    return {"position_ids": numbered, "attention_mask": mask}


def skip_packing_search() -> None:
    """Stop the library from searching the positions of every micro-batch for packed documents, because
    it waits for the GPU to do so. Nothing is lost: packed documents have a mask here, and with a mask
    the library does not search."""
    if hasattr(masking_utils, "find_packed_sequence_indices"):
        masking_utils.find_packed_sequence_indices = lambda position_ids: None


def check_attention(data: DataSpec, config: PretrainedConfig) -> None:
    """Raise `TrainerFailed` (`bad_model`) if documents cannot be kept apart in such sequences: the mask
    would override the model's sliding window, or the rotary positions of a document depend on the
    lengths of others in its batch."""
    if data.attention != "document":
        return
    length, window = data.sequence_length, getattr(config, "sliding_window", None)
    slides = getattr(config, "use_sliding_window", True)
    if slides and isinstance(window, int) and window < length:
        raise TrainerFailed(
            "bad_model",
            'attention = "document" cannot be combined with the model\'s sliding window of '
            f"{window} tokens on sequences of {length}",
        )
    switch = switch_within(config, length)
    if switch is not None:
        raise TrainerFailed(
            "bad_model",
            f'attention = "document" cannot be combined with longrope on sequences of {length} tokens, '
            f'which the model rotates otherwise beyond {switch}: set attention = "sequence", or a '
            f"sequence_length of {switch} or less",
        )
