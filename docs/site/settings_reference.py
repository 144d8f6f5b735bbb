"""Generator of the table of settings in docs/reference.md, from their declarations.

A setting added to a component appears in it with the next `make docs`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from enum import Enum

from distro_node.node.settings.setting import Group, Setting, all_settings
from distro_node.node.settings.tree import (
    BootstrapOptions,
    FitSettings,
    JoinSettings,
    ObserverSettings,
)

_TREES = {
    "join": JoinSettings,
    "observe": ObserverSettings,
    "bootstrap": BootstrapOptions,
    "fit": FitSettings,
    "swarms": FitSettings,
}
_DEFAULT = re.compile(r" ?\[default: (.*)\]")


def reference() -> str:
    """Return a table for each group of options."""
    return "\n\n".join("\n".join(_table(group)) for group in (*Group, None))


def _table(group: Group | None) -> Iterator[str]:
    yield f"### {group or 'Other options'}"
    yield ""
    yield "| option | default | commands | meaning |"
    yield "|---|---|---|---|"
    rows: dict[tuple[str, ...], list[str]] = {}
    for command, tree in _TREES.items():
        for each in all_settings(tree):
            if each.declaration.group is group and not each.declaration.argument:
                rows.setdefault(_cells(each), []).append(f"`{command}`")
    for (option, default, meaning), commands in rows.items():
        yield f"| {option} | {default} | {', '.join(commands)} | {meaning} |"


def _cells(each: Setting) -> tuple[str, str, str]:
    """Return the option as it is spelled, its default, and its meaning."""
    value = each.declaration.metavar or ""
    if issubclass(each.value_type, Enum):
        value = "|".join(choice.value for choice in each.value_type)
    flags = each.flags.replace("/", "`, `")
    spelled = " ".join(filter(None, (flags, value))).replace("|", "\\|")
    help = each.declaration.help.replace("|", "\\|")
    stated = _DEFAULT.search(help)
    return f"`{spelled}`", stated[1] if stated else _default(each), _DEFAULT.sub("", help)


def _default(each: Setting) -> str:
    default = each.default
    if default is None:
        return ""
    if isinstance(default, bool):
        on, off = each.flags.split("/")
        return f"`{on if default else off}`"
    return f"`{default:g}`" if isinstance(default, float) else f"`{default}`"
