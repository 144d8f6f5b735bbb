"""The documents: every command, option, variable, target, file and package that they name exists."""

from __future__ import annotations

import itertools
import re
import shlex
import tomllib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import pytest
from distro_node.node.control.status_rows import rows
from distro_node.node.telemetry.status import State
from statuses import AWAITING

DOCUMENTS = ["README.md", "CONTRIBUTING.md", "changes", "docs", "benchmarks"]

FENCE = re.compile(r"^([ \t]*)```(\w*)\n(.*?)^\1```", re.MULTILINE | re.DOTALL)
INLINE = re.compile(r"`([^`\n]+)`")
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")


def documents(checkout: Path) -> Iterator[Path]:
    for name in DOCUMENTS:
        place = checkout / name
        if place.exists():
            yield from sorted(place.rglob("*.md")) if place.is_dir() else [place]


def code_lines(text: str) -> Iterator[str]:
    """Yield lines of shell, TOML and so on: those between fences, and the text between backticks."""
    for fence in FENCE.finditer(text):
        yield from fence.group(3).replace("\\\n", " ").splitlines()
    for span in INLINE.finditer(FENCE.sub("", text)):
        yield span.group(1)


def program_calls(line: str) -> Iterator[list[str]]:
    """Yield the words after each `distro-node` in a place where a shell expects a command."""
    if "distro-node" not in line:
        return
    words = shlex.split(line, comments=True)
    starts = [
        number
        for number, word in enumerate(words)
        if re.fullmatch(r"(.*/)?(ExecStart=/.*/)?distro-node", word)
        and all(
            "=" in earlier or earlier in ("|", "&&", ";", "exec", "node-1") or "$" in earlier
            for earlier in words[max(0, number - 1) : number]
        )
    ]
    for start in starts:
        rest = words[start + 1 :]
        end = next((i for i, word in enumerate(rest) if word in ("|", ">", ">>", "&&", ";")), None)
        call = rest[:end]
        # `distro-node join …` means that more may follow, and COMMAND any command.
        yield ["join" if word == "COMMAND" else word for word in call if word != "…"]


@pytest.fixture(scope="module")
def texts(checkout: Path) -> dict[str, str]:
    found = {
        path.relative_to(checkout).as_posix(): path.read_text(encoding="utf-8")
        for path in documents(checkout)
    }
    assert {"README.md", "CONTRIBUTING.md", "docs/operations.md"} <= found.keys()
    return found


@pytest.fixture(scope="module")
def project(checkout: Path) -> dict[str, Any]:
    return tomllib.loads((checkout / "pyproject.toml").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def targets(checkout: Path) -> set[str]:
    makefile = (checkout / "Makefile").read_text(encoding="utf-8")
    (phony,) = re.findall(r"^\.PHONY: (.*)$", makefile, re.MULTILINE)
    found = set(re.findall(r"^([a-z-]+):", makefile, re.MULTILINE))
    assert found == set(phony.split())
    return found


def test_commands_exist(
    texts: dict[str, str], fault_in_command: Callable[[Sequence[str]], str | None]
) -> None:
    faults, checked = [], 0
    for name, text in texts.items():
        for line in code_lines(text):
            for words in program_calls(line):
                # A command that is only named may lack its arguments.
                if len(words) == 1 and fault_in_command([*words, "--help"]) is None:
                    continue
                checked += 1
                fault = fault_in_command(words)
                if fault and "lacks" not in fault:
                    faults.append(f"{name}: `{line.strip()}`: {fault}")
    assert faults == []
    assert checked >= 10


def test_whole_commands_in_the_readme_would_run(
    texts: dict[str, str], fault_in_command: Callable[[Sequence[str]], str | None]
) -> None:
    """Between fences a command has all its arguments, ready to be copied."""
    calls = [
        words
        for fence in FENCE.finditer(texts["README.md"])
        if fence.group(2) == "sh"
        for line in fence.group(3).splitlines()
        for words in program_calls(line)
    ]
    assert {words[0] for words in calls} >= {"join", "status", "leave", "create", "bootstrap"}
    assert [(words, fault) for words in calls if (fault := fault_in_command(words))] == []


def test_the_tests_of_commands_can_fail(
    fault_in_command: Callable[[Sequence[str]], str | None],
) -> None:
    line = "X=1 distro-node join 'distro:swarm-…?a=b' --no-such-option | less  # and so on"
    assert list(program_calls(line)) == [["join", "distro:swarm-…?a=b", "--no-such-option"]]
    assert list(program_calls("docker build --tag distro-node .")) == []
    for words in (
        ["join", "link", "--no-such-option"],
        ["no-such-command"],
        ["join"],
        ["join", "link", "surplus"],
        ["join", "link", "--threads"],
    ):
        assert fault_in_command(words) is not None, words
    for words in (["join", "link", "--threads", "2"], ["--version"], ["join", "--help"]):
        assert fault_in_command(words) is None, words


# Options of other programs that the documents mention.
FOREIGN_OPTIONS = {"--profile", "--json", "--corpus"}


def test_options_exist(texts: dict[str, str]) -> None:
    from distro_node.node.cli.main import app
    from typer.main import get_command

    group: Any = get_command(app)
    known = set(FOREIGN_OPTIONS) | {"--help"}
    for command in (group, *group.commands.values()):
        for parameter in command.params:
            known |= {*parameter.opts, *parameter.secondary_opts}
    unknown = {
        f"{name}: {span}"
        for name, text in texts.items()
        for span in INLINE.findall(FENCE.sub("", text))
        if re.match(r"--[a-z]", span) and span.split()[0].partition("=")[0] not in known
    }
    assert unknown == set()


def test_variables_exist(texts: dict[str, str]) -> None:
    from distro_node.node.cli.failures import DEBUG_VARIABLE
    from distro_node.node.cli.main import COMMANDS
    from distro_node.node.cli.options import PASSPHRASE_VARIABLE
    from distro_node.node.config import command_options

    known = {DEBUG_VARIABLE, PASSPHRASE_VARIABLE, "DISTRO_NODE_CONFIG"}
    for command, function in COMMANDS.items():
        for option in command_options(function):
            known |= {
                f"DISTRO_NODE_{option.upper()}",
                f"DISTRO_NODE_{command.upper()}_{option.upper()}",
            }
    for name, text in texts.items():
        assert set(re.findall(r"DISTRO_NODE_[A-Z_]+", text)) <= known, name


def test_make_targets_exist(texts: dict[str, str], targets: set[str], checkout: Path) -> None:
    named = set()
    for text in texts.values():
        for line in code_lines(text):
            named |= set(re.findall(r"^make ([a-z-]+)", line.strip()))
    assert named <= targets
    assert {"demo", "test"} <= named
    steps = (checkout / ".ci" / "run").read_text(encoding="utf-8")
    assert set(re.findall(r"^(?:exec )?make ([a-z-]+)(?: [A-Z]+=\S+)*$", steps, re.MULTILINE)) == {
        "test",
        "lint",
        "test-docs",
    }


def slug(heading: str) -> str:
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


def test_links_lead_somewhere(texts: dict[str, str], checkout: Path) -> None:
    for name, text in texts.items():
        for target in LINK.findall(FENCE.sub("", text)):
            if target.startswith(("http://", "https://")):
                continue
            path, _, anchor = target.partition("#")
            file = (checkout / name).parent / path if path else checkout / name
            assert file.exists(), f"{name}: {target}"
            if anchor:
                headings = re.findall(r"^#+ (.*)$", file.read_text(encoding="utf-8"), re.MULTILINE)
                assert anchor in {slug(heading) for heading in headings}, f"{name}: {target}"


def test_files_that_are_named_exist(texts: dict[str, str], checkout: Path) -> None:
    tops = "crypto|protocol|node|tests|benchmarks|docker|docs|changes"
    for name, text in texts.items():
        for span in INLINE.findall(FENCE.sub("", text)):
            if re.fullmatch(rf"({tops})/[\w./-]*", span):
                assert (checkout / span).exists(), f"{name}: {span}"


def test_every_room_is_in_the_layout(
    texts: dict[str, str], project: dict[str, Any], checkout: Path
) -> None:
    folders = set(re.findall(r"^\| `(\w+/)` \|", texts["docs/layout.md"], re.MULTILINE))
    packaged = {
        f"{package.split('.')[1]}/"
        for package in project["tool"]["setuptools"]["packages"]
        if "." in package
    }
    assert packaged <= folders
    assert {folder for folder in folders if not (checkout / folder).is_dir()} == set()


def test_packages_are_all_declared(project: dict[str, Any], checkout: Path) -> None:
    """A folder of modules missing from pyproject.toml would be missing from an installation."""
    declared = set(project["tool"]["setuptools"]["packages"])
    there = {
        ".".join(("distro_node", *path.parent.relative_to(checkout).parts))
        for folder in ("crypto", "protocol", "node")
        for path in (checkout / folder).rglob("*.py")
    }
    assert there == declared - {"distro_node"}


def test_every_dependency_states_its_purpose(
    texts: dict[str, str], project: dict[str, Any]
) -> None:
    *sections, left_out = re.split(r"^## ", texts["docs/dependencies.md"], flags=re.MULTILINE)[1:]
    assert left_out.startswith("What was weighed and left out")
    rows = [re.findall(r"^\| (`[^|]+`) \| \S", part, re.MULTILINE) for part in sections]
    documented = [re.findall(r"`([\w-]+)`", " ".join(part)) for part in rows]
    extras = project["project"]["optional-dependencies"]
    declared = [
        [re.match(r"[\w-]+", entry).group() for entry in entries]  # pyright: ignore[reportOptionalMemberAccess]
        for entries in (project["project"]["dependencies"], *extras.values())
    ]
    assert [sorted(part) for part in documented] == [sorted(part) for part in declared]


def test_every_dependency_has_an_exact_release(project: dict[str, Any], checkout: Path) -> None:
    constraints = (checkout / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pinned = {}
    for line in constraints:
        if line and not line.startswith("#"):
            match = re.fullmatch(r"([\w.-]+)==([\w.]+)", line)
            assert match, f"not an exact release for every platform: {line}"
            pinned[match.group(1).lower().replace("_", "-")] = match.group(2)
    extras = project["project"]["optional-dependencies"]
    installed = (extras[name] for name in ("train", "create", "hub", "dev"))
    for entry in (*project["project"]["dependencies"], *itertools.chain(*installed)):
        match = re.match(r"[\w-]+", entry)
        assert match
        assert match.group() in pinned, f"run `make constraints`: {entry}"
    # A single file of Python, the same on every platform.
    pinned.pop("nvidia-ml-py")
    assert not [name for name in pinned if name.startswith(("nvidia", "triton"))]


def test_every_line_of_status_is_explained(texts: dict[str, str]) -> None:
    trainer = replace(AWAITING.training.trainer, idle=0.5)
    full = replace(AWAITING, training=replace(AWAITING.training, trainer=trainer))
    names = {row.name for row in rows(full)}
    explained = set(re.findall(r"^\| ([a-z -]+) \|", texts["docs/reference.md"], re.MULTILINE))
    assert len(names) > 15
    assert names | set(get_args(State)) <= explained


def test_every_file_of_the_data_directory_is_explained(texts: dict[str, str]) -> None:
    from distro_node.node.storage.data_dir import DataDir, SwarmDir

    text = texts["docs/operations.md"]
    data, swarm = DataDir(Path("data")), SwarmDir(Path("swarm"))
    for path in vars(data).values():
        if path != data.root and path != data.swarms:
            assert f"`{path.name}" in text, path
    for path in vars(swarm).values():
        if path != swarm.root:
            assert f"`swarms/…/{path.relative_to(swarm.root).as_posix()}`" in text, path


def test_changelog_fragments_are_named_for_their_kind(
    checkout: Path, texts: dict[str, str]
) -> None:
    kinds = re.findall(r"^\| `(\w+)` \|", texts["changes/README.md"], re.MULTILINE)
    assert "protocol" in kinds
    for path in (checkout / "changes").iterdir():
        if path.name not in ("README.md", "template.md.jinja"):
            assert re.fullmatch(rf"[a-z0-9-]+\.({'|'.join(kinds)})\.md", path.name), path.name
            assert path.read_text(encoding="utf-8").strip()
