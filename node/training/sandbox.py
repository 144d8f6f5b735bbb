"""The trainer's sandbox: whatever code a trainer runs, it reaches no network, no other program, and no
file that training does not need.

A stranger's configuration, tokenizer and data are checked before libraries see them, but the
libraries are large and may have bugs. So before any of them is loaded the process permanently gives up
all rights that training does not need. On Linux, Landlock restricts it to the system's software, Python
and the GPU's device nodes, and to writing the blobs and a scratch folder; a filter of system calls
(seccomp) refuses sockets that lead to other programs, other processes' memory, namespaces and mounts;
and the process drops all capabilities, even as root. Restrictions that the kernel does not offer are not
enforced, and on other systems than Linux none is; `confine` returns those that are enforced.

    python -m distro_node.node.training.sandbox

confines itself and prints in JSON what is enforced here, for `distro-node doctor`.
"""

from __future__ import annotations

import ctypes
import json
import os
import platform
import shutil
import socket
import struct
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from ..util.operating_system import IS_LINUX
from . import landlock
from .system_calls import DATAGRAM, SEQUENCED, restrict_calls

RESTRICTIONS: dict[str, str] = {
    "files": "no file or device but those that training needs",
    "network": "no network",
    "sockets": "no program of this computer through a socket",
    "processes": "no memory of other programs",
    "signals": "no signal to other programs",
    "kernel": "no namespaces, mounts or keys",
    "privileges": "no capabilities, even as root",
}
"""The restrictions that a sandbox may enforce, by name, each in words for people."""

# Where systems keep software.
_SOFTWARE = ("/usr", "/lib", "/lib64", "/bin", "/sbin", "/opt", "/nix/store")
# The parts of the system's configuration that the C library, OpenSSL and drivers read; no passwords
# or keys.
_CONFIGURATION = (
    *("ld.so.cache", "ld.so.conf", "ld.so.conf.d", "ld.so.preload", "nsswitch.conf", "passwd"),
    *("group", "hosts", "host.conf", "gai.conf", "services", "protocols", "localtime", "timezone"),
    *("os-release", "locale.alias", "locale.conf", "ssl/openssl.cnf", "pki/tls/openssl.cnf"),
    *("crypto-policies", "nccl.conf", "nvidia", "OpenCL", "libibverbs.d", "alternatives", "mtab"),
)
# What the kernel reports about the machine and its devices.
_KERNEL = (
    *(f"/proc/{name}" for name in ("cpuinfo", "meminfo", "stat", "uptime", "loadavg", "version")),
    *(f"/proc/{name}" for name in ("vmstat", "modules", "devices", "filesystems", "driver", "sys")),
    *(f"/sys/{name}" for name in ("devices", "bus", "class", "module", "dev", "fs/cgroup")),
    *("/sys/kernel/mm", "/sys/firmware/devicetree"),
)
_DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")
# Device nodes of NVIDIA's GPUs (including Tegra chips and WSL) and of AMD's, and render nodes.
_GPUS = (
    *("nvidia*", "nvhost-*", "nvmap", "nvgpu", "host1x-fence", "dxg", "kfd", "dri/renderD*"),
    "gdrdrv",
)
# Devices by which several machines communicate without going through the kernel.
_BETWEEN_MACHINES = ("/dev/infiniband",)
_SHARED_MEMORY = Path("/dev/shm")

# From the kernel's include/uapi/linux/{prctl,capability,sched,mount,if,sockios}.h.
_NO_NEW_PRIVS, _DROP_BOUND, _AMBIENT, _CLEAR_AMBIENT = 38, 24, 47, 4
_CAPABILITIES_VERSION, _LAST_CAPABILITY = 0x20080522, 63
# CAP_DAC_OVERRIDE and CAP_DAC_READ_SEARCH.
_ANY_OWNER = 0b110
_NEW_NETWORK, _NEW_USERS, _NEW_MOUNTS, _NEW_IPC = 0x40000000, 0x10000000, 0x00020000, 0x08000000
_OWN_NAMESPACES = _NEW_NETWORK | _NEW_MOUNTS | _NEW_IPC
_RECURSIVE_PRIVATE, _NOSUID_NODEV_NOEXEC = 0x44000, 0b1110
_UP, _SET_FLAGS = 1, 0x8914


def confine(
    readable: Iterable[Path],
    writable: Sequence[Path],
    *,
    multi_process: bool = False,
    private_network: bool = True,
) -> tuple[str, ...]:
    """Give up, for this process and all that it starts, every right that training does not need; call it
    before any thread starts.

    `readable` and `writable` are added to what every trainer needs; paths that do not exist are
    skipped. Returns which of `RESTRICTIONS` are enforced.

    `multi_process`: the process forks others, one for each further device. Together they get a private
    network and, if the system allows it, private shared memory. If the system refuses the network, or
    if `private_network` is false because other ranks are on other machines, the network is not
    restricted, and ranks with GPUs reach the shared memory of all programs.
    """
    if not IS_LINUX:
        return ()
    library = ctypes.CDLL(None, use_errno=True)
    _create_nvidia_nodes()
    gpus = list(_gpu_nodes())
    private_network = multi_process and private_network and _own_namespaces(library)
    if library.prctl(_NO_NEW_PRIVS, 1, 0, 0, 0) != 0:
        return ()
    enforced: set[str] = set()
    rules = [*_rules(readable, writable, gpus)]
    if multi_process:
        # Each process reads its own entry in /proc, whose name is not known yet, so all of /proc is
        # readable. NCCL, which connects GPUs, shares memory by name.
        rules += [(Path("/proc"), landlock.READ)]
        rules += [(_SHARED_MEMORY, landlock.WRITE)] if gpus else []
        rules += (
            [] if private_network else [(Path(each), landlock.DEVICE) for each in _BETWEEN_MACHINES]
        )
    if landlock.restrict_files(library, rules):
        enforced |= {"files"}
        if landlock.version(library) >= landlock.SCOPES_SIGNALS:
            enforced |= {"signals"}
    if _drop_capabilities(library, writable):
        enforced |= {"privileges"}
    # CUDA does not start without a sequenced-packet socket, on which other processes could request its
    # memory. NCCL's ranks pass each other memory through datagram sockets.
    unix = () if not gpus else (SEQUENCED, DATAGRAM) if multi_process else (SEQUENCED,)
    if restrict_calls(library, platform.machine(), network=multi_process, unix=unix):
        enforced |= {"sockets", "processes", "kernel"}
        enforced |= {"network"} if private_network or not multi_process else set()
    return tuple(name for name in RESTRICTIONS if name in enforced)


def sandbox_text(enforced: Sequence[str]) -> str:
    """Return what a trainer has given up and what it has not, as a line for people."""
    enforced_texts = [text for name, text in RESTRICTIONS.items() if name in enforced]
    missing = [name for name in RESTRICTIONS if name not in enforced]
    if not enforced_texts:
        return "the trainer is not sandboxed: it can reach everything that you can"
    lacks = f"; this system does not enforce: {', '.join(missing)}" if missing else ""
    return f"the trainer is sandboxed: {', '.join(enforced_texts)}{lacks}"


def _rules(
    readable: Iterable[Path], writable: Iterable[Path], gpus: Iterable[Path]
) -> Iterator[tuple[Path, int]]:
    python = (sys.prefix, sys.base_prefix, sys.executable, *filter(None, sys.path))
    # Not all of `root`: in a checkout the user's own files may be there, too.
    root = Path(__file__).resolve().parents[2]
    own = [root / name for name in ("__init__.py", "crypto", "protocol", "node")]
    for path in (*map(Path, (*_SOFTWARE, *python)), *own):
        yield path, landlock.RUN
    # Debian keeps a part of Python in /etc.
    configuration = [
        *Path("/etc").glob("python3*"),
        *(Path("/etc", each) for each in _CONFIGURATION),
    ]
    for path in (*configuration, *map(Path, _KERNEL), *readable):
        yield path, landlock.READ
    # Only the process's own entry, to which it writes the names of its threads.
    yield Path("/proc/self"), landlock.READ | landlock.DEVICE
    yield Path("/dev/dri"), landlock.READ
    for path in (*map(Path, _DEVICES), *gpus):
        yield path, landlock.DEVICE
    for path in writable:
        yield path, landlock.WRITE


def _gpu_nodes() -> Iterator[Path]:
    for pattern in _GPUS:
        yield from Path("/dev").glob(pattern)


def _create_nvidia_nodes() -> None:
    """Create NVIDIA's device nodes while its helper, which needs privileges, may still run."""
    helper = shutil.which("nvidia-modprobe")
    if helper and Path("/proc/driver/nvidia").exists() and not Path("/dev/nvidia-uvm").exists():
        with suppress(OSError, subprocess.SubprocessError):
            subprocess.run([helper, "-c=0", "-u"], capture_output=True, timeout=20, check=False)


def _drop_capabilities(library: ctypes.CDLL, folders: Iterable[Path]) -> bool:
    """Drop all capabilities, which give root, or a user with some of them, more rights than an
    ordinary user.

    If one of the folders belongs to another user, root keeps its access to other users' files, of
    which Landlock leaves only few reachable. Returns whether no capability is left.
    """
    user = os.geteuid()
    owners = {path.stat().st_uid for path in folders if path.exists()}
    kept = _ANY_OWNER if user == 0 and owners - {user} else 0
    for capability in range(_LAST_CAPABILITY + 1):
        if not kept >> capability & 1:
            # It fails without capabilities, and beyond the last capability that the kernel knows.
            library.prctl(_DROP_BOUND, capability, 0, 0, 0)
    library.prctl(_AMBIENT, _CLEAR_AMBIENT, 0, 0, 0)
    header = struct.pack("<Ii", _CAPABILITIES_VERSION, 0)
    # The effective, permitted and inheritable sets: of the first 32 capabilities, then of the others.
    sets = struct.pack("<6I", kept, kept, 0, 0, 0, 0)
    return library.capset(header, sets) == 0 and kept == 0


def _own_namespaces(library: ctypes.CDLL) -> bool:
    """Enter a private network namespace, with private shared memory if the system allows it.

    Returns whether it has the network namespace.
    """
    user, group = os.geteuid(), os.getegid()
    if library.unshare(_OWN_NAMESPACES) != 0:
        # Without root these namespaces need a user namespace, which some systems refuse.
        if library.unshare(_OWN_NAMESPACES | _NEW_USERS) != 0:
            return False
        with suppress(OSError):
            Path("/proc/self/setgroups").write_text("deny")
            Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
            Path("/proc/self/gid_map").write_text(f"{group} {group} 1")
    # Imported here because it is not available on every system.
    import fcntl

    # If the loopback interface stays down, the ranks cannot find each other, and report that.
    with suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, _SET_FLAGS, struct.pack("16sh14x", b"lo", _UP))
    library.mount(None, b"/", None, _RECURSIVE_PRIVATE, None)
    library.mount(b"tmpfs", bytes(_SHARED_MEMORY), b"tmpfs", _NOSUID_NODEV_NOEXEC, b"mode=1777")
    return True


def main() -> None:
    """Print what is enforced here, and what is not."""
    enforced = confine([], [])
    missing = [name for name in RESTRICTIONS if name not in enforced]
    print(json.dumps({"held": enforced, "missing": missing}))


if __name__ == "__main__":
    main()
