"""Loading of a model that generates text from a checkpoint's directory, such as an export.

The directory may be a stranger's: its configuration is checked like a founder's, weights are read as
safetensors, and no code in it is run.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer

from ....protocol.wire.structure import StructureError
from ...training.architectures import (
    is_bidirectional,
    longest_sequence,
    makes_images,
    takes_images,
)
from ...training.errors import TrainerFailed
from ...training.post_processor import (
    AddedTokens,
    UnknownPostProcessor,
    added_tokens,
    with_added_tokens,
)
from ...training.resource_limits import limited
from ...training.tokenizer_settings import TokenizerSettings, read_settings, with_usual_spellings
from ...util.first_line import first_line
from ...util.regular_files import read_regular
from ..models.classifiers import PROBLEM_TYPE
from ..models.export import ADAPTER_CONFIG_NAME, TOKENIZER_NAME
from ..models.initial_parameters import read_checkpoint
from ..models.model import model_config
from ..models.read_export import GENERATION_NAME, json_object
from ..models.swarm_tokenizer import special_ids
from .text_generation import TextModel

# More than the largest published files have: a configuration with label maps, and a tokenizer of 260,000
# tokens.
_MAX_CONFIG_BYTES = 1 << 20
_MAX_TOKENIZER_BYTES = 64 << 20
# For a model whose configuration does not state its longest context.
_USUAL_CONTEXT = 2048


def open_text_model(directory: Path, device: torch.device) -> TextModel:
    """Return the model in `directory`, in float32. Raises `TrainerFailed` (`bad_model`) if there is no
    model that continues text, or its files are unusable."""
    config = _table(directory / "config.json")
    if config is None:
        raise TrainerFailed("bad_model", _missing(directory))
    model_type = str(config.get("model_type"))
    if takes_images(model_type) or is_bidirectional(model_type):
        what = "generates images" if makes_images(model_type) else "fills gaps"
        if takes_images(model_type) and not makes_images(model_type):
            what = "names classes of images"
        elif config.get("problem_type") == PROBLEM_TYPE:
            what = "names classes of texts"
        raise TrainerFailed("bad_model", f"a {model_type!r} {what} and continues no text")
    tokenizer, settings, start = _tokenizer(directory)
    model: Any = read_checkpoint(directory, model_config(config))
    model.to(device)
    special = special_ids(tokenizer, settings)
    ends = {special["eos_token_id"]}
    for table in (config, _table(directory / GENERATION_NAME) or {}):
        said = table.get("eos_token_id")
        ends |= {each for each in (said if isinstance(said, list) else [said]) if type(each) is int}
    rows = int(model.get_output_embeddings().weight.shape[0])
    # An empty prompt begins with the first of these tokens that the tokenizer has.
    first = special["eos_token_id"], special["bos_token_id"], special["pad_token_id"]
    return TextModel(
        model=model,
        device=device,
        # A model may have more rows than its tokenizer has tokens; they only pad the matrix.
        vocabulary=min(rows, 1 + max(tokenizer.get_vocab().values(), default=0)),
        longest=longest_sequence(model.config.to_dict()) or _USUAL_CONTEXT,
        tokenizer=tokenizer,
        settings=settings,
        start=start,
        empty=tuple(token for token in first if token is not None),
        ends=frozenset(token for token in ends if token is not None),
    )


def _tokenizer(directory: Path) -> tuple[Tokenizer, TokenizerSettings, int | None]:
    """Return the tokenizer, its settings, and the token that it puts before a text. The returned
    tokenizer puts none after a text, because a prompt is continued."""
    try:
        with limited("bad_model", "reading the tokenizer"):
            definition = _read(directory / TOKENIZER_NAME, _MAX_TOKENIZER_BYTES)
            if definition is None:
                raise TrainerFailed("bad_model", f"{directory} has no {TOKENIZER_NAME}")
            tokenizer = Tokenizer.from_buffer(definition)
            start: int | None = None
            try:
                added = added_tokens(definition)
                start = added.before[0] if added.before else None
                if added.after:
                    spelled = {token: tokenizer.id_to_token(token) or "" for token in added.before}
                    definition = with_added_tokens(definition, AddedTokens(added.before), spelled)
                    tokenizer = Tokenizer.from_buffer(definition)
            except UnknownPostProcessor:
                # The tokenizer then adds what its file says.
                pass
            settings = read_settings(directory)
    except TrainerFailed:
        raise
    except StructureError as error:
        raise TrainerFailed("bad_model", f"the tokenizer's {error}") from None
    # The library raises plain Exception for every kind of invalid definition.
    except Exception as error:
        reason = first_line(error, 300, empty=repr(error))
        raise TrainerFailed("bad_model", f"{TOKENIZER_NAME} cannot be read: {reason}") from None
    tokenizer.no_truncation()
    tokenizer.no_padding()
    special = (
        each.content for each in tokenizer.get_added_tokens_decoder().values() if each.special
    )
    settings = with_usual_spellings(settings, frozenset(special))
    return tokenizer, replace(settings, chat_date=date.today().isoformat()), start


def _missing(directory: Path) -> str:
    if (directory / ADAPTER_CONFIG_NAME).is_file():
        return (
            f"{directory} has adapters without their base: export the model again with "
            "`distro-node export --merged`"
        )
    return f"{directory} has no model that continues text: it lacks a config.json"


def _table(path: Path) -> dict[str, Any] | None:
    """Return a JSON object; None if there is no such file."""
    data = _read(path, _MAX_CONFIG_BYTES)
    return None if data is None else json_object(data, path.name)


def _read(path: Path, most: int) -> bytes | None:
    try:
        data = read_regular(path, most)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise TrainerFailed("bad_model", f"{path.name} cannot be read ({error.strerror})") from None
    if len(data) > most:
        raise TrainerFailed("bad_model", f"{path.name} is longer than {most >> 20} MiB")
    return data
