"""Numbers in documents that come from results files: how they are found there, and written anew.

A document stays plain text: nothing in it marks a number. The sentence around the number, which occurs
once in the document, is said in `figures.py` with a place for each number.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from string import Formatter
from typing import Any

CHECKOUT = Path(__file__).resolve().parent.parent
NUMBER = r"([+-]?\d+(?:,\d{3})*(?:\.\d+)?)"


@dataclass(frozen=True)
class Figure:
    """A piece of a document that has numbers in it."""

    document: str
    sentence: str
    """Words that occur once in the document, with `{:.2f}` and the like for each number. Where the
    document has a line break, the sentence has a space."""
    values: tuple[float, ...]

    def numbers(self) -> list[str]:
        """The numbers as they must be written."""
        specs = [
            spec for _, field, spec, _ in Formatter().parse(self.sentence) if field is not None
        ]
        return [format(value, spec or "") for value, spec in zip(self.values, specs, strict=True)]

    def written_into(self, text: str) -> str:
        """The document with the right numbers. Raises `LookupError` unless it has the sentence once."""
        pattern = NUMBER.join(
            r"\s+(?:# )?".join(re.escape(part) for part in re.split(r"\s+", words))
            for words in re.split(r"\{:[^}]*\}", self.sentence)
        )
        found = list(re.finditer(pattern, text))
        if len(found) != 1:
            times = "is not there" if not found else f"is there {len(found)} times"
            raise LookupError(f"{self.document}: {times}: {self.sentence}")
        for place, number in reversed(list(enumerate(self.numbers(), 1))):
            text = text[: found[0].start(place)] + number + text[found[0].end(place) :]
        return text


@dataclass(frozen=True)
class WholeTable:
    """A table that is written as a whole: its rows come and go with the results."""

    document: str
    heading: str
    """Its first line, which occurs once in the document."""
    rows: tuple[str, ...]

    def written_into(self, text: str) -> str:
        """The document with these rows. Raises `LookupError` unless it has the heading once."""
        columns = self.heading.count("|") - 1
        pattern = re.escape(self.heading) + r"\n(?:\|.*\n)*"
        found = list(re.finditer(pattern, text))
        if len(found) != 1:
            raise LookupError(f"{self.document}: is there {len(found)} times: {self.heading}")
        lines = [self.heading, "|" + "---|" * columns, *self.rows]
        start, end = found[0].span()
        return text[:start] + "".join(f"{line}\n" for line in lines) + text[end:]


@cache
def results(name: str) -> Any:
    """What the newest results file of this name holds."""
    return json.loads(results_file(name).read_text(encoding="utf-8"))


def results_file(name: str) -> Path:
    """The newest results file of this name."""
    dated = "[0-9]" * 4 + "-[0-9][0-9]-[0-9][0-9]"
    return max((CHECKOUT / "benchmarks" / "results").glob(f"{dated}-{name}.json"))


def table(
    document: str, heading: str, columns: int, rows: list[tuple[str, tuple[float, ...]]]
) -> Figure:
    """All rows of a table, below a heading that ends with these words."""
    lines = [heading, "|" + "---|" * columns, *(row for row, _ in rows)]
    return Figure(document, " ".join(lines), tuple(value for _, row in rows for value in row))


def rewritten(
    figures: Iterable[Figure | WholeTable],
) -> tuple[dict[str, tuple[str, str]], list[str]]:
    """Of each document the text as it is and as it should be, and what could not be found."""
    texts: dict[str, tuple[str, str]] = {}
    lost = []
    for figure in figures:
        if figure.document not in texts:
            text = (CHECKOUT / figure.document).read_text(encoding="utf-8")
            texts[figure.document] = text, text
        before, after = texts[figure.document]
        try:
            texts[figure.document] = before, figure.written_into(after)
        except LookupError as problem:
            lost.append(str(problem))
    return texts, lost
