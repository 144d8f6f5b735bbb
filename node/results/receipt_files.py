"""Receipts on disk: made from a node's chain, and verified by a chain, a link or the signatures alone.

A receipt to verify is a stranger's file: its size is bounded, it is decoded strictly, and every
statement in it is checked. How much it proves then depends on what it could be compared with, and the
result states that.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ...crypto.identity import Identity, PeerId, peer_text
from ...protocol.chain.audits import AuditLedger
from ...protocol.chain.ledger import Ledger
from ...protocol.chain.receipts import (
    MAX_RECEIPT_BYTES,
    Receipt,
    ReceiptContent,
    against_chain,
    against_checkpoint,
    certifying_rounds,
    decode_receipt,
    examine,
    with_claim,
    write_receipt,
)
from ...protocol.wire.errors import ProtocolError
from ...protocol.wire.manifest import Manifest, OtherVersion, SwarmId
from ...protocol.wire.swarm_id import Invite, swarm_text
from ..errors import ExitCode, UserError
from ..storage.atomic_write import write_output
from ..storage.data_dir import DataDir
from ..storage.disk_faults import not_writable
from ..storage.final_file import read_final
from ..storage.relayed_bytes import read_relayed
from ..util.protocol_version import explain_version
from ..util.regular_files import read_regular
from .contribution_table import read_ledger

Proof = Literal["chain", "link", "signatures"]
"""What a receipt was verified against: the chain from its beginning, a link's checkpoint, or only
its signatures."""


@dataclass(frozen=True, kw_only=True)
class ReceiptFacts:
    """The statements of a receipt."""

    swarm: str
    name: str
    """The swarm's name, for people."""
    peer: str
    round: int
    """The last round that is counted."""
    updates: int
    """Number of the peer's updates that counted."""
    sequences: int
    """Number of sequences from which these updates were made."""
    tokens: int
    """Number of tokens in these sequences."""
    audited_tokens: int
    """Number of these tokens that another member's audit has confirmed."""
    record: str
    """The id of the record that certifies it, in hex: the record of the round after `round`."""
    signers: tuple[str, ...]
    """The peers that signed the record's certificate."""
    founder_signed: bool
    claimed_relayed_bytes: int | None
    """Bytes that the peer claims to have relayed between others: claimed, not proved. None: no claim."""


@dataclass(frozen=True, kw_only=True)
class ReceiptVerdict:
    """The result for a receipt that holds as far as could be verified."""

    facts: ReceiptFacts
    proof: Proof
    final: bool
    """Whether its record is final in the chain that it was compared with; False without a chain."""
    missing: str = ""
    """Why only the signatures were verified; empty for the other proofs."""


def make_receipt(data: DataDir, swarm: SwarmId, peer: PeerId) -> tuple[Receipt, ReceiptFacts]:
    """Return the newest receipt of a peer in the chain on this disk, certified by a final record.

    Raises `UserError`: `NOTHING_TO_EXPORT` if there is no chain or no such receipt yet, or the swarm has
    no audits; `FINAL` if the file with the final record is damaged; `VERSION` for another protocol
    version.
    """
    ledger = read_ledger(data, swarm)
    if ledger.find(AuditLedger) is None:
        raise UserError(
            ExitCode.NOTHING_TO_EXPORT,
            f"the swarm {ledger.manifest.name!r} does not audit its members' work, so no contribution "
            "can be proved",
            "`distro-node contributions` shows what members announced",
        )
    final = _final_round(data, ledger)
    rounds = [round_ for round_ in certifying_rounds(ledger) if round_ <= final]
    if not rounds:
        raise UserError(
            ExitCode.NOTHING_TO_EXPORT,
            "no record that certifies the members' work is final yet",
            f"wait: there is one every {ledger.manifest.rounds.snapshot_interval:,} rounds, and it is "
            f"final a few rounds later; this node knows {len(ledger):,} rounds",
        )
    receipt = write_receipt(ledger, rounds[-1], peer)
    if receipt is None:
        raise UserError(
            ExitCode.NOTHING_TO_EXPORT,
            f"no update of {peer_text(peer)} has counted before round {rounds[-1]:,}",
            "`distro-node contributions` lists the members whose updates have counted; a "
            "newcomer waits for the next record that certifies them",
        )
    return receipt, _facts(receipt, examine(receipt))


def claim_relayed(
    receipt: Receipt, data: DataDir, identity: Identity
) -> tuple[Receipt, ReceiptFacts]:
    """Return this node's own receipt with its own count of relayed bytes added."""
    claiming = with_claim(receipt, read_relayed(data.relayed), identity.sign)
    return claiming, _facts(claiming, examine(claiming))


def save_receipt(receipt: Receipt, file: Path) -> None:
    """Write a receipt, all of it or nothing. Raises `UserError` (`NOT_WRITABLE`, `DISK_FULL`)."""
    try:
        write_output(file, receipt.encode())
    except OSError as error:
        raise not_writable(error, file, "--output") from None


def verify_receipt(file: Path, ledger: Path | None, link: Invite | None) -> ReceiptVerdict:
    """Verify a receipt, against the chain in the data directory `ledger` and against a link, if given.

    Raises `UserError`: `FALSE_RECEIPT` for a receipt that does not hold, `VERSION` for one of another
    protocol version, `USAGE` for a file that cannot be read, and what reading the data directory raises.
    """
    receipt = _read(file)
    try:
        facts = _facts(receipt, examine(receipt))
        matches_link = link is not None and against_checkpoint(receipt, link.swarm, link.at)
        if ledger is not None:
            data = DataDir(ledger)
            chain = read_ledger(data, receipt.swarm)
            if against_chain(receipt, chain):
                final = receipt.anchor.round <= _final_round(data, chain)
                return ReceiptVerdict(facts=facts, proof="chain", final=final)
    except OtherVersion as error:
        raise explain_version(error) from None
    except ProtocolError as error:
        raise _false_receipt_error(file, error) from None
    if matches_link:
        return ReceiptVerdict(facts=facts, proof="link", final=False)
    missing = "the file alone does not prove that its signers were members"
    if ledger is not None:
        missing = f"the ledger in {ledger} ends before round {receipt.anchor.round:,}"
    elif link is not None:
        missing = f"the link names no record of round {receipt.anchor.round:,}"
    return ReceiptVerdict(facts=facts, proof="signatures", final=False, missing=missing)


def _read(file: Path) -> Receipt:
    try:
        data = read_regular(file, MAX_RECEIPT_BYTES)
    except OSError as error:
        raise UserError(
            ExitCode.USAGE,
            f"{file} cannot be read: {error.strerror}",
            "name a file that `distro-node receipt` wrote",
        ) from None
    try:
        return decode_receipt(data)
    except ProtocolError as error:
        raise _false_receipt_error(file, error) from None


def _false_receipt_error(file: Path, error: ProtocolError) -> UserError:
    return UserError(
        ExitCode.FALSE_RECEIPT,
        f"{file} proves nothing: {error}",
        "ask its member for a new one (`distro-node receipt`)",
    )


def _final_round(data: DataDir, ledger: Ledger) -> int:
    """Return the last final round: by the records, or by the node's file with the final record if that
    is later and on this chain. Raises `UserError` (`FINAL`) if the file is damaged."""
    checkpoint = read_final(data.swarm(ledger.swarm).final)
    is_reached = checkpoint is not None and checkpoint.round < len(ledger)
    if (
        checkpoint is not None
        and is_reached
        and ledger.parent(checkpoint.round + 1) == checkpoint.record
    ):
        return max(checkpoint.round, ledger.final_round)
    return ledger.final_round


def _facts(receipt: Receipt, examined: ReceiptContent) -> ReceiptFacts:
    manifest: Manifest = examined.manifest
    length = manifest.data.sequence_length
    return ReceiptFacts(
        swarm=swarm_text(receipt.swarm),
        name=manifest.name,
        peer=peer_text(receipt.peer),
        round=receipt.anchor.round - 1,
        updates=receipt.updates,
        sequences=receipt.sequences,
        tokens=receipt.sequences * length,
        audited_tokens=receipt.audited * length,
        record=receipt.anchor.record.hex(),
        signers=tuple(peer_text(peer) for peer in sorted(examined.signers)),
        founder_signed=examined.founder_signed,
        claimed_relayed_bytes=None if receipt.claim is None else receipt.claim.bytes,
    )
