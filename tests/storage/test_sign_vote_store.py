"""Parts have names that are not hashes: only content that fits is kept, and nothing is left behind."""

from __future__ import annotations

from pathlib import Path

import pytest
from distro_node.crypto.hashing import content_id
from distro_node.node.storage.sign_vote_store import PartStore

NAME = content_id(b"a name")


@pytest.fixture
def store(tmp_path: Path) -> PartStore:
    return PartStore(tmp_path)


def name(store: PartStore, prefix: bytes = b"good") -> None:
    store.name(NAME, lambda data: data.startswith(prefix))


def test_what_fits_is_kept_under_the_name(store: PartStore) -> None:
    name(store)
    assert store.get(NAME) is None
    assert not store.has(NAME)
    assert not store.keep(NAME, b"bad")
    assert store.keep(NAME, b"good bytes")
    assert store.has(NAME)
    assert store.get(NAME) == b"good bytes"
    assert store.size(NAME) == len(b"good bytes")
    # The first stays: others request it.
    assert store.keep(NAME, b"good as well")
    assert store.get(NAME) == b"good bytes"
    assert list(store.ids()) == [NAME]


def test_a_name_that_nobody_gave_stands_for_nothing(store: PartStore) -> None:
    assert not store.keep(NAME, b"good bytes")
    assert store.get(NAME) is None
    data = b"a blob"
    assert not store.keep(content_id(data), data)


def test_the_first_rule_stays(store: PartStore) -> None:
    name(store)
    name(store, b"bad")
    assert not store.keep(NAME, b"bad")


def test_what_has_rotted_is_not_returned(store: PartStore) -> None:
    name(store)
    store.keep(NAME, b"good bytes")
    store.path(NAME).write_bytes(b"rotten")
    assert store.get(NAME) is None
    assert list(store.root.iterdir()) == []
    assert store.keep(NAME, b"good bytes")


def test_a_removed_name_is_forgotten(store: PartStore) -> None:
    name(store)
    store.keep(NAME, b"good bytes")
    assert store.remove(NAME)
    assert not store.remove(NAME)
    assert not store.keep(NAME, b"good bytes")
    assert list(store.root.iterdir()) == []


def test_the_next_process_finds_what_it_names_and_removes_the_rest(store: PartStore) -> None:
    name(store)
    store.keep(NAME, b"good bytes")
    old = content_id(b"an old name")
    store.name(old, lambda data: True)
    store.keep(old, b"of a step that is over")
    other = PartStore(store.root)
    assert other.get(NAME) is None
    name(other)
    assert other.get(NAME) == b"good bytes"
    other.remove_nameless()
    assert other.get(NAME) == b"good bytes"
    assert store.get(old) is None


def test_what_was_there_and_does_not_fit_is_removed(store: PartStore) -> None:
    name(store)
    store.keep(NAME, b"good bytes")
    other = PartStore(store.root)
    name(other, b"better")
    assert other.get(NAME) is None
    assert list(store.root.iterdir()) == []
