"""Kinds of training data: how each names its columns, is held out, fills samples and is described.

`create` and the reader of private data call the hooks of `DataKind`, and do not know which kind it is.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from ..errors import UserError
from ..training.chat import ChatTemplate
from ..training.reward_rules import RewardRule
from ..training.task_names import PixelSettings
from .columns import Columns
from .conversations import ConversationColumns
from .images import ImageColumns
from .labelled_texts import LabelledColumns
from .manifest_file import SourceTable
from .mixing import Side, SourceShare
from .preferences import PreferenceColumns
from .prompts import PromptColumns
from .sequence_packing import rows
from .shards import SHARD_BYTES
from .shortages import no_conversations, no_images, no_prompts, no_texts, too_short
from .summary import (
    DataWords,
    SourceSummary,
    cut_conversations,
    cut_texts,
    long_pairs,
    long_prompts,
)
from .token_cache import TokenCache


@dataclass(frozen=True, kw_only=True)
class SampleLayout:
    """What samples consist of besides documents."""

    length: int
    """Numbers in a sample."""
    token_bytes: int
    end: tuple[int, ...]
    """The tokens that end a document."""
    end_every_block: bool
    """Whether every block of the corpus (`mixing`) ends with `end`, so that no token attends across
    the border of two blocks."""
    filler: int
    """The padding token after documents that do not fill a sample."""
    begin_bit: int
    """The bit that marks a number with which a document begins; 0: none is marked."""


@dataclass(frozen=True)
class ReadData:
    """What was read for a corpus."""

    length: int
    """Numbers in a sample."""
    caches: Sequence[TokenCache]
    sources: Sequence[SourceSummary]


class DataKind:
    """A kind of training data. Here it is plain text, cut into samples wherever one is full."""

    own_keys: Collection[str] = ()
    """The keys of `_FOREIGN_KEYS` that name its columns, or that it refuses in its own words."""
    whole_documents = False
    """Whether samples consist of whole documents, and shards of whole samples."""
    attention: Literal["sequence", "document"] = "sequence"
    """How far tokens attend, unless the founder says otherwise."""
    words = DataWords()

    def columns(self, table: SourceTable) -> Columns:
        """Return the columns that a source's table names. Raises `ValueError` for keys that do not go
        together, or belong to another kind."""
        self._refuse_foreign(table)
        return Columns(table.text, table.template)

    def least_tokens(self, length: int) -> int:
        """Return the least number of tokens that make a sample of `length`."""
        return length + 1

    def too_little(self, side: str, read: ReadData) -> UserError:
        """Return the error for a side of the corpus without a sample."""
        return too_short(side, read.length, read.sources)

    def pieces(
        self,
        side: Side,
        shares: Sequence[SourceShare],
        layout: SampleLayout,
        advance: Callable[[int], None],
    ) -> Iterator[np.ndarray]:
        """Yield the numbers to store in the corpus's order; of whole documents, one sample at a time."""
        return side.blocks(shares, layout.end, layout.end_every_block, advance)

    def samples(self, side: Side, shares: Sequence[SourceShare], layout: SampleLayout) -> int:
        """Return the number of samples in the shards of a side."""
        per_shard = SHARD_BYTES // layout.token_bytes
        whole, rest = divmod(sum(share.epoch_tokens for share in shares), per_shard)
        return whole * ((per_shard - 1) // layout.length) + max(0, (rest - 1) // layout.length)

    def _refuse_foreign(self, table: SourceTable) -> None:
        for key, (is_given, problem) in _FOREIGN_KEYS.items():
            if key not in self.own_keys and is_given(table):
                raise ValueError(problem)


# Groups of keys that belong to some kinds only: whether a table has one, and what its founder is told.
_FOREIGN_KEYS: dict[str, tuple[Callable[[SourceTable], bool], str]] = {
    "answer": (
        lambda table: table.answer is not None,
        "`answer` belongs to the task 'grpo', which rewards by it",
    ),
    "image": (
        lambda table: table.image is not None or table.format == "image",
        '`image` and format = "image" belong to a task that learns from images, such as '
        "'diffusion'",
    ),
    "label": (
        lambda table: table.label is not None,
        "`label` belongs to a task that learns from images or names classes, such as "
        "'text_classification'",
    ),
    "pair": (
        lambda table: table.holds_pairs,
        "`chosen` and `rejected` belong to the task 'dpo', which learns from pairs of answers",
    ),
    "conversation": (
        lambda table: table.holds_conversations,
        "`messages`, `prompt` and `completion` belong to a task that learns from "
        "conversations, such as 'sft'",
    ),
}

PLAIN_TEXT = DataKind()


class Conversations(DataKind):
    """Conversations, of which several are packed into a sample."""

    own_keys = ("conversation",)
    whole_documents = True
    # No further than their conversation, of which several are in a sample.
    attention = "document"
    words = DataWords(long=cut_conversations)

    def __init__(self, chat: ChatTemplate) -> None:
        self._chat = chat

    def columns(self, table: SourceTable) -> Columns:
        self._refuse_foreign(table)
        if table.text or table.template:
            raise ValueError(
                "`text` and `template` are for plain text; name the column of a conversation with "
                "`messages`, or two with `prompt` and `completion`"
            )
        return ConversationColumns(table.messages, table.prompt, table.completion, self._chat)

    def too_little(self, side: str, read: ReadData) -> UserError:
        return no_conversations(side, read.length, read.caches)

    def least_tokens(self, length: int) -> int:
        return 1

    def pieces(
        self,
        side: Side,
        shares: Sequence[SourceShare],
        layout: SampleLayout,
        advance: Callable[[int], None],
    ) -> Iterator[np.ndarray]:
        blocks = side.blocks(shares, (), False, advance, layout.begin_bit)
        return rows(blocks, layout.length, layout.filler, layout.begin_bit)

    def samples(self, side: Side, shares: Sequence[SourceShare], layout: SampleLayout) -> int:
        return sum(1 for _ in self.pieces(side, shares, layout, lambda _: None))


class _OneEach(DataKind):
    """A kind each of whose documents is one sample."""

    whole_documents = True

    def least_tokens(self, length: int) -> int:
        return 1

    def pieces(
        self,
        side: Side,
        shares: Sequence[SourceShare],
        layout: SampleLayout,
        advance: Callable[[int], None],
    ) -> Iterator[np.ndarray]:
        blocks = side.blocks(shares, (), False, advance, row=layout.length)
        return (row for piece in blocks for row in piece.reshape(-1, layout.length))

    def samples(self, side: Side, shares: Sequence[SourceShare], layout: SampleLayout) -> int:
        return sum(share.epoch_tokens // layout.length for share in shares)


class Images(_OneEach):
    """Images, with or without classes."""

    own_keys = ("image", "label", "pair", "conversation")
    words = DataWords(
        item="image", row="image", unit="images", one_each=True, images=True, language=False
    )

    def __init__(self, settings: PixelSettings) -> None:
        self._settings = settings

    def columns(self, table: SourceTable) -> Columns:
        self._refuse_foreign(table)
        if table.text or table.template or table.holds_conversations or table.holds_pairs:
            raise ValueError(
                "`text`, `template`, `messages`, `prompt` and `completion` are for text; name the "
                "column of images with `image`, and the column of their classes with `label`"
            )
        return ImageColumns(table.image, table.label, self._settings)

    def too_little(self, side: str, read: ReadData) -> UserError:
        return no_images(side)


class LabelledTexts(_OneEach):
    """Texts with a class."""

    own_keys = ("label", "conversation")
    words = DataWords(one_each=True, language=False, long=cut_texts)

    def __init__(self, classes: Sequence[str]) -> None:
        self._classes = classes

    def columns(self, table: SourceTable) -> Columns:
        self._refuse_foreign(table)
        if table.holds_conversations:
            raise ValueError(
                "`messages`, `prompt` and `completion` are for conversations; name the text's "
                "column with `text`, and the column of its class with `label`"
            )
        return LabelledColumns(table.text, table.template, table.label, self._classes)

    def too_little(self, side: str, read: ReadData) -> UserError:
        return no_texts(side)


class Pairs(_OneEach):
    """Preference pairs."""

    own_keys = ("pair", "conversation")
    words = DataWords(item="pair", unit="pairs", one_each=True, long=long_pairs)

    def __init__(self, chat: ChatTemplate) -> None:
        self._chat = chat

    def columns(self, table: SourceTable) -> Columns:
        self._refuse_foreign(table)
        if table.text or table.template or table.messages or table.completion:
            raise ValueError(
                "the task 'dpo' reads the columns that `prompt`, `chosen` and `rejected` name, and "
                "no others"
            )
        return PreferenceColumns(table.prompt, table.chosen, table.rejected, self._chat)

    def too_little(self, side: str, read: ReadData) -> UserError:
        return no_conversations(side, read.length, read.caches, "pair")


class Prompts(_OneEach):
    """Prompts, for which members write completions; with a chat template they are conversations."""

    words = DataWords(
        item="prompt", unit="prompts", one_each=True, completed=True, long=long_prompts
    )

    def __init__(self, chat: ChatTemplate | None, rule: RewardRule, completion: int) -> None:
        """`completion`: the most tokens of a completion."""
        self._chat, self._rule, self._completion = chat, rule, completion

    def columns(self, table: SourceTable) -> Columns:
        if table.text or table.template or table.messages or table.completion or table.holds_pairs:
            raise ValueError(
                "the task 'grpo' reads the columns that `prompt` and `answer` name, and no others"
            )
        if table.image or table.label or table.format == "image":
            raise ValueError('`image`, `label` and format = "image" are for images')
        return PromptColumns(table.prompt, table.answer, self._chat, self._rule)

    def too_little(self, side: str, read: ReadData) -> UserError:
        return no_prompts(side, read.length, self._completion, read.caches)
