"""The class of a row, as a number, from the name or the number that a column has."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .rows import BadRow

DEFAULT_COLUMN = "label"


class ClassLabels:
    """The classes of a swarm, in the order that numbers them."""

    def __init__(self, classes: Sequence[str]) -> None:
        self.classes = tuple(classes)
        self._numbers = {name: number for number, name in enumerate(self.classes)}
        # Files of text, such as CSV, spell numbers as text.
        self._places = {str(number): number for number in self._numbers.values()}
        # Where names are numbers, such as the stars of a review, a cell has the name and not the place
        # in the list.
        self._names_are_numbers = any(name.strip().lstrip("+-").isdecimal() for name in classes)

    def number(self, label: Any) -> int | BadRow:
        """Return the number of the class that a cell names."""
        if isinstance(label, str) and label in self._numbers:
            return self._numbers[label]
        if type(label) is int and self._names_are_numbers:
            label = str(label)
            if label in self._numbers:
                return self._numbers[label]
        elif type(label) is int and 0 <= label < len(self.classes):
            return label
        elif isinstance(label, str) and label in self._places and not self._names_are_numbers:
            return self._places[label]
        return BadRow(f"is of a class that is not in `classes`: {str(label)[:40]!r}")


def is_label_type(types: Any, kind: Any) -> bool:
    """Whether a column of this Arrow type (`types` is `pyarrow.types`) can name classes."""
    return types.is_string(kind) or types.is_large_string(kind) or types.is_integer(kind)
