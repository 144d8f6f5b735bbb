"""The manual pages and shell completion are generated from the commands."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from distro_node.node.cli.main import COMMANDS
from distro_node.node.cli.option_groups import OTHERS
from distro_node.node.config import command_options
from distro_node.node.settings.setting import Group, all_settings
from distro_node.node.settings.tree import DaemonSettings
from man_pages import main, pages


def test_every_command_and_option_has_its_place() -> None:
    made = pages()
    assert made.keys() == {"distro-node.1", *(f"distro-node-{name}.1" for name in COMMANDS)}
    for name, function in COMMANDS.items():
        shown = name.replace("-", "\\-")
        assert f"distro\\-node\\-{shown}" in made["distro-node.1"]
        text = made[f"distro-node-{name}.1"]
        own = name.upper().replace("-", "_")
        for option in command_options(function):
            assert f"DISTRO_NODE_{own}_{option.upper()}" in text
    assert "\\-\\-max\\-upload" in made["distro-node-join.1"]


def test_pages_of_commands_that_are_gone_go_as_well(tmp_path: Path) -> None:
    (tmp_path / "distro-node-old.1").touch()
    main(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == pages().keys()


@pytest.mark.skipif(shutil.which("groff") is None, reason="groff is not installed")
def test_the_formatter_understands_them() -> None:
    everything = "".join(pages().values())
    done = subprocess.run(
        ["groff", "-Kutf8", "-man", "-ww", "-Tutf8"],
        input=everything,
        capture_output=True,
        text=True,
    )
    # Addresses and ids are longer than a line.
    faults = [
        line for line in done.stderr.splitlines() if "break" not in line and "adjust" not in line
    ]
    assert (done.returncode, faults) == (0, [])
    # Bold is an overstruck letter or a terminal sequence, depending on the formatter's configuration.
    shown = re.sub(r"\x1b\[[0-9;]*m|.\x08", "", done.stdout)
    assert "--relay-updates, --no-relay-updates" in shown
    assert "distro-node join 'distro:swarm-…" in shown


@pytest.mark.parametrize(
    ("shell", "words", "offered"),
    [
        ("bash", "distro-node st", {"status"}),
        ("zsh", "distro-node join --max-", {"--max-upload", "--max-download", "--max-disk"}),
        ("fish", "distro-node join --log-level d", {"debug"}),
    ],
)
def test_shells_complete(home: Path, words: str, offered: set[str], shell: str) -> None:
    asked = {
        "_DISTRO_NODE_COMPLETE": f"complete_{shell}",
        "COMP_WORDS": words,
        "COMP_CWORD": str(len(words.split()) - 1),
        "_TYPER_COMPLETE_ARGS": words,
        "_TYPER_COMPLETE_FISH_ACTION": "get-args",
        "_TYPER_COMPLETE_WORD_TO_COMPLETE": words.split()[-1],
    }
    done = subprocess.run(
        [sys.executable, "-c", "from distro_node.node.cli import main; main()"],
        capture_output=True,
        text=True,
        env={**os.environ, **asked},
    )
    assert done.stderr == ""
    found = set(re.findall(r"(?<![\w-])[\w-]+", done.stdout))
    assert offered <= found
    assert "bootstrap" not in found


def test_the_help_of_many_options_is_in_groups(command) -> None:
    shown = command("join", "--help").out
    headings = [line.removesuffix(":") for line in shown.splitlines() if re.match(r"\w.*:$", line)]
    assert headings == ["Arguments", *Group, OTHERS]
    first = [
        each for each in all_settings(DaemonSettings) if each.declaration.group is Group.COMMON
    ]
    assert len(first) == 10
    assert "Options:" in command("export", "--help").out


def test_every_option_of_join_is_in_one_group() -> None:
    options = [each for each in all_settings(DaemonSettings) if not each.declaration.argument]
    assert all(each.declaration.group for each in options)
    names = [each.parameter for each in options]
    assert len(names) == len({*names})
    assert {*names} == {*command_options(COMMANDS["join"])}
    assert ".SS Hours and energy" in pages()["distro-node-join.1"]
