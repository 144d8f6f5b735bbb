"""A toy model instead of training: integers that are added up.

An update is a number drawn from its content id, and the parameters are a sum of such numbers, multiplied
once a round. So comparing parameters is one comparison, the order of a round's updates does not matter,
and a record that was applied in another order, twice or not at all changes the parameters, as does an
update with another weight.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from distro_node.crypto.hashing import ContentId, content_id
from distro_node.crypto.identity import PeerId
from distro_node.protocol.wire.manifest import (
    DataSpec,
    Manifest,
    ParameterSpec,
    RoundSpec,
    ShardSpec,
)
from simulation.keys import identity

INITIAL = 1
"""The parameters before the first round."""

_MODULUS = 1 << 64
# Odd, so that multiplying by it loses nothing; it distinguishes a round without updates from the next.
_STIR = 6364136223846793005


def next_parameters(parameters: int, updates: Iterable[ContentId], weights: Iterable[int]) -> int:
    """Return the parameters after a round with these updates and weights; without updates they stay."""
    pairs = zip(updates, weights, strict=True)
    numbers = [count * int.from_bytes(update[:8], "big") for update, count in pairs if count]
    return (_STIR * parameters + sum(numbers)) % _MODULUS if numbers else parameters


def toy_manifest(*, samples: int = 10_000, **changes: Any) -> Manifest:
    """Return a manifest for the toy model; fields of `rounds` may be given by their names, too."""
    # The last token is only ever a target.
    shard = ShardSpec(blob=content_id(b"shard"), tokens=100 * samples + 1)
    limits: dict[str, Any] = {
        "sequences": 64,
        "start_members": 1,
        "snapshot_interval": 5,
        "min_seconds": 0.0,
        "collect_min_seconds": 0.5,
        "collect_max_seconds": 30.0,
        "lease_min_seconds": 6.0,
    }
    given = {name: changes.pop(name) for name in RoundSpec.__annotations__ if name in changes}
    settings: dict[str, Any] = {
        "name": "toy",
        "model": {"model_type": "toy"},
        "parameters": (ParameterSpec(name="weight", shape=(64, 64)),),
        "initial": content_id(b"initial"),
        "data": DataSpec(
            sequence_length=100,
            token_bytes=1,
            vocabulary=256,
            shards=(shard,),
            heldout=shard,
            tokenizer=content_id(b"tokenizer"),
        ),
        "rounds": RoundSpec(**(limits | given)),
        "founder": identity(0).peer,
    }
    return Manifest(**(settings | changes))


@dataclass
class ToyTrainer:
    """One node's trainer: parameters, and a momentum that must not lose anything.

    Each round's gradient is a number. It is added to the momentum when it is computed, and leaves it
    with the update; an update that does not count is added back.
    """

    peer: PeerId
    parameters: int = INITIAL
    computed: int = 0
    """The sum of all gradients ever computed."""
    momentum: int = 0
    sent: dict[int, int] = field(default_factory=dict)
    """By round: the content of updates that may or may not count yet."""
    counted: int = 0
    """The sum of all content of updates that count."""

    def train(self, round_: int, salt: int) -> ContentId:
        """Compute the update for a round."""
        update = content_id(self.peer + round_.to_bytes(8, "big") + salt.to_bytes(8, "big"))
        gradient = int.from_bytes(update[8:12], "big")
        self.computed += gradient
        # What was sent for this round before, on an abandoned chain, never counts.
        self.momentum += gradient + self.sent.pop(round_, 0)
        self.sent[round_], self.momentum = self.momentum, 0
        return update

    def apply(
        self, round_: int, updates: Iterable[ContentId], weights: Iterable[int], own_counted: bool
    ) -> None:
        """Apply a record's updates with these weights; take back our own if it is not among them."""
        self.parameters = next_parameters(self.parameters, updates, weights)
        for old in [number for number in self.sent if number <= round_]:
            amount = self.sent.pop(old)
            if own_counted and old == round_:
                self.counted += amount
            else:
                self.momentum += amount

    @property
    def balanced(self) -> bool:
        """Whether every gradient is in the momentum, under way, or counted."""
        return self.computed == self.momentum + sum(self.sent.values()) + self.counted
