"""The matrix products of a mixture's experts, in the type in which all other layers compute.

The library multiplies all experts at once (`grouped_mm`), which torch's autocast does not know: under
it the experts, most of such a model's work, would compute in float32.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch
from transformers.integrations import moe

Product = Callable[..., torch.Tensor]
"""Rows in the order of their experts, the experts' matrices, where each expert's rows end → products."""


def cast_expert_products() -> None:
    """Let the library multiply experts in the autocast's type where there is one. Calling it again
    changes nothing."""
    original: Product | None = getattr(moe, "_grouped_mm", None)
    if original is not None and not hasattr(original, "__wrapped__"):
        setattr(moe, "_grouped_mm", _autocast(original))  # noqa: B010 (private to the library)


def _autocast(product: Product) -> Product:
    @functools.wraps(product)
    def cast(rows_SI: torch.Tensor, matrices_EIO: torch.Tensor, offs: torch.Tensor) -> torch.Tensor:
        kind = rows_SI.device.type
        if torch.is_autocast_enabled(kind):
            matrices_EIO = matrices_EIO.to(torch.get_autocast_dtype(kind))
        # The library casts the rows to the type of the matrices.
        return product(rows_SI, matrices_EIO, offs=offs)

    return cast
