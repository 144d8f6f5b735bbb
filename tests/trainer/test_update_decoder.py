"""Updates decoded on arrival: what is kept, what is left to the step, and what is dropped."""

from __future__ import annotations

import queue
import time
from pathlib import Path

import pytest
from distro_node.crypto.hashing import ContentId, content_id
from distro_node.node.storage.blob_store import BlobStore
from distro_node.node.trainer.optimizer.update_decoder import UpdateDecoder
from distro_node.node.training.frames import ExpectedUpdate
from distro_node.protocol.wire.errors import ProtocolError

RATE = 2.0**-8


class CountingDecoder:
    """Decoder of upper-case text that counts its calls."""

    def __init__(self, store: BlobStore, most: int = 10) -> None:
        self.calls: list[bytes] = []
        self.store = store
        self.updates = UpdateDecoder(store, self._decode, most)

    def _decode(self, body: bytes) -> str:
        self.calls.append(body)
        if not body.isupper():
            raise ProtocolError("malformed", "not upper case")
        return body.decode()

    def arrive(self, round: int, body: bytes) -> bool:
        return self.updates.decode(ExpectedUpdate(round, self.store.put(body)))


@pytest.fixture
def decoder(tmp_path: Path) -> CountingDecoder:
    return CountingDecoder(BlobStore(tmp_path))


def test_a_step_decodes_only_what_was_not_decoded_on_arrival(decoder: CountingDecoder) -> None:
    assert decoder.arrive(3, b"A")
    assert not decoder.arrive(3, b"A")
    assert decoder.updates.take(3, [b"B", b"A", b"A"]) == ["B", "A", "A"]
    assert decoder.calls == [b"A", b"B"]


def test_what_missed_its_round_is_dropped_and_later_rounds_are_kept(
    decoder: CountingDecoder,
) -> None:
    decoder.arrive(3, b"LATE")
    decoder.arrive(4, b"NEXT")
    assert decoder.updates.take(3, []) == []
    assert not decoder.arrive(3, b"TOO LATE")
    decoder.calls.clear()
    assert decoder.updates.take(4, [b"NEXT", b"LATE"]) == ["NEXT", "LATE"]
    assert decoder.calls == [b"LATE"]


def test_other_parameters_may_need_earlier_rounds_again(decoder: CountingDecoder) -> None:
    decoder.arrive(9, b"OLD")
    decoder.updates.take(8, [])
    decoder.updates.forget()
    assert decoder.arrive(2, b"A")
    decoder.calls.clear()
    assert decoder.updates.take(9, [b"OLD"]) == ["OLD"]
    assert decoder.calls == [b"OLD"]


def test_their_number_is_bounded(tmp_path: Path) -> None:
    decoder = CountingDecoder(BlobStore(tmp_path), most=2)
    assert [decoder.arrive(1, body) for body in (b"A", b"B", b"C")] == [True, True, False]
    assert decoder.updates.take(1, [b"C", b"B", b"A"]) == ["C", "B", "A"]
    assert decoder.calls == [b"A", b"B", b"C"]
    assert decoder.arrive(2, b"D")


def test_what_is_missing_or_no_update_is_left_to_the_step(decoder: CountingDecoder) -> None:
    assert not decoder.updates.decode(ExpectedUpdate(1, ContentId(bytes(32))))
    assert not decoder.arrive(1, b"lower")
    with pytest.raises(ProtocolError):
        decoder.updates.take(1, [b"lower"])


def test_the_thread_outlives_what_cannot_be_read(
    decoder: CountingDecoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, expected = decoder.store.get, queue.SimpleQueue[ExpectedUpdate]()

    def get(cid: ContentId) -> bytes | None:
        if cid == content_id(b"BROKEN"):
            raise OSError(5, "Input/output error")
        return read(cid)

    monkeypatch.setattr(decoder.store, "get", get)
    decoder.updates.start(expected)
    for body in (b"BROKEN", b"WHOLE"):
        expected.put(ExpectedUpdate(1, decoder.store.put(body)))
    until = time.monotonic() + 60
    while not decoder.calls and time.monotonic() < until:
        time.sleep(0.01)
    assert decoder.updates.take(1, [b"WHOLE", b"BROKEN"]) == ["WHOLE", "BROKEN"]
    assert sorted(set(decoder.calls)) == [b"BROKEN", b"WHOLE"]
