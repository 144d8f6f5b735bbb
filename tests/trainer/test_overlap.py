"""Training a round ahead: the parameters it computes on, and the refund of what it sent.

With overlap the node requests the next round's update before it requests the application of this
round's record.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from distro_node.node.storage.blob_store import BlobStore
from distro_node.node.trainer.optimizer.fingerprint import fingerprint
from distro_node.node.trainer.training_session import TrainingSession
from distro_node.protocol.codec.schedule import learning_rate
from distro_node.protocol.codec.update import decode_update
from distro_node.protocol.wire.manifest import OptimizerSpec
from trainer.support import CPU, make_manifest, make_session

# Private here: `_pending`: what is still to be subtracted is told to nobody.

RATE = 2.0**-8
ROUNDS = 6


def sessions(root: Path, count: int = 2, **optimizer: float) -> list[TrainingSession]:
    manifest, chunks = make_manifest(root, optimizer=OptimizerSpec(**optimizer))  # type: ignore[arg-type]  # numbers
    made = [TrainingSession(manifest, BlobStore(root), CPU) for _ in range(count)]
    for session in made:
        session.load(chunks)
    return made


def samples(member: int, round_: int) -> list[int]:
    return [(16 * round_ + 8 * member + place) % 500 for place in range(8)]


def ahead(members: list[TrainingSession]) -> tuple[list[list[bytes]], list[int]]:
    """Use the daemon's order: train for the next round, then apply this round's record."""
    bodies = [[m.train(1, samples(i, 1)).body for i, m in enumerate(members)]]
    prints = []
    for round_ in range(1, ROUNDS):
        bodies.append(
            [m.train(round_ + 1, samples(i, round_ + 1)).body for i, m in enumerate(members)]
        )
        rate = learning_rate(members[0].manifest.schedule, round_)
        (found,) = {m.apply(round_, bodies[round_ - 1], rate, True) for m in members}
        prints.append(found)
    return bodies[: ROUNDS - 1], prints


def stale(members: list[TrainingSession]) -> tuple[list[list[bytes]], list[int]]:
    """Train each round by itself, with the parameters of a round ago for the gradient, as the
    benchmark of learning does."""
    bodies, prints = [], []
    old = [[p.detach().clone() for p in m.parameters] for m in members]
    for round_ in range(1, ROUNDS):
        new = [[p.detach().clone() for p in m.parameters] for m in members]
        put(members, old)
        bodies.append([m.train(round_, samples(i, round_)).body for i, m in enumerate(members)])
        put(members, new)
        old = new
        rate = learning_rate(members[0].manifest.schedule, round_)
        (found,) = {m.apply(round_, bodies[-1], rate, True) for m in members}
        prints.append(found)
    return bodies, prints


def put(members: list[TrainingSession], parameters: list[list[torch.Tensor]]) -> None:
    with torch.no_grad():
        for member, tensors in zip(members, parameters, strict=True):
            for parameter, tensor in zip(member.parameters, tensors, strict=True):
                parameter.copy_(tensor)


def test_gradients_are_those_of_the_parameters_a_round_ago(tmp_path: Path) -> None:
    bodies, prints = ahead(sessions(tmp_path))
    assert (bodies, prints) == stale(sessions(tmp_path))
    # And of no others: in order, the second round's update differs.
    first, second = sessions(tmp_path)
    both = [m.train(1, samples(i, 1)).body for i, m in enumerate((first, second))]
    assert both == bodies[0]
    first.apply(1, both, learning_rate(first.manifest.schedule, 1), True)
    assert first.train(2, samples(0, 2)).body != bodies[1][0]


def test_members_learn_a_round_late(tmp_path: Path) -> None:
    members = sessions(tmp_path)
    before = members[0].evaluate(30)
    ahead(members)
    assert members[0].evaluate(30) < before - 0.1


@pytest.mark.parametrize("counted", [True, False])
def test_what_was_left_out_comes_back_though_the_next_was_taken(
    tmp_path: Path, counted: bool
) -> None:
    """Exactly what was sent; the round that is still open is unaffected."""
    session = make_session(tmp_path)
    stranger = make_session(tmp_path).train(1, [9]).body
    session.train(1, [0, 1])
    pending = {
        index: (places.long(), values.clone())
        for index, (places, values) in enumerate(session.optimizer._pending[1])
    }
    second = session.train(2, [2, 3]).body
    expected = [momentum.clone() for momentum in session.optimizer.momentum]
    if not counted:
        for index, momentum in enumerate(expected):
            momentum.scatter_add_(1, *pending[index])
    session.apply(1, [stranger], RATE, counted)
    for ours, theirs in zip(session.optimizer.momentum, expected, strict=True):
        assert torch.equal(ours, theirs)
    # The second round's update is settled by its own record.
    assert session.optimizer.sent(2, decode_update(session.layout, second))
    assert not session.optimizer.refund(1)
    session.apply(2, [second], RATE, True)
    assert not session.optimizer.refund(2)


def test_a_trainer_that_is_restarted_between_the_two_goes_on(tmp_path: Path) -> None:
    """Pending updates are lost with it; parameters and momentum come from the disk and the record."""
    (session, other) = sessions(tmp_path)
    bodies, _ = ahead([session, other])
    manifest, chunks = make_manifest(tmp_path, optimizer=OptimizerSpec())
    again = TrainingSession(manifest, BlobStore(tmp_path), CPU)
    again.load(chunks)
    for round_, counted in enumerate(bodies, 1):
        again.apply(round_, counted, learning_rate(manifest.schedule, round_), True)
    found = fingerprint(again.parameters)
    assert found == fingerprint(session.parameters)
    # At the tip it computes this round's and then the next one's, on the same parameters.
    this = again.train(ROUNDS, samples(0, ROUNDS))
    ahead_of_it = again.train(ROUNDS + 1, samples(0, ROUNDS + 1))
    assert this.body != ahead_of_it.body
    assert again.apply(ROUNDS, [this.body], RATE, True) != found
