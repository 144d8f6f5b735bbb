"""Liars with a third of all votes against verdicts: whom they can exclude, and whom they can save.

    python benchmarks/verdicts.py [--rounds 10000] [--seeds 2] [--swarms 40] [--members N …]
                                  [--founding | --lies] [--json FILE]

All members have votes. The program's own rules decide (`protocol/audit/`, `chain/beacon`,
`chain/leaders`): who leads, the beacon's value, who audits whom, who is called to a dispute, its
outcome. Scores are drawn as measured (`audit_scores.py`). Liars act together, know all their
secrets, and

- report low work of the one honest member that they have chosen, whenever they draw it, and good
  work of each other; of other members they report what they see, or nothing;
- hold such an audit back for as long as it may be recorded, and publish it when three of them can be
  published in rounds close to each other;
- omit all audits by honest members from the records of rounds that they lead;
- skip their slot if the secret that they would reveal calls fewer of them to disputes, or assigns
  them fewer audits of the chosen member, than the alternatives, over all consecutive rounds that
  they lead.

An honest member takes one to five rounds for a re-audit, and omits one in twenty.

`honest`: liars do their work and want honest members out of the step. `idle …`: some do no work, and
the others defend them. The rows that begin with `share` have one member without accomplices that
does no work, with the given number of sequences where the others have sixteen, with votes and
without.

`--founding`: instead, liars are there from the first round on, when the founder alone has votes. They
do their work and vouch for each other alone; while they have most votes, they report low work of
all others. The founder is away once, for ten to sixty rounds, at a time drawn from those in which
members earn their first votes. Some swarms begin with the founder alone, or with it and liars.

`--lies`: instead, liars report no honest work as low, but false high scores, or they omit a sequence
of their shares, so that true low scores are reported.
"""

from __future__ import annotations

import functools
import random
import statistics
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from audit_scores import EVERY, LEVELS, SHARE, UpdateScores
from command_line import new_parser, write_json
from distro_node.crypto.hashing import content_id
from distro_node.crypto.identity import PeerId
from distro_node.protocol.audit.disputes import DRAW_LAG_ROUNDS, MAX_REAUDITED_SEQUENCES, draw_jury
from distro_node.protocol.audit.lottery import AuditTarget, draw_audit
from distro_node.protocol.audit.reputation import (
    EPOCH_ROUNDS,
    FRESH,
    Audit,
    Reaudit,
    RecordedWork,
    ReputationTable,
    audit_probability,
)
from distro_node.protocol.chain.beacon import REVEALED_AFTER, next_value
from distro_node.protocol.chain.commitments import SECRET_BYTES, SecretPair
from distro_node.protocol.chain.leaders import Leaders
from distro_node.protocol.sampling.update_weights import by_share
from distro_node.protocol.wire.membership import Membership, Votes

SWARM = b"verdicts"
NEVER = 0.05
"""The fraction of re-audits that honest members never make."""
AHEAD = 4
"""Rounds that liars look ahead, of those that they lead in a row."""
BLIND = 4
LIARS_SCORE = 15_000
"""The score that liars report of each other's work, in thousandths: a usual one."""
HIGH_SCORE = 10_000_000
"""A false high one."""

SIZES = {8: (2, 23), 16: (5, 17), 40: (13, 16)}
"""By number of members: the number of liars and the share of each, just below a third of all votes
in total."""
FOUNDING = (
    *((4, 1, 4), (5, 1, 5), (7, 2, 7), (13, 4, 13), (40, 13, 40)),
    *((13, 4, 1), (7, 1, 2), (13, 1, 2), (7, 2, 3)),
)
"""Numbers of members with equal shares, of liars among them, and of those that are there from the first
round on: the founder, and liars if they are two or three."""
OTHERS_JOIN = 33
"""The round in which the others join."""
INTERVALS = (1, 5)
"""Rounds between two audits by one member, in swarms that begin."""


class Swarm:
    """Members of which the `liars` act together once all have votes."""

    def __init__(
        self,
        seed: int,
        shares: Iterable[int],
        liars: Iterable[int] = (),
        idle: Iterable[int] = (),
        *,
        newcomer: bool = False,
        founding: bool = False,
        every: int = EVERY,
    ) -> None:
        """`idle` members that are not liars have no accomplices. `newcomer`: they join when the
        others have votes. `founding`: liars lie from the first round on, before all have votes.
        `every`: rounds between two audits by one member."""
        self.random = random.Random(f"verdicts {seed}")
        names = [PeerId(content_id(b"%d member %d" % (seed, n))) for n, _ in enumerate(shares)]
        self.shares = dict(zip(names, shares, strict=True))
        self.peers = names
        self.liars = frozenset(names[n] for n in liars)
        self.idle = frozenset(names[n] for n in idle)
        self.accounts = ReputationTable(names[0], LEVELS)
        self.round = 0
        self.out: dict[PeerId, int] = {}
        """Members that are out of the step, and since which round."""
        self.votes_most = 0.0
        """The largest fraction of all votes that liars ever had."""
        self.passed = 0
        """How often liars skipped their slot."""
        self.attack = False
        self._values: list[bytes] = [next_value(SWARM, b"")]
        self._secrets: dict[int, dict[PeerId, SecretPair]] = {}
        self._leaders: dict[tuple[int, int], Leaders] = {}
        self._held: list[Audit] = []
        self._said: list[Audit] = []
        self._again: list[tuple[int, Reaudit]] = []
        self._updates: dict[tuple[PeerId, int], UpdateScores] = {}
        away = self.idle if newcomer else frozenset[PeerId]()
        self.away = away
        self._every = every
        while not founding and self.accounts.votes.keys() != set(names) - away:
            self.step()
        self.away = frozenset()
        self.began = self.round
        self.attack = True

    @property
    def target(self) -> PeerId | None:
        """The honest member that the liars want out of the step."""
        here = [p for p in self.peers if p not in self.liars and self.accounts.updates_count(p)]
        return here[-1] if here else None

    def step(self) -> None:
        """Run one round."""
        now, accounts = self.round, self.accounts
        members = [peer for peer in self.peers if peer not in self.away]
        sending = [peer for peer in members if self._sends(peer)] if now else []
        shares = {peer: self.shares[peer] for peer in sending}
        for peer in members:
            works = not (self.attack and peer in self.idle)
            self._updates[peer, now] = UpdateScores(works, self.random.gauss(0, 1))
        draw = functools.partial(self.random.randbytes, SECRET_BYTES)
        self._secrets[now] = {peer: SecretPair(draw(), draw()) for peer in self.peers}
        hostile, value = self._lead()
        audits, again = self._of_record(hostile=hostile)
        accounts.close(RecordedWork(now, shares, tuple(audits), tuple(again), value), members)
        self._values.append(value)
        self.round += 1
        self._leaders = {key: each for key, each in self._leaders.items() if key[0] > now}
        self._audit(now, shares)
        self._call(now)
        self._note(now)

    def _sends(self, peer: PeerId) -> bool:
        """Whether a member sends an update in this round."""
        del peer
        return True

    # Leaders and revealed secrets

    def _lead(self) -> tuple[bool, bytes]:
        """Decide who leads. Return whether the record is a liar's, and the next beacon value."""
        hostile, honest = self._ways(self._values[-1], self.round)
        if not hostile:
            return False, honest
        worth = [self._worth(way, self.round, AHEAD) for way in hostile]
        best = max(range(len(hostile)), key=lambda n: worth[n])
        # An honest leader's secret is unknown: its value to the liars is the expectation.
        blind = [next_value(self._values[-1], b"blind %d" % n) for n in range(BLIND)]
        if sum(self._worth(way, self.round, 1) for way in blind) > BLIND * worth[best]:
            self.passed += 1
            return False, honest
        self.passed += best > 0
        return True, hostile[best]

    def _ways(self, value: bytes, round_: int) -> tuple[list[bytes], bytes]:
        """Return the possible next beacon values: those that liars can choose between, and the one
        if they skip all their slots."""
        key = round_, len(self.accounts.votes)
        if key not in self._leaders:
            members = dict.fromkeys(self.peers, 0)
            votes = Votes(self.accounts.votes)
            self._leaders = {
                key: Leaders(SWARM, round_, Membership(members), votes),
                **self._leaders,
            }
        leaders, hostile = self._leaders[key], list[bytes]()
        secrets = self._secrets.get(round_ - REVEALED_AFTER, {})
        for slot in range(1, 99):
            pair = secrets.get(leaders[slot])
            way = next_value(value, b"" if pair is None else pair.beacon)
            if not self.attack or leaders[slot] not in self.liars:
                return hostile, way
            hostile.append(way)
        raise AssertionError("no honest member leads any slot")

    def _worth(self, value: bytes, round_: int, ahead: int) -> float:
        """Return the liars' gain from a beacon value, and from the next ones that they control."""
        worth = self._calls_of(value, round_) + 0.1 * self._audits_of(value, round_ + 1)
        hostile = self._ways(value, round_ + 1)[0] if ahead > 1 else []
        return worth + max((self._worth(way, round_ + 1, ahead - 1) for way in hostile), default=0)

    def _calls_of(self, value: bytes, round_: int) -> float:
        worth = 0.0
        for first, dispute in self.accounts.disputes.items():
            if dispute.since + DRAW_LAG_ROUNDS == round_ and first.auditor in self.liars:
                called = draw_jury(self.accounts.votes, first.name + value)
                seats = sum(called.weights.get(peer, 0) for peer in self.liars)
                worth += 10 * (seats >= called.needed) + seats / called.needed
        return worth

    def _audits_of(self, value: bytes, round_: int) -> int:
        target = self.target
        return sum(
            (audit := self._drawn(peer, value, round_)) is not None and audit.peer == target
            for peer in self.liars & self.accounts.votes.keys()
        )

    # Contents of a record

    def _of_record(self, *, hostile: bool) -> tuple[list[Audit], list[Reaudit]]:
        now, target = self.round, self.target
        firsts = [audit for audit in self._said if audit.round > now - FRESH]
        chosen = [audit for audit in firsts if not hostile or audit.auditor in self.liars]
        self._said = [audit for audit in firsts if audit not in chosen]
        self._held = [
            audit for audit in self._held if audit.round > now - FRESH and audit.peer == target
        ]
        oldest = min((audit.round for audit in self._held), default=now)
        if len(self._held) >= 3 or oldest <= now - FRESH + 2:
            chosen += self._held
            self._held = []
        ready = [
            (at, audit)
            for at, audit in self._again
            if at <= now and (not hostile or audit.reauditor in self.liars)
        ]
        self._again = [each for each in self._again if each not in ready]
        return chosen, [audit for _, audit in ready]

    def _drawn(self, peer: PeerId, lot: bytes, round_: int) -> AuditTarget | None:
        secrets = self._secrets.get(round_ - 1 - DRAW_LAG_ROUNDS)
        if secrets is None:
            return None
        votes = self.accounts.votes
        shares = {p: share for p, share in self.shares.items() if p not in self.away}
        weights = _weights(tuple(shares.items()))
        chance = audit_probability(votes, peer, self._every)
        return draw_audit(secrets[peer].audit, lot, peer, shares, weights, votes, chance)

    def _audit(self, now: int, shares: dict[PeerId, int]) -> None:
        """Make the members' audits of the round that was just decided."""
        for peer in self.accounts.votes if now > DRAW_LAG_ROUNDS + 1 else ():
            audit = self._drawn(peer, self._values[now], now)
            if audit is None or audit.peer not in shares:
                continue
            if self.attack and peer in self.liars:
                score = self._lie(peer, audit, now)
            else:
                score = self._seen(audit, now)
            if score is not None:
                share, sequence = shares[audit.peer], audit.sequence
                self._said.append(Audit(peer, audit.peer, now, share, score, sequence=sequence))

    def _seen(self, audit: AuditTarget, now: int) -> int:
        return self._score(audit.peer, now, audit.sequence)

    def _lie(self, peer: PeerId, audit: AuditTarget, now: int) -> int | None:
        """Return the score that a liar reports; None if it holds the audit back, or omits it."""
        if audit.peer in self.liars:
            return LIARS_SCORE
        if audit.peer != self.target:
            return self._seen(audit, now)
        share, sequence = self.shares[audit.peer], audit.sequence
        self._held.append(Audit(peer, audit.peer, now, share, 0, sequence=sequence))
        return None

    def _call(self, now: int) -> None:
        """Call members to disputes by the round's beacon."""
        for first, dispute in self.accounts.disputes.items():
            if dispute.since + DRAW_LAG_ROUNDS != now:
                continue
            for peer in sorted(self.accounts.pending_reauditors(first)):
                lies = self.attack and peer in self.liars
                if not lies and self.random.random() < NEVER:
                    continue
                if lies:
                    found = Reaudit(peer, first, first.peer not in self.liars)
                else:
                    found = self._reaudit(peer, first)
                at = now + 1 if lies else now + self.random.randint(2, 6)
                self._again.append((at, found))

    def _reaudit(self, peer: PeerId, first: Audit) -> Reaudit:
        """Return an honest re-audit."""
        scores = {
            sequence: self._score(first.peer, first.round, sequence)
            for sequence in range(min(first.share, MAX_REAUDITED_SEQUENCES))
        }
        return Reaudit.of_scores(peer, first, scores, self.accounts.disputes[first].bound)

    def _score(self, peer: PeerId, round_: int, sequence: int) -> int:
        return self._updates[peer, round_].drawn(self.random, self.shares[peer], sequence)

    def _note(self, now: int) -> None:
        for key in [(peer, now - 3 * FRESH) for peer in self.peers]:
            self._updates.pop(key, None)
        self._secrets.pop(now - 3 * FRESH, None)
        self._again = [each for each in self._again if each[1].low_audit in self.accounts.disputes]
        for peer in self.accounts.excluded():
            self.out.setdefault(peer, now)
        if self.attack:
            self.votes_most = max(self.votes_most, self.liars_part)

    @property
    def liars_part(self) -> float:
        """The fraction of all votes that the liars have."""
        votes = self.accounts.votes
        return sum(votes.get(peer, 0) for peer in self.liars) / sum(votes.values())


@functools.lru_cache(maxsize=64)
def _weights(shares: tuple[tuple[PeerId, int], ...]) -> dict[PeerId, int]:
    return by_share(dict(shares))


def attacked(members: int, seed: int, rounds: int, idle: int = 0) -> dict[str, Any]:
    """Return what liars with just below a third of all votes achieve, `idle` of which do no work."""
    number, share = SIZES[members]
    shares = [SHARE] * (members - number) + [share] * number
    liars = range(members - number, members)
    swarm = Swarm(seed, shares, liars, list(liars)[:idle])
    first: dict[PeerId, int] = {}
    while swarm.round < swarm.began + rounds:
        swarm.step()
        first = {peer: at - swarm.began for peer, at in swarm.out.items()}
        if idle and swarm.idle <= swarm.out.keys():
            break
    totals = swarm.accounts.totals
    return {
        "honest_out": sum(peer not in swarm.liars for peer in first),
        "idle_out_after": sorted(at for peer, at in first.items() if peer in swarm.idle),
        "votes_most": swarm.votes_most,
        "words_accused": sum(swarm.accounts[peer].sums.own_audits.accused for peer in swarm.liars),
        "honest_words_accused": sum(
            swarm.accounts[peer].sums.own_audits.accused
            for peer in swarm.peers
            if peer not in swarm.liars
        ),
        "slots_passed": swarm.passed,
        "disputes": {
            "failed": totals.failed,
            "contradicted": totals.contradicted,
            "dropped": totals.dropped,
        },
        "rounds": swarm.round - swarm.began,
    }


class HighScores(Swarm):
    """Liars that report high scores of everybody else, which no re-audit examines, and bare passes of
    one honest member at a time. They hold their audits of an epoch back until its last record, and send
    nothing themselves while what passes is theirs."""

    def __init__(self, *options: Any, **named: Any) -> None:
        self._kept: list[Audit] = []
        super().__init__(*options, **named)

    def _sends(self, peer: PeerId) -> bool:
        bound = self.accounts.bound(self.shares[peer])
        return not (self.attack and peer in self.liars and bound > LIARS_SCORE)

    def _lie(self, peer: PeerId, audit: AuditTarget, now: int) -> int | None:
        if audit.peer in self.liars:
            return LIARS_SCORE
        if self.liars_part > 0.5:
            return 0
        share = self.shares[audit.peer]
        bare = audit.peer == self.target and self.target in self.accounts.votes
        score = self.accounts.bound(share) * 102 // 100 if bare else HIGH_SCORE
        self._kept.append(Audit(peer, audit.peer, now, share, score, sequence=audit.sequence))
        return None

    def _of_record(self, *, hostile: bool) -> tuple[list[Audit], list[Reaudit]]:
        if (self.round + 1) % EPOCH_ROUNDS == 0:
            self._said += self._kept
            self._kept = []
        return super()._of_record(hostile=hostile)


class PartialAuditors(Swarm):
    """Liars that audit nobody but each other until they have most votes, and then report low work of all
    others."""

    def _lie(self, peer: PeerId, audit: AuditTarget, now: int) -> int | None:
        if audit.peer in self.liars:
            return LIARS_SCORE
        return 0 if self.liars_part > 0.5 else None


class SpoiledSequences(PartialAuditors):
    """Liars that also omit one sequence of their share, so that true low scores of it do not make the
    share low."""

    def _score(self, peer: PeerId, round_: int, sequence: int) -> int:
        if self.attack and peer in self.liars and sequence == self.shares[peer] - 1:
            return UpdateScores(False, 0.0).drawn(self.random, self.shares[peer], sequence)
        return super()._score(peer, round_, sequence)


@dataclass(frozen=True)
class Lies:
    """Liars with under a third of all votes, the last of some members."""

    swarm: type[Swarm]
    shares: tuple[int, ...]
    liars: int
    every: int


LIES = {
    "high scores, 16 members": Lies(HighScores, (16,) * 16, 5, 1),
    "high scores, 16 members, every 5": Lies(HighScores, (16,) * 16, 5, 5),
    "high scores, 40 members": Lies(HighScores, (16,) * 40, 13, 1),
    "high scores, uneven shares": Lies(HighScores, (32,) * 6 + (1,) * 5 + (18,) * 5, 5, 1),
    "high scores, a rare share": Lies(HighScores, (16,) * 11 + (32,) * 4, 3, 1),
    "one sequence of two omitted": Lies(SpoiledSequences, (2,) * 16, 5, 5),
    "one sequence of four omitted": Lies(SpoiledSequences, (4,) * 10, 3, 5),
}
"""Ways to lie that no low report of honest work is part of."""


def lied_to(lies: Lies, seed: int, rounds: int) -> dict[str, Any]:
    """Return what such liars achieve."""
    members = len(lies.shares)
    swarm = lies.swarm(seed, lies.shares, range(members - lies.liars, members), every=lies.every)
    honest = [peer for peer in swarm.peers if peer not in swarm.liars]
    distrusted = set[PeerId]()
    without_votes = set[PeerId]()
    while swarm.round < swarm.began + rounds:
        swarm.step()
        distrusted |= {p for p in honest if swarm.accounts[p].sums.own_audits.accused}
        without_votes |= {*honest} - swarm.accounts.votes.keys()
        if all(peer in swarm.out for peer in honest):
            break
    return {
        "honest_out": sum(peer in swarm.out for peer in honest),
        "honest_distrusted": len(distrusted),
        "honest_without_votes": len(without_votes),
        "votes_most": swarm.votes_most,
        "liars_without_votes": len(swarm.liars - swarm.accounts.votes.keys()),
        "rounds": swarm.round - swarm.began,
    }


def print_lies(seeds: int, rounds: int) -> list[dict[str, Any]]:
    """Run the ways of `LIES`, print the table and return its rows."""
    print(f"{'':34}{'honest out':>12}{'distrusted':>12}{'lost votes':>12}{'liars most':>12}"
          f"{'liars lost':>12}")  # fmt: skip
    rows = list[dict[str, Any]]()
    for name, lies in LIES.items():
        runs = [lied_to(lies, seed, rounds) for seed in range(seeds)]
        rows.append({"lies": name, "honest": len(lies.shares) - lies.liars, "runs": runs})
        sums = {key: sum(run[key] for run in runs) for key in runs[0]}
        print(
            f"{name:34}{sums['honest_out']:12}{sums['honest_distrusted']:12}"
            f"{sums['honest_without_votes']:12}{max(run['votes_most'] for run in runs):12.1%}"
            f"{sums['liars_without_votes']:12}",
            flush=True,
        )
    return rows


def founded(members: int, liars: int, first: int, every: int, seed: int) -> dict[str, Any]:
    """Return what liars achieve in a swarm that begins with the `first` members."""
    chance = random.Random(f"founding {members} {every} {seed}")
    early = 1 < first <= liars + 1
    liars_drawn = range(1, liars + 1) if early else chance.sample(range(1, members), liars)
    swarm = PartialAuditors(seed, [SHARE] * members, liars_drawn, founding=True, every=every)
    founder, others = swarm.peers[0], frozenset(swarm.peers[first:])
    leaves = chance.randrange(1, 20 * every + 40) + OTHERS_JOIN * bool(others)
    returns = leaves + chance.randrange(10, 60)
    all_voted: int | None = None
    for round_ in range(100 + 60 * every):
        swarm.away = others if round_ < OTHERS_JOIN else frozenset()
        if leaves <= round_ < returns:
            swarm.away |= {founder}
        swarm.step()
        if all_voted is None and swarm.accounts.earned.keys() == set(swarm.peers):
            all_voted = round_
    return {
        "honest_out": sum(peer not in swarm.liars for peer in swarm.out),
        "votes_most": swarm.votes_most,
        "all_voted_after": all_voted,
    }


def print_founding(swarms: int) -> list[dict[str, Any]]:
    """Run swarms that begin, print the table and return its rows."""
    print(f"{'members':>8}{'liars':>7}{'first':>7}{'every':>7}{'swarms':>8}{'honest out in':>15}"
          f"{'liars over half in':>20}{'most votes':>12}{'all vote after':>16}")  # fmt: skip
    rows = list[dict[str, Any]]()
    for members, liars, first in FOUNDING:
        for every in INTERVALS:
            runs = [founded(members, liars, first, every, seed) for seed in range(swarms)]
            times = [run["all_voted_after"] for run in runs if run["all_voted_after"] is not None]
            row = {
                "members": members,
                "liars": liars,
                "first": first,
                "every": every,
                "swarms": swarms,
                "with_honest_out": sum(run["honest_out"] > 0 for run in runs),
                "with_liars_over_half": sum(run["votes_most"] > 0.5 for run in runs),
                "votes_most": max(run["votes_most"] for run in runs),
                "all_voted_after": statistics.median(times) if times else None,
                "never_all_voted": len(runs) - len(times),
            }
            rows.append(row)
            after = "–" if row["all_voted_after"] is None else f"{row['all_voted_after']:.0f}"
            print(
                f"{members:8}{liars:7}{first:7}{every:7}{swarms:8}{row['with_honest_out']:15}"
                f"{row['with_liars_over_half']:20}{row['votes_most']:12.0%}{after:>16}",
                flush=True,
            )
    return rows


def alone(share: int, seed: int, *, newcomer: bool, members: int = 20, most: int = 2000) -> int:
    """Return the number of rounds until the one member that does no work, with this share, is out of
    the step."""
    swarm = Swarm(seed, [SHARE] * (members - 1) + [share], idle=[members - 1], newcomer=newcomer)
    freeloader = swarm.peers[-1]
    while swarm.accounts.updates_count(freeloader) and swarm.round < swarm.began + most:
        swarm.step()
    return swarm.round - swarm.began


def main() -> None:
    """Run the benchmark."""
    parser = new_parser(__doc__)
    parser.add_argument("--rounds", type=int, default=10_000)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--swarms", type=int, default=40, help="for each share of a member alone")
    parser.add_argument("--members", type=int, nargs="*", choices=SIZES, default=list(SIZES))
    parser.add_argument("--founding", action="store_true", help="swarms that begin")
    parser.add_argument("--lies", action="store_true", help="lies that no re-audit examines")
    options = parser.parse_args()
    if options.lies:
        rows = print_lies(options.seeds, options.rounds)
        write_json(options.json, {"rounds": options.rounds, "lies": rows})
        return
    if options.founding:
        write_json(options.json, {"founding": print_founding(options.swarms)})
        return
    rows = []
    print(f"{'members':>8}{'liars':>7}{'idle':>6}{'honest out':>12}{'idle out after':>16}"
          f"{'votes':>8}{'failed':>8}{'contrad.':>9}{'dropped':>9}{'passed':>8}")  # fmt: skip
    for members in options.members:
        for idle in (0, 1):
            runs = [attacked(members, s, options.rounds, idle) for s in range(options.seeds)]
            row = {"members": members, "liars": SIZES[members][0], "idle": idle, "seeds": runs}
            rows.append(row)
            when = [at for run in runs for at in run["idle_out_after"]]
            disputes = [sum(run["disputes"][how] for run in runs) for how in runs[0]["disputes"]]
            print(
                f"{members:8}{SIZES[members][0]:7}{idle:6}{sum(r['honest_out'] for r in runs):12}"
                f"{(statistics.median(when) if when else '–'):>16}"
                f"{max(r['votes_most'] for r in runs):8.1%}{disputes[0]:8}{disputes[1]:9}"
                f"{disputes[2]:9}{sum(r['slots_passed'] for r in runs):8}",
                flush=True,
            )
    shares: list[dict[str, Any]] = []
    for newcomer in (False, True):
        for share in (1, 2, 4, 8, 16, 32):
            took = [alone(share, s, newcomer=newcomer) for s in range(options.swarms)]
            shares_of = {0: share} | dict.fromkeys(range(1, 20), SHARE)
            counts = by_share(shares_of)[0]  # type: ignore[misc]  # numbers in the place of peers
            row = {"share": share, "newcomer": newcomer, "counts": counts, "rounds": took}
            shares.append(row)
            middle = statistics.median(took)
            what = "without votes" if newcomer else "with votes"
            print(f"share {share:3} of 16, {what}: out after {middle:.0f} rounds, "
                  f"{middle * counts:.0f} counts, at most {max(took)}", flush=True)  # fmt: skip
    written = {"rounds": options.rounds, "every": EVERY, "rows": rows, "shares": shares}
    write_json(options.json, written)


if __name__ == "__main__":
    main()
