"""Mixing of tokenised sources into the corpus: what is held out, each source's share, and the order.

Members read the corpus chunk by chunk (`protocol.sampling`), which mixes only neighbouring text. The
sources are therefore interleaved evenly in small blocks (`_blocks`), and each source's blocks are in a
random order that is always the same. With weights every source has exactly its share of the tokens: a
small source repeats, and a source larger than the run needs is used in part.

An array called `entries` has the entries of a part's index (`token_cache`): one for every short
document and every piece of a long one.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

import numpy as np

from ...protocol.sampling.sampler import StreamOrder
from .token_cache import INDEX_ENTRY, Position, ReadCounts, TokenCache

# Bytes of tokens in a block, which stays together: some samples, and a hundredth of a chunk. Blocks
# are larger if there would be too many of them for the founder's memory.
_BLOCK_BYTES = 1 << 16
_MAX_BLOCKS = 1 << 20
# A document longer than this many blocks is divided among blocks; a shorter one stays in one.
_LONG_BLOCKS = 4
# Index entries whose hashes are in memory at once: some 100 MB with the memory for sorting.
_HASHES_AT_ONCE = 1 << 20
# How many tokens after a cut the end of a line is searched for.
_CUT_WINDOW = 1 << 14
_ALL_HASHES = 2**64
_HALVES: tuple[Literal["hash", "hash2"], ...] = ("hash", "hash2")


@dataclass(frozen=True)
class HeldOut:
    """Which documents of a source are held out: those of some files, or those with the lowest hashes."""

    files: frozenset[int] | None = None
    """Indexes of the files that are held out; None: the hashes decide."""
    fraction: float = 0.0
    """Documents are held out whose hash is in this lowest fraction of all possible hashes."""
    below: int | None = None
    """If given, documents with a lower hash than this are held out, whatever the fraction."""
    half: Literal["hash", "hash2"] = "hash"
    """Which half of the hash decides: only the first is the same for all documents of a subject."""

    def of(self, entries: np.ndarray) -> np.ndarray:
        """Return whether each index entry is held out: bool (len(entries),)."""
        if self.files is not None:
            return np.isin(entries["file"], sorted(self.files))
        limit = min(int(self.fraction * _ALL_HASHES), _ALL_HASHES - 1)
        limit = limit if self.below is None else self.below
        return entries[self.half] < np.uint64(limit)


@dataclass
class TokenisedSource:
    """A source whose parts are complete."""

    name: str
    cache: TokenCache
    weight: float | None
    """Its share of the tokens, relative to the sum of all weights; None: no source has one."""
    heldout: HeldOut
    repeated: list[np.ndarray] = field(default_factory=list)
    """For each part, whether each index entry is left out because it repeats an earlier one: bool
    (entries,). An empty list: none is."""
    duplicates: int = 0
    """Number of documents left out."""
    cut: bool = False
    """Whether the end of each document is held out (`hold_out_document_ends`)."""

    def kept(self, part: int, entries: np.ndarray, start: int, *, held: bool) -> np.ndarray:
        """Return whether each of a part's index entries, from `start` on, belongs to a side (`held`:
        the held-out one) and is not left out."""
        kept = self.heldout.of(entries) == held
        if self.repeated:
            kept &= ~self.repeated[part][start : start + len(entries)]
        return kept


def leave_out_repeated(sources: Sequence[TokenisedSource]) -> None:
    """Leave out every document that is equal to an earlier one of any source, and count them."""
    total = sum(count for source in sources for count, _ in source.cache.counts)
    for source in sources:
        source.repeated = [np.zeros(count, bool) for count, _ in source.cache.counts]
    flags = [flag for source in sources for flag in source.repeated]
    starts = np.cumsum([0, *(len(flag) for flag in flags)])
    groups = np.uint64(-(-total // _HASHES_AT_ONCE) or 1)
    for group in range(int(groups)):
        found = []
        for start, entries in zip(starts, _indexes(sources), strict=False):
            (in_group,) = np.nonzero(entries["hash"] % groups == group)
            keys = np.empty(len(in_group), [("hash", "<u8"), ("hash2", "<u8"), ("position", "<i8")])
            keys["hash"], keys["hash2"] = entries["hash"][in_group], entries["hash2"][in_group]
            keys["position"] = start + in_group
            found.append(keys)
        entries = np.concatenate(found) if found else np.zeros(0, INDEX_ENTRY)
        order = np.lexsort((entries["position"], entries["hash2"], entries["hash"]))
        ordered = entries[order]
        same = (ordered["hash"][1:] == ordered["hash"][:-1]) & (
            ordered["hash2"][1:] == ordered["hash2"][:-1]
        )
        repeated = np.sort(ordered["position"][1:][same])
        for flag, start in zip(flags, starts, strict=False):
            repeated_here = repeated[(repeated >= start) & (repeated < start + len(flag))]
            flag[repeated_here - start] = True
    for source in sources:
        source.duplicates = sum(
            int((source.cache.index(part)["starts_document"][flag] != 0).sum())
            for part, flag in enumerate(source.repeated)
        )


def _indexes(sources: Sequence[TokenisedSource]) -> Iterator[np.ndarray]:
    for source in sources:
        for part in range(len(source.cache.counts)):
            yield source.cache.index(part)


def held_share(source: TokenisedSource) -> float:
    """Return the share of its tokens that a source holds out."""
    counts = [0, 0]
    for part in range(len(source.cache.counts)):
        entries = source.cache.index(part)
        for held in (False, True):
            kept = source.kept(part, entries, 0, held=held)
            counts[held] += int(entries["tokens"][kept].sum())
    return counts[True] / max(1, sum(counts))


def hold_out_whole_documents(source: TokenisedSource) -> HeldOut | None:
    """Choose what to hold out from a source of few documents that must stay whole.

    These are the documents with the lowest hashes that have about the wanted share of the tokens, but
    at least one document and not all. Documents of one subject are on one side, unless all are of one.
    None if the source has fewer than two different documents.
    """
    indexes = [source.cache.index(part) for part in range(len(source.cache.counts))]
    entries = np.concatenate(indexes)
    if source.repeated:
        entries = entries[~np.concatenate(source.repeated)]
    for half in _HALVES:
        hashes, index = np.unique(entries[half], return_inverse=True)
        if len(hashes) > 1:
            before = np.cumsum(np.bincount(index, entries["tokens"]))
            wanted = source.heldout.fraction * before[-1]
            count = 1 + int(np.argmin(np.abs(before[:-1] - wanted)))
            return HeldOut(below=int(hashes[count]), half=half)
    return None


def hold_out_document_ends(
    source: TokenisedSource, folder: Path, line_ends: np.ndarray, end: Sequence[int]
) -> TokenisedSource:
    """Return a source of few documents in which the end of each is held out instead of some of them.

    Its parts, including the tokens, are written to `folder`; in their index a document's two sides are
    separate entries. `line_ends` states whether a line ends with each token: bool (vocabulary,). What is
    trained on of a document ends with the tokens of `end`: otherwise the next one would follow without a
    border, and no document would end.
    """
    cache_before, fraction = source.cache, source.heldout.fraction
    last = np.array(end, cache_before.dtype)
    cache = TokenCache(folder, cache_before.dtype.itemsize)
    cache.remove()
    cache = TokenCache(folder, cache_before.dtype.itemsize)
    for part in range(len(cache_before.counts)):
        entries = cache_before.index(part)
        tokens = cache_before.tokens(part, 0, cache_before.counts[part][1])
        ends = np.cumsum(entries["tokens"].astype(np.int64))
        firsts = np.flatnonzero(entries["starts_document"])
        bounds = [*firsts.tolist(), len(entries)]
        new_entries: list[np.ndarray] = [entries[: bounds[0]]]
        new_tokens = [tokens[: int(ends[bounds[0] - 1]) if bounds[0] else 0]]
        flags = [source.repeated[part][: bounds[0]]] if source.repeated else []
        for first_entry, end_entry in itertools.pairwise(bounds):
            start = int(ends[first_entry - 1]) if first_entry else 0
            stop = int(ends[end_entry - 1])
            cut = _next_line_start(tokens, stop - int((stop - start) * fraction), stop, line_ends)
            sides = _cut_document(entries[first_entry:end_entry], start, cut)
            new_tokens += [tokens[start:cut], tokens[cut:stop]]
            if start < cut < stop and not np.array_equal(tokens[cut - len(last) : cut], last):
                new_tokens.insert(-1, last)
                sides["tokens"][np.flatnonzero(sides["hash"])[-1]] += len(last)
            new_entries.append(sides)
            if source.repeated:
                flags.append(np.full(len(sides), source.repeated[part][first_entry]))
        joined = np.concatenate(new_entries)
        cache.add(joined, new_tokens, ReadCounts(), Position())
        if source.repeated:
            source.repeated[part] = np.concatenate(flags)
    return replace(source, cache=cache, cut=True)


def trained_share(sources: Sequence[TokenisedSource]) -> float:
    """Return the share of the held-out tokens that are trained on as well, in a copy of their
    document."""
    if all(each.heldout == sources[0].heldout and not each.cut for each in sources) and (
        sources[0].heldout.files is None
    ):
        # The same hashes are held out everywhere, so all copies of a document are on one side.
        return 0.0
    held = trained = 0
    for cut in (False, True):
        kept = list(_entries([each for each in sources if each.cut == cut], held=True))
        pieces = np.unique(np.concatenate([np.zeros(0, np.uint64), *(e["hash2"] for e in kept)]))
        # Copies that are cut are cut at the same place.
        others = [each for each in sources if not (cut and each.cut)]
        found = np.zeros(len(pieces), bool)
        for entries in _entries(others, held=False):
            found[_places(pieces, entries["hash2"])] = True
        for entries in kept:
            held += int(entries["tokens"].sum())
            places = np.searchsorted(pieces, entries["hash2"])
            trained += int(entries["tokens"][found[places]].sum())
    return trained / held if held else 0.0


def _places(pieces: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """Return where in `pieces`, which are sorted, those of `wanted` are that occur there."""
    places = np.searchsorted(pieces, wanted)
    wanted, places = wanted[places < len(pieces)], places[places < len(pieces)]
    return places[pieces[places] == wanted]


def _entries(sources: Sequence[TokenisedSource], *, held: bool) -> Iterator[np.ndarray]:
    """Yield for each part of the sources the index entries on one side."""
    for source in sources:
        for part in range(len(source.cache.counts)):
            entries = source.cache.index(part)
            yield entries[source.kept(part, entries, 0, held=held)]


def _cut_document(entries: np.ndarray, start: int, cut: int) -> np.ndarray:
    """Return the index entries of one document divided at a cut (a token's position in the part).

    Entries after the cut get the lowest hash, so that they are held out, and the others the highest.
    `start` is the position of the document's first token.
    """
    ends = start + np.cumsum(entries["tokens"].astype(np.int64))
    inside = int(np.searchsorted(ends, cut, side="right"))
    sides = (
        np.insert(entries, inside, entries[inside : inside + 1]) if inside < len(ends) else entries
    )
    sides = sides.copy()
    if inside < len(ends):
        entry_start = int(ends[inside - 1]) if inside else start
        sides["tokens"][inside] = cut - entry_start
        sides["tokens"][inside + 1] = int(ends[inside]) - cut
        sides["starts_document"][inside + 1] = 0
    after_cut = np.arange(len(sides)) > inside
    sides["hash"] = np.where(after_cut, np.uint64(0), np.uint64(_ALL_HASHES - 1))
    return sides[sides["tokens"] > 0]


def _next_line_start(tokens: np.ndarray, cut: int, stop: int, line_ends: np.ndarray) -> int:
    """Return the first position after `cut` at which a line begins, if there is one soon after it and
    before `stop`; else `cut`."""
    window = tokens[cut : min(stop - 1, cut + _CUT_WINDOW)]
    found = np.flatnonzero(line_ends[window])
    return cut + int(found[0]) + 1 if len(found) else cut


@dataclass(frozen=True)
class SourceShare:
    """One source's share of the corpus."""

    name: str
    available: int
    """Number of tokens that the source has on this side."""
    epoch_tokens: int
    """Number of tokens from it in an epoch of the corpus: more than `available` if the source repeats,
    fewer if it is used in part."""

    @property
    def times(self) -> float:
        """How many times an epoch contains the source."""
        return self.epoch_tokens / self.available if self.available else 0.0


class Side:
    """The documents of all sources on one side: training or held out."""

    def __init__(self, sources: Sequence[TokenisedSource], *, held: bool) -> None:
        self._sources = sources
        self._held = held
        width = sources[0].cache.dtype.itemsize
        total = sum(tokens for source in sources for _, tokens in source.cache.counts)
        self._block_tokens = max(_BLOCK_BYTES // width, total // _MAX_BLOCKS)
        # For each source an array with a row per block: part, first index entry, number of entries,
        # first token, number of tokens, and how many of them are on this side.
        self._blocks = [self._cut(source) for source in sources]
        self.tokens = [int(blocks[:, 5].sum()) for blocks in self._blocks]

    def shares(self, wanted: int) -> list[SourceShare]:
        """Return how much of each source an epoch contains.

        Without weights, an epoch contains all of each source once. With weights, an epoch for training
        has `wanted` tokens, but at least as many as use up one source and at most as many as use up
        every source. The held-out side has as many tokens as possible without repetition; if these are
        fewer than `wanted`, it has all of each source, and the weights do not count.
        """
        available, weights = self.tokens, [source.weight for source in self._sources]
        names = [source.name for source in self._sources]
        if any(weight is None for weight in weights):
            return [
                SourceShare(name, count, count)
                for name, count in zip(names, available, strict=True)
            ]
        whole = sum(weight for weight in weights if weight) or 1.0
        shares = [(weight or 0.0) / whole for weight in weights]
        epochs = [count / share for count, share in zip(available, shares, strict=True) if share]
        if self._held:
            # Held-out text must not repeat, because it would be measured twice.
            size = min((epoch for epoch in epochs if epoch > 0), default=0.0)
            if size < wanted:
                # With exact shares there would be too little text for a useful measurement.
                return [
                    SourceShare(name, count, count)
                    for name, count in zip(names, available, strict=True)
                ]
        else:
            size = min(max(wanted, min(epochs)), max(epochs))
        epoch_tokens = [
            round(share * size) if count else 0
            for count, share in zip(available, shares, strict=True)
        ]
        return [SourceShare(*each) for each in zip(names, available, epoch_tokens, strict=True)]

    def blocks(
        self,
        shares: Sequence[SourceShare],
        end: Sequence[int],
        end_every_block: bool,
        advance: Callable[[int], None],
        begin_bit: int = 0,
        row: int = 1,
    ) -> Iterator[np.ndarray]:
        """Yield the tokens of the corpus block by block, in its order; `advance` is called with the
        number of tokens of each block.

        With `end_every_block` every block ends with the tokens of `end`, otherwise only a block that is
        cut because its source's share is used up. If `begin_bit` is given, it is the bit that marks the
        first token of a document, and a cut is made only between documents; with `row`, only after a
        multiple of `row` tokens.
        """
        sources, numbers, limits = self._order(shares)
        last = np.array(end, self._sources[0].cache.dtype)
        for source, number, limit in zip(
            sources.tolist(), numbers.tolist(), limits.tolist(), strict=True
        ):
            tokens = self._read(source, number)
            cut = limit < len(tokens)
            if cut and begin_bit:
                starts = np.append(np.flatnonzero(tokens & begin_bit), len(tokens))
                limit = int(starts[starts <= limit][-1])
            tokens = tokens[: limit - limit % row]
            if (
                len(last)
                and (cut or end_every_block)
                and not np.array_equal(tokens[-len(last) :], last)
            ):
                # In a block that is cut, they replace the last tokens, so that the share stays exact.
                tokens = np.concatenate([tokens[: len(tokens) - cut * len(last)], last])
            advance(limit)
            yield tokens

    def _order(self, shares: Sequence[SourceShare]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return, for each block in the corpus's order, its source, its number in that source, and how
        many of its tokens are used at most: three int64 (blocks,)."""
        owners, numbers, limits, positions = [], [], [], []
        for source, share in enumerate(shares):
            own_numbers, own_limits = [], []
            remaining, count = share.epoch_tokens, len(self._blocks[source])
            passes = 0
            while remaining > 0 and count:
                order = StreamOrder(seed=passes, samples=count, streams=1, span=1, mixed=1)
                row = np.arange(count)
                block = np.array(order.samples_at(np.zeros_like(row), row), np.int64)
                sizes = self._blocks[source][block, 5]
                before = np.cumsum(sizes) - sizes
                block, sizes, before = (each[before < remaining] for each in (block, sizes, before))
                own_numbers.append(block)
                own_limits.append(np.minimum(sizes, remaining - before))
                remaining -= int(own_limits[-1].sum())
                passes += 1
            if own_numbers:
                own_numbers, own_limits = np.concatenate(own_numbers), np.concatenate(own_limits)
                owners.append(np.full(len(own_numbers), source))
                numbers.append(own_numbers)
                limits.append(own_limits)
                # A source's blocks are spread evenly over the corpus; its passes follow one another.
                positions.append((2 * np.arange(len(own_numbers)) + 1) / (2 * len(own_numbers)))
        if not owners:
            none = np.zeros(0, np.int64)
            return none, none, none
        owner, number, limit, position = map(np.concatenate, (owners, numbers, limits, positions))
        order = np.lexsort((owner, position))
        return owner[order], number[order], limit[order]

    def _cut(self, source: TokenisedSource) -> np.ndarray:
        """Return the blocks of a source with tokens on this side, as in `_blocks`: int64 (blocks, 6)."""
        found = [np.zeros((0, 6), np.int64)]
        for part in range(len(source.cache.counts)):
            entries = source.cache.index(part)
            if len(entries) == 0:
                continue
            kept = source.kept(part, entries, 0, held=self._held)
            sizes = entries["tokens"].astype(np.int64)
            starts = np.cumsum(sizes) - sizes
            # A part is divided into intervals of the length of a block, and a block consists of all
            # entries that begin in one interval. All entries of a document count as beginning where
            # its first one does, unless the document is long.
            document_starts = np.flatnonzero(entries["starts_document"])
            document_of = np.cumsum(entries["starts_document"] != 0) - 1
            lengths = np.diff(starts[document_starts], append=int(sizes.sum()))
            short = lengths[document_of] <= _LONG_BLOCKS * self._block_tokens
            positions = np.where(short, starts[document_starts][document_of], starts)
            first_entries = np.flatnonzero(np.diff(positions // self._block_tokens, prepend=-1))
            entry_counts = np.diff(first_entries, append=len(entries))
            rows = [
                np.full(len(first_entries), part),
                first_entries,
                entry_counts,
                starts[first_entries],
                np.add.reduceat(sizes, first_entries),
                np.add.reduceat(sizes * kept, first_entries),
            ]
            blocks = np.stack(rows, axis=1)
            found.append(blocks[blocks[:, 5] > 0])
        return np.concatenate(found)

    def _read(self, source: int, number: int) -> np.ndarray:
        """Return the tokens of a block that are on this side."""
        tokenised_source = self._sources[source]
        part, first_entry, entry_count, start, size, kept_tokens = self._blocks[source][
            number
        ].tolist()
        tokens = tokenised_source.cache.tokens(part, start, size)
        if kept_tokens == size:
            return tokens
        entries = tokenised_source.cache.index(part, first_entry, entry_count)
        kept = tokenised_source.kept(part, entries, first_entry, held=self._held)
        return tokens[np.repeat(kept, entries["tokens"])]
