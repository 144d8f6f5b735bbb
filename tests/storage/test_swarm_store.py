"""The stored state of a swarm: durable when acknowledged, in order, and consistent after any fault."""

from __future__ import annotations

import errno
import os
import threading
from dataclasses import replace
from io import FileIO
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing
from distro_node.crypto.envelope import Envelope
from distro_node.node.storage.data_dir import SwarmDir
from distro_node.node.storage.entry_file import EntryFile
from distro_node.node.storage.swarm_store import LocalSnapshot, SwarmStore
from distro_node.protocol.wire.encoding import encode
from distro_node.protocol.wire.messages import NO_BLOCK
from simulation.chain import Chain

# Private here: `_signed`: a process that dies does not close its files.

ROUNDS = 6


@pytest.fixture
def store(directory: SwarmDir, chain: Chain) -> SwarmStore:
    return SwarmStore(directory, chain.manifest)


def message(chain: Chain, number: int) -> Envelope:
    return chain.envelope(0, "vote", chain.ballot(NO_BLOCK, slot=number + 1))


def full(*_: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


class Full(FileIO):
    """A file that accepts a little at a time, on a disk that is full before everything is written."""

    def write(self, data: Any) -> int:
        if len(data) > 3:
            return super().write(data[:3])
        raise OSError(errno.ENOSPC, "No space left on device")


class Syncs:
    """Counts the fsyncs by the name of what is synced, and can delay them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.names: list[str] = []
        self.may_end = threading.Event()
        self.may_end.set()
        self._genuine = os.fsync
        monkeypatch.setattr(os, "fsync", self)

    def __call__(self, descriptor: int) -> None:
        self.names.append(Path(os.readlink(f"/proc/self/fd/{descriptor}")).name)
        assert self.may_end.wait(60)
        self._genuine(descriptor)


async def test_all_that_was_handed_over_is_there_again(
    store: SwarmStore, directory: SwarmDir, chain: Chain
) -> None:
    said = [message(chain, number) for number in range(3)]
    for round_ in range(ROUNDS):
        store.keep(chain.ledger.raw(round_))
    for envelope in said:
        store.sign(envelope.encode())
    store.keep_snapshots([LocalSnapshot(3, "ab" * 32, 100)])
    await store.written()
    again = SwarmStore(directory, chain.manifest)
    ledger = again.load_ledger()
    assert [ledger.raw(r) for r in range(ROUNDS)] == [chain.ledger.raw(r) for r in range(ROUNDS)]
    assert again.signed() == said
    assert again.snapshots() == store.snapshots() == [LocalSnapshot(3, "ab" * 32, 100)]


async def test_a_message_is_on_the_disk_with_the_name_of_its_file(
    store: SwarmStore, chain: Chain, monkeypatch: pytest.MonkeyPatch
) -> None:
    syncs = Syncs(monkeypatch)
    store.sign(message(chain, 0).encode())
    await store.written()
    assert syncs.names == ["swarm", "votes"]
    store.sign(message(chain, 1).encode())
    await store.written()
    assert syncs.names[2:] == ["votes"]


async def test_many_messages_share_one_fsync_and_the_loop_goes_on_meanwhile(
    store: SwarmStore, chain: Chain, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.sign(message(chain, 0).encode())
    await store.written()
    syncs = Syncs(monkeypatch)
    syncs.may_end.clear()
    done: list[int] = []

    async def say(number: int) -> None:
        store.sign(message(chain, number).encode())
        await store.written()
        done.append(number)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(say, 1)
        while not syncs.names:  # noqa: ASYNC110 - a thread sets no event of trio's
            await trio.sleep(0.001)
        for number in range(2, 50):
            nursery.start_soon(say, number)
        await trio.testing.wait_all_tasks_blocked()
        assert done == []
        syncs.may_end.set()
    assert sorted(done) == list(range(1, 50))
    assert len(syncs.names) == 2
    assert store.signed()[0] == message(chain, 0)
    assert len(store.signed()) == 50


async def test_messages_are_dropped_only_when_the_decision_is_on_the_disk(
    store: SwarmStore, chain: Chain, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.sign(message(chain, 0).encode())
    await store.written()
    genuine = EntryFile.sync

    def sync(self: EntryFile) -> None:
        if self.path.name == "ledger":
            full()
        genuine(self)

    monkeypatch.setattr(EntryFile, "sync", sync)
    store.keep(chain.ledger.raw(0))
    store.forget_signed([])
    with pytest.raises(OSError, match="No space"):
        await store.written()
    assert store.signed() == [message(chain, 0)]


@pytest.mark.parametrize("fault", ["fsync", "write"])
async def test_a_full_disk_takes_back_what_is_not_certain_and_nothing_follows_it(
    store: SwarmStore,
    directory: SwarmDir,
    chain: Chain,
    monkeypatch: pytest.MonkeyPatch,
    fault: str,
) -> None:
    store.sign(message(chain, 0).encode())
    await store.written()
    store._signed.close()
    size = directory.signed.stat().st_size
    store.sign(message(chain, 1).encode())
    with monkeypatch.context() as patch:
        if fault == "fsync":
            patch.setattr(os, "fsync", full)
        else:
            patch.setattr(Path, "open", lambda path, mode, **_: Full(path, mode.replace("b", "")))
        with pytest.raises(OSError, match="No space"):
            await store.written()
    assert directory.signed.stat().st_size == size
    # There is room again, but a gap is never filled silently.
    store.sign(message(chain, 2).encode())
    with pytest.raises(OSError, match="No space"):
        await store.written()
    assert SwarmStore(directory, chain.manifest).signed() == [message(chain, 0)]


async def test_another_chain_takes_the_place_of_the_old_one_as_it_was_when_it_was_chosen(
    store: SwarmStore, directory: SwarmDir, chain: Chain
) -> None:
    for round_ in range(ROUNDS):
        store.keep(chain.ledger.raw(round_))
    other = chain.fork()
    other.ledger = other.ledger.truncated(2)
    other.grow(updates=[])
    store.replace_chain(other.ledger)
    # It grows before anything is written.
    store.keep(encode(other.grow(updates=[])))
    await store.written()
    found = SwarmStore(directory, chain.manifest).load_ledger()
    assert len(found) == 4
    assert found.head == other.ledger.head


@pytest.mark.parametrize("dropped", [False, True])
async def test_the_snapshots_of_a_chain_that_was_left_stay_listed(
    store: SwarmStore, directory: SwarmDir, chain: Chain, dropped: bool
) -> None:
    """Nothing else would ever find their blobs, to remove them."""
    whole, begun = LocalSnapshot(3, "ab" * 32, 100), LocalSnapshot(4, "cd" * 32, 100, whole=False)
    store.keep_snapshots([whole, begun])
    await store.written()
    if dropped:
        store.drop_ledger()
    else:
        store.replace_chain(chain.ledger)
        await store.written()
    again = SwarmStore(directory, chain.manifest)
    assert again.snapshots() == store.snapshots() == [begun, replace(whole, whole=False)]


@pytest.mark.parametrize("end", [1, 3, 40])
async def test_a_torn_end_costs_the_last_entry_alone(
    store: SwarmStore, directory: SwarmDir, chain: Chain, end: int
) -> None:
    for round_ in range(ROUNDS):
        store.keep(chain.ledger.raw(round_))
    await store.written()
    os.truncate(directory.ledger, directory.ledger.stat().st_size - end)
    again = SwarmStore(directory, chain.manifest)
    assert len(again.load_ledger(repair=False)) == ROUNDS - 1
    assert len(again.load_ledger()) == ROUNDS - 1
    again.keep(chain.ledger.raw(ROUNDS - 1))
    await again.written()
    assert len(SwarmStore(directory, chain.manifest).load_ledger()) == ROUNDS


async def test_what_a_killed_process_was_replacing_is_removed(
    store: SwarmStore, directory: SwarmDir, chain: Chain
) -> None:
    left = [directory.root / f".{name}.new" for name in ("ledger", "votes", "snapshots.json")]
    for path in left:
        path.write_bytes(b"half of it")
    # Not by one that only reads: a node running in parallel may be using them.
    store.load_ledger(repair=False)
    assert all(path.exists() for path in left)
    store.load_ledger()
    assert not any(path.exists() for path in left)


@pytest.mark.parametrize("place", range(0, 2000, 97))
async def test_a_flipped_byte_costs_what_follows_it_at_most(
    store: SwarmStore, directory: SwarmDir, chain: Chain, place: int
) -> None:
    for round_ in range(ROUNDS):
        store.keep(chain.ledger.raw(round_))
    await store.written()
    data = bytearray(directory.ledger.read_bytes())
    data[place] ^= 0xFF
    directory.ledger.write_bytes(data)
    ends, end = [], 0
    for round_ in range(ROUNDS):
        end += 4 + len(chain.ledger.raw(round_))
        ends.append(end)
    again = SwarmStore(directory, chain.manifest)
    whole = sum(end <= place for end in ends)
    assert len(again.load_ledger()) == whole
    again.keep(chain.ledger.raw(whole))
    await again.written()
    assert len(SwarmStore(directory, chain.manifest).load_ledger()) == whole + 1
