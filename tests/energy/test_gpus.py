"""Several cards of one member as one."""

from __future__ import annotations

from typing import Any

import pytest
from distro_node.node.energy.arithmetic import joules_between
from distro_node.node.energy.gpu import Gpu, GpuUse
from distro_node.node.energy.gpu_group import GpuGroup
from energy.test_meters import Driver

FIRST, SECOND = "GPU-1", "GPU-2"


class Cards:
    """NVML with several cards, each with its own answers. `made` are the objects that ask it."""

    def __init__(self) -> None:
        self.drivers = {uuid: Card(uuid) for uuid in (FIRST, SECOND)}
        self.time = 0.0
        self.gpus = GpuGroup(self._gpu)

    def _gpu(self) -> Gpu:
        drivers, found = self.drivers, list[Card]()

        class Aimed(Gpu):
            def select(self, uuid: str | None) -> None:
                found[:] = [drivers[uuid]] if uuid in drivers else []
                super().select(uuid)

        return Aimed(lambda: found[0], clock=lambda: self.time)


class Card(Driver):
    def __init__(self, uuid: str) -> None:
        super().__init__()
        self.uuid = uuid

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> Any:
        self._check()
        assert uuid == self.uuid
        return uuid


@pytest.fixture
def cards() -> Cards:
    made = Cards()
    made.gpus.select((FIRST, SECOND))
    return made


def joules_of_two_seconds(cards: Cards) -> float | None:
    before = cards.gpus.read()
    cards.time += 2.0
    for driver in cards.drivers.values():
        driver.millijoules += 500_000
    after = cards.gpus.read()
    assert before is not None
    assert after is not None
    return joules_between(before, after)


def test_their_energy_is_added_up(cards: Cards) -> None:
    cards.drivers[SECOND].milliwatts = 50_000
    assert joules_of_two_seconds(cards) == 1000
    reading = cards.gpus.read()
    assert reading is not None
    assert (reading.watts, cards.gpus.why) == (250, None)


def test_beside_an_older_card_all_have_their_power_added_up(cards: Cards) -> None:
    cards.drivers[SECOND].counts = False
    assert joules_of_two_seconds(cards) == 2 * (200 + 200)


def test_if_one_is_unknown_the_sum_is(cards: Cards) -> None:
    cards.drivers[SECOND].gone = True
    assert cards.gpus.read() is None
    assert "lost" in (cards.gpus.why or "")


def test_a_card_that_is_no_longer_used_is_not_read(cards: Cards) -> None:
    assert cards.gpus.read() is not None
    cards.gpus.select((FIRST,))
    reading = cards.gpus.read()
    assert reading is not None
    assert (reading.watts, reading.counters.keys()) == (200, {FIRST})
    cards.gpus.select(())
    assert [driver.opened for driver in cards.drivers.values()] == [0, 0]
    assert cards.gpus.read() is None
    assert "not use an NVIDIA GPU" in (cards.gpus.why or "")


OURS = frozenset([1, 2])


@pytest.mark.parametrize(
    ("first", "second", "others"),
    [
        ([], [], False),
        ([], [(9, 80)], True),
        ([(9, 80)], None, True),
        # Unknown for the second card.
        ([], None, None),
    ],
)
def test_another_program_on_one_of_them_is_seen(
    cards: Cards,
    first: list[tuple[int, int]],
    second: list[tuple[int, int]] | None,
    others: bool | None,
) -> None:
    for driver, samples in zip(cards.drivers.values(), (first, second), strict=True):
        driver.compute, driver.samples = [1], samples
    assert cards.gpus.use_by_others(OURS).others is others


def test_without_any_nothing_is_known() -> None:
    gpus = Cards().gpus
    assert gpus.read() is None
    assert gpus.use_by_others(OURS) == GpuUse(None)
