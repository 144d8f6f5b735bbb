"""A byzantine node: `distro-node join …` with a runner that modifies outgoing messages.

`python lying_node.py SECONDS PYTHON -P -m distro_node.node ARGUMENTS…`: the command that would run
the node follows the script. Otherwise it is an ordinary node: it trains, fetches, follows the chain
and answers. Its member believes that it is honest; between the member and the network every lie of
`LIES` is sent, repeatedly. Lies that bring blame are rare enough for it not to be expelled. Each lie
sent is a line of `lies.jsonl` in its data directory.

The lies that end a membership, contradicting itself in one round, come last: after SECONDS. Lies that
take more than one peer are missing here: crowding the registry, or outvoting the others in an outlier
filter.
"""

from __future__ import annotations

import dataclasses
import json
import random
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import trio
from distro_node.crypto.envelope import Envelope, sign
from distro_node.crypto.hashing import content_id
from distro_node.crypto.identity import Identity, PeerId
from distro_node.node import cli
from distro_node.node.network.addresses import peer_of
from distro_node.node.session import session
from distro_node.node.session.effect_runner import Runner
from distro_node.protocol.chain.ledger import Ledger
from distro_node.protocol.chain.snapshot_rounds import snapshot_round
from distro_node.protocol.chain.sync import (
    MAX_SYNC_REQUEST_BYTES,
    SYNC_PROTOCOL,
    answer_to,
    compose_response,
    decode_request,
)
from distro_node.protocol.member.inputs import Input, MessageReceived
from distro_node.protocol.wire.encoding import encode
from distro_node.protocol.wire.errors import ProtocolError
from distro_node.protocol.wire.messages import (
    Announcement,
    Ballot,
    Certificate,
    Decided,
    DepartureEntry,
    JoinRequest,
    Leave,
    Message,
    Proposal,
    Record,
    RecordId,
    SignedBallot,
    SnapshotEntry,
    UpdateEntry,
    decode_message,
)

# Private here: `_get_peers_to_send`, `_dispatch`: the lies are told between a runner and its network,
# where honest code has no seam.
LIES = (
    "own tokens varied",
    "late by design",
    "others called silent",
    "comparison storm",
    "history rewritten",
    "solo rounds for a starter",
    "slow answer",
    "envelopes badly signed",
    "long proposal out of turn",
)
# Each expels it as soon as a leader has the proof, so not all of them are sent.
CONTRADICTIONS = (
    "two sizes",
    "wrong size in a record",
    "copy of another's update",
    "a thousand announcements",
    "ballots that contradict each other",
)
# These occupy the CPUs that all nodes of a test share, or have an effect only late: short runs leave
# them out.
LONG_LIES = (
    "an old goodbye",
    "ballots on another chain",
)
LONG_SECONDS = 270.0
"""A run is long from this many SECONDS on."""

# Four offences within some minutes get a peer refused for ten.
_SELDOM_SECONDS = 240.0
_STORM_SECONDS = 5.0
_BURST_SECONDS = 60.0
# `benchmarks/strangers.py` has the cost of ten thousand.
_BURST = 1_000
_OLD_ROUNDS = 60
_LATE_SECONDS = 3.0
_SLOW_SECONDS = 8.0
_SOLO_ROUNDS = 60
# More rounds than a starting node could ever process.
_HEIGHT = 50_000
_BAD_ENVELOPES = 5_000
_LONG_RECORD_UPDATES = 1_000


class LyingRunner(Runner):
    """A `Runner` that lies about its member's messages and about its own knowledge."""

    contradicts_after = 0.0
    """Seconds after its start when it ends its membership."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._key: Identity = options["identity"]
        self._chance = random.Random(self._key.peer)
        self._told = options["swarm_store"].history.parent.parent.parent / "lies.jsonl"
        self._last_blame: dict[PeerId | str, float] = {}
        self._began = trio.current_time()
        self._copied = -1
        self._varied: Announcement | None = None
        # Instead of the base class's handler.
        self._network.serve(
            SYNC_PROTOCOL,
            self._answer,
            max_request=MAX_SYNC_REQUEST_BYTES,
            max_concurrent=8,
            kind="ledger",
        )

    async def run(self, trainer_supervisor: Any, **until: Any) -> None:
        """Run as a runner does, with a storm of messages beside it."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._storm)
            await super().run(trainer_supervisor, **until)
            nursery.cancel_scope.cancel()

    # Outgoing messages

    async def _publish(self) -> None:
        async for envelope in self._to_publish:
            await self._swarm_store.written()
            if envelope.kind == "announcement":
                self._spawn(self._updates.offer, envelope)
                self._spawn(self._announce, envelope)
            else:
                await self._send(self._twisted(envelope))
                await self._contradict(envelope)

    async def _send(self, envelope: Envelope, half: int | None = None) -> None:
        """Send to all peers, or to every other one."""
        router: Any = self._network.gossip.router
        chosen = type(router)._get_peers_to_send

        def only_half(*arguments: Any, **options: Any) -> Iterator[Any]:
            for peer in chosen(router, *arguments, **options):
                if (peer_of(peer) or b"\0")[-1] % 2 == half:
                    yield peer

        if half is not None:
            router._get_peers_to_send = only_half
        try:
            await self._network.publish(self._topic, envelope.encode())
        finally:
            vars(router).pop("_get_peers_to_send", None)

    async def _announce(self, envelope: Envelope) -> None:
        said = decode_message(envelope)
        assert isinstance(said, Announcement)  # it came as one
        # Before any pause, in which it may lead.
        varied = dataclasses.replace(said, tokens=self._chance.randrange(1 << 20))
        self._varied = varied
        if said.round % 3 == 0:
            self._tell("late by design")
            await trio.sleep(_LATE_SECONDS)
        if self._ends_it() and said.round % 2:
            self._tell("two sizes")
            await self._send(envelope, half=0)
            await self._send(self._seal("announcement", self._missized(said)), half=1)
        else:
            self._tell("own tokens varied")
            await self._send(self._seal("announcement", varied))

    def _twisted(self, envelope: Envelope) -> Envelope:
        message = decode_message(envelope)
        if isinstance(message, Proposal):
            record = message.record
            updates = tuple(self._as_announced(entry, record) for entry in record.updates)
            if self._ends_it() and updates:
                self._tell("wrong size in a record")
                updates = tuple(self._resized(entry, record) for entry in updates)
            record = dataclasses.replace(record, updates=updates)
            return self._seal("proposal", Proposal(message.slot, record))
        if isinstance(message, Ballot) and message.round % 4 == 1:
            self._tell("others called silent")
            membership = self.member.view.ledger.membership(message.round)
            others = [peer for peer in membership.peers if peer != self.member.view.me]
            mask = membership.mask(self._chance.sample(others, len(others) // 2))
            return self._seal(envelope.kind, dataclasses.replace(message, silent=mask))
        return envelope

    def _missized(self, said: Announcement) -> Announcement:
        return dataclasses.replace(
            said, size=self._chance.choice((said.size - 1, said.size + 1, 1))
        )

    def _as_announced(self, entry: UpdateEntry, record: Record) -> UpdateEntry:
        """Return its own entry with the tokens that it announced: others would be a contradiction."""
        varied = self._varied
        if entry.peer != self.member.view.me or varied is None or varied.update != entry.update:
            return entry
        return self._resigned(dataclasses.replace(entry, tokens=varied.tokens), record)

    def _resized(self, entry: UpdateEntry, record: Record) -> UpdateEntry:
        if entry.peer != self.member.view.me:
            return entry
        return self._resigned(dataclasses.replace(entry, size=entry.size + 1), record)

    def _resigned(self, entry: UpdateEntry, record: Record) -> UpdateEntry:
        signature = self._seal("announcement", record.announcement(entry)).signature
        return dataclasses.replace(entry, signature=signature)

    def _ends_it(self) -> bool:
        """Whether it is time for lies that end its membership."""
        return trio.current_time() >= self._began + self.contradicts_after

    def _dispatch(self, what: Input) -> None:
        super()._dispatch(what)
        if isinstance(what, MessageReceived) and what.envelope.kind == "announcement":
            said = decode_message(what.envelope)
            mine = what.envelope.sender == self.member.view.me
            if (
                isinstance(said, Announcement)
                and self._ends_it()
                and not mine
                and said.round % 4 == 2
                # Once a round: two nodes that copy each other's copies would do nothing else.
                and self._copied < said.round == self.member.view.round
            ):
                self._copied = said.round
                self._tell("copy of another's update")
                self._spawn(self._send, self._seal("announcement", self._missized(said)))

    async def _storm(self) -> None:
        """Send endless signs of another chain, and occasionally a message that brings blame."""
        while True:
            await trio.sleep(_STORM_SECONDS)
            ledger = self.member.view.ledger
            if not self.member.view.is_member or len(ledger) < 3:
                continue
            other = RecordId(content_id(b"forged" + self._chance.randbytes(4)))
            said = Announcement(len(ledger), other, content_id(b"none"), 1000, 100, 2.0, 666)
            self._tell("comparison storm")
            await self._send(self._seal("announcement", said))
            fingerprint = self.member.view.fingerprint
            if fingerprint is not None and self._may_be_blamed("proposal"):
                self._tell("long proposal out of turn")
                await self._send(self._seal("proposal", self._long_proposal(fingerprint)))
            if self.contradicts_after >= LONG_SECONDS:
                await self._storm_on(other)

    async def _storm_on(self, other: RecordId) -> None:
        for envelope in self._elsewhere(other):
            await self._send(envelope)
        if len(self.member.view.ledger) > 2 * _OLD_ROUNDS or self._may_be_blamed("leave"):
            self._tell("an old goodbye")
            await self._send(self._old_goodbye())
        if self._ends_it() and self._may_be_blamed("burst", every=_BURST_SECONDS):
            self._tell("a thousand announcements")
            for envelope in await trio.to_thread.run_sync(self._burst):
                await self._send(envelope)

    def _long_proposal(self, fingerprint: int) -> Proposal:
        ledger = self.member.view.ledger
        members = ledger.membership(len(ledger))
        leaders = ledger.leaders(len(ledger))
        slot = next((n for n in range(1, 1 + len(members)) if leaders[n] != self.member.view.me), 1)
        entry = UpdateEntry(self.member.view.me, content_id(b"none"), 1000, 100, 2.0, bytes(64))
        updates = (entry,) * _LONG_RECORD_UPDATES
        return Proposal(slot, Record(len(ledger), ledger.head, fingerprint, updates, (), (), None))

    def _elsewhere(self, parent: RecordId) -> list[Envelope]:
        """Return ballots for a chain that no node follows: the votes of a member that signs on both
        sides of a partition."""
        self._tell("ballots on another chain")
        ledger = self.member.view.ledger
        mask = ledger.membership(len(ledger)).mask(())
        block = RecordId(content_id(b"record on " + parent))
        ballot = Ballot(len(ledger), parent, 1, block, mask)
        return [self._seal(kind, ballot) for kind in ("vote", "finalize")]

    def _old_goodbye(self) -> Envelope:
        return self._seal("leave", Leave(max(0, len(self.member.view.ledger) - _OLD_ROUNDS)))

    def _burst(self) -> list[Envelope]:
        """Return announcements for the current round, each of another update."""
        ledger = self.member.view.ledger
        round_, parent = len(ledger), ledger.head
        return [
            self._seal(
                "announcement",
                Announcement(round_, parent, content_id(b"%d of many" % n), 1000, 9, 2.0, 666),
            )
            for n in range(_BURST)
        ]

    async def _contradict(self, envelope: Envelope) -> None:
        """Send the opposite of a ballot, after all other lies have been sent."""
        if self.contradicts_after < LONG_SECONDS:
            return
        if not self._ends_it():
            return
        said = self._opposite(envelope)
        if said is not None:
            self._tell("ballots that contradict each other")
            await self._send(said)

    def _opposite(self, envelope: Envelope) -> Envelope | None:
        message = decode_message(envelope)
        if not isinstance(message, Ballot) or envelope.kind != "vote":
            return None
        block = RecordId(content_id(b"not " + message.block))
        return self._seal("vote", dataclasses.replace(message, block=block))

    # Answers to requests

    async def _answer(self, peer: PeerId, data: bytes) -> bytes:
        request = decode_request(data)
        if request.swarm != self._manifest.swarm:
            raise ProtocolError("wrong_swarm", "a sync request of another swarm")
        draw = self._chance.random()
        if draw < 0.25:
            self._tell("slow answer")
            await trio.sleep(_SLOW_SECONDS)
        ledger, bad = self.member.view.ledger, []
        if draw > 0.4 and self.member.view.is_member and len(ledger) > 5:
            # A copy for the thread, as the member goes on meanwhile.
            own = ledger.truncated(len(ledger))
            ledger = await trio.to_thread.run_sync(self._another_chain, request, own)
        elif self._may_be_blamed(peer):
            self._tell("envelopes badly signed")
            said = [
                self._seal("join", JoinRequest(number, b"")) for number in range(_BAD_ENVELOPES)
            ]
            bad = [dataclasses.replace(each, signature=bytes(64)).encode() for each in said]
        height, ids, rounds, messages = answer_to(request, ledger, self.member.view.messages)
        entries = [ledger.raw(round_) for round_ in rounds]
        if ledger is not self.member.view.ledger:
            height, messages = max(height, _HEIGHT), []
        await self._swarm_store.written()
        # Its own announcement is not the one that it sent.
        shown = [m for m in messages if (m.sender, m.kind) != (self.member.view.me, "announcement")]
        return encode(compose_response(height, entries, [*bad, *(m.encode() for m in shown)], ids))

    def _another_chain(self, request: Any, own: Ledger) -> Ledger:
        """Return a chain on which this node went on alone: from long ago, or from the asker's
        position."""
        starter = request.most > 0 or request.round < len(own) - 1
        start = request.round if starter else max(1, len(own) - _SOLO_ROUNDS)
        self._tell("solo rounds for a starter" if starter else "history rewritten")
        return solo_chain(own, self._seal, self.member.view.me, start, _SOLO_ROUNDS)

    # Helpers

    def _seal(self, kind: str, message: Message) -> Envelope:
        return sign(self._key, kind, self._manifest.swarm, encode(message))

    def _may_be_blamed(self, by: PeerId | str, every: float = _SELDOM_SECONDS) -> bool:
        now = trio.current_time()
        if now < self._last_blame.get(by, float("-inf")) + every:
            return False
        self._last_blame[by] = now
        return True

    def _tell(self, lie: str) -> None:
        with self._told.open("a") as file:
            file.write(json.dumps({"did": lie, "round": self.member.view.round}) + "\n")


def solo_chain(
    ledger: Ledger,
    seal: Callable[[str, Message], Envelope],
    me: PeerId,
    start: int,
    rounds: int,
) -> Ledger:
    """Return a valid chain without any other signer: from `start` on, `me` declares all others
    silent and goes on alone; if `me` was not a member then, from its admission on."""
    possible = (n for n in range(start, len(ledger) + 1) if me in ledger.membership(n))
    start = next(possible, len(ledger))
    chain = ledger.truncated(start)
    for round_ in range(start, start + rounds):
        members = chain.membership(round_)
        others = [peer for peer in members.peers if peer != me]
        said = Announcement(round_, chain.head, content_id(b"%d alone" % round_), 1000, 9, 2.0, 666)
        signature = seal("announcement", said).signature
        due = snapshot_round(round_, chain.manifest.rounds.snapshot_interval)
        size = 4 * chain.manifest.elements
        record = Record(
            round=round_,
            parent=chain.head,
            fingerprint=666,
            updates=(UpdateEntry(me, said.update, 1000, 9, 2.0, signature),),
            admitted=(),
            departed=tuple(DepartureEntry(peer, "silent", 0, b"") for peer in others),
            snapshot=SnapshotEntry(due, content_id(b"alone"), size) if due else None,
        )
        mask = members.mask(others)
        ballot = Ballot(round_, record.parent, 1, record.id, mask)
        signed = SignedBallot(me, mask, seal("finalize", ballot).signature)
        certificate = Certificate("finalize", round_, record.parent, 1, record.id, (signed,))
        try:
            chain.append(Decided(record, certificate))
        except ProtocolError:
            break
    return chain


def main(arguments: Sequence[str]) -> None:
    """Run a node with a lying runner."""
    session.Runner = LyingRunner
    LyingRunner.contradicts_after = float(arguments[0])
    sys.argv = ["distro-node", *arguments[arguments.index("distro_node.node") + 1 :]]
    cli.main()


def lies_sent(data_dir: Path) -> set[str]:
    """Return which lies the node in a data directory has sent so far."""
    path = data_dir / "lies.jsonl"
    lines = path.read_text("utf-8").splitlines(keepends=True) if path.exists() else []
    return {json.loads(line)["did"] for line in lines if line.endswith("\n")}


if __name__ == "__main__":
    main(sys.argv[1:])
