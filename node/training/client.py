"""The node process's side of the trainer: how it is started, and a method for each request.

Nothing here imports torch. Requests go through a `TrainerPipe`: one at a time, and one that is cancelled
leaves the client usable.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import trio

from ...crypto.hashing import ContentId
from ...protocol.audit.sign_score import SignSums
from ...protocol.wire.structure import to_plain
from ..settings.setting import to_plain_settings
from ..settings.values import is_device_list
from .answers import ExportedParameters, Judgement, SnapshotResult, StepApplied
from .environment import drop_if_large, environment
from .errors import TrainerDied, TrainerFailed
from .frames import (
    EXPECT,
    STOP,
    ExpectedUpdate,
    StopSteps,
    TrainedUpdate,
)
from .gguf_formats import GgufType
from .graphics_cards import make_device_node
from .text_request import TextRequest, TextStart
from .trainer_pipe import TrainerPipe, open_pipe
from .trainer_spec import PATIENCE_SECONDS, TrainerSpec

__all__ = [
    "PATIENCE_SECONDS",
    "ExportedParameters",
    "SnapshotResult",
    "StepApplied",
    "TrainedUpdate",
    "TrainerClient",
    "TrainerDied",
    "TrainerFailed",
    "TrainerSpec",
    "open_trainer",
]


@asynccontextmanager
async def open_trainer(spec: TrainerSpec) -> AsyncIterator[TrainerClient]:
    """Start a trainer process and wait until its model is built (`load` fills in the parameters later).

    When the block is left, the process is asked to exit, and killed after five seconds; cancellation
    does not shorten that time. It never outlives this process, however this process dies.

    Raises `TrainerFailed` (`no_device`, `model_too_large`, `bad_model`, …) if the trainer cannot build
    the model, and `TrainerDied` if the process ends.
    """
    settings = spec.settings
    kept = () if spec.caches is None else (spec.caches,)
    if spec.caches is not None:
        await trio.to_thread.run_sync(drop_if_large, spec.caches)
    writable = (spec.blobs, *spec.writable, *kept)
    own = () if spec.policy.blobs is None else (Path(spec.policy.blobs),)
    async with trainer_process(
        settings.threads,
        writable,
        (*spec.readable, *own),
        confined=settings.sandbox,
        nice=spec.nice,
        yields=spec.yields,
        multi_device_options=_multi_device_options(spec),
        caches=spec.caches,
    ) as client:
        answer = await client.pipe.call(
            "open",
            manifest=spec.manifest,
            blobs=str(spec.blobs),
            settings=to_plain_settings(settings),
            policy=to_plain(spec.policy, named=True),
        )
        client.device, client.gpus = answer["device"], tuple(answer["gpus"])
        client.memory_use = answer["memory"]
        client.compiled = answer["compiled"]
        client.sandbox = tuple(answer["sandbox"])
        client.sequence_flops = answer["sequence_flops"]
        client.matmul_flops = answer["matmul_flops"]
        yield client


@asynccontextmanager
async def open_checkpoint(
    directory: Path, *, threads: int | None, device: str, nice: int
) -> AsyncIterator[TrainerClient]:
    """Start a trainer process that has the model of a checkpoint's directory, to generate text with it;
    it can do nothing else, and leaves the processor to all other programs meanwhile. Raises
    `TrainerFailed` and `TrainerDied` as `open_trainer` does."""
    async with trainer_process(threads, (), (directory,), nice=nice, yields=True) as client:
        await client.pipe.call(
            "open_checkpoint", directory=str(directory), threads=threads, device=device
        )
        yield client


def _multi_device_options(spec: TrainerSpec) -> tuple[str, ...]:
    settings = spec.settings
    if not settings.under_torchrun and not is_device_list(settings.device):
        return ()
    launched = ("--launched",) if settings.under_torchrun else ()
    return ("--several", *launched, f"--patience={spec.patience}")


class TrainerClient:
    """A running trainer. Get one from `open_trainer`.

    Every call raises `TrainerFailed` if the trainer refuses it (the trainer lives on), and
    `TrainerDied` if the process is gone.
    """

    device: str
    gpus: tuple[str, ...]
    """The UUIDs of the GPUs of this machine on which it computes, where they have one."""
    memory_use: str  # how much memory it takes and how the state is kept, for people
    compiled: str | None  # the result of trying to compile the model, for people; None: not tried
    sandbox: tuple[str, ...]  # the rights that it has given up (`sandbox.RESTRICTIONS`)
    sequence_flops: int | None  # floating-point operations for the gradient of one sequence
    matmul_flops: float | None  # operations per second in a large matrix product on the device

    def __init__(self, pipe: TrainerPipe) -> None:
        self.pipe = pipe
        """For requests that have no method here."""

    @property
    def pid(self) -> int:
        """The trainer's process id."""
        return self.pipe.pid

    async def load(self, chunks: Sequence[ContentId]) -> int:
        """Replace the parameters by the snapshot in these chunks; return their fingerprint.

        Pending own updates are dropped (they can no longer be refunded), and the momentum is kept. A
        bad snapshot leaves the parameters unchanged.
        """
        return await self.pipe.call("load", chunks=list(chunks))

    async def train(
        self, round: int, samples: Sequence[int], *, audits: bool = False
    ) -> TrainedUpdate:
        """Compute a gradient over these samples, and take the round's update from the momentum.

        Without samples the update comes from the momentum alone, with the loss 0 over 0 tokens. The
        update stays pending until `apply` settles the round. With `audits`, a call of `audit` may
        follow.
        """
        return TrainedUpdate(
            **await self.pipe.call(
                "train", round_number=round, samples=list(samples), audits=audits
            )
        )

    async def audit(self, round: int, sample: int, share: int) -> float | None:
        """Compute, for `judge`, the gradient of a sample that was assigned to another member in the
        round just trained; `share` is the number of samples assigned to that member. Return the
        seconds it took; None if there was nothing to compare it with, or too little memory."""
        return await self.pipe.call("audit", round_number=round, sample=sample, share=share)

    async def judge(self, round: int, body: bytes) -> Judgement | None:
        """Return how well an update, the audited member's, agrees with the sample audited in `round`.

        Only the audits of the two latest rounds are kept, and each result is given once; otherwise, and
        if no sample was audited, return None."""
        found = await self.pipe.call("judge", round_number=round, body=body)
        return None if found is None else Judgement.read(found)

    async def run_reaudit(
        self, round: int, body: bytes, samples: Sequence[int], others: Sequence[int], share: int
    ) -> list[SignSums]:
        """Return how well an update of this round agrees with each of `samples`, computed on the loaded
        parameters. They are some of the `share` samples assigned to the update's author. `others` are
        samples assigned to other members: their gradient is the reference."""
        found = await self.pipe.call(
            "run_reaudit",
            round_number=round,
            body=body,
            samples=list(samples),
            others=list(others),
            share=share,
        )
        return [SignSums(**each) for each in found]

    async def train_in_background(self, round: int, samples: Sequence[int]) -> TrainedUpdate | None:
        """Do what `train` does, in the background of later calls. The first call starts it; each call
        returns the update if it is done, and otherwise None."""
        found = await self.pipe.call(
            "train_in_background", round_number=round, samples=list(samples)
        )
        return None if found is None else TrainedUpdate(**found)

    async def apply(
        self,
        round: int,
        updates: Sequence[bytes],
        learning_rate: float,
        own_counted: bool,
        update_weights: Sequence[int],
    ) -> StepApplied:
        """Take the shared, exact step with these update bodies and update weights; their order
        does not matter.

        A pending own update of this round is forgotten if it was counted; otherwise, or if the
        outlier filter left it out, it is added back into the momentum. Without updates the
        parameters do not change.
        """
        # Each body has a frame of its own: together they may exceed the longest frame.
        return StepApplied(
            **await self.pipe.call(
                "apply",
                staged=updates,
                round_number=round,
                learning_rate=learning_rate,
                own_counted=own_counted,
                update_weights=list(update_weights),
            )
        )

    async def expect(self, update: ExpectedUpdate) -> None:
        """Let the trainer decode an update from the blob store, which a record may name, so that `apply`
        is quicker. It may be sent while a call is in progress, and has no answer."""
        await self.pipe.tell(EXPECT, asdict(update))

    async def stop_steps(self, stop: StopSteps) -> None:
        """Let the `train` in progress, if it is that of this round, end after the present local step. It
        has no answer."""
        await self.pipe.tell(STOP, asdict(stop))

    async def snapshot(self) -> SnapshotResult:
        """Store the parameters as chunks in the blob store; return their list, which is not stored."""
        return SnapshotResult(**await self.pipe.call("snapshot"))

    async def evaluate(self, sequences: int) -> float:
        """Return the mean loss over the first `sequences` held-out samples, in nats per token."""
        return await self.pipe.call("evaluate", sequences=sequences)

    async def margins(self, samples: Sequence[int], *, heldout: bool) -> list[float]:
        """Return by how many nats the model prefers the chosen side of each of these pairs, training or
        held-out samples; only a task whose samples are pairs has them."""
        return await self.pipe.call("margins", samples=list(samples), heldout=heldout)

    async def accuracy(self, sequences: int) -> tuple[float, int] | None:
        """Return the share of right answers over the first `sequences` held-out samples, and their
        number; None for a task whose answers are not right or wrong."""
        found = await self.pipe.call("accuracy", sequences=sequences)
        return None if found is None else (found[0], found[1])

    async def save_momentum(self, path: Path) -> None:
        """Write the optimizer's state to a file, atomically."""
        await self.pipe.call("save_momentum", path=str(path))

    async def load_momentum(self, path: Path) -> bool:
        """Read the state back; return False, with nothing changed, if the file is missing, corrupt
        or another swarm's."""
        return await self.pipe.call("load_momentum", path=str(path))

    async def export(self, directory: Path, *, merged: bool = False) -> None:
        """Write a Hugging Face checkpoint with its tokenizer; the adapters alone, unless `merged`."""
        await self.pipe.call("export", directory=str(directory), merged=merged)

    async def export_gguf(self, directory: Path, kind: GgufType, description: str) -> None:
        """Write the model as one GGUF file, with a description for people; adapters are merged."""
        await self.pipe.call(
            "export_gguf", directory=str(directory), kind=str(kind), description=description
        )

    async def begin_text(self, request: TextRequest) -> TextStart:
        """Start to write what is requested; `next_text` returns the text."""
        return TextStart(**await self.pipe.call("begin_text", **asdict(request)))

    async def next_text(self) -> str | None:
        """Return the text of the next token (empty in the middle of a character); None at the end."""
        return await self.pipe.call("next_text")

    async def end_text(self) -> None:
        """Give up the text that was begun, and free its memory."""
        await self.pipe.call("end_text")

    async def begin_images(self, count: int, *, seed: int, steps: int) -> None:
        """Start to draw `count` images in `steps` steps each; `next_image` returns them."""
        await self.pipe.call("begin_images", count=count, seed=seed, steps=steps)

    async def next_image(self) -> bytes | None:
        """Return the next image, size × size × channels bytes; None after the last one."""
        return await self.pipe.call("next_image")

    async def compare_export(self, directory: Path) -> ExportedParameters:
        """Return the parameters of an exported model, by the manifest's table."""
        return ExportedParameters(
            **await self.pipe.call("compare_export", directory=str(directory))
        )

    async def ready(self) -> None:
        """Return once the process has loaded its libraries."""
        await self.pipe.call("ready")

    async def memory(self) -> dict[str, int]:
        """Return `process_bytes` (resident) and `device_bytes` (0 on the CPU)."""
        return await self.pipe.call("memory")

    async def privacy(self, method: str, **arguments: Any) -> float:
        """Call `dp_accountant`: with the method `spent`, return the ε that rounds have spent at a
        `delta`; with `noise`, the least noise that keeps ε within a limit."""
        return await self.pipe.call(f"privacy_{method}", **arguments)

    async def initialise(self, **arguments: Any) -> dict[str, Any]:
        """Call `initial_model.initialise_model`."""
        return await self.pipe.call("initialise", **arguments)

    async def probe(self, manifest: bytes, blobs: Path) -> dict[str, Any] | None:
        """Return the probe for a manifest that has none (`ProbeSpec` as plain values); None if its
        task offers none."""
        return await self.pipe.call("probe", manifest=manifest, blobs=str(blobs))

    async def survey(self, **arguments: Any) -> dict[str, Any]:
        """Survey devices and a model (`device_probe.survey`)."""
        return await self.pipe.call("survey", **arguments)


@asynccontextmanager
async def trainer_process(
    threads: int | None,
    writable: Sequence[Path],
    readable: Sequence[Path] = (),
    *,
    confined: bool = True,
    nice: int = 0,
    yields: bool = False,
    multi_device_options: Sequence[str] = (),
    caches: Path | None = None,
) -> AsyncIterator[TrainerClient]:
    """Start a trainer process without a model. What it compiles is kept in `caches`, if given.
    `multi_device_options` holds its command line's options for several devices."""
    await trio.to_thread.run_sync(make_device_node)
    for folder in writable:
        folder.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(prefix="distro-trainer-", ignore_cleanup_errors=True) as scratch:
        options = [f"--writable={folder.resolve()}" for folder in (*writable, Path(scratch))]
        options += [f"--readable={folder.resolve()}" for folder in readable]
        if not confined:
            options.append("--unconfined")
        options += multi_device_options
        if nice:
            options.append(f"--nice={nice}")
        if yields:
            options.append("--yields")
        async with open_pipe(options, environment(threads, scratch, caches)) as pipe:
            yield TrainerClient(pipe)
