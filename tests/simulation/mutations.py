"""Deliberate faults in the protocol, to see that the simulator finds them.

Each is one rule left out or turned round, put into the running classes; with it come the scenario in
which the rule matters, and a number of seeds within which it must have been found.
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
from distro_node.protocol.chain import (
    agreement,
    catching_up,
    certificates,
    checked,
    comparing,
    finality,
    fork,
    ledger,
    speaking,
)
from distro_node.protocol.chain.evidence import RULED_OUT
from distro_node.protocol.chain.panels import Panel
from distro_node.protocol.checks import accounts
from distro_node.protocol.member import fetching, mailbox, member, proposing, replica, round
from distro_node.protocol.wire.membership import quorum

from .faults import Family
from .idlers import FORGED_LOOKS
from .liars import FALSE_TALLY, HISTORY
from .oracle import judging_under
from .scenario import Failure, Scenario, draw_scenario, run

# Private here: `_vote`, `_supporters`, `_count`, `_lower`, `_take`: the very lines that are
# broken on purpose.

Patch = tuple[object, str, Any]
"""What to put where: the owner, the attribute, the new value."""


@dataclass(frozen=True)
class Mutation:
    """A fault, and where it shows."""

    name: str
    patches: Callable[[], list[Patch]]
    family: Family
    seeds: int
    """Within how many it must be found."""
    invariant: str
    """By which."""
    lies: tuple[str, ...] = ()
    """What the liars do, instead of what they drew."""


@dataclass(frozen=True)
class Catch:
    """How a mutation was found."""

    mutation: Mutation
    seeds: int
    """How many it took."""
    failure: Failure


def table() -> list[str]:
    """Hunt all mutations and write down how each was found."""
    lines = [f"{'mutation':44} {'family':8} {'found by':12} {'seeds':>5} {'of':>4}"]
    for mutation in MUTATIONS:
        catch = find(mutation)
        found = ("NOT FOUND", "-") if catch is None else (catch.failure.invariant, catch.seeds)
        lines.append(
            f"{mutation.name:44} {mutation.family:8} {found[0]:12} {found[1]:>5} {mutation.seeds:4}"
        )
    return lines


def find(mutation: Mutation) -> Catch | None:
    """Run seeds until one fails; None if all of them pass."""
    for seed in range(mutation.seeds):
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
    """Run a scenario with the fault in place, everywhere but in the oracle's head."""
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
    # The founder alone has a history of its own to tell.
    founder = ((0, lies),) if HISTORY in lies else ()
    members = [index for index, _ in scenario.liars if index < scenario.members]
    liars = founder or tuple((index, lies) for index in members)
    return dataclasses.replace(scenario, liars=liars)


# What the mutations put in the place of the rules


def _one_too_few() -> list[Patch]:
    def mutated(model: Any, members: int) -> int:
        return max(1, quorum(model, members) - 1)

    return [(agreement, "quorum", mutated), (certificates, "quorum", mutated)]


def _allows(kind: str, *still_ruled_out: str) -> list[Patch]:
    rules = {**RULED_OUT, kind: frozenset(still_ruled_out)}
    return [(agreement, "RULED_OUT", rules)]


def _votes_for_every_proposal() -> list[Patch]:
    original = agreement.Agreement.add_proposal

    def add_proposal(self: Any, sender: Any, slot: int, record: Any) -> None:
        original(self, sender, slot, record)
        state = self._state(slot)
        state.proposal = record.id
        self.records[record.id] = record

    def votable(self: Any) -> Any:
        state = self._state(self.slot)
        tally = state.ballots["vote"].get(state.proposal)
        if state.proposal is None or (tally is not None and self._me in tally):
            return None
        return self.records[state.proposal]

    return [
        (agreement.Agreement, "check_proposal", lambda self, sender, slot, record: None),
        (agreement.Agreement, "add_proposal", add_proposal),
        (agreement.Agreement, "votable", votable),
    ]


class _Everything(frozenset):  # type: ignore[type-arg]  # it holds whatever is asked for
    def __contains__(self, item: object) -> bool:
        return True


def _votes_without_the_data() -> list[Patch]:
    original = round.Round._vote

    def vote(self: Any, standing: Any, now: float) -> Any:
        return original(self, dataclasses.replace(standing, held=_Everything()), now)

    return [(round.Round, "_vote", vote)]


def _ignores_parents() -> list[Patch]:
    def check(self: Any, record: Any) -> bool:
        return record.round == self.number

    return [(member, "parent_of", lambda message: None), (round.Round, "_check", check)]


def _believes_one() -> list[Patch]:
    def certifies(signers: list[tuple[Any, int]], membership: Any, votes: Any, model: Any) -> bool:
        silent = 0
        for _, mask in signers:
            silent |= mask
        for peer, _ in signers:
            silent &= ~membership.bit(peer)
        return bool(signers) and len(signers) >= quorum(model, len(membership) - silent.bit_count())

    return [(certificates, "_certifies", certifies)]


def _believes_lone_signers() -> list[Patch]:
    return [
        (agreement, "silenced", lambda certificate, membership: set()),
        (agreement.Agreement, "doubts", lambda self, certificate: False),
    ]


def _forgets_evidence() -> list[Patch]:
    return [(proposing.Accusations, "wants", lambda self, peer: False)]


def _forgets_its_words() -> list[Patch]:
    return [(member.Member, "restore", lambda self, envelopes, now: None)]


def _takes_any_certificate() -> list[Patch]:
    original = ledger.check_certificate

    def check(certificate: Any, **options: Any) -> None:
        subject = {"kind": certificate.kind, "round": certificate.round}
        subject |= {"parent": certificate.parent, "block": certificate.block}
        original(certificate, **(options | subject))

    return [(ledger, "check_certificate", check)]


def _prefers_the_lighter() -> list[Patch]:
    count, lower = fork._count, fork._lower
    return [
        (fork, "_count", lambda *arguments: -count(*arguments)),
        (fork, "_lower", lambda *arguments: not lower(*arguments)),
    ]


def _goes_back_behind_what_is_final() -> list[Patch]:
    """As fork choice was before there was a final prefix: the longer history of two wins."""

    def prefers(ours: Any, other: Any, since: int, **_: Any) -> bool:
        return len(other) > len(ours)

    patched: list[Patch] = [(module, "prefers", prefers) for module in (fork, comparing)]
    return [(ledger.Ledger, "floor", property(lambda self: 0)), *patched]


def _a_minority_makes_final() -> list[Patch]:
    return [(finality, "quorum", lambda model, members: 1)]


def _a_majority_makes_final() -> list[Patch]:
    return [(finality, "quorum", lambda model, members: members // 2 + 1)]


def _who_is_silent_is_not_asked() -> list[Patch]:
    original = finality._supporters

    def supporters(record: Any, memberships: Any) -> Any:
        contributors, witnesses, gone = original(record, memberships)
        return contributors, witnesses, (*gone, *(entry.peer for entry in record.departed))

    return [(finality, "_supporters", supporters)]


def _prefers_what_is_not_final() -> list[Patch]:
    original = fork.prefers

    def prefers(ours: Any, other: Any, since: int, **options: Any) -> bool:
        if other.final_round >= since > ours.final_round:
            return False
        return original(ours, other, since, **options)

    return [(module, "prefers", prefers) for module in (fork, comparing)]


def _asks_for_a_head_for_ever() -> list[Patch]:
    """As the daemon did: an entry that a peer alone has was taken for its proof, again and again."""
    # The rule stands there.
    original = catching_up.CatchingUp._take

    def take(self: Any, peer: Any, question: Any, answer: Any) -> None:
        if peer in self._heads and question.most == 1 and question.round >= len(self._ledger):
            self._judge_head(peer, question, answer)
        else:
            original(self, peer, question, answer)

    return [(catching_up.CatchingUp, "_take", take)]


def _ignores_fingerprints() -> list[Patch]:
    original = round.Round._vote

    def vote(self: Any, standing: Any, now: float) -> Any:
        record = self.agreement.votable()
        if record is not None:
            standing = dataclasses.replace(standing, fingerprint=record.fingerprint)
        return original(self, standing, now)

    return [(round.Round, "_vote", vote)]


def _refunds_nothing() -> list[Patch]:
    def apply(record: Any, needed: Any, own_counted: bool, snapshot_due: bool) -> Any:
        return original(record, needed, own_counted=True, snapshot_due=snapshot_due)

    original = replica.Apply
    return [(replica, "Apply", apply)]


def _listens_to_usurpers() -> list[Patch]:
    original = agreement.Agreement.add_proposal

    def add_proposal(self: Any, sender: Any, slot: int, record: Any) -> None:
        with patch.object(agreement.Agreement, "leader", lambda self, slot: sender):
            original(self, sender, slot, record)

    return [
        (agreement.Agreement, "add_proposal", add_proposal),
        (agreement.Agreement, "check_proposal", lambda self, sender, slot, record: None),
    ]


def _admits_anybody() -> list[Patch]:
    return [(ledger, "_check_admissions", lambda *arguments: None)]


def _lets_anybody_say_goodbye_for_others() -> list[Patch]:
    return [(ledger, "_check_departure", lambda *arguments: None)]


def _keeps_everything() -> list[Patch]:
    original = mailbox.Mailbox.put

    def put(self: Any, round: int, envelope: Any, limit: int) -> None:
        original(self, round, envelope, 1 << 40)

    return [(mailbox.Mailbox, "put", put)]


def _builds_on_nothing() -> list[Patch]:
    return [(agreement.Agreement, "_founded", lambda self: [None])]


def _refuses_second_ballots() -> list[Patch]:
    """As the protocol did before the simulator found that it stops the swarm."""
    original = agreement.Agreement.add_ballot

    def add_ballot(self: Any, kind: Any, sender: Any, ballot: Any, signature: bytes) -> None:
        state = self._state(ballot.slot)
        for block, tally in state.ballots[kind].items():
            if block != ballot.block and sender in tally:
                raise agreement.ProtocolError("equivocation", "a second ballot")
        original(self, kind, sender, ballot, signature)

    return [(agreement.Agreement, "add_ballot", add_ballot)]


def _judges_by_size() -> list[Patch]:
    """As the daemon did, and the simulator did not."""
    original = fetching.Fetching.arrived

    def arrived(self: Any, wanted: Any, *, decodes: bool) -> Any:
        # Updates of simulated members come to even numbers of bytes.
        return original(self, wanted, decodes=decodes and wanted.size % 2 == 0)

    return [(fetching.Fetching, "arrived", arrived)]


def _takes_any_secret() -> list[Patch]:
    return [(checked.CheckedWork, "_bound_to", lambda self, peer, secret, round: round > 0)]


def _believes_anybody_of_a_panel() -> list[Patch]:
    def first(panel: Panel, said: Mapping[PeerId, ContentId], present: object) -> ContentId | None:
        return next((said[peer] for peer in panel if peer in said), None)

    return [(speaking, "agreed_tally", first)]


def _shares_accounts() -> list[Patch]:
    return [(accounts.Accounts, "copy", lambda self: self)]


MUTATIONS = (
    Mutation("a quorum is one too few", _one_too_few, "crash", 10, "certificate"),
    Mutation(
        "votes for every proposal of a slot",
        _votes_for_every_proposal,
        "liars",
        20,
        "ballots",
        ("two proposals",),
    ),
    Mutation(
        "finalizes what it skipped",
        lambda: _allows("finalize", "finalize"),
        "network",
        60,
        "ballots",
    ),
    Mutation("votes before it holds the data", _votes_without_the_data, "crash", 10, "available"),
    Mutation(
        "parents are not compared", _ignores_parents, "liars", 20, "ballots", ("wrong parent",)
    ),
    Mutation(
        "silence is believed from one",
        _believes_one,
        "liars",
        10,
        "certificate",
        ("false silence",),
    ),
    Mutation(
        "believes what one liar signed",
        _believes_lone_signers,
        "liars",
        20,
        "available",
        ("false silence", "withhold"),
    ),
    Mutation(
        "evidence is forgotten", _forgets_evidence, "liars", 20, "expelled", ("finalize and skip",)
    ),
    Mutation("its words are lost in a restart", _forgets_its_words, "crash", 60, "ballots"),
    Mutation(
        "takes the certificate of another record",
        _takes_any_certificate,
        "liars",
        40,
        "certificate",
        ("stale certificate",),
    ),
    Mutation("fork choice is reversed", _prefers_the_lighter, "all", 40, "fork choice"),
    Mutation(
        "goes back behind what is final",
        _goes_back_behind_what_is_final,
        "liars",
        10,
        "final",
        (HISTORY,),
    ),
    Mutation("a minority makes records final", _a_minority_makes_final, "network", 40, "final"),
    Mutation("a majority makes records final", _a_majority_makes_final, "cut", 20, "final"),
    Mutation("who is silent is not asked", _who_is_silent_is_not_asked, "network", 40, "final"),
    Mutation("what is final weighs nothing", _prefers_what_is_not_final, "network", 40, "progress"),
    Mutation(
        "a head is asked for again and again",
        _asks_for_a_head_for_ever,
        "liars",
        20,
        "progress",
        ("false heights",),
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
    Mutation("anybody may propose", _listens_to_usurpers, "liars", 20, "ballots", ("usurp",)),
    Mutation(
        "admissions need no signature",
        _admits_anybody,
        "liars",
        20,
        "record",
        ("forged admission",),
    ),
    Mutation(
        "leaves need no signature",
        _lets_anybody_say_goodbye_for_others,
        "liars",
        20,
        "record",
        ("forged leave",),
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
    Mutation(
        "anybody looks at whom it likes",
        _takes_any_secret,
        "looks",
        10,
        "record",
        (FORGED_LOOKS,),
    ),
    Mutation("accounts are not copied", _shares_accounts, "looks", 10, "accounts"),
    Mutation(
        "a panel's loudest is believed",
        _believes_anybody_of_a_panel,
        "speakers",
        20,
        "counts",
        (FALSE_TALLY,),
    ),
    Mutation("any slot may start afresh", _builds_on_nothing, "network", 60, "ballots"),
    Mutation(
        "a second ballot never counts",
        _refuses_second_ballots,
        "liars",
        40,
        "progress",
        ("two votes", "withhold from some"),
    ),
)
