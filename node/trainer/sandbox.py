"""What the trainer can never do, whatever it is made to run: reach the network, or others' files.

A stranger's configuration, tokenizer and data are checked before libraries see them, but the libraries
are large. So before any of them is loaded the process gives up for good all that training does not need.
On Linux, Landlock leaves it the files of the system, of Python and of the device to read, the blobs and
a scratch folder to write, and no other process to signal; a seccomp filter leaves it no socket but local
ones. Where the kernel has neither, or on another system, nothing is enforced, and `confine` says so.
"""

from __future__ import annotations

import ctypes
import os
import platform
import socket
import struct
import sys
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

# Where systems keep libraries, devices and what drivers ask of the kernel.
_SYSTEM = (
    "/usr",
    "/lib",
    "/lib64",
    "/bin",
    "/etc",
    "/opt",
    "/nix",
    "/run",
    "/proc",
    "/sys",
    "/dev",
)
# Drivers write to device nodes; the C library and torch to their own entries in /proc.
_DEVICES = ("/dev", "/proc")

# From the kernel's include/uapi/linux/landlock.h.
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_VERSION_FLAG, _PATH_BENEATH = 1, 1
_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 1, 2, 4, 8
_READ = _EXECUTE | _READ_FILE | _READ_DIR
_CHANGES = sum(1 << bit for bit in range(4, 13)) | _WRITE_FILE
_REFER, _TRUNCATE = 1 << 13, 1 << 14
_FOR_FILES = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE
_SCOPED = 0b11
"""No signals to, and no abstract sockets of, processes outside."""

# From include/uapi/linux/{prctl,seccomp,filter,audit}.h.
_NO_NEW_PRIVS, _SET_SECCOMP, _FILTER_MODE = 38, 22, 2
_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000
_EACCES, _EPERM = 13, 1
_MACHINES = {"x86_64": (0xC000003E, 41), "aarch64": (0xC00000B7, 198)}
"""By machine: its name in the audit subsystem, and the number of the system call `socket`."""
_IO_URING_SETUP = 425
_X32_BIT = 0x40000000
_AF_UNIX = 1
# IPv4, IPv6, and netlink, by which libraries look for interfaces.
_AF_RANKS = (2, 10, 16)

# From include/uapi/linux/{sched,if,sockios}.h.
_NEW_NETWORK, _NEW_USERS = 0x40000000, 0x10000000
_UP, _SET_FLAGS = 1, 0x8914


def confine(
    readable: Iterable[Path],
    writable: Sequence[Path],
    *,
    several: bool = False,
    apart: bool = True,
) -> tuple[str, ...]:
    """Give up, for this process and all that it starts, what is not named; call it before threads.

    `readable` and `writable` are added to what every trainer needs; those that do not exist are left
    out. Returns what is enforced: "files", "network", both or nothing.

    With `several` the process and those it forks get a network of their own, with nothing in it but
    themselves, through which they speak with each other; where the system gives them none, or where they
    are not to be `apart` since others are on other machines, the network is not restricted.
    """
    if sys.platform != "linux":
        return ()
    library = ctypes.CDLL(None, use_errno=True)
    apart = several and apart and _leave_network(library)
    if library.prctl(_NO_NEW_PRIVS, 1, 0, 0, 0) != 0:
        return ()
    python = (sys.prefix, sys.base_prefix, sys.executable, *filter(None, sys.path))
    # In a checkout this package lies beside the user's own files.
    root = Path(__file__).resolve().parents[2]
    own = [root / name for name in ("__init__.py", "crypto", "protocol", "node")]
    read = [*map(Path, (*_SYSTEM, *python)), *own, *readable, *writable]
    enforced = []
    if _restrict_files(library, read, [*map(Path, _DEVICES), *writable]):
        enforced.append("files")
    families = (_AF_UNIX, *_AF_RANKS) if several else (_AF_UNIX,)
    if _restrict_network(library, families) and (apart or not several):
        enforced.append("network")
    return tuple(enforced)


def _restrict_files(
    library: ctypes.CDLL, readable: Iterable[Path], writable: Iterable[Path]
) -> bool:
    version = library.syscall(_CREATE_RULESET, None, ctypes.c_size_t(0), _VERSION_FLAG)
    if version < 1:
        return False
    handled = _READ | _CHANGES
    handled |= _REFER if version >= 2 else 0
    handled |= _TRUNCATE if version >= 3 else 0
    attributes = struct.pack("<QQQ", handled, 0, _SCOPED if version >= 6 else 0)
    # Older kernels know the first fields only, and take no more.
    attributes = attributes[: 24 if version >= 6 else 16 if version >= 4 else 8]
    size = ctypes.c_size_t(len(attributes))
    rules = library.syscall(_CREATE_RULESET, attributes, size, 0)
    if rules < 0:
        return False
    try:
        for paths, access in ((readable, _READ), (writable, handled)):
            for path in paths:
                _allow(library, rules, path, access)
        return library.syscall(_RESTRICT_SELF, rules, 0) == 0
    finally:
        os.close(rules)


def _allow(library: ctypes.CDLL, rules: int, path: Path, access: int) -> None:
    try:
        handle = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return
    try:
        rights = access if path.is_dir() else access & _FOR_FILES
        beneath = struct.pack("<Qi", rights, handle)
        library.syscall(_ADD_RULE, rules, _PATH_BENEATH, beneath, 0)
    finally:
        os.close(handle)


def _leave_network(library: ctypes.CDLL) -> bool:
    """Go into a network namespace of the process's own, and switch its loopback on."""
    user, group = os.geteuid(), os.getegid()
    if library.unshare(_NEW_NETWORK) != 0:
        # Who is not root may have one in a namespace of users, where the system allows that.
        if library.unshare(_NEW_NETWORK | _NEW_USERS) != 0:
            return False
        with suppress(OSError):
            Path("/proc/self/setgroups").write_text("deny")
            Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
            Path("/proc/self/gid_map").write_text(f"{group} {group} 1")
    # Not on every system.
    import fcntl

    # Where it stays off, ranks do not find each other, and say so.
    with suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, _SET_FLAGS, struct.pack("16sh14x", b"lo", _UP))
    return True


def _restrict_network(library: ctypes.CDLL, families: Sequence[int]) -> bool:
    machine = _MACHINES.get(platform.machine())
    if machine is None:
        return False
    audit, socket = machine
    load, equal, at_least, give = 0x20, 0x15, 0x35, 0x06
    # Each line: operation, jump if true, jump if false, operand. The data are struct seccomp_data:
    # the call's number at 0, the architecture at 4, the first argument at 16.
    program = [
        (load, 0, 0, 4),
        (equal, 1, 0, audit),
        (give, 0, 0, _ERRNO | _EPERM),
        (load, 0, 0, 0),
        (at_least, 0, 1, _X32_BIT),
        (give, 0, 0, _ERRNO | _EPERM),
        # Its requests pass this filter by.
        (equal, 0, 1, _IO_URING_SETUP),
        (give, 0, 0, _ERRNO | _EPERM),
        (equal, 1, 0, socket),
        (give, 0, 0, _ALLOW),
        (load, 0, 0, 16),
        *(line for each in families for line in ((equal, 0, 1, each), (give, 0, 0, _ALLOW))),
        (give, 0, 0, _ERRNO | _EACCES),
    ]
    code = b"".join(struct.pack("<HBBI", *line) for line in program)
    instructions = ctypes.create_string_buffer(code, len(code))
    header = struct.pack("@HP", len(program), ctypes.addressof(instructions))
    return library.prctl(_SET_SECCOMP, _FILTER_MODE, header, 0, 0) == 0
