"""Calls that not every operating system has are made by one module, and commands start without them."""

from __future__ import annotations

import ast
import functools
import platform
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from distro_node.node.errors import ExitCode, UserError
from distro_node.node.util import operating_system

ROOT = Path(__file__).parents[1]
AUTOGROUP = Path("/proc/self/autogroup")
MODULE = "node/util/operating_system.py"
# Landlock and seccomp: Linux alone, entered by `sandbox.confine`, which does nothing elsewhere.
SANDBOX = {f"node/training/{name}.py" for name in ("sandbox", "landlock", "system_calls")}
# Readers of files that other systems lack; each returns that the value is unknown.
FILE_READERS = {
    "node/doctor/computer.py": "NVIDIA's device node",
    "node/energy/user_activity.py": "terminals",
    "node/network/interfaces.py": "bridges",
    "node/service/manager.py": "the folder of systemd's units",
    "node/training/graphics_cards.py": "drivers of GPUs",
    "node/training/main_memory.py": "limits of a control group",
}
# What `os` has on every system that Python 3.11 supports; `set_blocking`: on Windows since 3.12.
EVERYWHERE = {
    *("F_OK", "R_OK", "W_OK", "X_OK", "O_RDONLY", "O_WRONLY", "O_RDWR", "O_CREAT", "O_EXCL"),
    *(
        "PathLike",
        "DirEntry",
        "SEEK_SET",
        "SEEK_END",
        "devnull",
        "environ",
        "linesep",
        "sep",
        "path",
    ),
    *("_exit", "access", "chmod", "close", "cpu_count", "dup2", "execv", "fdopen", "fsdecode"),
    *("fsencode", "fspath", "fstat", "fsync", "ftruncate", "getcwd", "getpid", "getppid", "link"),
    *("listdir", "lseek", "lstat", "makedirs", "mkdir", "open", "pipe", "read", "remove", "rename"),
    *("replace", "rmdir", "scandir", "set_blocking", "set_inheritable", "stat", "stat_result"),
    *("strerror", "times", "truncate", "unlink", "urandom", "utime", "waitpid", "walk", "write"),
    *("waitstatus_to_exitcode", "get_terminal_size"),
}
MODULES = {
    *("ctypes", "curses", "fcntl", "grp", "msvcrt", "posix", "pty", "pwd", "readline", "resource"),
    *("spwd", "syslog", "termios", "tty", "winreg"),
}
SIGNALS = {"SIGINT", "SIGTERM", "SIG_IGN", "SIG_DFL", "Signals", "signal", "getsignal", "strsignal"}
POSIX_OPTIONS = {"pass_fds", "preexec_fn", "process_group", "start_new_session", "umask", "user"}


@functools.cache
def _modules() -> list[tuple[str, ast.Module]]:
    names = (path.relative_to(ROOT).as_posix() for path in sorted((ROOT / "node").rglob("*.py")))
    return [
        (name, ast.parse((ROOT / name).read_text("utf-8")))
        for name in names
        if name != MODULE and name not in SANDBOX
    ]


def _found(tree: ast.AST) -> Iterator[str]:
    """Yield each use of something that not every system has."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (each.name for each in node.names if each.name in MODULES)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            if node.module in MODULES:
                yield node.module
            if node.module in ("os", "signal", "socket", "sys", "platform"):
                for each in node.names:
                    yield from _of(node.module, each.name)
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            yield from _of(node.value.id, node.attr)
        elif isinstance(node, ast.Call):
            yield from (each.arg for each in node.keywords if each.arg in POSIX_OPTIONS)
            match node:
                case ast.Call(
                    func=ast.Name(id="getattr" | "hasattr"),
                    args=[ast.Name(id=module), ast.Constant(value=str(name)), *_],
                ):
                    yield from _of(module, name)


def _of(module: str, name: str) -> Iterator[str]:
    is_special = {
        "os": name not in EVERYWHERE,
        "sys": name == "platform",
        "platform": name == "system",
        "signal": name not in SIGNALS,
        "socket": name in ("AF_UNIX", "AF_NETLINK", "AF_PACKET", "fromfd")
        or (name.startswith(("SO_", "SCM_", "TCP_", "IP_")) and name != "TCP_NODELAY"),
    }
    if is_special.get(module, False):
        yield f"{module}.{name}"


def test_one_module_makes_the_calls_of_single_systems() -> None:
    assert {name: found for name, tree in _modules() if (found := sorted(_found(tree)))} == {}


@pytest.mark.parametrize(
    "line",
    [
        "import fcntl",
        "from resource import getrlimit",
        "from os import fork",
        "os.geteuid()",
        "getattr(os, 'nice')(1)",
        "socket.socket(socket.AF_UNIX)",
        "signal.SIGHUP",
        "sys.platform == 'linux'",
        "subprocess.Popen(['x'], start_new_session=True)",
    ],
)
def test_the_search_finds_such_calls(line: str) -> None:
    assert len(list(_found(ast.parse(line)))) == 1


def test_files_of_one_system_are_read_by_known_modules() -> None:
    found = {
        name
        for name, tree in _modules()
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant)
        and isinstance(node.value, str)
        and node.value.startswith(("/proc/", "/sys/", "/dev/", "/etc/"))
    }
    found |= {name for name, tree in _modules() if "'/dev'" in ast.dump(tree)}
    assert found == set(FILE_READERS)


def test_the_sandbox_has_one_door() -> None:
    importers = {
        name
        for name, tree in _modules()
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.level
        for each in (node.module or "", *(alias.name for alias in node.names))
        if each.rpartition(".")[2] in ("landlock", "system_calls")
    }
    assert importers == set()


# Takes away, from a running interpreter, what Windows and others lack. Libraries are loaded before,
# because each has its own branch for Windows, chosen when it is loaded.
_ELSEWHERE = """
import importlib, multiprocessing.connection, os, pkgutil, shutil, signal, socket, subprocess, sys
import tempfile
import httpcore, libp2p, numpy, platformdirs.unix, prometheus_client, psutil, rich.live, trio
import sysconfig, typer.rich_utils
import distro_node.node.errors

sysconfig.get_config_vars()
for name in ("fcntl", "grp", "posix", "pwd", "resource", "termios"):
    sys.modules[name] = None
sys.platform = "elsewhere"
for module, names in {
    os: "fork geteuid getuid getegid killpg nice pread pwrite sched_getaffinity setsid O_CLOEXEC",
    signal: "SIGHUP SIGKILL SIGXCPU SIGALRM pause setitimer ITIMER_REAL",
    socket: "AF_UNIX TCP_INFO TCP_NOTSENT_LOWAT TCP_MAXSEG SO_REUSEPORT SO_RCVLOWAT",
}.items():
    for name in names.split():
        delattr(module, name)
"""
_LOAD_ALL = """
import distro_node.node as node
# The trainer's own modules load torch.
without = ("trainer", "__main__", "evaluation_worker")
for each in pkgutil.walk_packages(node.__path__, "distro_node.node."):
    if not any(part in without for part in each.name.split(".")):
        importlib.import_module(each.name)
        print(each.name)
assert "torch" not in sys.modules
"""
_HELP = """
from distro_node.node.cli import main
for words in ([], ["doctor"], ["service", "install"]):
    try:
        main([*words, "--help"])
    except SystemExit as ended:
        assert not ended.code
"""
_COMMAND = """
sys.argv[0] = "distro-node"
from distro_node.node.__main__ import main
main()
"""


def _elsewhere(program: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", _ELSEWHERE + program, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_all_modules_of_the_node_process_load_elsewhere() -> None:
    done = _elsewhere(_LOAD_ALL)
    assert done.returncode == 0, done.stderr
    loaded = set(done.stdout.split())
    expected = {name.removesuffix(".py").replace("/", ".") for name, _ in _modules()}
    missing = {
        name
        for name in expected
        if f"distro_node.{name.removesuffix('.__init__')}" not in loaded
        and not {"trainer", "__main__", "evaluation_worker"} & set(name.split("."))
    }
    assert missing == {"node.__init__"}


def test_commands_show_their_help_elsewhere() -> None:
    done = _elsewhere(_HELP)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.count("Usage") == 3


def test_a_node_is_refused_elsewhere_in_one_line(tmp_path: Path) -> None:
    """Without locks two nodes could work in one directory."""
    data = tmp_path / "data"
    done = _elsewhere(_COMMAND, "bootstrap", "--data-dir", data, "--metrics-addr", "off")
    assert done.returncode == ExitCode.UNSUPPORTED
    assert done.stderr.splitlines() == [
        "error: this system lacks what distro-node needs: locks of files",
        "  run distro-node on Linux or macOS; on Windows, in the Windows Subsystem for Linux",
    ]
    asked = _elsewhere(_COMMAND, "status", "--data-dir", data)
    assert asked.returncode == ExitCode.UNSUPPORTED
    assert "sockets between programs" in asked.stderr


@pytest.mark.slow
def test_doctor_lists_what_is_missing_elsewhere(tmp_path: Path) -> None:
    done = _elsewhere(_COMMAND, "doctor", "--json", "--data-dir", tmp_path / "data")
    assert "locks of files, sockets between programs" in done.stdout, done.stderr
    assert "Traceback" not in done.stderr


def test_nothing_is_missing_here() -> None:
    assert operating_system.missing_calls() == []


def test_signals_that_the_system_lacks_have_no_text(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = {"SIGKILL": "killed", "SIGTERM": "ended"}
    assert operating_system.by_signal(texts) == {signal.SIGKILL: "killed", signal.SIGTERM: "ended"}
    monkeypatch.delattr(signal, "SIGKILL")
    assert operating_system.by_signal(texts) == {signal.SIGTERM: "ended"}


@pytest.mark.skipif(not AUTOGROUP.exists(), reason="the kernel has no autogroups")
@pytest.mark.parametrize(("own_session", "niceness"), [(True, "19"), (False, None)])
def test_a_session_that_this_process_leads_gets_its_niceness(
    own_session: bool, niceness: str | None
) -> None:
    module = "distro_node.node.util.operating_system"
    source = f"from {module} import session_priority as lower; lower(19)()"
    state = f"print(open('{AUTOGROUP}').read())"
    # Empty for what belongs to no session's group, as the first process of a container does.
    before = AUTOGROUP.read_text().split()[-1:]
    done = subprocess.run(
        [sys.executable, "-c", f"{source}; {state}"],
        capture_output=True,
        text=True,
        check=True,
        start_new_session=own_session,
    )
    assert done.stdout.split()[-1:] == ([niceness] if niceness else before)


def test_a_file_is_locked_once(tmp_path: Path) -> None:
    with (tmp_path / "lock").open("w") as first, (tmp_path / "lock").open("w") as second:
        assert operating_system.lock_file(first.fileno())
        assert not operating_system.lock_file(second.fileno())


@pytest.mark.parametrize("without", [(), ("pread", "pwrite")])
def test_bytes_are_read_and_written_at_their_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, without: tuple[str, ...]
) -> None:
    for name in without:
        monkeypatch.delattr(f"os.{name}")
    with (tmp_path / "file").open("w+b") as file:
        assert operating_system.write_at(file.fileno(), b"0123456789", 0) == 10
        assert operating_system.write_at(file.fileno(), b"xy", 3) == 2
        assert operating_system.read_at(file.fileno(), 4, 2) == b"2xy5"


def test_an_option_that_the_system_lacks_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as sock:
        assert operating_system.set_socket_option(sock, "SO_RCVLOWAT", 7)
        assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT) == 7
        monkeypatch.delattr(socket, "SO_RCVLOWAT")
        assert not operating_system.set_socket_option(sock, "SO_RCVLOWAT", 9)
    monkeypatch.delattr(socket, "AF_UNIX")
    with pytest.raises(UserError) as refused:
        operating_system.unix_socket()
    assert refused.value.code == ExitCode.UNSUPPORTED


# Frees blocks of 4 MB after one of 16, whose size glibc would make its threshold, and prints how many
# bytes stay with the process.
FREED = """
from distro_node.node.util.operating_system import data_bytes, map_large_blocks
map_large_blocks(1 << 20)
large = bytearray(16 << 20)
del large
before = data_bytes()
blocks = [bytearray(4 << 20) for _ in range(3)]
del blocks
print(data_bytes() - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="glibc's malloc")
def test_large_blocks_that_are_freed_go_back_to_the_system() -> None:
    made = subprocess.run([sys.executable, "-c", FREED], capture_output=True, check=True, text=True)
    assert int(made.stdout) < 1 << 20
