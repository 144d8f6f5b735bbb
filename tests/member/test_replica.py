"""When parameters that fell behind replay rounds, and when they are reloaded."""

from __future__ import annotations

import pytest
from distro_node.crypto.hashing import ContentId
from distro_node.crypto.identity import PeerId
from distro_node.protocol.chain.replay_start import KEPT_ROUNDS, choose_state
from distro_node.protocol.member.effects import Effect, FetchUpdate, Resync
from distro_node.protocol.member.replica import Replica
from distro_node.protocol.member.update_collection import HeldUpdates
from simulation.chain import FINGERPRINT, Chain
from simulation.swarm import identity

INTERVAL = 5
ME = PeerId(bytes(32))


def behind(update_bytes: int) -> tuple[Replica, Chain]:
    """Return parameters of round 1 in a swarm that has certified two snapshots since."""
    chain = Chain(1, snapshot_interval=INTERVAL)
    while chain.round <= 2 * INTERVAL + 1:
        updates = [chain.update(identity(0).peer, size=update_bytes)] if chain.round else []
        chain.grow(updates=updates)
    replica = Replica(ME, INTERVAL)
    replica.loaded(1, FINGERPRINT, None)
    return replica, chain


def reloads(effects: list[Effect]) -> bool:
    return any(isinstance(effect, Resync) for effect in effects)


@pytest.mark.parametrize(("share", "reloaded"), [(0.5, False), (2.0, True)])
def test_what_is_replayed_is_never_more_than_a_snapshot(share: float, reloaded: bool) -> None:
    """Otherwise a swarm whose snapshots come faster than a download would outrun every newcomer."""
    size = 4 * Chain(1).manifest.elements
    replica, chain = behind(int(share * size / (2 * INTERVAL - 1)))
    effects = replica.next(chain.ledger, HeldUpdates())
    assert reloads(effects) == reloaded
    assert any(isinstance(effect, FetchUpdate) for effect in effects) != reloaded


def test_who_was_away_for_long_does_not_replay_what_nobody_keeps() -> None:
    """However little it is: members keep the updates of some hundred rounds for returning members."""
    chain = Chain(1, snapshot_interval=INTERVAL)
    while chain.round <= 2 * INTERVAL + KEPT_ROUNDS + 5:
        chain.grow(updates=[])
    for round_, reloaded in ((1, True), (INTERVAL, True), (2 * INTERVAL, False)):
        replica = Replica(ME, INTERVAL)
        replica.loaded(round_, FINGERPRINT, None)
        assert reloads(replica.next(chain.ledger, HeldUpdates())) == reloaded, round_
    # Nor does it load a state of its own that leads there, when it starts.
    assert choose_state([-1, 1, INTERVAL], chain.ledger) is None
    assert choose_state([-1, 1, INTERVAL], chain.ledger.truncated(3 * INTERVAL)) == INTERVAL
    # A state of rounds that the ledger lost does not belong to this chain.
    assert choose_state([-1, 1, INTERVAL], chain.ledger.truncated(3)) == 1


def test_rounds_take_time_however_small_their_updates_are() -> None:
    """A member that missed fifty of them returns sooner with a small snapshot."""
    chain = Chain(1, snapshot_interval=INTERVAL)
    while chain.round <= 10 * INTERVAL + 1:
        chain.grow(updates=[])
    # It slept, and has all updates up to here in its parameters.
    replica = Replica(ME, INTERVAL)
    replica.loaded(INTERVAL, FINGERPRINT, None)
    replica.next(chain.ledger.truncated(INTERVAL + 1), HeldUpdates())
    assert reloads(replica.next(chain.ledger, HeldUpdates()))
    assert choose_state([INTERVAL], chain.ledger) is None
    # On a slow line the snapshot takes as many rounds to come: it does not fetch another one for that.
    replica.loaded(INTERVAL, FINGERPRINT, None)
    assert not reloads(replica.next(chain.ledger, HeldUpdates()))
    # A few are replayed.
    assert choose_state([7 * INTERVAL], chain.ledger) == 7 * INTERVAL


def test_what_nobody_has_any_more_is_not_waited_for() -> None:
    replica, chain = behind(1)
    assert replica.next(chain.ledger, HeldUpdates())
    # An update of a later round can wait, one that no snapshot contains has to come.
    assert replica.overtaken(3, chain.ledger) == []
    assert replica.overtaken(2, chain.ledger.truncated(3)) == []
    assert reloads(replica.overtaken(2, chain.ledger))
    # Once: the parameters are being loaded by then.
    assert replica.overtaken(2, chain.ledger) == []


def test_what_is_being_applied_was_there() -> None:
    replica, chain = behind(1)
    held = HeldUpdates()
    held.held = {ContentId(entry.update) for entry in chain.ledger[2].record.updates}
    replica.next(chain.ledger, held)
    assert replica.awaits(2)
    assert replica.overtaken(2, chain.ledger) == []


def test_a_ledger_counts_the_bytes_of_its_updates() -> None:
    _, chain = behind(7)
    ledger = chain.ledger
    assert ledger.update_bytes(0, len(ledger)) == 7 * (len(ledger) - 1)
    assert ledger.update_bytes(3, 5) == 14
    shorter = ledger.truncated(4)
    shorter.append(ledger[4])
    assert shorter.update_bytes(0, 5) == 28


def failures(replica: Replica, chain: Chain) -> int:
    """Return the number of failures in a row that the reload reports."""
    (effect,) = (e for e in replica.next(chain.ledger, HeldUpdates()) if isinstance(e, Resync))
    return effect.failed


def test_replays_that_never_lead_to_the_swarm_s_parameters_are_counted() -> None:
    chain = Chain(1, snapshot_interval=INTERVAL)
    while chain.round <= 8:
        chain.grow(updates=[])
    replica = Replica(ME, 100)
    for time in (1, 2, 3):
        # The state is right, and what comes of the next record is not.
        replica.loaded(3, FINGERPRINT, None)
        replica.next(chain.ledger, HeldUpdates())
        replica.applied(4, FINGERPRINT + 1, None)
        assert failures(replica, chain) == time
    # It fails later: rounds before that were right, which says nothing of the one that was not.
    replica.loaded(3, FINGERPRINT, None)
    replica.next(chain.ledger, HeldUpdates())
    replica.applied(4, FINGERPRINT, None)
    replica.next(chain.ledger, HeldUpdates())
    replica.applied(5, FINGERPRINT + 1, None)
    assert failures(replica, chain) == 4
    # A later round is right at last: what comes then has nothing to do with it.
    replica.loaded(5, FINGERPRINT, None)
    for round_ in (6, 7):
        replica.next(chain.ledger, HeldUpdates())
        replica.applied(round_, FINGERPRINT, None)
    replica.next(chain.ledger, HeldUpdates())
    replica.applied(8, FINGERPRINT + 1, None)
    chain.grow(updates=[])
    assert failures(replica, chain) == 1
    # On another chain the count begins again.
    replica.rebase()
    replica.loaded(3, FINGERPRINT + 1, None)
    assert failures(replica, chain) == 1


def test_parameters_that_are_behind_or_doubted_are_no_failures() -> None:
    replica, chain = behind(10**9)
    assert failures(replica, chain) == 0
