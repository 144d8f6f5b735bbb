"""The trainer process's requests, one method each, and the report of their failures."""

from __future__ import annotations

import logging
import queue
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil
import torch
from transformers.utils import logging as transformers_logging

from ...crypto.hashing import ContentId
from ...protocol.codec.layout import manifest_layout
from ...protocol.wire.encoding import decode
from ...protocol.wire.errors import ProtocolError
from ...protocol.wire.manifest import MAX_MANIFEST_BYTES, Manifest
from ...protocol.wire.structure import from_plain, to_plain
from ..settings.components import TrainerSettings
from ..settings.setting import from_plain_settings
from ..settings.values import is_device_list
from ..storage.blob_store import BlobStore
from ..training.errors import FailureKind, TrainerFailed
from ..training.frames import ExpectedUpdate, StopSteps
from ..training.gguf_formats import GgufType
from ..training.graphics_cards import gpu_vendor
from ..training.local_policy import LocalPolicy
from ..training.resource_limits import data_below, data_ceiling
from ..training.text_request import TextRequest
from .audit_score import AssignedSample
from .device import allocated_bytes, choose_device, device_kind, free_memory
from .error_report import describe
from .models.expert_products import cast_expert_products
from .models.export import export, export_gguf
from .models.initial_parameters import Lora, initialise, plan_parameters
from .models.model import build_skeleton
from .models.probe import make_probe
from .models.read_export import compare_export
from .optimizer import dp_accountant
from .optimizer.background_gradient import BackgroundGradient
from .optimizer.device_check import check_exactness
from .optimizer.dp_accountant import Spent
from .ranks.momentum import load_part, remove_others, save_part
from .reaudit_worker import run_reaudit
from .speed import matmul_flops, sequence_flops
from .tasks.checkpoint_text import open_text_model
from .tasks.image_sampling import draw_images
from .tasks.packing import skip_packing_search
from .tasks.text_generation import TextModel, session_text_model, start_text
from .training_session import TrainingSession

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class OpenRequest:
    """The arguments of `open`; `TrainerSpec` describes each."""

    manifest: bytes
    blobs: str
    settings: dict[str, Any]
    policy: dict[str, Any]

    @property
    def trainer_settings(self) -> TrainerSettings:
        """The owner's settings."""
        return from_plain_settings(TrainerSettings, self.settings)


class Worker:
    """Answers requests `{"id", "method", "arguments"}` with `{"id", "result"}` or `{"id", "error"}`.

    The parent process sends them; they are trusted to be well-formed.
    """

    def __init__(self, expected: queue.SimpleQueue[ExpectedUpdate] | None = None) -> None:
        """`expected` is filled with the updates that the node has received, to be decoded early."""
        self._expected = expected
        self.sandbox: tuple[str, ...] = ()
        """The restrictions that the sandbox enforces on this process: keys of `sandbox.RESTRICTIONS`."""
        self.stop_steps = StopSteps()
        """The round whose local steps end early; another thread sets it."""
        self._session: TrainingSession | None = None
        self._store: BlobStore | None = None
        self._background: BackgroundGradient | None = None
        # One that nobody waits for any more, which takes memory and time until it ends.
        self._abandoned: BackgroundGradient | None = None
        self._staged: list[bytes] = []
        self._staged_for = -1
        self._text_model: TextModel | None = None
        self._writing: Iterator[str] = iter(())
        # The most memory, in bytes, that the process may have while it generates text.
        self._writing_ceiling: int | None = None
        self._drawing: Iterator[bytes] = iter(())
        self._methods: dict[str, Callable[..., Any]] = {
            "ready": lambda: None,
            "open": self._open,
            "initialise": self._initialise,
            "probe": self._probe,
            "load": self._load,
            "train": self._train,
            "train_in_background": self._train_in_background,
            "audit": self._audit,
            "judge": self._judge,
            "run_reaudit": self._reaudit,
            "apply": self._apply,
            "snapshot": self._snapshot,
            "evaluate": self._evaluate,
            "margins": self._margins,
            "accuracy": self._accuracy,
            "save_momentum": self._save_momentum,
            "load_momentum": self._load_momentum,
            "export": self._export,
            "export_gguf": self._export_gguf,
            "begin_text": self._begin_text,
            "next_text": self._next_text,
            "end_text": self._end_text,
            "open_checkpoint": self._open_checkpoint,
            "begin_images": self._begin_images,
            "next_image": self._next_image,
            "compare_export": self._compare_export,
            "memory": self._memory,
            "survey": self._survey,
            "privacy_noise": self._privacy_noise,
            "privacy_spent": self._privacy_spent,
        }

    def answer(self, request: dict[str, Any]) -> dict[str, Any] | None:
        """Carry out a request and return its answer; `stage`, which passes an update for the next
        `apply`, has none. Never raises."""
        identifier, method = request["id"], request["method"]
        if identifier != self._staged_for:
            # The staged updates are left from a cancelled call.
            self._staged, self._staged_for = [], identifier
        if method == "stage":
            self._staged.append(request["arguments"]["body"])
            return None
        try:
            return {"id": identifier, "result": self._methods[method](**request["arguments"])}
        except Exception as error:
            kind, message = self._failed(error, method)
        # After a reset of the driver the CUDA context is dead, and every call fails, this one too.
        with suppress(RuntimeError):
            if torch.cuda.is_available():
                torch.cuda.empty_cache()
        return {"id": identifier, "error": {"kind": kind, "message": message}}

    def _open(self, **arguments: Any) -> dict[str, Any]:
        request = OpenRequest(**arguments)
        self._start_session(request)
        self._current_session.prove()
        return self._finish_open(request)

    def _start_session(self, request: OpenRequest) -> None:
        settings = request.trainer_settings
        self._prepare(settings.threads)
        chosen = choose_device(settings.device)
        unused = gpu_vendor() if settings.device == "auto" and chosen.type == "cpu" else None
        if unused is not None:
            _log.warning(
                "training on the CPU, although this computer has a graphics card of %s: PyTorch "
                "cannot use it (see `distro-node doctor`)",
                unused,
            )
        manifest = _decode_manifest(request.manifest)
        check_exactness(chosen, manifest_layout(manifest))
        self._store = BlobStore(Path(request.blobs))
        self._session = self._new_session(manifest, self._store, chosen, request)
        self._session.stop_steps = self.stop_steps

    def _finish_open(self, request: OpenRequest) -> dict[str, Any]:
        session = self._current_session
        session.read_base()
        if self._expected is not None:
            session.updates.start(self._expected)
        return {
            "device": _device_text(session.device),
            "gpus": _gpu_uuids(session.device),
            "memory": session.memory,
            "compiled": session.compile_layers(request.trainer_settings.compile),
            "sandbox": list(self.sandbox),
            "sequence_flops": sequence_flops(session.manifest),
            "matmul_flops": matmul_flops(session.device),
        }

    def _new_session(
        self, manifest: Manifest, store: BlobStore, device: torch.device, request: OpenRequest
    ) -> TrainingSession:
        policy = from_plain(LocalPolicy, request.policy, named=True)
        settings = request.trainer_settings
        return TrainingSession(
            manifest, store, device, settings.micro_batch, settings.memory, policy=policy
        )

    def _failed(self, error: Exception, method: str) -> tuple[FailureKind, str]:
        """Return the kind and message with which a failure is reported. A trainer of several ranks may
        end the process instead."""
        return describe(error)

    def _initialise(
        self,
        config: dict[str, Any],
        seed: int,
        checkpoint: str | None,
        lora: dict[str, Any] | None,
        blobs: str,
        device: str,
    ) -> dict[str, Any]:
        self._prepare(None)
        path = None if checkpoint is None else Path(checkpoint)
        store = BlobStore(Path(blobs))
        made = initialise(config, seed, path, store, choose_device(device), Lora.read(lora))
        return {
            "parameters": [to_plain(spec, named=True) for spec in made.table],
            "blob_list": made.blobs.encode(),
            "size": made.blobs.size,
            "adapter": None if made.adapter is None else to_plain(made.adapter, named=True),
        }

    def _probe(self, manifest: bytes, blobs: str) -> dict[str, Any] | None:
        self._prepare(None)
        probe = make_probe(_decode_manifest(manifest), BlobStore(Path(blobs)))
        return None if probe is None else to_plain(probe, named=True)

    def _survey(
        self, device: str, config: dict[str, Any] | None, lora: dict[str, Any] | None
    ) -> dict[str, Any]:
        # Code for several devices is imported only where there are several.
        from .ranks.processes import devices_of

        self._prepare(None)
        names = devices_of(device) if is_device_list(device) else [device]
        chosen = [choose_device(name) for name in dict.fromkeys(names)]
        rooms = [free_memory(each) for each in chosen]
        planned = (
            None if config is None else plan_parameters(build_skeleton(config), Lora.read(lora))
        )
        table = () if planned is None else planned.table
        times = "" if len(names) == 1 else f" × {len(names)}"
        return {
            "kind": device_kind(chosen[0]),
            "device": _device_text(chosen[0]) + times,
            "free_bytes": min(room.device for room in rooms),
            "host_bytes": min(room.host for room in rooms),
            "parameters": [to_plain(spec, named=True) for spec in table],
            "count": len(names),
            "frozen": 0 if planned is None else planned.frozen,
        }

    def _privacy_noise(
        self, spent: Spent, epsilon: float, delta: float, rate: float, rounds: int
    ) -> float:
        return dp_accountant.noise_for(spent, epsilon, delta, rate, rounds)

    def _privacy_spent(self, spent: Spent, delta: float) -> float:
        return dp_accountant.epsilon(spent, delta)

    def _prepare(self, threads: int | None) -> None:
        transformers_logging.set_verbosity_error()
        transformers_logging.disable_progress_bar()
        skip_packing_search()
        cast_expert_products()
        # The exact step relies on full float32 products: no TF32, and no bfloat16 in their place.
        torch.set_float32_matmul_precision("highest")
        if threads is not None:
            torch.set_num_threads(threads)

    def _load(self, chunks: list[bytes]) -> int:
        self._abandon_background()
        return self._current_session.load([ContentId(chunk) for chunk in chunks])

    def _train(self, round_number: int, samples: list[int], audits: bool = False) -> dict[str, Any]:
        return asdict(self._current_session.train(round_number, samples, audits=audits))

    def _audit(self, round_number: int, sample: int, share: int) -> float | None:
        started = time.perf_counter()
        audited = self._current_session.audit(round_number, AssignedSample(sample, share))
        return time.perf_counter() - started if audited else None

    def _judge(self, round_number: int, body: bytes) -> dict[str, Any] | None:
        found = self._current_session.judge(round_number, body)
        return None if found is None else asdict(found)

    def _reaudit(self, **arguments: Any) -> list[dict[str, Any]]:
        return [asdict(found) for found in run_reaudit(self._current_session, **arguments)]

    def _train_in_background(self, round_number: int, samples: list[int]) -> dict[str, Any] | None:
        if self._background is not None and not self._background.is_for(round_number, samples):
            self._abandon_background()
        if self._background is None:
            # Several at once would take a copy of the parameters each, and each other's time.
            if self._abandoned is not None and not self._abandoned.done:
                return None
            self._abandoned = None
            self._background = BackgroundGradient(self._current_session, round_number, samples)
        if not self._background.done:
            return None
        background, self._background = self._background, None
        return asdict(background.finish())

    def _abandon_background(self) -> None:
        self._abandoned, self._background = self._background or self._abandoned, None

    def _apply(
        self, round_number: int, learning_rate: float, own_counted: bool, update_weights: list[int]
    ) -> dict[str, Any]:
        started = time.perf_counter()
        fingerprint = self._current_session.apply(
            round_number, self._staged, learning_rate, own_counted, update_weights
        )
        self._staged = []
        return {
            "fingerprint": fingerprint,
            "seconds": time.perf_counter() - started,
            # The number of updates that the outlier filter left out.
            "left_out": self._current_session.left_out,
        }

    def _snapshot(self) -> dict[str, Any]:
        blobs = self._current_session.snapshot()
        return {"blob_list": blobs.encode(), "size": blobs.size}

    def _evaluate(self, sequences: int) -> float:
        return self._current_session.computation.evaluate(sequences)

    def _margins(self, samples: list[int], heldout: bool) -> list[float]:
        return self._current_session.computation.margins(samples, heldout=heldout)

    def _accuracy(self, sequences: int) -> tuple[float, int] | None:
        return self._current_session.computation.accuracy(sequences)

    def _save_momentum(self, path: str) -> None:
        session = self._current_session
        save_part(session.optimizer, session.part.place, Path(path))
        # Parts saved with other divisions are outdated now.
        remove_others(session.part.place.division, Path(path))

    def _load_momentum(self, path: str) -> bool:
        session = self._current_session
        spec = session.manifest.optimizer
        return load_part(session.optimizer, session.part.place, Path(path), spec)

    def _export(self, directory: str, merged: bool) -> None:
        session = self._current_session
        assert self._store is not None
        export(session, self._store, Path(directory), merged=merged)

    def _export_gguf(self, directory: str, kind: str, description: str) -> None:
        session = self._current_session
        assert self._store is not None
        export_gguf(session, self._store, Path(directory), GgufType(kind), description)

    def _open_checkpoint(self, directory: str, threads: int | None, device: str) -> None:
        self._prepare(threads)
        self._text_model = open_text_model(Path(directory), choose_device(device))

    def _begin_text(self, **asked: Any) -> dict[str, Any]:
        request = TextRequest(**asked)
        self._end_text()
        source = self._text_source()
        self._writing_ceiling = data_ceiling(request.memory)
        with data_below(self._writing_ceiling):
            start, self._writing = start_text(source, request)
        return asdict(start)

    def _text_source(self) -> TextModel:
        """Return the model of the session, or of the checkpoint if no session is open; its tokenizer is
        read once."""
        found = self._text_model
        if self._store is not None and (
            found is None or found.model is not self._current_session.model
        ):
            found = self._text_model = session_text_model(self._current_session, self._store)
        if found is None:
            raise TrainerFailed("internal", "no model has been opened")
        return found

    def _next_text(self) -> str | None:
        with data_below(self._writing_ceiling):
            return next(self._writing, None)

    def _end_text(self) -> None:
        self._writing = iter(())

    def _begin_images(self, count: int, seed: int, steps: int) -> None:
        self._drawing = draw_images(self._current_session, count, seed, steps)

    def _next_image(self) -> bytes | None:
        return next(self._drawing, None)

    def _compare_export(self, directory: str) -> dict[str, Any]:
        session = self._current_session
        assert self._store is not None
        return compare_export(session, self._store, Path(directory))

    def _memory(self) -> dict[str, int]:
        return {
            "process_bytes": psutil.Process().memory_info().rss,
            "device_bytes": allocated_bytes(self._current_session.device),
        }

    @property
    def _current_session(self) -> TrainingSession:
        if self._session is None:
            raise TrainerFailed("internal", "no manifest has been opened")
        return self._session


def _decode_manifest(manifest: bytes) -> Manifest:
    try:
        return decode(Manifest, manifest, max_bytes=MAX_MANIFEST_BYTES, named=True)
    except ProtocolError as error:
        raise TrainerFailed("bad_model", f"the manifest does not decode: {error}") from None


def _gpu_uuids(device: torch.device) -> list[str]:
    """Return the driver's identifier of the GPU, which does not depend on how torch numbers the GPUs;
    empty if the device has none."""
    if device.type != "cuda":
        return []
    uuid = getattr(torch.cuda.get_device_properties(device), "uuid", None)
    return [] if uuid is None else [str(uuid)]


def _device_text(device: torch.device) -> str:
    if device.type == "cuda":
        return f"{device.type} ({torch.cuda.get_device_name(device)})"
    return device.type
