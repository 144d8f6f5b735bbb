"""What a swarm's members have done for it, as the chain on this disk says: the account that receipts are
taken from.

All of it follows from the records, each of which is checked again as it is read. The node may be running
or not; nothing of it is changed. No model is needed, and no PyTorch.
"""

from __future__ import annotations

from dataclasses import dataclass

from ...crypto.identity import peer_text
from ...protocol.chain.checked import CheckedWork
from ...protocol.chain.ledger import Ledger
from ...protocol.wire.errors import ProtocolError
from ...protocol.wire.manifest import Manifest, OtherVersion, SwarmId, decode_manifest
from ...protocol.wire.swarm_id import swarm_text
from ..errors import ExitCode, UserError
from ..storage.carried import read_carried
from ..storage.data_dir import DataDir
from ..storage.swarm_store import SwarmStore
from ..versions import explain_version


@dataclass(frozen=True, kw_only=True)
class Row:
    """What one peer has done."""

    peer: str
    updates: int
    """How many of its updates counted."""
    sequences: int
    """That these were made of."""
    tokens: int
    """In these."""
    checked_tokens: int
    """Of these: for how many somebody else has vouched."""
    member: bool
    """Whether it is a member now."""
    votes: int
    """In the next round."""
    counts: bool
    """Whether its updates are part of the step; else it was found out."""


@dataclass(frozen=True, kw_only=True)
class Account:
    """What everybody has done, whoever has the most checked tokens first."""

    swarm: str
    name: str
    """The swarm's, for people."""
    round: int
    """The last one that it holds."""
    peers: tuple[Row, ...]
    claimed_carried_bytes: int
    """What this node has carried between others as a relay, of any swarm, by its own count: claimed,
    not proved."""


def read_account(data: DataDir, swarm: SwarmId) -> Account:
    """What the chain on this disk says of everybody's work. Raises `UserError`: `NOTHING_TO_EXPORT`
    where there is none, or no work is checked, and `VERSION`."""
    ledger = read_ledger(data, swarm)
    work = checked_work_of(ledger)
    now, length = work.contributions, ledger.manifest.data.sequence_length
    votes, members = work.votes(len(ledger)), ledger.membership(len(ledger))
    rows = [
        Row(
            peer=peer_text(peer),
            updates=now[peer].updates,
            sequences=now[peer].sequences,
            tokens=now[peer].sequences * length,
            checked_tokens=now[peer].checked * length,
            member=peer in members,
            votes=votes.get(peer, 0),
            counts=work.accounts.counts(peer),
        )
        for peer in now.peers
    ]
    rows.sort(key=lambda row: (-row.checked_tokens, -row.tokens, row.peer))
    return Account(
        swarm=swarm_text(swarm),
        name=ledger.manifest.name,
        round=len(ledger) - 1,
        peers=tuple(rows),
        claimed_carried_bytes=read_carried(data.carried),
    )


def checked_work_of(ledger: Ledger) -> CheckedWork:
    """What is known of work in a swarm that checks it. Raises `UserError` (`NOTHING_TO_EXPORT`) for
    another."""
    if ledger.work is None:
        raise UserError(
            ExitCode.NOTHING_TO_EXPORT,
            f"the swarm {ledger.manifest.name!r} does not check its members' work, so nothing of it "
            "can be proved",
            "what its members say of themselves is in `distro-node status`",
        )
    return ledger.work


def read_ledger(data: DataDir, swarm: SwarmId) -> Ledger:
    """The chain of a swarm on this disk, with a record at least. Raises `UserError`
    (`NOTHING_TO_EXPORT`, `VERSION`)."""
    store = SwarmStore(data.swarm(swarm), read_manifest(data, swarm))
    ledger = store.load_ledger(mend=False)
    if len(ledger) == 0:
        raise _missing(data, "its records are not here")
    return ledger


def read_manifest(data: DataDir, swarm: SwarmId) -> Manifest:
    """A swarm's description on this disk. Raises `UserError` likewise."""
    try:
        return decode_manifest(data.swarm(swarm).manifest.read_bytes(), swarm)
    except OtherVersion as error:
        raise explain_version(error) from None
    except OSError as error:
        raise _missing(data, f"its description cannot be read: {error.strerror}") from None
    except ProtocolError as error:
        raise _missing(data, f"its description cannot be read: {error}") from None


def _missing(data: DataDir, problem: str) -> UserError:
    return UserError(
        ExitCode.NOTHING_TO_EXPORT,
        f"nothing can be told of this swarm from {data.root}: {problem}",
        "take the data directory of a node that has joined the swarm",
    )
