"""Parsers for the values of settings, which also check them."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import platformdirs

from ...protocol.wire.manifest import SwarmId
from ...protocol.wire.swarm_id import (
    PREFIX,
    SCHEME,
    Invite,
    SwarmIdError,
    check_bootstrap,
    check_multiaddr,
    parse_invite,
)
from ..errors import ExitCode, UserError
from ..util.sanitize import harmless

T = TypeVar("T")

DEFAULT_METRICS_ADDRESS = ("127.0.0.1", 9464)
DEFAULT_DASHBOARD_ADDRESS = ("127.0.0.1", 9465)
DEFAULT_MODEL_ADDRESS = ("127.0.0.1", 9467)

MIN_RATE = 64_000.0
"""Lowest bandwidth limit that a node accepts, in bytes per second. The four blobs that may be in
transfer at once share it, so that each gets twice the rate below which peers give up on a blob."""

MAX_PROMPT_CHARACTERS = 1000
MAX_DISPLAY_NAME_CHARACTERS = 32
MAX_NAME_CHARACTERS = 64
"""Maximum length of a swarm's name, as in the manifest."""

_DEVICES = re.compile(r"auto|cpu|mps|(cuda|vulkan)(:\d{1,3})?")
_LISTABLE_DEVICE = re.compile(r"cpu|cuda:\d{1,3}")
# Each device needs a process, and all are on one machine.
_MAX_DEVICES = 64
_RATE = re.compile(r"(\d{1,9}(?:\.\d{1,9})?) ?([kMG]?)(bit|B)(?:/s)?")
_SIZE = re.compile(r"(\d{1,9}(?:\.\d{1,9})?) ?([kMGT]?)B")
_PREFIXES = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
_HOST_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]{0,252}[A-Za-z0-9])?")


def none_if_empty(parse: Callable[[str], T]) -> Callable[[str], T | None]:
    """Return a parser that returns None for an empty text, because scripts pass unset variables."""
    return lambda text: parse(text) if text else None


def default_data_dir() -> Path:
    """Return the operating system's default folder for this user's data of this program."""
    return absolute_path(Path(platformdirs.user_data_dir("distro-node", appauthor=False)))


def absolute_path(path: Path) -> Path:
    """Return a path that does not depend on the working directory. Raises as `without_tilde` does."""
    return without_tilde(path).absolute()


def without_tilde(path: Path) -> Path:
    """Return a path with the home directory in place of `~` or `~NAME`, which a shell leaves as it is in
    `--option=~/file`. Raises `UserError` with `ExitCode.USAGE` if there is no such home directory."""
    try:
        return path.expanduser()
    except RuntimeError:
        raise UserError(
            ExitCode.USAGE,
            f"there is no home directory for {path.parts[0]!r} in {str(path)!r}",
            f"write the whole path, or ./{path} for a path in the current directory",
        ) from None


def parse_target(text: str) -> Invite:
    """Parse a swarm-id or an invite link. Raises `UserError` with `ExitCode.BAD_ADDRESS` if a bootstrap
    peer's address in it is invalid, and with `ExitCode.BAD_SWARM_ID` for any other fault."""
    try:
        return parse_invite(text)
    except SwarmIdError as error:
        if error.fault == "bootstrap":
            raise _bad_address(error) from None
        raise UserError(
            ExitCode.BAD_SWARM_ID,
            str(error),
            "copy the whole swarm-id or link again, and quote a link: 'distro:swarm-…?bootstrap=…'",
        ) from None


@dataclass(frozen=True, kw_only=True)
class NamedSwarm(Invite):
    """The name of a public swarm in place of a link to it. The swarm-id is all zeros until `join` has
    found the name in a list of public swarms."""

    name: str


def parse_join_target(text: str) -> Invite:
    """Parse a swarm-id, an invite link or, if the text begins like neither, a swarm's name. Raises what
    `parse_target` raises."""
    name = text.strip()
    if name.lower().startswith((PREFIX, SCHEME)) or not 0 < len(name) <= MAX_NAME_CHARACTERS:
        return parse_target(text)
    return NamedSwarm(swarm=SwarmId(bytes(32)), name=name)


def parse_display_name(text: str) -> str | None:
    """Return a member's name for itself; None for an empty text. Raises `UserError` with
    `ExitCode.USAGE` for one that is too long, or has control or invisible characters."""
    name = " ".join(text.split())
    if len(name) > MAX_DISPLAY_NAME_CHARACTERS or harmless(name) != name:
        raise UserError(
            ExitCode.USAGE,
            f"{harmless(name[:100])!r} cannot be shown as a name",
            f"give at most {MAX_DISPLAY_NAME_CHARACTERS} visible characters",
        )
    return name or None


def parse_bootstrap(text: str) -> str:
    """Return the bootstrap peer's address in `text`. Raises `UserError` with `ExitCode.BAD_ADDRESS` if
    it is invalid."""
    return _checked(check_bootstrap, text)


def parse_multiaddr(text: str) -> str:
    """Return the multiaddress in `text`. Raises `UserError` with `ExitCode.BAD_ADDRESS` if it is
    invalid."""
    return _checked(check_multiaddr, text)


def _checked(check: Callable[[str], str], text: str) -> str:
    """Return what `check` returns for an address, or raise its fault as a `UserError`."""
    try:
        return check(text)
    except SwarmIdError as error:
        raise _bad_address(error) from None


def _bad_address(error: SwarmIdError) -> UserError:
    return UserError(
        ExitCode.BAD_ADDRESS,
        str(error),
        "write an address as /ip4/192.0.2.1/tcp/4001, and a bootstrap peer's with /p2p/12D3KooW… "
        "at the end",
    )


def parse_private_path(path: Path) -> Path:
    """Return the absolute path of a file or folder of private data. Raises `UserError` with
    `ExitCode.DATA_MISSING` if it does not exist."""
    found = absolute_path(path)
    if not found.exists():
        raise UserError(
            ExitCode.DATA_MISSING,
            f"there is no file or directory {found}",
            "name your own files or folders with --data",
        )
    return found


def parse_device(text: str) -> str:
    """Return the name of a device. Raises `UserError` with `ExitCode.NO_DEVICE` if it is none."""
    if not _DEVICES.fullmatch(text):
        raise UserError(
            ExitCode.NO_DEVICE,
            f"{text!r} is not a device",
            "use auto, cpu, mps, cuda or cuda:0 (the first GPU), cuda:1, …",
        )
    return text


def parse_devices(text: str) -> str:
    """Return the name of a device, a list of names in normal form, or `all`.

    Raises `UserError` with `ExitCode.NO_DEVICE` for anything else, and for a list that repeats a GPU,
    combines GPUs and CPUs or is too long.
    """
    names = text.split(",")
    if text == "all" or len(names) == 1:
        return text if text == "all" else parse_device(text)
    problem = None
    unlistable = [name for name in names if not _LISTABLE_DEVICE.fullmatch(name)]
    # Normalises cuda:01 to cuda:1.
    names = [name if name in ("cpu", *unlistable) else f"cuda:{int(name[5:])}" for name in names]
    repeated = [name for name in names if name != "cpu" and names.count(name) > 1]
    if unlistable:
        problem = f"{unlistable[0]!r} cannot be in a list of devices"
    elif repeated:
        problem = f"{repeated[0]} is named twice"
    elif len(set(names)) > 1 and "cpu" in names:
        problem = "GPUs and CPUs cannot be combined into one member"
    elif len(names) > _MAX_DEVICES:
        problem = f"{len(names)} devices are too many"
    if problem is not None:
        raise UserError(
            ExitCode.NO_DEVICE,
            problem,
            f"name at most {_MAX_DEVICES} GPUs, each once, as in cuda:0,cuda:1, or all",
        )
    return ",".join(names)


def parse_torchrun_device(text: str) -> str:
    """Return the kind of device of a node that torch's launcher has started. Raises `UserError` with
    `ExitCode.NO_DEVICE` for anything else, such as the name of a specific device."""
    if text in ("auto", "cpu", "cuda"):
        return text
    raise UserError(
        ExitCode.NO_DEVICE,
        f"{text!r} names single devices, but torchrun assigns the devices itself",
        "use --device cuda (or cpu); torchrun sets the number of devices of each machine",
    )


def is_device_list(device: str) -> bool:
    """Whether this names a list of devices, possibly of one."""
    return device == "all" or "," in device


def parse_rate(text: str) -> float:
    """Parse a number of bits or bytes per second, such as 10Mbit; return bytes per second.

    Raises `UserError` with `ExitCode.USAGE` if it is not a rate, or if it is below `MIN_RATE`.
    """
    found = _RATE.fullmatch(text.strip())
    if found is None:
        raise UserError(
            ExitCode.USAGE,
            f"{text!r} is not a rate",
            "use a number of bits or bytes a second, such as 10Mbit, 1.25MB or 800kbit",
        )
    number, prefix, unit = found.groups()
    rate = float(number) * _PREFIXES[prefix] / (8 if unit == "bit" else 1)
    if rate < MIN_RATE:
        raise UserError(
            ExitCode.USAGE,
            f"a limit of {text} is too low for a node",
            f"allow at least {MIN_RATE * 8 / 1e3:g}kbit",
        )
    return rate


def parse_size(text: str) -> int:
    """Parse a number of bytes above 0, such as 20GB. Raises `UserError` with `ExitCode.USAGE` if it is
    none."""
    found = _SIZE.fullmatch(text.strip())
    size = int(float(found[1]) * _PREFIXES[found[2]]) if found else 0
    if size == 0:
        raise UserError(
            ExitCode.USAGE,
            f"{text!r} is not a size",
            "use a number of bytes, such as 500MB or 20GB",
        )
    return size


def parse_prompt(text: str) -> str:
    """Return the prompt for generated samples. Raises `UserError` with `ExitCode.USAGE` if it is too
    long."""
    if len(text) > MAX_PROMPT_CHARACTERS:
        raise UserError(
            ExitCode.USAGE,
            f"the text given with --sample-prompt has {len(text)} characters",
            f"give at most {MAX_PROMPT_CHARACTERS}: one sentence is enough",
        )
    return text


def parse_mirror(text: str) -> str:
    """Return a mirror's URL, or the absolute path of its folder. Raises `UserError` with
    `ExitCode.BAD_ADDRESS` for an invalid URL, and with `ExitCode.DATA_MISSING` for a missing folder."""
    if "://" in text:
        if not re.fullmatch(r"https?://[!-~]{1,240}", text):
            raise UserError(
                ExitCode.BAD_ADDRESS,
                f"{text!r} is not a mirror's address",
                "give a folder, or a URL that begins with https:// or http://",
            )
        return text
    path = absolute_path(Path(text))
    if not text or not path.is_dir():
        raise UserError(
            ExitCode.DATA_MISSING,
            f"the mirror {path if text else repr(text)} is not a folder",
            "give a folder of blobs, such as blobs/ of another data directory",
        )
    return str(path)


def address_text(address: tuple[str, int]) -> str:
    """Return an address as `parse_metrics_address` reads it."""
    host, port = address
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def parse_metrics_address(text: str) -> tuple[str, int] | None:
    """Parse `host:port`, `[ipv6]:port` or `off`, which gives None. Raises `UserError` with
    `ExitCode.BAD_ADDRESS` for anything else."""
    return _parse_address(text, "metrics", DEFAULT_METRICS_ADDRESS[1])


def parse_dashboard_address(text: str) -> tuple[str, int] | None:
    """Parse the address of the dashboard page in the same way as that of the metrics."""
    return _parse_address(text, "the page", DEFAULT_DASHBOARD_ADDRESS[1])


def parse_model_address(text: str) -> tuple[str, int]:
    """Parse the address at which a model is served; it cannot be `off`. Raises `UserError` with
    `ExitCode.BAD_ADDRESS`."""
    default_port = DEFAULT_MODEL_ADDRESS[1]
    found = _host_and_port(text)
    if found is None:
        raise UserError(
            ExitCode.BAD_ADDRESS,
            f"{text!r} is not an address to serve a model at",
            f"use host:port, such as 127.0.0.1:{default_port} or [::1]:{default_port}",
        )
    return found


def _parse_address(text: str, what: str, default_port: int) -> tuple[str, int] | None:
    if text == "off":
        return None
    found = _host_and_port(text)
    if found is None:
        raise UserError(
            ExitCode.BAD_ADDRESS,
            f"{text!r} is not an address to serve {what} at",
            f"use host:port, such as 127.0.0.1:{default_port} or [::1]:{default_port}, or off",
        )
    return found


def _host_and_port(text: str) -> tuple[str, int] | None:
    """Return the parts of `host:port` or `[ipv6]:port`; None for anything else."""
    host, colon, port = text.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
        valid = _is_ip(host, ipaddress.IPv6Address)
    else:
        valid = bool(_HOST_NAME.fullmatch(host))
        if valid and set(host) <= set("0123456789."):
            # A text of digits and dots that is not an address is a typo, not a name to look up.
            valid = _is_ip(host, ipaddress.IPv4Address)
    if not (colon and valid and port.isascii() and port.isdigit() and int(port) <= 65535):
        return None
    return host, int(port)


def _is_ip(text: str, kind: type[ipaddress.IPv4Address] | type[ipaddress.IPv6Address]) -> bool:
    try:
        kind(text)
    except ValueError:
        return False
    return True
