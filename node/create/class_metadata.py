"""Names of classes that a data set or a checkpoint states beside its rows and weights.

`datasets` writes them into the schema of Parquet and Arrow files (key `huggingface`), the hub's data
sets state them in their card, and checkpoints in `id2label`. What cannot be used counts as not stated.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

ClassNames = tuple[str, ...]
"""The names of classes; the number of a class is its place."""

_SCHEMA_KEY = b"huggingface"
# A schema states all columns of a file, and a column may have some thousand classes.
_MAX_SCHEMA_BYTES = 4 << 20
# The names that the library gives to classes of which it knows none.
_PLACEHOLDER = re.compile(r"LABEL_\d+")


def schema_classes(metadata: Mapping[bytes, bytes] | None, column: str) -> ClassNames | None:
    """Return the classes of a column that the metadata of a file's schema states."""
    stored = (metadata or {}).get(_SCHEMA_KEY, b"")
    if not stored or len(stored) > _MAX_SCHEMA_BYTES:
        return None
    try:
        feature = json.loads(stored)["info"]["features"][column]
        return _names(feature["names"]) if feature["_type"] == "ClassLabel" else None
    except (ValueError, RecursionError, LookupError, TypeError):
        return None


def card_classes(card: Mapping[str, Any], config: str | None, column: str) -> ClassNames | None:
    """Return the classes of a column that the card of a data set states for a configuration; None: the
    only one, or the default one."""
    listed = card.get("dataset_info")
    infos = [_table(each) for each in (listed if isinstance(listed, list) else [listed])]
    wanted = "default" if config is None else config
    named = [each for each in infos if each.get("config_name", "default") == wanted]
    for info in named or (infos if config is None and len(infos) == 1 else []):
        features = info.get("features")
        for feature in map(_table, features if isinstance(features, list) else ()):
            if feature.get("name") == column:
                label = _table(_table(feature.get("dtype")).get("class_label"))
                return _names(label.get("names"))
    return None


def checkpoint_classes(config: Mapping[str, Any]) -> ClassNames | None:
    """Return the classes that a checkpoint's configuration names in `id2label`."""
    names = _names(config.get("id2label"))
    if names is None or all(_PLACEHOLDER.fullmatch(name) for name in names):
        return None
    return names


def _names(value: Any) -> ClassNames | None:
    """Return names from a list, or from a table by their numbers, which must be those from 0 on."""
    if isinstance(value, dict):
        table = {str(number): name for number, name in value.items()}
        value = [table.get(str(number)) for number in range(len(table))]
    if not isinstance(value, list) or not value:
        return None
    # YAML reads some names as other values, such as `no`.
    if not all(type(name) is str for name in value) or len(set(value)) < len(value):
        return None
    return tuple(value)


def _table(value: Any) -> dict[Any, Any]:
    return value if isinstance(value, dict) else {}
