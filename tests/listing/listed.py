"""Public swarms and entries for tests."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from distro_node.crypto.identity import Identity
from distro_node.node.listing.entries import Entry, open_entry, seal_entry
from distro_node.protocol.wire.manifest import Manifest, SwarmId
from simulation.toy import toy_manifest

NOW = 1_800_000_000


def public(
    name: str = "meadow", *, seed: int = 0, is_public: bool = True, **changes: Any
) -> Manifest:
    """Return the manifest of a small swarm; with another seed it is another swarm of this name."""
    manifest = replace(toy_manifest(), name=name, seed=seed, **changes)
    return replace(manifest, admission=replace(manifest.admission, public=is_public))


def sealed(
    publisher: Identity,
    swarm: SwarmId,
    number: int = 1,
    *,
    written: int = NOW,
    members: int = 3,
    rounds_done: int = 20,
    tokens_per_second: int | None = 1000,
) -> bytes:
    """Return a signed entry."""
    return seal_entry(
        publisher,
        swarm,
        number=number,
        written=written,
        members=members,
        rounds_done=rounds_done,
        tokens_per_second=tokens_per_second,
    )


def entry(publisher: Identity, swarm: SwarmId, number: int = 1, **changes: Any) -> Entry:
    """Return an opened entry."""
    return open_entry(sealed(publisher, swarm, number, **changes), swarm)
