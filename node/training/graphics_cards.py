"""The system's own information on its GPUs, read without torch and used by both processes.

On a Linux machine without a screen NVIDIA's `/dev/nvidia-uvm` appears only when CUDA starts: the
library runs `nvidia-modprobe`, which is setuid. A confined trainer may gain no rights, so for it the
file never appears, CUDA finds no GPU, and `auto` would take the CPU. So the node process creates it
beforehand.
"""

from __future__ import annotations

import logging
import shutil
import subprocess
from contextlib import suppress
from pathlib import Path

_log = logging.getLogger(__name__)

_NVIDIA_DRIVER = Path("/proc/driver/nvidia")
_NVIDIA_NODE = Path("/dev/nvidia-uvm")
_AMD_NODES = Path("/sys/class/kfd/kfd/topology/nodes")

_MODPROBE_SECONDS = 20.0


def gpu_vendor(nvidia: Path = _NVIDIA_DRIVER, amd: Path = _AMD_NODES) -> str | None:
    """Return the maker of a GPU whose driver is loaded, whether or not torch can use it; None if
    there is no such GPU."""
    with suppress(OSError):
        if any((nvidia / "gpus").iterdir()):
            return "NVIDIA"
    with suppress(OSError):
        # AMD's driver lists CPUs in the same place; only GPUs have vector units.
        for node in amd.iterdir():
            if "simd_count 0" not in (node / "properties").read_text("ascii", "replace"):
                return "AMD"
    return None


def missing_device_node(driver: Path = _NVIDIA_DRIVER, node: Path = _NVIDIA_NODE) -> Path | None:
    """Return the file that CUDA needs if it is missing although NVIDIA's driver is loaded."""
    return node if driver.exists() and not node.exists() else None


def make_device_node(driver: Path = _NVIDIA_DRIVER, node: Path = _NVIDIA_NODE) -> None:
    """Let NVIDIA's own helper create the file that CUDA needs, if it is missing. Blocks for a
    moment; a failure is logged, and the trainer then reports what it cannot use."""
    if missing_device_node(driver, node) is None:
        return
    helper = shutil.which("nvidia-modprobe")
    if helper is None:
        _log.warning("CUDA needs %s; install nvidia-modprobe, which creates it", node)
        return
    try:
        done = subprocess.run(
            [helper, "-u", "-c=0"], capture_output=True, timeout=_MODPROBE_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        _log.warning("nvidia-modprobe did not make %s: %s", node, error)
        return
    if done.returncode != 0:
        message = done.stderr.decode("utf-8", "replace").strip()[:200]
        _log.warning("nvidia-modprobe did not make %s: %s", node, message)
