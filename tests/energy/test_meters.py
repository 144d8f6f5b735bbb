"""One card: a driver like NVIDIA's, and its failures."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from distro_node.node.energy.arithmetic import joules_between
from distro_node.node.energy.gpu import Gpu, GpuUse

UUID = "GPU-0a1b2c3d-0000-1111-2222-333344445555"


class NVMLError(Exception):
    """Same as in the driver's library."""


class NotFound(NVMLError):
    """Error: nothing was counted."""


class Driver:
    """NVML with one card. `gone`: it has fallen off the bus."""

    NVMLError = NVMLError
    NVMLError_NotFound = NotFound

    def __init__(self) -> None:
        self.gone = False
        self.counts = True
        self.milliwatts, self.millijoules = 200_000, 5_000
        self.compute: list[int] = []
        self.graphics: list[int] = []
        self.percent = 0
        self.samples: list[tuple[int, int]] | None = []
        self.opened = 0

    def nvmlInit(self) -> None:
        self._check()
        self.opened += 1

    def nvmlShutdown(self) -> None:
        self.opened -= 1

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> object:
        self._check()
        assert self.opened == 1
        if uuid != UUID:
            raise NotFound("Not Found")
        return ("card", self.opened)

    def nvmlDeviceGetPowerUsage(self, handle: object) -> int:
        self._check()
        return self.milliwatts

    def nvmlDeviceGetTotalEnergyConsumption(self, handle: object) -> int:
        if not self.counts:
            raise NVMLError("Not Supported")
        return self.millijoules

    def nvmlDeviceGetComputeRunningProcesses(self, handle: object) -> list[Any]:
        self._check()
        return [SimpleNamespace(pid=pid) for pid in self.compute]

    def nvmlDeviceGetGraphicsRunningProcesses(self, handle: object) -> list[Any]:
        return [SimpleNamespace(pid=pid) for pid in self.graphics]

    def nvmlDeviceGetUtilizationRates(self, handle: object) -> Any:
        return SimpleNamespace(gpu=self.percent)

    def nvmlDeviceGetProcessUtilization(self, handle: object, seen: int) -> list[Any]:
        if self.samples is None:
            raise NVMLError("Not Supported")
        if not self.samples:
            raise NotFound("Not Found")
        return [
            SimpleNamespace(pid=pid, smUtil=percent, timeStamp=seen + 1)
            for pid, percent in self.samples
        ]

    def nvmlSystemGetProcessName(self, pid: int) -> bytes:
        return b"/usr/bin/game\x1b[31m --full-screen"

    def _check(self) -> None:
        if self.gone:
            raise NVMLError("GPU is lost")


@pytest.fixture
def driver() -> Driver:
    return Driver()


@pytest.fixture
def time() -> list[float]:
    return [0.0]


@pytest.fixture
def gpu(driver: Driver, time: list[float]) -> Gpu:
    made = Gpu(lambda: driver, clock=lambda: time[0])
    made.select(UUID.removeprefix("GPU-"))
    return made


def test_all_that_is_called_is_there() -> None:
    pynvml = pytest.importorskip("pynvml")
    for name in vars(Driver):
        if name.startswith(("nvml", "NVMLError")):
            assert hasattr(pynvml, name), name
    # With or without a driver here, nothing is raised.
    made = Gpu()
    made.select(UUID)
    assert made.read() is None
    assert made.why


def test_energy_by_the_cards_own_counter(gpu: Gpu, driver: Driver, time: list[float]) -> None:
    before = gpu.read()
    driver.millijoules += 500_000
    time[0] = 2.0
    after = gpu.read()
    assert before is not None
    assert after is not None
    assert joules_between(before, after) == 500
    assert (after.watts, gpu.why) == (200, None)


def test_an_older_card_has_its_power_added_up(gpu: Gpu, driver: Driver, time: list[float]) -> None:
    driver.counts = False
    before = gpu.read()
    time[0] = 2.0
    after = gpu.read()
    assert before is not None
    assert after is not None
    assert joules_between(before, after) == 400


def test_a_card_that_falls_off_is_unknown_until_it_is_back(
    gpu: Gpu, driver: Driver, time: list[float]
) -> None:
    assert gpu.read() is not None
    driver.gone = True
    assert gpu.read() is None
    assert "lost" in (gpu.why or "")
    driver.gone = False
    # It is left alone for a while; then it is reopened, once.
    assert gpu.read() is None
    time[0] = 61.0
    assert gpu.read() is not None
    assert (gpu.why, driver.opened) == (None, 1)


def missing() -> Any:
    raise ImportError("No module named 'pynvml'")


@pytest.mark.parametrize(
    ("load", "uuid", "why"),
    [
        (missing, UUID, "nvidia-ml-py"),
        (Driver, None, "not use an NVIDIA GPU"),
        (Driver, "GPU-other", "Not Found"),
    ],
)
def test_without_package_card_or_driver_nothing_is_known(
    load: Callable[[], Any], uuid: str | None, why: str
) -> None:
    gpu = Gpu(load)
    gpu.select(uuid)
    assert gpu.read() is None
    assert gpu.use_by_others([1]) == GpuUse(None)
    assert why in (gpu.why or "")


def test_who_uses_the_card(gpu: Gpu, driver: Driver) -> None:
    ours, desktop, game = 10, 20, 30
    driver.compute, driver.graphics = [ours], [desktop]
    # The driver has counted nothing, then the desktop draws its windows.
    assert gpu.use_by_others([9, ours]) == GpuUse(False)
    driver.samples = [(ours, 99), (desktop, 4)]
    assert gpu.use_by_others([9, ours]) == GpuUse(False)
    driver.graphics = [desktop, game]
    driver.samples = [(ours, 50), (desktop, 4), (game, 45)]
    assert gpu.use_by_others([9, ours]) == GpuUse(True, "game\x1b[31m")
    # It does not count by process.
    driver.samples = None
    assert gpu.use_by_others([9, ours]) == GpuUse(None)


def test_while_ours_is_not_there_all_use_is_others(gpu: Gpu, driver: Driver) -> None:
    driver.compute, driver.percent = [30], 80
    assert gpu.use_by_others([]) == GpuUse(True)
    driver.percent = 5
    assert gpu.use_by_others([]) == GpuUse(False)
    # In a container the driver knows our trainer by another process id.
    driver.percent = 99
    assert gpu.use_by_others([9, 10]) == GpuUse(None)
    driver.gone = True
    assert gpu.use_by_others([]) == GpuUse(None)
