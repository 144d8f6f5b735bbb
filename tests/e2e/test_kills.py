"""Kill -9 at random moments, and bytes changed on disk, in a swarm of three real nodes.

Each time the node is started again with the same command. It reports what it lost, continues with
what it had signed and stored, reaches the chain that the others follow, and leaves no trainer
behind. One swarm serves all tests; it computes updates a round ahead, so a kill meets one that is
announced and another in progress (`test_swarm.py` has kills without that).
"""

from __future__ import annotations

import json
import random
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from distro_node.node.demo.processes import is_running
from e2e.program import wait_for
from e2e.support import Node, Swarm, check_agreement

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

NAMES = ("founder", "second", "third")
# From the first line of Python to some rounds of training, including on a busy machine.
LONGEST_LIFE_SECONDS = 6.0
TRAINER_SECONDS = 60.0
SEED = 20


@pytest.fixture(scope="module")
def swarm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Swarm]:
    root = tmp_path_factory.mktemp("kills")
    with Swarm(root, start_members=3, snapshot_interval=5, overlap=True) as swarm:
        swarm.create()
        assert swarm.manifest.rounds.overlap
        yield swarm


KINDS = ("ledger", "votes", "snapshots.json", "peers.json", "manifest", "trainer", "blobs")


@pytest.mark.parametrize(
    "kinds",
    [KINDS, *(pytest.param((kind,), marks=pytest.mark.soak) for kind in KINDS)],
    ids=["all", *KINDS],
)
def test_fifty_bytes_changed(swarm: Swarm, kinds: tuple[str, ...]) -> None:
    nodes = swarm.start(*NAMES)
    second = nodes[1]
    wait_for(lambda: second.round >= 7, "a snapshot to be written")
    # Peers are stored every ten seconds; the rounds so far may have taken less.
    wait_for(lambda: all(files_of(second, kind) for kind in kinds), "all of it to be on the disk")
    kill(second)
    had = stored_rounds(second)
    chance = random.Random(repr(kinds))
    for kind in kinds:
        files = files_of(second, kind)
        assert files, kind
        for _ in range(50):
            flip(chance.choice(files), chance)
    swarm.start(*NAMES)
    check_agreement(nodes, since=had)
    check_chains(nodes)
    said = second.program.stderr
    assert "Traceback" not in said
    assert any(
        word in said
        for word in (
            "damaged",
            "removed",
            "deleted",
            "cannot be read",
            "no longer be read",
            "ignored",
            "is discarded",
        )
    ), said
    wait_for(lambda: second.counted(since=had), "the node to contribute again")


@pytest.mark.parametrize(
    "kills",
    [4, pytest.param(100, marks=[pytest.mark.soak, pytest.mark.timeout(7200)])],
)
def test_killed_at_random_moments(swarm: Swarm, kills: int) -> None:
    nodes = swarm.start(*NAMES)
    chance = random.Random(SEED)
    figures = {"kills": 0, "torn": 0, "starting": 0, "training": 0, "trainers": 0, "behind": 0}
    for _ in range(kills):
        figures["kills"] += 1
        node = chance.choice(nodes)
        time.sleep(chance.uniform(0.0, LONGEST_LIFE_SECONDS))
        trainers = kill(node)
        figures["training" if trainers else "starting"] += 1
        figures["trainers"] += len(trainers)
        torn = torn_bytes(node)
        figures["torn"] += torn > 0
        had = stored_rounds(node)
        node.start()
        # Otherwise it may be killed again before it has read anything.
        if torn or chance.random() < 0.5:
            wait_for(lambda node=node: said(node), f"{node.name} to say what it has")
            assert not torn or "incomplete entry, so they are removed" in node.program.stderr
            figures["behind"] += stored_rounds(node) < had
        (swarm.root / "figures.json").write_text(json.dumps(figures))
    assert figures["behind"] == 0
    swarm.start(*NAMES)
    since = max(node.round for node in nodes)
    check_agreement(nodes, since=since)
    check_chains(nodes)
    check_overlap(nodes)
    figures["rounds"] = min(len(node.ledger()) for node in nodes)
    figures["leftovers"] = sum(len(list(node.data.blobs.glob(".temporary-*"))) for node in nodes)
    for node in nodes:
        node.program.signal(signal.SIGTERM)
    for node in nodes:
        assert node.program.wait() == 0, node.program.stderr
        assert "Traceback" not in node.program.stderr_path.read_text("utf-8", "replace")
        left = {path.name for path in node.directory.root.iterdir()}
        assert not left & {".ledger.new", ".votes.new", ".snapshots.json.new"}
    assert survivors(swarm) == []
    print(json.dumps(figures))


def kill(node: Node) -> list[psutil.Process]:
    """Kill the node, check that its children end by themselves, and return them."""
    assert node.program.code is None, f"{node.name} ended by itself: {node.program.stderr}"
    children = node.program.children()
    node.program.signal(signal.SIGKILL)
    assert node.program.wait() == -signal.SIGKILL
    wait_for(
        lambda: not any(map(is_running, children)),
        f"the trainer of {node.name} to end",
        limit=TRAINER_SECONDS,
    )
    return children


def files_of(node: Node, kind: str) -> list[Path]:
    """Return the files of a kind on a node's disk that are not empty."""
    place = node.data.blobs if kind == "blobs" else node.directory.root / kind
    files = sorted(place.iterdir()) if place.is_dir() else [place]
    return [path for path in files if path.is_file() and path.stat().st_size]


def survivors(swarm: Swarm) -> list[str]:
    """Return the trainers of this swarm that still run."""
    found = []
    for process in psutil.process_iter(["cmdline"]):
        words = " ".join(process.info["cmdline"] or ())
        if "distro_node.node.trainer" in words and str(swarm.root) in words and is_running(process):
            found.append(words)
    return found


def said(node: Node) -> bool:
    """Whether it has read its disk, or has reported why it cannot."""
    assert node.program.code is None, f"{node.name} ended by itself: {node.program.stderr}"
    words = node.program.stderr
    assert "this is a bug" not in words, words
    return "the ledger on this disk reaches" in words


def torn_bytes(node: Node) -> int:
    """Return the bytes of a partly written entry at the end of a killed node's files."""
    torn = 0
    for path in (node.directory.ledger, node.directory.signed):
        data = path.read_bytes() if path.exists() else b""
        at = 0
        while at + 4 <= len(data) and at + 4 + (
            size := int.from_bytes(data[at : at + 4], "big")
        ) <= len(data):
            at += 4 + size
        torn += len(data) - at
    return torn


def stored_rounds(node: Node) -> int:
    """Return the number of rounds of the ledger on its disk."""
    return len(node.ledger())


def check_chains(nodes: list[Node]) -> None:
    """Check that the ledgers on all disks are one chain, as far as each goes."""
    ledgers = [node.ledger() for node in nodes]
    for round_ in range(min(map(len, ledgers))):
        assert len({ledger[round_].record.id for ledger in ledgers}) == 1, f"round {round_} differs"


def check_overlap(nodes: list[Node]) -> None:
    """Check that the swarm learns although updates are a round old."""
    founder = nodes[0]

    def learned() -> bool:
        losses = [line["heldout"] for line in founder.history() if "heldout" in line]
        return bool(losses) and losses[-1] < losses[0] - 0.5

    wait_for(learned, "the held-out loss to fall")
    ledger = founder.ledger()
    counted = [{entry.peer for entry in ledger[r].record.updates} for r in range(len(ledger))]
    assert sum(len(peers) == len(nodes) for peers in counted) > 5
    # A member that is admitted again has a share from its second round on.
    for round_ in range(5, len(ledger) - 1):
        admitted = {entry.peer for entry in ledger[round_].record.admitted}
        assert not admitted & counted[round_ + 1]
    for node in nodes:
        assert not node.events("mismatch")
    assert founder.told().training.trainer.idle is not None


def flip(path: Path, chance: random.Random) -> None:
    """Change one byte of a file."""
    with path.open("rb+") as file:
        size = file.seek(0, 2)
        if not size:
            return
        place = chance.randrange(size)
        file.seek(place)
        byte = file.read(1)[0]
        file.seek(place)
        file.write(bytes([byte ^ chance.randrange(1, 256)]))
