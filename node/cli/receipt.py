"""`distro-node contributions`, `receipt` and `verify-receipt`: show and prove contributions."""

from __future__ import annotations

from dataclasses import asdict
from json import dumps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ...crypto import keystore
from ...crypto.identity import PeerId, peer_from_text, peer_text
from ..errors import ExitCode, UserError
from ..settings.values import parse_target
from ..storage.data_dir import DataDir
from ..util.sanitize import harmless
from ..util.size_text import size_text
from .options import (
    DataDirectory,
    Json,
    PassphraseFile,
    data_directory,
    find_passphrase,
    only_swarm,
    refuse_ignored,
)

if TYPE_CHECKING:
    from ..results.receipt_files import ReceiptFacts

_Swarm = Annotated[
    str | None,
    typer.Argument(
        metavar="SWARM",
        help="The swarm-id, or a link to the swarm. [default: the only one in the data directory]",
    ),
]
# These commands take SWARM as an argument, not as an option.
_NAMED = "name one of them"


def contributions(swarm: _Swarm = None, data_dir: DataDirectory = None, json: Json = False) -> None:
    """Show what each member has contributed to a swarm.

    For each member: how many of its updates counted since the start, the number of their tokens, and
    how many of these tokens audits by other members have confirmed. In a swarm without audits the
    tokens are what each member announced. The figures follow from the swarm's records on this disk.
    For example:

    \b
        distro-node contributions
    """
    from ..results.contribution_table import read_contributions

    data = data_directory(data_dir)
    work = read_contributions(data, only_swarm(swarm, data, _NAMED))
    if json:
        typer.echo(dumps(asdict(work)))
        return
    typer.echo(f"{harmless(work.name)} ({work.swarm}), up to round {work.round:,}")
    me = _own_peer(data)
    table: list[tuple[str, ...]] = [("peer", "updates", "tokens", "audited", "votes", "")]
    for row in work.peers:
        notes = [
            *(["this node"] if row.peer == me else []),
            *([] if row.counts else ["failed audits: does not count"]),
            *([] if row.member else ["not a member now"]),
        ]
        audited = "not audited" if row.audited_tokens is None else f"{row.audited_tokens:,}"
        numbers = (f"{row.updates:,}", f"{row.tokens:,}", audited, f"{row.votes:,}")
        table.append((row.peer, *numbers, ", ".join(notes)))
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    for first, *rest, note in table:
        cells = [first.ljust(widths[0])]
        cells += [cell.rjust(width) for cell, width in zip(rest, widths[1:], strict=False)]
        typer.echo("  ".join([*cells, note]).rstrip())
    if not work.audited:
        typer.echo(
            "This swarm does not audit work: the tokens are what each member announced of its own."
        )
    if work.claimed_relayed_bytes:
        size = size_text(work.claimed_relayed_bytes)
        typer.echo(f"This node has relayed {size} between others, by its own count (not proved).")


def receipt(
    ctx: typer.Context,
    swarm: _Swarm = None,
    peer: Annotated[
        str | None,
        typer.Option(
            "--peer", metavar="PEER", help="The member whose work it proves. [default: this node]"
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            metavar="FILE",
            readable=False,
            help="The file to write. [default: PEER-round-N.receipt in this directory]",
        ),
    ] = None,
    relayed: Annotated[
        bool,
        typer.Option(
            "--relayed",
            help="Also state how much this node has relayed "
            "between others: signed by it, but not proved.",
        ),
    ] = False,
    passphrase_file: PassphraseFile = None,
    data_dir: DataDirectory = None,
    json: Json = False,
) -> None:
    """Write a file that proves what a member has contributed.

    In a swarm with audits, some records certify for each member how many tokens have counted, and how
    many of these audits by other members have confirmed. The file holds the member's entry, the newest
    such record that is final, and the signatures of the members that decided it. `distro-node
    verify-receipt` verifies it on any computer, without a network. For example:

    \b
        distro-node receipt --output mine.receipt
    """
    from ..results.receipt_files import claim_relayed, make_receipt, save_receipt
    from ..storage.data_dir import open_identity

    if not relayed:
        remedy = "leave it out, or add --relayed"
        refuse_ignored(ctx, "without --relayed: nothing is signed", remedy, "passphrase_file")
    data = data_directory(data_dir)
    identifier = only_swarm(swarm, data, _NAMED)
    made, facts = make_receipt(data, identifier, _owner_text(peer, data))
    if relayed:
        if facts.peer != _own_peer(data):
            raise UserError(
                ExitCode.USAGE,
                "a node can state the relayed bytes only in its own receipt",
                "leave out --peer or --relayed",
            )
        identity = open_identity(data, find_passphrase(data, passphrase_file), create=False)
        made, facts = claim_relayed(made, data, identity)
    file = output or Path(f"{facts.peer}-round-{facts.round}.receipt")
    save_receipt(made, file.absolute())
    if json:
        typer.echo(dumps({"file": str(file.absolute())} | asdict(facts)))
        return
    _show(facts)
    typer.echo(f"Wrote the receipt to {file}")


def verify_receipt(
    file: Annotated[
        Path, typer.Argument(metavar="FILE", readable=False, help="The receipt to verify.")
    ],
    link: Annotated[
        str | None,
        typer.Option(
            "--link",
            metavar="LINK",
            help="A link to the swarm from a person you trust; it may name the record (`at=`).",
        ),
    ] = None,
    ledger: Annotated[
        Path | None,
        typer.Option(
            "--ledger",
            metavar="DIRECTORY",
            readable=False,
            help="The data directory of a node of the swarm; the receipt is compared with its records.",
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Verify another member's receipt.

    The exit code is 0 if the receipt is valid: the ledger in --ledger, verified from its first record,
    contains the record that certifies it, or --link, which you have to trust, names that record. With
    neither, it is 58 if the file is consistent and signed: the file alone does not prove that its
    signers were the swarm's members. It is 59 if the receipt is false. For example:

    \b
        distro-node verify-receipt mine.receipt --ledger ~/.local/share/distro-node
    """
    from ..results.receipt_files import verify_receipt as verify

    found = verify(
        file.absolute(),
        None if ledger is None else ledger.absolute(),
        None if link is None else parse_target(link),
    )
    if json:
        typer.echo(dumps(asdict(found.facts) | {"proof": found.proof, "final": found.final}))
    else:
        _show(found.facts)
        if found.proof == "chain":
            end = "" if found.final else ", which is not final yet"
            typer.echo(
                f"The receipt is valid: the ledger in {ledger} contains the record that certifies "
                f"it{end}."
            )
        elif found.proof == "link":
            typer.echo(
                "The receipt is valid if you trust the link: it names the record that certifies it."
            )
    if found.proof == "signatures":
        raise UserError(
            ExitCode.UNANCHORED,
            f"the receipt is consistent and signed, but {found.missing}",
            "give --ledger the data directory of a node that has caught up, or --link a "
            f"link from a person you trust that names the record of round {found.facts.round + 1}",
        )


def _owner_text(text: str | None, data: DataDir) -> PeerId:
    """Return the peer for a receipt. Raises `UserError` (`USAGE`, `KEYSTORE`)."""
    if text is None:
        try:
            return keystore.read_peer(data.identity)
        except keystore.KeystoreError as error:
            raise UserError(
                ExitCode.KEYSTORE, error.problem, "name the member with --peer"
            ) from None
    try:
        return peer_from_text(text)
    except ValueError as error:
        raise UserError(
            ExitCode.USAGE,
            f"{text!r} is not a peer id: {error}",
            "`distro-node contributions` lists the peer ids",
        ) from None


def _own_peer(data: DataDir) -> str | None:
    """Return this node's peer id; None where there is no identity, which is not an error here."""
    try:
        return peer_text(keystore.read_peer(data.identity))
    except keystore.KeystoreError:
        return None


def _show(facts: ReceiptFacts) -> None:
    founder = ", including the founder" if facts.founder_signed else ""
    shown = {
        "Peer": facts.peer,
        "Swarm": f"{harmless(facts.name)} ({facts.swarm})",
        "Until": f"round {facts.round:,}",
        "Updates": f"{facts.updates:,} that counted",
        "Tokens": f"{facts.tokens:,} counted, {facts.audited_tokens:,} of them audited",
        "Record": f"{facts.record} of round {facts.round + 1:,}",
        "Signed by": f"{len(facts.signers):,}{founder}",
    }
    if facts.claimed_relayed_bytes is not None:
        size = size_text(facts.claimed_relayed_bytes)
        shown["Relayed"] = f"{size} between others, by the peer's own count (not proved)"
    for name, value in shown.items():
        typer.echo(f"{name:<11}{value}")
    for signer in facts.signers:
        typer.echo(f"{'':<11}{signer}")


RECEIPT_COMMANDS = {
    "contributions": contributions,
    "receipt": receipt,
    "verify-receipt": verify_receipt,
}
