"""Examination of the computer itself: Python, PyTorch and the device, disk, memory, clock and ports.

Nothing is created or changed. PyTorch is loaded in a process of its own, because it cannot be unloaded.
"""

from __future__ import annotations

import contextlib
import errno
import importlib.util
import json
import os
import platform
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil

from ..errors import UserError
from ..memory_fit import Survey, Workload, fit_workload
from ..network.connection_limits import MAX_HANDSHAKES
from ..network.descriptors import RESERVED, raise_limit, room_under
from ..network.network import NetworkSettings
from ..settings.values import DEFAULT_METRICS_ADDRESS
from ..storage.data_dir import MINIMUM_FREE_BYTES, DataDir
from ..training.graphics_cards import gpu_vendor, missing_device_node
from ..util.operating_system import (
    ELSEWHERE,
    lock_file,
    missing_calls,
    reuse_address,
    user_id,
)
from .findings import Finding, Subject, good

_TORCH_SECONDS = 180.0
_SANDBOX_SECONDS = 30.0
_POWER_SECONDS = 20.0
DISK_BYTES_PER_PARAMETER = 12
"""Bytes of disk that a node needs per parameter: three snapshots in float32."""
# 2025-01-01 in seconds since 1970. A clock that shows an earlier time is wrong, because this program did
# not exist then.
_EARLIEST_TIME = 1_735_689_600.0
_SKEW_SECONDS = 60.0
# Fraction of a GPU's memory from which it counts as free: what asks takes some of it as well.
_MOSTLY_FREE = 0.9

_TORCH_PROBE = """
import json, torch
cuda = torch.cuda.is_available()
mps = getattr(torch.backends, "mps", None)
def free(i):
    try:
        return torch.cuda.mem_get_info(i)[0]
    except RuntimeError:
        # There is not even room for a context, or another program has the card for itself.
        return 0
print(json.dumps({
    "version": torch.__version__,
    "built_for_cuda": torch.version.cuda is not None or torch.version.hip is not None,
    "gpus": [
        [torch.cuda.get_device_name(i), torch.cuda.get_device_properties(i).total_memory, free(i)]
        for i in range(torch.cuda.device_count() if cuda else 0)
    ],
    "mps": bool(mps and mps.is_available()),
    "threads": torch.get_num_threads(),
}))
"""


_POWER_PROBE = """
import pynvml
pynvml.nvmlInit()
for i in range(pynvml.nvmlDeviceGetCount()):
    pynvml.nvmlDeviceGetPowerUsage(pynvml.nvmlDeviceGetHandleByIndex(i))
"""


def examine_computer(data: DataDir, workload: Workload | None) -> Iterator[Finding]:
    """Yield every finding that needs no network; `workload`: the largest workload to train."""
    yield good("python", f"Python {platform.python_version()} on {platform.platform(terse=True)}")
    if missing := missing_calls():
        lacks = f"it lacks what a node needs: {', '.join(missing)}"
        yield Finding(subject="system", severity="stops", what=lacks, remedy=ELSEWHERE)
    yield from examine_trainer(probe_torch(), workload)
    is_root = user_id() == 0
    yield from examine_sandbox(*probe_sandbox(), root=is_root)
    yield from examine_disk(data, None if workload is None else workload.elements)
    yield from examine_clock(data, time.time())
    yield from examine_ports(data)
    yield examine_open_files()
    yield from examine_energy(has_nvidia=_has_nvidia())


def probe_torch() -> dict[str, Any] | str:
    """Return PyTorch's description of itself and its devices, or the reason why there is none."""
    try:
        done = subprocess.run(
            [sys.executable, "-c", _TORCH_PROBE],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_TORCH_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    with contextlib.suppress(ValueError):
        answer = json.loads(done.stdout.strip().rpartition("\n")[2])
        if isinstance(answer, dict):
            return answer
    lines = done.stderr.strip().splitlines()
    return lines[-1] if lines else f"it ended with code {done.returncode}"


def probe_power() -> str | None:
    """Return why NVIDIA's driver does not report the power of every GPU; None if it does. It is asked
    in a process of its own, because a driver may never answer."""
    try:
        done = subprocess.run(
            [sys.executable, "-P", "-c", _POWER_PROBE],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_POWER_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"the driver has not answered within {_POWER_SECONDS:.0f} s"
    except OSError as error:
        return str(error)
    if done.returncode == 0:
        return None
    lines = done.stderr.strip().splitlines()
    return lines[-1] if lines else f"it ended with code {done.returncode}"


def probe_sandbox() -> tuple[list[str], list[str]]:
    """Return which parts of the trainer's sandbox this system enforces, and which it does not. They are
    tested in a separate process, which confines itself; if that fails, both lists are empty."""
    try:
        done = subprocess.run(
            [sys.executable, "-P", "-m", "distro_node.node.training.sandbox"],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_SANDBOX_SECONDS,
            check=False,
        )
        answer = json.loads(done.stdout)
    except (OSError, subprocess.TimeoutExpired, ValueError):
        return [], []
    return answer["held"], answer["missing"]


def examine_sandbox(enforced: list[str], missing: list[str], *, root: bool) -> Iterator[Finding]:
    """Examine what protects this computer from a stranger's model if a library has a fault."""
    if not enforced:
        yield Finding(
            subject="sandbox",
            severity="hurts",
            what="this system cannot sandbox the trainer: through a fault in a library, a "
            "stranger's model could reach all your files",
            remedy="join only swarms of people you trust, or use Linux from 5.13 on (Landlock, "
            "seccomp)",
        )
    elif missing:
        yield Finding(
            subject="sandbox",
            severity="hurts",
            what=f"the trainer's sandbox covers {', '.join(enforced)}, but not {', '.join(missing)}",
            remedy="use a newer kernel: Landlock protects files from Linux 5.13 on, and "
            "signals from 6.12 on",
        )
    else:
        yield good("sandbox", f"the trainer's sandbox covers {', '.join(enforced)}")
    if root:
        yield Finding(
            subject="sandbox",
            severity="hurts",
            what="you are root: the trainer drops root's rights, but the node keeps them, and "
            "needs none of them",
            remedy="run the node as a user of its own: `distro-node service install --system` "
            "creates one",
        )


def examine_energy(*, has_nvidia: bool) -> Iterator[Finding]:
    """Examine whether the power that training draws can be measured here; a node works without that."""
    if not has_nvidia:
        return
    if importlib.util.find_spec("pynvml") is None:
        yield Finding(
            subject="energy",
            severity="unknown",
            what="the GPU's power cannot be measured: the package nvidia-ml-py is not installed",
            remedy="install it with: pip install 'distro-node[nvidia]'",
        )
    elif (problem := probe_power()) is not None:
        yield Finding(
            subject="energy",
            severity="unknown",
            what=f"the GPU's power cannot be measured: {problem}",
            remedy="check that `nvidia-smi` shows it; some cards do not report their power",
        )
    else:
        yield good("energy", "the GPU's power can be measured")


def examine_trainer(torch: dict[str, Any] | str, workload: Workload | None) -> Iterator[Finding]:
    """Examine PyTorch and the device that it computes on."""
    if isinstance(torch, str):
        missing = "No module named 'torch'" in torch
        yield Finding(
            subject="torch",
            severity="stops",
            what="PyTorch is not installed" if missing else f"PyTorch cannot be loaded: {torch}",
            remedy="install it with: pip install 'distro-node[train]'; observers and bootstrap "
            "peers need no PyTorch",
        )
        return
    yield good("torch", f"PyTorch {torch['version']}")
    memory = psutil.virtual_memory()
    free = f"{_size(memory.available)} of {_size(memory.total)} are free"
    if (node := missing_device_node()) is not None:
        yield Finding(
            subject="device",
            severity="hurts",
            what=f"NVIDIA's driver is loaded, but {node}, which CUDA needs, is missing",
            remedy="run `nvidia-modprobe -u` (package nvidia-modprobe); the sandboxed trainer "
            "cannot create it",
        )
    if torch["gpus"]:
        yield _examine_gpus(torch["gpus"], workload, memory.available)
    elif torch["mps"]:
        yield good("device", "the GPU of this Mac (mps)")
    elif (vendor := "NVIDIA" if _has_nvidia() else gpu_vendor()) is not None:
        yield Finding(
            subject="device",
            severity="hurts",
            what=f"PyTorch does not see the {vendor} GPU of this computer, so training would run "
            "on the processor",
            remedy=_unseen_gpu_remedy(vendor, built_for_gpus=torch["built_for_cuda"]),
        )
    else:
        yield good(
            "device", f"no GPU: training runs on the processor, with {torch['threads']} threads"
        )
    if torch["gpus"]:
        yield good("memory", free)
    else:
        yield _examine_memory("memory", free, workload, "cpu", memory.available)


def _examine_gpus(
    gpus: list[tuple[str, int, int]], workload: Workload | None, host_bytes: int
) -> Finding:
    """Examine the first GPU, which a trainer takes if it is told nothing else. `gpus`: the name of each,
    its bytes, and how many of them are free."""

    def examine(index: int, free: int) -> Finding:
        name, size, now_free = gpus[index]
        used = f", {_size(now_free)} of them free" if now_free < _MOSTLY_FREE * size else ""
        what = f"{name} with {_size(size)}{used}"
        return _examine_memory("device", what, workload, "cuda", free, host_bytes)

    found = examine(0, gpus[0][2])
    if found.severity == "good":
        return found
    for index, (_, _, free) in enumerate(gpus):
        if examine(index, free).severity == "good":
            return replace(
                found, severity="hurts", remedy=f"start the node with --device cuda:{index}"
            )
    if examine(0, gpus[0][1]).severity == "good":
        remedy = "close the programs that use it; a node that runs on it already is one of them"
        return replace(found, severity="hurts", remedy=remedy)
    return found


def _unseen_gpu_remedy(vendor: str, *, built_for_gpus: bool) -> str:
    if vendor == "NVIDIA":
        if built_for_gpus:
            return "make sure that `nvidia-smi` works and the driver is new enough for this PyTorch"
        return "this PyTorch is a build without CUDA: install the default one"
    if built_for_gpus:
        return "make sure that you are in the group `render` and that `rocminfo` lists the card"
    return "this PyTorch is a build without ROCm: install one from PyTorch's index for ROCm"


def _examine_memory(
    subject: Subject,
    what: str,
    workload: Workload | None,
    kind: str,
    free: int,
    host_bytes: int = 0,
) -> Finding:
    """Examine whether training fits into memory, by the same arithmetic by which a trainer chooses its
    memory plan. `what`: the device or memory, for display; `free`: free bytes on the device;
    `host_bytes`: free bytes of main memory, for a GPU."""
    if workload is None:
        return good(subject, what)
    device = Survey(kind=kind, device=what, free_bytes=free, host_bytes=host_bytes, parameters=())
    fitted = fit_workload("", workload, device)
    if fitted.chosen is not None:
        return good(
            subject,
            f"{what}; training the swarm's model takes {_size(fitted.plan_to_show.needs.device)}",
        )
    return Finding(
        subject=subject,
        severity="stops",
        what=f"{what}, but training the swarm's model takes at least "
        f"{_size(fitted.plan_to_show.needs.device)}, with {fitted.plan_to_show.summary}",
        remedy="use a device with more memory, or close other programs that use it; "
        "`distro-node fit` shows what takes how much memory",
    )


def examine_disk(data: DataDir, parameters: int | None) -> Iterator[Finding]:
    """Examine whether the data directory can be used, and whether its disk has enough free space."""
    folder = data.root
    try:
        # A link that leads nowhere is there: no directory can be made in its place.
        while not os.path.lexists(folder):
            folder = folder.parent
        usable = folder.is_dir() and os.access(folder, os.W_OK | os.X_OK)
        free = shutil.disk_usage(folder).free
    except OSError as error:
        usable, free, problem = False, 0, error.strerror
    else:
        problem = "it is not writable" if folder.is_dir() else f"{folder} is not a directory"
    if not usable:
        yield Finding(
            subject="data directory",
            severity="stops",
            what=f"{data.root} cannot be used: {problem}",
            remedy="give a directory that you may write to with --data-dir",
        )
        return
    state = "exists" if data.root.exists() else "will be created"
    yield good("data directory", f"{data.root} {state}")
    needed = MINIMUM_FREE_BYTES if parameters is None else DISK_BYTES_PER_PARAMETER * parameters
    if free < max(needed, MINIMUM_FREE_BYTES):
        # The bytes needed include what this node has stored already, so less free space may suffice.
        severity = "stops" if free < MINIMUM_FREE_BYTES else "hurts"
        what = (
            f"{_size(free)} are free, but a node needs about {_size(needed)} plus its training data"
        )
        remedy = "free some space, or give a directory on a larger disk with --data-dir"
        yield Finding(subject="disk", severity=severity, what=what, remedy=remedy)
    else:
        yield good("disk", f"{_size(free)} are free")


def examine_clock(data: DataDir, now: float) -> Iterator[Finding]:
    """Examine whether the clock can be right, as far as that is known without the network."""
    remedy = "set it, and let the system synchronise it with the network (timedatectl set-ntp true)"
    latest = max(_EARLIEST_TIME, *(_modified_at(path) for path in (data.identity, data.starts)))
    if now < latest - _SKEW_SECONDS:
        shown = time.strftime("%Y-%m-%d %H:%M", time.gmtime(now))
        then = time.strftime("%Y-%m-%d %H:%M", time.gmtime(latest))
        yield Finding(
            subject="clock",
            severity="hurts",
            what=f"it shows {shown} UTC, but a file in the data directory was written on {then}",
            remedy=remedy,
        )
        return
    synchronised = _is_synchronised()
    if synchronised is False:
        yield Finding(
            subject="clock",
            severity="unknown",
            what="the system does not synchronise it with the network: it may be wrong",
            remedy=remedy,
        )
    elif synchronised:
        yield good("clock", "synchronised with the network")
    else:
        yield good("clock", "no fault found")


def examine_ports(data: DataDir) -> Iterator[Finding]:
    """Examine whether a node could listen: on a free port, and at the default address of its metrics."""
    if data.lock_file.exists() and _is_locked(data.lock_file):
        yield good(
            "ports",
            f"not tested, because a node runs in this data directory: `{data.command('status')}` "
            "shows its addresses",
        )
        return
    problem = _cannot_listen("0.0.0.0", 0)
    if problem is not None:
        yield Finding(
            subject="ports",
            severity="stops",
            what=f"programs cannot listen on ports here: {problem}",
            remedy="check whether a container, a sandbox or a security policy forbids it",
        )
        return
    host, port = DEFAULT_METRICS_ADDRESS
    problem = _cannot_listen(host, port)
    if problem is not None:
        yield good(
            "ports",
            f"programs can listen on ports here; {host}:{port} is not available ({problem}), so a "
            "node serves its metrics at another port",
        )
    else:
        yield good(
            "ports", f"programs can listen on ports here, and {host}:{port} is free for metrics"
        )


def examine_open_files() -> Finding:
    """Examine whether the system allows a node as many descriptors as its connections may take."""
    wanted = NetworkSettings().max_connections
    limit = raise_limit(wanted + MAX_HANDSHAKES + RESERVED)
    capacity = room_under(limit, wanted, MAX_HANDSHAKES)
    if limit is None or capacity.connections == wanted:
        most = "any number of files" if limit is None else f"{limit} files"
        return good(
            "open files", f"a program may open {most}, which is enough for {wanted} connections"
        )
    return Finding(
        subject="open files",
        severity="hurts",
        what=f"a program may open {limit} files, so a node accepts {capacity.connections} connections "
        f"instead of {wanted}",
        remedy=f"raise the hard limit to {wanted + MAX_HANDSHAKES + RESERVED} (`ulimit -Hn`, "
        "LimitNOFILE= of a service)",
    )


def _cannot_listen(host: str, port: int) -> str | None:
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as server:
            reuse_address(server)
            server.bind((host, port))
            server.listen(1)
    except OSError as error:
        return error.strerror
    return None


def _is_locked(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return not lock_file(file.fileno())
    except UserError:
        # Without locks no node runs here.
        return False
    except OSError as error:
        return error.errno == errno.EACCES


def _is_synchronised() -> bool | None:
    """Return whether the system's clock is synchronised with the network; None if unknown."""
    if shutil.which("timedatectl") is None:
        return None
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        done = subprocess.run(
            ["timedatectl", "show", "--property=NTPSynchronized", "--value"],
            capture_output=True,
            text=True,
            timeout=5.0,
            check=False,
        )
        return {"yes": True, "no": False}.get(done.stdout.strip())
    return None


def _has_nvidia() -> bool:
    return Path("/dev/nvidiactl").exists() or shutil.which("nvidia-smi") is not None


def _modified_at(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def _size(count: float) -> str:
    return f"{count / 1e9:.1f} GB" if count >= 1e9 else f"{count / 1e6:.0f} MB"
