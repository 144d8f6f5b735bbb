"""`distro-node id`: who this node is."""

from __future__ import annotations

from json import dumps

import typer

from ...crypto import keystore
from ...crypto.identity import peer_text
from ..errors import ExitCode, UserError
from .options import DataDirectory, Json, data_directory


def id_command(data_dir: DataDirectory = None, json: Json = False) -> None:
    """Print who this node is.

    Others know it under its peer id. Needs no passphrase and changes nothing: an identity is made
    by the first `join`, `create` or `bootstrap`. For example:

    \b
        distro-node id
    """
    data = data_directory(data_dir)
    try:
        peer = keystore.read_peer(data.identity)
    except keystore.KeystoreMissing:
        raise UserError(
            ExitCode.KEYSTORE,
            f"there is no identity in {data.root} yet",
            "the first `distro-node join`, `create` or `bootstrap` makes one; or give the right "
            "directory with --data-dir",
        ) from None
    except keystore.KeystoreError as error:
        raise UserError(ExitCode.KEYSTORE, error.problem, error.remedy) from None
    if json:
        typer.echo(dumps({"peer": peer_text(peer), "data_dir": str(data.root)}))
    else:
        typer.echo(peer_text(peer))
