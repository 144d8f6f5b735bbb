"""Bytes that members exchange: the figures equal what the codec produces."""

from __future__ import annotations

import pytest
from distro_node.protocol.chain.features import exchange_size
from distro_node.protocol.codec.exchange_size import ExchangeSize, check_size, largest_top_k
from distro_node.protocol.codec.layout import update_layout
from distro_node.protocol.committee.aggregate import aggregate_bytes, max_aggregate_bytes
from distro_node.protocol.committee.exchange_size import CommitteeExchangeSize
from distro_node.protocol.committee.sections import most_sections, sections
from distro_node.protocol.committee.sign_vote import part_bytes
from distro_node.protocol.committee.sign_vote_tree import proof_bytes
from distro_node.protocol.wire.blobs import MAX_BLOB_BYTES
from distro_node.protocol.wire.manifest import OptimizerSpec, ParameterSpec, ScheduleSpec
from distro_node.protocol.wire.work_specs import CommitteesSpec
from simulation.chain import Chain

LAYOUT = update_layout([ParameterSpec(name="weight", shape=(512, 128))], 64, 64)
COMMITTEES = CommitteesSpec(rotation_steps=4)
WHOLE, CUT = ExchangeSize(), CommitteeExchangeSize(COMMITTEES)
BILLION = (ParameterSpec(name="weight", shape=(1 << 17, 1 << 13)),)


def test_without_committees_everybody_gets_everybodys_update() -> None:
    assert WHOLE.sent(LAYOUT) == LAYOUT.body_bytes
    assert WHOLE.received(LAYOUT, 8) == 7 * LAYOUT.body_bytes


def test_a_committee_gets_one_part_of_each_sign_vote_and_all_get_each_aggregate() -> None:
    assert CUT.sent(LAYOUT) == 1 + 512 * 128 // 4 // 8
    cut = sections(LAYOUT, 4)
    parts = sum(part_bytes(own, 4, 0) + proof_bytes(n, 4) for n, own in enumerate(cut)) // 4
    assert CUT.received(LAYOUT, 12) == 11 * parts + sum(aggregate_bytes(own, 12) for own in cut)


def test_sign_votes_cost_about_the_same_however_many_members_there_are() -> None:
    """This holds up to the inclusion proofs, and while there are blocks for that many committees."""
    table = [ParameterSpec(name="weight", shape=(8192, 1024))]
    layout = update_layout(table, 64, 64)
    assert most_sections(layout) == 2048
    few, many = (CUT.received(layout, members) for members in (32, 256))
    assert many < 1.4 * few
    assert WHOLE.received(layout, 256) > 8 * WHOLE.received(layout, 32)


@pytest.mark.parametrize("exchange", [WHOLE, CUT])
def test_alone_a_member_receives_nothing(exchange: ExchangeSize) -> None:
    assert exchange.received(LAYOUT, 1) == 0


def size(top_k: int, committees: CommitteesSpec | None) -> int:
    layout = update_layout(BILLION, 64, top_k)
    return layout.body_bytes if committees is None else max_aggregate_bytes(layout)


@pytest.mark.parametrize("committees", [None, COMMITTEES])
def test_as_many_coefficients_as_can_be_sent_as_one(committees: CommitteesSpec | None) -> None:
    exchange = exchange_size([committees] if committees else [])
    most = largest_top_k(BILLION, 64, exchange, 1000)
    assert size(most, committees) <= MAX_BLOB_BYTES < size(most + 1, committees)
    assert largest_top_k(BILLION, 64, exchange, 8) == 8
    huge = [ParameterSpec(name="weight", shape=(1 << 20, 1 << 20))]
    assert largest_top_k(huge, 64, exchange, 8) == 1


@pytest.mark.parametrize("committees", [None, CommitteesSpec(rotation_steps=16)])
def test_an_update_or_an_aggregate_has_to_fit_into_one_blob(
    committees: CommitteesSpec | None,
) -> None:
    """Otherwise every member would fail with its first one: while members are few, one committee
    aggregates the whole model."""
    exchange = exchange_size([committees] if committees else [])
    most = largest_top_k(BILLION, 64, exchange, 1000)
    for top_k in (most, most + 1):
        manifest = Chain(
            2,
            parameters=BILLION,
            committees=committees,
            optimizer=OptimizerSpec(top_k=top_k, outlier_filter=False),
            schedule=ScheduleSpec(total_rounds=1000, warmup_rounds=0),
        ).manifest
        if top_k == most:
            check_size(manifest, exchange)
        else:
            with pytest.raises(ValueError, match=f"is too large .* set it to {most} or less"):
                check_size(manifest, exchange)
