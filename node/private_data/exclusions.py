"""The files, documents and rows of a member's own data that are not trained on, and the reasons."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated

from ...protocol.wire.structure import Length, Range
from ..create.files import Skipped
from ..create.summary import DataSummary

_MAX_REASONS = 50
_MAX_NAMES = 3
_MAX_CHARACTERS = 200


@dataclass(frozen=True, kw_only=True)
class Exclusion:
    """Files, documents or rows that are left out for one reason."""

    count: Annotated[int, Range(1, 2**62)]
    what: Annotated[str, Length(1, 256)]
    """The reason, to be read after the count."""
    such_as: Annotated[tuple[Annotated[str, Length(1, 256)], ...], Length(0, 8)] = ()
    """The names of some of them, which are shown only in the log."""

    def text(self, *, names: bool) -> str:
        """Return count and reason, with or without names."""
        more = ", …" if self.count > len(self.such_as) else ""
        named = f" ({', '.join(self.such_as)}{more})" if names and self.such_as else ""
        return f"{self.count:,} {self.what}{named}"


def skipped_files(skipped: Iterable[Skipped]) -> tuple[Exclusion, ...]:
    """Return the files that are not read."""
    return _first_reasons(
        _exclusion(count, f"file {reason}", f"files {reason}", names)
        for each in skipped
        for reason, (count, names) in each.reasons.items()
    )


def exclusions_in(summary: DataSummary) -> tuple[Exclusion, ...]:
    """Return what is left out of the files that are read."""
    found = []
    for source in summary.sources:
        read = source.read
        bad = [f"{file}, line {line}" if line else file for file, line, _ in read.bad_rows]
        long = [f"{file}, line {line}" for file, line, _ in read.long_rows]
        conversation_cases = "longer than a sequence", "cut after an answer"
        found += [
            _exclusion(
                len(read.no_text), "file that is not text", "files that are not text", read.no_text
            ),
            _exclusion(read.bad, "bad row", "bad rows", bad),
            _exclusion(read.empty, "row or file without text", "rows or files without text"),
            _exclusion(
                source.duplicates,
                "document equal to an earlier one",
                "documents equal to an earlier one",
            ),
            *(
                _exclusion(count, f"conversation {how}", f"conversations {how}", long)
                for count, how in zip((read.too_long, read.cut), conversation_cases, strict=True)
            ),
        ]
    return _first_reasons(found)


def _first_reasons(found: Iterable[Exclusion | None]) -> tuple[Exclusion, ...]:
    return tuple(each for each in found if each is not None)[:_MAX_REASONS]


def _exclusion(count: int, one: str, many: str, names: Sequence[str] = ()) -> Exclusion | None:
    if not count:
        return None
    # A file's name may contain bytes that are not UTF-8.
    such_as = tuple(_text(name) for name in names[:_MAX_NAMES])
    return Exclusion(count=count, what=_text(one if count == 1 else many), such_as=such_as)


def _text(name: str) -> str:
    return name.encode("utf-8", "replace").decode("utf-8")[:_MAX_CHARACTERS] or "?"
