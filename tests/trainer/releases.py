"""An environment with an older major release of transformers, beside the one in which everything runs.

Users may open an export with another release than the one pinned here, and members may have another
one installed. The environment shares torch with the one that runs the tests; it is kept in `.venv`,
so that only the first run downloads anything.
"""

from __future__ import annotations

import io
import os
import subprocess
import sys
import sysconfig
import venv
from contextlib import redirect_stdout
from pathlib import Path
from unittest.mock import patch

import pytest

CHECKOUT = Path(__file__).resolve().parents[2]
RELEASE = "4.57.6"
PACKAGES = (f"transformers=={RELEASE}", "huggingface_hub<1", "tokenizers<0.23")


def older_python() -> Path:
    """Return the interpreter of the environment with transformers 4, which is created if it does not
    exist.

    Where nothing can be downloaded the test is skipped, except in CI.
    """
    root = Path(sys.prefix) / f"transformers-{RELEASE}"
    python, done = root / "bin" / "python", root / "complete"
    if done.is_file():
        return python
    venv.create(root, with_pip=True, clear=True)
    command = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *PACKAGES]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    if found.returncode:
        reason = (found.stderr.strip().splitlines() or ["pip failed"])[-1]
        assert os.environ.get("CI") != "true", f"CI needs transformers {RELEASE}: {reason}"
        pytest.skip(f"transformers {RELEASE} cannot be installed: {reason}")
    own = Path(sysconfig.get_path("purelib", vars={"base": str(root), "platbase": str(root)}))
    # After its own packages: torch and everything else that this project needs.
    (own / "zz_shared.pth").write_text(sysconfig.get_path("purelib") + "\n")
    # The checkout is the package, whatever its folder is called.
    (root / "src").mkdir()
    (root / "src" / "distro_node").symlink_to(CHECKOUT)
    done.touch()
    return python


def run_older(program: str, *arguments: object) -> str:
    """Run a program under transformers 4 and return its output."""
    python = older_python()
    path = os.pathsep.join((str(python.parents[1] / "src"), str(CHECKOUT / "tests")))
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    command = [python, "-c", program, *map(str, arguments)]
    found = subprocess.run(
        command, env=environment, capture_output=True, text=True, check=False, timeout=240
    )
    assert found.returncode == 0, found.stderr[-3000:]
    return found.stdout


def run_here(program: str, *arguments: object) -> str:
    """Run a program in this process, which has loaded the pinned release, and return its output."""
    output = io.StringIO()
    with patch.object(sys, "argv", ["-c", *map(str, arguments)]), redirect_stdout(output):
        exec(program, {})
    return output.getvalue()
