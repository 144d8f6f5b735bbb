"""A disk that fails at one chosen step of the program, and reports which steps there were.

A step is a call from the project's own code that creates, changes, renames or removes something on the
disk. Python's functions for that are replaced while a `FaultyDisk` is in use. A step that fails does
half of its work first where it can, as a full disk does.
"""

from __future__ import annotations

import builtins
import contextlib
import io
import os
import re
import shutil
import socket
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

from safetensors import SafetensorError

ROOT = Path(__file__).resolve().parents[2]
_FOLDERS = tuple(f"{ROOT / folder}{os.sep}" for folder in ("node", "crypto"))
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


@dataclass(frozen=True)
class Step:
    """One operation of the project on the disk, and its place in the code."""

    what: str
    trail: tuple[tuple[str, int], ...]
    """Files and lines, the innermost first."""

    @property
    def file(self) -> str:
        """The file with the call."""
        return self.trail[0][0]

    @property
    def on_a_name(self) -> bool:
        """Whether it is done to a path; an open file can be written to without one."""
        return self.what not in ("write", "fsync", "pwrite", "ftruncate", "fchmod")


class FaultyDisk:
    """Counts steps; the one with the number `fail_at` fails with the error number `error`."""

    def __init__(self, fail_at: int | None = None, error: int = 0) -> None:
        self.steps: list[Step] = []
        self.failed: Step | None = None
        self._fail_at = fail_at
        self._error = error

    def step(self, what: str, half: Callable[[], object] | None = None, name: Any = None) -> None:
        """Note a step; raise if it is the one to fail, with a file name as the system does it."""
        trail = _trail()
        if not trail:
            return
        self.steps.append(Step(what, trail))
        if len(self.steps) - 1 == self._fail_at:
            self.failed = self.steps[-1]
            if half is not None:
                half()
            named = () if name is None else (os.fsdecode(os.fspath(name)),)
            raise OSError(self._error, os.strerror(self._error), *named)

    @contextlib.contextmanager
    def in_use(self) -> Iterator[FaultyDisk]:
        """Intercept the program's access to the disk."""
        disk = self

        class Raw(io.FileIO):
            def __init__(self, file: Any, mode: str, *rest: Any) -> None:
                if not isinstance(file, int):
                    disk.step("open", name=file)
                super().__init__(file, mode, *rest)

            def write(self, data: Any, /) -> int:
                view = memoryview(data)
                disk.step("write", lambda: io.FileIO.write(self, view[: len(view) // 2]))
                return super().write(data)

            def truncate(self, size: int | None = None, /) -> int:
                disk.step("ftruncate")
                return super().truncate(size)

        def open_file(
            file: Any,
            mode: str = "r",
            buffering: int = -1,
            encoding: str | None = None,
            errors: str | None = None,
            newline: str | None = None,
            closefd: bool = True,
            opener: Any = None,
        ) -> Any:
            if not set(mode) & set("wax+") or not _trail():
                return real_open(file, mode, buffering, encoding, errors, newline, closefd, opener)
            raw = Raw(file, mode.replace("b", "").replace("t", ""), closefd, opener)
            if buffering == 0:
                return raw
            buffered: Any = io.BufferedRandom(raw) if "+" in mode else io.BufferedWriter(raw)
            if "b" in mode:
                return buffered
            return io.TextIOWrapper(buffered, encoding or "utf-8", errors, newline)

        def open_descriptor(path: Any, flags: int, *rest: Any, **named: Any) -> int:
            if flags & _WRITING:
                disk.step("open", name=path)
            return real_os_open(path, flags, *rest, **named)

        def stepping(module: Any, name: str, named: bool = True) -> Any:
            real = getattr(module, name)

            def call(*arguments: Any, **options: Any) -> Any:
                disk.step(name, name=arguments[0] if named else None)
                return real(*arguments, **options)

            return mock.patch.object(module, name, call)

        def save(tensors: Any, path: Any, *rest: Any, **options: Any) -> None:
            try:
                disk.step("save_file", lambda: Path(path).write_bytes(b"half of it"))
            except OSError as error:
                # As the library reports it.
                words = f"I/O error: {error.strerror} (os error {error.errno})"
                raise SafetensorError(f"Error while serializing: {words}") from None
            real_save(tensors, path, *rest, **options)

        def bind(server: socket.socket, address: Any) -> None:
            if server.family == socket.AF_UNIX:
                disk.step("bind")
            real_bind(server, address)

        real_open, real_os_open, real_bind = io.open, os.open, socket.socket.bind
        with contextlib.ExitStack() as stack:
            use = stack.enter_context
            use(mock.patch.object(io, "open", open_file))
            use(mock.patch.object(builtins, "open", open_file))
            use(mock.patch.object(os, "open", open_descriptor))
            use(mock.patch.object(socket.socket, "bind", bind))
            # It would copy in the kernel.
            use(mock.patch.object(shutil, "_USE_CP_SENDFILE", False))
            for name in (
                "replace",
                "rename",
                "link",
                "unlink",
                "mkdir",
                "rmdir",
                "truncate",
                "chmod",
            ):
                use(stepping(os, name))
            for name in ("fsync", "pwrite", "ftruncate", "fchmod"):
                use(stepping(os, name, named=False))
            if "distro_node.node.trainer.optimizer.momentum" in sys.modules:
                momentum = sys.modules["distro_node.node.trainer.optimizer.momentum"]
                real_save = momentum.save_file
                use(mock.patch.object(momentum, "save_file", save))
            yield self


def _trail() -> tuple[tuple[str, int], ...]:
    """Return the call stack within the project's code, the innermost first; empty outside of it."""
    found = []
    # Python has no public name for it that is fast.
    frame = sys._getframe(1)
    while frame is not None:
        name = frame.f_code.co_filename
        if name.startswith(_FOLDERS):
            found.append((str(Path(name).relative_to(ROOT)), frame.f_lineno))
        frame = frame.f_back
    return tuple(found)


# Names of calls that write to a disk. `open`, `replace` and `truncate` also have other meanings.
_CALLS = re.compile(
    r"^(write_bytes|write_text|unlink|mkdir|rename|link|symlink|ftruncate|pwrite|fsync|fdatasync|chmod"
    r"|fchmod|rmtree|rmdir|copyfile|copy|copytree|move|touch|TemporaryFile|NamedTemporaryFile"
    r"|TemporaryDirectory|mkstemp|mkdtemp|FileIO|save_file|save_pretrained|savefig|bind"
    r"|RotatingFileHandler|write_atomically|write_output|replacing)$"
)


def places(checkout: Path) -> set[tuple[str, int, int, str]]:
    """Return every call in the project that writes to a disk: file, first and last line, name."""
    import ast

    found = set()
    for folder in ("node", "crypto"):
        for path in sorted((checkout / folder).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text("utf-8"))):
                if isinstance(node, ast.Call):
                    name = _name(node)
                    if name is not None:
                        file = path.relative_to(checkout).as_posix()
                        found.add((file, node.lineno, node.end_lineno or node.lineno, name))
    return found


def _name(call: Any) -> str | None:
    import ast

    function = call.func
    name = getattr(function, "attr", None) or getattr(function, "id", "")
    texts = [each.value for each in call.args if isinstance(each, ast.Constant)]
    of = ast.unparse(function.value) if isinstance(function, ast.Attribute) else ""
    match name:
        case "open" if of == "os":
            return "open" if "O_WR" in ast.unparse(call) or "O_CREAT" in ast.unparse(call) else None
        case "open":
            mode = texts[-1] if texts and isinstance(texts[-1], str) else "r"
            return "open" if set(mode) & set("wax+") and len(mode) <= 3 else None
        case "replace" if of:
            # The methods of strings and of frozen dataclasses differ in their arguments.
            return "replace" if len(call.args) == 1 and not call.keywords else None
        case "truncate":
            return None if call.keywords else "truncate"
        case "unlink" | "mkdir" | "copy" | "move" | "bind" if not of:
            return None
        case "copy":
            return "copy" if of == "shutil" else None
        case "move":
            return "move" if of == "shutil" else None
        case _:
            return name if _CALLS.match(name) else None
