"""Second looks at what others found low: in a trainer process of its own, out of the way of all else.

It makes the parameters again that the update was computed on, from a snapshot and the updates since, and
computes the share's samples on them. It takes the processor when nobody else wants it, half of the
memory that is free, and the time while the dispute lasts. Where anything is missing there is no second
look: others are called as well. Which dispute comes first, all members tell alike (`next_look`).

To start the trainer takes longer than to look in a small model. So it stays while there is something to
look at, and from the parameters that it has it goes on to those of a later round.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Protocol

import trio

from ...crypto.identity import PeerId
from ...protocol.chain.ledger import Ledger
from ...protocol.checks.accounts import FirstLook
from ...protocol.checks.agreement import Agreement
from ...protocol.checks.disputes import OPEN
from ...protocol.member.effects import LookAgain
from ...protocol.member.inputs import LookedAgain
from ...protocol.wire.manifest import Manifest
from ...protocol.wire.messages import MAX_LOOKS, Score
from ..storage.blob_files import DiskFull
from ..storage.blob_store import BlobStore
from ..storage.swarm_store import LocalSnapshot
from .client import TrainerClient, TrainerDied, TrainerFailed, TrainerSpec, open_trainer
from .main_memory import free_main_memory
from .next_look import next_look
from .replay import NotKept, Past, Replayed

_log = logging.getLogger(__name__)

# More are never open: so many looks are in the records of the rounds that a dispute lasts.
_MAX_WAITING = OPEN * MAX_LOOKS
# A trainer that has nothing to do stays for so long: it takes memory, and a new one takes time.
_STAYS_SECONDS = 60.0
# Of others' samples, whose gradient is taken off; about as many as a share has.
_OTHERS = 4
# A dispute may last for hours where rounds are long. What takes longer than this would never be done.
_LONGEST_SECONDS = 3600.0
_WATCH_SECONDS = 1.0
# Below what the owner's own work, and the node that trains, get.
_NICE = 10


class States(Protocol):
    """Which states of the model are on this disk: `Snapshots`."""

    async def at_hand(self) -> list[LocalSnapshot]:
        """Those from which others can be made, the oldest first."""
        ...


class Hears(Protocol):
    """Who is told what came of it: the runner."""

    def ledger(self) -> Ledger:
        """The chain that is followed by now."""
        ...

    def looked(self, what: LookedAgain) -> None:
        """A second look is done."""


class SecondLooks:
    """The second looks of one node, one at a time."""

    def __init__(
        self,
        *,
        manifest: Manifest,
        spec: TrainerSpec,
        store: BlobStore,
        states: States,
        momentum: Path,
        me: PeerId,
        bring: Callable[[Sequence[int]], Awaitable[None]],
        start: Callable[[TrainerSpec], AbstractAsyncContextManager[TrainerClient]] = open_trainer,
    ) -> None:
        """`spec` is that of the trainer that trains, and `momentum` where it saves its state; `bring`
        returns when the data of these samples is on the disk."""
        self._manifest = manifest
        self._spec = spec
        self._store = store
        self._states = states
        self._momentum = momentum
        self._me = me
        self._bring = bring
        self._start = start
        self._waiting: dict[FirstLook, LookAgain] = {}
        self._wake = trio.Event()
        # How many rounds were decided during the last look.
        self._takes = 0

    def put(self, effect: LookAgain) -> None:
        """Queue one."""
        if len(self._waiting) == _MAX_WAITING:
            # The oldest, which is over by now.
            del self._waiting[next(iter(self._waiting))]
        self._waiting[effect.first] = effect
        self._wake.set()

    async def run(self, hears: Hears) -> None:
        """Look, for ever."""
        while True:
            first = await self._until_there_is_one(hears)
            if not await self._can_be_made(first.round, hears.ledger()):
                # Not worth a trainer.
                _log.info("no second look at round %d: its parameters are not kept", first.round)
                self._waiting.pop(first, None)
                continue
            try:
                async with self._start(self._aside()) as trainer:
                    await self._look_with(trainer, hears)
            except (TrainerFailed, TrainerDied) as problem:
                # It did not start, and would not for the next one.
                _log.info("no second look at %d rounds: %s", len(self._waiting), problem)
                self._waiting.clear()

    async def _until_there_is_one(self, hears: Hears) -> FirstLook:
        """Wait for a dispute to look at, and tell which is next. It goes on waiting."""
        while (first := self._next(hears.ledger())) is None:
            self._wake = trio.Event()
            await self._wake.wait()
        return first

    def _next(self, ledger: Ledger) -> FirstLook | None:
        """The dispute to look at next. What is over is let go."""
        if ledger.work is None:
            return None
        accounts = ledger.work.accounts
        waiting = self._waiting.items()
        self._waiting = {first: each for first, each in waiting if first in accounts.disputes}
        return next_look(self._waiting, accounts, self._me, len(ledger), self._takes)

    async def _can_be_made(self, round_: int, ledger: Ledger) -> bool:
        """Whether the parameters that a round was trained on can be made again here."""
        states, past = await self._states.at_hand(), self._past(ledger)
        start = await trio.to_thread.run_sync(past.start_for, self._trained_on(round_), states)
        return start is not None

    def _past(self, ledger: Ledger) -> Past:
        # Nothing is added to a copy while it is read.
        known = ledger.truncated(len(ledger))
        return Past(manifest=self._manifest, ledger=known, store=self._store)

    def _trained_on(self, round_: int) -> int:
        """The round behind which the parameters stood that this round was trained on."""
        return round_ - 1 - self._manifest.rounds.overlap

    async def _look_with(self, trainer: TrainerClient, hears: Hears) -> None:
        """Look at one dispute after another, until there is none for a while, or the trainer is of no
        more use."""
        replayed = Replayed(trainer)
        usable = True
        while usable:
            first: FirstLook | None = None
            with trio.move_on_after(_STAYS_SECONDS):
                first = await self._until_there_is_one(hears)
            if first is None:
                return
            usable = await self._while_open(replayed, self._waiting.pop(first), hears)

    async def _while_open(self, replayed: Replayed, effect: LookAgain, hears: Hears) -> bool:
        """Look, unless the dispute is over before. Returns whether the trainer can be used further: not
        while it is still at what nobody waits for."""
        began, usable, done = len(hears.ledger()), False, False
        async with trio.open_nursery() as nursery:

            async def look() -> None:
                nonlocal usable, done
                scores, usable = await self._look_or_say_why_not(replayed, effect, hears.ledger())
                done = True
                if scores is not None:
                    self._takes = max(0, len(hears.ledger()) - began)
                    hears.looked(LookedAgain(effect.first, scores))
                nursery.cancel_scope.cancel()

            nursery.start_soon(look)
            with trio.move_on_after(_LONGEST_SECONDS):
                while _is_open(effect.first, hears.ledger()):  # noqa: ASYNC110 - ends by itself
                    await trio.sleep(_WATCH_SECONDS)
            nursery.cancel_scope.cancel()
        if not done:
            _log.info("no second look at round %d: it was not done in time", effect.first.round)
            # So long at least.
            self._takes = max(self._takes, len(hears.ledger()) - began)
        return usable

    async def _look_or_say_why_not(
        self, replayed: Replayed, effect: LookAgain, ledger: Ledger
    ) -> tuple[tuple[Score, ...] | None, bool]:
        """What was seen, if anything, and whether the trainer lives."""
        round_ = effect.first.round
        try:
            found = await self._look(replayed, effect, self._past(ledger))
        except (NotKept, DiskFull, TrainerFailed, TrainerDied) as problem:
            _log.info("no second look at round %d: %s", round_, problem)
            return None, not isinstance(problem, TrainerDied)
        if not all(each.squares for each in found):
            _log.info("no second look at round %d: nothing is learned from some of it", round_)
            return None, True
        said = [f"{each.score:.1f}" for each in found]
        _log.info("looked again at round %d: %s", round_, ", ".join(said))
        return tuple(Score(each.total, each.squares) for each in found), True

    async def _look(self, replayed: Replayed, effect: LookAgain, past: Past) -> list[Agreement]:
        round_ = effect.first.round
        body = await trio.to_thread.run_sync(self._store.get, effect.update)
        if body is None:
            raise NotKept("the update is not here any more")
        others = dealt_to_others(past.ledger, round_, effect.first.peer, self._me)[:_OTHERS]
        if not others:
            raise NotKept("there is nothing to hold it against")
        await self._bring((*effect.samples, *others))
        before = self._trained_on(round_)
        await replayed.go_to(past, before, await self._states.at_hand())
        # Afterwards: the replay would change it.
        await replayed.trainer.load_momentum(self._momentum)
        return await replayed.trainer.look_again(round_, body, effect.samples, others, effect.share)

    def _aside(self) -> TrainerSpec:
        spec = self._spec
        return TrainerSpec(
            manifest=spec.manifest,
            blobs=spec.blobs,
            # A GPU belongs to the trainer that trains, and so does what it may still ask for.
            device="cpu",
            threads=spec.threads,
            micro_batch=1,
            memory=free_main_memory() // 2,
            readable=(self._momentum.parent,),
            confined=spec.confined,
            nice=_NICE,
        )


def dealt_to_others(ledger: Ledger, round_: int, peer: PeerId, me: PeerId) -> tuple[int, ...]:
    """The samples that a round dealt to members other than `peer`: mine first, whose data is here."""
    runs = ledger.dealing.assignment(round_).runs
    found: list[int] = []
    for other in sorted(runs.keys() - {peer}, key=lambda each: (each != me, each)):
        found += ledger.share(round_, other) or ()
    return tuple(found)


def _is_open(first: FirstLook, ledger: Ledger) -> bool:
    return ledger.work is not None and first in ledger.work.accounts.disputes
