"""Ingest of a member's own files: they are tokenized as the manifest (`PrivateSpec`) states.

The code of `create` finds, reads, checks and tokenizes them; nothing is held out. This runs in the
reader process (`__main__`), because tokenizer and chat template are untrusted.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import get_args

from blake3 import blake3

from ...protocol.wire.encoding import encode
from ...protocol.wire.manifest import Manifest, PrivateSpec
from ...protocol.wire.structure import StructureError
from ..create.borders import Borders
from ..create.conversations import ConversationTokenizer
from ..create.corpus import find_sources, read_corpus
from ..create.data_kinds import PLAIN_TEXT, Conversations
from ..create.formats import Format
from ..create.manifest_file import DataTable, ManifestFile, bad_manifest
from ..create.tokenisation import TokenisationOptions, cache_name
from ..create.tokens import ByteTokenizer, FileTokenizer, Tokenizer
from ..errors import ExitCode, UserError
from ..storage.blob_store import BlobStore
from ..storage.data_dir import DataDir
from ..training.chat import BadTemplate, ChatTemplate
from ..training.resource_limits import limited
from ..training.task_names import SFT
from ..training.tokenizer_settings import TokenizerSettings, decode_settings
from ..util.progress import ShowProgress
from .exclusions import exclusions_in, skipped_files
from .store import PrivateFolder, PrivateIndex, read_index, write_state

# Version of the stored result: a new number makes every member's node read its files again.
_FORMAT = 2
# What messages name instead of the founder's file, which members do not have.
_DESCRIPTION = Path("the swarm's manifest")


def read_own(
    manifest: Manifest, blobs: BlobStore, paths: Sequence[Path], root: Path, progress: ShowProgress
) -> PrivateIndex:
    """Tokenize the files at `paths` into the folder `root`; an existing result of the same files is
    reused. `blobs` has the swarm's tokenizer.

    Raises `UserError` with `DATA_MISSING` for problems of the files, with `MANIFEST` for problems of the
    manifest or tokenizer; `TrainerFailed` if loading the tokenizer takes too much time or memory.
    """
    spec, folder = manifest.data.private, PrivateFolder(root)
    if spec is None:
        raise bad_manifest(
            _DESCRIPTION, "its data is shared, so members bring no data of their own"
        )
    file = _as_file(manifest, spec)
    with limited("bad_data", "loading the swarm's tokenizer"):
        tokenizer, chat, known_start = _tokenizer(manifest, spec, blobs)
    borders = Borders()
    if chat is None:
        borders = Borders(spec.end, manifest.data.start_token, known_start)
    try:
        kind = PLAIN_TEXT if chat is None else Conversations(chat)
        source_files = find_sources(file, _DESCRIPTION, paths, kind)
        options = TokenisationOptions(tokenizer, borders, file.data.sequence_length, spec.max_bad)
        cache_names = [cache_name(each.source, each.files, options) for each in source_files]
        facts = (
            _FORMAT,
            cache_names,
            encode(spec, named=True).hex(),
            manifest.data.sequence_length,
        )
        name = blake3(repr(facts).encode()).hexdigest()[:32]
        known_index = read_index(folder, name)
        # The files that are not read may have changed although those that are read have not.
        skipped = skipped_files(each.skipped for each in source_files)
        if known_index is not None:
            if known_index.skipped != skipped:
                known_index = replace(known_index, skipped=skipped)
                write_state(folder.index, known_index)
            return known_index
        work_dir = DataDir(root)
        for each in (root, work_dir.logs):
            each.mkdir(parents=True, exist_ok=True, mode=0o700)
        corpus = read_corpus(
            *(file, source_files, tokenizer, borders, work_dir, progress),
            *(spec.filler, "training", kind),
        )
        # The data stored so far is of other files, or was read in another way.
        shutil.rmtree(folder.stores, ignore_errors=True)
        shards, _ = corpus.store_wanted(folder.blobs(name), progress)
    except UserError as error:
        if error.code != ExitCode.DATA_MISSING:
            raise
        # The remedies for founders concern the founder's file, which members cannot change.
        remedy = "the swarm's manifest defines how files are read: give other files with --data"
        raise UserError(error.code, error.problem, remedy) from None
    index = PrivateIndex(
        name=name,
        shards=tuple(shards),
        documents=corpus.summary.documents,
        bad=corpus.summary.bad,
        skipped=skipped,
        left_out=exclusions_in(corpus.summary),
    )
    write_state(folder.index, index)
    shutil.rmtree(work_dir.token_caches, ignore_errors=True)
    return index


def _as_file(manifest: Manifest, spec: PrivateSpec) -> ManifestFile:
    """Return the manifest's settings that reading files depends on, in the form of a founder's file,
    which the code of `create` takes."""
    kind: Format | None = None
    if spec.format is not None:
        kind = next((each for each in get_args(Format) if each == spec.format), None)
        if kind is None:
            raise bad_manifest(
                _DESCRIPTION, f"data.private.format: {spec.format!r} is not supported here"
            )
    return ManifestFile(
        name=manifest.name,
        task=manifest.task,
        model={},
        data=DataTable(
            sequence_length=manifest.data.sequence_length,
            format=kind,
            text=spec.text,
            template=spec.template,
            messages=spec.messages,
            prompt=spec.prompt,
            completion=spec.completion,
            token_type=spec.token_type,
            attention=manifest.data.attention,
            deduplicate=spec.deduplicate,
            max_bad=spec.max_bad,
        ),
        schedule=manifest.schedule,
        rounds=manifest.rounds,
    )


def _tokenizer(
    manifest: Manifest, spec: PrivateSpec, blobs: BlobStore
) -> tuple[Tokenizer, ChatTemplate | None, int | None]:
    """Return the tokenizer, the chat template (None unless conversations are read), and the tokenizer's
    start token."""
    data = manifest.data
    definition = blobs.get(data.tokenizer)
    if definition is None:
        raise bad_manifest(_DESCRIPTION, "its tokenizer is not on this disk: start again")
    tokenizer: Tokenizer = ByteTokenizer() if spec.raw_bytes else FileTokenizer.of(definition)
    found = None if data.tokenizer_settings is None else blobs.get(data.tokenizer_settings)
    try:
        settings = TokenizerSettings() if found is None else decode_settings(found)
    except StructureError as error:
        raise bad_manifest(_DESCRIPTION, f"the tokenizer's settings: {error}") from None
    chat = known_start = None
    if isinstance(tokenizer, FileTokenizer) and settings.bos_token is not None:
        known_start = tokenizer.id_of(settings.bos_token)
    if data.marked or manifest.task == SFT:
        if settings.chat_template is None or not isinstance(tokenizer, FileTokenizer):
            raise bad_manifest(
                _DESCRIPTION, "its tokenizer has no chat template, which its task needs"
            )
        try:
            chat = ChatTemplate(settings)
        except BadTemplate as error:
            raise bad_manifest(_DESCRIPTION, f"the chat template {error}") from None
        tokenizer = ConversationTokenizer(tokenizer, data.end_token)
    fits = (tokenizer.token_bytes, tokenizer.vocabulary) == (data.token_bytes, data.vocabulary)
    if not fits:
        raise bad_manifest(
            _DESCRIPTION, "data.tokenizer: its vocabulary differs from the one in the manifest"
        )
    return tokenizer, chat, known_start
