"""Making a swarm: from a founder's file and texts to a manifest whose hash is the swarm-id.

The same file, texts, founder and versions of the libraries give the same swarm-id. What is made
lies in the founder's data directory, complete, before the id is told to anybody.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...crypto.hashing import content_id
from ...crypto.identity import PeerId, peer_from_text
from ...protocol.wire.manifest import (
    MAX_MANIFEST_BYTES,
    AdmissionSpec,
    DataSpec,
    Manifest,
    ShardSpec,
    decode_manifest,
)
from ...protocol.wire.structure import StructureError
from ..errors import ExitCode, UserError
from ..storage.atomic_write import write_atomically
from ..storage.blob_store import BlobStore
from ..storage.data_dir import DataDir, open_identity
from ..trainer.client import initialise_model
from ..trainer.errors import TrainerDied, TrainerFailed
from ..trainer.explain import explain_trainer
from .corpus import Corpus, Piece, Progress, find_files, mixed, split, write_shards
from .manifest_file import BYTES_TOKENIZER, ManifestFile, bad_manifest, read_manifest_file
from .model_config import complete_model, read_checkpoint_config
from .tokens import ByteTokenizer, FileTokenizer, Tokenizer

# The initial parameters are drawn on the CPU wherever the founder trains: the same seed gives the
# same swarm on a machine with a GPU and on one without.
_INITIAL_DEVICE = "cpu"


@dataclass(frozen=True, kw_only=True)
class CreateSettings:
    """What `create_swarm` needs to know."""

    manifest: Path
    data: tuple[Path, ...]
    """Files and directories; empty: those named in the file."""
    data_dir: Path
    passphrase: str | None


async def create_swarm(settings: CreateSettings, progress: Progress) -> Manifest:
    """Make a swarm and store all of it in the data directory.

    Raises `UserError` for whatever is wrong with the file (`MANIFEST`), the texts (`DATA_MISSING`),
    the data directory or the key.
    """
    file = read_manifest_file(settings.manifest)
    base = settings.manifest.parent
    tokenizer = _tokenizer(file, base)
    model, checkpoint = _model(file, settings.manifest, tokenizer.vocabulary)
    paths = settings.data or tuple(base / path for path in file.data.paths)
    files = find_files(paths, file.data.include)
    data = DataDir(settings.data_dir)
    data.create()
    with data.lock():
        founder = open_identity(data, settings.passphrase).peer
        admission = _admission(file, settings.manifest, founder)
        corpus = split(files, file.data.heldout, file.data.heldout_fraction)
        # At the most: no tokenizer makes more tokens than there are bytes, nor twice the bytes of
        # the usual text.
        data.require_free(corpus.size * min(2, tokenizer.token_bytes), "the training data")
        store = BlobStore(data.blobs)
        shards, heldout = _store_corpus(corpus, file, tokenizer, store, progress)
        progress("initialising the model", 0, 1)
        try:
            initial = await initialise_model(
                model, file.seed, checkpoint, data.blobs, _INITIAL_DEVICE
            )
        except TrainerFailed as error:
            if error.kind in ("bad_model", "bad_snapshot"):
                raise bad_manifest(settings.manifest, f"model: {error}") from None
            raise explain_trainer(error, data.blobs) from error
        except TrainerDied as error:
            raise explain_trainer(error) from error
        progress("initialising the model", 1, 1)
        try:
            manifest = Manifest(
                name=file.name,
                task=file.task,
                seed=file.seed,
                model=model,
                parameters=tuple(initial.parameters),
                initial=store.put(initial.blob_list),
                data=DataSpec(
                    sequence_length=file.data.sequence_length,
                    token_bytes=tokenizer.token_bytes,
                    vocabulary=tokenizer.vocabulary,
                    shards=tuple(shards),
                    heldout=heldout,
                    tokenizer=store.put(tokenizer.definition),
                    mirrors=file.data.mirrors,
                ),
                optimizer=file.optimizer,
                schedule=file.schedule,
                rounds=file.rounds,
                admission=admission,
                fault_model=file.fault_model,
                founder=founder,
            )
        except ValueError as error:
            raise bad_manifest(settings.manifest, str(error)) from None
        _store_manifest(manifest, data, store, settings.manifest)
    return manifest


def _tokenizer(file: ManifestFile, base: Path) -> Tokenizer:
    if file.data.tokenizer == BYTES_TOKENIZER:
        return ByteTokenizer()
    return FileTokenizer(base / file.data.tokenizer)


def _model(file: ManifestFile, path: Path, vocabulary: int) -> tuple[dict[str, Any], Path | None]:
    """The model's configuration, complete, and the checkpoint's directory if it starts from one."""
    config = dict(file.model)
    named = config.pop("checkpoint", None)
    try:
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
        )
    except StructureError as error:
        raise bad_manifest(path, str(error)) from None


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


def _store_corpus(
    corpus: Corpus,
    file: ManifestFile,
    tokenizer: Tokenizer,
    store: BlobStore,
    progress: Progress,
) -> tuple[list[ShardSpec], ShardSpec]:
    done = 0

    def advance(count: int) -> None:
        nonlocal done
        done += count
        progress("reading the training data", done, corpus.size)

    def shards_of(pieces: list[Piece]) -> list[ShardSpec]:
        shards = write_shards(pieces, tokenizer, file.data.document_end, store, advance)
        # A short one at the end may hold no whole sequence; it would be fetched for nothing.
        return [shard for shard in shards if shard.tokens > file.data.sequence_length]

    training = shards_of(mixed(corpus.training))
    heldout = shards_of(list(corpus.heldout))
    for part, shards in (("training", training), ("held-out", heldout)):
        if not shards:
            raise UserError(
                ExitCode.DATA_MISSING,
                f"the {part} text is shorter than one sequence "
                f"({file.data.sequence_length + 1} tokens)",
                "give more text with --data, or a smaller sequence_length in [data]",
            )
    # Evaluation reads one shard: 64 MB of held-out tokens are far more than it needs.
    return training, heldout[0]


def _store_manifest(manifest: Manifest, data: DataDir, store: BlobStore, path: Path) -> None:
    encoded = manifest.encode()
    if len(encoded) > MAX_MANIFEST_BYTES:
        raise bad_manifest(path, "makes a manifest too large to be passed around: use less data")
    # Whatever could not be read back by every member is found out here and not by them.
    swarm = manifest.swarm
    decode_manifest(encoded, swarm)
    if content_id(encoded) != store.put(encoded):
        raise AssertionError("the blob store names a blob otherwise than the protocol does")
    place = data.swarm(swarm).manifest
    place.parent.mkdir(mode=0o700, exist_ok=True)
    write_atomically(place, encoded)
