"""Rules of retention: which snapshots, updates and own messages stay."""

from __future__ import annotations

from distro_node.crypto.hashing import content_id
from distro_node.protocol.chain import retention
from distro_node.protocol.member.signed_log import SignedLog
from distro_node.protocol.wire.messages import SnapshotEntry
from simulation.chain import Chain
from simulation.known_chains import true_chain


def test_updates_count_once_more() -> None:
    """An update of round 2 counts in round 12, too."""
    chain = true_chain().fork()
    old = chain.ledger[2].record.updates[0].update
    chain.grow(updates=[chain.update(chain.membership.peers[0], update=old)])
    assert old not in retention.dispensable_updates(chain.ledger, -1, 5)


def test_updates_since_a_snapshot_stay() -> None:
    entry = SnapshotEntry(5, content_id(b"older"), 1)
    newer = SnapshotEntry(10, content_id(b"newer"), 1)
    assert (
        retention.last_dispensable(true_chain().ledger, [entry, newer], len(true_chain().ledger))
        == 5
    )


def test_two_snapshots_stay() -> None:
    """The newest may not be certified yet: newcomers load the one before."""
    kept: list[SnapshotEntry] = []
    for round_ in (5, 10, 15):
        new = SnapshotEntry(round_, content_id(b"%d" % round_), 1)
        kept = retention.kept_with(kept, new, held=lambda old: False, most_held=2)
    assert [entry.round for entry in kept] == [10, 15]


def test_a_left_chains_snapshots_stay() -> None:
    """All members may return to it, and no other node may have them."""
    own = SnapshotEntry(5, content_id(b"own"), 1)
    assert retention.put_aside([own], [], [], lambda old: False)[1] == [own]


def test_awaited_updates_stay() -> None:
    """An update that missed round 4 was announced for a later round."""
    arrivals, update = retention.ReceivedUpdates(), content_id(b"late")
    arrivals.note(4, update)
    arrivals.note(20, update)
    missed = arrivals.missed(4, true_chain().ledger)
    assert missed == {update}
    assert update in arrivals.awaited()


def test_updates_to_be_applied_stay() -> None:
    """A member that was away receives many rounds at once, a snapshot among them, and has applied
    none."""
    chain = Chain(4, snapshot_interval=4).grow_until(12)
    first = retention.first_needed(chain.ledger, 2)
    assert chain.ledger[3].record.updates[0].update in retention.updates_from(chain.ledger, first)


def test_words_stay_until_their_round_is_decided() -> None:
    """Own messages of a later round stay as well, if the ledger's end was lost."""
    said: SignedLog[str] = SignedLog(1)
    said.note(4, "before", 1)
    said.note(5, "now", 1)
    said.note(6, "to come", 1)
    assert (said.forget(5), said.kept()) == (["before"], ["now", "to come"])
