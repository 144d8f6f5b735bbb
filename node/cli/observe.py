"""`distro-node observe`: follow a swarm and serve its page without being a member."""

from __future__ import annotations

from typing import Annotated

import typer

from ..settings import (
    DaemonSettings,
    parse_metrics_address,
    parse_rate,
)
from ..telemetry.logs import LogFormat, LogLevel
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
    Screen,
    ServeResult,
    Wait,
    dashboard_settings,
    data_directory,
    find_passphrase,
    introducers,
    multiaddrs,
    parse_target,
    prepare_to_run,
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
    serve_result: ServeResult = False,
    wait: Wait = False,
    mdns: Mdns = True,
    data_dir: DataDirectory = None,
    passphrase_file: PassphraseFile = None,
    screen: Screen = True,
    log_format: LogFormatOption = LogFormat.TEXT,
    log_level: LogLevelOption = LogLevel.INFO,
) -> None:
    """Follow a swarm, and serve its page, without a part in it.

    Fetches the swarm's records, checks them, and shows what it does: members, losses, tokens,
    contributions, and the link with which others join. It needs no GPU, no PyTorch and, unless it serves
    the result, no model, and a few kilobytes a round. Beside a node on the same computer give it a data
    directory of its own. For example:

    \b
        distro-node observe 'distro:swarm-…?bootstrap=…' --dashboard 0.0.0.0:8080 --dashboard-plain
    """
    invite = parse_target(target)
    data = data_directory(data_dir)
    settings = DaemonSettings(
        swarm=invite.swarm,
        data_dir=data.root,
        bootstrap=introducers(invite, bootstrap),
        at=invite.at,
        listen=multiaddrs(listen),
        announce=multiaddrs(announce),
        max_upload=parse_rate(max_upload) if max_upload else None,
        max_download=parse_rate(max_download) if max_download else None,
        wait=wait,
        serve_result=serve_result,
        upnp=False,
        mdns=mdns,
        metrics_address=parse_metrics_address(metrics_addr),
        dashboard=dashboard_settings(
            dashboard, dashboard_cert, dashboard_key, dashboard_plain, public=True
        ),
        passphrase=find_passphrase(data, passphrase_file),
        # Lines for people would spoil a stream of JSON.
        screen=screen and log_format is LogFormat.TEXT,
    )
    data.create()
    # libp2p is imported only now, so that --help is fast and a mistake above is reported at once.
    import trio

    from ..observer import run_observer

    prepare_to_run(settings, data, log_format, log_level)
    trio.run(run_observer, settings)
