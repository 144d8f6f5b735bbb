"""A row of a status."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class StatusRow:
    """One line; `note` may be empty."""

    name: str
    value: str
    note: str = ""
