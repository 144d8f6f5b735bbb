"""A node notices and repairs faults on its own disk or in its parameters by itself."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from distro_node.node.storage.swarm_store import LocalSnapshot, _listing
from e2e.program import wait_for
from e2e.support import Node, Swarm, check_agreement, wait_for_round

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

SNAPSHOT_INTERVAL = 10


@pytest.fixture(scope="module")
def swarm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Swarm]:
    # With two members both are needed for every decision: while one is away the other waits for it,
    # for as long as the lease.
    root = tmp_path_factory.mktemp("damage")
    with Swarm(
        root, start_members=2, snapshot_interval=SNAPSHOT_INTERVAL, lease_seconds=600
    ) as swarm:
        swarm.create()
        yield swarm


@pytest.fixture
def nodes(swarm: Swarm) -> list[Node]:
    """Return the two nodes, with a certified snapshot."""
    nodes = swarm.start("founder", "second")
    wait_for_round(nodes, SNAPSHOT_INTERVAL + 2)
    return nodes


def test_a_node_with_wrong_parameters_loads_the_right_ones(swarm: Swarm, nodes: list[Node]) -> None:
    """The faulty member is needed, too, so without it nothing could be decided."""
    _, second = nodes
    # Some rounds after a snapshot was certified and before the next one is.
    wait_for(lambda: second.round % SNAPSHOT_INTERVAL in (3, 4, 5), "the middle of an interval")
    second.program.kill()
    height = len(second.ledger())
    # The initial parameters replace the newest ones.
    wrong = LocalSnapshot(height - 1, swarm.manifest.initial.hex(), 4 * swarm.manifest.elements)
    (second.directory.root / "snapshots.json").write_bytes(_listing([wrong]))
    second.start()
    mine = wait_for(lambda: second.events("mismatch", second.peer), "the mismatch to be noticed")
    assert mine[0].round == height
    assert second.events("resync")
    wait_for(lambda: second.counted(height), "the node to contribute again")
    check_agreement(nodes)


def test_whatever_was_damaged_on_a_disk_comes_from_the_others(
    swarm: Swarm, nodes: list[Node]
) -> None:
    _, second = nodes
    directory = second.directory
    large = (directory.ledger, directory.votes, directory.momentum, directory.manifest)
    small = (directory.root / "snapshots.json", directory.root / "peers.json")
    # Each is written at a different time, and all of them must be damaged.
    wait_for(lambda: all(path.exists() for path in large + small), "every file to be written")
    second.program.kill()
    before = second.ledger()
    for path in (*second.data.blobs.iterdir(), *large):
        # A file being written at that moment may still be empty.
        if (size := path.stat().st_size) > 0 or path in large:
            flip(path, size // 2)
    for path in small:
        flip(path, 0)
    with directory.history.open("a") as file:
        file.write('{"round": 1')
    assert len(second.ledger()) < len(before)
    second.start()
    wait_for(lambda: second.counted(len(before)), "the node to contribute again")
    check_agreement(nodes)
    after = second.ledger()
    assert [after[r].record.id for r in range(len(before))] == [
        before[r].record.id for r in range(len(before))
    ]


def flip(path: os.PathLike[str], place: int) -> None:
    """Change one byte of a file."""
    with open(path, "rb+") as file:
        file.seek(place)
        byte = file.read(1)
        file.seek(place)
        file.write(bytes([byte[0] ^ 0xFF]))
