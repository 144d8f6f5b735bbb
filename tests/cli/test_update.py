"""`distro-node update`: what the package index and the swarm's chain say about a newer program."""

from __future__ import annotations

import importlib.metadata
import json
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import Distribution
from pathlib import Path
from typing import Any

import distro_node.node.releases as releases
import pytest
from cli.conftest import Command, Result
from cli.schemas import conforms
from distro_node import __version__
from distro_node.node.errors import ExitCode
from distro_node.node.releases import update_command
from distro_node.node.storage.data_dir import DataDir
from distro_node.node.storage.swarm_store import SwarmStore
from distro_node.protocol.chain.ledger import Ledger
from distro_node.protocol.chain.versions import READY_ROUNDS
from distro_node.protocol.wire.manifest import PROTOCOL_VERSION
from distro_node.protocol.wire.swarm_id import swarm_text
from simulation.chain import Chain
from web_server import Answer, WebServer

NEXT = PROTOCOL_VERSION + 1
ONE = [{"yanked": False, "requires_python": ">=3.11"}]


def listing(version: str, protocol: int | None, **others: Any) -> dict[str, Any]:
    """Return the index's answer whose newest release is `version`, beside this program's."""
    keywords = "peer-to-peer" if protocol is None else f"peer-to-peer,protocol-version-{protocol}"
    return {
        "info": {"version": version, "keywords": keywords},
        "releases": {__version__: ONE, version: ONE, **others},
    }


class Index:
    """A package index that answers with `pages`, by path."""

    def __init__(self) -> None:
        self.pages: dict[str, Any] = {}
        self.server = WebServer(self._answer)

    def _answer(self, path: str) -> Answer:
        if path not in self.pages:
            return 404, {}, lambda write: write(b"not found")
        page = self.pages[path]
        body = page if isinstance(page, bytes) else json.dumps(page).encode()
        return 200, {}, lambda write: write(body)

    def newest(self, version: str, protocol: int | None, **others: Any) -> None:
        self.pages["/distro-node/json"] = listing(version, protocol, **others)


@pytest.fixture
def index() -> Iterator[Index]:
    made = Index()
    with made.server.serving():
        yield made


@pytest.fixture
def ask(command: Command, index: Index, tmp_path: Path) -> Any:
    def run(*arguments: str | Path) -> Result:
        where = ("--index", index.server.url, "--data-dir", tmp_path / "data")
        return command("update", *arguments, *where)

    return run


def store(place: Path, ledger: Ledger) -> DataDir:
    data = DataDir(place)
    data.create()
    directory = data.swarm(ledger.manifest.swarm)
    directory.root.mkdir(parents=True)
    directory.manifest.write_bytes(ledger.manifest.encode())
    kept = SwarmStore(directory, ledger.manifest)
    for round_ in range(len(ledger)):
        kept.keep(ledger.raw(round_))
    kept.write()
    return data


def changing(rounds: int) -> Chain:
    """Return a chain whose members, one excepted, announce the next version for `rounds` rounds."""
    chain = Chain(4, version_notice=20)
    for _ in range(rounds):
        peers = chain.membership.peers
        chain.grow(
            updates=[
                chain.update(peer, max_version=NEXT if peer in peers[:3] else PROTOCOL_VERSION)
                for peer in sorted(peers)
            ]
        )
    return chain


def test_the_newest_release_is_here(ask: Any, index: Index) -> None:
    index.newest(__version__, PROTOCOL_VERSION)
    told = ask()
    assert (told.code, told.err) == (0, "")
    assert told.out == (
        f"distro-node {__version__} is the newest release: it speaks protocol version "
        f"{PROTOCOL_VERSION}.\n"
    )
    assert index.server.asked == ["/distro-node/json"]


def test_a_newer_release_comes_with_its_protocol_and_the_command(
    ask: Any, index: Index, tmp_path: Path
) -> None:
    index.newest("1000.1", NEXT)
    first, second, third = ask().out.splitlines()
    assert first == (
        f"distro-node 1000.1 is out, and speaks protocol version {NEXT}; this is {__version__}, of "
        f"version {PROTOCOL_VERSION}."
    )
    assert second == f"To install it: {update_command()}"
    assert f"(distro-node leave --data-dir {tmp_path}/data)" in third


def test_releases_that_cannot_be_used_do_not_count(ask: Any, index: Index) -> None:
    index.newest(
        "1000.9",
        NEXT,
        **{
            "1000.9": [{"yanked": True}],
            "1000.8": [{"yanked": False, "requires_python": ">=99"}],
            "1000.7rc1": ONE,
            "1000.6": [],
            "1000.5": [{"yanked": False, "requires_python": "no such thing"}],
            "no version": ONE,
            "9" * 5000: ONE,
            "1000.10": "no list",
            "1000.2": ONE,
        },
    )
    index.pages["/distro-node/1000.2/json"] = listing("1000.2", NEXT + 1)
    told = json.loads(ask("--json").out)
    assert (told["newest"], told["newest_protocol"]) == ("1000.2", NEXT + 1)


def test_json_is_as_documented(ask: Any, index: Index, tmp_path: Path) -> None:
    store(tmp_path / "data", changing(READY_ROUNDS).ledger)
    for protocol in (None, NEXT):
        index.newest("1000.1", protocol)
        told = json.loads(ask("--json").out)
        conforms("update", told)
        assert told["newer"]
        assert told["newest_protocol"] == protocol


@pytest.mark.parametrize(
    ("protocol", "words"),
    [
        (None, "it needs a newer program than this one"),
        (PROTOCOL_VERSION, "1000.1 is too old as well"),
        (NEXT, "1000.1 is new enough"),
    ],
)
def test_a_scheduled_change_needs_a_newer_program(
    ask: Any, index: Index, tmp_path: Path, protocol: int | None, words: str
) -> None:
    chain = changing(READY_ROUNDS)
    change = chain.ledger.versions.change
    assert change is not None
    store(tmp_path / "data", chain.ledger)
    index.newest("1000.1", protocol)
    told = ask()
    assert told.code == ExitCode.VERSION
    line = told.out.splitlines()[-1]
    assert f"from protocol version {PROTOCOL_VERSION} to {NEXT} in round {change.round}" in line
    assert words in line


def test_without_a_change_this_program_does(ask: Any, index: Index, tmp_path: Path) -> None:
    chain = changing(READY_ROUNDS - 1)
    data = store(tmp_path / "data", chain.ledger)
    index.newest("1000.1", NEXT)
    told = ask()
    assert told.code == 0
    line = told.out.splitlines()[-1]
    assert f"uses protocol version {PROTOCOL_VERSION}: this program speaks it" in line
    # Nor without a chain, by its description alone.
    data.swarm(chain.manifest.swarm).ledger.unlink()
    assert ask(swarm_text(chain.manifest.swarm)).out.splitlines()[-1] == line


def test_a_swarm_of_another_version_is_read_from_its_description(
    ask: Any, index: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chain = Chain(0)
    store(tmp_path / "data", chain.ledger)
    monkeypatch.setattr(
        "distro_node.protocol.wire.manifest.PROTOCOL_VERSION", chain.manifest.version - 1
    )
    index.newest(__version__, None)
    told = ask("--json")
    assert told.code == 0
    (need,) = json.loads(told.out)["swarms"]
    assert (need["name"], need["version"]) == (None, chain.manifest.version)


def test_an_unknown_swarm_is_asked_for(ask: Any, index: Index) -> None:
    """The release is shown all the same."""
    index.newest("1000.1", NEXT)
    told = ask(swarm_text(Chain(0).manifest.swarm))
    assert "1000.1 is out" in told.out
    told.refused_with(ExitCode.NO_BOOTSTRAP)


@pytest.mark.parametrize(
    ("page", "words"),
    [
        (None, "has no release of distro-node"),
        (b"{", "not that of a package index"),
        (b"[" * 100_000, "not that of a package index"),
        ([], "not that of a package index"),
        ({"info": None}, "not that of a package index"),
        ({"info": {}, "releases": []}, "no release for Python"),
        (b" " * (5 << 20), "more than 4194304 bytes"),
    ],
)
def test_what_is_no_index_is_refused(ask: Any, index: Index, page: Any, words: str) -> None:
    if page is not None:
        index.pages["/distro-node/json"] = page
    ask().refused_with(ExitCode.NO_INDEX, words)


def test_an_index_without_a_release_is_not_called_unreachable(ask: Any, index: Index) -> None:
    """Before the first release every `update` advised to check the connection."""
    told = ask()
    told.refused_with(ExitCode.NO_INDEX)
    assert "git pull" in told.err
    assert "check the connection" not in told.err


def test_offline_is_one_line(command: Command, tmp_path: Path) -> None:
    server = WebServer(lambda _: (404, {}, lambda write: None))
    server.server_close()
    chain = changing(READY_ROUNDS)
    store(tmp_path / "data", chain.ledger)
    told = command("update", "--index", server.url, "--data-dir", tmp_path / "data")
    told.refused_with(ExitCode.NO_INDEX, "cannot be asked")
    # The chain alone says what the swarm needs.
    assert "it needs a newer program than this one" in told.out
    wrong = command("update", "--index", "ftp://localhost", "--data-dir", tmp_path / "data")
    wrong.refused_with(ExitCode.USAGE, "not a web address")


def test_an_index_that_does_not_answer_is_given_up(
    command: Command, index: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Private here: `_SECONDS`: the test does not wait for ten.
    monkeypatch.setattr(releases, "_SECONDS", 0.0)
    told = command("update", "--index", index.server.url, "--data-dir", tmp_path / "data")
    told.refused_with(ExitCode.NO_INDEX, "no answer within 10 s")


@pytest.mark.parametrize(
    ("file", "tool"), [("pipx_metadata.json", "pipx"), ("uv-receipt.toml", "uv tool")]
)
def test_the_command_is_that_of_the_tool_that_installed_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str, tool: str
) -> None:
    """A tool that installed a file or a checkout would install it again."""
    about = tmp_path / "distro_node-1.dist-info"
    about.mkdir()
    made = importlib.metadata.PathDistribution(about)
    monkeypatch.setattr(Distribution, "from_name", lambda _: made)
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    monkeypatch.setattr(releases, "find_spec", lambda _: None)
    assert tool not in update_command()
    (tmp_path / file).touch()
    assert update_command() == f"{tool} upgrade distro-node"
    (about / "direct_url.json").write_text('{"url": "file:///a.whl"}')
    assert update_command() == f"{tool} install --force distro-node"


@pytest.mark.parametrize(
    ("installer", "origin", "expected"),
    [
        ("pip", "", "{python} -m pip install --upgrade distro-node"),
        ("uv", "", "uv pip install --python {python} --upgrade distro-node"),
        (
            "dpkg",
            "",
            "make deb && sudo apt install ./dist/distro-node-bootstrap_*.deb, in a newer checkout",
        ),
        ("pip", "{", "{python} -m pip install --upgrade distro-node"),
        ("pip", '{"url": 3}', "{python} -m pip install --upgrade distro-node"),
        (
            "pip",
            '{"url": "file:///src/a b", "dir_info": {"editable": true}}',
            "git -C '/src/a b' pull && make -C '/src/a b' install",
        ),
        (
            "pip",
            '{"url": "file:///src/a%20b%25/%C3%BC", "dir_info": {"editable": true}}',
            "git -C '/src/a b%/ü' pull && make -C '/src/a b%/ü' install",
        ),
        (
            "pip",
            '{"url": "file:///src/a b", "dir_info": {}}',
            "{python} -m pip install --upgrade distro-node",
        ),
    ],
)
def test_the_command_suits_the_installation(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    installer: str,
    origin: str,
    expected: str,
) -> None:
    about = tmp_path / "distro_node-1.dist-info"
    about.mkdir()
    (about / "INSTALLER").write_text(f"{installer}\n")
    (about / "direct_url.json").write_text(origin)
    made = importlib.metadata.PathDistribution(about)
    monkeypatch.setattr(Distribution, "from_name", lambda _: made)
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    monkeypatch.setattr(releases, "find_spec", lambda _: None)
    assert update_command() == expected.format(python=sys.executable)
    if installer == "pip" and not origin:
        monkeypatch.setattr(releases, "find_spec", lambda _: object())
        assert update_command().endswith("--upgrade 'distro-node[train]'")


def test_the_project_names_its_protocol_version(checkout: Path) -> None:
    """A release whose keyword is forgotten would be reported with the wrong version."""
    project = tomllib.loads((checkout / "pyproject.toml").read_text())["project"]
    named = [each for each in project["keywords"] if each.startswith("protocol-version-")]
    assert named == [f"protocol-version-{PROTOCOL_VERSION}"]
