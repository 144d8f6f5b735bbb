"""The outcome of a demo: the figures of a run, and whether they confirm the demo's promises.

The figures are computed from the nodes' own histories, so they can be checked against the files that
the demo leaves.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean
from typing import Any

from .history import History, RoundFacts
from .plan import DemoPlan

DENSE_BYTES = 2
"""Bytes per parameter that an all-reduce in bfloat16 moves, as the DisTrO report counts it."""


@dataclass(frozen=True, kw_only=True)
class Event:
    """Something that the demo did or observed after `round` was done."""

    kind: str
    """`killed`, `started`, `joined` or `bootstrap_killed`."""
    round: int
    peer: str | None


@dataclass(frozen=True, kw_only=True)
class NodeRun:
    """One node from its start to its end."""

    number: int
    peer: str
    exit: str
    """`left` politely, `killed` by the demo, `running`, or `failed` with an exit code."""
    history: History

    @property
    def name(self) -> str:
        """Its name for people."""
        return f"node-{self.number}"

    @property
    def counted(self) -> list[int]:
        """The rounds in which its update counted, according to its own history."""
        counted = self.history.values("counted")
        return [round_ for round_, peers in counted.items() if self.peer in peers]


@dataclass(frozen=True, kw_only=True)
class DemoRun:
    """A whole demo, finished or not."""

    plan: DemoPlan
    parameters: int
    nodes: Sequence[NodeRun]
    events: Sequence[Event]
    trainer_gone_seconds: float | None
    """How long the killed node's trainer outlived it; None if its end was not observed."""
    seconds: float
    sample: str | None = None
    """The text that the model wrote at the end; None if it wrote none."""

    @property
    def survivors(self) -> list[NodeRun]:
        """The nodes that were not killed."""
        return [node for node in self.nodes if node.exit != "killed"]

    def event(self, kind: str) -> Event | None:
        """Return the event of this kind, or None if it did not happen."""
        return next((event for event in self.events if event.kind == kind), None)

    def rounds(self) -> dict[int, RoundFacts]:
        """Return the facts of each round. If several nodes have a fact, the first one's value is taken;
        survivors come first."""
        merged: dict[int, RoundFacts] = {}
        for node in sorted(self.nodes, key=lambda node: (node.exit == "killed", node.number)):
            for round_, facts in node.history.rounds.items():
                merged[round_] = facts | merged.get(round_, {})
        return {round_: merged[round_] for round_ in sorted(merged)}

    def curve(self, key: str) -> list[tuple[int, float]]:
        """Return the (round, value) pairs of a key of the history, `loss` or `heldout`."""
        rounds = self.rounds()
        return [(r, facts[key]) for r, facts in rounds.items() if facts.get(key) is not None]


@dataclass(frozen=True, kw_only=True)
class DemoPromise:
    """One promise, whether it was kept, and the figures that show it."""

    what: str
    passed: bool
    seen: str


def summarise(run: DemoRun) -> dict[str, Any]:
    """Return the contents of `summary.json`, without the checks."""
    rounds = {r: facts for r, facts in run.rounds().items() if facts.get("counted")}
    members = _default_members(rounds)
    own = [
        (facts["update_bytes"], facts["bits_per_coefficient"])
        for node in run.nodes
        for facts in node.history.rounds.values()
        if facts.get("update_bytes") and facts.get("bits_per_coefficient")
    ]
    coefficients = sum(8 * size / bits for size, bits in own)
    return {
        "rounds": max(rounds, default=0),
        "members": members,
        "members_by_round": [[r, facts["members"]] for r, facts in rounds.items()],
        "parameters": run.parameters,
        "nodes": [_node_summary(node) for node in run.nodes],
        "training_loss": [list(point) for point in run.curve("loss")],
        "heldout_loss": [list(point) for point in run.curve("heldout")],
        "update_bytes": fmean(size for size, _ in own) if own else None,
        "bits_per_coefficient": sum(8 * s for s, _ in own) / coefficients if own else None,
        "received_bytes_per_round": _received(run, members),
        "dense_bytes_per_round": DENSE_BYTES * run.parameters * max(0, members - 1),
        "events": [asdict(event) for event in run.events],
        "killed_trainer_gone_seconds": run.trainer_gone_seconds,
        "seconds": round(run.seconds, 1),
    }


def reduction(summary: Mapping[str, Any]) -> float | None:
    """Return by which factor a dense all-reduce would have moved more bytes; None if unknown."""
    received = summary["received_bytes_per_round"]
    return summary["dense_bytes_per_round"] / received if received else None


def check(run: DemoRun) -> list[DemoPromise]:
    """Check all promises of the demo, in the order of the events."""
    return [
        *_check_kill(run),
        _check_newcomer(run),
        _check_bootstrap(run),
        _check_end(run),
        _check_identity(run),
        _check_learning(run),
    ]


def _default_members(rounds: Mapping[int, RoundFacts]) -> int:
    """Return the most frequent number of members."""
    counts = Counter(facts["members"] for facts in rounds.values())
    return counts.most_common(1)[0][0] if counts else 0


def _received(run: DemoRun, members: int) -> float | None:
    """Return the mean number of update bytes that a node received in a round with this number of
    members; None if there is no such round.

    Only rounds in which the updates of all members counted are included, so that a member that has just
    been killed does not lower the mean. Of these, a node's bytes are included if its own update counted.
    """
    received = [
        facts["received_bytes"]
        for node in run.nodes
        for facts in (node.history.rounds[round_] for round_ in node.counted)
        if facts["members"] == members == len(facts["counted"])
        and facts.get("received_bytes") is not None
    ]
    return fmean(received) if received else None


def _node_summary(node: NodeRun) -> dict[str, Any]:
    fingerprints = node.history.values("fingerprint")
    return {
        "name": node.name,
        "peer_id": node.peer,
        "first_round": min(node.counted, default=None),
        "last_round": max(fingerprints, default=None),
        "rounds_contributed": len(node.counted),
        "final_fingerprint": fingerprints[max(fingerprints)] if fingerprints else None,
        "exit": node.exit,
    }


def _check_kill(run: DemoRun) -> Iterator[DemoPromise]:
    name = f"node-{run.plan.victim}"
    killed = run.event("killed")
    after = _last_round(run) - killed.round if killed else 0
    yield DemoPromise(
        what=f"{name} is killed with SIGKILL, and the others continue without it",
        passed=after > 0,
        seen=f"killed after round {killed.round}, {after} rounds since" if killed else "not killed",
    )
    gone = run.trainer_gone_seconds
    yield DemoPromise(
        what="its trainer ends by itself",
        passed=gone is not None,
        seen=f"within {gone:.1f} s" if gone is not None else "its end was not observed",
    )


def _check_newcomer(run: DemoRun) -> DemoPromise:
    newcomer = next((node for node in run.nodes if node.number == run.plan.newcomer), None)
    counted = newcomer.counted if newcomer else []
    started = run.event("started")
    return DemoPromise(
        what="a newcomer with only the link joins the running swarm",
        passed=bool(counted),
        seen=f"started after round {started.round}, its updates count from round {counted[0]} on"
        if started and counted
        else "no update of it has counted",
    )


def _check_bootstrap(run: DemoRun) -> DemoPromise:
    killed = run.event("bootstrap_killed")
    after = _last_round(run) - killed.round if killed else 0
    return DemoPromise(
        what="the bootstrap peer is killed, and training continues without it",
        passed=after > 0,
        seen=f"killed after round {killed.round}, {after} rounds since" if killed else "not killed",
    )


def _check_end(run: DemoRun) -> DemoPromise:
    missing = [
        f"{node.name}: round {node.history.last_round}, {node.exit}"
        for node in run.survivors
        if node.exit != "left" or node.history.last_round != run.plan.rounds
    ]
    return DemoPromise(
        what=f"every other node completes all rounds to the {run.plan.rounds}th and leaves politely",
        passed=not missing and bool(run.survivors),
        seen="; ".join(missing) or f"all {len(run.survivors)} did",
    )


def _check_identity(run: DemoRun) -> DemoPromise:
    """Compare the fingerprints of every round, not only of the last one, so that the killed node is
    compared as well. (That errors cancel out before the last round is very unlikely.)"""
    seen: dict[int, set[str]] = {}
    compared = 0
    for node in run.nodes:
        for round_, fingerprint in node.history.values("fingerprint").items():
            seen.setdefault(round_, set()).add(fingerprint)
            compared += 1
    different = sorted(round_ for round_, fingerprints in seen.items() if len(fingerprints) > 1)
    last = {
        node.history.values("fingerprint").get(node.history.last_round) for node in run.survivors
    }
    return DemoPromise(
        what="all nodes hold the same parameters to the last bit, in every round",
        passed=not different and len(last) == 1 and None not in last,
        seen=f"differing in rounds {different[:5]}"
        if different
        else f"{compared} fingerprints compared; the last is {', '.join(map(str, last))}",
    )


def _check_learning(run: DemoRun) -> DemoPromise:
    heldout = run.curve("heldout")
    if len(heldout) < 2:
        return DemoPromise(
            what="the held-out loss falls", passed=False, seen="it was not measured twice"
        )
    (first, before), (last, after) = heldout[0], heldout[-1]
    return DemoPromise(
        what="the held-out loss falls",
        passed=after < before,
        seen=f"{before:.3f} nats a token after round {first}, {after:.3f} after round {last}",
    )


def _last_round(run: DemoRun) -> int:
    return max((node.history.last_round for node in run.survivors), default=0)
