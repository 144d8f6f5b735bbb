"""Layout of data sets on disk in the hub's cache and in the library `datasets`."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..util.regular_files import open_regular
from .formats import BadFile

CACHE_PREFIX = "datasets--"
"""The prefix of a data set's folder in the hub's cache."""

_MAX_STATE_BYTES = 4 << 20


def is_revision(folder: Path) -> bool:
    """Whether a folder is one revision of a data set in the hub's cache."""
    return folder.parent.name == "snapshots" and folder.parent.parent.name.startswith(CACHE_PREFIX)


def revision(snapshots: Path, known: Sequence[str]) -> str:
    """Return the revision that the hub's cache names as main, or the only one of `known`. Raises
    `UserError` (`DATA_MISSING`) if there are several and none is main."""
    try:
        with open_regular(snapshots.parent / "refs" / "main") as file:
            named = file.read(256).decode("utf-8", "replace").strip()
    except OSError:
        named = ""
    if named in known:
        return named
    if len(known) != 1:
        raise BadFile(
            f"has {len(known)} revisions, and none of them is main",
            "give the folder of one of them",
        ).at(snapshots)
    return known[0]


def is_prepared(folder: Path) -> bool:
    """Whether a folder is a data set in the cache of `datasets`."""
    info, state = folder / "dataset_info.json", folder / "state.json"
    try:
        return info.is_file() and not state.exists() and any(folder.glob("*.arrow"))
    except PermissionError:
        # Walking into the folder fails as well, and that error is reported.
        return False


def cached_splits(folder: Path) -> list[str]:
    splits = _json_of(folder / "dataset_info.json").get("splits")
    return list(splits) if isinstance(splits, dict) else []


def cached_split(name: str, known: Sequence[str]) -> str | None:
    """Return the split, one of `known`, that a file in the cache of `datasets` belongs to; None if the
    file is of no split."""
    found = re.fullmatch(r".*?-([^-]+)(?:-\d{5}-of-\d{5})?\.arrow", name)
    return found[1] if found and found[1] in known and not name.startswith("cache-") else None


def listed(path: Path, key: str) -> list:
    """Return the list with this key from a JSON file that `datasets` has written. Raises `UserError`
    (`DATA_MISSING`) if there is none."""
    value = _json_of(path).get(key)
    if not isinstance(value, list):
        raise BadFile(f"is damaged: it has no list {key!r}").at(path)
    return value


def _json_of(path: Path) -> dict[str, Any]:
    try:
        with open_regular(path) as file:
            value = json.loads(file.read(_MAX_STATE_BYTES))
    except (OSError, ValueError, RecursionError):
        value = None
    return value if isinstance(value, dict) else {}
