"""Deliberate faults in the protocol, to test that the simulator finds them: about one per invariant.

Each replaces whole functions in the running classes, and names the scenario in which the rule matters
and the number of seeds within which it must be found. Smaller faults are left to unit tests.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

from distro_node.crypto.hashing import ContentId
from distro_node.crypto.identity import PeerId
from distro_node.protocol.audit import reputation
from distro_node.protocol.chain import (
    certificates,
    committees,
    consensus,
    finality,
    fork_choice,
    ledger,
    record_checks,
)
from distro_node.protocol.chain import (
    fork_search as chain_comparison,
)
from distro_node.protocol.chain.admissions import check_admissions
from distro_node.protocol.committee.draw import Committee
from distro_node.protocol.member import (
    member,
    message_store,
    proposal,
    replica,
    round,
    update_fetch,
)
from distro_node.protocol.wire.membership import quorum
from simulation.faults import Family
from simulation.liars import FALSE_AGGREGATE, HISTORY
from simulation.oracle import judging_under
from simulation.scenario import Failure, Scenario, draw_scenario, run

# Private here: `_vote`: broken on purpose.

Patch = tuple[object, str, Any]
"""A replacement: the owner, the attribute, the new value."""


@dataclass(frozen=True)
class Mutation:
    """A fault, and where it shows."""

    name: str
    patches: Callable[[], list[Patch]]
    family: Family
    seeds: int
    """Number of seeds within which it must be found."""
    invariant: str
    """The invariant that must detect it."""
    lies: tuple[str, ...] = ()
    """What the liars do, instead of the lies drawn for them."""
    shown_by: int = 0
    """A seed that finds it, to be tried first."""


@dataclass(frozen=True)
class Catch:
    """How a mutation was found."""

    mutation: Mutation
    seeds: int
    """Number of seeds that it took."""
    failure: Failure


def table() -> list[str]:
    """Run all mutations and return lines on how each was found."""
    lines = [f"{'mutation':44} {'family':8} {'found by':12} {'seeds':>5} {'of':>4}"]
    for mutation in MUTATIONS:
        catch = find(mutation)
        found = ("NOT FOUND", "-") if catch is None else (catch.failure.invariant, catch.seeds)
        lines.append(
            f"{mutation.name:44} {mutation.family:8} {found[0]:12} {found[1]:>5} {mutation.seeds:4}"
        )
    return lines


def find(mutation: Mutation, first: int = 0) -> Catch | None:
    """Run seeds until one fails, beginning with this one; None if all of them pass."""
    for seed in sorted(range(mutation.seeds), key=lambda seed: seed != first):
        scenario = draw_scenario(seed, mutation.family)
        if mutation.lies:
            scenario = _lying(scenario, mutation.lies)
            if not scenario.liars:
                continue
        failure = run_mutated(scenario, mutation)
        if failure is not None:
            return Catch(mutation, seed + 1, failure)
    return None


def run_mutated(scenario: Scenario, mutation: Mutation) -> Failure | None:
    """Run a scenario with the fault active everywhere except in the oracle."""
    patches = mutation.patches()

    @contextmanager
    def sober() -> Iterator[None]:
        mutated = [(owner, name, getattr(owner, name)) for owner, name, _ in patches]
        for (owner, name, _), original in zip(patches, originals, strict=True):
            setattr(owner, name, original)
        yield
        for owner, name, value in mutated:
            setattr(owner, name, value)

    originals = [vars(owner)[name] for owner, name, _ in patches]
    with ExitStack() as stack:
        for owner, name, value in patches:
            stack.enter_context(patch.object(owner, name, value))
        stack.enter_context(judging_under(sober))
        return run(scenario).failure


def _lying(scenario: Scenario, lies: tuple[str, ...]) -> Scenario:
    # Only the founder can rewrite the history.
    founder = ((0, lies),) if HISTORY in lies else ()
    members = [index for index, _ in scenario.liars if index < scenario.members]
    liars = founder or tuple((index, lies) for index in members)
    return dataclasses.replace(scenario, liars=liars)


# The replacements


def _one_too_few() -> list[Patch]:
    def mutated(model: Any, members: int) -> int:
        return max(1, quorum(model, members) - 1)

    return [(consensus, "quorum", mutated), (certificates, "quorum", mutated)]


def _votes_for_every_proposal() -> list[Patch]:
    original = consensus.Consensus.add_proposal

    def add_proposal(self: Any, sender: Any, slot: int, record: Any) -> None:
        original(self, sender, slot, record)
        state = self._state(slot)
        state.proposal = record.id
        self.records[record.id] = record

    def votable(self: Any) -> Any:
        state = self._state(self.slot)
        votes = state.ballots["vote"].get(state.proposal)
        if state.proposal is None or (votes is not None and self._me in votes):
            return None
        return self.records[state.proposal]

    return [
        (consensus.Consensus, "check_proposal", lambda self, sender, slot, record: None),
        (consensus.Consensus, "add_proposal", add_proposal),
        (consensus.Consensus, "votable", votable),
    ]


def _believes_lone_signers() -> list[Patch]:
    return [
        (consensus, "silenced", lambda certificate, membership: set()),
        (consensus.Consensus, "doubts", lambda self, certificate: False),
    ]


def _forgets_evidence() -> list[Patch]:
    return [(proposal.Accusations, "wants", lambda self, peer: False)]


def _forgets_its_messages() -> list[Patch]:
    return [(member.Member, "restore", lambda self, envelopes, now: None)]


def _takes_any_certificate() -> list[Patch]:
    original = ledger.check_certificate

    def check(certificate: Any, **options: Any) -> None:
        subject = {"kind": certificate.kind, "round": certificate.round}
        subject |= {"parent": certificate.parent, "block": certificate.block}
        original(certificate, **(options | subject))

    return [(ledger, "check_certificate", check)]


def _prefers_the_lighter() -> list[Patch]:
    original = fork_choice.prefers

    def prefers(*chains: Any, **circumstances: Any) -> bool:
        return not original(*chains, **circumstances)

    return [(module, "prefers", prefers) for module in (fork_choice, chain_comparison)]


def _a_minority_makes_final() -> list[Patch]:
    return [(finality, "quorum", lambda model, members: 1)]


def _ignores_fingerprints() -> list[Patch]:
    original = round.Round._vote

    def vote(self: Any, standing: Any, now: float) -> Any:
        record = self.consensus.votable()
        if record is not None:
            standing = dataclasses.replace(standing, fingerprint=record.fingerprint)
        return original(self, standing, now)

    return [(round.Round, "_vote", vote)]


def _refunds_nothing() -> list[Patch]:
    def apply(record: Any, needed: Any, own_counted: bool, snapshot_due: bool) -> Any:
        return original(record, needed, own_counted=True, snapshot_due=snapshot_due)

    original = replica.Apply
    return [(replica, "Apply", apply)]


def _admits_anybody() -> list[Patch]:
    others = tuple(check for check in record_checks.CHECKS if check is not check_admissions)
    return [(record_checks, "CHECKS", others)]


def _keeps_everything() -> list[Patch]:
    original = message_store.MessageStore.put

    def put(self: Any, round: int, envelope: Any, limit: int) -> None:
        original(self, round, envelope, 1 << 40)

    return [(message_store.MessageStore, "put", put)]


def _judges_by_size() -> list[Patch]:
    """As the daemon once did, but not the simulator."""
    original = update_fetch.UpdateDownloads.arrived

    def arrived(self: Any, wanted: Any, *, decodes: bool) -> Any:
        # Updates of simulated members have even numbers of bytes.
        return original(self, wanted, decodes=decodes and wanted.size % 2 == 0)

    return [(update_fetch.UpdateDownloads, "arrived", arrived)]


def _believes_any_aggregator() -> list[Patch]:
    def first(
        committee: Committee, said: Mapping[PeerId, ContentId], present: object
    ) -> ContentId | None:
        return next((said[peer] for peer in committee if peer in said), None)

    return [(committees, "agreed_aggregate", first)]


def _shares_accounts() -> list[Patch]:
    return [(reputation.ReputationTable, "copy", lambda self: self)]


MUTATIONS = (
    Mutation("a quorum is one too few", _one_too_few, "crash", 10, "certificate"),
    Mutation(
        "votes for every proposal of a slot",
        _votes_for_every_proposal,
        "liars",
        # A slot in which votes are split ends before most second votes.
        80,
        "ballots",
        ("two proposals",),
        shown_by=76,
    ),
    Mutation(
        "believes what one liar signed",
        _believes_lone_signers,
        "liars",
        20,
        "available",
        ("false silence", "withhold"),
        shown_by=1,
    ),
    Mutation(
        "evidence is forgotten", _forgets_evidence, "liars", 20, "expelled", ("finalize and skip",)
    ),
    Mutation("its words are lost in a restart", _forgets_its_messages, "crash", 60, "ballots"),
    Mutation(
        "takes the certificate of another record",
        _takes_any_certificate,
        "liars",
        40,
        "certificate",
        ("stale certificate",),
        shown_by=7,
    ),
    Mutation("fork choice is reversed", _prefers_the_lighter, "all", 40, "fork choice", shown_by=2),
    Mutation(
        "a minority makes records final",
        _a_minority_makes_final,
        "network",
        40,
        "final",
        shown_by=6,
    ),
    Mutation(
        "fingerprints are not compared",
        _ignores_fingerprints,
        "liars",
        20,
        "parameters",
        ("wrong fingerprint",),
    ),
    Mutation("nothing is refunded", _refunds_nothing, "crash", 30, "refund"),
    Mutation(
        "admissions need no signature",
        _admits_anybody,
        "liars",
        20,
        "record",
        ("forged admission",),
    ),
    Mutation("the mailbox has no bound", _keeps_everything, "liars", 10, "memory", ("deluge",)),
    Mutation(
        "an update is judged by a size that was announced",
        _judges_by_size,
        "liars",
        20,
        "progress",
        ("two sizes",),
    ),
    Mutation("accounts are not copied", _shares_accounts, "audits", 10, "accounts"),
    Mutation(
        "any aggregator is believed",
        _believes_any_aggregator,
        "committees",
        20,
        "counts",
        (FALSE_AGGREGATE,),
        shown_by=9,
    ),
)
