"""Receipts on the disk: taken from the chain of a node, and checked against a chain, a link or nothing.

What is read is somebody's file: it is bounded, decoded strictly, and everything it says is checked. How
much then is proved depends on what it could be held against, and is told as plainly.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ...crypto.identity import Identity, PeerId, peer_text
from ...protocol.chain.ledger import Ledger
from ...protocol.chain.receipts import (
    MAX_RECEIPT_BYTES,
    Examined,
    Receipt,
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
from ..storage.atomic_write import write_atomically
from ..storage.carried import read_carried
from ..storage.data_dir import DataDir
from ..storage.disk_faults import not_writable
from ..storage.final_file import read_final
from ..versions import explain_version
from .account import checked_work_of, read_ledger

Proof = Literal["chain", "link", "signatures"]
"""What a receipt was held against: the chain from its beginning, the word of a link, or nothing."""


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What a receipt says."""

    swarm: str
    name: str
    """The swarm's, for people."""
    peer: str
    round: int
    """The last one that is counted."""
    updates: int
    """How many of the peer's updates counted."""
    sequences: int
    tokens: int
    checked_tokens: int
    record: str
    """The id of the record that certifies it, in hex: that of the round behind `round`."""
    signers: tuple[str, ...]
    """Who signed the record's certificate."""
    founder_signed: bool
    claimed_carried_bytes: int | None
    """What the peer says that it has carried between others: claimed, not proved. None: it says
    nothing."""


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What came of a receipt that holds as far as could be told."""

    facts: Facts
    proof: Proof
    final: bool
    """Whether the chain that it was held against says that its record is final."""
    missing: str = ""
    """Why there is no more of a proof; empty with one."""


def make_receipt(data: DataDir, swarm: SwarmId, peer: PeerId) -> tuple[Receipt, Facts]:
    """The newest receipt of a peer that the chain on this disk has: of a record that is final.

    Raises `UserError`: `NOTHING_TO_EXPORT` where there is none yet, `FINAL`, `VERSION`.
    """
    ledger = read_ledger(data, swarm)
    checked_work_of(ledger)
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
            "`distro-node contributions` lists whose have; a newcomer waits for the next record that "
            "certifies them",
        )
    return receipt, _facts(receipt, examine(receipt))


def claim_carried(receipt: Receipt, data: DataDir, identity: Identity) -> tuple[Receipt, Facts]:
    """The same receipt of this node's, with its own count of what it has carried between others."""
    claiming = with_claim(receipt, read_carried(data.carried), identity.sign)
    return claiming, _facts(claiming, examine(claiming))


def save_receipt(receipt: Receipt, file: Path) -> None:
    """Write a receipt, whole or not at all. Raises `UserError` (`NOT_WRITABLE`, `DISK_FULL`)."""
    try:
        write_atomically(file, receipt.encode())
    except OSError as error:
        raise not_writable(error, file, "--output") from None


def verify_receipt(file: Path, ledger: Path | None, link: Invite | None) -> Verdict:
    """Check a receipt, against a data directory and a link where they are given.

    Raises `UserError`: `FALSE_RECEIPT` for what does not hold, `USAGE` for a file that cannot be read,
    and what reading the data directory raises.
    """
    receipt = _read(file)
    try:
        facts = _facts(receipt, examine(receipt))
        named = link is not None and against_checkpoint(receipt, link.swarm, link.at)
        if ledger is not None:
            data = DataDir(ledger)
            chain = read_ledger(data, receipt.swarm)
            if against_chain(receipt, chain):
                final = receipt.anchor.round <= _final_round(data, chain)
                return Verdict(facts=facts, proof="chain", final=final)
    except OtherVersion as error:
        raise explain_version(error) from None
    except ProtocolError as error:
        raise _false(file, error) from None
    if named:
        return Verdict(facts=facts, proof="link", final=False)
    missing = "nobody can tell from the file alone whether those who signed were members"
    if ledger is not None:
        missing = f"the chain in {ledger} ends before round {receipt.anchor.round:,}"
    elif link is not None:
        missing = f"the link names no record of round {receipt.anchor.round:,}"
    return Verdict(facts=facts, proof="signatures", final=False, missing=missing)


def _read(file: Path) -> Receipt:
    try:
        with file.open("rb") as opened:
            data = opened.read(MAX_RECEIPT_BYTES + 1)
    except OSError as error:
        raise UserError(
            ExitCode.USAGE,
            f"{file} cannot be read: {error.strerror}",
            "name a file that `distro-node receipt` wrote",
        ) from None
    try:
        return decode_receipt(data)
    except ProtocolError as error:
        raise _false(file, error) from None


def _false(file: Path, error: ProtocolError) -> UserError:
    return UserError(
        ExitCode.FALSE_RECEIPT,
        f"{file} proves nothing: {error}",
        "ask its member for a new one (`distro-node receipt`)",
    )


def _final_round(data: DataDir, ledger: Ledger) -> int:
    """The last round that is final: as the records show, or as the node remembers. Raises `UserError`
    (`FINAL`)."""
    known = read_final(data.swarm(ledger.swarm).final)
    remembered = known is not None and known.round < len(ledger)
    if known is not None and remembered and ledger.parent(known.round + 1) == known.record:
        return max(known.round, ledger.final_round)
    return ledger.final_round


def _facts(receipt: Receipt, examined: Examined) -> Facts:
    manifest: Manifest = examined.manifest
    length = manifest.data.sequence_length
    return Facts(
        swarm=swarm_text(receipt.swarm),
        name=manifest.name,
        peer=peer_text(receipt.peer),
        round=receipt.anchor.round - 1,
        updates=receipt.updates,
        sequences=receipt.sequences,
        tokens=receipt.sequences * length,
        checked_tokens=receipt.checked * length,
        record=receipt.anchor.record.hex(),
        signers=tuple(peer_text(peer) for peer in sorted(examined.signers)),
        founder_signed=examined.founder_signed,
        claimed_carried_bytes=None if receipt.claim is None else receipt.claim.bytes,
    )
