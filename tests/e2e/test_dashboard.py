"""The page in a real browser, with a real swarm of three nodes on loopback.

It needs Chromium and playwright: without them it is skipped, except in CI. axe-core, which finds
accessibility problems, is fetched when the test runs, and left out where there is no npm. With
DISTRO_SCREENSHOTS=FOLDER in the environment the pictures are kept there.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import tarfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from queue import Queue
from threading import Event, Thread
from typing import Any
from urllib.parse import urlsplit

import pytest
import trio
from dashboard.support import served
from distro_node.crypto.identity import peer_text
from distro_node.node.control.command_socket import ask
from distro_node.node.dashboard.run_history import RunHistory
from distro_node.node.telemetry.status import Status
from e2e.program import PATIENCE_SECONDS, wait_for
from e2e.support import Node, Swarm
from simulation.chain import Chain
from statuses import SWARM, TRAINING

IN_CI = os.environ.get("CI") == "true"
if IN_CI:
    from playwright import sync_api as playwright
else:
    playwright = pytest.importorskip("playwright.sync_api")

pytestmark = pytest.mark.e2e

NAMES = ("founder", "second", "third")
PATIENCE_MS = PATIENCE_SECONDS * 1000
_POLL_MS = 100
AXE = "axe-core@4.14.1"
TONE = "document.querySelector('#verdict').dataset.tone"


# The browser fetches no updates or blocklists besides what the tests request, and pictures do not go
# through /dev/shm, which is small in containers.
_QUIETLY = ("--disable-background-networking", "--no-first-run", "--disable-dev-shm-usage")


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    found = shutil.which("chromium")
    if found is None:
        assert not IN_CI, "CI needs Chromium (Debian: chromium)"
        pytest.skip("chromium is not installed")
    with playwright.sync_playwright() as driver:
        # As root it has no sandbox of its own.
        flags = ["--no-sandbox"] if os.getuid() == 0 else []
        browser = driver.chromium.launch(
            executable_path=found, args=[*_QUIETLY, *flags], timeout=PATIENCE_MS
        )
        yield browser
        browser.close()


@pytest.fixture
def swarm(tmp_path: Path) -> Iterator[Swarm]:
    with Swarm(tmp_path / "swarm", start_members=3, lease_seconds=20.0) as swarm:
        swarm.create()
        yield swarm


@pytest.fixture(scope="module")
def axe(tmp_path_factory: pytest.TempPathFactory) -> str | None:
    """Return the source of axe-core, if it is available."""
    folder = tmp_path_factory.mktemp("axe")
    if shutil.which("npm") is None:
        return None
    packed = subprocess.run(
        ["npm", "pack", "--silent", AXE], cwd=folder, capture_output=True, check=False
    )
    archives = [*folder.glob("*.tgz")]
    if packed.returncode or not archives:
        return None
    with tarfile.open(archives[0]) as archive:
        file = archive.extractfile("package/axe.min.js")
        assert file is not None
        return file.read().decode()


class Visit:
    """An open page, and all its errors."""

    def __init__(self, browser: Any, link: str, **options: Any) -> None:
        self.faults: list[str] = []
        self.context = browser.new_context(**options)
        self.context.set_default_timeout(PATIENCE_MS)
        self.page = self.context.new_page()
        own = urlsplit(link).netloc
        self.page.on("console", lambda said: said.type == "error" and self.fault(said.text))
        self.page.on("pageerror", lambda error: self.fault(str(error)))
        self.page.on("request", lambda asked: self._requested(asked.url, own))
        self.page.goto(link)

    def fault(self, text: str) -> None:
        self.faults.append(text)

    def _requested(self, url: str, own: str) -> None:
        parts = urlsplit(url)
        if parts.scheme != "blob" and parts.netloc != own:
            self.fault(f"asked {url}")

    def wait(self, condition: str, what: str) -> None:
        """Wait until a JavaScript expression holds."""
        # The browser's own wait function evaluates text as code, which the page's policy forbids.
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not self.page.evaluate(condition):
            if time.monotonic() > deadline:
                raise AssertionError(f"waited for {what}; the page says: {self.text('main')}")
            self.page.wait_for_timeout(_POLL_MS)

    def text(self, selector: str) -> str:
        return self.page.locator(selector).inner_text()

    def row(self, node: Node) -> str:
        return f"document.querySelector('#members tr[data-peer=\"{node.peer}\"]')?.dataset.tone"

    @property
    def rounds(self) -> int:
        return self.page.evaluate("Number(document.querySelector('#replay').max)")


def url_and_token_link(node: Node) -> dict[str, str]:
    return ask(node.data.socket, "dashboard", 30.0)


def picture(visit: Visit, name: str, folder: Path) -> None:
    folder = Path(os.environ.get("DISTRO_SCREENSHOTS", folder))
    folder.mkdir(parents=True, exist_ok=True)
    visit.page.screenshot(path=folder / f"{name}.png", full_page=True)


def serious(visit: Visit, axe: str | None) -> list[str]:
    """Return the serious accessibility problems that axe finds."""
    if axe is None:
        return []
    visit.page.evaluate(axe)
    found = visit.page.evaluate("axe.run()")
    return [
        f"{each['id']}: {node['html'][:200]}"
        for each in found["violations"]
        if each["impact"] in ("serious", "critical")
        for node in each["nodes"]
    ]


def test_a_swarm_in_a_browser(swarm: Swarm, chromium: Any, axe: str | None, tmp_path: Path) -> None:
    swarm.node("founder").start("--sample-prompt", "def ")
    founder, second, third = swarm.start(*NAMES)
    at = url_and_token_link(founder)
    owner = Visit(chromium, at["link"], viewport={"width": 1920, "height": 1080})
    # A read-only visitor, on a phone and in dark mode.
    guest = Visit(
        chromium,
        at["url"],
        viewport={"width": 360, "height": 740},
        color_scheme="dark",
        reduced_motion="reduce",
    )
    for visit in (owner, guest):
        visit.wait(f"['good', 'warn'].includes({TONE})", "the node to train")
        visit.wait("document.querySelectorAll('#members tbody tr').length === 3", "three members")
        visit.wait("document.querySelector('#chart canvas')", "a chart")
        assert visit.text("#name") == "tiny"

    # It updates by itself.
    seen = owner.rounds
    owner.wait(f"Number(document.querySelector('#replay').max) >= {seen + 3}", "three more rounds")
    guest.wait(f"Number(document.querySelector('#replay').max) >= {seen + 3}", "the same")
    owner.wait("document.querySelectorAll('#phases tbody tr').length >= 3", "the phases of rounds")
    owner.wait("document.querySelectorAll('#chart canvas').length === 1", "one chart")

    # The shares of the work, the model's sample text, and the energy: a node without a
    # GPU must not be shown as drawing nothing.
    for node in (founder, second, third):
        owner.wait(
            f"document.querySelector('#members tr[data-peer=\"{node.peer}\"]').textContent"
            ".includes('% of the work')",
            "each member's share",
        )
    owner.wait("document.querySelectorAll('#samples li').length", "a sample of what is learned")
    assert owner.text("#samples").count("after round")
    why = founder.told().energy.why
    assert why is not None
    assert why in (owner.page.locator("#energy").text_content() or "")

    # The owner writes with the model beside the training; a read-only visitor cannot.
    owner.page.locator("#talk-text").fill("def ")
    owner.page.locator("#talk-form input[name=tokens]").fill("12")
    owner.page.locator("#talk-ask").click()
    owner.wait(
        "document.querySelector('#talk-note').textContent.includes('after')", "the model's text"
    )
    assert re.search(r"round \d+", owner.text("#talk-turns .answer .quiet"))
    assert len(owner.page.locator("#talk-turns .answer .written").text_content()) >= 1
    # This swarm's model has no chat template.
    owner.page.locator("#talk-form input[value=chat]").check()
    owner.page.locator("#talk-text").fill("Who are you?")
    owner.page.locator("#talk-ask").click()
    owner.wait(
        "document.querySelector('#talk-note').textContent.includes('chat template')", "the reason"
    )
    # The browser notes the refusal of that in its console.
    assert len(owner.faults) == 1
    assert "400" in owner.faults.pop()
    assert guest.page.locator("#talk").is_hidden()

    # The token is kept out of the address, and a read-only visitor has none.
    assert "token" not in owner.page.url
    assert owner.page.locator("#pause").is_enabled()
    assert guest.page.locator("#pause").is_hidden()
    assert "distro-node dashboard" in guest.text("#look-only")

    # Other axes, by keyboard.
    owner.page.locator("#axis input[value=round]").focus()
    for _ in range(3):
        owner.page.keyboard.press("ArrowRight")
    assert owner.page.locator("#axis input[value=time]").is_checked()
    owner.page.locator("#zoom-in").press("Enter")
    owner.page.locator("#zoom-all").press("Enter")
    assert "The loss was" in (owner.page.locator("#chart").get_attribute("aria-label") or "")

    # Limits and hours: an invalid limit is reported, a valid one takes effect.
    upload = owner.page.locator("#limits input[name=upload]")
    upload.fill("a lot")
    upload.press("Enter")
    owner.wait(
        "document.querySelector('#limits [role=status]').textContent.includes('not a rate')", "no"
    )
    upload.fill("50Mbit")
    upload.press("Enter")
    wait_for(lambda: founder.told().line.max_upload == 50e6 / 8, "the limit to hold")
    owner.wait(
        "document.querySelector('#line').textContent.includes('of 50.0 Mbit/s')", "the limit"
    )

    picture(owner, "dashboard-wide", tmp_path)
    picture(guest, "dashboard-narrow", tmp_path)
    for visit in (owner, guest):
        assert serious(visit, axe) == []
        width = visit.page.evaluate("document.documentElement.scrollWidth - innerWidth")
        assert width <= 0, "wider than the screen"

    # Pause and resume, by clicks.
    owner.page.locator("#pause").click()
    for visit in (owner, guest):
        visit.wait(f"{TONE} === 'rest'", "the pause")
    wait_for(lambda: founder.state == "paused", "the node to pause")
    owner.page.locator("#resume").click()
    owner.wait(f"['good', 'warn'].includes({TONE})", "the node to train again")
    wait_for(lambda: founder.state == "training", "the node to train again")

    # A killed member turns red. Once it is counted out it is no alarm any more: people close laptops.
    owner.wait(f"{owner.row(third)} === 'good'", "the third member")
    peer = third.peer
    third.program.kill()
    owner.wait(f"{owner.row(third)} === 'bad'", "the killed member to turn red")
    owner.wait(
        f"document.querySelector('#members tr[data-peer=\"{peer}\"]').textContent"
        ".includes('fell silent')",
        "the killed member to be counted out",
    )
    assert owner.page.evaluate(owner.row(third)) == "rest"
    owner.wait(f"{TONE} === 'good'", "the two to go on")

    # The replay: from the first round to now.
    owner.page.locator("#replay").focus()
    owner.page.keyboard.press("Home")
    assert owner.text("#replay-said").startswith("Round 0")
    assert "1 member," in owner.text("#replay-said")
    owner.page.locator("#replay-play").click()
    owner.wait("document.querySelector('#replay-play').textContent === 'Play'", "the end of it")
    assert "2 members" in owner.text("#replay-said")
    picture(owner, "dashboard-killed", tmp_path)
    assert serious(owner, axe) == []

    assert owner.faults == []
    assert guest.faults == []

    # And when the node ends, the page reports that, and not that all is well.
    owner.page.locator("#leave").click()
    assert founder.running
    owner.page.locator("#leave").click()
    assert founder.program.wait() == 0
    owner.wait(
        f"{TONE} === 'bad' && document.body.hasAttribute('data-stale')", "the page to notice"
    )
    assert second.running


def test_the_page_of_a_swarm(chromium: Any, axe: str | None, tmp_path: Path) -> None:
    with Swarm(tmp_path / "swarm") as swarm:
        swarm.create()
        founder, second = swarm.start("founder", "second")
        observer = swarm.node("observer")
        program = observer.observe()
        wait_for(lambda: observer.state == "observing", "the observer to follow")
        visit = Visit(
            chromium, url_and_token_link(observer)["url"], viewport={"width": 1280, "height": 900}
        )
        visit.wait(f"{TONE} === 'good'", "the swarm to be followed")
        visit.wait("document.querySelectorAll('#members tbody tr').length === 2", "two members")
        visit.wait(f"{visit.row(second)} === 'good'", "the second to contribute")
        visit.wait("document.querySelector('#crowd canvas')", "the members over time")
        seen = visit.rounds
        visit.wait(f"Number(document.querySelector('#replay').max) >= {seen + 3}", "three rounds")
        # It shows the swarm's data, and nothing of a node's own, which it is not.
        assert visit.page.locator("#own").is_hidden()
        assert visit.page.locator("#computer").is_hidden()
        # Whoever looks is offered nothing to press, or to ask for.
        assert visit.page.locator(".acts:visible").count() == 0
        assert visit.page.locator("#look-only").is_hidden()
        assert swarm.link.partition("?")[0] in visit.text("#joining-command")
        visit.wait("document.querySelector('#joining-code').naturalWidth > 0", "the QR code")
        assert "2 members" in (visit.page.locator("#crowd").get_attribute("aria-label") or "")
        picture(visit, "dashboard-swarm", tmp_path)
        assert serious(visit, axe) == []

        # When nothing is decided any more, it reports that; and it continues when a member returns.
        for node in (founder, second):
            node.program.kill()
        visit.wait(f"['warn', 'bad'].includes({TONE})", "the standstill to be told")
        assert visit.faults == []
        # No member took it for one of theirs.
        ledger = founder.ledger()
        assert len(ledger.membership(len(ledger))) == 2
        observer.program.signal(signal.SIGINT)
        assert program.wait() == 0


@contextmanager
def page_of_a_run(folder: Path, told: Status = TRAINING) -> Iterator[str]:
    """Serve a page without a node behind it, over a made-up run of five; yield the link to act."""
    chain = Chain(5).grow_until(40)
    path = folder / "ledger"
    path.write_bytes(
        b"".join(len(raw).to_bytes(4, "big") + raw for raw in map(chain.ledger.raw, range(40)))
    )
    book = RunHistory(chain.manifest.founder, "", path, folder / "history.jsonl")
    while book.refresh():
        pass
    assert SWARM.members is not None
    members = [
        replace(SWARM.members[0], peer=peer_text(peer), me=False, share_reason="still growing")
        for peer in chain.membership.peers
    ]
    status = replace(told, swarm=replace(SWARM, members=tuple(members)))
    link: Queue[str] = Queue()
    over = Event()

    async def serve() -> None:
        async with served(lambda: book) as page:
            page.status = status
            link.put(f"http://127.0.0.1:{page.port}/#token={page.token}")
            await trio.to_thread.run_sync(over.wait)

    thread = Thread(target=trio.run, args=(serve,))
    thread.start()
    try:
        yield link.get(timeout=PATIENCE_SECONDS)
    finally:
        over.set()
        thread.join()


SCREENS = ((1440, 4500), (768, 6000), (390, 2800))
"""Widths, and the greatest height of the page at each, in pixels."""


@pytest.mark.parametrize(("scheme", "screens"), [("light", SCREENS), ("dark", SCREENS[-1:])])
def test_the_page_fits_a_desk_a_tablet_and_a_telephone(
    chromium: Any, axe: str | None, tmp_path: Path, scheme: str, screens: Sequence[tuple[int, int]]
) -> None:
    """At 1,440 pixels the members' table was cut; at 390 the page was 5,855 pixels long."""
    with page_of_a_run(tmp_path) as link:
        for width, longest in screens:
            visit = Visit(
                chromium, link, viewport={"width": width, "height": 900}, color_scheme=scheme
            )
            visit.wait("document.querySelectorAll('#members tbody tr').length === 5", "members")
            visit.wait("document.querySelector('#chart canvas')", "the chart")
            visit.wait(
                "document.querySelector('#chart .u-legend').textContent.includes('2.5')", "it"
            )
            sizes = visit.page.evaluate(SIZES)
            assert sizes["page"] <= width
            assert sizes["table"] <= sizes["room"], f"the members' table is cut at {width}"
            assert sizes["height"] < longest
            # The chart comes first after the verdict, and no other part of its width is higher.
            assert sizes["first"] == "learned-title"
            assert sizes["energy"].startswith("Energy: 0.500 kWh")
            assert "compute" in visit.page.locator("#phases-legend").text_content()
            picture(visit, f"page-{width}-{scheme}", tmp_path)
            assert serious(visit, axe) == []
            assert visit.faults == []
            visit.context.close()


SIZES = """(() => {
  const room = document.querySelector("#members").closest(".scroll");
  return {
    page: document.documentElement.scrollWidth,
    height: document.documentElement.scrollHeight,
    table: room.scrollWidth,
    room: room.clientWidth,
    first: document.querySelectorAll("main > section")[1].getAttribute("aria-labelledby"),
    energy: document.querySelector("#energy-said").textContent,
  };
})()"""


# Collects what the charts write below their horizontal axes: a canvas has no elements to look at.
TICKS = """(() => {
  window.ticks = new Map();
  const write = CanvasRenderingContext2D.prototype.fillText;
  CanvasRenderingContext2D.prototype.fillText = function (text, ...place) {
    if (this.textAlign === "center") {
      const chart = this.canvas.closest("#chart, #crowd").id;
      window.ticks.set(chart, [...(window.ticks.get(chart) ?? []), text]);
    }
    return write.call(this, text, ...place);
  };
})()"""


def test_a_chart_names_no_round_twice(chromium: Any, tmp_path: Path) -> None:
    """Ticks stood at 2.5, 5, 7.5 and 10, and were called 3, 5, 8 and 10."""
    with page_of_a_run(tmp_path) as link:
        visit = Visit(chromium, link, viewport={"width": 1440, "height": 900})
        visit.wait("document.querySelector('#crowd canvas')", "the charts")
        # Three times as near, a desk's width has more ticks than the axis has rounds.
        visit.page.evaluate(TICKS)
        for _ in range(3):
            visit.page.evaluate("window.ticks.clear()")
            visit.page.locator("#zoom-in").click()
            visit.wait("window.ticks.size === 2", "both charts to be drawn")
        for chart, ticks in visit.page.evaluate("[...window.ticks]"):
            assert len(ticks) > 2, chart
            assert len(ticks) == len(set(ticks)), chart
        assert visit.faults == []
        visit.context.close()


@pytest.mark.parametrize("width", [1440, 390])
def test_a_choice_stands_beside_its_words(chromium: Any, tmp_path: Path, width: int) -> None:
    """The choice between going on with a text and answering it was as wide as a text field."""
    with page_of_a_run(tmp_path) as link:
        visit = Visit(chromium, link, viewport={"width": width, "height": 900})
        visit.wait("document.querySelector('#chart canvas')", "the page")
        widths = visit.page.evaluate(RADIO_WIDTHS)
        assert len(widths) == 6
        assert max(widths) < 30
        visit.context.close()


# The fold with the model's text is shown, which takes a model that this page does not have.
RADIO_WIDTHS = """(() => {
  document.querySelector("#talk").hidden = false;
  document.querySelector("#talk details").open = true;
  const radios = [...document.querySelectorAll("input[type=radio]")];
  return radios.map((radio) => radio.getBoundingClientRect().width);
})()"""


@pytest.mark.parametrize("width", [1440, 768])
def test_the_links_of_public_swarms_are_whole(chromium: Any, tmp_path: Path, width: int) -> None:
    """The link was the last column of the table, and cut by the page's edge."""
    with page_of_a_run(tmp_path) as link:
        visit = Visit(chromium, link, viewport={"width": width, "height": 900})
        visit.wait("document.querySelector('#chart canvas')", "the page")
        needed, room = visit.page.evaluate(DIRECTORY_WIDTHS)
        assert needed <= room
        visit.context.close()


# A list of swarms takes a bootstrap peer that keeps one; a row of it stands in for it here.
DIRECTORY_WIDTHS = """(() => {
  document.querySelector("#directory").hidden = false;
  document.querySelector("#directory details").open = true;
  const row = document.querySelector("#directory-table").tBodies[0].insertRow();
  const cells = ["example", "causal_lm", "857 k", "2", "135", "25 of 400", "anybody"];
  for (const text of cells) row.insertCell().append(text);
  const code = document.createElement("code");
  code.append(`distro:swarm-${"a".repeat(59)}?bootstrap=/dns4/boot.example.org/tcp/4001/p2p/`);
  row.insertCell().append(code);
  const room = document.querySelector("#directory .scroll");
  return [room.scrollWidth, room.clientWidth];
})()"""


def test_a_new_limit_keeps_the_others(chromium: Any, tmp_path: Path) -> None:
    """The fields were empty whatever was in force: a new limit for one direction lifted the other's."""
    limited = replace(
        TRAINING,
        line=replace(TRAINING.line, max_upload=625_000.0),
        schedule=replace(TRAINING.schedule, active="22:00-07:00"),
    )
    with page_of_a_run(tmp_path, limited) as link:
        visit = Visit(chromium, link, viewport={"width": 1440, "height": 900})
        visit.wait("document.querySelector('[name=upload]').value === '5 Mbit/s'", "the limit")
        assert visit.page.locator("[name=active]").input_value() == "22:00-07:00"
        visit.page.locator("[name=download]").fill("10Mbit")
        with visit.page.expect_request("**/api/act/limits") as sent:
            visit.page.locator("#limits button").click()
        assert sent.value.post_data_json == {"upload": "5 Mbit/s", "download": "10Mbit"}
        visit.context.close()
