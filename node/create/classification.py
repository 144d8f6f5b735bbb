"""What the founder's file needs for a task that names the class of a sample: settings, tokens around a
text, and a model with a classifier for a head."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...protocol.wire.structure import StructureError, to_plain
from ..training.architectures import IMAGE_CLASSIFIERS, check_configuration
from ..training.post_processor import UnknownPostProcessor, added_tokens
from ..training.task_names import (
    ImageClassSettings,
    TextClassSettings,
    built_in_settings,
    class_names,
)
from ..training.tokenizer_settings import TokenizerSettings
from .labelled_texts import LabelledTokenizer
from .manifest_file import ManifestFile, bad_manifest
from .model_config import read_checkpoint_json
from .tokens import ByteTokenizer, FileTokenizer

_PREPROCESSOR_NAME = "preprocessor_config.json"
_MAX_PREPROCESSOR_BYTES = 1 << 16


@dataclass(frozen=True)
class ClassifierHead:
    """The keys that a classifier's configuration gets from the task."""

    classes: int
    pad_token: int | None = None
    """The token that pads texts; None for images."""

    def complete(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """Return a configuration with these keys. Raises `StructureError` for one that has others."""
        derived = {"num_labels": self.classes}
        if self.pad_token is not None:
            derived["pad_token_id"] = self.pad_token
        for key, value in derived.items():
            given = config.get(key)
            if given is not None and given != value:
                source = "classes" if key == "num_labels" else "pad_token"
                raise StructureError(
                    f"model.{key}",
                    f"is {given!r:.40}, but {source} in [task_settings] or the tokenizer make it "
                    f"{value}",
                )
        return {**config, **derived}


def plan_pad_token(
    file: ManifestFile,
    path: Path,
    tokenizer: ByteTokenizer | FileTokenizer,
    special: TokenizerSettings,
) -> TextClassSettings:
    """Return the settings of `text_classification`, with the token that pads texts.

    Raises `UserError` (`MANIFEST`) for settings that are invalid and keys that belong to other tasks.
    """
    for key, given in (
        ("document_end", file.data.document_end),
        ("attention", file.data.attention),
        ("chat_template", file.data.chat_template),
    ):
        if given is not None:
            raise bad_manifest(
                path,
                f"data.{key}: the task {file.task!r} learns from single texts, around which are the "
                "tokens that the tokenizer puts there: leave the key out",
            )
    given = dict(file.task_settings or {})
    if "pad_token" not in given:
        if isinstance(tokenizer, ByteTokenizer):
            given["pad_token"] = 0
        else:
            found = None if special.pad_token is None else tokenizer.id_of(special.pad_token)
            if found is None:
                raise bad_manifest(
                    path,
                    f"data.tokenizer: it has no padding token such as [PAD], which the task "
                    f"{file.task!r} needs; set pad_token in [task_settings] to a token's number",
                )
            given["pad_token"] = found
    try:
        settings = built_in_settings(file.task, given)
    except StructureError as error:
        raise bad_manifest(path, str(error)) from None
    assert isinstance(settings, TextClassSettings)
    if settings.pad_token >= tokenizer.vocabulary:
        raise bad_manifest(
            path, f"task_settings.pad_token: the tokenizer has {tokenizer.vocabulary} tokens"
        )
    if len(settings.classes) > 1 << 8 * tokenizer.token_bytes:
        raise bad_manifest(
            path,
            f"task_settings.classes: {len(settings.classes)} classes cannot be stored beside tokens of "
            f"{tokenizer.token_bytes} byte: use a tokenizer with more than 256 tokens",
        )
    return settings


def labelled_tokenizer(
    file: ManifestFile,
    path: Path,
    tokenizer: ByteTokenizer | FileTokenizer,
    start: int | None,
    settings: TextClassSettings,
) -> LabelledTokenizer:
    """Return the tokenizer of texts with a class; `start` is the token before every text, if any. After
    a text are the tokens that the tokenizer puts there by itself, as an export's does."""
    after: tuple[int, ...] = ()
    if isinstance(tokenizer, FileTokenizer):
        try:
            after = added_tokens(tokenizer.definition).after
        except UnknownPostProcessor as odd:
            raise bad_manifest(path, f"data.tokenizer: it cannot be used: {odd}") from None
    before = () if start is None else (start,)
    length = file.data.sequence_length
    if length < 2 + len(before) + len(after):
        raise bad_manifest(
            path,
            f"data.sequence_length: {length} leaves no place for a text: its class and the tokens "
            f"around it take {1 + len(before) + len(after)}",
        )
    return LabelledTokenizer(tokenizer, before, after, length, settings.pad_token)


def text_head(file: ManifestFile, path: Path, pad_token: int | None) -> ClassifierHead:
    """Return the head for the classes of `text_classification`. Raises `UserError` (`MANIFEST`)."""
    try:
        settings = {"pad_token": 0, **(file.task_settings or {})}
        return ClassifierHead(len(class_names(file.task, settings)), pad_token)
    except StructureError as error:
        raise bad_manifest(path, str(error)) from None


def complete_image_classifier(
    config: Mapping[str, Any], settings: ImageClassSettings
) -> dict[str, Any]:
    """Check the configuration of a model that classifies images, and add the keys that follow from the
    images. Raises `StructureError`."""
    model_type = config.get("model_type")
    if isinstance(model_type, str) and model_type not in IMAGE_CLASSIFIERS:
        raise StructureError(
            "model.model_type",
            f"{model_type[:60]!r} classifies no images; these do: {', '.join(IMAGE_CLASSIFIERS)}",
        )
    derived = {"num_channels": settings.channels}
    if model_type == "vit":
        derived["image_size"] = settings.size
    known = check_configuration({**derived, **config})
    for key, value in derived.items():
        if known.get(key) != value:
            raise StructureError(
                f"model.{key}",
                f"is {known.get(key)}, but the images in [task_settings] have {value}: make both equal",
            )
    complete = check_configuration(ClassifierHead(len(settings.classes)).complete(known))
    if model_type == "resnet" and settings.size < 8:
        raise StructureError("task_settings.size", "a resnet needs images of 8 pixels or more")
    return complete


def with_checkpoint_values(
    given: Mapping[str, Any] | None, checkpoint: Path | None
) -> dict[str, Any]:
    """Return the task settings with a checkpoint's `mean` and `std` of pixels, if it states them and the
    settings do not. Raises `StructureError` for a file that cannot be used."""
    settings = dict(given or {})
    if checkpoint is None or "mean" in settings or "std" in settings:
        return settings
    path = checkpoint / _PREPROCESSOR_NAME
    try:
        said = read_checkpoint_json(
            path, _MAX_PREPROCESSOR_BYTES, "the settings of an image processor"
        )
    except FileNotFoundError:
        return settings
    if said.get("do_normalize") is False:
        return settings | {"mean": [0.0], "std": [1.0]}
    for key, name in (("mean", "image_mean"), ("std", "image_std")):
        numbers = said.get(name)
        if isinstance(numbers, list) and all(
            type(each) in (int, float) and math.isfinite(each) for each in numbers
        ):
            settings[key] = [float(each) for each in numbers]
    return settings


def plain_settings(settings: TextClassSettings | ImageClassSettings) -> dict[str, Any]:
    """Return the settings for the manifest, all of them, so that no later default changes them."""
    return to_plain(settings, named=True)
