"""One machine, and the node processes that run on it one after the other.

A process is a real `SwarmSession`, from finding the swarm to the goodbye, on a simulated network and
disk and with a toy trainer. It can die at any moment: what its tasks still do while they are cancelled
reaches neither the others nor its disk.
"""

from __future__ import annotations

import errno
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import trio
from distro_node.crypto.hashing import ContentId, content_text
from distro_node.node.errors import ExitCode, UserError, leaves
from distro_node.node.network.cancel_scopes import open_scope
from distro_node.node.session.session import SwarmSession
from distro_node.node.settings.components import (
    ConsoleSettings,
    EvaluationSettings,
    PeeringSettings,
    ReachSettings,
)
from distro_node.node.settings.tree import DaemonSettings
from distro_node.node.storage.data_dir import DataDir
from distro_node.node.telemetry.telemetry import Telemetry
from distro_node.protocol.member.effects import Note
from distro_node.protocol.wire.swarm_id import Invite
from simulation.keys import identity
from simulation.whole import loop
from simulation.whole.disk import Disk
from simulation.whole.network import SimulatedNetwork, address_of
from simulation.whole.trainer import Workshop

if TYPE_CHECKING:
    from simulation.whole.swarm import WholeSwarm

# Python starts, imports its modules and opens the key.
START_SECONDS = 1.5
# The service manager restarts the node after it ended by itself.
_RETRY_SECONDS = 5.0


class Blobs:
    """A machine's durable updates."""

    def __init__(self, disk: Disk, made: set[ContentId]) -> None:
        self._disk = disk
        self._made = made

    def __contains__(self, update: ContentId) -> bool:
        return bool(self._disk.durable(self._disk.root / "blobs" / content_text(update)))


class Machine:
    """One peer's computer; to observers it is the node."""

    def __init__(self, swarm: WholeSwarm, index: int) -> None:
        self.swarm = swarm
        self.index = index
        self.identity = identity(index)
        self.peer = self.identity.peer
        self.storage = swarm.disks.add(index)
        self.workshop = Workshop(self.peer, swarm.seed, swarm.scores)
        self.workshop.seconds = swarm.training_seconds
        self.member: Any = None
        self.alive = False
        self.starting = False
        """Whether a process of it is about to begin."""
        self.started_at = 0.0
        self.starts = 0
        self.comes_back = False
        """Whether the service manager restarts the node, since it ended by itself."""
        self.notes: list[Note] = []
        self.settings = loop.Machine(work=self._job)
        self.write_seconds = 0.001
        self.network: SimulatedNetwork | None = None
        self.session: SwarmSession | None = None
        self._scope: Any = None

    # The interface for the watch (`invariants`)

    @property
    def now(self) -> float:
        return trio.current_time()

    @property
    def disk(self) -> Machine:
        return self

    @property
    def made(self) -> set[ContentId]:
        return self.workshop.made

    @property
    def blobs(self) -> Blobs:
        return Blobs(self.storage, self.workshop.made)

    @property
    def trainer(self) -> Machine:
        return self

    @property
    def balanced(self) -> bool:
        trainer = self.workshop.trainer
        return trainer is None or trainer.balanced

    @property
    def sent(self) -> Mapping[int, int]:
        trainer = self.workshop.trainer
        return {} if trainer is None else trainer.sent

    @property
    def swarm_folder(self) -> Path:
        return DataDir(self.storage.root).swarm(self.swarm.manifest.swarm).root

    # Life

    async def live(self) -> None:
        """Run one process until it ends, and another one if it ended because its disk was full."""
        while True:
            self.starting = True
            await trio.sleep(START_SECONDS)
            self.comes_back = await self._run()
            if not self.comes_back:
                return
            await trio.sleep(_RETRY_SECONDS)

    async def _run(self) -> bool:
        """Run one process. Return whether it is to be restarted."""
        self.storage.revive()
        self.alive, self.starting, self.member, self.notes = True, False, None, []
        self.started_at = self.now
        self.starts += 1
        loop.use(self.settings)
        swarm = self.swarm
        swarm.note(self, "starts")
        again = False
        with open_scope() as self._scope:
            try:
                async with trio.open_nursery() as nursery:
                    network = self.network = swarm.make_network(self)
                    network.open(nursery)
                    try:
                        await self._run_session(network)
                    finally:
                        network.close()
                    nursery.cancel_scope.cancel()
            except BaseException as error:
                if self.alive:
                    again = self._judge(error)
                elif not _is_ours(error):
                    raise
        if self.alive:
            self.swarm.note(self, "ends")
            self.die(dark=False, orderly=True)
        return again

    async def _run_session(self, network: SimulatedNetwork) -> None:
        data = DataDir(self.storage.root)
        data.create()
        self.swarm.fill(self, data)
        settings = DaemonSettings(
            invite=Invite(
                swarm=self.swarm.manifest.swarm,
                bootstrap=tuple(
                    address_of(other, identity(other).peer)
                    for other in self.swarm.bootstrap
                    if other != self.index
                ),
                at=self.swarm.checkpoint(self),
            ),
            data_dir=data.root,
            peering=PeeringSettings(wait=True, mdns=False),
            reach=ReachSettings(upnp=False),
            metrics_address=None,
            console=ConsoleSettings(screen=False),
            evaluation=EvaluationSettings(evaluate_every=10),
        )
        telemetry = Telemetry(self.peer)
        world: Any = network
        self.session = SwarmSession(
            settings, data, self.identity, world, telemetry, self.workshop.start
        )
        await self.session.run(b"")

    def _judge(self, error: BaseException) -> bool:
        """Whether a process ended with an error that is shown to users, who can fix it."""
        found = list(leaves(error))
        if all(isinstance(leaf, trio.Cancelled) for leaf in found):
            raise error
        full = any(
            (isinstance(leaf, OSError) and leaf.errno == errno.ENOSPC)
            or (isinstance(leaf, UserError) and leaf.code is ExitCode.DISK_FULL)
            for leaf in found
        )
        if self.index in self.swarm.watch.liars:
            # Usually expelled; the fate of liars does not matter.
            self.swarm.note(self, "gives up")
            return False
        if full and self.storage.refused:
            self.swarm.note(self, "disk full")
            return True
        self.swarm.failed(self, error)
        return False

    def die(self, *, dark: bool, orderly: bool = False) -> None:
        """End the process at once."""
        if not self.alive:
            return
        self.swarm.dies(self)
        self.alive = False
        if not orderly:
            self.swarm.note(self, "dies", "dark" if dark else "killed")
        assert self.network is not None
        assert self._scope is not None
        self.network.close(dark=dark)
        self.storage.die(dark=dark)
        self._scope.cancel()

    def _job(self) -> float:
        return self.write_seconds * self.swarm.chance.uniform(0.5, 1.5)


def _is_ours(error: BaseException) -> bool:
    """Whether all exceptions of a dying process come from its own end."""
    return all(isinstance(leaf, trio.Cancelled) for leaf in leaves(error))
