"""Which worker gets which file: whole files, from both ends, until there is none left."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from turns import FromBothEnds
from xdist.remote import Producer

# Most tests in one that stands in the middle: by itself the base class would begin with it.
SIZES = {"swarm": 4, "demo": 1, "relays": 9, "codec": 3, "ledger": 3}
TESTS = [
    f"tests/test_{name}.py::test_it[{number}@]"
    for name, size in SIZES.items()
    for number in range(size)
]


class Worker:
    """A worker that notes what it is to run."""

    def __init__(self, name: str) -> None:
        self.gateway = SimpleNamespace(id=name)
        self.given: list[int] = []
        self.shutting_down = False

    def send_runtest_some(self, indices: list[int]) -> None:
        self.given += indices

    def shutdown(self) -> None:
        self.shutting_down = True

    @property
    def files(self) -> list[str]:
        return list(dict.fromkeys(TESTS[index].partition("::")[0] for index in self.given))


def test_each_file_goes_to_one_worker_and_the_first_begins_in_front(request: Any) -> None:
    config: Any = SimpleNamespace(
        getvalue={"tx": ["2*popen"], "dist": "loadfile"}.__getitem__,
        option=SimpleNamespace(loadscopereorder=True),
    )
    log = Producer("test", enabled=False)
    scheduler = request.config.hook.pytest_xdist_make_scheduler(config=config, log=log)
    assert isinstance(scheduler, FromBothEnds)
    first, second = workers = [Worker("gw0"), Worker("gw1")]
    for worker in workers:
        scheduler.add_node(worker)  # type: ignore[arg-type]
        scheduler.add_node_collection(worker, TESTS)  # type: ignore[arg-type]
    scheduler.schedule()
    # The second does one test at a time, the first is at its first one for the whole time.
    done = 0
    while done < len(second.given):
        scheduler.mark_test_complete(second, second.given[done])  # type: ignore[arg-type]
        done += 1
    assert first.files == ["tests/test_swarm.py"]
    assert second.files == [
        f"tests/test_{name}.py" for name in ("ledger", "codec", "relays", "demo")
    ]
    assert sorted(first.given + second.given) == list(range(len(TESTS)))
    assert second.shutting_down
