"""The text of job.py: prose about programs that exists on any machine with this project, as two data
sets.

One is a Parquet file with documentation strings of packages that the extra `train` installs, or with
other prose if files are named; the other is a .jsonl.zst with the documentation strings and the help
topics of Python's standard library. No module is imported to read its strings.
"""

from __future__ import annotations

import ast
import importlib.util
import io
import json
import pydoc_data.topics
import sysconfig
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

END = "<|endoftext|>"
"""The token that ends a document."""
LIBRARIES = ("matplotlib", "networkx", "numpy", "sympy", "torch")
"""Packages with much prose, all of which the extra `train` installs."""

# A line or two say little more than the name of what they describe.
_SHORTEST = 100
# Tests and installed packages are not part of the standard library's documentation.
_NOT_DOCUMENTED = {"site-packages", "dist-packages", "test", "tests", "idle_test", "__pycache__"}
_PROSE_CHARACTERS = 2000


def library_documents(names: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield the library's name and the text of each of its documentation strings.

    Raises `ModuleNotFoundError` for one that is not installed.
    """
    for name in names:
        found = importlib.util.find_spec(name)
        if found is None or not found.submodule_search_locations:
            raise ModuleNotFoundError(f"the package {name} is not installed", name=name)
        for folder in found.submodule_search_locations:
            for text in documentation(Path(folder)):
                yield name, text


def standard_documents() -> Iterator[tuple[str, str]]:
    """Yield the same for the standard library: its strings, and `help()`'s topics."""
    for text in documentation(Path(sysconfig.get_path("stdlib"))):
        yield "strings", text
    for _, text in sorted(pydoc_data.topics.topics.items()):
        yield "topics", text


def prose_documents(files: Sequence[Path]) -> Iterator[tuple[str, str]]:
    """Yield plain text in parts of some pages, cut between paragraphs."""
    for file in files:
        part: list[str] = []
        for paragraph in file.read_text(encoding="utf-8").splitlines(keepends=True):
            part.append(paragraph)
            if not paragraph.strip() and sum(map(len, part)) >= _PROSE_CHARACTERS:
                yield file.name, "".join(part).strip()
                part = []
        if rest := "".join(part).strip():
            yield file.name, rest


def documentation(folder: Path) -> Iterator[str]:
    """Yield the documentation strings below a folder, in the order of files and lines, each text
    once."""
    seen = set[str]()
    for file in sorted(folder.rglob("*.py")):
        if _NOT_DOCUMENTED & {*file.relative_to(folder).parts}:
            continue
        try:
            tree = ast.parse(file.read_bytes())
        except (SyntaxError, ValueError):
            # Templates and test cases for parsers.
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                text = ast.get_docstring(node)
                if text and len(text) >= _SHORTEST and text not in seen:
                    seen.add(text)
                    yield text


def write_parquet(path: Path, documents: Iterable[tuple[str, str]]) -> int:
    """Write columns `source` and `text` by pyarrow; return the number of rows."""
    import pyarrow
    import pyarrow.parquet

    rows = [*documents]
    table = pyarrow.table({"source": [row[0] for row in rows], "text": [row[1] for row in rows]})
    pyarrow.parquet.write_table(table, path, row_group_size=1024)
    return len(rows)


def write_lines(path: Path, documents: Iterable[tuple[str, str]]) -> int:
    """Write an object with `kind` and `text` per line, compressed by zstandard; return the number of
    lines."""
    import zstandard

    count = 0
    with path.open("wb") as file, zstandard.ZstdCompressor().stream_writer(file) as packed:
        for kind, text in documents:
            packed.write(json.dumps({"kind": kind, "text": text}).encode() + b"\n")
            count += 1
    return count


def read_texts(parquet: Path, lines: Path) -> Iterator[str]:
    """Yield the texts of both files."""
    import pyarrow.parquet
    import zstandard

    yield from pyarrow.parquet.read_table(parquet, columns=["text"])["text"].to_pylist()
    with lines.open("rb") as file, zstandard.ZstdDecompressor().stream_reader(file) as packed:
        for line in io.TextIOWrapper(packed, encoding="utf-8"):
            yield json.loads(line)["text"]


def make_tokenizer(texts: Iterable[str], vocabulary: int, path: Path) -> None:
    """Train a byte-level BPE of `vocabulary` tokens, including the end token."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(  # pyright: ignore[reportAttributeAccessIssue]
        add_prefix_space=False
    )
    tokenizer.decoder = decoders.ByteLevel()  # pyright: ignore[reportAttributeAccessIssue]
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=[END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    if (made := tokenizer.get_vocab_size()) != vocabulary:
        raise ValueError(f"the text gives {made} tokens, not {vocabulary}: ask for fewer")
    tokenizer.save(str(path))
