"""The trainer's GPU, as reported by NVIDIA's driver (NVML, package nvidia-ml-py).

Without the package, the driver or the card everything is unknown; a card that falls off the bus is
retried from time to time. Every method blocks and has to be called in a thread. Methods do not raise
unless their docstring says so.
"""

from __future__ import annotations

import importlib
import logging
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

from .arithmetic import MeterReading

_log = logging.getLogger(__name__)

# A driver that answers with an error is reopened after this time.
_RETRY_SECONDS = 60.0
_MILLIWATTS = 1e3
# Utilisation in percent from which a program counts as computing on the card. Drawing the windows of a
# desktop takes less, and a computation takes more.
BUSY_PERCENT = 15


@dataclass(frozen=True)
class GpuUse:
    """Use of the card by programs other than the node."""

    others: bool | None
    """Whether another program computes on the card; None: unknown."""
    program: str | None = None
    """The program's name, if known: untrusted text."""


class Gpu:
    """One card, found by its UUID. `library` loads pynvml, or a substitute."""

    def __init__(
        self,
        library: Callable[[], Any] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._load = library or (lambda: importlib.import_module("pynvml"))
        self._clock = clock
        self._library: Any = None
        self._opened = False
        self._retry_at = float("-inf")
        self._uuid: str | None = None
        self._handle: Any = None
        self._no_counter = False
        self._last_sample_time = 0
        self.why: str | None = "no GPU has been searched for"
        """Why readings are unavailable, as text for users; None if they are available."""

    def select(self, uuid: str | None) -> None:
        """Select the card with this UUID, with or without the prefix `GPU-`; None for none."""
        if uuid is not None and not uuid.startswith(("GPU-", "MIG-")):
            uuid = f"GPU-{uuid}"
        if uuid != self._uuid:
            self._uuid, self._handle, self._no_counter = uuid, None, False
            self._retry_at = float("-inf")

    def read(self) -> MeterReading | None:
        """Return the card's energy counter, if it has one, and its current power; None if unknown."""
        handle = self._card()
        if handle is None:
            return None
        library = self._library
        try:
            watts = library.nvmlDeviceGetPowerUsage(handle) / _MILLIWATTS
        except library.NVMLError as error:
            self._note_error(error)
            return None
        counters: dict[str, int] = {}
        if not self._no_counter:
            try:
                counters[str(self._uuid)] = int(library.nvmlDeviceGetTotalEnergyConsumption(handle))
            except library.NVMLError:
                # Cards before Volta have no energy counter: their power is integrated instead.
                self._no_counter = True
        return MeterReading(at=self._clock(), counters=counters, watts=float(watts))

    def use_by_others(self, ours: Collection[int]) -> GpuUse:
        """Return whether a program other than the processes `ours` (ids) computes on the card.

        If the driver lists one of `ours` on the card, the utilisation of each other process decides: at
        least `BUSY_PERCENT`. If `ours` is empty, the card's whole utilisation is by others, and decides.
        If none of `ours` is listed, the answer is unknown: in a container, the driver's process ids are
        not the container's.
        """
        handle = self._card()
        if handle is None:
            return GpuUse(None)
        library = self._library
        try:
            on_card = {
                process.pid
                for list_ in (
                    library.nvmlDeviceGetComputeRunningProcesses(handle),
                    library.nvmlDeviceGetGraphicsRunningProcesses(handle),
                )
                for process in list_
            }
        except library.NVMLError as error:
            self._note_error(error)
            return GpuUse(None)
        try:
            if not on_card & set(ours):
                if ours:
                    return GpuUse(None)
                percent = library.nvmlDeviceGetUtilizationRates(handle).gpu
                return GpuUse(percent >= BUSY_PERCENT)
            samples = library.nvmlDeviceGetProcessUtilization(handle, self._last_sample_time)
            self._last_sample_time = max(
                [self._last_sample_time, *(sample.timeStamp for sample in samples)]
            )
        except library.NVMLError as error:
            # The driver reports this error if there are no samples since the last call.
            if isinstance(error, _kind(library, "NVMLError_NotFound")):
                return GpuUse(False)
            return GpuUse(None)
        busy = [s.pid for s in samples if s.pid not in ours and s.smUtil >= BUSY_PERCENT]
        return GpuUse(bool(busy), self._name(busy[0]) if busy else None)

    def _name(self, pid: int) -> str | None:
        try:
            name = self._library.nvmlSystemGetProcessName(pid)
        except self._library.NVMLError:
            return None
        text = name.decode("utf-8", "replace") if isinstance(name, bytes) else str(name)
        return text.split(" ")[0].rpartition("/")[2][:64] or None

    def _card(self) -> Any:
        """Return the card's handle; None if it is unavailable at present, for the reason in `why`."""
        if self._handle is not None:
            return self._handle
        if self._clock() < self._retry_at:
            return None
        if self._uuid is None:
            self.why = "the trainer does not use an NVIDIA GPU"
            return None
        if self._library is None:
            try:
                self._library = self._load()
            except ImportError:
                self.why = "the package nvidia-ml-py is not installed (extra `nvidia`)"
                self._retry_at = float("inf")
                return None
        library = self._library
        try:
            if not self._opened:
                library.nvmlInit()
                self._opened = True
            self._handle = library.nvmlDeviceGetHandleByUUID(self._uuid)
        except library.NVMLError as error:
            self._note_error(error)
            return None
        self.why = None
        return self._handle

    def _note_error(self, error: Exception) -> None:
        """Note that the driver or the card does not answer; the driver is reopened later."""
        self.why = f"the driver reports: {error}"
        _log.debug("NVML: %s", error)
        self._retry_at = self._clock() + _RETRY_SECONDS
        self.close()

    def close(self) -> None:
        """Close the driver; the next reading opens it again."""
        self._handle = None
        if self._opened:
            self._opened = False
            try:
                self._library.nvmlShutdown()
            except self._library.NVMLError as again:
                _log.debug("NVML did not close: %s", again)


def _kind(library: Any, name: str) -> type[Exception]:
    """Return the library's error class of this name; a class that is never raised if it has none. The
    library creates these classes from the driver's error codes."""
    return getattr(library, name, type("Never", (Exception,), {}))
