"""The Debian package of a bootstrap peer: its unit, its configuration, and a whole life in a chroot."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import signal
import subprocess
from pathlib import Path

import pytest
from debian import MIRROR, run
from distro_node import __version__
from distro_node.node.cli.main import COMMANDS
from distro_node.node.config import command_options, load_defaults
from distro_node.node.service.units import Service, systemd_unit

# What it takes to build the package and to install it into a Debian of its own.
TOOLS = ("debootstrap", "dpkg-deb", "chroot", "gcc")


@pytest.fixture(scope="module")
def debian(checkout: Path) -> Path:
    return checkout / "docker" / "debian"


def packaged_unit(debian: Path) -> str:
    spec = importlib.util.spec_from_file_location("debian_unit", debian / "unit.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.unit()


def test_the_unit_is_as_closed_as_that_of_the_service_command(debian: Path) -> None:
    packaged = packaged_unit(debian)
    ours = Service(name="distro-node", command="bootstrap", command_line=("x",), system=True)
    generated = set(systemd_unit(ours).decode().splitlines())
    lacking = generated - set(packaged.splitlines())
    assert {each.partition("=")[0] for each in lacking if not each.startswith("#")} == {
        "DynamicUser",
        "ExecStart",
    }
    added = set(packaged.splitlines()) - generated
    assert {each.partition("=")[0] for each in added} == {"ExecStart", "User", "Group"}
    # The mark would let `distro-node service` take the file for its own.
    assert "Made by" not in packaged


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
def test_systemd_takes_the_unit(debian: Path, tmp_path: Path) -> None:
    program = tmp_path / "distro-node"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    unit = tmp_path / "distro-node-bootstrap.service"
    unit.write_text(packaged_unit(debian).replace("/usr/bin/distro-node", str(program)))
    done = subprocess.run(["systemd-analyze", "verify", unit], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    security = ("systemd-analyze", "security", "--offline=yes", "--threshold=25")
    done = subprocess.run([*security, unit], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def test_the_program_takes_the_configuration(debian: Path, tmp_path: Path) -> None:
    """The lines that are commented out too."""
    text = (debian / "bootstrap.toml").read_text()
    spelled = re.sub(r"^# (?=[a-z-]+ = )", "", text, flags=re.MULTILINE)
    assert spelled.count("\n#") < text.count("\n#")
    (tmp_path / "bootstrap.toml").write_text(spelled)
    options = {name: command_options(command) for name, command in COMMANDS.items()}
    defaults = load_defaults(tmp_path / "bootstrap.toml", options, {})
    assert set(defaults["bootstrap"]) == {"listen", "announce", "max_upload", "metrics_addr"}


@pytest.mark.parametrize("name", ["build", "postinst", "prerm", "postrm"])
def test_the_scripts_are_shell(debian: Path, name: str) -> None:
    text = (debian / name).read_text()
    assert text.startswith("#!/bin/sh\n")
    assert re.search(r"^set -eu?$", text, re.MULTILINE)
    done = subprocess.run(["sh", "-n", debian / name], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.soak
@pytest.mark.timeout(3000)
@pytest.mark.skipif(
    os.geteuid() != 0
    or any(shutil.which(tool) is None for tool in TOOLS)
    or not Path("/usr/include/python3.11").is_dir(),
    reason="takes root on Debian 12, debootstrap and the headers of Python",
)
def test_a_package_is_built_installed_and_runs(
    checkout: Path, debian: Path, tmp_path: Path
) -> None:
    """In a bare Debian, as its own user, without PyTorch. Removal keeps the identity."""
    run([debian / "build", tmp_path])
    (package,) = tmp_path.glob("*.deb")
    assert package.name.startswith(f"distro-node-bootstrap_{__version__}_")
    assert package.stat().st_size < 60 << 20
    root = tmp_path / "root"
    run(["debootstrap", "--variant=minbase", "bookworm", root, MIRROR])
    shutil.copy("/etc/resolv.conf", root / "etc" / "resolv.conf")
    shutil.copy(package, root / "tmp" / package.name)
    inside = ("chroot", root)
    run([*inside, "apt-get", "update"])
    run([*inside, "apt-get", "install", "--yes", "--no-install-recommends", f"/tmp/{package.name}"])
    data = root / "var" / "lib" / "distro-node"
    owner = run([*inside, "stat", "--format=%U %a", "/var/lib/distro-node"])
    assert owner.split() == ["distro-node", "700"]
    assert not list(root.rglob("site-packages/torch"))

    program = (
        *("chroot", "--userspec=distro-node:distro-node", root, "env", "-i"),
        *("HOME=/var/lib/distro-node", "DISTRO_NODE_DATA_DIR=/var/lib/distro-node"),
        *("/usr/bin/distro-node", "--config", "/etc/distro-node/bootstrap.toml"),
    )
    loopback = ("--listen", "/ip4/127.0.0.1/tcp/0")
    running = subprocess.Popen(
        [*program, "bootstrap", "--json", *loopback], stdout=subprocess.PIPE, text=True
    )
    try:
        assert running.stdout is not None
        addresses = json.loads(running.stdout.readline())["addresses"]
        status = json.loads(run([*program, "status", "--json"]))
        assert status["version"] == __version__
        assert status["line"]["addresses"] == addresses
        run([*program, "leave"])
        assert running.wait(60.0) == 0
    finally:
        if running.poll() is None:
            running.send_signal(signal.SIGKILL)
            running.wait()
    run([*inside, "apt-get", "purge", "--yes", "distro-node-bootstrap"])
    assert not (root / "usr" / "lib" / "distro-node").exists()
    assert not (root / "etc" / "distro-node").exists()
    assert (data / "identity.key").is_file()
