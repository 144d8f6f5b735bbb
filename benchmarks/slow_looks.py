"""How soon a cheat is out of the step, by how many rounds a re-audit takes.

    python benchmarks/slow_looks.py [--swarms 20] [--rounds 400] [--json FILE]

A dispute is settled when re-audits with enough votes agree, and is dropped sixteen rounds after
members are called to it. One of a swarm's members does not work, although it has votes. Each round
two of the others, drawn at random, score its work low; the members that are called
(`protocol/audit/disputes.py`) re-audit, one dispute after the other, and take the given number of
rounds for each, plus or minus one. Reputation follows the program's own rules.

The order in which members take disputes (`node/training/reaudit_order.py`) is compared with the obvious
one: every member takes the newest that it knows.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from distro_node.crypto.hashing import content_id
from distro_node.crypto.identity import PeerId
from distro_node.node.training.reaudit_order import next_reaudit
from distro_node.protocol.audit.audit_sums import level_test
from distro_node.protocol.audit.disputes import LAG
from distro_node.protocol.audit.reputation import (
    EPOCH_ROUNDS,
    Audit,
    Reaudit,
    RecordedWork,
    ReputationTable,
)

GOOD, LOW, SHARE = 15_000, 500, 4
SIZES = (6, 12, 24)
TAKES = (1, 2, 4, 6, 8, 10, 12)
_LOW_LOOKS = 2

Choose = Callable[[Iterable[Audit], ReputationTable, PeerId, int, int], Audit | None]


def newest(
    waiting: Iterable[Audit], accounts: ReputationTable, me: PeerId, _now: int, _takes: int
) -> Audit | None:
    """Return the latest of the disputes that wait for `me`."""
    own = [first for first in waiting if accounts.may_reaudit(me, first)]
    return own[-1] if own else None


ORDERS: dict[str, Choose] = {"the same": next_reaudit, "the newest": newest}


class CheckedSwarm:
    """Members with votes, and the facts in their rounds' records; the last one is a cheat."""

    def __init__(self, members: int, seed: int = 0) -> None:
        self.seed = seed
        self.peers = [PeerId(content_id(b"member %d" % number)) for number in range(members)]
        founder, *others = self.peers
        self.cheat = self.peers[-1]
        self.accounts = ReputationTable(founder, level_test(250))
        self.round = 0
        self.close()
        for peer in others:
            self.close([self.look(founder, peer, GOOD)])
        step = 0
        while set(self.accounts.votes) != set(self.peers) or self.round % EPOCH_ROUNDS:
            # All members audit each other in turn; audits by members without votes do not count.
            step = step % len(others) + 1
            pairs = zip(self.peers, self.peers[step:] + self.peers[:step], strict=True)
            self.close([self.look(auditor, peer, GOOD) for auditor, peer in pairs])

    def look(self, auditor: PeerId, peer: PeerId, score: int) -> Audit:
        """Return an audit of the last round."""
        return Audit(auditor, peer, self.round - 1, SHARE, score)

    def close(self, looks: Iterable[Audit] = (), again: Iterable[Reaudit] = ()) -> None:
        """Close the round with its record."""
        shares = dict.fromkeys(self.peers, SHARE) if self.round else {}
        lot = content_id(b"%d of %d" % (self.round, self.seed))
        facts = RecordedWork(self.round, shares, tuple(looks), tuple(again), lot)
        self.accounts.close(facts, self.peers)
        self.round += 1

    def called(self) -> list[tuple[Audit, PeerId]]:
        """Return the disputes to which members are called since the last record, and those members."""
        return [
            (first, peer)
            for first, dispute in self.accounts.disputes.items()
            if dispute.since + LAG == self.round - 1
            for peer in sorted(self.accounts.pending_reauditors(first))
        ]


def rounds_until_left_out(
    choose: Choose, takes: int, *, members: int = 6, seed: int = 0, most: int = 400
) -> int | None:
    """Return the number of rounds until the cheat is out of the step; None if more than `most`."""
    swarm, chance = CheckedSwarm(members, seed), random.Random(seed)
    honest = swarm.peers[:-1]
    busy: dict[PeerId, tuple[int, Audit]] = {}
    waiting: dict[PeerId, list[Audit]] = {peer: [] for peer in honest}
    began = swarm.round
    while swarm.accounts.counts(swarm.cheat):
        if swarm.round - began == most:
            return None
        again = []
        for peer in honest:
            until, first = busy.get(peer, (0, None))
            if swarm.round < until:
                continue
            busy.pop(peer, None)
            if first is not None:
                again.append(Reaudit(peer, first, low=True))
            chosen = choose(waiting[peer], swarm.accounts, peer, swarm.round, takes)
            if chosen is not None:
                waiting[peer].remove(chosen)
                lasts = chance.randint(max(1, takes - 1), takes + 1)
                busy[peer] = swarm.round + lasts, chosen
        checkers = chance.sample(honest, _LOW_LOOKS)
        looks = [swarm.look(auditor, swarm.cheat, LOW) for auditor in checkers]
        swarm.close(looks, again)
        for first, peer in swarm.called():
            waiting[peer].append(first)
    return swarm.round - began


def measure(
    order: str, takes: int, members: int, swarms: int, most: int
) -> dict[str, float | int | None]:
    """Return the median over all swarms, and the number of swarms in which the cheat was never left
    out."""
    found = [
        rounds_until_left_out(ORDERS[order], takes, members=members, seed=seed, most=most)
        for seed in range(swarms)
    ]
    never = found.count(None)
    middle = statistics.median(most + 1 if each is None else each for each in found)
    return {"median": middle if middle <= most else None, "never": never}


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description="How soon a cheat is found by slow members.")
    parser.add_argument("--swarms", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=400, help="so many are waited for")
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args(arguments)
    cases: list[dict[str, Any]] = []
    print(f"rounds until the cheat is left out (not within {options.rounds})")
    heads = "".join(f"{order:>18}" for order in ORDERS)
    print(f"{'members':>8}{'a look takes':>14}{heads}")
    for members in SIZES:
        for takes in TAKES:
            case: dict[str, Any] = {"members": members, "takes": takes}
            for order in ORDERS:
                case[order] = measure(order, takes, members, options.swarms, options.rounds)
            cases.append(case)
            cells = "".join(
                f"{'–' if case[order]['median'] is None else format(case[order]['median'], '.0f'):>11}"
                f"{'(' + str(case[order]['never']) + ')':>7}"
                for order in ORDERS
            )
            print(f"{members:8}{takes:14}{cells}", flush=True)
    if options.json:
        written = {"swarms": options.swarms, "rounds": options.rounds, "cases": cases}
        options.json.write_text(json.dumps(written, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
