"""`distro-node bootstrap`: run a peer that introduces others to each other."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from json import dumps
from typing import TYPE_CHECKING

import typer

from ..errors import ExitCode, UserError
from ..settings.components import ConsoleSettings, PeeringSettings
from ..settings.tree import BootstrapOptions, ObserverSettings
from ..storage.data_dir import DataDir
from ..telemetry.logs import configure_logging
from ..util.operating_system import ENDING_SIGNALS
from ..util.standard_streams import announce
from .options import (
    NO_RELAY,
    PAGE_OPTIONS,
    Json,
    find_passphrase,
    refuse_ignored,
    refuse_without_page,
)
from .settings_parameters import with_settings

if TYPE_CHECKING:
    from ..bootstrap import BootstrapSettings


@with_settings
def bootstrap(ctx: typer.Context, options: BootstrapOptions, json: Json = False) -> None:
    """Run a bootstrap peer, which introduces new members.

    A bootstrap peer tells the peers of a swarm each other's addresses, and trains nothing. It also
    relays their updates, so that a member on a home line sends its own only once. Run it where
    others can reach it (a small server, a forwarded port). It needs no GPU and no PyTorch. It keeps
    its identity over restarts, and a running swarm continues without it. For example:

    \b
        distro-node bootstrap --announce /dns4/boot.example.org/tcp/4001

    With --observe it also serves the page of one swarm, and with --serve-result that swarm's result:

    \b
        distro-node bootstrap --observe 'distro:swarm-…?bootstrap=…' --dashboard 0.0.0.0:8080 \\
            --dashboard-plain
    """
    refuse_without_effect(ctx, options)
    data = DataDir(options.data_dir)
    observed = _observed_swarm(options)
    passphrase = find_passphrase(data, options.passphrase_file)
    # libp2p is imported only now, so that --help is fast.
    import trio

    from ..bootstrap import BootstrapSettings
    from ..storage.data_dir import open_identity
    from ..telemetry.loop_lag import freeze_permanent_objects

    data.create()
    with data.lock():
        log = options.console
        configure_logging(log_format=log.log_format, level=log.log_level, folder=data.logs)
        settings = BootstrapSettings(
            identity=open_identity(data, passphrase),
            line=options.line,
            metrics_address=options.metrics_address,
            relay=options.relay.limits,
            relayed=data.relayed,
            socket=data.socket,
            observe=observed,
            list_swarms=options.list_swarms,
        )
        freeze_permanent_objects()
        trio.run(_run_until_signal, settings, functools.partial(_print_addresses, json))


def refuse_without_effect(ctx: typer.Context, options: BootstrapOptions) -> None:
    """Refuse options of the command line that have no effect. Raises `UserError` (`USAGE`)."""
    if options.observe is None:
        refuse_ignored(
            ctx,
            "without --observe: no page is served",
            "name the swarm with --observe LINK",
            *("dashboard", *PAGE_OPTIONS),
        )
    refuse_without_page(ctx, options.dashboard)
    if not options.relay.enabled:
        refuse_ignored(ctx, *NO_RELAY)


def _observed_swarm(options: BootstrapOptions) -> ObserverSettings | None:
    """Return how to observe the swarm whose page is served; None if there is no such swarm. Raises
    `UserError` (`USAGE`)."""
    if options.observe is None:
        if options.serve_result:
            raise UserError(
                ExitCode.USAGE,
                "--serve-result is given without a swarm",
                "name the swarm with --observe LINK",
            )
        return None
    return ObserverSettings(
        invite=options.observe,
        data_dir=options.data_dir,
        # The members of a swarm connect to its bootstrap peer, whichever of them starts first.
        peering=PeeringSettings(wait=True, mdns=False),
        serve_result=options.serve_result,
        metrics_address=None,
        dashboard=options.dashboard,
        console=ConsoleSettings(screen=False),
    )


async def _run_until_signal(
    settings: BootstrapSettings, ready: Callable[[Sequence[str]], None]
) -> None:
    import trio

    from ..bootstrap import run_bootstrap
    from ..network.errors import BadAddress, PortInUse
    from ..network.explain import explain_network

    async def stop_on_signal(scope: trio.CancelScope) -> None:
        # A bootstrap peer is ended by a signal. While it closes, a second signal ends it
        # immediately: the handlers are the default ones again then.
        with trio.open_signal_receiver(*ENDING_SIGNALS) as signals:
            async for _ in signals:
                scope.cancel()
                return

    async with trio.open_nursery() as nursery:
        nursery.start_soon(stop_on_signal, nursery.cancel_scope)
        try:
            await run_bootstrap(settings, ready=ready)
        except (BadAddress, PortInUse) as error:
            raise explain_network(error) from None
        nursery.cancel_scope.cancel()


def _print_addresses(json: bool, addresses: Sequence[str]) -> None:
    if json:
        announce(dumps({"addresses": list(addresses)}))
        return
    listed = "".join(f"    {address}\n" for address in addresses)
    announce(
        f"The addresses of this bootstrap peer are\n\n{listed}\n"
        "Give one of these to `distro-node create --bootstrap` or `join --bootstrap`."
    )
