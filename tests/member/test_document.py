"""docs/protocol.md names every message, field and bound as the code has them."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest
from distro_node.protocol.chain import (
    agreement,
    catching_up,
    comparing,
    entries,
    evidence,
    fork,
    sync,
)
from distro_node.protocol.member import divergence as divergence
from distro_node.protocol.member import mailbox, pacing, presence, proposing
from distro_node.protocol.member import vote_recovery as vote_recovery
from distro_node.protocol.wire import encoding, membership, messages
from distro_node.protocol.wire.manifest import MAX_MEMBERS, RoundSpec

TYPES = [
    value
    for value in vars(messages).values()
    if dataclasses.is_dataclass(value)
    and isinstance(value, type)
    and value.__module__ == messages.__name__
]


@pytest.fixture(scope="module")
def text(checkout: Path) -> str:
    return (checkout / "docs" / "protocol.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def sections(text: str) -> dict[str, str]:
    """What stands under each heading that is a type."""
    parts = re.split(r"^#{2,3} (.*)$", text, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def test_there_are_types() -> None:
    assert {"Announcement", "Ballot", "Record", "Decided"} <= {cls.__name__ for cls in TYPES}


@pytest.mark.parametrize("cls", TYPES, ids=lambda cls: cls.__name__)
def test_every_field_of_every_type_in_order(cls: type, sections: dict[str, str]) -> None:
    section = sections[f"`{cls.__name__}`"]
    rows = re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE)
    assert rows == [field.name for field in dataclasses.fields(cls)]


def test_no_type_that_does_not_exist(sections: dict[str, str]) -> None:
    named = {name.strip("`") for name in sections if name.startswith("`")}
    assert named == {cls.__name__ for cls in TYPES}


def test_every_kind_of_message(sections: dict[str, str]) -> None:
    for kind, cls in messages.MESSAGE_TYPES.items():
        assert f"`{kind}`" in sections[f"`{cls.__name__}`"]


@pytest.mark.parametrize(
    ("words", "value"),
    [
        ("at most {} members", MAX_MEMBERS),
        ("| a message | {} KiB |", messages.MAX_MESSAGE_BYTES >> 10),
        ("| a ledger entry | {} MiB |", entries.MAX_DECIDED_BYTES >> 20),
        ("| items in one decoded value | {:,},", encoding.MAX_ITEMS),
        ("of which messages are kept | {} |", mailbox.FUTURE_ROUNDS),
        ("messages kept of a member, all rounds together | {} MiB |", mailbox.MEMBER_BYTES >> 20),
        ("asks for admission | {} KiB |", mailbox.NEWCOMER_BYTES >> 10),
        ("| slots ahead of ours | {} |", agreement.SLOT_WINDOW),
        ("| masks kept of a ballot | {} |", agreement._MAX_MASKS),
        ("or after {:.0f} seconds: a swarm that", vote_recovery.RECALL_SECONDS),
        ("members accused whom no record has expelled yet | {} |", proposing._MAX_ACCUSED),
        ("| expelled identities remembered | {} |", membership.MAX_EXPELLED),
        ("each an `Evidence`; at most {} |", messages.MAX_EVIDENCE),
        ("sorted by checker and round; at most {} |", messages.MAX_LOOKS),
        ("sorted by looker, checker and round; at most {} |", messages.MAX_LOOKS_AGAIN),
        ("evidence about the last {} rounds", evidence.EVIDENCE_WINDOW),
        ("| requests for admission that wait | {} |", proposing._MAX_WAITING),
        ("It is good for {} rounds", membership.REQUEST_WINDOW),
        ("repeated them in the last {:.0f} seconds", proposing._REQUEST_SECONDS),
        ("at most {} a record", proposing._MAX_ADMISSIONS),
        ("observed in the last {} rounds", pacing._WINDOW_ROUNDS),
        ("is {} times the {:.0f}th percentile", (pacing._MARGIN, 100 * pacing._QUANTILE)),
        ("at most every {} seconds", {10.0: "ten"}[divergence._COMPARE_SECONDS]),
        ("as many as fit into {} MiB", sync.MAX_SYNC_RESPONSE_BYTES >> 20),
        ("nothing ran for {} seconds", {5.0: "five"}[presence._OWN_ABSENCE_SECONDS]),
        ("disconnected for more than {} seconds", {2.0: "two"}[presence._RECONNECT_SECONDS]),
        ("`{}` is a request and an answer", sync.SYNC_PROTOCOL),
        ("ids of up to {} of its records", sync.MAX_PROBES),
        ("by the first {} rounds since the fork", fork.COMPARED_ROUNDS),
        (
            "costs at most {} rounds or {} MiB",
            (fork.COMPARED_ROUNDS, comparing._MOST_BYTES >> 20),
        ),
        ("not answered after {} seconds", {10.0: "ten"}[comparing.PATIENCE_SECONDS]),
        ("not asked for it again for {:.0f} seconds", comparing._FIRST_REST_SECONDS),
        ("each further time, up to {:.0f}.", comparing._LONGEST_REST_SECONDS),
        ("at most {:,} rounds away", catching_up._MOST_ROUNDS),
    ],
)
def test_figures_are_those_of_the_code(words: str, value: object, text: str) -> None:
    values = value if isinstance(value, tuple) else (value,)
    assert words.format(*values) in " ".join(text.split())


def test_names_of_settings_exist(text: str) -> None:
    fields = {field.name for field in dataclasses.fields(RoundSpec)}
    assert {"lease_rounds", "start_members", "snapshot_interval"} <= fields
    for name in ("lease_rounds", "start_members", "snapshot_interval"):
        assert f"`{name}`" in text


def test_files_that_are_named_exist(text: str, checkout: Path) -> None:
    named = re.findall(r"`((?:protocol|crypto|tests)/[\w./]+\.\w+)`", text)
    assert len(named) > 8
    assert [name for name in named if not (checkout / name).is_file()] == []
