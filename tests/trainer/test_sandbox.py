"""What a compromised trainer process can still reach."""

from __future__ import annotations

import errno
import json
import os
import platform
import re
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from distro_node.node.control.command_socket import ask
from distro_node.node.training import landlock
from distro_node.node.training.sandbox import RESTRICTIONS, sandbox_text
from distro_node.node.training.system_calls import (
    ARCHITECTURES,
    DATAGRAM,
    NEWEST,
    NUMBERS,
    SEQUENCED,
    STREAM,
    program,
)

PROGRAM = """
import ctypes, fcntl, json, mmap, os, resource, shutil, signal, socket, subprocess, sys
from pathlib import Path
from distro_node.node.control.command_socket import ask
from distro_node.node.errors import UserError
from distro_node.node.training.sandbox import confine

home, blobs, shared, parent = Path(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3]), os.getppid()
seen = Path("/proc/self/status").read_text()
memory = b"of this process" * 10
pipe = os.pipe()
enforced = confine([], [blobs])
can, libc = {}, ctypes.CDLL(None, use_errno=True)

def tries(name, act):
    try:
        act()
        can[name] = True
    except (OSError, subprocess.CalledProcessError, UserError):
        can[name] = False

def calls(name, *arguments):
    ctypes.set_errno(0)
    if libc.syscall(*[ctypes.c_long(each) for each in arguments]) < 0:
        raise OSError(ctypes.get_errno(), name)

tries("write a blob", lambda: (blobs / "new").write_bytes(b"x"))
tries("replace a blob", lambda: os.replace(blobs / "new", blobs / "newer"))
tries("read a blob", lambda: (blobs / "newer").read_bytes())
tries("load a library", lambda: __import__("decimal").Decimal(1))
tries("run a program", lambda: subprocess.run(["true"], check=True))
compiler = ["g++", "-shared", "-fPIC", "-x", "c++", "-", "-o", blobs / "made.so"]
source = b'extern "C" int seven() { return 7; }'
inside = os.environ | {"TMPDIR": str(blobs)}
tries("compile", lambda: subprocess.run(compiler, input=source, env=inside, check=True))
tries("load what it compiled", lambda: ctypes.CDLL(blobs / "made.so").seven())
tries("a pair of sockets", socket.socketpair)
tries("write to nowhere", lambda: open("/dev/null", "w").write("x"))
tries("read randomness", lambda: open("/dev/urandom", "rb").read(8))
tries("limit itself", lambda: resource.setrlimit(resource.RLIMIT_CORE, (0, 0)))
tries("map memory", lambda: mmap.mmap(-1, 4096))
tries("name a thread", lambda: Path("/proc/self/comm").write_text("x"))
tries("fork", lambda: os.waitpid(os.fork() or os._exit(0), 0))
tries("memory without a name", lambda: os.memfd_create("x"))
tries("close a pipe", lambda: [os.close(each) for each in pipe])

tries("read the key", lambda: (home / "identity.key").read_bytes())
tries("list the home", lambda: os.listdir(home))
tries("write to the home", lambda: (home / "x").write_bytes(b"x"))
tries("cut the key", lambda: os.truncate(home / "identity.key", 0))
tries("remove the key", lambda: os.remove(home / "identity.key"))
tries("link it away", lambda: os.link(home / "identity.key", blobs / "link"))
child = [sys.executable, "-c", f"open({str(home / 'identity.key')!r})"]
tries("read it in a child", lambda: subprocess.run(child, check=True, capture_output=True))
tries("leave a link", lambda: os.symlink(home / "identity.key", blobs / "symlink"))
tries("leave a pipe", lambda: os.mkfifo(blobs / "pipe"))
tries("read memory shared by name", lambda: shared.read_bytes())
tries("write memory shared by name", lambda: shared.write_bytes(b"x"))
tries("list memory shared by name", lambda: os.listdir(shared.parent))
tries("list /run", lambda: os.listdir("/run"))
tries("list /dev", lambda: os.listdir("/dev"))
tries("list terminals", lambda: os.listdir("/dev/pts"))
tries("open the terminal", lambda: os.open("/dev/ptmx", os.O_RDWR | os.O_NOCTTY))
tries("read passwords", lambda: open("/etc/shadow").read())
tries("change the kernel", lambda: os.open("/proc/sys/kernel/core_pattern", os.O_WRONLY))
tries("read others' command lines", lambda: Path(f"/proc/{parent}/cmdline").read_bytes())

tries("an IPv4 socket", lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
tries("an IPv6 socket", lambda: socket.socket(socket.AF_INET6))
tries("a raw socket", lambda: socket.socket(socket.AF_PACKET, socket.SOCK_RAW))
tries("a socket of the host", lambda: socket.socket(40, socket.SOCK_STREAM))
tries("command the node", lambda: ask(home / "daemon.sock", "status", 5))

def connects(address, kind=socket.SOCK_STREAM):
    with socket.socket(socket.AF_UNIX, kind) as client:
        client.connect(address)

tries("an agent's socket", lambda: connects(str(home / "daemon.sock")))
tries("an abstract socket", lambda: connects("\\0distro-node-test-" + str(parent)))
tries("a datagram to the log", lambda: connects(str(home / "log.sock"), socket.SOCK_DGRAM))
pair = lambda: socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)[0]
tries("a datagram from a pair", lambda: pair().sendto(b"x", str(home / "log.sock")))

os.chmod(home / "identity.key", 0o666)
tries("signal its parent", lambda: os.kill(parent, 0))
tries("limit its parent", lambda: resource.prlimit(parent, resource.RLIMIT_CORE, (0, 0)))
tries("slow its parent", lambda: os.setpriority(os.PRIO_PROCESS, parent, 19))
numbers = json.loads(sys.argv[4])
tries("watch the home", lambda: calls("inotify_init1", numbers["inotify_init1"], 0))
tries("trace its parent", lambda: calls("ptrace", numbers["ptrace"], 0x4206, parent, 0, 0))
tries("read its parent's memory", lambda: open(f"/proc/{parent}/mem", "rb").read(1))
buffer = ctypes.create_string_buffer(8)
vector = (ctypes.c_void_p * 2)(ctypes.addressof(buffer), 1)
tries("copy its own memory by number", lambda: calls("process_vm_readv", numbers["process_vm_readv"],
    os.getpid(), ctypes.addressof(vector), 1, ctypes.addressof(vector), 1, 0))
tries("take its parent's descriptor",
    lambda: calls("pidfd_getfd", numbers["pidfd_getfd"], os.pidfd_open(parent), 0, 0))
tries("memory by key", lambda: calls("shmget", numbers["shmget"], 0, 4096, 0o1600))
tries("new namespaces", lambda: calls("unshare", numbers["unshare"], 0x10000000))
tries("a child in new namespaces", lambda: calls("clone", numbers["clone"], 0x10000000 | 17, 0, 0, 0, 0))
tries("keys", lambda: calls("keyctl", numbers["keyctl"], 0, -3, 0))
tries("io_uring", lambda: calls("io_uring", 425, 1, 0))
tries("type into a terminal", lambda: fcntl.ioctl(0, 0x5412, b"x"))
print(json.dumps({"enforced": enforced, "can": can,
    "capabilities": [line for line in open("/proc/self/status") if line.startswith("Cap")],
    "in a child": subprocess.run([sys.executable, "-S", "-c", "import os; os.chroot('/')"],
        capture_output=True).returncode}))
"""

OWN = (
    *("write a blob", "replace a blob", "read a blob", "load a library", "run a program"),
    *("a pair of sockets", "write to nowhere", "read randomness", "limit itself", "map memory"),
    *("name a thread", "fork", "memory without a name", "close a pipe"),
    # What torch's compiler does.
    *(("compile", "load what it compiled") if shutil.which("g++") else ()),
)
DOORS = {
    "files": (
        *("read the key", "list the home", "write to the home", "cut the key", "remove the key"),
        *("link it away", "read it in a child", "leave a link", "leave a pipe"),
        *("read memory shared by name", "write memory shared by name"),
        *("list memory shared by name", "list /run", "list /dev", "list terminals"),
        *("open the terminal", "read passwords", "change the kernel"),
        *("read others' command lines", "read its parent's memory"),
    ),
    "network": ("an IPv4 socket", "an IPv6 socket", "a raw socket", "a socket of the host"),
    "sockets": (
        *("command the node", "an agent's socket", "an abstract socket", "a datagram to the log"),
        "a datagram from a pair",
    ),
    "processes": (
        *("limit its parent", "slow its parent", "trace its parent"),
        *("copy its own memory by number", "take its parent's descriptor", "memory by key"),
    ),
    "signals": ("signal its parent",),
    "kernel": (
        *("new namespaces", "a child in new namespaces", "keys", "io_uring"),
        *("type into a terminal", "watch the home", "open the key to all"),
    ),
}


@pytest.fixture(scope="module")
def servants(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Make a user's folder with a key, and with sockets that accept commands from any client."""
    home = tmp_path_factory.mktemp("home")
    (home / "identity.key").write_bytes(b"secret")
    (home / "identity.key").chmod(0o600)
    agent, log = socket.socket(socket.AF_UNIX), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    agent.bind(str(home / "daemon.sock"))
    log.bind(str(home / "log.sock"))
    abstract = socket.socket(socket.AF_UNIX)
    abstract.bind(f"\0distro-node-test-{os.getpid()}")
    for each in (agent, abstract):
        each.listen(8)
    threading.Thread(target=_obey, args=(agent,), daemon=True).start()
    # Unchanged: another process still reaches each of them.
    assert ask(home / "daemon.sock", "status", 5) == {}
    yield home
    for each in (agent, log, abstract):
        each.close()


def _obey(agent: socket.socket) -> None:
    while True:
        try:
            client = agent.accept()[0]
        except OSError:
            return
        with client:
            client.recv(100)
            client.sendall(b"{}\n")


@pytest.fixture(scope="module")
def result(servants: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Return what was enforced, and what the confined process was able to do."""
    machine = platform.machine()
    index = list(ARCHITECTURES).index(machine) if machine in ARCHITECTURES else 0
    numbers = json.dumps({name: each[index] for name, each in NUMBERS.items()})
    found = confined(PROGRAM, servants, tmp_path_factory.mktemp("blobs"), SHARED, numbers)
    # Reported as done, but not done.
    found["can"]["open the key to all"] = bool((servants / "identity.key").stat().st_mode & 0o077)
    return found


SHARED = Path("/dev/shm", f"distro-node-test-{os.getpid()}")


def confined(program: str, *arguments: object) -> dict[str, Any]:
    """Return what a program reports, beside another program's memory with a name."""
    if SHARED.parent.exists():
        SHARED.write_bytes(b"of another program")
    command = [sys.executable, "-P", "-c", program, *map(str, arguments)]
    try:
        run = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    finally:
        SHARED.unlink(missing_ok=True)
    assert run.returncode == 0, run.stderr
    return json.loads(run.stdout)


def test_what_it_needs_stays(result: dict[str, Any]) -> None:
    assert [name for name in OWN if not result["can"][name]] == []


@pytest.mark.parametrize("held", DOORS)
def test_no_door_is_open(result: dict[str, Any], held: str) -> None:
    if held not in result["enforced"]:
        pytest.skip("this system does not enforce it")
    assert [name for name in DOORS[held] if result["can"][name]] == []


def test_no_capability_is_left(result: dict[str, Any]) -> None:
    if "privileges" not in result["enforced"]:
        pytest.skip("this system does not enforce it")
    assert {line.split()[1] for line in result["capabilities"]} == {"0" * 16}
    assert result["in a child"] != 0


def test_this_kernel_enforces_what_it_can(result: dict[str, Any]) -> None:
    """On the usual test machines everything: a filter that fails to load is noticed."""
    if sys.platform != "linux" or platform.machine() not in ARCHITECTURES:
        assert result["enforced"] == []
        return
    assert {"network", "sockets", "processes", "kernel", "privileges"} <= set(result["enforced"])
    import ctypes

    known = landlock.version(ctypes.CDLL(None, use_errno=True))
    assert ("files" in result["enforced"]) == (known >= 1)
    assert ("signals" in result["enforced"]) == (known >= landlock.SCOPES_SIGNALS)


SEVERAL = """
import errno, json, os, socket, sys
from pathlib import Path
from distro_node.node.training import sandbox

# As on a machine with a GPU, whose ranks share memory by name.
sandbox._GPUS = ("null",)
shared = Path(sys.argv[1])
outside = socket.create_server(("127.0.0.1", 0))
enforced = sandbox.confine([], [], multi_process=True)
inside = socket.create_server(("127.0.0.1", 0))
child = os.fork()
if child == 0:
    socket.create_connection(inside.getsockname()).sendall(Path("/proc/self/comm").read_bytes()[:1])
    Path("/dev/shm/ranks").write_bytes(b"x")
    os._exit(0)
heard = len(inside.accept()[0].recv(1)) == 1
os.waitpid(child, 0)
def fails(act):
    try:
        act()
    except OSError as problem:
        return problem.errno
def connects(kind, address):
    socket.socket(socket.AF_UNIX, kind).connect(address)
print(json.dumps({"enforced": enforced, "heard": heard,
    "shared": Path("/dev/shm/ranks").exists(),
    "others' memory": shared.exists(),
    "reached": fails(lambda: socket.create_connection(outside.getsockname(), timeout=5)) is None,
    "raw": fails(lambda: socket.socket(socket.AF_PACKET, socket.SOCK_RAW)) is None,
    "command": fails(lambda: connects(socket.SOCK_STREAM, sys.argv[2])) is None,
    "unreachable": fails(lambda: socket.create_connection(("192.0.2.1", 9), timeout=5))
        == errno.ENETUNREACH}))
"""


def test_several_have_a_network_of_their_own(servants: Path) -> None:
    """They reach each other and nothing else, not even this machine's own services."""
    found = confined(SEVERAL, SHARED, servants / "daemon.sock")
    assert found["heard"]
    if "sockets" not in found["enforced"]:
        pytest.skip("this system has no filters of system calls")
    assert not found["raw"]
    assert not found["command"]
    if "network" not in found["enforced"]:
        pytest.skip("this system gives them no network of their own")
    assert not found["reached"]
    assert found["unreachable"]
    assert found["shared"]
    assert not found["others' memory"]


# An interpreter of the filter's instructions: both architectures are tested, wherever the tests run.


def verdict(
    machine: str, name: str | int, *arguments: int, audit: int | None = None, **rules: Any
) -> str | int:
    """Return the filter's answer to a call: "allowed", or an error; 0 is a success without effect."""
    number = NUMBERS[name][list(ARCHITECTURES).index(machine)] if isinstance(name, str) else name
    assert number is not None
    data = {0: number, 4: ARCHITECTURES[machine] if audit is None else audit}
    data |= {16 + 8 * index: value & 0xFFFFFFFF for index, value in enumerate(arguments)}
    lines, at, value = program(machine, **{"network": False, **rules}), 0, 0
    while True:
        operation, if_true, if_false, operand = lines[at]
        at += 1
        match operation:
            case 0x20:
                value = data.get(operand, 0)
            case 0x54:
                value &= operand
            case 0x06:
                return "allowed" if operand == 0x7FFF0000 else operand & 0xFFFF
            case _:
                holds = {
                    0x15: value == operand,
                    0x25: value > operand,
                    0x35: value >= operand,
                    0x45: value & operand != 0,
                }[operation]
                at += if_true if holds else if_false


@pytest.mark.parametrize("machine", ARCHITECTURES)
def test_calls_are_judged_by_their_arguments(machine: str) -> None:
    def of(name: str | int, *arguments: int, **rules: Any) -> str | int:
        return verdict(machine, name, *arguments, **rules)

    inet, unix = int(socket.AF_INET), 1
    cloexec = 0o2000000
    assert of("socket", inet, STREAM) == errno.EACCES
    assert of("socket", unix, STREAM) == errno.EACCES
    assert of("socket", unix, SEQUENCED | cloexec, unix=(SEQUENCED,)) == "allowed"
    assert of("socket", unix, STREAM, unix=(SEQUENCED,)) == errno.EACCES
    assert of("socket", unix, STREAM, network=True) == errno.EACCES
    assert of("socket", unix, DATAGRAM, network=True, unix=(DATAGRAM,)) == "allowed"
    assert of("socket", inet, STREAM, network=True) == "allowed"
    assert of("socketpair", unix, STREAM | cloexec) == "allowed"
    assert of("socketpair", unix, DATAGRAM) == errno.EACCES
    assert of("connect", 3) == of("accept4", 3) == of("bind", 3) == errno.EACCES
    assert of("connect", 3, unix=(SEQUENCED,)) == errno.EACCES
    assert of("bind", 3, unix=(SEQUENCED,)) == of("listen", 3, unix=(SEQUENCED,)) == "allowed"
    assert of("connect", 3, network=True) == "allowed"
    assert of("clone", 0x003D0F00) == "allowed"
    for flag in (0x20000, 0x02000000, 0x04000000, 0x08000000, 0x10000000, 0x20000000, 0x40000000):
        assert of("clone", 0x00000011 | flag) == errno.EPERM
    assert of("clone3") == errno.ENOSYS
    assert of("kill", 5, 9) == "allowed"
    assert of("kill", -1, 9) == errno.EPERM
    assert of("ioctl", 0, 0x5401) == "allowed"
    assert of("ioctl", 0, 0x5412) == of("ioctl", 0, 0x541C) == errno.EPERM
    assert of("prlimit64", 0, 7) == "allowed"
    assert of("prlimit64", 99, 7) == errno.EPERM
    assert of("setpriority", 0, 0) == "allowed"
    assert of("setpriority", 0, 99) == of("setpriority", 2, 0) == errno.EPERM
    assert of("fchmod", 3) == 0
    for name, numbers in NUMBERS.items():
        if numbers[list(ARCHITECTURES).index(machine)] is not None:
            refused = of(name, 0x7FFFFFFF, 0x5412, 0x7FFFFFFF)
            assert refused != "allowed" or name == "kill", name
    assert of(NEWEST + 1) == errno.ENOSYS
    assert of(0x40000000 + 41) == errno.EPERM
    other = next(each for each in ARCHITECTURES if each != machine)
    assert of(3, audit=ARCHITECTURES[other]) == errno.EPERM
    # 32-bit programs, which have other numbers: i386 and arm.
    assert of(3, audit=0x40000003) == of(3, audit=0x40000028) == errno.EPERM


@pytest.mark.parametrize(
    ("index", "header"),
    [(0, "x86_64-linux-gnu/asm/unistd_64.h"), (1, "asm-generic/unistd.h")],
)
def test_the_numbers_are_the_kernels(index: int, header: str) -> None:
    path = Path("/usr/include", header)
    if not path.exists():
        pytest.skip("the kernel's headers are not installed")
    lines = re.findall(r"#define __NR(?:3264)?_(\w+)\s+(\d+)", path.read_text())
    known = {name: int(number) for name, number in lines}
    for name, numbers in NUMBERS.items():
        if name in known or (numbers[index] or 0) <= max(known.values()):
            assert numbers[index] == known.get(name), name


def test_what_holds_is_described() -> None:
    assert "not sandboxed" in sandbox_text(())
    assert sandbox_text(tuple(RESTRICTIONS)).endswith("even as root")
    assert "does not enforce: signals" in sandbox_text(
        [each for each in RESTRICTIONS if each != "signals"]
    )
