"""Shared parts of the benchmarks of `create`: text, tokenizer, a trial run, time and memory."""

from __future__ import annotations

import os
import sysconfig
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import tokenizers
from distro_node.node.create.borders import Borders
from distro_node.node.create.corpus import end_tokens, find_sources, read_corpus
from distro_node.node.create.manifest_file import DataTable, ManifestFile
from distro_node.node.create.tokens import FileTokenizer
from distro_node.node.storage.blob_store import BlobStore
from distro_node.node.storage.data_dir import DataDir

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
        self.most = self.private = 0
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
            total = private = 0
            for process in (me, *me.children(recursive=True)):
                try:
                    held = process.memory_info()
                    total += held.rss
                    # What is mapped from files can be let go of at any time.
                    private += held.rss - held.shared
                except psutil.NoSuchProcess:
                    continue
            self.most = max(self.most, total)
            self.private = max(self.private, private)
