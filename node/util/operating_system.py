"""Operating system calls that not every system has, and what happens on systems without them.

Every other module of `node/` calls them through this one (tests/test_operating_system.py checks), so a
port to another system edits this file only. A function does one of three things where its call is
missing: it does nothing, it returns that the answer is unknown, or it raises `UserError`
(`UNSUPPORTED`); each docstring says which. The trainer's sandbox exists on Linux only and is entered
through `node.training.sandbox`.

Files under /proc, /sys and /dev are missing elsewhere; their readers treat a missing file as an unknown
value.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Literal

from ..errors import ExitCode, UserError

try:
    import fcntl
    import pwd
    import resource
    import termios
except ImportError:  # Windows
    fcntl = pwd = resource = termios = None

IS_LINUX = sys.platform == "linux"
IS_MACOS = sys.platform == "darwin"

ENDING_SIGNALS: tuple[signal.Signals, ...] = tuple(
    getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)
)
"""The signals that ask a program to end: Ctrl-C, `kill`, and a closed terminal, which Windows reports in
another way."""

ELSEWHERE = "run distro-node on Linux or macOS; on Windows, in the Windows Subsystem for Linux"
"""The remedy on a system that lacks a call."""

Limit = Literal["NOFILE", "CPU", "DATA"]
"""A limit of the process: open files, seconds of CPU time, bytes of its own memory."""

_AUTOGROUP = "/proc/self/autogroup"
_M_MMAP_THRESHOLD = -3  # from glibc's malloc.h
_PR_SET_PDEATHSIG = 1  # from the kernel's include/uapi/linux/prctl.h
# The clock by which Linux enforces RLIMIT_CPU: the process's time in ticks (CPUCLOCK_PROF of this
# process, numbered as in linux/posix-timers.h). It deviates from the exact time that Python reports
# by some percent on a busy machine: minutes in a process that has computed for an hour.
_LIMITS_CLOCK = (~0 << 3) | 0


def missing_calls() -> list[str]:
    """Return what a node needs and this system does not have, for people; empty on Linux and macOS."""
    needs = {
        "locks of files": fcntl is not None,
        "sockets between programs": hasattr(socket, "AF_UNIX"),
        "pipes to other programs": can_pass_descriptors(),
    }
    return [what for what, is_there in needs.items() if not is_there]


def unsupported(what: str) -> UserError:
    """Return the error to raise if this system lacks what a command needs."""
    return UserError(
        ExitCode.UNSUPPORTED,
        f"this system lacks what distro-node needs: {what}",
        ELSEWHERE,
    )


# Users.


def user_id() -> int | None:
    """Return the number of the user with whose rights this process runs; None without such numbers."""
    return os.geteuid() if hasattr(os, "geteuid") else None


def user_name(number: int) -> str:
    """Return a user's name; without a name, or without a list of users, the number."""
    try:
        return str(number) if pwd is None else pwd.getpwuid(number).pw_name
    except KeyError:
        return str(number)


# Files.


def lock_file(descriptor: int) -> bool:
    """Lock an open file for this process until the descriptor is closed; return False if another process
    holds the lock. Raises `UserError` where files cannot be locked this way, because two programs in one
    directory would damage it."""
    if fcntl is None:
        raise unsupported("locks of files")
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def read_at(descriptor: int, count: int, offset: int) -> bytes:
    """Read `count` bytes at `offset`. Without such a call the file's position moves, so threads must not
    share the descriptor there."""
    if hasattr(os, "pread"):
        return os.pread(descriptor, count, offset)
    os.lseek(descriptor, offset, os.SEEK_SET)
    return os.read(descriptor, count)


def write_at(descriptor: int, data: bytes, offset: int) -> int:
    """Write at `offset` and return how many bytes were written; else as `read_at`."""
    if hasattr(os, "pwrite"):
        return os.pwrite(descriptor, data, offset)
    os.lseek(descriptor, offset, os.SEEK_SET)
    return os.write(descriptor, data)


def open_without_waiting(path: Path) -> int:
    """Open a file for reading and return its descriptor; a named pipe does not wait for a writer. On
    Windows the file is opened in binary mode, and there are no named pipes among files."""
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    return os.open(path, flags)


def sync_path(path: Path) -> None:
    """Wait until a file's content, or a directory's entries, are on the disk. Windows cannot open a
    directory, and needs write access to wait for a file."""
    if os.name == "nt" and path.is_dir():
        return
    descriptor = os.open(path, os.O_RDWR if os.name == "nt" else os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


# Sockets.


def unix_socket() -> socket.socket:
    """Return a new stream socket between programs of this computer. Raises `UserError` where Python has
    none."""
    if not hasattr(socket, "AF_UNIX"):
        raise unsupported("sockets between programs")
    return socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)


SHARED_PORT_OPTIONS: tuple[int, ...] = tuple(
    getattr(socket, name) for name in ("SO_REUSEADDR", "SO_REUSEPORT") if hasattr(socket, name)
)
"""Options by which several sockets of this program share a port; Windows needs the first alone."""


def reuse_address(sock: Any) -> None:
    """Let a socket listen at a port where connections of an earlier run have not expired. Does nothing
    on Windows, which always allows that, and where this option lets two programs listen at one port."""
    if os.name != "nt":
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)


def set_socket_option(
    sock: Any, name: Literal["TCP_MAXSEG", "TCP_NOTSENT_LOWAT", "SO_RCVLOWAT"], value: int
) -> bool:
    """Set an option by which a connection gets faster; return False, and change nothing, if the system
    does not have the option or refuses the value. Raises what `sock` raises when it is closed."""
    level = socket.SOL_SOCKET if name.startswith("SO_") else socket.IPPROTO_TCP
    option = getattr(socket, name, None)
    if option is None:
        return False
    try:
        sock.setsockopt(level, option, value)
    except OSError:
        return False
    return True


def unread_bytes(sock: Any) -> int | None:
    """Return how many bytes have arrived and not been read; None if the system does not report it."""
    if fcntl is None or termios is None:
        return None
    count = array("i", [0])
    try:
        fcntl.ioctl(sock, termios.FIONREAD, count)
    except (OSError, ValueError):
        return None
    return count[0]


def tcp_info(sock: Any, count: int) -> bytes | None:
    """Return the first `count` bytes of Linux's `struct tcp_info` of a connection; None elsewhere, or if
    the kernel's structure is shorter, or the connection has ended. Raises what `sock` raises when it is
    closed."""
    if not IS_LINUX:
        return None
    try:
        info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, count)
    except OSError:
        return None
    return info if len(info) == count else None


# Processes.

OWN_GROUP: Mapping[str, Any] = (
    {"creationflags": getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0)}
    if os.name == "nt"
    else {"start_new_session": True}
)
"""Options of `Popen` that start a process in a group of its own, so that a Ctrl-C in the terminal does
not reach it and `kill_group` ends what it has started."""


def kill_group(pid: int) -> None:
    """Kill the group of a process that was started with `OWN_GROUP`; on Windows the process alone.
    Raises `ProcessLookupError` if there is none, as `os.kill`."""
    if hasattr(os, "killpg"):
        os.killpg(pid, signal.SIGKILL)
    else:
        os.kill(pid, signal.SIGTERM)


def can_pass_descriptors() -> bool:
    """Return whether a child process can be given open pipes by number. False on Windows."""
    return os.name != "nt"


def pass_descriptors(*descriptors: int) -> Mapping[str, Any]:
    """Return the option of `Popen` that keeps these descriptors open in the child. Raises `UserError`
    where that is not possible."""
    if not can_pass_descriptors():
        raise unsupported("pipes to other programs")
    return {"pass_fds": descriptors}


def lower_priority(niceness: int) -> None:
    """Add to the niceness of this process; nothing where processes have none."""
    if hasattr(os, "nice"):
        os.nice(niceness)


def session_priority(niceness: int) -> Callable[[], None]:
    """Return a function that gives this niceness to the session that this process leads.

    Linux compares the niceness of the processes of one session, and shares the processor equally
    between sessions (autogroups, `man 7 sched`), so a process that leads one yields to no other by its
    own niceness. The kernel's file is opened at once, since a sandbox may forbid it later. The function
    does nothing where the kernel has no autogroups; against processes of other control groups nothing
    is lowered.
    """
    if not IS_LINUX or os.getsid(0) != os.getpid():
        return lambda: None
    try:
        file = os.open(_AUTOGROUP, os.O_WRONLY | os.O_CLOEXEC)
    except OSError:
        return lambda: None

    def lower() -> None:
        # Without privileges the kernel refuses a second change within a tenth of a second.
        with contextlib.suppress(OSError):
            os.write(file, str(niceness).encode())

    return lower


def usable_cores() -> int:
    """Return how many cores this process may use; of the whole machine if the system does not restrict
    processes to some."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def fork() -> int:
    """Fork this process, as `os.fork`. Raises `UserError` where processes cannot be forked."""
    if not hasattr(os, "fork"):
        raise unsupported("forked processes")
    return os.fork()


def end_with_parent() -> bool:
    """Let the kernel kill this process when its parent ends; return False if the parent has ended
    already. Nothing but Linux offers it: elsewhere True."""
    if not IS_LINUX:
        return True
    parent = os.getppid()
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    return os.getppid() == parent


def map_large_blocks(size: int) -> None:
    """Let the C library map each block of memory of `size` bytes or more by itself, so that it goes back
    to the system as soon as it is freed. Does nothing where the library has no such call (all but
    glibc)."""
    set_option = getattr(ctypes.CDLL(None), "mallopt", None) if IS_LINUX else None
    if set_option is not None:
        set_option(_M_MMAP_THRESHOLD, size)


def wait_for_signal() -> None:
    """Block until a signal has been handled; where that call is missing, for ever."""
    if hasattr(signal, "pause"):
        signal.pause()
    else:
        threading.Event().wait()


class SystemLibrary:
    """A library of the system, such as a driver's, whose functions return 0 when they succeed."""

    def __init__(self, name: str) -> None:
        """Load the library. Raises `OSError` if the system has none of this name."""
        self._library = ctypes.CDLL(name)

    def integer(self, function: str, *arguments: int) -> int:
        """Call a function that writes an integer to where its first argument points; `arguments` are the
        others. Raises `OSError` if it fails, or if there is no such function."""
        value = ctypes.c_int()
        self.call(function, ctypes.byref(value), *arguments)
        return value.value

    def call(self, function: str, *arguments: Any) -> None:
        """Call a function. Raises `OSError` if it fails, or if there is no such function."""
        try:
            failure = getattr(self._library, function)(*arguments)
        except AttributeError:
            raise OSError(f"the library lacks {function}") from None
        if failure:
            raise OSError(f"{function} failed with {failure}")


def by_signal(texts: Mapping[str, str]) -> dict[int, str]:
    """Return texts by signal number instead of name, without the signals that this system lacks."""
    return {
        int(getattr(signal, name)): text for name, text in texts.items() if hasattr(signal, name)
    }


@contextlib.contextmanager
def signal_handlers(handlers: Mapping[signal.Signals, Any]) -> Iterator[None]:
    """Set handlers for the block, then restore those before. Any system has these calls; not all of them
    deliver the signals."""
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def timer(
    handler: Callable[..., Any], seconds: float, again: float
) -> AbstractContextManager[None]:
    """Call `handler` in the main thread if the block takes longer than `seconds`, and again every
    `again` seconds (0: once); what it raises interrupts the block's Python code. Does nothing in another
    thread, or where the system has no such timer."""
    is_main = threading.current_thread() is threading.main_thread()
    if is_main and hasattr(signal, "SIGALRM"):
        return _alarm(handler, seconds, again)
    return contextlib.nullcontext()


@contextlib.contextmanager
def _alarm(handler: Callable[..., Any], seconds: float, again: float) -> Iterator[None]:
    with signal_handlers({signal.SIGALRM: handler}):
        signal.setitimer(signal.ITIMER_REAL, seconds, again)
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)


# Limits.


def process_limit(which: Limit) -> tuple[int | None, int | None] | None:
    """Return the soft and the hard limit in force, each None for no limit; None if the system has no
    such limits."""
    if resource is None:
        return None
    soft, hard = resource.getrlimit(_kind(which))
    unlimited = resource.RLIM_INFINITY
    return (None if soft == unlimited else soft), (None if hard == unlimited else hard)


def set_process_limit(which: Limit, soft: int | None) -> None:
    """Set the soft limit and keep the hard one; does nothing if the system has no such limits. Raises
    `OSError` or `ValueError` if the system refuses the value."""
    if resource is None:
        return
    _, hard = resource.getrlimit(_kind(which))
    resource.setrlimit(_kind(which), (resource.RLIM_INFINITY if soft is None else soft, hard))


def cpu_seconds() -> float:
    """Return the process's CPU time, on Linux as the kernel counts it for the limit `CPU`."""
    if IS_LINUX:
        with contextlib.suppress(OSError):
            return time.clock_gettime(_LIMITS_CLOCK)
    return time.process_time()


def data_bytes() -> int | None:
    """Return the process's own memory in bytes, as Linux counts it for the limit `DATA`; None if the
    system does not report it."""
    try:
        lines: Sequence[str] = Path("/proc/self/status").read_text("ascii").splitlines()
    except OSError:
        return None
    sizes = [line.split()[1] for line in lines if line.startswith("VmData:")]
    return 1024 * int(sizes[0]) if sizes else None


def _kind(which: Limit) -> int:
    return getattr(resource, f"RLIMIT_{which}")
