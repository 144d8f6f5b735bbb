"""Encoding and decoding of the bodies of a round: updates or, in a swarm with committees, sign votes
and aggregates."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from ....protocol.codec.aggregate import Aggregate, decode_aggregate, joined
from ....protocol.codec.sections import sections
from ....protocol.codec.sign_vote import encode_part, selected_count, step_of
from ....protocol.codec.update import DecodedUpdate, UpdateLayout, decode_update, encode_update
from ....protocol.wire.manifest import Manifest
from ..memory.model_shard import ModelShard
from .optimizer import LocalOptimizer


def make_body(
    manifest: Manifest,
    layout: UpdateLayout,
    part: ModelShard,
    optimizer: LocalOptimizer,
    round: int,
) -> bytes:
    """Encode the update of a round from the momentum; in a swarm with committees, the sign vote, with
    the whole model as a single section. Return empty bytes if another rank returns the body."""
    committees = manifest.committees
    if committees is None:
        taken = part.gather_taken(optimizer.take(round))
        return b"" if taken is None else encode_update(layout, taken.positions, taken.signs)
    rotation_steps, step = committees.rotation_steps, step_of(round)
    signs = part.gather_signs(
        optimizer.vote_signs(rotation_steps, step),
        lambda tensor: selected_count(tensor, rotation_steps, step),
    )
    return b"" if signs is None else encode_part(sections(layout, 1)[0], signs)


def coefficients_of(manifest: Manifest, layout: UpdateLayout, round: int) -> int:
    """Return the number of coefficients in a body of a round."""
    committees = manifest.committees
    if committees is None:
        return layout.coefficients
    step = step_of(round)
    return sum(
        tensor.blocks * selected_count(tensor, committees.rotation_steps, step)
        for tensor in layout.tensors
    )


def body_decoder(
    manifest: Manifest, layout: UpdateLayout
) -> Callable[[bytes], DecodedUpdate | Aggregate]:
    """Return the decoder of the bodies that a record names: updates or, with committees, aggregates.
    It raises `ProtocolError`."""
    return partial(decode_update if manifest.committees is None else decode_aggregate, layout)


def step_updates(
    layout: UpdateLayout, bodies: Sequence[DecodedUpdate | Aggregate], update_weights: Sequence[int]
) -> tuple[list[DecodedUpdate], list[int]]:
    """Return the updates of a step with their weights, from a record's decoded bodies. Aggregates are
    of different sections and form one update of weight 1."""
    aggregates = [body for body in bodies if isinstance(body, Aggregate)]
    if aggregates:
        return [joined(layout, aggregates)], [1]
    return [body for body in bodies if isinstance(body, DecodedUpdate)], list(update_weights)
