"""The swarm's history by round, read from the ledger and the history file on this disk.

The ledger has every round since the founding: the members, and the updates that counted, with loss and
bytes. The history file has what only this node knows: times, durations of the phases, held-out losses.
Both files grow while they are read; each call of `RunHistory.refresh` reads a bounded piece of the new
part, in the calling thread. Old rounds are merged, so that a run of any length has at most a few
thousand rows.

The running node verified the ledger's entries when it received them, and they are not verified again
here: they are decoded strictly, and reading stops at the first invalid one.
"""

from __future__ import annotations

import json
import math
import os
from bisect import bisect_left
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from ...crypto.identity import PeerId, peer_text
from ...protocol.chain.entry_store import MAX_DECIDED_BYTES, decode_decided
from ...protocol.wire.errors import ProtocolError
from ...protocol.wire.messages import Record
from ..telemetry.history import MAX_SAMPLE_CHARACTERS
from ..telemetry.mean_loss import mean_loss
from ..telemetry.own_rounds import OWN_ROUNDS
from ..util.sanitize import harmless_piece
from .period_totals import PeriodTotals

T = TypeVar("T")

MAX_ROWS = 4096
"""Maximum number of rows, each for one round or several merged rounds: more than a screen has pixels."""
RECENT_ROWS = 1024
"""The newest rows, which are never merged."""
MAX_PEERS = 4096
"""Maximum number of peers; later ones but this node are left out. An open swarm may see more of them
over time."""
RECENT_ROUNDS = 64
"""The number of rounds over which a member's recent contributions are counted."""
PHASES = ("compute", "encode", "transfer", "agree", "apply")

_PHASES_KEPT = 64
# The number of newest peers that are sent with each event, more than join in a second.
_RESENT_PEERS = 64
# Number of most recently departed peers listed among the members.
_DEPARTED_SHOWN = 64
# Number of members with a late update listed for a round.
_LATE_SHOWN = 16
_MAX_HELDOUT = 4096
_MAX_SAMPLES = 64
# The number of newest samples that are sent with each event, more than are written in a second.
_RESENT_SAMPLES = 2
# Maximum length of a line of the history file. A line for a thousand members has about 60 kB.
_MAX_LINE_BYTES = 1 << 20
# The entries of the ledger, and the bytes of the history file, that one call of `refresh` reads.
_ENTRIES_AT_ONCE = 512
_BYTES_AT_ONCE = 4 << 20
_LENGTH_BYTES = 4


@dataclass
class RoundRow:
    """One round or several merged rounds."""

    round: int
    """The last round of the row."""
    rounds: int
    """Number of rounds in the row."""
    loss: float | None
    """Mean over the tokens, in nats per token; None: no member trained."""
    trained: int
    """Tokens of the row's rounds."""
    tokens: int
    """Tokens from the founding to the last round."""
    size: int
    """Bytes of all updates from the founding to the last round, each counted once."""
    updates: int
    """Updates that counted in the row's rounds."""
    present: int
    """Members in the last round, as bits: the bit's number is the index in `RunHistory.members`."""
    counted: int
    """Members whose update counted in the last round, as bits like those of `present`."""
    time: float | None = None
    """When this node applied the last round, in seconds since 1970; None: it did not."""


@dataclass
class MemberHistory:
    """The contributions of a current or former member."""

    peer: str
    joined: int
    """The round whose record last admitted it; 0 for the founder."""
    left: int | None = None
    """The round whose record removed it."""
    why: str = ""
    """`left`, `silent` or `expelled`, if it has been removed."""
    counted: int = 0
    """Number of its updates that counted."""
    tokens: int = 0
    """Tokens of these updates."""
    last: int | None = None
    """The last round in which its update counted."""
    loss: float | None = None
    """Loss of its last update that counted and has tokens, in nats per token."""
    recent: deque[int] = field(default_factory=lambda: deque(maxlen=RECENT_ROUNDS))
    """The last rounds in which its update counted."""


class RunHistory:
    """The content of the two files, as far as it has been read. Not thread-safe."""

    def __init__(self, founder: PeerId, me: str, ledger: Path, history: Path) -> None:
        self._founder = founder
        self._me = me
        self._ledger = ledger
        self._history = history
        self.generation = 0
        """Incremented when earlier content became invalid because the node changed to another chain."""
        self._reset()

    def _reset(self) -> None:
        self.rows: list[RoundRow] = []
        self.heldout: list[tuple[int, float]] = []
        self.samples: list[tuple[int, str]] = []
        self.phases: deque[dict[str, Any]] = deque(maxlen=_PHASES_KEPT)
        self.members: list[MemberHistory] = []
        self._numbers: dict[PeerId, int] = {}
        self._present = 0
        self._next = 0
        self._times_ahead: dict[int, float] = {}
        self._periods = PeriodTotals(self._history)
        self._ledger_at = self._history_at = 0
        self._ledger_file: tuple[int, int] | None = None
        self._history_file: tuple[int, int] | None = None
        self._admit(self._founder, 0)

    def refresh(self) -> bool:
        """Read a piece of the new content of the files. Return whether there may be more."""
        if self._was_replaced():
            self.generation += 1
            self._reset()
        more = self._read_ledger()
        # The history file is read last, because it refers to rounds of the ledger.
        return more or self._read_history()

    # As JSON

    def everything(self) -> dict[str, Any]:
        """Return all rows, and with them the peers, held-out losses, samples, phases and members."""
        return self._as_json(self.rows, self.heldout, self.samples, 0)

    def latest(self, rows: int) -> dict[str, Any]:
        """Return the last `rows` rows, and the newest of what else `everything` returns; they replace a
        client's copies.

        Only the newest peers are included, from index `peers_at` on, since there may be thousands in
        all.
        """
        known = max(0, len(self.members) - _RESENT_PEERS)
        samples = self.samples[-_RESENT_SAMPLES:]
        return self._as_json(self.rows[-rows:], self.heldout[-rows:], samples, known)

    def contributions(self) -> list[dict[str, Any]]:
        """Return one row per current or former member, in order of admission."""
        return [self._member_json(number) for number in range(len(self.members))]

    def _as_json(
        self,
        rows: list[RoundRow],
        heldout: list[tuple[int, float]],
        samples: list[tuple[int, str]],
        peers_at: int,
    ) -> dict[str, Any]:
        return {
            "generation": self.generation,
            "peers_at": peers_at,
            "peers": [member.peer for member in self.members[peers_at:]],
            "rows": {
                "round": [row.round for row in rows],
                "rounds": [row.rounds for row in rows],
                "loss": [row.loss for row in rows],
                "tokens": [row.tokens for row in rows],
                "bytes": [row.size for row in rows],
                "updates": [row.updates for row in rows],
                "time": [row.time for row in rows],
                # The bits are sent in hex, because many JSON readers have no integers beyond 53 bits.
                "present": [f"{row.present:x}" for row in rows],
                "counted": [f"{row.counted:x}" for row in rows],
            },
            "heldout": [list(each) for each in heldout],
            "samples": [list(each) for each in samples],
            "phases": list(self.phases),
            "members": [self._member_json(number) for number in self._listed_members()],
        }

    def _listed_members(self) -> list[int]:
        """Return the numbers of the present members, those that left most recently, and this node."""
        departed = [
            number
            for number, each in enumerate(self.members)
            if each.left is not None and each.peer != self._me
        ]
        departed.sort(key=lambda number: self.members[number].left or 0)
        old = set(departed[:-_DEPARTED_SHOWN])
        return [number for number in range(len(self.members)) if number not in old]

    def _member_json(self, number: int) -> dict[str, Any]:
        member, end = self.members[number], self._next
        since = max(member.joined + 1, end - RECENT_ROUNDS)
        return {
            "peer": member.peer,
            "me": member.peer == self._me,
            "joined": member.joined,
            "left": member.left,
            "why": member.why or None,
            "counted": member.counted,
            "tokens": member.tokens,
            "day_tokens": self._periods.of_day(number),
            "week_tokens": self._periods.of_week(number),
            "last": member.last,
            "loss": member.loss,
            "recent": sum(round_ >= since for round_ in member.recent),
            "recent_of": max(0, end - since) if member.left is None else None,
        }

    # The ledger

    def _was_replaced(self) -> bool:
        for path, known, read in (
            (self._ledger, self._ledger_file, self._ledger_at),
            (self._history, self._history_file, self._history_at),
        ):
            try:
                now = path.stat()
            except OSError:
                continue
            if known is not None and (_identity(now) != known or now.st_size < read):
                return True
        return False

    def _read_ledger(self) -> bool:
        taken = 0
        try:
            with self._ledger.open("rb") as file:
                self._ledger_file = _identity(os.fstat(file.fileno()))
                file.seek(self._ledger_at)
                for entry in _entries(file):
                    record = decode_decided(entry).record
                    if record.round != self._next:
                        return False
                    self._add_record(record)
                    self._ledger_at += _LENGTH_BYTES + len(entry)
                    taken += 1
                    if taken == _ENTRIES_AT_ONCE:
                        return True
        except (OSError, ProtocolError):
            # The ledger does not exist yet, or is damaged, which the node itself notices and reports.
            return False
        return False

    def _add_record(self, record: Record) -> None:
        counted = tokens = size = 0
        by_member: dict[int, int] = {}
        for entry in record.updates:
            tokens += entry.tokens
            size += entry.size
            number = self._numbers.get(entry.peer)
            if number is not None:
                counted |= 1 << number
                member = self.members[number]
                member.counted += 1
                member.tokens += entry.tokens
                by_member[number] = entry.tokens
                member.last = record.round
                # An aggregator's entry has no tokens, and so no loss.
                member.loss = entry.loss if entry.tokens else member.loss
                member.recent.append(record.round)
        time = self._times_ahead.pop(record.round, None)
        self._periods.add(record.round, by_member)
        if time is not None:
            self._periods.timed(record.round, time)
        before = self.rows[-1] if self.rows else None
        self.rows.append(
            RoundRow(
                round=record.round,
                rounds=1,
                loss=mean_loss(record.updates),
                trained=tokens,
                tokens=tokens + (before.tokens if before else 0),
                size=size + (before.size if before else 0),
                updates=len(record.updates),
                present=self._present,
                counted=counted,
                time=time,
            )
        )
        for departure in record.departed:
            self._remove_member(departure.peer, record.round, departure.reason)
        for evidence in record.evidence:
            self._remove_member(evidence.peer, record.round, "expelled")
        for admission in record.admitted:
            self._admit(admission.peer, record.round)
        self._next = record.round + 1
        if len(self.rows) > MAX_ROWS:
            self.rows = _merge_older(self.rows)

    def _admit(self, peer: PeerId, round_: int) -> None:
        number = self._numbers.get(peer)
        if number is None:
            name = peer_text(peer)
            if len(self.members) >= MAX_PEERS and name != self._me:
                return
            number = self._numbers[peer] = len(self.members)
            self.members.append(MemberHistory(name, round_))
        member = self.members[number]
        member.joined, member.left, member.why = round_, None, ""
        self._present |= 1 << number

    def _remove_member(self, peer: PeerId, round_: int, why: str) -> None:
        number = self._numbers.get(peer)
        if number is not None:
            member = self.members[number]
            member.left, member.why = round_, why
            self._present &= ~(1 << number)

    # The history

    def _read_history(self) -> bool:
        try:
            with self._history.open("rb") as file:
                self._history_file = _identity(os.fstat(file.fileno()))
                file.seek(self._history_at)
                data = file.read(_BYTES_AT_ONCE)
        except OSError:
            return False
        everything = data.rfind(b"\n") + 1
        if not everything and len(data) >= _MAX_LINE_BYTES:
            # This program writes no such long line, so this piece is skipped.
            everything = len(data)
        self._history_at += everything
        for line in data[:everything].splitlines():
            try:
                self._add_line(json.loads(line))
            except (ValueError, TypeError, KeyError, AttributeError, RecursionError, OverflowError):
                continue
        return len(data) == _BYTES_AT_ONCE

    def _add_line(self, line: dict[str, Any]) -> None:
        round_ = line["round"]
        if type(round_) is not int:
            return
        if "heldout" in line:
            loss = _number(line["heldout"])
            if loss is not None:
                self.heldout = _appended(self.heldout, (round_, loss), _MAX_HELDOUT)
            return
        if "sample" in line:
            text = line["sample"]
            if isinstance(text, str) and len(text) <= MAX_SAMPLE_CHARACTERS:
                self.samples = _appended(self.samples, (round_, harmless_piece(text)), _MAX_SAMPLES)
            return
        seconds = line["seconds"]
        time = _number(line["time"])
        if time is not None:
            self._periods.timed(round_, time)
        index = bisect_left(self.rows, round_, key=lambda row: row.round)
        if index < len(self.rows):
            self.rows[index].time = time
        elif time is not None and len(self._times_ahead) < RECENT_ROUNDS:
            # The round is in the parameters already; its ledger entry is about to be written.
            self._times_ahead[round_] = time
        while self.phases and self.phases[-1]["round"] >= round_:
            # The round was repeated on another chain.
            self.phases.pop()
        own, late = line.get("own"), line.get("late")
        self.phases.append(
            {
                "round": round_,
                "time": time,
                "own": own if own in OWN_ROUNDS else None,
                "late": [each for each in late if isinstance(each, str)][:_LATE_SHOWN]
                if isinstance(late, list)
                else None,
                **{name: _number(seconds.get(name)) for name in PHASES},
            }
        )


def _appended(
    known: list[tuple[int, T]], new: tuple[int, T], max_entries: int
) -> list[tuple[int, T]]:
    """Append an entry; beyond `max_entries` entries, drop every other one of the older half."""
    while known and known[-1][0] >= new[0]:
        # The round was repeated on another chain.
        known.pop()
    known.append(new)
    half = max_entries // 2
    return known if len(known) <= max_entries else [*known[:half:2], *known[half:]]


def _merge_older(rows: list[RoundRow]) -> list[RoundRow]:
    """Merge the older rows in pairs."""
    old, recent = rows[:-RECENT_ROWS], rows[-RECENT_ROWS:]
    return [*(_merge_pair(*old[at : at + 2]) for at in range(0, len(old), 2)), *recent]


def _merge_pair(first: RoundRow, second: RoundRow | None = None) -> RoundRow:
    if second is None:
        return first
    known = [row for row in (first, second) if row.loss is not None]
    trained = sum(row.trained for row in known)
    return RoundRow(
        round=second.round,
        rounds=first.rounds + second.rounds,
        loss=sum((row.loss or 0.0) * row.trained for row in known) / trained if trained else None,
        trained=first.trained + second.trained,
        tokens=second.tokens,
        size=second.size,
        updates=first.updates + second.updates,
        present=second.present,
        counted=second.counted,
        time=second.time,
    )


def _entries(file: Any) -> Iterator[bytes]:
    """Yield the complete entries from the file's position on; the last one may still be incomplete."""
    while True:
        prefix = file.read(_LENGTH_BYTES)
        length = int.from_bytes(prefix, "big")
        if len(prefix) < _LENGTH_BYTES or length > MAX_DECIDED_BYTES:
            return
        entry = file.read(length)
        if len(entry) < length:
            return
        yield entry


def _number(value: object) -> float | None:
    """Return a finite number as a float; None for anything else, an unknown value included."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    number = float(value)
    return number if math.isfinite(number) else None


def _identity(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino
