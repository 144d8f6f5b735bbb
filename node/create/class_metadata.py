"""Names of classes that a data set or a checkpoint states beside its rows and weights.

`datasets` writes them into the schema of Parquet and Arrow files (key `huggingface`), the hub's data
sets state them in their card, older ones in `dataset_infos.json`, and checkpoints in `id2label`. What
cannot be used counts as not stated.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..util.regular_files import read_regular

ClassNames = tuple[str, ...]
"""The names of classes; the number of a class is its place."""

INFOS = "dataset_infos.json"
"""The file in which data sets stated their features before cards did."""

_SCHEMA_KEY = b"huggingface"
# A schema states all columns of a file, and a column may have some thousand classes.
_MAX_SCHEMA_BYTES = 4 << 20
# It states the checksum of each file, too.
_MAX_INFOS_BYTES = 32 << 20
# The names that the library gives to classes of which it knows none.
_PLACEHOLDER = re.compile(r"LABEL_\d+")


def schema_classes(metadata: Mapping[bytes, bytes] | None, column: str) -> ClassNames | None:
    """Return the classes of a column that the metadata of a file's schema states."""
    stored = (metadata or {}).get(_SCHEMA_KEY, b"")
    if not stored or len(stored) > _MAX_SCHEMA_BYTES:
        return None
    try:
        return _feature_classes(json.loads(stored)["info"], column)
    except (ValueError, RecursionError, LookupError, TypeError):
        return None


def infos_classes(folder: Path, column: str) -> ClassNames | None:
    """Return the classes of a column that the `dataset_infos.json` in a folder states: of its only
    configuration, or the default one."""
    try:
        stored = read_regular(folder / INFOS, _MAX_INFOS_BYTES)
        infos = json.loads(stored) if len(stored) <= _MAX_INFOS_BYTES else {}
        info = next(iter(infos.values())) if len(infos) == 1 else infos["default"]
        return _feature_classes(info, column)
    except (OSError, ValueError, RecursionError, LookupError, TypeError, AttributeError):
        return None


def _feature_classes(info: Any, column: str) -> ClassNames | None:
    """Return the classes of a column from a description of a data set as JSON. Raises as reading from
    tables does."""
    feature = info["features"][column]
    return _names(feature["names"]) if feature["_type"] == "ClassLabel" else None


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
