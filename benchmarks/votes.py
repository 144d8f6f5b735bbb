"""Sybil attacks on votes that cost work: what identities without work, or with a tenth of it, achieve.

    python benchmarks/votes.py [--rounds 1000] [--checks 1000000] [--seeds 5] [--json FILE]

A swarm of twenty honest members, one of them the founder, and a thousand identities of an adversary
that computes a tenth of all sequences. The program's own rules decide (`protocol/audit/`): who
audits whom, what follows from a low score, who has which votes. Scores are drawn as measured
(`audit_scores.py`). Nothing is trained here, and no message is lost.

For each attack: the adversary's fraction of all votes, at most and at last, and what it would be
with one vote for each member that has some; its fraction of the updates in the step; the number of
its identities that were excluded, and of honest members that were. Then --checks audits of honest
members alone.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from audit_scores import EVERY, LEVELS, SHARE, UpdateScores
from command_line import new_parser, write_json
from distro_node.crypto.hashing import content_id
from distro_node.crypto.identity import PeerId
from distro_node.protocol.audit.disputes import (
    DRAW_LAG_ROUNDS,
    MAX_REAUDITED_SEQUENCES,
    REAUDIT_ROUNDS,
)
from distro_node.protocol.audit.lottery import draw_audit
from distro_node.protocol.audit.reputation import Audit, Reaudit, RecordedWork, ReputationTable
from distro_node.protocol.chain.commitments import SECRET_BYTES
from distro_node.protocol.sampling.update_weights import by_share

HONEST, CROWD = 20, 1000
SETTLED = 200
"""Rounds after which votes are evaluated: at first the founder alone has votes."""


@dataclass
class Agent:
    """One identity."""

    peer: PeerId
    share: int
    """Sequences assigned to it in a round."""
    works: float = 1.0
    """The fraction of its rounds in which it does its work."""
    until_credible: bool = False
    """Whether it stops working as soon as it has votes."""
    hostile: bool = False
    lies: bool = False
    """Whether it reports that honest members do nothing, and that its own kind works."""


class Swarm:
    """Some rounds of a swarm in which work is audited."""

    def __init__(
        self,
        seed: int,
        honest: list[Agent],
        crowd: Callable[[Swarm], Agent] | None = None,
        every: int = EVERY,
        door_costs: bool = True,
    ) -> None:
        """`crowd` makes the adversary's next identity; it always has `CROWD` waiting for admission.
        `door_costs`: whether admission costs compute."""
        self.random = random.Random(seed)
        self.accounts = ReputationTable(honest[0].peer, LEVELS)
        self.members = {honest[0].peer: honest[0]}
        self.honest = honest
        self.every = every
        self.door_costs = door_costs
        # A tenth of all: a ninth of what the honest have.
        self.budget = sum(agent.share for agent in honest) / 9
        self.made = self.audits = self.again = self.accused = self.found = 0
        self.half_vote: int | None = None
        """The round in which half of the honest members had votes."""
        self.votes: list[float] = []
        """The adversary's fraction, by round; `heads`: the same with one vote for each member that
        has some."""
        self.heads: list[float] = []
        self.update_shares: list[float] = []
        """Its fraction of the updates in the step."""
        self._seen: list[Audit] = []
        self._waiting = honest[1:]
        self._crowd = crowd
        self._round = 0
        self._updates: dict[tuple[PeerId, int], UpdateScores] = {}

    def step(self) -> None:
        """Run one round."""
        self._admit()
        now, accounts = self._round, self.accounts
        shares = {peer: agent.share for peer, agent in self.members.items()}
        for peer, agent in self.members.items():
            idle = agent.until_credible and peer in accounts.votes
            worked = not idle and self.random.random() < agent.works
            self._updates[peer, now] = UpdateScores(worked, self.random.gauss(0, 1))
        # The audits of a round's updates are in the next record.
        audits, self._seen = self._seen, self._first_audits(shares)
        again = [audit for first in list(accounts.disputes) for audit in self._reaudits(first)]
        facts = RecordedWork(now, shares, tuple(audits), tuple(again), self.random.randbytes(32))
        accounts.close(facts, self.members)
        self.audits += len(audits)
        self.again += len(again)
        self._forget()
        self._show_the_door()
        self._note()
        self._round += 1

    def _admit(self) -> None:
        """Admit members to all free places: drawn by the compute of each, if admission costs
        compute, or else by head."""
        votes = self.accounts.votes
        voters = sum(peer in votes for peer in self.members)
        free = places(voters) - (len(self.members) - voters)
        for _ in range(free):
            honest = [agent.share if self.door_costs else 1 for agent in self._waiting]
            crowd = (self.budget if self.door_costs else CROWD) if self._crowd else 0
            drawn = self.random.random() * (sum(honest) + crowd)
            if self._crowd and drawn < crowd:
                agent = self._crowd(self)
                self.made += 1
            elif honest:
                agent = self.random.choices(self._waiting, honest)[0]
                self._waiting.remove(agent)
            else:
                return
            self.members[agent.peer] = agent

    def _first_audits(self, shares: dict[PeerId, int]) -> list[Audit]:
        record = self.random.randbytes(32)
        audits = []
        for peer in self.accounts.votes:
            if (auditor := self.members.get(peer)) is None:
                continue
            audit = draw_audit(
                self.random.randbytes(SECRET_BYTES),
                record,
                peer,
                shares,
                by_share(shares),
                self.accounts.votes,
                self.accounts.audit_probability(peer, self.every),
            )
            if audit is not None:
                score = self._score(auditor, audit.peer, self._round, audit.sequence)
                share, sequence = shares[audit.peer], audit.sequence
                audits.append(Audit(peer, audit.peer, self._round, share, score, sequence=sequence))
        return audits

    def _reaudits(self, first: Audit) -> list[Reaudit]:
        audits = []
        for peer in sorted(self.accounts.pending_reauditors(first) & self.members.keys()):
            if first.peer not in self.members:
                break
            scores = {
                sequence: self._score(self.members[peer], first.peer, first.round, sequence)
                for sequence in range(min(self.members[first.peer].share, MAX_REAUDITED_SEQUENCES))
            }
            bound = self.accounts.disputes[first].bound
            audits.append(Reaudit.of_scores(peer, first, scores, bound))
        return audits

    def _forget(self) -> None:
        for key in [
            key
            for key in self._updates
            if key[1] <= self._round - 2 * REAUDIT_ROUNDS - DRAW_LAG_ROUNDS
        ]:
            del self._updates[key]

    def _show_the_door(self) -> None:
        for peer, agent in list(self.members.items()):
            if self.accounts.updates_count(peer):
                continue
            # It would come back with the same reputation: excluded members stay out.
            del self.members[peer]
            if agent.hostile:
                self.found += 1
            else:
                self.accused += 1

    def _note(self) -> None:
        votes = self.accounts.votes
        hostile = {peer for peer, agent in self.members.items() if agent.hostile}
        self.votes.append(sum(votes.get(peer, 0) for peer in hostile) / sum(votes.values()))
        self.heads.append(len(hostile & votes.keys()) / len(votes))
        self.update_shares.append(len(hostile) / len(self.members))
        voting = sum(agent.peer in votes for agent in self.honest)
        if self.half_vote is None and 2 * voting >= len(self.honest):
            self.half_vote = self._round

    def _score(self, reauditor: Agent, peer: PeerId, round_: int, sequence: int) -> int:
        """Return a member's score of one sequence, in thousandths."""
        if reauditor.lies:
            return 15_000 if self.members[peer].hostile else 0
        share = self.members[peer].share
        return self._updates[peer, round_].drawn(self.random, share, sequence)


def places(voters: int) -> int:
    """Return the number of members without votes that are admitted beside `voters` with votes: the
    admission rule assumed here. Each update has the same weight in the step, so they have at most a
    third of it."""
    return max(2, voters // 2)


def honest_members(shares: list[int]) -> list[Agent]:
    """Return members that do their assigned work."""
    return [
        Agent(PeerId(content_id(b"honest %d" % number)), share)
        for number, share in enumerate(shares)
    ]


@dataclass
class Crowd:
    """The adversary: the identities that its compute allows work, the others do nothing."""

    share: int
    """Sequences of each working identity."""
    works: float = 1.0
    until_credible: bool = False
    lies: bool = False
    idle: bool = False
    """Whether no identity works."""

    def __call__(self, swarm: Swarm) -> Agent:
        """Return the next identity."""
        peer = PeerId(content_id(b"crowd %d" % swarm.made))
        mine = [agent for agent in swarm.members.values() if agent.hostile]
        spent = sum(agent.share * agent.works for agent in mine)
        left = 0 if self.idle else round((swarm.budget - spent) / self.works)
        if left < 1:
            return Agent(peer, SHARE, works=0.0, hostile=True, lies=self.lies)
        return Agent(
            peer,
            min(self.share, left),
            works=self.works,
            until_credible=self.until_credible,
            hostile=True,
            lies=self.lies,
        )


EQUAL = [SHARE] * HONEST
UNEQUAL = [SHARE >> number % 5 for number in range(HONEST)]
ATTACKS: dict[str, tuple[list[int], Crowd | None]] = {
    "nobody": (EQUAL, None),
    "all do nothing, and the door is free": (EQUAL, Crowd(SHARE, idle=True)),
    "all do nothing": (EQUAL, Crowd(SHARE, idle=True)),
    "the work of one in each": (EQUAL, Crowd(SHARE)),
    "a sequence in each": (EQUAL, Crowd(1)),
    "a sequence in each, unequal members": (UNEQUAL, Crowd(1)),
    "all in one": (EQUAL, Crowd(1 << 20)),
    "in four rounds of five": (EQUAL, Crowd(SHARE, works=0.8)),
    "in every second round": (EQUAL, Crowd(SHARE, works=0.5)),
    "until they have votes": (EQUAL, Crowd(SHARE, until_credible=True)),
    "a sequence in each, and they lie": (EQUAL, Crowd(1, lies=True)),
    "all in one, and it lies": (EQUAL, Crowd(1 << 20, lies=True)),
}


def attack(name: str, rounds: int, seed: int) -> dict[str, Any]:
    """Return the outcome of one attack."""
    shares, crowd = ATTACKS[name]
    swarm = Swarm(seed, honest_members(shares), crowd, door_costs=not name.endswith("is free"))
    for _ in range(rounds):
        swarm.step()
    return {
        "identities": swarm.made,
        "votes_most": max(swarm.votes[SETTLED:]),
        "votes_last": swarm.votes[-1],
        "heads_most": max(swarm.heads[SETTLED:]),
        "updates_mean": statistics.mean(swarm.update_shares[SETTLED:]),
        "found": swarm.found,
        "honest_accused": swarm.accused,
        "half_of_the_honest_vote_after": swarm.half_vote,
        "audits": swarm.audits,
        "reaudits": swarm.again,
    }


def worst(found: list[dict[str, Any]]) -> dict[str, Any]:
    """Summarise several seeds: the worst for votes and honest members, the median of everything else."""
    waited = [seed["half_of_the_honest_vote_after"] for seed in found]
    return {
        "votes_most": max(seed["votes_most"] for seed in found),
        "votes_last": max(seed["votes_last"] for seed in found),
        "heads_most": max(seed["heads_most"] for seed in found),
        "updates_mean": statistics.median(seed["updates_mean"] for seed in found),
        "found": statistics.median(seed["found"] for seed in found),
        "honest_accused": sum(seed["honest_accused"] for seed in found),
        "half_of_the_honest_vote_after": None if None in waited else max(waited),
        "seeds": found,
    }


def honest_alone(checks: int, seed: int) -> dict[str, int]:
    """Return the number of honest members accused in `checks` audits, with an audit by each member
    in every round."""
    swarm = Swarm(seed, honest_members(EQUAL), every=1)
    while swarm.audits < checks:
        swarm.step()
    return {"checks": swarm.audits, "reaudits": swarm.again, "accused": swarm.accused}


def main() -> None:
    """Run the benchmark."""
    parser = new_parser(__doc__)
    parser.add_argument("--rounds", type=int, default=1000, help=f"above {SETTLED}")
    parser.add_argument("--checks", type=int, default=1_000_000)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--attacks", nargs="*", choices=ATTACKS, default=list(ATTACKS))
    options = parser.parse_args()
    if options.rounds <= SETTLED or options.seeds < 1:
        parser.error(f"at least {SETTLED + 1} rounds, and one seed")
    attacks = {}
    print(
        f"{'the tenth of the work':40}{'votes':>8}{'at last':>9}{'heads':>8}{'updates':>9}"
        f"{'found':>7}{'honest':>8}{'half vote':>11}"
    )
    for name in options.attacks:
        runs = [attack(name, options.rounds, seed) for seed in range(options.seeds)]
        found = attacks[name] = worst(runs)
        print(
            f"{name:40}{found['votes_most']:8.1%}{found['votes_last']:9.1%}{found['heads_most']:8.1%}"
            f"{found['updates_mean']:9.1%}{found['found']:7.0f}{found['honest_accused']:8}"
            f"{found['half_of_the_honest_vote_after']!s:>11}",
            flush=True,
        )
    alone = honest_alone(options.checks, 0)
    print(f"honest members alone: {alone['checks']:,} checks, {alone['accused']} accused")
    figures = {"rounds": options.rounds, "every": EVERY, "honest": HONEST, "crowd": CROWD}
    figures |= {"attacks": attacks, "honest_alone": alone}
    write_json(options.json, figures)


if __name__ == "__main__":
    main()
