"""What a node knew to be final still holds after a restart, whatever happened to its ledger; so does
a link's checkpoint."""

from __future__ import annotations

from pathlib import Path

import pytest
from distro_node.crypto.hashing import content_id
from distro_node.node.errors import ExitCode, UserError
from distro_node.node.session.join import _check_point, _load_ledger
from distro_node.node.storage.data_dir import SwarmDir
from distro_node.node.storage.swarm_store import LocalSnapshot, SwarmStore
from distro_node.protocol.chain.initial_sync import InitialSync
from distro_node.protocol.chain.ledger import Ledger
from distro_node.protocol.wire.checkpoint import Checkpoint
from distro_node.protocol.wire.messages import RecordId
from simulation.chain import Chain, answers, identity

ROUNDS = 20

# Private here: `_ledger`: the file that finds no room.


@pytest.fixture(scope="module")
def chain() -> Chain:
    return Chain(4).grow_until(ROUNDS)


@pytest.fixture(scope="module")
def forged(chain: Chain) -> Chain:
    """Return the history that the founder signs after it has left."""
    return chain.forged(2 * ROUNDS)


@pytest.fixture
def directory(tmp_path: Path) -> SwarmDir:
    return SwarmDir(tmp_path / "swarm")


def point(chain: Chain, round_: int) -> Checkpoint:
    return Checkpoint(round_, chain.ledger.parent(round_ + 1))


def stored(directory: SwarmDir, ledger: Ledger, final: Checkpoint | None = None) -> SwarmStore:
    """Return the store of a node with this ledger and this known final record."""
    store = SwarmStore(directory, ledger.manifest)
    for round_ in range(len(ledger)):
        store.keep(ledger.raw(round_))
    if final is not None:
        store.keep_final(final)
    store.write()
    return SwarmStore(directory, ledger.manifest)


@pytest.mark.parametrize("left", ["nothing", "the forged one", "a part"])
def test_a_founder_that_left_wins_nothing_by_a_lost_ledger(
    chain: Chain, forged: Chain, directory: SwarmDir, left: str
) -> None:
    """A node starts again with only the file `final`, or with a replaced ledger, among four peers
    that show the founder's history and one honest member."""
    known = chain.ledger.final
    store = stored(directory, chain.ledger, known)
    assert store.final() == known
    if left == "nothing":
        directory.ledger.unlink()
    elif left == "a part":
        directory.ledger.write_bytes(directory.ledger.read_bytes()[:3000])
    else:
        directory.ledger.unlink()
        store.keep_snapshots([LocalSnapshot(5, "00" * 32, 1)])
        store = stored(directory, forged.ledger)
    ledger = _load_ledger(store, store.final(), None)
    assert not ledger.anchored
    assert len(ledger) < known.round if known else 0
    if left == "the forged one":
        assert len(ledger) == 0
        assert directory.ledger.read_bytes() == b""
        assert store.snapshots() == []
    machine = InitialSync(ledger)
    liars = [identity(100 + number).peer for number in range(4)]
    honest = identity(110).peer
    peers = {peer: answers(forged.ledger) for peer in liars} | {honest: answers(chain.ledger)}
    while not machine.done:
        for question in machine.requests(peers, 0.0):
            machine.on_answer(question.peer, peers[question.peer](question), 0.0)
    assert ledger.anchored
    assert ledger.head == chain.ledger.head


def test_the_later_of_link_and_disk_counts_and_both_must_hold(
    chain: Chain, forged: Chain, directory: SwarmDir
) -> None:
    store = stored(directory, chain.ledger, point(chain, 10))
    for linked in (None, point(chain, 4), point(chain, 10), point(chain, 15), point(forged, 30)):
        ledger = _load_ledger(store, store.final(), linked)
        assert len(ledger) == ROUNDS
        assert ledger.checkpoint is not None
        assert ledger.checkpoint.round == max(10, linked.round if linked else 0)
    before = directory.ledger.read_bytes()
    for round_ in (4, 10, 15):
        with pytest.raises(UserError, match=f"different records of round {round_}$") as caught:
            _load_ledger(store, store.final(), point(forged, round_))
        assert caught.value.code is ExitCode.FINAL
    # The origin of a link is unknown: nothing is discarded because of it.
    assert directory.ledger.read_bytes() == before
    assert store.final() == point(chain, 10)


def test_a_link_that_contradicts_the_disk_alone_is_refused(
    chain: Chain, forged: Chain, directory: SwarmDir
) -> None:
    store = stored(directory, chain.ledger.truncated(3), point(chain, 10))
    with pytest.raises(UserError, match=r"different records of round 10$"):
        _load_ledger(store, store.final(), point(forged, 10))


@pytest.mark.parametrize("round_", [0, 10, ROUNDS + 5, 2**62])
def test_a_link_to_a_record_that_nobody_has_moves_nothing(chain: Chain, round_: int) -> None:
    """A hostile link: a newcomer waits for a chain that has the record, and accepts no other."""
    ledger = Ledger(chain.manifest)
    ledger.checkpoint = Checkpoint(round_, RecordId(content_id(b"nobody's")))
    machine = InitialSync(ledger)
    peers = {identity(100 + number).peer: answers(chain.ledger) for number in range(5)}
    asked = 0
    while not machine.done:
        for question in machine.requests(peers, 0.0):
            machine.on_answer(question.peer, peers[question.peer](question), 0.0)
            asked += 1
    assert not ledger.anchored
    assert len(ledger) == 0
    # One question to each, until the next attempt.
    assert asked <= 2 * len(peers)


def test_a_link_without_a_record_works_as_before(chain: Chain, directory: SwarmDir) -> None:
    ledger = _load_ledger(stored(directory, chain.ledger), None, None)
    assert ledger.checkpoint is None
    assert len(ledger) == ROUNDS
    assert ledger.floor == 0


def test_a_record_that_was_fetched_is_checked_too(chain: Chain, forged: Chain) -> None:
    _check_point(chain.ledger, None)
    _check_point(chain.ledger, point(chain, 4))
    with pytest.raises(UserError):
        _check_point(chain.ledger, point(forged, 4))
    # A record that does not exist yet contradicts nothing.
    _check_point(chain.ledger.truncated(3), point(forged, 4))


def test_what_is_final_is_on_the_disk_after_the_ledger(
    chain: Chain, directory: SwarmDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = SwarmStore(directory, chain.manifest)
    store.keep(chain.ledger.raw(0))
    store.keep_final(point(chain, 0))
    store.keep_final(point(chain, 0))

    def full() -> None:
        raise OSError(28, "No space left on device")

    # A full disk under the ledger's own file.
    monkeypatch.setattr(store._ledger, "sync", full)
    with pytest.raises(OSError, match="No space"):
        store.write()
    assert SwarmStore(directory, chain.manifest).final() is None
