"""How long the node's event loop is blocked: a round of 32 members on one node, and the demo.

    python benchmarks/stalls.py [--members N] [--bytes N] [--rounds N] [--slow-disk SECONDS]
                                [--demo] [--json FILE]

The node's own runner, downloads, trainer supervisor and request handlers run on a real disk; network
and trainer are simulated with lists. Each stage prints the longest step of any task, in wall-clock
and CPU time. `--slow-disk` adds that time to each fsync, as on a rotating disk. `--demo` runs the
demo instead and reads its nodes' logs.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import trio

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

from distro_node.crypto.hashing import ContentId, content_id
from distro_node.crypto.identity import PeerId
from distro_node.node.content.snapshots import Snapshots
from distro_node.node.network.exchange.blobs import FOUND, BlobFetcher
from distro_node.node.network.traffic import Traffic
from distro_node.node.session.effect_runner import Runner
from distro_node.node.session.sync import catch_up
from distro_node.node.session.update_exchange import RECENT_UPDATES
from distro_node.node.storage.blob_store import BlobStore
from distro_node.node.storage.data_dir import SwarmDir
from distro_node.node.storage.swarm_store import LocalSnapshot, SwarmStore
from distro_node.node.telemetry.loop_lag import StallMeter, freeze_permanent_objects
from distro_node.node.telemetry.telemetry import Telemetry
from distro_node.node.training.answers import SnapshotResult, StepApplied
from distro_node.node.training.frames import ExpectedUpdate, TrainedUpdate
from distro_node.node.training.supervisor import TrainerSupervisor
from distro_node.node.training.trainer_spec import TrainerSpec
from distro_node.protocol.chain.ledger import Ledger
from distro_node.protocol.chain.sync import MAX_ENTRIES, SYNC_PROTOCOL, SyncRequest
from distro_node.protocol.codec.update import encode_update, manifest_layout
from distro_node.protocol.member.effects import FetchUpdate, Publish
from distro_node.protocol.member.inputs import EntryReceived, UpdateHeld
from distro_node.protocol.util.bounded_dict import BoundedTable
from distro_node.protocol.wire.blobs import CHUNK_BYTES, BlobList
from distro_node.protocol.wire.encoding import encode
from distro_node.protocol.wire.manifest import ParameterSpec
from distro_node.protocol.wire.messages import SnapshotEntry
from simulation.chain import FINGERPRINT, Chain
from simulation.swarm import identity

SNAPSHOT_INTERVAL = 10
_ROW = 1 << 16
_WORDS = 100
_HELD = re.compile(r"task (.+) held the event loop for (\d+) ms, (\d+) ms of them computing")


@dataclass
class Stage:
    """The steps that were noted during a stage."""

    name: str
    seconds: float = 0.0
    steps: list[tuple[float, float, str]] = field(default_factory=list)
    """Wall-clock seconds, CPU seconds and the task."""

    def note(self, text: str) -> None:
        """Take in a line of a node's log."""
        if match := _HELD.search(text):
            name = match[1].rpartition("distro_node.")[2]
            self.steps.append((int(match[2]) / 1e3, int(match[3]) / 1e3, name))

    def result(self) -> dict[str, Any]:
        longest = max(self.steps, default=(0.0, 0.0, ""))
        return {
            "stage": self.name,
            "seconds": round(self.seconds, 3),
            "over_10_ms": len(self.steps),
            "over_20_ms": sum(step[0] > 0.02 for step in self.steps),
            "longest_ms": round(1e3 * longest[0], 1),
            "longest_processor_ms": round(1e3 * max((s[1] for s in self.steps), default=0.0), 1),
            "computing_over_20_ms": sum(step[1] > 0.02 for step in self.steps),
            "task": longest[2],
            "computing": max(((s[1], s[2]) for s in self.steps), default=(0.0, ""))[1],
        }


class Meter(logging.Handler):
    """Sorts the log of the node's own meter by stage."""

    def __init__(self) -> None:
        super().__init__()
        self.stage = Stage("")

    def emit(self, record: logging.LogRecord) -> None:
        """Note a log record."""
        self.stage.note(record.getMessage())


class World:
    """One member of a swarm, with lists in place of the others."""

    def __init__(self, root: Path, members: int, size: int, rounds: int) -> None:
        # At the manifest's defaults a coefficient takes about 11 bits, and 8 of 4096 elements are sent.
        rows = max(1, round(size * 8 / 11 / 8 * 4096 / _ROW))
        rows += -rows % 64
        self.chain = Chain(
            members,
            snapshot_interval=SNAPSHOT_INTERVAL,
            lease_min_seconds=600.0,
            parameters=(ParameterSpec(name="weight", shape=(rows, _ROW)),),
        )
        self.store = BlobStore(root / "blobs")
        self.chain.snapshot = lambda round_: SnapshotEntry(
            round_, content_id(self.state(round_).encode()), 4 * self.chain.manifest.elements
        )
        self.me = identity(0)
        self.members = members
        self.traffic = Traffic()
        self.blobs: dict[ContentId, bytes] = {}
        self.served: dict[str, Callable[..., Any]] = {}
        self.swarm_store = SwarmStore(SwarmDir(root / "swarm"), self.chain.manifest)
        self.telemetry = Telemetry(self.me.peer)
        self.to_runner, self._gossip = trio.open_memory_channel[tuple[PeerId, bytes]](1000)
        self.to_trainer, self._made = trio.open_memory_channel[bytes](10)
        self.applied: list[int] = []
        self.nursery: Any = None
        self.device = "none"
        self.memory_use, self.gpus, self.compiled, self.sandbox = "none", (), None, ()
        self.sequence_flops, self.reached_flops = None, None
        self._root = root
        for _ in range(rounds):
            self.chain.grow()

    async def prepare(self) -> None:
        for round_ in range(len(self.chain.ledger)):
            self.swarm_store.keep(self.chain.ledger.raw(round_))
        self.swarm_store.write()
        world: Any = self
        fetcher = BlobFetcher(world, self.store)
        self.runner = Runner(
            manifest=self.chain.manifest,
            identity=self.me,
            network=world,
            store=self.store,
            fetcher=fetcher,
            relays=world,
            swarm_store=self.swarm_store,
            ledger=self.swarm_store.load_ledger(),
            telemetry=self.telemetry,
            start_number=1,
            ticket=b"",
            update_ids=BoundedTable(RECENT_UPDATES),
        )
        state = self.state(self.chain.round - 1)
        newest = LocalSnapshot(
            self.chain.round - 1, self.store.put(state.encode()).hex(), state.size
        )
        self.swarm_store.keep_snapshots([newest])
        downloads: Any = None
        self.snapshots = Snapshots(
            manifest=self.chain.manifest,
            store=self.store,
            swarm_store=self.swarm_store,
            downloads=downloads,
            ledger=lambda: self.runner.member.ledger,
        )
        self.supervisor = TrainerSupervisor(
            manifest=self.chain.manifest,
            spec=TrainerSpec(manifest=self.chain.manifest.encode(), blobs=self.store.root),
            store=self.store,
            snapshots=self.snapshots,
            momentum=self._root / "momentum",
            telemetry=self.telemetry,
            evaluate_every=1000,
            start=self.trainer,
        )

    @asynccontextmanager
    async def trainer(self, _: TrainerSpec) -> AsyncIterator[Any]:
        """Take the place of the trainer process."""
        yield self

    def bodies(self) -> list[bytes]:
        """Return a valid update for each member."""
        layout = manifest_layout(self.chain.manifest)
        source = np.random.default_rng(1)
        made = []
        for _ in range(self.members):
            positions, signs = [], []
            for tensor in layout.tensors:
                shape = (tensor.blocks, tensor.top_k)
                step = 4096 // tensor.top_k
                offsets = source.integers(0, step, size=shape)
                places = (np.arange(tensor.top_k) * step + offsets).astype(np.int32)
                positions.append(places)
                signs.append(source.choice(np.array([-1, 1], dtype=np.int8), size=shape))
            made.append(encode_update(layout, positions, signs))
        return made

    # In place of the network and of the relays

    def spawn(self, function: Callable[..., Any], *arguments: Any) -> None:
        self.nursery.start_soon(function, *arguments)

    def serve(self, protocol: str, handler: Callable[..., Any], **_: object) -> None:
        self.served[protocol] = handler

    def connected(self) -> frozenset[PeerId]:
        return frozenset(identity(number).peer for number in range(1, self.members))

    @property
    def peer(self) -> PeerId:
        return self.me.peer

    def penalise(self, peer: PeerId, reason: str) -> None:
        raise RuntimeError(f"penalised for {reason}")

    def peer_events(self) -> trio.MemoryReceiveChannel[Any]:
        return trio.open_memory_channel[Any](0)[1]

    async def subscribe(self, topic: str, validate: object) -> Any:
        return self._gossip

    async def publish(self, topic: str, data: bytes) -> None:
        await trio.lowlevel.checkpoint()

    async def request(self, peer: PeerId, protocol: str, data: bytes, **_: object) -> bytes:
        await trio.sleep(0.01)
        if protocol == SYNC_PROTOCOL:
            # It sends requests to itself.
            return await self.served[protocol](peer, data)
        return FOUND + self.blobs[ContentId(data)]

    async def offer(self, update: object) -> None:
        pass

    # In place of the trainer

    async def expect(self, update: ExpectedUpdate) -> None:
        await trio.lowlevel.checkpoint()

    async def load(self, chunks: object) -> int:
        return FINGERPRINT

    async def load_momentum(self, path: object) -> bool:
        return False

    async def train(self, round: int, samples: object, *, looks: bool) -> TrainedUpdate:
        body = await self._made.receive()
        return TrainedUpdate(
            body, loss=2.5, tokens=500, coefficients=1, compute_seconds=0.0, encode_seconds=0.0
        )

    async def apply(
        self, round: int, updates: list[bytes], rate: float, own: bool, counts: object
    ) -> StepApplied:
        self.round = round
        self.applied.append(len(updates))
        await trio.lowlevel.checkpoint()
        return StepApplied(fingerprint=FINGERPRINT, seconds=0.0, left_out=0)

    async def snapshot(self) -> SnapshotResult:
        # A trainer would do this in its own process.
        blobs = await trio.to_thread.run_sync(self.state, self.round)
        data = await trio.to_thread.run_sync(blobs.encode)
        return SnapshotResult(blob_list=data, size=blobs.size)

    def state(self, round_: int) -> BlobList:
        """Return the chunk list of the parameters after a round; its chunks are stored."""
        size = 4 * self.chain.manifest.elements
        chunk = self.store.put(b"state %d" % round_)
        return BlobList("snapshot", size, (chunk,) * -(-size // CHUNK_BYTES))

    async def save_momentum(self, path: object) -> None:
        pass

    async def memory(self) -> dict[str, int]:
        return {"process_bytes": 0, "device_bytes": 0}


async def run_round(options: argparse.Namespace, root: Path) -> list[dict[str, Any]]:
    """Run all stages, one after the other, and print a line for each."""
    world = World(root, options.members, options.bytes, options.rounds)
    bodies = world.bodies()
    print(
        f"{options.members} updates of {len(bodies[0])} bytes, a chain of {world.chain.round} rounds"
    )
    await world.prepare()
    meter = Meter()
    log = logging.getLogger(StallMeter.__module__)
    log.setLevel(logging.DEBUG)
    log.addHandler(meter)
    log.propagate = False
    results: list[dict[str, Any]] = []

    @asynccontextmanager
    async def stage(name: str) -> AsyncIterator[None]:
        meter.stage = Stage(name)
        began = trio.current_time()
        yield
        # What it has begun ends in the same stage.
        await trio.sleep(0.5)
        meter.stage.seconds = trio.current_time() - began - 0.5
        results.append(meter.stage.result())
        print(json.dumps(results[-1]), flush=True)

    # As the command does.
    freeze_permanent_objects()
    runner, chain = world.runner, world.chain

    if options.slow_disk:
        quick = os.fsync

        def slow(descriptor: int) -> None:
            quick(descriptor)
            time.sleep(options.slow_disk)

        os.fsync = slow
    async with trio.open_nursery() as nursery:
        world.nursery = nursery
        trio.lowlevel.add_instrument(StallMeter(lambda _: None))
        async with stage("start"):
            nursery.start_soon(runner.run, world.supervisor)
            await until(lambda: runner.member.at_tip)
        entries = []
        async with stage("updates are announced, fetched, checked and kept"):
            for number in range(1, world.members):
                body = bodies[number]
                update = content_id(body)
                world.blobs[update] = body
                said = chain.announcement(number, update=update, size=len(body))
                entries.append(chain.update(number, update=update, size=len(body)))
                words = chain.envelope(number, "announcement", said)
                await world.to_runner.send((identity(number).peer, words.encode()))
            kept = runner._updates._kept
            await until(lambda: len(kept.of(chain.round)) == world.members - 1)
        async with stage("our own update is put on the disk"):
            own = content_id(bodies[0])
            await world.to_trainer.send(bodies[0])
            await until(lambda: own in kept.of(chain.round))
            entries.append(chain.update(0, update=own, size=len(bodies[0])))
        async with stage(f"{_WORDS} own words, each on the disk before it is sent"):
            for slot in range(1, _WORDS + 1):
                ballot = chain.ballot(chain.ledger.head, slot=slot)
                words = chain.envelope(0, "vote", ballot)
                runner._perform([Publish(words, durable=True)])
                await trio.sleep(0.005)
            await until(lambda: not runner._outgoing.statistics().current_buffer_used)
        async with stage("the round is decided, its updates are read and handed to the trainer"):
            decided = chain.grow(updates=entries)
            runner._dispatch(EntryReceived(decided))
            await until(lambda: len(world.applied) == 1)

        async def held(wanted: FetchUpdate) -> None:
            runner._updates.keep(wanted.round, wanted.update)
            runner._dispatch(UpdateHeld(wanted.update))

        # Downloads had their own stage.
        runner._updates.fetch = held
        async with stage("rounds up to a snapshot, and the sweep after it"):
            while len(world.applied) < 2 * SNAPSHOT_INTERVAL + 2:
                before = len(world.applied)
                own, *others = [os.urandom(1000) for _ in range(world.members)]
                await world.to_trainer.send(own)
                # Writing takes its own time.
                put = await trio.to_thread.run_sync(lambda o=others: [*map(world.store.put, o)])
                fresh = [content_id(own), *put]
                await until(lambda f=fresh: f[0] in kept.of(chain.round))
                updates = [
                    chain.update(number, update=update, size=1000)
                    for number, update in enumerate(fresh)
                ]
                decided = chain.grow(updates=updates)
                runner._dispatch(EntryReceived(decided))
                await until(lambda before=before: len(world.applied) > before)
        async with stage("an answer of all that fits to who knows nothing"):
            asked = encode(SyncRequest(chain.manifest.swarm, 0, (), MAX_ENTRIES))
            answer = await world.served[SYNC_PROTOCOL](identity(1).peer, asked)
        print(f"the answer has {len(answer)} bytes")
        async with stage("who knows nothing takes such answers in"):
            ledger = Ledger(chain.manifest)
            newcomer = SwarmStore(SwarmDir(root / "newcomer"), chain.manifest)
            await catch_up(
                world,  # type: ignore[arg-type]  # in the place of the network
                chain.manifest,
                ledger,
                keep=newcomer.keep,
                keep_instead=newcomer.keep_instead,
                written=newcomer.written,
                report=lambda done, total: None,
            )
        print(f"it took in {len(ledger)} rounds")
        nursery.cancel_scope.cancel()
    return results


async def until(condition: Callable[[], object]) -> None:
    with trio.fail_after(600):
        while not condition():  # noqa: ASYNC110 - whatever ends the wait has no event
            await trio.sleep(0.005)


def run_demo() -> list[dict[str, Any]]:
    """Run the demo and return the stalls in its nodes' logs."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        (root / "site").mkdir()
        # The rest of the log keeps its level: debugging libp2p would block the loop by itself.
        (root / "site" / "sitecustomize.py").write_text(
            f"import logging\nlogging.getLogger({StallMeter.__module__!r}).setLevel(logging.DEBUG)\n"
        )
        program = (sys.executable, "-m", "distro_node.node", "demo", "--out", str(root / "out"))
        subprocess.run(
            (*program, "--rounds", "15", "--nodes", "3"),
            env=os.environ | {"PYTHONPATH": f"{root / 'site'}:{os.environ.get('PYTHONPATH', '')}"},
            stdout=subprocess.DEVNULL,
            check=True,
        )
        results = []
        for path in sorted((root / "out" / "logs").glob("node*.log")):
            stage = Stage(f"demo: {path.stem}")
            for line in path.read_text().splitlines():
                stage.note(line)
            result = stage.result()
            del result["seconds"]
            results.append(result | {"longest": sorted(stage.steps, reverse=True)[:8]})
            print(json.dumps(results[-1]))
        return results


def main() -> None:
    """Run the requested measurement."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--members", type=int, default=32)
    parser.add_argument("--bytes", type=int, default=2_800_000)
    parser.add_argument("--rounds", type=int, default=300)
    parser.add_argument("--slow-disk", type=float, default=0.0, metavar="SECONDS")
    parser.add_argument("--demo", action="store_true")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    logging.basicConfig(level=logging.WARNING)
    if options.demo:
        result = {"demo": run_demo()}
    else:
        with tempfile.TemporaryDirectory() as folder:
            result = {
                "members": options.members,
                "slow_disk_seconds": options.slow_disk,
                "stages": trio.run(run_round, options, Path(folder)),
            }
    result |= {"processors": os.cpu_count(), "load": os.getloadavg()[0]}
    if options.json:
        options.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
