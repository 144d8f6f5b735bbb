"""The assignment of files to workers: whole files, from both ends, until none is left."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from xdist.remote import Producer
from xdist_schedule import FromBothEnds

# Most tests are in a file in the middle: by itself the base class would begin with it.
SIZES = {"swarm": 4, "demo": 1, "relays": 9, "codec": 3, "ledger": 3}
TESTS = [
    f"tests/test_{name}.py::test_it[{number}@]"
    for name, size in SIZES.items()
    for number in range(size)
]


class Worker:
    """A worker that records its assignment."""

    def __init__(self, name: str) -> None:
        self.gateway = SimpleNamespace(id=name)
        self.given: list[int] = []
        self.done = 0
        self.shutting_down = False

    def send_runtest_some(self, indices: list[int]) -> None:
        # A worker that is given nothing reports nothing, and waits for ever.
        assert indices
        self.given += indices

    def shutdown(self) -> None:
        self.shutting_down = True

    @property
    def files(self) -> list[str]:
        return list(dict.fromkeys(TESTS[index].partition("::")[0] for index in self.given))


def started(request: Any, *workers: Worker) -> FromBothEnds:
    """Return the suite's scheduler, after these workers have started."""
    config: Any = SimpleNamespace(
        getvalue={"tx": [f"{len(workers)}*popen"], "dist": "loadfile"}.__getitem__,
        option=SimpleNamespace(loadscopereorder=True),
    )
    log = Producer("test", enabled=False)
    scheduler = request.config.hook.pytest_xdist_make_scheduler(config=config, log=log)
    assert isinstance(scheduler, FromBothEnds)
    for worker in workers:
        scheduler.add_node(worker)  # type: ignore[arg-type]
        scheduler.add_node_collection(worker, TESTS)  # type: ignore[arg-type]
    scheduler.schedule()
    return scheduler


def completes(scheduler: FromBothEnds, worker: Worker, until: int | None = None) -> None:
    """Complete one test after the other."""
    while worker.done < len(worker.given) and worker.done != until:
        worker.done += 1
        scheduler.mark_test_complete(worker, worker.given[worker.done - 1])  # type: ignore[arg-type]


def test_each_file_goes_to_one_worker_and_the_first_begins_in_front(request: Any) -> None:
    first, second = Worker("gw0"), Worker("gw1")
    scheduler = started(request, first, second)
    # The first is at its first test for the whole time.
    completes(scheduler, second)
    assert first.files == ["tests/test_swarm.py"]
    assert second.files == [
        f"tests/test_{name}.py" for name in ("ledger", "codec", "relays", "demo")
    ]
    assert sorted(first.given + second.given) == list(range(len(TESTS)))
    assert second.shutting_down


def test_of_four_two_begin_in_front(request: Any) -> None:
    workers = [Worker(f"gw{number}") for number in range(4)]
    scheduler = started(request, *workers)
    assert [worker.files[0] for worker in workers] == [
        f"tests/test_{name}.py" for name in ("swarm", "demo", "ledger", "codec")
    ]
    for worker in workers:
        completes(scheduler, worker)
    given = [index for worker in workers for index in worker.given]
    assert sorted(given) == list(range(len(TESTS)))


def test_what_a_worker_that_died_has_left_is_done_by_others(request: Any) -> None:
    """It had finished one file and begun the next; another worker takes its place."""
    first, second, third = Worker("gw0"), Worker("gw1"), Worker("gw2")
    scheduler = started(request, first, second)
    completes(scheduler, second, until=4)
    left = second.given[4:]
    assert scheduler.remove_node(second) == TESTS[left[0]]  # type: ignore[arg-type]
    scheduler.add_node(third)  # type: ignore[arg-type]
    scheduler.add_node_collection(third, TESTS)  # type: ignore[arg-type]
    scheduler.schedule()
    completes(scheduler, third)
    completes(scheduler, first)
    done = sorted(second.given[:4] + first.given + third.given)
    assert done == list(range(len(TESTS)))
    assert third.files
    assert first.shutting_down
    assert third.shutting_down
