"""Unit files of systemd and launchd for a node, as text: nothing here touches the system.

The first lines of each file hold a digest of the rest, so that an edited file is recognized and never
overwritten.
"""

from __future__ import annotations

import hashlib
import plistlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Literal

from ..errors import ExitCode

Manager = Literal["systemd", "launchd"]

RESTART_SECONDS = 30
# How long the service manager waits for a node to end before it kills it. The goodbye to the swarm takes
# seconds; a trainer in the middle of a large model's step takes longer.
STOP_SECONDS = 60

# Exit codes of errors that a restart does not fix: systemd leaves the node stopped, and its owner has to
# read the log.
NO_RESTART_EXIT_CODES = (
    *(ExitCode.USAGE, ExitCode.BAD_SWARM_ID, ExitCode.BAD_ADDRESS, ExitCode.NO_TICKET),
    *(ExitCode.KEYSTORE, ExitCode.WRONG_PASSPHRASE, ExitCode.EXPELLED, ExitCode.FINAL),
    *(ExitCode.MANIFEST, ExitCode.VERSION, ExitCode.BAD_CONFIG, ExitCode.NO_DEVICE),
    *(ExitCode.MODEL_TOO_LARGE, ExitCode.NO_TASK, ExitCode.PRIVACY, ExitCode.OTHER_MODEL),
    ExitCode.UNSUPPORTED,
)

_MARK = re.compile(rb"(?:# |<!-- )Made by `distro-node service`: ([0-9a-f]{16})(?: -->)?\n")


@dataclass(frozen=True, kw_only=True)
class Service:
    """A program to run as a service."""

    name: str
    """Name of the unit, of letters, digits and hyphens."""
    command: str
    """Its subcommand: `join` or `bootstrap`."""
    command_line: tuple[str, ...]
    """The program's path and all its arguments."""
    system: bool = False
    """Whether it runs for the whole system, under its own user and in a sandbox, and not as the user who
    installs it."""


def systemd_unit(service: Service) -> bytes:
    """Return a unit for systemd 247 or newer, from the template beside this module."""
    name = "system.service" if service.system else "user.service"
    template = Template(files("distro_node.node.service").joinpath(name).read_text("utf-8"))
    text = template.substitute(
        name=service.name,
        command=service.command,
        command_line=" ".join(map(_quoted, service.command_line)),
        restart=RESTART_SECONDS,
        no_restart=" ".join(str(int(code)) for code in NO_RESTART_EXIT_CODES),
        stop=STOP_SECONDS,
        private_devices="yes" if service.command == "bootstrap" else "no",
    )
    return _marked(b"", text.encode(), b"# %s\n")


def launchd_plist(service: Service, log: Path) -> bytes:
    """Return a property list for launchd, which writes the node's output into `log`."""
    content = {
        "Label": label(service.name),
        "ProgramArguments": list(service.command_line),
        "RunAtLoad": True,
        "KeepAlive": {"SuccessfulExit": False},
        "ThrottleInterval": RESTART_SECONDS,
        "ExitTimeOut": STOP_SECONDS,
        "ProcessType": "Background",
        "StandardOutPath": str(log),
        "StandardErrorPath": str(log),
    }
    # In XML a comment may come only after the declaration line.
    head, line, rest = plistlib.dumps(content).partition(b"\n")
    return _marked(head + line, rest, b"<!-- %s -->\n")


def label(name: str) -> str:
    """Return launchd's label of the service."""
    return f"distro-node.{name}"


def is_ours(content: bytes) -> bool:
    """Whether a file was written by `distro-node service` and is unchanged."""
    found = _MARK.search(content)
    if found is None:
        return False
    rest = content[: found.start()] + content[found.end() :]
    return _digest(rest) == found[1]


def _marked(head: bytes, rest: bytes, comment: bytes) -> bytes:
    mark = b"Made by `distro-node service`: " + _digest(head + rest)
    return head + comment % mark + rest


def _digest(content: bytes) -> bytes:
    return hashlib.sha256(content).hexdigest()[:16].encode()


def _quoted(argument: str) -> str:
    """Return a word quoted for a systemd command line: nothing in it is a specifier or a variable."""
    plain = argument.replace("%", "%%").replace("$", "$$")
    if re.fullmatch(r"[\w@%+=:,./$-]+", plain, re.ASCII):
        return plain
    escaped = plain.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def arguments_problem(arguments: Sequence[str]) -> str | None:
    """Return why these words cannot be in a unit; None if they can."""
    if any(not argument.isprintable() for argument in arguments):
        return "a word of the command contains a line break or another non-printable character"
    return None
