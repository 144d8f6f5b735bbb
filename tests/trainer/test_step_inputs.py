"""The inputs of a step: the bodies that are needed and fit, in their order."""

from __future__ import annotations

from pathlib import Path

from chain.committee_chain import AggregatedChain
from distro_node.node.storage.blob_store import BlobStore
from distro_node.node.training.counted_bodies import StepInputs, counted_bodies
from distro_node.protocol.chain.step_inputs import StepBody
from distro_node.protocol.codec.aggregate import Aggregate, Momentum, encode_aggregate
from distro_node.protocol.codec.sections import sections
from distro_node.protocol.codec.update import update_layout


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
    honest = StepBody(first, 1, (0, 2)), StepBody(second, 1, (1, 2))
    # Its committee has agreed on an aggregate of the other section.
    liars = StepBody(first, 1, (0, 2)), StepBody(first, 1, (1, 2))

    assert counted_bodies(store, honest) == StepInputs(bodies, [1, 1])
    assert counted_bodies(store, liars) == StepInputs(bodies[:1], [1])
    assert counted_bodies(store, ()) == StepInputs([], [])
    store.remove(second.update)
    assert counted_bodies(store, honest) is None
