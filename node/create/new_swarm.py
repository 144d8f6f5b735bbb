"""Making a swarm: from a founder's file and texts to a manifest whose hash is the swarm-id.

The same file, texts, founder and versions of the libraries give the same swarm-id. All of it lies in the
founder's data directory, complete, before the id is told to anybody.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from ...crypto.hashing import ContentId, content_id
from ...crypto.identity import PeerId, peer_from_text
from ...protocol.wire.blobs import decode_any_blob_list
from ...protocol.wire.manifest import (
    MAX_MANIFEST_BYTES,
    AdmissionSpec,
    DataSpec,
    Manifest,
    OptimizerSpec,
    PrivateSpec,
    ScheduleSpec,
    ShardSpec,
    SourceSpec,
    decode_manifest,
)
from ...protocol.wire.structure import StructureError, from_plain, to_plain
from ..storage.atomic_write import write_atomically
from ..storage.blob_store import BlobStore
from ..storage.data_dir import DataDir, open_identity
from ..trainer.client import InitialModel, TrainerSpec, initialise_model, open_trainer
from ..trainer.errors import TrainerDied, TrainerFailed
from ..trainer.explain import explain_trainer
from ..trainer.task_names import DIFFUSION
from ..trainer.tokenizer_settings import TokenizerSettings
from .checkpoint import check_fit, settings_for, tokenizer_file
from .corpus import Corpus, Found, Progress, end_tokens, find_sources, read_corpus
from .images import ImageTokenizer
from .manifest_file import (
    BYTES_TOKENIZER,
    DataTable,
    FoundersFile,
    LoraTable,
    ManifestFile,
    bad_manifest,
    read_manifest_file,
)
from .model_config import complete_denoiser, complete_model, read_checkpoint_config
from .rates import rate_warning
from .summary import DataSummary, Forecast, forecast
from .task import TaskPlan, plan_images, plan_task
from .tokens import ByteTokenizer, FileTokenizer, Tokenizer
from .usual import usual_optimizer, usual_schedule

# The initial parameters are drawn on the CPU wherever the founder trains: the same seed gives the
# same swarm on a machine with a GPU and on one without.
_INITIAL_DEVICE = "cpu"
# Of a dry run: as many as a micro-batch of a small model, so that the time of one is not that of
# starting.
_TRIED_SEQUENCES = 4


@dataclass(frozen=True, kw_only=True)
class CreateSettings:
    """What `create_swarm` needs to know."""

    manifest: Path
    data: tuple[Path | str, ...]
    """Files, directories and addresses that begin with hf://; empty: those named in the file."""
    data_dir: Path
    passphrase: str | None
    device: str = "auto"
    """Where a dry run measures."""


@dataclass(frozen=True, kw_only=True)
class Made:
    """A new swarm, or one that would be made: what is known of it."""

    manifest: Manifest
    data: DataSummary
    forecast: Forecast
    warnings: tuple[str, ...]

    @property
    def unchecked(self) -> bool:
        """Whether strangers may join whose work could be checked and is not."""
        manifest = self.manifest
        possible = manifest.data.private is None
        possible = possible and manifest.optimizer.preconditioner in ("orthogonal", "muon")
        return possible and manifest.checks is None and manifest.speakers is None and self.open

    @property
    def open(self) -> bool:
        """Whether strangers may join."""
        return self.manifest.admission.policy == "open"

    def facts(self) -> dict[str, Any]:
        """What programs are told."""
        manifest = self.manifest
        return {
            "name": manifest.name,
            "parameters": manifest.elements,
            "frozen_parameters": manifest.frozen_elements,
            "samples": manifest.data.samples,
            "tokens": sum(shard.tokens for shard in manifest.data.shards),
            "heldout_tokens": manifest.data.heldout.tokens,
            **self.data.facts(),
            "forecast": self.forecast.facts(),
            "warnings": list(self.warnings),
        }


async def create_swarm(settings: CreateSettings, progress: Progress) -> Made:
    """Make a swarm and store all of it in the data directory.

    Raises `UserError` for whatever is wrong with the file (`MANIFEST`), the texts (`DATA_MISSING`),
    the data directory or the key.
    """
    draft = _read(settings)
    data = DataDir(settings.data_dir)
    data.create()
    with data.lock():
        founder = open_identity(data, settings.passphrase).peer
        admission = _admission(draft.file, settings.manifest, founder)
        corpus = draft.corpus(data, progress)
        tokens = corpus.summary.tokens + corpus.summary.heldout_tokens
        data.require_free(tokens * draft.tokenizer.token_bytes, "the training data")
        store = BlobStore(data.blobs)
        shards, heldout = corpus.store(store, progress)
        initial = await _initial(draft, settings.manifest, data.blobs, progress)
        manifest = draft.manifest(
            settings, store, corpus.summary, shards, heldout, initial, admission, founder
        )
        _store_manifest(manifest, data, store, settings.manifest)
        made = _made(draft, manifest, corpus, manifest.data.samples)
        write_atomically(data.logs / "create.json", json.dumps(made.facts(), indent=1).encode())
        shutil.rmtree(data.making, ignore_errors=True)
    return made


async def dry_run(settings: CreateSettings, progress: Progress) -> Made:
    """What `create_swarm` would make, and how long a round of it takes here.

    The tokens stay in the data directory, so that `create_swarm` need not make them again; nothing
    else does. Raises what that raises, and what the device has to say.
    """
    draft = _read(settings)
    data = DataDir(settings.data_dir)
    data.create()
    with data.lock():
        nobody = PeerId(bytes(32))
        admission = _admission(draft.file, settings.manifest, nobody)
        corpus = draft.corpus(data, progress)
        with TemporaryDirectory(prefix=".dry-run-", dir=data.root) as scratch:
            store = BlobStore(Path(scratch))
            sample = corpus.first(draft.file.data.sequence_length * _TRIED_SEQUENCES + 1, store)
            initial = await _initial(draft, settings.manifest, store.root, progress)
            manifest = draft.manifest(
                settings, store, corpus.summary, [sample], sample, initial, admission, nobody
            )
            private = manifest.data.private is not None
            samples = manifest.data.samples if private else corpus.samples
            made = _made(draft, manifest, corpus, samples)
            # Of private data the founder measures on what is public.
            tried = replace(manifest.data, shards=(sample,), private=None)
            try:
                seconds = await _measure(
                    replace(manifest, data=tried), initial, store, settings.device, progress
                )
            except (TrainerFailed, TrainerDied) as error:
                raise explain_trainer(error, data.root) from error
    return replace(made, forecast=replace(made.forecast, **seconds))


async def _measure(
    manifest: Manifest, initial: InitialModel, store: BlobStore, device: str, progress: Progress
) -> dict[str, float]:
    """The seconds that a sequence, and the rest of a round, take on this machine."""
    what = "measuring a round"
    progress(what, 0, 1)
    spec = TrainerSpec(manifest.encode(), store.root, device=device)
    async with open_trainer(spec) as trainer:
        await trainer.load(decode_any_blob_list(initial.blob_list).chunks)
        samples = range(manifest.data.samples)
        # The first one waits for libraries and memory.
        await trainer.train(1, samples[:1])
        trained = await trainer.train(2, samples)
        applied = await trainer.apply(2, [trained.body], 1e-6, True, [1])
    progress(what, 1, 1)
    return {
        "sequence_seconds": trained.compute_seconds / len(samples),
        "update_seconds": trained.encode_seconds + applied.seconds,
    }


@dataclass(frozen=True)
class _Draft:
    """A founder's file and what belongs to it, before any text is read."""

    file: FoundersFile
    tokenizer: Tokenizer
    model: dict[str, Any]
    checkpoint: Path | None
    lora: LoraTable | None
    found: list[Found]
    end: tuple[int, ...]
    special: TokenizerSettings
    task: TaskPlan

    @property
    def images(self) -> bool:
        """Whether images are learned from."""
        return self.file.task == DIFFUSION

    def corpus(self, data: DataDir, progress: Progress) -> Corpus:
        """Read all text."""
        # What ends a conversation is within it.
        end = self.end if self.task.chat is None else ()
        filler = self.task.filler
        wanted = "both" if self.file.data.policy == "shared" else "heldout"
        return read_corpus(
            self.file, self.found, self.tokenizer, end, data, progress, filler, wanted
        )

    def private(self) -> PrivateSpec | None:
        """What members are told about data of their own, if they have some."""
        table, run = self.file.data, self.file.schedule.total_rounds * self.file.rounds.sequences
        if table.policy == "shared":
            return None
        return PrivateSpec(
            epoch=table.epoch or min(run, 1 << 40),
            raw_bytes=isinstance(self.tokenizer, ByteTokenizer),
            end=self.end,
            filler=self.task.filler,
            format=table.format,
            text=table.text,
            template=table.template,
            messages=table.messages,
            prompt=table.prompt,
            completion=table.completion,
            token_width=table.token_width,
            deduplicate=table.deduplicate,
            max_bad=table.max_bad,
            max_epsilon=table.max_epsilon,
            max_delta=table.max_delta,
        )

    def manifest(
        self,
        settings: CreateSettings,
        store: BlobStore,
        summary: DataSummary,
        shards: list[ShardSpec],
        heldout: ShardSpec,
        initial: InitialModel,
        admission: AdmissionSpec,
        founder: PeerId,
    ) -> Manifest:
        """The manifest of these parts. Raises `UserError` (`MANIFEST`)."""
        file, private = self.file, self.private()
        marked = self.task.chat is not None
        optimizer = usual_optimizer(file, settings.manifest, initial.parameters)
        try:
            return Manifest(
                name=file.name,
                task=file.task,
                seed=file.seed,
                model=self.model,
                parameters=tuple(initial.parameters),
                initial=store.put(initial.blob_list),
                data=DataSpec(
                    sequence_length=file.data.sequence_length,
                    token_bytes=self.tokenizer.token_bytes,
                    vocabulary=self.tokenizer.vocabulary,
                    shards=tuple(shards) if private is None else (),
                    heldout=heldout,
                    tokenizer=store.put(self.tokenizer.definition),
                    mirrors=file.data.mirrors,
                    tokenizer_settings=_store_settings(self.special, store),
                    end_token=self.end[0] if len(self.end) == 1 else None,
                    attention=file.data.attention or ("document" if marked else "sequence"),
                    marked=marked,
                    sources=_sources(file.data, summary),
                    private=private,
                ),
                optimizer=optimizer,
                schedule=self._schedule(optimizer, initial),
                rounds=file.rounds,
                admission=admission,
                fault_model=file.fault_model,
                founder=founder,
                adapter=initial.adapter,
                task_settings=self.task.settings,
                checks=file.checks,
                speakers=file.speakers,
            )
        except ValueError as error:
            raise bad_manifest(settings.manifest, str(error)) from None

    def _schedule(self, optimizer: OptimizerSpec, initial: InitialModel) -> ScheduleSpec:
        # Rates were found for new and whole models of language; others begin where the file says.
        if self.images or self.checkpoint is not None or initial.adapter is not None:
            return self.file.schedule
        elements = sum(spec.elements for spec in initial.parameters)
        return usual_schedule(self.file, optimizer, elements)


def _read(settings: CreateSettings) -> _Draft:
    """Read the file and what it names, but no text. Raises `UserError` (`MANIFEST`, `DATA_MISSING`)."""
    file = read_manifest_file(settings.manifest)
    if file.task == DIFFUSION:
        return _read_images(file, settings)
    source = tokenizer_file(file, settings.manifest)
    named = BYTES_TOKENIZER if source is None else str(source)
    file = replace(file, data=replace(file.data, tokenizer=named))
    tokenizer = ByteTokenizer() if source is None else FileTokenizer(source)
    special = settings_for(tokenizer, source, file, settings.manifest)
    model, checkpoint, lora = _model(file, settings.manifest, tokenizer.vocabulary)
    check_fit(model["vocab_size"], tokenizer, file, settings.manifest)
    end = end_tokens(file.data, tokenizer, settings.manifest)
    task = plan_task(file, settings.manifest, tokenizer, special, model, end)
    found = find_sources(file, settings.manifest, settings.data, task.chat)
    return _Draft(file, task.tokenizer, model, checkpoint, lora, found, end, special, task)


def _read_images(file: FoundersFile, settings: CreateSettings) -> _Draft:
    images = plan_images(file, settings.manifest)
    try:
        for key in ("checkpoint", "lora"):
            if key in file.model:
                raise StructureError(
                    f"model.{key}", "models of images begin anew here: give a configuration"
                )
        model = complete_denoiser(dict(file.model), images)
    except StructureError as error:
        raise bad_manifest(settings.manifest, str(error)) from None
    found = find_sources(file, settings.manifest, settings.data, images=images)
    # To all that follows an image is a sequence of bytes.
    file = replace(file, data=replace(file.data, sequence_length=images.sample_bytes))
    task = TaskPlan(ImageTokenizer(), None, to_plain(images, named=True))
    special = TokenizerSettings()
    return _Draft(file, task.tokenizer, model, None, None, found, (), special, task)


async def _initial(draft: _Draft, path: Path, blobs: Path, progress: Progress) -> InitialModel:
    what = "initialising the model"
    progress(what, 0, 1)
    try:
        initial = await initialise_model(
            draft.model,
            draft.file.seed,
            draft.checkpoint,
            blobs,
            _INITIAL_DEVICE,
            None if draft.lora is None else _wanted(draft.lora),
        )
    except TrainerFailed as error:
        if error.kind in ("bad_model", "bad_snapshot"):
            raise bad_manifest(path, f"model: {error}") from None
        raise explain_trainer(error, blobs) from error
    except TrainerDied as error:
        raise explain_trainer(error) from error
    progress(what, 1, 1)
    return initial


def _wanted(lora: LoraTable) -> dict[str, Any]:
    """What the trainer is told of adapters."""
    alpha = 2.0 * lora.rank if lora.alpha is None else lora.alpha
    return {"rank": lora.rank, "alpha": alpha, "targets": list(lora.targets)}


def _made(draft: _Draft, manifest: Manifest, corpus: Corpus, samples: int) -> Made:
    file = draft.file
    expected = forecast(
        manifest.parameters,
        corpus.summary,
        samples,
        manifest.optimizer,
        manifest.schedule,
        file.rounds,
        speakers=manifest.speakers,
        frozen=manifest.frozen_elements,
    )
    warning = None
    # What was found is of whole models, and of language.
    if manifest.adapter is None and not draft.images:
        warning = rate_warning(manifest.schedule, manifest.elements, manifest.optimizer.step)
    return Made(
        manifest=manifest,
        data=corpus.summary,
        forecast=expected,
        warnings=() if warning is None else (warning,),
    )


def _sources(table: DataTable, summary: DataSummary) -> tuple[SourceSpec, ...] | None:
    """What everybody is told of several sources. Those without a name have a number: what a founder's
    files are called is nobody else's business."""
    if not table.source:
        return None
    return tuple(
        SourceSpec(
            name=given.name or str(number),
            documents=found.read.documents - found.duplicates,
            tokens=found.tokens,
            share=round(found.share, 6),
        )
        for number, (given, found) in enumerate(zip(table.source, summary.sources, strict=True), 1)
    )


def _store_settings(settings: TokenizerSettings, store: BlobStore) -> ContentId | None:
    # Without any a swarm keeps the swarm-id that it had before there were such settings.
    return None if settings == TokenizerSettings() else store.put(settings.encode())


def _model(
    file: ManifestFile, path: Path, vocabulary: int
) -> tuple[dict[str, Any], Path | None, LoraTable | None]:
    """The model's configuration, complete, the checkpoint's directory if it starts from one, and what
    adapters it gets if any."""
    config = dict(file.model)
    named, table = config.pop("checkpoint", None), config.pop("lora", None)
    try:
        lora = None if table is None else _lora(table, named is not None)
        if named is None:
            checkpoint = None
        elif not isinstance(named, str) or config:
            raise StructureError(
                "model.checkpoint",
                "must be the path of a directory; the other keys of [model] then come from there",
            )
        else:
            checkpoint = path.parent / named
            config = read_checkpoint_config(checkpoint)
        return (
            complete_model(
                config, vocabulary=vocabulary, sequence_length=file.data.sequence_length
            ),
            checkpoint,
            lora,
        )
    except StructureError as error:
        raise bad_manifest(path, str(error)) from None


def _lora(table: Any, has_checkpoint: bool) -> LoraTable:
    try:
        lora = from_plain(LoraTable, table, named=True)
    except StructureError as error:
        raise error.inside("model.lora") from None
    if not has_checkpoint:
        raise StructureError(
            "model.lora",
            "needs model.checkpoint: adapters are trained beside weights that know something",
        )
    return lora


def _admission(file: ManifestFile, path: Path, founder: PeerId) -> AdmissionSpec:
    table = file.admission
    issuer = None
    if table.issuer is not None:
        try:
            issuer = peer_from_text(table.issuer)
        except ValueError as error:
            raise bad_manifest(path, f"admission.issuer: {error}") from None
    elif table.policy == "invite":
        issuer = founder
    try:
        return AdmissionSpec(policy=table.policy, issuer=issuer, max_members=table.max_members)
    except ValueError as error:
        raise bad_manifest(path, f"admission: {error}") from None


def _store_manifest(manifest: Manifest, data: DataDir, store: BlobStore, path: Path) -> None:
    encoded = manifest.encode()
    if len(encoded) > MAX_MANIFEST_BYTES:
        raise bad_manifest(path, "makes a manifest too large to be passed around: use less data")
    # If members could not read something back, it is found out here and not by them.
    swarm = manifest.swarm
    decode_manifest(encoded, swarm)
    if content_id(encoded) != store.put(encoded):
        raise AssertionError("the blob store names a blob otherwise than the protocol does")
    path = data.swarm(swarm).manifest
    path.parent.mkdir(mode=0o700, exist_ok=True)
    write_atomically(path, encoded)
