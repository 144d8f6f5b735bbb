"""A node trusts the entries that it has verified itself, and no damaged file or other node."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from distro_node.crypto.identity import Identity
from distro_node.node.storage import verified_prefix
from distro_node.node.storage.data_dir import DataDir, SwarmDir, open_identity, stored_peer
from distro_node.node.storage.swarm_store import SwarmStore
from distro_node.protocol.chain import ledger as ledger_module
from distro_node.protocol.wire.checkpoint import Checkpoint
from distro_node.protocol.wire.errors import ProtocolError
from distro_node.protocol.wire.messages import RecordId
from simulation.chain import Chain

ROUNDS = 10
INTERVAL = 4
NODE = Identity.from_seed(bytes(range(32)))


@pytest.fixture(autouse=True)
def short_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verified_prefix, "STATEMENT_INTERVAL", INTERVAL)


class Checks:
    """Counts the entries whose certificate is verified."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.rounds: list[int] = []
        genuine = ledger_module.check_certificate

        def counting(*args: Any, **kwargs: Any) -> None:
            self.rounds.append(kwargs["round"])
            genuine(*args, **kwargs)

        monkeypatch.setattr(ledger_module, "check_certificate", counting)


@pytest.fixture
def checks(chain: Chain, monkeypatch: pytest.MonkeyPatch) -> Checks:
    return Checks(monkeypatch)


async def write(directory: SwarmDir, chain: Chain, node: Any = NODE) -> None:
    """Write the chain as a running node does: each entry after it was verified."""
    store = SwarmStore(directory, chain.manifest, node)
    store.load_ledger()
    for round_ in range(len(chain.ledger)):
        store.keep(chain.ledger.raw(round_))
        await store.written()


async def test_a_restart_verifies_only_the_entries_after_the_statement(
    directory: SwarmDir, chain: Chain, checks: Checks
) -> None:
    await write(directory, chain)
    for node in (NODE, NODE.peer):
        checks.rounds.clear()
        ledger = SwarmStore(directory, chain.manifest, node).load_ledger()
        assert ledger.head == chain.ledger.head
        assert [ledger.raw(r) for r in range(ROUNDS)] == [
            chain.ledger.raw(r) for r in range(ROUNDS)
        ]
        assert ledger.final_round == chain.ledger.final_round
        assert checks.rounds == [8, 9]


async def test_a_loaded_chain_goes_on_as_a_verified_one(
    directory: SwarmDir, chain: Chain, checks: Checks
) -> None:
    await write(directory, chain)
    other = chain.fork()
    store = SwarmStore(directory, chain.manifest, NODE)
    other.ledger = store.load_ledger()
    for _ in range(INTERVAL):
        other.grow()
        store.keep(other.ledger.raw(len(other.ledger) - 1))
    await store.written()
    checks.rounds.clear()
    again = SwarmStore(directory, chain.manifest, NODE).load_ledger()
    assert again.head == other.ledger.head
    assert checks.rounds == []


@pytest.mark.parametrize("node", [None, Identity.from_seed(bytes(32)).peer])
async def test_the_statement_of_another_node_is_worth_nothing(
    directory: SwarmDir, chain: Chain, checks: Checks, node: Any
) -> None:
    await write(directory, chain)
    checks.rounds.clear()
    SwarmStore(directory, chain.manifest, node).load_ledger()
    assert checks.rounds == list(range(ROUNDS))


async def test_of_a_damaged_file_every_entry_is_verified(
    directory: SwarmDir, chain: Chain, checks: Checks
) -> None:
    await write(directory, chain)
    content = bytearray(directory.ledger.read_bytes())
    content[len(content) // 2] ^= 1
    directory.ledger.write_bytes(content)
    checks.rounds.clear()
    ledger = SwarmStore(directory, chain.manifest, NODE).load_ledger()
    assert 0 < len(ledger) < ROUNDS
    assert checks.rounds[:2] == [0, 1]


async def test_a_forged_chain_in_the_file_is_not_believed(
    directory: SwarmDir, chain: Chain, checks: Checks
) -> None:
    """The statement is about bytes: another chain under it is verified from its first entry."""
    await write(directory, chain)
    forged = chain.forged(ROUNDS)
    statement = directory.verified.read_bytes()
    store = SwarmStore(directory, chain.manifest)
    store.replace_chain(forged.ledger)
    await store.written()
    directory.verified.write_bytes(statement)
    checks.rounds.clear()
    ledger = SwarmStore(directory, chain.manifest, NODE).load_ledger()
    assert checks.rounds == list(range(ROUNDS))
    assert ledger.head == forged.ledger.head  # the founder alone may sign it: a fork, not a forgery


@pytest.mark.parametrize(
    "statement",
    [b"", b"\0" * 5000, b'{"entries": 3}'],
    ids=["empty", "long", "not an envelope"],
)
async def test_nonsense_in_place_of_the_statement(
    directory: SwarmDir, chain: Chain, checks: Checks, statement: bytes
) -> None:
    await write(directory, chain)
    directory.verified.write_bytes(statement)
    checks.rounds.clear()
    assert len(SwarmStore(directory, chain.manifest, NODE).load_ledger()) == ROUNDS
    assert checks.rounds == list(range(ROUNDS))


async def test_another_release_may_have_checked_less(
    directory: SwarmDir, chain: Chain, checks: Checks, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verified_prefix, "__version__", "0.0.1")
    await write(directory, chain)
    monkeypatch.undo()
    again = Checks(monkeypatch)
    SwarmStore(directory, chain.manifest, NODE).load_ledger()
    assert again.rounds == list(range(ROUNDS))


async def test_after_a_change_of_chains_the_statement_is_about_the_new_one(
    directory: SwarmDir, chain: Chain, checks: Checks
) -> None:
    await write(directory, chain)
    other = chain.fork()
    other.ledger = chain.ledger.truncated(3)
    other.grow(updates=())
    other.grow_until(2 * ROUNDS)
    store = SwarmStore(directory, chain.manifest, NODE)
    store.load_ledger()
    store.replace_chain(other.ledger)
    await store.written()
    checks.rounds.clear()
    assert SwarmStore(directory, chain.manifest, NODE).load_ledger().head == other.ledger.head
    assert checks.rounds == []


async def test_a_checkpoint_is_compared_with_verified_entries_too(
    directory: SwarmDir, chain: Chain
) -> None:
    await write(directory, chain)
    store = SwarmStore(directory, chain.manifest, NODE)
    with pytest.raises(ProtocolError, match="checkpoint"):
        store.load_ledger(checkpoint=Checkpoint(2, RecordId(bytes(32))))


async def test_a_full_disk_costs_the_statement_and_nothing_else(
    directory: SwarmDir, chain: Chain, checks: Checks, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(verified_prefix, "write_atomically", full)
    await write(directory, chain)
    checks.rounds.clear()
    assert len(SwarmStore(directory, chain.manifest, NODE).load_ledger()) == ROUNDS
    assert checks.rounds == list(range(ROUNDS))


async def test_only_a_node_that_may_write_saves_a_statement(
    directory: SwarmDir, chain: Chain
) -> None:
    await write(directory, chain, NODE.peer)
    assert not directory.verified.exists()
    SwarmStore(directory, chain.manifest, NODE).load_ledger()
    assert directory.verified.exists()


def test_commands_trust_the_peer_of_the_key_file(tmp_path: Path) -> None:
    data = DataDir(tmp_path)
    assert stored_peer(data) is None
    identity = open_identity(data, None)
    assert stored_peer(data) == identity.peer
    shutil.copy(data.identity, tmp_path / "copy")
    os.chmod(data.identity, 0o644)
    assert stored_peer(data) is None
