"""An exported model, read back: what its parameters are, by the table of a manifest.

The directory may be a stranger's. Its weights are read as safetensors into the manifest's own model, and
nothing in it is run.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ...crypto.hashing import content_id
from ...protocol.wire.blobs import BlobList
from ...protocol.wire.manifest import Manifest
from .errors import TrainerFailed
from .fingerprint import fingerprint
from .initial import read_checkpoint
from .model import model_config, ordered_parameters
from .snapshot import snapshot_chunks

# What follows the tokenizer, and what the library writes of itself.
_FREE = frozenset(
    {"bos_token_id", "eos_token_id", "pad_token_id", "use_cache", "architectures", "dtype"}
    | {"torch_dtype", "transformers_version"}
)
_MAX_JSON_BYTES = 64 << 20


def examine(manifest: Manifest, directory: Path) -> dict[str, Any]:
    """What `client.Examined` holds. Raises `TrainerFailed` (`bad_model`)."""
    model = read_checkpoint(directory, model_config(manifest.model))
    parameters = ordered_parameters(model, manifest.parameters)
    chunks = tuple(content_id(chunk) for chunk in snapshot_chunks(parameters))
    blobs = BlobList(kind="snapshot", size=4 * manifest.elements, chunks=chunks)
    written = _read(directory / "config.json")
    tokenizer = directory / "tokenizer.json"
    return {
        "fingerprint": fingerprint(parameters),
        "blob_list": blobs.encode(),
        "differing": _differing(manifest.model, written),
        "tokenizer": content_id(tokenizer.read_bytes() if tokenizer.is_file() else b""),
    }


def _differing(meant: dict[str, Any], written: bytes) -> tuple[str, ...]:
    """The keys of a written configuration that are not as the manifest's, or not in it."""
    try:
        found = json.loads(written)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise TrainerFailed("bad_model", "config.json is not a model's configuration")
    # As the library writes them: it spells some keys in ways of its own.
    expected = json.loads(model_config(meant).to_json_string(use_diff=False))
    keys = sorted({*found, *(key for key in meant if key in expected)} - _FREE)
    return tuple(key[:64] for key in keys if key not in expected or found.get(key) != expected[key])


def _read(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(_MAX_JSON_BYTES)
    except OSError as error:
        raise TrainerFailed("bad_model", f"{path.name} cannot be read ({error.strerror})") from None
