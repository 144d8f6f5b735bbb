"""Gossip over few links: a message reaches everybody about once, also past peers that withhold it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import combinations
from typing import Any

import pytest
import trio
from distro_node.crypto.identity import PeerId
from distro_node.node.network.gossip import Receiver
from distro_node.node.network.network import Network
from distro_node.node.network.pubsub import HardenedPubsub
from distro_node.node.network.push_tree import MAX_ANNOUNCED, PushTree
from network.support import PATIENCE_SECONDS, networks, until

# Private here: `_get_peers_to_send`: a peer that passes nothing on; `_tree`, `_quiet`: which links are
# quiet, and how much is kept of them.

TOPIC = "/test/topic"


def accept(sender: PeerId, data: bytes) -> str | None:
    return None


def test_a_link_that_brought_a_copy_carries_announcements_until_one_is_requested() -> None:
    tree = PushTree[str]()
    assert not tree.is_quiet("b", b"author")
    tree.note_copy("b", b"author", b"1")
    assert tree.is_quiet("b", b"author")
    assert not tree.is_quiet("b", b"another")
    assert not tree.is_quiet("c", b"author")
    tree.note_request("b", b"author")
    assert not tree.is_quiet("b", b"author")


def test_a_peer_that_goes_on_sending_copies_is_sent_one() -> None:
    """From a copy of ours it learns that we have the messages from somebody else."""
    tree = PushTree[str]()
    quiet = []
    for number in range(4):
        tree.note_copy("b", b"author", bytes([number]))
        quiet.append(tree.is_quiet("b", b"author"))
    assert quiet == [True, False, True, False]


def test_messages_are_announced_together_unless_the_peer_has_them() -> None:
    tree = PushTree[str]()
    for number, time in enumerate((0.0, 0.1, 0.2, 0.9)):
        assert tree.announce("b", "topic", bytes([number]), time)
        assert tree.announce("c", "topic", bytes([number]), time)
    tree.note_copy("b", b"author", bytes([1]))
    tree.note_held("b", [bytes([3]), b"unknown"])
    tree.note_held("stranger", [bytes([0])])
    assert tree.due(-1.0) == {}
    assert tree.due(0.5) == {
        "b": {"topic": [bytes([0]), bytes([2])]},
        "c": {"topic": [bytes([0]), bytes([1]), bytes([2])]},
    }
    tree.forget("c")
    assert tree.due(1.0) == {}


def test_what_is_kept_of_a_peer_is_bounded() -> None:
    tree = PushTree[str]()
    waiting = [tree.announce("b", "topic", n.to_bytes(4, "big"), 0.0) for n in range(2000)]
    assert sum(waiting) == MAX_ANNOUNCED
    for number in range(10_000):
        tree.note_copy("b", number.to_bytes(4, "big"), b"")
    assert len(tree._quiet["b"]) <= 4096
    assert tree.is_quiet("b", (9_999).to_bytes(4, "big"))


async def connected(opened: Sequence[Network], pairs: Any) -> list[Receiver]:
    """Subscribe all networks, connect these pairs, and wait until each is in the other's mesh."""
    receivers = [await network.subscribe(TOPIC, accept) for network in opened]
    links = Counter[int]()
    for a, b in pairs:
        await opened[a].connect(opened[b].addresses[0])
        links.update((a, b))

    def meshed(number: int) -> bool:
        return len(opened[number].gossip.router.mesh.get(TOPIC, ())) == links[number]

    await until(lambda: all(map(meshed, links)))
    return receivers


async def heard(receiver: Receiver) -> bytes:
    with trio.fail_after(PATIENCE_SECONDS):
        return (await receiver.receive())[1]


async def test_each_peer_gets_a_message_once_after_the_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Before: sixteen copies of a message for four receivers."""
    copies = Counter[bytes]()
    write = HardenedPubsub.write_msg

    async def counted(self: Any, stream: Any, rpc: Any) -> bool:
        copies.update(message.data for message in rpc.publish)
        return await write(self, stream, rpc)

    monkeypatch.setattr(HardenedPubsub, "write_msg", counted)
    async with networks(5) as opened:
        receivers = await connected(opened, combinations(range(5), 2))
        for number in range(6):
            data = b"%d" % number
            await opened[0].publish(TOPIC, data)
            for receiver in receivers[1:]:
                assert await heard(receiver) == data
            # Copies of it that are under way arrive.
            await until(lambda data=data, number=number: copies[data] >= (4 if number else 16))
    assert copies[b"0"] == 16
    # A copy more where a link is slow for a moment.
    assert sum(copies[b"%d" % number] for number in range(1, 6)) <= 5 * 4 + 6


@pytest.mark.parametrize("dies", [True, False])
async def test_a_peer_that_passes_nothing_on_delays_one_message(
    monkeypatch: pytest.MonkeyPatch, dies: bool
) -> None:
    """The far end of a square has two ways to the author; the one that it uses ends, or withholds all
    from now on and announces nothing."""
    async with networks(4) as opened:
        author, *ways, far = opened
        receivers = await connected(opened, ((0, 1), (0, 2), (1, 3), (2, 3)))
        for number in range(3):
            await author.publish(TOPIC, b"%d" % number)
            assert await heard(receivers[3]) == b"%d" % number
        # The links to the way that is not used have gone quiet.
        key = author.gossip.pubsub.my_id.to_bytes()

        def quiet(way: Network) -> bool:
            return way.gossip.router._tree.is_quiet(far.gossip.pubsub.my_id, key)

        await until(lambda: sum(map(quiet, ways)) == 1)
        used, other = sorted(ways, key=quiet)
        if dies:
            await far.disconnect(used.peer)
            await author.disconnect(used.peer)
        else:
            monkeypatch.setattr(used.gossip.router, "_get_peers_to_send", lambda *_, **__: iter(()))
        for number in range(3, 6):
            await author.publish(TOPIC, b"%d" % number)
            assert await heard(receivers[3]) == b"%d" % number
        # The message that had to be requested has opened the other link.
        assert not quiet(other)
