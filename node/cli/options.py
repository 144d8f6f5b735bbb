"""Options that several commands share, and the checks of their values."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from ...crypto import keystore
from ...protocol.wire.manifest import SwarmId
from ...protocol.wire.swarm_id import (
    Invite,
    SwarmIdError,
    check_bootstrap,
    check_multiaddr,
    parse_invite,
    swarm_text,
)
from ..errors import ExitCode, UserError
from ..settings import (
    DaemonSettings,
    DashboardSettings,
    RelayLimits,
    Split,
    StateSelector,
    parse_dashboard_address,
)
from ..storage.data_dir import DataDir, default_data_dir
from ..telemetry.logs import LogFormat, LogLevel, configure_logging

PASSPHRASE_VARIABLE = "DISTRO_NODE_PASSPHRASE"

# A longer first line means that the file is wrong.
_MAX_PASSPHRASE_BYTES = 4096

DataDirectory = Annotated[
    Path | None,
    typer.Option(
        "--data-dir",
        metavar="DIRECTORY",
        readable=False,  # not checked here: the reader names the file, and has its own exit code for it
        help="Where this node keeps its identity and its swarms. "
        "[default: the system's place for your programs' data]",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]
PassphraseFile = Annotated[
    Path | None,
    typer.Option(
        "--passphrase-file",
        metavar="FILE",
        readable=False,
        help="A file whose first line is the passphrase of this node's key. "
        f"The variable {PASSPHRASE_VARIABLE} may hold it instead.",
    ),
]
Bootstrap = Annotated[
    list[str] | None,
    typer.Option(
        "--bootstrap",
        metavar="MULTIADDR",
        help="A peer that introduces others, such as "
        "/dns4/example.org/tcp/4001/p2p/12D3KooW…; may be repeated.",
    ),
]
Listen = Annotated[
    list[str] | None,
    typer.Option(
        "--listen",
        metavar="MULTIADDR",
        help="Where to listen, such as /ip4/0.0.0.0/tcp/4001; may be repeated.",
    ),
]
Announce = Annotated[
    list[str] | None,
    typer.Option(
        "--announce",
        metavar="MULTIADDR",
        help="Under which address others reach this node, where it cannot know that itself "
        "(a forwarded port, a DNS name); may be repeated.",
    ),
]
MaxUpload = Annotated[
    str | None,
    typer.Option(
        "--max-upload",
        metavar="RATE",
        help="The most that is sent, such as 5Mbit or 600kB (a second). [default: no limit]",
    ),
]
MaxDownload = Annotated[
    str | None,
    typer.Option(
        "--max-download",
        metavar="RATE",
        help="The most that is received, such as 50Mbit or 6MB (a second). [default: no limit]",
    ),
]
RelayUpdates = Annotated[
    bool,
    typer.Option(
        "--relay-updates/--no-relay-updates",
        help="Fetch each member's update once and serve it to all others: worth it on a line that "
        "sends ten times as fast as a home line, or faster.",
    ),
]
RelayMemory = Annotated[
    int,
    typer.Option(
        "--relay-memory",
        metavar="MB",
        min=16,
        max=1 << 20,
        help="The most memory for relayed updates; one swarm gets half of it.",
    ),
]
MaxDisk = Annotated[
    str | None,
    typer.Option(
        "--max-disk",
        metavar="SIZE",
        help="The most that model and training data may take on the disk, such as 20GB. "
        "[default: no limit]",
    ),
]
MicroBatch = Annotated[
    int | None,
    typer.Option(
        "--micro-batch",
        metavar="N",
        min=1,
        max=65536,
        help="Sequences computed at once. [default: what fits the device]",
    ),
]
SplitOption = Annotated[
    Split,
    typer.Option(
        "--split",
        help="With several devices: each has a copy of the model (copies), or a part of it (shards); "
        "auto takes copies if they fit.",
    ),
]
Memory = Annotated[
    str | None,
    typer.Option(
        "--memory",
        metavar="SIZE",
        help="The most memory that training may take on the device, such as 8GB: momentum is kept in "
        "fewer bits or in main memory, and activations are computed twice, as far as needed. "
        "[default: what is free]",
    ),
]
Mirror = Annotated[
    list[str] | None,
    typer.Option(
        "--mirror",
        metavar="URL|FOLDER",
        help="Where to look for training data before asking peers; may be repeated.",
    ),
]
RoundState = Annotated[
    int | None,
    typer.Option(
        "--round",
        metavar="ROUND",
        min=0,
        help="Take the model as it was after this round, if this node still has it. "
        "[default: the newest]",
    ),
]
BestState = Annotated[
    bool,
    typer.Option(
        "--best/--newest", help="Take the state with the lowest held-out loss of those at hand."
    ),
]
SwarmOption = Annotated[
    str | None,
    typer.Option(
        "--swarm",
        metavar="SWARM",
        help="The swarm-id, or a link to the swarm. [default: the only one that this node knows]",
    ),
]
LogFormatOption = Annotated[
    LogFormat, typer.Option("--log-format", help="How log lines are written.")
]
LogLevelOption = Annotated[
    LogLevel, typer.Option("--log-level", help="From which level on lines are logged.")
]
Wait = Annotated[
    bool,
    typer.Option(
        "--wait/--no-wait",
        help="Go on looking, rather than end, while nobody who knows the swarm can be reached.",
    ),
]
ServeResult = Annotated[
    bool,
    typer.Option(
        "--serve-result/--no-serve-result",
        help="Keep what comes out (the newest snapshot of the parameters, and what evaluating it "
        "takes), and give it to whoever asks, also when no member is left. It needs disk for three "
        "snapshots.",
    ),
]
Mdns = Annotated[
    bool,
    typer.Option(
        "--mdns/--no-mdns",
        help="Look for members in the local network, and be found by them.",
    ),
]
DashboardCertificate = Annotated[
    Path | None,
    typer.Option(
        "--dashboard-cert",
        metavar="FILE",
        readable=False,
        help="A certificate (PEM), to serve the page over TLS: needed at an address that others "
        "reach.",
    ),
]
DashboardKey = Annotated[
    Path | None,
    typer.Option(
        "--dashboard-key",
        metavar="FILE",
        readable=False,
        help="The certificate's key (PEM).",
    ),
]
Screen = Annotated[
    bool,
    typer.Option("--screen/--no-screen", help="Show a live screen, or print log lines instead."),
]
DashboardPlain = Annotated[
    bool,
    typer.Option(
        "--dashboard-plain/--no-dashboard-plain",
        help="Serve the page without TLS at an address that others reach, all the same.",
    ),
]


def data_directory(given: Path | None) -> DataDir:
    """Return the given data directory, or the system's default."""
    return DataDir((given or default_data_dir()).expanduser().absolute())


def bootstrap_addresses(given: Sequence[str] | None) -> tuple[str, ...]:
    """Check `--bootstrap`. Raises `UserError` (`BAD_ADDRESS`)."""
    try:
        return tuple(check_bootstrap(address) for address in given or ())
    except SwarmIdError as error:
        raise _bad_address(error) from None


def relay_limits(relay: bool, memory: int) -> RelayLimits | None:
    """Return the limits that `--relay-updates` and `--relay-memory` set; None: do not relay."""
    return RelayLimits(max_bytes=memory << 20) if relay else None


def multiaddrs(given: Sequence[str] | None) -> tuple[str, ...]:
    """Check `--listen` or `--announce`. Raises `UserError` (`BAD_ADDRESS`)."""
    try:
        return tuple(check_multiaddr(address) for address in given or ())
    except SwarmIdError as error:
        raise _bad_address(error) from None


def parse_target(text: str) -> Invite:
    """Read a swarm-id or link. Raises `UserError` (`BAD_SWARM_ID`, `BAD_ADDRESS`)."""
    try:
        return parse_invite(text)
    except SwarmIdError as error:
        if error.fault == "bootstrap":
            raise _bad_address(error) from None
        raise UserError(
            ExitCode.BAD_SWARM_ID,
            str(error),
            "copy the swarm-id or the link once more, whole, and put a link between quotes: "
            "'distro:swarm-…?bootstrap=…'",
        ) from None


def which(round_: int | None, best: bool) -> StateSelector:
    """Return the selected state. Raises `UserError` (`USAGE`)."""
    if round_ is not None and best:
        raise UserError(
            ExitCode.USAGE, "--round and --best name two states", "give one of them, or neither"
        )
    return StateSelector(round=round_, best=best)


def joined_swarm(text: str, data: DataDir) -> SwarmId:
    """Read a swarm-id or link of a swarm that is stored here. Raises `UserError`."""
    identifier = parse_target(text).swarm
    if not data.swarm(identifier).manifest.is_file():
        known = ", ".join(swarm_text(one) for one in data.known_swarms())
        raise UserError(
            ExitCode.NOTHING_TO_EXPORT,
            f"nothing of this swarm is stored in {data.root}",
            f"these swarms are: {known}"
            if known
            else "join it first, or give the right directory with --data-dir",
        )
    return identifier


def only_swarm(text: str | None, data: DataDir, how: str = "say which with --swarm") -> SwarmId:
    """Read the swarm like `joined_swarm`; without a text, take the only one stored here. `how` is
    the remedy where there are several. Raises `UserError`."""
    if text is not None:
        return joined_swarm(text, data)
    known = data.known_swarms()
    if len(known) != 1:
        raise UserError(
            ExitCode.USAGE if known else ExitCode.NOTHING_TO_EXPORT,
            f"no swarm is stored in {data.root}"
            if not known
            else f"{len(known)} swarms are stored in {data.root}",
            "join one first, or give the right directory with --data-dir"
            if not known
            else f"{how}: " + ", ".join(swarm_text(one) for one in known),
        )
    return known[0]


def find_passphrase(data: DataDir, file: Path | None) -> str | None:
    """Return the passphrase from the file, the environment or, if the key needs one, the terminal.

    Raises `UserError` (`KEYSTORE`) if the file cannot be read.
    """
    if file is not None:
        return _passphrase_in(file)
    given = os.environ.get(PASSPHRASE_VARIABLE)
    if given:
        return given
    if sys.stdin.isatty() and sys.stderr.isatty():
        try:
            keystore.load_identity(data.identity, None)
        except keystore.PassphraseNeeded:
            return typer.prompt(f"Passphrase of {data.identity}", hide_input=True, err=True)
        except keystore.KeystoreError:
            # The code that opens the key reports what is wrong with it.
            return None
    return None


def _passphrase_in(file: Path) -> str:
    try:
        with file.open("rb") as stream:
            line = stream.readline(_MAX_PASSPHRASE_BYTES + 1)
    except OSError as error:
        raise _bad_passphrase_file(file, f"cannot be read: {error.strerror}") from None
    passphrase = line.rstrip(b"\r\n")
    if not passphrase or len(line) > _MAX_PASSPHRASE_BYTES:
        raise _bad_passphrase_file(file, "does not begin with a line that is a passphrase")
    try:
        return passphrase.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise _bad_passphrase_file(file, "is not text in UTF-8") from None


def _bad_passphrase_file(file: Path, problem: str) -> UserError:
    return UserError(
        ExitCode.KEYSTORE,
        f"the passphrase file {file} {problem}",
        "give with --passphrase-file a file whose first line is the passphrase",
    )


def _bad_address(error: SwarmIdError) -> UserError:
    return UserError(
        ExitCode.BAD_ADDRESS,
        str(error),
        "an address looks like /ip4/192.0.2.1/tcp/4001, that of a bootstrap peer ends in "
        "/p2p/12D3KooW…",
    )


def introducers(invite: Invite, named: Sequence[str] | None) -> tuple[str, ...]:
    """Return the bootstrap peers of a link and of the command line, without duplicates, in the order
    given."""
    return tuple(dict.fromkeys((*invite.bootstrap, *bootstrap_addresses(named))))


def parameters_text(trained: int, frozen: int) -> str:
    """Return the number of a model's parameters, in the words that all commands use."""
    beside = f" in adapters, beside {frozen:,} that stay as they are" if frozen else ""
    return f"{trained:,} parameters{beside}"


def dashboard_settings(
    address: str, certificate: Path | None, key: Path | None, plain: bool, *, public: bool = False
) -> DashboardSettings | None:
    """Return where and how the page is served; None for `off`. Raises `UserError` (`BAD_ADDRESS`)."""
    parsed = parse_dashboard_address(address)
    if parsed is None:
        return None
    return DashboardSettings(
        address=parsed, certificate=certificate, key=key, plain=plain, public=public
    )


def prepare_to_run(
    settings: DaemonSettings, data: DataDir, form: LogFormat, level: LogLevel
) -> None:
    """Configure logging and memory of a long-running program: log to its directory, and show the
    screen if enabled."""
    from rich.console import Console

    from ..control.terminal import redraws
    from ..telemetry.loop_lag import freeze_permanent_objects

    # Where no screen can be drawn, log lines say the same.
    drawn = settings.screen and redraws(Console(stderr=True))
    configure_logging(form=form, level=level, folder=data.logs, screen=drawn)
    freeze_permanent_objects()
