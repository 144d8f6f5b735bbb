"""Fixtures shared by the tests of the stored chain."""

from __future__ import annotations

from pathlib import Path

import pytest
from distro_node.node.storage.data_dir import SwarmDir
from simulation.chain import Chain


@pytest.fixture(scope="module")
def chain(request: pytest.FixtureRequest) -> Chain:
    """Return a chain of three members with as many rounds as the module's `ROUNDS`."""
    return Chain(3).grow_until(request.module.ROUNDS)


@pytest.fixture
def directory(tmp_path: Path) -> SwarmDir:
    """Return a swarm's directory, not yet made."""
    (tmp_path / "swarms").mkdir()
    return SwarmDir(tmp_path / "swarms" / "swarm")
