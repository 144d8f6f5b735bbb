"""Prometheus over a real swarm: every panel has data, and alerts fire when they should.

Every member is a process with all of a node except torch (`serve_owner`, with the toy trainer of the
simulations), so it has its own metrics page and can be killed. The files in docker/ are used unchanged,
except that the time spans of the alerts are shorter, so that the test takes minutes.
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlencode
from urllib.request import urlopen

import pytest
import trio
import yaml
from distro_node.crypto.identity import Identity, PeerId, peer_text
from distro_node.node.bootstrap import BootstrapSettings, run_bootstrap
from distro_node.node.control.command_socket import ask
from distro_node.node.daemon import serve_owner
from distro_node.node.errors import UserError
from distro_node.node.network.addresses import circuit_through, parse_dial
from distro_node.node.network.errors import DialError, RequestError
from distro_node.node.network.network import Network, open_network
from distro_node.node.session.session import SwarmSession
from distro_node.node.settings.components import DashboardSettings, LineSettings
from distro_node.node.settings.tree import DaemonSettings
from distro_node.node.storage.blob_store import BlobStore
from distro_node.node.storage.data_dir import DataDir, open_identity
from distro_node.node.telemetry.telemetry import Telemetry
from distro_node.protocol.chain.sync import SYNC_PROTOCOL
from distro_node.protocol.wire.manifest import Manifest
from distro_node.protocol.wire.structure import to_plain
from distro_node.protocol.wire.swarm_id import swarm_text
from network.support import LOOPBACK, free_port, identity
from network.victim import quiet_settings
from simulation.whole.trainer import Workshop, toy_swarm
from statuses import SCORES

FASTER = 15
"""Factor by which the time spans of the alerts are shorter here."""
PATIENCE_SECONDS = 900.0
"""Timeout for everything to be there; a busy machine is slow."""
SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
# A port without a listener, as with a router that forwards nothing.
NOBODYS_PORT = 1
LEASE_SECONDS = 120.0
"""Longer than the alert takes to report a stall: at its end, the remaining members go on."""


@dataclass
class Node:
    """A process whose metrics are scraped."""

    process: Any
    port: int
    data: DataDir | None = None

    @property
    def instance(self) -> str:
        return f"127.0.0.1:{self.port}"

    def kill(self) -> None:
        self.process.kill()
        self.process.join()


@dataclass
class Swarm:
    """Members, and the bootstrap peer that introduced them."""

    manifest: Manifest
    address: str
    bootstrap: Node
    members: list[Node] = field(default_factory=list)


NO_PAGE = DashboardSettings(address=None)


def introduce(settings: BootstrapSettings) -> None:
    async def run() -> None:
        await run_bootstrap(settings, ready=lambda _: None)

    trio.run(run)


def take_part(settings: DaemonSettings) -> None:
    def begin(
        given: DaemonSettings, data: DataDir, me: Identity, network: Network, telemetry: Telemetry
    ) -> SwarmSession:
        return SwarmSession(given, data, me, network, telemetry, Workshop(me.peer, 0).start)

    trio.run(serve_owner, settings, begin)


def started(function: Callable[[Any], None], settings: Any, data: DataDir | None = None) -> Node:
    process = multiprocessing.get_context("fork").Process(target=function, args=(settings,))
    process.start()
    assert settings.metrics_address is not None
    return Node(process, settings.metrics_address[1], data)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Yield a folder on a disk with less free space than the alert requires."""
    place = tmp_path / "small"
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=300m", "tmpfs", str(place)]
    if os.geteuid() != 0 or subprocess.run(command, capture_output=True).returncode:
        pytest.skip("a small disk is mounted, which takes root")
    yield place
    subprocess.run(["umount", str(place)], check=True)


@pytest.fixture
def swarm(tmp_path: Path, small_disk: Path) -> Iterator[Swarm]:
    """Run four members: a founder, one on a small disk, one that cannot be dialled, and one more."""
    places = [tmp_path / "founder", small_disk, tmp_path / "hidden", tmp_path / "other"]
    datas = [DataDir(place) for place in places]
    for data in datas:
        data.create()
    manifest, blobs, _ = toy_swarm(min_seconds=0.5, lease_min_seconds=LEASE_SECONDS)
    manifest = replace(manifest, founder=open_identity(datas[0], None).peer)
    for blob in (manifest.encode(), *blobs[1:]):
        BlobStore(datas[0].blobs).put(blob)
    me = identity(99)
    listen = f"/ip4/127.0.0.1/tcp/{free_port()}"
    address = f"{listen}/p2p/{peer_text(me.peer)}"
    settings = BootstrapSettings(
        identity=me, line=LineSettings(listen=(listen,)), metrics_address=("127.0.0.1", free_port())
    )
    swarm = Swarm(manifest, address, started(introduce, settings))
    try:
        for data in datas:
            theirs = replace(
                quiet_settings(manifest, data.root, bootstrap=(address,), dashboard=NO_PAGE),
                line=LineSettings(listen=LOOPBACK.listen),
                metrics_address=("127.0.0.1", free_port()),
            )
            if data.root.name == "hidden":
                line = replace(theirs.line, announce=(f"/ip4/127.0.0.1/tcp/{NOBODYS_PORT}",))
                theirs = replace(theirs, line=line)
            swarm.members.append(started(take_part, theirs, data))
        yield swarm
    finally:
        for node in (*swarm.members, swarm.bootstrap):
            node.kill()


def shortened(rules: str) -> str:
    """Return the alerts with time spans that a test can wait for."""

    def shorter(found: re.Match[str]) -> str:
        seconds = int(found[2]) * SECONDS[found[3]] // FASTER
        return f"{found[1]}{seconds}s"

    return re.sub(r"(\[|for: )(\d+)([smhd])", shorter, rules)


class Prometheus:
    """A Prometheus that scrapes a swarm every second."""

    def __init__(self, folder: Path, docker: Path, nodes: list[Node]) -> None:
        folder.mkdir()
        config = yaml.safe_load((docker / "prometheus.yml").read_text())
        config["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
        (job,) = config["scrape_configs"]
        job["static_configs"] = [{"targets": [node.instance for node in nodes]}]
        (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
        (folder / "alerts.yml").write_text(shortened((docker / "alerts.yml").read_text()))
        self._url = f"http://127.0.0.1:{free_port()}"
        self._log = (folder / "log").open("wb")
        self._process = subprocess.Popen(
            [
                "prometheus",
                f"--config.file={folder / 'prometheus.yml'}",
                f"--storage.tsdb.path={folder / 'data'}",
                f"--web.listen-address={self._url.removeprefix('http://')}",
            ],
            stdout=self._log,
            stderr=self._log,
        )

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        self._log.close()

    def series(self, expression: str) -> list[Any]:
        """Return the current result of a query."""
        return self._get("query", query=expression)["result"]

    def firing(self) -> set[tuple[str, str]]:
        """Return the alerts that fire now, with their instances."""
        return {
            (alert["labels"]["alertname"], alert["labels"]["instance"])
            for alert in self._get("alerts")["alerts"]
            if alert["state"] == "firing"
        }

    def _get(self, path: str, **words: str) -> Any:
        with urlopen(f"{self._url}/api/v1/{path}?{urlencode(words)}", timeout=60) as answer:
            return json.load(answer)["data"]


async def offend(swarm: Swarm, member: str) -> None:
    """Ask the bootstrap peer for a peer without a reservation, and send a member an invalid request."""
    async with open_network(LOOPBACK, identity(77)) as stranger:
        await stranger.connect(swarm.address, 60.0)
        nobody = circuit_through(swarm.address, identity(78).peer)
        with contextlib.suppress(DialError):
            await stranger.connect(nobody, 60.0)
        await stranger.connect(member, 60.0)
        peer: PeerId = parse_dial(member)[1]
        with contextlib.suppress(RequestError):
            await stranger.request(peer, SYNC_PROTOCOL, b"\xff", max_response=1024, timeout=60.0)


def until(condition: Callable[[], bool], what: Callable[[], object]) -> float:
    """Wait for a condition; return the seconds that it took. `what` is shown on a timeout."""
    begun = time.monotonic()
    while True:
        with contextlib.suppress(OSError, UserError):
            if condition():
                return time.monotonic() - begun
        assert time.monotonic() < begun + PATIENCE_SECONDS, what()
        time.sleep(1.0)


def round_of(node: Node) -> int:
    assert node.data is not None
    return ask(node.data.socket, "status", 60.0)["training"]["round"] or 0


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.skipif(shutil.which("prometheus") is None, reason="prometheus is not installed")
def test_panels_have_data_and_alerts_fire(checkout: Path, tmp_path: Path, swarm: Swarm) -> None:
    docker = checkout / "docker"
    founder, small, hidden, other = swarm.members
    dashboard = json.loads((docker / "grafana/dashboards/distro-node.json").read_text())
    alerts = yaml.safe_load((docker / "alerts.yml").read_text())
    questions = {
        target["expr"].replace("$node", ".*")
        for panel in dashboard["panels"]
        for target in panel.get("targets", ())
    }
    # An alert's own query has no result while all is well; its metrics have one.
    questions |= {
        found[0]
        for group in alerts["groups"]
        for rule in group["rules"]
        for found in re.finditer(r"\b(?:distro_[a-z_]+|up)\b(?:\{[^}]*\})?", rule["expr"])
    }
    # These members have no private data.
    questions = {each for each in questions if "distro_privacy_epsilon" not in each}
    with contextlib.closing(
        Prometheus(tmp_path / "prometheus", docker, [*swarm.members, swarm.bootstrap])
    ) as prometheus:
        until(lambda: all(round_of(node) >= 3 for node in swarm.members), lambda: "no rounds")
        # A counter that is scraped for the first time after the offence never increases.
        nodes = len(swarm.members) + 1
        until(lambda: len(prometheus.series("up == 1")) == nodes, lambda: "not all are scraped")
        assert founder.data is not None
        scores = to_plain(replace(SCORES, swarm=swarm_text(swarm.manifest.swarm)), named=True)
        assert ask(founder.data.socket, "scored", 60.0, scores=scores) == {"ok": True}
        status = ask(founder.data.socket, "status", 60.0)
        trio.run(offend, swarm, status["line"]["addresses"][0])

        waiting = set(questions)

        def unanswered() -> list[str]:
            # Increases are of the last minutes, so not all questions have answers at one time.
            waiting.difference_update([each for each in waiting if prometheus.series(each)])
            return sorted(waiting)

        seconds = until(lambda: not unanswered(), unanswered)
        print(f"{len(questions)} questions answered after {seconds:.0f} s more")

        def fires(name: str, node: Node) -> None:
            seconds = until(lambda: (name, node.instance) in prometheus.firing(), prometheus.firing)
            print(f"{name} fired after {seconds:.0f} s")

        fires("DiskNearlyFull", small)
        fires("NodeUnreachable", hidden)
        names = {name for name, _ in prometheus.firing()}
        assert names.isdisjoint({"NodeDown", "NodeIsAlone", "NodeStands"})
        assert ("NodeUnreachable", founder.instance) not in prometheus.firing()

        other.kill()
        fires("NodeDown", other)
        # The others must not stop because one was killed.
        went_on = round_of(founder) + 3
        until(lambda: round_of(founder) >= went_on, lambda: "the others stopped")

        for node in (small, hidden, swarm.bootstrap):
            node.kill()
        fires("NodeStands", founder)
        fires("NodeIsAlone", founder)
