"""Parts have names that are not hashes: only content that fits is kept, and nothing is left behind."""

from __future__ import annotations

from pathlib import Path

import pytest
from distro_node.crypto.hashing import content_id
from distro_node.node.storage.sign_vote_store import SignVotePartStore

NAME = content_id(b"a name")


@pytest.fixture
def store(tmp_path: Path) -> SignVotePartStore:
    return SignVotePartStore(tmp_path)


def register(store: SignVotePartStore, prefix: bytes = b"good") -> None:
    store.register(NAME, lambda data: data.startswith(prefix))


def test_what_fits_is_kept_under_the_name(store: SignVotePartStore) -> None:
    register(store)
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


def test_a_name_that_nobody_gave_stands_for_nothing(store: SignVotePartStore) -> None:
    assert not store.keep(NAME, b"good bytes")
    assert store.get(NAME) is None
    data = b"a blob"
    assert not store.keep(content_id(data), data)


def test_the_first_rule_stays(store: SignVotePartStore) -> None:
    register(store)
    register(store, b"bad")
    assert not store.keep(NAME, b"bad")


def test_what_has_rotted_is_not_returned(store: SignVotePartStore) -> None:
    register(store)
    store.keep(NAME, b"good bytes")
    store.path(NAME).write_bytes(b"rotten")
    assert store.get(NAME) is None
    assert list(store.root.iterdir()) == []
    assert store.keep(NAME, b"good bytes")


def test_a_removed_name_is_forgotten(store: SignVotePartStore) -> None:
    register(store)
    store.keep(NAME, b"good bytes")
    assert store.remove(NAME)
    assert not store.remove(NAME)
    assert not store.keep(NAME, b"good bytes")
    assert list(store.root.iterdir()) == []


def test_the_next_process_finds_what_it_names_and_removes_the_rest(
    store: SignVotePartStore,
) -> None:
    register(store)
    store.keep(NAME, b"good bytes")
    old = content_id(b"an old name")
    store.register(old, lambda data: True)
    store.keep(old, b"of a step that is over")
    other = SignVotePartStore(store.root)
    assert other.get(NAME) is None
    register(other)
    assert other.get(NAME) == b"good bytes"
    other.remove_unregistered()
    assert other.get(NAME) == b"good bytes"
    assert store.get(old) is None


def test_what_was_there_and_does_not_fit_is_removed(store: SignVotePartStore) -> None:
    register(store)
    store.keep(NAME, b"good bytes")
    other = SignVotePartStore(store.root)
    register(other, b"better")
    assert other.get(NAME) is None
    assert list(store.root.iterdir()) == []
