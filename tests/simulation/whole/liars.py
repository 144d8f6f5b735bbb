"""Liars: whole processes like all others, behind a network that twists what they say and answer.

They sign with their own keys alone, and know all that their own process knows.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import trio
from distro_node.crypto.envelope import Envelope, open_envelope, sign
from distro_node.crypto.hashing import ContentId, content_id
from distro_node.crypto.identity import PeerId
from distro_node.node.network.exchange.blobs import PROTOCOL as BLOBS
from distro_node.node.network.exchange.chunks import PROTOCOL as CHUNKS
from distro_node.node.network.requests import Handler
from distro_node.protocol.chain.ledger import Ledger, snapshot_round
from distro_node.protocol.chain.sync import (
    MAX_ENTRIES,
    SYNC_PROTOCOL,
    SyncResponse,
    compose_response,
    decode_request,
    decode_response,
)
from distro_node.protocol.wire.encoding import encode
from distro_node.protocol.wire.errors import ProtocolError
from distro_node.protocol.wire.messages import (
    Announcement,
    Ballot,
    Certificate,
    Decided,
    DepartureEntry,
    Record,
    RecordId,
    SignedBallot,
    SnapshotEntry,
    UpdateEntry,
    decode_message,
)

from ..hostile import hostile
from ..liars import Liar
from .network import SimulatedNetwork

if TYPE_CHECKING:
    from .process import Machine
    from .swarm import WholeSwarm

LIES = (
    "two sizes",
    "no data",
    "garbage update",
    "withhold",
    "wrong blobs",
    "slow answers",
    "garbage answers",
    "bad signatures",
    "forged chain",
    "solo rounds",
    "tall",
    "flood",
    "replay",
    "two votes",
    "false silence",
    "false holdings",
)

_SOLO_ROUNDS = 300
_BAD_ENVELOPES = 200
_FLOOD = 5
_KEPT_WORDS = 100


def liar_network(
    swarm: WholeSwarm, index: int, tells: frozenset[str]
) -> Callable[..., SimulatedNetwork]:
    """The kind of network that the liar with this number has."""

    def make(*arguments: Any) -> SimulatedNetwork:
        return LyingNetwork(swarm, swarm.machines[index], tells, *arguments)

    return make


class LyingNetwork(SimulatedNetwork):
    """Tells the lies named in `tells`."""

    def __init__(
        self, swarm: WholeSwarm, machine: Machine, tells: frozenset[str], *arguments: Any
    ) -> None:
        super().__init__(*arguments)
        self._swarm = swarm
        self._machine = machine
        self._tells = tells
        self._dice = random.Random(f"liar {swarm.seed} {machine.index} {machine.starts}")
        self._heard: list[tuple[PeerId, bytes]] = []
        self._solo: Ledger | None = None
        self.on_serve = self._twist
        machine.workshop.lies = "garbage update" in tells

    # What it says

    async def publish(self, topic: str, data: bytes) -> None:
        await trio.lowlevel.checkpoint()
        if not self.is_open:
            return
        envelope = open_envelope(data, swarm=self._swarm.manifest.swarm)
        message, tells = decode_message(envelope), self._tells
        self._swarm.watch.signed(self._machine, envelope)  # type: ignore[arg-type]
        others = sorted(self.connected())
        self._dice.shuffle(others)
        one, other = frozenset(others[::2]), frozenset(others[1::2])
        if isinstance(message, Announcement) and "two sizes" in tells:
            self.pass_on(topic, self.peer, data, None, one)
            size = self._dice.choice((message.size - 1, message.size + 1, (1 << 32) - 1))
            self._say(topic, "announcement", dataclasses.replace(message, size=size), other)
        elif isinstance(message, Announcement) and "no data" in tells:
            nothing = content_id(b"no" + message.update)
            self._say(topic, "announcement", dataclasses.replace(message, update=nothing))
        elif isinstance(message, Ballot) and envelope.kind == "vote" and "two votes" in tells:
            self.pass_on(topic, self.peer, data, None, one)
            block = RecordId(content_id(b"none" + message.block))
            self._say(topic, "vote", dataclasses.replace(message, block=block), other)
        elif isinstance(message, Ballot) and "false silence" in tells:
            membership = self._machine.member.ledger.membership(message.round)
            mask = membership.mask(set(membership.peers) - {self.peer})
            self._say(topic, envelope.kind, dataclasses.replace(message, silent=mask))
        else:
            self._swarm.watch.told(envelope)
            self.pass_on(topic, self.peer, data, None)
        if "flood" in tells:
            self._flood(topic, message)
        if "replay" in tells and self._heard:
            # Under its own name, since gossip proves who says something.
            self.pass_on(topic, self.peer, self._dice.choice(self._heard)[1], None)

    def hear(self, topic: str, name: Any, author: PeerId, data: bytes, source: PeerId) -> None:
        if len(self._heard) < _KEPT_WORDS:
            self._heard.append((author, data))
        super().hear(topic, name, author, data, source)

    def _sign(self, kind: str, message: object) -> Envelope:
        swarm = self._swarm.manifest.swarm
        envelope = sign(self._machine.identity, kind, swarm, encode(message))
        self._swarm.watch.signed(self._machine, envelope)  # type: ignore[arg-type]
        return envelope

    def _say(
        self, topic: str, kind: str, message: object, targets: frozenset[PeerId] | None = None
    ) -> None:
        envelope = self._sign(kind, message)
        if targets is None:
            self._swarm.watch.told(envelope)
        self.pass_on(topic, self.peer, envelope.encode(), None, targets)

    def _flood(self, topic: str, message: Any) -> None:
        member, dice = self._machine.member, self._dice
        for _ in range(_FLOOD):
            nonsense = RecordId(content_id(dice.randbytes(8)))
            round_ = member.round + dice.randrange(9)
            mask = member.ledger.membership(member.round).mask(())
            ballot = Ballot(round_, nonsense, dice.randrange(1, 60), nonsense, mask)
            self._say(topic, dice.choice(("vote", "skip", "finalize")), ballot)
        bad = sign(
            self._machine.identity,
            "vote",
            self._swarm.manifest.swarm,
            hostile(encode(message), dice),
        )
        self.pass_on(topic, self.peer, bad.encode(), None)

    # What it answers

    def _twist(self, protocol: str, handler: Handler) -> Handler:
        async def answer(peer: PeerId, request: bytes) -> Any:
            response = await handler(peer, request)
            if "slow answers" in self._tells and self._dice.random() < 0.7:
                await trio.sleep(self._dice.uniform(3.0, 40.0))
            if not isinstance(response, bytes):
                return response
            if protocol == BLOBS:
                return self._blob(ContentId(request), response)
            if protocol == CHUNKS and "false holdings" in self._tells:
                return self._dice.choice((b"\xff", b"\x80", b"\xff" * 3, b"\0"))
            if protocol == SYNC_PROTOCOL:
                return self._knows(request, response)
            return response

        return answer

    def _blob(self, blob: ContentId, response: bytes) -> bytes:
        own = blob in self._machine.made
        if own and ("withhold" in self._tells or "no data" in self._tells):
            return b"\x01"
        if "wrong blobs" in self._tells and self._dice.random() < 0.5:
            return response[:-1] + bytes([response[-1] ^ 1]) if len(response) > 1 else b"\0nothing"
        return response

    def _knows(self, request: bytes, response: bytes) -> bytes:
        """An answer to sync."""
        tells, dice = self._tells, self._dice
        asked, said = decode_request(request), decode_response(response)
        if "garbage answers" in tells and dice.random() < 0.7:
            return hostile(response, dice)
        if "bad signatures" in tells:
            bad = [
                raw[:-1] + bytes([raw[-1] ^ 1])
                for raw in (said.envelopes or [data for _, data in self._heard])
            ]
            return encode(
                dataclasses.replace(said, envelopes=tuple((bad * _BAD_ENVELOPES)[:_BAD_ENVELOPES]))
            )
        if "tall" in tells:
            return encode(dataclasses.replace(said, height=said.height + dice.choice((3, 70_000))))
        chain: Ledger | None = None
        if "forged chain" in tells and len(self._machine.member.ledger) > 3:
            chain = Liar._false_chain(self, dice.random() < 0.3)  # type: ignore[arg-type]
        elif "solo rounds" in tells:
            chain = self._solo_chain()
        return encode(_of_chain(chain, asked)) if chain is not None else response

    # What `Liar` of the fast simulation asks of a liar

    @property
    def member(self) -> Any:
        return self._machine.member

    @property
    def _chance(self) -> random.Random:
        return self._dice

    @property
    def sign(self) -> Callable[[str, bytes], Envelope]:
        swarm = self._swarm.manifest.swarm
        return lambda kind, body: sign(self._machine.identity, kind, swarm, body)

    def _solo_chain(self) -> Ledger | None:
        """Rounds that the liar signs alone behind the chain of today, all others being silent."""
        ledger: Ledger = self._machine.member.ledger
        if self._solo is not None:
            return self._solo
        if len(ledger) < 4 or self.peer not in ledger.membership(len(ledger)):
            return None
        solo = ledger.truncated(len(ledger))
        for _ in range(_SOLO_ROUNDS):
            try:
                solo.append(self._alone(solo))
            except ProtocolError:
                break
        self._solo = solo
        return solo

    def _alone(self, ledger: Ledger) -> Decided:
        round_, manifest = len(ledger), self._swarm.manifest
        membership = ledger.membership(round_)
        others = [peer for peer in membership.peers if peer != self.peer]
        said = Announcement(
            round_, ledger.head, content_id(b"%d alone" % round_), 1000, 100, 2.0, 666
        )
        signature = self._sign("announcement", said).signature
        due = snapshot_round(round_, manifest.rounds.snapshot_interval)
        size = 4 * manifest.elements
        record = Record(
            round=round_,
            parent=ledger.head,
            fingerprint=666,
            updates=(UpdateEntry(self.peer, said.update, 1000, 100, 2.0, signature),),
            admitted=(),
            departed=tuple(DepartureEntry(peer, "silent", 0, b"") for peer in others),
            snapshot=SnapshotEntry(due, content_id(b"alone"), size) if due else None,
        )
        mask = membership.mask(others)
        ballot = Ballot(round_, record.parent, 1, record.id, mask)
        signed = SignedBallot(self.peer, mask, self._sign("finalize", ballot).signature)
        certificate = Certificate("finalize", round_, record.parent, 1, record.id, (signed,))
        return Decided(record, certificate)


def _of_chain(chain: Ledger, asked: Any) -> SyncResponse:
    """What somebody with this chain answers."""
    height = len(chain)
    ids = tuple(chain.parent(round_ + 1) for round_ in asked.probes if round_ < height)
    end = min(height, asked.round + min(asked.most, MAX_ENTRIES))
    entries = []
    for round_ in range(asked.round, end):
        try:
            entries.append(chain.raw(round_))
        except (LookupError, ProtocolError):
            break
    return compose_response(height, entries, (), ids)
