"""A disk that is full, broken, read-only or another user's, at every step at which a node writes to it.

Each scenario does what a part of the node does with the disk. It is run as often as it has steps, times
the errors; each time another step fails. The result is one clear line and a documented exit code, or the
part goes on without the disk. Acknowledged data is there; with an intact disk the same thing works, and
leaves the same files as a run without faults. Every place in the code that writes is covered by a
scenario, which a separate test checks.
"""

from __future__ import annotations

import contextlib
import errno
import io
import logging
import os
import re
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import patch

import pytest
import torch
import trio
from distro_node.crypto import keystore
from distro_node.crypto.hashing import content_id
from distro_node.crypto.identity import Identity
from distro_node.node.cli.failures import explain
from distro_node.node.content.manifest_search import read_manifest
from distro_node.node.control.command_socket import serve_control
from distro_node.node.create import new_swarm
from distro_node.node.demo import plan
from distro_node.node.demo.folder import claim
from distro_node.node.demo.plan import collect_text
from distro_node.node.errors import ExitCode, UserError
from distro_node.node.network.discovery.names_file import NamesFile
from distro_node.node.network.discovery.peers_file import PeersFile
from distro_node.node.private_data.order import SampleOrder
from distro_node.node.private_data.store import PrivateIndex
from distro_node.node.session.join import JoinContext, find_manifest
from distro_node.node.session.session import SwarmSession
from distro_node.node.storage import saved_indexes, verified_prefix
from distro_node.node.storage.blob_store import BlobStore
from distro_node.node.storage.data_dir import DataDir, open_identity
from distro_node.node.storage.monotonic_counter import MonotonicCounter
from distro_node.node.storage.relayed_bytes import RelayedBytes
from distro_node.node.storage.sign_vote_store import SignVotePartStore
from distro_node.node.storage.spill_file import SpillFile
from distro_node.node.storage.swarm_store import LocalSnapshot, SwarmStore
from distro_node.node.storage.unlisted_chunks import UnlistedChunks
from distro_node.node.storage.update_notes import UpdateNotes
from distro_node.node.telemetry import logs
from distro_node.node.telemetry.own_rounds import RoundAttendance
from distro_node.node.telemetry.plots import plot_losses
from distro_node.node.telemetry.telemetry import Telemetry
from distro_node.node.trainer.error_report import describe
from distro_node.node.trainer.models.export import export
from distro_node.node.trainer.optimizer.momentum import load_momentum
from distro_node.node.trainer.ranks.momentum import MomentumDivision, remove_others, save_part
from distro_node.node.training import client
from distro_node.node.training.error_messages import explain_trainer
from distro_node.node.training.errors import TrainerFailed
from distro_node.protocol.wire.checkpoint import Checkpoint
from distro_node.protocol.wire.messages import NO_BLOCK
from simulation.chain import Chain
from storage.faulty_disk import FaultyDisk, Step, places
from transformers.utils import logging as transformers_logging

# Private here: `_store_manifest`, `trainer_process`: their callers start a trainer,
# which takes seconds for each step; `_render`: a key as an earlier version wrote it; `_open`: a log on a
# full disk.
ERRORS = {
    "full": errno.ENOSPC,
    "broken": errno.EIO,
    "read-only": errno.EROFS,
    "denied": errno.EACCES,
}

CHAIN = Chain(3)
while CHAIN.round < 5:
    CHAIN.grow()

Run = Callable[[Path], None]
Check = Callable[[Path], None]

SCENARIOS: dict[str, tuple[Run, Check]] = {}


def scenario(check: Check) -> Callable[[Run], Run]:
    """Register a scenario; `check` examines what it left, on a disk that works again."""

    def register(run: Run) -> Run:
        SCENARIOS[run.__name__] = (run, check)
        return run

    return register


def nothing_more(_: Path) -> None:
    pass


# --- the scenarios -------------------------------------------------------------------------------


def identity_is_kept(root: Path, passphrase: str | None = None) -> None:
    data = DataDir(root)
    with data.lock():
        first = open_identity(data, passphrase)
        assert open_identity(data, passphrase).peer == first.peer


def sealed_identity_is_kept(root: Path) -> None:
    identity_is_kept(root, "secret")


@scenario(nothing_more)
def private_data(root: Path) -> None:
    own = PrivateIndex(name="a", shards=(), documents=0, bad=0)
    SampleOrder(root / "walk", own, 9).next(3)


@scenario(identity_is_kept)
def data_directory(root: Path) -> None:
    data = DataDir(root)
    data.create()
    with data.lock():
        open_identity(data, None)


def blobs_are_sound(root: Path) -> None:
    store = BlobStore(root / "blobs")
    for cid in store.ids():
        # As it was when it was stored, or gone.
        assert store.get(cid) in (b"one", b"two", b"three", None)


@scenario(blobs_are_sound)
def blobs(root: Path) -> None:
    (root / "blobs").mkdir(exist_ok=True)
    old = root / "blobs" / ".temporary-1-old"
    old.write_bytes(b"of a process that died")
    os.utime(old, (0, 0))
    store = BlobStore(root / "blobs")
    one, two, three = (store.put(data) for data in (b"one", b"two", b"three"))
    store.path(two).write_bytes(b"rotten")
    assert store.get(two) is None
    store.delete_files(store.set_aside([three]))
    assert store.get(one) == b"one"


@scenario(blobs_are_sound)
def chunks_of_a_snapshot_in_the_making(root: Path) -> None:
    store = UnlistedChunks(root / "blobs", CHAIN.manifest.swarm)
    new = not store.has(content_id(b"one"))
    one = store.put(b"one")
    assert store.noted() == {one} or not new
    store.forget()
    assert not store.noted()


def noted_updates_are_sound(root: Path) -> None:
    noted = UpdateNotes(root, CHAIN.manifest.swarm).noted
    assert noted <= {(round_, content_id(b"one")) for round_ in range(1000)}


@scenario(noted_updates_are_sound)
def notes_of_updates(root: Path) -> None:
    """They are for tidying up, so the node goes on without them."""
    notes = UpdateNotes(root, CHAIN.manifest.swarm)
    for round_ in range(300):
        notes.note(round_, content_id(b"one"))
    notes.forget(298)
    assert notes.noted == {(299, content_id(b"one"))}


NEW, OLD = content_id(b"a name"), content_id(b"an old name")


def parts_are_sound(root: Path) -> None:
    store = SignVotePartStore(root / "sign-votes")
    store.register(NEW, lambda data: data == b"a part")
    assert store.get(NEW) in (b"a part", None)


@scenario(parts_are_sound)
def parts_of_sign_votes(root: Path) -> None:
    earlier, store = (SignVotePartStore(root / "sign-votes") for _ in range(2))
    earlier.register(OLD, lambda data: True)
    earlier.keep(OLD, b"of a step that is over")
    store.register(NEW, lambda data: data == b"a part")
    store.keep(NEW, b"a part")
    store.remove_unregistered()
    assert store.get(NEW) == b"a part"
    assert earlier.get(OLD) is None


def a_store(root: Path, node: Identity | None = None) -> SwarmStore:
    directory = DataDir(root).swarm(CHAIN.manifest.swarm)
    directory.root.parent.mkdir(parents=True, exist_ok=True)
    return SwarmStore(directory, CHAIN.manifest, node)


ACKNOWLEDGED: dict[str, int] = {}


def what_was_signed_is_there(root: Path) -> None:
    store = a_store(root)
    ledger = store.load_ledger()
    assert len(ledger) >= ACKNOWLEDGED.get("rounds", 0)
    for round_ in range(len(ledger)):
        assert ledger[round_].record.id == CHAIN.ledger[round_].record.id
    said = [each.encode() for each in store.signed()]
    assert said == WORDS[: len(said)]
    assert len(said) >= ACKNOWLEDGED.get("words", 0)
    assert store.snapshots() in ([], [SNAPSHOT])


WORDS = [
    CHAIN.envelope(0, "vote", CHAIN.ballot(NO_BLOCK, slot=number + 1)).encode()
    for number in range(3)
]
SNAPSHOT = LocalSnapshot(2, "ab" * 32, 100)


@scenario(what_was_signed_is_there)
def swarm_store(root: Path) -> None:
    ACKNOWLEDGED.clear()
    store = a_store(root)
    known = len(store.load_ledger())

    async def write() -> None:
        for round_ in range(known, 4):
            store.keep(CHAIN.ledger.raw(round_))
            await store.written()
            ACKNOWLEDGED["rounds"] = round_ + 1
        had = len(store.signed())
        for number in range(had, 3):
            store.sign(WORDS[number])
            await store.written()
            ACKNOWLEDGED["words"] = number + 1
        store.keep_snapshots([SNAPSHOT])
        await store.written()
        store.forget_signed(WORDS)
        await store.written()

    trio.run(write)


def what_was_verified_is_there(root: Path) -> None:
    what_was_signed_is_there(root)
    ledger, trusting = a_store(root).load_ledger(), a_store(root, NODE).load_ledger()
    assert trusting.head == ledger.head


NODE = Identity.from_seed(bytes(32))


@scenario(what_was_verified_is_there)
def verified_entries(root: Path) -> None:
    """The statement of what was verified is written beside the ledger."""
    ACKNOWLEDGED.clear()
    with patch.object(verified_prefix, "STATEMENT_INTERVAL", 2):
        store = a_store(root, NODE)
        for round_ in range(len(store.load_ledger()), 4):
            store.keep(CHAIN.ledger.raw(round_))
            store.write()
            ACKNOWLEDGED["rounds"] = round_ + 1


@scenario(what_was_verified_is_there)
def saved_indexes_of_the_chain(root: Path) -> None:
    """The state of the chain's indexes is written beside the ledger, and read at the next start."""
    ACKNOWLEDGED.clear()
    with (
        patch.object(verified_prefix, "STATEMENT_INTERVAL", 2),
        patch.object(saved_indexes, "STATE_INTERVAL", 2),
    ):
        for _ in range(2):
            store = a_store(root, NODE)
            for round_ in range(len(store.load_ledger()), 4):
                store.keep(CHAIN.ledger.raw(round_))
                store.keep_indexes(CHAIN.ledger.truncated(round_ + 1))
                store.write()
                ACKNOWLEDGED["rounds"] = round_ + 1


def another_chain_or_the_old_one(root: Path) -> None:
    ledger = a_store(root).load_ledger()
    assert len(ledger) >= 2 or not (root / "begun").exists()
    assert all(ledger[r].record.id == CHAIN.ledger[r].record.id for r in range(len(ledger)))


@scenario(another_chain_or_the_old_one)
def another_chain(root: Path) -> None:
    store = a_store(root)
    if len(store.load_ledger()) == 0:
        directory = DataDir(root).swarm(CHAIN.manifest.swarm)
        entries = (CHAIN.ledger.raw(round_) for round_ in range(2))
        # Not through the store, so that no step of this can fail.
        raw = b"".join(len(each).to_bytes(4, "big") + each for each in entries)
        descriptor = os.open(directory.ledger, os.O_RDONLY | os.O_CREAT)
        os.close(descriptor)
        write_past(directory.ledger, raw)
        write_past(root / "begun", b"")
    store = a_store(root)
    store.load_ledger()
    store.replace_chain(CHAIN.ledger.truncated(3))
    store.write()


def write_past(path: Path, data: bytes) -> None:
    """Write without the interception."""
    with io.FileIO(path, "w") as file:
        file.write(data)


@scenario(what_was_signed_is_there)
def damaged_swarm_store(root: Path) -> None:
    """What a crash tore is cut off, and a rotten end is replaced by the entries before it."""
    ACKNOWLEDGED.clear()
    directory = DataDir(root).swarm(CHAIN.manifest.swarm)
    a_store(root)
    raw = [CHAIN.ledger.raw(round_) for round_ in range(4)]
    bad = raw[2][:-9] + bytes([raw[2][-9] ^ 1]) + raw[2][-8:]
    framed = [len(each).to_bytes(4, "big") + each for each in (raw[0], raw[1], bad, raw[3])]
    write_past(directory.ledger, b"".join(framed) + b"\x00\x00\x01")
    write_past(
        directory.signed, len(WORDS[0]).to_bytes(4, "big") + WORDS[0] + b"\x00\x00\x10\x00torn"
    )
    store = a_store(root)
    assert len(store.load_ledger()) == 2
    assert [each.encode() for each in store.signed()] == WORDS[:1]


@scenario(nothing_more)
def what_is_final(root: Path) -> None:
    store = a_store(root)
    checkpoint = Checkpoint(0, CHAIN.ledger[0].record.id)
    assert store.final() in (None, checkpoint)
    store.keep_final(checkpoint)
    store.write()
    store.drop_ledger()
    assert store.final() == checkpoint


@scenario(nothing_more)
def numbers_that_grow(root: Path) -> None:
    """Without a disk the clock has to do."""
    first = MonotonicCounter(root / "number").start_number
    assert MonotonicCounter(root / "number", clock=0.0).start_number >= first


# Far cheaper than a key file may have: each step stretches a passphrase half a dozen times.
EARLIER_N, LATER_N = 2**2, 2**3


@scenario(sealed_identity_is_kept)
def key_from_an_earlier_version(root: Path) -> None:
    """It is rewritten, or stays as it was."""
    path = root / "identity.key"
    if not path.exists():
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(keystore, "_SCRYPT_DEFAULT_N", EARLIER_N)
            content = keystore._render(Identity.from_seed(bytes(32)), "secret")
        write_past(path, content)
        path.chmod(0o600)
    assert keystore.load_identity(path, "secret").peer == Identity.from_seed(bytes(32)).peer


@scenario(nothing_more)
def spilled_entries(root: Path) -> None:
    """Entries that do not fit on the disk stay in memory."""
    spill = SpillFile(root)
    places = [spill.put(entry) for entry in (b"one", b"two", b"three")]
    assert [spill.get(place) for place in places] == [b"one", b"two", b"three"]


@scenario(nothing_more)
def what_is_carried(root: Path) -> None:
    """The count goes on in memory."""
    count = RelayedBytes(root / "relayed")
    count.note(5)
    count.keep()
    assert count.total >= 5


@scenario(nothing_more)
def remembered_peers(root: Path) -> None:
    file = PeersFile(root / "peers.json", CHAIN.manifest.swarm)
    file.load()
    file.save([cast(Any, SimpleNamespace(sealed=b"x" * 100))])


@scenario(nothing_more)
def remembered_names(root: Path) -> None:
    file = NamesFile(root / "names.json", 320)
    file.load()
    file.save([b"x" * 100])


def history_is_whole_lines(root: Path) -> None:
    text = (root / "history.jsonl").read_text() if (root / "history.jsonl").exists() else ""
    for line in text.splitlines():
        assert line.startswith("{"), text
        assert line.count('"time"') == 1 or line.startswith('{"round": 7, "tor'), text


@scenario(history_is_whole_lines)
def history(root: Path) -> None:
    """It is a convenience: without it the node goes on."""
    path = root / "history.jsonl"
    before = path.read_bytes() if path.exists() else b""
    write_past(path, before + b'{"round": 7, "tor')
    telemetry = Telemetry(CHAIN.manifest.founder)
    telemetry.keep_history(path)
    for round_ in range(3):
        telemetry.applied(
            CHAIN.ledger[round_].record,
            3,
            9,
            0.1,
            float(round_),
            attendance=RoundAttendance("counted"),
        )


async def _serve(socket: Path) -> None:
    async with trio.open_nursery() as nursery:
        await nursery.start(serve_control, socket, {})
        nursery.cancel_scope.cancel()


@scenario(nothing_more)
def control_socket(root: Path) -> None:
    trio.run(_serve, root / "daemon.sock")


@scenario(nothing_more)
def control_socket_with_a_long_path(root: Path) -> None:
    deep = root / ("x" * 100)
    if not deep.exists():
        deep.mkdir()
    trio.run(_serve, deep / "daemon.sock")


@scenario(nothing_more)
def manifest_of_a_join(root: Path) -> None:
    directory = DataDir(root).swarm(CHAIN.manifest.swarm)
    if not directory.root.exists():
        directory.root.mkdir(parents=True)
        write_past(directory.manifest, CHAIN.manifest.encode())
    store = BlobStore(root / "blobs")
    entry = SimpleNamespace(swarm=CHAIN.manifest.swarm)
    context = cast(JoinContext, SimpleNamespace(invite=entry, store=store, directory=directory))

    async def find() -> None:
        assert await find_manifest(context) == CHAIN.manifest

    trio.run(find)
    read_manifest(directory.manifest.read_bytes(), CHAIN.manifest.swarm)


@scenario(nothing_more)
def swarm_directory(root: Path) -> None:
    """The directories that a session creates before it connects."""
    settings = SimpleNamespace(swarm=CHAIN.manifest.swarm)
    with pytest.raises(AttributeError):
        # It gets as far as the settings of the network.
        SwarmSession(cast(Any, settings), DataDir(root), *cast(Any, (None, None, None)))


@scenario(nothing_more)
def manifest_of_a_new_swarm(root: Path) -> None:
    data = DataDir(root)
    for part in (data.swarms, data.blobs):
        part.mkdir(exist_ok=True)
    with data.lock(), data.scratch() as scratch:
        new_swarm._store_manifest(CHAIN.manifest, data, BlobStore(scratch), Path("swarm.toml"))


@scenario(nothing_more)
def demo_folder(root: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        # Private here: `_prose`: reading the docstrings of the whole library takes seconds each time
        patch.setattr(plan, "_prose", lambda source: "A sentence of some words.\n" * 6000)
        for _ in range(2):
            with claim(root / "demo") as folder:
                collect_text(folder.text)
                write_past(folder.plot, b"which the second demo removes")


@scenario(nothing_more)
def demo_plot(root: Path) -> None:
    plot_losses(root / "loss.png", training=[(1, 1.0)], heldout=[], events=[], title="t")


@scenario(nothing_more)
def trainer_folders(root: Path) -> None:
    @asynccontextmanager
    async def spawned(*_: object) -> AsyncIterator[None]:
        yield None

    async def begin() -> None:
        async with client.trainer_process(1, [root / "trainer"]):
            pass

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(client, "open_pipe", spawned)
        trio.run(begin)


SESSIONS: dict[str, Any] = {}


def momentum_is_whole_or_not_there(root: Path) -> None:
    session = SESSIONS["session"]
    path = root / "trainer" / "momentum"
    if path.exists():
        assert load_momentum(session.optimizer, session.manifest.parameters, path)


def as_the_trainer_tells_it(work: Callable[[], object], place: Path) -> None:
    """Fail as the node does when its trainer reports this."""
    try:
        work()
    except Exception as error:
        kind, words = describe(error)
        raise explain_trainer(TrainerFailed(kind, words), place) from None


@scenario(momentum_is_whole_or_not_there)
def momentum(root: Path) -> None:
    (root / "trainer").mkdir(exist_ok=True)
    write_past(root / "trainer" / ".tmpAbC123", b"what a killed trainer left")
    session = SESSIONS["session"]
    path = root / "trainer" / "momentum"

    (path.parent / "copies-1-of-2").mkdir(exist_ok=True)
    write_past(path.parent / "copies-1-of-2" / "momentum", b"what two devices have left")

    def save() -> None:
        save_part(session.optimizer, session.part.place, path)
        remove_others(session.part.place.division, path)
        remove_others(MomentumDivision(2), path.with_name("other"))

    as_the_trainer_tells_it(save, path.parent)


@scenario(nothing_more)
def exported_model(root: Path) -> None:
    session = SESSIONS["session"]
    as_the_trainer_tells_it(lambda: export(session, SESSIONS["store"], root / "model"), root)


# --- the tests -----------------------------------------------------------------------------------


@pytest.fixture(scope="module", autouse=True)
def session(tmp_path_factory: pytest.TempPathFactory) -> None:
    from trainer.support import make_session

    torch.set_num_threads(1)
    root = tmp_path_factory.mktemp("session")
    SESSIONS["session"] = make_session(root)
    SESSIONS["store"] = BlobStore(root)
    transformers_logging.disable_progress_bar()
    # The library searches for fonts when it is first used, and remembers them.
    plot_losses(root / "plot.png", training=[], heldout=[], events=[], title="")


# Set where a test runs in a process of its own.


@pytest.fixture(scope="module", autouse=True)
def cheaper_keys() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(keystore, "_SCRYPT_N", (EARLIER_N, LATER_N))
        patch.setattr(keystore, "_SCRYPT_DEFAULT_N", LATER_N)
        yield


@pytest.fixture(autouse=True)
def no_handlers() -> Iterator[None]:
    yield
    logging.captureWarnings(False)


def files_in(root: Path) -> set[str]:
    """Return the names of all files, without what differs from run to run."""
    names = {path.relative_to(root).as_posix() for path in root.rglob("*")}
    return {re.sub(r"-\d+-[0-9a-f]{16}$", "", name) for name in names}


# Where a scenario has the same step many times, the first few of them are enough.
_ALIKE = 3


def steps_of(name: str, root: Path) -> list[Step]:
    run, check = SCENARIOS[name]
    root.mkdir()
    with FaultyDisk().in_use() as disk:
        run(root)
    check(root)
    return disk.steps


def scenarios_and_errors() -> Iterator[object]:
    """Yield every scenario with every error. `make test` has a full disk in each, and the other errors
    in turn; `make soak` has the rest."""
    others = [error for error in ERRORS if error != "full"]
    for number, name in enumerate(SCENARIOS):
        usual = {"full", others[number % len(others)]}
        for error in ERRORS:
            yield pytest.param(name, error, marks=() if error in usual else pytest.mark.soak)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "error"), [*scenarios_and_errors()])
def test_whichever_step_fails(name: str, error: str, tmp_path: Path, capsys) -> None:
    run, check = SCENARIOS[name]
    steps = steps_of(name, tmp_path / "sound")
    assert steps
    usual = files_in(tmp_path / "sound")
    chosen = [
        number
        for number, step in enumerate(steps)
        if steps[:number].count(step) < _ALIKE and (error != "denied" or step.on_a_name)
    ]
    for number in chosen:
        root = tmp_path / f"{number}"
        root.mkdir()
        capsys.readouterr()
        with FaultyDisk(number, ERRORS[error]).in_use() as disk:
            try:
                run(root)
                code = ExitCode.OK
            except BaseException as failure:
                code = ExitCode(explain(failure))
        what = f"{name}: {error} at {steps[number]}"
        assert disk.failed is not None, what
        said = capsys.readouterr().err
        if code != ExitCode.OK:
            allowed = {ExitCode.DISK_FULL} if error == "full" else {ExitCode.DATA_DIR}
            if disk.failed.file == "crypto/keystore.py":
                allowed = {ExitCode.KEYSTORE}
            assert code in allowed, f"{what}: {said}"
            lines = [line for line in said.splitlines() if not line.startswith("trainer")]
            assert len(lines) == 2, f"{what}: {said}"
            assert lines[0].startswith("error: "), f"{what}: {said}"
        check(root)
        # With an intact disk the same command continues, and nothing half-written is left.
        run(root)
        check(root)
        if disk.failed.what != "unlink":
            assert files_in(root) <= usual, what


# Places that no scenario reaches, and why.
ELSEWHERE = {
    (
        "node/trainer/models/gguf_export.py",
        "open",
    ): "a trainer's file: tests/results/test_results.py",
    ("crypto/keystore.py", "rename"): "file systems without links: tests/crypto/test_keystore.py",
    ("node/cli/failures.py", "mkstemp"): "below: a bug that cannot be written down",
    ("node/cli/failures.py", "open"): "below",
    ("node/network/addresses.py", "bind"): "a port, not a file",
    ("node/dashboard/address.py", "bind"): "likewise",
    ("node/network/ip_families.py", "bind"): "likewise",
    ("node/network/interfaces.py", "bind"): "likewise",
    ("node/util/operating_system.py", "open"): "a file of the kernel's",
    ("node/util/standard_streams.py", "open"): "/dev/null, and streams that are open already",
    ("node/telemetry/logs.py", "RotatingFileHandler"): "below: the log",
    ("node/demo/__init__.py", "write_text"): "a demo's results: as the folder's, told at its end",
    (
        "node/storage/blob_files.py",
        "replace",
    ): "test_a_sound_copy_put_while_a_corrupt_one_is_judged…",
    ("node/storage/blob_files.py", "unlink"): "test_a_blob_that_the_disk_cannot_read_is_dropped",
    ("node/telemetry/plots.py", "savefig"): "the library opens the file",
    ("node/demo/processes.py", "open"): "a demo's logs",
    ("node/trainer/ranks/elastic_rank.py", "TemporaryDirectory"): "tests/test_torchrun.py",
    # The files of an export appear completely or not at all, on a full and on a read-only disk.
    **{
        ("node/results/export.py", name): "tests/results: full and read-only places"
        for name in ("mkdir", "rename", "rmdir", "rmtree", "unlink", "write_bytes", "write_text")
    },
    ("node/results/partial_directory.py", "mkdir"): "likewise",
    ("node/results/partial_directory.py", "rmtree"): "what a killed export left, tried again later",
    (
        "node/storage/data_dir.py",
        "TemporaryDirectory",
    ): "the folder of `create`, told as the command's end",
    (
        "node/storage/data_dir.py",
        "rmtree",
    ): "what a killed `create` left, tried again with the next lock",
    **{
        ("node/results/evaluate.py", name): "a measurement's own folder, made again with the next"
        for name in ("TemporaryDirectory", "mkdir", "write_text")
    },
    ("node/results/evaluation_worker.py", "write_text"): "likewise",
    ("node/trainer/models/export.py", "write_text"): "tests/results: full and read-only places",
    ("node/trainer/models/export.py", "mkdir"): "likewise",
    ("node/trainer/models/denoisers.py", "write_text"): "likewise",
    ("node/training/sandbox.py", "write_text"): "the kernel's own files",
    ("node/training/environment.py", "rmtree"): "caches that grew too large: they fill anew",
    ("node/trainer/ranks/processes.py", "mkdtemp"): "a trainer's own: it ends, and starts anew",
    ("node/trainer/models/denoisers.py", "save_pretrained"): "likewise",
    ("node/trainer/models/export.py", "save_file"): "tests/results/test_adapters.py: a full disk",
    (
        "node/results/receipt_files.py",
        "write_output",
    ): "tests/cli/test_receipt.py: a place where nothing can be written",
    ("node/storage/atomic_write.py", "write_atomically"): "likewise",
    # A unit is written completely or not at all: tests/service, a place that cannot be written.
    **{
        ("node/service/manager.py", name): "tests/service"
        for name in ("mkdir", "unlink", "write_atomically", "chmod")
    },
    ("node/trainer/models/classifiers.py", "write_text"): "an export's, in a directory of its own",
    # Members' own data is read again; errors there are reported in their node's terms.
    **{("node/private_data/ingest.py", name): "tests/own_data" for name in ("mkdir", "rmtree")},
    **{
        ("node/private_data/ingest_client.py", name): "the reader's own, told as a full disk is"
        for name in ("TemporaryDirectory", "mkdir", "open")
    },
    ("node/doctor/computer.py", "bind"): "a port, not a file",
    ("node/doctor/line.py", "TemporaryDirectory"): "the doctor's own, told as a full disk is",
    ("node/memory_fit.py", "TemporaryDirectory"): "the visitor's own, told as a full disk is",
    # Tokenised data is made again; a swarm exists once its manifest does, which is written last.
    **{
        ("node/create/token_cache.py", name): "tests/create: parts that survive an interruption"
        for name in ("mkdir", "rmtree", "write_atomically", "replacing", "open")
    },
    ("node/create/corpus.py", "write_atomically"): "likewise",
    ("node/create/reference_margins.py", "write_atomically"): "likewise",
    ("node/create/new_swarm.py", "rmtree"): "what create leaves once the swarm is there",
    ("node/create/new_swarm.py", "mkdir"): "likewise",
    ("node/create/new_swarm.py", "write_atomically"): "a report beside the log",
}


def test_every_place_that_writes_is_tried(checkout: Path, tmp_path: Path) -> None:
    lines: set[tuple[str, int]] = set()
    for name, (run, _) in SCENARIOS.items():
        steps = steps_of(name, tmp_path / name)
        # Code that runs only after a fault counts as well.
        for number in [
            None,
            *(
                number
                for number, step in enumerate(steps)
                if step.what in ("write", "fsync") and steps[:number].count(step) < _ALIKE
            ),
        ]:
            root = tmp_path / f"{name}-{number}"
            root.mkdir()
            with (
                FaultyDisk(number, errno.ENOSPC).in_use() as disk,
                contextlib.suppress(BaseException),
            ):
                run(root)
            lines |= {place for step in disk.steps for place in step.trail}
    found = places(checkout)
    untried = {
        (file, name)
        for file, first, last, name in found
        if not any((file, line) in lines for line in range(first, last + 1))
    }
    assert untried - ELSEWHERE.keys() == set()
    # A place that is gone, or tried by now, needs no excuse.
    assert {key for key in ELSEWHERE if key not in {(f, n) for f, _, _, n in found}} == set()
    assert len(found) >= 70


def test_a_bug_that_cannot_be_written_down_is_reported_all_the_same(tmp_path: Path, capsys) -> None:
    for number in range(2):
        with FaultyDisk(number, errno.ENOSPC).in_use():
            assert explain(ValueError("odd")) == ExitCode.BUG
        said = capsys.readouterr().err
        assert said.startswith("this is a bug in distro-node: ValueError: odd; ")
        assert len(said.splitlines()) == 1


@pytest.mark.usefixtures("logging_as_it_was")
def test_a_log_that_cannot_be_written_ends_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    logs.configure_logging(folder=tmp_path, screen=True)
    monkeypatch.setattr(logs, "MAX_LOG_BYTES", 10)

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    log = logging.getLogger("distro_node.x")
    for name in ("rename", "open"):
        with monkeypatch.context() as patch:
            patch.setattr(os, name, full)
            patch.setattr(logging.FileHandler, "_open", full)
            log.warning("nobody can write this down")
    log.warning("but this")
    assert "but this" in (tmp_path / logs.LOG_FILE).read_text()
    assert capsys.readouterr().err == ""


def test_a_network_that_denies_is_not_the_disk() -> None:
    from distro_node.node.storage.disk_faults import explain_disk

    assert explain_disk(OSError(errno.EACCES, "Permission denied")) is None
    assert explain_disk(OSError(errno.ECONNREFUSED, "refused", "x")) is None
    assert explain_disk(ValueError("x")) is None
    denied = explain_disk(OSError(errno.EACCES, "Permission denied", "/x"))
    assert isinstance(denied, UserError)
    assert "/x" in denied.problem
