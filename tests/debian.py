"""Debian systems that slow tests make, and the commands that they run."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

MIRROR = "http://deb.debian.org/debian"


def run(command: Sequence[str | Path]) -> str:
    """Run a command, which has to succeed, and return what it printed."""
    done = subprocess.run(
        list(map(str, command)),
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "DEBIAN_FRONTEND": "noninteractive", "LC_ALL": "C"},
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout
