"""Check of a checkpoint's tensors against its configuration.

The library that loads a checkpoint drops tensors that it has no place for, and takes integers for
weights. From a checkpoint with quantised weights, surplus layers or an unmerged adapter, a swarm would
then start with another model than the checkpoint's. Only the headers of the files are read here.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Collection, Mapping
from contextlib import suppress
from pathlib import Path

from safetensors import safe_open

from ...training.errors import TrainerFailed
from ...util.first_line import first_line
from ...util.regular_files import open_regular, read_regular

INDEX_NAME = "model.safetensors.index.json"
WEIGHTS_NAME = "model.safetensors"

_GENERATION_NAME = "generation_config.json"
_ADAPTER_NAME = "adapter_config.json"

_MAX_INDEX_BYTES = 64 << 20
_MAX_GENERATION_BYTES = 1 << 20
_FLOATS = frozenset({"F64", "F32", "F16", "BF16"})
_MAX_LISTED = 3
# Tensors that are dropped without harm: tables that older releases stored although they follow from the
# configuration, BERT's pooler and head for its second task, predicting whether two texts are
# consecutive, and the batches that a normalisation has counted.
_WITHOUT_PLACE = re.compile(
    r"(^|\.)(rotary_emb\.inv_freq|attn\.(masked_)?bias|attention\.(masked_)?bias|position_ids"
    r"|pooler\.dense\.(weight|bias)|seq_relationship\.(weight|bias)|num_batches_tracked)$"
)
_QUANTISED = re.compile(
    r"(scale(_inv)?|scales|absmax|qweight|qzeros|g_idx|SCB|weight_format|quant_map|zero_point"
    r"|nested_absmax|quant_state[^.]*|_packed|_shape)$"
)
_USE_ORIGINAL = (
    "it is quantised: use the original weights, or save a dequantised copy (transformers: "
    "model.dequantize(), then save_pretrained)"
)
_HINTS = (
    (_QUANTISED, _USE_ORIGINAL),
    (re.compile(r"lora_[AB]|lora_embedding|lora_magnitude"), "merge the adapter into it first"),
    (re.compile(r"^(v_head|score|value_head|classifier)\b"), "remove the head of another task"),
    (re.compile(r"\blayers?\.\d+\.|\bh\.\d+\."), "fix its config.json or the file"),
)


def tensor_types(directory: Path) -> dict[str, str]:
    """Return the types of a checkpoint's tensors in safetensors' spelling ("BF16"), by name.

    Raises `TrainerFailed` (`bad_model`) for files that are missing or not in the safetensors format.
    """
    found: dict[str, str] = {}
    _check_files(directory)
    for name in _files(directory):
        try:
            # The library would wait for whoever writes to a named pipe.
            open_regular(directory / name).close()
            with safe_open(directory / name, framework="pt") as opened:
                for key in opened.keys():  # noqa: SIM118 (it is not a dictionary)
                    if key in found:
                        raise _bad(f"{key[:80]} is in two of the checkpoint's files")
                    found[key] = opened.get_slice(key).get_dtype()
        except TrainerFailed:
            raise
        except OSError as error:
            raise _bad(f"{name[:80]} cannot be read ({error.strerror or error})") from None
        # The library has a separate exception for each way in which a file is invalid.
        except Exception as error:
            reason = first_line(error, empty=repr(error))
            raise _bad(f"{name[:80]} cannot be read ({reason})") from None
    return found


def weights_files(directory: Path) -> list[str]:
    """Return the files of a checkpoint from which the library takes its weights, and the index of
    them."""
    files = _files(directory)
    return files if files == [WEIGHTS_NAME] else [INDEX_NAME, *files]


def check_tensors(types: Mapping[str, str], unexpected: Collection[str]) -> None:
    """Raise `TrainerFailed` (`bad_model`) if a checkpoint has a tensor that is not floating point, or
    one in `unexpected`, for which the library found no place. Those of `_WITHOUT_PLACE` are allowed."""
    not_float = sorted(name for name, kind in types.items() if kind not in _FLOATS)
    not_float = [name for name in not_float if not _WITHOUT_PLACE.search(name)]
    if not_float:
        kinds = ", ".join(sorted({types[name] for name in not_float}))
        raise _bad(
            f"the checkpoint's numbers are of the type {kinds} ({_listed(not_float)}); {_USE_ORIGINAL}"
        )
    unplaced = sorted(name for name in unexpected if not _WITHOUT_PLACE.search(name))
    if unplaced:
        hints = [hint for pattern, hint in _HINTS if any(map(pattern.search, unplaced))]
        remedy = hints[0] if hints else "fix its config.json or the file"
        raise _bad(
            "the checkpoint has tensors that its configuration does not describe: "
            f"{_listed(unplaced)}; {remedy}"
        )


def _listed(names: Collection[str]) -> str:
    shown = ", ".join(name[:80] for name in list(names)[:_MAX_LISTED])
    more = len(names) - _MAX_LISTED
    return f"{shown} and {more} more" if more > 0 else shown


def _check_files(directory: Path) -> None:
    """Raise `TrainerFailed` (`bad_model`) if the library could wait without end for a file here, or
    would take weights from another file than the checkpoint's."""
    # With peft installed the library loads an adapter's file over the weights, so that a model would
    # count as read whose weights are in no program that reads the checkpoint alone.
    if os.path.lexists(directory / _ADAPTER_NAME):
        raise _bad(
            f"{_ADAPTER_NAME} is beside the weights, and its adapter would replace some of them: merge "
            "the adapter into the weights, or remove the file"
        )
    try:
        for path in directory.iterdir():
            if path.exists() and not path.is_file() and not path.is_dir():
                open_regular(path).close()
        if (directory / _GENERATION_NAME).is_file():
            written = read_regular(directory / _GENERATION_NAME, _MAX_GENERATION_BYTES)
            with suppress(ValueError):
                # The library passes over what is no JSON, and fails at JSON of another shape.
                if not isinstance(json.loads(written), dict):
                    raise _bad(f"{_GENERATION_NAME} is not a table of JSON")
    except OSError as error:
        name = Path(error.filename or directory).name
        raise _bad(f"{name} cannot be read ({error.strerror})") from None
    except RecursionError:
        raise _bad(f"{_GENERATION_NAME} is not a table of JSON") from None


def _files(directory: Path) -> list[str]:
    """Return the files with the weights: one, which the library prefers, or those of an index."""
    index = directory / INDEX_NAME
    if (directory / WEIGHTS_NAME).is_file() or not index.exists():
        return [WEIGHTS_NAME]
    try:
        with open_regular(index) as file:
            written = json.loads(file.read(_MAX_INDEX_BYTES))
        names = sorted(set(written["weight_map"].values())) if written["metadata"] else []
    except OSError as error:
        raise _bad(f"{index.name} cannot be read ({error.strerror})") from None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        names = []
    if not names or not all(
        isinstance(name, str) and Path(name).name == name != ".." for name in names
    ):
        raise _bad(f"{index.name} is not a list of files, with `metadata` and `weight_map`")
    return names


def _bad(problem: str) -> TrainerFailed:
    return TrainerFailed("bad_model", problem)
