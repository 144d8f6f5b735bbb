"""Encoding and decoding of the bodies of a round: updates or, in a swarm with committees, sign votes
and aggregates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ....protocol.codec.layout import manifest_layout
from ....protocol.codec.update import DecodedUpdate, UpdateLayout, decode_update, encode_update
from ....protocol.committee.aggregate import Aggregate, decode_aggregate, joined
from ....protocol.committee.sections import sections
from ....protocol.committee.sign_vote import encode_part, selected_count, step_of
from ....protocol.wire.manifest import Manifest, OptimizerSpec
from ....protocol.wire.work_specs import CommitteesSpec
from ..memory.model_shard import ModelShard
from .optimizer import LocalOptimizer


class UpdateBodies:
    """Bodies in a swarm whose members send each other whole updates."""

    def __init__(self, layout: UpdateLayout) -> None:
        self.layout = layout
        """The layout of the whole model."""

    def local_optimizer(self, spec: OptimizerSpec) -> OptimizerSpec:
        """Return the settings of a member's own optimizer."""
        return spec

    def make(self, part: ModelShard, optimizer: LocalOptimizer, round: int) -> bytes:
        """Encode the update of a round from the momentum. Return empty bytes if another rank returns the
        body."""
        taken = part.gather_taken(optimizer.take(round))
        return b"" if taken is None else encode_update(self.layout, taken.positions, taken.signs)

    def coefficients(self, round: int) -> int:
        """Return the number of coefficients in a body of a round."""
        return self.layout.coefficients

    def decode(self, body: bytes) -> DecodedUpdate | Aggregate:
        """Decode a body that a record names. Raises `ProtocolError`."""
        return decode_update(self.layout, body)

    def step(
        self, bodies: Sequence[DecodedUpdate | Aggregate], update_weights: Sequence[int]
    ) -> tuple[list[DecodedUpdate], list[int]]:
        """Return the updates of a step with their weights, from a record's decoded bodies."""
        return [body for body in bodies if isinstance(body, DecodedUpdate)], list(update_weights)


class CommitteeBodies(UpdateBodies):
    """Bodies in a swarm with committees: members send sign votes, and records name aggregates."""

    def __init__(self, layout: UpdateLayout, spec: CommitteesSpec) -> None:
        super().__init__(layout)
        self._rotation_steps = spec.rotation_steps

    def local_optimizer(self, spec: OptimizerSpec) -> OptimizerSpec:
        """Return settings without a momentum: the aggregators keep it, and a member's sign vote comes
        from its last gradient alone."""
        return replace(spec, momentum=0.0)

    def make(self, part: ModelShard, optimizer: LocalOptimizer, round: int) -> bytes:
        """Encode the sign vote of a round, with the whole model as a single section."""
        steps, step = self._rotation_steps, step_of(round)
        signs = part.gather_signs(
            optimizer.vote_signs(steps, step), lambda tensor: selected_count(tensor, steps, step)
        )
        return b"" if signs is None else encode_part(sections(self.layout, 1)[0], signs)

    def coefficients(self, round: int) -> int:
        """Return the number of coefficients in a sign vote."""
        step = step_of(round)
        return sum(
            tensor.blocks * selected_count(tensor, self._rotation_steps, step)
            for tensor in self.layout.tensors
        )

    def decode(self, body: bytes) -> DecodedUpdate | Aggregate:
        """Decode an aggregate. Raises `ProtocolError`."""
        return decode_aggregate(self.layout, body)

    def step(
        self, bodies: Sequence[DecodedUpdate | Aggregate], update_weights: Sequence[int]
    ) -> tuple[list[DecodedUpdate], list[int]]:
        """Return the update that all aggregates form together, as they are of different sections. It has
        the weight 1. Without an aggregate there is none."""
        aggregates = [body for body in bodies if isinstance(body, Aggregate)]
        return (
            ([joined(self.layout, aggregates)], [1]) if aggregates else ([], list(update_weights))
        )


def update_bodies(manifest: Manifest) -> UpdateBodies:
    """Return the encoding of a swarm's bodies."""
    layout, committees = manifest_layout(manifest), manifest.committees
    return UpdateBodies(layout) if committees is None else CommitteeBodies(layout, committees)
