"""Number of bytes that members exchange in a step, and the largest blob that they send."""

from __future__ import annotations

from collections.abc import Sequence

from ..wire.blobs import MAX_BLOB_BYTES
from ..wire.manifest import Manifest, ParameterSpec
from .layout import UpdateLayout, manifest_layout, update_layout


class ExchangeSize:
    """Bytes exchanged in a swarm whose members send each other whole updates."""

    blob = "an update"
    """What the largest blob is."""

    def sent(self, layout: UpdateLayout) -> int:
        """Return the length in bytes of what each member sends of its gradient in a step."""
        return layout.body_bytes

    def received(self, layout: UpdateLayout, members: int) -> int:
        """Return the approximate bytes that each of `members` receives in a step."""
        return (members - 1) * layout.body_bytes

    def longest(self, layout: UpdateLayout) -> int:
        """Return the largest length in bytes of a blob that a member sends in a step."""
        return layout.body_bytes


def check_size(manifest: Manifest, exchange: ExchangeSize) -> None:
    """Raise `ValueError` for a manifest whose members would send a blob that is too large."""
    bytes_ = exchange.longest(manifest_layout(manifest))
    if bytes_ > MAX_BLOB_BYTES:
        optimizer = manifest.optimizer
        most = largest_top_k(manifest.parameters, optimizer.chunk, exchange, optimizer.top_k)
        raise ValueError(
            f"optimizer.top_k ({optimizer.top_k}) is too large for {manifest.elements:,} "
            f"parameters: {exchange.blob} would have {bytes_ / 1e6:.1f} MB, of "
            f"{MAX_BLOB_BYTES / 1e6:.1f} MB that can be sent as one blob; set it to {most} or "
            "less"
        )


def largest_top_k(
    parameters: Sequence[ParameterSpec], chunk: int, exchange: ExchangeSize, most: int
) -> int:
    """Return the largest number of coefficients per block, up to `most`, with which each body can be
    sent as one blob; 1 if there is none."""
    least, beyond = 1, most + 1
    while beyond - least > 1:
        tried = (least + beyond) // 2
        if exchange.longest(update_layout(parameters, chunk, tried)) <= MAX_BLOB_BYTES:
            least = tried
        else:
            beyond = tried
    return least
