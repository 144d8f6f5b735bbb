"""The class of a row, as a number, from the name or the number that a column has."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .class_metadata import ClassNames
from .formats import BadFile
from .rows import BadRow

DEFAULT_COLUMN = "label"

_SHOWN_NAMES = 5


class ClassLabels:
    """The classes of a swarm, in the order that numbers them, for a file that may number them
    otherwise."""

    def __init__(self, classes: Sequence[str], stated: ClassNames | None = None) -> None:
        """`stated`: the classes in the order in which a file numbers them, if it states them. Raises
        `BadFile` if they are certainly others."""
        self.classes = tuple(classes)
        self._numbers = {name: number for number, name in enumerate(self.classes)}
        # Files of text, such as CSV, spell numbers as text.
        self._places = {str(number): number for number in self._numbers.values()}
        # Where names are numbers, such as the stars of a review, a cell has the name and not the place
        # in the list.
        self._names_are_numbers = any(name.strip().lstrip("+-").isdecimal() for name in classes)
        self._stated = stated
        self._renamed = stated is not None and self._numbers.keys().isdisjoint(stated)
        """Whether the swarm gives the file's classes other names, in the same order."""
        if stated is not None and self._renamed and len(stated) != len(self.classes):
            raise BadFile(
                f"states {len(stated)} classes ({listed(stated)}), but `classes` in [task_settings] "
                f"names {len(self.classes)} others ({listed(self.classes)})",
                "name the same classes, or leave `classes` out to take those that the data states",
            )

    def of_file(self, stated: ClassNames | None) -> ClassLabels:
        """Return the same classes for a file with these. Raises `BadFile` as `__init__` does."""
        return ClassLabels(self.classes, stated)

    def number(self, label: Any) -> int | BadRow:
        """Return the number of the class that a cell names."""
        if isinstance(label, str) and label in self._numbers:
            return self._numbers[label]
        if self._stated is not None:
            return self._number_in_file(label, self._stated)
        if type(label) is int and self._names_are_numbers:
            label = str(label)
            if label in self._numbers:
                return self._numbers[label]
        elif type(label) is int and 0 <= label < len(self.classes):
            return label
        elif isinstance(label, str) and label in self._places and not self._names_are_numbers:
            return self._places[label]
        return _outside(label)

    def _number_in_file(self, label: Any, stated: ClassNames) -> int | BadRow:
        """Return the number of the class that a file with classes of its own numbers or names thus."""
        place = label if type(label) is int else None
        if isinstance(label, str):
            # Files of text, such as CSV, spell numbers as text.
            place = stated.index(label) if label in stated else _place(label)
        if place is None or not 0 <= place < len(stated):
            return BadRow(
                f"has the class {_shown(label)}, but the data set numbers its classes from 0 to "
                f"{len(stated) - 1}"
            )
        return place if self._renamed else self._numbers.get(stated[place], _outside(stated[place]))


def _place(label: str) -> int | None:
    return int(label) if label.isascii() and label.isdecimal() and len(label) < 9 else None


def _shown(label: Any) -> str:
    return repr(str(label)[:40])


def _outside(label: Any) -> BadRow:
    return BadRow(f"is of a class that is not in `classes`: {_shown(label)}")


def listed(names: Sequence[str]) -> str:
    """Return names of classes for a message, the first few of many."""
    more = ", …" if len(names) > _SHOWN_NAMES else ""
    return ", ".join(name[:40] for name in names[:_SHOWN_NAMES]) + more


def is_label_type(types: Any, kind: Any) -> bool:
    """Whether a column of this Arrow type (`types` is `pyarrow.types`) can name classes."""
    return types.is_string(kind) or types.is_large_string(kind) or types.is_integer(kind)
