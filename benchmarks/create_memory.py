"""The memory that `create` takes for one large file of each kind.

    python benchmarks/create_memory.py [--megabytes 1000] [--kinds text,jsonl,…] [--json FILE]

Every kind is a file of this many megabytes of text (for `tokens`: of tokens): one giant text, JSON
lines, JSON lines whose every row is a long document, Parquet of both sorts, Arrow, a table, a list
of JSON, compressed JSON lines, an array of tokens; for `parquet-page` everything is one page. A process
of its own with two workers, regardless of the number of cores, does everything that `create` does with
data, and the figures are the most that it and its workers held at once: the sum of their resident bytes
(RSS), in which memory that they share counts for each; the same where it counts once (PSS); and the
private ones, without mapped files.
"""

from __future__ import annotations

import argparse
import gzip
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import zstandard
from command_line import new_parser, write_json
from create_speed import Memory, ours, texts, train_tokenizer
from distro_node.node.create import tokeniser_pool
from distro_node.node.create.tokens import FileTokenizer

WORKERS = 2
LONG_DOCUMENT = 3_000_000
_ROWS = 1000


def long_texts(megabytes: float) -> Iterator[str]:
    """Yield the same text in documents of some megabytes."""
    kept: list[str] = []
    size = 0
    for text in texts(megabytes):
        kept.append(text)
        size += len(text)
        if size >= LONG_DOCUMENT:
            yield "\n".join(kept)
            kept, size = [], 0
    if kept:
        yield "\n".join(kept)


def _text(path: Path, megabytes: float) -> None:
    with path.open("w", encoding="utf-8") as file:
        file.writelines(texts(megabytes))


def _lines(open_file: Callable[[Path], Any], of: Callable[[float], Iterator[str]]) -> Any:
    def write(path: Path, megabytes: float) -> None:
        with open_file(path) as file:
            for text in of(megabytes):
                file.write(json.dumps({"text": text}).encode() + b"\n")

    return write


def _plain(path: Path) -> Any:
    return path.open("wb")


def _zstandard(path: Path) -> Any:
    return zstandard.open(path, "wb")


def _gzip(path: Path) -> Any:
    return gzip.open(path, "wb", compresslevel=1)


def _list(path: Path, megabytes: float) -> None:
    with path.open("w", encoding="utf-8") as file:
        for number, text in enumerate(texts(megabytes)):
            file.write(("," if number else "[") + json.dumps({"text": text}))
        file.write("]")


def _table(path: Path, megabytes: float) -> None:
    import csv

    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["text"])
        writer.writerows([text] for text in texts(megabytes))


def _tables(of: Callable[[float], Iterator[str]], megabytes: float) -> Iterator[Any]:
    import pyarrow

    kept: list[str] = []
    for text in of(megabytes):
        kept.append(text)
        if len(kept) == _ROWS:
            yield pyarrow.table({"text": kept})
            kept = []
    if kept:
        yield pyarrow.table({"text": kept})


def _parquet(of: Callable[[float], Iterator[str]]) -> Any:
    def write(path: Path, megabytes: float) -> None:
        import pyarrow
        import pyarrow.parquet

        schema = pyarrow.schema({"text": pyarrow.string()})
        with pyarrow.parquet.ParquetWriter(path, schema) as writer:
            for table in _tables(of, megabytes):
                writer.write_table(table)

    return write


def _one_page(path: Path, megabytes: float) -> None:
    """Long documents that are all in one page, which is unpacked at once."""
    import pyarrow
    import pyarrow.parquet

    table = pyarrow.concat_tables(_tables(long_texts, megabytes)).combine_chunks()
    pyarrow.parquet.write_table(
        table, path, data_page_size=1 << 30, write_batch_size=1 << 20, use_dictionary=False
    )


def _arrow(path: Path, megabytes: float) -> None:
    import pyarrow

    schema = pyarrow.schema({"text": pyarrow.string()})
    with pyarrow.OSFile(str(path), "wb") as sink, pyarrow.ipc.new_stream(sink, schema) as writer:
        for table in _tables(texts, megabytes):
            writer.write_table(table)


def _tokens(path: Path, megabytes: float) -> None:
    rng = np.random.default_rng(0)
    with path.open("wb") as file:
        for _ in range(round(megabytes)):
            file.write(rng.integers(0, 8192, 500_000, np.uint16).tobytes())


KINDS: dict[str, tuple[str, Callable[[Path, float], None]]] = {
    "text": ("one.txt", _text),
    "jsonl": ("rows.jsonl", _lines(_plain, texts)),
    "jsonl-long": ("long.jsonl", _lines(_plain, long_texts)),
    "jsonl-zst": ("rows.jsonl.zst", _lines(_zstandard, texts)),
    "jsonl-gz": ("rows.jsonl.gz", _lines(_gzip, texts)),
    "json": ("list.json", _list),
    "csv": ("table.csv", _table),
    "parquet": ("rows.parquet", _parquet(texts)),
    "parquet-long": ("long.parquet", _parquet(long_texts)),
    "parquet-page": ("page.parquet", _one_page),
    "arrow": ("rows.arrow", _arrow),
    "tokens": ("array.bin", _tokens),
}


def measure(kind: str, folder: Path) -> None:
    """Print the memory that one kind takes, as JSON; for a process of its own."""
    tokeniser_pool.usable_cores = lambda: WORKERS
    path = folder / KINDS[kind][0]
    tokenizer = FileTokenizer(folder / "tokenizer.json")
    began = time.perf_counter()
    with Memory() as memory:
        tokens, _, processors = ours(folder, path, tokenizer)
    print(
        json.dumps(
            {
                "file_bytes": path.stat().st_size,
                "tokens": tokens,
                "peak_bytes": memory.most,
                "proportional_bytes": memory.proportional,
                "private_bytes": memory.private,
                "seconds": round(time.perf_counter() - began, 1),
                "processor_seconds": round(processors, 1),
            }
        )
    )


def main() -> None:
    """Write each file, measure it, print, and write the results."""
    parser = new_parser(__doc__)
    parser.add_argument("--megabytes", type=float, default=1000)
    parser.add_argument("--kinds", default=",".join(KINDS))
    parser.add_argument("--one", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        measure(options.one, options.folder)
        return
    results = {}
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        train_tokenizer(folder / "tokenizer.json")
        for kind in options.kinds.split(","):
            name, write = KINDS[kind]
            write(folder / name, options.megabytes)
            made = subprocess.run(
                [sys.executable, __file__, "--one", kind, "--folder", str(folder)],
                check=True,
                stdout=subprocess.PIPE,
            )
            (folder / name).unlink()
            measured = json.loads(made.stdout)
            results[kind] = {"megabytes": options.megabytes, **measured}
            peak, once = (measured[f"{which}_bytes"] / 1e6 for which in ("peak", "proportional"))
            print(f"{kind:<14}{peak:>8.0f} MB{once:>8.0f} MB with shared memory once", flush=True)
    if options.json:
        # Other kinds, or the same of other sizes, are measured in other runs.
        there = json.loads(options.json.read_text("utf-8")) if options.json.exists() else {}
        figures = {"workers": WORKERS, "kinds": there.get("kinds", {}) | results}
        write_json(options.json, figures)


if __name__ == "__main__":
    main()
