"""The docstrings below the fields of a dataclass, which Python does not keep at run time.

The tables of fields in docs/ are generated from them, so each field is explained in one place.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect


def field_docs(cls: type) -> dict[str, str]:
    """Return the docstring below each field that has one, on one line, by field name; inherited fields
    are included."""
    found: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        if dataclasses.is_dataclass(base):
            found |= _written(base)
    return found


def _written(cls: type) -> dict[str, str]:
    (tree,) = ast.parse(inspect.cleandoc("\n" + inspect.getsource(cls))).body
    assert isinstance(tree, ast.ClassDef)
    return {
        field.target.id: " ".join(after.value.value.split())
        for field, after in zip(tree.body, tree.body[1:], strict=False)
        if isinstance(field, ast.AnnAssign)
        and isinstance(field.target, ast.Name)
        and isinstance(after, ast.Expr)
        and isinstance(after.value, ast.Constant)
        and isinstance(after.value.value, str)
    }
