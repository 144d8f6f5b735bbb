"""Unreadable files and folders: commands name them and the remedy, and end with the right exit code."""

from __future__ import annotations

import ctypes
import os
import platform
from collections.abc import Iterator
from pathlib import Path

import pytest
from distro_node.node.errors import ExitCode

_DAC_OVERRIDE, _DAC_READ_SEARCH = 1, 2
_VERSION_3 = 0x20080522


@pytest.fixture(autouse=True)
def like_anybody() -> Iterator[None]:
    """Make file modes apply to the superuser, too, who often runs the tests in containers."""
    if os.geteuid() != 0:
        yield
        return
    if platform.system() != "Linux":
        pytest.skip("file modes do not hold for the superuser")
    libc = ctypes.CDLL(None, use_errno=True)
    head = (ctypes.c_uint32 * 2)(_VERSION_3, 0)
    # Effective, permitted and inheritable, for the capabilities below 32 and those above.
    rights = (ctypes.c_uint32 * 6)()
    assert libc.capget(head, rights) == 0
    effective = rights[0]
    rights[0] &= ~(1 << _DAC_OVERRIDE | 1 << _DAC_READ_SEARCH)
    assert libc.capset(head, rights) == 0
    yield
    rights[0] = effective
    assert libc.capset(head, rights) == 0


@pytest.fixture
def closed(tmp_path: Path) -> Iterator[Path]:
    """Return a folder that no user may read."""
    folder = tmp_path / "closed"
    folder.mkdir(mode=0o000)
    with pytest.raises(PermissionError):
        os.listdir(folder)
    yield folder
    folder.chmod(0o700)


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("id",), ExitCode.KEYSTORE),
        (("id", "--create"), ExitCode.DATA_DIR),
        (("status",), ExitCode.DATA_DIR),
        (("pause",), ExitCode.DATA_DIR),
        (("leave", "--json"), ExitCode.DATA_DIR),
        (("generate", "Once"), ExitCode.DATA_DIR),
        (("bootstrap", "--listen", "/ip4/127.0.0.1/tcp/0"), ExitCode.DATA_DIR),
    ],
)
def test_a_data_directory(command, closed: Path, arguments: tuple[str, ...], code: int) -> None:
    result = command(*arguments, "--data-dir", closed)
    result.refused_with(code, str(closed), "Permission denied")


def test_texts_and_folders_of_them(command, closed: Path, tmp_path: Path) -> None:
    run = tmp_path / "run.toml"
    run.write_text(command("create", "--example").out)
    (tmp_path / "readable.txt").write_text("a text of some length. " * 1000)
    for data in (closed, tmp_path):
        # If it were skipped silently, the folder's texts would be missing from the training data.
        result = command("create", run, "--data", data, "--data-dir", tmp_path / "d", "--dry-run")
        result.refused_with(ExitCode.DATA_MISSING, str(closed), "Permission denied")


def test_files_of_settings(command, closed: Path, home: Path, tmp_path: Path) -> None:
    locked = tmp_path / "locked.toml"
    locked.touch(mode=0o000)
    command("create", locked).refused_with(ExitCode.MANIFEST, str(locked), "Permission denied")
    command("--config", locked, "id").refused_with(ExitCode.BAD_CONFIG, str(locked))
    command("id", "--create", "--passphrase-file", locked).refused_with(
        ExitCode.KEYSTORE, str(locked), "Permission denied"
    )
    (home / ".config").mkdir(mode=0o000)
    command("id").refused_with(ExitCode.BAD_CONFIG, "config.toml", "Permission denied")
    (home / ".config").chmod(0o700)


def test_paths_and_values_that_are_too_long_are_shortened(command, tmp_path: Path) -> None:
    long = tmp_path / ("a" * 5000)
    result = command("contributions", "--data-dir", long)
    result.refused_with(ExitCode.DATA_DIR, "File name too long", "aaa…aaa", str(tmp_path))
    assert len(result.err) < 1000
    result = command("fit", tmp_path / "x.toml", "--memory", "9" * 5000)
    result.refused_with(ExitCode.USAGE, "9…9")
    assert len(result.err) < 1000
