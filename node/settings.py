"""The settings of a daemon as frozen values: everything it takes from its user.

The command line builds them from options, environment and configuration file; tests and the demo build
them directly.
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from ..protocol.wire.checkpoint import Checkpoint
from ..protocol.wire.manifest import SwarmId
from .errors import ExitCode, UserError
from .util.schedule import Hours

DEFAULT_METRICS_ADDRESS = ("127.0.0.1", 9464)
DEFAULT_DASHBOARD_ADDRESS = ("127.0.0.1", 9465)

MIN_RATE = 64_000.0
"""Bytes per second. The four blobs that may be in transfer at once share it, which gives each twice the
rate below which peers give up on a blob."""

MAX_PROMPT_CHARACTERS = 1000

_DEVICES = re.compile(r"auto|cpu|mps|(cuda|vulkan)(:\d{1,3})?")
_IN_A_LIST = re.compile(r"cpu|cuda:\d{1,3}")
# Each is a process on one machine.
_MOST_DEVICES = 64
_RATE = re.compile(r"(\d{1,9}(?:\.\d{1,9})?) ?([kMG]?)(bit|B)(?:/s)?")
_SIZE = re.compile(r"(\d{1,9}(?:\.\d{1,9})?) ?([kMGT]?)B")
_PREFIXES = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
_HOST_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]{0,252}[A-Za-z0-9])?")


class Compile(StrEnum):
    """Whether the layers of a model are compiled (`torch.compile`)."""

    AUTO = "auto"
    """On a GPU, if a trial shows that compilation is faster."""
    ON = "on"
    """On any device, if a trial shows that."""
    OFF = "off"


class Split(StrEnum):
    """What each of several devices holds of the parameters."""

    AUTO = "auto"
    """All parameters, if they fit, or else a shard."""
    COPIES = "copies"
    SHARDS = "shards"


@dataclass(frozen=True, kw_only=True)
class RelayLimits:
    """Limits for relaying updates."""

    max_bytes: int = 512 << 20
    """Bytes of updates in memory, for all swarms together; one swarm gets half of it, which is three
    rounds of 32 members with 2.8 MB each."""
    max_streams: int = 2048

    @property
    def max_bytes_per_swarm(self) -> int:
        """Bytes of one swarm's updates."""
        return self.max_bytes // 2


@dataclass(frozen=True, kw_only=True)
class DashboardSettings:
    """How a node's page is served."""

    address: tuple[str, int] = DEFAULT_DASHBOARD_ADDRESS
    """Host and port; port 0 is any free one."""
    certificate: Path | None = None
    """TLS certificate in PEM format, with the intermediate certificates up to an authority."""
    key: Path | None = None
    """The certificate's private key, without a passphrase."""
    plain: bool = False
    """Allow an address that other machines reach without TLS."""
    public: bool = False
    """Let anyone who reaches the page read it; otherwise, away from loopback, only the owner may."""


@dataclass(frozen=True, kw_only=True)
class PauseWhen:
    """A number or a yes/no answer that decides when the node pauses."""

    ask: str
    """A URL that begins with http:// or https://, or a shell command."""
    field: str | None = None
    """Path of the number in a JSON answer, such as data.0.intensity.actual; None: the answer is the
    number."""
    pause: float | None = None
    """Threshold at which the node pauses; None: the command's exit code decides, 0 for pause, 1 for
    work."""
    resume: float | None = None
    """Threshold at which the node resumes; None: `pause`."""
    high: bool = True
    """Whether the node pauses at high numbers, or at low ones."""
    every: float = 300.0
    """Seconds between two requests."""

    @property
    def is_url(self) -> bool:
        """Whether `ask` is a URL."""
        return self.ask.startswith(("http://", "https://"))


@dataclass(frozen=True, kw_only=True)
class EnergySettings:
    """Limits on the energy and money that the node's work costs."""

    price: float | None = None
    """Price of a kWh; None: unknown."""
    currency: str | None = None
    power_limit: float | None = None
    """Power limit for the GPU in watts; None: left unchanged."""
    pause_when: PauseWhen | None = None
    polite: bool = False
    """Yield the GPU to other programs, and pause while people use the computer."""


@dataclass(frozen=True, kw_only=True)
class PrivacySettings:
    """How much a member's updates may reveal of its own data (local differential privacy)."""

    epsilon: float
    delta: float | None = None
    """None: a tenth of one over the number of its sequences, and at most 10⁻⁵."""
    clip: float = 1.0
    """Maximum norm of one sequence's gradient."""


@dataclass(frozen=True, kw_only=True)
class DaemonSettings:
    """All settings of `run_daemon`."""

    swarm: SwarmId
    data_dir: Path
    bootstrap: tuple[str, ...] = ()
    """Multiaddrs ending in /p2p/<peer>."""
    ticket: str | None = None
    at: Checkpoint | None = None
    """A record from the link that the swarm's chain must contain."""
    listen: tuple[str, ...] = ()
    """Multiaddrs to listen on; empty: the network's default."""
    announce: tuple[str, ...] = ()
    """Multiaddrs under which others reach this node, if they differ from those it sees itself."""
    max_upload: float | None = None
    """Bytes per second; None: unlimited."""
    max_download: float | None = None
    max_disk: int | None = None
    """Size of the data directory in bytes, as far as the node can choose; None: the free space."""
    mirrors: tuple[str, ...] = ()
    """URLs and paths that are searched for blobs of the training data before peers are asked."""
    relay: RelayLimits | None = None
    """Limits for relaying others' updates; None: none are relayed."""
    wait: bool = False
    """Keep looking for the swarm if no peer can be reached, or none knows it."""
    upnp: bool = True
    """Ask the router to open a port if others cannot dial this node."""
    active: Hours | None = None
    """Hours in which the node may work; None: always."""
    mdns: bool = True
    """Find members in the local network, and be found there."""
    energy: EnergySettings = EnergySettings()
    device: str = "auto"
    metrics_address: tuple[str, int] | None = DEFAULT_METRICS_ADDRESS
    dashboard: DashboardSettings | None = DashboardSettings()
    """How its page is served; None: not at all."""
    threads: int | None = None
    """CPU threads of the trainer; None: the library's default."""
    split: Split = Split.AUTO
    launched: bool = False
    """Whether torch's launcher has started this node, and one process for each of its other devices."""
    micro_batch: int | None = None
    """Sequences per forward pass; None: found by trial."""
    memory: int | None = None
    """Bytes that the trainer may use on its device; None: all that is free."""
    compile: Compile = Compile.AUTO
    sandbox: bool = True
    """The trainer drops access to the network and to all files but its own, where the system can do
    that."""
    private_data: tuple[Path, ...] = ()
    """Files and folders to train on, in a swarm of private data."""
    privacy: PrivacySettings | None = None
    """Differential privacy for the updates; None: no limit on what they reveal."""
    stateless: bool = False
    """Keep no state from one update to the next."""
    evaluate_every: int | None = None
    """Rounds between evaluations on the held-out part; None: the daemon's default."""
    sample_prompt: str | None = None
    """Prompt that the model continues after each evaluation, for the page; None: it writes no text."""
    passphrase: str | None = None
    screen: bool = True
    until_round: int | None = None
    """Leave politely once this round is applied."""
    serve_result: bool = False
    """Serve the run's result to any peer: a member goes on after the end, and an observer keeps the
    result (`seeding`)."""

    def __repr__(self) -> str:
        # A repr ends up in logs; the passphrase must not.
        return f"DaemonSettings(data_dir={str(self.data_dir)!r}, device={self.device!r})"


@dataclass(frozen=True, kw_only=True)
class StateSelector:
    """Selects a state: the one after `round`, the `best`, or by default the newest."""

    round: int | None = None
    best: bool = False
    """The state with the lowest held-out loss among those available."""


NEWEST = StateSelector()


def parse_device(text: str) -> str:
    """Return a device name that is valid. Raises `UserError` (`NO_DEVICE`) for any other."""
    if not _DEVICES.fullmatch(text):
        raise UserError(
            ExitCode.NO_DEVICE,
            f"{text!r} is not a device",
            "use auto, cpu, mps, cuda or cuda:0 (the first GPU), cuda:1, …",
        )
    return text


def parse_devices(text: str) -> str:
    """Validate the name of a device, a list of names, or `all`. Raises `UserError` (`NO_DEVICE`)."""
    names = text.split(",")
    if text == "all" or len(names) == 1:
        return text if text == "all" else parse_device(text)
    problem = None
    strange = [name for name in names if not _IN_A_LIST.fullmatch(name)]
    # Normalises cuda:01 to cuda:1.
    names = [name if name in ("cpu", *strange) else f"cuda:{int(name[5:])}" for name in names]
    twice = [name for name in names if name != "cpu" and names.count(name) > 1]
    if strange:
        problem = f"{strange[0]!r} cannot be in a list of devices"
    elif twice:
        problem = f"{twice[0]} is named twice"
    elif len(set(names)) > 1 and "cpu" in names:
        problem = "GPUs and CPUs cannot be combined into one member"
    elif len(names) > _MOST_DEVICES:
        problem = f"{len(names)} devices are too many"
    if problem is not None:
        raise UserError(
            ExitCode.NO_DEVICE,
            problem,
            f"name at most {_MOST_DEVICES} GPUs, each once, as in cuda:0,cuda:1, or all",
        )
    return ",".join(names)


def parse_launched_device(text: str) -> str:
    """Validate the device of a node that torch's launcher has started: a kind of device, not specific
    ones. Raises `UserError` (`NO_DEVICE`)."""
    if text in ("auto", "cpu", "cuda"):
        return text
    raise UserError(
        ExitCode.NO_DEVICE,
        f"{text!r} names devices, but torchrun already assigns them",
        "use --device cuda (or cpu); torchrun sets the number of devices of each machine",
    )


def names_several(device: str) -> bool:
    """Whether this names a list of devices, possibly of one."""
    return device == "all" or "," in device


def parse_rate(text: str) -> float:
    """Parse a number of bits or bytes per second, such as 10Mbit; return bytes per second.

    Raises `UserError` (`USAGE`), also for a rate that is too low to follow a swarm.
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
            f"a limit of {text} is too low to take part",
            f"give the node at least {MIN_RATE * 8 / 1e3:g}kbit, or stop it",
        )
    return rate


def parse_size(text: str) -> int:
    """Parse a number of bytes, such as 20GB. Raises `UserError` (`USAGE`)."""
    found = _SIZE.fullmatch(text.strip())
    if found is None:
        raise UserError(
            ExitCode.USAGE,
            f"{text!r} is not a size",
            "use a number of bytes, such as 500MB or 20GB",
        )
    number, prefix = found.groups()
    return int(float(number) * _PREFIXES[prefix])


def parse_prompt(text: str) -> str:
    """Validate the prompt for generated samples. Raises `UserError` (`USAGE`)."""
    if len(text) > MAX_PROMPT_CHARACTERS:
        raise UserError(
            ExitCode.USAGE,
            f"the text given with --sample-prompt has {len(text)} characters",
            f"give at most {MAX_PROMPT_CHARACTERS}: one sentence is enough",
        )
    return text


def parse_mirror(text: str) -> str:
    """Validate a mirror's URL or path. Raises `UserError` (`BAD_ADDRESS`, `DATA_MISSING`)."""
    if "://" in text:
        if not re.fullmatch(r"https?://[!-~]{1,240}", text):
            raise UserError(
                ExitCode.BAD_ADDRESS,
                f"{text!r} is not a mirror's address",
                "a mirror is a folder, or a URL that begins with https:// or http://",
            )
        return text
    path = Path(text).expanduser().absolute()
    if not path.is_dir():
        raise UserError(
            ExitCode.DATA_MISSING,
            f"the mirror {path} is not a folder",
            "give a folder of blobs, such as blobs/ of another data directory",
        )
    return str(path)


def parse_metrics_address(text: str) -> tuple[str, int] | None:
    """Parse `host:port`, `[ipv6]:port` or `off`. Raises `UserError` (`BAD_ADDRESS`)."""
    return _parse_address(text, "metrics", DEFAULT_METRICS_ADDRESS[1])


def parse_dashboard_address(text: str) -> tuple[str, int] | None:
    """Parse the address of the page in the same way."""
    return _parse_address(text, "the page", DEFAULT_DASHBOARD_ADDRESS[1])


def _parse_address(text: str, what: str, usual: int) -> tuple[str, int] | None:
    if text == "off":
        return None
    host, colon, port = text.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
        valid = _is_ip(host, ipaddress.IPv6Address)
    else:
        valid = bool(_HOST_NAME.fullmatch(host))
        if valid and set(host) <= set("0123456789."):
            # All digits and dots, yet not an address: a typo rather than a name to look up.
            valid = _is_ip(host, ipaddress.IPv4Address)
    if not (colon and valid and port.isascii() and port.isdigit() and int(port) <= 65535):
        raise UserError(
            ExitCode.BAD_ADDRESS,
            f"{text!r} is not an address to serve {what} at",
            f"use host:port, such as 127.0.0.1:{usual} or [::1]:{usual}, or off",
        )
    return host, int(port)


def _is_ip(text: str, kind: type[ipaddress.IPv4Address] | type[ipaddress.IPv6Address]) -> bool:
    try:
        kind(text)
    except ValueError:
        return False
    return True
