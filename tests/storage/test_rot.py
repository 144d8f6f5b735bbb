"""Fifty bytes changed by a disk, one after the other, in each kind of file that a node has.

Whichever byte it is: the node reads what is intact, reports the loss, never accepts the changed byte,
and can rewrite the file. What it fetches again restores the former state.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from distro_node.crypto.hashing import ContentId
from distro_node.crypto.identity import Identity, peer_text
from distro_node.crypto.keystore import KeystoreError, create_identity, load_identity
from distro_node.node.errors import ExitCode, UserError
from distro_node.node.network.discovery.member_names import (
    MAX_NAME_BYTES,
    open_any_name,
    seal_name,
)
from distro_node.node.network.discovery.names_file import NamesFile
from distro_node.node.network.discovery.peers_file import PeersFile
from distro_node.node.session.join import _stored_manifest
from distro_node.node.storage.blob_store import BlobStore
from distro_node.node.storage.data_dir import DataDir, SwarmDir
from distro_node.node.storage.final_file import read_final, write_final
from distro_node.node.storage.monotonic_counter import MonotonicCounter
from distro_node.node.storage.swarm_store import LocalSnapshot, SwarmStore
from distro_node.node.telemetry.own_rounds import RoundAttendance
from distro_node.node.telemetry.telemetry import Telemetry
from distro_node.node.trainer.optimizer.momentum import load_momentum, save_momentum
from distro_node.protocol.wire.checkpoint import Checkpoint
from distro_node.protocol.wire.errors import ProtocolError
from distro_node.protocol.wire.introductions import PeerRecord, open_peer_record, seal_peer_record
from distro_node.protocol.wire.messages import NO_BLOCK
from simulation.chain import Chain
from trainer.support import make_session

pytestmark = pytest.mark.slow

FLIPS = 50
ROUNDS = 6
CHAIN = Chain(3).grow_until(ROUNDS)
MESSAGES = [
    CHAIN.envelope(0, "vote", CHAIN.ballot(NO_BLOCK, slot=n + 1)).encode() for n in range(5)
]
SNAPSHOTS = [LocalSnapshot(2, "ab" * 32, 100), LocalSnapshot(4, "cd" * 32, 100, whole=False)]

Said = Callable[[], bool]


@pytest.fixture
def said(caplog: pytest.LogCaptureFixture) -> Said:
    """Return a function that tells whether anything was logged since its last call."""
    caplog.set_level(logging.WARNING)

    def said() -> bool:
        found = any(record.levelno >= logging.WARNING for record in caplog.records)
        caplog.clear()
        return found

    return said


@pytest.fixture
def directory(directory: SwarmDir) -> SwarmDir:
    """Return the swarm's directory, made."""
    directory.root.mkdir()
    return directory


def flips(path: Path, kind: str) -> Any:
    """Yield the file's original and its content with one byte changed, fifty times."""
    sound = path.read_bytes()
    chance = random.Random(kind)
    for _ in range(FLIPS):
        changed = bytearray(sound)
        changed[chance.randrange(len(sound))] ^= chance.randrange(1, 256)
        path.write_bytes(changed)
        yield sound, bytes(changed)


def filled(directory: SwarmDir) -> SwarmStore:
    store = SwarmStore(directory, CHAIN.manifest)
    for round_ in range(ROUNDS):
        store.keep(CHAIN.ledger.raw(round_))
    for word in MESSAGES:
        store.sign(word)
    store.keep_snapshots(SNAPSHOTS)
    store.write()
    return store


def test_the_ledger(directory: SwarmDir, said: Said) -> None:
    filled(directory)
    for sound, _ in flips(directory.ledger, "ledger"):
        store = SwarmStore(directory, CHAIN.manifest)
        ledger = store.load_ledger()
        assert len(ledger) < ROUNDS
        assert said()
        assert [ledger.raw(r) for r in range(len(ledger))] == [
            CHAIN.ledger.raw(r) for r in range(len(ledger))
        ]
        # What the others still have is fetched again.
        for round_ in range(len(ledger), ROUNDS):
            store.keep(CHAIN.ledger.raw(round_))
        store.write()
        assert directory.ledger.read_bytes() == sound
        assert len(SwarmStore(directory, CHAIN.manifest).load_ledger()) == ROUNDS
        assert not said()


def test_what_was_signed(directory: SwarmDir, said: Said) -> None:
    filled(directory)
    for _ in flips(directory.signed, "votes"):
        store = SwarmStore(directory, CHAIN.manifest)
        words = [each.encode() for each in store.signed()]
        assert len(words) < len(MESSAGES)
        assert set(words) < set(MESSAGES)
        assert said()
        store.sign(MESSAGES[-1])
        store.write()
        assert MESSAGES[-1] in [
            each.encode() for each in SwarmStore(directory, CHAIN.manifest).signed()
        ]
        said()


def test_the_list_of_snapshots(directory: SwarmDir, said: Said) -> None:
    store = filled(directory)
    for _ in flips(directory.root / "snapshots.json", "snapshots"):
        store = SwarmStore(directory, CHAIN.manifest)
        found = store.snapshots()
        # A changed blank does not change the meaning.
        assert found == [] or found == SNAPSHOTS
        assert said() == (found == [])
        store.keep_snapshots(SNAPSHOTS)
        store.write()
        assert SwarmStore(directory, CHAIN.manifest).snapshots() == SNAPSHOTS


def test_blobs(tmp_path: Path, said: Said) -> None:
    store = BlobStore(tmp_path)
    blob = random.Random(1).randbytes(5000)
    cid = store.put(blob)
    for _ in flips(store.path(cid), "blob"):
        assert store.get(cid) is None
        assert said()
        assert not store.has(cid)
        assert store.put(blob) == cid
        assert store.get(cid) == blob


def test_the_manifest_in_either_of_its_places(
    directory: SwarmDir, tmp_path: Path, said: Said
) -> None:
    swarm, data = CHAIN.manifest.swarm, CHAIN.manifest.encode()
    store = BlobStore(tmp_path / "blobs")
    directory.manifest.write_bytes(data)
    for _ in flips(directory.manifest, "manifest"):
        store.remove(ContentId(swarm))
        assert _stored_manifest(store, directory, swarm) is None
        assert said()
        store.put(data)
        assert _stored_manifest(store, directory, swarm) == data
    directory.manifest.write_bytes(data)
    for _ in flips(store.path(ContentId(swarm)), "manifest's blob"):
        assert _stored_manifest(store, directory, swarm) == data
        assert said()
        assert store.get(ContentId(swarm)) == data


def test_the_momentum(tmp_path: Path, said: Said) -> None:
    torch.set_num_threads(1)
    session = make_session(tmp_path / "blobs")
    session.train(1, [0])
    session.optimizer.forget_all()
    table, path = session.manifest.parameters, tmp_path / "momentum"
    save_momentum(session.optimizer, table, path)
    assert load_momentum(session.optimizer, table, path)
    before = [tensor.clone() for tensor in session.optimizer.momentum]
    # In the header, which has the layout, as often as in the numbers after it.
    head = 8 + int.from_bytes(path.read_bytes()[:8], "little")
    sound, chance = path.read_bytes(), random.Random("momentum")
    for number in range(2 * FLIPS):
        changed = bytearray(sound)
        place = chance.randrange(head) if number % 2 else chance.randrange(head, len(sound))
        changed[place] ^= chance.randrange(1, 256)
        path.write_bytes(changed)
        loaded = load_momentum(session.optimizer, table, path)
        assert said() == (not loaded)
        # In the header only a blank may have changed.
        assert not loaded or place < head
        for tensor, was in zip(session.optimizer.momentum, before, strict=True):
            assert torch.equal(tensor, was)


def test_remembered_peers(tmp_path: Path, said: Said) -> None:
    swarm = CHAIN.manifest.swarm
    records: list[PeerRecord] = [a_record(number) for number in range(4)]
    path = tmp_path / "peers.json"
    PeersFile(path, swarm).save(records)
    sealed = [record.sealed for record in records]
    for _ in flips(path, "peers"):
        found = [record.sealed for record in PeersFile(path, swarm).load()]
        assert set(found) <= set(sealed)
        assert said() or found == sealed


def test_remembered_names(tmp_path: Path, said: Said) -> None:
    swarm, path = CHAIN.manifest.swarm, tmp_path / "names.json"
    people = [Identity.from_seed(bytes([number + 1]) * 32) for number in range(4)]
    sealed = [seal_name(each, swarm, f"member {n}") for n, each in enumerate(people)]
    NamesFile(path, MAX_NAME_BYTES).save(sealed)
    for _ in flips(path, "names"):
        found = NamesFile(path, MAX_NAME_BYTES).load()
        warned = said()
        names = []
        for each in found:
            try:
                names.append(open_any_name(each, swarm))
            except ProtocolError:
                warned = True
                break
        assert set(names) <= {(each.peer, f"member {n}") for n, each in enumerate(people)}
        assert warned or found == sealed


def a_record(number: int) -> PeerRecord:
    who = Identity.from_seed(bytes([number + 1]) * 32)
    address = f"/ip4/127.0.0.1/tcp/4001/p2p/{peer_text(who.peer)}"
    sealed = seal_peer_record(who, CHAIN.manifest.swarm, [address], number)
    return open_peer_record(sealed, CHAIN.manifest.swarm)


def test_the_history(directory: SwarmDir) -> None:
    """A convenience: an invalid line is skipped, and plots lack a point."""
    telemetry = Telemetry(CHAIN.manifest.founder)
    telemetry.keep_history(directory.history)
    for round_ in range(ROUNDS):
        telemetry.applied(
            CHAIN.ledger[round_].record,
            3,
            9,
            0.1,
            float(round_),
            attendance=RoundAttendance("counted"),
        )
    for _ in flips(directory.history, "history"):
        again = Telemetry(CHAIN.manifest.founder)
        again.keep_history(directory.history)
        for round_ in range(ROUNDS):
            again.applied(
                CHAIN.ledger[round_].record,
                3,
                9,
                0.1,
                float(round_),
                attendance=RoundAttendance("counted"),
            )
        assert directory.history.read_bytes().endswith(b"}\n")


@pytest.mark.parametrize(
    "line", [b'{"round": 1e999, "fingerprint": "9"}', b'{"round": "\xff"}', b"[" * 9999]
)
def test_a_history_with_numbers_that_are_none(directory: SwarmDir, line: bytes) -> None:
    directory.history.write_bytes(line + b"\n")
    Telemetry(CHAIN.manifest.founder).keep_history(directory.history)


def test_what_is_final(tmp_path: Path) -> None:
    """A node that does not know any more what is final needs a link from a person whom its owner
    trusts."""
    path, checkpoint = tmp_path / "final", Checkpoint(5, CHAIN.ledger[5].record.id)
    write_final(path, checkpoint)
    for _ in flips(path, "final"):
        found: Checkpoint | ExitCode | None
        try:
            found = read_final(path)
        except UserError as refused:
            found = refused.code
        assert found in (checkpoint, ExitCode.FINAL)


def test_the_key(tmp_path: Path) -> None:
    """It cannot be fetched again: the node reports that, and never silently becomes another peer."""
    path = tmp_path / "identity.key"
    identity = create_identity(path, None)
    for _ in flips(path, "key"):
        with pytest.raises(KeystoreError, match=r"identity\.key") as refused:
            load_identity(path, None)
        assert "backup" in refused.value.remedy or "version" in refused.value.remedy
    assert identity.peer


def test_the_number_of_starts(tmp_path: Path, said: Said) -> None:
    """A digit that became another leaves a number like any other. The clock is the lower bound, other
    peers report what they know, and the rewritten file is correct again."""
    path, now = tmp_path / "starts", 1_800_000_000.0
    first = MonotonicCounter(path, clock=now)
    heard = first.next()
    for _, changed in flips(path, "starts"):
        again = MonotonicCounter(path, clock=now + 60)
        text = changed.decode("latin-1").strip()
        if changed.isascii() and text.isdecimal():
            assert again.start_number > int(text)
        else:
            assert said()
        assert again.next() > heard
        assert path.read_bytes() == b"%d\n" % again.start_number
        known = heard + (1 << 40)
        again.beyond(known)
        assert again.next() > known


def test_the_lock_file(tmp_path: Path) -> None:
    data = DataDir(tmp_path)
    with data.lock():
        pass
    for _ in flips(data.lock_file, "lock"):
        with data.lock():
            pass
