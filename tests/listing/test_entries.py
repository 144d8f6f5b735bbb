"""Entries of the list of public swarms, and what their readers refuse."""

from __future__ import annotations

from pathlib import Path

import pytest
from distro_node.crypto.envelope import seal
from distro_node.node.create.manifest_draft import read_draft
from distro_node.node.listing.entries import (
    MAX_ENTRY_BYTES,
    ListedSwarm,
    PublishRequest,
    PublishResponse,
    SwarmListing,
    check_public,
    decode_listing,
    decode_publish_request,
    decode_publish_response,
    open_entry,
)
from distro_node.protocol.wire.encoding import encode
from distro_node.protocol.wire.errors import ProtocolError
from distro_node.protocol.wire.manifest import MAX_MEMBERS, SwarmId, decode_manifest
from listing.listed import NOW, public, sealed
from network.support import identity

SWARM = SwarmId(bytes(range(32)))


def test_what_is_signed_comes_out() -> None:
    opened = open_entry(sealed(identity(1), SWARM, 7, members=5, tokens_per_second=None), SWARM)
    assert (opened.publisher, opened.number, opened.written) == (identity(1).peer, 7, NOW)
    assert (opened.members, opened.rounds_done, opened.tokens_per_second) == (5, 20, None)


def test_the_largest_entry_fits() -> None:
    most = 2**63 - 1
    data = sealed(
        identity(1),
        SWARM,
        most,
        written=most,
        members=MAX_MEMBERS,
        rounds_done=most,
        tokens_per_second=most,
    )
    assert len(data) <= MAX_ENTRY_BYTES
    assert open_entry(data, SWARM).tokens_per_second == most


def test_an_entry_is_for_its_swarm_and_unchanged() -> None:
    data = sealed(identity(1), SWARM)
    with pytest.raises(ProtocolError, match="another swarm"):
        open_entry(data, SwarmId(bytes(32)))
    for position in range(len(data)):
        changed = bytearray(data)
        changed[position] ^= 1
        with pytest.raises(ProtocolError):
            open_entry(bytes(changed), SWARM)


@pytest.mark.parametrize(
    "body", [[1, NOW, 0, 20, 5], [1, NOW, MAX_MEMBERS + 1, 20, 5], [1, NOW, 3, -1, 5], [1, NOW, 3]]
)
def test_numbers_out_of_range_are_refused(body: list[int]) -> None:
    with pytest.raises(ProtocolError):
        open_entry(seal(identity(1), "listing", SWARM, encode(body)), SWARM)


def test_a_peer_record_is_no_entry() -> None:
    with pytest.raises(ProtocolError, match="expected an entry"):
        open_entry(seal(identity(1), "peer", SWARM, encode([[], 5])), SWARM)


def test_only_the_founder_makes_a_swarm_public() -> None:
    manifest = public()
    check_public(manifest.encode(), manifest.swarm)
    hidden = public(is_public=False)
    with pytest.raises(ProtocolError) as refused:
        check_public(hidden.encode(), hidden.swarm)
    assert refused.value.reason == "not_public"
    # A publisher that changes the manifest changes the swarm-id.
    with pytest.raises(ProtocolError) as refused:
        check_public(manifest.encode(), hidden.swarm)
    assert refused.value.reason == "mismatch"
    assert b"public" not in hidden.encode()
    assert decode_manifest(manifest.encode(), manifest.swarm) == manifest


_FILE = """
name = "a run"
[model]
model_type = "llama"
hidden_size = 8
num_attention_heads = 2
[data]
sequence_length = 16
[admission]
"""


@pytest.mark.parametrize(
    ("key", "option", "result"),
    [("", False, False), ("public = true", False, True), ("", True, True)],
)
def test_file_and_option_make_a_swarm_public(
    tmp_path: Path, key: str, option: bool, result: bool
) -> None:
    file = tmp_path / "run.toml"
    file.write_text(_FILE + key)
    assert read_draft(file, (tmp_path,)).admission(identity(1).peer, public=option).public == result


def test_the_bytes_are_those_of_the_golden_file(checkout: Path) -> None:
    entry = sealed(identity(1), SWARM)
    messages = [
        entry,
        PublishRequest(SWARM, entry, None).encode(),
        PublishRequest(SWARM, entry, b"manifest").encode(),
        PublishResponse(wants_manifest=True, newer=None).encode(),
        SwarmListing((ListedSwarm(SWARM, (entry,)),)).encode(),
    ]
    golden = checkout / "tests" / "golden" / "list_entry.hex"
    assert [each.hex() for each in messages] == golden.read_text().split()
    assert decode_publish_request(messages[2]).manifest == b"manifest"
    assert decode_publish_response(messages[3]).wants_manifest
    assert decode_listing(messages[4]).swarms[0].entries == (entry,)
