"""From sources to shards: which files, which part is held out, each source's share, and what an
interruption preserves."""

from __future__ import annotations

import gzip
import json
import os
import random
import subprocess
import sys
import tarfile
import tracemalloc
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import psutil
import pyarrow
import pyarrow.parquet
import pytest
from distro_node.node.create import mixing, tokenisation, tokeniser_pool, tokenising_worker
from distro_node.node.create.borders import Borders
from distro_node.node.create.columns import Columns
from distro_node.node.create.corpus import TokenisedCorpus, end_tokens, find_sources, read_corpus
from distro_node.node.create.files import Source, find_files
from distro_node.node.create.manifest_file import DataTable, ManifestFile, WeightedTable
from distro_node.node.create.shards import ShardWriter
from distro_node.node.create.token_cache import Position, ReadCounts, TokenCache
from distro_node.node.create.tokeniser_pool import open_pool
from distro_node.node.create.tokens import ENCODED_BYTES, ByteTokenizer, FileTokenizer, Tokenizer
from distro_node.node.errors import ExitCode, UserError
from distro_node.node.storage.blob_store import BlobStore
from distro_node.node.storage.data_dir import DataDir
from distro_node.protocol.wire.blobs import CHUNK_BYTES, decode_blob_list
from distro_node.protocol.wire.manifest import ScheduleSpec, ShardSpec

END = 256
TEXT = "a line of text number {}\nand another one\n"


def write(root: Path, **files: str | bytes) -> Path:
    for name, content in files.items():
        path = root / name.replace("__", "/").replace("_", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return root


def rows(file: Path, texts: Sequence[str]) -> Path:
    file.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return file


@pytest.fixture(scope="session")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> FileTokenizer:
    """Return a tokenizer of bytes with one more token that ends a document."""
    import tokenizers

    library = tokenizers.Tokenizer.from_str(ByteTokenizer().definition.decode())
    library.add_special_tokens(["<|endoftext|>"])
    file = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    library.save(str(file))
    return FileTokenizer(file)


class Founder:
    """Makes corpora from the files in a folder."""

    def __init__(self, root: Path, tokenizer: Tokenizer) -> None:
        self.root = root
        self.tokenizer = tokenizer
        self.data = DataDir(root / "data")
        self.data.create()
        self.heard: list[tuple[str, int, int]] = []

    def read(self, *sources: WeightedTable, rounds: int = 1000, **options: Any) -> TokenisedCorpus:
        table: dict[str, Any] = {"sequence_length": 16, "source": sources}
        file = ManifestFile(
            name="x",
            model={},
            data=DataTable(**(table | options)),
            schedule=ScheduleSpec(total_rounds=rounds, warmup_rounds=0),
        )
        found = find_sources(file, self.root / "run.toml", ())
        end = end_tokens(file.data, self.tokenizer, self.root / "run.toml")
        return read_corpus(file, found, self.tokenizer, Borders(end), self.data, self._hear)

    def stored(self, corpus: TokenisedCorpus) -> tuple[np.ndarray, np.ndarray]:
        """Return the training tokens and the held-out ones."""
        store = BlobStore(self.data.blobs)
        shards, heldout = corpus.store(store, self._hear)
        width = self.tokenizer.token_bytes
        return tokens_of(store, shards, width), tokens_of(store, [heldout], width)

    def _hear(self, what: str, done: int, total: int) -> None:
        self.heard.append((what, done, total))


@pytest.fixture
def founder(tmp_path: Path, tokenizer: FileTokenizer) -> Founder:
    return Founder(tmp_path, tokenizer)


def tokens_of(store: BlobStore, shards: Sequence[ShardSpec], width: int) -> np.ndarray:
    data = b""
    for shard in shards:
        listed = store.get(shard.blob)
        assert listed is not None
        blobs = decode_blob_list(listed, "shard", shard.tokens * width)
        for chunk in blobs.chunks:
            data += store.get(chunk) or b"missing"
    return np.frombuffer(data, f"<u{width}")


def documents_in(tokens: np.ndarray) -> list[str]:
    parts = np.split(tokens, np.flatnonzero(tokens == END) + 1)
    return [bytes(part[part != END].astype(np.uint8)).decode() for part in parts if len(part)]


def source(*paths: str, **options: Any) -> WeightedTable:
    return WeightedTable(paths=paths, **options)


# --- finding files -------------------------------------------------------------------------------


def find(*paths: Path, **options: Any) -> tuple[list[str], dict[str, int]]:
    files, skipped = find_files(Source(name="s", paths=paths, **options))
    return [str(file.name) for file in files], {
        reason: count for reason, (count, _) in skipped.reasons.items()
    }


def test_what_a_folder_holds_is_found_and_the_rest_is_named(tmp_path: Path) -> None:
    root = write(
        tmp_path / "a",
        b_TXT="1",
        a_md="2",
        sub__c_jsonl="{}",
        sub__d_py_gz="4",
        empty_txt="",
        _hidden_txt="5",
        _git__x_txt="6",
        e_jpg="7",
        f_bin="8",
    )
    single = write(tmp_path, one_odd="7") / "one.odd"
    names, skipped = find(root, single, single)
    assert names == ["a.md", "b.TXT", "sub/c.jsonl", "sub/d.py.gz", "one.odd"]
    assert skipped == {
        "hidden": 2,
        "with an unknown ending": 1,
        "empty": 1,
        'possibly arrays of tokens, which are read only with format = "tokens"': 1,
        "named a second time": 1,
    }
    assert find(root, include=("sub/*",))[0] == ["sub/c.jsonl", "sub/d.py.gz"]
    assert find(root, include=("*.TXT", "*.PY"))[0] == ["b.TXT", "sub/d.py.gz"]
    for pattern in ("sub/*", "SUB", "sub/", "./sub/**"):
        assert find(root, exclude=(pattern,))[0] == ["a.md", "b.TXT"]
    assert find(root, format="text")[0] == ["a.md", "b.TXT", "e.jpg", "sub/d.py.gz"]


@pytest.mark.parametrize(
    ("paths", "words"),
    [
        ([], "no path was given"),
        (["none"], "there is no file or directory"),
        (["."], "1 with an unknown ending (a.jpg); 1 empty (empty.txt)"),
        (["void"], "there is nothing"),
    ],
)
def test_missing_text_is_reported_with_what_there_is(
    tmp_path: Path, paths: list[str], words: str
) -> None:
    write(tmp_path, a_jpg="1", empty_txt="")
    (tmp_path / "void").mkdir()
    with pytest.raises(UserError) as caught:
        find(*(tmp_path / path for path in paths))
    assert caught.value.code == ExitCode.DATA_MISSING
    assert words in caught.value.problem


ARCHIVES = "packed as archives, which must be unpacked first"
LAID_OUT = "documents with a layout, which must be converted to text first"
COMPRESSED = "compressed in another way than .gz, .zst, .xz or .bz2"


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        *((f"a.{ending}", ARCHIVES) for ending in ("tar.gz", "TGZ", "tar", "zip", "7z", "tar.xz")),
        *((f"a.{ending}", LAID_OUT) for ending in ("pdf", "docx", "epub.gz")),
        *((f"a.txt.{ending}", COMPRESSED) for ending in ("lz4", "Z", "br")),
    ],
)
def test_files_in_a_form_that_is_not_read_are_named_with_the_remedy(
    tmp_path: Path, name: str, reason: str
) -> None:
    folder, file = tmp_path / "folder", tmp_path / "folder" / name
    folder.mkdir()
    file.write_bytes(b"1")
    with pytest.raises(UserError, match="there is no training text") as caught:
        find(folder)
    assert f"1 {reason} ({name})" in caught.value.problem
    with pytest.raises(UserError, match="is not read") as caught:
        find(file)
    assert str(file) in caught.value.problem
    assert caught.value.remedy.split()[0] in ("unpack", "convert")
    # Founders who state a format know better.
    assert find(file, format="text") == ([name], {})


def test_a_text_that_is_too_short_is_reported_with_what_is_left_out(founder: Founder) -> None:
    with tarfile.open(founder.root / "b.txt.gz", "w:gz") as archive:
        archive.add(write(founder.root, a_txt="short\n") / "a.txt")
    write(founder.root, d_tar_gz="1")
    with pytest.raises(UserError, match="shorter than one sequence") as caught:
        founder.read(paths=(".",), include=None)
    assert f"1 {ARCHIVES} (d.tar.gz)" in caught.value.problem
    assert "1 not text, despite the file name's ending (b.txt.gz)" in caught.value.problem


# --- documents, their ends, and their order ------------------------------------------------------


def test_documents_stay_whole_with_an_end_token_each(founder: Founder) -> None:
    texts = [TEXT.format(number) for number in range(2000)]
    write(founder.root, a_txt="a file\n", b_txt="another file\n")
    rows(founder.root / "c.jsonl", texts)
    corpus = founder.read(paths=("a.txt", "b.txt", "c.jsonl"), include=None)
    training, heldout = (documents_in(side) for side in founder.stored(corpus))
    assert sorted(training + heldout) == sorted([*texts, "a file\n", "another file\n"])
    assert len(heldout) == pytest.approx(100, rel=0.5)
    assert corpus.summary.documents == 2002
    assert corpus.summary.tokens == len(founder.stored(corpus)[0])
    assert corpus.samples == (corpus.summary.tokens - 1) // 16


def test_the_same_text_makes_the_same_corpus_wherever_it_lies(
    tmp_path: Path, tokenizer: FileTokenizer
) -> None:
    made = []
    for name in ("here", "there"):
        founder = Founder(tmp_path / name, tokenizer)
        for number in range(50):
            write(founder.root / "texts", **{f"{number}_txt": TEXT.format(number) * 50})
        made.append(founder.stored(founder.read(paths=("texts",))))
    assert all(np.array_equal(*sides) for sides in zip(*made, strict=True))


def test_mixing_puts_something_of_everything_everywhere(
    founder: Founder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three long books: each part of the result contains some of each."""
    monkeypatch.setattr(mixing, "_BLOCK_BYTES", 1 << 12)
    monkeypatch.setattr(tokenisation, "_PIECE_BYTES", 1 << 11)
    for number in range(3):
        lines = "".join(f"{number} {line:06}\n" for line in range(20_000))
        write(founder.root, **{f"book{number}_txt": lines})
    corpus = founder.read(paths=("book0.txt", "book1.txt", "book2.txt"))
    training, heldout = founder.stored(corpus)
    text = bytes(training[training != END].astype(np.uint8)).decode()
    for start in range(0, len(text) - 40_000, 40_000):
        window = text[start : start + 40_000].splitlines()[1:-1]
        assert {line[0] for line in window} == {"0", "1", "2"}
    # No line is lost or cut.
    both = text + bytes(heldout[heldout != END].astype(np.uint8)).decode()
    assert len(both.splitlines()) == 60_000
    assert {len(line) for line in both.splitlines()} == {8}


def test_no_piece_is_without_an_end_where_attention_stops_there(
    founder: Founder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mixing, "_BLOCK_BYTES", 1 << 10)
    monkeypatch.setattr(tokenisation, "_PIECE_BYTES", 1 << 9)
    write(founder.root, a_txt="".join(f"{line:07}\n" for line in range(5000)))
    corpus = founder.read(paths=("a.txt",), attention="document")
    pieces = list(corpus.training.blocks(corpus.shares, corpus.layout.end, True, lambda _: None))
    assert len(pieces) > 20
    assert all(piece[-1] == END for piece in pieces)


def test_end_tokens(founder: Founder, tmp_path: Path, tokenizer: FileTokenizer) -> None:
    file = tmp_path / "run.toml"

    def ends(tokenizer: Tokenizer, **options: Any) -> tuple[int, ...]:
        return end_tokens(DataTable(sequence_length=16, **options), tokenizer, file)

    assert ends(tokenizer) == (END,)
    assert ends(tokenizer, document_end="") == ()
    assert ends(tokenizer, document_end="<|endoftext|>") == (END,)
    assert ends(ByteTokenizer()) == ()
    assert ends(ByteTokenizer(), document_end="<e>") == tuple(b"<e>")
    assert ends(ByteTokenizer(), document_end="\0", attention="document") == (0,)
    plain = tmp_path / "plain.json"
    plain.write_bytes(ByteTokenizer().definition)
    for wrong, options, words in (
        (FileTokenizer(plain), {}, "names no token that ends a document"),
        (tokenizer, {"document_end": "</s>"}, " tokens of "),
        (ByteTokenizer(), {"attention": "document"}, "needs a document_end that is one token"),
    ):
        with pytest.raises(UserError, match=words) as caught:
            ends(wrong, **options)
        assert caught.value.code == ExitCode.MANIFEST
    # The configuration beside the tokenizer also defines it.
    (tmp_path / "tokenizer_config.json").write_text('{"eos_token": {"content": "A"}}')
    assert ends(FileTokenizer(plain)) == (65,)


# --- holding out ---------------------------------------------------------------------------------


@pytest.mark.parametrize("attention", ["sequence", "document"])
def test_a_document_whose_end_is_held_out_ends_where_it_is_cut(
    founder: Founder, attention: Literal["sequence", "document"]
) -> None:
    """Otherwise the next one would follow without a border, and no document trained on would end."""
    texts = ["".join(f"{name} {number:04}\n" for number in range(100)) for name in "abcdef"]
    # All that is held out of the last one is its end token.
    texts.append("0123456789")
    rows(founder.root / "a.jsonl", texts)
    corpus = founder.read(paths=("a.jsonl",), heldout_fraction=0.1, attention=attention)
    sides = founder.stored(corpus)
    training, heldout = map(documents_in, sides)
    # It is the last document of the file, so nothing follows its end.
    assert heldout.pop() == ""
    held = {end[0]: end for end in heldout}
    assert len(heldout) == len(held) == 6
    assert sorted(start + held.get(start[0], "") for start in training) == sorted(texts)
    assert corpus.summary.tokens == len(sides[0])


@pytest.mark.parametrize("count", [1, 3])
def test_a_few_documents_each_give_their_end(founder: Founder, count: int) -> None:
    lines = "".join(f"line {number}\n" for number in range(5000))
    for number in range(count):
        write(founder.root, **{f"{number}_txt": lines})
    corpus = founder.read(
        paths=tuple(f"{n}.txt" for n in range(count)), heldout_fraction=0.1, document_end=""
    )
    training, heldout = (bytes(each.astype(np.uint8)).decode() for each in founder.stored(corpus))
    assert len(heldout) == pytest.approx(0.1 * count * len(lines), rel=0.01)
    assert heldout.count("line 4999\n") == count
    assert training.count("line 0\n") == count
    assert sorted((training + heldout).splitlines()) == sorted(lines.splitlines() * count)


def test_files_can_be_held_out_by_name(founder: Founder) -> None:
    write(founder.root / "t", train_txt="training " * 50, valid_txt="validation " * 50)
    training, heldout = founder.stored(founder.read(paths=("t",), heldout=("VALID*",)))
    assert documents_in(training) == ["training " * 50]
    assert documents_in(heldout) == ["validation " * 50]


@pytest.mark.parametrize(
    ("patterns", "problem"),
    [
        (("none*",), r"match no file that is read: none\*$"),
        (("valid*", "vaild*", "held/"), r"match no file that is read: vaild\* held/$"),
        (("*.txt",), r"\(\*\.txt\) match every file$"),
        (("train*", "valid*"), r"\(train\* valid\*\) match every file$"),
    ],
)
def test_patterns_that_cannot_hold_out_are_refused_before_anything_is_read(
    founder: Founder, patterns: tuple[str, ...], problem: str
) -> None:
    write(founder.root / "t", train_txt="training " * 50, valid_txt="validation " * 50)
    with pytest.raises(UserError, match=problem) as caught:
        founder.read(paths=("t",), heldout=patterns)
    assert caught.value.code == ExitCode.DATA_MISSING
    assert not founder.heard


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        ("drafts/**", ["a.txt", "more/ideas.txt"]),
        ("Drafts", ["a.txt", "more/ideas.txt"]),
        ("drafts/", ["a.txt", "more/ideas.txt"]),
        ("dr*/", ["a.txt", "more/ideas.txt"]),
        ("drafts/old/**/*.txt", ["a.txt", "drafts/1.txt", "more/ideas.txt"]),
        ("old/2.txt", ["a.txt", "drafts/1.txt", "more/ideas.txt"]),
        ("*s.txt", ["a.txt", "drafts/1.txt", "drafts/old/2.txt"]),
        # Left out already.
        (".hidden/**", ["a.txt", "drafts/1.txt", "drafts/old/2.txt", "more/ideas.txt"]),
    ],
)
def test_a_pattern_leaves_out_what_is_below_a_folder(
    tmp_path: Path, pattern: str, found: list[str]
) -> None:
    for name in ("a.txt", "drafts/1.txt", "drafts/old/2.txt", "more/ideas.txt", ".hidden/3.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("text")
    assert find(tmp_path, exclude=(pattern,))[0] == found


@pytest.mark.parametrize("pattern", ["draft/**", "a.txt/b", "*.md", "", "/"])
def test_a_pattern_that_leaves_nothing_out_is_refused(tmp_path: Path, pattern: str) -> None:
    write(tmp_path, a_txt="text", drafts__1_txt="text")
    with pytest.raises(UserError, match="`exclude` match no file in a folder") as caught:
        find(tmp_path, exclude=("drafts", pattern))
    assert caught.value.code == ExitCode.DATA_MISSING


def test_what_is_held_out_and_trained_on_is_reported(founder: Founder) -> None:
    texts = [TEXT.format(number) for number in range(100)]
    for name, some in (("a", texts[:80]), ("b", texts[60:])):
        rows(founder.root / f"{name}.jsonl", some)
    both = ("a.jsonl", "b.jsonl")
    named = founder.read(paths=both, heldout=("b.jsonl",)).summary
    assert named.leaked == pytest.approx(0.5, abs=0.01)
    assert named.warning is not None
    assert named.warning.startswith("50 % of what is held out is trained on as well")
    without: list[dict[str, Any]] = [
        {"heldout": ("b.jsonl",), "deduplicate": True},
        {"heldout_fraction": 0.2},
    ]
    for options in without:
        summary = founder.read(paths=both, **options).summary
        assert summary.leaked == 0
        assert summary.warning is None


def test_a_source_of_few_documents_may_hold_out_what_another_trains_on(founder: Founder) -> None:
    book = "".join(f"line {number}\n" for number in range(500))
    write(founder.root, book_txt=book, twin_txt=book)
    rows(founder.root / "rows.jsonl", [*(TEXT.format(number) for number in range(500)), book])
    few, twin, many = (
        WeightedTable(paths=(f"{name}",)) for name in ("book.txt", "twin.txt", "rows.jsonl")
    )
    # Copies are divided at the same place.
    assert founder.read(few, twin).summary.leaked == 0
    assert founder.read(few, many).summary.leaked > 0.1
    assert founder.read(few, many, deduplicate=True).summary.leaked == 0


def test_what_is_below_a_folder_can_be_held_out_or_included(founder: Founder) -> None:
    write(founder.root / "t", a_txt="training " * 50, Held__x__b_txt="validation " * 50)
    training, heldout = founder.stored(founder.read(paths=("t",), heldout=("held/",)))
    assert documents_in(training) == ["training " * 50]
    assert documents_in(heldout) == ["validation " * 50]
    assert find(founder.root / "t", include=("held",))[0] == ["Held/x/b.txt"]


def test_equal_documents_are_left_out_on_request_and_counted(
    founder: Founder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mixing, "_HASHES_AT_ONCE", 100)
    monkeypatch.setattr(tokenisation, "_PIECE_BYTES", 256)
    texts = [TEXT.format(number) * (1 + number % 30) for number in range(400)]
    rows(founder.root / "a.jsonl", texts)
    rows(founder.root / "b.jsonl", [*texts[100:200], "only here\n"])
    corpus = founder.read(source("a.jsonl"), source("b.jsonl"), deduplicate=True)
    made = [text for side in founder.stored(corpus) for text in documents_in(side)]
    assert sorted(made) == sorted([*texts, "only here\n"])
    assert [each.duplicates for each in corpus.summary.sources] == [0, 100]
    assert corpus.summary.documents == 401
    twice = founder.read(source("a.jsonl"), source("b.jsonl"))
    assert sum(len(documents_in(side)) for side in founder.stored(twice)) == 501


# --- weights -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("weights", "rounds", "times"),
    [
        # All of the large source is wanted: the small one repeats.
        ((0.5, 0.5), 10**9, (1.0, 8.0)),
        # The run needs less than that.
        ((0.5, 0.5), 400, (None, None)),
        # And never less than what uses up one source.
        ((3.0, 1.0), 1, (None, 1.0)),
        ((0.9, 0.1), 10**9, (1.125, 1.0)),
    ],
)
def test_each_source_has_its_share_to_within_a_percent(
    founder: Founder,
    weights: tuple[float, float],
    rounds: int,
    times: tuple[float | None, ...],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(mixing, "_BLOCK_BYTES", 1 << 11)
    rows(founder.root / "a.jsonl", [f"A {number:05}" * 10 for number in range(8000)])
    rows(founder.root / "b.jsonl", [f"b {number:05}" * 10 for number in range(1000)])
    corpus = founder.read(
        source("a.jsonl", weight=weights[0], name="large"),
        source("b.jsonl", weight=weights[1], name="small"),
        rounds=rounds,
    )
    training, heldout = founder.stored(corpus)
    for side in (training, heldout):
        capital = np.count_nonzero(side == ord("A")) / np.count_nonzero(
            (side == ord("A")) | (side == ord("b"))
        )
        assert capital == pytest.approx(weights[0] / sum(weights), rel=0.01)
    for each, expected in zip(corpus.summary.sources, times, strict=True):
        if expected is not None:
            assert each.times == pytest.approx(expected, rel=0.05)
    if rounds == 400:
        assert len(training) == pytest.approx(400 * 32 * 16, rel=0.01)
    # Everywhere, not only on average.
    parts = np.array_split(training, 4)
    shares = [np.mean(part == ord("A")) for part in parts]
    assert max(shares) == pytest.approx(min(shares), rel=0.35)
    said = list(corpus.summary.lines())
    assert any("times in an epoch" in line for line in said)


def test_weights_are_for_all_sources_or_none() -> None:
    with pytest.raises(ValueError, match="a weight, or none"):
        DataTable(sequence_length=16, source=(source("a", weight=1.0), source("b")))
    with pytest.raises(ValueError, match="must be set in each"):
        DataTable(sequence_length=16, source=(source("a"),), text="body")


# --- bad rows ------------------------------------------------------------------------------------


def test_bad_rows_are_counted_named_and_limited(founder: Founder) -> None:
    file = rows(founder.root / "a.jsonl", [TEXT.format(number) for number in range(300)])
    with file.open("a") as more:
        more.write('{"text": 1}\n{"txt": ""}\n{"text": ""}\n{"text": "end"}\n')
    with pytest.raises(UserError) as caught:
        founder.read(paths=("a.jsonl",))
    assert caught.value.code == ExitCode.DATA_MISSING
    assert "a.jsonl, line 301: the row" in caught.value.problem
    assert "max_bad" in caught.value.remedy
    report = json.loads((founder.data.logs / "create.json").read_text())
    assert report["bad_rows"][0]["line"] == 301
    with pytest.raises(UserError, match="2 rows are bad, and max_bad is 1"):
        founder.read(paths=("a.jsonl",), max_bad=1)
    corpus = founder.read(paths=("a.jsonl",), max_bad=2)
    (read,) = corpus.summary.sources
    assert (read.read.bad, read.read.empty, read.read.documents) == (2, 1, 301)
    assert [(file, line) for file, line, _ in read.read.bad_rows] == [
        ("a.jsonl", 301),
        ("a.jsonl", 302),
    ]
    assert any("a.jsonl, line 302" in line for line in corpus.summary.lines())


# --- interruption, memory, workers ---------------------------------------------------------------


def test_an_interrupted_run_goes_on_where_it_was(
    founder: Founder, monkeypatch: pytest.MonkeyPatch, tokenizer: FileTokenizer
) -> None:
    monkeypatch.setattr(tokenisation, "_PART_BYTES", 20_000)
    monkeypatch.setattr(tokenisation, "_BATCH_BYTES", 5_000)
    texts = [TEXT.format(number) for number in range(3000)]
    rows(founder.root / "a.jsonl", texts[:1700])
    rows(founder.root / "b.jsonl", texts[1700:])
    whole = founder.stored(founder.read(paths=("a.jsonl", "b.jsonl")))
    for parts in list(founder.data.token_caches.iterdir()):
        TokenCache(parts, tokenizer.token_bytes).remove()

    encoded: list[int] = []
    limits = [0]
    encode = FileTokenizer.encode

    def counting(self: FileTokenizer, batch: Sequence[bytes]) -> list[np.ndarray]:
        encoded.append(len(batch))
        if sum(encoded) > limits[0]:
            raise KeyboardInterrupt
        return encode(self, batch)

    monkeypatch.setattr(FileTokenizer, "encode", counting)
    for limit in (1200, 1500):
        limits[0] = limit
        encoded.clear()
        with pytest.raises(KeyboardInterrupt):
            founder.read(paths=("a.jsonl", "b.jsonl"))
    limits[0] = 4000
    encoded.clear()
    again = founder.read(paths=("a.jsonl", "b.jsonl"))
    assert sum(encoded) < 1500
    assert again.summary.documents == 3000
    assert all(np.array_equal(*sides) for sides in zip(whole, founder.stored(again), strict=True))
    assert founder.heard[-1][1] == founder.heard[-1][2]


def test_a_part_that_was_not_finished_is_made_again(tmp_path: Path) -> None:
    parts = TokenCache(tmp_path / "p", 2)
    sections = np.zeros(1, mixing.INDEX_ENTRY)
    sections["tokens"] = 3
    for number in range(3):
        parts.add(sections, [np.arange(3)], ReadCounts(documents=1), Position(items=number + 1))
    assert TokenCache(tmp_path / "p", 2).position == Position(items=3)
    (tmp_path / "p" / "000002.tokens").write_bytes(b"x")
    assert TokenCache(tmp_path / "p", 2).position == Position(items=2)
    (tmp_path / "p" / "000001.json").write_bytes(b"[]")
    again = TokenCache(tmp_path / "p", 2)
    assert (again.position, again.read_counts.documents) == (Position(items=1), 1)


def test_files_that_have_changed_are_read_again(founder: Founder) -> None:
    file = rows(founder.root / "a.jsonl", [TEXT.format(number) for number in range(300)])
    founder.read(paths=("a.jsonl",))
    before = {path.name for path in founder.data.token_caches.iterdir()}
    status = file.stat()
    rows(file, [TEXT.format(number + 100) for number in range(300)])
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns + 1))
    corpus = founder.read(paths=("a.jsonl",))
    assert TEXT.format(399) in [d for side in founder.stored(corpus) for d in documents_in(side)]
    assert before.isdisjoint(path.name for path in founder.data.token_caches.iterdir())


def test_workers_give_what_one_process_gives(
    founder: Founder, tokenizer: FileTokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    batches = [[f"batch {n} text {i} ä".encode() for i in range(n % 7)] for n in range(40)]
    monkeypatch.setattr(tokeniser_pool, "usable_cores", lambda: 2)
    with open_pool(tokenizer, None) as pool:
        got = []
        for number, batch in enumerate(batches):
            pool.submit(number, batch)
            got += pool.take_completed()
        got += pool.take_completed(all=True)
    assert [tag for tag, _ in got] == list(range(40))
    for batch, (_, encoded) in zip(batches, got, strict=True):
        assert [each.tolist() for each in encoded] == [
            each.tolist() for each in (tokenizer.encode(batch) if batch else [])
        ]


def test_a_worker_has_few_texts_unpacked_at_once(tokenizer: FileTokenizer) -> None:
    class Watched(ByteTokenizer):
        most = 0

        def encode(self, texts: Sequence[bytes]) -> list[np.ndarray]:
            self.most = max(self.most, sum(map(len, texts)))
            return tokenizer.encode(texts)

    texts = [b"", b"short", b"a text of some length\n" * 500, "ä".encode() * 900] * 60
    joined = b"".join(texts)
    watched = Watched()
    counts, tokens = tokenising_worker.encode(watched, [len(text) for text in texts], joined, "<u2")
    assert watched.most <= ENCODED_BYTES < len(joined) / 3
    assert (counts.dtype, tokens.dtype) == (np.int64, np.dtype("<u2"))
    expected = tokenizer.encode(texts)
    assert counts.tolist() == [len(each) for each in expected]
    assert np.array_equal(tokens, np.concatenate(expected))


def test_a_worker_loads_only_the_tokenizer() -> None:
    loaded = subprocess.run(
        [
            *(sys.executable, "-c"),
            f"import sys, {tokenising_worker.__name__}; print(*sys.modules)",
        ],
        capture_output=True,
        check=True,
        text=True,
    ).stdout.split()
    ours = {name for name in loaded if name.startswith("distro_node.")}
    assert "distro_node.node.create.tokens" in ours
    folders = {name.split(".", 2)[1] for name in ours} - {"node"}
    assert not folders
    assert not {name for name in ours if name.startswith("distro_node.node.storage")}
    assert {"cryptography", "psutil", "pyarrow", "torch"}.isdisjoint(loaded)


def test_a_long_piece_is_tokenised_as_several_texts(
    founder: Founder, monkeypatch: pytest.MonkeyPatch
) -> None:
    submit, lengths = tokeniser_pool.TokeniserPool.submit, list[int]()

    def watched(self: tokeniser_pool.TokeniserPool, tag: Any, texts: Sequence[bytes]) -> None:
        lengths.extend(map(len, texts))
        submit(self, tag, texts)

    monkeypatch.setattr(tokeniser_pool.TokeniserPool, "submit", watched)
    monkeypatch.setattr(tokenisation, "_PIECE_BYTES", 1 << 13)
    write(founder.root, a_txt="".join(f"{line:07}\n" for line in range(10_000)))
    whole = founder.stored(founder.read(paths=("a.txt",)))
    assert max(lengths) >= 1 << 13
    lengths.clear()
    monkeypatch.setattr(tokenisation, "_TEXT_BYTES", 1 << 10)
    founder.data = DataDir(founder.root / "again")
    founder.data.create()
    divided = founder.stored(founder.read(paths=("a.txt",)))
    assert max(lengths) <= 2 << 10
    assert all(np.array_equal(*sides) for sides in zip(whole, divided, strict=True))


def test_texts_are_not_kept_while_their_tokens_are_made(
    founder: Founder, monkeypatch: pytest.MonkeyPatch
) -> None:
    submit, kept = tokeniser_pool.TokeniserPool.submit, []

    def watched(self: tokeniser_pool.TokeniserPool, tag: Any, texts: Sequence[bytes]) -> None:
        kept.append((len(texts), len(tag.texts)))
        submit(self, tag, texts)

    monkeypatch.setattr(tokeniser_pool.TokeniserPool, "submit", watched)
    rows(founder.root / "a.jsonl", [TEXT.format(number) for number in range(300)])
    founder.read(paths=("a.jsonl",))
    assert kept == [(300, 0)]


def test_a_worker_that_is_killed_is_reported(
    tokenizer: FileTokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = {process.pid for process in psutil.Process().children()}
    monkeypatch.setattr(tokeniser_pool, "usable_cores", lambda: 1)
    with open_pool(tokenizer, None) as pool:
        (process,) = (each for each in psutil.Process().children() if each.pid not in before)
        process.kill()
        process.wait()

        def give_twice() -> None:
            pool.submit(0, [b"text"])
            pool.submit(1, [b"text"])

        with pytest.raises(UserError, match="was killed"):
            give_twice()
    assert {process.pid for process in psutil.Process().children()} <= before


def test_memory_does_not_grow_with_the_text(
    founder: Founder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tokenisation, "_PART_BYTES", 1 << 18)
    monkeypatch.setattr(tokenisation, "_BATCH_BYTES", 1 << 16)
    peaks = []
    line = "x" * 990
    for megabytes in (2, 8):
        rows(founder.root / "a.jsonl", [f"{number} {line}" for number in range(1000 * megabytes)])
        founder.tokenizer = ByteTokenizer()
        tracemalloc.start()
        corpus = founder.read(paths=("a.jsonl",))
        for side, shares in (
            (corpus.training, corpus.shares),
            (corpus.heldout, corpus.heldout_shares),
        ):
            assert sum(len(p) for p in side.blocks(shares, (), False, lambda _: None)) > 0
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 1.5 * peaks[0] + (1 << 20)


# --- shards --------------------------------------------------------------------------------------


@pytest.mark.parametrize("width", [1, 2, 4])
def test_shards_hold_every_token_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, width: Literal[1, 2, 4]
) -> None:
    from distro_node.node.create import shards as module

    monkeypatch.setattr(module, "SHARD_BYTES", 2 * CHUNK_BYTES)
    content = np.frombuffer(random.Random(2).randbytes(5 * CHUNK_BYTES // width + 77), np.uint8)
    store = BlobStore(tmp_path / "blobs")
    writer = ShardWriter(store, width)
    for start in range(0, len(content), 1_000_003):
        writer.add(content[start : start + 1_000_003])
    shards = writer.finish()
    assert len(shards) == 3
    assert np.array_equal(tokens_of(store, shards, width), content)


# --- tokenizers ----------------------------------------------------------------------------------


def test_byte_tokens_are_the_bytes(tmp_path: Path) -> None:
    tokenizer = ByteTokenizer()
    everything = bytes(range(256))
    assert tokenizer.encode([everything])[0].tobytes() == everything
    # The definition that is distributed with the swarm has the same meaning to the library.
    file = tmp_path / "tokenizer.json"
    file.write_bytes(tokenizer.definition)
    described = FileTokenizer(file)
    assert (described.vocabulary, described.token_bytes) == (256, 1)
    text = "Zeile\n\tπ ≈ 3, 😀\u00ad\x7f\x00 end"
    assert described.encode([text.encode()])[0].tolist() == list(text.encode())
    assert np.array_equal(described.line_ends(), tokenizer.line_ends())
    import tokenizers

    library = tokenizers.Tokenizer.from_str(tokenizer.definition.decode())
    assert library.decode(list(text.encode())) == text


def test_a_tokenizers_own_cutting_and_padding_is_switched_off(tmp_path: Path) -> None:
    import tokenizers

    library = tokenizers.Tokenizer.from_str(ByteTokenizer().definition.decode())
    library.enable_truncation(4)
    library.enable_padding(length=9)
    file = tmp_path / "tokenizer.json"
    library.save(str(file))
    text = b"a longer text"
    assert FileTokenizer(file).encode([text])[0].tolist() == list(text)


@pytest.mark.parametrize(("tokens", "width"), [(256, 1), (257, 2), (65_536, 2), (65_537, 4)])
def test_tokens_are_as_wide_as_they_must_be(tmp_path: Path, tokens: int, width: int) -> None:
    import tokenizers

    vocabulary = {f"w{number}": number for number in range(tokens)}
    library = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="w0"))
    library.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    file = tmp_path / "tokenizer.json"
    library.save(str(file))
    tokenizer = FileTokenizer(file)
    assert (tokenizer.vocabulary, tokenizer.token_bytes) == (tokens, width)
    assert tokenizer.encode([f"w1 w{tokens - 1}".encode()])[0].tolist() == [1, tokens - 1]


def test_a_tokenizer_that_cannot_be_used_is_reported(tmp_path: Path) -> None:
    file = tmp_path / "tokenizer.json"
    for content in (None, b"", b"{}", b"\xff", b'{"model": {"type": "BPE", "vocab": {}}}'):
        if content is not None:
            file.write_bytes(content)
        with pytest.raises(UserError) as caught:
            FileTokenizer(file)
        assert caught.value.code == ExitCode.MANIFEST
        assert str(file) in caught.value.problem


def test_columns_are_text_by_default() -> None:
    assert Columns(None, None).names == ("text",)


# --- room on the disk ------------------------------------------------------------------------------


def giant_parquet(file: Path) -> None:
    """Write a hundred thousand rows of a megabyte each, all the same: one entry of a dictionary."""
    text = "a line of a very long text\n" * 40_000
    rows_ = pyarrow.DictionaryArray.from_arrays(np.zeros(100_000, np.int32), [text])
    pyarrow.parquet.write_table(pyarrow.table({"text": rows_}), file, compression="zstd")
    assert file.stat().st_size < 100_000


def giant_gzip(file: Path) -> None:
    """Write a hundred megabytes of text, compressed to a tenth of a megabyte."""
    line = b'{"text": "' + b"a long text " * 10_000 + b'"}\n'
    with gzip.open(file, "wb", compresslevel=9) as packed:
        for _ in range(100):
            packed.write(line * 8)


@pytest.mark.parametrize(
    ("name", "make"), [("a.parquet", giant_parquet), ("a.jsonl.gz", giant_gzip)]
)
def test_a_disk_that_will_not_do_is_foreseen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, make: Any
) -> None:
    founder = Founder(tmp_path, ByteTokenizer())
    make(tmp_path / name)
    rows(tmp_path / "b.jsonl", ["a short text"])
    monkeypatch.setattr(DataDir, "free", lambda self: 40 << 20)
    monkeypatch.setattr(tokenisation, "_DISK_CHECK_SECONDS", 0)
    with pytest.raises(UserError) as caught:
        founder.read(paths=(name, "b.jsonl"))
    assert caught.value.code == ExitCode.DISK_FULL
    assert "the training data will take about" in caught.value.problem
    assert name in caught.value.problem
    assert caught.value.remedy
    assert [path for path in founder.data.token_caches.rglob("*") if path.is_file()] == []


def test_a_disk_that_will_do_is_not_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The files read first are compressed a hundred times better than the rest."""
    founder = Founder(tmp_path, ByteTokenizer())
    monkeypatch.setattr(tokenisation, "_PART_BYTES", 1 << 18)
    monkeypatch.setattr(tokenisation, "_DISK_CHECK_SECONDS", 0)
    text = "one line of many\n" * 200_000
    (tmp_path / "a.txt.gz").write_bytes(gzip.compress(text.encode()))
    noise = np.random.default_rng(0).integers(32, 127, 6 << 20, np.uint8).tobytes()
    (tmp_path / "noise.txt").write_bytes(noise)
    needed = 2 * (len(noise) + len(text))
    monkeypatch.setattr(DataDir, "free", lambda self: needed + (1 << 20))
    corpus = founder.read(paths=("a.txt.gz", "noise.txt"))
    assert corpus.summary.tokens + corpus.summary.heldout_tokens >= needed // 2


def test_an_empty_path_is_not_the_folder_of_the_file(founder: Founder) -> None:
    (founder.root / "private.txt").write_text("secret " * 100)
    with pytest.raises(UserError, match=r"data.paths: an empty path") as caught:
        founder.read(WeightedTable(name="a", paths=("",)))
    assert caught.value.code == ExitCode.MANIFEST
