"""`distro-node invite`: write the ticket with which one peer may join."""

from __future__ import annotations

import base64
from json import dumps
from typing import Annotated

import typer

from ...crypto.envelope import sign
from ...crypto.identity import peer_from_text
from ...protocol.wire.errors import ProtocolError
from ...protocol.wire.manifest import decode_manifest
from ...protocol.wire.messages import TICKET_KIND
from ...protocol.wire.swarm_id import Invite, invite_text
from ..errors import ExitCode, UserError
from ..storage.data_dir import open_identity
from .options import (
    Bootstrap,
    DataDirectory,
    Json,
    PassphraseFile,
    bootstrap_addresses,
    data_directory,
    find_passphrase,
    parse_target,
)


def invite(
    swarm: Annotated[str, typer.Argument(metavar="SWARM", help="The swarm-id, or a link to it.")],
    peer: Annotated[
        str, typer.Argument(metavar="PEER", help="The guest's peer id (`distro-node id --create`).")
    ],
    bootstrap: Bootstrap = None,
    data_dir: DataDirectory = None,
    passphrase_file: PassphraseFile = None,
    json: Json = False,
) -> None:
    """Invite a peer to a swarm that takes guests only.

    For swarms with the policy "invite": prints a link that works for this one peer. Only the swarm's
    issuer can write it, who is the founder unless the manifest names another. For example:

    \b
        distro-node invite swarm-… 12D3KooW…
    """
    target = parse_target(swarm)
    data = data_directory(data_dir)
    try:
        manifest = decode_manifest(data.swarm(target.swarm).manifest.read_bytes(), target.swarm)
    except (OSError, ProtocolError):
        raise UserError(
            ExitCode.UNKNOWN_SWARM,
            f"the swarm's manifest is not in {data.root}",
            "invite from the machine that made the swarm, or give its directory with --data-dir",
        ) from None
    try:
        guest = peer_from_text(peer)
    except ValueError as error:
        raise UserError(
            ExitCode.USAGE,
            f"{peer!r} is not a peer id: {error}",
            "ask the guest for `distro-node id`",
        ) from None
    identity = open_identity(data, find_passphrase(data, passphrase_file), create=False)
    if manifest.admission.issuer != identity.peer:
        raise UserError(
            ExitCode.USAGE,
            "this swarm takes anybody who has its link"
            if manifest.admission.issuer is None
            else "somebody else issues the tickets of this swarm",
            "pass the link on as it is"
            if manifest.admission.issuer is None
            else "ask whoever made the swarm",
        )
    signature = sign(identity, TICKET_KIND, manifest.swarm, guest).signature
    ticket = base64.urlsafe_b64encode(signature).rstrip(b"=").decode()
    introducers = tuple(dict.fromkeys((*target.bootstrap, *bootstrap_addresses(bootstrap))))
    link = invite_text(Invite(swarm=target.swarm, bootstrap=introducers, ticket=ticket))
    typer.echo(dumps({"invite": link}) if json else link)
