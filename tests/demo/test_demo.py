"""The demo's parts: its plan, its directory, its processes, and its conclusions from histories."""

from __future__ import annotations

import io
import json
import re
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
from distro_node.node.create.manifest_file import read_manifest_file
from distro_node.node.demo import processes as processes_module
from distro_node.node.demo import view as view_module
from distro_node.node.demo.folder import claim
from distro_node.node.demo.history import History
from distro_node.node.demo.outcome import DemoRun, Event, NodeRun, check, reduction, summarise
from distro_node.node.demo.plan import (
    MIN_ROUNDS,
    TEXT_BYTES,
    DemoPlan,
    collect_text,
    manifest_text,
    write_tokenizer,
)
from distro_node.node.demo.processes import Processes, Program
from distro_node.node.demo.view import DemoPicture, NodeRow, View, print_results, view_text
from distro_node.node.errors import ExitCode, UserError
from rich.console import Console
from statuses import TRAINING
from tokenizers import Tokenizer

PLAN = DemoPlan(nodes=3, rounds=12, victim=3)
PARAMETERS = 1000


# The plan


def test_events_have_rounds_between_them() -> None:
    for rounds in (*range(MIN_ROUNDS, 100), 1000):
        plan = DemoPlan(nodes=4, rounds=rounds, victim=4)
        points = [0, plan.kill_round, plan.join_round, plan.bootstrap_round, rounds]
        assert points == sorted(set(points))


@pytest.mark.parametrize("rounds", [MIN_ROUNDS, 12, 60, 1000])
def test_the_manifest_file_is_a_valid_one(tmp_path: Path, rounds: int) -> None:
    path = tmp_path / "manifest.toml"
    path.write_text(manifest_text(DemoPlan(nodes=5, rounds=rounds, victim=5)))
    file = read_manifest_file(path)
    assert file.rounds.start_members == 5
    assert file.rounds.sequences >= 5
    assert file.schedule.total_rounds == rounds


def test_only_a_node_that_is_there_can_be_the_victim() -> None:
    with pytest.raises(UserError) as caught:
        DemoPlan(nodes=3, rounds=12, victim=4)
    assert caught.value.code is ExitCode.USAGE


def test_the_text_is_bounded_and_the_same_every_time(tmp_path: Path) -> None:
    sizes = {collect_text(tmp_path / name) for name in ("a", "b")}
    assert len(sizes) == 1
    assert TEXT_BYTES / 2 < sizes.pop() <= TEXT_BYTES
    # Prose, not code.
    text = "".join(path.read_text() for path in (tmp_path / "a").rglob("*.txt"))
    assert all(line.endswith(".") for line in text.splitlines())
    assert len(re.findall(r"[A-Za-z]+", text)) > TEXT_BYTES / 20
    names = [
        sorted(path.relative_to(tmp_path / name) for path in (tmp_path / name).rglob("*.txt"))
        for name in ("a", "b")
    ]
    assert names[0] == names[1]
    assert not any("site-packages" in path.parts for path in names[0])


# The directory


def test_a_foreign_directory_is_refused_and_untouched(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(UserError) as caught, claim(tmp_path):
        pass
    assert caught.value.code is ExitCode.DATA_DIR
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_a_file_is_refused(tmp_path: Path) -> None:
    place = tmp_path / "out"
    place.write_text("a file")
    with pytest.raises(UserError), claim(place):
        pass
    assert place.read_text() == "a file"


def test_an_earlier_demo_is_replaced_but_for_what_is_not_its_own(tmp_path: Path) -> None:
    out = tmp_path / "out"
    with claim(out) as folder:
        folder.summary.write_text("{}")
        folder.node(1).create()
    (out / "notes.txt").write_text("mine")
    with claim(out) as folder:
        assert not folder.summary.exists()
        assert not folder.node(1).root.exists()
        assert folder.text.is_dir()
    assert (out / "notes.txt").read_text() == "mine"


def test_one_demo_at_a_time_uses_a_directory(tmp_path: Path) -> None:
    with claim(tmp_path) as folder:
        folder.summary.write_text("{}")
        with pytest.raises(UserError) as caught, claim(tmp_path):
            pass
        assert caught.value.code is ExitCode.DATA_DIR_LOCKED
        assert folder.summary.exists()


# Processes


@pytest.mark.e2e
def test_no_process_outlives_the_context(tmp_path: Path) -> None:
    config = tmp_path / "config.toml"
    config.write_text("")
    started: list[Program] = []

    def fail_while_it_runs() -> None:
        with Processes(tmp_path, config) as processes:
            program = processes.start(
                "bootstrap",
                *("bootstrap", "--json", "--listen", "/ip4/127.0.0.1/tcp/0"),
                *("--data-dir", str(tmp_path / "data")),
            )
            started.append(program)
            while (printed := program.printed()) is None:
                assert program.code is None, program.last_lines()
                time.sleep(0.05)
            assert "/p2p/" in printed["addresses"][0]
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail_while_it_runs()
    assert started[0].code == -9
    assert not psutil.pid_exists(started[0].pid)


def test_the_last_lines_are_for_people(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # This program is not killed: it ends by itself, after its imports.
    monkeypatch.setattr(processes_module, "_GONE_SECONDS", 60.0)
    config = tmp_path / "config.toml"
    config.write_text("")
    with Processes(tmp_path, config) as processes:
        program = processes.start("mistake", "join", "swarm-nonsense")
        program.wait_gone()
        assert program.code == ExitCode.BAD_SWARM_ID
        assert any(line.startswith("error: ") for line in program.last_lines())
        program.log.write_text('{"level": "info", "message": "one\\u001b[2J"}\nnot JSON\n[1]\n')
        assert program.last_lines() == ["info: one\\x1b[2J", "not JSON", "[1]"]


# Histories


def test_a_history_is_read_as_it_grows(tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    history = History(path)
    history.update()
    assert history.last_round == 0
    with path.open("a") as file:
        file.write('{"round": 1, "loss": 5.0, "fingerprint": "aa"}\n{"round": 2, "lo')
        file.flush()
        history.update()
        assert history.last_round == 1
        file.write(
            'ss": 4.0, "fingerprint": "bb"}\n{"round": 2, "heldout": 4.5}\nrubbish\n[]\n{}\n'
        )
        file.write('{"round": 3, "heldout": 4.4}\n{"round": 1, "loss": 5.5}\n')
    history.update()
    assert history.values("loss") == {1: 5.5, 2: 4.0}
    assert history.values("heldout") == {2: 4.5, 3: 4.4}
    # A round with only a measurement in its line was not applied.
    assert history.last_round == 2


# Conclusions from histories


def history(rounds: range, counted: dict[int, list[str]], changes: dict[int, Any]) -> History:
    made = History()
    for round_ in rounds:
        peers = counted.get(round_, [])
        facts = {
            "round": round_,
            "members": max(1, len(peers)),
            "counted": peers,
            "loss": 6 - round_ / 10 if peers else None,
            "update_bytes": 100 if peers else None,
            "bits_per_coefficient": 10.0 if peers else None,
            "received_bytes": 100 * (len(peers) - 1) if peers else 0,
            "fingerprint": f"{round_:016x}",
        }
        if round_ % 5 == 0:
            facts["heldout"] = 6 - round_ / 10
        made.add([json.dumps(facts | changes.get(round_, {})).encode()])
    return made


def run_of(**changes: Any) -> DemoRun:
    """Return a run of three nodes that keeps all promises, except for `changes`."""
    counted = {r: ["A", "B", "C"] for r in range(1, 5)}
    counted |= {r: ["A", "B"] for r in range(5, 9)}
    counted |= {r: ["A", "B", "D"] for r in range(9, 13)}
    ends = {"A": "left", "B": "left", "C": "killed", "D": "left"} | changes.pop("ends", {})
    spans = {"A": range(13), "B": range(13), "C": range(5), "D": range(8, 13)}
    spans |= changes.pop("spans", {})
    lines = changes.pop("lines", {})
    events = changes.pop(
        "events",
        [
            Event(kind="killed", round=4, peer="C"),
            Event(kind="started", round=6, peer="D"),
            Event(kind="bootstrap_killed", round=8, peer=None),
            Event(kind="joined", round=9, peer="D"),
        ],
    )
    nodes = [
        NodeRun(
            number=number,
            peer=peer,
            exit=ends[peer],
            history=history(spans[peer], counted, lines.get(peer, {})),
        )
        for number, peer in enumerate("ABCD", 1)
    ]
    facts: dict[str, Any] = {
        "trainer_gone_seconds": 0.2,
        "seconds": 60.04,
        "parameters": PARAMETERS,
    }
    return DemoRun(plan=PLAN, nodes=nodes, events=events, **(facts | changes))


def failed(run: DemoRun) -> list[str]:
    return [item.what for item in check(run) if not item.passed]


def test_a_good_run_passes_all_checks() -> None:
    assert failed(run_of()) == []
    assert len(check(run_of())) == 7


def test_the_summary_of_a_good_run() -> None:
    # In round 5 a member sent nothing, so the others received less: that round must not be measured.
    summary = summarise(run_of(lines={"A": {5: {"members": 3}}, "B": {5: {"members": 3}}}))
    assert summary["rounds"] == 12
    assert summary["members"] == 3
    assert summary["members_by_round"][3:6] == [[4, 3], [5, 3], [6, 2]]
    assert summary["heldout_loss"] == [[0, 6.0], [5, 5.5], [10, 5.0]]
    assert summary["training_loss"][0] == [1, 5.9]
    assert len(summary["training_loss"]) == 12
    assert summary["update_bytes"] == 100
    assert summary["bits_per_coefficient"] == pytest.approx(10)
    # Only rounds with three members, and 2 bytes × 1,000 parameters × 2 others for all-reduce.
    assert summary["received_bytes_per_round"] == 200
    assert summary["dense_bytes_per_round"] == 4000
    assert reduction(summary) == 20
    assert summary["seconds"] == 60.0
    assert summary["events"][0] == {"kind": "killed", "round": 4, "peer": "C"}
    newcomer = summary["nodes"][3]
    assert newcomer == {
        "name": "node-4",
        "peer_id": "D",
        "first_round": 9,
        "last_round": 12,
        "rounds_contributed": 4,
        "final_fingerprint": f"{12:016x}",
        "exit": "left",
    }
    json.dumps(summary, allow_nan=False)


@pytest.mark.parametrize(
    ("changes", "promise"),
    [
        ({"lines": {"B": {12: {"fingerprint": "f" * 16}}}}, "same parameters"),
        ({"lines": {"C": {2: {"fingerprint": "f" * 16}}}}, "same parameters"),
        ({"spans": {"B": range(12)}}, "completes all rounds"),
        ({"ends": {"B": "failed with exit code 1"}}, "completes all rounds"),
        ({"ends": {"B": "running"}}, "completes all rounds"),
        ({"trainer_gone_seconds": None}, "trainer ends"),
        ({"lines": {"A": {10: {"heldout": 6.5}}, "B": {10: {"heldout": 6.5}}}}, "loss falls"),
        ({"spans": {"D": range(0)}}, "newcomer"),
        ({"events": []}, "is killed with SIGKILL"),
        ({"events": []}, "bootstrap peer is killed"),
        ({"events": [Event(kind="bootstrap_killed", round=12, peer=None)]}, "bootstrap peer"),
    ],
)
def test_each_broken_promise_is_noticed(changes: dict[str, Any], promise: str) -> None:
    assert any(promise in what for what in failed(run_of(**changes)))


def test_a_run_that_never_began_can_be_summed_up() -> None:
    run = DemoRun(
        plan=PLAN, parameters=0, nodes=[], events=[], trainer_gone_seconds=None, seconds=1.0
    )
    summary = summarise(run)
    assert summary["rounds"] == 0
    assert reduction(summary) is None
    assert len(failed(run)) == 7
    print_results(summary, check(run), {})


# Display


def picture(nodes: int, happened: int) -> DemoPicture:
    return DemoPicture(
        doing="training",
        seconds=61.0,
        round=20,
        rounds=60,
        training=[6 - n / 10 for n in range(20)],
        heldout=[(0, 5.6), (5, 4.7)],
        bootstrap="introduces nodes to each other",
        nodes=[
            NodeRow(
                name=f"node-{n}",
                peer="12D3KooWabcdef" if n % 2 else None,
                state="training\x1b",
                round=20,
                contributed=19,
                line=None if n % 2 else TRAINING.line,
            )
            for n in range(nodes)
        ],
        happened=[(float(n), f"happening {n}") for n in range(happened)],
    )


@pytest.mark.parametrize("nodes", [0, 5, 64])
@pytest.mark.parametrize("happened", [0, 100])
def test_the_picture_fits(nodes: int, happened: int) -> None:
    lines = view_text(picture(nodes, happened), 80, 24).split("\n", allow_blank=True)
    assert len(lines) <= 23
    assert all(line.cell_len <= 80 and line.plain.isprintable() for line in lines)
    if nodes == 5 and happened:
        assert lines[-1].plain == "  99 s  happening 99"
        assert "…" not in "".join(line.plain for line in lines)


@pytest.mark.parametrize("width", [40, 60])
def test_on_a_phone_the_picture_has_fewer_columns(width: int) -> None:
    what = "after round 20: node-2 was killed with SIGKILL, and the others go on without it"
    shown = replace(picture(3, 0), happened=[(5.0, what)], doing=what)
    lines = view_text(shown, width, 40).plain.split("\n")
    assert all(len(line) <= width and "…" not in line for line in lines)
    assert " ".join(" ".join(lines).split()).count(what) == 2
    (heading,) = [line.split() for line in lines if "state" in line.split()]
    traffic = ["sent", "received"] if width == 60 else []
    assert heading == ["state", "round", "counted", *traffic]
    rows = [line.split() for line in lines if line.startswith("node-")]
    assert [row[2:4] for row in rows] == 3 * [["20", "19"]]


def test_without_a_terminal_only_news_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    with View() as view:
        view.show(picture(2, 1))
        view.show(picture(2, 1))
        view.show(picture(2, 2))
    assert capsys.readouterr().err.splitlines() == [
        "  61 s  training",
        "   0 s  happening 0",
        "  61 s  round 20/60: training loss 4.100, held-out 4.700 (round 5)",
        "   1 s  happening 1",
    ]


def test_on_a_terminal_the_picture_is_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = io.StringIO()
    console = Console(file=terminal, force_terminal=True, width=80, height=24)
    monkeypatch.setattr(view_module, "Console", lambda **_: console)
    with View() as view:
        view.show(picture(2, 1))
    output = terminal.getvalue()
    assert "happening 0" in output
    assert output.rfind("\x1b[?25h") > output.rfind("\x1b[?25l")


def test_the_results_name_what_failed(capsys: pytest.CaptureFixture[str]) -> None:
    run = run_of(spans={"B": range(12)})
    print_results(summarise(run), check(run), {"plot": Path("out/loss.png")})
    output = capsys.readouterr().out
    assert "✗" in output
    assert "20 × as much" in output
    assert "out/loss.png" in output


def test_the_results_end_with_what_the_model_writes(capsys: pytest.CaptureFixture[str]) -> None:
    run = run_of()
    print_results(summarise(run), check(run), {}, "class A:\n    x\x1b[2J = [red]\n" * 40)
    shown = capsys.readouterr().out
    assert "    class A:\n" in shown
    # What a terminal would obey is replaced, and what that means is said.
    assert "\x1b[2J" not in shown
    assert "[red]" in shown
    assert "stands for bytes that are no text" in shown
    assert len(shown.splitlines()) < 60


def test_the_demo_s_tokenizer_makes_words(tmp_path: Path) -> None:
    text = tmp_path / "text"
    text.mkdir()
    (text / "a.txt").write_text("Return the value of the function.\n" * 50)
    write_tokenizer(text, tmp_path / "tokenizer.json")
    made = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    prose = "Return the value of the function.\n"
    assert len(made.encode(prose).ids) < len(prose) / 3
    # Any text can be written and read back, also what did not occur.
    assert made.decode(made.encode("ünder 🐝").ids) == "ünder 🐝"
