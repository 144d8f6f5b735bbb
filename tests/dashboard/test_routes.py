"""The page's data, which is the typed status and what is derived from it; and its own files."""

from __future__ import annotations

import io
import json
import re
import threading
import tomllib
from dataclasses import replace
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest
import segno
from dashboard.support import served
from distro_node.node.dashboard.routes import read_body
from distro_node.node.settings.components import DashboardSettings
from distro_node.node.telemetry.health import verdict
from distro_node.node.telemetry.status import NO_LINE, decode_status, encode_status
from statuses import (
    AWAITING,
    CHECKS,
    EARLY,
    MEMBERS,
    OBSERVING,
    OWN_CHECKS,
    SWARM,
    TRAINING,
    UNREACHABLE,
)

STATIC = Path(__file__).parents[2] / "node" / "dashboard" / "static"


async def test_the_page_gets_what_status_shows() -> None:
    async with served() as page:
        for status in (TRAINING, AWAITING, OBSERVING, EARLY):
            page.status = status
            told = (await page.ask("/api/status")).json
            assert decode_status(told["status"]) == status
            assert told["status"] == json.loads(json.dumps(encode_status(status)))
            assert told["verdict"]["sentence"]
            assert {name for name, _, _ in told["rows"]} >= {"state", "round", "loss"}
        # Not a swarm without members: they are unknown.
        assert told["name"] is None
        assert told["dense_bytes"] is None


async def test_a_strangers_text_is_sanitized() -> None:
    evil = "\x1b[2J\u202egnp.<img src=x onerror=alert(1)>"
    async with served() as page:
        page.status = replace(TRAINING, swarm=replace(SWARM, name=evil))
        told = (await page.ask("/api/status")).json
        assert told["name"].isprintable()
        assert all(text.isprintable() for row in told["rows"] for text in row)


def test_the_page_knows_the_fields_of_audits() -> None:
    script = (STATIC / "app.js").read_text("utf-8")
    tiles = script.partition("function checkTiles")[2].partition("}\n\n")[0]
    own = set(re.findall(r"\bown\.(\w+)", tiles))
    assert own
    assert own <= vars(OWN_CHECKS).keys()
    checks = set(re.findall(r"\bchecks\??\.(\w+)", script)) - {"own"}
    assert {"audits", "excluded", "voters"} <= checks <= vars(CHECKS).keys()
    assert 'id="checked"' in (STATIC / "index.html").read_text("utf-8")


def test_how_it_goes() -> None:
    assert verdict(TRAINING).tone == "good"
    assert verdict(TRAINING).remedy == ""
    waiting = verdict(AWAITING)
    assert waiting.tone == "warn"
    assert "12 s of a lease of 20 s" in waiting.sentence
    assert verdict(EARLY).tone == "busy"
    assert verdict(replace(TRAINING, state="connecting")).tone == "warn"
    paused = verdict(replace(TRAINING, state="paused"))
    assert (paused.tone, "resume" in paused.remedy) == ("rest", True)


def test_what_keeps_it_from_working_is_reported_with_a_remedy() -> None:
    alone = tuple(replace(member, connected=member.me) for member in MEMBERS)
    cut_off = replace(TRAINING, swarm=replace(SWARM, members=alone))
    own = replace(TRAINING.training.own, missed_in_a_row=12)
    late = replace(TRAINING, training=replace(TRAINING.training, own=own))
    closed = replace(TRAINING, reach=replace(UNREACHABLE, relays=()))
    for status, tone, word in (
        (cut_off, "bad", "connected to no other member"),
        (late, "warn", "your last 12 updates"),
        (closed, "warn", "not reachable"),
    ):
        said = verdict(status)
        assert said.tone == tone
        assert word in said.sentence
        assert said.remedy
    # A relay serves it: all is well.
    assert verdict(replace(TRAINING, reach=UNREACHABLE)).tone == "good"


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"", {}),
        (b"{}", {}),
        (b'{"active": null}', {"active": None}),
        (b"[]", None),
        (b"{", None),
        (b"\xff", None),
        (b"[" * 4000, None),
    ],
)
def test_arguments_of_a_command(body: bytes, words: object) -> None:
    assert read_body(body) == words


async def test_all_files_are_served_and_whole() -> None:
    async with served() as page:
        for path in STATIC.iterdir():
            reply = await page.ask("/" if path.name == "index.html" else f"/{path.name}")
            if path.name == "uplot.LICENSE":
                assert reply.status == 404
            else:
                assert (reply.status, reply.body) == (200, path.read_bytes()), path.name


def test_nothing_comes_from_elsewhere_and_no_text_becomes_markup() -> None:
    for path in STATIC.iterdir():
        text = path.read_text("utf-8")
        own = path.name in ("app.js", "charts.js", "words.js")
        if own or path.suffix == ".html":
            assert not re.search(r"(?:src|href|fetch|url)\W{1,3}(?:https?:)?//", text), path.name
        if own:
            for word in ("insertAdjacentHTML", "outerHTML", "document.write", "eval(", "Function("):
                assert word not in text, path.name
            # It may be read, to see whether something has changed, and never written.
            assert not re.search(r"innerHTML\s*=[^=]", text), path.name
    page = (STATIC / "index.html").read_text("utf-8")
    assert not re.search(r"<script(?![^>]*\bsrc=)", page)
    assert not re.search(r"\s(?:style|on\w+)=", page)


def test_the_chart_library_is_here_with_its_licence() -> None:
    licence = (STATIC / "uplot.LICENSE").read_text("utf-8")
    assert "MIT License" in licence
    assert "uPlot" in (STATIC / "uplot.js").read_text("utf-8")[:200]


def test_the_files_are_in_the_package(checkout: Path) -> None:
    project = tomllib.loads((checkout / "pyproject.toml").read_text("utf-8"))
    patterns = project["tool"]["setuptools"]["package-data"]["distro_node.node.dashboard"]
    for path in STATIC.iterdir():
        name = path.relative_to(STATIC.parent).as_posix()
        assert any(fnmatch(name, pattern) for pattern in patterns), name
    licences = project["project"]["license-files"]
    assert any(fnmatch("node/dashboard/static/uplot.LICENSE", each) for each in licences)


async def test_the_link_for_everybody_is_a_text_and_a_code() -> None:
    link = "distro:swarm-abc?bootstrap=/ip4/192.0.2.1/tcp/4001/p2p/12D3KooWaaaaaaBBBBBB"
    async with served(invitation=lambda: link) as page:
        assert (await page.ask("/api/invitation")).json == {"link": link}
        code = await page.ask("/api/invitation.svg")
        assert code.headers["content-type"] == "image/svg+xml"
        expected = io.BytesIO()
        segno.make_qr(link, error="L").save(expected, kind="svg", scale=4, border=4, light="white")
        assert code.body == expected.getvalue()
        assert b"<script" not in code.body
    async with served() as page:
        assert (await page.ask("/api/invitation")).json == {"link": None}
        assert (await page.ask("/api/invitation.svg")).status == 404


async def test_the_code_is_drawn_once_for_a_link_and_in_a_thread(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    links = ["distro:swarm-first", "distro:swarm-first", "distro:swarm-second"]
    drawn: list[tuple[str, bool]] = []
    draw = segno.make_qr

    def note(link: str, **options: Any) -> Any:
        drawn.append((link, threading.current_thread() is threading.main_thread()))
        return draw(link, **options)

    monkeypatch.setattr(segno, "make_qr", note)
    async with served(invitation=lambda: links.pop(0)) as page:
        for _ in range(3):
            assert (await page.ask("/api/invitation.svg")).status == 200
    assert drawn == [("distro:swarm-first", False), ("distro:swarm-second", False)]


async def test_what_an_observer_shows_may_be_read_from_elsewhere_and_acted_on_by_none() -> None:
    settings = DashboardSettings(address=("0.0.0.0", 0), allow_plain=True, public=True)
    async with served(settings=settings) as page:
        assert (await page.ask("/api/status")).status == 200
        refused = await page.act("leave", X_Distro_Token="wrong")
        assert refused.status == 403
        assert page.done == []


def test_an_observer_reports_how_the_swarm_is() -> None:
    assert verdict(OBSERVING).tone == "good"
    assert verdict(OBSERVING).sentence == "the last decided round is 17, received 41 s ago"
    assert OBSERVING.swarm is not None
    # A round takes 72 s: ten minutes without one are not too many, a quarter of an hour is.
    for seconds, tone in ((600.0, "good"), (900.0, "warn")):
        late = replace(OBSERVING, swarm=replace(OBSERVING.swarm, decided_seconds=seconds))
        assert verdict(late).tone == tone
        # A run that is over makes no more progress, as intended.
        over = replace(late, swarm=replace(OBSERVING.swarm, last_round=17, decided_seconds=seconds))
        assert verdict(over).tone == "good"
    assert verdict(replace(OBSERVING, line=NO_LINE)).tone == "bad"
