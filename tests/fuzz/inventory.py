"""What a stranger's bytes reach, read from the source: every decoder, and every protocol that is served.

A *decoder* is a function of a module whose name says that it decodes, opens, reads or parses, and
that takes bytes or a text. A *door* is a call that registers a protocol, or a topic, with the
network. So a test fails if one is added without a fuzz target.
"""

from __future__ import annotations

import ast
import functools
import importlib
from collections.abc import Iterator
from pathlib import Path

import distro_node

ROOT = Path(distro_node.__path__[0])
_FOLDERS = ("crypto", "protocol", "node")
_VERBS = ("decode", "open", "read", "parse", "load")
_INPUTS = {"bytes", "str", "object"}
_SERVING = ("serve", "set_stream_handler", "subscribe")


def functions() -> set[str]:
    """Return every function of a module, as `folder.module:function`."""
    return {f"{module}:{function.name}" for module, function in _functions()}


def decoders() -> set[str]:
    """Return every decoder, likewise."""
    return {
        f"{module}:{function.name}"
        for module, function in _functions()
        if not function.name.startswith("_")
        and function.name.split("_")[0] in _VERBS
        and _takes_input(function)
    }


def doors(*by: str) -> set[str]:
    """Return every protocol that is served, by its name; `gossip` for a topic; `module:expression`
    for a name computed at run time. Only those served `by` these methods, if any are given."""
    found: set[str] = set()
    for module, tree in _modules():
        if not module.startswith("node."):
            continue
        for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
            name = call.func.attr if isinstance(call.func, ast.Attribute) else ""
            if name not in (by or _SERVING) or not call.args:
                continue
            found.add(_protocol(module, call.args[0]) if name != "subscribe" else "gossip")
    return found


def _protocol(module: str, argument: ast.expr) -> str:
    if isinstance(argument, ast.Name):
        value = getattr(importlib.import_module(f"distro_node.{module}"), argument.id, None)
        if isinstance(value, str):
            return value
    return f"{module}:{ast.unparse(argument)}"


def _takes_input(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    hints = (argument.annotation for argument in function.args.args[:2])
    return any(ast.unparse(hint) in _INPUTS for hint in hints if hint is not None)


def _functions() -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    for module, tree in _modules():
        for function in tree.body:
            if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
                yield module, function


@functools.cache
def _modules() -> list[tuple[str, ast.Module]]:
    return [
        (
            ".".join(path.relative_to(ROOT).with_suffix("").parts),
            ast.parse(path.read_text("utf-8")),
        )
        for folder in _FOLDERS
        for path in sorted((ROOT / folder).rglob("*.py"))
    ]
