"""Trainers in a swarm with committees: from every member's sign vote by way of aggregates to one and
the same step."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch
from chain.committee_chain import AggregatedChain
from distro_node.node.storage.blob_store import BlobStore
from distro_node.node.trainer.training_session import TrainingSession
from distro_node.node.training.counted_bodies import StepInputs, counted_bodies
from distro_node.node.training.errors import TrainerFailed
from distro_node.protocol.chain.step_inputs import StepBody
from distro_node.protocol.codec.schedule import learning_rate
from distro_node.protocol.codec.update import update_layout
from distro_node.protocol.committee.aggregate import (
    Aggregate,
    Momentum,
    encode_aggregate,
    section_header,
    summed,
)
from distro_node.protocol.committee.sections import Section, sections
from distro_node.protocol.committee.sign_vote import (
    cut_sign_vote,
    decode_part,
    selected_positions,
    step_of,
)
from distro_node.protocol.wire.manifest import Manifest, OptimizerSpec
from distro_node.protocol.wire.work_specs import CommitteesSpec
from trainer.support import CPU, make_manifest

ONE_OF = 4
OPTIMIZER = OptimizerSpec(
    preconditioner="muon",
    smoothing=0.5,
    momentum=0.97,
    step="scaled",
    top_k=64,
    outlier_filter=False,
)


def swarm_of(tmp_path: Path, count: int) -> tuple[Manifest, list[TrainingSession], list[Section]]:
    """Return `count` members, loaded, and two sections of their model."""
    manifest, chunks = make_manifest(tmp_path, optimizer=OPTIMIZER)
    manifest = dataclasses.replace(manifest, committees=CommitteesSpec(rotation_steps=ONE_OF))
    members = [TrainingSession(manifest, BlobStore(tmp_path), CPU, 2) for _ in range(count)]
    assert len({member.load(chunks) for member in members}) == 1
    return manifest, members, list(sections(members[0].layout, 2))


def aggregates(
    cut: list[Section], momenta: list[Momentum], sign_votes: list[bytes], turn: int
) -> list[bytes]:
    """Return the aggregates that the committees of all sections make of these sign votes."""
    (whole,) = sections(cut[0].whole, 1)
    parts = [cut_sign_vote(whole, cut, ONE_OF, turn, vote) for vote in sign_votes]
    bodies = []
    for number, (section, momentum) in enumerate(zip(cut, momenta, strict=True)):
        told = [(decode_part(section, ONE_OF, turn, own[number]), 1) for own in parts]
        momentum.add(summed(section, ONE_OF, turn, told), ONE_OF, turn)
        said = momentum.take_strongest(turn)
        counted = (True,) * len(sign_votes)
        bodies.append(encode_aggregate(section, Aggregate(number, len(cut), counted, said)))
    return bodies


def test_members_stay_bit_identical_and_learn(tmp_path: Path) -> None:
    manifest, members, cut = swarm_of(tmp_path, 3)
    momenta = [Momentum(section) for section in cut]
    before, seen = members[0].computation.evaluate(30), set()
    for round_ in range(1, 25, 2):
        shares = [range(4 * place, 4 * place + 4) for place in range(len(members))]
        made = [m.train(round_, s) for m, s in zip(members, shares, strict=True)]
        sign_votes = [each.body for each in made]
        # One bit each, after one byte.
        assert all(0 <= 8 * len(each.body) - 8 - each.coefficients < 8 for each in made)
        # Nothing changes until the committees have sent their aggregates.
        (unchanged,) = {m.apply(round_, [], 1.0, False, []) for m in members}
        said = aggregates(cut, momenta, sign_votes, step_of(round_))
        rate = learning_rate(manifest.schedule, round_ + 1)
        weights = [1, 0, 1]
        orders = ([said[0], said[0], said[1]], [said[1], said[1], said[0]], [*said[:1], *said])
        found = {
            m.apply(round_ + 1, order, rate, False, weights)
            for m, order in zip(members, orders, strict=True)
        }
        assert len(found) == 1
        assert unchanged not in found
        seen |= found
    assert len(seen) == 12
    assert members[0].computation.evaluate(30) < before - 0.2


def test_the_section_of_a_committee_without_aggregate_stays_as_it_is(tmp_path: Path) -> None:
    _, members, cut = swarm_of(tmp_path, 1)
    (member,) = members
    parameters = [parameter.detach().clone() for parameter in member.parameters]
    momenta = [Momentum(section) for section in cut]
    said = aggregates(cut, momenta, [member.train(1, range(4)).body], 0)

    member.apply(2, said[:1], 1e-3, False, [1])

    aggregated = {run.tensor for run in cut[0].runs}
    shared = aggregated & {run.tensor for run in cut[1].runs}
    for index, (old, new) in enumerate(zip(parameters, member.parameters, strict=True)):
        if index in shared:
            continue
        assert torch.equal(old, new.detach()) == (index not in aggregated)


def test_a_sign_vote_has_the_signs_of_the_last_gradient(tmp_path: Path) -> None:
    _, (member,), _ = swarm_of(tmp_path, 1)
    (whole,) = sections(member.layout, 1)
    for turn, round_ in enumerate((1, 3, 5)):
        body = member.train(round_, range(4)).body
        told = decode_part(whole, ONE_OF, turn, body)
        for index, momentum in enumerate(member.optimizer.momentum):
            heard = selected_positions(momentum.shape[1], ONE_OF, turn)
            values = momentum.numpy()[:, heard]
            signs = np.where(values == 0, told[index], np.sign(values))
            assert np.array_equal(told[index], signs)


def test_where_nothing_was_found_one_sign_is_sent_and_then_the_other(tmp_path: Path) -> None:
    _, (member,), _ = swarm_of(tmp_path, 1)
    (whole,) = sections(member.layout, 1)
    signs = {}
    for turn in (0, 3, 4, 8):
        told = decode_part(whole, ONE_OF, turn, member.train(2 * turn + 1, []).body)
        (signs[turn],) = set(np.concatenate([each.ravel() for each in told]).tolist())
    assert signs == {0: 1, 3: 1, 4: -1, 8: 1}


def test_what_is_no_aggregate_is_recognised(tmp_path: Path) -> None:
    _, (member,), _ = swarm_of(tmp_path, 1)
    with pytest.raises(TrainerFailed, match="does not decode"):
        member.apply(2, [b"\3nothing"], 1e-3, False, [1])


def test_what_does_not_fit_is_left_out_and_what_is_lacking_is_reported(tmp_path: Path) -> None:
    chain, store = AggregatedChain(), BlobStore(tmp_path)
    optimizer = chain.manifest.optimizer
    layout = update_layout(chain.manifest.parameters, optimizer.chunk, optimizer.top_k)
    bodies = [
        encode_aggregate(own, Aggregate(number, 2, (), Momentum(own).take_strongest(0)))
        for number, own in enumerate(sections(layout, 2))
    ]
    first, second = (
        chain.update(peer, update=store.put(body))
        for peer, body in zip(chain.membership.peers, bodies, strict=False)
    )
    honest = StepBody(first, 1, section_header(0, 2)), StepBody(second, 1, section_header(1, 2))
    # Its committee has agreed on an aggregate of the other section.
    liars = StepBody(first, 1, section_header(0, 2)), StepBody(first, 1, section_header(1, 2))

    assert counted_bodies(store, honest) == StepInputs(bodies, [1, 1])
    assert counted_bodies(store, liars) == StepInputs(bodies[:1], [1])
    assert counted_bodies(store, ()) == StepInputs([], [])
    store.remove(second.update)
    assert counted_bodies(store, honest) is None
