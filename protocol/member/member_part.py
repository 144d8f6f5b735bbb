"""Hooks through which a feature that not every swarm has takes part in a member.

A feature subclasses `MemberPart` and overrides the hooks that it needs; `parts.FEATURES` lists all
features. The member calls each hook of all of them, and does not know what they do. All hooks are given
the ledger, because the member may switch to another chain.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ...crypto.identity import PeerId
from ..chain.ledger import Ledger
from ..wire.messages import Message
from .beacon_secrets import BeaconSecrets
from .effects import Effect, Note, Train
from .inputs import FeatureInput
from .local_updates import Training

Outgoing = tuple[str, Message]
"""A message to sign and publish, with its kind."""


@dataclass(frozen=True)
class TipWork:
    """What the member's trainer may be asked for at the tip."""

    round: int
    announced: bool
    """Whether this member's update for the round is announced."""
    collect_seconds: float
    """The round's collect deadline."""


class MemberPart:
    """A feature inside a member. Here every hook does nothing."""

    kinds: frozenset[str] = frozenset()
    """The kinds of messages that this feature screens and keeps."""

    def __init__(self, me: PeerId, secrets: BeaconSecrets, training: Training) -> None:
        """`me`: this member; `training`: the work that its trainer is asked for."""
        self._me = me
        self._secrets = secrets
        self._training = training

    def screen(self, sender: PeerId, message: Any, ledger: Ledger) -> None:
        """Check a message of `kinds` before it is forwarded. Raises `ProtocolError`."""

    def put(self, sender: PeerId, message: Any, signature: bytes) -> None:
        """Keep a screened message of `kinds`."""

    def on_input(self, what: FeatureInput, ledger: Ledger) -> list[Outgoing]:
        """Take an input that is meant for this feature, and return the messages to send."""
        return []

    def messages_due(self, ledger: Ledger) -> list[Outgoing]:
        """Return the messages that a member of the round at the tip sends now."""
        return []

    def work(self, at: TipWork, ledger: Ledger) -> list[Effect] | None:
        """Return what a member at the tip orders from its trainer instead of training, perhaps nothing;
        None if it trains."""
        return None

    def extend(self, training: Train, ledger: Ledger) -> Train:
        """Return the training with what this feature adds to it."""
        return training

    def loaded(self) -> None:
        """Forget what was ordered from the trainer: other parameters were loaded."""

    def applied(self, round: int, ledger: Ledger) -> list[Effect]:
        """Return the effects due now that the record of `round` is applied."""
        return []

    def before_record(self, ledger: Ledger) -> Any:
        """Return what `notes` needs to know of the time before the next record is appended."""
        return None

    def notes(self, before: Any, round: int, ledger: Ledger) -> list[Note]:
        """Return the events of the record of `round`, which was just appended."""
        return []

    def forget(self, ledger: Ledger) -> None:
        """Drop what no later record can contain: another round is at the tip."""

    def decided(self, ledger: Ledger) -> list[Effect]:
        """Return the effects due to the last record, for a member of the round at the tip."""
        return []

    def record_fields(self, ledger: Ledger) -> dict[str, Any]:
        """Return the fields of the next record that this feature fills, by name, for a leader."""
        return {}

    def start_over(self) -> None:
        """Drop everything that belongs to the chain that was left."""
