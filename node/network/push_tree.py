"""Which peers are sent an author's messages, and which are told of them.

In a mesh where everybody forwards everything, a message reaches each peer once for each of its links.
As in Plumtree (Leitão, Pereira and Rodrigues, "Epidemic broadcast trees", 2007), a copy that was not
needed turns its link into one that carries announcements only, and an announced message that a peer had
to request turns it back. What remains for each author is the tree of the fastest links. If a peer of
that tree fails, or withholds messages, the announcements of the others repair it within a second.

A peer's copies and requests only change what that peer itself is sent.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Generic, TypeVar

Peer = TypeVar("Peer")

# Authors remembered for one peer: a large swarm. The oldest is forgotten, and is sent to again.
_MAX_AUTHORS = 4096
MAX_ANNOUNCED = 1024
"""Announcements waiting for one peer; beyond that it is sent the messages themselves."""


class PushTree(Generic[Peer]):
    """The links of one node, by peer and author, and the announcements that wait. Times in seconds."""

    def __init__(self) -> None:
        self._quiet: dict[Peer, dict[bytes, None]] = {}
        # By peer: the topic of each message, by its id, and since when it waits.
        self._waiting: dict[Peer, dict[bytes, tuple[str, float]]] = {}

    def is_quiet(self, peer: Peer, author: bytes) -> bool:
        """Whether a peer is told of this author's messages instead of being sent them."""
        return author in self._quiet.get(peer, {})

    def note_copy(self, peer: Peer, author: bytes, message: bytes) -> None:
        """Note that a peer sent a message that had already arrived.

        It has the message from somebody else, so it needs none of this author's from us. If it is not
        sent any, it cannot know the same of us: then the next one goes to it, once, to tell it.
        """
        self.note_held(peer, [message])
        authors = self._quiet.setdefault(peer, {})
        if author in authors:
            del authors[author]
            return
        authors[author] = None
        if len(authors) > _MAX_AUTHORS:
            del authors[next(iter(authors))]

    def note_request(self, peer: Peer, author: bytes) -> None:
        """Note that a peer requested a message of this author: it is sent the next ones."""
        self._quiet.get(peer, {}).pop(author, None)

    def note_held(self, peer: Peer, messages: Iterable[bytes]) -> None:
        """Note that a peer has these messages, so that it need not be told of them."""
        waiting = self._waiting.get(peer)
        if waiting:
            for message in messages:
                waiting.pop(message, None)

    def announce(self, peer: Peer, topic: str, message: bytes, now: float) -> bool:
        """Have a peer told of a message. Returns False if too many wait for it already."""
        waiting = self._waiting.setdefault(peer, {})
        if len(waiting) >= MAX_ANNOUNCED:
            return False
        waiting[message] = topic, now
        return True

    def due(self, until: float) -> dict[Peer, dict[str, list[bytes]]]:
        """Take the announcements that wait since `until` or longer, by peer and topic."""
        found: dict[Peer, dict[str, list[bytes]]] = {}
        for peer, waiting in self._waiting.items():
            # In the order of their times.
            for message, (topic, since) in list(waiting.items()):
                if since > until:
                    break
                del waiting[message]
                found.setdefault(peer, {}).setdefault(topic, []).append(message)
        return found

    def peers(self) -> set[Peer]:
        """Return the peers of which something is kept."""
        return self._quiet.keys() | self._waiting.keys()

    def forget(self, peer: Peer) -> None:
        """Forget a peer that has left."""
        self._quiet.pop(peer, None)
        self._waiting.pop(peer, None)
