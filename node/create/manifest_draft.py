"""The manifest file that a founder writes, with everything it names except the texts, and the manifest
made from it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ...crypto.hashing import ContentId
from ...crypto.identity import PeerId, peer_from_text
from ...protocol.chain.features import exchange_size
from ...protocol.codec.exchange_size import check_size
from ...protocol.wire.manifest import (
    AdmissionSpec,
    DataSpec,
    Manifest,
    OptimizerSpec,
    ScheduleSpec,
    ShardSpec,
    SourceSpec,
)
from ...protocol.wire.structure import StructureError, from_plain, to_plain
from ..storage.blob_store import BlobStore
from ..storage.data_dir import DataDir
from ..training.answers import InitialModel
from ..training.architectures import ARCHITECTURES, is_bidirectional
from ..training.task_names import (
    CLASSIFICATION,
    ON_IMAGES,
    TEXT_CLASSIFICATION,
    ImageClassSettings,
    ImageSettings,
    PixelSettings,
)
from ..training.tokenizer_settings import TokenizerSettings
from ..util.progress import ShowProgress
from .borders import Borders
from .checkpoint import check_fit, settings_for, tokenizer_file
from .class_names import with_class_names
from .classification import (
    ClassifierHead,
    complete_image_classifier,
    labelled_tokenizer,
    plain_settings,
    plan_pad_token,
    text_head,
)
from .corpus import (
    SourceFiles,
    TokenisedCorpus,
    end_tokens,
    find_sources,
    read_corpus,
)
from .data_kinds import Images, LabelledTexts
from .defaults import default_optimizer, default_schedule
from .document_start import DocumentStart, document_start
from .images import ImageTokenizer
from .manifest_file import (
    BYTES_TOKENIZER,
    FoundersFile,
    LoraTable,
    ManifestFile,
    bad_manifest,
    read_manifest_file,
)
from .model_config import (
    complete_denoiser,
    complete_model,
    read_checkpoint_config,
    require_text_model,
)
from .private_data import founder_sides, private_spec
from .task import TaskPlan, check_model, check_task, plan_images, plan_task
from .tokens import ByteTokenizer, FileTokenizer, Tokenizer


@dataclass(frozen=True)
class ModelDraft:
    """The model that a founder's file describes; it does not depend on the texts."""

    config: dict[str, Any]
    """The complete configuration, as the manifest will have it."""
    sequence_length: int
    """Tokens in a training sequence; with images, bytes of a sample."""
    checkpoint: Path | None
    """The directory of the checkpoint that it starts from; None if it starts at random."""
    lora: LoraTable | None


@dataclass(frozen=True)
class ManifestDraft:
    """A founder's file with everything it names, before any text is read."""

    path: Path
    file: FoundersFile
    tokenizer: Tokenizer
    model: dict[str, Any]
    checkpoint: Path | None
    lora: LoraTable | None
    source_files: list[SourceFiles]
    start: DocumentStart
    end: tuple[int, ...]
    """Ids of the tokens that are added after each document; empty with images."""
    special: TokenizerSettings
    """The tokenizer's special tokens and its chat template."""
    task: TaskPlan

    @property
    def images(self) -> bool:
        """Whether the swarm trains on images."""
        return self.file.task in ON_IMAGES

    def corpus(self, data: DataDir, progress: ShowProgress) -> TokenisedCorpus:
        """Read and tokenise the data; only the held-out part if members train on their own."""
        # The chat template already writes the start and the end of a conversation, and the tokenizer of
        # texts with a class writes theirs; a prompt, which starts as its tokenizer marks it, has no end.
        borders = Borders()
        if not self.task.marked and self.file.task not in CLASSIFICATION:
            borders = Borders(self.end, self.start.token, self.start.known)
        filler, wanted = self.task.filler, founder_sides(self.file.data)
        return read_corpus(
            *(self.file, self.source_files, self.tokenizer, borders, data, progress),
            *(filler, wanted, self.task.kind),
        )

    def borders_line(self) -> str:
        """Return a line that says with which tokens documents start and end."""
        end = self.file.data.document_end
        if self.task.marked:
            end = None
        elif len(self.end) == 1 and isinstance(self.tokenizer, FileTokenizer):
            end = self.tokenizer.text_of(self.end[0])
        return self.start.line(end or None)

    def manifest(
        self,
        store: BlobStore,
        sources: tuple[SourceSpec, ...] | None,
        shards: list[ShardSpec],
        heldout: ShardSpec,
        initial: InitialModel,
        admission: AdmissionSpec,
        founder: PeerId,
    ) -> Manifest:
        """Return the manifest of these parts. Raises `UserError` (`MANIFEST`)."""
        file = self.file
        private = private_spec(file, self.tokenizer, self.end, self.task.filler)
        # Whether each stored token is marked as learned or not, as in conversations.
        marked = self.task.marked
        optimizer = default_optimizer(file, self.path, initial.parameters)
        try:
            manifest = Manifest(
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
                    start_token=self.start.token,
                    attention=file.data.attention or self.task.kind.attention,
                    marked=marked,
                    sources=sources,
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
                audits=file.audits,
                committees=file.committees,
                probe=initial.probe,
            )
            check_size(manifest, exchange_size(manifest.features))
        except ValueError as error:
            raise bad_manifest(self.path, str(error)) from None
        return manifest

    def _schedule(self, optimizer: OptimizerSpec, initial: InitialModel) -> ScheduleSpec:
        # Best rates were measured only for new language models without adapters; for other models the
        # file's rate, or its fixed default, is used.
        other = self.images or self.file.task in CLASSIFICATION
        if other or self.checkpoint is not None or initial.adapter is not None:
            return self.file.schedule
        elements = sum(spec.elements for spec in initial.parameters)
        return default_schedule(self.file, optimizer, elements)

    def admission(self, founder: PeerId, *, public: bool = False) -> AdmissionSpec:
        """Return the rules of admission, with `public` for a public swarm whatever the file states.
        Raises `UserError` (`MANIFEST`)."""
        table = self.file.admission
        issuer = None
        if table.issuer is not None:
            try:
                issuer = peer_from_text(table.issuer)
            except ValueError as error:
                raise bad_manifest(self.path, f"admission.issuer: {error}") from None
        elif table.policy == "invite":
            issuer = founder
        try:
            return AdmissionSpec(
                policy=table.policy,
                issuer=issuer,
                max_members=table.max_members,
                public=table.public or public,
            )
        except ValueError as error:
            raise bad_manifest(self.path, f"admission: {error}") from None


def read_model(file: FoundersFile, path: Path) -> ModelDraft:
    """Return the model of the file at `path`, the same as in the result of `read_draft` without `data`.

    If the file states the vocabulary's size, the tokenizer's file need not exist.
    Raises `UserError` (`MANIFEST`, `NO_TASK`).
    """
    file = with_class_names(file, path, ())
    if file.task in ON_IMAGES:
        model, images, checkpoint = _image_model(file, path)
        return ModelDraft(model, images.sample_bytes, checkpoint, None)
    source = tokenizer_file(file, path)
    stated = isinstance(file.model.get("vocab_size"), int)
    # A placeholder if the file states the size.
    vocabulary = 1
    if not stated or source is None or source.exists():
        tokenizer = ByteTokenizer() if source is None else FileTokenizer(source)
        vocabulary = tokenizer.vocabulary
    head = text_head(file, path, None) if file.task == TEXT_CLASSIFICATION else None
    config, checkpoint, lora = _model(file, path, vocabulary, head)
    return ModelDraft(config, file.data.sequence_length, checkpoint, lora)


def read_draft(path: Path, data: tuple[Path | str, ...]) -> ManifestDraft:
    """Read a founder's file and what it names, but no text.

    `data`: files, directories and addresses that begin with hf://; empty: those named in the file.
    Raises `UserError` (`MANIFEST`, `DATA_MISSING`).
    """
    file = with_class_names(read_manifest_file(path), path, data)
    if file.task in ON_IMAGES:
        return _read_images(file, path, data)
    source = tokenizer_file(file, path)
    named = BYTES_TOKENIZER if source is None else str(source)
    file = replace(file, data=replace(file.data, tokenizer=named))
    tokenizer = ByteTokenizer() if source is None else FileTokenizer(source)
    special = settings_for(tokenizer, source, file, path)
    if file.task == TEXT_CLASSIFICATION:
        return _read_labelled_texts(file, path, data, tokenizer, source, special)
    model, checkpoint, lora = _model(file, path, tokenizer.vocabulary)
    check_fit(model["vocab_size"], tokenizer, file, path)
    end = end_tokens(file.data, tokenizer, path)
    task = plan_task(file, path, tokenizer, special, model, end)
    start = document_start(file, path, tokenizer, source, special, model, task.chat)
    if start.token is not None and not is_bidirectional(model["model_type"]):
        special = replace(special, bos_token=start.text)
    task = task.starting_with(start.token)
    source_files = find_sources(file, path, data, task.kind)
    return ManifestDraft(
        path, file, task.tokenizer, model, checkpoint, lora, source_files, start, end, special, task
    )


def _read_labelled_texts(
    file: FoundersFile,
    path: Path,
    data: tuple[Path | str, ...],
    tokenizer: ByteTokenizer | FileTokenizer,
    source: Path | None,
    special: TokenizerSettings,
) -> ManifestDraft:
    check_task(file, path)
    settings = plan_pad_token(file, path, tokenizer, special)
    head = ClassifierHead(len(settings.classes), settings.pad_token)
    model, checkpoint, lora = _model(file, path, tokenizer.vocabulary, head)
    check_fit(model["vocab_size"], tokenizer, file, path)
    start = document_start(file, path, tokenizer, source, special, model, None)
    made = labelled_tokenizer(file, path, tokenizer, start.token, settings)
    if isinstance(tokenizer, FileTokenizer):
        # An export's tokenizer pads with the same token.
        special = replace(special, pad_token=tokenizer.text_of(settings.pad_token))
    kind = LabelledTexts(settings.classes)
    task = TaskPlan(made, None, plain_settings(settings), settings.pad_token, kind)
    source_files = find_sources(file, path, data, kind)
    return ManifestDraft(
        path, file, made, model, checkpoint, lora, source_files, start, (), special, task
    )


def _read_images(file: FoundersFile, path: Path, data: tuple[Path | str, ...]) -> ManifestDraft:
    model, images, checkpoint = _image_model(file, path)
    kind = Images(images)
    source_files = find_sources(file, path, data, kind)
    # From here on an image is handled as a sequence of bytes.
    file = replace(file, data=replace(file.data, sequence_length=images.sample_bytes))
    task = TaskPlan(ImageTokenizer(), None, to_plain(images, named=True), kind=kind)
    start, special = DocumentStart(None, None, "images have none"), TokenizerSettings()
    return ManifestDraft(
        path, file, task.tokenizer, model, checkpoint, None, source_files, start, (), special, task
    )


def _image_model(
    file: ManifestFile, path: Path
) -> tuple[dict[str, Any], PixelSettings, Path | None]:
    """Return a model of images, the settings of its task, and the checkpoint that it starts from."""
    named = file.model.get("checkpoint")
    checkpoint = path.parent / named if isinstance(named, str) else None
    images = plan_images(file, path, checkpoint if file.task in CLASSIFICATION else None)
    if isinstance(images, ImageSettings):
        return _denoiser(file, path, images), images, None
    assert isinstance(images, ImageClassSettings)
    try:
        config, _, _ = _named_model(file, path)
        return complete_image_classifier(config, images), images, checkpoint
    except StructureError as error:
        raise bad_manifest(path, str(error)) from None


def _denoiser(file: ManifestFile, path: Path, images: ImageSettings) -> dict[str, Any]:
    try:
        for key in ("checkpoint", "lora"):
            if key in file.model:
                raise StructureError(
                    f"model.{key}",
                    "models of images are trained from scratch here: give a configuration instead",
                )
        return complete_denoiser(dict(file.model), images)
    except StructureError as error:
        raise bad_manifest(path, str(error)) from None


def _store_settings(settings: TokenizerSettings, store: BlobStore) -> ContentId | None:
    # Default settings are left out of the manifest: the swarm-id stays what it was before such settings
    # existed.
    return None if settings == TokenizerSettings() else store.put(settings.encode())


def _model(
    file: ManifestFile, path: Path, vocabulary: int, head: ClassifierHead | None = None
) -> tuple[dict[str, Any], Path | None, LoraTable | None]:
    """Return the model's complete configuration, with this head instead of one for tokens, the
    checkpoint's directory if it starts from one, and the settings of its adapters if any."""
    try:
        config, checkpoint, lora = _named_model(file, path)
        if head is not None:
            require_text_model(config)
            if config.get("model_type") in ARCHITECTURES:
                check_model(file, path, config)
            config = head.complete(config)
        elif config.get("num_labels") is not None:
            raise StructureError(
                "model.num_labels", f"belongs to tasks that name classes, and not to {file.task!r}"
            )
        return (
            complete_model(
                config,
                vocabulary=vocabulary,
                sequence_length=file.data.sequence_length,
                task=file.task,
                # A classifier's padding follows from its task.
                fresh=checkpoint is None and head is None,
            ),
            checkpoint,
            lora,
        )
    except StructureError as error:
        raise bad_manifest(path, str(error)) from None


def _named_model(
    file: ManifestFile, path: Path
) -> tuple[dict[str, Any], Path | None, LoraTable | None]:
    """Return the configuration in the file or in the checkpoint that it names, the checkpoint's
    directory if any, and the settings of adapters if any. Raises `StructureError`."""
    config = dict(file.model)
    named, table = config.pop("checkpoint", None), config.pop("lora", None)
    if table is not None and file.task in CLASSIFICATION:
        raise StructureError(
            "model.lora",
            f"the task {file.task!r} trains whole models: leave the table out, because a frozen head "
            "would learn nothing",
        )
    lora = None if table is None else _lora(table, named is not None)
    if named is None:
        return config, None, lora
    if not isinstance(named, str) or config:
        raise StructureError(
            "model.checkpoint",
            "must be the path of a directory; the other keys of [model] then come from there",
        )
    checkpoint = path.parent / named
    return read_checkpoint_config(checkpoint), checkpoint, lora


def _lora(table: Any, has_checkpoint: bool) -> LoraTable:
    try:
        lora = from_plain(LoraTable, table, named=True)
    except StructureError as error:
        raise error.inside("model.lora") from None
    if not has_checkpoint:
        raise StructureError(
            "model.lora",
            "needs model.checkpoint: adapters are trained on top of pretrained weights",
        )
    return lora
