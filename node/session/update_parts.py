"""Parts of updates: what members exchange instead of whole updates, where a feature splits them."""

from __future__ import annotations

from ...protocol.codec.update import UpdateLayout, check_update
from ...protocol.member.effects import FetchUpdate


class UpdateParts:
    """The parts of a swarm's updates on this node. Here there are none: all updates are exchanged
    whole."""

    def max_bytes(self, layout: UpdateLayout) -> int:
        """Return the greatest size of a body that is exchanged whole."""
        return layout.body_bytes

    def check(self, layout: UpdateLayout, body: bytes) -> None:
        """Check a body that was exchanged whole. Raises `ProtocolError`."""
        check_update(layout, body)

    def splits(self, round: int) -> bool:
        """Whether the updates of a round are exchanged in parts."""
        return False

    async def get(self, wanted: FetchUpdate) -> bool:
        """Try to get the part that this node needs of an update that is split; return whether it is
        here. Raises `DiskFull`."""
        return True

    async def sweep(self, round: int) -> None:
        """Remove parts that no one requests any more, now that `round` is applied."""


ALL_WHOLE = UpdateParts()
