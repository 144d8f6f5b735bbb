"""The plot of a run: a PNG of the promised size, whatever there is to draw."""

from __future__ import annotations

import struct
import subprocess
import sys
from pathlib import Path

import pytest
from distro_node.node.telemetry.plots import labels_right, plot_losses


def png_size(path: Path) -> tuple[int, int]:
    """Return width and height from the header chunk, which always comes first."""
    data = path.read_bytes()
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    assert data[12:16] == b"IHDR"
    return struct.unpack(">II", data[16:24])


@pytest.mark.parametrize("full", [True, False])
def test_a_png_of_the_promised_size(tmp_path: Path, full: bool) -> None:
    path = tmp_path / "loss.png"
    plot_losses(
        path,
        training=[(r, 6 - r / 20) for r in range(1, 61)] if full else [],
        heldout=[(r, 6.1 - r / 20) for r in range(0, 61, 5)] if full else [],
        events=[(20, "killed $x_"), (43, "joined"), (44, "gone")] if full else [],
        title="4 nodes",
    )
    assert png_size(path) == (1500, 900)
    assert 5_000 < path.stat().st_size < 1_000_000


def test_matplotlib_is_loaded_only_when_something_is_drawn() -> None:
    script = "import sys, distro_node.node.telemetry.plots; sys.exit('matplotlib' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0


def test_no_line_runs_through_the_label_of_another_event() -> None:
    assert labels_right([]) == []
    assert labels_right([20, 36, 45]) == [True, True, True]
    assert labels_right([20, 44, 45]) == [True, False, True]
    # Labels of the same round cannot be kept apart by a side.
    assert labels_right([44, 44]) == [True, True]
