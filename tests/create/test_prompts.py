"""Prompts from rows to samples: text and messages, answers, what is refused and what is left out."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest
import tokenizers
from distro_node.node.create.borders import Borders
from distro_node.node.create.corpus import TokenisedCorpus, find_sources, read_corpus
from distro_node.node.create.data_kinds import Prompts
from distro_node.node.create.manifest_file import DataTable, ManifestFile
from distro_node.node.create.prompts import PromptColumns, PromptTokenizer
from distro_node.node.create.tokens import ByteTokenizer, FileTokenizer, Tokenizer
from distro_node.node.errors import ExitCode, UserError
from distro_node.node.storage.blob_store import BlobStore
from distro_node.node.storage.data_dir import DataDir
from distro_node.node.trainer.tasks.data import Corpus as StoredCorpus
from distro_node.node.trainer.tasks.prompt_samples import read_prompt
from distro_node.node.training.chat import ChatTemplate
from distro_node.node.training.reward_rules import RewardRule
from distro_node.node.training.task_names import RewardSettings
from distro_node.node.training.tokenizer_settings import TokenizerSettings
from distro_node.protocol.wire.manifest import DataSpec, ScheduleSpec
from trainer.test_chat import CHATML

LENGTH, COMPLETION = 96, 8
START, END = 256, 257


@pytest.fixture(scope="module")
def chat_tokenizer(tmp_path_factory: pytest.TempPathFactory) -> FileTokenizer:
    """Return a tokenizer of bytes with two more tokens around each message."""
    library = tokenizers.Tokenizer.from_str(ByteTokenizer().definition.decode())
    library.add_special_tokens(["<|im_start|>", "<|im_end|>"])
    file = tmp_path_factory.mktemp("prompts") / "tokenizer.json"
    library.save(str(file))
    return FileTokenizer(file)


class Founder:
    def __init__(
        self, root: Path, tokenizer: Tokenizer, *, chat: bool = False, start: int | None = None
    ) -> None:
        self.root = root
        self.chat = ChatTemplate(TokenizerSettings(chat_template=CHATML)) if chat else None
        self.plain = tokenizer
        self.tokenizer = PromptTokenizer(tokenizer, start, COMPLETION, filler=0, length=LENGTH)
        self.data = DataDir(root / "data")
        self.data.create()

    def read(self, *paths: Path, checker: str = "exact", **options: Any) -> TokenisedCorpus:
        table: dict[str, Any] = {"sequence_length": LENGTH, "paths": tuple(map(str, paths))}
        file = ManifestFile(
            name="x",
            model={},
            task="grpo",
            data=DataTable(**(table | options)),
            schedule=ScheduleSpec(total_rounds=10, warmup_rounds=0),
        )
        rule = RewardRule(RewardSettings(max_new_tokens=COMPLETION, checker=checker))
        kind = Prompts(self.chat, rule, COMPLETION)
        found = find_sources(file, self.root / "run.toml", (), kind)
        return read_corpus(
            *(file, found, self.tokenizer, Borders(), self.data, lambda *_: None), kind=kind
        )

    def stored(self, corpus: TokenisedCorpus) -> list[tuple[tuple[int, ...], str]]:
        """Return all prompts and answers as a trainer reads them."""
        store = BlobStore(self.data.blobs)
        shards, heldout = corpus.store(store, lambda *_: None)
        spec = DataSpec(
            sequence_length=LENGTH,
            token_bytes=self.tokenizer.token_bytes,
            vocabulary=self.tokenizer.vocabulary,
            shards=tuple(shards),
            heldout=heldout,
            tokenizer=store.put(self.plain.definition),
            marked=True,
        )
        samples = StoredCorpus(spec, store)
        assert corpus.samples == spec.samples
        read = []
        for data in (
            *samples.training(range(spec.samples)),
            *samples.heldout(range(samples.heldout_samples)),
        ):
            found = read_prompt(spec, data, COMPLETION)
            assert found.answer is not None
            read.append((found.tokens, found.answer.decode()))
        return read

    def refused(self, *paths: Path, **options: Any) -> UserError:
        with pytest.raises(UserError) as refused:
            self.read(*paths, **options)
        assert "\n" not in refused.value.problem
        assert refused.value.remedy
        return refused.value


def jsonl(path: Path, rows: Sequence[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def sums(count: int) -> list[dict[str, Any]]:
    return [{"prompt": f"{n} and {n} make", "answer": str(2 * n)} for n in range(count)]


def test_each_prompt_is_a_sample_with_its_answer(tmp_path: Path) -> None:
    founder = Founder(tmp_path, ByteTokenizer())
    rows = [*sums(30), {"prompt": "two lines\nof text", "answer": 'é\n"quoted"'}]
    found = founder.stored(founder.read(jsonl(tmp_path / "a.jsonl", rows)))
    assert sorted((bytes(tokens).decode(), answer) for tokens, answer in found) == sorted(
        (row["prompt"], row["answer"]) for row in rows
    )


def test_the_prompt_alone_decides_what_is_held_out() -> None:
    columns = PromptColumns(None, None, None, RewardRule(RewardSettings(max_new_tokens=COMPLETION)))
    samples = [columns.text({"prompt": "a\nb", "answer": answer}) for answer in ("1", "2")]
    assert len({*samples}) == 2
    assert {columns.subject_of(str(sample).encode()) for sample in samples} == {b"a\nb"}


def test_a_start_token_comes_once_before_a_plain_prompt(
    tmp_path: Path, chat_tokenizer: FileTokenizer
) -> None:
    founder = Founder(tmp_path, chat_tokenizer, start=START)
    rows = [*sums(10), {"prompt": "<|im_start|>spelled out", "answer": "x"}]
    found = founder.stored(founder.read(jsonl(tmp_path / "a.jsonl", rows)))
    assert all(tokens[0] == START and START not in tokens[1:] for tokens, _ in found)


def test_a_template_writes_prompts_up_to_the_assistant(
    tmp_path: Path, chat_tokenizer: FileTokenizer
) -> None:
    founder = Founder(tmp_path, chat_tokenizer, chat=True)
    talk = [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "b"},
        {"role": "user", "content": "c"},
    ]
    rows = [*sums(10), {"prompt": talk, "answer": "d"}]
    # As in a table of text, such as CSV.
    spelled = [*rows[:-1], {"prompt": json.dumps(talk), "answer": "d"}]
    found = founder.stored(founder.read(jsonl(tmp_path / "a.jsonl", spelled)))
    assert founder.chat is not None
    wanted = {
        founder.chat.text(
            row["prompt"]
            if isinstance(row["prompt"], list)
            else [{"role": "user", "content": row["prompt"]}],
            prompt=True,
        )
        for row in rows
    }
    names = {START: "<|im_start|>", END: "<|im_end|>"}
    assert {"".join(names.get(t) or chr(t) for t in tokens) for tokens, _ in found} == wanted
    # The prompt of a conversation ends where the assistant begins.
    assert all(text.endswith("assistant\n") for text in wanted)


@pytest.mark.parametrize("kind", [int, float])
def test_answers_may_be_numbers_and_columns_have_other_names(
    tmp_path: Path, kind: type[int | float]
) -> None:
    founder = Founder(tmp_path, ByteTokenizer())
    table = pyarrow.table({"q": [f"{n}?" for n in range(20)], "a": [kind(n) for n in range(20)]})
    pyarrow.parquet.write_table(table, tmp_path / "a.parquet")
    found = founder.stored(founder.read(tmp_path / "a.parquet", prompt="q", answer="a"))
    assert sorted((bytes(t).decode(), answer) for t, answer in found) == sorted(
        (f"{n}?", str(n)) for n in range(20)
    )


def test_what_does_not_fit_is_left_out_and_counted(tmp_path: Path) -> None:
    founder = Founder(tmp_path, ByteTokenizer())
    room = LENGTH - COMPLETION
    rows = [
        *sums(10),
        {"prompt": "p" * room, "answer": "a" * COMPLETION},
        {"prompt": "q" * (room + 1), "answer": "a"},
        {"prompt": "r" * room, "answer": "a" * (COMPLETION + 1)},
    ]
    corpus = founder.read(jsonl(tmp_path / "a.jsonl", rows))
    prompts = {bytes(tokens)[:1] for tokens, _ in founder.stored(corpus)}
    assert b"p" in prompts
    assert not prompts & {b"q", b"r"}
    lines = [*corpus.summary.lines()]
    assert "11 prompts" in lines[0]
    long = "  longer than a sequence, with the answer or a completion: 2 prompts left out:"
    assert long in lines
    assert not any("assistant" in line for line in lines)
    told = founder.refused(jsonl(tmp_path / "b.jsonl", rows[-2:]))
    assert "do not fit into 88 tokens, a sequence of 96 less a completion of 8" in told.problem


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({"prompt": "x"}, "has no column 'answer'"),
        ({"answer": "x"}, "has no column 'prompt'"),
        ({"prompt": "x", "answer": None}, "holds nothing in the column 'answer', not text"),
        ({"prompt": "x", "answer": True}, "holds true in the column 'answer'"),
        ({"prompt": "x", "answer": math.nan}, "holds NaN in the column 'answer'"),
        ({"prompt": "x", "answer": -math.inf}, "holds -Infinity in the column 'answer'"),
        ({"prompt": "x", "answer": ""}, "has the answer '', which an empty completion matches"),
        ({"prompt": "x", "answer": " \n"}, "which an empty completion matches"),
        (
            {"prompt": '[{"role": "user", "content": "x"}]', "answer": "x"},
            "the tokenizer has no chat template",
        ),
        ({"prompt": 3, "answer": "x"}, "holds 3 in the column 'prompt'"),
        ({"prompt": "", "answer": "x"}, "holds an empty prompt"),
        ({"prompt": "x", "answer": "\ud800"}, "half of a surrogate pair"),
        ({"prompt": "\ud800", "answer": "x"}, "half of a surrogate pair"),
        (
            {"prompt": [{"role": "user", "content": "x"}], "answer": "x"},
            "the tokenizer has no chat template",
        ),
        ({"prompt": "x" * ((1 << 20) + 1), "answer": "x"}, "a prompt of more than 1 MB"),
    ],
)
def test_a_bad_row_is_one_line(tmp_path: Path, row: dict[str, Any], words: str) -> None:
    founder = Founder(tmp_path, ByteTokenizer())
    told = founder.refused(jsonl(tmp_path / "a.jsonl", [*sums(3), row]))
    assert told.code == ExitCode.DATA_MISSING
    assert "a.jsonl, line 4: the row" in told.problem
    assert words in told.problem
    # And may be left out.
    found = founder.read(jsonl(tmp_path / "a.jsonl", [*sums(9), row]), max_bad=1)
    assert found.summary.bad == 1


def test_an_answer_that_is_no_pattern_is_found_by_create(tmp_path: Path) -> None:
    pytest.importorskip("re2")
    founder = Founder(tmp_path, ByteTokenizer())
    file = jsonl(tmp_path / "a.jsonl", [*sums(3), {"prompt": "x", "answer": "("}])
    # What was read for another checker is not used.
    founder.read(file)
    told = founder.refused(file, checker="regex")
    assert "line 4: the row has an answer that is no regular expression" in told.problem


@pytest.mark.parametrize("pattern", ["", "x*", "yes|", "^$"])
def test_a_pattern_that_rewards_an_empty_completion_is_a_bad_row(
    tmp_path: Path, pattern: str
) -> None:
    pytest.importorskip("re2")
    founder = Founder(tmp_path, ByteTokenizer())
    rows = [*sums(3), {"prompt": "x", "answer": pattern}]
    told = founder.refused(jsonl(tmp_path / "a.jsonl", rows), checker="regex")
    assert f"has the answer {pattern!r}, which an empty completion matches" in told.problem


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (18.0, "18"),
        (-0.0, "0"),
        (0.5, "0.5"),
        (2.0**53, "9007199254740992"),
        (1e300, "1e+300"),
        (10**80, f"1{'0' * 80}"),
    ],
)
def test_a_whole_number_has_no_fraction(tmp_path: Path, number: int | float, text: str) -> None:
    founder = Founder(tmp_path, ByteTokenizer())
    rows = [{"prompt": f"{n}?", "answer": number} for n in range(2)]
    found = founder.stored(founder.read(jsonl(tmp_path / "a.jsonl", rows)))
    assert {answer for _, answer in found} == {text}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"text": "t"}, "and no others"),
        ({"messages": "m"}, "and no others"),
        ({"prompt": "p", "completion": "c"}, "and no others"),
        ({"prompt": "p", "answer": "p"}, "name the same column"),
        ({"image": "i"}, "are for images"),
    ],
)
def test_keys_of_other_tasks_are_refused(
    tmp_path: Path, options: dict[str, str], words: str
) -> None:
    founder = Founder(tmp_path, ByteTokenizer())
    told = founder.refused(jsonl(tmp_path / "a.jsonl", sums(3)), **options)
    assert told.code == ExitCode.MANIFEST
    assert words in told.problem


def test_a_text_has_no_prompts(tmp_path: Path) -> None:
    founder = Founder(tmp_path, ByteTokenizer())
    (tmp_path / "a.txt").write_text("no rows")
    told = founder.refused(tmp_path / "a.txt")
    assert "holds no prompts, which this task learns from" in told.problem


def test_another_process_makes_the_same_tokenizer(chat_tokenizer: FileTokenizer) -> None:
    text = [b'"4"\n2+2=']
    for inner in (ByteTokenizer(), chat_tokenizer):
        tokenizer = PromptTokenizer(inner, 7, COMPLETION, filler=3, length=LENGTH)
        other = PromptTokenizer.of(*tokenizer.remade)
        assert other.encode(text)[0].tolist() == tokenizer.encode(text)[0].tolist()
        assert other.remade == tokenizer.remade
        # A cache of tokens made with another start is not used again.
        assert other.starting_with(None).remade[2:] != other.remade[2:]
