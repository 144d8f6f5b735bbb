"""The tokens before and after documents."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Borders:
    """The tokens before and after every document."""

    end: tuple[int, ...] = ()
    start: int | None = None
    known_start: int | None = None
    """The tokenizer's start token, whether or not documents get it."""

    @property
    def before(self) -> int | None:
        """The token to insert before each document; None if documents get no start token, or if the end
        token of the previous document is the start token as well."""
        return None if self.end == (self.start,) else self.start

    @property
    def unwanted(self) -> int | None:
        """The tokenizer's start token if no document may begin with it: documents get no start token,
        and it is not their end token either. Otherwise None."""
        chosen = self.start is not None or self.end == (self.known_start,)
        return None if chosen else self.known_start

    @property
    def single_end(self) -> int | None:
        """The token that ends a document, if it is a single one."""
        return self.end[0] if len(self.end) == 1 else None
