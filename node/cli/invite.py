"""`distro-node invite`: print a link to a swarm, with its final record and the guest's ticket."""

from __future__ import annotations

import base64
from json import dumps
from pathlib import Path
from typing import Annotated

import typer

from ...crypto.envelope import sign
from ...crypto.identity import PeerId, peer_from_text
from ...protocol.wire.errors import ProtocolError
from ...protocol.wire.manifest import MAX_MANIFEST_BYTES, Manifest, OtherVersion, decode_manifest
from ...protocol.wire.messages import TICKET_KIND
from ...protocol.wire.swarm_id import Invite, invite_text
from ..errors import ExitCode, UserError
from ..settings.values import parse_target
from ..storage.data_dir import DataDir, open_identity
from ..storage.final_file import read_final
from ..util.protocol_version import explain_version
from ..util.regular_files import read_regular
from .options import (
    Bootstrap,
    DataDirectory,
    Json,
    PassphraseFile,
    bootstrap_addresses,
    data_directory,
    find_passphrase,
    peers_of_link,
    refuse_ignored,
)


def invite(
    ctx: typer.Context,
    swarm: Annotated[
        str, typer.Argument(metavar="SWARM", help="A link to the swarm, or its swarm-id.")
    ],
    peer: Annotated[
        str | None,
        typer.Argument(metavar="PEER", help="The guest's peer id (`distro-node id --create`)."),
    ] = None,
    bootstrap: Bootstrap = None,
    data_dir: DataDirectory = None,
    passphrase_file: PassphraseFile = None,
    json: Json = False,
) -> None:
    """Print a link to a swarm for new members.

    The link names a record of the swarm's chain that this node knows to be final, so that other peers
    cannot mislead a node that joins with it. It names the bootstrap peers of SWARM, if that is a link,
    and of --bootstrap. In a swarm that admits guests only (policy "invite") it also holds the guest's
    ticket and works for this one PEER; only the swarm's issuer can write it (the founder, unless the
    manifest names another). For example:

    \b
        distro-node invite 'distro:swarm-…?bootstrap=…'
        distro-node invite 'distro:swarm-…?bootstrap=…' 12D3KooW…
    """
    if peer is None:
        remedy = "leave it out, or add the guest's peer id"
        refuse_ignored(ctx, "without PEER: nothing is signed", remedy, "passphrase_file")
    target = parse_target(swarm)
    peers = peers_of_link(*target.bootstrap, *bootstrap_addresses(bootstrap))
    data = data_directory(data_dir)
    directory = data.swarm(target.swarm)
    try:
        manifest = decode_manifest(
            read_regular(directory.manifest, MAX_MANIFEST_BYTES), target.swarm
        )
    except OtherVersion as error:
        raise explain_version(error) from None
    except (OSError, ProtocolError):
        raise UserError(
            ExitCode.NOT_JOINED,
            f"the swarm's manifest is not in {data.root}",
            "run this on a machine that has made or joined the swarm, or give its directory with "
            "--data-dir",
        ) from None
    ticket = None
    if peer is not None:
        ticket = _ticket(manifest, data, _guest(peer), passphrase_file)
    elif manifest.admission.issuer is not None:
        raise UserError(
            ExitCode.USAGE,
            "this swarm admits guests only, and a link is for one guest",
            "give the guest's peer id, which `distro-node id` prints on the guest's computer",
        )
    # A node may be running in this directory: the file is replaced atomically.
    at = read_final(directory.final)
    link = invite_text(
        Invite(swarm=target.swarm, bootstrap=peers, ticket=ticket, at=at or target.at)
    )
    if not peers:
        typer.echo(
            "warning: this link names no bootstrap peer, so it works in your local network only; give "
            "the whole link instead of the swarm-id, or add --bootstrap",
            err=True,
        )
    typer.echo(dumps({"invite": link}) if json else link)


def _guest(text: str) -> PeerId:
    try:
        return peer_from_text(text)
    except ValueError as error:
        raise UserError(
            ExitCode.USAGE,
            f"{text!r} is not a peer id: {error}",
            "ask the guest for `distro-node id`",
        ) from None


def _ticket(manifest: Manifest, data: DataDir, guest: PeerId, passphrase_file: Path | None) -> str:
    """Return a ticket for `guest`, signed by the issuer, whose data directory this must be."""
    identity = open_identity(data, find_passphrase(data, passphrase_file), create=False)
    if manifest.admission.issuer != identity.peer:
        raise UserError(
            ExitCode.USAGE,
            "this swarm admits every peer, without tickets"
            if manifest.admission.issuer is None
            else "another peer issues the tickets of this swarm",
            "leave the guest out: one link works for all peers"
            if manifest.admission.issuer is None
            else "ask the issuer for a link, usually the founder",
        )
    signature = sign(identity, TICKET_KIND, manifest.swarm, guest).signature
    return base64.urlsafe_b64encode(signature).rstrip(b"=").decode()
