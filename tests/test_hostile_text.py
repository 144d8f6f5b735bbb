"""Markup and terminal sequences in every name from strangers, and in model output: text stays text.

Each is used as a swarm's name, a peer, a sample of the model and a source of data, and is shown by
every output for people: the screen, `status`, the log, the page and the model card.
`test_sanitize.py` tests each output by itself.
"""

from __future__ import annotations

import json
import logging
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from dashboard.support import served
from distro_node.node.cli import status as status_command
from distro_node.node.control import command_socket
from distro_node.node.control.screen import Curves, screen_text
from distro_node.node.results.model_card import card
from distro_node.node.telemetry.logs import LOG_FILE, LogFormat, configure_logging
from distro_node.node.telemetry.status import EventStatus, MemberStatus, Status, encode_status
from distro_node.node.util.sanitize import harmless_piece
from distro_node.protocol.wire.manifest import SourceSpec
from distro_node.protocol.wire.structure import to_plain
from statuses import SWARM, TRAINING
from test_sanitize import is_harmless

pytestmark = pytest.mark.usefixtures("logging_as_it_was")

MARKUP = (
    "<script>alert(1)</script>",
    "</title><script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "<svg/onload=alert(1)>",
    "<iframe src=javascript:alert(1)>",
    '"><b onmouseover=alert(1)>x',
    "'-alert(1)-'",
    "${alert(1)}{{7*7}}",
    "[x](javascript:alert(1))",
    "![x](http://example.org/seen)",
    "<http://example.org>",
    "# heading",
    "`code` ``` fence",
    "<!-- hidden",
    "| a | b |",
    "&lt;script&gt;",
    "http://example.org www.example.org a@example.org ~~x~~",
)
LINES = ("x\n---\nlicense: evil\n---", "x\n## heading", "x\r\nforged: line", "x\u2028forged")
TERMINAL = (
    "\x1b[2J\x1b[H",
    "\x1b]0;owned\x07",
    "\x1b]52;c;cm0gLXJmIH4=\x07",
    "\x1b]8;;http://example.org\x1b\\click\x1b]8;;\x1b\\",
    "\x1bP$q\x1b\\",
    "\x9b31m\x9d0;owned\x9c",
    "\x1b[6n\x1b[c\x05",
    "safe\x08\x08\x08\x08evil",
    "shown\rhidden",
    "\u202egpj.exe",
    "[bold red]x[/] [link=http://example.org]y[/]",
    "a\u0300" * 30,
)
WORDS = (*MARKUP, *LINES, *TERMINAL)


def status_of(word: str) -> Status:
    """Return a status in which all names from strangers are this word."""
    stranger = MemberStatus(peer=word, me=False, connected=True, last_message_seconds=None)
    event = EventStatus(time=0.0, round=1, kind="joined", peer=word, text=word)
    swarm = replace(SWARM, name=word, members=(stranger,))
    return replace(TRAINING, swarm=swarm, events=(event,))


@pytest.mark.parametrize("word", WORDS)
def test_on_terminals(
    word: str, monkeypatch: pytest.MonkeyPatch, capsys: Any, tmp_path: Path
) -> None:
    lines = screen_text(status_of(word), Curves(), 200, 60).plain.split("\n")
    assert all(map(is_harmless, lines))
    answer = json.loads(json.dumps(encode_status(status_of(word))))
    monkeypatch.setattr(command_socket, "ask", lambda *_: answer)
    status_command.status(data_dir=tmp_path)
    shown = capsys.readouterr().out
    assert "\x1b" not in shown
    assert all(map(is_harmless, shown.split("\n")))


@pytest.mark.parametrize("form", list(LogFormat))
def test_in_the_log(form: LogFormat, capsys: Any, tmp_path: Path) -> None:
    configure_logging(log_format=form, folder=tmp_path)
    for word in WORDS:
        logging.getLogger("distro_node.x").info("%s says %s", word, word)
    lines = (tmp_path / LOG_FILE).read_text("utf-8").split("\n")
    assert len(lines) == len(WORDS) + 1
    assert all(map(is_harmless, lines))
    assert capsys.readouterr().err == "\n".join(lines)


async def test_on_the_page() -> None:
    """The page's script receives JSON, which no browser renders, and makes text of it
    (`dashboard/test_pages.py`)."""
    async with served() as page:
        for word in WORDS:
            page.status = status_of(word)
            reply = await page.ask("/api/status")
            assert dict(reply.headers)["content-type"].startswith("application/json")
            assert dict(reply.headers)["x-content-type-options"] == "nosniff"
            assert "script-src 'self'" in dict(reply.headers)["content-security-policy"]
            told = reply.json
            assert told["name"].isprintable()
            assert all(text.isprintable() for row in told["rows"] for text in row)


@pytest.mark.parametrize("word", WORDS)
def test_as_a_sample(word: str) -> None:
    shown = harmless_piece(word)
    assert all(line.isprintable() for line in shown.replace("\t", " ").split("\n"))


def facts_of(word: str) -> dict[str, Any]:
    source = SourceSpec(name=word, documents=1, tokens=2, share=1.0)
    return {
        "name": word,
        "swarm": "swarm-abc",
        "round": 2,
        "last_round": 4,
        "record": "00",
        "agreed": True,
        "fingerprint": "0",
        "snapshot": None,
        "parameters": 10,
        "adapter": None,
        "task": "causal-lm",
        "heldout_loss": 2.0,
        "losses": {"training": [[1, 3.0], [2, 2.5]], "heldout": [[1, 3.0], [2, 2.0]]},
        "evaluations": [],
        "founder": "12D3Koo",
        "trained": {"rounds": 2, "tokens": 4, "members": []},
        "data": {
            "sequence_length": 8,
            "vocabulary": 9,
            "tokens": 100,
            "heldout_tokens": 10,
            "shards": 1,
            "mirrors": [],
            "sources": [to_plain(source, named=True)],
        },
    }


@pytest.mark.parametrize("word", WORDS)
def test_on_the_model_card(word: str) -> None:
    page, plain = (card(facts_of(each), {"model_type": "llama"}) for each in (word, "plain"))
    # As many lines as with a harmless name: none begins a heading, a table or its own metadata.
    assert len(page.split("\n")) == len(plain.split("\n"))
    head = page.split("---\n")[1]
    assert yaml.safe_load(head) == yaml.safe_load(plain.split("---\n")[1])
    assert all(line.isprintable() for line in page.split("\n"))
    # Everything that begins a tag, an entity, a link or code is preceded by a backslash.
    written = "\n".join(
        line for line, same in zip(page.split("\n"), plain.split("\n"), strict=True) if line != same
    )
    assert not re.search(r"(?<!\\)(?:\\\\)*[<&`\[\]~]|http:|www\.", written), written
