"""A restored chain answers and continues as one whose records were all followed."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from typing import Any

import pytest
from chain.committee_chain import AggregatedChain
from distro_node.crypto.identity import PeerId
from distro_node.protocol.audit.disputes import DRAW_LAG_ROUNDS
from distro_node.protocol.chain import audits as audits_module
from distro_node.protocol.chain import shares as shares_module
from distro_node.protocol.chain.audits import AuditLedger
from distro_node.protocol.chain.entry_store import EntryStore
from distro_node.protocol.chain.ledger import Ledger
from distro_node.protocol.chain.saved_chain import encode_state, restored_ledger
from distro_node.protocol.wire.checkpoint import Checkpoint
from distro_node.protocol.wire.errors import ProtocolError
from distro_node.protocol.wire.messages import RecordId
from distro_node.protocol.wire.saved_state import Restorable
from seeds import seeds
from simulation.audited_chain import GOOD, LOW, SURE, AuditedChain, VouchedChain
from simulation.chain import Chain

# Private here: `_chain`: the chain of a ledger, for its indexes and their attributes.
ROUNDS = 60


@pytest.fixture(autouse=True)
def sparse_states(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep few of the older states, so that these chains are long enough to lack some."""
    monkeypatch.setattr(shares_module, "_SPACING", 8)
    monkeypatch.setattr(audits_module, "_SPACING", 16)
    monkeypatch.setattr(audits_module, "_LATEST", 16)
    monkeypatch.setattr(audits_module, "_SAVED_SPACING", 32)


class Spilled:
    """Entries in memory, as a spill file has them."""

    def __init__(self, ledger: Ledger) -> None:
        self.entries = [ledger.raw(round_) for round_ in range(len(ledger))]

    def put(self, entry: bytes) -> int:
        self.entries.append(entry)
        return len(self.entries) - 1

    def get(self, offset: int) -> bytes:
        return self.entries[offset]


def stored(ledger: Ledger) -> EntryStore:
    """Return the chain's entries as a restart has them."""
    return EntryStore.stored(Spilled(ledger), list(range(len(ledger))))


def restored(
    ledger: Ledger, state: bytes | None = None, entries: EntryStore | None = None, **options: Any
) -> Ledger:
    """Return the chain as a restart restores it."""
    entries = stored(ledger) if entries is None else entries
    saved = encode_state(ledger) if state is None else state
    return restored_ledger(ledger.manifest, saved, entries, verify=ledger.verify, **options)


def walked(ledger: Ledger) -> Ledger:
    """Return the chain as a node has it that follows all records."""
    found = Ledger(ledger.manifest, verify=ledger.verify)
    for round_ in range(len(ledger)):
        found.append(ledger[round_], verified=True)
    return found


def eventful(chain: Chain, seed: int, rounds: int = ROUNDS) -> Ledger:
    """Let members come, go, fall silent, contradict themselves, lead badly and miss their updates."""
    dice = random.Random(seed)
    spare = list(range(10, 40))
    while chain.round < rounds:
        here, parts = chain.membership.peers, dict[str, Any]()
        due = chain.ledger.assignments.due(chain.round)
        if not chain.manifest.aggregates_in(chain.round) and dice.random() < 0.5:
            working = [peer for peer in here if peer in due and dice.random() < 0.8]
            newer = chain.manifest.version + (dice.random() < 0.9)
            parts["updates"] = [
                chain.update(peer, capacity=dice.randrange(1, 9000), max_version=newer)
                for peer in working
            ]
        event, peer = dice.random(), dice.choice(here)
        silent: list[PeerId] = []
        if event < 0.2:
            parts["admitted"] = [chain.admission(spare.pop())] if spare else []
        elif event < 0.3 and len(here) > 4:
            parts["departed"] = [chain.silence(peer)]
            silent = [peer]
            if "updates" in parts:
                parts["updates"] = [each for each in parts["updates"] if each.peer != peer]
        elif event < 0.35 and len(here) > 4:
            parts["evidence"] = (chain.evidence(peer),)
        elif event < 0.55:
            parts["slot"] = dice.randrange(2, 5)
        if isinstance(chain, AuditedChain):
            parts["audits"] = chain.audits(dice.choice([SURE, SURE, GOOD, LOW]))
            parts["reaudits"] = reaudits(chain, dice)
        if isinstance(chain, AggregatedChain) and chain.manifest.aggregates_in(chain.round):
            chain.lying = {peer for peer in here if dice.random() < 0.2}
            parts["updates"] = [each for each in chain.aggregates() if each.peer not in silent]
        record = chain.record(**parts)
        try:
            chain.ledger.append(chain.decide(record, slot=record.slot, silent=silent))
        except ProtocolError:
            # Not every combination is allowed.
            chain.grow()
    return chain.ledger


def reaudits(chain: AuditedChain, dice: random.Random) -> tuple[Any, ...]:
    found = []
    for first, dispute in chain.work.reputation.disputes.items():
        if dispute.since + DRAW_LAG_ROUNDS < chain.round:
            for peer in chain.work.reputation.pending_reauditors(first):
                scores = None if dice.random() < 0.5 else [SURE] * min(first.share, 8)
                entry = chain.again(peer, first, scores)
                with suppress(ProtocolError):
                    chain.work.reaudit_of(entry)
                    found.append(entry)
    found.sort(key=lambda entry: (entry.reauditor, entry.auditor, entry.round))
    return tuple({(e.reauditor, e.auditor, e.round): e for e in found}.values())


CHAINS: dict[str, Callable[[], Chain]] = {
    "plain": lambda: Chain(8, snapshot_interval=7, version_notice=8),
    "overlap": lambda: Chain(8, overlap=True, snapshot_interval=7),
    "crash": lambda: Chain(8, fault_model="crash"),
    "audits": lambda: VouchedChain(5),
    "audits with overlap": lambda: VouchedChain(5, overlap=True),
    "committees": lambda: AggregatedChain(12),
}


@cache
def ledger_of(kind: str, seed: int) -> Ledger:
    return eventful(CHAINS[kind](), seed)


def answers(ledger: Ledger) -> dict[str, Any]:
    """Return what the chain says about all its rounds."""
    end, rounds = len(ledger), range(len(ledger) + 1)
    assignments, work = ledger.assignments, ledger.find(AuditLedger)
    return {
        "parents": [ledger.parent(r) for r in rounds],
        "members": [ledger.membership(r) for r in rounds],
        "orders": [list(ledger.membership(r).expelled) for r in rounds],
        "votes": [ledger.votes(r) for r in rounds],
        "leaders": [[ledger.leaders(r)[slot] for slot in range(1, 9)] for r in rounds],
        "versions": [ledger.versions[r] for r in rounds],
        "shares": [assignments.shares(r) for r in rounds],
        "cursors": [assignments.cursors(r) for r in rounds[1:]],
        "weights": [ledger.update_weights(ledger.record(r)) for r in range(1, end)],
        "bytes": [ledger.update_bytes(r, end) for r in rounds],
        "final": (ledger.final, ledger.justified_round, ledger.finality_set, ledger.finality_votes),
        "snapshot": ledger.snapshot,
        "earned": None if work is None else [work.epoch(r) for r in rounds],
        "reputation": None if work is None else work.reputation.state(),
        "root": None if work is None else work.contributions.root,
        "raw": [ledger.raw(r) for r in range(end)],
    }


@pytest.mark.parametrize("seed", seeds(8))
@pytest.mark.parametrize("kind", CHAINS)
def test_a_restored_chain_gives_all_answers_of_a_walked_one(kind: str, seed: int) -> None:
    ledger = ledger_of(kind, seed)
    found = restored(ledger)
    assert answers(found) == answers(walked(ledger))


@pytest.mark.parametrize("seed", seeds(8))
@pytest.mark.parametrize("kind", CHAINS)
def test_a_restored_chain_continues_and_is_cut_as_a_walked_one(kind: str, seed: int) -> None:
    """The state says everything that the indexes know."""
    ledger = ledger_of(kind, seed)
    end = knowledge(ledger)
    for length in range(0, len(ledger), 13):
        found = restored(ledger.truncated(length))
        for round_ in range(length, len(ledger)):
            found.append(ledger[round_], verified=True)
        assert knowledge(found) == end, length
        whole, cut = restored(ledger), knowledge(walked(ledger.truncated(length)))
        assert knowledge(whole.truncated(length)) == cut, length
        whole.cut(length)
        assert knowledge(whole) == cut, length


def knowledge(ledger: Ledger) -> list[Any]:
    """Return the states of all indexes, without the older reputations that are kept to save time."""
    found = ledger.index_states()
    for index, state in zip(ledger._chain.indexes, found, strict=True):
        if isinstance(index, AuditLedger):
            del state[1]
    return found


def test_the_state_of_a_restored_chain_is_the_one_it_was_restored_from() -> None:
    for kind in CHAINS:
        ledger = ledger_of(kind, 0)
        state = encode_state(ledger)
        assert encode_state(restored(ledger, state)) == state


def test_old_shares_and_reputations_are_recomputed_from_the_entries() -> None:
    """Few states are saved: the others follow from the records, which stay on the disk."""
    ledger = ledger_of("audits", 0)
    found, whole = restored(ledger), walked(ledger)
    for length in (9, 21, 40):
        mine, theirs = (each.truncated(length).index(AuditLedger) for each in (found, whole))
        assert mine.reputation.state() == theirs.reputation.state()
        assert found.assignments.shares(length) == whole.assignments.shares(length)


@pytest.mark.parametrize("by", ["a lease", "a checkpoint"])
def test_a_state_says_only_what_the_records_show(by: str) -> None:
    """A lease and a checkpoint advance finality for one node and one run: a restart follows the records,
    and the node's own final record is in another file."""
    chain = Chain(8).grow_until(6)
    here, lost = chain.membership.peers[:3], chain.membership.peers[3:]
    chain.grow(silent=lost, signers=here, departed=[chain.silence(peer) for peer in lost])
    chain.grow_until(14)
    ledger = chain.ledger
    assert ledger.final_round < 9
    if by == "a lease":
        assert ledger.move_finality_on(12, frozenset(here))
    else:
        ledger.checkpoint = Checkpoint(9, ledger.parent(10))
        assert ledger.believe_checkpoint()
    assert ledger.final_round >= 9
    for _ in range(3):
        shown, found = walked(ledger), restored(ledger)
        assert encode_state(ledger) == encode_state(shown)
        assert encode_state(ledger.truncated(7)) == encode_state(shown.truncated(7))
        assert found.final == shown.final != ledger.final
        assert found.finality_set == shown.finality_set
        chain.grow()


def test_a_checkpoint_is_compared_with_restored_records() -> None:
    ledger = ledger_of("plain", 0)
    known = Checkpoint(4, ledger.parent(5))
    assert restored(ledger, checkpoint=known).anchored
    with pytest.raises(ProtocolError) as refused:
        restored(ledger, checkpoint=Checkpoint(4, RecordId(bytes(32))))
    assert refused.value.reason == "checkpoint"
    later = Checkpoint(len(ledger), RecordId(bytes(32)))
    assert not restored(ledger, checkpoint=later).anchored


def test_the_state_of_another_length_or_swarm_is_refused() -> None:
    ledger, audited = ledger_of("plain", 0), ledger_of("audits", 0)
    for state in (
        encode_state(ledger.truncated(len(ledger) - 1)),
        encode_state(audited.truncated(len(ledger))),
        b"",
        b"\x93\x00\xc0\x90",
    ):
        with pytest.raises(ProtocolError):
            restored(ledger, state)


@pytest.mark.parametrize("kind", CHAINS)
def test_damaged_state_raises_the_protocol_error_or_is_a_state(kind: str) -> None:
    """Bytes, counts and types are checked. What is well-formed but false is the node's to recognise."""
    ledger, dice = ledger_of(kind, 0), random.Random(kind)
    # The same for all, since none is continued.
    state, entries, refused = encode_state(ledger), stored(ledger), 0
    for _ in range(100):
        damaged = bytearray(state)
        for _ in range(dice.randrange(1, 4)):
            damaged[dice.randrange(len(damaged))] = dice.randrange(256)
        try:
            restored(ledger, bytes(damaged), entries)
        except ProtocolError:
            refused += 1
    assert 0 < refused < 100
    for length in range(0, len(state), 2999):
        with pytest.raises(ProtocolError):
            restored(ledger, state[:length], entries)


def test_every_attribute_that_an_index_changes_is_in_its_state() -> None:
    """An attribute that a later change adds and forgets here would be empty after a restart."""
    # `_again` and `_open_work` are recomputed; of `_kept` and `_shares` only some is saved.
    recomputed = {"_again", "_open_work", "_kept", "_shares"}
    for kind in CHAINS:
        ledger = ledger_of(kind, 0)
        found = restored(ledger)
        pairs = zip(ledger._chain.indexes, found._chain.indexes, strict=True)
        for mine, theirs in pairs:
            for name in vars(mine).keys() - recomputed:
                here = plain(getattr(mine, name))
                if isinstance(here, list | dict | set | int):
                    assert here == plain(getattr(theirs, name)), (kind, name)


def plain(value: Any) -> Any:
    return value.state() if isinstance(value, Restorable) else value
