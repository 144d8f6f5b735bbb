"""Options of commands, derived from the declarations of settings."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import typing
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from ..settings.setting import Setting, all_settings, build, settings_of


def with_settings(command: Callable[..., None]) -> Callable[..., None]:
    """Return the command with options in place of each parameter whose type is a dataclass of settings.

    The command is called with settings built from the options (`setting.build`). Options that a user
    does not give have the defaults of the dataclass.
    """
    hints = typing.get_type_hints(command, include_extras=True)
    trees: dict[str, type] = {}
    parameters: list[inspect.Parameter] = []
    for each in inspect.signature(command).parameters.values():
        hint = hints[each.name]
        if dataclasses.is_dataclass(hint) and isinstance(hint, type):
            trees[each.name] = hint
            parameters += map(_parameter, all_settings(hint))
        else:
            parameters.append(each.replace(annotation=hint, kind=inspect.Parameter.KEYWORD_ONLY))

    @functools.wraps(command)
    def with_options(**given: Any) -> None:
        built = {name: build(tree, given) for name, tree in trees.items()}
        of_trees = {each.parameter for tree in trees.values() for each in all_settings(tree)}
        others = {name: value for name, value in given.items() if name not in of_trees}
        command(**built, **others)

    described: Any = with_options
    described.__signature__ = inspect.Signature(parameters)
    described.__annotations__ = {each.name: each.annotation for each in parameters}
    # Nothing may read the parameters of the original command.
    del described.__wrapped__
    return with_options


def option_of(component: type, field: str, *, help: str | None = None) -> Any:
    """Return the option of one setting, for a command without the component's other settings; `help`
    replaces the setting's own."""
    return _information(settings_of(component)[field], help)


def _parameter(each: Setting) -> inspect.Parameter:
    kind: Any = list[each.value_type] if each.multiple else each.value_type
    default = inspect.Parameter.empty if each.required else each.default
    if default is None:
        kind = kind | None
    return inspect.Parameter(
        each.parameter,
        inspect.Parameter.KEYWORD_ONLY,
        default=default,
        annotation=Annotated[kind, _information(each, None)],
    )


def _information(each: Setting, help: str | None) -> Any:
    declaration = each.declaration
    # The code that reads a path checks it: its error names the file, and has its own exit code.
    readable = each.value_type is not Path
    if declaration.argument:
        return typer.Argument(
            metavar=declaration.metavar, help=help or declaration.help, readable=readable
        )
    return typer.Option(
        each.flags,
        metavar=declaration.metavar,
        min=declaration.low,
        max=declaration.high,
        readable=readable,
        help=help or declaration.help,
        rich_help_panel=declaration.group,
    )
