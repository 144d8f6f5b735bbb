"""From a founder's sources to shards: finding, tokenising, holding out, mixing, storing.

The same files, patterns and tokenizer give the same shards on every machine, wherever the files are.
Memory stays at a few hundred megabytes however much text there is, and an interrupted run resumes.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import repeat
from pathlib import Path
from typing import Literal

import numpy as np

from ...protocol.wire.manifest import ShardSpec
from ..errors import UserError
from ..storage.atomic_write import write_atomically
from ..storage.blob_store import BlobStore
from ..storage.data_dir import DataDir
from ..training.task_names import CLASSIFICATION
from ..util.operating_system import map_large_blocks
from ..util.progress import ShowProgress
from .borders import Borders
from .columns import Columns
from .data_kinds import PLAIN_TEXT, DataKind, ReadData, SampleLayout
from .disk_room import DiskRoom
from .files import HUB, File, Skipped, Source, find_files, matches
from .formats import Format, unpacked_bytes
from .manifest_file import DataTable, ManifestFile, SourceTable, bad_manifest
from .mixing import (
    HeldOut,
    Side,
    SourceShare,
    TokenisedSource,
    held_share,
    hold_out_document_ends,
    hold_out_whole_documents,
    leave_out_repeated,
    trained_share,
)
from .shards import SHARD_BYTES, ShardWriter
from .shortages import missing, too_short
from .summary import DataSummary, SourceSummary
from .token_cache import ReadCounts, TokenCache, remove_others
from .tokenisation import TokenisationOptions, cache_name, tokenise
from .tokeniser_pool import open_pool
from .tokens import Tokenizer

Sides = Literal["both", "training", "heldout"]
"""Which sides of the corpus are made: training, held out, or both. In a swarm with private data all
of the founder's texts are held out, and none of a member's."""

_SIDE_NAMES = {"training": "training", "heldout": "held-out"}
_CUT_ENDING = "-cut"
# Texts, their tokens and what is unpacked come and go in blocks of megabytes, and what the C library
# keeps of freed blocks adds up to tens of megabytes.
_LARGE_BLOCK = 1 << 20
# With fewer held-out sequences than this the measured loss is imprecise.
_MIN_HELDOUT_SEQUENCES = 64


@dataclass(frozen=True)
class SourceFiles:
    """A source, with the files found in its paths."""

    source: Source
    files: list[File]
    skipped: Skipped

    @property
    def size(self) -> int:
        """Total size of its files in bytes."""
        return sum(file.size for file in self.files)


def find_sources(
    file: ManifestFile,
    path: Path,
    given: Sequence[Path | str],
    kind: DataKind = PLAIN_TEXT,
) -> list[SourceFiles]:
    """Return the sources of a manifest file, with their files; all contain data of this kind. `given`
    replaces the paths in the file.

    Raises `UserError` with `MANIFEST` if keys of [data] do not go together, and with `DATA_MISSING`
    if a path cannot be used, there is nothing to read, or a pattern holds nothing out.
    """

    def columns_of(table: SourceTable) -> Columns:
        try:
            return kind.columns(table)
        except ValueError as error:
            raise bad_manifest(path, f"data: {error}") from None

    return sources_with(file, path, given, columns_of)


def sources_with(
    file: ManifestFile,
    path: Path,
    given: Sequence[Path | str],
    columns_of: Callable[[SourceTable], Columns],
) -> list[SourceFiles]:
    """Return the sources of a manifest file, each read by the columns that `columns_of` returns for its
    table, with their files. Raises as `find_sources` does."""
    table = file.data
    if table.source and given:
        raise bad_manifest(path, "has [[data.source]], so --data cannot be given as well")
    sources = []
    for number, each in enumerate(table.source or (table,), 1):
        if "" in each.paths:
            raise bad_manifest(path, 'data.paths: an empty path; "." is the folder of this file')
        paths = tuple(
            where if isinstance(where, Path) or where.startswith(HUB) else path.parent / where
            for where in given or each.paths
        )
        name = getattr(each, "name", None) or (paths and Path(str(paths[0])).name) or str(number)
        sources.append(_source(each, str(name), paths, columns_of(each), table.heldout))
    found = [SourceFiles(source, *find_files(source)) for source in sources]
    _check_heldout([file for each in found for file in each.files], table.heldout)
    return found


def _check_heldout(files: Sequence[File], patterns: Sequence[str]) -> None:
    """Raise `UserError` (`DATA_MISSING`) for patterns in `heldout` that match no file that is read, or
    all of them together every file."""
    unused = [each for each in patterns if not any(matches(file.name, (each,)) for file in files)]
    if unused:
        raise missing(
            f"patterns in `heldout` match no file that is read: {' '.join(unused)}",
            "fix them, or leave them out",
        )
    if patterns and all(matches(file.name, patterns) for file in files):
        raise missing(
            f"the patterns in `heldout` ({' '.join(patterns)}) match every file",
            "some files must be held out, and some be left to train on",
        )


def _source(
    table: SourceTable,
    name: str,
    paths: tuple[Path | str, ...],
    columns: Columns,
    heldout: tuple[str, ...],
) -> Source:
    return Source(
        name=name,
        paths=paths,
        include=table.include,
        exclude=table.exclude,
        format=table.format,
        columns=columns,
        split=table.split,
        config=table.config,
        heldout=heldout,
        token_type=table.token_type,
        weight=getattr(table, "weight", None),
    )


def end_tokens(table: DataTable, tokenizer: Tokenizer, path: Path) -> tuple[int, ...]:
    """Return the tokens that end a document. Raises `UserError` (`MANIFEST`) if an end token is
    required and missing, or if `document_end` is several tokens where it must be one."""
    text = table.document_end
    if text is None:
        text = tokenizer.end_token()
        if text is None and tokenizer.needs_utf8:
            raise bad_manifest(
                path,
                f"data.tokenizer: {table.tokenizer} names no token that ends a document; name one with "
                'document_end, or set document_end = "" for none',
            )
    tokens = tuple(tokenizer.encode([text.encode()])[0].tolist()) if text else ()
    if text and tokenizer.needs_utf8 and len(tokens) != 1:
        raise bad_manifest(
            path,
            f"data.document_end: {text!r} is {len(tokens)} tokens of {table.tokenizer}, not one",
        )
    if table.attention == "document" and len(tokens) != 1:
        raise bad_manifest(
            path, 'data.attention: "document" needs a document_end that is one token'
        )
    return tokens


@dataclass(frozen=True)
class TokenisedCorpus:
    """All sources, tokenised and mixed, but not stored yet."""

    training: Side
    heldout: Side
    shares: list[SourceShare]
    """For each source, how much of it the training side has."""
    heldout_shares: list[SourceShare]
    """For each source, how much of it the held-out side has."""
    summary: DataSummary
    kind: DataKind
    layout: SampleLayout
    wanted: Sides = "both"

    def store(self, store: BlobStore, progress: ShowProgress) -> tuple[list[ShardSpec], ShardSpec]:
        """Put the shards into the store; return the training shards and the held-out one."""
        training, (heldout, *_) = self.store_wanted(store, progress)
        return training, heldout

    def store_wanted(
        self, store: BlobStore, progress: ShowProgress
    ) -> tuple[list[ShardSpec], list[ShardSpec]]:
        """Do the same; the list of a side that is not wanted is empty.

        Raises `UserError` (`DATA_MISSING`) if a wanted side is too short for one sequence.
        """
        total, done = self.summary.tokens + self.summary.heldout_tokens, 0

        def advance(count: int) -> None:
            nonlocal done
            done += count
            progress("mixing the training data", min(done, total), total)

        if self.kind.whole_documents:
            training, heldout = (
                self._store_rows(side, store, advance) for side in (self.training, self.heldout)
            )
            return training, heldout[:1]
        made = []
        width, length = self.layout.token_bytes, self.layout.length
        for side in (self.training, self.heldout):
            writer, written = ShardWriter(store, width), 0
            for tokens in self._pieces(side, advance):
                writer.add(tokens)
                written += len(tokens) * width
                # Evaluation reads one shard: 64 MB of held-out tokens are far more than it needs.
                if side is self.heldout and written >= SHARD_BYTES:
                    break
            # A short shard at the end may contain no whole sequence: members would fetch it in vain.
            made.append([shard for shard in writer.finish() if shard.tokens > length])
        for part, shards in zip(_SIDE_NAMES, made, strict=True):
            if not shards and self.wanted in ("both", part):
                raise too_short(_SIDE_NAMES[part], length, self.summary.sources)
        return made[0], made[1][:1]

    def store_excerpt(self, tokens: int, store: BlobStore) -> ShardSpec:
        """Store the first `tokens` tokens of the corpus as one shard, for a dry run; a corpus that has
        fewer is repeated."""
        writer, remaining = ShardWriter(store, self.layout.token_bytes), tokens
        side = self.heldout if self.wanted == "heldout" else self.training
        while remaining > 0:
            for piece in self._pieces(side, lambda _: None):
                writer.add(piece[:remaining])
                remaining -= len(piece)
                if remaining <= 0:
                    break
        return writer.finish()[0]

    @property
    def samples(self) -> int:
        """Number of training samples in the shards."""
        return self.kind.samples(self.training, self.shares, self.layout)

    def _pieces(self, side: Side, advance: Callable[[int], None]) -> Iterator[np.ndarray]:
        shares = self.shares if side is self.training else self.heldout_shares
        return self.kind.pieces(side, shares, self.layout, advance)

    def _store_rows(
        self, side: Side, store: BlobStore, advance: Callable[[int], None]
    ) -> list[ShardSpec]:
        """Store shards of whole rows. One extra number follows the last row of each shard, because a
        sample is read together with the number after it."""
        width, length = self.layout.token_bytes, self.layout.length
        writer, count = ShardWriter(store, width), 0
        last = np.array([self.layout.filler | self.layout.begin_bit], np.uint32)
        # A row longer than a shard's usual size makes a shard of its own.
        max_rows = max(1, (SHARD_BYTES // width - 1) // length)
        for row in self._pieces(side, advance):
            writer.add(row)
            count += 1
            if count % max_rows == 0:
                writer.add(last)
                writer.end_shard()
                if side is self.heldout:
                    break
        if count % max_rows:
            writer.add(last)
        return writer.finish()


def read_corpus(
    file: ManifestFile,
    source_files: Sequence[SourceFiles],
    tokenizer: Tokenizer,
    borders: Borders,
    data: DataDir,
    progress: ShowProgress,
    filler: int = 0,
    wanted: Sides = "both",
    kind: DataKind = PLAIN_TEXT,
) -> TokenisedCorpus:
    """Tokenise the sources' texts, choose what is held out, and compute each source's share.

    Parts that an interrupted run has tokenised are reused. Raises `UserError` with `DATA_MISSING` for
    a file that cannot be used, too many bad rows or too little text, with `DISK_FULL` if the disk
    has no room for everything.
    """
    table = file.data
    options = TokenisationOptions(tokenizer, borders, table.sequence_length, table.max_bad)
    caches = _tokenise(source_files, options, data, progress)
    sources = [
        TokenisedSource(
            each.source.name, cache, each.source.weight, HeldOut(fraction=table.heldout_fraction)
        )
        for each, cache in zip(source_files, caches, strict=True)
    ]
    if table.deduplicate:
        leave_out_repeated(sources)
    if wanted == "both":
        _hold_out(sources, source_files, table, options, kind)
    else:
        for source, each in zip(sources, source_files, strict=True):
            held = range(len(each.files)) if wanted == "heldout" else ()
            source.heldout = HeldOut(files=frozenset(held))
    training, heldout = Side(sources, held=False), Side(sources, held=True)
    for source, tokens in zip(sources, training.tokens, strict=True):
        if tokens == 0 and len(sources) > 1:
            raise missing(
                f"the source {source.name!r} has nothing to train on",
                "give it more files, or leave it out of [[data.source]]",
            )
    run = file.schedule.total_rounds * file.rounds.sequences * table.sequence_length
    shares = training.shares(run)
    heldout_shares = heldout.shares(_MIN_HELDOUT_SEQUENCES * table.sequence_length)
    total = sum(share.epoch_tokens for share in shares)
    summary = DataSummary(
        sources=tuple(map(_summary, source_files, caches, sources, shares, repeat(total))),
        tokens=total,
        heldout_tokens=sum(share.epoch_tokens for share in heldout_shares),
        sequence_length=table.sequence_length,
        token_bytes=tokenizer.token_bytes,
        unused_classes=_unused_classes(file, caches),
        words=kind.words,
        private=wanted == "heldout",
        leaked=trained_share(sources) if wanted == "both" else 0.0,
    )
    read = ReadData(table.sequence_length, caches, summary.sources)
    for side, count in (("training", total), ("heldout", summary.heldout_tokens)):
        if wanted in ("both", side) and count < kind.least_tokens(table.sequence_length):
            raise kind.too_little(_SIDE_NAMES[side], read)
    marks = options.conversations
    layout = SampleLayout(
        length=table.sequence_length,
        token_bytes=tokenizer.token_bytes,
        end=borders.end,
        end_every_block=table.attention == "document",
        filler=filler,
        begin_bit=0 if marks is None else marks.begin_bit,
    )
    return TokenisedCorpus(training, heldout, shares, heldout_shares, summary, kind, layout, wanted)


def _summary(
    found: SourceFiles, cache: TokenCache, source: TokenisedSource, share: SourceShare, total: int
) -> SourceSummary:
    """Return the figures of a source in a corpus of `total` tokens. `cache`: its tokens before some were
    held out."""
    return SourceSummary(
        name=share.name,
        files=len(found.files),
        skipped=_skipped(found, cache),
        read=cache.read_counts,
        duplicates=source.duplicates,
        tokens=share.available,
        times=share.times,
        share=share.epoch_tokens / total if total else 0.0,
    )


def _unused_classes(file: ManifestFile, caches: Sequence[TokenCache]) -> tuple[str, ...]:
    classes = (file.task_settings or {}).get("classes", ()) if file.task in CLASSIFICATION else ()
    used = {number for cache in caches for number in cache.read_counts.classes}
    return tuple(name for number, name in enumerate(classes) if number not in used)


def _tokenise(
    source_files: Sequence[SourceFiles],
    options: TokenisationOptions,
    data: DataDir,
    progress: ShowProgress,
) -> list[TokenCache]:
    """Tokenise the sources, as far as that is not done. Raises as `read_corpus`."""
    token_bytes = options.tokenizer.token_bytes
    caches = [
        TokenCache(data.token_caches / cache_name(each.source, each.files, options), token_bytes)
        for each in source_files
    ]
    remove_others(data.token_caches, caches)
    data.require_free(_needed_bytes(source_files, caches, token_bytes), "the training data")
    total, before, totals = sum(each.size for each in source_files), 0, ReadCounts()
    elsewhere = any(isinstance(file.path, str) for each in source_files for file in each.files)
    sources = [(each.files, cache) for each, cache in zip(source_files, caches, strict=True)]
    room = DiskRoom(data, sources, min(2, token_bytes))
    map_large_blocks(_LARGE_BLOCK)
    # Arrays of tokens need no tokenising.
    text = None if elsewhere else sum(_text_bytes(each, but="tokens") for each in source_files)
    with open_pool(options.tokenizer, text) as pool:
        for each, cache in zip(source_files, caches, strict=True):

            def advance(done: int, start: int = before) -> None:
                progress("reading the training data", start + done, total)

            try:
                tokenise(each.source, each.files, options, cache, pool, totals, advance, room)
            except UserError:
                _report_bad_rows(totals, data)
                raise
            before += each.size
    return caches


def _report_bad_rows(totals: ReadCounts, data: DataDir) -> None:
    if totals.bad_rows:
        named = [
            {"file": file, "line": line or None, "problem": problem}
            for file, line, problem in totals.bad_rows
        ]
        report = json.dumps({"bad_rows": named}, indent=1)
        write_atomically(data.logs / "create.json", report.encode())


def _hold_out(
    sources: list[TokenisedSource],
    source_files: Sequence[SourceFiles],
    table: DataTable,
    options: TokenisationOptions,
    kind: DataKind,
) -> None:
    """Determine for each source what is held out.

    If the founder gave patterns, the matching files are held out. Otherwise the documents with the
    lowest hashes are: whether a document is held out then depends on its text alone, or on what is
    asked in it, and equal documents are on the same side. If the result is less than half or more than
    twice the wanted fraction, as with a handful of documents, the end of every document is held out
    instead; of conversations and images, which must stay whole, about the wanted share of documents.
    """
    if table.heldout:
        for source, each in zip(sources, source_files, strict=True):
            chosen = {n for n, file in enumerate(each.files) if matches(file.name, table.heldout)}
            source.heldout = HeldOut(files=frozenset(chosen))
        return
    fraction = table.heldout_fraction
    line_ends = None
    for index, source in enumerate(sources):
        if not fraction / 2 <= held_share(source) <= fraction * 2:
            if kind.whole_documents:
                source.heldout = hold_out_whole_documents(source) or source.heldout
                continue
            line_ends = options.tokenizer.line_ends() if line_ends is None else line_ends
            folder = source.cache.root.with_name(source.cache.root.name + _CUT_ENDING)
            sources[index] = hold_out_document_ends(source, folder, line_ends, options.borders.end)


def _skipped(each: SourceFiles, cache: TokenCache) -> Skipped:
    skipped = Skipped(dict(each.skipped.reasons))
    for name in cache.read_counts.no_text:
        skipped.add("not text, despite the file name's ending", name)
    return skipped


def _needed_bytes(
    source_files: Sequence[SourceFiles], caches: Sequence[TokenCache], token_bytes: int
) -> int:
    """Estimate the disk space that parts and shards take beyond what exists already, in bytes."""
    # A tokenizer makes at most one token per byte of text, and the tokens of ordinary text take at
    # most twice its bytes.
    token_bytes_per_byte = min(2, token_bytes)
    text = sum(map(_text_bytes, source_files))
    existing = sum(tokens for cache in caches for _, tokens in cache.counts) * token_bytes
    return max(0, 2 * text * token_bytes_per_byte - existing)


def _text_bytes(found: SourceFiles, but: Format | None = None) -> int:
    """Estimate how much text a source has, in bytes, without files of the format `but`."""
    return sum(unpacked_bytes(file.path, file.size) for file in found.files if file.format != but)
