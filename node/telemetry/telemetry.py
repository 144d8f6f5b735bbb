"""The telemetry of a node: what happens to it is reported here once.

It keeps what the status shows, counts what metrics count, and writes events to the log and rounds to
`history.jsonl`. Nothing here influences the protocol.
"""

from __future__ import annotations

import logging
import math
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ...crypto.identity import PeerId, peer_text
from ...protocol.util.bounded_dict import BoundedTable
from ...protocol.wire.messages import Record
from ...protocol.wire.structure import to_plain
from ..util.progress import Progress
from .counts import NodeCounts
from .health import longest_silence
from .history import last_rounds, last_scores, write
from .mean_loss import mean_loss
from .messages import event_sentence, progress_text
from .own_rounds import OWN_ROUNDS, OwnRound, OwnRoundCounts, RoundAttendance
from .privacy import PrivacyStatus
from .speed import RecentRounds
from .status import (
    EventStatus,
    Losses,
    OwnWork,
    Phase,
    State,
    TrainerStatus,
    TrainingStatus,
)
from .task_scores import TaskScores

_log = logging.getLogger(__name__)

_EVENTS_KEPT = 50
# Interval between log lines about the same progress. A trainer starts in seconds, and nothing else
# shows meanwhile that the node works.
_REPORT_SECONDS = 15.0
_START_REPORT_SECONDS = 5.0
# Rounds whose fingerprints are remembered. A replay begins at a snapshot, and there are usually fewer
# rounds than this between two snapshots.
_NAMES_REMEMBERED = 4096
_ROUNDS_REMEMBERED = 1024


@dataclass
class RoundTimes:
    """Times in a round by the event loop's clock, except for two durations; None: not known yet."""

    began: float | None = None
    compute: float | None = None
    """Seconds that computing the update took."""
    encode: float | None = None
    """Seconds that encoding the update took."""
    trained: float | None = None
    announced: float | None = None
    """With overlap, the update may be announced long after it was trained."""
    collected: float | None = None
    decided: float | None = None


@dataclass
class OwnUpdate:
    """The update that this node made for a round."""

    size: int
    coefficients: int
    tokens: int
    sequences: int = 0


@dataclass
class _Totals:
    tokens: int = 0
    own_tokens: int = 0
    rounds: OwnRoundCounts = field(default_factory=OwnRoundCounts)
    first_round: int | None = None
    last_round: int | None = None
    update_bytes: list[int] = field(default_factory=lambda: [0, 0])
    bits: list[int] = field(default_factory=lambda: [0, 0])
    received: list[int] = field(default_factory=lambda: [0, 0])
    trained_tokens: int = 0
    """Tokens of own updates, whether they counted or not."""
    trained_sequences: int = 0


class Telemetry:
    """What has happened to one node in one swarm."""

    def __init__(self, me: PeerId) -> None:
        self.me = me
        self.counts = NodeCounts()
        """What has happened since the start of the program."""
        self.started = time.time()
        self.state: State = "starting"
        self.progress: Progress | None = None
        self._last_progress_log = -math.inf
        self.round: int | None = None
        self.fingerprint: int | None = None
        self.loss: float | None = None
        self.heldout: tuple[int, float] | None = None
        self.scores: TaskScores | None = None
        self.privacy: PrivacyStatus | None = None
        self.device: str | None = None
        self.gpus: tuple[str, ...] = ()  # the UUIDs of this machine's cards
        self.memory_use: str | None = None
        """How the trainer stores its state and activations, for display."""
        self.sandbox: tuple[str, ...] | None = None
        """The restrictions of the trainer's sandbox; None before it has started."""
        self.recent = RecentRounds()
        self.memory: tuple[int, int | None] | None = None
        """Bytes used by the trainer process, and on its device if that has memory of its own."""
        self.times: dict[int, RoundTimes] = {}
        self.own: dict[int, OwnUpdate] = {}
        self.names: BoundedTable[PeerId, str] = BoundedTable(_NAMES_REMEMBERED)
        """The names that members have chosen for themselves, for display."""
        self._history: Path | None = None
        # The fingerprints of the rounds that are in the history already.
        self._history_fingerprints: BoundedTable[int, int] = BoundedTable(_ROUNDS_REMEMBERED)
        self._received: dict[int, int] = {}
        self._events: deque[EventStatus] = deque(maxlen=_EVENTS_KEPT)
        self._totals = _Totals()
        # The round at which this node first caught up with the swarm since the program started.
        self._caught_up_round: int | None = None
        # Whether the last round was applied at the tip of the chain, thus soon after it was decided.
        self._at_tip = True
        self._last_applied: float | None = None
        # Tokens per second of the last round: of the swarm, and of this node.
        self._pace: tuple[float | None, float | None] = (None, None)
        self._last_update_bytes: int | None = None
        self._last_learned: float | None = None

    def keep_history(self, path: Path) -> None:
        """Append the history to this file from now on. Reads the end of the file first, to know the
        rounds and scores that are in it already."""
        self._history = path
        self._history_fingerprints.update(last_rounds(path, _ROUNDS_REMEMBERED))
        last = last_scores(path)
        if last is not None:
            self.scored(last)

    # Reports from the node

    def caught_up(self, round: int) -> None:
        """Note that the node has caught up with the swarm at `round`. Rounds before the first such round
        are not counted, and no speed is taken from the time before."""
        self._start_pace(at_tip=False)
        if self._caught_up_round is None:
            self._caught_up_round = round

    def enter(self, state: State) -> None:
        """Set the node's state."""
        if state != self.state:
            _log.info("state: %s", state)
            if state == "paused":
                self._forget_work()
        self.state = state

    def report(self, progress: Progress) -> None:
        """Set the progress of a long operation, and log it at intervals."""
        begins = self.progress is None or self.progress.what != progress.what
        self.progress = progress
        now = time.monotonic()
        starts = progress.kind == "starting_trainer"
        interval = _START_REPORT_SECONDS if starts else _REPORT_SECONDS
        if begins or now >= self._last_progress_log + interval:
            self._last_progress_log = now
            _log.info("%s", progress_text(progress))

    def event(self, kind: str, round: int, peer: PeerId | None = None, text: str = "") -> None:
        """Record an event for display, and count it."""
        kind = "joined" if kind == "admitted" else kind
        name = peer_text(peer) if peer else None
        sentence = event_sentence(kind, round, name, peer == self.me, text)
        _log.info("round %d: %s", round, sentence)
        event = EventStatus(time=time.time(), round=round, kind=kind, peer=name, text=sentence)
        self._events.append(event)
        self.counts.events[kind] += 1
        if kind == "mismatch" and peer == self.me:
            self.counts.own_mismatches += 1

    def round_times(self, round: int) -> RoundTimes:
        """Return the times of a round, for the caller to fill in."""
        return self.times.setdefault(round, RoundTimes())

    def trained(self, round: int, update: OwnUpdate) -> None:
        """Note that our update for `round` is ready."""
        self.own[round] = update
        self._totals.trained_tokens += update.tokens
        self._totals.trained_sequences += update.sequences
        self._last_update_bytes = update.size

    def idle(self, seconds: float) -> None:
        """Add seconds in which the trainer was idle, or waited for its data."""
        self.counts.idle_seconds += seconds

    def received(self, round: int, size: int) -> None:
        """Note that an update of `size` bytes for `round` arrived over the network."""
        self._received[round] = self._received.get(round, 0) + size

    def evaluated(self, round: int, loss: float, fingerprint: int) -> None:
        """Record the held-out loss of the parameters after `round`, with this fingerprint."""
        self.heldout = (round, loss)
        # The loss of a model that diverged is not finite, and `json` would write NaN, which is not JSON.
        known = loss if math.isfinite(loss) else None
        # Not as "fingerprint", which the line of a round has alone.
        measured = {"heldout": known, "parameters": f"{fingerprint:016x}"}
        self._write({"round": round, "time": time.time(), **measured})

    def sampled(self, round: int, text: str) -> None:
        """Record the text that the model wrote after `round`; it is untrusted."""
        self._write({"round": round, "time": time.time(), "sample": text})

    def set_privacy(self, privacy: PrivacyStatus) -> None:
        """Record how much this node's updates have revealed about its private data so far."""
        self.privacy = privacy

    def scored(self, scores: TaskScores) -> None:
        """Record scores of this swarm's model, measured by `distro-node evaluate`."""
        self.scores = scores

    def measured(self, scores: TaskScores) -> None:
        """Record scores that this node has measured, and add them to the history."""
        self.scored(scores)
        line = {"round": scores.round, "time": scores.time}
        self._write(line | {"scores": to_plain(scores, named=True)})

    def loaded(self, round: int, fingerprint: int) -> None:
        """Note that the parameters after `round` are loaded; -1 stands for the initial parameters."""
        self.round, self.fingerprint = max(0, round), fingerprint

    def applied(
        self,
        record: Record,
        members: int,
        fingerprint: int,
        seconds: float,
        now: float,
        *,
        attendance: RoundAttendance,
        left_out: int = 0,
        at_tip: bool = True,
    ) -> None:
        """Note that a record is in the parameters, and write the round's line of the history.

        `seconds`: duration of applying it; `now`: the event loop's clock; `left_out`: number of updates
        that the outlier filter left out; `at_tip`: whether the swarm has not gone on yet. A round that
        is replayed after a restart is not written or counted again. A round from before this node caught
        up with the swarm is written but not counted.
        """
        round_ = record.round
        self.round, self.fingerprint, self._last_learned = round_, fingerprint, now
        if self._history_fingerprints.get(round_) == fingerprint:
            self.times.pop(round_, None)
            return
        self._history_fingerprints[round_] = fingerprint
        tokens = sum(entry.tokens for entry in record.updates)
        loss_now = self._note_loss(record)
        own = self.own.pop(round_, None)
        received = self._received.pop(round_, 0)
        if own is not None and attendance.own == "late":
            self.event("refunded", round_, self.me)
        phases = self._phases(round_, seconds)
        # The first round at the tip after a replay ended the replay, at any time after its decision.
        timed = at_tip and self._at_tip
        if not timed:
            self._start_pace(at_tip=at_tip)
        idle_seconds = self._end_round(now, timed=timed)
        if self._caught_up_round is None or round_ >= self._caught_up_round:
            loss = "" if loss_now is None else f"loss {loss_now:.4f}, "
            number = len(record.updates)
            what = _updates_text(number, members)
            _log.info("round %d: %s%s; %s", round_, loss, what, OWN_ROUNDS[attendance.own])
            self._count(round_, attendance.own, own, tokens, received, number)
            self.counts.updates_filtered += left_out
            if timed:
                self._note_pace(attendance.own, own, tokens, now)
        for phase, length in phases.items():
            if length is not None:
                self.counts.phases[phase].add(max(0.0, length))
        own_work = {
            "update_bytes": own.size if own else None,
            "bits_per_coefficient": 8 * own.size / own.coefficients if own else None,
            "idle_seconds": idle_seconds,
        }
        self._write_round(
            record,
            members,
            fingerprint,
            loss=loss_now,
            received=received,
            seconds=phases,
            own=attendance.own,
            late=[peer_text(peer) for peer in attendance.late],
            **own_work,
        )
        for table in (self.own, self.times, self._received):
            for old in [r for r in table if r < round_]:
                del table[old]

    def observed(self, record: Record, members: int, now: float) -> None:
        """Note a record that this node, an observer, has learned of, and write a line of the history.

        The record's fingerprint is that of the parameters on which the round's updates were computed.
        """
        self.round, self.fingerprint, self._last_learned = record.round, record.fingerprint, now
        loss = self._note_loss(record)
        if self._caught_up_round is None or record.round < self._caught_up_round:
            # The record was decided long ago, at a time that this node does not know.
            return
        tokens = sum(entry.tokens for entry in record.updates)
        size = sum(entry.size for entry in record.updates)
        number = len(record.updates)
        loss_text = "" if loss is None else f", loss {loss:.4f}"
        _log.info("round %d: %s%s", record.round, _updates_text(number, members), loss_text)
        self._end_round(now)
        self._count(record.round, None, None, tokens, size, number)
        self._note_pace(None, None, tokens, now)
        self._write_round(record, members, record.fingerprint, loss=loss, received=size, seconds={})

    # Queries

    def learned_seconds(self, now: float) -> float | None:
        """Return the seconds since this node learned of the last record, by the event loop's clock;
        None: none yet."""
        return None if self._last_learned is None else max(0.0, now - self._last_learned)

    def swarm_pace(self, now: float) -> float | None:
        """Return the swarm's tokens per second in the last round, and 0 if the swarm has stalled since;
        None: not known yet."""
        silent, pace = self.learned_seconds(now), self._pace[0]
        stalled = silent is not None and silent > longest_silence(self.recent.round_seconds)
        return 0.0 if pace is not None and stalled else pace

    @property
    def events(self) -> tuple[EventStatus, ...]:
        """The last events, the newest last."""
        return tuple(self._events)

    def status(self) -> TrainingStatus:
        """Return the state of the training."""
        totals = self._totals
        heldout_round, heldout = self.heldout or (None, None)
        process, device = self.memory or (None, None)
        speed = self.recent.speed
        pace, own_pace = self._pace
        return TrainingStatus(
            round=self.round,
            phase=self._phase(),
            round_seconds=self.recent.round_seconds,
            fingerprint=f"{self.fingerprint:016x}" if self.fingerprint is not None else None,
            losses=Losses(training=self.loss, heldout=heldout, heldout_round=heldout_round),
            tokens=totals.tokens,
            tokens_per_second=pace,
            received_bytes_per_round=_mean(totals.received),
            own=OwnWork(
                **asdict(totals.rounds),
                tokens=totals.own_tokens,
                first_round=totals.first_round,
                last_round=totals.last_round,
                update_bytes=_mean(totals.update_bytes),
                bits_per_coefficient=_mean(totals.bits),
                last_update_bytes=self._last_update_bytes,
                tokens_per_second=own_pace,
            ),
            trainer=TrainerStatus(
                device=self.device,
                memory_use=self.memory_use,
                sandbox=self.sandbox,
                restarts=self.counts.events["trainer"],
                idle=speed.idle,
                tokens_per_second=speed.tokens,
                flops_per_second=speed.flops,
                utilisation=speed.utilisation,
                process_bytes=process,
                device_bytes=device,
            ),
        )

    # Private

    def _note_loss(self, record: Record) -> float | None:
        """Set the training loss to a record's, in nats per token, and return it; None: the record has no
        tokens."""
        loss = mean_loss(record.updates)
        if loss is not None:
            self.loss = loss
        return loss

    def _phase(self) -> Phase:
        times = None if self.round is None else self.times.get(self.round + 1)
        if times is None or times.began is None:
            return "idle"
        if times.trained is None:
            return "compute"
        if times.collected is None:
            return "transfer"
        return "agree" if times.decided is None else "apply"

    def _end_round(self, now: float, *, timed: bool = True) -> float:
        """Note the end of a round; return in how many of its seconds the trainer was idle. `timed`:
        whether it was applied when it was decided."""
        totals = self._totals
        tokens, sequences = totals.trained_tokens, totals.trained_sequences
        return self.recent.add(now, self.counts.idle_seconds, tokens, sequences, timed=timed)

    def _start_pace(self, *, at_tip: bool) -> None:
        """Measure speeds from the next round on: a replay takes a fraction of the rounds' own time."""
        self._at_tip = at_tip
        self.recent.clear()
        self._last_applied, self._pace = None, (None, None)

    def _forget_work(self) -> None:
        """Forget what held only while the node was at work: its trainer has ended."""
        self.progress = self.memory = None
        self.times.clear()
        self._start_pace(at_tip=False)

    def _phases(self, round: int, apply_seconds: float) -> dict[str, float | None]:
        times = self.times.pop(round, RoundTimes())
        return {
            "compute": times.compute,
            "encode": times.encode,
            "transfer": _difference(times.collected, times.announced or times.trained),
            "agree": _difference(times.decided, times.collected),
            "apply": apply_seconds,
        }

    def _count(
        self,
        round: int,
        outcome: OwnRound | None,
        own: OwnUpdate | None,
        tokens: int,
        received: int,
        updates: int,
    ) -> None:
        totals = self._totals
        totals.tokens += tokens
        if outcome is not None:
            totals.rounds.add(outcome)
        if own is not None:
            _add(totals.update_bytes, own.size)
            totals.bits[0] += 8 * own.size
            totals.bits[1] += own.coefficients
        if updates and received:
            _add(totals.received, received)
        if outcome == "counted":
            totals.own_tokens += own.tokens if own is not None else 0
            totals.last_round = round
            if totals.first_round is None:
                totals.first_round = round

    def _note_pace(
        self, outcome: OwnRound | None, own: OwnUpdate | None, tokens: int, now: float
    ) -> None:
        own_tokens = own.tokens if own is not None and outcome == "counted" else 0
        if self._last_applied is not None and now > self._last_applied:
            seconds = now - self._last_applied
            self._pace = tokens / seconds, own_tokens / seconds
        self._last_applied = now

    def _write_round(
        self,
        record: Record,
        members: int,
        fingerprint: int,
        *,
        loss: float | None,
        received: int,
        seconds: Mapping[str, float | None],
        **own_work: object,
    ) -> None:
        """Write a round's line of the history."""
        self._write(
            {
                "round": record.round,
                "time": time.time(),
                "members": members,
                "counted": [peer_text(entry.peer) for entry in record.updates],
                "loss": loss,
                "received_bytes": received,
                "fingerprint": f"{fingerprint:016x}",
                "seconds": seconds,
                "tokens": sum(entry.tokens for entry in record.updates),
                **own_work,
            }
        )

    def _write(self, line: dict[str, Any]) -> None:
        if self._history is not None:
            write(self._history, line)


def _difference(end: float | None, start: float | None) -> float | None:
    return None if end is None or start is None else max(0.0, end - start)


def _updates_text(number: int, members: int) -> str:
    """Return how many updates a record has, of how many members."""
    return (
        f"{number} update{'' if number == 1 else 's'} of "
        f"{members} member{'' if members == 1 else 's'}"
    )


def _add(mean: list[int], value: int) -> None:
    mean[0] += value
    mean[1] += 1


def _mean(mean: list[int]) -> float | None:
    return mean[0] / mean[1] if mean[1] else None
