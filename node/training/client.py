"""The node process's side of the trainer: it starts the process, calls it, and outlives its failures.

Nothing here imports torch. Calls are answered in order, one at a time. A cancelled call leaves the
client usable: its answer is dropped on arrival, though the trainer completes the work.
"""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
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
from ..util.operating_system import OWN_GROUP, by_signal, pass_descriptors
from ..util.sanitize import MAX_CHARACTERS
from .answers import ExportedParameters, Judgement, SnapshotResult, StepApplied
from .environment import drop_if_large, environment
from .errors import FAILURE_KINDS, TrainerDied, TrainerFailed
from .frames import (
    EXPECT,
    STOP,
    ExpectedUpdate,
    FrameDecoder,
    FrameError,
    StopSteps,
    TrainedUpdate,
    encode_frame,
)
from .gguf_formats import GgufType
from .graphics_cards import make_device_node
from .text_request import TextRequest, TextStart
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

_log = logging.getLogger(__name__)

_READ_BYTES = 1 << 20

# How long a trainer may take to finish its current work when it is asked to exit.
_EXIT_SECONDS = 5.0
# How long a killed trainer may take to die; one that is stuck in a driver does not.
_DEATH_SECONDS = 5.0

# The probable cause of a trainer's end, by signal (`resource_limits` sets the limit behind SIGXCPU).
_HINTS = by_signal(
    {
        "SIGKILL": " (out of memory?)",
        "SIGXCPU": " (the swarm's model or tokenizer exceeded the CPU time limit)",
        "SIGABRT": " (a library aborted: did the swarm's model or tokenizer ask for too much memory?)",
    }
)


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
        multi_device_options=_multi_device_options(spec),
        caches=spec.caches,
    ) as client:
        answer = await client._call(
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
    it can do nothing else. Raises `TrainerFailed` and `TrainerDied` as `open_trainer` does."""
    async with trainer_process(threads, (), (directory,), nice=nice) as client:
        await client._call(
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

    def __init__(self, process: trio.Process, requests: int, answers: int) -> None:
        self._process = process
        self._requests = requests
        self._answers = answers
        self._decoder = FrameDecoder()
        self._received: list[Any] = []
        # The rest of a frame that a cancelled call began to send: it must go out before any other.
        self._unsent = memoryview(b"")
        # One call at a time; and one frame at a time, since `expect` may be sent during a call.
        self._lock, self._write_lock = trio.Lock(), trio.Lock()
        self._next_id = 0
        self._closed = False

    @property
    def pid(self) -> int:
        """The trainer's process id."""
        return self._process.pid

    async def load(self, chunks: Sequence[ContentId]) -> int:
        """Replace the parameters by the snapshot in these chunks; return their fingerprint.

        Pending own updates are dropped (they can no longer be refunded), and the momentum is kept. A
        bad snapshot leaves the parameters unchanged.
        """
        return await self._call("load", chunks=list(chunks))

    async def train(
        self, round: int, samples: Sequence[int], *, audits: bool = False
    ) -> TrainedUpdate:
        """Compute a gradient over these samples, and take the round's update from the momentum.

        Without samples the update comes from the momentum alone, with the loss 0 over 0 tokens. The
        update stays pending until `apply` settles the round. With `audits`, a call of `audit` may
        follow.
        """
        return TrainedUpdate(
            **await self._call("train", round_number=round, samples=list(samples), audits=audits)
        )

    async def audit(self, round: int, sample: int, share: int) -> float | None:
        """Compute, for `judge`, the gradient of a sample that was assigned to another member in the
        round just trained; `share` is the number of samples assigned to that member. Return the
        seconds it took; None if there was nothing to compare it with, or too little memory."""
        return await self._call("audit", round_number=round, sample=sample, share=share)

    async def judge(self, round: int, body: bytes) -> Judgement | None:
        """Return how well an update, the audited member's, agrees with the sample audited in `round`.

        Only the audits of the two latest rounds are kept, and each result is given once; otherwise, and
        if no sample was audited, return None."""
        found = await self._call("judge", round_number=round, body=body)
        return None if found is None else Judgement.read(found)

    async def run_reaudit(
        self, round: int, body: bytes, samples: Sequence[int], others: Sequence[int], share: int
    ) -> list[SignSums]:
        """Return how well an update of this round agrees with each of `samples`, computed on the loaded
        parameters. They are some of the `share` samples assigned to the update's author. `others` are
        samples assigned to other members: their gradient is the reference."""
        found = await self._call(
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
        found = await self._call("train_in_background", round_number=round, samples=list(samples))
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
            **await self._call(
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
        try:
            await self._send(-1, EXPECT, asdict(update))
        except trio.ClosedResourceError:
            raise TrainerDied("the trainer was closed during a call") from None

    async def stop_steps(self, stop: StopSteps) -> None:
        """Let the `train` in progress, if it is that of this round, end after the present local step. It
        has no answer."""
        try:
            await self._send(-1, STOP, asdict(stop))
        except trio.ClosedResourceError:
            raise TrainerDied("the trainer was closed during a call") from None

    async def snapshot(self) -> SnapshotResult:
        """Store the parameters as chunks in the blob store; return their list, which is not stored."""
        return SnapshotResult(**await self._call("snapshot"))

    async def evaluate(self, sequences: int) -> float:
        """Return the mean loss over the first `sequences` held-out samples, in nats per token."""
        return await self._call("evaluate", sequences=sequences)

    async def margins(self, samples: Sequence[int], *, heldout: bool) -> list[float]:
        """Return by how many nats the model prefers the chosen side of each of these pairs, training or
        held-out samples; only a task whose samples are pairs has them."""
        return await self._call("margins", samples=list(samples), heldout=heldout)

    async def accuracy(self, sequences: int) -> tuple[float, int] | None:
        """Return the share of right answers over the first `sequences` held-out samples, and their
        number; None for a task whose answers are not right or wrong."""
        found = await self._call("accuracy", sequences=sequences)
        return None if found is None else (found[0], found[1])

    async def save_momentum(self, path: Path) -> None:
        """Write the optimizer's state to a file, atomically."""
        await self._call("save_momentum", path=str(path))

    async def load_momentum(self, path: Path) -> bool:
        """Read the state back; return False, with nothing changed, if the file is missing, corrupt
        or another swarm's."""
        return await self._call("load_momentum", path=str(path))

    async def export(self, directory: Path, *, merged: bool = False) -> None:
        """Write a Hugging Face checkpoint with its tokenizer; the adapters alone, unless `merged`."""
        await self._call("export", directory=str(directory), merged=merged)

    async def export_gguf(self, directory: Path, kind: GgufType, description: str) -> None:
        """Write the model as one GGUF file, with a description for people; adapters are merged."""
        await self._call(
            "export_gguf", directory=str(directory), kind=str(kind), description=description
        )

    async def begin_text(self, request: TextRequest) -> TextStart:
        """Start to write what is requested; `next_text` returns the text."""
        return TextStart(**await self._call("begin_text", **asdict(request)))

    async def next_text(self) -> str | None:
        """Return the text of the next token (empty in the middle of a character); None at the end."""
        return await self._call("next_text")

    async def end_text(self) -> None:
        """Give up the text that was begun, and free its memory."""
        await self._call("end_text")

    async def begin_images(self, count: int, *, seed: int, steps: int) -> None:
        """Start to draw `count` images in `steps` steps each; `next_image` returns them."""
        await self._call("begin_images", count=count, seed=seed, steps=steps)

    async def next_image(self) -> bytes | None:
        """Return the next image, size × size × channels bytes; None after the last one."""
        return await self._call("next_image")

    async def compare_export(self, directory: Path) -> ExportedParameters:
        """Return the parameters of an exported model, by the manifest's table."""
        return ExportedParameters(**await self._call("compare_export", directory=str(directory)))

    async def ready(self) -> None:
        """Return once the process has loaded its libraries."""
        await self._call("ready")

    async def memory(self) -> dict[str, int]:
        """Return `process_bytes` (resident) and `device_bytes` (0 on the CPU)."""
        return await self._call("memory")

    async def privacy(self, method: str, **arguments: Any) -> float:
        """Call `dp_accountant`: with the method `spent`, return the ε that rounds have spent at a
        `delta`; with `noise`, the least noise that keeps ε within a limit."""
        return await self._call(f"privacy_{method}", **arguments)

    async def initialise(self, **arguments: Any) -> dict[str, Any]:
        """Call `initial_model.initialise_model`."""
        return await self._call("initialise", **arguments)

    async def probe(self, manifest: bytes, blobs: Path) -> dict[str, Any] | None:
        """Return the probe for a manifest that has none (`ProbeSpec` as plain values); None if its
        task offers none."""
        return await self._call("probe", manifest=manifest, blobs=str(blobs))

    async def survey(self, **arguments: Any) -> dict[str, Any]:
        """Survey devices and a model (`device_probe.survey`)."""
        return await self._call("survey", **arguments)

    async def _call(self, method: str, staged: Sequence[bytes] = (), **arguments: Any) -> Any:
        async with self._lock:
            request_id = self._next_id
            self._next_id += 1
            try:
                for body in staged:
                    await self._send(request_id, "stage", {"body": body})
                await self._send(request_id, method, arguments)
                answer = await self._receive(request_id)
            except trio.ClosedResourceError:
                raise TrainerDied("the trainer was closed during a call") from None
        if "error" in answer:
            kind = answer["error"]["kind"]
            raise TrainerFailed(
                kind if kind in FAILURE_KINDS else "internal", answer["error"]["message"]
            )
        return answer["result"]

    async def _send(self, request_id: int, method: str, arguments: dict[str, Any]) -> None:
        frame = encode_frame({"id": request_id, "method": method, "arguments": arguments})
        async with self._write_lock:
            if self._closed:
                raise TrainerDied("the trainer has been closed")
            await self._send_unsent()
            self._unsent = memoryview(frame)
            await self._send_unsent()

    async def _send_unsent(self) -> None:
        while self._unsent:
            await trio.lowlevel.wait_writable(self._requests)
            try:
                self._unsent = self._unsent[os.write(self._requests, self._unsent) :]
            except BlockingIOError:
                continue
            except BrokenPipeError:
                raise await self._died() from None

    async def _receive(self, request_id: int) -> dict[str, Any]:
        while True:
            while self._received:
                answer = self._received.pop(0)
                if "died" in answer:
                    raise TrainerDied(answer["died"], answer["micro_batch"])
                # Any other frame answers a cancelled call.
                if answer["id"] == request_id:
                    return answer
            await trio.lowlevel.wait_readable(self._answers)
            try:
                data = os.read(self._answers, _READ_BYTES)
                self._received += self._decoder.feed(data)
            except BlockingIOError:
                continue
            except FrameError as error:
                self._process.kill()
                raise TrainerDied(f"the trainer's answers cannot be decoded: {error}") from None
            if not data:
                raise await self._died()

    async def _died(self) -> TrainerDied:
        """Return how the process ended or is about to end."""
        with trio.move_on_after(_EXIT_SECONDS):
            await self._process.wait()
        if (report := self._death_report()) is not None:
            return TrainerDied(report["died"], report["micro_batch"])
        code = self._process.returncode
        if code is None:
            return TrainerDied("the trainer closed its pipe")
        if code >= 0:
            return TrainerDied(f"the trainer ended with exit code {code}")
        hint = _HINTS.get(-code, "")
        return TrainerDied(f"the trainer was ended by signal {-code}{hint}")

    def _death_report(self) -> dict[str, Any] | None:
        """Return the reason that it sent for its end while no call was waiting for an answer."""
        with suppress(OSError, FrameError):
            while data := os.read(self._answers, _READ_BYTES):
                self._received += self._decoder.feed(data)
        return next((each for each in self._received if "died" in each), None)

    async def _shut_down(self) -> None:
        """Ask the process to exit, then make sure that it has."""
        with trio.move_on_after(_EXIT_SECONDS) as time_limit:
            time_limit.shield = True
            with suppress(TrainerDied):
                async with self._lock:
                    await self._send(self._next_id, "exit", {})
            await self._process.wait()
        if self._process.returncode is None:
            self._process.kill()
        with trio.move_on_after(_DEATH_SECONDS) as time_limit:
            time_limit.shield = True
            await self._process.wait()
        # The closed descriptors' numbers will soon belong to other files: nothing may use them any more.
        self._closed = True
        for descriptor in (self._requests, self._answers):
            trio.lowlevel.notify_closing(descriptor)
            os.close(descriptor)


@asynccontextmanager
async def trainer_process(
    threads: int | None,
    writable: Sequence[Path],
    readable: Sequence[Path] = (),
    *,
    confined: bool = True,
    nice: int = 0,
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
        async with _spawn_client(options, environment(threads, scratch, caches)) as client:
            yield client


@asynccontextmanager
async def _spawn_client(
    arguments: Sequence[str], environment: dict[str, str]
) -> AsyncIterator[TrainerClient]:
    requests_read, requests_write = os.pipe()
    answers_read, answers_write = os.pipe()
    output_read, output_write = os.pipe()
    threading.Thread(target=_log_output, args=(output_read,), daemon=True).start()
    try:
        process = await trio.lowlevel.open_process(
            [
                sys.executable,
                # The working directory is the user's; it contains none of our modules.
                "-P",
                "-m",
                "distro_node.node.trainer",
                f"--requests={requests_read}",
                f"--answers={answers_write}",
                *arguments,
            ],
            stdin=subprocess.DEVNULL,
            stdout=output_write,
            stderr=output_write,
            **pass_descriptors(requests_read, answers_write),
            # Ctrl-C in a terminal goes to the foreground process group: only the node shall receive it.
            **OWN_GROUP,
            env=environment,
        )
    except BaseException:
        os.close(requests_write)
        os.close(answers_read)
        raise
    finally:
        os.close(requests_read)
        os.close(answers_write)
        # From now on only the trainer holds the write end, so the thread ends with the trainer.
        os.close(output_write)
    os.set_blocking(requests_write, False)
    os.set_blocking(answers_read, False)
    client = TrainerClient(process, requests_write, answers_read)
    try:
        yield client
    finally:
        await client._shut_down()


def _log_output(descriptor: int) -> None:
    """Log what the trainer and its libraries write, line by line.

    It is a thread because the event loop may be busy, and the writers must not wait for it. Their
    text may contain names from a stranger's model: unfiltered, none of it may reach a terminal.
    """
    with open(descriptor, "rb") as output:
        while line := output.readline(MAX_CHARACTERS):
            text = line.decode("utf-8", "replace").rstrip()
            if text:
                _log.warning("trainer: %s", text)
