"""`distro-node id`: print the node's identity."""

from __future__ import annotations

from json import dumps
from typing import Annotated

import typer

from ...crypto import keystore
from ...crypto.identity import peer_text
from ..errors import ExitCode, UserError
from ..storage.data_dir import open_identity
from .options import (
    DataDirectory,
    Json,
    PassphraseFile,
    data_directory,
    find_passphrase,
    given_passphrase,
    refuse_ignored,
)


def id_command(
    ctx: typer.Context,
    create: Annotated[
        bool, typer.Option("--create", help="Make an identity if there is none yet.")
    ] = False,
    data_dir: DataDirectory = None,
    passphrase_file: PassphraseFile = None,
    json: Json = False,
) -> None:
    """Print who this node is.

    Others know it under its peer id. An identity is made by the first `join`, `create` or
    `bootstrap`, or here with --create; an existing one is shown without its passphrase and never
    changed. For example:

    \b
        distro-node id
    """
    if not create:
        remedy = "leave it out, or add --create"
        refuse_ignored(ctx, "without --create: no key is opened", remedy, "passphrase_file")
    data = data_directory(data_dir)
    if data.root.exists() and not data.root.is_dir():
        raise UserError(
            ExitCode.DATA_DIR,
            f"the data directory {data.root} cannot be used: it is no directory",
            "give the right directory with --data-dir",
        )
    if create and not data.identity.exists():
        data.create()
        with data.lock():
            open_identity(data, find_passphrase(data, passphrase_file))
    elif create:
        # Warns of a passphrase that does not protect the key.
        given_passphrase(data, passphrase_file)
    try:
        peer = keystore.read_peer(data.identity)
    except keystore.KeystoreMissing:
        raise UserError(
            ExitCode.KEYSTORE,
            f"there is no identity in {data.root} yet",
            "`distro-node id --create` makes one, and so does the first `join`, `create` or "
            "`bootstrap`; or give the right directory with --data-dir",
        ) from None
    except keystore.KeystoreError as error:
        raise UserError(ExitCode.KEYSTORE, error.problem, error.remedy) from None
    if json:
        typer.echo(dumps({"peer": peer_text(peer), "data_dir": str(data.root)}))
    else:
        typer.echo(peer_text(peer))
