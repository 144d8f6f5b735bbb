"""Rules of keeping: which snapshots, updates and own words stay, for oneself and for others."""

from __future__ import annotations

from typing import Any

from distro_node.crypto.hashing import content_id
from distro_node.protocol.chain import keeping
from distro_node.protocol.member.own_words import OwnWords
from distro_node.protocol.wire.messages import SnapshotEntry

from ..chain import Chain
from .chains import true_chain
from .rule import Patch, Rule, put


def _updates_count_once_more() -> bool:
    """An update of round 2 counts in round 12, too."""
    chain = true_chain().fork()
    old = chain.ledger[2].record.updates[0].update
    chain.grow(updates=[chain.update(chain.membership.peers[0], update=old)])
    return old not in keeping.dispensable_updates(chain.ledger, -1, 5)


def _no_update_counts_again() -> list[Patch]:
    return [(keeping, "updates_from", lambda ledger, first: set())]


def _updates_since_a_snapshot_stay() -> bool:
    entry = SnapshotEntry(5, content_id(b"older"), 1)
    newer = SnapshotEntry(10, content_id(b"newer"), 1)
    return (
        keeping.last_dispensable(true_chain().ledger, [entry, newer], len(true_chain().ledger)) == 5
    )


def _the_newest_snapshot_will_do() -> list[Patch]:
    original = keeping.last_dispensable
    return [
        (
            keeping,
            "last_dispensable",
            lambda ledger, kept, *more: original(ledger, kept[-1:], *more),
        )
    ]


def _two_snapshots_stay() -> bool:
    """The newest may not be certified yet: a newcomer is sent to the one before."""
    kept: list[SnapshotEntry] = []
    for round_ in (5, 10, 15):
        new = SnapshotEntry(round_, content_id(b"%d" % round_), 1)
        kept = keeping.kept_with(kept, new, held=lambda old: False, most_held=2)
    return [entry.round for entry in kept] == [10, 15]


def _the_newest_snapshot_stays() -> list[Patch]:
    return [(keeping, "kept_with", lambda kept, new, **_: [new])]


def _a_left_chains_snapshots_stay() -> bool:
    """All may come back to it, and nobody else may have them."""
    own = SnapshotEntry(5, content_id(b"own"), 1)
    return keeping.put_aside([own], [], [], lambda old: False)[1] == [own]


def _what_is_left_goes() -> list[Patch]:
    def put_aside(kept: Any, left: Any, listed: Any, certified: Any) -> Any:
        return [own for own in kept if own in listed], [], [*kept, *left]

    return [(keeping, "put_aside", put_aside)]


def _awaited_updates_stay() -> bool:
    """One that missed round 4 was announced for a round to come."""
    arrivals, update = keeping.Arrivals(), content_id(b"late")
    arrivals.note(4, update)
    arrivals.note(20, update)
    missed = arrivals.missed(4, true_chain().ledger)
    return missed == {update} and update in arrivals.awaited()


def _nothing_is_awaited() -> list[Patch]:
    return [(keeping.Arrivals, "awaited", lambda self: set())]


def _updates_to_be_applied_stay() -> bool:
    """Who was away is told of many rounds at once, a snapshot among them, and has applied none."""
    chain = Chain(4, snapshot_interval=4).grow_until(12)
    first = keeping.first_needed(chain.ledger, 2)
    return chain.ledger[3].record.updates[0].update in keeping.updates_from(chain.ledger, first)


def _others_alone_need_updates() -> list[Patch]:
    original = keeping.first_needed
    return [(keeping, "first_needed", lambda ledger, applied: original(ledger, len(ledger)))]


def _words_stay_until_their_round_is_decided() -> bool:
    """What was said of a round to come, when the ledger's end was lost, stays as well."""
    said: OwnWords[str] = OwnWords(1)
    said.note(4, "before", 1)
    said.note(5, "now", 1)
    said.note(6, "to come", 1)
    return (said.forget(5), said.kept()) == (["before"], ["now", "to come"])


def _words_go_too_soon() -> list[Patch]:
    original = OwnWords.forget
    return [(OwnWords, "forget", lambda self, round: original(self, round + 2))]


RULES = (
    Rule("updates that count again stay", _updates_count_once_more, _no_update_counts_again),
    Rule(
        "updates since the older snapshot stay",
        _updates_since_a_snapshot_stay,
        _the_newest_snapshot_will_do,
    ),
    Rule("two snapshots stay", _two_snapshots_stay, _the_newest_snapshot_stays),
    Rule("snapshots of a left chain stay", _a_left_chains_snapshots_stay, _what_is_left_goes),
    Rule("updates of rounds to come stay", _awaited_updates_stay, _nothing_is_awaited),
    Rule(
        "updates that are still to be applied stay",
        _updates_to_be_applied_stay,
        _others_alone_need_updates,
    ),
    Rule(
        "words stay until their round is decided",
        _words_stay_until_their_round_is_decided,
        _words_go_too_soon,
    ),
    Rule("no more snapshots stay", _two_snapshots_stay, put(keeping, "KEPT_SNAPSHOTS", 10)),
)
