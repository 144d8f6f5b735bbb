"""Second looks at what others found low: in a trainer process of its own, out of the way of all else.

It makes the parameters again that the update was computed on, from a snapshot and the updates since, and
computes the share's samples on them. It takes the processor when nobody else wants it, half of the
memory that is free, and the time while the dispute lasts. Where anything is missing there is no second
look: others are called as well.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Protocol

import trio

from ...crypto.identity import PeerId
from ...protocol.chain.ledger import Ledger
from ...protocol.checks.accounts import FirstLook
from ...protocol.checks.agreement import Agreement
from ...protocol.member.effects import LookAgain
from ...protocol.member.inputs import LookedAgain
from ...protocol.wire.manifest import Manifest
from ...protocol.wire.messages import Score
from ..storage.blob_store import BlobStore, DiskFull
from ..storage.swarm_store import LocalSnapshot
from .client import TrainerClient, TrainerDied, TrainerFailed, TrainerSpec, open_trainer
from .main_memory import free_main_memory
from .replay import NotKept, Past, replay

_log = logging.getLogger(__name__)

# The newest disputes last longest, so they come first; of more than this the oldest are let go.
_MAX_WAITING = 4
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
        self._waiting: deque[LookAgain] = deque(maxlen=_MAX_WAITING)
        self._wake = trio.Event()

    def put(self, effect: LookAgain) -> None:
        """Queue one; the oldest of too many goes."""
        if len(self._waiting) == _MAX_WAITING:
            round_ = self._waiting[0].first.round
            _log.info("no second look at round %d: there are newer ones", round_)
        self._waiting.append(effect)
        self._wake.set()

    async def run(self, hears: Hears) -> None:
        """Look, for ever."""
        while True:
            while not self._waiting:
                self._wake = trio.Event()
                await self._wake.wait()
            effect = self._waiting.pop()
            if not _is_open(effect.first, hears.ledger()):
                continue
            scores = await self._while_open(effect, hears)
            if scores is not None:
                hears.looked(LookedAgain(effect.first, scores))

    async def _while_open(self, effect: LookAgain, hears: Hears) -> tuple[Score, ...] | None:
        """Look, unless the dispute is over before."""
        found: tuple[Score, ...] | None = None
        async with trio.open_nursery() as nursery:

            async def look() -> None:
                nonlocal found
                found = await self._look_or_say_why_not(effect, hears.ledger())
                nursery.cancel_scope.cancel()

            nursery.start_soon(look)
            with trio.move_on_after(_LONGEST_SECONDS):
                while _is_open(effect.first, hears.ledger()):  # noqa: ASYNC110 - ends by itself
                    await trio.sleep(_WATCH_SECONDS)
            _log.info("no second look at round %d: it was not done in time", effect.first.round)
            nursery.cancel_scope.cancel()
        return found

    async def _look_or_say_why_not(
        self, effect: LookAgain, ledger: Ledger
    ) -> tuple[Score, ...] | None:
        round_ = effect.first.round
        try:
            # Nothing is added to a copy while it is read.
            known = ledger.truncated(len(ledger))
            past = Past(manifest=self._manifest, ledger=known, store=self._store)
            found = await self._look(effect, past)
        except (NotKept, DiskFull, TrainerFailed, TrainerDied) as problem:
            _log.info("no second look at round %d: %s", round_, problem)
            return None
        if not all(each.squares for each in found):
            _log.info("no second look at round %d: nothing is learned from some of it", round_)
            return None
        said = [f"{each.score:.1f}" for each in found]
        _log.info("looked again at round %d: %s", round_, ", ".join(said))
        return tuple(Score(each.total, each.squares) for each in found)

    async def _look(self, effect: LookAgain, past: Past) -> list[Agreement]:
        round_ = effect.first.round
        before = round_ - 1 - self._manifest.rounds.overlap
        states = await self._states.at_hand()
        start = await trio.to_thread.run_sync(past.start_for, before, states)
        if start is None:
            raise NotKept("the parameters of then cannot be made again")
        body = await trio.to_thread.run_sync(self._store.get, effect.update)
        if body is None:
            raise NotKept("the update is not here any more")
        others = dealt_to_others(past.ledger, round_, effect.first.peer, self._me)[:_OTHERS]
        if not others:
            raise NotKept("there is nothing to hold it against")
        await self._bring((*effect.samples, *others))
        async with self._start(self._aside()) as trainer:
            await replay(trainer, past, start, before)
            # Afterwards: the replay would change it.
            await trainer.load_momentum(self._momentum)
            return await trainer.look_again(round_, body, effect.samples, others, effect.share)

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
