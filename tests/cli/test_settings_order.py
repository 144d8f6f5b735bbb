"""Command line > environment > configuration file > default, through the program itself."""

from __future__ import annotations

import json
from pathlib import Path

import platformdirs
import pytest
from distro_node.crypto.identity import peer_text
from distro_node.crypto.keystore import create_identity
from distro_node.node.errors import ExitCode


@pytest.fixture
def places(home: Path) -> dict[str, tuple[str, str]]:
    """Return four data directories with an identity each: their path and peer."""
    found = {}
    for name in ("line", "special", "general", "table", "common"):
        place = home / name
        place.mkdir()
        found[name] = (str(place), peer_text(create_identity(place / "identity.key", None).peer))
    return found


def test_the_nearer_place_wins(command, places, home: Path, monkeypatch) -> None:
    def peer(*options: str) -> str:
        return json.loads(command("--config", config, "id", "--json", *options).out)["peer"]

    config = home / "config.toml"
    config.write_text(f"data-dir = '{places['common'][0]}'\n")
    assert peer() == places["common"][1]
    with config.open("a") as file:
        file.write(f"[id]\ndata-dir = '{places['table'][0]}'\n")
    assert peer() == places["table"][1]
    monkeypatch.setenv("DISTRO_NODE_DATA_DIR", places["general"][0])
    assert peer() == places["general"][1]
    monkeypatch.setenv("DISTRO_NODE_ID_DATA_DIR", places["special"][0])
    assert peer() == places["special"][1]
    assert peer("--data-dir", places["line"][0]) == places["line"][1]


def test_the_configuration_file_is_found(command, places, home: Path, monkeypatch) -> None:
    folder = Path(platformdirs.user_config_dir("distro-node", appauthor=False))
    assert folder.is_relative_to(home)
    folder.mkdir(parents=True)
    (folder / "config.toml").write_text(f"data-dir = '{places['common'][0]}'\n")
    assert command("id").out.strip() == places["common"][1]
    other = home / "other.toml"
    other.write_text(f"data-dir = '{places['table'][0]}'\n")
    monkeypatch.setenv("DISTRO_NODE_CONFIG", str(other))
    assert command("id").out.strip() == places["table"][1]
    # Neither a shell nor a container expands it here.
    monkeypatch.setenv("DISTRO_NODE_CONFIG", "~/other.toml")
    assert command("id").out.strip() == places["table"][1]
    monkeypatch.delenv("DISTRO_NODE_CONFIG")
    assert command("--config=~/other.toml", "id").out.strip() == places["table"][1]


def test_a_broken_configuration_is_reported(command, home: Path) -> None:
    config = home / "config.toml"
    config.write_text("[join]\nthread = 1\n")
    result = command("--config", config, "id")
    result.refused_with(ExitCode.BAD_CONFIG, str(config), "'thread'", "did you mean 'threads'?")
    command("--config", home / "none", "id").refused_with(ExitCode.BAD_CONFIG, "none")
    # The help is needed to mend the configuration.
    assert command("--config", config, "id", "--help").code == 0
