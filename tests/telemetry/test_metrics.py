"""The metrics: linted by promtool, served on the requested address, documented exactly."""

from __future__ import annotations

import ast
import http.client
import socket
import subprocess
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest
from distro_node.node.errors import ExitCode, UserError
from distro_node.node.network.traffic import KINDS
from distro_node.node.telemetry import metrics as metrics_module
from distro_node.node.telemetry.bootstrap_metrics import BootstrapMetrics, Refusal
from distro_node.node.telemetry.families import Follower
from distro_node.node.telemetry.metrics import Kind, Metrics, Reason
from distro_node.node.telemetry.metrics_reference import reference
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families


def read(metrics: Metrics, name: str, **labels: str) -> float:
    value = metrics.registry.get_sample_value(name, labels)
    assert value is not None, f"no series {name}{labels}"
    return value


@pytest.mark.parametrize("kind", [Metrics, BootstrapMetrics])
def test_promtool_finds_nothing_to_improve(
    promtool: str, kind: type[Metrics] | type[BootstrapMetrics]
) -> None:
    page = generate_latest(kind(version="1.2.3").registry)
    checked = subprocess.run(
        [promtool, "check", "metrics"], input=page, capture_output=True, timeout=60
    )
    assert (checked.returncode, checked.stdout + checked.stderr) == (0, b"")


def test_the_documented_table_is_the_real_one(checkout: Path) -> None:
    written = (checkout / "docs" / "reference.md").read_text(encoding="utf-8")
    assert reference() in written, "docs/reference.md is out of date: run `make docs`"


def test_every_series_exists_before_anything_has_happened() -> None:
    metrics = Metrics(version="1.2.3")
    assert read(metrics, "distro_messages_rejected_total", reason="malformed") == 0
    assert read(metrics, "distro_round_phase_seconds_count", phase="agree") == 0
    assert read(metrics, "distro_build_info", version="1.2.3") == 1
    assert read(metrics, "distro_memory_bytes", owner="node") > 1 << 20


def test_a_loss_that_nobody_measured_is_not_zero() -> None:
    metrics = Metrics(version="1")
    loss = read(metrics, "distro_training_loss")
    assert loss != loss


def test_an_unknown_label_value_counts_as_other_and_makes_no_series() -> None:
    metrics = Metrics(version="1")
    before = sum(1 for _ in series(metrics))
    for reason in ("malformed", "hostile\n{}", "hostile 2"):
        metrics.rejected[reason].inc()
    assert read(metrics, "distro_messages_rejected_total", reason="malformed") == 1
    assert read(metrics, "distro_messages_rejected_total", reason="other") == 2
    assert sum(1 for _ in series(metrics)) == before


def test_totals_counted_elsewhere_are_followed() -> None:
    metrics = Metrics(version="1")
    follower = Follower(metrics.received)
    follower.update({"update": 100, "blob": 5, "of a later version": 7})
    follower.update({"update": 150, "blob": 5, "of a later version": 8})
    assert read(metrics, "distro_received_bytes_total", kind="update") == 150
    assert read(metrics, "distro_received_bytes_total", kind="blob") == 5
    assert read(metrics, "distro_received_bytes_total", kind="other") == 8
    follower.update({"update": 30})
    assert read(metrics, "distro_received_bytes_total", kind="update") == 180


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
    metrics = Metrics(version="1")
    metrics.set_state("syncing")
    metrics.set_state("training")
    states = {
        labels["state"]: value for name, labels, value in series(metrics) if name == "distro_state"
    }
    assert {state for state, value in states.items() if value} == {"training"}
    later: Any = "a state of a later version"
    metrics.set_state(later)
    assert read(metrics, "distro_state", state="other") == 1
    assert read(metrics, "distro_state", state="training") == 0


def test_two_nodes_in_one_process_do_not_share_counters() -> None:
    first, second = Metrics(version="1"), Metrics(version="1")
    first.sent["update"].inc(2_800_000)
    assert read(first, "distro_sent_bytes_total", kind="update") == 2_800_000
    assert read(second, "distro_sent_bytes_total", kind="update") == 0


def test_the_page_is_served_and_its_port_given_back() -> None:
    metrics = Metrics(version="1.2.3")
    metrics.round.set(41)
    page = metrics.serve(("127.0.0.1", 0))
    try:
        with urllib.request.urlopen(page.url, timeout=10) as response:
            body = response.read().decode()
    finally:
        page.close()
    families = {family.name for family in text_string_to_metric_families(body)}
    assert {"distro_round", "distro_build_info", "distro_round_phase_seconds"} <= families
    assert "distro_round 41.0" in body
    assert "_created" not in body
    port = int(page.url.split(":")[2].partition("/")[0])
    with socket.socket() as again:
        again.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        again.bind(("127.0.0.1", port))


def test_a_second_node_without_options_serves_elsewhere(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        usual = ("127.0.0.1", taken.getsockname()[1])
        monkeypatch.setattr(metrics_module, "DEFAULT_METRICS_ADDRESS", usual)
        page = Metrics(version="1").serve(usual)
        page.close()
    assert f":{usual[1]}/" not in page.url
    assert f"port {usual[1]} is taken: the metrics are at {page.url}" in caplog.text


def test_a_taken_port_is_the_users_to_mend() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(UserError) as caught:
            Metrics(version="1").serve(("127.0.0.1", port))
    assert caught.value.code is ExitCode.PORT_IN_USE
    assert f"127.0.0.1:{port}" in caught.value.problem
    assert "--metrics-addr" in caught.value.remedy


@pytest.mark.parametrize(
    ("host", "code"),
    [("192.0.2.1", ExitCode.ADDRESS_MISSING), ("no.such.host.invalid", ExitCode.BAD_ADDRESS)],
)
def test_an_address_that_is_not_ours(host: str, code: ExitCode) -> None:
    with pytest.raises(UserError) as caught:
        Metrics(version="1").serve((host, 9464))
    assert caught.value.code is code


def test_ipv6_has_brackets() -> None:
    try:
        page = Metrics(version="1").serve(("::1", 0))
    except UserError:
        pytest.skip("this machine has no IPv6 loopback")
    page.close()
    assert page.url.startswith("http://[::1]:")


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
def test_a_strangers_name_for_our_address_is_not_answered(
    served: str, host: str, answered: bool
) -> None:
    page = Metrics(version="1").serve((served, 0))
    connection = http.client.HTTPConnection("127.0.0.1", int(page.url.split(":")[2].split("/")[0]))
    try:
        connection.request("GET", "/metrics", headers={"Host": host})
        response = connection.getresponse()
        body = response.read()
    finally:
        connection.close()
        page.close()
    assert response.status == (200 if answered else 403)
    assert (b"distro_round" in body) is answered


def series(metrics: Metrics) -> Iterator[tuple[str, dict[str, str], float]]:
    for family in metrics.registry.collect():
        for sample in family.samples:
            yield sample.name, sample.labels, sample.value


def test_whoever_connects_to_the_page_and_says_nothing_takes_up_little(
    capfd: pytest.CaptureFixture[str],
) -> None:
    """Before: a thread and a descriptor each, for ever; a thousand of them ended the node."""
    page = Metrics(version="1").serve(("127.0.0.1", 0))
    port = int(page.url.split(":")[2].split("/")[0])
    before = threading.active_count()
    silent = [socket.create_connection(("127.0.0.1", port)) for _ in range(40)]
    try:
        # All but a few are disconnected at once, those as soon as they time out.
        for each in silent:
            assert threading.active_count() <= before + 8
            assert hung_up(each)
    finally:
        for each in silent:
            each.close()
    deadline = time.monotonic() + 20
    while True:
        try:
            with urllib.request.urlopen(page.url, timeout=5) as answer:
                assert b"distro_build_info" in answer.read()
            break
        except OSError:
            assert time.monotonic() < deadline
    page.close()
    # No tracebacks about them on the screen either.
    assert capfd.readouterr().err == ""


def hung_up(connection: socket.socket) -> bool:
    connection.settimeout(60)
    try:
        return connection.recv(1) == b""
    except ConnectionResetError:
        return True
    except TimeoutError:
        return False
