"""Preference pairs from rows to samples: what is read as a prompt, what is learned, what is refused."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from create.test_conversations import CHATML, END, LENGTH, Founder, jsonl, plain
from distro_node.node.create import tokeniser_pool
from distro_node.node.create.borders import Borders
from distro_node.node.create.corpus import TokenisedCorpus, find_sources, read_corpus
from distro_node.node.create.data_kinds import Pairs
from distro_node.node.create.manifest_file import DataTable, ManifestFile
from distro_node.node.create.preferences import PairTokenizer
from distro_node.node.create.tokens import FileTokenizer
from distro_node.node.errors import ExitCode
from distro_node.node.trainer.tasks.stored_pairs import read_pairs
from distro_node.protocol.wire.manifest import ScheduleSpec

__all__ = ["plain"]

FILLER = END
Messages = list[dict[str, str]]


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def assistant(text: str) -> dict[str, str]:
    return {"role": "assistant", "content": text}


class PairFounder(Founder):
    def __init__(self, root: Path, plain: FileTokenizer) -> None:
        super().__init__(root, plain, CHATML)
        self.length = 2 * LENGTH
        self.tokenizer = PairTokenizer(plain, END, FILLER, self.length)

    def read(self, *paths: Path, **options: Any) -> TokenisedCorpus:
        table: dict[str, Any] = {
            "sequence_length": self.length,
            "paths": tuple(map(str, paths)),
        }
        file = ManifestFile(
            name="x",
            model={},
            task="dpo",
            data=DataTable(**(table | options)),
            schedule=ScheduleSpec(total_rounds=10, warmup_rounds=0),
        )
        kind = Pairs(self.chat)
        found = find_sources(file, self.root / "run.toml", (), kind)
        return read_corpus(
            *(file, found, self.tokenizer, Borders(), self.data, lambda *_: None, FILLER),
            kind=kind,
        )

    def pairs(self, corpus: TokenisedCorpus) -> list[tuple[str, str, str, str]]:
        """Return of each stored pair both texts, and what is learned of each; sorted."""
        spec, stored = self.stored(corpus, sequence_length=self.length)
        assert corpus.samples == spec.samples
        samples = [
            *stored.training(range(spec.samples)),
            *stored.heldout(range(stored.heldout_samples)),
        ]
        ids, learned, margins = read_pairs(spec, samples)
        assert not margins.any()
        texts = [self.text(row[: self.end(row)]) for row in ids]
        marked = [self.text(row[marks]) for row, marks in zip(ids, learned, strict=True)]
        return sorted(zip(texts[::2], texts[1::2], marked[::2], marked[1::2], strict=True))

    @staticmethod
    def end(row: np.ndarray) -> int:
        """Return where the padding begins."""
        other = np.flatnonzero(row != FILLER)
        return int(other[-1]) + 1


@pytest.fixture
def founder(tmp_path: Path, plain: FileTokenizer) -> PairFounder:
    return PairFounder(tmp_path, plain)


def rows(path: Path, made: Sequence[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in made))
    return path


def row(number: int, kind: str = "text") -> dict[str, Any]:
    """Return a pair, the same in every kind of row."""
    asked, yes, no = f"{number}?", f"Yes, {number}.", f"No, not {number}."
    both: dict[str, Any] = {
        "chosen": [user(asked), assistant(yes)],
        "rejected": [user(asked), assistant(no)],
    }
    match kind:
        case "text":
            return {"prompt": asked, "chosen": yes, "rejected": no}
        case "messages":
            answers = {"chosen": [assistant(yes)], "rejected": [assistant(no)]}
            return {"prompt": [user(asked)], **answers}
        case "implicit":
            return both
        case "beside":
            # As in UltraFeedback: the prompt as text, and again in both conversations.
            return {"prompt": asked, "score_chosen": 8.5, **both}
        case "sharegpt":
            answers = {"chosen": {"from": "gpt", "value": yes}}
            answers["rejected"] = {"from": "gpt", "value": no}
            said = {name: [each] for name, each in answers.items()}
            return {"prompt": [{"from": "human", "value": asked}], **said}
        case _:
            return {name: json.dumps(cell) for name, cell in both.items()}


def expected(founder: PairFounder, numbers: Sequence[int]) -> list[tuple[str, str, str, str]]:
    made = []
    for number in numbers:
        answers = f"Yes, {number}.", f"No, not {number}."
        texts = [founder.chat.text([user(f"{number}?"), assistant(each)]) for each in answers]
        # The template's line end after the last message is what padding follows.
        made.append((*texts, *(f"{each}<|im_end|>" for each in answers)))
    return sorted(made)


@pytest.mark.parametrize(
    "kind", ["text", "messages", "implicit", "beside", "sharegpt", "json in text"]
)
def test_every_way_to_write_a_pair(founder: PairFounder, tmp_path: Path, kind: str) -> None:
    corpus = founder.read(rows(tmp_path / "a.jsonl", [row(n, kind) for n in range(12)]))
    assert founder.pairs(corpus) == expected(founder, range(12))
    assert "12 pairs" in "\n".join(corpus.summary.lines())
    assert corpus.summary.sources[0].read.learned > 0


@pytest.mark.parametrize("kind", ["text", "implicit"])
def test_parquet_holds_the_same(founder: PairFounder, tmp_path: Path, kind: str) -> None:
    made = [row(n, kind) | {"id": n} for n in range(12)]
    columns = {name: [each[name] for each in made] for name in made[0]}
    pyarrow.parquet.write_table(pyarrow.table(columns), tmp_path / "a.parquet")
    corpus = founder.read(tmp_path / "a.parquet")
    assert founder.pairs(corpus) == expected(founder, range(12))


def test_columns_may_have_other_names(founder: PairFounder, tmp_path: Path) -> None:
    names = {"prompt": "q", "chosen": "good", "rejected": "bad"}
    made = [{names[key]: cell for key, cell in row(n).items()} for n in range(6)]
    corpus = founder.read(rows(tmp_path / "a.jsonl", made), **names)
    assert founder.pairs(corpus) == expected(founder, range(6))
    error = founder.refused(tmp_path / "a.jsonl", **{**names, "chosen": "q"})
    assert (error.code, "must be three columns" in error.problem) == (ExitCode.MANIFEST, True)
    error = founder.refused(tmp_path / "a.jsonl", messages="q")
    assert "`prompt`, `chosen` and `rejected`" in error.problem


def test_only_what_follows_the_prompt_is_learned(founder: PairFounder, tmp_path: Path) -> None:
    begins = [user("a"), assistant("b"), user("c")]
    ends = [user("e"), assistant("f")]
    made = [
        {
            "chosen": [*begins, assistant(f"d{n}"), *ends],
            "rejected": [*begins, assistant(f"g{n}")],
        }
        for n in range(4)
    ]
    found = founder.pairs(founder.read(rows(tmp_path / "a.jsonl", made)))
    assert [pair[2:] for pair in found] == [
        (f"d{n}<|im_end|>f<|im_end|>", f"g{n}<|im_end|>") for n in range(4)
    ]


def test_what_does_not_fit_is_left_out_and_named(founder: PairFounder, tmp_path: Path) -> None:
    long = {"prompt": "?", "chosen": "x", "rejected": "y" * LENGTH}
    made = [*(row(n) for n in range(6)), long, long | {"chosen": "z" * 500}]
    corpus = founder.read(rows(tmp_path / "a.jsonl", made))
    assert founder.pairs(corpus) == expected(founder, range(6))
    read = corpus.summary.sources[0].read
    assert (read.documents, read.too_long, read.cut) == (6, 2, 0)
    said = "\n".join(corpus.summary.lines())
    assert "longer than half a sequence: 2 pairs left out" in said
    assert "a.jsonl, line 7: has" in said
    error = founder.refused(rows(tmp_path / "b.jsonl", [long] * 3))
    assert error.code == ExitCode.DATA_MISSING
    assert "in 3 of them an answer with its prompt is longer than half a sequence" in error.problem


def test_the_longest_that_fits_is_kept_whole(founder: PairFounder, tmp_path: Path) -> None:
    empty = len(founder.chat.text([user("?"), assistant("")]).replace("<|im_start|>", "x"))
    empty -= 2 * (len("<|im_end|>") - 1)
    room = founder.tokenizer.layout.half - empty
    made = [{"prompt": "?", "chosen": "x" * (room - n), "rejected": "y" * room} for n in range(3)]
    made.append({"prompt": "?", "chosen": "x", "rejected": "y" * (room + 1)})
    corpus = founder.read(rows(tmp_path / "a.jsonl", made))
    assert corpus.summary.sources[0].read.too_long == 1
    assert [pair[3] for pair in founder.pairs(corpus)] == ["y" * room + "<|im_end|>"] * 3


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        ({"chosen": "x", "rejected": "y"}, "holds text, and no prompt in the column 'prompt'"),
        ({"prompt": "?", "chosen": "x"}, "has no column 'rejected' (it has: prompt, chosen)"),
        ({"prompt": "?", "chosen": "x", "rejected": "x"}, "the same answer twice"),
        (
            {"prompt": "?", "chosen": "x", "rejected": [assistant("y")]},
            "text in one of its answers",
        ),
        ({"prompt": "?", "chosen": 7, "rejected": 8}, "holds no messages in the column 'chosen'"),
        ({"prompt": 7, "chosen": "x", "rejected": "y"}, "no messages in the column 'prompt'"),
        (
            {"chosen": [user("a"), assistant("b")], "rejected": [user("a")]},
            "one of its conversations is the beginning of the other",
        ),
        (
            {"chosen": [user("a"), assistant("b")], "rejected": [user("c"), assistant("b")]},
            "do not begin with the same prompt",
        ),
        (
            {"chosen": [user("a"), user("b")], "rejected": [user("a"), assistant("c")]},
            "has no text by the assistant (in the column 'chosen')",
        ),
        ({"prompt": "?", "chosen": "x" * (1 << 20), "rejected": "y"}, "more than 524 thousand"),
    ],
)
def test_a_bad_row_is_named_or_left_out(
    founder: PairFounder, tmp_path: Path, bad: dict[str, Any], words: str
) -> None:
    file = rows(tmp_path / "a.jsonl", [*(row(n) for n in range(6)), bad])
    error = founder.refused(file)
    assert error.code == ExitCode.DATA_MISSING
    assert words in error.problem
    assert "a.jsonl, line 7" in error.problem
    assert founder.pairs(founder.read(file, max_bad=1)) == expected(founder, range(6))


def test_columns_of_other_types_are_refused(founder: PairFounder, tmp_path: Path) -> None:
    table = {"prompt": ["a", "b"], "chosen": [1, 2], "rejected": ["c", "d"]}
    pyarrow.parquet.write_table(pyarrow.table(table), tmp_path / "a.parquet")
    error = founder.refused(tmp_path / "a.parquet")
    assert "holds int64 in the column 'chosen', not text or messages" in error.problem
    assert "`rejected`" in error.remedy


def test_pairs_belong_to_their_task(plain: FileTokenizer, tmp_path: Path) -> None:
    founder = Founder(tmp_path, plain)
    file = jsonl(tmp_path / "a.jsonl", [[user("a"), assistant("b")]] * 3)
    error = founder.refused(file, chosen="messages")
    assert (error.code, "task 'dpo'" in error.problem) == (ExitCode.MANIFEST, True)


def test_workers_make_the_same_and_parts_are_used_again(
    founder: PairFounder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = rows(tmp_path / "a.jsonl", [row(n) for n in range(40)])
    alone = founder.pairs(founder.read(file))
    assert founder.pairs(founder.read(file)) == alone
    # Another length is read anew.
    founder.length += 8
    founder.tokenizer = PairTokenizer(founder.plain, END, FILLER, founder.length)
    assert founder.pairs(founder.read(file)) == alone
    monkeypatch.setattr(tokeniser_pool, "_MIN_TEXT_BYTES", 0)
    monkeypatch.setattr(tokeniser_pool, "usable_cores", lambda: 1)
    other = PairFounder(tmp_path / "other", founder.plain)
    assert other.pairs(other.read(file)) == alone


def test_weights_and_repetitions_keep_pairs_whole(founder: PairFounder, tmp_path: Path) -> None:
    file = rows(tmp_path / "a.jsonl", [row(n % 20) for n in range(40)])
    assert founder.pairs(founder.read(file, deduplicate=True)) == expected(founder, range(20))


def test_pairs_of_one_prompt_are_all_trained_on_or_all_held_out(
    founder: PairFounder, tmp_path: Path
) -> None:
    """Otherwise the held-out pairs would be of prompts that are trained on."""
    made = [row(n // 6) | {"rejected": f"No, {n}."} for n in range(120)]
    corpus = founder.read(rows(tmp_path / "a.jsonl", made), heldout_fraction=0.2)
    spec, stored = founder.stored(corpus, sequence_length=founder.length)
    asked = []
    for samples in (
        stored.training(range(spec.samples)),
        stored.heldout(range(stored.heldout_samples)),
    ):
        ids, _, _ = read_pairs(spec, samples)
        asked.append([founder.text(ids_of).partition("?")[0] for ids_of in ids[::2]])
    assert len(asked[0]) + len(asked[1]) == 120
    assert len(asked[1]) == pytest.approx(24, abs=12)
    assert not {*asked[0]} & {*asked[1]}
    # Pairs of one prompt are not equal.
    assert len(founder.pairs(founder.read(tmp_path / "a.jsonl", deduplicate=True))) == 120
