"""Swarm-ids and invite links: what is written is read back, and every typo is detected."""

from __future__ import annotations

import string

import pytest
from distro_node.crypto.hashing import ContentId
from distro_node.crypto.identity import Identity, peer_text
from distro_node.protocol.wire.checkpoint import Checkpoint
from distro_node.protocol.wire.manifest import SwarmId
from distro_node.protocol.wire.messages import RecordId
from distro_node.protocol.wire.swarm_id import (
    MAX_BOOTSTRAP,
    MAX_INVITE_CHARACTERS,
    Invite,
    SwarmIdError,
    check_bootstrap,
    check_multiaddr,
    checkpoint_from_text,
    checkpoint_text,
    invite_text,
    parse_invite,
    swarm_from_text,
    swarm_text,
)
from hypothesis import given
from hypothesis import strategies as st

SWARM = SwarmId(bytes(range(32)))
TEXT = swarm_text(SWARM)
PEER = peer_text(Identity.from_seed(bytes(32)).peer)
ADDRESS = f"/ip4/192.0.2.1/tcp/4001/p2p/{PEER}"
ALPHABET = string.ascii_lowercase + "234567"

AT = Checkpoint(123, RecordId(ContentId(bytes(range(32)))))
AT_TEXT = "123.aaaqeayeaudaocajbifqydiob4ibceqtcqkrmfyydenbwha5dyp4x7av"

points = st.none() | st.builds(
    Checkpoint,
    st.integers(0, 10**18 - 1),
    st.binary(min_size=32, max_size=32).map(ContentId).map(RecordId),
)
swarms = st.binary(min_size=32, max_size=32).map(SwarmId)
tokens = st.text(st.characters(min_codepoint=0x21, max_codepoint=0x7E), min_size=1, max_size=60)


def fault_of(text: str) -> str:
    with pytest.raises(SwarmIdError) as caught:
        parse_invite(text)
    return caught.value.fault


@given(swarms)
def test_a_swarm_id_is_read_back(swarm: SwarmId) -> None:
    text = swarm_text(swarm)
    assert len(text) == 62
    assert swarm_from_text(text) == swarm
    assert swarm_from_text(f" \n{text.upper()}\t") == swarm


def test_the_text_of_a_swarm_id_is_frozen() -> None:
    # A change here changes every existing invite link.
    assert TEXT == "swarm-aaaqeayeaudaocajbifqydiob4ibceqtcqkrmfyydenbwha5dyp2f4ph"


def test_every_wrong_character_is_caught() -> None:
    for position in range(6, len(TEXT)):
        for character in ALPHABET:
            if character != TEXT[position]:
                assert fault_of(TEXT[:position] + character + TEXT[position + 1 :]) == "checksum"


def test_every_swap_of_neighbours_is_caught() -> None:
    for position in range(6, len(TEXT) - 1):
        first, second = TEXT[position : position + 2]
        if first != second:
            swapped = TEXT[:position] + second + first + TEXT[position + 2 :]
            assert fault_of(swapped) == "checksum"


@given(swarms, st.integers(6, 58), st.text(ALPHABET, min_size=4, max_size=4))
def test_four_wrong_neighbours_are_caught(swarm: SwarmId, position: int, other: str) -> None:
    text = swarm_text(swarm)
    changed = text[:position] + other + text[position + 4 :]
    if changed != text:
        assert fault_of(changed) == "checksum"


@pytest.mark.parametrize(
    ("text", "fault", "says"),
    [
        ("", "prefix", "begins with 'swarm-'"),
        ("swam-" + TEXT[6:], "prefix", "'swam-a'"),
        (TEXT[:20] + "1" + TEXT[21:], "character", "'1', character 21"),
        (TEXT[:20] + "1" + TEXT[21:], "character", "did you mean 'l'?"),
        (TEXT[:20] + "\u212a" + TEXT[21:], "character", "character 21"),  # lower() makes it a k
        (TEXT[:20] + " " + TEXT[20:], "character", "' '"),
        (TEXT[:-3], "length", "3 characters too short"),
        (TEXT + "ab", "length", "2 characters too long"),
        (TEXT + "a", "length", "1 character too long"),
        (f"distro:{TEXT}?bootstrp={ADDRESS}", "link", "did you mean 'bootstrap'?"),
        (f"distro:{TEXT}?bootstrap", "link", "after '?'"),
        (f"distro:{TEXT}?bootstrap=%ff", "link", "after '?'"),
        (f"distro:{TEXT}?bootstrap=", "bootstrap", "not an address"),
        (f"distro:{TEXT}?bootstrap=/ip4/192.0.2.1/tcp/4001", "bootstrap", "/p2p/"),
        (f"distro:{TEXT}?bootstrap={ADDRESS[:-1]}", "bootstrap", "52 characters"),
        (f"distro:{TEXT}?bootstrap={ADDRESS[:-1]}!", "bootstrap", "base58"),
        (f"distro:{TEXT}?ticket=", "ticket", "damaged"),
        (f"distro:{TEXT}?ticket=a&ticket=b", "link", "more than one ticket"),
        (f"distro:{TEXT}?at=", "at", "not of the form ROUND.RECORD"),
        (f"distro:{TEXT}?at=12.abc", "at", "not of the form ROUND.RECORD"),
        (f"distro:{TEXT}?at={AT_TEXT}x", "at", "a character of it is wrong"),
        (f"distro:{TEXT}?at=0{AT_TEXT}", "at", "a character of it is wrong"),
        (f"distro:{TEXT}?at={AT_TEXT.replace('123', '124')}", "at", "a character of it is wrong"),
        (f"distro:{TEXT}?at={AT_TEXT}&at={AT_TEXT}", "link", "more than one checkpoint"),
        (
            f"distro:{TEXT}?" + "&".join([f"bootstrap={ADDRESS}"] * (MAX_BOOTSTRAP + 1)),
            "link",
            "16",
        ),
        ("distro:" + "a" * MAX_INVITE_CHARACTERS, "link", "characters"),
    ],
)
def test_each_fault_is_named(text: str, fault: str, says: str) -> None:
    with pytest.raises(SwarmIdError) as caught:
        parse_invite(text)
    assert caught.value.fault == fault
    assert says in str(caught.value)


@given(swarms, st.lists(tokens, max_size=MAX_BOOTSTRAP), st.none() | tokens, points)
def test_an_invite_link_is_read_back(
    swarm: SwarmId, hosts: list[str], ticket: str | None, at: Checkpoint | None
) -> None:
    bootstrap = tuple(f"/dns4/{host.replace('/', '')}x/tcp/1/p2p/{PEER}" for host in hosts)
    invite = Invite(swarm=swarm, bootstrap=bootstrap, ticket=ticket, at=at)
    link = invite_text(invite)
    assert link.isascii()
    assert not set(link) & set(" \"'<>\\^`{|}\n")
    assert parse_invite(link) == invite
    assert parse_invite(f"  {link}\n") == invite


def test_the_text_of_a_checkpoint_is_frozen() -> None:
    # A change here invalidates every existing link.
    assert checkpoint_text(AT) == AT_TEXT
    assert checkpoint_from_text(AT_TEXT) == AT


@pytest.mark.parametrize("place", range(len("123.") + 56))
def test_every_wrong_character_of_a_checkpoint_is_found(place: int) -> None:
    for character in ALPHABET + "0189.":
        damaged = AT_TEXT[:place] + character + AT_TEXT[place + 1 :]
        if damaged != AT_TEXT:
            with pytest.raises(SwarmIdError) as caught:
                checkpoint_from_text(damaged)
            assert caught.value.fault == "at"


def test_a_bare_swarm_id_is_an_invite_to_nobody_in_particular() -> None:
    assert parse_invite(TEXT) == Invite(swarm=SWARM)
    assert invite_text(Invite(swarm=SWARM)) == f"distro:{TEXT}"


def test_multiaddrs_are_checked_for_their_shape() -> None:
    assert check_multiaddr("/ip6/::1/tcp/0") == "/ip6/::1/tcp/0"
    assert check_bootstrap(ADDRESS) == ADDRESS
    for wrong in ("", "/", "192.0.2.1:4001", "/ip4//tcp/1", "/ip4", "/ip4/a b/tcp/1", "/é/1"):
        with pytest.raises(SwarmIdError):
            check_multiaddr(wrong)
    with pytest.raises(SwarmIdError, match="more than 256"):
        check_multiaddr("/dns4/" + "a" * 300)
    with pytest.raises(SwarmIdError, match="/p2p/"):
        check_bootstrap(f"/p2p/{PEER}")


FRAGMENTS = ["swarm-", "distro:", "?", "&", "=", "bootstrap=", "ticket=", "%", "%2f", "/p2p/"]
ODD = [" ", "\x00", "é", "\ud800"]
pieces = st.sampled_from([*FRAGMENTS, *ODD, TEXT, ADDRESS, PEER, TEXT[6:]])


@given(st.lists(pieces | st.text(max_size=8), max_size=8).map("".join))
def test_any_text_is_a_value_or_the_one_error(text: str) -> None:
    read_or_refuse(text)


def read_or_refuse(text: str) -> bool:
    try:
        invite = parse_invite(text)
    except SwarmIdError:
        return False
    assert parse_invite(invite_text(invite)) == invite
    return True
