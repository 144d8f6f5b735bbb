"""Conversations from rows to samples: which tokens are learned, how they are packed, what is refused."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
import tokenizers
from distro_node.node.create import conversations, tokenisation, tokeniser_pool
from distro_node.node.create.borders import Borders
from distro_node.node.create.conversations import ConversationTokenizer, fitted
from distro_node.node.create.corpus import TokenisedCorpus, find_sources, read_corpus
from distro_node.node.create.data_kinds import Conversations
from distro_node.node.create.manifest_file import DataTable, ManifestFile, WeightedTable
from distro_node.node.create.sequence_packing import rows
from distro_node.node.create.tokens import ByteTokenizer, FileTokenizer
from distro_node.node.errors import ExitCode, UserError
from distro_node.node.storage.blob_store import BlobStore
from distro_node.node.storage.data_dir import DataDir
from distro_node.node.trainer.tasks.data import Corpus as StoredCorpus
from distro_node.node.trainer.tasks.data import read_tokens
from distro_node.node.training.chat import ChatTemplate
from distro_node.node.training.tokenizer_settings import TokenizerSettings
from distro_node.protocol.wire.manifest import DataSpec, ScheduleSpec
from trainer.test_chat import CHATML, FORGETFUL

START, END = 256, 257
LENGTH = 96
# A template whose messages have no token at their end.
UNENDED = (
    "{% for message in messages %}{{ message['role'] }}:{{ message['content'] }}{% endfor %}"
    "{% if add_generation_prompt %}assistant:{% endif %}"
)
TALK = [{"role": "user", "content": "Why?"}, {"role": "assistant", "content": "So."}]


@pytest.fixture(scope="session")
def plain(tmp_path_factory: pytest.TempPathFactory) -> FileTokenizer:
    """Return a tokenizer of bytes with two more tokens around each message."""
    library = tokenizers.Tokenizer.from_str(ByteTokenizer().definition.decode())
    library.add_special_tokens(["<|im_start|>", "<|im_end|>"])
    file = tmp_path_factory.mktemp("chat") / "tokenizer.json"
    library.save(str(file))
    return FileTokenizer(file)


def talk(number: int, turns: int = 1) -> list[dict[str, str]]:
    return [
        {"role": role, "content": text}
        for turn in range(turns)
        for role, text in (("user", f"{number}.{turn}?"), ("assistant", f"It is {number}.{turn}."))
    ]


class Founder:
    def __init__(self, root: Path, plain: FileTokenizer, template: str = CHATML) -> None:
        self.root, self.plain = root, plain
        self.chat = ChatTemplate(TokenizerSettings(chat_template=template))
        self.tokenizer = ConversationTokenizer(plain, END)
        self.data = DataDir(root / "data")
        self.data.create()

    def read(self, *paths: Path, **options: Any) -> TokenisedCorpus:
        table: dict[str, Any] = {"sequence_length": LENGTH, "paths": tuple(map(str, paths))}
        data = DataTable(**(table | options))
        file = ManifestFile(
            name="x",
            model={},
            task="sft",
            data=data,
            schedule=ScheduleSpec(total_rounds=10, warmup_rounds=0),
        )
        kind = Conversations(self.chat)
        found = find_sources(file, self.root / "run.toml", (), kind)
        return read_corpus(
            *(file, found, self.tokenizer, Borders(), self.data, lambda *_: None, END), kind=kind
        )

    def stored(
        self, corpus: TokenisedCorpus, sequence_length: int = LENGTH
    ) -> tuple[DataSpec, StoredCorpus]:
        store = BlobStore(self.data.blobs)
        shards, heldout = corpus.store(store, lambda *_: None)
        spec = DataSpec(
            sequence_length=sequence_length,
            token_bytes=self.tokenizer.token_bytes,
            vocabulary=self.tokenizer.vocabulary,
            shards=tuple(shards),
            heldout=heldout,
            tokenizer=store.put(self.plain.definition),
            marked=True,
            attention="document",
        )
        return spec, StoredCorpus(spec, store)

    def conversations(self, corpus: TokenisedCorpus) -> tuple[list[str], list[str]]:
        """Return all conversations in the samples, and what is learned of each."""
        spec, stored = self.stored(corpus)
        samples = [
            *stored.training(range(spec.samples)),
            *stored.heldout(range(stored.heldout_samples)),
        ]
        assert corpus.samples == spec.samples
        tokens = read_tokens(spec, samples)
        assert tokens.begins is not None
        assert tokens.learned is not None
        whole, learned = [], []
        for ids, begins, marks in zip(tokens.ids, tokens.begins, tokens.learned, strict=True):
            # The last number is the first of the next sample.
            assert begins[0]
            assert begins[-1]
            assert not marks[-1]
            assert not marks[begins].any()
            starts = np.flatnonzero(begins)
            for start, stop in itertools.pairwise(starts):
                inside = slice(start, stop)
                if not (ids[inside] == END).all():
                    whole.append(self.text(ids[inside]))
                    learned.append(self.text(ids[inside][marks[inside]]))
        return whole, learned

    def text(self, ids: np.ndarray) -> str:
        return "".join(
            {START: "<|im_start|>", END: "<|im_end|>"}.get(token) or chr(token)
            for token in ids.tolist()
        )

    def refused(self, *paths: Path, **options: Any) -> UserError:
        with pytest.raises(UserError) as refused:
            self.read(*paths, **options)
        assert "\n" not in refused.value.problem
        assert refused.value.remedy
        return refused.value


@pytest.fixture
def founder(tmp_path: Path, plain: FileTokenizer) -> Founder:
    return Founder(tmp_path, plain)


def jsonl(path: Path, talks: Sequence[Any], column: str = "messages") -> Path:
    path.write_text("".join(json.dumps({column: each}) + "\n" for each in talks))
    return path


def test_every_conversation_is_whole_in_a_sample_and_only_answers_are_learned(
    founder: Founder, tmp_path: Path
) -> None:
    talks = [talk(number, 1 + number % 2) for number in range(40)]
    corpus = founder.read(jsonl(tmp_path / "a.jsonl", talks))
    whole, learned = founder.conversations(corpus)
    assert sorted(whole) == sorted(founder.chat.text(each) for each in talks)
    answers = {
        founder.chat.text(each): "".join(
            f"{message['content']}<|im_end|>" for message in each if message["role"] == "assistant"
        )
        for each in talks
    }
    assert learned == [answers[text] for text in whole]
    read = corpus.summary.sources[0].read
    assert read.learned == sum(len(text.replace("<|im_end|>", "x")) for text in learned)
    assert any("are the assistant's" in line for line in corpus.summary.lines())


def parquet(path: Path, columns: dict[str, list[Any]]) -> Path:
    pyarrow.parquet.write_table(pyarrow.table(columns), path)
    return path


def test_parquet_holds_the_same(founder: Founder, tmp_path: Path) -> None:
    talks = [talk(number) for number in range(12)]
    file = parquet(tmp_path / "a.parquet", {"messages": talks, "id": list(range(12))})
    whole, _ = founder.conversations(founder.read(file))
    assert sorted(whole) == sorted(founder.chat.text(each) for each in talks)


@pytest.mark.parametrize("kind", ["pair", "sharegpt", "json", "json pair", "parts"])
def test_other_ways_to_write_a_conversation(founder: Founder, tmp_path: Path, kind: str) -> None:
    file, options = tmp_path / "a.jsonl", {}
    made = []
    for number in range(6):
        asked, answered = (message["content"] for message in talk(number))
        match kind:
            case "pair":
                made.append({"q": asked, "a": answered})
                options = {"prompt": "q", "completion": "a"}
            case "sharegpt":
                said = [{"from": "human", "value": asked}, {"from": "gpt", "value": answered}]
                made.append({"conversations": said})
                options = {"messages": "conversations"}
            case "json":
                made.append({"messages": json.dumps(talk(number))})
            case "json pair":
                said = talk(number)
                made.append({"q": json.dumps(said[:1]), "a": json.dumps(said[1:])})
                options = {"prompt": "q", "completion": "a"}
            case "parts":
                said = talk(number)
                parts = [{"type": "text", "text": answered}]
                made.append({"messages": [said[0], said[1] | {"content": parts, "name": None}]})
    file.write_text("".join(json.dumps(row) + "\n" for row in made))
    whole, _ = founder.conversations(founder.read(file, **options))
    assert sorted(whole) == sorted(founder.chat.text(talk(number)) for number in range(6))


@pytest.mark.parametrize(
    "role", ["gpt", "Assistant", "bot", "chatgpt", "bing", "bard", "model", "function_call"]
)
def test_the_models_turns_are_learned_whatever_their_name(
    founder: Founder, tmp_path: Path, role: str
) -> None:
    said = [{"from": "human", "value": "Why?"}, {"from": role, "value": "So."}]
    file = jsonl(tmp_path / "a.jsonl", [said, [{"from": "observation", "value": "1"}, *said]])
    _, learned = founder.conversations(founder.read(file))
    assert learned == ["So.<|im_end|>"] * 2


def test_a_role_that_the_template_names_is_read(tmp_path: Path, plain: FileTokenizer) -> None:
    critic = "{% if messages[0].role == 'critic' %}!{% endif %}"
    founder = Founder(tmp_path, plain, critic + CHATML)
    talks = [[{"role": "critic", "content": f"{n}"}, *TALK] for n in range(2)]
    whole, _ = founder.conversations(founder.read(jsonl(tmp_path / "a.jsonl", talks)))
    assert all(text.startswith("!<|im_start|>critic") for text in whole)


@pytest.mark.parametrize("completion", ["", " \n"])
def test_a_blank_completion_is_a_bad_row(founder: Founder, tmp_path: Path, completion: str) -> None:
    file = tmp_path / "a.jsonl"
    file.write_text(json.dumps({"q": "Why?", "a": completion}) + "\n")
    error = founder.refused(file, prompt="q", completion="a")
    assert "has a blank message of the assistant (message 2)" in error.problem


def test_blank_messages_that_are_not_learned_are_read(founder: Founder, tmp_path: Path) -> None:
    blank = {"role": "assistant", "content": "", "weight": 0}
    talks = [[TALK[0], blank, *talk(n)] for n in range(3)]
    whole, _ = founder.conversations(founder.read(jsonl(tmp_path / "a.jsonl", talks)))
    assert len(whole) == 3


def test_what_does_not_fit_is_cut_after_an_answer_or_left_out_and_named(
    founder: Founder, tmp_path: Path
) -> None:
    long = [{"role": "user", "content": "x" * LENGTH}, {"role": "assistant", "content": "y"}]
    talks = [*(talk(number) for number in range(5)), talk(7, 6), long]
    corpus = founder.read(jsonl(tmp_path / "a.jsonl", talks))
    whole, learned = founder.conversations(corpus)
    read = corpus.summary.sources[0].read
    assert (read.documents, read.cut, read.too_long) == (6, 1, 1)
    cut = next(text for text in whole if "7.0" in text)
    assert founder.chat.text(talk(7, 6)).startswith(cut)
    assert cut.endswith("It is 7.1.<|im_end|>")
    assert len(whole) == 6
    assert sum("7." in text for text in learned) == 1
    said = "\n".join(corpus.summary.lines())
    assert "1 conversation cut after an answer, 1 left out" in said
    assert "a.jsonl, line 6: has" in said
    assert "a.jsonl, line 7: has" in said
    named = corpus.summary.facts()["sources"][0]["long_rows"]
    assert [row["line"] for row in named] == [6, 7]


def test_if_nothing_fits_that_is_reported(founder: Founder, tmp_path: Path) -> None:
    talks = [talk(number) for number in range(5)]
    error = founder.refused(jsonl(tmp_path / "a.jsonl", talks), sequence_length=8)
    assert error.code == ExitCode.DATA_MISSING
    assert "in 5 of them no answer ends within a sequence of 8 tokens" in error.problem


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({"messages": []}, "holds no messages in the column 'messages'"),
        ({"messages": 7}, "holds no messages"),
        ({"messages": "hello"}, "holds no messages"),
        ({"messages": [7]}, "message 1 has no role"),
        ({"messages": [{"role": "user"}]}, "message 1 has no role or no text"),
        ({"messages": [{"role": 3, "content": "x"}]}, "message 1 has no role"),
        ({"messages": TALK[:1]}, "has no text by the assistant"),
        (
            {"messages": [*TALK, TALK[0], {"role": "assistant", "content": " \n"}]},
            "has a blank message of the assistant (message 4)",
        ),
        (
            {"messages": [{"role": "critic", "content": "x"}, *TALK]},
            "has the role 'critic' in mess",
        ),
        (
            {"messages": [*TALK, {"from": "answerer", "value": "x"}]},
            "has the role 'answerer' in message 3, which the chat template does not name",
        ),
        ({"text": "hello"}, "has no column 'messages' (it has: text)"),
    ],
)
def test_a_bad_row_is_named_or_left_out(
    founder: Founder, tmp_path: Path, row: dict[str, Any], words: str
) -> None:
    file = jsonl(tmp_path / "a.jsonl", [talk(number) for number in range(6)])
    with file.open("a") as opened:
        opened.write(json.dumps(row) + "\n")
    error = founder.refused(file)
    assert error.code == ExitCode.DATA_MISSING
    assert words in error.problem
    assert "a.jsonl, line 7" in error.problem
    whole, _ = founder.conversations(founder.read(file, max_bad=1))
    assert len(whole) == 6


def test_a_column_of_another_type_is_refused(founder: Founder, tmp_path: Path) -> None:
    error = founder.refused(parquet(tmp_path / "a.parquet", {"messages": [1, 2]}))
    assert "holds int64 in the column 'messages', not messages" in error.problem
    assert "`prompt`" in error.remedy
    error = founder.refused(parquet(tmp_path / "b.parquet", {"text": ["x"]}))
    assert "has no column 'messages' (it has: text)" in error.problem


def test_a_template_that_cannot_be_taken_apart_is_refused(
    tmp_path: Path, plain: FileTokenizer
) -> None:
    founder = Founder(tmp_path, plain, FORGETFUL)
    file = jsonl(tmp_path / "a.jsonl", [*(talk(number) for number in range(6)), talk(6, 2)])
    error = founder.refused(file)
    assert error.code == ExitCode.MANIFEST
    assert "a.jsonl, line 7: the chat template changes the earlier text" in error.problem
    assert "{% generation %}" in error.remedy


def test_text_is_no_conversation(founder: Founder, tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "README.md").write_text("About this.")
    error = founder.refused(folder / "README.md")
    assert "holds no conversations" in error.problem
    assert "without conversations" in founder.refused(folder).problem
    jsonl(folder / "a.jsonl", [talk(number) for number in range(6)])
    corpus = founder.read(folder)
    assert [words.split(" (")[0] for words in corpus.summary.sources[0].skipped.lines()] == [
        "1 without conversations"
    ]
    error = founder.refused(folder, text="content")
    assert error.code == ExitCode.MANIFEST
    assert "`messages`" in error.problem


def test_one_conversation_is_too_few(founder: Founder, tmp_path: Path) -> None:
    error = founder.refused(jsonl(tmp_path / "a.jsonl", [talk(1)]))
    assert "one of them is held out" in error.remedy


def test_shares_by_weight_cut_no_conversation(founder: Founder, tmp_path: Path) -> None:
    a = jsonl(tmp_path / "a.jsonl", [talk(number) for number in range(30)])
    b = jsonl(tmp_path / "b.jsonl", [talk(number, 2) for number in range(100, 110)])
    sources = (
        WeightedTable(paths=(str(a),), weight=0.7),
        WeightedTable(paths=(str(b),), weight=0.3),
    )
    whole, _ = founder.conversations(founder.read(paths=(), source=sources))
    assert all(text.endswith("<|im_end|>\n") for text in whole)


def test_workers_make_the_same(
    founder: Founder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = jsonl(tmp_path / "a.jsonl", [talk(number) for number in range(40)])
    alone = founder.conversations(founder.read(file))
    monkeypatch.setattr(tokeniser_pool, "_MIN_TEXT_BYTES", 0)
    monkeypatch.setattr(tokeniser_pool, "usable_cores", lambda: 1)
    other = Founder(tmp_path / "other", founder.plain)
    assert other.conversations(other.read(file)) == alone


def test_a_template_without_special_tokens_gets_the_end_token(plain: FileTokenizer) -> None:
    made = ConversationTokenizer(plain, END)
    (numbers,) = made.encode([b"[[2, 4]]\nQ:hi"])
    ids = numbers & (made.learned_bit - 1)
    assert ids.tolist() == [*b"Q:hi", END]
    assert ((numbers & made.learned_bit) != 0).tolist() == [False, False, True, True, True]
    (numbers,) = made.encode([b"[[2, 15]]\nQ:hi<|im_end|>\n\n"])
    assert ((numbers & made.learned_bit) != 0).tolist() == [False] * 2 + [True] * 3 + [False] * 2


@pytest.mark.parametrize(
    ("answer", "ids", "learned"),
    [
        ("a<|im_start|>b", [*b"a", START, *b"b", END], 4),
        ("a<|im_end|>b\n", [*b"a", END, *b"b\n", END], 5),
        ("a<|im_start|>b<|im_end|>\n", [*b"a", START, *b"b", END, *b"\n"], 4),
    ],
)
def test_special_tokens_within_an_answer_do_not_end_it(
    plain: FileTokenizer, answer: str, ids: list[int], learned: int
) -> None:
    made = ConversationTokenizer(plain, END)
    (numbers,) = made.encode([f"[[2, {2 + len(answer)}]]\nQ:{answer}".encode()])
    assert (numbers & (made.learned_bit - 1)).tolist() == [*b"Q:", *ids]
    marks = ((numbers & made.learned_bit) != 0).tolist()
    assert marks == [False] * 2 + [True] * learned + [False] * (len(ids) - learned)


def test_white_space_that_a_special_token_takes_up_is_not_its_text(tmp_path: Path) -> None:
    """As the tokens of Phi-3 do (`rstrip`): the library counts it into their offsets."""
    library = tokenizers.Tokenizer.from_str(ByteTokenizer().definition.decode())
    library.add_special_tokens(
        [tokenizers.AddedToken(each, rstrip=True) for each in ("<a>", "<e>")]
    )
    library.save(str(tmp_path / "tokenizer.json"))
    made = ConversationTokenizer(FileTokenizer(tmp_path / "tokenizer.json"), 257)
    # The template writes a line end after what the assistant says, and another answer begins with one.
    texts = ("Q<a>hi<e>\nQ<a>\nho<e>\n", "Q<a>hi")
    spans = ("[[4, 9], [14, 20]]", "[[4, 6]]")
    encoded = made.encode([f"{a}\n{b}".encode() for a, b in zip(spans, texts, strict=True)])
    ids = [(numbers & (made.learned_bit - 1)).tolist() for numbers in encoded]
    assert ids == [[*b"Q", 256, *b"hi", 257, *b"Q", 256, *b"ho", 257], [*b"Q", 256, *b"hi", 257]]
    marks = [((numbers & made.learned_bit) != 0).tolist() for numbers in encoded]
    one = [False, False, True, True, True]
    assert marks == [one * 2, one]


def test_another_end_token_is_not_read_from_the_cache(founder: Founder, tmp_path: Path) -> None:
    founder.chat = ChatTemplate(TokenizerSettings(chat_template=UNENDED))
    file = jsonl(tmp_path / "a.jsonl", [talk(number) for number in range(2)])
    for end, text in ((END, "<|im_end|>"), (START, "<|im_start|>")):
        founder.tokenizer = ConversationTokenizer(founder.plain, end)
        _, learned = founder.conversations(founder.read(file))
        assert sorted(learned) == [f"It is {number}.0.{text}" for number in range(2)]


def test_a_token_over_the_border_counts_where_it_ends(tmp_path: Path) -> None:
    """A space written by the template may form one token with the answer's first word."""
    words = {"A:": 0, "▁yes": 1, "▁": 2, "no": 3, "<unk>": 4}
    library = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, "<unk>"))
    library.pre_tokenizer = tokenizers.pre_tokenizers.Metaspace(prepend_scheme="never")
    library.add_special_tokens(["</s>"])
    library.save(str(tmp_path / "tokenizer.json"))
    made = ConversationTokenizer(FileTokenizer(tmp_path / "tokenizer.json"), 5)
    (numbers,) = made.encode([b"[[3, 10]]\nA: yes</s>"])
    assert (numbers & (made.learned_bit - 1)).tolist() == [0, 1, 5]
    assert ((numbers & made.learned_bit) != 0).tolist() == [False, True, True]


def test_rows_are_filled_well_and_in_whole() -> None:
    generator = np.random.default_rng(0)
    begins, length = 1 << 15, 100
    sizes = generator.integers(1, length // 2, 500).tolist()
    pieces = [
        np.arange(size, dtype=np.uint16) | (begins * (np.arange(size) == 0)) for size in sizes
    ]
    pieces = [np.concatenate(pieces[i : i + 7]).astype(np.uint16) for i in range(0, 500, 7)]
    made = list(rows(pieces, length, 999, begins))
    assert {len(row) for row in made} == {length}
    joined = np.concatenate(made)
    found = np.split(joined, np.flatnonzero(joined & begins)[1:])
    kept = [len(part) for part in found if part[-1] & (begins - 1) != 999]
    assert sorted(kept) == sorted(sizes)
    # The minimum number of rows, and two percent more.
    assert len(made) <= sum(sizes) / length * 1.02 + 1


def test_cutting_keeps_answers_whole() -> None:
    learned = 1 << 14
    numbers = np.array([1, 2, learned | 3, learned | 4, 5, 6, learned | 7, 8], np.uint32)
    assert len(fitted(numbers, 8, learned)) == 8
    assert len(fitted(numbers, 7, learned)) == 7
    assert len(fitted(numbers, 6, learned)) == 4
    assert len(fitted(numbers, 3, learned)) == 0


# --- what is not learned, and tools ---------------------------------------------------------------


@pytest.mark.parametrize("kind", ["jsonl", "parquet", "arrow", "json column"])
@pytest.mark.parametrize(
    "mark", [{"weight": 0}, {"weight": 0.0}, {"train": False}, {"training": False}]
)
def test_messages_that_are_marked_so_are_not_learned(
    founder: Founder, tmp_path: Path, kind: str, mark: dict[str, Any]
) -> None:
    talks = []
    for number in range(12):
        made: list[dict[str, Any]] = [dict(message) for message in talk(number, turns=2)]
        made[1] |= mark
        talks.append(made)
    if kind == "jsonl":
        file = jsonl(tmp_path / "a.jsonl", talks)
    elif kind == "json column":
        file = jsonl(tmp_path / "a.jsonl", [json.dumps(each) for each in talks])
    else:
        file = parquet(tmp_path / "a.parquet", {"messages": talks})
        if kind == "arrow":
            table = pyarrow.parquet.read_table(file)
            file = tmp_path / "a.arrow"
            with (
                pyarrow.OSFile(str(file), "wb") as sink,
                pyarrow.ipc.new_stream(sink, table.schema) as writer,
            ):
                writer.write_table(table)
    whole, learned = founder.conversations(founder.read(file))
    assert len(whole) == 12
    assert all(".0." in text and ".1." in text for text in whole)
    assert sorted(learned) == sorted(f"It is {number}.1.<|im_end|>" for number in range(12))


@pytest.mark.parametrize(
    ("mark", "words"),
    [
        ({"weight": 0.5}, "has the weight 0.5 in message 2; only 0 and 1 are allowed"),
        ({"weight": "no"}, "has the weight 'no' in message 2"),
        ({"train": "false"}, "has train = 'false' in message 2"),
        ({"weight": 0}, "has no assistant's text that is to be learned"),
    ],
)
def test_a_mark_that_cannot_be_followed_is_a_bad_row(
    founder: Founder, tmp_path: Path, mark: dict[str, Any], words: str
) -> None:
    file = jsonl(tmp_path / "a.jsonl", [TALK, [TALK[0], {**TALK[1], **mark}]])
    assert words in founder.refused(file).problem


def test_what_the_assistant_writes_in_a_prompt_is_not_learned(
    founder: Founder, tmp_path: Path
) -> None:
    rows = [
        {"q": [*talk(n), {"role": "user", "content": "And?"}], "a": f"It is {n} still."}
        for n in range(12)
    ]
    file = tmp_path / "a.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    _, learned = founder.conversations(founder.read(file, prompt="q", completion="a"))
    assert sorted(learned) == sorted(f"It is {n} still.<|im_end|>" for n in range(12))


TOOLED = "{% if tools %}{{ tools | tojson }}{% endif %}" + CHATML
TOOL = {"name": "add", "args": {"a": "int"}}


@pytest.mark.parametrize("kind", ["list", "text", "texts", "parquet"])
def test_a_column_of_tools_reaches_the_template(
    tmp_path: Path, plain: FileTokenizer, kind: str
) -> None:
    founder = Founder(tmp_path, plain, TOOLED)
    tools: dict[str, Any] = {
        "list": [TOOL],
        "text": json.dumps([TOOL]),
        "texts": [json.dumps(TOOL)],
        "parquet": [TOOL],
    }
    rows = [{"messages": talk(number), "tools": tools[kind]} for number in range(12)]
    file = tmp_path / f"a.{'parquet' if kind == 'parquet' else 'jsonl'}"
    if kind == "parquet":
        # A row with other tools: the column's type has the keys of all.
        rows[3]["tools"] = [{"name": "add", "args": {"b": "int"}}]
        parquet(file, {name: [row[name] for row in rows] for name in ("messages", "tools")})
    else:
        rows[3]["tools"] = None
        file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    whole, _ = founder.conversations(founder.read(file, sequence_length=LENGTH))
    spelled = json.dumps([TOOL])
    assert sum(text.startswith(spelled) for text in whole) == 11
    assert sum("null" in text for text in whole) == 0


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ('"messages": [], "tools": "x"', "holds no messages in the column 'messages'"),
        ('"messages": TALK, "tools": "x"', "holds no list of tools in the column 'tools'"),
        ('"messages": TALK, "tools": 3', "holds no list of tools in the column 'tools'"),
        ('"messages": TALK, "tools": [], "tools": []', "has the key 'tools' twice"),
        ('"messages": TALK, "messages": TALK', "has the key 'messages' twice"),
        ('"messages": [{"role": "user", "role": "x"}]', "has the key 'role' twice in one table"),
    ],
)
def test_tools_and_keys_that_cannot_be_meant(
    founder: Founder, tmp_path: Path, row: str, words: str
) -> None:
    file = tmp_path / "a.jsonl"
    file.write_text("{" + row.replace("TALK", json.dumps(TALK)) + "}\n")
    assert words in founder.refused(file).problem


def test_an_answer_that_only_calls_a_tool_is_one(tmp_path: Path, plain: FileTokenizer) -> None:
    calls_too = "message.content + (message.tool_calls | tojson if message.tool_calls else '')"
    founder = Founder(tmp_path, plain, CHATML.replace("message['content']", calls_too))
    calls = [{"name": "add", "arguments": {"a": 1}}]
    talks = [
        [{"role": "user", "content": f"{n}?"}, {"role": "assistant", "tool_calls": calls}]
        for n in range(6)
    ]
    _, learned = founder.conversations(founder.read(jsonl(tmp_path / "a.jsonl", talks)))
    assert learned == [f"{json.dumps(calls)}<|im_end|>"] * 6


# --- templates ------------------------------------------------------------------------------------


def test_a_template_that_fails_on_every_row_is_reported_as_such(
    tmp_path: Path, plain: FileTokenizer
) -> None:
    founder = Founder(tmp_path, plain, "{{ today() }}" + CHATML)
    file = jsonl(tmp_path / "a.jsonl", [TALK] * 3)
    error = founder.refused(file, max_bad=100)
    assert error.code == ExitCode.MANIFEST
    assert "fails on every conversation" in error.problem
    assert "the fault is in the template, not in the row" in error.remedy


def test_rows_that_the_template_refuses_point_to_it(tmp_path: Path, plain: FileTokenizer) -> None:
    strict = "{% if messages | length > 2 %}{{ raise_exception('too many') }}{% endif %}" + CHATML
    founder = Founder(tmp_path, plain, strict)
    file = jsonl(tmp_path / "a.jsonl", [talk(n, turns=2) for n in range(3)])
    error = founder.refused(file)
    assert "is refused by the chat template: too many" in error.problem
    assert "chat_template" in error.remedy
    error = founder.refused(file, max_bad=100)
    assert "all 3 rows are bad, the first is a.jsonl, line 1, which is refused" in error.problem


def test_a_very_long_conversation_costs_no_memory_and_is_named(
    founder: Founder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(conversations, "MAX_CONVERSATION_BYTES", 2000)
    monkeypatch.setattr(tokenisation, "MAX_CONVERSATION_BYTES", 2000)
    long = [*talk(7), *(message for n in range(500) for message in talk(n))]
    unending = [TALK[0], {"role": "assistant", "content": "x" * 5000}]
    file = jsonl(tmp_path / "a.jsonl", [long, unending, talk(1), talk(2)])
    corpus = founder.read(file)
    whole, _ = founder.conversations(corpus)
    assert len(whole) == 3
    assert sum("7.0" in text for text in whole) == 1
    read_counts = corpus.summary.sources[0].read
    assert (read_counts.cut, read_counts.too_long) == (1, 1)
