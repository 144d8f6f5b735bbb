"""Names that members choose for themselves: signed, bounded, harmless, and proof of nothing."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import trio
from distro_node.crypto.envelope import seal
from distro_node.crypto.identity import PeerId
from distro_node.node.errors import ExitCode, UserError
from distro_node.node.network.discovery.member_names import (
    MAX_NAME_BYTES,
    PROTOCOL,
    MemberNames,
    open_name,
    seal_name,
)
from distro_node.node.network.discovery.names_file import MAX_NAMES, NamesFile
from distro_node.node.network.network import Network
from distro_node.node.settings.values import MAX_DISPLAY_NAME_CHARACTERS, parse_display_name
from distro_node.protocol.util.bounded_dict import BoundedTable
from distro_node.protocol.wire.encoding import encode
from distro_node.protocol.wire.errors import ProtocolError
from distro_node.protocol.wire.manifest import SwarmId
from network.support import identity, star, until

SWARM, OTHER = SwarmId(bytes(range(32))), SwarmId(bytes(32))


def names_of(
    network: Network,
    number: int,
    own: str | None,
    swarm: SwarmId = SWARM,
    path: Path | None = None,
) -> Any:
    known: BoundedTable[PeerId, str] = BoundedTable(100)
    names = MemberNames(
        network, identity(number), swarm, own, known, lambda: list(network.connected()), path
    )
    return known, names


async def test_names_are_exchanged() -> None:
    async with star(4) as (a, b, silent, elsewhere), trio.open_nursery() as nursery:
        known, names = names_of(a, 1, "Ada")
        theirs, others = names_of(b, 2, "Büro 3")
        names_of(silent, 3, None)
        names_of(elsewhere, 4, "of another swarm", OTHER)
        for each in (names, others):
            nursery.start_soon(each.run)
        await until(lambda: len(known) == 2 and len(theirs) == 2)
        assert known == theirs == {a.peer: "Ada", b.peer: "Büro 3"}
        assert not a.refuses(silent.peer)
        assert not a.refuses(elsewhere.peer)
        nursery.cancel_scope.cancel()


async def test_silent_peers_delay_no_other_name(monkeypatch: pytest.MonkeyPatch) -> None:
    async with star(4) as (a, *silent, b), trio.open_nursery() as nursery:
        request = a.request

        async def answered_by_b(peer: PeerId, *arguments: Any, **options: Any) -> bytes:
            if peer != b.peer:
                await trio.sleep_forever()
            return await request(peer, *arguments, **options)

        monkeypatch.setattr(a, "request", answered_by_b)
        names_of(b, 4, "Büro 3")
        known: BoundedTable[PeerId, str] = BoundedTable(100)
        order = [*(each.peer for each in silent), b.peer]
        names = MemberNames(a, identity(1), SWARM, None, known, lambda: order)
        nursery.start_soon(names.run)
        await until(lambda: dict(known) == {b.peer: "Büro 3"})
        nursery.cancel_scope.cancel()


async def test_names_outlast_a_restart(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "names.json"
    async with star(2) as (a, b):
        names_of(b, 2, "Ada")
        known, names = names_of(a, 1, None, path=path)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(names.run)
            await until(lambda: len(known) == 1)
            nursery.cancel_scope.cancel()
        assert path.stat().st_size < 1000
    async with star(1) as (a,):
        # Nobody is there to ask.
        known, names = names_of(a, 1, None, path=path)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(names.run)
            await until(lambda: len(known) == 1)
            nursery.cancel_scope.cancel()
        assert known == {identity(2).peer: "Ada"}
        # A name that somebody wrote there without the member's key, and one of another swarm.
        sealed = seal_name(identity(3), SWARM, "Bob")
        for wrong in (sealed[:-1] + bytes([sealed[-1] ^ 1]), seal_name(identity(3), OTHER, "Bob")):
            file = NamesFile(path, MAX_NAME_BYTES)
            file.save([seal_name(identity(4), SWARM, "Eve"), wrong])
            caplog.clear()
            known, names = names_of(a, 1, None, path=path)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(names.run)
                await until(lambda: "a name of a member on this disk is invalid" in caplog.text)
                nursery.cancel_scope.cancel()
            assert known == {identity(4).peer: "Eve"}


def test_a_file_of_names_is_bounded_and_may_be_anything(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "names.json"
    file = NamesFile(path, MAX_NAME_BYTES)
    assert file.load() == []
    many = [b"%04d" % number * 80 for number in range(MAX_NAMES + 5)]
    file.save(many)
    assert file.load() == many[5:]
    sound = path.read_bytes()
    for content, kept in (
        (b"", 0),
        (b"[]", 0),
        (b"\xff", 0),
        (b"[" * 100_000, 0),
        (b'{"names": 3}', 0),
        (b'{"names": [3]}', 0),
        (b'{"names": ["AAAA", "?"]}', 1),
        (sound + b" " * len(sound), 0),
    ):
        path.write_bytes(content)
        caplog.clear()
        assert len(file.load()) == kept, content[:50]
        assert "is damaged" in caplog.text
    path.unlink()
    os.mkfifo(path)
    assert file.load() == []
    assert "named pipe" in caplog.text


async def test_nobody_names_another_peer(monkeypatch: pytest.MonkeyPatch) -> None:
    async def lies(*_: object) -> bytes:
        return seal_name(identity(9), SWARM, "Ada")

    async with star(2) as (a, liar), trio.open_nursery() as nursery:
        liar.serve(PROTOCOL, lies, max_request=32, max_concurrent=1)
        known, names = names_of(a, 1, None)
        asked = trio.Event()
        penalised: list[str] = []

        def penalise(peer: PeerId, reason: str) -> None:
            penalised.append(reason)
            asked.set()

        monkeypatch.setattr(a, "penalise", penalise)
        nursery.start_soon(names.run)
        await asked.wait()
        assert penalised == ["impersonation"]
        assert dict(known) == {}
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("name", ["", "x" * (MAX_DISPLAY_NAME_CHARACTERS + 1), 7, None])
def test_bad_names_are_refused(name: Any) -> None:
    sealed = seal(identity(1), "name", SWARM, encode([name]))
    with pytest.raises(ProtocolError):
        open_name(sealed, SWARM, identity(1).peer)


def test_the_longest_name_fits_and_others_envelopes_do_not_pass() -> None:
    name = "\N{GRINNING FACE}" * MAX_DISPLAY_NAME_CHARACTERS
    sealed = seal_name(identity(1), SWARM, name)
    assert len(sealed) <= MAX_NAME_BYTES
    assert open_name(sealed, SWARM, identity(1).peer) == name
    with pytest.raises(ProtocolError):
        open_name(sealed, OTHER, identity(1).peer)
    with pytest.raises(ProtocolError):
        open_name(seal(identity(1), "peer", SWARM, encode(["x"])), SWARM, identity(1).peer)


def test_what_a_terminal_obeys_is_spelled_out() -> None:
    sealed = seal_name(identity(1), SWARM, "a\x1b[2J\u202e")
    assert open_name(sealed, SWARM, identity(1).peer) == "a\\x1b[2J\\u202e"


def test_the_bytes_are_those_of_the_golden_file(checkout: Path) -> None:
    golden = checkout / "tests" / "golden" / "member_name.hex"
    assert seal_name(identity(1), SWARM, "Ada").hex() == golden.read_text().strip()


def test_what_a_member_may_call_itself() -> None:
    assert parse_display_name("  Ada   L. ") == "Ada L."
    assert parse_display_name(" ") is None
    for text in ("a\x1b[2J", "x" * (MAX_DISPLAY_NAME_CHARACTERS + 1), "a\u202eb"):
        with pytest.raises(UserError) as refused:
            parse_display_name(text)
        assert refused.value.code is ExitCode.USAGE
