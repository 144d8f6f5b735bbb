"""What a long command shows while it works: on a terminal a bar that moves, otherwise lines."""

from __future__ import annotations

import io
import re

import pytest
from distro_node.node.cli import stage_display as stage_display_module
from distro_node.node.cli.stage_display import StageLines, stage_display
from rich.console import Console


def test_a_stage_without_progress_counts_seconds() -> None:
    lines = StageLines()
    assert lines.due(0.0) is None
    assert lines.update("starting the trainer", 0, 1, 100.0) == "starting the trainer …"
    said = [line for tick in range(60) if (line := lines.due(100.0 + tick / 4)) is not None]
    assert said == ["starting the trainer: 5 s so far …", "starting the trainer: 10 s so far …"]
    assert lines.update("starting the trainer", 1, 1, 115.0) is None
    assert lines.due(200.0) is None


def test_a_stage_of_hours_has_a_share_and_fewer_lines() -> None:
    lines = StageLines()
    lines.update("reading the training data", 0, 4000, 0.0)
    said = []
    for second in range(1, 41):
        assert lines.update("reading the training data", 100 * second, 4000, second) is None
        said.append(lines.due(second))
    assert [line for line in said if line] == [
        "reading the training data: 38%, 15 s so far …",
        "reading the training data: 75%, 30 s so far …",
    ]


def test_lines_go_to_stderr_while_the_main_thread_works(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second line comes from a thread: the main one waits inside the stage."""
    monkeypatch.setattr(stage_display_module, "_INTERVAL_SECONDS", 0.0)
    monkeypatch.setattr(stage_display_module, "_TICK_SECONDS", 0.001)
    seen = ""
    with stage_display() as show:
        show("starting the trainer", 0, 1)
        while "s so far" not in seen:
            out, err = capsys.readouterr()
            assert out == ""
            seen += err
        show("starting the trainer", 1, 1)
    assert seen.startswith("starting the trainer …\nstarting the trainer: 0 s so far …\n")


@pytest.mark.parametrize("width", [20, 40, 80])
def test_on_a_terminal_there_is_a_bar_with_seconds(
    monkeypatch: pytest.MonkeyPatch, width: int
) -> None:
    terminal = io.StringIO()
    console = Console(file=terminal, force_terminal=True, width=width, color_system="standard")
    monkeypatch.setattr("rich.console.Console", lambda **_: console)
    with stage_display() as show:
        show("starting the trainer [of 1]", 0, 1)
    drawn = terminal.getvalue()
    line = next(line for line in drawn.splitlines() if "st" in line)
    shown = re.sub(r"\x1b\[[\d;?]*[A-Za-z]", "", line).rstrip()
    assert "━" in shown
    assert shown.endswith("0 s")
    assert len(shown) <= width
