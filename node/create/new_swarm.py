"""Creation of a swarm: from a founder's manifest file and data (texts or images) to a manifest whose
hash is the swarm-id.

The same file, data, founder and versions of the libraries give the same swarm-id (with preference pairs:
on the same machine). Everything that belongs to the swarm is in the founder's data directory before the
swarm-id is shown; before that, all blobs are in a scratch folder.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ...crypto.hashing import content_id
from ...crypto.identity import PeerId
from ...protocol.wire.blobs import decode_any_blob_list
from ...protocol.wire.manifest import (
    MAX_MANIFEST_BYTES,
    AdmissionSpec,
    Manifest,
    ShardSpec,
    SourceSpec,
    decode_manifest,
)
from ..settings.components import TrainerSettings
from ..storage.atomic_write import write_atomically
from ..storage.blob_store import BlobStore
from ..storage.data_dir import DataDir, open_identity
from ..training.answers import InitialModel
from ..training.client import TrainerSpec, open_trainer
from ..training.error_messages import explain_trainer
from ..training.errors import TrainerDied, TrainerFailed
from ..training.initial_model import initialise_model
from ..training.task_names import CLASSIFICATION, ON_IMAGES
from ..util.progress import ShowProgress
from .checkpoint import tokenizer_warning
from .corpus import TokenisedCorpus
from .features import features_of
from .file_feature import FileFeature
from .manifest_draft import ManifestDraft, read_draft
from .manifest_file import DataTable, bad_manifest
from .rates import rate_warning
from .reference_margins import store_with_margins
from .summary import DataSummary, Forecast, forecast

# The initial parameters are drawn on the CPU wherever the founder trains: the same seed gives the
# same swarm on a machine with a GPU and on one without.
_INITIAL_DEVICE = "cpu"
# Sequences that a dry run trains on: as many as a micro-batch of a small model, so that the time for one
# sequence does not include much fixed cost.
_DRY_RUN_SEQUENCES = 4
_UNAUDITED_NOTICE = (
    "Anyone with the link may join, and no work is audited. If members do not know each other,\n"
    "add a table [audits] to the file (docs/founders-file.md)."
)


@dataclass(frozen=True, kw_only=True)
class CreateSettings:
    """The arguments of `create_swarm`."""

    manifest: Path
    data: tuple[Path | str, ...]
    """Files, directories and addresses that begin with hf://; empty: those named in the file."""
    data_dir: Path
    passphrase: str | None
    device: str = "auto"
    """The device on which a dry run measures, and on which the initial model compares pairs."""
    public: bool = False
    """Whether to make the swarm public, even if the file does not."""


@dataclass(frozen=True, kw_only=True)
class NewSwarm:
    """The properties of a new swarm, or of one that a dry run describes."""

    manifest: Manifest
    data: DataSummary
    forecast: Forecast
    warnings: tuple[str, ...]
    borders: str | None
    """The line on what documents start and end with; None for images."""
    document_start: str | None
    """The text of the start token; None if documents have none."""
    strangers_notice: str | None
    """What the founder should know because strangers may join; None: nothing, or they may not."""

    def facts(self) -> dict[str, Any]:
        """Return the properties as JSON for programs."""
        manifest = self.manifest
        return {
            "name": manifest.name,
            "parameters": manifest.elements,
            "frozen_parameters": manifest.frozen_elements,
            "samples": manifest.data.samples,
            "tokens": sum(shard.tokens for shard in manifest.data.shards),
            "heldout_tokens": manifest.data.heldout.tokens,
            **self.data.facts(),
            "document_start": self.document_start,
            "forecast": self.forecast.facts(),
            "warnings": list(self.warnings),
        }


async def create_swarm(settings: CreateSettings, progress: ShowProgress) -> NewSwarm:
    """Create a swarm and store everything that belongs to it in the data directory.

    Raises `UserError` for a fault of the file (`MANIFEST`), the texts (`DATA_MISSING`), the data
    directory or the key.
    """
    draft = read_draft(settings.manifest, settings.data)
    data = DataDir(settings.data_dir)
    data.create()
    with data.lock(), data.scratch() as scratch, _explained(data):
        founder = open_identity(data, settings.passphrase).peer
        admission = draft.admission(founder, public=settings.public)
        store = BlobStore(scratch)
        initial = await _initial(draft, store, admission, founder, progress)
        corpus = draft.corpus(data, progress)
        tokens = corpus.summary.tokens + corpus.summary.heldout_tokens
        data.require_free(tokens * draft.tokenizer.token_bytes, "the training data")
        shards, heldout = corpus.store(store, progress)
        sources = _sources(draft.file.data, corpus.summary)
        manifest = draft.manifest(store, sources, shards, heldout, initial, admission, founder)
        if draft.task.pairs:
            shards, heldout = await store_with_margins(
                manifest, initial, store, data.token_caches, settings.device, progress
            )
            manifest = draft.manifest(store, sources, shards, heldout, initial, admission, founder)
        _store_manifest(manifest, data, store, settings.manifest)
        swarm = _new_swarm(draft, manifest, corpus, manifest.data.samples)
        write_atomically(data.logs / "create.json", json.dumps(swarm.facts(), indent=1).encode())
        shutil.rmtree(data.token_caches, ignore_errors=True)
    return swarm


async def dry_run(settings: CreateSettings, progress: ShowProgress) -> NewSwarm:
    """Return what `create_swarm` would create, and how long a round of it takes here.

    Only the tokenised data stays in the data directory, so that `create_swarm` need not tokenise it
    again. Raises what `create_swarm` raises, and `UserError` for a fault of the device.
    """
    draft = read_draft(settings.manifest, settings.data)
    data = DataDir(settings.data_dir)
    data.create()
    with data.lock(), data.scratch() as scratch, _explained(data):
        nobody = PeerId(bytes(32))
        admission = draft.admission(nobody, public=settings.public)
        store = BlobStore(scratch)
        initial = await _initial(draft, store, admission, nobody, progress)
        corpus = draft.corpus(data, progress)
        sample = corpus.store_excerpt(
            draft.file.data.sequence_length * _DRY_RUN_SEQUENCES + 1, store
        )
        sources = _sources(draft.file.data, corpus.summary)
        manifest = draft.manifest(store, sources, [sample], sample, initial, admission, nobody)
        private = manifest.data.private is not None
        samples = manifest.data.samples if private else corpus.samples
        swarm = _new_swarm(draft, manifest, corpus, samples)
        # In a swarm with private data the measurement uses the founder's public, held-out text.
        trial_data = replace(manifest.data, shards=(sample,), private=None)
        seconds = await _measure(
            *(replace(manifest, data=trial_data), features_of(draft.file)),
            *(initial, store, settings.device, progress),
        )
    return replace(swarm, forecast=replace(swarm.forecast, **seconds))


@contextmanager
def _explained(data: DataDir) -> Iterator[None]:
    """Convert errors of the trainer to `UserError`."""
    try:
        yield
    except (TrainerFailed, TrainerDied) as error:
        raise explain_trainer(error, data.root) from error


async def _measure(
    manifest: Manifest,
    features: Sequence[FileFeature],
    initial: InitialModel,
    store: BlobStore,
    device: str,
    progress: ShowProgress,
) -> dict[str, float]:
    """Measure how many seconds a sequence takes on this machine, and how many the rest of a round."""
    start, what = "starting the trainer to measure", "measuring a round"
    progress(start, 0, 1)
    spec = TrainerSpec(manifest.encode(), store.root, TrainerSettings(device=device))
    async with open_trainer(spec) as trainer:
        progress(start, 1, 1)
        progress(what, 0, 1)
        await trainer.load(decode_any_blob_list(initial.blob_list).chunks)
        samples = range(manifest.data.samples)
        # The first training includes loading libraries and allocating memory, and is not measured.
        await trainer.train(1, samples[:1])
        trained = await trainer.train(2, samples)
        # What the member computes to agree on a step: with committees, the aggregation.
        started = time.monotonic()
        body = trained.body
        for feature in features:
            body = feature.agreed_body(manifest, 2, body)
        agreeing_seconds = time.monotonic() - started
        # 1e-6: a learning rate; True: the own update counts; 1: its weight.
        applied = await trainer.apply(2, [body], 1e-6, True, [1])
    progress(what, 1, 1)
    return {
        "sequence_seconds": trained.compute_seconds / len(samples),
        "update_seconds": trained.encode_seconds + agreeing_seconds + applied.seconds,
    }


async def _initial(
    draft: ManifestDraft,
    store: BlobStore,
    admission: AdmissionSpec,
    founder: PeerId,
    progress: ShowProgress,
) -> InitialModel:
    """Return the initial model, after a check that a manifest can be made with it.

    Reading the texts may take hours, so all other faults of the manifest are reported before. Raises
    `UserError` (`MANIFEST`).
    """
    # A placeholder for the training and held-out data, which are read later.
    text = ShardSpec(blob=content_id(b""), tokens=draft.file.data.sequence_length + 1)

    def described(initial: InitialModel) -> Manifest:
        return draft.manifest(store, None, [text], text, initial, admission, founder)

    return await _initialised(draft, store.root, described, progress)


async def _initialised(
    draft: ManifestDraft,
    blobs: Path,
    describe: Callable[[InitialModel], Manifest],
    progress: ShowProgress,
) -> InitialModel:
    """Initialise the model in a trainer process, which stores it in `blobs`."""
    start, what = "starting the trainer", "initialising the model"

    def started() -> None:
        progress(start, 1, 1)
        progress(what, 0, 1)

    progress(start, 0, 1)
    try:
        initial = await initialise_model(
            draft.model,
            draft.file.seed,
            draft.checkpoint,
            blobs,
            _INITIAL_DEVICE,
            None if draft.lora is None else draft.lora.for_trainer(),
            describe,
            started,
        )
    except TrainerFailed as error:
        if error.kind in ("bad_model", "bad_snapshot"):
            raise bad_manifest(draft.path, f"model: {error}") from None
        raise
    progress(what, 1, 1)
    return initial


def _new_swarm(
    draft: ManifestDraft, manifest: Manifest, corpus: TokenisedCorpus, samples: int
) -> NewSwarm:
    file, features = draft.file, features_of(draft.file)
    swarm_forecast = forecast(
        manifest.parameters,
        corpus.summary,
        samples,
        manifest.optimizer,
        manifest.schedule,
        file.rounds,
        features=manifest.features,
        frozen=manifest.frozen_elements,
        fresh=draft.checkpoint is None,
    )
    for feature in features:
        swarm_forecast = feature.settle_forecast(swarm_forecast)
    warnings = [corpus.summary.warning]
    # The best rates were measured for language models trained as a whole, without adapters.
    if manifest.adapter is None and manifest.task not in (*ON_IMAGES, *CLASSIFICATION):
        warnings.append(
            rate_warning(
                *(manifest.schedule, manifest.elements, manifest.optimizer.step),
                manifest.rounds.local_steps,
            )
        )
    if draft.special.chat_date is not None and file.data.chat_date is None:
        warnings.append(
            f"the chat template writes the date, which is fixed to {draft.special.chat_date} for all "
            "members (set `chat_date` in [data] for another)"
        )
    if not draft.images:
        family, has_conversations = manifest.model["model_type"], draft.task.chat is not None
        warnings.append(draft.start.warning(family, conversations=has_conversations))
        warnings.append(tokenizer_warning(family, draft.tokenizer.definition))
    return NewSwarm(
        manifest=manifest,
        data=corpus.summary,
        forecast=swarm_forecast,
        borders=None if draft.images else draft.borders_line(),
        document_start=draft.start.text,
        strangers_notice=_strangers_notice(manifest, features),
        warnings=tuple(warning for warning in warnings if warning is not None),
    )


def _strangers_notice(manifest: Manifest, features: Sequence[FileFeature]) -> str | None:
    if manifest.admission.policy != "open":
        return None
    could_audit = manifest.optimizer.preconditioner in ("orthogonal", "muon")
    if could_audit and not features:
        return _UNAUDITED_NOTICE
    return next((each.strangers_notice for each in features if each.strangers_notice), None)


def _sources(table: DataTable, summary: DataSummary) -> tuple[SourceSpec, ...] | None:
    """Return the public description of the sources; None without `[[data.source]]`. A source without a
    name gets a number, because the names of a founder's files are private."""
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


def _store_manifest(manifest: Manifest, data: DataDir, made: BlobStore, path: Path) -> None:
    """Store a manifest, and the blobs `made` for it: they are moved only now, because nothing would ever
    remove those of a swarm that does not come to be."""
    encoded = manifest.encode()
    if len(encoded) > MAX_MANIFEST_BYTES:
        raise bad_manifest(
            path, f"makes a manifest larger than {MAX_MANIFEST_BYTES >> 10} KiB: use less data"
        )
    # Decoded here, so that a value that members could not read is found now and not by them.
    swarm = manifest.swarm
    decode_manifest(encoded, swarm)
    if content_id(encoded) != made.put(encoded):
        raise AssertionError("the blob store's content id differs from the protocol's")
    BlobStore(data.blobs).take(made)
    path = data.swarm(swarm).manifest
    path.parent.mkdir(mode=0o700, exist_ok=True)
    write_atomically(path, encoded)
