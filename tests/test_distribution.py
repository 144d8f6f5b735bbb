"""What is installed elsewhere: the wheel, the source archive, and the changelog of a release."""

from __future__ import annotations

import email
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from distro_node import __version__
from distro_node.node.errors import ExitCode
from distro_node.protocol.wire.manifest import PROTOCOL_VERSION
from man_pages import main, pages


def quiet(command: Sequence[str | Path], folder: Path, **options: Any) -> str:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, **options)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    return done.stdout


@pytest.fixture(scope="module")
def copy(
    checkout: Path, project_files: list[Path], tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """Copy the project's files: building leaves files in a checkout."""
    root = tmp_path_factory.mktemp("source") / "distro-node"
    for path in project_files:
        place = root / path.relative_to(checkout)
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(path, place)
    return root


@pytest.fixture(scope="module")
def built(copy: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the source archive, and the wheel that was built from it alone."""
    folder = tmp_path_factory.mktemp("dist")
    # As `make dist` does.
    main(copy / "docs" / "man")
    # The build tools are in this environment; fetching them again would need the network.
    quiet(
        [sys.executable, "-m", "build", "--no-isolation", "--outdir", folder],
        copy,
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
    )
    return folder


def test_the_wheel_holds_the_package_and_nothing_else(built: Path, project_files, checkout) -> None:
    (wheel,) = built.glob("*.whl")
    assert wheel.name == f"distro_node-{__version__}-py3-none-any.whl"
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        about = f"distro_node-{__version__}.dist-info"
        metadata = email.message_from_bytes(archive.read(f"{about}/METADATA"))
        entries = archive.read(f"{about}/entry_points.txt").decode()
    package = {name for name in names if name.startswith("distro_node/")}
    folders = ("crypto", "protocol", "node")
    assert package == {
        f"distro_node/{name.as_posix()}"
        for path in project_files
        if ((name := path.relative_to(checkout)).name == "__init__.py" and len(name.parts) == 1)
        or name.parts[0] in folders
    }
    assert "distro_node/node/create/manifests/example.toml" in package
    assert f"distro_node-{__version__}.data/data/share/man/man1/distro-node-join.1" in names
    beside = {name.partition("/")[0] for name in names - package}
    assert beside <= {about, f"distro_node-{__version__}.data"}
    assert metadata["Version"] == __version__
    assert entries.split() == [
        "[console_scripts]",
        "distro-node",
        "=",
        "distro_node.node.__main__:main",
    ]
    # A bootstrap peer needs neither torch nor its dependencies.
    needed = [each for each in metadata.get_all("Requires-Dist", []) if "extra ==" not in each]
    assert not [each for each in needed if re.match(r"torch|transformers|tokenizers", each)]
    assert [each for each in needed if each.startswith("libp2p")]
    assert {"train", "create"} <= set(metadata.get_all("Provides-Extra", []))
    # `distro-node update` reads it on the package index.
    assert f"protocol-version-{PROTOCOL_VERSION}" in metadata["Keywords"].split(",")


def test_the_source_archive_is_the_project(built: Path, project_files, checkout: Path) -> None:
    (source,) = built.glob("*.tar.gz")
    root = f"distro_node-{__version__}/"
    with tarfile.open(source) as archive:
        names = {name.removeprefix(root) for name in archive.getnames()}
    left_out = {"PKG-INFO", "setup.cfg"}
    tracked = {path.relative_to(checkout).as_posix() for path in project_files}
    tracked |= {f"docs/man/{name}" for name in pages()}
    files = {name for name in names if name in tracked}
    hidden = {name for name in tracked if name.startswith(".")}
    assert tracked - files <= hidden
    folders = {parent.as_posix() for name in tracked for parent in Path(name).parents}
    surplus = {n for n in names - files - left_out - folders if "egg-info" not in n}
    assert surplus <= {root.rstrip("/")}


def test_a_release_gathers_the_fragments(copy: Path, tmp_path: Path) -> None:
    changes, project = tmp_path / "changes", copy / "pyproject.toml"
    shutil.copytree(copy / "changes", changes)
    shutil.copy2(project, tmp_path)
    for path in changes.glob("*.md"):
        if path.name != "README.md":
            path.unlink()
    (changes / "doors.fixed.md").write_text("Doors open\nagain: [how](../docs/doors.md).\n")
    (changes / "bells.added.md").write_text("There are bells.\n")
    (tmp_path / "CHANGELOG.md").write_text(
        "# Changes\n\n<!-- releases -->\n\n## 0.0.1 (2025-01-01)\n"
    )
    release = [
        sys.executable,
        "-m",
        "towncrier",
        "build",
        "--version",
        "9.9.9",
        "--date",
        "2031-02-03",
    ]
    draft = quiet([*release, "--draft"], tmp_path)
    assert "- There are bells." in draft
    assert len(list(changes.glob("*.md"))) == 3
    quiet([*release, "--yes"], tmp_path)
    assert (tmp_path / "CHANGELOG.md").read_text().split("\n") == [
        "# Changes",
        "",
        "<!-- releases -->",
        "",
        "## 9.9.9 (2031-02-03)",
        "",
        "### Added",
        "",
        "- There are bells.",
        "",
        "### Fixed",
        "",
        "- Doors open again: [how](docs/doors.md).",
        "",
        "## 0.0.1 (2025-01-01)",
        "",
    ]
    assert [path.name for path in changes.glob("*.md")] == ["README.md"]


def test_the_release_to_come_can_be_written(copy: Path) -> None:
    """Every pending fragment is under the heading of its kind."""
    draft = quiet(
        [sys.executable, "-m", "towncrier", "build", "--draft", "--version", "9.9.9"], copy
    )
    waiting = list((copy / "changes").glob("*.*.md"))
    assert draft.count("\n- ") == len(waiting)
    names = {
        each["directory"]: each["name"]
        for each in tomllib.loads((copy / "pyproject.toml").read_text())["tool"]["towncrier"][
            "type"
        ]
    }
    for path in waiting:
        section = draft.partition(f"### {names[path.name.split('.')[1]]}\n")[2].partition("\n### ")[
            0
        ]
        first = " ".join(path.read_text(encoding="utf-8").split())
        assert first.replace("](../", "](") in section, path.name


@pytest.mark.soak
@pytest.mark.parametrize("kind", ["*.whl", "*.tar.gz"])
def test_an_installed_bootstrap_peer_needs_no_torch(
    built: Path, kind: str, checkout: Path, tmp_path: Path
) -> None:
    """In an empty environment, from the ordinary index."""
    (what,) = built.glob(kind)
    quiet([sys.executable, "-m", "venv", tmp_path / "venv"], tmp_path)
    programs = tmp_path / "venv" / "bin"
    quiet([programs / "pip", "install", what, "-c", checkout / "constraints.txt"], tmp_path)
    assert "not there" in quiet(
        [programs / "python", "-c", "try:\n import torch\nexcept ImportError: print('not there')"],
        tmp_path,
    )
    program, data = programs / "distro-node", tmp_path / "data"
    assert "distro-node join" in quiet([program, "--help"], tmp_path)
    # Without PyTorch it cannot train, and says so.
    examined = subprocess.run(
        [program, "doctor", "--json", "--data-dir", data],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert examined.returncode == ExitCode.UNFIT, examined.stderr
    stopping = [e for e in json.loads(examined.stdout)["findings"] if e["severity"] == "stops"]
    assert [each["subject"] for each in stopping] == ["torch"]
    listen = ("--listen", "/ip4/127.0.0.1/tcp/0", "--json", "--data-dir", data)
    running = subprocess.Popen(
        [program, "bootstrap", *listen], cwd=tmp_path, stdout=subprocess.PIPE, text=True
    )
    try:
        assert running.stdout is not None
        addresses = json.loads(running.stdout.readline())["addresses"]
        told = json.loads(quiet([program, "status", "--json", "--data-dir", data], tmp_path))
        assert told["version"] == __version__
        assert told["line"]["addresses"] == addresses
        quiet([program, "leave", "--data-dir", data], tmp_path)
        assert running.wait(60.0) == 0
    finally:
        if running.poll() is None:
            running.send_signal(signal.SIGKILL)
            running.wait()
