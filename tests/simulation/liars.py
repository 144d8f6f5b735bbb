"""Nodes that lie. Each runs the honest state machine and twists its output.

They may know everything that they receive, and sign anything, but only with their own keys.
"""

from __future__ import annotations

import dataclasses
import itertools
import random
from typing import Any

from distro_node.crypto.envelope import Envelope
from distro_node.crypto.hashing import ContentId, content_id
from distro_node.crypto.identity import PeerId
from distro_node.protocol.chain.beacon import Beacon
from distro_node.protocol.chain.consensus import SLOT_WINDOW
from distro_node.protocol.chain.ledger import Ledger
from distro_node.protocol.chain.record_ids import RecordIds
from distro_node.protocol.chain.snapshot_rounds import snapshot_round
from distro_node.protocol.chain.sync import SyncAnswer
from distro_node.protocol.member.aggregation import MakeAggregate
from distro_node.protocol.member.effects import (
    Effect,
    Publish,
    Train,
)
from distro_node.protocol.member.inputs import LeaveRequested
from distro_node.protocol.member.round import Round
from distro_node.protocol.wire.encoding import encode
from distro_node.protocol.wire.errors import ProtocolError
from distro_node.protocol.wire.messages import (
    NO_BLOCK,
    AdmissionEntry,
    Announcement,
    Ballot,
    Certificate,
    Decided,
    DepartureEntry,
    Heartbeat,
    JoinRequest,
    Proposal,
    Record,
    RecordId,
    SignedBallot,
    SnapshotEntry,
    UpdateEntry,
)
from simulation.keys import identity
from simulation.message_cache import read
from simulation.node import Node

# Private here: `_slots`: a liar starts from an honest member's knowledge.
# Private here: `_chain`: a chain that no ledger accepts.

LIES = (
    "two proposals",
    "two votes",
    "finalize and skip",
    "withhold",
    "withhold from some",
    "garbage",
    "no data",
    "wrong fingerprint",
    "forged admission",
    "forged leave",
    "false departure",
    "usurp",
    "flood",
    "replay",
    "false silence",
    "copycat",
    "false chain",
    "stale certificate",
    "wrong parent",
    "deluge",
    "two sizes",
    "wrong size",
    "claims too much",
    "claims too little",
    "claims now this now that",
    "solo rounds",
    "slow answers",
    "partial answers",
    "false heights",
    "false ids",
)

LEADING = (
    "censors",
    "leaves one out",
    "varies its entry",
    "announces to some",
    "abstains from others",
)
"""Lies of a leader: it lists only the liars' updates, leaves a member out, or changes its own
announcement after it has seen the others'. And lies that make honest leaders fail: it sends its update
to some members only, or votes for none of the others' proposals."""

HISTORY = "another history"
"""The founder's lie: it leaves, and rewrites the history from the time when it was alone."""

BOTH_SIDES = "both sides"
"""During a cut, it belongs to one side and signs with all others as well."""

FALSE_AGGREGATE = "false aggregate"
"""As an aggregator, it sends an aggregate that does not follow from the sign votes: the same as all such
liars, or one of its own."""

ABSTAINS = "abstains"
"""Once a cut has left fewer members than the manifest starts with, it signs nothing but heartbeats."""

STRANGER = "stranger"
"""It never asks to be a member, and answers requests all the same."""

LEAVES = "leaves"
"""It leaves, does not come back, and goes on answering; it may show a chain of its own from the time
when it was a member."""

ANSWERS = (
    "solo rounds",
    "false chain",
    "stale certificate",
    "slow answers",
    "partial answers",
    "false heights",
    "false ids",
)
"""The lies in answers to requests, which need no membership."""

Liars = tuple[tuple[int, tuple[str, ...]], ...]
"""Numbers of nodes, and the lies that each tells."""

FIRST_STRANGER = 700
"""Numbers from here on belong to no node that starts as a member."""

CONSPIRACY = "conspiracy"
"""A lie of several: they call all others but one silent, each round another one."""

# When the founder leaves, and the length of its history.
_LEAVES_AFTER = 8.0
_FORGED_ROUNDS = 60
# Rounds that a liar signs alone at the end of its chain, and shows in all answers from then on.
_SOLO_ROUNDS = 40
# Delays of slow liars: longer than the timeout for an offer, and longer than any timeout.
_SLOW_SECONDS = (4.0, 9.0, 15.0)

# Messages of a flooding liar at a time, and the size of a deluge: more than the bound for one member.
_FLOOD = 6
_DELUGE = 1100


def draw_liars(count: int, chance: random.Random) -> Liars:
    """Draw liars, fewer than a third of `count` nodes, never the founder, each with a few lies."""
    number = chance.randrange(1, (count - 1) // 3 + 1)
    # A deluge takes as long as everything else together.
    lies = LIES if chance.random() < 0.1 else tuple(lie for lie in LIES if lie != "deluge")
    return tuple(
        (index, tuple(sorted(chance.sample(lies, chance.randrange(1, 5)))))
        for index in sorted(chance.sample(range(1, count), number))
    )


def draw_strangers(liars: Liars, chance: random.Random, share: float = 1 / 3) -> Liars:
    """Return the liars and, with the probability `share`, one of them lies without being a member: it
    never was one, has left, or will be expelled."""
    if not liars or chance.random() >= share:
        return liars
    answers = tuple(sorted(chance.sample(ANSWERS, chance.randrange(1, 4))))
    manner = chance.choice((STRANGER, LEAVES, "finalize and skip"))
    if manner == STRANGER:
        return (*liars, (FIRST_STRANGER, (*answers, STRANGER)))
    # One that has left or was expelled was among those that may lie.
    place = chance.randrange(len(liars))
    return (*liars[:place], (liars[place][0], (*answers, manner)), *liars[place + 1 :])


def draw_leading(liars: Liars, chance: random.Random, share: float = 0.3) -> Liars:
    """Return the liars, each of whom, with the probability `share`, tells lies of leaders as well."""
    if chance.random() >= share:
        return liars
    return tuple(
        (index, (*lies, *sorted(chance.sample(LEADING, chance.randrange(1, 3)))))
        if index < FIRST_STRANGER and not {HISTORY, CONSPIRACY}.intersection(lies)
        else (index, lies)
        for index, lies in liars
    )


def draw_founder(liars: Liars, chance: random.Random, share: float = 0.05) -> Liars:
    """Return the liars but, with the probability `share`, with the founder instead of one of them."""
    if not liars or chance.random() >= share:
        return liars
    return ((0, (HISTORY,)), *liars[1:])


def own_slot(ledger: Ledger, peer: PeerId) -> int:
    """Return the first slot of the next round that a member leads; 1 without a beacon."""
    if ledger.find(Beacon) is None:
        return 1
    leaders = ledger.leaders(len(ledger))
    return next(slot for slot in itertools.count(1) if leaders[slot] == peer)


class Liar(Node):
    """Sends the lies named in `tells`."""

    tells: frozenset[str] = frozenset()

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._chance = random.Random(f"liar {self.swarm.random.random()}")
        self._heard: list[Envelope] = []
        self._poured = False
        self._copied: set[ContentId] = set()
        self._history: Ledger | None = None
        self._solo: Ledger | None = None
        self._has_left = False
        self._echoed: set[tuple[object, ...]] = set()
        if HISTORY in self.tells:
            self.swarm.clock.after(_LEAVES_AFTER, self._rewrite)
        if LEAVES in self.tells:
            self.swarm.clock.after(_LEAVES_AFTER, self._leave)

    @property
    def _current(self) -> Round:
        """The round at the tip: a liar knows everything that its own member knows."""
        return self.member.parts.round

    # Hooks

    def deliver(self, envelope: Envelope) -> None:
        if len(self._heard) < 300:
            self._heard.append(envelope)
        elif "replay" in self.tells:
            self._heard[self._chance.randrange(300)] = envelope
        if BOTH_SIDES in self.tells and self._echo(envelope):
            return
        super().deliver(envelope)
        if envelope.kind == "announcement" and "copycat" in self.tells:
            self._copy(envelope)

    def perform(self, effect: Effect) -> None:
        if not isinstance(effect, Publish):
            super().perform(effect)
            return
        envelope = effect.envelope
        if envelope.kind == "join" and (STRANGER in self.tells or self._has_left):
            return
        self.disk.said.append(envelope)
        message = read(envelope)
        if "replay" in self.tells and self._heard and self._chance.random() < 0.5:
            self._tell(self._chance.choice(self._heard))
        if "flood" in self.tells and self._chance.random() < 0.3:
            self._flood()
        if "deluge" in self.tells and envelope.kind == "announcement" and not self._poured:
            self._poured = True
            self._pour()
        if isinstance(message, Proposal):
            self._propose(envelope, message)
        elif isinstance(message, Ballot):
            self._cast(envelope, message)
        elif isinstance(message, Announcement):
            self._announce(envelope, message)
        else:
            self._tell(envelope)
        if "usurp" in self.tells and envelope.kind == "announcement":
            self._usurp()
        if CONSPIRACY in self.tells and envelope.kind == "announcement":
            current = self._current
            self._conspire("vote", Ballot(current.number, current.parent, 1, NO_BLOCK, b""))

    def trained(self, effect: Train, update: ContentId, seconds: float) -> None:
        if "garbage" in self.tells:
            self.swarm.make_garbage(update)
        if "claims too much" in self.tells:
            seconds /= 1e6
        elif "claims too little" in self.tells:
            seconds *= 1e6
        elif "claims now this now that" in self.tells:
            seconds *= 1e4 ** self._chance.choice((-1, 0, 1))
        super().trained(effect, update, seconds)

    def heard(self, effect: MakeAggregate) -> ContentId:
        told = super().heard(effect)
        if FALSE_AGGREGATE not in self.tells:
            return told
        return content_id(told + self._chance.choice((b"", self.peer)))

    def serves(self, update: ContentId, asker: Node) -> bool:
        own = self._own_announcement()
        if own is None or update != own.update:
            return True
        if "withhold" in self.tells or "no data" in self.tells:
            return False
        return not ("withhold from some" in self.tells and asker.index % 2)

    def offers(self, asker: Node) -> Ledger:
        if self._history is not None:
            return self._history
        if BOTH_SIDES in self.tells and self._home() is not None:
            # Usually each side's own chain, as a member of that side would, sometimes another side's.
            here = self._side(asker.index)
            own_side = self._chance.random() < 0.9
            side = [n for n in self._honest() if (n.index in here) == own_side]
            if side:
                return self._chance.choice(side).member.view.ledger
        if "solo rounds" in self.tells and STRANGER not in self.tells:
            self._solo = self._solo or self._alone()
            return self._solo or self.member.view.ledger
        # A stranger's rounds are never valid.
        alike = {"solo rounds"} if STRANGER in self.tells else set()
        false = self.tells & {"false chain", "stale certificate", *alike}
        if not false or len(self.member.view.ledger) < 3:
            return self.member.view.ledger
        return self._false_chain("stale certificate" in false) or self.member.view.ledger

    def twists(self, answer: SyncAnswer) -> SyncAnswer:
        if "partial answers" in self.tells:
            answer = dataclasses.replace(answer, at_hand=answer.at_hand[:1])
        if "false heights" in self.tells and not answer.at_hand:
            height = answer.height + self._chance.choice((1, 1000, 1 << 40))
            answer = dataclasses.replace(answer, height=height)
        if ABSTAINS in self.tells or (BOTH_SIDES in self.tells and self._home() is not None):
            # Messages of one side are not shown to another, and a member that abstains gives out none
            # either.
            answer = dataclasses.replace(answer, messages=())
        if "false ids" in self.tells and self._chance.random() < 0.5:
            ids = tuple(RecordId(content_id(record)) for record in answer.ids)
            answer = dataclasses.replace(answer, ids=ids)
        return answer

    def dawdles(self) -> float:
        slow = "slow answers" in self.tells
        return self._chance.choice(_SLOW_SECONDS) if slow else 0.0

    # Lies

    def _send(self, kind: str, message: object, targets: set[int] | None = None) -> None:
        self._tell(self.sign(kind, encode(message)), targets)

    def _tell(self, envelope: Envelope, targets: set[int] | None = None) -> None:
        """Send a message to all members, or to these; a liar on both sides sends to its own side
        only."""
        home = self._home() if BOTH_SIDES in self.tells else None
        if home is not None:
            targets = home if targets is None else home & targets
        self.swarm.gossip(self, envelope, targets)

    # Both sides of a cut

    def _honest(self) -> list[Node]:
        liars = self.swarm.watch.liars
        return [node for node in self.swarm.alive if node.index not in liars]

    def _side(self, number: int) -> set[int]:
        """Return the honest nodes that are connected to an honest one."""
        network = self.swarm.network
        others = [node.index for node in self._honest()]
        return {o for o in others if o == number or network.connected(o, number)}

    def _home(self) -> set[int] | None:
        """Return the side that it belongs to, the liars included, or None if no node is cut off."""
        honest = self._honest()
        side = self._side(honest[0].index) if honest else set()
        return None if len(side) == len(honest) else side | self.swarm.watch.liars

    def _echo(self, envelope: Envelope) -> bool:
        """Sign another side's message as its own, for that side only. Return whether it did."""
        sender, home = self.swarm.number(envelope.sender), self._home()
        if home is None or sender is None or sender in home:
            return False
        side = self._side(sender)
        message = read(envelope)
        if isinstance(message, Ballot):
            place = envelope.kind, message.parent, message.slot, min(side, default=sender)
            if envelope.kind == "skip":
                # Once for each time a member there calls another one silent.
                place = (*place, message.silent)
            if place not in self._echoed:
                self._echoed.add(place)
                self._send_there(envelope.kind, message, side)
        elif isinstance(message, Announcement):
            own, place = self._own_announcement(), (envelope.kind, message.parent)
            # Two announcements of one round are evidence, and for a round that both sides share it made
            # one.
            if own is not None and own.parent != message.parent and place not in self._echoed:
                self._echoed.add(place)
                said = dataclasses.replace(message, update=own.update)
                self._send_there("announcement", said, side)
        return True

    def _send_there(self, kind: str, message: Ballot | Announcement, side: set[int]) -> None:
        self.swarm.gossip(self, self.sign(kind, encode(message)), side)

    def _leave(self) -> None:
        if self.alive and self.member.view.is_member and self.member.view.round > 1:
            self._has_left = True
            self.tell(LeaveRequested())
        elif self.alive:
            self.swarm.clock.after(1.0, self._leave)

    def _halves(self) -> tuple[set[int], set[int]]:
        nodes = [node.index for node in self.swarm.alive]
        self._chance.shuffle(nodes)
        return set(nodes[: len(nodes) // 2]), set(nodes[len(nodes) // 2 :])

    def _own_announcement(self) -> Announcement | None:
        collection = self._current.collection
        own = [said for peer, said in collection.announcements() if peer == self.peer]
        return own[0] if own else None

    def _announce(self, envelope: Envelope, said: Announcement) -> None:
        if "wrong fingerprint" in self.tells:
            self._send("announcement", dataclasses.replace(said, fingerprint=said.fingerprint ^ 1))
        elif "no data" in self.tells:
            self._send(
                "announcement", dataclasses.replace(said, update=content_id(b"no" + said.update))
            )
        elif "two sizes" in self.tells:
            one, other = self._halves()
            self._tell(envelope, one)
            self._send("announcement", self._missized(said), other)
        elif "announces to some" in self.tells:
            self._tell(envelope, {node.index for node in self.swarm.alive if node.index % 2})
        else:
            self._tell(envelope)

    def _missized(self, said: Announcement) -> Announcement:
        """Return the announcement with another size for the same update."""
        sizes = (said.size - 1, said.size + 1, (1 << 32) - 1)
        return dataclasses.replace(said, size=self._chance.choice(sizes))

    def _copy(self, envelope: Envelope) -> None:
        said = read(envelope)
        assert isinstance(said, Announcement)
        # Once each: two copycats that copy each other's copies would do nothing else for ever.
        if (
            said.round == self.member.view.round
            and envelope.sender != self.peer
            and said.update not in self._copied
        ):
            self._copied.add(said.update)
            self._send("announcement", self._missized(said) if "wrong size" in self.tells else said)

    def _propose(self, envelope: Envelope, proposal: Proposal) -> None:
        # Alone on its side of a cut it may have decided the round already.
        current = proposal.record.round == self.member.view.round
        record = self._censored(proposal.record) if current else None
        if record is not None:
            # It has to vote for the lie itself, or there would be no quorum.
            agreement = self._current.consensus
            agreement.records[record.id] = record
            agreement._slots[proposal.slot].proposal = record.id
            self._send("proposal", Proposal(proposal.slot, record))
            return
        record = self._forged(proposal.record)
        if record is not None:
            self._send("proposal", Proposal(proposal.slot, record))
        elif "two proposals" in self.tells:
            one, other = self._halves()
            self._tell(envelope, one)
            self._send("proposal", Proposal(proposal.slot, self._variant(proposal.record)), other)
        else:
            self._tell(envelope)

    def _censored(self, record: Record) -> Record | None:
        """Return a valid record that lists less than there is, or something else of its own."""
        if record.slot != self._current.consensus.slot:
            return None
        swarm, entries = self.swarm, record.updates
        liars = tuple(e for e in entries if swarm.number(e.peer) in swarm.watch.liars)
        others = [entry for entry in entries if entry not in liars]
        if "censors" in self.tells and liars and others:
            entries = liars
        elif "leaves one out" in self.tells and others:
            victim = self._chance.choice(others)
            entries = tuple(entry for entry in entries if entry != victim)
        elif "varies its entry" in self.tells:
            entries = tuple(self._varied(entry, record) for entry in entries)
        left = dataclasses.replace(record, updates=entries)
        return left if left.id != record.id else None

    def _varied(self, entry: UpdateEntry, record: Record) -> UpdateEntry:
        if entry.peer != self.peer:
            return entry
        varied = dataclasses.replace(entry, tokens=entry.tokens + self._chance.randrange(1, 1000))
        body = encode(record.announcement(varied))
        return dataclasses.replace(varied, signature=self.sign("announcement", body).signature)

    def _variant(self, record: Record) -> Record:
        if record.updates:
            return dataclasses.replace(record, updates=record.updates[:-1])
        return dataclasses.replace(record, fingerprint=record.fingerprint ^ 1)

    def _forged(self, record: Record) -> Record | None:
        """Return a record with something in it that never happened."""
        others = [peer for peer in self.member.view.members if peer != self.peer]
        victim = self._chance.choice(others) if others else self.peer
        if "wrong fingerprint" in self.tells:
            # No other member's update was trained from these parameters.
            wrong = record.fingerprint ^ 1
            return dataclasses.replace(record, fingerprint=wrong, updates=())
        if "wrong parent" in self.tells and record.round > 1:
            parent = self.member.view.ledger.parent(record.round - 1)
            return dataclasses.replace(record, parent=parent, updates=(), departed=())
        if "wrong size" in self.tells:
            # Signed by the members concerned, so the record is valid.
            return dataclasses.replace(record, updates=tuple(map(self._resized, record.updates)))
        if "forged admission" in self.tells:
            stranger = identity(900 + self._chance.randrange(50)).peer
            entry = AdmissionEntry(stranger, JoinRequest(record.round, b""), bytes(64))
            return dataclasses.replace(record, admitted=(entry,))
        if "forged leave" in self.tells:
            leave = DepartureEntry(victim, "left", record.round, bytes(64))
            return dataclasses.replace(record, departed=(leave,))
        if "false departure" in self.tells:
            entry = DepartureEntry(victim, "silent", 0, b"")
            kept = tuple(update for update in record.updates if update.peer != victim)
            return dataclasses.replace(record, updates=kept, departed=(entry,))
        return None

    def _resized(self, entry: UpdateEntry) -> UpdateEntry:
        if entry.peer != self.peer:
            return entry
        current, fingerprint = self._current, self.member.view.fingerprint or 0
        said = Announcement(
            *(current.number, current.parent, entry.update, entry.size),
            *(entry.tokens, entry.loss, fingerprint),
            *(entry.capacity, entry.max_version, entry.commitment),
        )
        said = self._missized(said)
        signature = self.sign("announcement", encode(said)).signature
        return dataclasses.replace(entry, size=said.size, signature=signature)

    def _cast(self, envelope: Envelope, ballot: Ballot) -> None:
        kind = envelope.kind
        least = self.swarm.manifest.rounds.start_members
        if ABSTAINS in self.tells and len(self._current.membership) < least:
            return
        if CONSPIRACY in self.tells:
            self._conspire(kind, ballot)
            return
        if "abstains from others" in self.tells and kind != "skip":
            if self._current.consensus.leader(ballot.slot) == self.peer:
                self._tell(envelope)
            return
        if "false silence" in self.tells:
            others = set(self.member.view.members) - {self.peer}
            membership = self._current.membership
            if self._chance.random() < 0.5 and others:
                others = set(self._chance.sample(sorted(others), max(1, len(others) // 2)))
            ballot = dataclasses.replace(ballot, silent=membership.mask(others))
            self._send(kind, ballot)
            return
        if kind == "vote" and "two votes" in self.tells:
            one, other = self._halves()
            self._tell(envelope, one)
            for block in list(self._current.consensus.records):
                if block != ballot.block:
                    self._send("vote", dataclasses.replace(ballot, block=block), other)
                    return
            self._send(
                "vote", dataclasses.replace(ballot, block=RecordId(content_id(b"none"))), other
            )
            return
        if "finalize and skip" in self.tells and kind in ("finalize", "vote"):
            self._tell(envelope)
            for block in list(self._current.consensus.records):
                self._send("finalize", dataclasses.replace(ballot, block=block))
            self._send("skip", dataclasses.replace(ballot, block=NO_BLOCK))
            return
        self._tell(envelope)

    def _conspire(self, kind: str, ballot: Ballot) -> None:
        """Conspire: three of ten and one that they do not accuse would be a quorum: in every other round
        for what all vote for, and otherwise, slot after slot, for what no member proposed."""
        swarm, membership = self.swarm, self._current.membership
        honest = [p for p in membership.peers if swarm.number(p) not in swarm.watch.liars]
        victim = honest[ballot.round % len(honest)] if honest else self.peer
        mask = membership.mask(peer for peer in honest if peer != victim)
        if ballot.round % 2 == 0:
            if ballot.block != NO_BLOCK or kind == "skip":
                self._send(kind, dataclasses.replace(ballot, silent=mask))
        elif kind == "vote":
            for slot in range(ballot.slot, ballot.slot + SLOT_WINDOW):
                phantom = RecordId(content_id(ballot.parent + slot.to_bytes(4, "big")))
                false = dataclasses.replace(ballot, slot=slot, block=phantom, silent=mask)
                self._send("vote", false)
                self._send("finalize", false)

    def _usurp(self) -> None:
        """Propose in another member's slot."""
        current = self._current
        fingerprint = self.member.view.fingerprint
        if fingerprint is None:
            return
        record = Record(
            round=current.number,
            parent=current.parent,
            fingerprint=fingerprint,
            updates=(),
            admitted=(),
            departed=(),
            snapshot=self.member.parts.replica.snapshot,
        )
        for slot in range(1, 4):
            opening = self.member.parts.secrets.reveal(self.member.view.ledger)
            record = dataclasses.replace(record, slot=slot, opening=opening)
            self._send("proposal", Proposal(slot, record))

    def _flood(self) -> None:
        """Send many messages that must be kept, or look so."""
        current, chance = self._current, self._chance
        mask = current.membership.mask(())
        for _ in range(_FLOOD):
            round_ = current.number + chance.randrange(9)
            nonsense = RecordId(content_id(chance.randbytes(8)))
            parent = current.parent if round_ == current.number else nonsense
            ballot = Ballot(
                round_,
                parent,
                chance.choice((current.consensus.slot, chance.randrange(1, 60))),
                nonsense,
                mask if chance.random() < 0.5 else bytes([chance.randrange(256)]),
            )
            kind = chance.choice(("vote", "finalize", "skip", "heartbeat", "join", "stranger"))
            if kind == "heartbeat":
                self._send(
                    kind, Heartbeat(round_ + chance.randrange(100), chance.randrange(1 << 40))
                )
            elif kind == "join":
                self._send(kind, JoinRequest(round_, b""))
            elif kind == "stranger":
                self._stranger(round_)
            else:
                block = NO_BLOCK if kind == "skip" else ballot.block
                self._send(kind, dataclasses.replace(ballot, block=block))

    def _pour(self) -> None:
        """Send as much as possible about a future round, which cannot be checked yet."""
        current = self._current
        others = [node.index for node in self.swarm.alive if node is not self]
        target = {self._chance.choice(others)}
        for number in range(_DELUGE):
            block = RecordId(content_id(b"%d" % number))
            ballot = Ballot(current.number + 2, block, 1, block, current.membership.mask(()))
            self._send("vote", ballot, target)

    def _stranger(self, round_: int) -> None:
        """Request admission under a false name, with an invalid signature."""
        request = self.sign("join", encode(JoinRequest(round_, b"")))
        stranger = identity(900 + self._chance.randrange(50)).peer
        self._tell(dataclasses.replace(request, sender=stranger))

    def _false_chain(self, stale: bool) -> Ledger | None:
        """Return a chain of its own: its last entry calls all others silent, or sometimes does not. If
        `stale`, the entry has the certificate of another record."""
        ledger = self.member.view.ledger
        fork = len(ledger) - 1 - self._chance.randrange(2)
        membership = ledger.membership(fork)
        if self.peer not in membership and STRANGER not in self.tells:
            return None
        honest = ledger[fork].record
        record = dataclasses.replace(
            honest, updates=tuple(e for e in honest.updates if e.peer == self.peer)
        )
        others = set(membership.peers) - {self.peer}
        mask = membership.mask(others if self._chance.random() < 0.7 else ())
        ballot = Ballot(fork, record.parent, 1, record.id, mask)
        signed = SignedBallot(self.peer, mask, self.sign("finalize", encode(ballot)).signature)
        certificate = Certificate("finalize", fork, record.parent, 1, record.id, (signed,))
        if stale:
            certificate = ledger[fork].certificate
        forged = _Forged.of(ledger, fork, Decided(record, certificate))
        try:
            checked = ledger.truncated(fork)
            checked.append(forged.entry)
        except ProtocolError:
            pass
        else:
            return checked
        return forged

    def _alone(self) -> Ledger | None:
        """Return its chain followed by rounds that it signs alone, calling all others silent; from its
        last round as a member on, if it is none any more."""
        fingerprint, ledger = self.member.view.fingerprint, self.member.view.ledger
        if LEAVES in self.tells and not self.member.view.is_member:
            ours = (n for n in range(len(ledger) - 1, 3, -1) if self.peer in ledger.membership(n))
            last = next(ours, None)
            if last is None:
                return None
            fingerprint, ledger = ledger[last].record.fingerprint, ledger.truncated(last)
        elif fingerprint is None or not (self.member.view.at_tip and self.member.view.is_member):
            return None
        else:
            ledger = ledger.truncated(self.member.view.round)
        if len(ledger) < 4:
            return None
        for round_ in range(len(ledger), len(ledger) + _SOLO_ROUNDS):
            membership = ledger.membership(round_)
            others = [peer for peer in membership.peers if peer != self.peer]
            due = snapshot_round(round_, self.swarm.manifest.rounds.snapshot_interval)
            # Without updates the parameters do not change, so all of it could be applied.
            record = Record(
                round=round_,
                parent=ledger.head,
                fingerprint=fingerprint,
                updates=(),
                admitted=(),
                departed=tuple(DepartureEntry(peer, "silent", 0, b"") for peer in others),
                snapshot=self._snapshot_of(due, fingerprint) if due else None,
                slot=(slot := own_slot(ledger, self.peer)),
                opening=self.member.parts.secrets.reveal(ledger),
            )
            ballot = Ballot(round_, record.parent, slot, record.id, membership.mask(others))
            signature = self.sign("finalize", encode(ballot)).signature
            signed = SignedBallot(self.peer, ballot.silent, signature)
            certificate = Certificate("finalize", round_, record.parent, slot, record.id, (signed,))
            ledger.append(Decided(record, certificate))
        return ledger

    def _rewrite(self) -> None:
        """Leave, and sign the rounds from 0 on again, alone except for names that round 0 may need and
        that belong to no node."""
        if not self.alive:
            return
        if self.member.view.ledger.final_round < 1:
            # Until then the founder alone is the finality set, and nothing is guaranteed against it.
            self.swarm.clock.after(1.0, self._rewrite)
            return
        self.tell(LeaveRequested())
        ledger, swarm = Ledger(self.swarm.manifest, verify=self.swarm.keys.verify), self.swarm
        request = JoinRequest(0, b"")
        names = range(800, 799 + swarm.manifest.rounds.start_members)
        signatures = (
            swarm.keys.sign(name, "join", swarm.manifest.swarm, encode(request)) for name in names
        )
        puppets = tuple(
            sorted(
                (
                    AdmissionEntry(identity(name).peer, request, signed)
                    for name, signed in zip(names, signatures, strict=True)
                ),
                key=lambda entry: entry.peer,
            )
        )
        for round_ in range(_FORGED_ROUNDS):
            said = Announcement(
                round_, ledger.head, content_id(b"%d forged" % round_), 1000, 100, 2.0, 666
            )
            if ledger.find(Beacon) is not None:
                bound = self.member.parts.secrets.commitment(round_, ledger)
                said = dataclasses.replace(said, commitment=bound)
            signature = self.sign("announcement", encode(said)).signature
            update = UpdateEntry(
                *(self.peer, said.update, 1000, 100, 2.0, signature), commitment=said.commitment
            )
            due = snapshot_round(round_, self.swarm.manifest.rounds.snapshot_interval)
            size = 4 * self.swarm.manifest.elements
            record = Record(
                round=round_,
                parent=ledger.head,
                fingerprint=666,
                updates=(update,) if round_ else (),
                admitted=() if round_ else puppets,
                departed=tuple(
                    DepartureEntry(entry.peer, "silent", 0, b"")
                    for entry in (puppets if round_ == 1 else ())
                ),
                snapshot=SnapshotEntry(due, content_id(b"forged"), size) if due else None,
                slot=(slot := own_slot(ledger, self.peer)),
                opening=self.member.parts.secrets.reveal(ledger),
            )
            mask = ledger.membership(round_).mask(entry.peer for entry in puppets)
            ballot = Ballot(round_, record.parent, slot, record.id, mask)
            signed = SignedBallot(self.peer, mask, self.sign("finalize", encode(ballot)).signature)
            certificate = Certificate("finalize", round_, record.parent, slot, record.id, (signed,))
            ledger.append(Decided(record, certificate))
        self._history = ledger
        # A message on another record makes the others compare chains.
        other = RecordId(content_id(b"forged"))
        self._send(
            "announcement",
            Announcement(self.member.view.round, other, content_id(b"forged"), 1000, 100, 2.0, 666),
        )


class _Forged(Ledger):
    """A ledger that was never checked."""

    entry: Decided

    @classmethod
    def of(cls, ledger: Ledger, fork: int, entry: Decided) -> _Forged:
        short = ledger.truncated(fork)
        forged = cls.__new__(cls)
        forged.__dict__ = dict(short.__dict__)
        forged._chain.entries.append(entry)
        forged.index(RecordIds).follow(entry.record)
        forged.entry = entry
        return forged
