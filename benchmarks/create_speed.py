"""How fast `create` makes tokens from text, beside the `tokenizers` library alone on the same text.

    python benchmarks/create_speed.py [--megabytes 48] [--json FILE]

The text is the standard library's sources, repeated with different first lines, as JSON lines
compressed with zstd. The tokenizer is a byte-level BPE of 8,192 tokens, trained on them first.
*Ours* is everything that `create` does with data: reading, decompressing, parsing, tokenising in
worker processes, hashing, writing parts, mixing, storing chunks. *Library* is only
`encode_batch_fast` of the same texts in memory, with its own threads on all cores. Both run
alternately, `--runs` times, and the medians count. Beside the wall-clock time there is the CPU time,
which is more reliable on a machine with other load.
"""

from __future__ import annotations

import io
import json
import os
import statistics
import sysconfig
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import tokenizers
import zstandard
from command_line import new_parser, write_json
from distro_node.node.create.borders import Borders
from distro_node.node.create.corpus import end_tokens, find_sources, read_corpus
from distro_node.node.create.manifest_file import DataTable, ManifestFile
from distro_node.node.create.tokens import FileTokenizer
from distro_node.node.storage.blob_store import BlobStore
from distro_node.node.storage.data_dir import DataDir
from distro_node.node.util.operating_system import usable_cores

VOCABULARY = 8192


def texts(megabytes: float) -> Iterator[str]:
    """Yield the standard library's sources repeatedly, up to this many megabytes."""
    files = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
    sources = [file.read_text(encoding="utf-8", errors="replace") for file in files]
    left, turn = megabytes * 1e6, 0
    while left > 0:
        for number, source in enumerate(sources):
            yield f"# {turn} {number}\n{source}"
            left -= len(source)
            if left <= 0:
                return
        turn += 1


def train_tokenizer(path: Path) -> FileTokenizer:
    """Train a byte-level BPE on the standard library."""
    library: Any = tokenizers.Tokenizer(tokenizers.models.BPE())
    library.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    library.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=["<|endoftext|>"],
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    library.train_from_iterator(texts(4), trainer)
    library.save(str(path))
    return FileTokenizer(path)


class Clock:
    """Wall-clock and CPU seconds since its creation, including those of ended children."""

    def __init__(self) -> None:
        self._start = self._now()

    def read(self) -> tuple[float, float]:
        wall, processors = self._now()
        return wall - self._start[0], processors - self._start[1]

    def _now(self) -> tuple[float, float]:
        spent = os.times()
        mine, children = spent.user + spent.system, spent.children_user + spent.children_system
        return time.perf_counter(), mine + children


def ours(folder: Path, file: Path, tokenizer: FileTokenizer) -> tuple[int, float, float]:
    """Return tokens and seconds of everything that `create` does with the data of this file."""
    with tempfile.TemporaryDirectory(dir=folder) as place:
        data = DataDir(Path(place) / "data")
        data.create()
        described = ManifestFile(
            name="benchmark", model={}, data=DataTable(sequence_length=1024, paths=(str(file),))
        )
        start = Clock()
        found = find_sources(described, folder / "run.toml", ())
        end = end_tokens(described.data, tokenizer, folder / "run.toml")
        corpus = read_corpus(described, found, tokenizer, Borders(end), data, lambda *_: None)
        corpus.store(BlobStore(data.blobs), lambda *_: None)
        seconds = start.read()
        return corpus.summary.tokens + corpus.summary.heldout_tokens, *seconds


class Memory:
    """The most memory that this process and its children held, sampled twenty times a second."""

    def __enter__(self) -> Memory:
        self.most = self.proportional = self.private = 0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _watch(self) -> None:
        me = psutil.Process()
        while not self._ended.wait(0.05):
            total = proportional = private = 0
            for process in (me, *me.children(recursive=True)):
                try:
                    held = process.memory_full_info()
                except (psutil.NoSuchProcess, psutil.AccessDenied):
                    continue
                total += held.rss
                # What several processes share is divided among them.
                proportional += held.pss
                # What is mapped from files can be let go of at any time.
                private += held.rss - held.shared
            self.most = max(self.most, total)
            self.proportional = max(self.proportional, proportional)
            self.private = max(self.private, private)


_LIBRARY_BATCH = 256


def write(path: Path, megabytes: float) -> None:
    """Write the text as JSON lines, compressed."""
    with path.open("wb") as raw, zstandard.ZstdCompressor().stream_writer(raw) as packed:
        lines = io.TextIOWrapper(packed, encoding="utf-8", write_through=True)
        for text in texts(megabytes):
            lines.write(json.dumps({"text": text}) + "\n")
        lines.flush()


def library(tokenizer: FileTokenizer, megabytes: float) -> tuple[int, float, float]:
    """Return tokens and seconds of the library alone."""
    alone: Any = tokenizers.Tokenizer.from_buffer(tokenizer.definition)
    batch: list[str] = []
    tokens, seconds, processors = 0, 0.0, 0.0

    def encode() -> None:
        nonlocal tokens, seconds, processors
        start = Clock()
        encoded = alone.encode_batch_fast(batch, add_special_tokens=False)
        spent = start.read()
        seconds, processors = seconds + spent[0], processors + spent[1]
        tokens += sum(len(each) for each in encoded)
        batch.clear()

    for text in texts(megabytes):
        batch.append(text)
        if len(batch) >= _LIBRARY_BATCH:
            encode()
    encode()
    return tokens, seconds, processors


def main() -> None:
    """Measure, print, and write the results."""
    parser = new_parser(__doc__)
    parser.add_argument("--megabytes", type=float, default=48)
    parser.add_argument("--runs", type=int, default=3)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        tokenizer = train_tokenizer(folder / "tokenizer.json")
        file = folder / "text.jsonl.zst"
        write(file, options.megabytes)
        runs: dict[str, list[tuple[int, float, float]]] = {"ours": [], "library": []}
        for _ in range(options.runs):
            runs["ours"].append(ours(folder, file, tokenizer))
            runs["library"].append(library(tokenizer, options.megabytes))
    wall, processors = (
        {
            name: statistics.median(each[0] / each[which] for each in made)
            for name, made in runs.items()
        }
        for which in (1, 2)
    )
    figures = {
        "megabytes": options.megabytes,
        "cores": usable_cores(),
        "load": round(os.getloadavg()[0], 1),
        "tokens": runs["ours"][0][0],
        "tokens_per_second": wall,
        "tokens_per_processor_second": processors,
        "runs": runs,
    }
    machine = f"{usable_cores()} cores, load {figures['load']}"
    print(f"{options.megabytes:g} MB, {figures['tokens']:,} tokens, {machine}")
    print("tokens a second         on the clock   of a processor")
    for name in runs:
        print(f"{name:<20}{wall[name]:>16,.0f}{processors[name]:>17,.0f}")
    ratios = (each["ours"] / each["library"] for each in (wall, processors))
    print("ratio               {:>16.2f}{:>17.2f}".format(*ratios))
    write_json(options.json, figures)


if __name__ == "__main__":
    main()
