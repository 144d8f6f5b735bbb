"""Every format that `create` reads, in files made by the format's own library; and every refusal."""

from __future__ import annotations

import ast
import bz2
import csv
import gzip
import io
import json
import lzma
import math
import os
import struct
import sys
import tarfile
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.feather
import pyarrow.parquet
import pytest
import zstandard
from distro_node.node.create import documents as documents_module
from distro_node.node.create import rows as rows_module
from distro_node.node.create import token_arrays
from distro_node.node.create.borders import Borders
from distro_node.node.create.columns import Columns
from distro_node.node.create.documents import (
    Document,
    Empty,
    Item,
    NoText,
    ReadOptions,
    TokenDocument,
    items,
)
from distro_node.node.create.files import Source, find_files
from distro_node.node.create.rows import BadRow
from distro_node.node.errors import ExitCode, UserError
from hypothesis import example, given
from hypothesis import strategies as st

ROWS = [
    {"text": "first, with a comma", "id": 1},
    {"text": 'zweite „Zeile“\nund "mehr"', "id": 2},
    {"text": "third 😀", "id": 3},
]
TEXTS = [row["text"] for row in ROWS]
HOW = ReadOptions(utf8=True, vocabulary=300, borders=Borders((0,)))


def read(path: Path | str, how: ReadOptions = HOW, **options: Any) -> list[tuple[int, Item]]:
    columns = Columns(options.pop("text", None), options.pop("template", None))
    source = Source(name="s", paths=(path,), columns=columns, **options)
    found, _ = find_files(source)
    return [(at, item) for file in found for at, item, _ in items(file, source, how)]


def texts(path: Path | str, **options: Any) -> list[str]:
    made = [item for _, item in read(path, **options)]
    assert all(isinstance(item, Document) for item in made), made
    return [item.text.decode() for item in made if isinstance(item, Document)]


def refused(path: Path | str, *words: str, **options: Any) -> UserError:
    with pytest.raises(UserError) as caught:
        read(path, **options)
    assert caught.value.code == ExitCode.DATA_MISSING
    for word in (*words, str(path) if isinstance(path, str) else path.name):
        assert word in caught.value.problem
    assert "\n" not in caught.value.problem
    assert caught.value.remedy
    return caught.value


def jsonl(rows: Sequence[Any] = ROWS) -> bytes:
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


def csv_of(delimiter: str) -> bytes:
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, ["id", "text"], delimiter=delimiter)
    writer.writeheader()
    writer.writerows(ROWS)
    return text.getvalue().encode()


CONTENTS: dict[str, bytes] = {
    "a.jsonl": jsonl(),
    "a.ndjson": jsonl(),
    "a.json": json.dumps(ROWS, indent=2).encode(),
    "lines.json": jsonl(),
    "a.csv": csv_of(","),
    "a.tsv": csv_of("\t"),
}
PACKERS: dict[str, Callable[[bytes], bytes]] = {
    "": bytes,
    ".gz": gzip.compress,
    ".bz2": bz2.compress,
    ".xz": lzma.compress,
    ".zst": zstandard.ZstdCompressor(write_checksum=True, write_content_size=False).compress,
}


@pytest.mark.parametrize("ending", PACKERS)
@pytest.mark.parametrize("name", CONTENTS)
def test_rows_are_read_packed_or_not(tmp_path: Path, name: str, ending: str) -> None:
    file = tmp_path / (name.upper() + ending)
    file.write_bytes(PACKERS[ending](CONTENTS[name]))
    assert texts(file) == TEXTS
    assert texts(tmp_path) == TEXTS


@pytest.mark.parametrize("ending", PACKERS)
def test_text_is_read_packed_or_not(tmp_path: Path, ending: str) -> None:
    text = "Ein Text,\nder nicht endet.\n"
    (tmp_path / f"A.TXT{ending}").write_bytes(PACKERS[ending](text.encode("utf-8-sig")))
    (tmp_path / f"b.py{ending}").write_bytes(PACKERS[ending](b"print()\n"))
    assert texts(tmp_path) == [text, "print()\n"]


def test_packed_pieces_may_follow_one_another(tmp_path: Path) -> None:
    for ending, pack in PACKERS.items():
        file = tmp_path / f"a.jsonl{ending}"
        file.write_bytes(b"".join(pack(jsonl([row])) for row in ROWS))
        assert texts(file) == TEXTS, ending


@pytest.mark.parametrize("ending", [".gz", ".bz2", ".xz"])
def test_zeros_may_follow_packed_pieces_and_nothing_else(tmp_path: Path, ending: str) -> None:
    first, *others = (PACKERS[ending](jsonl([row])) for row in ROWS)
    file = tmp_path / f"a.jsonl{ending}"
    file.write_bytes(first + bytes(70_000).join([b"", *others, b""]))
    assert texts(file) == TEXTS
    file.write_bytes(first + b"".join(others).replace(others[0][:3], b"???", 1))
    refused(file, "is damaged")


@pytest.mark.parametrize("size", [0, 4, 5000])
@pytest.mark.parametrize("low", [0x50, 0x5F])
def test_frames_to_skip_are_skipped_wherever_they_stand(
    tmp_path: Path, low: int, size: int
) -> None:
    skipped = bytes((low, 0x2A, 0x4D, 0x18)) + size.to_bytes(4, "little") + bytes(size)
    frames = [PACKERS[".zst"](jsonl([row])) for row in ROWS]
    file = tmp_path / "a.jsonl.zst"
    file.write_bytes(b"".join(skipped + frame for frame in frames) + skipped)
    assert texts(file) == TEXTS


@pytest.mark.parametrize("ending", [ending for ending in PACKERS if ending])
def test_packed_files_that_are_cut_short_or_damaged_are_refused(
    tmp_path: Path, ending: str
) -> None:
    rng = np.random.default_rng(0)
    rows = [{"text": rng.bytes(200).hex()} for _ in range(2000)]
    whole = PACKERS[ending](jsonl(rows))
    file = tmp_path / f"a.jsonl{ending}"
    file.write_bytes(whole[: len(whole) // 2])
    refused(file, "is cut short")
    middle = len(whole) // 2
    file.write_bytes(whole[:middle] + bytes(64) + whole[middle + 64 :])
    refused(file, "is damaged")
    file.write_bytes(jsonl())
    refused(file, f"is not a {ending} file")


def parquet(file: Path, table: dict[str, Any], **options: Any) -> Path:
    pyarrow.parquet.write_table(pyarrow.table(table), file, **options)
    return file


COLUMNS = {"text": TEXTS, "id": [row["id"] for row in ROWS]}


@pytest.mark.parametrize("compression", ["none", "snappy", "zstd", "gzip"])
def test_parquet(tmp_path: Path, compression: str) -> None:
    assert texts(parquet(tmp_path / "a.parquet", COLUMNS, compression=compression)) == TEXTS


def test_feather_is_arrow_and_its_first_version_is_not(tmp_path: Path) -> None:
    table = pyarrow.table(COLUMNS)
    pyarrow.feather.write_feather(table, str(tmp_path / "a.feather"))
    assert texts(tmp_path) == TEXTS
    (tmp_path / "a.feather").write_bytes(b"FEA1" + bytes(100) + b"FEA1")
    refused(tmp_path / "a.feather", "is not a valid Arrow file")


def test_parquet_in_groups_with_a_dictionary(tmp_path: Path) -> None:
    encoded = pyarrow.array(TEXTS * 500).dictionary_encode()
    file = parquet(tmp_path / "a.parquet", {"body": encoded}, row_group_size=100)
    assert texts(file, text="body") == TEXTS * 500


def test_broken_parquet_and_arrow_are_refused(tmp_path: Path) -> None:
    whole = parquet(tmp_path / "a.parquet", COLUMNS).read_bytes()
    for broken in (whole[:-20], whole[4:], b"text"):
        (tmp_path / "a.parquet").write_bytes(broken)
        refused(tmp_path / "a.parquet", "is not a valid Parquet file")
    rows = pyarrow.table({"text": [f"{number}" * 50 for number in range(5000)]})
    whole = parquet(tmp_path / "b.parquet", {"text": rows["text"]}, compression="zstd").read_bytes()
    (tmp_path / "b.parquet").write_bytes(whole[:200] + b"\xff" * 2000 + whole[2200:])
    refused(tmp_path / "b.parquet", "is not a valid Parquet file")
    (tmp_path / "a.arrow").write_bytes(b"ARROW1 but no more of it")
    refused(tmp_path / "a.arrow", "is not a valid Arrow file")


@pytest.mark.parametrize("kind", ["parquet", "arrow"])
def test_a_mapped_file_that_is_cut_short_while_it_is_read_is_one_line(
    tmp_path: Path, kind: str
) -> None:
    """Otherwise the system would end the process with a bus error."""
    table = pyarrow.table({"text": [f"{number}" * 500 for number in range(5000)]})
    path = tmp_path / f"a.{kind}"
    if kind == "parquet":
        parquet(path, {"text": table["text"]})
    else:
        with pyarrow.ipc.new_stream(path, table.schema) as writer:
            writer.write_table(table)
    source = Source(name="s", paths=(path,), columns=Columns(None, None))
    found = items(find_files(source)[0][0], source, HOW)
    next(found)
    os.truncate(path, 4096)
    with pytest.raises(UserError, match="was cut short by another program"):
        list(found)


@pytest.mark.parametrize("kind", ["stream", "file"])
def test_arrow_files(tmp_path: Path, kind: str) -> None:
    table = pyarrow.table(COLUMNS)
    make = pyarrow.ipc.new_stream if kind == "stream" else pyarrow.ipc.new_file
    with make(tmp_path / "a.arrow", table.schema) as writer:
        writer.write_table(table)
    assert texts(tmp_path / "a.arrow") == TEXTS


def test_what_datasets_saves(tmp_path: Path) -> None:
    import datasets

    one = datasets.Dataset.from_dict(COLUMNS)
    one.save_to_disk(str(tmp_path / "one"), num_shards=2)
    assert texts(tmp_path / "one") == TEXTS
    # Rows in another order are saved in the selected order.
    one.select([2, 0]).save_to_disk(str(tmp_path / "chosen"))
    assert texts(tmp_path / "chosen") == [TEXTS[2], TEXTS[0]]
    split = datasets.DatasetDict({"train": one, "test": one.select([1])})
    split.save_to_disk(str(tmp_path / "split"))
    assert texts(tmp_path / "split") == TEXTS
    assert texts(tmp_path / "split", split="test") == [TEXTS[1]]
    _, skipped = find_files(Source(name="s", paths=(tmp_path / "split",)))
    assert skipped.lines() == ["1 of another split (split/test)"]
    refused(tmp_path / "split", "no split 'validation'", "train, test", split="validation")
    (tmp_path / "one" / "state.json").write_text("{}")
    refused(tmp_path / "one", "state.json")


def test_data_sets_from_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The library takes a folder of that name for the data set; the network is not used."""
    monkeypatch.setenv("HF_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "owner" / "name").mkdir(parents=True)
    parquet(tmp_path / "owner" / "name" / "train.parquet", COLUMNS)
    assert texts("hf://owner/name") == TEXTS
    assert texts("hf://owner/name:train", template="{id}: {text}")[0] == f"1: {TEXTS[0]}"
    refused("hf://owner/name", "no column 'body'", text="body")
    refused("hf://owner/name:dev", "cannot be fetched")
    refused("hf://nobody/nothing", "cannot be fetched")
    refused("hf://nothing", "is not a data set")


@pytest.mark.parametrize(
    ("package", "name", "extra"),
    [
        ("pyarrow", "a.parquet", "create"),
        ("pyarrow", "a.arrow", "create"),
        ("zstandard", "a.txt.zst", "create"),
        ("datasets", "hf://owner/name", "hub"),
    ],
)
def test_a_library_that_is_missing_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, package: str, name: str, extra: str
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.setitem(sys.modules, f"{package}.parquet", None)
    if not name.startswith("hf:"):
        (tmp_path / name).write_bytes(b"\x28\xb5\x2f\xfd1234")
    with pytest.raises(UserError, match=f"{package} is not installed") as caught:
        read(name if name.startswith("hf:") else tmp_path / name)
    assert f"distro-node[{extra}]" in caught.value.remedy


# --- columns -------------------------------------------------------------------------------------


def test_a_template_joins_columns(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(jsonl())
    made = texts(tmp_path / "a.jsonl", template="# {id}\n{text} {{}}\n")
    assert made == [f"# {row['id']}\n{row['text']} {{}}\n" for row in ROWS]
    assert texts(parquet(tmp_path / "a.parquet", COLUMNS), template="{id}") == ["1", "2", "3"]
    fractions = parquet(tmp_path / "b.parquet", {"id": [18.0, 0.5, math.nan, -math.inf]})
    made = [item for _, item in read(fractions, template="{id}")]
    assert [item.text for item in made if isinstance(item, Document)] == [b"18", b"0.5"]
    problems = [item.problem for item in made if isinstance(item, BadRow)]
    assert problems[0] == "holds NaN in the column 'id', not text"
    assert len(problems) == 2


@pytest.mark.parametrize("template", ["{", "plain", "{}", "{a.b}{0!r}", "{a:3}", ""])
def test_a_template_that_is_none_is_refused(template: str) -> None:
    with pytest.raises(ValueError, match="template"):
        Columns(None, template)
    with pytest.raises(ValueError, match="not both"):
        Columns("text", "{text}")


def test_a_wrong_column_is_refused_and_the_others_are_named(tmp_path: Path) -> None:
    for name in ("a.csv", "a.tsv"):
        (tmp_path / name).write_bytes(CONTENTS[name])
        refused(tmp_path / name, "no column 'body' (it has: id, text)", text="body")
    file = parquet(tmp_path / "a.parquet", COLUMNS)
    refused(file, "no column 'body' (it has: text, id)", text="body")
    refused(file, "holds int64 in the column 'id', not text", text="id")
    refused(parquet(tmp_path / "b.parquet", {"text": [["a"]]}), "holds list")
    (tmp_path / "a.jsonl").write_bytes(jsonl())
    ((line, bad), *_) = read(tmp_path / "a.jsonl", text="body")
    assert (line, bad) == (1, BadRow("has no column 'body' (it has: text, id)"))


def test_rows_of_mixed_kinds_are_bad_one_by_one(tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    broken = b'{"text": "good"}\n\n{"text": 3}\n[1]\n{"text": null}\n{"te\n\xff\n{"text": ""}\n'
    file.write_bytes(broken + b'{"text": "\\ud800"}\n{"text": "good"}')
    made = read(file)
    assert [line for line, _ in made] == [1, 3, 4, 5, 6, 7, 8, 9, 10]
    assert isinstance(made[0][1], Document)
    problems = [item.problem for _, item in made if isinstance(item, BadRow)]
    assert problems[0] == "holds 3 in the column 'text', not text"
    assert problems[1] == "holds a list, not an object"
    assert problems[2] == "holds nothing in the column 'text', not text"
    assert problems[3].startswith("is not JSON (Invalid control character")
    assert problems[4] == "is not UTF-8"
    assert isinstance(made[6][1], Empty)
    assert problems[5].startswith("holds half of a surrogate pair")
    assert isinstance(made[8][1], Document)


def test_lines_without_an_end_cost_no_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rows_module, "MAX_ROW_BYTES", 1 << 20)
    file = tmp_path / "a.jsonl"
    file.write_bytes(b'{"text": "' + b"x" * 3_000_000 + b'"}\n{"text": "next"}\n')
    made = read(file)
    assert made[0] == (1, BadRow("is longer than 1 MB"))
    assert made[1][0] == 2
    assert isinstance(made[1][1], Document)


def test_tables_whose_rows_do_not_fit(tmp_path: Path) -> None:
    file = tmp_path / "a.csv"
    file.write_bytes(b'id,text\n1,"two\nlines"\n2\n3,\xff\n4,good\n')
    made = read(file)
    assert [line for line, _ in made] == [2, 4, 5, 6]
    assert made[1][1] == BadRow("has 1 cells, but the first line names 2 columns")
    assert made[2][1] == BadRow("is not UTF-8")
    file.write_bytes(b'id,text\n1,"never closed\n')
    refused(file, "line 2")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b'[{"text": "a"}, {"text": "b"', "broken or cut short"),
        (b'[{"text": "a"}', "broken or cut short"),
        (b'[{"text": "a"},\n{"text" "b"}' + b" " * 100 + b"]", "line 2: the JSON is broken"),
        (b'{"text": "\xff"}', "line 1: is not UTF-8"),
        (b"[" * 100_000, "line 1"),
        (b'{"text": "a"}\xe2', "broken or cut short"),
    ],
)
def test_broken_json_is_refused(tmp_path: Path, content: bytes, words: str) -> None:
    (tmp_path / "a.json").write_bytes(content)
    refused(tmp_path / "a.json", words)


@given(
    rows=st.lists(st.dictionaries(st.sampled_from(["text", "b"]), st.text(max_size=9)), max_size=8),
    size=st.integers(1, 12),
    indent=st.sampled_from([None, 1]),
)
def test_json_is_read_alike_in_pieces_of_any_size(
    tmp_path_factory: pytest.TempPathFactory, rows: list, size: int, indent: int | None
) -> None:
    file = tmp_path_factory.mktemp("json") / "a.json"
    file.write_text(json.dumps(rows, indent=indent, ensure_ascii=False), encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rows_module, "_READ_BYTES", size)
        with row_readers_open(file) as stream:
            assert [row for _, row in rows_module.json_values(stream)] == rows


def row_readers_open(file: Path) -> Any:
    from distro_node.node.create.formats import open_stream

    return open_stream(file)


# --- text ----------------------------------------------------------------------------------------


def test_what_is_not_text_is_no_text_whatever_it_is_called(tmp_path: Path) -> None:
    packed = gzip.compress(np.random.default_rng(0).bytes(5000))
    for number, content in enumerate((packed, b"\x7fELF\x02\x01\x01\x00")):
        (tmp_path / f"{number}.txt").write_bytes(content)
    (tmp_path / "3.txt").write_bytes(b"text\n")
    made = [item for _, item in read(tmp_path, HOW)]
    # The first one is decompressed, and contains no text either.
    assert [type(item) for item in made] == [NoText, NoText, Document]
    refused(tmp_path / "1.txt", "is not text")


def test_an_archive_with_the_name_of_a_text_is_called_an_archive(tmp_path: Path) -> None:
    (tmp_path / "a.md").write_text("text\n")
    with tarfile.open(tmp_path / "1.txt.gz", "w:gz") as archive:
        archive.add(tmp_path / "a.md")
    with zipfile.ZipFile(tmp_path / "2.txt", "w") as packed:
        packed.write(tmp_path / "a.md")
    (tmp_path / "3.txt").write_bytes(b"%PDF-1.7\n" + bytes(range(256)))
    for name in ("1.txt.gz", "2.txt"):
        refused(tmp_path / name, "is an archive of files, which is not read as it is")
    refused(tmp_path / "3.txt", "is a document with a layout")


ENCODINGS = {
    "utf-8-sig": "utf-8-sig",
    "utf-16": "utf-16",
    "utf-16-le": "utf-16-le",
    "utf-16-be": "utf-16-be",
    "utf-16-be-marked": "utf-16-be",
    "utf-32": "utf-32",
}


def encoded(text: str, kind: str) -> bytes:
    return ("\ufeff" * kind.endswith("-marked") + text).encode(ENCODINGS[kind])


@pytest.mark.parametrize("ending", ["", ".gz"])
@pytest.mark.parametrize("kind", ENCODINGS)
def test_unicode_in_whatever_encoding_is_read(tmp_path: Path, kind: str, ending: str) -> None:
    plain = "Eine Zeile.\nUnd noch „eine“: 😀.\n"
    table = csv_of(",").decode()
    for name, content in (
        ("a.txt", plain),
        ("a.jsonl", jsonl().decode()),
        ("a.json", json.dumps(ROWS, indent=1)),
        # Spreadsheets quote the first name, too: after the byte-order mark.
        ("a.csv", '"id","text"' + table.removeprefix("id,text")),
        ("a.tsv", csv_of("\t").decode()),
    ):
        file = tmp_path / (name + ending)
        file.write_bytes(PACKERS[ending](encoded(content, kind)))
        assert texts(file) == ([plain] if name == "a.txt" else TEXTS)


@pytest.mark.parametrize("name", ["a.txt", "a.jsonl", "a.csv"])
def test_an_encoding_that_is_not_kept_to_is_reported(tmp_path: Path, name: str) -> None:
    file = tmp_path / name
    file.write_bytes(encoded(jsonl().decode(), "utf-16") + b"\x00\xd8\x41\x00")
    refused(file, "begins as UTF-16-LE, and a later part is not")


@pytest.mark.parametrize("end", ["\r", "\r\n", "\n"])
@pytest.mark.parametrize("name", ["a.csv", "a.tsv", "a.jsonl", "a.json"])
def test_lines_may_end_with_carriage_returns(tmp_path: Path, name: str, end: str) -> None:
    rows = [{"text": text, "id": "1"} for text in ("one", 'zwei, "2"', "drei")] * 3000
    if name.endswith("json"):
        content = json.dumps(rows, indent=1)
    elif name.endswith("jsonl"):
        content = jsonl(rows).decode()
    else:
        made = io.StringIO(newline="")
        writer = csv.DictWriter(
            made, ["id", "text"], delimiter="," if name == "a.csv" else "\t", lineterminator="\n"
        )
        writer.writeheader()
        writer.writerows(rows)
        content = made.getvalue()
    file = tmp_path / name
    file.write_bytes(content.replace("\n", end).encode())
    assert texts(file) == [row["text"] for row in rows]
    # And with both in one file, as when two files are concatenated.
    if not name.endswith("json"):
        half = content.index("\n", len(content) // 2) + 1
        file.write_bytes((content[:half] + content[half:].replace("\n", end)).encode())
        assert texts(file) == [row["text"] for row in rows]


def test_a_carriage_return_within_a_cell_stays(tmp_path: Path) -> None:
    file = tmp_path / "a.csv"
    file.write_bytes(b'text,id\n"one\rtwo\r\nthree",1\nfour,2\n')
    assert texts(file) == ["one\rtwo\r\nthree", "four"]


@pytest.mark.parametrize("delimiter", [";", "\t"])
def test_what_spreadsheets_write_instead_of_commas(tmp_path: Path, delimiter: str) -> None:
    file = tmp_path / "a.csv"
    file.write_bytes(csv_of(delimiter))
    assert texts(file) == TEXTS


def test_a_quotation_mark_without_an_end_costs_no_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rows_module, "MAX_ROW_BYTES", 1 << 20)
    file = tmp_path / "a.csv"
    file.write_bytes(b'text\n"' + b"a line\n" * 400_000)
    refused(file, "a row is longer than 1 MB, or a quotation mark is not closed")
    file.write_bytes(b'text\nfine\n"no end\n')
    refused(file, "line 3: a quotation mark that is opened here is not closed")
    file.write_bytes(b'text\n"a"b\n')
    refused(file, "line 2: text follows a closing quotation mark")


@pytest.mark.parametrize("name", ["a.parquet", "a.arrow", "a.csv", "a.tsv"])
@pytest.mark.parametrize("template", [None, "{id}: {text}"])
def test_a_column_that_is_there_twice_is_refused(
    tmp_path: Path, name: str, template: str | None
) -> None:
    file = tmp_path / name
    names = ["text", "id", "text"]
    if name in ("a.parquet", "a.arrow"):
        table = pyarrow.table([["a"], ["1"], ["b"]], names=names)
        if name == "a.parquet":
            pyarrow.parquet.write_table(table, file)
        else:
            with (
                pyarrow.OSFile(str(file), "wb") as sink,
                pyarrow.ipc.new_stream(sink, table.schema) as writer,
            ):
                writer.write_table(table)
    else:
        by = "," if name == "a.csv" else "\t"
        file.write_text(f"{by.join(names)}\n{by.join(['a', '1', 'b'])}\n")
    refused(file, "has 2 columns 'text'", template=template)
    # A column that is not used may be repeated.
    assert texts(file, text="id") == ["1"]


@pytest.mark.parametrize("name", ["a.jsonl", "a.json"])
def test_a_key_that_is_there_twice_is_a_bad_row(tmp_path: Path, name: str) -> None:
    file = tmp_path / name
    file.write_bytes(b'{"text": "a", "id": 1, "text": "b"}\n{"text": "c", "x": {"y": 1, "y": 2}}\n')
    (_, bad), (_, good) = read(file)
    assert bad == BadRow("has the key 'text' twice")
    assert good == Document(b"c")


def test_long_rows_come_in_parts_that_lose_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(documents_module, "_MAX_DOCUMENT_BYTES", 1000)
    long = "eine Zeile, nicht lang 😀\n" * 500
    (tmp_path / "a.jsonl").write_bytes(jsonl([{"text": long}, {"text": "kurz"}]))
    parquet(tmp_path / "b.parquet", {"text": [long, "kurz"]})
    made = [item for _, item in read(tmp_path) if isinstance(item, Document)]
    assert max(len(item.text) for item in made) <= 1000
    joined, seen = b"", []
    for item in made:
        joined += item.text
        if item.ends_text:
            seen.append(joined.decode())
            joined = b""
    assert seen == [long, "kurz"] * 2


def test_other_encodings_are_text_to_bytes_alone(tmp_path: Path) -> None:
    file = tmp_path / "a.txt"
    file.write_bytes("Zeile\nähnlich\n".encode("latin-1"))
    assert read(file) == [(2, BadRow("is not UTF-8: the text around it is left out"))]
    ((_, item),) = read(file, ReadOptions(utf8=False, vocabulary=256, borders=Borders()))
    assert item == Document("Zeile\nähnlich\n".encode("latin-1"))


@given(text=st.text(st.sampled_from("a\né€😀"), min_size=1, max_size=90), size=st.integers(8, 40))
@example(text="aaaé😀aaé\n", size=8)
def test_long_texts_come_in_parts_that_lose_nothing(
    tmp_path_factory: pytest.TempPathFactory, text: str, size: int
) -> None:
    file = tmp_path_factory.mktemp("long") / "a.txt"
    file.write_bytes(text.encode())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(documents_module, "_MAX_DOCUMENT_BYTES", size)
        made = [item for _, item in read(file) if isinstance(item, Document)]
    kept = b"".join(part.text for part in made).decode()
    assert kept == (text if text.strip() or made else "")
    assert [part.ends_text for part in made] == [False] * (len(made) - 1) + [True] * bool(made)


# --- arrays of tokens ----------------------------------------------------------------------------


TOKENS = [5, 6, 7, 0, 8, 9, 0, 299, 1]


def tokens(path: Path, **options: Any) -> list[tuple[list[int], bool]]:
    made = [item for _, item in read(path, **options)]
    return [
        (item.tokens.tolist(), item.ends_text) for item in made if isinstance(item, TokenDocument)
    ]


def test_plain_arrays_and_those_of_numpy(tmp_path: Path) -> None:
    expected = [([5, 6, 7, 0], True), ([8, 9, 0], True), ([299, 1], False)]
    for kind in ("uint16", "uint32", "int32", "int64", "uint64"):
        np.array(TOKENS, kind).tofile(tmp_path / "a.bin")
        assert tokens(tmp_path / "a.bin", token_type=kind) == expected
    for kind in ("u2", "i8"):
        np.save(tmp_path / "a.npy", np.array(TOKENS, kind).reshape(3, 3))
        assert tokens(tmp_path / "a.npy") == expected
    # As llm.c writes them: a header of 256 integers before the tokens.
    header = np.zeros(256, "<i4")
    header[:3] = 20240520, 1, len(TOKENS)
    (tmp_path / "a.bin").write_bytes(header.tobytes() + np.array(TOKENS, "<u2").tobytes())
    assert tokens(tmp_path / "a.bin") == expected
    with pytest.raises(UserError, match='read only with format = "tokens"'):
        tokens(tmp_path)
    (tmp_path / "a.npy").unlink()
    assert tokens(tmp_path, format="tokens") == expected


def nanotron(folder: Path, documents: list[list[int]], width: int = 2) -> Path:
    from datatrove.pipeline.tokens.tokenizer import TokenizedFile

    file = TokenizedFile(
        str(folder),
        "a.ds",
        tokenizer_name_or_path="gpt2",
        save_final_metadata=True,
        token_size=width,
    )
    for document in documents:
        file.write(document, None)
    file.close()
    file.write_final_metadata(sum(map(len, documents)))
    return folder / "a.ds"


@pytest.mark.parametrize("width", [2, 4])
def test_what_nanotron_reads(tmp_path: Path, width: int) -> None:
    file = nanotron(tmp_path, [[1, 2, 3], [4, 0, 5], [299]], width)
    expected = [([1, 2, 3], True), ([4, 0, 5], True), ([299], True)]
    assert tokens(file) == expected
    assert tokens(tmp_path) == expected
    (tmp_path / "a.ds.index").write_bytes(np.array([3, 6], "<u8").tobytes())
    refused(file, "does not match its 7 tokens")
    (tmp_path / "a.ds.index").unlink()
    refused(file, "a.ds.index does not exist")
    (tmp_path / "a.ds").write_bytes(file.read_bytes()[:-width])
    refused(file, "is cut short")
    (tmp_path / "a.ds.metadata").write_text("gpt2")
    refused(file, "does not name tokenizer, width and count")


@pytest.mark.parametrize(
    ("kind", "vocabulary"),
    [("int32", 300), ("uint32", 300), ("int64", 300), ("int64", 70_000), ("uint64", 70_000)],
)
def test_an_array_of_wider_tokens_than_usual_is_refused_until_its_type_is_set(
    tmp_path: Path, kind: str, vocabulary: int
) -> None:
    """Read as uint16 it would have twice the tokens, and every second one would be 0."""
    written = [*range(1, 100), 0] * 20_000
    file = tmp_path / "a.bin"
    np.array(written, kind).tofile(file)
    how = ReadOptions(True, vocabulary, Borders((0,)))
    width = np.dtype(kind).itemsize
    error = refused(file, f"its tokens have {width} bytes", how=how)
    assert f'token_type = "int{8 * width}"' in error.remedy
    made = [item for _, item in read(file, how, token_type=kind)]
    assert all(isinstance(item, TokenDocument) for item in made)
    assert len(made) == 20_000
    assert sum(len(item.tokens) for item in made if isinstance(item, TokenDocument)) == len(written)


def test_arrays_whose_zeros_may_be_tokens_are_read(tmp_path: Path) -> None:
    file = tmp_path / "a.bin"
    # Too few to be certain, all zeros, and one number that does not fit.
    for values in ([5, 0] * 8, [0] * 100, [*([5, 0] * 5000), 5, 6]):
        np.array(values, "<u2").tofile(file)
        assert sum(len(made) for made, _ in tokens(file)) == len(values)
    np.array([70_000] * 40, "<u4").tofile(file)
    refused(file, "read as uint16", "the tokenizer has 300 tokens")
    # Other evidence: a truncated number.
    file.write_bytes(file.read_bytes()[:-1])
    refused(file, "1 bytes are left over")


def megatron(file: Path, documents: Sequence[Sequence[int]], code: int, kind: str) -> Path:
    """Write a file in the layout of Megatron-LM's `MMapIndexedDataset`: two sequences per document."""
    np.concatenate([np.array(each, kind) for each in documents]).tofile(file)
    lengths = [part for each in documents for part in (len(each) - 1, 1)]
    width = np.dtype(kind).itemsize
    places = (np.cumsum(lengths) - lengths) * width
    starts = np.arange(len(documents) + 1) * 2
    head = b"MMIDIDX\x00\x00" + struct.pack("<QBQQ", 1, code, len(lengths), len(starts))
    tables = (np.array(lengths, "<i4"), np.array(places, "<i8"), np.array(starts, "<i8"))
    file.with_suffix(".idx").write_bytes(head + b"".join(each.tobytes() for each in tables))
    return file


@pytest.mark.parametrize(
    ("code", "kind"), [(1, "u1"), (3, "<i2"), (4, "<i4"), (5, "<i8"), (8, "<u2")]
)
def test_what_megatron_reads(tmp_path: Path, code: int, kind: str) -> None:
    documents = [[1, 2, 3], [4, 0], [200, 9, 9, 9]] * 30
    file = megatron(tmp_path / "a.bin", documents, code, kind)
    assert tokens(file) == [(each, True) for each in documents]
    assert tokens(tmp_path, format="tokens") == [(each, True) for each in documents]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(token_arrays, "_INDEX_ENTRIES", 7)
        assert tokens(file) == [(each, True) for each in documents]
    index = file.with_suffix(".idx")
    whole = index.read_bytes()
    index.write_bytes(whole[:-1])
    refused(file, "is cut short")
    index.write_bytes(whole[:60] + bytes(8) + whole[68:])
    refused(file, "does not match its 270 tokens")
    index.write_bytes(whole[:17] + b"\x07" + whole[18:])
    refused(file, "unknown version 1 or type 7")
    index.write_bytes(b"TNTIDX\x00\x00" + whole)
    error = refused(file, "a.idx next to it is not an index of a known format")
    assert "token_type" in error.remedy
    said = {1: "uint8", 3: "int16", 4: "int32", 5: "int64", 8: "uint16"}[code]
    assert sum(len(made) for made, _ in tokens(file, token_type=said)) == 270


def test_the_type_may_follow_from_the_index_or_be_set_for_a_plain_npy(tmp_path: Path) -> None:
    file = nanotron(tmp_path, [[1, 2, 3], [4, 0, 5], [299]] * 20, 4)
    (tmp_path / "a.ds.metadata").unlink()
    assert tokens(file) == [([1, 2, 3], True), ([4, 0, 5], True), ([299], True)] * 20
    plain = tmp_path / "a.npy"
    np.array(TOKENS, "<u4").tofile(plain)
    assert "token_type" in refused(plain, "is not a numpy array").remedy
    assert sum(len(made) for made, _ in tokens(plain, token_type="uint32")) == len(TOKENS)


@pytest.mark.parametrize("name", ["a.bin", "a.npy"])
def test_tokens_beyond_the_vocabulary_are_refused(tmp_path: Path, name: str) -> None:
    values = np.array([1, 2, 300], "<u2")
    file = tmp_path / name
    np.save(file, values) if name == "a.npy" else values.tofile(file)
    error = refused(file, "token 2 is 300", "300 tokens")
    assert "tokenizer" in error.remedy


def test_arrays_that_are_none(tmp_path: Path) -> None:
    (tmp_path / "a.bin").write_bytes(b"PK\x03\x04" + bytes(100))
    refused(tmp_path / "a.bin", "a model's or a program's file")
    (tmp_path / "a.bin").write_bytes(bytes(7))
    refused(tmp_path / "a.bin", "1 bytes are left over")
    np.save(tmp_path / "a.npy", np.array([0.5]))
    refused(tmp_path / "a.npy", "float64")
    np.save(tmp_path / "a.npy", np.array([3, -1]))
    refused(tmp_path / "a.npy", "negative token")
    (tmp_path / "a.npy").write_bytes(b"\x93NUMPY")
    refused(tmp_path / "a.npy", "is not a numpy array")


def test_what_is_wrong_with_a_row_reads_after_the_row(checkout: Path) -> None:
    """A message is "line 2: the row", and then the problem."""
    problems: list[str] = []
    for folder in ("create", "training"):
        for path in sorted((checkout / "node" / folder).glob("*.py")):
            for node in ast.walk(ast.parse(path.read_text("utf-8"))):
                match node:
                    case ast.Call(
                        ast.Name("BadRow" | "BadConversation"),
                        [ast.Constant(str(text)) | ast.JoinedStr([ast.Constant(str(text)), *_])],
                    ):
                        problems.append(text)
    assert len(problems) > 15
    verbs = ("is ", "has ", "holds ", "cannot ", "needs ")
    assert [text for text in problems if not text.startswith(verbs)] == []
