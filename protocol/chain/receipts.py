"""A receipt: a file with which a member shows what it has done for a swarm.

It holds the swarm's manifest, the record that certifies the account of everybody's contributions, the
certificate that decided this record, and the proof that the member's line is part of the account. All
of that holds together or does not, and anybody can tell. One thing nobody can tell from the file alone:
whether those who signed were the swarm's members, since the chain alone says who they were, and whoever
makes up keys can sign whatever they like with them. So a receipt is held against the chain itself
(`against_chain`), or against a record that somebody trusted has named (`against_checkpoint`).

What a member has carried between others as a relay no record tells. It may say so beside it, under its
signature (`Claim`): that proves whose word it is, and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Annotated, Literal

from ...crypto.envelope import signing_bytes, verify_detached
from ...crypto.hashing import ContentId, content_id
from ...crypto.identity import PeerId
from ..checks import merkle
from ..checks.contributions import Contribution
from ..wire.checkpoint import Checkpoint
from ..wire.encoding import decode, encode
from ..wire.errors import ProtocolError
from ..wire.manifest import MAX_MANIFEST_BYTES, Manifest, SwarmId, decode_manifest
from ..wire.messages import Decided, Signature
from ..wire.structure import U63, Length
from .certificates import Verify, check_signatures
from .entries import MAX_DECIDED_BYTES
from .ledger import Ledger
from .snapshot_rounds import snapshot_round

MAX_RECEIPT_BYTES = MAX_MANIFEST_BYTES + MAX_DECIDED_BYTES + (8 << 10)
"""No receipt is longer: a manifest, an entry of the ledger, and a proof of at most 63 steps."""

CLAIM = "carried"
"""No message is of this kind, so none can be passed off as a claim."""


@dataclass(frozen=True)
class ClaimedBytes:
    """What is signed by who claims to have carried something: by the round that the receipt is of."""

    round: U63
    bytes: U63


@dataclass(frozen=True)
class Claim:
    """A peer's own word on what it has carried between others: claimed, and not proved."""

    bytes: U63
    signature: Signature
    """Of `ClaimedBytes`, as an envelope of the kind `CLAIM`."""


@dataclass(frozen=True)
class Receipt:
    """What stands in the file, in this order (`wire/encoding`)."""

    kind: Literal["distro-node receipt 1"]
    manifest: Annotated[bytes, Length(1, MAX_MANIFEST_BYTES)]
    peer: PeerId
    updates: U63
    sequences: U63
    checked: U63
    index: U63
    size: U63
    steps: Annotated[tuple[ContentId, ...], Length(0, merkle.MOST_STEPS)]
    decided: Decided
    claim: Claim | None

    @property
    def contribution(self) -> Contribution:
        """The member's line of the account."""
        return Contribution(self.updates, self.sequences, self.checked)

    @property
    def swarm(self) -> SwarmId:
        """The swarm that it is of: all of the manifest is bound by it."""
        return SwarmId(content_id(self.manifest))

    @property
    def anchor(self) -> Checkpoint:
        """The record that all of it hangs on."""
        return Checkpoint(self.decided.record.round, self.decided.record.id)

    def encode(self) -> bytes:
        """The file's bytes."""
        return encode(self)


@dataclass(frozen=True)
class Examined:
    """What is certain of a receipt by its own bytes."""

    manifest: Manifest
    signers: frozenset[PeerId]
    """Who signed the certificate, whoever they were."""

    @property
    def founder_signed(self) -> bool:
        """Whether the founder did, whom the swarm-id names."""
        return self.manifest.founder in self.signers


def decode_receipt(data: bytes) -> Receipt:
    """Read a receipt; nothing of what it says is checked yet. Raises `ProtocolError`."""
    return decode(Receipt, data, max_bytes=MAX_RECEIPT_BYTES)


def certifying_rounds(ledger: Ledger) -> list[int]:
    """The rounds whose records certify the account of all contributions, in a swarm with one."""
    manifest = ledger.manifest
    interval, closing = manifest.rounds.snapshot_interval, manifest.schedule.closing_round
    return [r for r in range(len(ledger)) if snapshot_round(r, interval, closing) is not None]


def write_receipt(ledger: Ledger, round: int, peer: PeerId) -> Receipt | None:
    """What the record of `round` certifies of a member; None if no work of it counted before.

    Raises `ProtocolError` (`mismatch`) if that record certifies no account.
    """
    decided, before = ledger[round], ledger.truncated(round)
    if before.work is None or not decided.record.contributions:
        raise ProtocolError("mismatch", f"the record of round {round} certifies no account")
    contributions = before.work.contributions
    if peer not in contributions:
        return None
    done, proof = contributions[peer], contributions.proof(peer)
    return Receipt(
        kind="distro-node receipt 1",
        manifest=ledger.manifest.encode(),
        peer=peer,
        updates=done.updates,
        sequences=done.sequences,
        checked=done.checked,
        index=proof.index,
        size=proof.size,
        steps=proof.steps,
        decided=decided,
        claim=None,
    )


def with_claim(receipt: Receipt, carried: int, sign: Callable[[bytes], bytes]) -> Receipt:
    """The same with its peer's word on how many bytes it has carried between others; `sign` signs with
    the peer's key."""
    said = encode(ClaimedBytes(receipt.anchor.round, carried))
    signature = sign(signing_bytes(CLAIM, receipt.swarm, said))
    return replace(receipt, claim=Claim(carried, signature))


def examine(receipt: Receipt, verify: Verify = verify_detached) -> Examined:
    """Check all that a receipt's own bytes tell: that its parts belong together, that the member's line
    is part of the account, and that the signatures hold.

    Raises `ProtocolError`: `mismatch` or `certificate` for one that does not hold, `OtherVersion`, and
    what `decode_manifest` raises.
    """
    manifest = decode_manifest(receipt.manifest, receipt.swarm)
    record, certificate = receipt.decided.record, receipt.decided.certificate
    if manifest.checks is None:
        raise ProtocolError("mismatch", "in this swarm no work is checked")
    proven = merkle.stands(
        receipt.contribution.leaf(receipt.peer),
        receipt.index,
        receipt.size,
        receipt.steps,
        ContentId(record.contributions),
    )
    if record.snapshot is None or not proven:
        raise ProtocolError("mismatch", "the record does not certify what the receipt says")
    about = (certificate.kind, certificate.round, certificate.parent, certificate.block)
    if about != ("finalize", record.round, record.parent, record.id):
        raise ProtocolError("mismatch", "the certificate is about another record")
    peers = [signed.peer for signed in certificate.ballots]
    if peers != sorted(set(peers)):
        raise ProtocolError("mismatch", "the signers are not sorted, each once")
    claim = receipt.claim
    if claim is not None:
        said = encode(ClaimedBytes(record.round, claim.bytes))
        if not verify(CLAIM, receipt.swarm, receipt.peer, said, claim.signature):
            raise ProtocolError("mismatch", "what the peer is said to have carried is not its word")
    return Examined(manifest, frozenset(check_signatures(certificate, receipt.swarm, verify)))


def against_checkpoint(receipt: Receipt, swarm: SwarmId, known: Checkpoint | None) -> bool:
    """Whether the record is the one that somebody has named; False if nothing was said of its round.

    Raises `ProtocolError` (`mismatch`) if they have named another swarm, or another record there.
    """
    if receipt.swarm != swarm:
        raise ProtocolError("mismatch", "the receipt is of another swarm")
    if known is None or known.round != receipt.anchor.round:
        return False
    if known != receipt.anchor:
        raise ProtocolError("mismatch", f"another record is the swarm's in round {known.round}")
    return True


def against_chain(receipt: Receipt, ledger: Ledger) -> bool:
    """Whether the chain that was checked from its beginning on holds the record, and takes the
    certificate; False if it ends before.

    Raises `ProtocolError` if the receipt does not hold.
    """
    round_ = receipt.anchor.round
    if receipt.swarm != ledger.swarm:
        raise ProtocolError("mismatch", "the receipt is of another swarm")
    if round_ > len(ledger):
        return False
    if round_ < len(ledger) and ledger[round_].record.id != receipt.anchor.record:
        raise ProtocolError("mismatch", f"another record is the chain's in round {round_}")
    # What decides a record, and all that may stand in one, has one place: where the chain grows.
    ledger.truncated(round_).append(receipt.decided)
    return True
