"""Blob lists and sync answers: large data stays within its limits."""

from __future__ import annotations

import dataclasses

import pytest
from distro_node.crypto.hashing import content_id
from distro_node.protocol.chain.entry_store import MAX_DECIDED_BYTES
from distro_node.protocol.chain.sync import (
    MAX_PROBES,
    MAX_SYNC_REQUEST_BYTES,
    MAX_SYNC_RESPONSE_BYTES,
    SyncRequest,
    compose_response,
    decode_request,
    decode_response,
    read_answer,
)
from distro_node.protocol.wire.blobs import (
    CHUNK_BYTES,
    MAX_BLOB_BYTES,
    MAX_BLOB_LIST_BYTES,
    BlobList,
    decode_any_blob_list,
    decode_blob_list,
)
from distro_node.protocol.wire.encoding import encode
from distro_node.protocol.wire.errors import ProtocolError
from simulation.formats import DECIDED

CHUNK = content_id(b"chunk")


@pytest.mark.parametrize(
    ("size", "count"),
    [(1, 1), (CHUNK_BYTES, 1), (CHUNK_BYTES + 1, 2), (3 * CHUNK_BYTES - 1, 3)],
)
def test_chunks_are_full_but_for_the_last(size: int, count: int) -> None:
    assert BlobList("shard", size, (CHUNK,) * count).size == size
    for wrong in (count - 1, count + 1):
        with pytest.raises(ValueError, match="do not fit"):
            BlobList("shard", size, (CHUNK,) * wrong)


def test_a_list_is_of_what_was_asked_for() -> None:
    data = BlobList("shard", 5, (CHUNK,)).encode()
    assert decode_blob_list(data, "shard", 5).size == 5
    for kind, size in (("snapshot", 5), ("shard", 6)):
        with pytest.raises(ProtocolError) as caught:
            decode_blob_list(data, kind, size)  # type: ignore[arg-type]  # both are kinds
        assert caught.value.reason == "mismatch"


def test_the_longest_list_is_a_blob_that_can_be_read() -> None:
    longest = BlobList("snapshot", CHUNK_BYTES << 17, (CHUNK,) * (1 << 17))
    data = longest.encode()
    assert len(data) <= MAX_BLOB_LIST_BYTES <= MAX_BLOB_BYTES
    assert decode_blob_list(data, "snapshot", longest.size) == longest


def test_a_longer_list_is_refused() -> None:
    data = BlobList("snapshot", (CHUNK_BYTES << 17) + 1, (CHUNK,) * ((1 << 17) + 1)).encode()
    assert len(data) <= MAX_BLOB_LIST_BYTES
    with pytest.raises(ProtocolError) as caught:
        decode_any_blob_list(data)
    assert caught.value.reason == "invalid"


def test_requests_fit_their_limit() -> None:
    longest = SyncRequest(bytes(32), 2**63 - 1, (2**63 - 1,) * MAX_PROBES, 2**63 - 1)
    assert len(encode(longest)) <= MAX_SYNC_REQUEST_BYTES
    assert decode_request(encode(longest)) == longest


def test_answers_hold_what_fits() -> None:
    entry = len(encode(DECIDED))
    answer = compose_response(9, [encode(DECIDED)] * 10_000, [bytes(1000)] * 10_000)
    data = encode(answer)
    # One more entry of the largest kind would have fitted.
    assert len(data) + MAX_DECIDED_BYTES <= MAX_SYNC_RESPONSE_BYTES + (1 << 20)
    assert len(answer.entries) > (2 << 20) // entry
    assert len(answer.envelopes) > 1000
    again = decode_response(data)
    assert again == answer
    assert next(read_answer(data).entries()) == DECIDED


def test_an_answer_with_an_entry_that_is_none() -> None:
    answer = compose_response(1, [encode(DECIDED)], [])
    broken = dataclasses.replace(answer, entries=(answer.entries[0][:-1],))
    with pytest.raises(ProtocolError):
        list(read_answer(encode(broken)).entries())
