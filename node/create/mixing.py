"""Mixing of tokenised sources into the corpus: what is held out, each source's share, and the order.

Members read the corpus chunk by chunk (`protocol.sampling`), so only neighbouring text is mixed. The
sources are therefore interleaved in small pieces, evenly, each source's pieces in a random order
that is always the same. With weights every source has exactly its share of the tokens: a small
source repeats, and a source larger than the run needs is used in part.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from ...protocol.sampling.sampler import StreamOrder
from .token_cache import SECTION, Position, ReadCounts, TokenCache

# The size of a piece that stays together: some samples, and a hundredth of a chunk; the number of
# pieces is bounded by a founder's memory.
_PIECE_BYTES = 1 << 16
_MOST_PIECES = 1 << 20
# A document of more pieces than this is cut.
_LONG_PIECES = 4
# Sections whose hashes are in memory at once: some 100 MB with the memory for sorting.
_HASHES_AT_ONCE = 1 << 20
# How far after a cut the end of a line is searched for.
_CUT_WINDOW = 1 << 14
_ALL_HASHES = 2**64


@dataclass(frozen=True)
class HeldOut:
    """The sections that are held out: those of some files, or those with the lowest hashes."""

    files: frozenset[int] | None = None
    fraction: float = 0.0
    below: int | None = None
    """The upper bound of their hashes, where it does not follow from the fraction."""

    def of(self, sections: np.ndarray) -> np.ndarray:
        """Return whether each section is held out: bool (len(sections),)."""
        if self.files is not None:
            return np.isin(sections["file"], sorted(self.files))
        limit = min(int(self.fraction * _ALL_HASHES), _ALL_HASHES - 1)
        limit = limit if self.below is None else self.below
        return sections["hash"] < np.uint64(limit)


@dataclass
class Tokenised:
    """A source whose parts are complete."""

    name: str
    parts: TokenCache
    weight: float | None
    heldout: HeldOut
    repeated: list[np.ndarray] = field(default_factory=list)
    """For each part, whether a section is left out because it repeats an earlier one; empty: none is."""
    duplicates: int = 0
    """Number of documents left out."""

    def kept(self, part: int, sections: np.ndarray, start: int, *, held: bool) -> np.ndarray:
        """Return whether each of a part's `sections`, from `start` on, belongs to this side."""
        kept = self.heldout.of(sections) == held
        if self.repeated:
            kept &= ~self.repeated[part][start : start + len(sections)]
        return kept


def leave_out_repeated(sources: Sequence[Tokenised]) -> None:
    """Leave out every document equal to an earlier one, and count them."""
    total = sum(count for source in sources for count, _ in source.parts.counts)
    for source in sources:
        source.repeated = [np.zeros(count, bool) for count, _ in source.parts.counts]
    flags = [flag for source in sources for flag in source.repeated]
    starts = np.cumsum([0, *(len(flag) for flag in flags)])
    groups = np.uint64(-(-total // _HASHES_AT_ONCE) or 1)
    for group in range(int(groups)):
        found = []
        for start, sections in zip(starts, _indexes(sources), strict=False):
            (here,) = np.nonzero(sections["hash"] % groups == group)
            keys = np.empty(len(here), [("hash", "<u8"), ("check", "<u8"), ("position", "<i8")])
            keys["hash"], keys["check"] = sections["hash"][here], sections["check"][here]
            keys["position"] = start + here
            found.append(keys)
        sections = np.concatenate(found) if found else np.zeros(0, SECTION)
        order = np.lexsort((sections["position"], sections["check"], sections["hash"]))
        ordered = sections[order]
        same = (ordered["hash"][1:] == ordered["hash"][:-1]) & (
            ordered["check"][1:] == ordered["check"][:-1]
        )
        repeated = np.sort(ordered["position"][1:][same])
        for flag, start in zip(flags, starts, strict=False):
            own = repeated[(repeated >= start) & (repeated < start + len(flag))]
            flag[own - start] = True
    for source in sources:
        source.duplicates = sum(
            int((source.parts.index(part)["first"][flag] != 0).sum())
            for part, flag in enumerate(source.repeated)
        )


def _indexes(sources: Sequence[Tokenised]) -> Iterator[np.ndarray]:
    for source in sources:
        for part in range(len(source.parts.counts)):
            yield source.parts.index(part)


def held_share(source: Tokenised) -> float:
    """Return the share of its tokens that a source holds out."""
    counts = [0, 0]
    for part in range(len(source.parts.counts)):
        sections = source.parts.index(part)
        for held in (False, True):
            kept = source.kept(part, sections, 0, held=held)
            counts[held] += int(sections["tokens"][kept].sum())
    return counts[True] / max(1, sum(counts))


def hold_out_whole(source: Tokenised) -> HeldOut | None:
    """Choose what to hold out from a source of few documents that must stay whole: those with the
    lowest hashes, about the wanted share, but at least one, and not all. None if it has fewer than
    two."""
    parts = [source.parts.index(part) for part in range(len(source.parts.counts))]
    sections = np.concatenate(parts)
    if source.repeated:
        sections = sections[~np.concatenate(source.repeated)]
    hashes, index = np.unique(sections["hash"], return_inverse=True)
    if len(hashes) < 2:
        return None
    before = np.cumsum(np.bincount(index, sections["tokens"]))
    wanted = source.heldout.fraction * before[-1]
    count = 1 + int(np.argmin(np.abs(before[:-1] - wanted)))
    return HeldOut(below=int(hashes[count]))


def cut_each(source: Tokenised, folder: Path, line_ends: np.ndarray) -> Tokenised:
    """Return a source of few documents in which the end of each is held out instead of some of them.

    The result, including its tokens, is in `folder`: a document's two sides are separate sections.
    """
    before, fraction = source.parts, source.heldout.fraction
    parts = TokenCache(folder, before.dtype.itemsize)
    parts.remove()
    parts = TokenCache(folder, before.dtype.itemsize)
    for part in range(len(before.counts)):
        sections = before.index(part)
        tokens = before.tokens(part, 0, before.counts[part][1])
        ends = np.cumsum(sections["tokens"].astype(np.int64))
        firsts = np.flatnonzero(sections["first"])
        bounds = [*firsts.tolist(), len(sections)]
        made: list[np.ndarray] = [sections[: bounds[0]]]
        flags = [source.repeated[part][: bounds[0]]] if source.repeated else []
        for low, high in itertools.pairwise(bounds):
            start = int(ends[low - 1]) if low else 0
            stop = int(ends[high - 1])
            cut = _line_end(tokens, stop - int((stop - start) * fraction), stop, line_ends)
            both = _cut_document(sections[low:high], start, cut)
            made.append(both)
            if source.repeated:
                flags.append(np.full(len(both), source.repeated[part][low]))
        joined = np.concatenate(made)
        parts.add(joined, [tokens], ReadCounts(), Position())
        if source.repeated:
            source.repeated[part] = np.concatenate(flags)
    return Tokenised(
        source.name, parts, source.weight, source.heldout, source.repeated, source.duplicates
    )


def _cut_document(sections: np.ndarray, start: int, cut: int) -> np.ndarray:
    """Return the sections of one document, those after a cut with the lowest hash, the others with
    the highest."""
    ends = start + np.cumsum(sections["tokens"].astype(np.int64))
    inside = int(np.searchsorted(ends, cut, side="right"))
    both = (
        np.insert(sections, inside, sections[inside : inside + 1])
        if inside < len(ends)
        else sections
    )
    both = both.copy()
    if inside < len(ends):
        begins = int(ends[inside - 1]) if inside else start
        both["tokens"][inside] = cut - begins
        both["tokens"][inside + 1] = int(ends[inside]) - cut
        both["first"][inside + 1] = 0
    behind = np.arange(len(both)) > inside
    both["hash"] = np.where(behind, np.uint64(0), np.uint64(_ALL_HASHES - 1))
    return both[both["tokens"] > 0]


def _line_end(tokens: np.ndarray, cut: int, stop: int, line_ends: np.ndarray) -> int:
    """Return the first position after `cut` where a line begins, if there is one before `stop`; else
    `cut`."""
    window = tokens[cut : min(stop - 1, cut + _CUT_WINDOW)]
    found = np.flatnonzero(line_ends[window])
    return cut + int(found[0]) + 1 if len(found) else cut


@dataclass(frozen=True)
class SourceShare:
    """One source's share of the corpus."""

    name: str
    there: int
    """Number of tokens in the source."""
    dealt: int
    """Number of its tokens in the corpus: more than it has where it repeats, fewer where it is cut."""

    @property
    def times(self) -> float:
        """How many times an epoch contains the source."""
        return self.dealt / self.there if self.there else 0.0


class Side:
    """The sections of all sources on one side: training or held out."""

    def __init__(self, sources: Sequence[Tokenised], *, held: bool) -> None:
        self._sources = sources
        self._held = held
        width = sources[0].parts.dtype.itemsize
        total = sum(tokens for source in sources for _, tokens in source.parts.counts)
        self._piece = max(_PIECE_BYTES // width, total // _MOST_PIECES)
        # For each piece: part, first section, number of sections, first token, tokens, and how many
        # of them count.
        self._pieces = [self._cut(source) for source in sources]
        self.tokens = [int(pieces[:, 5].sum()) for pieces in self._pieces]

    def shares(self, wanted: int) -> list[SourceShare]:
        """Return how much of each source makes an epoch.

        Without weights, all of each. With weights, the `wanted` number of tokens, but at most as
        many as use up every source once, and at least as many as use up one. The held-out part is as
        large as possible without repetition, or all of each where that is less than wanted.
        """
        there, weights = self.tokens, [source.weight for source in self._sources]
        names = [source.name for source in self._sources]
        if any(weight is None for weight in weights):
            return [
                SourceShare(name, count, count) for name, count in zip(names, there, strict=True)
            ]
        whole = sum(weight for weight in weights if weight) or 1.0
        shares = [(weight or 0.0) / whole for weight in weights]
        epochs = [count / share for count, share in zip(there, shares, strict=True) if share]
        if self._held:
            # Nothing repeats there: it would be measured twice.
            size = min((epoch for epoch in epochs if epoch > 0), default=0.0)
            if size < wanted:
                # With shares of almost nothing the measurement would be useless.
                return [
                    SourceShare(name, count, count)
                    for name, count in zip(names, there, strict=True)
                ]
        else:
            size = min(max(wanted, min(epochs)), max(epochs))
        dealt = [
            round(share * size) if count else 0 for count, share in zip(there, shares, strict=True)
        ]
        return [SourceShare(*each) for each in zip(names, there, dealt, strict=True)]

    def dealt(
        self,
        shares: Sequence[SourceShare],
        end: Sequence[int],
        closed: bool,
        advance: Callable[[int], None],
        begins: int = 0,
        row: int = 1,
    ) -> Iterator[np.ndarray]:
        """Yield the corpus in pieces, in its order; `advance` is called with the number of tokens of
        each.

        With `closed`, every piece ends with the tokens of `end`. Where numbers are marked, `begins`
        is the bit with which a document begins, and no document is cut; nor is one where each has
        `row` tokens.
        """
        owner, piece, most = self._order(shares)
        last = np.array(end, self._sources[0].parts.dtype)
        for source, number, limit in zip(
            owner.tolist(), piece.tolist(), most.tolist(), strict=True
        ):
            tokens = self._read(source, number)
            cut = limit < len(tokens)
            if cut and begins:
                starts = np.append(np.flatnonzero(tokens & begins), len(tokens))
                limit = int(starts[starts <= limit][-1])
            tokens = tokens[: limit - limit % row]
            if len(last) and (cut or closed) and not np.array_equal(tokens[-len(last) :], last):
                # In place of the last tokens, where the share is exact.
                tokens = np.concatenate([tokens[: len(tokens) - cut * len(last)], last])
            advance(limit)
            yield tokens

    def _order(self, shares: Sequence[SourceShare]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return, for each piece in the corpus's order, its source, its number there, and its
        greatest number of tokens."""
        owners, numbers, limits, positions = [], [], [], []
        for source, share in enumerate(shares):
            own, most = [], []
            left, count = share.dealt, len(self._pieces[source])
            passes = 0
            while left > 0 and count:
                order = StreamOrder(seed=passes, samples=count, streams=1, span=1, mixed=1)
                row = np.arange(count)
                piece = np.array(order.samples_at(np.zeros_like(row), row), np.int64)
                sizes = self._pieces[source][piece, 5]
                before = np.cumsum(sizes) - sizes
                piece, sizes, before = (each[before < left] for each in (piece, sizes, before))
                own.append(piece)
                most.append(np.minimum(sizes, left - before))
                left -= int(most[-1].sum())
                passes += 1
            if own:
                own, most = np.concatenate(own), np.concatenate(most)
                owners.append(np.full(len(own), source))
                numbers.append(own)
                limits.append(most)
                # Evenly over the corpus, so that its passes follow one another.
                positions.append((2 * np.arange(len(own)) + 1) / (2 * len(own)))
        if not owners:
            none = np.zeros(0, np.int64)
            return none, none, none
        owner, number, limit, position = map(np.concatenate, (owners, numbers, limits, positions))
        order = np.lexsort((owner, position))
        return owner[order], number[order], limit[order]

    def _cut(self, source: Tokenised) -> np.ndarray:
        """Return the pieces of a source: int64 (pieces, 6)."""
        found = [np.zeros((0, 6), np.int64)]
        for part in range(len(source.parts.counts)):
            sections = source.parts.index(part)
            if len(sections) == 0:
                continue
            kept = source.kept(part, sections, 0, held=self._held)
            sizes = sections["tokens"].astype(np.int64)
            starts = np.cumsum(sizes) - sizes
            # A piece consists of all neighbours that begin within its length. A document of several
            # sections counts as beginning with its first one, unless it is long.
            begins = np.flatnonzero(sections["first"])
            whose = np.cumsum(sections["first"] != 0) - 1
            lengths = np.diff(starts[begins], append=int(sizes.sum()))
            short = lengths[whose] <= _LONG_PIECES * self._piece
            positions = np.where(short, starts[begins][whose], starts)
            first = np.flatnonzero(np.diff(positions // self._piece, prepend=-1))
            count = np.diff(first, append=len(sections))
            rows = [
                np.full(len(first), part),
                first,
                count,
                starts[first],
                np.add.reduceat(sizes, first),
                np.add.reduceat(sizes * kept, first),
            ]
            pieces = np.stack(rows, axis=1)
            found.append(pieces[pieces[:, 5] > 0])
        return np.concatenate(found)

    def _read(self, source: int, number: int) -> np.ndarray:
        """Return the tokens of a piece that count."""
        whose = self._sources[source]
        part, first, count, start, size, counted = self._pieces[source][number].tolist()
        tokens = whose.parts.tokens(part, start, size)
        if counted == size:
            return tokens
        sections = whose.parts.index(part, first, count)
        kept = whose.kept(part, sections, first, held=self._held)
        return tokens[np.repeat(kept, sections["tokens"])]
