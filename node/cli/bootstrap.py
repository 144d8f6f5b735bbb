"""`distro-node bootstrap`: run a peer that introduces others to each other."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from json import dumps

import typer

from ..logs import LogFormat, LogLevel, configure_logging
from .options import (
    Announce,
    DataDirectory,
    Json,
    Listen,
    LogFormatOption,
    LogLevelOption,
    PassphraseFile,
    data_directory,
    find_passphrase,
    multiaddrs,
)

# A port of its own, so that a link with it outlives a restart; 4001 is the habit of libp2p.
_DEFAULT_LISTEN = ("/ip4/0.0.0.0/tcp/4001",)


def bootstrap(
    listen: Listen = None,
    announce: Announce = None,
    data_dir: DataDirectory = None,
    passphrase_file: PassphraseFile = None,
    json: Json = False,
    log_format: LogFormatOption = LogFormat.TEXT,
    log_level: LogLevelOption = LogLevel.INFO,
) -> None:
    """Run a peer that introduces others.

    A bootstrap peer brings the peers of a swarm together and trains nothing. Put it where others
    reach it (a small server, a forwarded port). It needs no GPU and no PyTorch. Its identity stays
    the same over restarts, and a running swarm goes on without it. For example:

    \b
        distro-node bootstrap --announce /dns4/boot.example.org/tcp/4001
    """
    listening = multiaddrs(listen) or _DEFAULT_LISTEN
    announced = multiaddrs(announce)
    data = data_directory(data_dir)
    passphrase = find_passphrase(data, passphrase_file)
    # libp2p: only now, so that --help is quick.
    import trio

    from ..bootstrap import BootstrapSettings, run_bootstrap
    from ..datadir import open_identity

    def ready(addresses: Sequence[str]) -> None:
        if json:
            typer.echo(dumps({"addresses": list(addresses)}))
        else:
            typer.echo("This bootstrap peer is reached at\n")
            for address in addresses:
                typer.echo(f"    {address}")
            typer.echo("\nGive one of these to `distro-node create --bootstrap` or `join`.")

    data.create()
    with data.lock():
        identity = open_identity(data, passphrase)
        configure_logging(form=log_format, level=log_level, folder=data.logs)
        settings = BootstrapSettings(identity=identity, listen=listening, announce=announced)
        trio.run(functools.partial(run_bootstrap, settings, ready=ready))
