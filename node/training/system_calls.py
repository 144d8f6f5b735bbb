"""A filter of system calls (seccomp) that keeps this process from other programs and out of the kernel.

It refuses calls that training does not need and allows the rest, since the calls of GPU drivers and
compilers differ between releases. All calls that are newer than these tables, of another architecture
or of the x32 ABI are refused. The numbers are those of the kernel's
include/uapi/linux/{prctl,seccomp,filter,audit,sched,socket}.h and of its tables of system calls.
"""

from __future__ import annotations

import ctypes
import errno
import struct
from collections.abc import Iterable, Sequence

_SET_SECCOMP, _FILTER_MODE = 22, 2
_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000
_LOAD, _AND, _EQUAL, _GREATER = 0x20, 0x54, 0x15, 0x25
_AT_LEAST, _ANY_BIT, _RETURN = 0x35, 0x45, 0x06
_X32_BIT = 0x40000000

_AF_UNIX = 1
# IPv4, IPv6, and netlink, by which libraries list interfaces.
_AF_NETWORK = (2, 10, 16)
_TYPE_MASK = 0xF
STREAM, DATAGRAM, SEQUENCED = 1, 2, 5
"""Types of a Unix socket."""

# CLONE_NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET.
_NEW_NAMESPACES = 0x7E020000
# Requests of `ioctl` that inject input into the user's terminal: TIOCSTI, and TIOCLINUX by pasting.
_TERMINAL_REQUESTS = (0x5412, 0x541C)
# The process id -1, by which `kill` reaches every process.
_EVERYBODY = 0xFFFFFFFF

ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
"""Machines by name, with their numbers in the kernel's audit subsystem."""

NEWEST = 466
"""The last system call of these tables; later ones are answered as if the kernel lacked them."""

# Connections to other processes, whatever the kind of socket.
_CONNECTING = ("connect",)
_ANSWERING = ("accept", "accept4")
_LISTENING = ("bind", "listen")
# Memory and descriptors of other processes, and memory, semaphores and queues shared by key or name.
_PROCESS_CALLS = (
    *("ptrace", "process_vm_readv", "process_vm_writev", "pidfd_getfd", "process_madvise"),
    *("process_mrelease", "kcmp", "migrate_pages", "move_pages"),
    *("shmget", "shmat", "shmctl", "semget", "semop", "semtimedop", "semctl"),
    *("msgget", "msgsnd", "msgrcv", "msgctl", "mq_open", "mq_unlink"),
)
# Namespaces, mounts, keys and everything that changes or watches the system.
_KERNEL_CALLS = (
    *("unshare", "setns", "mount", "umount2", "pivot_root", "chroot", "move_mount", "open_tree"),
    *("fsopen", "fsconfig", "fsmount", "fspick", "mount_setattr", "statmount", "listmount"),
    *("keyctl", "add_key", "request_key", "bpf", "perf_event_open", "userfaultfd"),
    # Operations submitted through io_uring bypass a filter.
    *("io_uring_setup", "io_uring_enter", "io_uring_register"),
    *("init_module", "finit_module", "delete_module", "kexec_load", "kexec_file_load", "reboot"),
    *("swapon", "swapoff", "acct", "quotactl", "quotactl_fd", "syslog", "settimeofday"),
    *("clock_settime", "clock_adjtime", "adjtimex", "sethostname", "setdomainname", "iopl"),
    *("ioperm", "vhangup", "name_to_handle_at", "open_by_handle_at", "modify_ldt"),
    *("lookup_dcookie", "mknod", "mknodat"),
)
# Calls on files that Landlock does not restrict: changes of owner and extended attributes, and watching.
_FILE_CALLS = (
    *("chown", "fchown", "lchown", "fchownat", "setxattr", "lsetxattr", "fsetxattr", "setxattrat"),
    *("removexattr", "lremovexattr", "fremovexattr", "removexattrat"),
    *("inotify_init", "inotify_init1", "inotify_add_watch", "fanotify_init", "fanotify_mark"),
)
# Linkers call these and fail if they are refused, so the filter reports success and nothing is done.
_NO_OPERATION = ("chmod", "fchmod", "fchmodat", "fchmodat2")

# By name: the numbers on x86_64 and on aarch64; None where the call does not exist.
NUMBERS: dict[str, tuple[int | None, int | None]] = {
    "accept": (43, 202),
    "accept4": (288, 242),
    "acct": (163, 89),
    "add_key": (248, 217),
    "adjtimex": (159, 171),
    "bind": (49, 200),
    "bpf": (321, 280),
    "chmod": (90, None),
    "chown": (92, None),
    "chroot": (161, 51),
    "clock_adjtime": (305, 266),
    "clock_settime": (227, 112),
    "clone": (56, 220),
    "clone3": (435, 435),
    "connect": (42, 203),
    "delete_module": (176, 106),
    "fanotify_init": (300, 262),
    "fanotify_mark": (301, 263),
    "fchmod": (91, 52),
    "fchmodat": (268, 53),
    "fchmodat2": (452, 452),
    "fchown": (93, 55),
    "fchownat": (260, 54),
    "finit_module": (313, 273),
    "fremovexattr": (199, 16),
    "fsconfig": (431, 431),
    "fsetxattr": (190, 7),
    "fsmount": (432, 432),
    "fsopen": (430, 430),
    "fspick": (433, 433),
    "init_module": (175, 105),
    "inotify_add_watch": (254, 27),
    "inotify_init": (253, None),
    "inotify_init1": (294, 26),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "io_uring_setup": (425, 425),
    "ioctl": (16, 29),
    "ioperm": (173, None),
    "iopl": (172, None),
    "ioprio_set": (251, 30),
    "kcmp": (312, 272),
    "kexec_file_load": (320, 294),
    "kexec_load": (246, 104),
    "keyctl": (250, 219),
    "kill": (62, 129),
    "lchown": (94, None),
    "listen": (50, 201),
    "listmount": (458, 458),
    "lookup_dcookie": (212, 18),
    "lremovexattr": (198, 15),
    "lsetxattr": (189, 6),
    "migrate_pages": (256, 238),
    "mknod": (133, None),
    "mknodat": (259, 33),
    "modify_ldt": (154, None),
    "mount": (165, 40),
    "mount_setattr": (442, 442),
    "move_mount": (429, 429),
    "move_pages": (279, 239),
    "mq_open": (240, 180),
    "mq_unlink": (241, 181),
    "msgctl": (71, 187),
    "msgget": (68, 186),
    "msgrcv": (70, 188),
    "msgsnd": (69, 189),
    "name_to_handle_at": (303, 264),
    "open_by_handle_at": (304, 265),
    "open_tree": (428, 428),
    "perf_event_open": (298, 241),
    "pidfd_getfd": (438, 438),
    "pivot_root": (155, 41),
    "prlimit64": (302, 261),
    "process_madvise": (440, 440),
    "process_mrelease": (448, 448),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "ptrace": (101, 117),
    "quotactl": (179, 60),
    "quotactl_fd": (443, 443),
    "reboot": (169, 142),
    "removexattr": (197, 14),
    "removexattrat": (466, 466),
    "request_key": (249, 218),
    "semctl": (66, 191),
    "semget": (64, 190),
    "semop": (65, 193),
    "semtimedop": (220, 192),
    "setdomainname": (171, 162),
    "sethostname": (170, 161),
    "setns": (308, 268),
    "setpriority": (141, 140),
    "settimeofday": (164, 170),
    "setxattr": (188, 5),
    "setxattrat": (463, 463),
    "shmat": (30, 196),
    "shmctl": (31, 195),
    "shmget": (29, 194),
    "socket": (41, 198),
    "socketpair": (53, 199),
    "statmount": (457, 457),
    "swapoff": (168, 225),
    "swapon": (167, 224),
    "syslog": (103, 116),
    "umount2": (166, 39),
    "unshare": (272, 97),
    "userfaultfd": (323, 282),
    "vhangup": (153, 58),
}

Instruction = tuple[int, int, int, int]
"""Operation, instructions skipped if a test is true, instructions skipped if it is false, operand."""


def restrict_calls(
    library: ctypes.CDLL, machine: str, *, network: bool, unix: Sequence[int] = ()
) -> bool:
    """Install the filter of `program` in this process and its future children, permanently.

    `PR_SET_NO_NEW_PRIVS` must be set. Returns whether the kernel enforces the filter.
    """
    if machine not in ARCHITECTURES:
        return False
    lines = program(machine, network=network, unix=unix)
    code = b"".join(struct.pack("<HBBI", *line) for line in lines)
    instructions = ctypes.create_string_buffer(code, len(code))
    header = struct.pack("@HP", len(lines), ctypes.addressof(instructions))
    return library.prctl(_SET_SECCOMP, _FILTER_MODE, header, 0, 0) == 0


def program(machine: str, *, network: bool, unix: Sequence[int] = ()) -> list[Instruction]:
    """Return the filter for one machine.

    With `network`, IPv4, IPv6 and netlink sockets may be opened and connected. `unix` lists the types
    of Unix sockets that may be opened; connected pairs always may, except of datagram sockets. The
    filter reads a `struct seccomp_data`: the call's number at offset 0, the architecture at 4, the
    arguments from 16 on.
    """
    numbers = {name: each[list(ARCHITECTURES).index(machine)] for name, each in NUMBERS.items()}

    def when_called(name: str, *body: Instruction) -> list[Instruction]:
        number = numbers[name]
        return [] if number is None else [(_EQUAL, 0, len(body), number), *body]

    def refuse_calls(names: Iterable[str], error: int) -> list[Instruction]:
        return [line for name in names for line in when_called(name, _return_error(error))]

    refused = [*(() if network else (*_CONNECTING, *_ANSWERING))]
    refused += [] if network or unix else _LISTENING
    return [
        (_LOAD, 0, 0, 4),
        (_EQUAL, 1, 0, ARCHITECTURES[machine]),
        _return_error(errno.EPERM),
        (_LOAD, 0, 0, 0),
        (_AT_LEAST, 0, 1, _X32_BIT),
        _return_error(errno.EPERM),
        (_GREATER, 0, 1, NEWEST),
        _return_error(errno.ENOSYS),
        *when_called("socket", *_sockets(_AF_NETWORK if network else (), unix)),
        # A datagram socket could send to other addresses too, even if it is one of a pair.
        *when_called("socketpair", *_sockets((), (STREAM, SEQUENCED))),
        *refuse_calls(refused, errno.EACCES),
        # `clone3` takes its flags from memory, which no filter can read; libraries fall back to `clone`.
        *refuse_calls(["clone3"], errno.ENOSYS),
        *when_called("clone", _argument(0), *_refuse_values(_ANY_BIT, [_NEW_NAMESPACES])),
        *refuse_calls([*_PROCESS_CALLS, *_KERNEL_CALLS, *_FILE_CALLS], errno.EPERM),
        *refuse_calls(_NO_OPERATION, 0),
        *when_called("kill", _argument(0), *_refuse_values(_EQUAL, [_EVERYBODY])),
        *when_called("ioctl", _argument(1), *_refuse_values(_EQUAL, _TERMINAL_REQUESTS)),
        # The process may change only its own limits and priorities.
        *when_called("prlimit64", _argument(0), *_only(0)),
        *when_called("ioprio_set", _argument(1), *_only(0)),
        *when_called("setpriority", _argument(0), *_both_zero(1)),
        (_RETURN, 0, 0, _ALLOW),
    ]


def _sockets(families: Sequence[int], unix: Sequence[int]) -> list[Instruction]:
    """Return the instructions for a call whose first arguments are a socket's family and type: only
    these families, and Unix sockets of these types, are allowed."""
    types = [line for each in unix for line in ((_EQUAL, 0, 1, each), (_RETURN, 0, 0, _ALLOW))]
    local = [_argument(1), (_AND, 0, 0, _TYPE_MASK), *types, _return_error(errno.EACCES)]
    return [
        _argument(0),
        *(line for each in families for line in ((_EQUAL, 0, 1, each), (_RETURN, 0, 0, _ALLOW))),
        (_EQUAL, 0, len(local), _AF_UNIX),
        *local,
        _return_error(errno.EACCES),
    ]


def _refuse_values(test: int, operands: Iterable[int]) -> list[Instruction]:
    refusals = [
        line for each in operands for line in ((test, 0, 1, each), _return_error(errno.EPERM))
    ]
    return [*refusals, (_RETURN, 0, 0, _ALLOW)]


def _only(value: int) -> list[Instruction]:
    return [(_EQUAL, 0, 1, value), (_RETURN, 0, 0, _ALLOW), _return_error(errno.EPERM)]


def _both_zero(other: int) -> list[Instruction]:
    return [(_EQUAL, 1, 0, 0), _return_error(errno.EPERM), _argument(other), *_only(0)]


def _argument(index: int) -> Instruction:
    """Return the instruction that loads an argument's lower half: all tested arguments have 32 bits."""
    return (_LOAD, 0, 0, 16 + 8 * index)


def _return_error(error: int) -> Instruction:
    return (_RETURN, 0, 0, _ERRNO | error)
