"""`distro-node observe`: follow a swarm and serve its page without being a member."""

from __future__ import annotations

import typer

from ..settings.tree import ObserverSettings
from ..storage.data_dir import DataDir
from .options import prepare_to_run, refuse_without_page, with_passphrase
from .settings_parameters import with_settings


@with_settings
def observe(ctx: typer.Context, settings: ObserverSettings) -> None:
    """Follow a swarm and serve its page, without being a member.

    Fetches the swarm's records, verifies them, and shows members, losses, tokens, contributions, and
    the link with which others join. It needs no GPU, no PyTorch and a few kilobytes a round; it fetches
    the model only with --serve-result. If a node runs on the same computer, give the observer a data
    directory of its own. For example:

    \b
        distro-node observe 'distro:swarm-…?bootstrap=…' --dashboard 0.0.0.0:8080 --dashboard-plain
    """
    refuse_without_page(ctx, settings.dashboard)
    settings = with_passphrase(settings)
    directory = DataDir(settings.data_dir)
    directory.create()
    # libp2p is imported only now, so that --help is fast and a mistake above is reported at once.
    import trio

    from ..observer import run_observer

    prepare_to_run(settings.console, directory)
    trio.run(run_observer, settings)
