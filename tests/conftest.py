"""What several test files share: where the checkout is, and what it tracks."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def checkout() -> Path:
    """The repository's root."""
    return Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def project_files(checkout: Path) -> list[Path]:
    """Every file that git tracks or would track, as absolute paths."""
    if shutil.which("git") is None:
        pytest.skip("git is not installed, so there is no telling which files are the project's")
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
        cwd=checkout,
        capture_output=True,
        text=True,
        check=True,
    )
    paths = sorted({checkout / name for name in listed.stdout.split("\0") if name})
    return [path for path in paths if path.is_file()]
