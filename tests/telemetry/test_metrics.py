"""The metrics: linted by promtool, served on the requested address, documented exactly."""

from __future__ import annotations

import ast
import contextlib
import http.client
import math
import socket
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import pytest
import trio
from distro_node.node.dashboard import address as address_module
from distro_node.node.dashboard.address import Address, open_metrics_address
from distro_node.node.dashboard.metrics_page import metrics_url, serve_metrics
from distro_node.node.errors import ExitCode, UserError
from distro_node.node.network.traffic import KINDS, Traffic, TrafficTotals
from distro_node.node.telemetry.bootstrap_metrics import (
    BOOTSTRAP_METRICS,
    BootstrapReading,
    Refusal,
)
from distro_node.node.telemetry.counts import Increases, NodeCounts, NodeReading
from distro_node.node.telemetry.families import registry_of
from distro_node.node.telemetry.metrics import NODE_METRICS, Kind, Reason
from metrics_reference import reference
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families
from scraping import BOOTSTRAP, NOTHING, UNBORN, durations, sample, series
from statuses import AWAITING, CHECKS, SWARM, UNREACHABLE


@pytest.mark.parametrize(
    "registry",
    [
        registry_of(NODE_METRICS, lambda: NOTHING),
        registry_of(BOOTSTRAP_METRICS, lambda: BootstrapReading(status=BOOTSTRAP)),
    ],
)
def test_promtool_finds_nothing_to_improve(promtool: str, registry: CollectorRegistry) -> None:
    checked = subprocess.run(
        [promtool, "check", "metrics"],
        input=generate_latest(registry),
        capture_output=True,
        timeout=60,
    )
    assert (checked.returncode, checked.stdout + checked.stderr) == (0, b"")


def test_no_two_metrics_have_one_name() -> None:
    for rows in (NODE_METRICS, BOOTSTRAP_METRICS):
        names = [row.name for row in rows]
        assert len(set(names)) == len(names)


def test_the_documented_table_is_the_real_one(checkout: Path) -> None:
    written = (checkout / "docs" / "reference.md").read_text(encoding="utf-8")
    assert reference() in written, "docs/reference.md is out of date: run `make docs`"


def test_every_series_exists_before_anything_has_happened() -> None:
    assert sample(NOTHING, "messages_rejected_total", reason="malformed") == 0
    assert sample(NOTHING, "round_phase_seconds_count", phase="agree") == 0
    assert sample(NOTHING, "build_info", version="1.2.3") == 1
    assert sample(NOTHING, "memory_bytes", owner="node") > 1 << 20
    # The most that a node can report has the same series.
    full = NodeReading(status=AWAITING, counts=busy_counts(), folder=Path("/"))
    names = {(name, *labels.items()) for name, labels, _ in series(full)}
    nothing = {(name, *labels.items()) for name, labels, _ in series(NOTHING)}
    assert {each for each in names ^ nothing if each[0] != "distro_build_info"} == set()


def busy_counts() -> NodeCounts:
    counts = NodeCounts()
    counts.events.update({"late": 2, "skipped": 3, "incomplete": 1, "mismatch": 5, "trainer": 1})
    counts.own_mismatches = 2
    counts.phases["agree"].add(0.05)
    return counts


def test_every_number_of_a_scrape_is_in_the_status_or_counted() -> None:
    """One reading gives all of them: nothing is copied into a metric beforehand."""
    status = replace(
        AWAITING, state="training", swarm=replace(SWARM, audits=CHECKS), reach=UNREACHABLE
    )
    reading = NodeReading(status=status, counts=busy_counts(), stalls=durations(0.05, 2.0))
    expected: dict[tuple[str, ...], float] = {
        ("round",): 17,
        ("final_round",): 14,
        ("members",): 3,
        ("share",): 0.5,
        ("capacity",): 86_400,
        ("training_loss",): 3.4567,
        ("heldout_loss",): 3.5,
        ("task_score", "task", "arc_easy"): 0.26,
        ("privacy_epsilon",): 1.25,
        ("tokens_total", "scope", "own"): 400_000,
        ("tokens_total", "scope", "swarm"): 1_234_567,
        ("tokens_per_second", "scope", "own"): 790.0,
        ("tokens_per_second", "scope", "swarm"): 3_100.0,
        ("model_flops_utilisation",): 0.03125,
        ("own_rounds_total", "own", "no_work"): 2,
        ("update_bytes",): 3061,
        ("peers_connected",): 2,
        ("peers_relayed",): 1,
        ("reachable",): 0,
        ("memory_bytes", "owner", "trainer"): 500_000_000,
        ("power_watts",): 213.7,
        ("energy_joules_total",): 1_800_000.0,
        ("joules_per_token",): 4.5,
        ("votes", "scope", "own"): 1024,
        ("votes", "scope", "swarm"): 8192,
        ("members_with_votes",): 2,
        ("members_excluded",): 1,
        ("disputes_open",): 1,
        ("updates_late_total",): 2,
        ("slots_skipped_total",): 4,
        ("fingerprint_mismatches_total", "side", "own"): 2,
        ("fingerprint_mismatches_total", "side", "peer"): 3,
        ("round_phase_seconds_bucket", "phase", "agree", "le", "0.03"): 0,
        ("round_phase_seconds_bucket", "phase", "agree", "le", "0.1"): 1,
        ("event_loop_stall_seconds_count",): 2,
        ("event_loop_stall_seconds_sum",): 2.05,
    }
    for (name, *labels), number in expected.items():
        by_name = dict(zip(labels[::2], labels[1::2], strict=True))
        assert sample(reading, name, **by_name) == pytest.approx(number), name


def test_what_is_unknown_has_no_number() -> None:
    for name in ("training_loss", "heldout_loss", "reachable", "disk_free_bytes", "power_watts"):
        assert math.isnan(sample(NOTHING, name)), name
    for name, label, value in (("votes", "scope", "own"),):
        assert math.isnan(sample(NOTHING, name, **{label: value})), name


def test_an_unknown_label_value_counts_as_other_and_makes_no_series() -> None:
    traffic = TrafficTotals()
    for reason in ("malformed", "hostile\n{}", "hostile 2"):
        traffic.rejected[reason] += 1
    reading = NodeReading(status=UNBORN, traffic=traffic)
    assert sample(reading, "messages_rejected_total", reason="malformed") == 1
    assert sample(reading, "messages_rejected_total", reason="other") == 2
    assert len(list(series(reading))) == len(list(series(NOTHING)))


def test_traffic_goes_on_over_a_pause() -> None:
    totals = TrafficTotals()
    first = Traffic(totals=totals)
    first.count_sent("relayed", 100)
    first.reject("stale")
    second = Traffic(totals=totals)
    second.count_sent("relayed", 30)
    second.reject("stale")
    reading = NodeReading(status=UNBORN, traffic=totals.snapshot())
    assert sample(reading, "sent_bytes_total", kind="relayed") == 130
    assert sample(reading, "messages_rejected_total", reason="stale") == 2
    assert second.relayed == 30
    # A scrape does not change while it is rendered.
    second.count_sent("relayed", 5)
    assert sample(reading, "sent_bytes_total", kind="relayed") == 130


def test_a_total_that_falls_is_not_counted_twice() -> None:
    audits = Increases()
    for total in (40, 42, 30, 33):
        audits.update({"passed": total})
    assert audits.sums["passed"] == 5


def test_label_values_are_those_that_the_code_uses(checkout: Path) -> None:
    assert set(get_args(Kind)) == set(KINDS)
    reasons = {
        node.args[0].value
        for folder in ("crypto", "protocol", "node")
        for path in (checkout / folder).rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id in ("ProtocolError", "EnvelopeError")
        and isinstance(node.args[0], ast.Constant)
    }
    assert "malformed" in reasons
    assert reasons - set(get_args(Reason)) == set(), (
        "Reason in node/telemetry/metrics.py lacks these"
    )


def test_reasons_of_a_relay_are_those_that_the_code_uses(checkout: Path) -> None:
    source = (checkout / "node" / "network" / "circuit_relay.py").read_text(encoding="utf-8")
    reasons = {
        node.args[1].value
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == "_refusal"
        and isinstance(node.args[1], ast.Constant)
    }
    assert reasons == set(get_args(Refusal)) - {"other"}


def test_one_state_at_a_time() -> None:
    training = NodeReading(status=replace(UNBORN, state="training"))
    states = {
        labels["state"]: value for name, labels, value in series(training) if name == "distro_state"
    }
    assert {state for state, value in states.items() if value} == {"training"}
    later: Any = "a state of a later version"
    reading = NodeReading(status=replace(UNBORN, state=later))
    assert sample(reading, "state", state="other") == 1
    assert sample(reading, "state", state="training") == 0


@asynccontextmanager
async def served_metrics(
    address: tuple[str, int] = ("127.0.0.1", 0),
) -> AsyncIterator[Address]:
    """Serve the metrics of a node at round 41, to which nothing has happened yet otherwise."""
    made = open_metrics_address(address)
    training = replace(UNBORN.training, round=41)
    reading = NodeReading(status=replace(UNBORN, training=training))
    async with serve_metrics(made, NODE_METRICS, lambda: reading):
        yield made


def port_of(address: Address) -> int:
    return address.listeners[0].socket.getsockname()[1]


async def fetched(address: Address, **headers: str) -> tuple[int, str, bytes]:
    """Return status, content type and body of the page."""

    def fetch() -> tuple[int, str, bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", port_of(address), timeout=10)
        with contextlib.closing(connection):
            connection.request("GET", "/metrics", headers=headers)
            response = connection.getresponse()
            return response.status, response.headers["Content-Type"], response.read()

    return await trio.to_thread.run_sync(fetch)


async def test_the_page_is_served_and_its_port_given_back() -> None:
    async with served_metrics() as address:
        status, kind, body = await fetched(address)
        port = port_of(address)
    text = body.decode()
    families = {family.name for family in text_string_to_metric_families(text)}
    assert (status, kind.partition(";")[0]) == (200, "text/plain")
    assert {"distro_round", "distro_build_info", "distro_round_phase_seconds"} <= families
    assert "distro_round 41.0" in text
    assert "_created" not in text
    assert metrics_url(address) == f"http://127.0.0.1:{port}/metrics"
    with socket.socket() as again:
        again.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        again.bind(("127.0.0.1", port))


async def test_a_collector_gets_the_format_that_it_asks_for() -> None:
    async with served_metrics() as address:
        asked = "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5"
        _, kind, body = await fetched(address, Accept=asked)
    assert kind.startswith("application/openmetrics-text")
    assert body.endswith(b"# EOF\n")


async def test_another_page_in_the_browser_may_not_read_the_metrics() -> None:
    async with served_metrics() as address:
        for headers in ({"Origin": "http://evil.example"}, {"Host": "rebound.example"}):
            status, _, body = await fetched(address, **headers)
            assert (status, b"distro_round" in body) == (403, False)


async def test_a_second_node_without_options_serves_elsewhere(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        usual = ("127.0.0.1", taken.getsockname()[1])
        monkeypatch.setattr(address_module, "DEFAULT_METRICS_ADDRESS", usual)
        made = open_metrics_address(usual)
        made.close()
    assert f":{usual[1]}/" not in made.url
    assert f"port {usual[1]} is in use: the metrics are at {metrics_url(made)}" in caplog.text


def test_a_taken_port_is_the_users_to_mend() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(UserError) as caught:
            open_metrics_address(("127.0.0.1", port))
    assert caught.value.code is ExitCode.PORT_IN_USE
    assert f"127.0.0.1:{port}" in caught.value.problem
    assert "--metrics-addr" in caught.value.remedy


@pytest.mark.parametrize(
    ("host", "code"),
    [("192.0.2.1", ExitCode.ADDRESS_MISSING), ("no.such.host.invalid", ExitCode.BAD_ADDRESS)],
)
def test_an_address_that_is_not_ours(host: str, code: ExitCode) -> None:
    with pytest.raises(UserError) as caught:
        open_metrics_address((host, 9464))
    assert caught.value.code is code


async def test_ipv6_has_brackets() -> None:
    try:
        made = open_metrics_address(("::1", 0))
    except UserError:
        pytest.skip("this machine has no IPv6 loopback")
    made.close()
    assert made.url.startswith("http://[::1]:")


@pytest.mark.parametrize(
    ("served", "host", "answered"),
    [
        ("127.0.0.1", "127.0.0.1:9464", True),
        ("127.0.0.1", "LOCALHOST", True),
        ("127.0.0.1", "[::1]:9464", True),
        ("127.0.0.1", "rebound.example", False),
        ("127.0.0.1", "bootstrap:9464", False),
        ("127.0.0.1", "192.0.2.1:9464", False),
        ("127.0.0.1", "", False),
        # As Prometheus in a container's network requests it.
        ("0.0.0.0", "bootstrap:9464", True),
        ("0.0.0.0", "192.0.2.1:9464", True),
        ("0.0.0.0", "rebound.example:9464", False),
    ],
)
async def test_a_strangers_name_for_our_address_is_not_answered(
    served: str, host: str, answered: bool
) -> None:
    async with served_metrics((served, 0)) as address:
        status, _, body = await fetched(address, Host=host)
    assert status == (200 if answered else 403)
    assert (b"distro_round" in body) is answered


async def test_who_connects_to_the_page_and_sends_nothing_takes_up_little(
    capfd: pytest.CaptureFixture[str],
) -> None:
    """Further ones displace the silent; each kept a thread for ever, and a thousand ended the node."""
    async with served_metrics() as address:
        silent = [await trio.open_tcp_stream("127.0.0.1", port_of(address)) for _ in range(40)]
        status, _, body = await fetched(address)
        assert (status, b"distro_build_info" in body) == (200, True)
        # All but a few are disconnected at once.
        for stream in silent[:30]:
            with trio.fail_after(30):
                assert await hung_up(stream)
        for stream in silent:
            await trio.aclose_forcefully(stream)
    # No tracebacks about them on the screen either.
    assert capfd.readouterr().err == ""


async def hung_up(stream: trio.SocketStream) -> bool:
    try:
        return await stream.receive_some(1) == b""
    except trio.BrokenResourceError:
        return True
