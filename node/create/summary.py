"""The summary for a founder: what was read, what was skipped and why, and what training will cost.

The same figures make the lines on the screen, the JSON of `--json` and the report in the logs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ...protocol.chain.features import exchange_size
from ...protocol.codec.layout import update_layout
from ...protocol.wire.blobs import CHUNK_BYTES
from ...protocol.wire.manifest import OptimizerSpec, ParameterSpec, RoundSpec, ScheduleSpec
from ...protocol.wire.work_specs import FeatureSpec, rounds_per_step
from .class_labels import listed
from .files import Skipped
from .token_cache import ReadCounts

MEMBERS = (4, 16, 32)
"""Sizes of swarms whose traffic is reported."""

_MAX_NAMED = 5


@dataclass(frozen=True, kw_only=True)
class SourceSummary:
    """The figures of one source."""

    name: str
    files: int
    skipped: Skipped
    read: ReadCounts
    duplicates: int
    tokens: int
    """Tokens of the training part."""
    times: float
    """How many times an epoch contains the source."""
    share: float
    """Its share of an epoch's tokens."""


def cut_conversations(cut: int, left_out: int) -> str:
    return f"a sequence: {_count(cut, 'conversation')} cut after an answer, {left_out:,} left out"


def cut_texts(cut: int, left_out: int) -> str:
    return f"a sequence: {_count(cut, 'text')} cut"


def long_pairs(cut: int, left_out: int) -> str:
    return f"half a sequence: {_count(left_out, 'pair')} left out"


def long_prompts(cut: int, left_out: int) -> str:
    return f"a sequence, with the answer or a completion: {_count(left_out, 'prompt')} left out"


@dataclass(frozen=True, kw_only=True)
class DataWords:
    """What a summary says of a kind of data (`data_kinds`)."""

    item: str = "document"
    row: str = "row"
    unit: str = "tokens"
    """In what the parts of an epoch are counted."""
    one_each: bool = False
    """Whether each item is a sequence."""
    images: bool = False
    """Whether items are images, and tokens their bytes."""
    language: bool = True
    """Whether a new model learns language from it."""
    completed: bool = False
    """Whether members learn from completions that they write, and not from the data."""
    long: Callable[[int, int], str] = cut_conversations
    """What is longer than what, with how many items were cut and how many left out."""


@dataclass(frozen=True, kw_only=True)
class DataSummary:
    """The figures of all sources."""

    sources: tuple[SourceSummary, ...]
    tokens: int
    """Tokens of an epoch."""
    heldout_tokens: int
    sequence_length: int
    token_bytes: int
    words: DataWords
    unused_classes: tuple[str, ...] = ()
    """The names of the classes that no document has."""
    private: bool = False
    """Whether everything is held out, and members train on data of their own."""
    leaked: float = 0.0
    """The share of the held-out tokens that are trained on as well."""

    @property
    def warning(self) -> str | None:
        """What the founder should know about the held-out data, if anything."""
        if not self.leaked:
            return None
        return (
            f"{100 * self.leaked:.2g} % of what is held out is trained on as well, in other copies of "
            "the same documents: the held-out loss will be too low (set `deduplicate = true` in [data], "
            "or remove the copies)"
        )

    @property
    def documents(self) -> int:
        """Number of documents read, without those left out as repeated."""
        return sum(source.read.documents - source.duplicates for source in self.sources)

    @property
    def bad(self) -> int:
        """Number of rows that could not be used."""
        return sum(source.read.bad for source in self.sources)

    def facts(self) -> dict[str, Any]:
        """Return all figures, for programs and for the report."""
        return {
            "documents": self.documents,
            "epoch_tokens": self.tokens,
            "sources": [
                {
                    "name": source.name,
                    "files": source.files,
                    "skipped": {
                        reason: {"files": count, "such_as": names}
                        for reason, (count, names) in source.skipped.reasons.items()
                    },
                    "documents": source.read.documents,
                    "duplicates": source.duplicates,
                    "empty": source.read.empty,
                    "unstarted": source.read.unstarted,
                    "bad": source.read.bad,
                    "bad_rows": [
                        {"file": file, "line": line or None, "problem": problem}
                        for file, line, problem in source.read.bad_rows
                    ],
                    "learned_tokens": source.read.learned,
                    "cut": source.read.cut,
                    "too_long": source.read.too_long,
                    "long_rows": [
                        {"file": file, "line": line, "problem": problem}
                        for file, line, problem in source.read.long_rows
                    ],
                    "tokens": source.tokens,
                    "share": round(source.share, 6),
                    "times": round(source.times, 4),
                }
                for source in self.sources
            ],
        }

    def lines(self) -> Iterator[str]:
        """Yield the figures as lines for people."""
        several, words = len(self.sources) > 1, self.words
        for source in self.sources:
            head = f"{source.name}: " if several else ""
            trained = f"{source.tokens:,} tokens"
            if words.one_each:
                trained = f"{source.tokens // self.sequence_length:,} of them"
            end = f"{trained} to train on"
            if self.private:
                end = f"{self.heldout_tokens:,} tokens held out, which are public"
            yield (
                f"{head}{_count(source.files, 'file')} read, "
                f"{_count(source.read.documents, words.item)}, {end}"
            )
            if several:
                times = f"read {source.times:.2f} times in an epoch"
                if 0.995 < source.times < 1.005:
                    times = "read once in an epoch"
                yield f"  {100 * source.share:.1f} % of an epoch's {words.unit}; {times}"
            if source.read.learned and source.read.tokens and not words.completed:
                share = 100 * source.read.learned / source.read.tokens
                yield f"  {share:.1f} % of the tokens are the assistant's and are learned"
            for line_text in source.skipped.lines():
                yield f"  not read: {line_text}"
            if source.duplicates:
                yield f"  left out: {_count(source.duplicates, words.item)} equal to an earlier one"
            if source.read.unstarted:
                yield (
                    f"  the start token was added to {source.read.unstarted:,} documents from "
                    "arrays of tokens that lacked it"
                )
            if source.read.empty:
                empty = _count(source.read.empty, "row or file", "rows or files")
                yield f"  left out: {empty} without text"
            if source.read.cut or source.read.too_long:
                long = source.read.cut + source.read.too_long
                all_named = long <= _MAX_NAMED
                outcome = words.long(source.read.cut, source.read.too_long)
                yield f"  longer than {outcome}{':' if all_named else ', such as'}"
                for file, line, problem in source.read.long_rows[:_MAX_NAMED]:
                    yield f"    {file}, line {line}: {problem}"
            if source.read.bad:
                all_named = source.read.bad <= _MAX_NAMED
                bad = _count(source.read.bad, f"bad {words.row}")
                yield f"  left out: {bad}{':' if all_named else ', such as'}"
                for file, line, problem in source.read.bad_rows[:_MAX_NAMED]:
                    where = f", line {line}" if line else ""
                    yield f"    {file}{where}: {problem}"
        if self.unused_classes:
            count = _count(len(self.unused_classes), "class", "classes")
            yield f"{count} without a document: {listed(self.unused_classes)}"


# Repeating a text up to four times is nearly as good as new text (Muennighoff et al., arXiv 2305.16264),
# and a model of a given computing budget is best with some 20 tokens a parameter (Hoffmann et al., arXiv
# 2203.15556).
_GOOD_EPOCHS = 4
_TOKENS_A_PARAMETER = 20


@dataclass(frozen=True, kw_only=True)
class Forecast:
    """What the swarm will do and cost, if all members have equal shares of a round."""

    parameters: int
    """Number of trained parameters."""
    frozen: int
    """Number of frozen weights: the base of adapters."""
    samples: int
    """Number of training samples in an epoch."""
    samples_a_round: int
    sequence_length: int
    rounds_an_epoch: float
    epochs: float
    """Epochs of the run, by the rounds of its schedule."""
    tokens_a_parameter: float
    """Tokens per parameter in the whole run."""
    peak_rate: float
    """The highest learning rate."""
    update_bytes: int
    """Size of what a member sends of its gradient: an update or, with committees, a sign vote."""
    received_bytes: dict[int, int]
    """Bytes that a member receives from the others in a step, by the number of members. Each member
    sends the same amount or, if a relay passes updates on, only its own update."""
    rounds_a_step: int
    model_bytes: int
    """Bytes that a newcomer fetches before it trains."""
    data_bytes_a_round: dict[int, int]
    """Bytes of the corpus that a member fetches for a round, by the number of members."""
    sequence_seconds: float | None = None
    """Seconds to compute one sequence on this machine, if it was measured."""
    update_seconds: float | None = None
    """Seconds for the rest of a round: making an update from the gradient."""
    images: bool = False
    """Whether a sequence is an image, and a token a byte of it."""
    verdict: str | None = None
    """Whether the data suffices, in a sentence; None if each member trains on data of its own, or on its
    own completions."""

    def facts(self) -> dict[str, Any]:
        """Return all figures, for programs."""
        facts = asdict(self)
        del facts["received_bytes"]
        facts["update_bytes_received"] = {str(k): v for k, v in self.received_bytes.items()}
        facts["data_bytes_a_round"] = {str(k): v for k, v in self.data_bytes_a_round.items()}
        return facts

    def lines(self) -> Iterator[str]:
        """Yield the figures as lines for people."""
        unit = "bytes of images" if self.images else "tokens"
        yield (
            f"an epoch: {self.rounds_an_epoch:,.1f} rounds; the run: {self.epochs:.2f} epochs, "
            f"{self.tokens_a_parameter:.3g} {unit} a parameter"
        )
        if self.verdict is not None:
            yield self.verdict
        yield f"the learning rate peaks at {self.peak_rate:g} (`peak` in [schedule])"
        base = ""
        if self.frozen:
            parts = _bytes(4 * self.frozen), _bytes(4 * self.parameters)
            base = f": {parts[0]} of base model, once, and {parts[1]} of adapters"
        yield f"to join, a member fetches {_bytes(self.model_bytes)} of model{base}"
        if self.frozen:
            times = 4 * self.frozen / self.update_bytes
            yield (
                f"an update has {_bytes(self.update_bytes)}, {times:,.0f} times less than a "
                "gradient of the whole model"
            )
        for members in MEMBERS:
            what = (
                ("round", "updates")
                if self.rounds_a_step == 1
                else ("step", "sign votes and aggregates")
            )
            line = (
                f"a {what[0]} with {members:>2} members: {_bytes(self.received_bytes[members])} "
                f"of {what[1]} and {_bytes(self.data_bytes_a_round[members])} of data received by "
                "each"
            )
            if self.sequence_seconds is not None and self.update_seconds is not None:
                share = -(-self.samples_a_round // members)
                seconds = share * self.sequence_seconds + self.update_seconds
                line += f", {_seconds(seconds)} of computing on a machine like this"
            yield line
        if self.sequence_seconds is not None and self.update_seconds is not None:
            alone = self.samples_a_round * self.sequence_seconds + self.update_seconds
            yield f"a round on this machine alone: {_seconds(alone)}"


def data_verdict(
    *, rounds: float, epochs: float, tokens: int, read: float, parameters: int, fresh: bool
) -> str:
    """Return, as a sentence, whether a run has enough data.

    An epoch has `tokens` tokens and `rounds` rounds; the run reads `read` tokens, which is `epochs`
    epochs. `fresh`: the model starts from random parameters and learns language.
    """
    repeats = f"it repeats after about {rounds:,.0f} rounds"
    if epochs > _GOOD_EPOCHS:
        return (
            f"too little data for this run: {repeats}, {epochs:,.0f} epochs in all; a model "
            f"learns little from a text that it has read {_GOOD_EPOCHS} times"
        )
    wanted = _TOKENS_A_PARAMETER * parameters
    guideline = f"a new model usually needs about {_TOKENS_A_PARAMETER} tokens a parameter"
    if fresh and _GOOD_EPOCHS * tokens < wanted:
        has = f"this data has {tokens / parameters:.2g}"
        return f"too little data for this model: {repeats}; {guideline}, and {has}"
    if fresh and read < wanted:
        needed = wanted / tokens * rounds
        return f"a short run for this model: {guideline}, which takes {needed:,.0f} rounds"
    if epochs > 1:
        return f"enough data: {repeats}, and up to {_GOOD_EPOCHS} epochs do little harm"
    return "enough data: no text is read twice"


def forecast(
    table: tuple[ParameterSpec, ...],
    data: DataSummary,
    samples: int,
    optimizer: OptimizerSpec,
    schedule: ScheduleSpec,
    rounds: RoundSpec,
    *,
    features: Sequence[FeatureSpec] = (),
    frozen: int = 0,
    fresh: bool = True,
) -> Forecast:
    """Compute the forecast without measurements, from the founder's settings, the trained parameters
    (`table`) and the data.

    `samples`: training samples in an epoch; `frozen`: number of weights that are not trained; `fresh`:
    whether the model starts from random parameters.
    """
    elements = sum(spec.elements for spec in table)
    step, exchange = rounds_per_step(features), exchange_size(features)
    trained = schedule.total_rounds * rounds.sequences // step
    layout = update_layout(table, optimizer.chunk, optimizer.top_k)
    sample_bytes = data.sequence_length * data.token_bytes
    rounds_an_epoch, epochs = step * samples / rounds.sequences, trained / samples
    return Forecast(
        parameters=elements,
        frozen=frozen,
        samples=samples,
        samples_a_round=rounds.sequences,
        sequence_length=data.sequence_length,
        rounds_an_epoch=rounds_an_epoch,
        epochs=epochs,
        tokens_a_parameter=trained * data.sequence_length / elements,
        peak_rate=schedule.peak,
        update_bytes=exchange.sent(layout),
        received_bytes={members: exchange.received(layout, members) for members in MEMBERS},
        rounds_a_step=step,
        model_bytes=4 * (elements + frozen),
        images=data.words.images,
        verdict=None
        if data.words.completed
        else data_verdict(
            rounds=rounds_an_epoch,
            epochs=epochs,
            tokens=samples * data.sequence_length,
            read=trained * data.sequence_length,
            parameters=elements,
            fresh=fresh and data.words.language and not frozen,
        ),
        # A member reads spans of eight chunks (`protocol.sampling`), and a span that begins inside a
        # chunk touches nine. At least one whole chunk is fetched, and no more than the corpus.
        data_bytes_a_round={
            members: min(
                -(-rounds.sequences // members) * sample_bytes * 9 // 8,
                max(CHUNK_BYTES, samples * sample_bytes),
            )
            for members in MEMBERS
        },
    )


def _count(number: int, one: str, many: str | None = None) -> str:
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def _bytes(count: int) -> str:
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count} bytes"


def _seconds(seconds: float) -> str:
    if seconds < 0.1:
        return "less than 0.1 s"
    return f"{seconds:.1f} s" if seconds < 120 else f"{seconds / 60:.0f} min"
