"""A node opens a long chain from the saved state of its indexes, and trusts no state but its own."""

from __future__ import annotations

import errno
import logging
from pathlib import Path
from typing import Any

import pytest
from distro_node.crypto.identity import Identity
from distro_node.node.storage import saved_indexes, verified_prefix
from distro_node.node.storage.data_dir import SwarmDir
from distro_node.node.storage.swarm_store import SwarmStore
from distro_node.protocol.chain.indexed_chain import IndexedChain
from distro_node.protocol.chain.ledger import Ledger
from distro_node.protocol.chain.saved_chain import encode_state
from distro_node.protocol.wire.checkpoint import Checkpoint
from distro_node.protocol.wire.errors import ProtocolError
from distro_node.protocol.wire.messages import RecordId
from simulation.chain import Chain

ROUNDS = 11
INTERVAL = 4
SAVED = 8
NODE = Identity.from_seed(bytes(range(32)))
OTHER = Identity.from_seed(bytes(32))


@pytest.fixture(autouse=True)
def short_intervals(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(saved_indexes, "STATE_INTERVAL", INTERVAL)
    monkeypatch.setattr(verified_prefix, "STATEMENT_INTERVAL", 2)


class Followed:
    """The rounds whose records the indexes of a chain followed."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.rounds: list[int] = []
        genuine = IndexedChain.append

        def counting(chain: IndexedChain, decided: Any, encoded: bytes | None = None) -> None:
            self.rounds.append(decided.record.round)
            genuine(chain, decided, encoded)

        monkeypatch.setattr(IndexedChain, "append", counting)


@pytest.fixture
def followed(chain: Chain, monkeypatch: pytest.MonkeyPatch) -> Followed:
    return Followed(monkeypatch)


async def write(directory: SwarmDir, ledger: Ledger, node: Any = NODE, first: int = 0) -> None:
    """Write the chain as a running node does."""
    store = SwarmStore(directory, ledger.manifest, node)
    store.load_ledger()
    for round_ in range(first, len(ledger)):
        store.keep(ledger.raw(round_))
        store.keep_indexes(ledger.truncated(round_ + 1))
        await store.written()


def opened(directory: SwarmDir, chain: Chain, node: Any = NODE, **options: Any) -> Ledger:
    return SwarmStore(directory, chain.manifest, node).load_ledger(**options)


async def test_a_restart_follows_only_the_records_after_the_saved_state(
    directory: SwarmDir, chain: Chain, followed: Followed, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    await write(directory, chain.ledger)
    for node, repair in ((NODE, True), (NODE.peer, False)):
        followed.rounds.clear()
        ledger = opened(directory, chain, node, repair=repair)
        assert followed.rounds == list(range(SAVED, ROUNDS))
        assert encode_state(ledger) == encode_state(chain.ledger)
        assert [ledger.raw(r) for r in range(ROUNDS)] == [
            chain.ledger.raw(r) for r in range(ROUNDS)
        ]
        assert [ledger.record(r) for r in range(ROUNDS)] == [
            chain.ledger.record(r) for r in range(ROUNDS)
        ]
    assert caplog.messages == []


async def test_a_restored_chain_goes_on_and_is_saved_again(
    directory: SwarmDir, chain: Chain, followed: Followed
) -> None:
    await write(directory, chain.ledger)
    longer = chain.fork().grow_until(2 * ROUNDS)
    store = SwarmStore(directory, chain.manifest, NODE)
    ledger = store.load_ledger()
    for round_ in range(ROUNDS, len(longer.ledger)):
        ledger.append(longer.ledger[round_])
        store.keep(ledger.raw(round_))
        store.keep_indexes(ledger)
        await store.written()
    followed.rounds.clear()
    again = opened(directory, chain)
    assert followed.rounds == [20, 21]
    assert encode_state(again) == encode_state(longer.ledger)


async def test_of_a_chain_without_a_state_one_is_saved_when_it_is_opened(
    directory: SwarmDir, chain: Chain, followed: Followed, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    await write(directory, chain.ledger)
    directory.indexes.unlink()
    opened(directory, chain, NODE.peer)
    assert not directory.indexes.exists()
    opened(directory, chain)
    followed.rounds.clear()
    opened(directory, chain)
    assert followed.rounds == []
    assert caplog.messages == []


@pytest.mark.parametrize("node", [None, OTHER, OTHER.peer])
async def test_the_state_of_another_node_is_worth_nothing(
    directory: SwarmDir,
    chain: Chain,
    followed: Followed,
    node: Any,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    await write(directory, chain.ledger)
    followed.rounds.clear()
    assert opened(directory, chain, node).head == chain.ledger.head
    assert followed.rounds == list(range(ROUNDS))
    assert sum("cannot be used" in line for line in caplog.messages) == 1


async def test_the_state_of_another_release_is_worth_nothing(
    directory: SwarmDir, chain: Chain, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verified_prefix, "__version__", "0.0.1")
    await write(directory, chain.ledger)
    monkeypatch.undo()
    followed = Followed(monkeypatch)
    assert opened(directory, chain).head == chain.ledger.head
    assert followed.rounds == list(range(ROUNDS))


@pytest.mark.parametrize("place", [0, 1, 40, 400, -1])
async def test_of_a_damaged_state_all_records_are_followed(
    directory: SwarmDir,
    chain: Chain,
    followed: Followed,
    place: int,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    await write(directory, chain.ledger)
    content = bytearray(directory.indexes.read_bytes())
    content[place] ^= 1
    directory.indexes.write_bytes(content)
    followed.rounds.clear()
    ledger = opened(directory, chain)
    assert followed.rounds == list(range(ROUNDS))
    assert encode_state(ledger) == encode_state(chain.ledger)
    assert sum("cannot be used" in line for line in caplog.messages) == 1
    # It is replaced, so the next start is fast.
    followed.rounds.clear()
    opened(directory, chain)
    assert followed.rounds == []


@pytest.mark.parametrize("content", [b"", b"\0", b"\0\x10", b"\xff" * 5000], ids=len)
async def test_nonsense_in_place_of_the_state(
    directory: SwarmDir, chain: Chain, followed: Followed, content: bytes
) -> None:
    await write(directory, chain.ledger)
    directory.indexes.write_bytes(content)
    followed.rounds.clear()
    assert opened(directory, chain).head == chain.ledger.head
    assert followed.rounds == list(range(ROUNDS))


async def test_a_signed_state_that_is_none_is_refused(
    directory: SwarmDir, chain: Chain, followed: Followed, caplog: pytest.LogCaptureFixture
) -> None:
    """Of another program under the same release: what is in it is checked all the same."""
    caplog.set_level(logging.INFO)
    await write(directory, chain.ledger)
    file = saved_indexes.SavedIndexesFile(directory.indexes, chain.manifest.swarm, NODE)
    saved = file.read()
    assert saved is not None
    for state in (b"", encode_state(chain.ledger.truncated(SAVED - 1)), saved.state[:-1]):
        file.write(saved.prefix, state)
        followed.rounds.clear()
        caplog.clear()
        assert opened(directory, chain).head == chain.ledger.head
        assert followed.rounds == list(range(ROUNDS))
        assert sum("cannot be used" in line for line in caplog.messages) == 1


async def test_an_older_state_is_used_and_a_newer_one_than_the_ledger_is_not(
    directory: SwarmDir, chain: Chain, followed: Followed
) -> None:
    await write(directory, chain.ledger)
    older, ledger = directory.indexes.read_bytes(), directory.ledger.read_bytes()
    longer = chain.fork().grow_until(2 * ROUNDS)
    await write(directory, longer.ledger, first=ROUNDS)
    newer, whole = directory.indexes.read_bytes(), directory.ledger.read_bytes()
    assert newer != older
    for state, entries, rounds in (
        (older, whole, range(SAVED, 2 * ROUNDS)),
        (newer, ledger, range(ROUNDS)),
    ):
        directory.indexes.write_bytes(state)
        directory.ledger.write_bytes(entries)
        followed.rounds.clear()
        found = opened(directory, chain)
        assert followed.rounds == list(rounds)
        assert encode_state(found) == encode_state(longer.ledger.truncated(rounds[-1] + 1))


@pytest.mark.parametrize("restarted", [False, True])
async def test_after_a_change_of_chains_the_old_state_is_not_used(
    directory: SwarmDir, chain: Chain, followed: Followed, restarted: bool
) -> None:
    await write(directory, chain.ledger)
    other = chain.fork()
    other.ledger = chain.ledger.truncated(3)
    other.grow(updates=())
    other.grow_until(ROUNDS)
    store = SwarmStore(directory, chain.manifest, NODE)
    ledger = store.load_ledger()
    state = directory.indexes.read_bytes()
    store.replace_chain(other.ledger)
    await store.written()
    # What was read from the file before stays readable.
    assert [ledger.raw(r) for r in range(ROUNDS)] == [chain.ledger.raw(r) for r in range(ROUNDS)]
    if not restarted:
        store.keep_indexes(other.ledger)
        await store.written()
        assert directory.indexes.read_bytes() != state
    followed.rounds.clear()
    found = opened(directory, chain)
    assert followed.rounds == (list(range(ROUNDS)) if restarted else [])
    assert encode_state(found) == encode_state(other.ledger)


async def test_damage_before_and_after_the_state_costs_what_it_cost_without(
    directory: SwarmDir, chain: Chain, followed: Followed
) -> None:
    await write(directory, chain.ledger)
    intact = directory.ledger.read_bytes()
    sizes = [4 + len(chain.ledger.raw(r)) for r in range(ROUNDS)]
    for round_ in (2, SAVED + 1):
        damaged = bytearray(intact)
        damaged[sum(sizes[:round_]) + 40] ^= 1
        directory.ledger.write_bytes(damaged)
        followed.rounds.clear()
        state = directory.indexes.read_bytes()
        ledger = opened(directory, chain)
        assert len(ledger) == round_
        assert directory.ledger.read_bytes() == intact[: sum(sizes[:round_])]
        assert followed.rounds[0] == (0 if round_ < SAVED else SAVED)
        directory.indexes.write_bytes(state)


async def test_a_checkpoint_is_compared_with_restored_records(
    directory: SwarmDir, chain: Chain, followed: Followed
) -> None:
    await write(directory, chain.ledger)
    followed.rounds.clear()
    with pytest.raises(ProtocolError, match="checkpoint"):
        opened(directory, chain, checkpoint=Checkpoint(2, RecordId(bytes(32))))
    assert followed.rounds == []
    assert opened(directory, chain, checkpoint=Checkpoint(2, chain.ledger.parent(3))).anchored


async def test_a_full_disk_costs_the_state_and_nothing_else(
    directory: SwarmDir,
    chain: Chain,
    followed: Followed,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(saved_indexes, "write_atomically", full)
    await write(directory, chain.ledger)
    assert [line.split(":")[0] for line in caplog.messages] == [
        f"the state of the chain could not be saved in {directory.indexes}"
    ] * 2
    followed.rounds.clear()
    assert opened(directory, chain).head == chain.ledger.head
    assert followed.rounds == list(range(ROUNDS))


async def test_a_state_is_about_entries_that_are_on_the_disk(
    directory: SwarmDir, chain: Chain
) -> None:
    """A chain that is longer than what was written, or another one, is not saved."""
    store = SwarmStore(directory, chain.manifest, NODE)
    store.load_ledger()
    for round_ in range(INTERVAL):
        store.keep(chain.ledger.raw(round_))
    store.keep_indexes(chain.ledger)
    await store.written()
    assert not directory.indexes.exists()


async def test_only_a_node_that_may_write_saves_a_state(
    directory: SwarmDir, chain: Chain, tmp_path: Path
) -> None:
    for node in (None, NODE.peer):
        await write(directory, chain.ledger.truncated(0), node)
        await write(directory, chain.ledger, node)
        directory.ledger.unlink()
    assert not directory.indexes.exists()
