"""One simulated node: the daemon's own state machine, a disk, a toy trainer, and faults.

It does in virtual time what the daemon's runner does with effects: write before sending, fetch until an
update is there, ask one peer after another. A node may be killed between any two of these steps, be
suspended for a while, or have a wrong clock or a slow disk.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from distro_node.crypto.envelope import Envelope
from distro_node.crypto.hashing import ContentId, content_id
from distro_node.protocol.chain.fork_search import FetchBackoff
from distro_node.protocol.chain.initial_sync import InitialSync
from distro_node.protocol.chain.ledger import Ledger
from distro_node.protocol.chain.replay_start import choose_state
from distro_node.protocol.chain.retention import (
    KEPT_SNAPSHOTS,
    ReceivedUpdates,
    dispensable_updates,
    first_needed,
    kept_with,
    last_dispensable,
    put_aside,
    rebuilt_rounds,
    updates_from,
)
from distro_node.protocol.chain.start_policy import (
    RETRY_SECONDS,
    check_point,
    checkpoint_of,
    has_begun,
    may_start,
)
from distro_node.protocol.chain.sync import SyncAnswer
from distro_node.protocol.committee.aggregate import ABSTENTION
from distro_node.protocol.member.aggregation import MakeAggregate
from distro_node.protocol.member.auditor import RunReaudit, ScoreAudit
from distro_node.protocol.member.effects import (
    Apply,
    AskSync,
    CompareChains,
    Effect,
    FetchUpdate,
    LogMessage,
    Note,
    Publish,
    RecallOwnMessages,
    Resync,
    StoreEntry,
    StoreFinality,
    Train,
)
from distro_node.protocol.member.inputs import (
    Applied,
    Input,
    Loaded,
    MessageReceived,
    Rebased,
    Tick,
    Trained,
    UpdateHeld,
)
from distro_node.protocol.member.member import Member
from distro_node.protocol.member.signed_log import SignedLog
from distro_node.protocol.member.sync_ingest import AnswerIngest
from distro_node.protocol.member.update_fetch import FETCH_PAUSE_SECONDS, UpdateDownloads
from distro_node.protocol.wire.checkpoint import Checkpoint
from distro_node.protocol.wire.errors import ProtocolError
from distro_node.protocol.wire.messages import AuditScore, Decided, SnapshotEntry, round_of
from simulation.audits import AUDIT_SEQUENCES, Audits
from simulation.keys import identity
from simulation.message_cache import read
from simulation.toy import INITIAL, ToyTrainer

if TYPE_CHECKING:
    from simulation.swarm import Swarm

UPDATE_BYTES = 2_800_000
APPLY_SECONDS = 0.05
AGGREGATE_SECONDS = 0.2

# A peer that does not answer is given up when its connection breaks.
BROKEN_SECONDS = 4.0
# Interval at which a suspended process is checked for having resumed.
_STOPPED_SECONDS = 1.0
# Runs are short, so messages are forgotten sooner than in a daemon.
_FORGET_ROUNDS = 3
# Messages for a suspended process until its connections break, and no more than buffers hold.
_BUFFERED = 2000


def _nothing() -> None:
    pass


@dataclass
class Fuse:
    """A node's death after this many more writes to its disk."""

    writes: int
    moment: Literal["signed", "written", "sent"] = "written"
    """Before writing what it signed, before sending it, or after that."""
    kind: str = ""
    """Count only messages of this kind; "entry" means entries of the ledger."""


@dataclass
class Disk:
    """The data that survives a crash."""

    entries: list[Decided] = field(default_factory=list)
    said: list[Envelope] = field(default_factory=list)
    blobs: set[ContentId] = field(default_factory=set)
    made: set[ContentId] = field(default_factory=set)
    """The updates that this node computed."""
    snapshots: dict[int, SnapshotEntry] = field(default_factory=dict)
    left: list[SnapshotEntry] = field(default_factory=list)
    """Snapshots of the last abandoned chain, until there is one of the current chain."""
    salt: int = 0
    """Grows from start to start: no two updates of a node are the same."""
    checkpoint: Checkpoint | None = None
    """The last record that it knew to be final."""
    link: Checkpoint | None = None
    """The checkpoint in the link with which it joined."""
    trainer: ToyTrainer | None = None
    """The momentum; it is written as it changes."""

    def lose(self, others: Iterable[Disk]) -> None:
        """Lose everything except what no other disk has: without that no protocol could continue. The
        wall clock, which determines the numbers of starts, is not affected."""
        others = [other for other in others if other is not self]
        self.entries.clear()
        self.checkpoint = self.link = None
        self.said.clear()
        self.made.clear()
        self.blobs.difference_update(*(other.blobs for other in others))
        elsewhere = {entry for other in others for entry in other.snapshots.values()}
        self.snapshots = {r: e for r, e in self.snapshots.items() if e not in elsewhere}
        self.left.clear()
        self.trainer = None

    def has_snapshot(self, entry: SnapshotEntry) -> bool:
        """Whether the snapshot's bytes are there."""
        return entry in (self.snapshots.get(entry.round), *self.left)

    def leave_chain(self, better: Ledger) -> None:
        """Change to the chain `better`: existing snapshots are put aside."""

        def of(entry: SnapshotEntry) -> bool:
            after = entry.round + 1
            return after < len(better) and better[after].record.snapshot == entry

        _, self.left, _ = put_aside(self.kept, self.left, [], of)
        self.snapshots.clear()

    @property
    def kept(self) -> list[SnapshotEntry]:
        """The snapshots to start from, the oldest first."""
        return [self.snapshots[round_] for round_ in sorted(self.snapshots)]


class Node:
    """A running node. All its times except the swarm's are by its own clock."""

    def __init__(self, swarm: Swarm, index: int, disk: Disk | None = None) -> None:
        self.swarm = swarm
        self.index = index
        self.identity = identity(index)
        self.peer = self.identity.peer
        self.disk = disk or Disk()
        self.alive = True
        self.starting = True
        """Whether it is still catching up: it receives nothing and answers no requests."""
        self.started_at = swarm.now
        self.training_seconds = swarm.training_seconds
        """For an equal share among the swarm's initial members."""
        self.write_seconds = 0.0
        self.clock_rate = 1.0
        self.notes: list[Note] = []
        self.counted: list[int] = []
        self.refunds: list[int] = []
        self.fuse: Fuse | None = None
        self.died_of_fuse: Callable[[Node], None] = lambda node: None
        self._frozen = False
        self.busy_until = 0.0
        self._written = -1.0
        self._inbox: list[Input] = []
        self._fetching = UpdateDownloads()
        self._arrivals = ReceivedUpdates()
        self._words: SignedLog[Envelope] = SignedLog(_FORGET_ROUNDS)
        # The last round whose updates were removed; None: not determined yet.
        self._swept: int | None = None
        self.rests = FetchBackoff()
        """Backoff of peers whose chains were fetched in vain."""
        self._syncing = False
        self._settling = False
        self._generation = 0
        # With overlap there is one trainer, which does one thing after the other.
        self._jobs: deque[Train | Apply] = deque()
        self._at_work = False
        self.disk.salt += 1
        self.trainer = self.disk.trainer or ToyTrainer(self.peer)
        self.disk.trainer = self.trainer
        self._audits = Audits(self)
        # The last aggregate that it made: a new process has no state for a section.
        self._said: ContentId | None = None

    def start(self) -> None:
        """Read the disk, and catch up with the others before taking part."""
        disk = self.disk
        try:
            ledger = self._read_ledger()
        except ProtocolError:
            disk.entries.clear()
            disk.snapshots.clear()
            ledger = self._read_ledger()
        # A node without data joins by a link from any present member; it uses the same link when it
        # returns.
        if not (disk.entries or disk.checkpoint or disk.link):
            disk.link = self.swarm.checkpoint(self)
        ledger.checkpoint = checkpoint_of(disk.link, disk.checkpoint, ledger)
        # For observers of the node; it receives nothing yet.
        self.member = self._new_member(ledger)
        self._begun = has_begun(ledger, self.peer)
        self._catch_up(ledger)

    def _read_ledger(self) -> Ledger:
        disk, swarm = self.disk, self.swarm
        ledger = Ledger(swarm.manifest, verify=swarm.keys.verify, checkpoint=disk.checkpoint)
        for decided in disk.entries:
            ledger.append(decided)
        return ledger

    def _new_member(self, ledger: Ledger) -> Member:
        return Member(
            manifest=self.swarm.manifest,
            me=self.peer,
            sign=self.sign,
            ledger=ledger,
            now=self.now,
            start_number=self.disk.salt,
            recall=True,
        )

    def _catch_up(self, ledger: Ledger) -> None:
        if not self.alive:
            return
        catching_up = InitialSync(ledger)

        def keep() -> None:
            if catching_up.rewound():
                self.disk.entries.clear()
            for decided in catching_up.drain():
                self.swarm.watch.fetched(self, decided)
                if not self.write("entry", self.disk.entries, decided):
                    return

        def done() -> None:
            if may_start(ledger, begun=self._begun, found=catching_up.found):
                for point in (self.disk.link, self.disk.checkpoint):
                    check_point(ledger, point)
                self._take_part(ledger)
            else:
                self.swarm.clock.after(RETRY_SECONDS, self._catch_up, ledger)

        self.swarm.catch_up(self, catching_up, keep, done)

    def _take_part(self, ledger: Ledger) -> None:
        """Load the newest snapshot, and start to tick."""
        self.starting = False
        self.member = self._new_member(ledger)
        for envelope in self.disk.said:
            self._words.note(round_of(read(envelope)), envelope, len(envelope.body))
        self.member.restore(self.disk.said, self.now)
        self.load(certified_only=False)
        # Clocks are not in step.
        self.swarm.clock.after(self.swarm.tick_seconds * self.swarm.random.random(), self._tick)

    @property
    def now(self) -> float:
        """The time by this node's own clock."""
        return self.clock_rate * self.swarm.clock.now

    @property
    def parameters(self) -> int:
        return self.trainer.parameters

    @parameters.setter
    def parameters(self, value: int) -> None:
        self.trainer.parameters = value

    @property
    def frozen(self) -> bool:
        """Whether the process is suspended: it does nothing, and messages to it wait."""
        return self._frozen

    @frozen.setter
    def frozen(self, value: bool) -> None:
        self._frozen = value
        if not value:
            waiting, self._inbox = self._inbox, []
            for what in waiting:
                self.tell(what)

    def stop(self) -> None:
        """Kill the node, unless it is dead."""
        if self.alive:
            self.alive = False
            self.swarm.gone(self)

    # Inputs

    def deliver(self, envelope: Envelope) -> None:
        """Receive a message by gossip."""
        if self.alive:
            if not self.swarm.genuine(envelope):
                self.swarm.reject("bad_signature")
                return
            self.tell(MessageReceived(envelope))

    def take_in(self, taking: AnswerIngest[Envelope], then: Callable[[], None]) -> None:
        """Pass an answer's content to the state machine, as fast as the disk allows; then call
        `then`."""
        while self.alive:
            if self._frozen:
                self.swarm.clock.after(_STOPPED_SECONDS, self.take_in, taking, then)
                return
            if self.busy_until > self.swarm.clock.now:
                self.swarm.clock.at(self.busy_until, self.take_in, taking, then)
                return
            what = taking.next_input()
            if what is None:
                if taking.blame is not None:
                    self.swarm.reject(taking.blame.reason)
                then()
                return
            if not self._handle(what):
                taking.refused()

    def tell(self, what: Input) -> None:
        """Pass an input to the state machine while the process runs, and perform the effects."""
        if not self.alive or self.starting:
            return
        if self._frozen:
            if len(self._inbox) < _BUFFERED:
                self._inbox.append(what)
        elif self.busy_until > self.swarm.clock.now:
            self.swarm.clock.at(self.busy_until, self.tell, what)
        else:
            self._handle(what)

    def sign(self, kind: str, body: bytes) -> Envelope:
        """Sign a message of this node."""
        swarm = self.swarm.manifest.swarm
        signature = self.swarm.keys.sign(self.index, kind, swarm, body)
        envelope = Envelope(
            kind=kind, swarm=swarm, sender=self.peer, body=body, signature=signature
        )
        self.swarm.watch.signed(self, envelope)
        return envelope

    def serves(self, update: ContentId, asker: Node) -> bool:
        """Whether this node serves an update that it has to `asker`."""
        return True

    def offers(self, asker: Node) -> Ledger:
        """Return the chain that it shows to `asker`."""
        return self.member.view.ledger

    def twists(self, answer: SyncAnswer) -> SyncAnswer:
        """Return the answer that it sends instead of the true one."""
        return answer

    def judges(self, update: ContentId, seen: AuditScore) -> AuditScore:
        """Return the score that it reports for an update, given the true one."""
        return seen

    def halves(self, update: ContentId, seen: AuditScore) -> AuditScore | None:
        """Return the score that it reports for a sequence's beginning, given the true one."""
        return seen

    def works(self, effect: Train) -> tuple[int, ...]:
        """Return the samples on which it really trains."""
        return effect.samples

    def cuts(self) -> bool:
        """Whether it computes only their beginnings."""
        return False

    def dawdles(self) -> float:
        """Return how many seconds it delays an answer."""
        return 0.0

    # Effects

    def run(self, effects: list[Effect]) -> None:
        """Perform effects in order, as long as the node lives."""
        for effect in effects:
            if not self.alive:
                return
            self.perform(effect)

    def perform(self, effect: Effect) -> None:
        """Perform one effect."""
        swarm = self.swarm
        match effect:
            case Publish(envelope, durable):
                if durable and not self._remember(envelope):
                    return
                self.publish(envelope)
                if durable:
                    self._burn("sent")
            case LogMessage(envelope):
                self._remember(envelope)
            case RecallOwnMessages(round_):
                swarm.recall(self, round_)
            case FetchUpdate():
                self._fetch(effect)
            case Train() if effect.long:
                self._train(effect)
            case Train() | Apply() if swarm.manifest.rounds.overlap:
                self._jobs.append(effect)
                if not self._at_work:
                    self._next_job()
            case Train():
                self._train(effect)
            case MakeAggregate():
                self._aggregate(effect)
            case Apply():
                self._apply(effect)
            case ScoreAudit():
                self._audits.judge(effect)
            case RunReaudit():
                self._audits.again(effect)
            case StoreEntry(decided):
                swarm.watch.kept(self, decided)
                swarm.trace.note(
                    swarm.now, self.index, "decides", decided.record.round, decided.record.id
                )
                if self.write("entry", self.disk.entries, decided):
                    self._forget(decided.record.round)
            case StoreFinality(checkpoint):
                self.disk.checkpoint = checkpoint
            case AskSync(round_):
                if not self._syncing:
                    self._syncing = True
                    swarm.sync(self, round_)
            case Resync(reason):
                swarm.trace.note(swarm.now, self.index, "resyncs", reason)
                self.load(certified_only=True)
            case CompareChains():
                if not self._settling:
                    self._settling = True
                    swarm.settle(self)
            case Note():
                self.notes.append(effect)
                if effect.kind != "decided":
                    who = swarm.number(effect.peer)
                    swarm.trace.note(
                        swarm.now, self.index, effect.kind, effect.round, who, effect.text
                    )

    def publish(self, envelope: Envelope) -> None:
        """Send a message to all members."""
        self.swarm.watch.published(self, envelope)
        self.swarm.gossip(self, envelope)

    def load(self, *, certified_only: bool) -> None:
        """Load a suitable snapshot of its own, or fetch the newest certified one."""
        self._generation += 1
        self._jobs.clear()
        ledger = self.member.view.ledger
        chosen = None if certified_only else choose_state({-1, *self.disk.snapshots}, ledger)
        if chosen is None:
            self._load_snapshot(self._generation)
        else:
            entry = self.disk.snapshots.get(chosen)
            self._loaded(chosen, self.swarm.snapshot(entry.blob) if entry else INITIAL, entry)

    def answered(self) -> None:
        """Note that the sync request was answered, or that no peer answered it."""
        self._syncing = False

    def compared(self, better: Ledger | None, *, alone: bool) -> None:
        """Take the result of a chain comparison; `better` is the chain to follow, if not ours. `alone`:
        whether no other member was on ours when it began."""
        self._settling = False
        if better is None or not self.alive:
            return
        self.swarm.forks += 1
        self.swarm.watch.rebased(self, better, [alone])
        self.disk.entries = [better[number] for number in range(len(better))]
        self.disk.leave_chain(better)
        self.swarm.trace.note(self.swarm.now, self.index, "rebases", len(better), better.head)
        self.tell(Rebased(better))

    # Private helpers

    def _handle(self, what: Input) -> bool:
        """Pass an input to the state machine. Return whether it was accepted."""
        try:
            effects = self.member.handle(what, self.now)
        except ProtocolError as error:
            self.swarm.reject(error.reason)
            return False
        else:
            self.run(effects)
            return True
        finally:
            self.swarm.watch.stirred(self)

    def _tick(self) -> None:
        if self.alive:
            if not self._frozen:
                self.tell(Tick())
            self.swarm.clock.after(self.swarm.tick_seconds / self.clock_rate, self._tick)

    def write(self, kind: str, file: list[Any], item: object) -> bool:
        """Append to a file on the disk. Return whether the node survived it."""
        if self.fuse is not None and self.fuse.kind in ("", kind):
            self.fuse.writes -= 1
        if self._burn("signed"):
            return False
        file.append(item)
        if self._written < self.swarm.now:
            # Writes at the same time share one sync.
            self._written = self.swarm.now
            self.busy_until = max(self.busy_until, self.swarm.now) + self.write_seconds
        return not self._burn("written")

    def _remember(self, envelope: Envelope) -> bool:
        self._words.note(self.member.view.round, envelope, len(envelope.body))
        return self.write(envelope.kind, self.disk.said, envelope)

    def _forget(self, round_: int) -> None:
        gone = self._words.forget(round_)
        if gone:
            gone = set(gone).difference(self._words.kept())
            self.disk.said = [said for said in self.disk.said if said not in gone]

    def _burn(self, moment: str) -> bool:
        if self.fuse is None or self.fuse.writes > 0 or self.fuse.moment != moment:
            return False
        self.swarm.trace.note(self.swarm.now, self.index, "dies", moment)
        self.stop()
        self.died_of_fuse(self)
        return True

    def _load_snapshot(self, generation: int) -> None:
        if not self.alive or generation != self._generation:
            return
        entry = self.member.view.ledger.snapshot
        if entry is None:
            self._loaded(-1, INITIAL, None)
            return
        parameters = self.swarm.snapshot(entry.blob)
        if self.disk.has_snapshot(entry) or self.swarm.has_snapshot(self, entry):
            self._keep_snapshot(entry)
            self._loaded(entry.round, parameters, entry)
        else:
            self.swarm.clock.after(FETCH_PAUSE_SECONDS, self._load_snapshot, generation)

    def _loaded(self, round_: int, parameters: int, entry: SnapshotEntry | None) -> None:
        self.trainer.parameters = parameters
        self.tell(Loaded(round_, parameters, entry))

    def _keep_snapshot(self, new: SnapshotEntry) -> None:
        """Keep a snapshot, and remove what only older ones needed."""
        disk, ledger = self.disk, self.member.view.ledger
        if self._swept is None:
            # Before a restart: when the newest was made, or later.
            had = len(disk.kept) >= KEPT_SNAPSHOTS
            then = disk.kept[-1].round + 1 if had else 0
            self._swept = last_dispensable(ledger, disk.kept, then) if had else -1
        # Fetching takes no time here, so no snapshot is held for readers.
        back = rebuilt_rounds(ledger.manifest)
        kept = kept_with(disk.kept, new, held=lambda old: False, most_held=0, back=back)
        disk.snapshots = {entry.round: entry for entry in kept}
        if len(kept) >= KEPT_SNAPSHOTS:
            last = last_dispensable(ledger, kept, len(ledger))
            dispensable = dispensable_updates(ledger, self._swept, last)
            disk.blobs.difference_update(set(dispensable) - self._arrivals.awaited())
            self._swept = last

    def _sweep(self, round_: int) -> None:
        """Remove the updates that missed their round."""
        ledger = self.member.view.ledger
        missed = self._arrivals.missed(round_, ledger)
        if missed:
            missed -= updates_from(ledger, first_needed(ledger, round_))
            missed -= self._arrivals.awaited() | self._fetching.under_way
            self.disk.blobs.difference_update(missed)

    def _snapshot(self, round_: int) -> SnapshotEntry:
        return self._snapshot_of(round_, self.parameters)

    def _snapshot_of(self, round_: int, parameters: int) -> SnapshotEntry:
        blob = content_id(b"snapshot" + parameters.to_bytes(8, "big"))
        self.swarm.snapshots[blob] = parameters
        return SnapshotEntry(round_, blob, 4 * self.swarm.manifest.elements)

    def _next_job(self) -> None:
        self._at_work = bool(self._jobs)
        if self._jobs:
            job = self._jobs.popleft()
            work = self._train if isinstance(job, Train) else self._apply
            work(job, then=self._next_job)  # type: ignore[arg-type]  # it is the one for this job

    def _train(self, effect: Train, then: Callable[[], None] = _nothing) -> None:
        self.swarm.watch.samples.told(self.peer, effect)
        self.disk.salt += 1
        salt = self.disk.salt

        rounds = self.swarm.manifest.rounds
        usual = rounds.sequences / rounds.start_members
        seconds = self.training_seconds * len(effect.samples) / usual
        self._audits.beside(effect)
        auditing = 0.0 if effect.audit is None else self.training_seconds * AUDIT_SEQUENCES / usual

        def done() -> None:
            if self.alive and not self._frozen:
                update = self.trainer.train(effect.round, salt)
                self.swarm.scores.made(self.peer, update, self.works(effect), cut=self.cuts())
                self.trained(effect, update, seconds)
                then()
            elif self.alive:
                self.swarm.clock.after(0.5, done)

        self.swarm.clock.after(seconds + auditing, done)

    def _aggregate(self, effect: MakeAggregate) -> None:
        """Send the aggregate of the sign votes, as all honest aggregators do that received them all."""

        def done() -> None:
            if not self.alive:
                return
            aggregate = self.aggregates(effect)
            self.disk.made.add(aggregate)
            self._arrivals.note(effect.round, aggregate)
            self.swarm.store(self, aggregate)
            size = self.swarm.update_bytes
            self.tell(Trained(effect.round, effect.round, aggregate, size, 0, 0.0))

        self.swarm.clock.after(AGGREGATE_SECONDS, done)

    def aggregates(self, effect: MakeAggregate) -> ContentId:
        """Return its aggregate of a section: an abstention, unless the last that counted was its own or
        none counted."""
        if effect.agreed and effect.agreed[-1] != self._said:
            return ABSTENTION
        self._said = self.heard(effect)
        return self._said

    def heard(self, effect: MakeAggregate) -> ContentId:
        """Return the true aggregate of a section."""
        place = effect.section.to_bytes(2, "big") + effect.sections.to_bytes(2, "big")
        return content_id(b"tally" + place + effect.sign_votes.id + bytes(effect.update_weights))

    def trained(self, effect: Train, update: ContentId, seconds: float) -> None:
        """Store and report an update that took `seconds` to compute."""
        self.disk.made.add(update)
        self._arrivals.note(effect.round, update)
        self.swarm.store(self, update)
        count, size = len(effect.samples), self.swarm.update_bytes
        computing = seconds * self.clock_rate
        made = Trained(
            effect.round, effect.assigned_in, update, size, 100 * count, 2.0, count, computing
        )
        self.tell(made)

    def _apply(self, effect: Apply, then: Callable[[], None] = _nothing) -> None:
        record, generation = effect.record, self._generation
        updates = [each.entry.update for each in effect.needed]
        weights = [each.update_weight for each in effect.needed]
        self.swarm.watch.applying(self, effect)
        before = len(self.trainer.sent)
        self.trainer.apply(record.round, updates, weights, effect.own_counted)
        if effect.own_counted:
            self.counted.append(record.round)
        elif before:
            self.refunds.append(record.round)
        snapshot = None
        if effect.snapshot_due:
            snapshot = self._snapshot(record.round)
            # Now there is a snapshot of the current chain.
            self.disk.left.clear()
            self._keep_snapshot(snapshot)
        fingerprint = self.parameters
        self.swarm.watch.applied(self, record, fingerprint)

        def done() -> None:
            if generation == self._generation and self.member.view.awaits(record.round):
                self.tell(Applied(record.round, fingerprint, snapshot, APPLY_SECONDS))
                self._sweep(record.round)
            then()

        self.swarm.clock.after(APPLY_SECONDS, done)

    def _fetch(self, effect: FetchUpdate) -> None:
        """Fetch an update, retrying while its round needs it."""
        if self._fetching.begin(effect, stored=effect.update in self.disk.blobs):
            self._try_fetch(effect)

    def _try_fetch(self, effect: FetchUpdate) -> None:
        member = self.member
        loaded = member.view.fingerprint is not None
        applied = member.view.applied_round
        if not self.alive or not self._fetching.continues(effect, applied, loaded=loaded):
            self._fetching.end(effect)
            return
        done, vain = (None, False)
        if not self._frozen:
            done, vain = self.swarm.download(self, effect, self._fetching)
        if done is None:
            if vain:
                for report in self._fetching.in_vain(
                    effect, member.view.ledger, member.view.applied_round
                ):
                    self.tell(report)
            self.swarm.clock.after(FETCH_PAUSE_SECONDS, self._try_fetch, effect)
        else:
            self.swarm.clock.at(done, self._fetched, effect)

    def _fetched(self, effect: FetchUpdate) -> None:
        verdict = self._fetching.arrived(effect, decodes=not self.swarm.is_garbage(effect.update))
        self._fetching.end(effect)
        if not self.alive:
            return
        if verdict.discard:
            self.swarm.trace.note(self.swarm.now, self.index, "refuses", effect.update)
        elif isinstance(verdict.report, UpdateHeld):
            self._arrivals.note(effect.round, effect.update)
            self.swarm.store(self, effect.update)
        self.tell(verdict.report)
