"""Receipts: files by which a member proves what it has contributed to a swarm.

A receipt holds the swarm's manifest, the record that certifies the root of all contributions, the
certificate that decided this record, and the proof that the member's entry is included. The file alone
shows whether these parts are consistent. It does not show whether the signers were the swarm's members:
only the chain shows that, and a forger can sign anything with keys of its own. So a receipt is checked
against the chain itself (`against_chain`), or against a record that a trusted party has named
(`against_checkpoint`).

No record shows how many bytes a member relayed between others. The member may add this as a signed
claim (`RelayClaim`): the signature proves its author, and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Annotated, Literal

from ...crypto.envelope import Verify, signing_bytes, verify_detached
from ...crypto.hashing import ContentId, content_id
from ...crypto.identity import PeerId
from ..audit import merkle
from ..audit.contributions import Contribution
from ..wire.checkpoint import Checkpoint
from ..wire.encoding import decode, encode
from ..wire.errors import ProtocolError
from ..wire.manifest import MAX_MANIFEST_BYTES, Manifest, SwarmId, decode_manifest
from ..wire.messages import Decided, Signature
from ..wire.structure import U63, Length
from .audits import AuditLedger
from .certificates import check_signatures
from .entry_store import MAX_DECIDED_BYTES
from .ledger import Ledger
from .snapshot_rounds import snapshot_round

MAX_RECEIPT_BYTES = MAX_MANIFEST_BYTES + MAX_DECIDED_BYTES + (8 << 10)
"""Bound on a receipt: a manifest, an entry of the ledger, and a proof of at most 63 steps."""

CLAIM = "relayed"
"""Kind of a claim's envelope. No message has this kind, so none can be passed off as a claim."""


@dataclass(frozen=True)
class ClaimedBytes:
    """The signed content of a relay claim: bytes relayed up to the round of the receipt."""

    round: U63
    bytes: U63


@dataclass(frozen=True)
class RelayClaim:
    """A peer's own statement of the bytes that it relayed between others: not proved."""

    bytes: U63
    signature: Signature
    """Of `ClaimedBytes`, as an envelope of the kind `CLAIM`."""


@dataclass(frozen=True)
class Receipt:
    """The fields of the file, in this order (`wire/encoding`)."""

    kind: Literal["distro-node receipt 1"]
    manifest: Annotated[bytes, Length(1, MAX_MANIFEST_BYTES)]
    peer: PeerId
    updates: U63
    sequences: U63
    audited: U63
    index: U63
    size: U63
    steps: Annotated[tuple[ContentId, ...], Length(0, merkle.MOST_STEPS)]
    decided: Decided
    claim: RelayClaim | None

    @property
    def contribution(self) -> Contribution:
        """The member's contribution."""
        return Contribution(self.updates, self.sequences, self.audited)

    @property
    def swarm(self) -> SwarmId:
        """The swarm-id, which binds all of the manifest."""
        return SwarmId(content_id(self.manifest))

    @property
    def anchor(self) -> Checkpoint:
        """The record on which the receipt rests."""
        return Checkpoint(self.decided.record.round, self.decided.record.id)

    def encode(self) -> bytes:
        """Return the file's bytes."""
        return encode(self)


@dataclass(frozen=True)
class ReceiptContent:
    """Facts that the bytes of a receipt alone prove."""

    manifest: Manifest
    signers: frozenset[PeerId]
    """The signers of the certificate, members or not."""

    @property
    def founder_signed(self) -> bool:
        """Whether the founder, whom the swarm-id determines, signed."""
        return self.manifest.founder in self.signers


def decode_receipt(data: bytes) -> Receipt:
    """Decode a receipt, without checking its content. Raises `ProtocolError`."""
    return decode(Receipt, data, max_bytes=MAX_RECEIPT_BYTES)


def certifying_rounds(ledger: Ledger) -> list[int]:
    """Return the rounds whose records certify the root of all contributions, in a swarm with one."""
    manifest = ledger.manifest
    interval, closing = manifest.rounds.snapshot_interval, manifest.schedule.closing_round
    return [r for r in range(len(ledger)) if snapshot_round(r, interval, closing) is not None]


def write_receipt(ledger: Ledger, round: int, peer: PeerId) -> Receipt | None:
    """Return a receipt of what the record of `round` certifies for a member; None if none of its work
    counted before that round.

    Raises `ProtocolError` (`mismatch`) if that record certifies no contributions.
    """
    decided, work = ledger[round], ledger.truncated(round).find(AuditLedger)
    if work is None or not decided.record.contributions:
        raise ProtocolError("mismatch", f"the record of round {round} certifies no contributions")
    contributions = work.contributions
    if peer not in contributions:
        return None
    done, proof = contributions[peer], contributions.proof(peer)
    return Receipt(
        kind="distro-node receipt 1",
        manifest=ledger.manifest.encode(),
        peer=peer,
        updates=done.updates,
        sequences=done.sequences,
        audited=done.audited,
        index=proof.index,
        size=proof.size,
        steps=proof.steps,
        decided=decided,
        claim=None,
    )


def with_claim(receipt: Receipt, relayed: int, sign: Callable[[bytes], bytes]) -> Receipt:
    """Return the receipt with its peer's claim of how many bytes it relayed between others; `sign`
    signs with the peer's key."""
    body = encode(ClaimedBytes(receipt.anchor.round, relayed))
    signature = sign(signing_bytes(CLAIM, receipt.swarm, body))
    return replace(receipt, claim=RelayClaim(relayed, signature))


def examine(receipt: Receipt, verify: Verify = verify_detached) -> ReceiptContent:
    """Check everything that a receipt's own bytes show: that its parts belong together, that the
    member's entry is included in the certified root, and that the signatures are valid.

    Raises `ProtocolError`: `mismatch` or `certificate` for an invalid receipt, `OtherVersion`, and the
    errors of `decode_manifest`.
    """
    manifest = decode_manifest(receipt.manifest, receipt.swarm)
    record, certificate = receipt.decided.record, receipt.decided.certificate
    if manifest.audits is None:
        raise ProtocolError(
            "mismatch", "this swarm does not audit work, so it certifies no contributions"
        )
    proven = merkle.verify_inclusion(
        receipt.contribution.leaf(receipt.peer),
        receipt.index,
        receipt.size,
        receipt.steps,
        ContentId(record.contributions),
    )
    if record.snapshot is None or not proven:
        raise ProtocolError("mismatch", "the record does not certify what the receipt states")
    about = (certificate.kind, certificate.round, certificate.parent, certificate.block)
    if about != ("finalize", record.round, record.parent, record.id):
        raise ProtocolError("mismatch", "the certificate is for another record")
    peers = [signed.peer for signed in certificate.ballots]
    if peers != sorted(set(peers)):
        raise ProtocolError("mismatch", "the signers are not sorted and distinct")
    claim = receipt.claim
    if claim is not None:
        body = encode(ClaimedBytes(record.round, claim.bytes))
        if not verify(CLAIM, receipt.swarm, receipt.peer, body, claim.signature):
            raise ProtocolError(
                "mismatch", "the peer did not sign the claim of bytes that it relayed"
            )
    return ReceiptContent(manifest, frozenset(check_signatures(certificate, receipt.swarm, verify)))


def against_checkpoint(receipt: Receipt, swarm: SwarmId, known: Checkpoint | None) -> bool:
    """Whether the receipt's record is the `known` one; False if none is known for its round.

    Raises `ProtocolError` (`mismatch`) if the receipt is of another swarm, or if the known record of its
    round is another one.
    """
    if receipt.swarm != swarm:
        raise ProtocolError("mismatch", "the receipt is of another swarm")
    if known is None or known.round != receipt.anchor.round:
        return False
    if known != receipt.anchor:
        raise ProtocolError("mismatch", f"the swarm has another record in round {known.round}")
    return True


def against_chain(receipt: Receipt, ledger: Ledger) -> bool:
    """Whether the chain, checked from its beginning on, contains the receipt's record and accepts its
    certificate; False if the chain ends before that record's round.

    Raises `ProtocolError` if the chain contradicts the receipt.
    """
    round_ = receipt.anchor.round
    if receipt.swarm != ledger.swarm:
        raise ProtocolError("mismatch", "the receipt is of another swarm")
    if round_ > len(ledger):
        return False
    if round_ < len(ledger) and ledger[round_].record.id != receipt.anchor.record:
        raise ProtocolError("mismatch", f"the chain has another record in round {round_}")
    # Appending the receipt's record checks it and its certificate by the rules of the chain.
    ledger.truncated(round_).append(receipt.decided)
    return True
