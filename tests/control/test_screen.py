"""The screen of `join`: it fits, it survives missing status fields, and untrusted text cannot draw."""

from __future__ import annotations

import errno
import io
import itertools
import logging
from dataclasses import replace
from types import SimpleNamespace
from typing import get_args

import pytest
import trio.testing
from distro_node.node.cli import options
from distro_node.node.control import screen
from distro_node.node.control.screen import Curves, screen_text, show_screen
from distro_node.node.control.status_rows import rows
from distro_node.node.control.terminal import redraws, sparkline
from distro_node.node.demo.view import View
from distro_node.node.network.cancel_scopes import open_scope
from distro_node.node.settings.components import ConsoleSettings
from distro_node.node.telemetry.messages import starting_trainer, state_sentence
from distro_node.node.telemetry.status import (
    Hold,
    Losses,
    MemberStatus,
    State,
    Status,
)
from distro_node.node.telemetry.telemetry import Telemetry
from distro_node.node.util.progress import Progress
from distro_node.node.util.size_text import size_text
from rich.console import Console
from simulation.swarm import identity
from statuses import AWAITING, CHECKS, EARLY, LEFT_OUT, SWARM, TRAINING, UNREACHABLE

STARTING = replace(EARLY, progress=starting_trainer(12.0))


def drawn(status: Status, width: int = 80, height: int = 24) -> list[str]:
    """Return the lines of the screen, limited to its size."""
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
        "14 counted since round 3",
        # 2 bytes × 857,216 parameters × 2 others, and by how much that exceeds 6,120 bytes.
        "3.43 MB, 560 ×",
        "CCCCCC (heard 12 s ago)",
        "214 W, 0.500 kWh",
        "4.5 J a token",
        "event 49",
        "Ctrl-C",
    ):
        assert part in text


def test_audits_have_a_line_where_they_are_on() -> None:
    assert not any(line.startswith("your audits") for line in drawn(TRAINING))
    checked = replace(TRAINING, swarm=replace(SWARM, audits=CHECKS))
    (line,) = [line for line in drawn(checked) if line.startswith("your audits")]
    assert "12, 1 low" in line
    assert line.endswith("of your work, by other members")
    out = replace(TRAINING, swarm=replace(SWARM, audits=replace(CHECKS, own=LEFT_OUT)))
    text = " ".join(" ".join(drawn(out)).split())
    (why,) = [row.note for row in rows(out) if row.name == "your updates"]
    assert "recomputed your samples" in why
    assert f"your updates do not count {why}" in text


def told(status: Status, name: str) -> list[tuple[str, str]]:
    return [(row.value, row.note) for row in rows(status) if row.name == name]


def test_energy_that_nobody_measured_is_no_zero() -> None:
    why = "the trainer computes on no GPU now"
    early = replace(EARLY, energy=replace(EARLY.energy, why=why))
    assert told(early, "power") == [("–", why)]
    assert told(early, "energy") == [("–", "nothing could be measured")]
    assert told(TRAINING, "power") == [("214 W", "of the GPU, including other programs")]
    whole = replace(TRAINING.energy, kwh=123.456)
    assert told(replace(TRAINING, energy=whole), "energy") == [
        ("214 W, 123.5 kWh", "4.5 J a token")
    ]
    part = replace(whole, measured=0.5, joules_per_token=None)
    assert told(replace(TRAINING, energy=part), "energy") == [
        ("214 W, 123.5 kWh", "partly measured")
    ]


def test_a_pause_reports_its_cause() -> None:
    hold = Hold(kind="command", text="it is dear", waived=False)
    paused = replace(
        TRAINING,
        state="paused",
        schedule=replace(TRAINING.schedule, at_work=False, holds=(hold,)),
    )
    assert f"{hold.text}: this node uses neither the device nor the network" in "\n".join(
        drawn(paused, width=120)
    )
    assert told(paused, "held back") == [(hold.text, "the node resumes by itself")]
    waived = replace(paused.schedule, holds=(replace(hold, waived=True),))
    assert hold.text not in "\n".join(drawn(replace(paused, schedule=waived), width=120))
    assert told(replace(paused, schedule=waived), "held back") == [
        (hold.text, "overridden by your `resume`")
    ]


def test_who_cannot_be_called_reads_what_helps() -> None:
    assert "open TCP" not in "\n".join(drawn(TRAINING))
    lines = drawn(replace(TRAINING, reach=UNREACHABLE))
    assert any("reachable through a relay" in x and x.endswith("open TCP 65535") for x in lines)
    alone = drawn(replace(TRAINING, reach=replace(UNREACHABLE, relays=())))
    assert any("not reachable from outside" in x and x.endswith("or --bootstrap") for x in alone)


def test_no_line_is_cut_at_eighty_columns() -> None:
    assert not any("…" in line for line in drawn(TRAINING))


@pytest.mark.parametrize("width", [40, 60])
@pytest.mark.parametrize("status", [TRAINING, AWAITING, EARLY, STARTING])
def test_a_phone_shows_everything_that_matters(status: Status, width: int) -> None:
    """The rows were cut at the right edge: of the loss, the energy and the page remained a part."""
    lines = drawn(status, width, height=48)
    joined = " ".join(" ".join(lines).split())
    # Alone it stands for a name that is not known yet.
    assert not any(line.endswith("…") for line in lines if line != "…")
    assert state_sentence(status) in joined
    assert f"you are {status.node.peer[-6:]}, up" in joined
    shown = {row.name: row for row in rows(status)}
    for name in ("round", "members", "tokens", "your rounds", "traffic", "energy", "model"):
        assert f"{name} {shown[name].value}" in joined, name
    if status.reach is not None:
        assert f"{shown['reach'].value} {shown['reach'].note}" in joined
    if status.progress is not None:
        assert status.progress.what in joined
    if status.node.dashboard is not None:
        assert f"Page: {status.node.dashboard}" in lines
    assert lines[-1] == "Ctrl-C leaves politely; nothing is lost."


def test_why_a_share_is_small_is_read_on_a_phone_too() -> None:
    assert SWARM.members is not None
    me = replace(SWARM.members[0], share_reason="grows carefully: came late")
    lines = drawn(replace(TRAINING, swarm=replace(SWARM, members=(me,))), 40, 48)
    assert "(grows carefully: came late)" in " ".join(" ".join(lines).split())


def test_a_low_screen_loses_the_less_important_rows_first() -> None:
    names = [
        {line[:14].strip() for line in drawn(TRAINING, 40, height) if line[:1].isalpha()}
        for height in range(14, 40)
    ]
    assert {"round", "members", "loss", "peers"} <= names[0]
    assert "instead of" not in names[0]
    assert "instead of" in names[-1]
    assert all(fewer <= more for fewer, more in itertools.pairwise(names))


def test_wide_letters_are_measured_in_cells() -> None:
    status = replace(TRAINING, swarm=replace(SWARM, name="群" * 30))
    lines = drawn(status, width=41, height=48)
    assert lines[0] == "群" * 20
    assert "群" * 10 in lines[1]


def test_a_start_of_unknown_length_moves() -> None:
    def bar(seconds: float) -> str:
        status = replace(STARTING, progress=starting_trainer(seconds))
        text = screen_text(status, Curves(), 80, 24)
        (line,) = [line for line in text.split("\n") if "starting the trainer" in line.plain]
        assert f"{seconds:.0f} s so far" in line.plain
        return str(line.spans)

    assert len({bar(seconds) for seconds in (1, 2, 3, 4)}) == 4


def test_next_to_nothing_may_be_known() -> None:
    lines = drawn(EARLY)
    assert "38% fetching the model" in "\n".join(lines)
    assert not any("None" in line or "nan" in line for line in lines)
    # No number is shown where none is known.
    for name in ("round", "members", "loss", "held-out loss", "update", "received", "instead of"):
        (line,) = (line for line in lines if line.startswith(name.ljust(14)))
        assert line.split(name)[1].strip().startswith("–"), line


@pytest.mark.parametrize("state", get_args(State))
def test_every_state_is_explained(state: State) -> None:
    progress = Progress(what="fetching the model", done=3, total=12)
    status = replace(TRAINING, state=state, progress=progress)
    text = "\n".join(drawn(status))
    assert state_sentence(status) in text
    assert "25% fetching the model" in text


@pytest.mark.parametrize("total", [0, None, -1])
def test_a_progress_without_total_is_shown(total: int | None) -> None:
    progress = Progress(what="fetching", done=5, total=total)
    assert "fetching" in "\n".join(drawn(replace(TRAINING, progress=progress)))


def test_whom_the_swarm_waits_for_is_shown_whole() -> None:
    lines = drawn(AWAITING)
    assert "waiting for CCCCCC, silent for 12 s of a lease of 20 s" in lines[1]


@pytest.mark.parametrize("height", [2, 5, 12, 24, 100])
@pytest.mark.parametrize("width", [20, 80, 300])
def test_it_fits_with_a_crowd_of_members(width: int, height: int) -> None:
    members = tuple(
        MemberStatus(
            peer=f"12D3KooW{n:06}", me=n == 0, connected=n % 3 > 0, last_message_seconds=5.0
        )
        for n in range(256)
    )
    lines = drawn(replace(TRAINING, swarm=replace(SWARM, members=members)), width, height)
    if (width, height) == (80, 24):
        assert any("more" in line for line in lines)
        assert "Ctrl-C" in lines[-1]


def after(round_: int, loss: float | None) -> Status:
    losses = Losses(training=loss, heldout=5.5, heldout_round=0)
    return replace(TRAINING, training=replace(TRAINING.training, round=round_, losses=losses))


def test_curves_take_each_round_once() -> None:
    curves = Curves()
    for round_, loss in [(1, 5.0), (1, 5.0), (2, 4.0), (3, None), (4, 4.0)]:
        curves.take(after(round_, loss))
    assert list(curves.training) == [5.0, 4.0, 4.0]
    assert list(curves.heldout) == [5.5]


async def show(statuses: list[Status]) -> None:
    """Show these statuses one after the other, then cancel the screen."""
    remaining = itertools.chain(statuses)
    with open_scope() as scope:

        def status() -> Status:
            try:
                return next(remaining)
            except StopIteration:
                scope.cancel()
                return EARLY

        await show_screen(status)


async def test_without_a_terminal_nothing_is_drawn(capsys: pytest.CaptureFixture[str]) -> None:
    await show([TRAINING])
    assert capsys.readouterr().err == ""


async def test_a_terminal_is_drawn_on_and_given_back(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: trio.testing.MockClock
) -> None:
    terminal = io.StringIO()
    console = Console(file=terminal, force_terminal=True, width=80, height=24)
    monkeypatch.setattr(screen, "Console", lambda **_: console)
    await show([TRAINING, after(18, 2.9)])
    output = terminal.getvalue()
    assert "2.9000" in output
    # The cursor is back: shown last, not hidden.
    assert output.rfind("\x1b[?25h") > output.rfind("\x1b[?25l")


async def test_a_terminal_that_is_gone_ends_no_node(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: trio.testing.MockClock
) -> None:
    class Gone(io.StringIO):
        def write(self, text: str) -> int:
            raise OSError(errno.EIO, "Input/output error")

    console = Console(file=Gone(), force_terminal=True, width=80, height=24)
    monkeypatch.setattr(screen, "Console", lambda **_: console)
    await show([TRAINING, after(18, 2.9)])


async def test_a_terminal_that_hangs_up_is_not_drawn_on_any_more(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: trio.testing.MockClock
) -> None:
    """What a program writes to a terminal that is gone may be discarded without an error."""

    class Terminal(io.StringIO):
        there = True

        def isatty(self) -> bool:
            return self.there

    terminal, asked = Terminal(), 0
    console = Console(file=terminal, _environ={"TERM": "xterm"}, width=80, height=24)
    monkeypatch.setattr(screen, "Console", lambda **_: console)

    def status() -> Status:
        nonlocal asked
        asked += 1
        terminal.there = asked < 2
        return TRAINING

    await show_screen(status)
    assert asked == 2


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


@pytest.mark.parametrize(
    ("term", "terminal", "drawn"),
    [("xterm", True, True), ("dumb", True, False), ("xterm", False, False)],
)
def test_where_nothing_can_be_redrawn_there_are_log_lines(
    monkeypatch: pytest.MonkeyPatch, term: str, terminal: bool, drawn: bool
) -> None:
    """`TERM=dumb` showed neither a screen nor a line for the first minute."""
    console = Console(
        file=io.StringIO(),
        force_terminal=terminal,
        _environ={"TERM": term, "COLUMNS": "80"},
    )
    assert redraws(console) is drawn
    monkeypatch.setattr("rich.console.Console", lambda **_: console)
    monkeypatch.setattr("distro_node.node.demo.view.Console", lambda **_: console)
    seen: list[bool] = []
    monkeypatch.setattr(options, "configure_logging", lambda *, screen, **_: seen.append(screen))
    options.prepare_to_run(ConsoleSettings(), SimpleNamespace(logs=None))  # type: ignore[arg-type]
    assert seen == [drawn]
    with View() as view:
        assert vars(view)["_live"] is not None if drawn else vars(view)["_live"] is None


def test_the_seconds_of_a_trainers_start_are_logged(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [100.0]
    monkeypatch.setattr("time.monotonic", lambda: clock[0])
    telemetry = Telemetry(identity(0).peer)
    with caplog.at_level(logging.INFO):
        for second in range(14):
            telemetry.report(starting_trainer(float(second)))
            clock[0] += 1
    assert caplog.messages == [
        "starting the trainer, which takes up to half a minute",
        "starting the trainer: 5 s so far",
        "starting the trainer: 10 s so far",
    ]


def test_what_takes_long_is_logged_now_and_then(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [100.0]
    monkeypatch.setattr("time.monotonic", lambda: clock[0])
    telemetry = Telemetry(identity(0).peer)
    with caplog.at_level(logging.INFO):
        for done in range(41):
            telemetry.report(Progress(what="the state of round 9", done=done, total=40))
            clock[0] += 1
        telemetry.report(Progress(what="replaying rounds"))
    assert caplog.messages == [
        "the state of round 9: 0 of 40",
        "the state of round 9: 15 of 40",
        "the state of round 9: 30 of 40",
        "replaying rounds",
    ]
