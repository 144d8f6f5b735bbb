"""The program as a whole: what it loads, how it ends, and its messages about mistakes."""

from __future__ import annotations

import ast
import errno
import importlib.metadata
import json
import logging
import os
import re
import signal
import socket
import subprocess
import sys
import types
import typing
from collections.abc import Callable
from pathlib import Path
from typing import Any

import distro_node.node.results.export as export_module
import pytest
from distro_node import __version__
from distro_node.crypto.identity import Identity, peer_text
from distro_node.crypto.keystore import create_identity
from distro_node.node.cli.main import COMMANDS, _settings, app
from distro_node.node.config import command_options
from distro_node.node.errors import ExitCode, UserError
from distro_node.node.results.export import Exported, ExportSettings
from distro_node.node.settings.components import (
    ConsoleSettings,
    EnergySettings,
    EvaluationSettings,
    LineSettings,
    PeeringSettings,
    RelayLimits,
    RelaySettings,
    TrainerSettings,
)
from distro_node.node.settings.tree import (
    DaemonSettings,
    HostedDashboardSettings,
    JoinSettings,
    ObserverSettings,
    StateSelector,
)
from distro_node.node.storage.data_dir import DataDir
from distro_node.node.util.progress import ShowProgress
from distro_node.node.util.schedule import parse_hours
from distro_node.protocol.wire.manifest import SwarmId
from distro_node.protocol.wire.swarm_id import Invite, invite_text, swarm_text
from typer.main import get_command

SWARM = SwarmId(bytes(range(32)))
TEXT = swarm_text(SWARM)
PEER = peer_text(Identity.from_seed(bytes(32)).peer)
ADDRESS = f"/ip4/192.0.2.1/tcp/4001/p2p/{PEER}"
OTHER = f"/dns4/example.org/tcp/4001/p2p/{PEER}"
HEAVY = ("libp2p", "torch", "transformers", "tokenizers", "trio", "numpy")


def process(*arguments: str | Path, **options) -> subprocess.Popen:
    """Start the real console entry in a process of its own."""
    return subprocess.Popen(
        [sys.executable, "-m", "distro_node.node", *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # A shell that runs the tests in the background may ignore SIGINT, which would be inherited.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        **options,
    )


@pytest.fixture
def daemon(monkeypatch: pytest.MonkeyPatch) -> list[DaemonSettings]:
    """Replace the daemon: collect the settings it is started with."""
    started: list[DaemonSettings] = []

    async def run_daemon(settings: DaemonSettings, _model: object) -> None:
        started.append(settings)

    replace_module(monkeypatch, "daemon", run_daemon=run_daemon)
    return started


def replace_module(monkeypatch: pytest.MonkeyPatch, name: str, **content: object) -> None:
    module = types.ModuleType(name)
    for key, value in content.items():
        setattr(module, key, value)
    monkeypatch.setitem(sys.modules, f"distro_node.node.{name}", module)


# --- what it loads -------------------------------------------------------------------------------


@pytest.mark.parametrize("arguments", [["--help"], ["join", "--help"], ["id"], ["--version"]])
def test_quick_commands_load_nothing_heavy(home: Path, arguments: list[str]) -> None:
    create_identity(home / "identity.key", None)
    script = f"""
import sys
from distro_node.node.cli import main
try:
    main({arguments!r})
finally:
    print([name for name in {HEAVY!r} if name in sys.modules])
"""
    environment = {**os.environ, "DISTRO_NODE_DATA_DIR": str(home)}
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, env=environment, check=True
    )
    assert done.stdout.splitlines()[-1] == "[]"


def test_a_command_that_uses_the_network_would_be_noticed(home: Path) -> None:
    # Shows that the test above can detect what it looks for.
    script = "import sys, trio, numpy; print([n for n in ('trio', 'numpy') if n in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "['trio', 'numpy']"


def test_the_console_script_is_this_program(checkout: Path) -> None:
    assert (
        'distro-node = "distro_node.node.__main__:main"'
        in (checkout / "pyproject.toml").read_text()
    )
    done = process("--version")
    out, err = done.communicate()
    assert (done.returncode, out, err) == (0, f"distro-node {__version__}\n", "")


# --- help ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_explains_itself_with_an_example(command, name: str) -> None:
    result = command(name, "--help")
    assert result.code == 0
    assert "For example:" in " ".join(result.out.split())
    assert re.search(rf"^\s+distro-node {name}\b", result.out, re.M)


def test_without_a_command_there_is_help(command) -> None:
    result = command("--help")
    for name in COMMANDS:
        assert re.search(rf"^  {name} +\S", result.out, re.M)
    # The same where nothing is asked for, but not as a success.
    bare = command()
    assert (bare.code, bare.err) == (ExitCode.USAGE, result.out)
    # Five of the summaries were cut: "Check whether this computer can take part, and what..."
    assert "..." not in result.out.partition("Commands:")[2]


def test_options_are_named_as_their_settings() -> None:
    # The names in the configuration file and the environment are derived from the function's.
    group: Any = get_command(app)
    for command_name, function in COMMANDS.items():
        spelled = {each.name: each.opts for each in group.commands[command_name].params}
        for option in command_options(function):
            name = f"--{option.replace('_', '-')}"
            assert any(word.startswith(name) for word in spelled[option]), (command_name, option)


def test_a_misspelled_option_is_a_usage_error(command) -> None:
    result = command("join", TEXT, "--devise", "cpu")
    assert result.code == ExitCode.USAGE
    assert "--devise" in result.err
    assert "Traceback" not in result.err


@pytest.mark.parametrize("before", ["--data-dir=", "--data-dir ''", "--data-dir ~nobody-here/x"])
def test_a_shell_gets_completions_whatever_stands_before_them(home: Path, before: str) -> None:
    words = f"distro-node status {before} --js"
    done = subprocess.run(
        [sys.executable, "-m", "distro_node.node"],
        env=os.environ
        | {
            "_DISTRO_NODE_COMPLETE": "complete_bash",
            "COMP_WORDS": words,
            "COMP_CWORD": str(len(words.split()) - 1),
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.stdout.strip(), done.stderr) == ("--json", "")


# --- how it ends ---------------------------------------------------------------------------------


def failing(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    async def run_daemon(_settings: DaemonSettings, _model: object) -> None:
        raise error

    replace_module(monkeypatch, "daemon", run_daemon=run_daemon)


def test_a_mistake_of_the_users_is_two_lines(command, monkeypatch) -> None:
    failing(monkeypatch, UserError(ExitCode.NO_BOOTSTRAP, "nobody\nanswers \x1b[31m", "try\nagain"))
    result = command("join", TEXT)
    assert result.code == ExitCode.NO_BOOTSTRAP
    assert result.err == "error: nobody answers \\x1b[31m\n  try again\n"


def test_a_mistake_is_found_inside_groups(command, monkeypatch) -> None:
    mistake = UserError(ExitCode.PORT_IN_USE, "taken", "choose another")
    failing(monkeypatch, ExceptionGroup("", [ExceptionGroup("", [mistake]), mistake]))
    command("join", TEXT).refused_with(ExitCode.PORT_IN_USE, "taken")


def test_a_bug_beside_a_mistake_is_not_hidden(command, monkeypatch, tmp_path) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    mistake = UserError(ExitCode.PORT_IN_USE, "taken", "choose another")
    failing(monkeypatch, ExceptionGroup("", [mistake, KeyError("lost")]))
    assert command("join", TEXT).code == ExitCode.BUG


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_is_reported_wherever_it_happens(command, monkeypatch, number: int) -> None:
    failing(monkeypatch, ExceptionGroup("", [OSError(number, "full", "/data/blobs/x")]))
    command("join", TEXT).refused_with(ExitCode.DISK_FULL, "disk is full", "/data/blobs/x")


def test_a_bug_leaves_its_traceback_in_a_file(command, monkeypatch, tmp_path) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    failing(monkeypatch, ZeroDivisionError("of mine"))
    result = command("join", TEXT)
    assert result.code == ExitCode.BUG
    (line,) = result.err.splitlines()
    assert line.startswith("this is a bug in distro-node: ZeroDivisionError: of mine;")
    file = Path(line.rpartition(" ")[2])
    assert file.parent == tmp_path
    assert file.stat().st_mode & 0o777 == 0o600
    assert "Traceback" in file.read_text()


def test_a_bug_shows_its_traceback_when_asked_to(command, monkeypatch) -> None:
    monkeypatch.setenv("DISTRO_NODE_DEBUG", "1")
    failing(monkeypatch, ZeroDivisionError("of mine"))
    result = command("join", TEXT)
    assert result.code == ExitCode.BUG
    assert "Traceback" in result.err


def test_a_bug_is_reported_without_a_place_for_its_file(command, monkeypatch, tmp_path) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "nowhere"))
    failing(monkeypatch, ZeroDivisionError("of mine"))
    result = command("join", TEXT)
    assert result.code == ExitCode.BUG
    assert "DISTRO_NODE_DEBUG=1" in result.err


@pytest.mark.parametrize(
    "error", [KeyboardInterrupt(), BaseExceptionGroup("", [KeyboardInterrupt()])]
)
def test_control_c_is_quiet(command, monkeypatch, error: BaseException) -> None:
    failing(monkeypatch, error)
    result = command("join", TEXT)
    assert result.code == ExitCode.INTERRUPTED
    assert result.err == ""


def test_a_reader_that_has_seen_enough_is_no_error(home: Path) -> None:
    running = process("create", "--example", env={**os.environ, "PYTHONUNBUFFERED": "1"})
    assert running.stdout is not None
    running.stdout.close()
    assert running.wait() == 0
    assert running.stderr is not None
    assert running.stderr.read() == ""


def test_control_c_in_a_real_process(home: Path) -> None:
    # A bootstrap peer that takes a connection and never says a word.
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"/ip4/127.0.0.1/tcp/{silent.getsockname()[1]}/p2p/{PEER}"
        running = process("swarms", "--bootstrap", address)
        silent.settimeout(60.0)
        connection, _ = silent.accept()
        with connection:
            running.send_signal(signal.SIGINT)
            _, err = running.communicate(timeout=60.0)
    assert running.returncode == ExitCode.INTERRUPTED
    assert err == ""


def test_control_c_while_a_command_ends_interrupts_nothing(
    command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would print a traceback."""
    failing(monkeypatch, ZeroDivisionError("of mine"))
    handlers = []

    def explain(_: BaseException) -> int:
        handlers.append(signal.getsignal(signal.SIGINT))
        return ExitCode.BUG

    # As an attribute of its package, `main` is the function.
    monkeypatch.setattr(sys.modules["distro_node.node.cli.main"], "explain", explain)
    before = signal.getsignal(signal.SIGINT)
    assert command("join", TEXT).code == ExitCode.BUG
    assert handlers == [signal.SIG_DFL]
    assert signal.getsignal(signal.SIGINT) is before


def test_control_c_before_anything_is_loaded() -> None:
    """The signal arrives at the import of a module that the command line needs, as from an impatient
    user."""
    script = """
import os, signal, sys
class Impatient:
    def find_spec(self, name, path=None, target=None):
        if name == "distro_node.node.cli.main":
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Impatient())
signal.signal(signal.SIGINT, signal.default_int_handler)
from distro_node.node.__main__ import main
main()
"""
    done = subprocess.run([sys.executable, "-c", script, "id"], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (ExitCode.INTERRUPTED, "", "")


def test_paths_are_checked_by_their_reader() -> None:
    """The library's own check would end with the exit code of a mistake on the command line."""
    paths = {
        f"{function.__name__} {name}": typing.get_args(hint)[1]
        for function in (*COMMANDS.values(), _settings)
        for name, hint in typing.get_type_hints(function, include_extras=True).items()
        if typing.get_origin(hint) is typing.Annotated
        and Path in (inner := typing.get_args(hint)[0], *typing.get_args(inner))
    }
    assert len(paths) > 10
    assert [name for name, parameter in paths.items() if parameter.readable] == []


def test_what_helps_names_options_that_there_are(checkout: Path) -> None:
    """Every option in a remedy exists in some command; in a command's own module, in that command."""
    group: Any = get_command(app)
    everywhere = {"--help"}
    of_module: dict[str, set[str]] = {}
    for name, each in group.commands.items():
        own = {"--help", *(o for p in each.params for o in (*p.opts, *p.secondary_opts))}
        everywhere |= own
        module = COMMANDS[name].__module__.rpartition(".")[2]
        of_module.setdefault(module, set()).update(own)
    everywhere |= {option for parameter in group.params for option in parameter.opts}
    seen, faults = set(), []
    for path in sorted((checkout / "node").rglob("*.py")):
        known = of_module.get(path.stem, everywhere) if path.parent.name == "cli" else everywhere
        for call in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not (isinstance(call, ast.Call) and ast.unparse(call.func) == "UserError"):
                continue
            texts = [n.value for n in ast.walk(call) if isinstance(n, ast.Constant)]
            # Text in backticks is another command, which the test of the documents checks.
            words = re.sub("`[^`]*`", "", " ".join(text for text in texts if type(text) is str))
            named = set(re.findall(r"--[a-z][a-z-]+", words))
            seen |= named
            faults += [f"{path.name}:{call.lineno}: {option}" for option in named - known]
    assert faults == []
    assert {"--data-dir", "--listen", "--to"} <= seen


# --- join ----------------------------------------------------------------------------------------


def test_join_passes_on_its_options(command, daemon, home: Path, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("open sesame\nnot this\n")
    link = invite_text(Invite(swarm=SWARM, bootstrap=(ADDRESS,), ticket="t1"))
    options = f"--bootstrap {OTHER} --bootstrap {ADDRESS} --device cuda:1 --metrics-addr [::1]:80"
    options += " --listen /ip4/0.0.0.0/tcp/1 --announce /dns4/me.example/tcp/2 --threads 3"
    options += (
        f" --micro-batch 2 --evaluate-every 5 --no-screen --until-round 9 --data-dir {home}/d"
        " --max-upload 2Mbit --max-download 1.5MB/s --active 22:00-7:00 --relay-updates"
    )
    result = command("join", link, *options.split(), "--passphrase-file", secret)
    assert (result.code, result.err) == (0, "")
    assert daemon == [
        JoinSettings(
            invite=Invite(swarm=SWARM, bootstrap=(ADDRESS,), ticket="t1"),
            data_dir=home / "d",
            peering=PeeringSettings(bootstrap=(OTHER, ADDRESS)),
            line=LineSettings(
                listen=("/ip4/0.0.0.0/tcp/1",),
                announce=("/dns4/me.example/tcp/2",),
                max_upload=250_000.0,
                max_download=1_500_000.0,
            ),
            energy=EnergySettings(active_hours=parse_hours("22:00-7:00")),
            relay=RelaySettings(enabled=True),
            trainer=TrainerSettings(device="cuda:1", threads=3, micro_batch=2),
            metrics_address=("::1", 80),
            evaluation=EvaluationSettings(evaluate_every=5),
            passphrase_file=secret,
            passphrase="open sesame",
            console=ConsoleSettings(screen=False),
            until_round=9,
        )
    ]
    assert daemon[0].full_invite.bootstrap == (ADDRESS, OTHER)
    assert daemon[0].relay.limits == RelayLimits()
    assert "sesame" not in repr(daemon)


@pytest.mark.parametrize("settings", [DaemonSettings, JoinSettings, ObserverSettings])
def test_no_settings_show_the_passphrase(settings: type[DaemonSettings]) -> None:
    shown = repr(settings(invite=Invite(swarm=SWARM), passphrase="open sesame"))
    assert "sesame" not in shown


def test_join_needs_nothing_but_the_swarm(command, daemon, home: Path) -> None:
    assert command("join", f" {TEXT.upper()}").code == 0
    (settings,) = daemon
    assert settings == JoinSettings(invite=Invite(swarm=SWARM), data_dir=settings.data_dir)
    assert settings.data_dir.is_relative_to(home)
    assert settings.data_dir.stat().st_mode & 0o777 == 0o700


def test_the_passphrase_may_stand_in_the_environment(command, daemon, monkeypatch) -> None:
    monkeypatch.setenv("DISTRO_NODE_PASSPHRASE", "from here")
    command("join", TEXT)
    assert daemon[0].passphrase == "from here"


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["swarm-abc"], ExitCode.BAD_SWARM_ID, "too short"),
        (["swam-abc"], ExitCode.BAD_SWARM_ID, "swarm-"),
        ([""], ExitCode.BAD_SWARM_ID, "swarm-"),
        ([TEXT[:-1] + "a"], ExitCode.BAD_SWARM_ID, "checksum"),
        ([TEXT[:-1] + "1"], ExitCode.BAD_SWARM_ID, "did you mean 'l'?"),
        ([f"distro:{TEXT}?botstrap=x"], ExitCode.BAD_SWARM_ID, "did you mean 'bootstrap'?"),
        ([f"distro:{TEXT}?bootstrap=x"], ExitCode.BAD_ADDRESS, "'x'"),
        ([TEXT, "--bootstrap", "example.org:4001"], ExitCode.BAD_ADDRESS, "example.org"),
        ([TEXT, "--bootstrap", "/ip4/192.0.2.1/tcp/1"], ExitCode.BAD_ADDRESS, "/p2p/"),
        ([TEXT, "--listen", "0.0.0.0:4001"], ExitCode.BAD_ADDRESS, "0.0.0.0:4001"),
        ([TEXT, "--announce", "me"], ExitCode.BAD_ADDRESS, "'me'"),
        ([TEXT, "--metrics-addr", "9464"], ExitCode.BAD_ADDRESS, "9464"),
        ([TEXT, "--metrics-addr", "127.0.0.1:99999"], ExitCode.BAD_ADDRESS, "99999"),
        ([TEXT, "--metrics-addr", "127.0.0.256:1"], ExitCode.BAD_ADDRESS, "256"),
        ([TEXT, "--metrics-addr", "[::g]:1"], ExitCode.BAD_ADDRESS, "::g"),
        ([TEXT, "--metrics-addr", "a b:1"], ExitCode.BAD_ADDRESS, "a b"),
        ([TEXT, "--metrics-addr", "localhost:٣"], ExitCode.BAD_ADDRESS, "localhost"),
        ([TEXT, "--active", "at night"], ExitCode.USAGE, "'at night'"),
        ([TEXT, "--max-upload", "fast"], ExitCode.USAGE, "'fast'"),
        ([TEXT, "--max-upload", "5"], ExitCode.USAGE, "'5'"),
        ([TEXT, "--max-download", "5 mb"], ExitCode.USAGE, "'5 mb'"),
        ([TEXT, "--max-download", "-5Mbit"], ExitCode.USAGE, "'-5Mbit'"),
        ([TEXT, "--max-upload", "1kbit"], ExitCode.USAGE, "too low"),
        ([TEXT, "--device", "gpu"], ExitCode.NO_DEVICE, "'gpu'"),
        ([TEXT, "--device", "cuda:0,mps"], ExitCode.NO_DEVICE, "'mps'"),
        ([TEXT, "--device", "cuda:0, cuda:1"], ExitCode.NO_DEVICE, "' cuda:1'"),
        ([TEXT, "--device", "cuda:0,"], ExitCode.NO_DEVICE, "''"),
        ([TEXT, "--device", "cuda:1,cuda:01"], ExitCode.NO_DEVICE, "cuda:1 is named twice"),
        ([TEXT, "--device", "cpu,cuda:0"], ExitCode.NO_DEVICE, "GPUs and CPUs"),
        ([TEXT, "--device", ",".join(["cpu"] * 65)], ExitCode.NO_DEVICE, "65 devices"),
        ([TEXT, "--passphrase-file", "/nowhere"], ExitCode.KEYSTORE, "/nowhere"),
        ([TEXT, "--data-dir", "/dev/null"], ExitCode.DATA_DIR, "/dev/null"),
        ([TEXT, "--data-dir", "/proc/1/x"], ExitCode.DATA_DIR, "/proc/1/x"),
        ([TEXT, "--data-dir", ""], ExitCode.USAGE, "--data-dir"),
        ([TEXT, "--data-dir="], ExitCode.USAGE, "--data-dir"),
        ([TEXT, "--data", "texts", "--data", ""], ExitCode.USAGE, "--data"),
        ([TEXT, "--mirror", ""], ExitCode.DATA_MISSING, "''"),
    ],
)
def test_join_refuses_nonsense(command, daemon, arguments, code: ExitCode, words: str) -> None:
    command("join", *arguments).refused_with(code, words)
    assert daemon == []


@pytest.mark.parametrize(
    "arguments",
    [
        *(["create", ""], ["create", "swarm.toml", "--data", ""], ["verify", "", TEXT]),
        *(["export", TEXT, "--to", ""], ["verify-receipt", ""], ["status", "--data-dir="]),
        *(["serve", ""], ["serve", TEXT, "--key-file", ""], ["id", "--data-dir", ""]),
    ],
)
def test_an_empty_path_is_not_the_current_directory(command, arguments: list[str]) -> None:
    """As of `--data "$TEXTS"` without such a variable: everything around was trained on."""
    command(*arguments).refused_with(ExitCode.USAGE)


def test_a_passphrase_that_protects_nothing_is_warned_of(
    command, daemon, home: Path, monkeypatch
) -> None:
    place = home / "d"
    place.mkdir()
    create_identity(place / "identity.key", None)
    secret = home / "secret"
    secret.write_text("open sesame\n")
    given = command("join", TEXT, "--data-dir", place, "--passphrase-file", secret)
    assert given.code == 0
    assert f"warning: the key in {place}/identity.key was made without a passphrase" in given.err
    assert command("join", TEXT, "--data-dir", place).err == ""
    monkeypatch.setenv("DISTRO_NODE_PASSPHRASE", "open sesame")
    assert "without a passphrase" in command("join", TEXT, "--data-dir", place).err
    # One who asks for an identity with a passphrase learns that the old one has none.
    made = command("id", "--create", "--data-dir", place)
    assert (made.code, "without a passphrase" in made.err) == (0, True)
    (place / "identity.key").unlink()
    create_identity(place / "identity.key", "open sesame")
    assert command("join", TEXT, "--data-dir", place).err == ""
    assert command("id", "--create", "--data-dir", place).err == ""


@pytest.mark.parametrize(
    ("end", "code"),
    [(KeyboardInterrupt, ExitCode.INTERRUPTED), (EOFError, ExitCode.WRONG_PASSPHRASE)],
)
def test_a_passphrase_that_is_not_typed_is_no_bug(
    command, home: Path, monkeypatch, end: type[BaseException], code: ExitCode
) -> None:
    def give_up(*_: object, **__: object) -> str:
        raise end

    place = home / "d"
    place.mkdir()
    create_identity(place / "identity.key", "open sesame")
    monkeypatch.setattr("getpass.getpass", give_up)
    for stream in (sys.stdin, sys.stderr):
        monkeypatch.setattr(stream, "isatty", lambda: True)
    ended = command("bootstrap", "--data-dir", place)
    assert (ended.code, "Aborted" in ended.err) == (code, False)


def test_passphrase_files_are_checked(command, daemon, tmp_path: Path) -> None:
    for number, content in enumerate([b"", b"\n", b"\xef\xbb\xbf\r\n", b"\xff\n", b"x" * 5000]):
        file = tmp_path / str(number)
        file.write_bytes(content)
        command("join", TEXT, "--passphrase-file", file).refused_with(ExitCode.KEYSTORE, str(file))
    assert daemon == []


def test_json_lines_are_not_mixed_with_a_screen(command, daemon) -> None:
    assert command("join", TEXT, "--log-format", "json").code == 0
    assert command("join", TEXT).code == 0
    assert [settings.console.shows_screen for settings in daemon] == [False, True]


def test_log_lines_go_where_no_screen_is_drawn(command, monkeypatch, home: Path) -> None:
    async def run_daemon(_settings: DaemonSettings, _model: object) -> None:
        logging.getLogger("distro_node").warning("look here")

    replace_module(monkeypatch, "daemon", run_daemon=run_daemon)
    options = ["join", TEXT, "--data-dir", home]
    assert "look here" in command(*options).err
    assert "look here" in command(*options, "--no-screen").err
    # The variable by which rich recognises a terminal.
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert command(*options).err == ""
    assert (home / "logs" / "distro-node.log").read_text().count("look here") == 3


def test_metrics_can_be_switched_off(command, daemon) -> None:
    command("join", TEXT, "--metrics-addr", "off")
    assert daemon[0].metrics_address is None


# --- id ------------------------------------------------------------------------------------------


def test_id_prints_who_this_node_is(command, home: Path) -> None:
    peer = peer_text(create_identity(home / "identity.key", "secret").peer)
    assert command("id", "--data-dir", home).out == f"{peer}\n"
    assert json.loads(command("id", "--data-dir", home, "--json").out)["peer"] == peer


def test_id_makes_no_identity(command, home: Path) -> None:
    command("id", "--data-dir", home / "new").refused_with(ExitCode.KEYSTORE, "no identity")
    assert not (home / "new").exists()
    (home / "file").write_text("")
    for options in ((), ("--create",)):
        said = command("id", "--data-dir", home / "file", *options)
        said.refused_with(ExitCode.DATA_DIR, "it is no directory")


def test_id_refuses_a_damaged_key(command, home: Path) -> None:
    key = home / "identity.key"
    create_identity(key, None)
    key.write_bytes(key.read_bytes().replace(b'"seed": "', b'"seed": "0'))
    command("id", "--data-dir", home).refused_with(ExitCode.KEYSTORE, "damaged")
    key.chmod(0o644)
    command("id", "--data-dir", home).refused_with(ExitCode.KEYSTORE, "open to other users")


# --- export, demo, bootstrap ---------------------------------------------------------------------


def test_export_wants_something_to_export(command, home: Path) -> None:
    options = ["--to", home / "model", "--data-dir", home]
    command("export", TEXT, *options).refused_with(ExitCode.NOTHING_TO_EXPORT, str(home))
    manifest = DataDir(home).swarm(SWARM).manifest
    manifest.parent.mkdir(parents=True)
    manifest.touch()
    other = swarm_text(SwarmId(bytes(32)))
    result = command("export", other, *options)
    result.refused_with(ExitCode.NOTHING_TO_EXPORT)
    assert TEXT in result.err
    command("export", "swarm-x", *options).refused_with(ExitCode.BAD_SWARM_ID)


def test_export_reports_what_it_wrote(command, home: Path, monkeypatch) -> None:
    manifest = DataDir(home).swarm(SWARM).manifest
    manifest.parent.mkdir(parents=True)
    manifest.touch()
    asked = []

    async def export_swarm(settings: ExportSettings, progress: ShowProgress) -> Exported:
        asked.append(settings)
        return Exported(
            directory=settings.to, round=12, parameters=3456, record="ab", fingerprint="cd"
        )

    monkeypatch.setattr(export_module, "export_swarm", export_swarm)
    result = command("export", f"distro:{TEXT}", "--to", home / "m", "--data-dir", home)
    assert asked == [ExportSettings(swarm=SWARM, data_dir=home, to=home / "m")]
    assert result.out == f"Wrote the model after round 12 (3,456 parameters) to {home / 'm'}\n"
    result = command("export", TEXT, "--to", home / "m", "--data-dir", home, "--json")
    facts = {"directory": str(home / "m"), "round": 12, "parameters": 3456}
    assert json.loads(result.out) == facts | {"record": "ab", "fingerprint": "cd"}
    command("export", TEXT, "--to", home / "m", "--data-dir", home, "--round", "7")
    command("export", TEXT, "--to", home / "m", "--data-dir", home, "--best")
    assert [settings.selector for settings in asked[2:]] == [
        StateSelector(round=7),
        StateSelector(best=True),
    ]


def test_a_name_on_the_hub_is_checked_before_the_export(
    command, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is exported here yet: that would be the next error."""
    monkeypatch.setenv("HF_TOKEN", "hf_x")
    options = ["--to", home / "m", "--data-dir", home]
    for name in ("model", "a/b/c", "owner/na me", "owner/-x", "owner/x.git", "owner/" + 99 * "x"):
        result = command("export", TEXT, *options, "--push", name)
        result.refused_with(ExitCode.USAGE, "is not a name on the Hugging Face Hub")
    good = command("export", TEXT, *options, "--push", "owner/model")
    good.refused_with(ExitCode.NOTHING_TO_EXPORT)
    monkeypatch.setattr("huggingface_hub.get_token", lambda: None)
    result = command("export", TEXT, *options, "--push", "owner/model")
    result.refused_with(ExitCode.HUB, "no user is logged in")


def test_one_state_is_taken_and_from_one_swarm(command, home: Path) -> None:
    for other in (SWARM, SwarmId(bytes(32))):
        manifest = DataDir(home).swarm(other).manifest
        manifest.parent.mkdir(parents=True)
        manifest.touch()
    options = ["--to", home / "m", "--data-dir", home]
    both = command("export", TEXT, *options, "--round", "1", "--best")
    both.refused_with(ExitCode.USAGE, "two states")
    command("export", TEXT, *options, "--push", "nobody").refused_with(
        ExitCode.USAGE, "not a name on"
    )
    for name, *more in (["generate", "Once"], ["evaluate", "--tasks", "gpt4all"]):
        many = command(name, *more, "--data-dir", home)
        many.refused_with(ExitCode.USAGE, "2 swarms")
        assert TEXT in many.err
        none = command(name, *more, "--data-dir", home / "empty")
        none.refused_with(ExitCode.NOTHING_TO_EXPORT, "no swarm")
    nothing = command("evaluate", "--tasks", " , ", "--data-dir", home)
    nothing.refused_with(ExitCode.USAGE, "no task")


def test_the_demo_decides_its_exit_code(command, monkeypatch) -> None:
    asked = []

    def run_demo(nodes: int, rounds: int, out: Path, *_others: object) -> int:
        asked.append((nodes, rounds, out))
        return ExitCode.DEMO_FAILED

    replace_module(monkeypatch, "demo", run_demo=run_demo)
    assert command("demo", "--rounds", "17").code == ExitCode.DEMO_FAILED
    assert asked == [(4, 17, Path("demo-out"))]


@pytest.fixture
def introducer(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Replace the bootstrap peer: collect the settings it is started with."""
    started = []

    async def run_bootstrap(settings: Any, *, ready: Callable[[list[str]], None]) -> None:
        started.append(settings)
        ready([f"/ip4/192.0.2.7/tcp/4001/p2p/{peer_text(settings.identity.peer)}"])

    replace_module(
        monkeypatch,
        "bootstrap",
        run_bootstrap=run_bootstrap,
        BootstrapSettings=types.SimpleNamespace,
    )
    return started


def test_a_bootstrap_peer_keeps_its_identity(command, introducer, home: Path) -> None:
    first = command("bootstrap", "--data-dir", home / "b")
    assert first.code == 0
    second = command(
        "bootstrap", "--data-dir", home / "b", "--json", "--listen", "/ip4/1.2.3.4/tcp/5"
    )
    (address,) = json.loads(second.out)["addresses"]
    assert address in first.out
    assert introducer[0].line.listen == ()
    assert introducer[1].line.listen == ("/ip4/1.2.3.4/tcp/5",)
    assert introducer[0].identity.peer == introducer[1].identity.peer
    assert introducer[0].line.max_upload is introducer[0].line.max_download is None


def test_a_bootstrap_peer_keeps_to_its_share_of_the_line(command, introducer, home: Path) -> None:
    limits = ("--max-upload", "80Mbit", "--max-download", "2MB")
    assert command("bootstrap", "--data-dir", home / "b", *limits).code == 0
    assert (introducer[0].line.max_upload, introducer[0].line.max_download) == (10e6, 2e6)
    wrong = command("bootstrap", "--data-dir", home / "b", "--max-upload", "fast")
    wrong.refused_with(ExitCode.USAGE)


def test_a_bootstrap_peer_follows_the_swarm_of_a_link(command, introducer, home: Path) -> None:
    place = home / "b"
    assert command("bootstrap", "--data-dir", place).code == 0
    assert introducer[0].observe is None
    link = invite_text(Invite(swarm=SWARM, bootstrap=(ADDRESS,)))
    page = ("--dashboard", "0.0.0.0:80", "--dashboard-plain")
    assert command("bootstrap", "--data-dir", place, "--observe", link, *page).code == 0
    watched = introducer[1].observe
    assert (watched.swarm, watched.full_invite.bootstrap) == (SWARM, (ADDRESS,))
    assert (watched.data_dir, watched.peering.wait) == (place, True)
    assert watched.dashboard == HostedDashboardSettings(address=("0.0.0.0", 80), allow_plain=True)
    wrong = command("bootstrap", "--data-dir", place, "--observe", "distro:swarm-")
    wrong.refused_with(ExitCode.BAD_SWARM_ID)
    nowhere = command("bootstrap", "--data-dir", place, "--observe", link, "--dashboard", "here")
    nowhere.refused_with(ExitCode.BAD_ADDRESS)


def test_a_bootstrap_peer_refuses_nonsense(command, introducer, home: Path, monkeypatch) -> None:
    place = home / "b"
    command("bootstrap", "--data-dir", place, "--listen", "4001").refused_with(ExitCode.BAD_ADDRESS)
    place.mkdir()
    create_identity(place / "identity.key", "secret")
    locked = command("bootstrap", "--data-dir", place)
    locked.refused_with(ExitCode.WRONG_PASSPHRASE, "protected by a passphrase")
    assert "DISTRO_NODE_PASSPHRASE" in locked.err
    monkeypatch.setenv("DISTRO_NODE_PASSPHRASE", "guess")
    wrong = command("bootstrap", "--data-dir", place)
    wrong.refused_with(ExitCode.WRONG_PASSPHRASE, "is wrong")
    (place / "identity.key").write_text("{}")
    command("bootstrap", "--data-dir", place).refused_with(ExitCode.KEYSTORE)
    assert introducer == []


def test_a_tilde_is_the_home_directory(command, home: Path, monkeypatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    asked = []

    def run_demo(nodes: int, rounds: int, out: Path, *_others: object) -> int:
        asked.append(out)
        return ExitCode.OK

    replace_module(monkeypatch, "demo", run_demo=run_demo)
    (tmp_path / "own.toml").write_text('[demo]\nout = "~/in-file"\n')
    for words in (("demo", "--out=~/given"), ("--config", "own.toml", "demo")):
        assert command(*words).code == 0
    assert asked == [home / "given", home / "in-file"]
    text = "--data=~/absent.txt"
    (tmp_path / "run.toml").write_text(command("create", "--example").out)
    made = command("create", "run.toml", text, "--dry-run")
    assert f"{home}/absent.txt" in made.err
    command("id", "--data-dir", "~nobody-here/x").refused_with(
        ExitCode.USAGE, "no home directory for '~nobody-here'"
    )


@pytest.mark.parametrize(
    ("arguments", "option"),
    [
        (("doctor", "--bootstrap", ADDRESS), "--bootstrap"),
        (("doctor", "--listen", "/ip4/1.2.3.4/tcp/5"), "--listen"),
        (("update", "--bootstrap", ADDRESS), "--bootstrap"),
        (("bootstrap", "--dashboard", "0.0.0.0:80"), "--dashboard"),
        (("bootstrap", "--dashboard-plain"), "--dashboard-plain"),
        (("bootstrap", "--no-relay-updates", "--relay-memory", "64"), "--relay-memory"),
        (("join", TEXT, "--relay-memory", "64"), "--relay-memory"),
        (("join", TEXT, "--pause-every", "20"), "--pause-every"),
        (("join", TEXT, "--dashboard", "off", "--dashboard-plain"), "--dashboard-plain"),
        (("generate", "Once", "--images", "4"), "--images"),
        (("generate", "--grid", "a.png", "--temperature", "0.8"), "--temperature"),
        (("evaluate", "--tasks", "heldout", "--fewshot", "5"), "--fewshot"),
        (("evaluate", "--tasks", "heldout", "--no-chat"), "--chat"),
        (("evaluate", "--tasks", "heldout", "--batch-size", "8"), "--batch-size"),
        (("join", TEXT, "--split", "shards"), "--split"),
        (("fit", TEXT, "--device", "cuda", "--split", "copies"), "--split"),
        (("swarms", "--bootstrap", ADDRESS, "--split", "copies"), "--split"),
        (("fit", "my-swarm.toml", "--bootstrap", ADDRESS), "--bootstrap"),
        (("observe", TEXT, "--dashboard", "off", "--dashboard-cert", "a"), "--dashboard-cert"),
        (
            ("bootstrap", "--observe", TEXT, "--dashboard", "off", "--dashboard-plain"),
            "--dashboard-plain",
        ),
        (("id", "--passphrase-file", "secret"), "--passphrase-file"),
        (("invite", TEXT, "--passphrase-file", "secret"), "--passphrase-file"),
        (("receipt", "--passphrase-file", "secret"), "--passphrase-file"),
        (("create", "--example", "--data", "texts"), "--data"),
        (("create", "--example", "--json"), "--json"),
    ],
)
def test_an_option_without_effect_is_refused(
    command, daemon, introducer, arguments: tuple[str, ...], option: str
) -> None:
    command(*arguments).refused_with(ExitCode.USAGE, f"{option} has no effect with")
    assert daemon == introducer == []


@pytest.mark.parametrize(
    "arguments", [("join", TEXT, "--memory"), ("join", TEXT, "--max-disk"), ("serve", "--memory")]
)
def test_no_bytes_are_no_size(command, daemon, arguments: tuple[str, ...]) -> None:
    command(*arguments, "0GB").refused_with(ExitCode.USAGE, "'0GB' is not a size")
    assert daemon == []


def test_the_environment_may_set_what_another_command_uses(
    command, introducer, home: Path, monkeypatch
) -> None:
    monkeypatch.setenv("DISTRO_NODE_DASHBOARD", "127.0.0.1:80")
    monkeypatch.setenv("DISTRO_NODE_RELAY_UPDATES", "no")
    monkeypatch.setenv("DISTRO_NODE_RELAY_MEMORY", "64")
    assert command("bootstrap", "--data-dir", home / "b").code == 0


def test_a_data_directory_in_use_is_refused_and_names_its_user(
    command, introducer, home: Path
) -> None:
    data = DataDir(home / "b")
    data.create()
    with data.lock():
        result = command("bootstrap", "--data-dir", data.root)
    result.refused_with(ExitCode.DATA_DIR_LOCKED, f"process {os.getpid()}")
    assert introducer == []
    assert not data.identity.exists()


@pytest.mark.e2e
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP, None])
def test_a_real_bootstrap_peer_stops_on_a_signal(
    command, home: Path, number: signal.Signals | None
) -> None:
    options = ["--data-dir", home, "--listen", "/ip4/127.0.0.1/tcp/0", "--json"]
    running = process("bootstrap", *options)
    assert running.stdout is not None
    addresses = json.loads(running.stdout.readline())["addresses"]
    assert addresses
    assert all(re.fullmatch(r"/ip4/127.0.0.1/tcp/\d+/p2p/12D3KooW\w+", one) for one in addresses)
    if number is None:
        # A second one wants the same port, and has another directory.
        port = addresses[0].rpartition("/p2p/")[0]
        second = process("bootstrap", "--data-dir", home / "second", "--listen", port)
        _, err = second.communicate()
        assert second.returncode == ExitCode.PORT_IN_USE
        assert port.split("/")[-1] in err
    status = json.loads(command("status", "--data-dir", home, "--json").out)
    assert status["line"]["addresses"] == addresses
    if number is None:
        assert "leaving" in command("leave", "--data-dir", home).out
    else:
        running.send_signal(number)
    _, err = running.communicate()
    assert (running.returncode, "Traceback" in err) == (0, False)


# --- the page of exit codes ----------------------------------------------------------------------


def test_every_exit_code_has_its_entry(checkout: Path) -> None:
    page = (checkout / "docs" / "exit-codes.md").read_text("utf-8")
    expected = [(int(code), code.name) for code in ExitCode]
    sections = re.findall(r"^## (\d+) (\w+)\n\*\*[^#\n]{40,}", page, re.M)
    assert [(int(number), name) for number, name in sections] == expected


def test_the_version_is_one(checkout: Path) -> None:
    try:
        installed = importlib.metadata.version("distro-node")
    except importlib.metadata.PackageNotFoundError:
        installed = __version__
    assert installed == __version__
