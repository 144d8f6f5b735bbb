"""The core does not need what not every swarm has: each feature's modules are taken out of a copy."""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from test_purity import arrows

LAYERS = ("crypto", "protocol", "node")


@dataclass(frozen=True)
class Feature:
    """A feature's modules, and where it is registered: one import and one entry in each of these."""

    modules: tuple[str, ...]
    registered: tuple[str, ...]
    layers: tuple[str, ...] = ("crypto", "protocol")
    """The layers that do without it."""


FEATURES = {
    "audits": Feature(
        # Receipts are of audited work.
        (
            "protocol/audit",
            "protocol/chain/audits.py",
            "protocol/chain/receipts.py",
            "protocol/member/auditor.py",
        ),
        ("protocol/chain/features.py", "protocol/member/parts.py"),
    ),
    "committees": Feature(
        ("protocol/committee", "protocol/chain/committees.py", "protocol/member/aggregation.py"),
        ("protocol/chain/features.py", "protocol/member/parts.py"),
    ),
    "receipts": Feature(
        ("protocol/chain/receipts.py", "node/results/receipt_files.py", "node/cli/receipt.py"),
        ("node/cli/main.py",),
        LAYERS,
    ),
}


def _is_of(path: Path, modules: Iterable[str]) -> bool:
    """Whether a file or folder, relative to the checkout, belongs to these modules."""
    name = path.as_posix()
    return any(
        name.removesuffix(".py") == each.removesuffix(".py") or name.startswith(each + "/")
        for each in modules
    )


def _sources(root: Path, layers: Iterable[str]) -> Iterator[Path]:
    for layer in layers:
        for path in sorted((root / layer).rglob("*.py")):
            yield path.relative_to(root)


def _without(modules: Iterable[str], checkout: Path, path: Path) -> str:
    """Return a file's source without the imports of these modules, and without the entries of what
    these import."""
    source = (checkout / path).read_text(encoding="utf-8")
    lines = source.splitlines(keepends=True)
    names, gone = set[str](), set[int]()
    for node in ast.parse(source).body:
        if not isinstance(node, ast.ImportFrom):
            continue
        targets = _targets(node, path, checkout)
        if targets and all(_is_of(target, modules) for target in targets):
            names |= {alias.asname or alias.name for alias in node.names}
            gone |= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    entries = {f"{form}," for name in names for form in (name, f"{name}()", f"**{name}")}
    return "".join(
        line
        for number, line in enumerate(lines, 1)
        if number not in gone and line.strip() not in entries
    )


def _targets(node: ast.ImportFrom, path: Path, checkout: Path) -> list[Path]:
    found = arrows(checkout, checkout / path)
    return [target for target, line in found if line == node.lineno]


def _copy(checkout: Path, into: Path, removed: Sequence[Feature]) -> Path:
    """Copy `crypto/` and `protocol/`, without these features, as the package `distro_node`."""
    package = into / "distro_node"
    package.mkdir()
    (package / "__init__.py").write_text("")
    modules = [module for feature in removed for module in feature.modules]
    registries = {path for feature in removed for path in feature.registered}
    for path in _sources(checkout, ("crypto", "protocol")):
        if _is_of(path, modules):
            continue
        source = (checkout / path).read_text(encoding="utf-8")
        if path.as_posix() in registries:
            source = _without(modules, checkout, path)
        (package / path).parent.mkdir(parents=True, exist_ok=True)
        (package / path).write_text(source, encoding="utf-8")
    tests = into / "tests" / "simulation"
    tests.mkdir(parents=True)
    for name in ("keys", "toy"):
        shutil.copy(checkout / "tests" / "simulation" / f"{name}.py", tests)
    return into


def _run(copy: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join((str(copy), str(copy / "tests")))
    return subprocess.run(
        [sys.executable, *arguments],
        env={**os.environ, "PYTHONPATH": path},
        cwd=copy,
        capture_output=True,
        text=True,
    )


IMPORT_ALL = """
import importlib, pathlib, distro_node
root = pathlib.Path(distro_node.__file__).parent
assert root == pathlib.Path("distro_node").resolve(), root
for path in sorted(root.rglob("*.py")):
    parts = path.relative_to(root.parent).with_suffix("").parts
    importlib.import_module(".".join(part for part in parts if part != "__init__"))
"""


FOUND_SWARM = """
from distro_node.protocol.chain.ledger import Ledger
from distro_node.protocol.wire.manifest import decode_manifest
from simulation.toy import toy_manifest
manifest = toy_manifest()
assert decode_manifest(manifest.encode(), manifest.swarm) == manifest
ledger = Ledger(manifest)
assert ledger.votes(0).total == 1
"""


@pytest.mark.parametrize("name", FEATURES)
def test_nothing_else_imports_a_feature(checkout: Path, name: str) -> None:
    feature = FEATURES[name]
    for each in (*feature.modules, *feature.registered):
        assert (checkout / each).exists(), each
    found = {
        path.as_posix(): target.as_posix()
        for path in _sources(checkout, feature.layers)
        if not _is_of(path, feature.modules)
        for target, _ in arrows(checkout, checkout / path)
        if _is_of(target, feature.modules)
    }
    assert found.keys() == set(feature.registered), found


@pytest.mark.parametrize("removed", [*([name] for name in FEATURES), [*FEATURES]], ids=" ".join)
def test_the_core_works_without(checkout: Path, tmp_path: Path, removed: list[str]) -> None:
    copy = _copy(checkout, tmp_path, [FEATURES[name] for name in removed])
    for script in (IMPORT_ALL, FOUND_SWARM):
        run = _run(copy, "-c", script)
        assert run.returncode == 0, run.stderr


def test_what_still_needs_a_feature_fails(checkout: Path, tmp_path: Path) -> None:
    feature = FEATURES["audits"]
    copy = _copy(checkout, tmp_path, [feature])
    (copy / "distro_node" / "protocol" / "chain" / "ledger.py").open("a").write(
        "\nfrom .audits import AuditLedger\n"
    )
    assert (
        "No module named 'distro_node.protocol.chain.audits'" in _run(copy, "-c", IMPORT_ALL).stderr
    )
