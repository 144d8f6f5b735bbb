"""`distro-node bootstrap`: run a peer that introduces others to each other."""

from __future__ import annotations

import functools
import signal
from collections.abc import Sequence
from json import dumps
from typing import Annotated

import typer

from ..errors import ExitCode, UserError
from ..settings import DaemonSettings, parse_metrics_address, parse_rate
from ..telemetry.logs import LogFormat, LogLevel, configure_logging
from .options import (
    Announce,
    DashboardCertificate,
    DashboardKey,
    DashboardPlain,
    DataDirectory,
    Json,
    Listen,
    LogFormatOption,
    LogLevelOption,
    MaxDownload,
    MaxUpload,
    PassphraseFile,
    RelayMemory,
    RelayUpdates,
    ServeResult,
    dashboard_settings,
    data_directory,
    find_passphrase,
    multiaddrs,
    parse_target,
    relay_limits,
)

# Fixed ports, so that a link stays valid after a restart; 4001 is libp2p's usual one.
_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_DEFAULT_LISTEN = ("/ip4/0.0.0.0/tcp/4001", "/ip6/::/tcp/4001")


def bootstrap(
    listen: Listen = None,
    announce: Announce = None,
    max_upload: MaxUpload = None,
    max_download: MaxDownload = None,
    relay_updates: RelayUpdates = True,
    relay_memory: RelayMemory = 512,
    metrics_addr: Annotated[
        str,
        typer.Option(
            "--metrics-addr",
            metavar="HOST:PORT",
            help="Where Prometheus finds this peer's metrics; off for none.",
        ),
    ] = "off",
    observe: Annotated[
        str | None,
        typer.Option(
            "--observe",
            metavar="LINK",
            help="Follow this swarm and serve its page, as `distro-node observe` does: an invite link "
            "(in quotes) or a swarm-id.",
        ),
    ] = None,
    serve_result: ServeResult = False,
    dashboard: Annotated[
        str,
        typer.Option(
            "--dashboard",
            metavar="HOST:PORT",
            help="Where the page of the swarm of --observe is served. Whoever reaches it may read it; "
            "nobody acts through it.",
        ),
    ] = "127.0.0.1:9466",
    dashboard_cert: DashboardCertificate = None,
    dashboard_key: DashboardKey = None,
    dashboard_plain: DashboardPlain = False,
    data_dir: DataDirectory = None,
    passphrase_file: PassphraseFile = None,
    json: Json = False,
    log_format: LogFormatOption = LogFormat.TEXT,
    log_level: LogLevelOption = LogLevel.INFO,
) -> None:
    """Run a peer that introduces others.

    A bootstrap peer brings the peers of a swarm together and trains nothing. It also relays their
    updates, so that a member on a home line has to send its own only once. Put it where others
    reach it (a small server, a forwarded port). It needs no GPU and no PyTorch. Its identity stays
    the same over restarts, and a running swarm goes on without it. For example:

    \b
        distro-node bootstrap --announce /dns4/boot.example.org/tcp/4001

    With --observe it also serves the page of one swarm, and with --serve-result what comes out of it:

    \b
        distro-node bootstrap --observe 'distro:swarm-…?bootstrap=…' --dashboard 0.0.0.0:8080 \\
            --dashboard-plain
    """
    listening = multiaddrs(listen) or _DEFAULT_LISTEN
    announced = multiaddrs(announce)
    metrics_address = parse_metrics_address(metrics_addr)
    upload = parse_rate(max_upload) if max_upload else None
    download = parse_rate(max_download) if max_download else None
    data = data_directory(data_dir)
    watched = None
    if serve_result and observe is None:
        raise UserError(
            ExitCode.USAGE,
            "--serve-result needs to know of which swarm",
            "name it with --observe LINK",
        )
    if observe is not None:
        invite = parse_target(observe)
        watched = DaemonSettings(
            swarm=invite.swarm,
            data_dir=data.root,
            bootstrap=invite.bootstrap,
            at=invite.at,
            # The members of a swarm connect to its bootstrap peer, whichever of them starts first.
            wait=True,
            serve_result=serve_result,
            upnp=False,
            mdns=False,
            metrics_address=None,
            dashboard=dashboard_settings(
                dashboard, dashboard_cert, dashboard_key, dashboard_plain, public=True
            ),
            screen=False,
        )
    passphrase = find_passphrase(data, passphrase_file)
    # libp2p is imported only now, so that --help is fast.
    import trio

    from ..bootstrap import BootstrapSettings, run_bootstrap
    from ..network.errors import BadAddress, PortInUse
    from ..network.explain import explain_network
    from ..storage.data_dir import open_identity
    from ..telemetry.loop_lag import freeze_permanent_objects

    async def stop_on_signal(scope: trio.CancelScope) -> None:
        # A bootstrap peer is ended by a signal. While it closes, a second signal ends it
        # immediately: the handlers are the default ones again then.
        with trio.open_signal_receiver(*_ENDING) as signals:
            async for _ in signals:
                scope.cancel()
                return

    async def serve(settings: BootstrapSettings) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(stop_on_signal, nursery.cancel_scope)
            try:
                await run_bootstrap(settings, ready=functools.partial(_print_addresses, json))
            except (BadAddress, PortInUse) as error:
                raise explain_network(error) from None
            nursery.cancel_scope.cancel()

    data.create()
    with data.lock():
        configure_logging(form=log_format, level=log_level, folder=data.logs)
        identity = open_identity(data, passphrase)
        settings = BootstrapSettings(
            identity=identity,
            listen=listening,
            announce=announced,
            max_upload=upload,
            max_download=download,
            metrics_address=metrics_address,
            relay=relay_limits(relay_updates, relay_memory),
            carried=data.carried,
            socket=data.socket,
            observe=watched,
        )
        freeze_permanent_objects()
        trio.run(serve, settings)


def _print_addresses(json: bool, addresses: Sequence[str]) -> None:
    if json:
        typer.echo(dumps({"addresses": list(addresses)}))
        return
    typer.echo("This bootstrap peer is reached at\n")
    for address in addresses:
        typer.echo(f"    {address}")
    typer.echo("\nGive one of these to `distro-node create --bootstrap` or `join --bootstrap`.")
