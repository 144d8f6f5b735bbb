"""Ledgers made by hand in a swarm whose members check each other's work."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from distro_node.crypto.hashing import content_id
from distro_node.crypto.identity import PeerId
from distro_node.protocol.chain.checked import CheckedWork, root_due
from distro_node.protocol.checks.draw import SECRET_BYTES, commitment
from distro_node.protocol.wire.manifest import ChecksSpec
from distro_node.protocol.wire.messages import Announcement, Check, LookEntry, Record, UpdateEntry

from .chain import Chain


def secret(peer: PeerId, round_: int) -> bytes:
    return content_id(peer + round_.to_bytes(8, "big"))[:SECRET_BYTES]


class CheckedChain(Chain):
    """A chain whose members look at each other, see what there is to see, and say so at once."""

    def __init__(self, count: int = 4, **changes: Any) -> None:
        changes.setdefault("snapshot_interval", 5)
        changes.setdefault("checks", ChecksSpec(every=1))
        super().__init__(count, **changes)

    @property
    def work(self) -> CheckedWork:
        assert self.ledger.work is not None
        return self.ledger.work

    def announcement(self, who: Any, **changes: Any) -> Announcement:
        promise = commitment(secret(self._key(who).peer, self.round))
        return super().announcement(who, **({"commitment": promise} | changes))

    def update(self, who: Any, **changes: Any) -> UpdateEntry:
        said = self.announcement(who, **changes)
        return replace(super().update(who, **changes), commitment=said.commitment)

    def looks(self, total: int = 1000) -> tuple[LookEntry, ...]:
        """All that were drawn in the last round; each a thousand standard deviations high."""
        about = self.round - 1
        counts = {entry.peer for entry in self.ledger[about].record.updates} if about > 0 else set()
        found = []
        for checker in self.ledger.membership(about).peers if about > 1 else ():
            known = secret(checker, about - 1)
            drawn = self.work.drawn(checker, known, about)
            if drawn is None or drawn.peer not in counts:
                continue
            if self.work.accounts.takes_look(checker, drawn.peer, about, self.round):
                said = Check(about, self.ledger.parent(about), known, total, 1)
                signature = self.signature(checker, "check", said)
                found.append(LookEntry(checker, about, known, total, 1, signature))
        return tuple(found)

    def record(self, **changes: Any) -> Record:
        settings: dict[str, Any] = {"looks": self.looks()}
        plain = super().record(**(settings | changes))
        if "contributions" in changes:
            return plain
        return replace(plain, contributions=root_due(self.ledger.work, plain.snapshot))
