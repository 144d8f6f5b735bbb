"""Ranks that torch's elastic launcher has started, seen through the launcher's store."""

from __future__ import annotations

import queue
import threading
from typing import NoReturn

import pytest
from distro_node.node.trainer.ranks.launch import LaunchedRanks, LauncherStore
from distro_node.node.training.torchrun import RankAssignment
from torch.distributed import TCPStore  # pyright: ignore[reportPrivateImportUsage]

OPEN = {"settings": {"device": "cpu"}}


@pytest.fixture(scope="module")
def launcher() -> TCPStore:
    """The store that a launcher keeps for its processes."""
    return TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)


def assignment(launcher: TCPStore, rank: int, name: str) -> RankAssignment:
    return RankAssignment(rank, 2, 0, 1, "127.0.0.1", launcher.port, name)


def test_rank_0_gives_up_a_generation_that_a_rank_has_left(launcher: TCPStore) -> None:
    """However long rank 0 would wait for a connection to that rank."""
    reasons: queue.SimpleQueue[str] = queue.SimpleQueue()

    def end(reason: str, out_of_memory: bool) -> NoReturn:
        assert not out_of_memory
        reasons.put(reason)
        # A trainer's process would be over now.
        threading.Event().wait()
        raise AssertionError

    ranks = LaunchedRanks(assignment(launcher, 0, "left/0"), end)
    ranks.start(OPEN)
    other = LauncherStore(assignment(launcher, 1, "left/0"))
    found = other.next(0)
    assert found is not None
    number, _, open_arguments = found
    assert (number, open_arguments) == (1, OPEN)
    assert other.left(1) is None
    # Its process ended; the next one starts where it was.
    waiting = threading.Thread(target=other.next, args=(1,), daemon=True)
    waiting.start()
    assert "the process of rank 1 has ended" in reasons.get(timeout=60)
    other.end()
    waiting.join(60)
    assert not waiting.is_alive()


def test_a_rank_that_has_taken_part_in_none_leaves_none(launcher: TCPStore) -> None:
    rank = LauncherStore(assignment(launcher, 1, "new/0"))
    rank.end()
    assert rank.next(0) is None
    assert rank.left(0) is None
