"""What a task requires of a founder's file, and its refusal before any text is read."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import tokenizers
from distro_node.node.create.checkpoint import settings_for, tokenizer_file
from distro_node.node.create.conversations import ConversationTokenizer
from distro_node.node.create.corpus import end_tokens, find_sources
from distro_node.node.create.manifest_file import read_manifest_file
from distro_node.node.create.model_config import complete_model
from distro_node.node.create.prompts import PromptTokenizer
from distro_node.node.create.task import TaskPlan, plan_task
from distro_node.node.create.tokens import ByteTokenizer, FileTokenizer
from distro_node.node.errors import ExitCode, UserError
from distro_node.protocol.wire.structure import StructureError
from trainer.test_chat import CHATML

SPECIAL = ("<|im_start|>", "<|im_end|>", "<|endoftext|>", "[MASK]")
OWN = 'tokenizer = "tokenizer.json"'
LLAMA, BERT = 'model_type = "llama"', 'model_type = "bert"'


def plan(
    root: Path,
    task: str,
    *,
    model: str = LLAMA,
    data: Sequence[str] = (OWN,),
    settings: str = "",
    special: Sequence[str] = SPECIAL,
    template: str | None = CHATML,
) -> TaskPlan:
    """Return the plan for a file with these keys, beside a tokenizer with these tokens and a
    template."""
    library = tokenizers.Tokenizer.from_str(ByteTokenizer().definition.decode())
    library.add_special_tokens(list(special))
    library.save(str(root / "tokenizer.json"))
    if template is not None:
        (root / "chat_template.jinja").write_text(template)
    path = root / "run.toml"
    keys = "\n".join(["sequence_length = 64", *data])
    path.write_text(f'name = "a"\ntask = "{task}"\n[model]\n{model}\n[data]\n{keys}\n{settings}')
    file = read_manifest_file(path)
    source = tokenizer_file(file, path)
    tokenizer = ByteTokenizer() if source is None else FileTokenizer(source)
    known = settings_for(tokenizer, source, file, path)
    size = tokenizer.vocabulary
    config = complete_model(dict(file.model), vocabulary=size, sequence_length=64, task=task)
    end = end_tokens(file.data, tokenizer, path)
    made = plan_task(file, path, tokenizer, known, config, end)
    find_sources(
        file,
        path,
        (root / "chat_template.jinja",) if not made.marked else ("hf://a/b",),
        made.kind,
    )
    return made


def refused(
    root: Path,
    words: str,
    task: str,
    *,
    code: ExitCode = ExitCode.MANIFEST,
    model: str = LLAMA,
    data: Sequence[str] = (OWN,),
    settings: str = "",
    special: Sequence[str] = SPECIAL,
    template: str | None = CHATML,
) -> None:
    with pytest.raises(UserError) as caught:
        plan(
            root,
            task,
            model=model,
            data=data,
            settings=settings,
            special=special,
            template=template,
        )
    assert caught.value.code == code
    assert words in caught.value.problem
    assert "\n" not in caught.value.problem
    assert caught.value.remedy


def test_conversations_need_a_tokenizer_with_a_template(tmp_path: Path) -> None:
    made = plan(tmp_path, "sft")
    assert isinstance(made.tokenizer, ConversationTokenizer)
    assert made.settings is None
    assert made.filler == 258
    refused(tmp_path, "bytes have no chat template", "sft", data=())
    (tmp_path / "chat_template.jinja").unlink()
    refused(tmp_path, "it has no chat template", "sft", template=None)
    refused(tmp_path, "the chat template cannot be read", "sft", template="{% if %}")
    refused(tmp_path, "names no token that ends a document", "sft", special=("<|im_start|>",))


def test_pairs_need_what_conversations_need(tmp_path: Path) -> None:
    made = plan(tmp_path, "dpo", settings="[task_settings]\nbeta = 0.5")
    assert made.settings == {"beta": 0.5, "label_smoothing": 0.0}
    assert (made.pairs, made.kind.attention, made.filler) == (True, "sequence", 258)
    refused(tmp_path, "bytes have no chat template", "dpo", data=())
    # Only one half of a pair is read at once.
    half = "max_position_embeddings = 32"
    assert plan(tmp_path, "dpo", model=f"{LLAMA}\n{half}").pairs
    with pytest.raises(
        StructureError, match=r"31 is less than half of data.sequence_length \(64\)"
    ):
        plan(tmp_path, "dpo", model=f"{LLAMA}\nmax_position_embeddings = 31")
    for settings in ("beta = 0", "label_smoothing = 0.5", "gamma = 1"):
        words = settings.split(" =", maxsplit=1)[0]
        refused(tmp_path, words, "dpo", settings=f"[task_settings]\n{settings}")


def test_a_template_may_be_named(tmp_path: Path) -> None:
    (tmp_path / "other.jinja").write_text("{{ messages[0].content }}")
    named = (OWN, 'chat_template = "other.jinja"')
    made = plan(tmp_path, "sft", data=named, template=None)
    assert made.chat is not None
    assert made.chat.text([{"role": "user", "content": "x"}]) == "x"
    refused(tmp_path, "'causal_lm' uses none", "causal_lm", data=named)
    (tmp_path / "other.jinja").write_bytes(b"\xff")
    refused(tmp_path, "other.jinja: is not a chat template", "sft", data=named)
    (tmp_path / "other.jinja").unlink()
    refused(tmp_path, "other.jinja: cannot be read", "sft", data=named)


@pytest.mark.parametrize(
    ("task", "keys", "words"),
    [
        ("causal_lm", ('messages = "m"',), "belong to a task that learns from conversations"),
        ("sft", ('text = "m"',), "`text` and `template` are for plain text"),
        ("sft", ('prompt = "q"',), "or both `prompt` and `completion`"),
        ("sft", ('chosen = "q"',), "belong to the task 'dpo'"),
        ("dpo", ('messages = "q"',), "columns that `prompt`, `chosen` and `rejected` name"),
        ("dpo", ('chosen = "q"', 'rejected = "q"'), "must be three columns"),
        ("dpo", ('attention = "document"',), "always apart in the task 'dpo'"),
        ("dpo", ('policy = "private"',), "cannot be combined with private data"),
        ("sft", ('prompt = "q"', 'completion = "a"', 'messages = "m"'), "give `messages`, or both"),
    ],
)
def test_columns_are_those_of_the_task(
    tmp_path: Path, task: str, keys: Sequence[str], words: str
) -> None:
    refused(tmp_path, words, task, data=(OWN, *keys))


def test_gaps_need_a_model_and_a_token_for_them(tmp_path: Path) -> None:
    assert plan(tmp_path, "masked_lm", model=BERT).settings == {"mask_token": 259, "share": 0.15}
    more = "[task_settings]\nmask_token = 7\nshare = 0.3"
    made = plan(tmp_path, "masked_lm", model=BERT, settings=more)
    assert made.settings == {"mask_token": 7, "share": 0.3}
    refused(tmp_path, "no mask token", "masked_lm", model=BERT, special=SPECIAL[:3])
    for settings, words in (
        ("mask_token = 260", "has 260 tokens"),
        ("mask_token = 7\nshare = 2.0", "share"),
        ("masks = 7", "unknown key 'masks'"),
    ):
        table = f"[task_settings]\n{settings}"
        refused(tmp_path, words, "masked_lm", model=BERT, settings=table)


REWARDS = "[task_settings]\nmax_new_tokens = 16\n"


def test_prompts_are_written_by_the_template_if_there_is_one(tmp_path: Path) -> None:
    made = plan(tmp_path, "grpo", settings=REWARDS)
    assert made.chat is not None
    assert isinstance(made.tokenizer, PromptTokenizer)
    assert made.settings == {
        "max_new_tokens": 16,
        "checker": "exact",
        "extract": None,
        "group": 8,
        "temperature": 1.0,
        "advantage": "mean",
    }
    assert made.marked
    assert made.kind.attention == "sequence"
    # A start token belongs to plain prompts: the template writes its own.
    assert made.starting_with(256) is made
    (tmp_path / "chat_template.jinja").unlink()
    made = plan(tmp_path, "grpo", settings=REWARDS, template=None)
    assert made.chat is None
    started = made.starting_with(256).tokenizer
    assert isinstance(started, PromptTokenizer)
    assert started.encode([b'"1"\nx'])[0].tolist()[0] & 0x3FFF == 256
    assert plan(tmp_path, "grpo", data=(), settings=REWARDS, template=None).chat is None


@pytest.mark.parametrize(
    ("settings", "data", "words"),
    [
        ("", (OWN,), "task_settings: the key 'max_new_tokens' is missing"),
        ("[task_settings]\nmax_new_tokens = 64", (OWN,), "a sequence of 64 tokens"),
        (f"{REWARDS}group = 1", (OWN,), "group"),
        (f"{REWARDS}[audits]", (OWN,), "audits: cannot be combined with the task 'grpo'"),
        (REWARDS, (OWN, 'policy = "private"'), "needs prompts that all members share"),
        (REWARDS, (OWN, 'attention = "document"'), "one prompt in a sequence"),
        (f'{REWARDS}checker = "regex"\nextract = "(a)"', (OWN,), "extract: belongs to"),
    ],
)
def test_what_does_not_go_with_rewards_is_refused(
    tmp_path: Path, settings: str, data: Sequence[str], words: str
) -> None:
    refused(tmp_path, words, "grpo", data=data, settings=settings)


def test_a_checker_that_is_not_installed_is_reported(tmp_path: Path) -> None:
    settings = f'{REWARDS}checker = "poetry"'
    refused(tmp_path, "the checker 'poetry'", "grpo", settings=settings, code=ExitCode.NO_TASK)


def test_an_answer_belongs_to_rewards(tmp_path: Path) -> None:
    refused(tmp_path, "`answer` belongs to the task 'grpo'", "sft", data=(OWN, 'answer = "a"'))


def test_models_go_with_their_tasks(tmp_path: Path) -> None:
    for task, model, words in (
        ("causal_lm", BERT, "set task = 'masked_lm'"),
        ("sft", BERT, "set task = 'masked_lm'"),
        ("dpo", BERT, "set task = 'masked_lm'"),
        ("grpo", BERT, "set task = 'masked_lm'"),
        ("masked_lm", LLAMA, "set task = 'causal_lm', 'sft', 'dpo' or 'grpo'"),
    ):
        refused(tmp_path, words, task, model=model)
    refused(tmp_path, "unknown key 'x'", "causal_lm", settings="[task_settings]\nx = 1")


def test_a_task_that_is_not_installed_is_reported(tmp_path: Path) -> None:
    refused(tmp_path, "the task 'poetry', which is not installed", "poetry", code=ExitCode.NO_TASK)


def test_a_window_that_slides_within_a_sequence_is_reported(tmp_path: Path) -> None:
    mistral = 'model_type = "mistral"\nsliding_window = 32'
    refused(tmp_path, "whose window of 32 tokens", "sft", model=mistral)
    for keys, model in (
        ((OWN, 'attention = "sequence"'), mistral),
        ((OWN,), 'model_type = "mistral"\nsliding_window = 64'),
        ((OWN,), 'model_type = "qwen2"\nsliding_window = 32'),
    ):
        assert plan(tmp_path, "sft", model=model, data=keys).chat is not None
