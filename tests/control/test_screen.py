"""The screen of `join`: it fits, it survives whatever a status lacks, and strangers cannot draw."""

from __future__ import annotations

import io
import itertools
from typing import Any

import pytest
import trio.testing
from distro_node.node.control import screen
from distro_node.node.control.screen import (
    Curves,
    progress_lines,
    screen_text,
    show_screen,
    state_sentence,
)
from distro_node.node.control.terminal import plain, size_text, sparkline
from distro_node.node.network.scopes import open_scope
from rich.console import Console

ME = "12D3KooWRwvjkGxUF6KC3rbtbQHNfmHL5VAFeCBbtYnshHRwn4H"

TRAINING: dict[str, Any] = {
    "version": "0.1.0",
    "peer": ME,
    "swarm": "swarm-abc",
    "name": "example",
    "state": "training",
    "progress": None,
    "round": 17,
    "members": [
        {"peer": ME, "me": True, "connected": True, "heard_seconds": None},
        {"peer": "12D3KooWaaaaaaBBBBBB", "me": False, "connected": True, "heard_seconds": 0.4},
        {"peer": "12D3KooWaaaaaaCCCCCC", "me": False, "connected": False, "heard_seconds": 12.0},
    ],
    "phase": "compute",
    "loss": 3.4567,
    "heldout": [15, 3.5],
    "tokens": 1_234_567,
    "fingerprint": "0123456789abcdef",
    "first_round": 3,
    "last_round": 17,
    "rounds_contributed": 14,
    "update_bytes": 3060.0,
    "bits_per_coefficient": 10.56,
    "received_bytes_per_round": 6120.0,
    "sent_bytes": 100_000,
    "received_bytes": 200_000,
    "peers_connected": 2,
    "addresses": ["/ip4/127.0.0.1/tcp/4001"],
    "metrics": None,
    "device": "cpu",
    "parameters": 857_216,
    "trainer_restarts": 0,
    "started": 1_000_000.0,
    "events": [
        {"time": 1e6 + n, "round": n, "kind": "joined", "peer": ME, "text": f"event {n}"}
        for n in range(50)
    ],
}


def drawn(status: dict[str, Any], width: int = 80, height: int = 24) -> list[str]:
    """The lines of the screen, after it was held to its size."""
    curves = Curves()
    curves.take(status)
    lines = screen_text(status, curves, width, height).split("\n", allow_blank=True)
    assert len(lines) < height
    assert all(line.cell_len <= width for line in lines)
    return [line.plain for line in lines]


def test_a_newcomer_reads_what_goes_on() -> None:
    text = "\n".join(drawn(TRAINING))
    for part in (
        "example",
        "your processor computes round 18's share",
        "3.4567",
        "3.5000",
        "1,234,567",
        "3.06 kB",
        "10.56 bits",
        "14 since round 3",
        # 2 bytes × 857,216 parameters × 2 others, and by how much that exceeds 6,120 bytes.
        "3.43 MB, 560 ×",
        "CCCCCC (heard 12 s ago)",
        "event 49",
        "Ctrl-C",
    ):
        assert part in text


def test_whoever_cannot_be_called_is_told_what_helps() -> None:
    reach = {"verdict": "unreachable", "relays": ["12D3KooWaaaaaaBBBBBB"], "port": 65535}
    assert "open TCP" not in "\n".join(drawn(TRAINING))
    lines = drawn(TRAINING | {"reach": reach})
    assert any("a relay carries you" in x and x.endswith("open TCP 65535") for x in lines)
    alone = "\n".join(drawn(TRAINING | {"reach": reach | {"relays": []}}))
    assert "outgoing calls alone" in alone
    assert drawn(TRAINING | {"reach": {"verdict": "unreachable"}})


def test_no_line_is_cut_at_eighty_columns() -> None:
    assert not any("…" in line for line in drawn(TRAINING))


@pytest.mark.parametrize("key", sorted(TRAINING))
def test_any_part_may_be_missing(key: str) -> None:
    drawn(TRAINING | {key: None})
    drawn({name: value for name, value in TRAINING.items() if name != key})


@pytest.mark.parametrize("status", [{}, dict.fromkeys(TRAINING), {"members": [{}], "events": [{}]}])
def test_next_to_nothing_may_be_known(status: dict[str, Any]) -> None:
    assert drawn(status)


@pytest.mark.parametrize("state", ["starting", "connecting", "syncing", "joining", "waiting"])
def test_every_state_is_explained(state: str) -> None:
    progress = {"what": "fetching the model", "done": 3, "total": 12}
    status = TRAINING | {"state": state, "progress": progress}
    assert len(state_sentence(status)) > 20
    text = "\n".join(drawn(status))
    assert state_sentence(status) in text
    assert "25% fetching the model" in text


@pytest.mark.parametrize("phase", ["compute", "transfer", "agree", "apply", "idle", None])
def test_every_phase_names_the_round_in_work(phase: str | None) -> None:
    assert "round 18" in state_sentence(TRAINING | {"phase": phase})


def test_the_device_is_called_what_it_is() -> None:
    assert "GPU" in state_sentence(TRAINING | {"device": "cuda:0 (some card)"})


@pytest.mark.parametrize("total", [0, None, -1])
def test_a_progress_without_total_is_shown(total: int | None) -> None:
    drawn(TRAINING | {"progress": {"what": "fetching", "done": None, "total": total}})


@pytest.mark.parametrize("height", [2, 5, 12, 24, 100])
@pytest.mark.parametrize("width", [20, 80, 300])
def test_it_fits_with_a_crowd_of_members(width: int, height: int) -> None:
    members = [
        {"peer": f"12D3KooW{n:06}", "me": n == 0, "connected": n % 3 > 0, "heard_seconds": 5.0}
        for n in range(256)
    ]
    lines = drawn(TRAINING | {"members": members}, width, height)
    if (width, height) == (80, 24):
        assert any("more" in line for line in lines)
        assert "Ctrl-C" in lines[-1]


def test_strangers_cannot_send_terminal_commands() -> None:
    evil = "\x1b[2J\x1b]0;owned\x07\n\r\x9b31m"
    event = {"time": 0, "round": 1, "kind": "joined", "peer": evil, "text": evil}
    status = TRAINING | {
        "name": evil,
        "events": [event],
        "device": evil,
        "fingerprint": evil,
        "members": [{"peer": evil}],
        "progress": {"what": evil, "done": 1, "total": 2},
    }
    assert all(line.isprintable() for line in drawn(status))


def test_curves_take_each_round_once() -> None:
    curves = Curves()
    for round_, loss in [(1, 5.0), (1, 5.0), (2, 4.0), (3, None), (4, 4.0)]:
        curves.take({"round": round_, "loss": loss, "heldout": [0, 5.5]})
    assert list(curves.training) == [5.0, 4.0, 4.0]
    assert list(curves.heldout) == [5.5]


def test_lines_for_logs() -> None:
    waiting = TRAINING | {"state": "waiting", "loss": None, "round": 0}
    assert len(progress_lines(None, waiting)) == 1
    assert progress_lines(waiting, waiting) == []
    lines = progress_lines(waiting, TRAINING)
    assert len(lines) == 2
    assert lines[0].startswith("training:")
    assert "round 17  loss 3.4567  held-out 3.5000 (round 15)  3 members" in lines[1]
    assert progress_lines({}, {}) == []
    assert progress_lines(TRAINING, dict.fromkeys(TRAINING))


async def show(statuses: list[dict[str, Any]]) -> None:
    """Show these statuses one after the other, then cancel the screen."""
    remaining = itertools.chain(statuses)
    with open_scope() as scope:

        def status() -> dict[str, Any]:
            try:
                return next(remaining)
            except StopIteration:
                scope.cancel()
                return {}

        await show_screen(status)


async def test_without_a_terminal_it_prints_lines(
    capsys: pytest.CaptureFixture[str], autojump_clock: trio.testing.MockClock
) -> None:
    await show([TRAINING, TRAINING, TRAINING | {"round": 18, "loss": 3.0}])
    lines = capsys.readouterr().err.splitlines()
    assert [line.partition(" ")[0] for line in lines[:2]] == ["training:", "round"]
    assert "round 18  loss 3.0000" in lines[1]


async def test_a_terminal_is_drawn_on_and_given_back(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: trio.testing.MockClock
) -> None:
    terminal = io.StringIO()
    console = Console(file=terminal, force_terminal=True, width=80, height=24)
    monkeypatch.setattr(screen, "Console", lambda **_: console)
    await show([TRAINING, TRAINING | {"round": 18, "loss": 2.9}])
    output = terminal.getvalue()
    assert "2.9000" in output
    # The cursor is back: shown last, not hidden.
    assert output.rfind("\x1b[?25h") > output.rfind("\x1b[?25l")


def test_sizes() -> None:
    assert [size_text(n) for n in (0, 999, 1000, 12_345, 3_060_000, 999_999, 4.8e9, 5e15)] == [
        "0 B", "999 B", "1 kB", "12.3 kB", "3.06 MB", "1 MB", "4.8 GB", "5000.0 TB",
    ]  # fmt: skip


def test_sparklines() -> None:
    assert sparkline([3.0, 2.0, 1.0], 10) == "█▅▁"
    assert sparkline([], 10) == ""
    assert sparkline([1.0], 0) == ""
    assert len(set(sparkline([2.0] * 5, 10))) == 1
    assert sparkline([float("nan"), 1.0, float("inf"), 2.0], 10) == "▁█"
    assert len(sparkline(list(range(1000)), 24)) == 24
    assert sparkline(list(range(1000)), 24) == "".join(sorted(sparkline(list(range(1000)), 24)))


def test_plain_text_has_no_commands() -> None:
    assert plain("a\x1b[2Jb\nc") == "a·[2Jb·c"
