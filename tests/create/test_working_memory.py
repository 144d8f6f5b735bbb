"""Files of every shape in bounded memory: what need not be held is not, and what must be is foreseen.

Arrow's own count of allocated bytes is exact, so nothing here depends on the machine.
"""

from __future__ import annotations

import json
import lzma
import mmap
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.ipc
import pyarrow.parquet
import pytest
import zstandard
from distro_node.node.create import columns as columns_module
from distro_node.node.create import formats, working_memory
from distro_node.node.create import rows as rows_module
from distro_node.node.create.arrow_batches import unpacked_bytes
from distro_node.node.create.borders import Borders
from distro_node.node.create.columns import Columns
from distro_node.node.create.documents import Document, Item, ReadOptions, items
from distro_node.node.create.files import Source, find_files
from distro_node.node.create.parquet_pages import largest_pages
from distro_node.node.create.rows import BadRow
from distro_node.node.errors import ExitCode, UserError

# Private here: `_file`, `_batch_rows`: how many batches the library makes of a file.
# Private here: `_unpack`: the only place that sees what is unpacked at once.

HOW = ReadOptions(utf8=True, vocabulary=300, borders=Borders((0,)))
ROW = "a row of a text that is as long as a short one\n" * 200
COUNT = 400
ONE_PAGE: dict[str, Any] = {"data_page_size": 1 << 30, "write_batch_size": 1 << 20}


def read(path: Path) -> list[Item]:
    source = Source(name="s", paths=(path,), columns=Columns(None, None))
    found, _ = find_files(source)
    return [item for file in found for _, item, _ in items(file, source, HOW)]


def texts(path: Path) -> list[str]:
    made = read(path)
    assert all(isinstance(item, Document) for item in made), made
    return [item.text.decode() for item in made if isinstance(item, Document)]


def refused(path: Path, *parts: str) -> None:
    with pytest.raises(UserError) as caught:
        read(path)
    assert caught.value.code is ExitCode.DATA_MISSING
    for part in parts:
        assert part in f"{caught.value} {caught.value.remedy}"


@pytest.fixture
def little_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """A computer without any, on which only small needs are met."""
    monkeypatch.setattr(working_memory, "free_main_memory", lambda: 0)
    monkeypatch.setattr(working_memory, "ALWAYS_BYTES", 1 << 20)


def pages(path: Path, *names: str) -> int:
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        return largest_pages(data, pyarrow.parquet.read_metadata(path), list(names))


@pytest.mark.parametrize("compression", ["none", "snappy", "zstd", "gzip"])
@pytest.mark.parametrize("version", ["1.0", "2.0"])
def test_sizes_of_pages(tmp_path: Path, compression: str, version: str) -> None:
    rows = [f"{number} {ROW}" for number in range(COUNT)]
    table = pyarrow.table({"text": rows, "text.more": rows, "id": range(COUNT)})
    whole = sum(4 + len(row) for row in rows)
    path = tmp_path / "a.parquet"
    options: dict[str, Any] = {"compression": compression, "data_page_version": version}
    pyarrow.parquet.write_table(table, path, use_dictionary=False, **ONE_PAGE, **options)
    assert whole <= pages(path, "text") < whole + 1000
    assert pages(path, "text", "text.more") == 2 * pages(path, "text")
    assert pages(path, "id") < 8 * COUNT + 1000
    # A dictionary is a page, too.
    pyarrow.parquet.write_table(table, path, dictionary_pagesize_limit=1 << 30, **options)
    assert whole <= pages(path, "text") < whole + 1000
    # The last group has the largest page.
    small: dict[str, Any] = {"use_dictionary": False, "write_batch_size": 1, "data_page_size": 1}
    pyarrow.parquet.write_table(table, path, **small, **options)
    assert pages(path, "text") < 2 * len(rows[-1])


def test_damaged_pages_are_the_librarys_to_report(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pyarrow.parquet.write_table(pyarrow.table({"text": [ROW] * COUNT}), path)
    whole, chance = path.read_bytes(), random.Random(1)
    metadata = pyarrow.parquet.read_metadata(path)
    for _ in range(300):
        data = bytearray(whole)
        for _ in range(8):
            data[chance.randrange(4, 200)] = chance.randrange(256)
        path.write_bytes(data)
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as held:
            assert largest_pages(held, metadata, ["text"]) >= 0


@pytest.mark.usefixtures("little_memory")
def test_a_page_that_does_not_fit_into_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = pyarrow.table({"text": [ROW] * COUNT, "other": [ROW] * COUNT, "id": range(COUNT)})
    plain: dict[str, Any] = {"use_dictionary": ["other"], **ONE_PAGE}
    path = tmp_path / "a.parquet"
    pyarrow.parquet.write_table(table, path, **plain)
    refused(path, "has pages of 4 MB", "takes 11 MB of memory, and 1 MB are free", "batch_size=16")
    # As the remedy says; and where the large page is of another column.
    monkeypatch.setattr(working_memory, "ALWAYS_BYTES", 4 << 20)
    pyarrow.parquet.write_table(table, path, use_dictionary=False, write_batch_size=16)
    assert texts(path) == [ROW] * COUNT
    other = pyarrow.table({"other": table["text"], "text": table["text"]})
    pyarrow.parquet.write_table(other, path, **{**plain, "use_dictionary": ["text"]})
    assert texts(path) == [ROW] * COUNT
    # A column that is a dictionary.
    many = pyarrow.array([f"{number} {ROW}" for number in range(COUNT)]).dictionary_encode()
    pyarrow.parquet.write_table(
        pyarrow.table({"text": many}), path, dictionary_pagesize_limit=1 << 30
    )
    refused(path, "has pages of 4 MB")


# Prints the name of Arrow's pool, and the bytes it holds while the rows of a file are read, and after.
READER = """
import sys
from pathlib import Path
from distro_node.node.create.columns import Columns, ParquetFile
reader = ParquetFile(Path(sys.argv[1]), Columns(None, None))
import pyarrow
held = max(pyarrow.total_allocated_bytes() for _ in reader.rows())
del reader
print(pyarrow.default_memory_pool().backend_name, held, pyarrow.total_allocated_bytes())
"""


def test_unpacked_pages_are_in_the_pool_that_returns_what_is_freed(tmp_path: Path) -> None:
    """In another pool the page stayed in memory after the file was read: 64 MB of it."""
    path = tmp_path / "a.parquet"
    table = pyarrow.table({"text": [ROW] * COUNT})
    pyarrow.parquet.write_table(table, path, use_dictionary=False, **ONE_PAGE)
    environment = {k: v for k, v in os.environ.items() if k != "ARROW_DEFAULT_MEMORY_POOL"}
    made = subprocess.run(
        [sys.executable, "-c", READER, str(path)],
        capture_output=True,
        check=True,
        text=True,
        env=environment,
    )
    name, held, left = made.stdout.split()
    assert (name, left) == ("system", "0")
    assert COUNT * len(ROW) < int(held) < 2 * COUNT * len(ROW)


def test_a_dictionary_is_made_once_and_not_for_every_few_rows(tmp_path: Path) -> None:
    rows = [f"{number} {ROW}" for number in range(COUNT)]
    path = tmp_path / "a.parquet"
    pyarrow.parquet.write_table(
        pyarrow.table({"text": pyarrow.array(rows).dictionary_encode()}),
        path,
        dictionary_pagesize_limit=1 << 30,
    )
    assert texts(path) == rows
    reader = columns_module.ParquetFile(path, Columns(None, None))
    assert len(list(reader._file.iter_batches(reader._batch_rows))) == 1


@pytest.mark.parametrize("streamed", [True, False])
def test_packed_columns_that_are_not_read_stay_packed(tmp_path: Path, streamed: bool) -> None:
    table = pyarrow.table({"junk": [ROW * 10] * COUNT, "text": ["a", *["b"] * (COUNT - 1)]})
    path = tmp_path / "a.arrow"
    make = pyarrow.ipc.new_stream if streamed else pyarrow.ipc.new_file
    options = pyarrow.ipc.IpcWriteOptions(compression="lz4")
    with make(str(path), table.schema, options=options) as writer:
        writer.write_table(table)
    before = pyarrow.total_allocated_bytes()
    reader = columns_module.ArrowFile(path, Columns(None, None))
    seen, most = [], 0
    for _, row in reader.rows():
        assert not isinstance(row, BadRow)
        seen.append(row["text"])
        most = max(most, pyarrow.total_allocated_bytes() - before)
    assert "".join(seen) == "a" + "b" * (COUNT - 1)
    assert most < table["junk"].nbytes / 4


def write_arrow(path: Path, table: pyarrow.Table, compression: str | None, **options: Any) -> None:
    """Write a stream if the name ends in `.arrow`, else a file."""
    new = pyarrow.ipc.new_stream if path.suffix == ".arrow" else pyarrow.ipc.new_file
    settings = pyarrow.ipc.IpcWriteOptions(compression=compression)
    with new(path, table.schema, options=settings) as writer:
        writer.write_table(table, **options)


@pytest.mark.parametrize("name", ["a.arrow", "a.feather"])
@pytest.mark.parametrize("compression", ["lz4", "zstd"])
def test_a_packed_batch_that_does_not_fit_into_memory(
    tmp_path: Path, little_memory: None, name: str, compression: str
) -> None:
    path = tmp_path / name
    table = pyarrow.table({"junk": [ROW] * COUNT, "text": [ROW] * COUNT}).combine_chunks()
    write_arrow(path, table, compression)
    refused(path, "has packed batches of 4 MB", "unpacked whole", "max_chunksize")
    # In smaller batches, without compression, or where only another column is large.
    write_arrow(path, table, compression, max_chunksize=50)
    assert texts(path) == [ROW] * COUNT
    write_arrow(path, table, None)
    assert texts(path) == [ROW] * COUNT
    short = table.set_column(1, "text", pyarrow.array(["a"] * COUNT))
    write_arrow(path, short, compression)
    assert texts(path) == ["a"] * COUNT


def test_a_packed_dictionary_that_does_not_fit_into_memory(
    tmp_path: Path, little_memory: None
) -> None:
    path = tmp_path / "a.arrow"
    entries = pyarrow.array([f"{number} {ROW}" for number in range(COUNT)]).dictionary_encode()
    write_arrow(path, pyarrow.table({"text": entries}), "zstd")
    refused(path, "has packed batches of 4 MB")


def test_the_library_reports_damaged_batches(tmp_path: Path) -> None:
    path = tmp_path / "a.arrow"
    write_arrow(path, pyarrow.table({"text": [ROW] * COUNT}), "lz4")
    whole = path.read_bytes()
    generator = random.Random(5)
    for _ in range(200):
        data = bytearray(whole[: generator.randrange(1, len(whole))])
        data[generator.randrange(len(data))] = generator.randrange(256)
        source = pyarrow.BufferReader(bytes(data))
        assert unpacked_bytes(pyarrow.ipc, source, None) >= 0


@pytest.mark.parametrize("ending", ["parquet", "arrow"])
@pytest.mark.parametrize("coded", [False, True])
def test_a_huge_row_is_left_out_like_one_of_json(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ending: str, coded: bool
) -> None:
    monkeypatch.setattr(rows_module, "MAX_ROW_BYTES", 1 << 20)
    monkeypatch.setattr(columns_module, "MAX_ROW_BYTES", 1 << 20)
    column = pyarrow.array(["one", "x" * 1_500_000, None, "two", ROW])
    table = pyarrow.table({"text": column.dictionary_encode() if coded else column})
    path = tmp_path / f"a.{ending}"
    if ending == "parquet":
        pyarrow.parquet.write_table(table, path)
    else:
        with pyarrow.ipc.new_file(str(path), table.schema) as writer:
            writer.write_table(table)
    made = read(path)
    assert made[1] == BadRow("is longer than 1 MB")
    assert isinstance(made[2], BadRow)
    assert [item.text for item in made if isinstance(item, Document)] == [
        *(b"one", b"two"),
        ROW.encode(),
    ]


def test_a_huge_row_of_json_is_named_as_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rows_module, "MAX_ROW_BYTES", 1 << 20)
    path = tmp_path / "a.json"
    path.write_text(json.dumps([{"text": "one"}, {"text": "x" * 5_000_000}]))
    refused(path, "a row is longer than 1 MB, or the JSON is broken here")


def packed(rows: int, window: int) -> bytes:
    parameters = zstandard.ZstdCompressionParameters.from_level(3, window_log=window)
    packer = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    line = json.dumps({"text": ROW}).encode() + b"\n"
    return packer.compress(line * rows) + packer.flush()


def test_a_window_that_does_not_fit_into_memory(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    path = tmp_path / "a.jsonl.zst"
    # The second frame has the large one; between them is a frame that is to be skipped.
    skipped = b"\x50\x2a\x4d\x18" + b"\x03\0\0\0abc"
    path.write_bytes(packed(3, 12) + skipped + packed(3, 27))
    assert texts(path) == [ROW] * 6
    request.getfixturevalue("little_memory")
    refused(path, "is packed with a window that takes 134 MB of memory, and 1 MB are free")
    path.write_bytes(packed(3, 12) + skipped + packed(3, 12))
    assert texts(path) == [ROW] * 6


def test_a_dictionary_that_does_not_fit_into_memory(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    path = tmp_path / "a.txt.xz"
    filters = [{"id": lzma.FILTER_LZMA2, "preset": 0, "dict_size": 1 << 26}]
    path.write_bytes(lzma.compress(ROW.encode(), filters=filters))
    assert texts(path) == [ROW]
    request.getfixturevalue("little_memory")
    refused(path, "needs more memory to unpack than the 1 MB that are free", "unpack it first")


def test_a_bomb_is_unpacked_a_little_at_a_time(tmp_path: Path) -> None:
    """A kilobyte of it becomes at most some ten megabytes."""
    path = tmp_path / "a.txt.zst"
    path.write_bytes(zstandard.compress(b"a" * (1 << 26)))
    most = 0

    class Watched(formats._Zstandard):
        def _unpack(self, data: bytes) -> bytes:
            nonlocal most
            made = super()._unpack(data)
            most = max(most, len(made))
            return made

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(formats, "_Zstandard", Watched)
        assert sum(len(text) for text in texts(path)) == 1 << 26
    assert most <= 1 << 25
