"""Some inputs for everything that a stranger can reach, 100,000 in `make soak`; `benchmarks/fuzz.py`
tries as many that coverage guides.

Also that nothing is left out, and that past findings stay fixed.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from fuzz import decoders, inventory
from fuzz.targets import LIMIT_SECONDS, attempt, mutated, seconds_of, targets

FINDINGS = Path(__file__).parent / "findings"
# The number of changes from an honest input to a hostile one.
CHANGES = (1, 1, 2, 4)


TARGETS = targets()


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Disable logging: faults of peers are logged, which would give thousands of lines here."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def test_every_decoder_is_a_target_or_its_owners_alone() -> None:
    covered = {name for target in TARGETS.values() for name in target.covers}
    assert inventory.decoders() == {
        each for each in covered | set(decoders.OWNERS) if each in inventory.decoders()
    }
    # Names that no longer exist.
    named = {each for each in covered if ":" in each}
    assert named <= inventory.functions() | inventory.doors()
    assert set(decoders.OWNERS) <= inventory.decoders() - covered


def test_every_protocol_that_is_served_is_a_target() -> None:
    covered = {name for target in TARGETS.values() for name in target.covers}
    assert len(inventory.doors()) > 10
    assert inventory.doors() <= covered


@pytest.mark.parametrize(
    "inputs", [200, pytest.param(100_000, marks=[pytest.mark.soak, pytest.mark.timeout(7200)])]
)
@pytest.mark.parametrize("name", sorted(TARGETS))
def test_hostile_inputs(name: str, inputs: int) -> None:
    target = TARGETS[name]
    slowest = 0.0, b""
    for data in target.seeds:
        attempt(target, data)
    for number in range(inputs):
        chance = random.Random(f"{name} {number}")
        data = chance.choice(target.seeds)
        for _ in range(chance.choice(CHANGES)):
            data = mutated(target, data, chance)
        slowest = max(slowest, (attempt(target, data)[1], data))
    # Most take a hundredth of that: the test shows that there is no loop, not how fast the code is.
    assert seconds_of(target, slowest[1]) < LIMIT_SECONDS


@pytest.mark.parametrize("path", sorted(FINDINGS.glob("*.bin")), ids=lambda path: path.stem)
def test_what_was_found_once(path: Path) -> None:
    target = TARGETS[path.stem.rpartition("-")[0].replace("_", " ")]
    attempt(target, path.read_bytes())
