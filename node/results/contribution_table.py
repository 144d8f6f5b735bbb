"""The contributions of a swarm's members, read from the chain on this disk: the source of receipts.

`ContributionTable` has one row for each peer. In a swarm without audits its numbers are those that
members announced, marked as not audited.

Everything but the node's own count of relayed bytes follows from the records, each of which is verified
as it is read. The node may be running or not, and its data is not changed. Neither a model nor PyTorch
is needed.
"""

from __future__ import annotations

from dataclasses import dataclass

from ...crypto.identity import PeerId, peer_text
from ...protocol.chain.audits import AuditLedger
from ...protocol.chain.ledger import Ledger
from ...protocol.wire.errors import ProtocolError
from ...protocol.wire.manifest import (
    Manifest,
    OtherVersion,
    SwarmId,
)
from ...protocol.wire.swarm_id import swarm_text
from ..errors import ExitCode, UserError
from ..storage.data_dir import DataDir, stored_peer
from ..storage.relayed_bytes import read_relayed
from ..storage.swarm_store import SwarmStore
from ..util.protocol_version import explain_version


@dataclass(frozen=True, kw_only=True)
class ContributionRow:
    """The contributions of one peer."""

    peer: str
    updates: int
    """Number of its updates that counted."""
    sequences: int | None
    """Number of sequences from which they were made; None without audits."""
    tokens: int
    """Number of tokens in these sequences; without audits, the number that the peer announced."""
    audited_tokens: int | None
    """Number of these tokens that another member's audit has confirmed; None without audits."""
    member: bool
    """Whether it is a member now."""
    votes: int
    """Its votes in the next round."""
    counts: bool
    """Whether its updates count in the step; if not, audits have found them false."""


@dataclass(frozen=True, kw_only=True)
class ContributionTable:
    """The contributions of all peers, sorted by audited tokens, the most first."""

    swarm: str
    name: str
    """The swarm's name, for people."""
    round: int
    """The last round that it includes; rounds after the end of training, which sign the result, are not
    counted."""
    audited: bool
    """Whether the swarm audits its members' work."""
    peers: tuple[ContributionRow, ...]
    claimed_relayed_bytes: int
    """Bytes that this node has relayed between others, for any swarm, by its own count:
    claimed, not proved."""


def read_contributions(data: DataDir, swarm: SwarmId) -> ContributionTable:
    """Return the contributions of all peers according to the chain on this disk. Raises `UserError` as
    `read_ledger` does."""
    ledger = read_ledger(data, swarm)
    audits = ledger.find(AuditLedger)
    rows = _announced_rows(ledger) if audits is None else _audited_rows(ledger, audits)
    rows.sort(key=lambda row: (-(row.audited_tokens or 0), -row.tokens, row.peer))
    last = ledger.manifest.last_round
    return ContributionTable(
        swarm=swarm_text(swarm),
        name=ledger.manifest.name,
        round=len(ledger) - 1 if last is None else min(len(ledger) - 1, last),
        audited=audits is not None,
        peers=tuple(rows),
        claimed_relayed_bytes=read_relayed(data.relayed),
    )


def _audited_rows(ledger: Ledger, audits: AuditLedger) -> list[ContributionRow]:
    contributions, sequence_length = audits.contributions, ledger.manifest.data.sequence_length
    votes, members = audits.votes(len(ledger)), ledger.membership(len(ledger))
    return [
        ContributionRow(
            peer=peer_text(peer),
            updates=contributions[peer].updates,
            sequences=contributions[peer].sequences,
            tokens=contributions[peer].sequences * sequence_length,
            audited_tokens=contributions[peer].audited * sequence_length,
            member=peer in members,
            votes=votes.get(peer, 0),
            counts=audits.reputation.updates_count(peer),
        )
        for peer in contributions.peers
    ]


def _announced_rows(ledger: Ledger) -> list[ContributionRow]:
    votes, members = ledger.votes(len(ledger)), ledger.membership(len(ledger))
    announced = announced_work(ledger, len(ledger) - 1)
    return [
        ContributionRow(
            peer=peer_text(peer),
            updates=updates,
            sequences=None,
            tokens=tokens,
            audited_tokens=None,
            member=peer in members,
            votes=votes[peer] if peer in members else 0,
            counts=True,
        )
        for peer, (updates, tokens) in announced.items()
    ]


def announced_work(ledger: Ledger, last: int) -> dict[PeerId, tuple[int, int]]:
    """Return for each peer the number of updates that counted up to round `last`, and the number of
    tokens that it announced for them."""
    work: dict[PeerId, tuple[int, int]] = {}
    for round_ in range(1, last + 1):
        for entry in ledger[round_].record.updates:
            updates, tokens = work.get(entry.peer, (0, 0))
            work[entry.peer] = updates + 1, tokens + entry.tokens
    return work


def read_ledger(data: DataDir, swarm: SwarmId) -> Ledger:
    """Return the chain of a swarm on this disk, with at least one record. Raises `UserError`:
    `NOTHING_TO_EXPORT` if there is none, or no usable manifest; `VERSION` for another protocol
    version."""
    store = SwarmStore(data.swarm(swarm), read_manifest(data, swarm), stored_peer(data))
    ledger = store.load_ledger(repair=False)
    if len(ledger) == 0:
        raise _missing(data, "its ledger is missing")
    return ledger


def read_manifest(data: DataDir, swarm: SwarmId) -> Manifest:
    """Return a swarm's manifest from this disk. Raises `UserError` as `read_ledger` does."""
    try:
        return data.swarm(swarm).read_manifest(swarm)
    except OtherVersion as error:
        raise explain_version(error) from None
    except OSError as error:
        raise _missing(data, f"its description cannot be read: {error.strerror}") from None
    except ProtocolError as error:
        raise _missing(data, f"its description cannot be read: {error}") from None


def _missing(data: DataDir, problem: str) -> UserError:
    return UserError(
        ExitCode.NOTHING_TO_EXPORT,
        f"{data.root} has no usable data of this swarm: {problem}",
        "give the data directory of a node that has joined the swarm",
    )
