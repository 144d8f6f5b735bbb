"""Liars: whole processes like all others, behind a network that twists their messages and answers.

They sign only with their own keys, and know everything that their own process knows.
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
from distro_node.node.network.exchange.blobs import PART_PROTOCOL as PARTS
from distro_node.node.network.exchange.blobs import PROTOCOL as BLOBS
from distro_node.node.network.exchange.chunks import PROTOCOL as CHUNKS
from distro_node.node.network.requests import Handler
from distro_node.protocol.chain.beacon import Beacon
from distro_node.protocol.chain.ledger import Ledger
from distro_node.protocol.chain.snapshot_rounds import snapshot_round
from distro_node.protocol.chain.sync import (
    MAX_ENTRIES,
    SYNC_PROTOCOL,
    SyncResponse,
    compose_response,
    decode_request,
    decode_response,
)
from distro_node.protocol.committee.sign_vote_tree import part_name
from distro_node.protocol.wire.encoding import encode
from distro_node.protocol.wire.errors import ProtocolError
from distro_node.protocol.wire.messages import (
    Announcement,
    Ballot,
    Certificate,
    Decided,
    DepartureEntry,
    Leave,
    Proposal,
    Record,
    RecordId,
    SignedBallot,
    SnapshotEntry,
    UpdateEntry,
    decode_message,
)
from simulation.freeloaders import WorkLies
from simulation.hostile import hostile
from simulation.liars import BOTH_SIDES, FALSE_AGGREGATE, LEAVES, STRANGER, Liar, Liars, own_slot
from simulation.whole.network import SimulatedNetwork

if TYPE_CHECKING:
    from simulation.whole.process import Machine
    from simulation.whole.swarm import WholeSwarm

# Private here: `_slots`: a liar starts from what its own process knows.

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

ANSWERS = (
    "wrong blobs",
    "slow answers",
    "garbage answers",
    "bad signatures",
    "forged chain",
    "solo rounds",
    "tall",
    "false holdings",
)
"""The lies in answers to requests, which need no membership."""

FIRST_STRANGER = 90
"""Numbers from here on belong to no node that starts as a member."""

_LEAVES_AFTER = 12.0
_SOLO_ROUNDS = 300
_BAD_ENVELOPES = 200
_FLOOD = 5
_KEPT_WORDS = 100


def draw_strangers(liars: Liars, chance: random.Random) -> Liars:
    """Return the liars and, in a third of all cases, one that never asks to be a member, or let one of
    them leave and go on answering."""
    if not liars or chance.random() >= 1 / 3:
        return liars
    answers = tuple(sorted(chance.sample(ANSWERS, chance.randrange(1, 4))))
    if chance.random() < 0.5:
        return (*liars, (FIRST_STRANGER, (*answers, STRANGER)))
    return ((liars[0][0], (*answers, LEAVES)), *liars[1:])


def on_both_sides(liars: Liars, chance: random.Random) -> Liars:
    """Return the same liars, most of which sign on both sides of cuts, some of them telling no other
    lie."""
    return tuple(
        (index, lies)
        if chance.random() < 0.2
        else (index, (BOTH_SIDES, *(lies if chance.random() < 0.5 else ())))
        for index, lies in liars
    )


def liar_network(
    swarm: WholeSwarm, index: int, tells: frozenset[str]
) -> Callable[..., SimulatedNetwork]:
    """Return the network class of the liar with this number."""

    def make(*arguments: Any) -> SimulatedNetwork:
        return LyingNetwork(swarm, swarm.machines[index], tells, *arguments)

    return make


class LyingNetwork(SimulatedNetwork):
    """Sends the lies named in `tells`."""

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
        self._own: ContentId | None = None
        self._left = False
        self._echoed: set[tuple[object, ...]] = set()
        self.on_serve = self._twist
        machine.workshop.lies = "garbage update" in tells
        machine.workshop.twists = FALSE_AGGREGATE in tells
        self._work = machine.workshop.work = WorkLies(self, self._dice)

    # Its messages

    async def publish(self, topic: str, data: bytes) -> None:
        await trio.lowlevel.checkpoint()
        if not self.is_open:
            return
        kind = open_envelope(data, swarm=self._swarm.manifest.swarm).kind
        wait = self._work.lateness(kind)
        if wait is None:
            self._publish(topic, data)
        else:
            self.wires.at(trio.current_time() + wait, lambda: self._publish(topic, data))

    def _publish(self, topic: str, data: bytes) -> None:
        if not self.is_open:
            return
        envelope = open_envelope(data, swarm=self._swarm.manifest.swarm)
        message, tells = decode_message(envelope), self._tells
        if envelope.kind == "join" and (STRANGER in tells or self._left):
            return
        if isinstance(message, Announcement):
            self._own = message.update
            self._leave(topic, message.round)
        self._swarm.watch.signed(self._machine, envelope)  # type: ignore[arg-type]
        others = sorted(self.connected())
        self._dice.shuffle(others)
        one, other = frozenset(others[::2]), frozenset(others[1::2])
        if isinstance(message, Announcement) and "two sizes" in tells:
            self.pass_on(topic, self.peer, data, None, one)
            size = self._dice.choice((message.size - 1, message.size + 1, (1 << 32) - 1))
            self._send(topic, "announcement", dataclasses.replace(message, size=size), other)
        elif isinstance(message, Announcement) and "no data" in tells:
            nothing = content_id(b"no" + message.update)
            self._send(topic, "announcement", dataclasses.replace(message, update=nothing))
        elif isinstance(message, Ballot) and envelope.kind == "vote" and "two votes" in tells:
            self.pass_on(topic, self.peer, data, None, one)
            block = RecordId(content_id(b"none" + message.block))
            self._send(topic, "vote", dataclasses.replace(message, block=block), other)
        elif (
            isinstance(message, Ballot)
            and "abstains from others" in tells
            and envelope.kind != "skip"
            and self._current.consensus.leader(message.slot) != self.peer
        ):
            pass
        elif isinstance(message, Announcement) and "announces to some" in tells:
            self.pass_on(topic, self.peer, data, None, frozenset(sorted(others)[::2]))
        elif (
            isinstance(message, Proposal)
            and (other_record := self._work.proposes(message.record)) is not message.record
        ):
            if other_record is not None:
                self._send(topic, "proposal", Proposal(message.slot, other_record))
        elif (
            isinstance(message, Proposal)
            and (record := Liar._censored(self, message.record)) is not None  # type: ignore[arg-type]
        ):
            # It votes for it as well, or there would be no quorum.
            agreement = self._current.consensus
            agreement.records[record.id] = record
            agreement._slots[message.slot].proposal = record.id
            self._send(topic, "proposal", Proposal(message.slot, record))
        elif isinstance(message, Ballot) and "false silence" in tells:
            membership = self._machine.member.view.ledger.membership(message.round)
            mask = membership.mask(set(membership.peers) - {self.peer})
            self._send(topic, envelope.kind, dataclasses.replace(message, silent=mask))
        else:
            self._swarm.watch.told(envelope)
            self.pass_on(topic, self.peer, data, None)
        if isinstance(message, Announcement):
            for kind, audit in self._work.false_audits():
                self._send(topic, kind, audit)
        if "flood" in tells:
            self._flood(topic, message)
        if "replay" in tells and self._heard:
            # Under its own name, since gossip authenticates the sender.
            self.pass_on(topic, self.peer, self._dice.choice(self._heard)[1], None)

    def hear(self, topic: str, name: Any, author: PeerId, data: bytes, source: PeerId) -> None:
        if len(self._heard) < _KEPT_WORDS:
            self._heard.append((author, data))
        if BOTH_SIDES in self._tells and name not in self._seen and self._echo(topic, author, data):
            self._seen.add(name)
            return
        super().hear(topic, name, author, data, source)

    def pass_on(
        self,
        topic: str,
        author: PeerId,
        data: bytes,
        source: PeerId | None,
        targets: frozenset[PeerId] | None = None,
        name: tuple[PeerId, int] | None = None,
    ) -> None:
        if self._swarm.watch.cut:
            # A node that receives from all sides of a cut and forwarded everything would be a bridge.
            if source is not None:
                return
            home = self._home() if BOTH_SIDES in self._tells else None
            if home is not None:
                targets = home if targets is None else home & targets
        super().pass_on(topic, author, data, source, targets, name)

    def _leave(self, topic: str, round_: int) -> None:
        if LEAVES in self._tells and not self._left and trio.current_time() > _LEAVES_AFTER:
            self._left = True
            self._send(topic, "leave", Leave(round_))

    # Both sides of a cut

    def _honest(self) -> list[Machine]:
        liars = self._swarm.watch.liars
        return [machine for machine in self._swarm.alive if machine.index not in liars]

    def _side(self, number: int) -> set[int]:
        """Return the honest machines that are not cut off from an honest one."""
        wires = self.wires
        return {
            m.index
            for m in self._honest()
            if not wires.is_cut(m.index, number) and not wires.is_cut(number, m.index)
        }

    def _home(self) -> frozenset[PeerId] | None:
        """Return the side that it belongs to, the liars included, or None if no machine is cut off."""
        honest, machines = self._honest(), self._swarm.machines
        side = self._side(honest[0].index) if honest else set()
        if len(side) == len(honest):
            return None
        return frozenset(machines[n].peer for n in side | self._swarm.watch.liars if n in machines)

    def _echo(self, topic: str, author: PeerId, data: bytes) -> bool:
        """Sign another side's message as its own, for that side only. Return whether it did."""
        sender, home = self._swarm.number(author), self._home()
        if home is None or sender is None or author in home:
            return False
        envelope = open_envelope(data, swarm=self._swarm.manifest.swarm)
        message, place = decode_message(envelope), None
        side = self._side(sender)
        if isinstance(message, Ballot):
            place = envelope.kind, message.parent, message.slot, min(side, default=sender)
        elif isinstance(message, Announcement) and self._own is not None:
            place = envelope.kind, message.parent
            message = dataclasses.replace(message, update=self._own)
        if place is not None and place not in self._echoed:
            self._echoed.add(place)
            raw = self._sign(envelope.kind, message).encode()
            targets = frozenset(self._swarm.machines[number].peer for number in side)
            super().pass_on(topic, self.peer, raw, None, targets)
        return True

    def _sign(self, kind: str, message: object) -> Envelope:
        return self.sign(kind, encode(message))

    def sign(self, kind: str, body: bytes) -> Envelope:
        """Sign a message of this liar."""
        envelope = sign(self._machine.identity, kind, self._swarm.manifest.swarm, body)
        # Also what it sends only inside a record: an announcement there that differs from the one in an
        # envelope is evidence, and no voter requires the update of an accused member.
        self._swarm.watch.signed(self._machine, envelope)  # type: ignore[arg-type]
        return envelope

    def _send(
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
            round_ = member.view.round + dice.randrange(9)
            mask = member.view.ledger.membership(member.view.round).mask(())
            ballot = Ballot(round_, nonsense, dice.randrange(1, 60), nonsense, mask)
            self._send(topic, dice.choice(("vote", "skip", "finalize")), ballot)
        bad = sign(
            self._machine.identity,
            "vote",
            self._swarm.manifest.swarm,
            hostile(encode(message), dice),
        )
        self.pass_on(topic, self.peer, bad.encode(), None)

    # Its answers

    def _twist(self, protocol: str, handler: Handler) -> Handler:
        async def answer(peer: PeerId, request: bytes) -> Any:
            response = await handler(peer, request)
            if "slow answers" in self._tells and self._dice.random() < 0.7:
                await trio.sleep(self._dice.uniform(3.0, 40.0))
            if not isinstance(response, bytes):
                return response
            if protocol in (BLOBS, PARTS):
                return self._blob(peer, ContentId(request), response)
            if protocol == CHUNKS and "false holdings" in self._tells:
                return self._dice.choice((b"\xff", b"\x80", b"\xff" * 3, b"\0"))
            if protocol == SYNC_PROTOCOL:
                return self._knows(peer, request, response)
            return response

        return answer

    def _blob(self, peer: PeerId, blob: ContentId, response: bytes) -> bytes:
        withholds = "withhold" in self._tells or "no data" in self._tells
        if withholds and blob in self._machine.made:
            return b"\x01"
        # Only half of its committees get a sign vote: the aggregators of one section then make two
        # aggregates.
        if withholds and (self._swarm.number(peer) or 0) % 2 and self._is_own_part(blob):
            return b"\x01"
        if "wrong blobs" in self._tells and self._dice.random() < 0.5:
            return response[:-1] + bytes([response[-1] ^ 1]) if len(response) > 1 else b"\0nothing"
        return response

    def _is_own_part(self, blob: ContentId) -> bool:
        own = self._own
        # There are sixteen blocks.
        return own is not None and any(
            blob == part_name(own, number, count)
            for count in range(1, 17)
            for number in range(count)
        )

    def _knows(self, asker: PeerId, request: bytes, response: bytes) -> bytes:
        """Return an answer to sync."""
        tells, dice = self._tells, self._dice
        asked, said = decode_request(request), decode_response(response)
        if BOTH_SIDES in tells and self._home() is not None:
            # Usually each side's own chain, as a member of that side would, sometimes another side's.
            here = self._side(self._swarm.number(asker) or 0)
            own_side = dice.random() < 0.9
            shown = [
                machine.member.view.ledger
                for machine in self._honest()
                if machine.member is not None and (machine.index in here) == own_side
            ]
            if shown:
                return encode(_of_chain(dice.choice(shown), asked))
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
        if "forged chain" in tells and len(self._machine.member.view.ledger) > 3:
            chain = Liar._false_chain(self, dice.random() < 0.3)  # type: ignore[arg-type]
        elif "solo rounds" in tells:
            chain = self._solo_chain()
        return encode(_of_chain(chain, asked)) if chain is not None else response

    # The interface that `Liar` of the fast simulation needs

    @property
    def tells(self) -> frozenset[str]:
        return self._tells

    @property
    def member(self) -> Any:
        return self._machine.member

    @property
    def swarm(self) -> WholeSwarm:
        return self._swarm

    @property
    def _current(self) -> Any:
        return self.member.parts.round

    def _varied(self, entry: UpdateEntry, record: Record) -> UpdateEntry:
        return Liar._varied(self, entry, record)  # type: ignore[arg-type]

    @property
    def _chance(self) -> random.Random:
        return self._dice

    def _solo_chain(self) -> Ledger | None:
        """Return rounds that the liar signs alone after the current chain, calling all others silent."""
        ledger: Ledger = self._machine.member.view.ledger
        if self._solo is not None:
            return self._solo
        # From its last round as a member on.
        ours = (n for n in range(len(ledger), 3, -1) if self.peer in ledger.membership(n))
        start = next(ours, None)
        if start is None or (start < len(ledger) and not self._left):
            return None
        solo = ledger.truncated(start)
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
        if ledger.find(Beacon) is not None:
            bound = self.member.parts.secrets.commitment(round_, ledger)
            said = dataclasses.replace(said, commitment=bound)
        signature = self._sign("announcement", said).signature
        slot = own_slot(ledger, self.peer)
        due = snapshot_round(round_, manifest.rounds.snapshot_interval)
        size = 4 * manifest.elements
        record = Record(
            round=round_,
            parent=ledger.head,
            fingerprint=666,
            updates=(
                UpdateEntry(
                    *(self.peer, said.update, 1000, 100, 2.0, signature), commitment=said.commitment
                ),
            ),
            admitted=(),
            departed=tuple(DepartureEntry(peer, "silent", 0, b"") for peer in others),
            snapshot=SnapshotEntry(due, content_id(b"alone"), size) if due else None,
            slot=slot,
            opening=self.member.parts.secrets.reveal(ledger),
        )
        mask = membership.mask(others)
        ballot = Ballot(round_, record.parent, slot, record.id, mask)
        signed = SignedBallot(self.peer, mask, self._sign("finalize", ballot).signature)
        certificate = Certificate("finalize", round_, record.parent, slot, record.id, (signed,))
        return Decided(record, certificate)


def _of_chain(chain: Ledger, asked: Any) -> SyncResponse:
    """Return the answer of a peer with this chain."""
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
