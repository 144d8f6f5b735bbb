"""Swarms of other protocol versions: the user learns which side is too old, and the way out."""

from __future__ import annotations

from dataclasses import replace

import pytest
from distro_node import __version__
from distro_node.node.content.manifest_search import read_manifest
from distro_node.node.errors import ExitCode, UserError
from distro_node.protocol.wire.manifest import PROTOCOL_VERSION
from simulation.chain import Chain


@pytest.mark.parametrize(
    ("version", "says"),
    [
        (PROTOCOL_VERSION + 1, "this node is too old"),
        (PROTOCOL_VERSION - 1, "the swarm is too old for this node"),
    ],
)
def test_who_is_too_old_is_said(version: int, says: str) -> None:
    other = replace(Chain(0).manifest, version=version)
    with pytest.raises(UserError, match=says) as caught:
        read_manifest(other.encode(), other.swarm)
    assert caught.value.code is ExitCode.VERSION
    assert f"version {version}, this program {PROTOCOL_VERSION}" in caught.value.problem
    assert __version__ in caught.value.remedy


def test_one_of_ours_is_read() -> None:
    manifest = Chain(0).manifest
    assert read_manifest(manifest.encode(), manifest.swarm) == manifest
