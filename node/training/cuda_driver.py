"""What NVIDIA's driver answers about its GPUs, without PyTorch, whose loading takes seconds.

`distro-node join --device cuda` asks before it connects. The answer is *certain* where the installed
PyTorch is built for CUDA, and the driver and each named GPU are ones that every build for this CUDA
runs on. Anything else is not certain, and PyTorch itself has to be asked (`device_probe`).

`python -m distro_node.node.training.cuda_driver` prints the answer; a process of its own, because the
driver keeps files and memory of a process that has started it.
"""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

import trio

from ..util.operating_system import SystemLibrary
from .graphics_cards import make_device_node

_LIBRARY = "libcuda.so.1"
_ANSWER_SECONDS = 20.0
# Numbers of `CUdevice_attribute` in NVIDIA's cuda.h.
_CAPABILITY_MAJOR, _CAPABILITY_MINOR = 75, 76
# GPUs that a build for CUDA runs on: from Turing on, which CUDA 13 still supports, to the newest that
# this CUDA can compile for, by its release notes.
_OLDEST_GPU = (7, 5)
_NEWEST_GPUS = {(11, 8): (9, 0), (12, 8): (12, 0)}
_BUILD = re.compile(r"^cuda\b[^=\n]*= *['\"](\d+)\.(\d+)", re.MULTILINE)
_DEVICE = re.compile(r"cuda(?::(\d{1,3}))?")


@dataclass(frozen=True)
class CudaDriver:
    """A driver that works."""

    version: tuple[int, int]
    """The newest CUDA that it runs."""
    capabilities: tuple[tuple[int, int], ...]
    """Compute capability of each GPU that this process may use."""


async def has_cuda(devices: set[str]) -> bool:
    """Return whether these devices (`cuda`, `cuda:0`, …) are certain to be there; False if PyTorch has
    to be asked."""
    build = torch_build()
    if build is None or not all(map(_DEVICE.fullmatch, devices)):
        return False
    await trio.to_thread.run_sync(make_device_node)
    driver = await _ask_driver()
    return driver is not None and is_certain(devices, build, driver)


def is_certain(devices: set[str], build: tuple[int, int], driver: CudaDriver) -> bool:
    """Return whether a PyTorch that is built for this CUDA is certain to run on these devices."""
    newest = max((gpu for cuda, gpu in _NEWEST_GPUS.items() if cuda <= build), default=(0, 0))
    # A driver runs all programs of its major version of CUDA and of those before.
    if driver.version[0] < build[0]:
        return False
    for name in devices:
        found = _DEVICE.fullmatch(name)
        index = int(found[1] or 0) if found else len(driver.capabilities)
        if index >= len(driver.capabilities):
            return False
        if not _OLDEST_GPU <= driver.capabilities[index] <= newest:
            return False
    return True


def torch_build() -> tuple[int, int] | None:
    """Return the CUDA version for which the installed PyTorch is built, read without loading it; None if
    there is none, or if it is built for something else."""
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        return None
    try:
        text = (Path(spec.origin).parent / "version.py").read_text("utf-8")
    except (OSError, UnicodeDecodeError):
        return None
    found = _BUILD.search(text)
    return None if found is None else (int(found[1]), int(found[2]))


def read_driver(name: str = _LIBRARY) -> CudaDriver | None:
    """Ask the driver's library of this name; None if there is none, or if it cannot be started."""
    try:
        library = SystemLibrary(name)
        library.call("cuInit", 0)
        version = library.integer("cuDriverGetVersion")
        capabilities = []
        for index in range(library.integer("cuDeviceGetCount")):
            device = library.integer("cuDeviceGet", index)
            capability = (
                library.integer("cuDeviceGetAttribute", _CAPABILITY_MAJOR, device),
                library.integer("cuDeviceGetAttribute", _CAPABILITY_MINOR, device),
            )
            capabilities.append(capability)
    except OSError:
        return None
    return CudaDriver((version // 1000, version % 1000 // 10), tuple(capabilities))


async def _ask_driver() -> CudaDriver | None:
    with trio.move_on_after(_ANSWER_SECONDS):
        try:
            done = await trio.run_process(
                [sys.executable, "-P", "-m", "distro_node.node.training.cuda_driver"],
                stdin=subprocess.DEVNULL,
                capture_stdout=True,
                capture_stderr=True,
            )
            answer = json.loads(done.stdout)
            return CudaDriver(tuple(answer["version"]), tuple(map(tuple, answer["capabilities"])))
        except (OSError, subprocess.CalledProcessError, ValueError, KeyError, TypeError):
            return None
    return None


def main() -> None:
    """Print what the driver answers, as JSON; `null` if there is none."""
    driver = read_driver()
    print(json.dumps(None if driver is None else asdict(driver)))


if __name__ == "__main__":
    main()
