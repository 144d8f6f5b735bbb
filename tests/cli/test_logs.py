"""Log lines: one per record, in the chosen form and places, and always bounded."""

from __future__ import annotations

import json
import logging
import re
from pathlib import Path

from distro_node.node.telemetry import logs
from distro_node.node.telemetry.logs import LOG_FILE, LogFormat, LogLevel, configure_logging


def test_text_lines_are_for_people(capsys, tmp_path: Path) -> None:
    configure_logging(folder=tmp_path)
    logging.getLogger("distro_node.x").info("round %d\x1b[2J\nforged line", 7)
    logging.getLogger("distro_node.x").debug("unseen")
    line = capsys.readouterr().err
    expected = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ INFO    round 7\\x1b\[2J\\nforged line\n"
    assert re.fullmatch(expected, line)
    assert (tmp_path / LOG_FILE).read_text() == line


def test_json_lines_are_for_machines(capsys) -> None:
    configure_logging(log_format=LogFormat.JSON, level=LogLevel.DEBUG)
    try:
        raise ValueError("é\n")
    except ValueError:
        logging.getLogger("x").exception("failed")
    (line,) = capsys.readouterr().err.splitlines()
    record = json.loads(line)
    assert (record["level"], record["logger"], record["message"]) == ("error", "x", "failed")
    assert "ValueError: é" in record["traceback"]


def test_a_screen_is_not_written_over(capsys, tmp_path: Path) -> None:
    configure_logging(folder=tmp_path, screen=True)
    logging.getLogger("x").warning("hello")
    assert capsys.readouterr().err == ""
    assert "hello" in (tmp_path / LOG_FILE).read_text()


def test_nothing_is_written_before_there_is_something_to_log(tmp_path: Path) -> None:
    configure_logging(folder=tmp_path, screen=True)
    assert list(tmp_path.iterdir()) == []


def test_the_files_are_bounded(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(logs, "MAX_LOG_BYTES", 10_000)
    configure_logging(folder=tmp_path, screen=True)
    for number in range(1000):
        logging.getLogger("x").info("line %d of some length, so that it adds up", number)
    files = sorted(path.name for path in tmp_path.iterdir())
    assert files == [LOG_FILE, f"{LOG_FILE}.1"]
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= 20_000
    assert "line 999" in (tmp_path / LOG_FILE).read_text()


def test_libraries_are_quiet_unless_one_looks_for_faults(capsys, monkeypatch) -> None:
    monkeypatch.delenv("DISTRO_NODE_DEBUG", raising=False)
    noisy = logging.getLogger("libp2p.host.test")
    noisy.setLevel(logging.INFO)
    configure_logging()
    noisy.error("a line broke")
    assert capsys.readouterr().err == ""
    configure_logging(level=LogLevel.DEBUG)
    noisy.error("a line broke")
    logging.getLogger("distro_node.x").debug("ours")
    lines = capsys.readouterr().err
    assert "ours" in lines
    assert "a line broke" not in lines
    monkeypatch.setenv("DISTRO_NODE_DEBUG", "1")
    configure_logging(level=LogLevel.DEBUG)
    noisy.debug("a line broke")
    assert "a line broke" in capsys.readouterr().err


def test_configuring_again_replaces(capsys) -> None:
    configure_logging()
    configure_logging()
    logging.getLogger("x").info("once")
    assert capsys.readouterr().err.count("once") == 1
