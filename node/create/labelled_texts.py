"""Texts with a class: a row becomes the number of its class, the tokens of its text, and padding.

All samples of a swarm have the same length: a longer text is cut, a shorter one is padded.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from typing import Any

import numpy as np

from .class_labels import DEFAULT_COLUMN, ClassLabels, is_label_type
from .class_metadata import ClassNames
from .columns import Columns
from .rows import BadRow
from .tokens import ByteTokenizer, FileTokenizer, TokenBytes

# Hardly any sequence reaches a later character; a tokenizer takes some 150 times as much memory as the
# text.
_MAX_CHARACTERS = 1 << 18
_SEPARATOR = "\n"


class LabelledColumns(Columns):
    """The columns of a text, as in `Columns`, and the one that names its class."""

    content = "texts with a class"
    units = "texts with a class"
    remedy = (
        "name the text's column with `text`, several with `template`, and the column of the class with "
        "`label`, or leave the file out with `exclude`"
    )
    whole = True

    def __init__(
        self, text: str | None, template: str | None, label: str | None, classes: Sequence[str]
    ) -> None:
        """Raise `ValueError` for columns that do not go together."""
        super().__init__(text, template)
        self.label = label or DEFAULT_COLUMN
        if self.label in self.names:
            raise ValueError(
                f"`label` is the column {self.label!r}, which is part of the text as well: the model "
                "would read the class instead of learning it"
            )
        self.names = (*self.names, self.label)
        self._labels = ClassLabels(classes)

    @property
    def facts(self) -> tuple[Any, ...]:
        """Everything that the sample of a row depends on, as in `Columns`."""
        return *super().facts, self._labels.classes

    def accepts(self, arrow: Any, name: str, kind: Any) -> bool:
        """Whether a column may have this Arrow type, as in `Columns`."""
        if name != self.label:
            return super().accepts(arrow, name, kind)
        types = arrow.types
        return is_label_type(types, kind.value_type if types.is_dictionary(kind) else kind)

    def of_file(self, classes: ClassNames | None) -> LabelledColumns:
        """Return the columns of a file that states these classes, as in `Columns`."""
        made = copy(self)
        made._labels = self._labels.of_file(classes)
        return made

    def class_of(self, sample: bytes) -> int:
        """Return the number of the class in what `text` returned, in UTF-8."""
        return int(sample.partition(_SEPARATOR.encode())[0])

    def subject_of(self, sample: bytes) -> bytes:
        """Return the text without its class."""
        return sample.partition(_SEPARATOR.encode())[2]

    def text(self, row: Mapping[str, Any]) -> str | BadRow:
        """Return the text of a row after a line with the number of its class; "" for a row whose text is
        blank."""
        text = super().text(row)
        if isinstance(text, BadRow):
            return text
        assert isinstance(text, str)
        number = self._labels.number(row[self.names[-1]])
        if isinstance(number, BadRow):
            return number
        return f"{number}{_SEPARATOR}{text[:_MAX_CHARACTERS]}" if text.strip() else ""


class LabelledTokenizer:
    """A tokenizer of texts with a class: `before` the number of the class and the tokens before every
    text, then the text, then the tokens `after` it."""

    def __init__(
        self,
        tokenizer: ByteTokenizer | FileTokenizer,
        before: tuple[int, ...],
        after: tuple[int, ...],
        length: int,
        filler: int,
    ) -> None:
        """`length`: numbers in a sample; `filler`: the token that pads it."""
        self._tokenizer = tokenizer
        self.before, self.after = before, after
        self.length, self.filler = length, filler
        self.vocabulary = tokenizer.vocabulary
        self.definition = tokenizer.definition
        self.needs_utf8 = tokenizer.needs_utf8

    @property
    def token_bytes(self) -> TokenBytes:
        """Bytes in which a token is stored: 1, 2 or 4."""
        return self._tokenizer.token_bytes

    @property
    def facts(self) -> tuple[Any, ...]:
        """Everything that a sample depends on besides the text and the tokenizer's definition."""
        return self.before, self.after, self.length, self.filler

    @property
    def remade(self) -> tuple[Any, ...]:
        """The arguments with which `of` makes the same tokenizer in another process."""
        raw = isinstance(self._tokenizer, ByteTokenizer)
        return None if raw else self.definition, *self.facts

    @classmethod
    def of(cls, definition: bytes | None, *facts: Any) -> LabelledTokenizer:
        """Make a tokenizer from another one's `remade`."""
        inner = ByteTokenizer() if definition is None else FileTokenizer.of(definition)
        return cls(inner, *facts)

    def encode(self, texts: Sequence[bytes]) -> list[np.ndarray]:
        """Return the number of each text's class and its tokens, neither cut nor padded; `texts` are
        what `LabelledColumns.text` returns, in UTF-8."""
        parts = [text.partition(_SEPARATOR.encode()) for text in texts]
        encoded = self._tokenizer.encode([text for _, _, text in parts])
        return [
            np.array([int(label), *self.before, *tokens.tolist(), *self.after], np.uint32)
            for (label, _, _), tokens in zip(parts, encoded, strict=True)
        ]

    def fitted(self, numbers: np.ndarray) -> np.ndarray:
        """Return a sample of `length` numbers: a longer text is cut before the tokens after it."""
        end = len(self.after)
        if len(numbers) > self.length:
            return np.concatenate([numbers[: self.length - end], numbers[len(numbers) - end :]])
        padding = np.full(self.length - len(numbers), self.filler, numbers.dtype)
        return np.concatenate([numbers, padding])

    def line_ends(self) -> np.ndarray:
        """Return no line end: texts stay whole."""
        return np.zeros(self.vocabulary, bool)

    def end_token(self) -> None:
        """Return None: what ends a text is in `after`."""
