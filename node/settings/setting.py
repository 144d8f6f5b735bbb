"""Settings as fields of a component's dataclass, each with all that is known about the setting.

`setting(…)` declares the field: default, bounds, help, group, names. The command line, the configuration
file, the environment, the reference table and the manual pages are derived from these declarations
(`node/cli/settings_parameters.py`); `build` makes a tree of components from the values of its options.
"""

from __future__ import annotations

import dataclasses
import functools
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum, StrEnum
from typing import Any, TypeVar

T = TypeVar("T")

_KEY, _FIXED = "setting", "fixed"
_UNSET: Any = object()
_NOTHING = (None, ())


class Group(StrEnum):
    """The headings under which help and documents list the options, in this order."""

    COMMON = "Common options"
    DEVICE = "Device and memory"
    CONNECTION = "Connection and disk"
    ENERGY = "Hours and energy"
    DASHBOARD = "Dashboard and metrics"
    PRIVACY = "Privacy"
    EXPERT = "Expert"


@dataclass(frozen=True, kw_only=True)
class Declaration:
    """The part of a setting that does not follow from its field's name and type."""

    default: Any
    """The default as a user would write it."""
    default_factory: Callable[[], Any] | None
    help: str
    group: Group | None
    name: str | None
    opposite: str | None
    metavar: str | None
    low: float | None
    high: float | None
    value_type: type | None
    parse: Callable[[Any], Any] | None
    argument: bool


@dataclass(frozen=True, kw_only=True)
class Setting:
    """A declared setting: `Declaration` and what follows from the field."""

    declaration: Declaration
    field: str
    name: str
    """The option's name without the leading hyphens, such as max-upload."""
    value_type: type
    """The type of the option's value (of one value, if it has several): str, int, float, bool, Path or
    an Enum."""
    multiple: bool
    """Whether the option may be repeated, which gives a tuple of values."""

    @property
    def default(self) -> Any:
        """The default as a user of the option would write it; None if the setting has none, or one that
        is computed."""
        default = self.declaration.default
        return None if default is _UNSET or default in _NOTHING else default

    @property
    def parameter(self) -> str:
        """Its name in the configuration file and, in capitals, in the environment."""
        return self.name.replace("-", "_")

    @property
    def flags(self) -> str:
        """The option as a user types it; for a switch, with its opposite if it has one."""
        opposite = self.declaration.opposite
        if self.value_type is not bool or opposite == "":
            return f"--{self.name}"
        return f"--{self.name}/--{opposite or f'no-{self.name}'}"

    @property
    def required(self) -> bool:
        """Whether a user has to give it."""
        return self.declaration.default is _UNSET and self.declaration.default_factory is None

    def value(self, given: Any) -> Any:
        """Return the field's value for an option's value. Raises `UserError` if that is invalid."""
        parse = self.declaration.parse
        if self.multiple:
            return tuple(given if parse is None else map(parse, given))
        return given if parse is None else parse(given)


def setting(
    default: Any = _UNSET,
    *,
    help: str,
    group: Group | None = None,
    name: str | None = None,
    opposite: str | None = None,
    metavar: str | None = None,
    low: float | None = None,
    high: float | None = None,
    value_type: type | None = None,
    parse: Callable[[Any], Any] | None = None,
    default_factory: Callable[[], Any] | None = None,
    argument: bool = False,
) -> Any:
    """Declare a field that is a setting.

    `default` is written as a user would write it; `default_factory` computes a default that depends on
    the machine. `parse` turns the option's value (each value, if it has several) into the field's, or
    raises `UserError`; `value_type` is the type of its input, by default str. `name` is the option's
    name if it differs from the field's, and `opposite` the name of the switch that turns it off if that
    is not no-`name`; empty: there is none. An `argument` is given by position: it has no option, and
    cannot be in the configuration file.
    """
    return _field(
        Declaration(
            default=default,
            default_factory=default_factory,
            help=help,
            group=group,
            name=name,
            opposite=opposite,
            metavar=metavar,
            low=low,
            high=high,
            value_type=value_type,
            parse=parse,
            argument=argument,
        )
    )


def redeclared(component: type, name: str, **changes: Any) -> Any:
    """Declare a component's setting again for another command, with another default or help."""
    (found,) = (each for each in dataclasses.fields(component) if each.name == name)
    return _field(dataclasses.replace(found.metadata[_KEY], **changes))


def _field(declaration: Declaration) -> Any:
    metadata = {_KEY: declaration}
    if declaration.default_factory is not None:
        return dataclasses.field(default_factory=declaration.default_factory, metadata=metadata)
    if declaration.default is _UNSET:
        return dataclasses.field(metadata=metadata)
    default = declaration.default
    if declaration.parse is not None and default not in _NOTHING:
        default = declaration.parse(default)
    return dataclasses.field(default=default, metadata=metadata)


def fixed(component: T) -> T:
    """Declare a component with fixed settings, for a command that has no options for them."""
    return dataclasses.field(default=component, metadata={_FIXED: True})


@functools.cache
def settings_of(component: type) -> Mapping[str, Setting]:
    """Return a component's own settings by field, in the order of their declaration."""
    hints = typing.get_type_hints(component)
    found = {}
    for each in dataclasses.fields(component):
        declaration: Declaration | None = each.metadata.get(_KEY)
        if declaration is None:
            continue
        value_type, multiple = _value_type(hints[each.name])
        found[each.name] = Setting(
            declaration=declaration,
            field=each.name,
            name=declaration.name or each.name.replace("_", "-"),
            value_type=declaration.value_type
            or (str if declaration.parse is not None else value_type),
            multiple=multiple,
        )
    return found


def all_settings(tree: type) -> Iterator[Setting]:
    """Yield the settings of a component and of those nested in it, in order."""
    own, inner = settings_of(tree), _components(tree)
    for each in dataclasses.fields(tree):
        if each.name in own:
            yield own[each.name]
        elif each.name in inner:
            yield from all_settings(inner[each.name])


def build(tree: type[T], values: Mapping[str, Any]) -> T:
    """Build a component and those nested in it. `values`: the options' values by `Setting.parameter`;
    None stands for the field's default. Raises `UserError` if a value is invalid."""
    own, inner = settings_of(tree), _components(tree)
    made: dict[str, Any] = {}
    for each in dataclasses.fields(typing.cast(Any, tree)):
        if each.name in own:
            given = values[own[each.name].parameter]
            if given is not None:
                made[each.name] = own[each.name].value(given)
        elif each.name in inner:
            made[each.name] = build(inner[each.name], values)
    return tree(**made)


def to_plain_settings(component: Any) -> dict[str, Any]:
    """Return a component's fields as plain values, to send them to another process of this node."""
    plain = dataclasses.asdict(component)
    return {name: v.value if isinstance(v, Enum) else v for name, v in plain.items()}


def from_plain_settings(component: type[T], plain: Mapping[str, Any]) -> T:
    """Build a component from the output of `to_plain_settings`, which is trusted."""
    hints = typing.get_type_hints(component)
    kinds = {name: kind for name in plain if isinstance(kind := hints[name], type)}
    return component(
        **{
            name: kinds[name](v) if issubclass(kinds.get(name, object), Enum) else v
            for name, v in plain.items()
        }
    )


@functools.cache
def _components(tree: type) -> Mapping[str, type]:
    """Return the nested components that have settings, by field."""
    hints = typing.get_type_hints(tree)
    return {
        each.name: hints[each.name]
        for each in dataclasses.fields(tree)
        if _FIXED not in each.metadata
        and dataclasses.is_dataclass(hints[each.name])
        and any(all_settings(hints[each.name]))
    }


def _value_type(hint: Any) -> tuple[type, bool]:
    """Return the type of a field's value (of one value, for a tuple), and whether there may be
    several."""
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        hint = next(part for part in typing.get_args(hint) if part is not types.NoneType)
    if typing.get_origin(hint) is tuple:
        first, *rest = typing.get_args(hint)
        return first, rest == [...]
    return hint, False
