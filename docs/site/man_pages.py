"""Generator of the manual pages from the commands, run by `make dist` and `docker/debian/build`.

`man_pages.py FOLDER` writes a page for the program and one for each command.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from distro_node.node.cli.main import app
from distro_node.node.cli.option_groups import grouped
from distro_node.node.config import ENVIRONMENT_PREFIX
from distro_node.node.errors import ExitCode
from typer.main import get_command

PROGRAM = "distro-node"

_LITERAL = "\b"
"""The marker line that protects the following paragraph from rewrapping, as the command library
defines it."""


def pages() -> dict[str, str]:
    """Return the text of each page by its file name."""
    group: Any = get_command(app)
    made = {f"{PROGRAM}.1": "".join(_program(group))}
    for name, command in group.commands.items():
        made[f"{PROGRAM}-{name}.1"] = "".join(_command(name, command))
    return made


def _program(group: Any) -> Iterator[str]:
    yield from _head(PROGRAM, group)
    yield f".SH SYNOPSIS\n.B {_plain(PROGRAM)}\n[OPTIONS] COMMAND [ARGUMENTS]\n"
    yield from _description(group)
    yield ".SH COMMANDS\n"
    for name, command in group.commands.items():
        yield f".TP\n.BR {_plain(f'{PROGRAM}-{name}')} (1)\n{_text(_first(command))}\n"
    yield from _options(group, None)
    yield ".SH ENVIRONMENT\n" + _text(inspect.cleandoc(group.epilog)) + "\n"
    yield (
        f".TP\n.B {ENVIRONMENT_PREFIX}_DEBUG\n"
        "With 1, an error of the program's own shows where it happened.\n"
    )
    yield ".SH EXIT STATUS\n"
    for code in ExitCode:
        yield f".TP\n.B {code.value}\n{_plain(code.name.lower().replace('_', ' '))}\n"


def _command(name: str, command: Any) -> Iterator[str]:
    yield from _head(f"{PROGRAM}-{name}", command)
    arguments = [each for each in command.params if not each.opts[0].startswith("-")]
    metavars = [f"{_metavar(each)}" for each in arguments]
    metavars = [
        w if each.required else f"[{w}]" for w, each in zip(metavars, arguments, strict=True)
    ]
    usage = " ".join(["[OPTIONS]", *metavars])
    yield f".SH SYNOPSIS\n.B {_plain(f'{PROGRAM} {name}')}\n{_plain(usage)}\n"
    yield from _description(command)
    if any(each.help for each in arguments):
        yield ".SH ARGUMENTS\n"
    for each in arguments:
        if each.help:
            yield f".TP\n.I {_plain(_metavar(each))}\n{_text(each.help)}\n"
    yield from _options(command, name)
    yield f".SH SEE ALSO\n.BR {_plain(PROGRAM)} (1)\n"


def _head(name: str, command: Any) -> Iterator[str]:
    yield f'.TH "{_plain(name.upper())}" 1 "" "{PROGRAM}" "{PROGRAM}"\n'
    yield f".SH NAME\n{_plain(name)} \\- {_text(_first(command).rstrip('.'))}\n"


def _first(command: Any) -> str:
    return inspect.cleandoc(command.help or "").partition("\n")[0]


def _description(command: Any) -> Iterator[str]:
    paragraphs = inspect.cleandoc(command.help or "").split("\n\n")[1:]
    yield ".SH DESCRIPTION\n"
    for number, paragraph in enumerate(paragraphs):
        if number:
            yield ".PP\n"
        if paragraph.startswith(_LITERAL):
            lines = inspect.cleandoc(paragraph.removeprefix(_LITERAL)).strip("\n").split("\n")
            yield (
                ".nf\n.RS 4\n"
                + "".join(f"{_plain(line.strip())}\n" for line in lines)
                + ".RE\n.fi\n"
            )
        else:
            yield _text(" ".join(paragraph.split())) + "\n"


def _options(command: Any, name: str | None) -> Iterator[str]:
    options = [each for each in command.params if each.opts[0].startswith("-")]
    if options:
        yield ".SH OPTIONS\n"
    groups = grouped(options)
    for heading, found in groups:
        if len(groups) > 1:
            yield f".SS {_plain(heading)}\n"
        for each in found:
            yield from _option(each, name)


def _option(each: Any, name: str | None) -> Iterator[str]:
    spelled = ", ".join(f"\\fB{_plain(word)}\\fR" for word in (*each.opts, *each.secondary_opts))
    value = "" if each.is_flag else f" \\fI{_plain(_metavar(each))}\\fR"
    yield f".TP\n{spelled}{value}\n{_text(each.help or '')}{_default(each)}\n"
    if name is not None and each.name != "help":
        own = name.upper().replace("-", "_")
        yield f".br\n{ENVIRONMENT_PREFIX}_{own}_{each.name.upper()}\n"


def _default(parameter: Any) -> str:
    value = parameter.default
    if value is None or value is False or value == () or "[default:" in (parameter.help or ""):
        return ""
    if value is True:
        return f" (default: {_plain(parameter.opts[0])})" if parameter.secondary_opts else ""
    return f" (default: {_plain(str(value))})"


def _metavar(parameter: Any) -> str:
    return parameter.metavar or parameter.name.upper()


def _text(text: str) -> str:
    """Return wrapped text with the parts between backticks in bold."""
    parts = text.split("`")
    return "".join(
        f"\\fB{_plain(part)}\\fR" if number % 2 else _plain(part)
        for number, part in enumerate(parts)
    )


def _plain(text: str) -> str:
    """Escape text, so that hyphens can be copied and no line is a formatter command."""
    escaped = text.replace("\\", "\\e").replace("-", "\\-")
    return re.sub(r"^([.'])", r"\\&\1", escaped)


def main(folder: Path) -> None:
    """Write all pages into a folder, and remove those of commands that no longer exist."""
    folder.mkdir(exist_ok=True)
    made = pages()
    for path in folder.glob("*.1"):
        if path.name not in made:
            path.unlink()
    for name, text in made.items():
        (folder / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
