"""Commands whose help lists many options in groups, and which take no empty path."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from typer.core import TyperCommand

from ..config import path_parameters
from ..errors import ExitCode, UserError
from ..settings.setting import Group
from ..settings.values import without_tilde

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


def _without_tilde(given: Any) -> Any:
    """Return the value of a path parameter, or its values, with home directories in place of `~`."""
    if isinstance(given, (list, tuple)):
        return [_without_tilde(each) for each in given]
    return given if given is None else without_tilde(Path(given))


class GroupedCommand(TyperCommand):
    """A command whose help lists many options in groups, and which takes no empty path."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read the command line, with home directories in place of `~` in paths. Raises `UserError`
        (`USAGE`) if a path in it is empty: the library takes that for the current directory, and mostly
        a variable of the shell is not set.

        A shell that asks for completions gets them whatever stands before them."""
        if ctx.resilient_parsing:
            return super().parse_args(ctx, args)
        paths = path_parameters(inspect.unwrap(self.callback)) if self.callback else set()
        if any(each == "" or each.endswith("=") for each in args):
            values, _, _ = self.make_parser(ctx).parse_args(args=list(args))
            for each in self.get_params(ctx):
                given = values.get(each.name)
                if each.name in paths and (
                    given == "" or (isinstance(given, list) and "" in given)
                ):
                    option = each.param_type_name == "option"
                    name = each.opts[0] if option else each.metavar or each.name.upper()
                    raise UserError(
                        ExitCode.USAGE,
                        f"the path given as {name} is empty",
                        "name a file or a directory; `.` is the current directory",
                    )
        left = super().parse_args(ctx, args)
        for name in paths:
            ctx.params[name] = _without_tilde(ctx.params.get(name))
        return left

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
