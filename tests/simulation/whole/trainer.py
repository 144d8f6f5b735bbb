"""A trainer without torch, in the process: toy arithmetic on real parameters, with the real codec.

A gradient is drawn from the peer, the round and a counter; the update is a real body, and the step adds
up signs at positions. Snapshots, momentum and their files are like a real trainer's: chunks in the blob
store, a file that is replaced atomically. What an audit sees follows from the samples on which an update
was really trained (`simulation.scores`).
"""

from __future__ import annotations

import dataclasses
import json
import random
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import trio
from distro_node.crypto.hashing import ContentId, content_id
from distro_node.crypto.identity import PeerId
from distro_node.node.storage.atomic_write import write_atomically
from distro_node.node.storage.blob_store import BlobStore
from distro_node.node.training.answers import Judgement
from distro_node.node.training.client import SnapshotResult, StepApplied, TrainedUpdate
from distro_node.node.training.errors import TrainerDied, TrainerFailed
from distro_node.node.training.frames import ExpectedUpdate
from distro_node.protocol.audit.sign_score import SignSums
from distro_node.protocol.codec.update import (
    DecodedUpdate,
    decode_update,
    encode_update,
    update_layout,
)
from distro_node.protocol.committee.aggregate import decode_aggregate, encode_aggregate, joined
from distro_node.protocol.committee.sections import sections
from distro_node.protocol.committee.sign_vote import encode_part, selected_count, step_of
from distro_node.protocol.wire.blobs import BlobList
from distro_node.protocol.wire.manifest import (
    DataSpec,
    Manifest,
    OptimizerSpec,
    ParameterSpec,
    ShardSpec,
    SwarmId,
    decode_manifest,
)
from distro_node.protocol.wire.messages import AuditScore
from simulation.audits import AUDIT_SEQUENCES
from simulation.freeloaders import WorkLies
from simulation.keys import identity
from simulation.scores import Scores
from simulation.toy import toy_manifest

SHAPE = (64, 64)
USUAL_SECONDS = 1.0
"""Seconds for a gradient, without a fault that makes it slower."""
_TOKENS = 100


def toy_swarm(**changes: Any) -> tuple[Manifest, list[bytes], int]:
    """Return a manifest, all blobs that it names, and the fingerprint of its initial parameters."""
    changes.setdefault("sequences", 16)
    samples, say = changes.pop("samples", 150), changes.pop("say", "equal")
    text = bytes(number % 251 for number in range(_TOKENS * samples + 1))
    shard = BlobList("shard", len(text), (content_id(text),)).encode()
    short = text[: _TOKENS * 4 + 1]
    heldout = BlobList("shard", len(short), (content_id(short),)).encode()
    tokenizer = b"{}"
    parameters = np.zeros(SHAPE, "<f4").tobytes()
    initial = BlobList("snapshot", len(parameters), (content_id(parameters),)).encode()
    manifest = toy_manifest(
        parameters=(ParameterSpec(name="weight", shape=SHAPE),),
        optimizer=OptimizerSpec(
            chunk=16, top_k=8, update_weight=say, outlier_filter=changes.get("committees") is None
        ),
        initial=content_id(initial),
        data=DataSpec(
            sequence_length=_TOKENS,
            token_bytes=1,
            vocabulary=256,
            shards=(ShardSpec(blob=content_id(shard), tokens=len(text)),),
            heldout=ShardSpec(blob=content_id(heldout), tokens=len(short)),
            tokenizer=content_id(tokenizer),
        ),
        founder=identity(0).peer,
        **changes,
    )
    blobs = [manifest.encode(), text, shard, short, heldout, tokenizer, parameters, initial]
    return manifest, blobs, fingerprint_of(parameters)


def fingerprint_of(parameters: bytes) -> int:
    """Return the fingerprint of the parameters in records."""
    return int.from_bytes(content_id(parameters)[:8], "big")


class Workshop:
    """The origin of one node's trainers: the state that outlives a trainer, and their speed."""

    def __init__(self, peer: PeerId, seed: int, scores: Scores | None = None) -> None:
        self.peer = peer
        self.scores = Scores() if scores is None else scores
        self.work: WorkLies | None = None
        """A liar's lies about work."""
        self.seconds = USUAL_SECONDS
        """Seconds for a gradient."""
        self.made: set[ContentId] = set()
        """All updates ever made here."""
        self.rubbish: set[ContentId] = set()
        """A liar's invalid updates."""
        self.lies = False
        self.twists = False
        """Whether its aggregate for a section is false."""
        self.deaths = 0
        """Number of next calls that kill the trainer."""
        self.chance = random.Random(f"trainer {seed} {peer.hex()}")
        self.trainer: Toy | None = None
        """The one that trains; another one may re-audit beside it."""

    @asynccontextmanager
    async def start(self, spec: Any) -> AsyncIterator[Any]:
        """Start a trainer. Replaces `open_trainer`."""
        await trio.sleep(0.2)
        manifest = decode_manifest(spec.manifest, SwarmId(content_id(spec.manifest)))
        trainer = Toy(self, manifest, BlobStore(spec.blobs))
        if spec.nice:
            # It re-audits, below the priority of the training.
            yield trainer
            return
        self.trainer = trainer
        try:
            yield trainer
        finally:
            self.trainer = None

    def note(self, round_: int, body: bytes, samples: Sequence[int]) -> None:
        """Note an update that was made for a share, and on what it was really trained."""
        update, trained = content_id(body), tuple(samples)
        self.made.add(update)
        if self.work is not None:
            trained = self.work.works(round_, trained)
        self.scores.made(self.peer, update, trained, cut=self.work is not None and self.work.cuts())

    def seen(self, body: bytes, sample: int, share: int) -> SignSums:
        """Return the score that an audit of this sample reports."""
        update = content_id(body)
        score = self.scores.seen(self.peer, update, sample, share)
        return _sums(score if self.work is None else self.work.judges(update, score))

    def beginning(self, body: bytes, sample: int, share: int) -> SignSums | None:
        """Return the score that it reports for the sample's beginning."""
        update = content_id(body)
        score = self.scores.beginning(self.peer, update, sample, share)
        said = score if self.work is None else self.work.halves(update, score)
        return None if said is None else _sums(said)


def _sums(score: AuditScore) -> SignSums:
    return SignSums(score.total, score.squares)


def twisted(manifest: Manifest, aggregate: bytes, chance: random.Random) -> bytes:
    """Return another aggregate: the one that all liars send, or one of its own."""
    layout = update_layout(manifest.parameters, manifest.optimizer.chunk, manifest.optimizer.top_k)
    said = decode_aggregate(layout, aggregate)
    if chance.random() < 0.2:
        # For a section of another committee.
        said = dataclasses.replace(said, section=(said.section + 1) % said.sections)
        own = sections(layout, said.sections)[said.section].layout.tensors
        first = np.arange(8, dtype=np.int32)
        places = [np.tile(first, (tensor.blocks, 1)) for tensor in own]
        signs = [np.ones((tensor.blocks, 8), np.int8) for tensor in own]
        said = dataclasses.replace(said, update=DecodedUpdate(places, signs))
    elif chance.random() < 0.5:
        said.update.signs[0][:] *= -1
    else:
        said.update.signs[0][0, chance.randrange(len(said.update.signs[0][0]))] *= -1
    return encode_aggregate(sections(layout, said.sections)[said.section], said)


class Toy:
    """A running trainer that replaces a `TrainerClient`."""

    device = "toy"
    memory_use = "none"
    sandbox = ()
    sequence_flops = 1_000_000
    matmul_flops = 1e9
    gpus = ()
    compiled = None

    def __init__(self, workshop: Workshop, manifest: Manifest, store: BlobStore) -> None:
        self._workshop = workshop
        self._store = store
        self._layout = update_layout(
            manifest.parameters, manifest.optimizer.chunk, manifest.optimizer.top_k
        )
        self._committees = manifest.committees
        self._parameters = np.zeros(manifest.elements, "<f4")
        self._usual = manifest.rounds.sequences / manifest.rounds.start_members
        self._count = 0
        # Gradients as numbers: their sum so far, the part in the momentum, the part under way by round,
        # and the part that has counted.
        self._computed = self._momentum = self._counted = 0
        self._aside: tuple[int, Sequence[int], float] | None = None
        # By round: the audited sample, and the size of its share.
        self._audited: dict[int, tuple[int, int]] = {}
        self.sent: dict[int, int] = {}

    @property
    def balanced(self) -> bool:
        """Whether every gradient is in the momentum, under way, or counted."""
        return self._computed == self._momentum + sum(self.sent.values()) + self._counted

    async def expect(self, update: ExpectedUpdate) -> None:
        """Do nothing: a toy's updates are decoded when they are applied."""

    async def load(self, chunks: Sequence[ContentId]) -> int:
        await self._take(0.05)
        self._aside = None
        found = [self._store.get(chunk) for chunk in chunks]
        data = b"".join(part for part in found if part is not None)
        if None in found or len(data) != self._parameters.nbytes:
            raise TrainerFailed("bad_snapshot", "the snapshot does not fit")
        self._parameters = np.frombuffer(data, "<f4").copy()
        # What is under way can no longer be refunded.
        self._computed -= sum(self.sent.values())
        self.sent = {}
        return fingerprint_of(data)

    async def train_in_background(self, round: int, samples: Sequence[int]) -> TrainedUpdate | None:
        await self._take(0.01)
        if self._aside is None or self._aside[:2] != (round, samples):
            self._aside = round, samples, trio.current_time() + self._seconds_for(samples)
        if trio.current_time() < self._aside[2]:
            return None
        self._aside = None
        return self._trained(round, samples)

    async def train(
        self, round: int, samples: Sequence[int], *, audits: bool = False
    ) -> TrainedUpdate:
        await self._take(self._seconds_for(samples))
        return self._trained(round, samples)

    async def audit(self, round: int, sample: int, share: int) -> float | None:
        seconds = self._seconds_for((sample,) * AUDIT_SEQUENCES)
        await self._take(seconds)
        self._audited = {old: seen for old, seen in self._audited.items() if old == round - 1}
        self._audited[round] = sample, share
        return seconds

    async def judge(self, round: int, body: bytes) -> Judgement | None:
        await self._take(0.02)
        found = self._audited.pop(round, None)
        if found is None:
            return None
        return Judgement(self._workshop.seen(body, *found), self._workshop.beginning(body, *found))

    async def run_reaudit(
        self, round: int, body: bytes, samples: Sequence[int], others: Sequence[int], share: int
    ) -> list[SignSums]:
        await self._take(self._seconds_for(samples))
        return [self._workshop.seen(body, sample, share) for sample in samples]

    def _seconds_for(self, samples: Sequence[int]) -> float:
        """Return the time for these samples: the workshop's time is for an initial member's share."""
        return self._workshop.seconds * len(samples) / self._usual

    def _trained(self, round: int, samples: Sequence[int]) -> TrainedUpdate:
        seconds = self._seconds_for(samples)
        self._count += 1
        name = content_id(
            b"%s %d %d %d" % (self._workshop.peer, round, self._momentum, self._count)
        )
        chance = np.random.default_rng(int.from_bytes(name[:8], "big"))
        body = self._update(chance) if self._committees is None else self._sign_vote(chance, round)
        if self._workshop.lies:
            body = bytes([body[0] ^ 1]) + body[1:]
            self._workshop.rubbish.add(content_id(body))
        gradient = name[8] + 1
        self._computed += gradient
        self._momentum += gradient + self.sent.pop(round, 0)
        self.sent[round], self._momentum = self._momentum, 0
        self._workshop.note(round, body, samples)
        if self._workshop.work is not None:
            seconds *= self._workshop.work.slowness()
        tokens = 100 * len(samples)
        return TrainedUpdate(
            body, 2.0 if tokens else 0.0, tokens, self._layout.coefficients, seconds, 0.0
        )

    def _update(self, chance: np.random.Generator) -> bytes:
        positions, signs = [], []
        for tensor in self._layout.tensors:
            shape = (tensor.blocks, tensor.elements)
            order = np.argsort(chance.random(shape), axis=1)[:, : tensor.top_k]
            positions.append(np.sort(order, axis=1).astype(np.int32))
            signs.append(np.where(chance.random(order.shape) < 0.5, -1, 1).astype(np.int8))
        return encode_update(self._layout, positions, signs)

    def _sign_vote(self, chance: np.random.Generator, round: int) -> bytes:
        assert self._committees is not None
        (whole,) = sections(self._layout, 1)
        shapes = (
            (tensor.blocks, selected_count(tensor, self._committees.rotation_steps, step_of(round)))
            for tensor in self._layout.tensors
        )
        return encode_part(
            whole, [np.where(chance.random(shape) < 0.5, -1, 1).astype(np.int8) for shape in shapes]
        )

    def _read(
        self, bodies: Sequence[bytes], update_weights: Sequence[int]
    ) -> list[tuple[DecodedUpdate, int]]:
        if self._committees is None:
            return [
                (decode_update(self._layout, b), c)
                for b, c in zip(bodies, update_weights, strict=True)
            ]
        aggregates = [decode_aggregate(self._layout, body) for body in bodies]
        return [(joined(self._layout, aggregates), 1)] if aggregates else []

    async def apply(
        self,
        round: int,
        updates: Sequence[bytes],
        learning_rate: float,
        own_counted: bool,
        update_weights: Sequence[int],
    ) -> StepApplied:
        await self._take(0.05)
        sign_sums = np.zeros(self._parameters.size, np.int32)
        for update, count in self._read(updates, update_weights):
            start = 0
            for tensor, places, signs in zip(
                self._layout.tensors, update.positions, update.signs, strict=True
            ):
                offsets = np.arange(tensor.blocks)[:, None] * tensor.elements
                np.add.at(sign_sums, (start + offsets + places).ravel(), signs.ravel() * count)
                start += tensor.blocks * tensor.elements
        self._parameters -= np.float32(learning_rate) * np.sign(sign_sums).astype(np.float32)
        for old in [number for number in self.sent if number <= round]:
            amount = self.sent.pop(old)
            if own_counted and old == round:
                self._counted += amount
            else:
                self._momentum += amount
        return StepApplied(fingerprint_of(self._parameters.tobytes()), 0.05, 0)

    async def snapshot(self) -> SnapshotResult:
        await self._take(0.05)
        data = self._parameters.tobytes()
        listed = BlobList("snapshot", len(data), (self._put(data),))
        return SnapshotResult(listed.encode(), len(data))

    async def evaluate(self, sequences: int) -> float:
        await self._take(0.1)
        return 2.0

    async def save_momentum(self, path: Path) -> None:
        await self._take(0.02)
        path.parent.mkdir(parents=True, exist_ok=True)
        state = [self._momentum, self._count, [*map(list, self.sent.items())]]
        try:
            write_atomically(path, json.dumps(state).encode())
        except OSError as error:
            raise TrainerFailed("disk_full", str(error)) from None

    async def load_momentum(self, path: Path) -> bool:
        await self._take(0.02)
        try:
            # A disk in memory.
            momentum, count, sent = json.loads(path.read_bytes())  # noqa: ASYNC240
        except (OSError, ValueError):
            return False
        # What was under way when it was saved may have counted since; a real trainer reports that, too.
        self._momentum, self._count = momentum + sum(amount for _, amount in sent), count
        self._computed = self._momentum + self._counted + sum(self.sent.values())
        return True

    async def memory(self) -> dict[str, int]:
        await trio.lowlevel.checkpoint()
        return {"process_bytes": 0, "device_bytes": 0}

    def _put(self, data: bytes) -> ContentId:
        try:
            return self._store.put(data)
        except OSError as error:
            raise TrainerFailed("disk_full", str(error)) from None

    async def _take(self, seconds: float) -> None:
        await trio.sleep(seconds)
        if self._workshop.deaths:
            self._workshop.deaths -= 1
            raise TrainerDied("the trainer was ended by signal 9")
