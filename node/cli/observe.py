"""`distro-node observe`: follow a swarm, and serve its page, without a part in it."""

from __future__ import annotations

from typing import Annotated

import typer

from ..settings import (
    DaemonSettings,
    DashboardSettings,
    parse_dashboard_address,
    parse_metrics_address,
    parse_rate,
)
from ..telemetry.logs import LogFormat, LogLevel, configure_logging
from .options import (
    Announce,
    Bootstrap,
    DashboardCertificate,
    DashboardKey,
    DashboardPlain,
    DataDirectory,
    Listen,
    LogFormatOption,
    LogLevelOption,
    MaxDownload,
    MaxUpload,
    Mdns,
    PassphraseFile,
    Wait,
    bootstrap_addresses,
    data_directory,
    find_passphrase,
    multiaddrs,
    parse_target,
)


def observe(
    target: Annotated[
        str, typer.Argument(metavar="TARGET", help="An invite link (in quotes) or a swarm-id.")
    ],
    bootstrap: Bootstrap = None,
    dashboard: Annotated[
        str,
        typer.Option(
            "--dashboard",
            metavar="HOST:PORT",
            help="Where the swarm's page is served. Whoever reaches it may read it.",
        ),
    ] = "127.0.0.1:9466",
    dashboard_cert: DashboardCertificate = None,
    dashboard_key: DashboardKey = None,
    dashboard_plain: DashboardPlain = False,
    metrics_addr: Annotated[
        str,
        typer.Option(
            "--metrics-addr",
            metavar="HOST:PORT",
            help="Where Prometheus finds what the swarm does; off for none.",
        ),
    ] = "off",
    max_upload: MaxUpload = None,
    max_download: MaxDownload = None,
    listen: Listen = None,
    announce: Announce = None,
    wait: Wait = False,
    mdns: Mdns = True,
    data_dir: DataDirectory = None,
    passphrase_file: PassphraseFile = None,
    screen: Annotated[
        bool,
        typer.Option(
            "--screen/--no-screen", help="Show a live screen, or print log lines instead."
        ),
    ] = True,
    log_format: LogFormatOption = LogFormat.TEXT,
    log_level: LogLevelOption = LogLevel.INFO,
) -> None:
    """Follow a swarm, and serve its page, without a part in it.

    Fetches the swarm's records, checks them, and shows what it does: members, losses, tokens,
    contributions, and the link with which others join. It needs no GPU, no PyTorch and no model, and a
    few kilobytes a round. Beside a node on the same computer give it a data directory of its own. For
    example:

    \b
        distro-node observe 'distro:swarm-…?bootstrap=…' --dashboard 0.0.0.0:80 --dashboard-plain
    """
    invite = parse_target(target)
    introducers = (*invite.bootstrap, *bootstrap_addresses(bootstrap))
    data = data_directory(data_dir)
    page = parse_dashboard_address(dashboard)
    settings = DaemonSettings(
        swarm=invite.swarm,
        data_dir=data.root,
        bootstrap=tuple(dict.fromkeys(introducers)),
        at=invite.at,
        listen=multiaddrs(listen),
        announce=multiaddrs(announce),
        max_upload=parse_rate(max_upload) if max_upload else None,
        max_download=parse_rate(max_download) if max_download else None,
        wait=wait,
        upnp=False,
        mdns=mdns,
        metrics_address=parse_metrics_address(metrics_addr),
        dashboard=None
        if page is None
        else DashboardSettings(
            address=page,
            certificate=dashboard_cert,
            key=dashboard_key,
            plain=dashboard_plain,
            public=True,
        ),
        passphrase=find_passphrase(data, passphrase_file),
        # Lines for people would spoil a stream of JSON.
        screen=screen and log_format is LogFormat.TEXT,
    )
    data.create()
    # libp2p: only now, so that --help is quick and a mistake above is told at once.
    import trio
    from rich.console import Console

    from ..observer import run_observer
    from ..telemetry.stalls import spare_what_stays

    drawn = settings.screen and Console(stderr=True).is_terminal
    configure_logging(form=log_format, level=log_level, folder=data.logs, screen=drawn)
    spare_what_stays()
    trio.run(run_observer, settings)
