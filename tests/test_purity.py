"""The rules that a reader relies on: which folder imports what, and what no file may contain.

The table of folders is in docs/layout.md; this is the same table for machines.
"""

from __future__ import annotations

import ast
import functools
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

# Standard library modules without access to the outside: no sockets, files, clocks, threads or
# randomness.
PURE_STDLIB = {
    "__future__", "abc", "array", "base64", "binascii", "bisect", "collections", "contextlib",
    "copy", "dataclasses", "decimal", "difflib", "enum", "errno", "fractions", "functools",
    "hashlib", "hmac", "heapq", "io", "itertools", "json", "math", "numbers", "operator", "re",
    "stat", "string", "struct", "textwrap", "types", "typing", "unicodedata", "urllib", "zlib",
}  # fmt: skip
ALLOWED = {
    "crypto": PURE_STDLIB | {"blake3", "base58", "cryptography"},
    "protocol": PURE_STDLIB | {"numpy", "msgpack"},
}
# The key comes from the operating system's randomness and is kept in a file.
EXCEPTIONS = {
    "crypto/keystore.py": {"os", "pathlib", "secrets"},
    "crypto/identity.py": {"secrets"},
}
# A folder, or a module at the top of node/ by name, and what it may import: the listed entries and
# everything below them here. docs/layout.md has the same table for people. Every arrow points up the
# list, so there is no cycle.
_WIRE = ("protocol/wire/errors", "protocol/util", "protocol/wire")
_SHARED = ("node/errors", "node/settings", "node/config", "node/util")
ARROWS: dict[str, tuple[str, ...]] = {
    "crypto": (),
    "protocol/wire/errors": (),
    "protocol/util": ("crypto", "protocol/wire/errors"),
    "protocol/wire": ("crypto", "protocol/util", "protocol/wire/errors"),
    "protocol/codec": ("crypto", *_WIRE),
    "protocol/audit": ("crypto", *_WIRE, "protocol/codec"),
    "protocol/committee": ("crypto", *_WIRE, "protocol/codec"),
    "protocol/sampling": ("crypto", *_WIRE, "protocol/codec"),
    "protocol/chain": (
        *("crypto", *_WIRE, "protocol/codec", "protocol/audit", "protocol/committee"),
        "protocol/sampling",
    ),
    "protocol/member": ("crypto", *_WIRE, "protocol/audit", "protocol/sampling", "protocol/chain"),
    "protocol": (),
    "node/errors": (),
    "node/util": ("node/errors", "protocol/wire"),
    "node/settings": ("node/errors", "node/util", "protocol/wire"),
    "node/config": ("node/errors", "node/util"),
    "node/storage": (*_SHARED, "crypto", *_WIRE, "protocol/chain"),
    "node/network": (*_SHARED, "crypto", *_WIRE),
    "node/network/discovery": (*_SHARED, "crypto", *_WIRE, "node/network", "node/storage"),
    "node/network/nat": (
        *(*_SHARED, "crypto", *_WIRE, "node/network"),
        "node/network/discovery",
    ),
    "node/network/exchange": (*_SHARED, "crypto", *_WIRE, "node/network", "node/storage"),
    "node/listing": (*_SHARED, "crypto", *_WIRE, "node/storage", "node/network"),
    "node/content": (
        *(*_SHARED, "crypto", *_WIRE, "protocol/sampling", "protocol/chain"),
        *("node/storage", "node/network", "node/network/discovery", "node/network/exchange"),
    ),
    "node/telemetry": (*_SHARED, "crypto", *_WIRE, "node/network"),
    "node/energy": (*_SHARED, "node/telemetry"),
    "node/control": (*_SHARED, "node/storage", "node/telemetry"),
    "node/dashboard": (
        *(*_SHARED, "crypto", *_WIRE, "protocol/chain"),
        *("node/storage", "node/telemetry", "node/control"),
    ),
    "node/training": (
        *(*_SHARED, "crypto", *_WIRE, "protocol/codec", "protocol/audit"),
        "protocol/committee",
        *("protocol/chain", "protocol/member", "node/storage", "node/content", "node/telemetry"),
    ),
    "node/trainer": (
        *(*_SHARED, "crypto", *_WIRE, "protocol/codec", "protocol/audit"),
        "protocol/committee",
        *("protocol/chain", "node/storage", "node/telemetry", "node/training"),
    ),
    "node/create": (
        *(*_SHARED, "crypto", *_WIRE, "protocol/codec", "protocol/sampling"),
        *("protocol/committee", "protocol/chain"),
        *("node/storage", "node/training", "node/trainer"),
    ),
    "node/private_data": (
        *(*_SHARED, "crypto", *_WIRE, "protocol/sampling"),
        *("node/storage", "node/telemetry", "node/training", "node/create"),
    ),
    "node/session": (
        *(*_SHARED, "crypto", *_WIRE, "protocol/codec", "protocol/sampling"),
        *(
            "protocol/audit",
            "protocol/committee",
            "protocol/chain",
            "protocol/member",
            "node/storage",
        ),
        *("node/network", "node/network/discovery", "node/network/nat", "node/network/exchange"),
        *("node/listing", "node/content", "node/telemetry", "node/control"),
        *("node/dashboard", "node/training", "node/private_data"),
    ),
    "node": (
        *(*_SHARED, "crypto", *_WIRE, "protocol/codec", "protocol/chain", "protocol/member"),
        *("node/storage", "node/network", "node/network/discovery", "node/network/nat"),
        *("node/network/exchange", "node/listing", "node/content", "node/telemetry"),
        *("node/energy", "node/control", "node/dashboard", "node/training", "node/session"),
    ),
    "node/doctor": (
        *(
            *_SHARED,
            "crypto",
            *_WIRE,
            "protocol/codec",
            "protocol/chain",
            "node/storage",
            "node/network",
        ),
        *("node/network/discovery", "node/network/nat", "node/network/exchange"),
        *("node/content", "node/listing", "node/training", "node/session", "node"),
    ),
    "node/service": (*_SHARED, "node/storage"),
    "node/results": (
        *(*_SHARED, "crypto", *_WIRE, "protocol/codec", "protocol/chain"),
        *("node/storage", "node/content", "node/telemetry", "node/control", "node/training"),
    ),
    "node/serve": (
        *(*_SHARED, *_WIRE, "node/storage", "node/dashboard", "node/training", "node/results"),
    ),
    "node/demo": (*_SHARED, "crypto", *_WIRE, "node/storage", "node/telemetry", "node/control"),
    "node/cli": (
        *(*_SHARED, "crypto", *_WIRE, "node/storage", "node/network"),
        *("node/telemetry", "node/control", "node/create", "node", "node/results"),
        *("node/service", "node/doctor", "node/demo", "node/training", "node/session"),
        *("node/serve", "node/dashboard", "node/listing"),
    ),
    # `python -m distro_node.node` is the command.
    "node/__main__": ("node/cli",),
}
FOLDERS = ("crypto", "protocol", "node")
TRAINER_LIBRARIES = {"torch", "transformers", "tokenizers", "safetensors", "peft"}


def modules(checkout: Path, folder: str) -> list[Path]:
    found = sorted((checkout / folder).rglob("*.py"))
    assert found, f"there is nothing in {folder}/"
    return found


@functools.cache
def import_statements(path: Path) -> list[ast.Import | ast.ImportFrom]:
    """Return the import statements of a file, which several tests look at."""
    tree = ast.parse(path.read_text(encoding="utf-8"), filename=str(path))
    return [node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)]


def imports(path: Path) -> Iterator[tuple[str, int]]:
    """Yield the modules a file imports, absolute as `os.path`, relative as `..crypto.hashing`."""
    for node in import_statements(path):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, node.lineno
        else:
            base = "." * node.level + (node.module or "")
            if node.level and not node.module:
                for alias in node.names:
                    yield base + alias.name, node.lineno
            else:
                yield base, node.lineno


def entry_of(path: Path) -> str:
    """Return the entry of `ARROWS` that a module or folder belongs to, given relative to the
    checkout."""
    name = path.with_suffix("").as_posix()
    while name not in ARROWS:
        name = name.rpartition("/")[0]
        assert name, f"{path} is in no folder of the table"
    return name


def target_of(target: str, name: str, path: Path, checkout: Path) -> Path:
    """Return the module or folder that `from target import name` refers to, relative to the checkout."""
    dots = len(target) - len(target.lstrip("."))
    package = path.parent.relative_to(checkout).parts
    assert dots <= len(package) + 1, f"{path}: {target} leaves the package"
    base = Path(*package[: len(package) - dots + 1], *filter(None, target.lstrip(".").split(".")))
    inner = base / name
    return inner if (checkout / inner).with_suffix(".py").exists() else base


def arrows(checkout: Path, path: Path) -> Iterator[tuple[Path, int]]:
    """Yield what a module imports from this project, with the line."""
    for node in import_statements(path):
        if isinstance(node, ast.ImportFrom) and node.level:
            for alias in node.names:
                target = "." * node.level + (node.module or "")
                yield target_of(target, alias.name, path, checkout), node.lineno


def calls(path: Path) -> set[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return {
        node.func.id
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    }


@pytest.mark.parametrize("folder", ["crypto", "protocol"])
def test_pure_folders_import_only_what_they_may(checkout: Path, folder: str) -> None:
    offences = []
    for path in modules(checkout, folder):
        name = path.relative_to(checkout).as_posix()
        allowed = ALLOWED[folder] | EXCEPTIONS.get(name, set())
        offences += [
            f"{name}:{line} imports {target}"
            for target, line in imports(path)
            if not target.startswith(".") and target.partition(".")[0] not in allowed
        ]
    assert offences == []


@pytest.mark.parametrize("folder", ["crypto", "protocol"])
def test_pure_folders_open_nothing(checkout: Path, folder: str) -> None:
    for path in modules(checkout, folder):
        name = path.relative_to(checkout).as_posix()
        if "pathlib" not in EXCEPTIONS.get(name, set()):
            impure = calls(path) & {"open", "input", "print", "exec", "eval", "__import__"}
            assert impure == set(), name


@pytest.mark.parametrize("folder", FOLDERS)
def test_arrows_are_those_of_the_table(checkout: Path, folder: str) -> None:
    offences = []
    for path in modules(checkout, folder):
        own = entry_of(path.relative_to(checkout))
        for target, line in arrows(checkout, path):
            # The version is in the root.
            if target == Path() or entry_of(target) in (own, *ARROWS[own]):
                continue
            offences.append(f"{path.relative_to(checkout).as_posix()}:{line} imports {target}")
        offences += [
            f"{path.relative_to(checkout).as_posix()}:{line}: imports between folders are relative"
            for target, line in imports(path)
            if target.partition(".")[0] == "distro_node"
        ]
    assert offences == []


def test_the_table_has_no_circle() -> None:
    above: set[str] = set()
    for folder, targets in ARROWS.items():
        assert set(targets) <= above, f"{folder} points down the table"
        above.add(folder)


def test_no_two_modules_import_each_other(checkout: Path) -> None:
    graph: dict[str, set[str]] = {}
    for folder in FOLDERS:
        for path in modules(checkout, folder):
            name = path.relative_to(checkout).with_suffix("").as_posix().removesuffix("/__init__")
            graph[name] = {target.as_posix() for target, _ in arrows(checkout, path)} - {name}
    # Remove modules that import none of the rest; the remaining ones import each other in a cycle.
    while gone := {name for name, targets in graph.items() if not targets & graph.keys()}:
        graph = {name: targets for name, targets in graph.items() if name not in gone}
    assert graph == {}


def test_the_checks_above_can_fail(tmp_path: Path) -> None:
    folder = tmp_path / "protocol" / "wire"
    folder.mkdir(parents=True)
    (folder / "encoding.py").touch()
    bad = folder / "bad.py"
    bad.write_text(
        "import os.path, numpy\nfrom ...node import daemon\nfrom . import encoding\nopen('x')\n"
    )
    assert dict(imports(bad)) == {"os.path": 1, "numpy": 1, "...node": 2, ".encoding": 3}
    assert list(arrows(tmp_path, bad)) == [(Path("node"), 2), (Path("protocol/wire/encoding"), 3)]
    assert entry_of(Path("node/daemon.py")) == "node"
    assert entry_of(Path("node/errors.py")) == "node/errors"
    assert calls(bad) == {"open"}


def test_the_node_process_never_imports_torch(checkout: Path) -> None:
    names = []
    for path in modules(checkout, "node"):
        parts = path.relative_to(checkout).with_suffix("").parts
        in_trainer = parts[:2] == ("node", "trainer")
        if parts[-1] == "__main__" or in_trainer:
            continue
        names.append(".".join(("distro_node", *(part for part in parts if part != "__init__"))))
    script = (
        "import importlib, sys\n"
        f"for name in {names!r}:\n"
        "    importlib.import_module(name)\n"
        f"    loaded = {sorted(TRAINER_LIBRARIES)!r}\n"
        "    loaded = [library for library in loaded if library in sys.modules]\n"
        "    assert not loaded, f'{name} brings in {loaded}'\n"
        "print(len(sys.modules))\n"
    )
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert {"distro_node.node.errors", "distro_node.node.telemetry.metrics"} <= set(names)


def test_pickle_is_nowhere(checkout: Path) -> None:
    """Data from the network or the disk is hostile; unpickling it would execute it."""
    for folder in FOLDERS:
        for path in modules(checkout, folder):
            loaded = {target.partition(".")[0] for target, _ in imports(path)}
            assert not loaded & {"pickle", "marshal", "spill", "dill", "joblib"}, path


# What begins so has a docstring; any other file is parsed.
_BEGINNING = re.compile(r'\A(?:#.*\n|\s)*"""[^"\\]*[^"\\\s][^"\\]*"""\s*\n')


def test_every_module_states_its_purpose(project_files: list[Path]) -> None:
    sources = {path: path.read_text("utf-8") for path in project_files if path.suffix == ".py"}
    silent = [
        str(path)
        for path, source in sources.items()
        if not _BEGINNING.match(source) and not ast.get_docstring(ast.parse(source))
    ]
    assert silent == []


# Home and work directories of a file's author, and hosts of package indexes: neither is of use to
# others. Written so that this file does not match itself.
MACHINE = re.compile(
    r"/(?:work|root|Users)/[\w.]|/home/(?!distro\b)[\w.]+/|/tmp/[a-z]+/|[A-Z]:\\\\Users"
    # `distro-node update` asks the index of everybody.
    r"|(?:pypi(?!\.org/pypi\b)|pythonhosted|npmjs)\.org"
)


def test_no_file_names_a_machine(project_files: list[Path], checkout: Path) -> None:
    offences = []
    for path in project_files:
        try:
            lines = path.read_text(encoding="utf-8").splitlines()
        except UnicodeDecodeError:
            continue
        offences += [
            f"{path.relative_to(checkout).as_posix()}:{number}: {line.strip()[:100]}"
            for number, line in enumerate(lines, 1)
            if MACHINE.search(line)
        ]
    assert offences == []


def test_the_search_for_machines_can_find_one() -> None:
    for text in ("see /wo" + "rk/main", "/ho" + "me/alice/x", "/Us" + "ers/bob", "py" + "pi.org"):
        assert MACHINE.search(text), text
    for text in ("/home/distro/data", "the work/life balance", "/tmp is full", "/root"):
        assert not MACHINE.search(text), text


def _private_names(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """Yield another object's private names that are accessed, with the line.

    Constants are exempt: a test shortens a pause, or compares a document with a bound.
    """
    for node in ast.walk(tree):
        name: object = None
        if isinstance(node, ast.Attribute):
            own = isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")
            name = None if own else node.attr
        elif isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "setattr":
            name = getattr([*node.args, None, None][1], "value", None)
        if isinstance(name, str) and re.match("_[a-z]", name):
            yield name, node.lineno  # type: ignore[attr-defined]  # both kinds have one


def _unexplained(source: str) -> list[str]:
    """Return private names in a test's source without a comment that gives a reason, and reasons
    without a use."""
    lines = ["", *source.splitlines()]
    explained: set[str] = set()
    for block in re.findall(
        r"^# Private here:.*\n(?:#(?! Private here:).*\n)*", source, re.MULTILINE
    ):
        explained |= set(re.findall(r"`(_\w+)`", block))
    found = list(_private_names(ast.parse(source)))
    problems = [
        f"{line}: {name}"
        for name, line in found
        if name not in explained
        and "#" not in lines[line]
        and not lines[line - 1].lstrip().startswith("#")
    ]
    return problems + [f"{name} is not touched" for name in explained - {name for name, _ in found}]


def test_tests_state_why_they_touch_what_is_private(checkout: Path) -> None:
    """Beside the access or above it, or for a file: `# Private here: NAMES: why`, with backticks."""
    found = {
        str(path.relative_to(checkout)): problems
        for path in modules(checkout, "tests")
        if (problems := _unexplained(path.read_text(encoding="utf-8")))
    }
    assert not found


@pytest.mark.parametrize(
    ("source", "count"),
    [
        ("a._b()\n", 1),
        ("self._b()\n", 0),
        ("# Because.\na._b()\n", 0),
        ("a._b()  # because\n", 0),
        ("# Private here: `_b`: because.\n\na._b()\n", 0),
        ("# Private here: it is\n# `_b`.\n\na._b()\n", 0),
        ("# Private here: `_c`: because.\n\na._b()\n", 2),
        ("patch.setattr(a, '_b', 1)\n", 1),
        ("patch.setattr(a, '_B', a._C)\n", 0),
    ],
)
def test_a_private_name_without_a_reason_is_found(source: str, count: int) -> None:
    assert len(_unexplained(source)) == count


# Folders that open files whose paths a user names, or that lie in folders a user names …
_WITH_USERS_PATHS = ("cli", "content", "create", "dashboard", "results", "serve", "private_data")
# … and the files in them that read only what this program wrote or brings along.
_OWN_FILES_READ = {
    "node/cli/create.py",
    "node/create/token_cache.py",
    "node/dashboard/period_totals.py",
    "node/dashboard/routes.py",
    "node/dashboard/run_history.py",
    "node/private_data/__main__.py",
    "node/private_data/store.py",
    "node/results/evaluate.py",
    "node/results/evaluation_worker.py",
    "node/results/last_run.py",
    "node/results/saved_state.py",
}


def _reads_of_any_file(source: str) -> Iterator[int]:
    """Yield the lines that open a file for reading without regard to what it is."""
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Call):
            continue
        name = getattr(node.func, "attr", getattr(node.func, "id", ""))
        modes = [each.value for each in node.args[-1:] if isinstance(each, ast.Constant)]
        opens = name == "open" and modes and str(modes[0]).startswith("r")
        if opens or name in ("read_bytes", "read_text"):
            yield node.lineno


def test_files_that_users_name_are_opened_as_regular_files(checkout: Path) -> None:
    """A named pipe would block, a device never end: `node/util/regular_files.py` refuses both."""
    assert list(_reads_of_any_file('path.open("rb")\npath.read_text()\npath.open("wb")')) == [1, 2]
    found = {
        str(path.relative_to(checkout))
        for folder in _WITH_USERS_PATHS
        for path in sorted((checkout / "node" / folder).rglob("*.py"))
        if any(_reads_of_any_file(path.read_text(encoding="utf-8")))
    }
    assert found == _OWN_FILES_READ
