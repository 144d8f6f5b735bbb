"""A node as a service: the unit files, and that no edited file is overwritten."""

from __future__ import annotations

import json
import os
import plistlib
import re
import shlex
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest
from cli.schemas import conforms
from distro_node.node.cli import service as command_module
from distro_node.node.errors import ExitCode, UserError
from distro_node.node.service.manager import ServiceCommandResult, ServiceManager
from distro_node.node.service.units import Service, is_ours, launchd_plist, systemd_unit
from distro_node.protocol.wire.manifest import SwarmId
from distro_node.protocol.wire.swarm_id import swarm_text

LINK = (
    f"distro:{swarm_text(SwarmId(bytes(32)))}?bootstrap=/dns4/a.example/tcp/4001/p2p/x&at=%41$HOME"
)
GOOD = f"distro:{swarm_text(SwarmId(bytes(32)))}"
WORDS = ("/opt/my node/bin/distro-node", "join", LINK, "--data-dir", 'a "b" \\c')


def unit(**changes: object) -> Service:
    known = {"name": "distro-node", "command": "join", "command_line": WORDS}
    return Service(**{**known, **changes})  # pyright: ignore[reportArgumentType]


class System:
    """Manager whose commands are recorded instead of run."""

    def __init__(self, folder: Path, kind: str = "systemd", system: bool = False) -> None:
        self.asked: list[str] = []
        self.answers: dict[str, ServiceCommandResult] = {}
        self.manager = ServiceManager(
            kind=kind,  # pyright: ignore[reportArgumentType]
            system=system,
            folder=folder / "units",
            logs=folder / "logs",
            run=self.run,
        )

    def run(self, words: Sequence[str]) -> ServiceCommandResult:
        self.asked.append(" ".join(words))
        known = (answer for part, answer in self.answers.items() if part in self.asked[-1])
        return next(known, ServiceCommandResult(0, ""))


# Private here: `_program`: the program's path depends on this machine.

# --- unit files ----------------------------------------------------------------------------------


def exec_start(content: bytes) -> list[str]:
    (line,) = re.findall(r"^ExecStart=(.*)$", content.decode(), re.MULTILINE)
    return [word.replace("%%", "%").replace("$$", "$") for word in shlex.split(line)]


@pytest.mark.parametrize("system", [False, True])
def test_systemd_gets_every_argument_as_it_is(system: bool) -> None:
    content = systemd_unit(unit(system=system))
    assert exec_start(content) == list(WORDS)
    assert is_ours(content)
    assert b"WantedBy=" + (b"multi-user" if system else b"default") + b".target" in content
    assert (b"DynamicUser=yes" in content) == system
    # A mistake that a restart does not fix is not retried every half a minute for ever.
    (lasting,) = re.findall(rb"RestartPreventExitStatus=(.*)", content)
    lasting_codes = {ExitCode.NO_TICKET, ExitCode.EXPELLED, ExitCode.NO_TASK}
    lasting_codes |= {ExitCode.PRIVACY, ExitCode.OTHER_MODEL, ExitCode.UNSUPPORTED}
    assert set(map(int, lasting_codes)) <= set(map(int, lasting.split()))
    assert int(ExitCode.NO_BOOTSTRAP) not in set(map(int, lasting.split()))


def test_only_who_trains_gets_devices() -> None:
    member, peer = (
        systemd_unit(unit(system=True, command=command)) for command in ("join", "bootstrap")
    )
    assert b"PrivateDevices=yes" in peer
    assert b"PrivateDevices=no" in member


def test_launchd_gets_every_argument_as_it_is(tmp_path: Path) -> None:
    content = launchd_plist(unit(), tmp_path / "log")
    told = plistlib.loads(content)
    assert told["ProgramArguments"] == list(WORDS)
    assert told["KeepAlive"] == {"SuccessfulExit": False}
    assert told["StandardErrorPath"] == str(tmp_path / "log")
    assert is_ours(content)


@pytest.mark.parametrize("made", [systemd_unit(unit()), launchd_plist(unit(), Path("/log"))])
def test_whatever_is_edited_is_not_ours(made: bytes) -> None:
    assert not is_ours(made.replace(b"30", b"31", 1))
    assert not is_ours(made + b"\n")
    assert not is_ours(b"[Service]\nExecStart=/bin/true\n")
    assert not is_ours(b"")


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
@pytest.mark.parametrize("command", ["join", "bootstrap"])
def test_systemd_takes_the_units(tmp_path: Path, command: str) -> None:
    program = tmp_path / "a program"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    words = (str(program), command, LINK)
    for system in (True, False):
        file = tmp_path / f"{command}-{system}.service"
        file.write_bytes(systemd_unit(unit(command_line=words, command=command, system=system)))
        scope = () if system else ("--user",)
        environment = {**os.environ, "XDG_RUNTIME_DIR": str(tmp_path)}
        done = subprocess.run(
            ["systemd-analyze", *scope, "verify", file],
            capture_output=True,
            text=True,
            env=environment,
        )
        assert (done.returncode, done.stderr) == (0, "")
    offline = ("systemd-analyze", "security", "--offline=yes")
    score = subprocess.run(
        # Of ten, in tenths: the join unit has 1.9, the bootstrap unit 1.6.
        [*offline, "--threshold=25", tmp_path / f"{command}-True.service"],
        capture_output=True,
        text=True,
    )
    assert score.returncode == 0, score.stdout


# --- installing and removing ---------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["systemd", "launchd"])
def test_a_service_comes_and_goes(tmp_path: Path, kind: str) -> None:
    system = System(tmp_path, kind)
    manager = system.manager
    assert not manager.status("distro-node").installed
    path = manager.install(unit(), force=False)
    assert path.read_bytes() == manager.content(unit())
    assert path.stat().st_mode & 0o777 == 0o644
    assert any(word in system.asked[-1] for word in ("restart", "bootstrap"))
    status = manager.status("distro-node")
    assert (status.installed, status.edited) == (True, False)
    # Another command replaces the former one without a question: that one was ours.
    other = unit(command_line=(*WORDS, "--wait"))
    assert manager.install(other, force=False).read_bytes() == manager.content(other)
    assert manager.remove("distro-node", force=False) == path
    assert not path.exists()
    assert list(path.parent.iterdir()) == []
    assert any(word in " ".join(system.asked[-2:]) for word in ("disable --now", "bootout"))
    with pytest.raises(UserError) as caught:
        manager.remove("distro-node", force=False)
    assert caught.value.code is ExitCode.SERVICE


def test_users_and_systems_are_distinguished(tmp_path: Path) -> None:
    own, whole = System(tmp_path / "a"), System(tmp_path / "b", system=True)
    for system in (own, whole):
        system.manager.install(unit(), force=False)
    assert all("--user" in asked for asked in own.asked)
    assert not any("--user" in asked for asked in whole.asked)


def test_a_file_that_was_edited_stays(tmp_path: Path) -> None:
    system = System(tmp_path)
    manager = system.manager
    path = manager.install(unit(), force=False)
    edited = path.read_bytes() + b"Nice=10\n"
    path.write_bytes(edited)
    asked = len(system.asked)
    for change in (
        lambda: manager.install(unit(), force=False),
        lambda: manager.remove(unit().name, force=False),
    ):
        with pytest.raises(UserError, match="was edited") as caught:
            change()
        assert caught.value.code is ExitCode.SERVICE
    assert path.read_bytes() == edited
    assert len(system.asked) == asked
    assert manager.status("distro-node").edited
    manager.install(unit(), force=True)
    assert path.read_bytes() == manager.content(unit())
    assert path.with_name("distro-node.service.before").read_bytes() == edited


def test_what_the_system_reports_is_passed_on(tmp_path: Path) -> None:
    system = System(tmp_path)
    system.answers["enable"] = ServiceCommandResult(1, "Failed to connect to bus")
    with pytest.raises(UserError, match="Failed to connect to bus") as caught:
        system.manager.install(unit(), force=False)
    assert caught.value.code is ExitCode.SERVICE
    assert system.manager.file("distro-node").exists()
    system.answers = {"is-active": ServiceCommandResult(3, "failed")}
    assert system.manager.status("distro-node").state == "failed"
    system.answers = {
        "is-active": ServiceCommandResult(1, "Failed to connect to bus: No medium found")
    }
    assert system.manager.status("distro-node").state == "unknown"


@pytest.mark.parametrize("kind", ["systemd", "launchd"])
def test_a_service_that_may_still_run_stays(tmp_path: Path, kind: str) -> None:
    system = System(tmp_path, kind)
    path = system.manager.install(unit(), force=False)
    refusal = ServiceCommandResult(1, "Failed to connect to bus: No medium found")
    # launchctl prints the state of a service that runs.
    system.answers = {"disable --now": refusal, "bootout": refusal, "is-active": refusal}
    with pytest.raises(UserError, match=r"may still run: .*Failed to connect to bus") as caught:
        system.manager.remove("distro-node", force=False)
    assert (caught.value.code, path.exists()) == (ExitCode.SERVICE, True)
    system.answers["is-active"] = ServiceCommandResult(3, "failed")
    system.answers["launchctl print"] = ServiceCommandResult(113, "Could not find service")
    assert system.manager.remove("distro-node", force=False) == path
    system.answers["is-active"] = refusal
    system.answers.pop("launchctl print")
    system.manager.install(unit(), force=False)
    assert system.manager.remove("distro-node", force=True) == path


def test_a_place_that_takes_nothing(tmp_path: Path) -> None:
    (tmp_path / "units").write_text("no folder")
    with pytest.raises(UserError, match="cannot be used") as caught:
        System(tmp_path).manager.install(unit(), force=False)
    assert caught.value.code is ExitCode.SERVICE


# --- the command ---------------------------------------------------------------------------------


@pytest.fixture
def system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> System:
    made = System(tmp_path)
    monkeypatch.setattr(command_module, "this_manager", lambda *, system: made.manager)
    return made


def test_the_command_installs_what_it_was_given(command, system: System) -> None:
    done = command("service", "install", "--", "join", GOOD, "--max-upload", "5Mbit")
    assert done.code == 0, done
    path = system.manager.file("distro-node")
    assert str(path) in done.out
    # At boot the network may not be up yet.
    assert exec_start(path.read_bytes())[1:] == ["join", "--wait", GOOD, "--max-upload", "5Mbit"]
    assert "is active" not in command("service", "status").out
    system.answers["is-active"] = ServiceCommandResult(0, "active")
    assert command("service", "status").out.startswith("The service is active")
    for action in ("status", "remove"):
        conforms("service", json.loads(command("service", action, "--json").out))
    assert "There is no service" in command("service", "status").out


def test_only_printed_nothing_is_written(command, system: System) -> None:
    done = command("service", "install", "--show", "--", "bootstrap", "--relay-memory", "64")
    assert done.out.encode() == system.manager.content(
        Service(
            name="distro-node",
            command="bootstrap",
            command_line=(*command_module._program(), "bootstrap", "--relay-memory", "64"),
        )
    )
    assert system.asked == []
    assert not system.manager.folder.exists()


def test_an_option_of_another_action_does_nothing_unseen(
    command, system: System, monkeypatch
) -> None:
    assert command("service", "install", "--", "bootstrap").code == 0
    path, asked = system.manager.file("distro-node"), list(system.asked)
    for words, option in (
        (("remove", "--show"), "--show"),
        (("status", "--show"), "--show"),
        (("status", "--force"), "--force"),
        # What it prints would be no JSON.
        (("install", "--show", "--json", "--", "bootstrap"), "--json"),
    ):
        command("service", *words).refused_with(ExitCode.USAGE, option)
    monkeypatch.setenv("DISTRO_NODE_SERVICE_SHOW", "1")
    command("service", "remove").refused_with(ExitCode.USAGE, "--show")
    assert (path.exists(), system.asked) == (True, asked)


def test_what_is_added_to_a_command_is_an_option_of_it(
    command, system: System, tmp_path: Path
) -> None:
    def installed(*words: str) -> list[str]:
        done = command(*words)
        assert done.code == 0, done
        return exec_start(system.manager.file("distro-node").read_bytes())[1:]

    assert installed("service", "install", "--", "join", "--", GOOD) == [
        *("join", "--wait", "--", GOOD)
    ]
    config = tmp_path / "own.toml"
    config.write_text("[join]\nwait = false\n")
    given = ("--config", str(config))
    assert installed(*given, "service", "install", "--", "join", GOOD) == [*given, "join", GOOD]


def test_a_service_finds_what_variables_have_moved(
    command, system: System, tmp_path: Path, monkeypatch
) -> None:
    def installed(*words: str | Path) -> list[str]:
        done = command("service", "install", *words)
        assert done.code == 0, done
        return exec_start(system.manager.file("distro-node").read_bytes())[1:]

    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "large"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "settings"))
    moved = f"--data-dir={tmp_path}/large/distro-node"
    assert installed("--", "bootstrap") == ["bootstrap", moved]
    assert installed("--", "bootstrap", "--data-dir", tmp_path) == [
        *("bootstrap", "--data-dir", str(tmp_path))
    ]
    config = tmp_path / "settings/distro-node/config.toml"
    config.parent.mkdir(parents=True)
    config.write_text('max-upload = "5Mbit"\n')
    assert installed("--", "bootstrap") == ["--config", str(config), "bootstrap", moved]
    # The system's service has a place of its own, and no user's file.
    monkeypatch.setattr(command_module, "_program", lambda: ("/opt/distro-node",))
    assert installed("--system", "--", "bootstrap") == ["bootstrap"]


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (("install",), ExitCode.USAGE, "needs a command"),
        (("install", "--", "status"), ExitCode.USAGE, "either `join` or `bootstrap`"),
        (("install", "--", "join", "swarm-x"), ExitCode.BAD_SWARM_ID, "too short"),
        (("install", "--", "join", "swarm\n-x"), ExitCode.USAGE, "line break"),
        (("install", "--name", "a/b", "--", "bootstrap"), ExitCode.USAGE, "'a/b'"),
        (("remove", "--", "bootstrap"), ExitCode.USAGE, "takes no command"),
        (("remove",), ExitCode.SERVICE, "there is no service"),
        (
            ("install", "--system", "--", "bootstrap", "--data-dir", "/srv"),
            ExitCode.USAGE,
            "directory of its own",
        ),
    ],
)
def test_mistakes_are_reported_before_anything_is_written(
    command, system: System, words: Sequence[str], code: int, says: str
) -> None:
    command("service", *words).refused_with(code, says)
    assert system.asked == []


def test_the_command_s_own_options_are_checked(command, system: System) -> None:
    done = command("service", "install", "--", "bootstrap", "--max-uplaod", "5Mbit")
    assert (done.code, "--max-upload" in done.err) == (ExitCode.USAGE, True)
    assert system.asked == []


def test_a_system_s_service_sees_no_home(
    command, system: System, tmp_path: Path, monkeypatch
) -> None:
    monkeypatch.setattr(command_module, "_program", lambda: ("/home/distro/bin/distro-node",))
    command("service", "install", "--system", "--", "bootstrap").refused_with(
        ExitCode.SERVICE, "/home/distro"
    )
    monkeypatch.setattr(command_module, "_program", lambda: ("/opt/distro-node",))
    config = tmp_path / "own.toml"
    config.write_text("")
    install = ("service", "install", "--system", "--", "bootstrap", "--observe", GOOD)
    for place in ("/home/distro/cert.pem", "/tmp/cert.pem"):
        command(*install, "--dashboard-cert", place).refused_with(ExitCode.SERVICE, place)
    # Private here: `_TEMPORARY`: the tests' own directory may be elsewhere.
    monkeypatch.setattr(command_module, "_TEMPORARY", ("/tmp", str(tmp_path)))
    # Not even the file with the settings can be read there.
    command("--config", config, *install).refused_with(ExitCode.SERVICE, "/own.toml")
    assert system.asked == []
    assert command(*install, "--dashboard-cert", "/etc/ssl/cert.pem").code == 0


def test_the_values_of_options_are_checked_before_a_service_is_said_to_run(
    command, system: System, tmp_path: Path
) -> None:
    for words in (
        ("join", GOOD, "--max-upload", "5"),
        ("join", GOOD, "--memory", "8G"),
        ("join", GOOD, "--active", "at night"),
        ("bootstrap", "--max-upload", "fast"),
        ("bootstrap", "--dashboard", "0.0.0.0:80"),
    ):
        done = command("service", "install", "--", *words)
        assert (done.code, system.asked) == (ExitCode.USAGE, []), done
    for words in (
        ("join", GOOD, "--listen", "/ip4/0.0.0.0/tcp/99999"),
        ("bootstrap", "--announce", "/ip4/0.0.0.0/tcp/4001"),
    ):
        command("service", "install", "--", *words).refused_with(ExitCode.BAD_ADDRESS, words[-1])
    assert system.asked == []
    absent = command("service", "install", "--", "join", GOOD, "--data", tmp_path / "absent")
    absent.refused_with(ExitCode.DATA_MISSING)
    for words in (("join", GOOD), ("bootstrap",)):
        done = command("service", "install", "--", *words, "--passphrase-file", tmp_path / "absent")
        done.refused_with(ExitCode.KEYSTORE, "absent")
    good = ("--compile", "off", "--data", tmp_path, "--max-disk", "20GB", "--data-dir", tmp_path)
    assert command("service", "install", "--", "join", GOOD, *good).code == 0


def test_paths_are_those_of_the_terminal(
    command, system: System, tmp_path: Path, monkeypatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "blobs").mkdir()
    (tmp_path / "secret").write_text("open sesame\n")
    places = ("--data-dir", "node", "--passphrase-file=secret", "--mirror", "blobs")
    url = ("--mirror", "https://example.org/blobs", "--display-name", "node", "--wait")
    assert command("service", "install", "--", "join", GOOD, *places, *url).code == 0
    assert exec_start(system.manager.file("distro-node").read_bytes())[1:] == [
        *("join", GOOD, "--data-dir", f"{tmp_path}/node"),
        *(f"--passphrase-file={tmp_path}/secret", "--mirror", f"{tmp_path}/blobs", *url),
    ]


@pytest.mark.parametrize(
    ("line", "key"),
    [
        ('data-dir = "node"', "data-dir"),
        ('passphrase-file = "secret"', "passphrase-file"),
        ('mirror = ["https://example.org/blobs", "blobs"]', "mirror"),
    ],
)
def test_paths_in_the_configuration_file_must_mean_the_same_to_a_service(
    command, system: System, tmp_path: Path, monkeypatch, line: str, key: str
) -> None:
    """It starts in another directory: with another identity, or not at all."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "blobs").mkdir()
    (tmp_path / "secret").write_text("open sesame\n")
    install = ("--config", "own.toml", "service", "install", "--", "join", GOOD)
    Path("own.toml").write_text(f"[join]\n{line}\n")
    command(*install).refused_with(ExitCode.BAD_CONFIG, key)
    assert system.asked == []
    for name in ("node", "secret", "blobs"):
        line = line.replace(f'"{name}"', f'"{tmp_path}/{name}"')
    Path("own.toml").write_text(f"[join]\n{line}\n")
    assert command(*install).code == 0


def test_a_service_gets_the_configuration_file_and_no_variables(
    command, system: System, tmp_path: Path, monkeypatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("own.toml").write_text('[join]\nmax-upload = "5Mbit"\n')
    monkeypatch.setenv("DISTRO_NODE_DATA_DIR", "/srv/large")
    done = command("--config", "own.toml", "service", "install", "--", "join", GOOD)
    assert done.code == 0, done
    assert exec_start(system.manager.file("distro-node").read_bytes())[1:] == [
        *("--config", f"{tmp_path}/own.toml", "join", "--wait", GOOD)
    ]
    assert "warning: the service does not get DISTRO_NODE_DATA_DIR" in done.err
    # A name is looked up in the list of a bootstrap peer, which the service would not have.
    peer = "/ip4/192.0.2.1/tcp/4001/p2p/12D3KooWDpJ7As7BWAwRMfu1VU2WCqNjvq387JEYKDBj4kx6nXTN"
    monkeypatch.setenv("DISTRO_NODE_BOOTSTRAP", peer)
    command("service", "install", "--", "join", "a name").refused_with(ExitCode.BAD_SWARM_ID)
    # The system's one has its own data directory, whatever this user's file or variables name.
    monkeypatch.setattr(command_module, "_program", lambda: ("/opt/distro-node",))
    assert command("service", "install", "--system", "--", "join", GOOD).code == 0
