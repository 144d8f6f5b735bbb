"""The cost to a node of aggregating a section of a large model, beside reading all members' updates.

    python benchmarks/speaking.py [--size 1.2B] [--members 32] [--one-of 10] [--json FILE]

Measured with the program's own codec, on random signs: splitting the own sign vote into parts,
adding up the parts of all sign votes and choosing the aggregate, continuing from it, and reading the
aggregates of all sections. The comparison is what swarms do without committees: reading the updates
of all others. CPU seconds of one core, and numpy's peak memory; bytes are those that a member
receives in a step.
"""

from __future__ import annotations

import argparse
import json
import platform
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from distro_node.protocol.codec.aggregate import decode_aggregate, joined
from distro_node.protocol.codec.aggregator import Aggregator
from distro_node.protocol.codec.exchange_size import received
from distro_node.protocol.codec.layout import UpdateLayout, update_layout
from distro_node.protocol.codec.sections import committee_count, most_sections, sections
from distro_node.protocol.codec.sign_vote import PART_FORMAT, cut_sign_vote, part_bytes
from distro_node.protocol.codec.update import decode_update, encode_update
from distro_node.protocol.wire.work_specs import CommitteesSpec
from llamas import SIZES, llama

CHUNK, SPOKEN, K = 64, 64, 8

T = TypeVar("T")


class Costs:
    """The measurements, by operation."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self.megabytes: dict[str, float] = {}

    def of(self, what: str, act: Callable[[], T]) -> T:
        """Run an operation and note its cost; memory is counted in addition to what was allocated
        before."""
        tracemalloc.start()
        begun = time.process_time()
        made = act()
        self.seconds[what] = time.process_time() - begun
        self.megabytes[what] = tracemalloc.get_traced_memory()[1] / 1e6
        tracemalloc.stop()
        print(f"{what:40} {self.seconds[what]:8.2f} s {self.megabytes[what]:10,.0f} MB", flush=True)
        return made


def panels(
    costs: Costs, layout: UpdateLayout, members: int, spec: CommitteesSpec
) -> dict[str, float]:
    """Measure a step of a committee member; return its bytes."""
    chance = np.random.default_rng(1)
    count = committee_count(members, spec.min_members, most_sections(layout))
    (whole,), cut = sections(layout, 1), sections(layout, count)

    def drawn(size: int) -> bytes:
        # The last byte has unused bits.
        return bytes([PART_FORMAT]) + chance.bytes(size - 2) + b"\0"

    sheet = drawn(part_bytes(whole, spec.rotation_steps, 0))
    costs.of("cut the own sheet", lambda: cut_sign_vote(whole, cut, spec.rotation_steps, 0, sheet))
    size = part_bytes(cut[0], spec.rotation_steps, 0)
    told: list[tuple[bytes | None, int]] = [(drawn(size), 1) for _ in range(members)]
    speaker = costs.of("begin a term", lambda: Aggregator(cut[0], 0, count, spec.rotation_steps))
    said = costs.of("say a tally", lambda: speaker.aggregate(0, told))
    assert costs.of("go on from what counted", lambda: speaker.settle(said))
    tallies = [
        Aggregator(section, number, count, spec.rotation_steps).aggregate(0, [(None, 1)] * members)
        for number, section in enumerate(cut)
    ]
    costs.of(
        "read all tallies",
        lambda: joined(layout, [decode_aggregate(layout, tally) for tally in tallies]),
    )
    return {
        "sections": count,
        "sheet_bytes": len(sheet),
        "tallies_bytes": sum(map(len, tallies)),
        "received_bytes": received(layout, spec, members),
    }


def everybody(costs: Costs, layout: UpdateLayout, members: int) -> dict[str, float]:
    """Measure a step without committees, in which the others' updates are read."""
    chance = np.random.default_rng(2)
    positions, signs = [], []
    for tensor in layout.tensors:
        order = np.argsort(chance.random((tensor.blocks, tensor.elements), np.float32), axis=1)
        positions.append(np.sort(order[:, : tensor.top_k], axis=1).astype(np.int32))
        signs.append(1 - 2 * chance.integers(0, 2, positions[-1].shape, np.int8))
    body = encode_update(layout, positions, signs)
    costs.of("read one update", lambda: decode_update(layout, body))
    return {"received_bytes": received(layout, None, members)}


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--size", choices=SIZES, default="1.2B")
    parser.add_argument("--members", type=int, default=32)
    parser.add_argument("--one-of", type=int, default=10)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    table = llama(options.size)
    costs, members = Costs(), options.members
    print(f"{options.size}, {members} members")
    spoken = panels(
        costs,
        update_layout(table, CHUNK, SPOKEN),
        members,
        CommitteesSpec(rotation_steps=options.rotation_steps),
    )
    plain = everybody(costs, update_layout(table, CHUNK, K), members)
    for what, found in (("panels", spoken), (f"k = {K} of everybody", plain)):
        print(f"{what:40} {found['received_bytes'] / 1e6:8.1f} MB received in a step")
    measured: dict[str, Any] = {
        "size": options.size,
        "parameters": sum(spec.elements for spec in table),
        "members": members,
        "rotation_steps": options.rotation_steps,
        "spoken_k": SPOKEN,
        "k": K,
        "machine": platform.machine(),
        "panels": spoken,
        "everybody": plain,
        "seconds": costs.seconds,
        "megabytes": costs.megabytes,
    }
    if options.json is not None:
        options.json.write_text(json.dumps(measured, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
