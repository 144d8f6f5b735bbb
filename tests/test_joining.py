"""Joining: who would never be admitted is told so, and nobody else is."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from distro_node.node.errors import ExitCode, UserError
from distro_node.node.joining import check_invitation, check_standing, find_manifest
from distro_node.node.storage.blob_store import BlobStore
from distro_node.node.storage.data_dir import DataDir
from simulation.chain import Chain, by_invitation, ticket
from simulation.swarm import identity


def test_a_guest_needs_a_ticket_of_its_own() -> None:
    issuer, policy = by_invitation()
    chain = Chain(0, admission=policy)
    guest = identity(1).peer
    good = ticket(chain.manifest, issuer, guest)
    check_invitation(chain.manifest, chain.ledger, guest, good)
    for bad, words in (
        (b"", "this link has none"),
        (ticket(chain.manifest, issuer, identity(2).peer), "for somebody else"),
    ):
        with pytest.raises(UserError, match=words) as caught:
            check_invitation(chain.manifest, chain.ledger, guest, bad)
        assert caught.value.code is ExitCode.NO_TICKET
    # The issuer's own word for itself holds: so it comes back after a pause.
    own = ticket(chain.manifest, issuer, issuer.peer)
    check_invitation(chain.manifest, chain.ledger, issuer.peer, own)


def test_members_and_guests_of_open_swarms_need_none() -> None:
    open_to_all = Chain(2)
    check_invitation(open_to_all.manifest, open_to_all.ledger, identity(9).peer, b"")
    _, policy = by_invitation()
    founded = Chain(0, admission=policy)
    check_invitation(founded.manifest, founded.ledger, founded.manifest.founder, b"")


def test_whoever_was_expelled_is_told_why() -> None:
    chain = Chain(4)
    expelled = identity(3).peer
    check_standing(chain.ledger, expelled)
    chain.grow(updates=[], evidence=(chain.evidence(3),))
    with pytest.raises(UserError, match="contradict") as caught:
        check_standing(chain.ledger, expelled)
    assert caught.value.code is ExitCode.EXPELLED


async def test_a_task_that_is_not_installed_ends_the_join(tmp_path: Path) -> None:
    data = DataDir(tmp_path)
    data.create()
    for task, known in (("causal_lm", True), ("poetry", False)):
        manifest = replace(Chain(1).manifest, task=task)
        store = BlobStore(data.blobs)
        store.put(manifest.encode())
        directory = data.swarm(manifest.swarm)
        directory.manifest.parent.mkdir(parents=True)
        # What it is told of by a peer is the manifest, and that is here.
        means: Any = SimpleNamespace(
            settings=SimpleNamespace(swarm=manifest.swarm), store=store, directory=directory
        )
        if known:
            assert await find_manifest(means) == manifest
            continue
        with pytest.raises(UserError, match="'poetry', which is not installed here") as caught:
            await find_manifest(means)
        assert caught.value.code is ExitCode.NO_TASK
        assert "sft" in caught.value.remedy
