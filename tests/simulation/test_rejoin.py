"""Whole nodes that come back: within a minute and what their line takes, whatever is lost meanwhile.

Snapshots live ten to twenty seconds there (every five rounds of two seconds), so most of what a member
looks for may be gone before it is asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest
import trio
from distro_node.crypto.hashing import content_text
from distro_node.crypto.identity import PeerId
from distro_node.node.network.exchange.blobs import PROTOCOL
from distro_node.node.network.requests import Handler
from distro_node.protocol.wire.messages import UpdateEntry
from simulation.faults import Schedule
from simulation.whole import loop, trainer
from simulation.whole.faults import Faults
from simulation.whole.network import SimulatedNetwork
from simulation.whole.process import Machine
from simulation.whole.scenario import memory_folder
from simulation.whole.swarm import WholeSwarm

# Private here: `_telemetry`: what the status says.
# Private here: `_check_vote`: the disk is emptied behind the member that votes.

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

INTERVAL, MEMBERS, AWAY = 5, 5, 4
BACK_SECONDS = 60.0


class MuteNetwork(SimulatedNetwork):
    """The network of a node that takes questions for blobs and, once it is `mute`, answers none."""

    mute = False

    def serve(self, protocol: str, handler: Handler, **limits: object) -> None:
        """As `SimulatedNetwork.serve`."""

        async def answer(peer: PeerId, request: bytes) -> bytes:
            if protocol == PROTOCOL and self.mute:
                await trio.sleep_forever()
            return await handler(peer, request)  # type: ignore[return-value]  # as it is

        super().serve(protocol, answer, **limits)


@dataclass
class Run:
    """A running swarm whose last member is observed."""

    swarm: WholeSwarm
    faults: Faults
    said: set[str]
    """What the status of that member said to be under way."""

    @property
    def away(self) -> Machine:
        return self.swarm.machines[AWAY]

    @property
    def others(self) -> list[Machine]:
        return [self.swarm.machines[index] for index in range(AWAY)]

    def updates(self, first: int, end: int) -> Iterator[UpdateEntry]:
        """Those that count in these rounds."""
        ledger = self.others[0].member.view.ledger
        return (entry for round_ in range(first, end) for entry in ledger[round_].record.updates)

    async def until(self, condition: Callable[[], object], seconds: float = 300.0) -> None:
        with trio.move_on_after(seconds) as scope:
            while not condition():
                telemetry = self.away.session and self.away.session._telemetry
                if telemetry and telemetry.progress:
                    self.said.add(telemetry.progress.what)
                await trio.sleep(0.1)
        assert not scope.cancelled_caught, (self.swarm.describe(), self.said)

    def is_back(self) -> bool:
        member = self.away.member
        return (
            self.away.alive and member is not None and member.view.at_tip and member.view.is_member
        )

    async def leave(self, rounds: int) -> int:
        """Kill the last member and let the others go on for so many rounds; the round it was at."""
        self.away.die(dark=False)
        left: int = self.away.member.view.applied_round
        self.away.member = None
        await self.until(lambda: all(m.member.view.round >= left + rounds for m in self.others))
        return left


def lose(machines: list[Machine], entries: Iterator[UpdateEntry]) -> None:
    """Take updates from disks."""
    for entry in entries:
        for machine in machines:
            file = machine.storage.root / "blobs" / content_text(entry.update)
            file.unlink(missing_ok=True)


def play(scene: Callable[[Run], object], monkeypatch: pytest.MonkeyPatch, **optimizer: int) -> Run:
    """Play a scene in a swarm whose members have all trained some rounds."""
    # Larger than a toy's, so that it takes a slow line some time.
    monkeypatch.setattr(trainer, "SHAPE", (256, 256))
    found: list[Run] = []

    async def main() -> None:
        with memory_folder() as base:
            swarm = WholeSwarm(
                1,
                base,
                start_members=MEMBERS,
                snapshot_interval=INTERVAL,
                lease_min_seconds=6.0,
                collect_max_seconds=20.0,
                min_seconds=1.0,
            )

            async def run(nursery: trio.Nursery) -> None:
                faults = Faults(swarm, Schedule((), cut_off=True), nursery)
                for index in range(MEMBERS):
                    swarm.network_of[index] = MuteNetwork
                    faults.start(index, 0.2 * index)
                one = Run(swarm, faults, set())
                found.append(one)
                await trio.sleep(10.0)
                await one.until(
                    lambda: one.is_back() and one.away.member.view.round >= INTERVAL + 3
                )
                await scene(one)  # type: ignore[misc]  # it is one of those below

            await swarm.run(run)

    loop.run(1, main)
    return found[0]


@pytest.mark.parametrize(
    ("mute", "line"),
    [*(pytest.param(mute, None, marks=pytest.mark.soak) for mute in (0, 2)), (2, 50_000)],
)
def test_a_member_whose_updates_nobody_has_takes_a_state_at_once(
    monkeypatch: pytest.MonkeyPatch, mute: int, line: int | None
) -> None:
    """Also where two of four take its questions and answer none, and on a slow line."""
    took: list[float] = []

    async def scene(run: Run) -> None:
        left = await run.leave(2 * INTERVAL + 2)
        lose(run.others, run.updates(left, left + INTERVAL))
        for machine in run.others[1 : 1 + mute]:
            network = machine.network
            assert isinstance(network, MuteNetwork)
            network.mute = True
        if line is not None:
            run.swarm.wires.line(AWAY).down = line
        began = trio.current_time()
        run.faults.start(AWAY)
        await run.until(run.is_back)
        took.append(trio.current_time() - began)

    run = play(scene, monkeypatch)
    state = 4 * 256 * 256
    assert took[0] <= BACK_SECONDS + (0.0 if line is None else state / line)
    assert any(what.startswith("the state of round ") for what in run.said)
    told = [event.text for event in run.away.session._telemetry._events if event.kind == "resync"]  # type: ignore[union-attr]
    assert any("no connected peer has the updates of round" in text for text in told)


@pytest.mark.parametrize("everywhere", [False, True])
def test_a_member_whose_disk_loses_what_it_holds_is_back_at_once(
    monkeypatch: pytest.MonkeyPatch, everywhere: bool
) -> None:
    """It went on taking the updates for held: its trainer ended over them, was started again, came to
    the same round and ended because of them again, endlessly."""
    took: list[float] = []

    async def scene(run: Run) -> None:
        # Two rounds after a snapshot, so that there is something to replay before it.
        await run.until(lambda: run.away.member.view.round % INTERVAL == 3)
        round_ = run.away.member.view.round
        held = run.away.member.parts.held_updates.held
        await run.until(lambda: len(held) == MEMBERS)
        # They check that what a member applies, and what it votes for, is on its disk.
        monkeypatch.setattr(run.swarm.watch, "applying", lambda *_: None)
        monkeypatch.setattr(run.swarm.watch, "_check_vote", lambda *_: None)
        for update in set(held):
            (run.away.storage.root / "blobs" / content_text(update)).unlink(missing_ok=True)
        began = trio.current_time()
        await run.until(lambda: len(run.others[0].member.view.ledger) > round_)
        if everywhere:
            await run.until(lambda: all(m.member.view.applied_round >= round_ for m in run.others))
            lose(run.others, run.updates(round_, round_ + 1))
        await run.until(lambda: run.is_back() and run.away.member.view.applied_round > round_)
        took.append(trio.current_time() - began)

    play(scene, monkeypatch)
    assert took[0] <= BACK_SECONDS
