"""What a swarm can make a volunteer's terminal, log, metrics and files do: only show text.

One function sanitises foreign text; a test for each output shows that it is used there.
"""

from __future__ import annotations

import json
import logging
import os
import re
import socket
import struct
import subprocess
import sys
import threading
import unicodedata
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import trio
from distro_node.crypto.identity import Identity, peer_text
from distro_node.node.cli import status as status_command
from distro_node.node.cli.failures import explain
from distro_node.node.cli.main import main
from distro_node.node.control import command_socket
from distro_node.node.control.screen import Curves, screen_text
from distro_node.node.dashboard.address import open_metrics_address
from distro_node.node.dashboard.metrics_page import serve_metrics
from distro_node.node.demo.outcome import DemoPromise
from distro_node.node.demo.view import print_results
from distro_node.node.errors import ExitCode, UserError
from distro_node.node.network.traffic import TrafficTotals
from distro_node.node.results.export import check_target
from distro_node.node.telemetry.audit_status import ExcludedMember
from distro_node.node.telemetry.counts import NodeCounts
from distro_node.node.telemetry.logs import LOG_FILE, LogFormat, configure_logging
from distro_node.node.telemetry.metrics import NODE_METRICS
from distro_node.node.telemetry.own_rounds import RoundAttendance
from distro_node.node.telemetry.status import EventStatus, MemberStatus, encode_status
from distro_node.node.telemetry.telemetry import Telemetry
from distro_node.node.training import trainer_pipe
from distro_node.node.util.progress import Progress
from distro_node.node.util.sanitize import MAX_CHARACTERS, harmless, harmless_piece
from distro_node.protocol.wire.manifest import SwarmId
from distro_node.protocol.wire.swarm_id import SwarmIdError, parse_invite, swarm_text
from hypothesis import given
from hypothesis import strategies as st
from scraping import NOTHING, sample, series
from simulation.chain import Chain
from statuses import CHECKS, LEFT_OUT, SWARM, TRAINING
from trio.testing import wait_all_tasks_blocked

# Private here: `_log_output`: a trainer that writes such things would have to be made.
EVIL = (
    "\x1b[2J\x1b]0;owned\x07\x9b31m\r\n2026-01-01T00:00:00Z INFO    forged\u2028line"
    "\u202egnp.exe\u2066\u200bzero\ufeff\u034f\u3164 e"
    + "\u0301" * 40
    + "\U000e0001[link=x][/b]\ud800\x7f"
)

# Commands configure logging.
pytestmark = pytest.mark.usefixtures("logging_as_it_was")


def is_harmless(text: str) -> bool:
    """Whether a terminal shows it as one line of visible characters, in order."""
    return text.isprintable() and not re.search("[\u0300-\u036f]{5}", text)


@given(st.text())
def test_whatever_it_is_becomes_a_line_of_visible_characters(text: str) -> None:
    shown = harmless(text)
    assert is_harmless(shown)
    assert harmless(shown) == shown
    assert len(shown) <= MAX_CHARACTERS


@pytest.mark.parametrize(
    "text", ["Zürich läuft", "群れは学ぶ", "рой", "سرب", "🐝 swarm", "tone ế, ก้, שָׁלוֹם", "[b]x[/b]"]
)
def test_names_in_the_world_s_scripts_stay_as_they_are(text: str) -> None:
    assert harmless(text) == text


def test_what_nobody_sees_is_spelled_out() -> None:
    assert harmless("a\x1b[2Jb\nc") == "a\\x1b[2Jb\\nc"
    assert harmless("a\u202eb\u200bc\u3164d") == "a\\u202eb\\u200bc\\u3164d"
    assert len(harmless("x" * 10**6)) == MAX_CHARACTERS
    assert harmless("x" * 10**6).endswith("x…")


def test_a_text_of_many_lines_keeps_them() -> None:
    assert harmless_piece("eins\n\tzwei 🐝\ufe0f") == "eins\n\tzwei 🐝\ufe0f"
    shown = harmless_piece(EVIL)
    assert len(shown) == len(EVIL)
    assert all(map(str.isprintable, shown.split("\n")))
    assert shown.startswith("\ufffd[2J\ufffd]0;owned\ufffd\ufffd31m\ufffd\n")


def test_every_character_that_turns_or_hides_text_is_known() -> None:
    turning = {
        chr(n) for n in range(0x110000) if unicodedata.category(chr(n)) in ("Cf", "Zl", "Zp")
    }
    assert [c for c in turning if c in harmless(c)] == []


def evil_status() -> Any:
    event = EventStatus(time=0.0, round=1, kind="joined", peer=EVIL, text=EVIL)
    stranger = MemberStatus(peer=EVIL, me=False, connected=True, last_message_seconds=None)
    trainer = replace(TRAINING.training.trainer, device=EVIL)
    checks = replace(CHECKS, excluded=(ExcludedMember(peer=EVIL, reason=EVIL),), own=LEFT_OUT)
    return replace(
        TRAINING,
        swarm=replace(SWARM, name=EVIL, members=(stranger,), audits=checks),
        training=replace(TRAINING.training, fingerprint=EVIL, trainer=trainer),
        progress=Progress(what=EVIL, done=1, total=2),
        line=replace(TRAINING.line, addresses=(EVIL,)),
        events=(event,),
    )


def test_the_screen() -> None:
    lines = screen_text(evil_status(), Curves(), 200, 60).plain.split("\n")
    assert "owned" in lines[0]
    assert all(map(is_harmless, lines))


def test_the_status_command(monkeypatch: pytest.MonkeyPatch, capsys, tmp_path: Path) -> None:
    answer = json.loads(json.dumps(encode_status(evil_status())))
    monkeypatch.setattr(command_socket, "ask", lambda *_: answer)
    status_command.status(data_dir=tmp_path)
    shown = capsys.readouterr().out
    assert "owned" in shown
    assert all(map(is_harmless, shown.splitlines()))
    status_command.status(data_dir=tmp_path, json=True)
    shown = capsys.readouterr().out
    assert shown.isascii()
    assert len(shown.splitlines()) == 1


def test_error_lines(capsys) -> None:
    assert explain(UserError(ExitCode.MANIFEST, EVIL, EVIL)) == ExitCode.MANIFEST
    problem, remedy = capsys.readouterr().err.splitlines()
    assert problem.startswith("error: \\x1b[2J")
    assert is_harmless(problem)
    assert is_harmless(remedy)


def test_arguments_of_a_command_line_that_was_pasted(
    monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    monkeypatch.setenv("DISTRO_NODE_CONFIG", os.devnull)
    for words in (
        ["id", EVIL],
        ["id", f"--{EVIL}"],
        [EVIL],
        [f"--{EVIL}"],
        ["join", f"distro:{EVIL}"],
    ):
        with pytest.raises(SystemExit) as ended:
            main(words)
        assert ended.value.code in (ExitCode.USAGE, ExitCode.BAD_SWARM_ID)
        shown = capsys.readouterr().err
        assert "owned" in shown or "swarm" in shown
        assert all(map(is_harmless, shown.splitlines())), words


@pytest.mark.parametrize("form", list(LogFormat))
def test_the_log(form: LogFormat, capsys, tmp_path: Path) -> None:
    configure_logging(log_format=form, folder=tmp_path)
    log = logging.getLogger("distro_node.x")
    log.info("a peer said: %s", EVIL)
    try:
        raise ValueError(EVIL + "\n2026-01-01T00:00:00Z INFO    forged")
    except ValueError:
        log.exception("failed")
    log.info("x" * 10**6)
    shown = capsys.readouterr().err
    assert shown == (tmp_path / LOG_FILE).read_text("utf-8")
    lines = shown.splitlines()
    assert all(map(is_harmless, lines))
    assert not any(line.endswith("INFO    forged") and line[0] != " " for line in lines)
    assert len(lines[-1]) < 2 * MAX_CHARACTERS
    if form is LogFormat.JSON:
        assert shown.isascii()
        assert [json.loads(line)["level"] for line in lines] == ["info", "error", "info"]


def test_warnings_of_libraries_go_to_the_log(tmp_path: Path) -> None:
    # In a process of its own, since pytest collects warnings itself.
    program = (
        "import sys, warnings, pathlib\n"
        "from distro_node.node.telemetry.logs import configure_logging\n"
        "configure_logging(folder=pathlib.Path(sys.argv[1]), screen=True)\n"
        "warnings.warn(sys.argv[2])\n"
    )
    evil = EVIL.replace("\ud800", "")
    ended = subprocess.run(
        [sys.executable, "-c", program, tmp_path, evil], capture_output=True, check=True, text=True
    )
    assert (ended.stdout, ended.stderr) == ("", "")
    (line,) = (tmp_path / LOG_FILE).read_text("utf-8").splitlines()
    assert "owned" in line
    assert is_harmless(line)


def test_what_the_trainer_and_its_libraries_write(capsys, tmp_path: Path) -> None:
    configure_logging(folder=tmp_path)
    read, write = os.pipe()
    thread = threading.Thread(target=trainer_pipe._log_output, args=(read,))
    thread.start()
    with open(write, "wb") as words:
        words.write(EVIL.encode("utf-8", "surrogatepass") + b"\xff\xfe\n" + b"y" * 100_000)
    thread.join(10)
    shown = capsys.readouterr().err
    assert "owned" in shown
    assert all(map(is_harmless, shown.splitlines()))
    assert all(" WARNING trainer: " in line for line in shown.splitlines())


def test_metrics_have_no_text_of_a_stranger() -> None:
    before = [(name, labels) for name, labels, _ in series(NOTHING)]
    words = [f'{EVIL}"}} 1\nforged{{x="{number}' for number in range(100)]
    traffic, counts = TrafficTotals(), NodeCounts()
    for word in words:
        traffic.rejected[word] += 1
        traffic.sent[word] = traffic.received[word] = 1
        counts.events[word] += 1
        counts.audits.update({word: 1})
    reading = replace(NOTHING, traffic=traffic, counts=counts)
    assert [(name, labels) for name, labels, _ in series(reading)] == before
    assert sample(reading, "messages_rejected_total", reason="other") == 100


async def test_who_hangs_up_on_the_metrics_page_writes_nothing_to_our_terminal(capsys) -> None:
    address = open_metrics_address(("127.0.0.1", 0))
    port = address.listeners[0].socket.getsockname()[1]
    async with serve_metrics(address, NODE_METRICS, lambda: NOTHING):
        for _ in range(5):
            visitor = await trio.open_tcp_stream("127.0.0.1", port)
            await visitor.send_all(b"GET /metrics HTTP/1.0\r\n" + b"\x1b[2J: x\r\n" + b"\r\n")
            # Closed at once, with a reset, before the answer is sent.
            visitor.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            await trio.aclose_forcefully(visitor)
        await wait_all_tasks_blocked(0.1)
    assert capsys.readouterr().err == ""


def test_the_history_is_json_line_by_line(tmp_path: Path) -> None:
    chain = Chain(3)
    chain.grow()
    telemetry = Telemetry(chain.ledger.manifest.founder)
    telemetry.keep_history(tmp_path / "history.jsonl")
    record = chain.ledger[0].record
    telemetry.applied(record, 3, 9, 0.1, 1.0, attendance=RoundAttendance("counted"))
    telemetry.evaluated(0, float("nan"), 0)
    telemetry.evaluated(0, float("inf"), 0)
    text = (tmp_path / "history.jsonl").read_text()
    assert text.isascii()

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is no JSON")

    for line in text.splitlines():
        json.loads(line, parse_constant=refuse)


def test_a_table_takes_nothing_for_markup(capsys) -> None:
    cells = {
        "first_round": EVIL,
        "last_round": 1,
        "rounds_contributed": 1,
        "final_fingerprint": "x",
    }
    node = {"name": "[/b]", "peer_id": "[/b]", "exit": 0} | cells
    summary: dict[str, Any] = {
        **dict.fromkeys(("update_bytes", "received_bytes_per_round", "dense_bytes_per_round")),
        **dict.fromkeys(("rounds", "parameters", "seconds", "members"), 1),
        "nodes": [node],
    }
    print_results(summary, [DemoPromise(what="[/b]", passed=False, seen="[/b]" + EVIL)], {})
    assert "[/b]" in capsys.readouterr().out


@pytest.mark.parametrize("there", ["a file", "a dangling link", "a full folder", "a link to one"])
def test_an_export_writes_over_nothing(tmp_path: Path, there: str) -> None:
    full = tmp_path / "full"
    full.mkdir()
    (full / "thesis.txt").write_text("mine")
    target = tmp_path / "model"
    match there:
        case "a file":
            target.write_text("mine")
        case "a dangling link":
            target.symlink_to(tmp_path / "elsewhere")
        case "a full folder":
            target = full
        case "a link to one":
            target.symlink_to(full)
    with pytest.raises(UserError) as refused:
        check_target(target)
    assert refused.value.code == ExitCode.USAGE
    assert not (tmp_path / "elsewhere").exists()
    assert [path.name for path in full.iterdir()] == ["thesis.txt"]


EVIL_LINKS = [
    "distro:" + "x" * (100 << 20),
    "distro:{swarm}?bootstrap=/ip4/1.2.3.4/tcp/1%1b[2J/p2p/{peer}",
    "distro:{swarm}?bootstrap=/dns4/a%0aerror:%20forged/tcp/1/p2p/{peer}",
    "distro:{swarm}?bootstrap=/dns4/%e2%80%aegnp/tcp/1/p2p/{peer}",
    "distro:{swarm}?ticket=a&ticket=b",
    "distro:{swarm}?" + "&".join(["bootstrap=/ip4/10.0.0.1/tcp/1/p2p/{peer}"] * 17),
    "distro:{swarm}?%1b[2J=1",
    "distro:{swarm}?bootstrap=%ff",
    "distro:{swarm}\x1b[2J",
    "\x1b[2Jdistro:{swarm}",
]


@pytest.mark.parametrize("link", EVIL_LINKS, ids=range(len(EVIL_LINKS)))
def test_invite_links_are_refused_in_a_line(link: str) -> None:
    names = {
        "swarm": swarm_text(SwarmId(bytes(32))),
        "peer": peer_text(Identity.from_seed(bytes(32)).peer),
    }
    with pytest.raises(SwarmIdError) as refused:
        parse_invite(link.replace("{swarm}", names["swarm"]).replace("{peer}", names["peer"]))
    assert is_harmless(str(refused.value))
    assert len(str(refused.value)) < 500


def test_nothing_is_echoed_past_it(checkout: Path) -> None:
    """A new output must be considered here: only these files write to a terminal."""
    known = {
        "node/cli/bootstrap.py": "its own addresses",
        "node/cli/create.py": "what the founder made",
        "node/cli/dashboard.py": "its own address",
        "node/cli/export.py": "the user's own directory",
        "node/cli/failures.py": "harmless",
        "node/cli/identity.py": "the own peer id",
        "node/cli/invite.py": "a link that was checked and spelled anew",
        "node/cli/main.py": "the version",
        "node/cli/doctor.py": "harmless",
        "node/cli/fit.py": "harmless",
        "node/cli/update.py": "harmless",
        "node/cli/receipt.py": "harmless",
        "node/cli/serve.py": "its own address, key and model id",
        "node/cli/stage_display.py": "harmless",
        "node/cli/service.py": "the user's own words and places; the system's in errors",
        "node/cli/status.py": "harmless",
        "node/cli/swarms.py": "harmless",
        "node/cli/try_out.py": "a model's text, piece by piece; scores of the user's own tasks",
        "node/control/screen.py": "harmless",
        "node/control/terminal.py": "a console for what its callers have made harmless",
        "node/demo/__init__.py": "harmless",
        "node/demo/view.py": "harmless",
        "node/telemetry/logs.py": "harmless",
        "node/results/evaluation_worker.py": "into the command's own log",
        "node/doctor/computer.py": "a program of its own, for the doctor alone",
        "node/trainer/__main__.py": "into the node's log",
        "node/training/cuda_driver.py": "a program of its own, for the daemon alone: numbers",
        "node/training/sandbox.py": "a program of its own, for the doctor alone",
        "node/util/standard_streams.py": "flushes what others have written, and says when it cannot",
        "node/private_data/__main__.py": "JSON for the daemon, which shows it as its own",
    }
    outputs = re.compile(
        r"typer\.echo|\bprint\(|\bConsole\(|sys\.std(err|out)\b|lastResort"
        r"|streams import announce|stdout_console\("
    )
    writing = {
        path.relative_to(checkout).as_posix()
        for path in (checkout / "node").rglob("*.py")
        if outputs.search(path.read_text("utf-8"))
    }
    tests_only = {
        "node/cli/join.py",
        "node/cli/observe.py",
        "node/cli/options.py",
    }  # They ask whether there is a terminal.
    assert writing - tests_only - known.keys() == set()
    for name, why in known.items():
        assert why != "harmless" or "harmless(" in (checkout / name).read_text("utf-8"), name
