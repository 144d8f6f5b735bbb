"""The settings of a node, one frozen dataclass per component.

Each setting is declared here and nowhere else; see `setting`. A component gets only its own dataclass.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from ..errors import ExitCode, UserError
from ..util.schedule import Hours, parse_hours
from .setting import Group, setting
from .values import (
    DEFAULT_DASHBOARD_ADDRESS,
    address_text,
    none_if_empty,
    parse_bootstrap,
    parse_dashboard_address,
    parse_devices,
    parse_mirror,
    parse_multiaddr,
    parse_private_path,
    parse_prompt,
    parse_rate,
    parse_size,
)

SHORTEST_POLL_SECONDS = 10.0
"""Shortest interval between two runs of the command of `--pause-when`."""

_MAX_COMMAND_LENGTH = 2048
_DEFAULT_CLIP = 1.0
_MAX_EPSILON, _MAX_CLIP = 1e6, 1e6
_MEBIBYTE = 1 << 20


def _check_finite(option: str, number: float | None) -> None:
    if number is not None and not math.isfinite(number):
        raise _usage_error(f"{option} {number} is not a finite number", "give a number")


def _usage_error(problem: str, remedy: str) -> UserError:
    return UserError(ExitCode.USAGE, problem, remedy)


class Compile(StrEnum):
    """Whether the layers of a model are compiled (`torch.compile`)."""

    AUTO = "auto"
    """On a GPU, if a trial shows that compilation is faster."""
    ON = "on"
    """On any device, if a trial shows that compilation is faster."""
    OFF = "off"


class Split(StrEnum):
    """Which parameters each of several devices holds: a copy of all, or a shard."""

    AUTO = "auto"
    """Copies if they fit, otherwise shards."""
    COPIES = "copies"
    SHARDS = "shards"


class LogFormat(StrEnum):
    """The format of a log line."""

    TEXT = "text"
    JSON = "json"


class LogLevel(StrEnum):
    """The lowest level that is logged."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


@dataclass(frozen=True, kw_only=True)
class PeeringSettings:
    """How the peers of a swarm are found."""

    bootstrap: tuple[str, ...] = setting(
        (),
        metavar="MULTIADDR",
        parse=parse_bootstrap,
        group=Group.COMMON,
        help="A bootstrap peer, which introduces members to each other, such as "
        "/dns4/example.org/tcp/4001/p2p/12D3KooW…; may be repeated.",
    )
    wait: bool = setting(
        False,
        group=Group.CONNECTION,
        help="While no peer that knows the swarm can be reached, keep searching instead of ending.",
    )
    mdns: bool = setting(
        True,
        group=Group.CONNECTION,
        help="Find members in the local network, and let them find this node.",
    )


@dataclass(frozen=True, kw_only=True)
class TrainerSettings:
    """What a trainer computes on, and how. The node sends all of this to the trainer process."""

    device: str = setting(
        "auto",
        metavar="DEVICE",
        parse=parse_devices,
        group=Group.COMMON,
        help="Device to train on: auto, cpu, cuda, cuda:1 (the second GPU) or mps. "
        "cuda:0,cuda:1 or all: several GPUs train as one member.",
    )
    split: Split = setting(
        Split.AUTO,
        group=Group.DEVICE,
        help="With several devices: each holds a copy of the model (copies) or a part of it "
        "(shards); auto uses copies if they fit.",
    )
    threads: int | None = setting(
        None,
        metavar="N",
        low=1,
        high=4096,
        group=Group.DEVICE,
        help="CPU threads to train with. [default: the number of cores]",
    )
    micro_batch: int | None = setting(
        None,
        metavar="N",
        low=1,
        high=65536,
        group=Group.DEVICE,
        help="Sequences computed at once. [default: as many as fit the device]",
    )
    memory: int | None = setting(
        None,
        metavar="SIZE",
        parse=none_if_empty(parse_size),
        group=Group.COMMON,
        help="Limit of device memory for training, such as 8GB. To keep to it, momentum is "
        "stored in fewer bits or in main memory, and activations are recomputed. [default: the "
        "free memory]",
    )
    compile: Compile = setting(
        Compile.AUTO,
        group=Group.DEVICE,
        help="When the trainer starts, compile the model's layers, which takes a minute or "
        "two, and use the result if it is faster; auto does so on a GPU only.",
    )
    sandbox: bool = setting(
        True,
        group=Group.DEVICE,
        help="Deny the trainer process the network, and all files that training does not need.",
    )
    under_torchrun: bool = False
    """Whether torch's launcher has started this node, and one process for each of its other devices."""


@dataclass(frozen=True, kw_only=True)
class PrivacySettings:
    """A member's private data, and how much its updates may reveal about it (local differential
    privacy).

    Raises `UserError` with `ExitCode.USAGE` for numbers out of range, and for `delta` or `clip` without
    `epsilon`.
    """

    data: tuple[Path, ...] = setting(
        (),
        metavar="PATH",
        value_type=Path,
        parse=parse_private_path,
        group=Group.PRIVACY,
        help="In a swarm with private data: your files or folders to train on. They never "
        "leave this computer. May be repeated.",
    )
    epsilon: float | None = setting(
        None,
        metavar="E",
        group=Group.PRIVACY,
        help="With --data: clip gradients and add noise, so that everything that this node "
        "sends is (E, D)-differentially private for each sequence, and stop before the budget "
        "is exceeded.",
    )
    delta: float | None = setting(
        None,
        metavar="D",
        group=Group.PRIVACY,
        help="The D of --epsilon. [default: 0.1 divided by "
        "the number of your sequences, at most 0.00001]",
    )
    clip: float = setting(
        _DEFAULT_CLIP,
        metavar="NORM",
        group=Group.PRIVACY,
        help="With --epsilon: the norm to which the gradient of each sequence is clipped.",
    )

    def __post_init__(self) -> None:
        if self.epsilon is None:
            if self.delta is not None or self.clip != _DEFAULT_CLIP:
                raise _usage_error(
                    f"{'--delta' if self.delta is not None else '--clip'} has no effect without "
                    "--epsilon",
                    "give --epsilon as well, or neither",
                )
            return
        for option, value, most in (
            ("--epsilon", self.epsilon, _MAX_EPSILON),
            ("--delta", self.delta, 0.5),
            ("--clip", self.clip, _MAX_CLIP),
        ):
            if value is not None and not (math.isfinite(value) and 0 < value <= most):
                raise _usage_error(
                    f"{option} {value:g} is out of range",
                    f"give a number above 0, and at most {most:g}",
                )


@dataclass(frozen=True, kw_only=True)
class EvaluationSettings:
    """How a member evaluates the model."""

    evaluate_every: int | None = setting(
        None,
        metavar="ROUNDS",
        low=1,
        group=Group.DASHBOARD,
        help="Rounds between measurements of the held-out loss. [default: 10]",
    )
    sample_prompt: str | None = setting(
        None,
        metavar="TEXT",
        parse=parse_prompt,
        group=Group.DASHBOARD,
        help="After each measurement of the held-out loss, generate text from this prompt and "
        "show it on the page. [default: no text is generated]",
    )


@dataclass(frozen=True, kw_only=True)
class LineSettings:
    """The node's own addresses, and the limits on its bandwidth."""

    max_upload: float | None = setting(
        None,
        metavar="RATE",
        parse=none_if_empty(parse_rate),
        group=Group.COMMON,
        help="Upload limit per second, such as 5Mbit or 600kB. [default: no limit]",
    )
    max_download: float | None = setting(
        None,
        metavar="RATE",
        parse=none_if_empty(parse_rate),
        group=Group.COMMON,
        help="Download limit per second, such as 50Mbit or 6MB. [default: no limit]",
    )
    listen: tuple[str, ...] = setting(
        (),
        metavar="MULTIADDR",
        parse=parse_multiaddr,
        group=Group.CONNECTION,
        help="Address to listen on, such as /ip4/0.0.0.0/tcp/4001; may be repeated.",
    )
    announce: tuple[str, ...] = setting(
        (),
        metavar="MULTIADDR",
        parse=parse_multiaddr,
        group=Group.CONNECTION,
        help="Address to announce to others, if this node cannot find it out itself (a forwarded "
        "port, a DNS name); may be repeated.",
    )


@dataclass(frozen=True, kw_only=True)
class DiskSettings:
    """How much is stored, and where training data is looked for before peers are asked."""

    max_disk: int | None = setting(
        None,
        metavar="SIZE",
        parse=none_if_empty(parse_size),
        group=Group.CONNECTION,
        help="Limit of disk space for model and training data, such as 20GB. [default: no limit]",
    )
    mirrors: tuple[str, ...] = setting(
        (),
        name="mirror",
        metavar="URL|FOLDER",
        parse=parse_mirror,
        group=Group.CONNECTION,
        help="Mirror from which training data is fetched before peers are asked; may be repeated.",
    )


@dataclass(frozen=True, kw_only=True)
class RelayLimits:
    """Limits for relaying updates."""

    max_bytes: int = 512 << 20
    """Maximum bytes of updates in memory, for all swarms together; one swarm gets half of it, which
    suffices for three rounds of 32 members with 2.8 MB each."""
    max_streams: int = 2048

    @property
    def max_bytes_per_swarm(self) -> int:
        """Maximum bytes of one swarm's updates in memory."""
        return self.max_bytes // 2


@dataclass(frozen=True, kw_only=True)
class RelaySettings:
    """Whether this node relays others' updates."""

    enabled: bool = setting(
        False,
        name="relay-updates",
        group=Group.CONNECTION,
        help="Fetch each member's update once and send it to all others. Worthwhile if this line "
        "uploads at least ten times as fast as a home line.",
    )
    memory_mebibytes: int = setting(
        RelayLimits.max_bytes // _MEBIBYTE,
        name="relay-memory",
        metavar="MB",
        low=16,
        high=1 << 20,
        group=Group.CONNECTION,
        help="Memory limit for relayed updates; one swarm may use half of it.",
    )

    @property
    def limits(self) -> RelayLimits | None:
        """The limits for relaying; None: nothing is relayed."""
        return RelayLimits(max_bytes=self.memory_mebibytes * _MEBIBYTE) if self.enabled else None


@dataclass(frozen=True, kw_only=True)
class EnergySettings:
    """When the node works and when it pauses.

    Raises `UserError` with `ExitCode.USAGE` for a command or an interval that cannot be used.
    """

    active_hours: Hours | None = setting(
        None,
        name="active",
        metavar="HOURS",
        parse=none_if_empty(parse_hours),
        group=Group.COMMON,
        help="Working hours, such as 22:00-07:00, or several periods separated by commas; at other "
        "times the node pauses. [default: always]",
    )
    pause_when: str | None = setting(
        None,
        metavar="COMMAND",
        group=Group.ENERGY,
        help="A shell command whose exit code decides about pauses: 0 to pause, 1 to work.",
    )
    pause_every_seconds: float = setting(
        300.0,
        name="pause-every",
        metavar="SECONDS",
        low=SHORTEST_POLL_SECONDS,
        high=86_400.0,
        group=Group.ENERGY,
        help="Seconds between runs of --pause-when.",
    )
    polite: bool = setting(
        False,
        group=Group.COMMON,
        help="Pause at once when another program uses the GPU or a "
        "person uses the computer, until both have been idle for a while.",
    )

    def __post_init__(self) -> None:
        _check_finite("--pause-every", self.pause_every_seconds)
        command = self.pause_when
        if command is None:
            return
        if not command.strip() or len(command) > _MAX_COMMAND_LENGTH or "\0" in command:
            raise _usage_error("--pause-when is empty or too long", "give a command")
        if command.startswith(("http://", "https://")):
            raise _usage_error(
                "--pause-when is a URL, not a command",
                "give a command that reads the URL and decides: docs/energy.md has examples",
            )


@dataclass(frozen=True, kw_only=True)
class ReachSettings:
    """How a node behind a router gets an address that others can dial."""

    upnp: bool = setting(
        True,
        group=Group.CONNECTION,
        help="Ask the router to open a port if others cannot reach this node.",
    )


@dataclass(frozen=True, kw_only=True)
class DashboardSettings:
    """How a node's dashboard page is served."""

    address: tuple[str, int] | None = setting(
        address_text(DEFAULT_DASHBOARD_ADDRESS),
        name="dashboard",
        metavar="HOST:PORT",
        parse=parse_dashboard_address,
        group=Group.COMMON,
        help="Address of this node's dashboard page, for your browser; off: no page.",
    )
    """Host and port; port 0: any free port. None: the page is not served."""
    certificate: Path | None = setting(
        None,
        name="dashboard-cert",
        metavar="FILE",
        group=Group.DASHBOARD,
        help="Certificate (PEM) to serve the page over TLS; needed at an address that others can "
        "reach.",
    )
    """The file must also have the intermediate certificates up to an authority."""
    key: Path | None = setting(
        None,
        name="dashboard-key",
        metavar="FILE",
        group=Group.DASHBOARD,
        help="The certificate's key (PEM).",
    )
    """The key in the file must have no passphrase."""
    allow_plain: bool = setting(
        False,
        name="dashboard-plain",
        group=Group.DASHBOARD,
        help="Serve the page without TLS even at an address that others can reach.",
    )
    public: bool = False
    """Whether anyone who reaches the page may read it; otherwise only the owner may, except at a
    loopback address."""


@dataclass(frozen=True, kw_only=True)
class LogSettings:
    """What is logged."""

    log_format: LogFormat = setting(LogFormat.TEXT, group=Group.EXPERT, help="Format of log lines.")
    log_level: LogLevel = setting(
        LogLevel.INFO, group=Group.EXPERT, help="Lowest level that is logged."
    )


@dataclass(frozen=True, kw_only=True)
class ConsoleSettings(LogSettings):
    """What the terminal shows."""

    screen: bool = setting(
        True, group=Group.COMMON, help="Show a live screen, or print log lines instead."
    )

    @property
    def shows_screen(self) -> bool:
        """Whether a screen is drawn. With JSON log lines it is not, since a screen would spoil them."""
        return self.screen and self.log_format is LogFormat.TEXT
