"""The groups in which the help of commands with many options lists them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from typer.core import TyperCommand

from ..settings.setting import Group

OTHERS = "Other options"

# A shorter list is read faster without headings.
_FEW = 12


def grouped(options: Sequence[Any]) -> list[tuple[str, list[Any]]]:
    """Return the headings of a command's options, each with its options in their own order."""
    if len(options) <= _FEW:
        return [("Options", list(options))]
    found: dict[str, list[Any]] = {heading: [] for heading in (*Group, OTHERS)}
    for each in options:
        found[each.rich_help_panel or OTHERS].append(each)
    return [(heading, listed) for heading, listed in found.items() if listed]


class GroupedCommand(TyperCommand):
    """A command whose help lists many options in groups."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write arguments and options under their headings."""
        shown = [(each, each.get_help_record(ctx)) for each in self.get_params(ctx)]
        records = {each: record for each, record in shown if record is not None}
        arguments = [each for each in records if each.param_type_name == "argument"]
        if arguments:
            with formatter.section("Arguments"):
                formatter.write_dl([records[each] for each in arguments])
        for heading, options in grouped([each for each in records if each not in arguments]):
            with formatter.section(heading):
                formatter.write_dl([records[each] for each in options])
