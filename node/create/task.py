"""Requirements of a task on the founder's file (the TOML given to `create`): a model of the right kind,
a chat template, a mask token.

Whatever does not go with the task is refused before any text is read.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ...protocol.wire.structure import StructureError, to_plain
from ..training.architectures import is_bidirectional
from ..training.chat import BadTemplate, ChatTemplate
from ..training.reward_rules import RewardRule
from ..training.task_names import (
    BUILT_IN,
    DPO,
    GRPO,
    MASKED_LM,
    SFT,
    TEXT_CLASSIFICATION,
    MaskedSettings,
    PixelSettings,
    RewardSettings,
    built_in_settings,
    require_task,
)
from ..training.tokenizer_settings import TokenizerSettings
from .classification import with_checkpoint_values
from .conversations import ConversationTokenizer
from .data_kinds import PLAIN_TEXT, Conversations, DataKind, Pairs, Prompts
from .features import features_of
from .manifest_file import ManifestFile, bad_manifest
from .preferences import PairTokenizer
from .prompts import PromptTokenizer
from .tokens import FileTokenizer, Tokenizer

# Model types that use a sliding window whenever their configuration states one.
_SLIDING = frozenset({"mistral", "phi3", "gemma2"})


@dataclass(frozen=True)
class TaskPlan:
    """The tokenizer, chat template and settings with which `create` prepares the data of a task."""

    tokenizer: Tokenizer
    """The tokenizer. If the task learns from conversations, it marks the tokens that begin one and those
    to be learned (`ConversationTokenizer`)."""
    chat: ChatTemplate | None
    """The chat template, if the task learns from conversations."""
    settings: dict[str, Any] | None
    """The manifest's task settings."""
    filler: int = 0
    """The padding token for the unused rest of a sample."""
    kind: DataKind = PLAIN_TEXT
    """What it learns from."""

    @property
    def marked(self) -> bool:
        """Whether stored numbers have marks (`DataSpec.marked`)."""
        return isinstance(self.tokenizer, ConversationTokenizer)

    @property
    def pairs(self) -> bool:
        """Whether samples are preference pairs, which need the initial model's margins."""
        return isinstance(self.tokenizer, PairTokenizer)

    def starting_with(self, start: int | None) -> TaskPlan:
        """Return the plan with this token before each prompt, unless a chat template writes prompts."""
        if self.chat is not None or not isinstance(self.tokenizer, PromptTokenizer):
            return self
        return replace(self, tokenizer=self.tokenizer.starting_with(start))


def plan_task(
    file: ManifestFile,
    path: Path,
    tokenizer: Tokenizer,
    special: TokenizerSettings,
    model: dict[str, Any],
    end: tuple[int, ...],
) -> TaskPlan:
    """Plan a task. `special`: the spelling of the tokenizer's special tokens, and its chat template;
    `model`: the model's configuration; `end`: the tokens that end a document.

    Raises `UserError` with `NO_TASK` for a task that is not available, and with
    `MANIFEST` for anything in the file or model that does not go with the task."""
    check_task(file, path)
    check_model(file, path, model)
    tables = file.data.source or (file.data,)
    hold_conversations = [table.holds_conversations for table in tables]
    settings = file.task_settings
    if file.task in BUILT_IN:
        settings = _settings(file, path, tokenizer, special)
    if file.task == DPO:
        _check_pairs(file, path)
        made, chat = _conversations(file, path, tokenizer, special, end)
        filler, last = _filler(made, special, end), end[0] if len(end) == 1 else None
        pairs = PairTokenizer(made, last, filler, file.data.sequence_length)
        return TaskPlan(pairs, chat, settings, filler, Pairs(chat))
    if file.task == GRPO:
        return _plan_prompts(file, path, tokenizer, special, settings, end)
    if file.task == SFT or (file.task not in BUILT_IN and any(hold_conversations)):
        if file.task != SFT and not all(hold_conversations):
            raise bad_manifest(path, "either all of [[data.source]] hold conversations or none")
        _check_window(file, path, model)
        made, chat = _conversations(file, path, tokenizer, special, end)
        filler = _filler(made, special, end)
        return TaskPlan(made, chat, settings, filler, Conversations(chat))
    if file.data.chat_template is not None and file.task in BUILT_IN:
        raise bad_manifest(path, f"data.chat_template: the task {file.task!r} uses none")
    return TaskPlan(tokenizer, None, settings)


def plan_images(file: ManifestFile, path: Path, checkpoint: Path | None = None) -> PixelSettings:
    """Return the settings of a task on images; a `checkpoint` gives defaults for values of pixels.

    Raises `UserError` with `NO_TASK` if the packages that it needs are not installed, and with
    `MANIFEST` for invalid settings and keys that belong to other tasks.
    """
    check_task(file, path)
    try:
        given = with_checkpoint_values(file.task_settings, checkpoint)
        settings = built_in_settings(file.task, given)
    except StructureError as error:
        raise bad_manifest(path, str(error)) from None
    assert isinstance(settings, PixelSettings)
    data = file.data
    for key, given in (
        ("tokenizer", data.tokenizer),
        ("document_start", data.document_start),
        ("document_end", data.document_end),
        ("attention", data.attention),
        ("chat_template", data.chat_template),
    ):
        if given is not None:
            raise bad_manifest(
                path, f"data.{key}: is for text, and the task {file.task!r} trains on images"
            )
    return settings


def _plan_prompts(
    file: ManifestFile,
    path: Path,
    tokenizer: Tokenizer,
    special: TokenizerSettings,
    settings: dict[str, Any] | None,
    end: tuple[int, ...],
) -> TaskPlan:
    """Plan the task `grpo`. With a chat template prompts are written by it; otherwise they are text."""
    known = built_in_settings(file.task, settings)
    assert isinstance(known, RewardSettings)
    data = file.data
    if data.attention is not None:
        raise bad_manifest(path, "data.attention: the task 'grpo' has one prompt in a sequence")
    if data.sequence_length <= known.max_new_tokens:
        raise bad_manifest(
            path,
            f"task_settings.max_new_tokens ({known.max_new_tokens}): a sequence of "
            f"{data.sequence_length} tokens holds a prompt as well: set a larger sequence_length",
        )
    rule, chat = RewardRule(known), None
    if special.chat_template is not None and isinstance(tokenizer, FileTokenizer):
        try:
            chat = ChatTemplate(special)
        except BadTemplate as error:
            raise bad_manifest(path, f"the chat template {error}") from None
    padding = _id(tokenizer, special.pad_token)
    filler = padding if padding is not None else (end or (0,))[0]
    made = PromptTokenizer(
        tokenizer, None, known.max_new_tokens, filler=filler, length=data.sequence_length
    )
    return TaskPlan(made, chat, settings, filler, Prompts(chat, rule, known.max_new_tokens))


def check_task(file: ManifestFile, path: Path) -> None:
    """Raise `UserError` with `NO_TASK` if the file's task is not available, with `MANIFEST` if one of
    the swarm's features does not go with it."""
    require_task(file.task)
    for feature in features_of(file):
        if file.task in feature.refused_tasks:
            raise bad_manifest(path, feature.refused_tasks[file.task])


def check_model(file: ManifestFile, path: Path, model: dict[str, Any]) -> None:
    """Raise `UserError` (`MANIFEST`) if a built-in task cannot train this kind of model."""
    if file.task not in BUILT_IN:
        return
    bidirectional = is_bidirectional(model["model_type"])
    if bidirectional != (file.task in (MASKED_LM, TEXT_CLASSIFICATION)):
        fitting = f"{MASKED_LM!r} or {TEXT_CLASSIFICATION!r}"
        fitting = fitting if bidirectional else "'causal_lm', 'sft', 'dpo' or 'grpo'"
        raise bad_manifest(
            path,
            f"task: {file.task!r} cannot train a {model['model_type']!r}: set task = {fitting}",
        )


def _check_pairs(file: ManifestFile, path: Path) -> None:
    if file.data.attention is not None:
        raise bad_manifest(
            path, "data.attention: the answers of a pair are always apart in the task 'dpo'"
        )


def _check_window(file: ManifestFile, path: Path, model: dict[str, Any]) -> None:
    """Refuse a sliding window shorter than a sequence if attention keeps conversations apart, which is
    the default: the mask for that would override the window."""
    window, length = model.get("sliding_window"), file.data.sequence_length
    slides = model.get("use_sliding_window", model["model_type"] in _SLIDING)
    apart = file.data.attention != "sequence"
    if apart and slides and isinstance(window, int) and window < length:
        raise bad_manifest(
            path,
            f"data.attention: conversations cannot be separated with a model whose window of {window} "
            f'tokens slides within a sequence of {length}: set attention = "sequence", or a shorter '
            "sequence_length",
        )


def _settings(
    file: ManifestFile, path: Path, tokenizer: Tokenizer, special: TokenizerSettings
) -> dict[str, Any] | None:
    given = file.task_settings
    if file.task == MASKED_LM and "mask_token" not in (given or {}):
        found = _id(tokenizer, special.mask_token)
        if found is None:
            raise bad_manifest(
                path,
                "data.tokenizer: it has no mask token such as [MASK], which the task 'masked_lm' "
                "needs; set mask_token in [task_settings] to a token's number",
            )
        given = {**(given or {}), "mask_token": found}
    try:
        settings = built_in_settings(file.task, given)
    except StructureError as error:
        raise bad_manifest(path, str(error)) from None
    if isinstance(settings, MaskedSettings) and settings.mask_token >= tokenizer.vocabulary:
        raise bad_manifest(
            path, f"task_settings.mask_token: the tokenizer has {tokenizer.vocabulary} tokens"
        )
    return to_plain(settings, named=True) or None


def _conversations(
    file: ManifestFile,
    path: Path,
    tokenizer: Tokenizer,
    special: TokenizerSettings,
    end: tuple[int, ...],
) -> tuple[ConversationTokenizer, ChatTemplate]:
    if not isinstance(tokenizer, FileTokenizer):
        raise bad_manifest(
            path,
            f"data.tokenizer: bytes have no chat template, which the task {file.task!r} needs; "
            "start from a checkpoint with one, or give a tokenizer.json and a chat_template",
        )
    if special.chat_template is None:
        raise bad_manifest(
            path,
            f"data.tokenizer: it has no chat template, which the task {file.task!r} needs; name a "
            "file with one as chat_template",
        )
    try:
        chat = ChatTemplate(special)
    except BadTemplate as error:
        raise bad_manifest(path, f"the chat template {error}") from None
    return ConversationTokenizer(tokenizer, end[0] if len(end) == 1 else None), chat


def _filler(
    tokenizer: ConversationTokenizer, special: TokenizerSettings, end: tuple[int, ...]
) -> int:
    padding = _id(tokenizer, special.pad_token)
    return padding if padding is not None else (end or (0,))[0]


def _id(tokenizer: Tokenizer, text: str | None) -> int | None:
    if text is None or not isinstance(tokenizer, FileTokenizer):
        return None
    return tokenizer.id_of(text)
