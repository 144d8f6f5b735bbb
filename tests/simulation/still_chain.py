"""A chain for tests of one index: its members never change, and each has one vote."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from distro_node.protocol.wire.membership import Membership


class StillChain:
    """What an index may read of a chain (`chain_index.ChainView`), for indexes that need no records."""

    def __init__(self, swarm: bytes, members: Membership, length: int = 0) -> None:
        self.manifest: Any = SimpleNamespace(swarm=swarm, fault_model="byzantine")
        self.length = length
        self._members = members

    def __len__(self) -> int:
        return self.length

    def membership(self, round: int) -> Membership:
        return self._members

    def votes(self, round: int) -> Any:
        return self._members.one_each

    def __getattr__(self, name: str) -> Any:
        raise NotImplementedError(name)
