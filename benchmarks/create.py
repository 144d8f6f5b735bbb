"""How fast `create` makes tokens from text, beside the `tokenizers` library alone on the same text.

    python benchmarks/create.py [--megabytes 48] [--json FILE]

The text is the standard library's sources, repeated with different first lines, as JSON lines
compressed with zstd. The tokenizer is a byte-level BPE of 8,192 tokens, trained on them first.
*Ours* is everything that `create` does with data: reading, decompressing, parsing, tokenising in
worker processes, hashing, writing parts, mixing, storing chunks. *Library* is only
`encode_batch_fast` of the same texts in memory, with its own threads on all cores. Both run
alternately, `--runs` times, and the medians count. Beside the wall-clock time there is the CPU time,
which is more reliable on a machine with other load. Memory is the most that this process and its
workers held at once, for a quarter of the text and for all.
"""

from __future__ import annotations

import io
import json
import os
import statistics
import tempfile
from pathlib import Path
from typing import Any

import tokenizers
import zstandard
from command_line import new_parser, write_json
from create_trials import Clock, Memory, ours, texts, train_tokenizer
from distro_node.node.create.tokeniser_pool import cores
from distro_node.node.create.tokens import FileTokenizer

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
        file, quarter = folder / "text.jsonl.zst", folder / "quarter.jsonl.zst"
        write(file, options.megabytes)
        write(quarter, options.megabytes / 4)
        with Memory() as small:
            ours(folder, quarter, tokenizer)
        with Memory() as large:
            ours(folder, file, tokenizer)
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
        "cores": cores(),
        "load": round(os.getloadavg()[0], 1),
        "tokens": runs["ours"][0][0],
        "tokens_per_second": wall,
        "tokens_per_processor_second": processors,
        "runs": runs,
        "memory_bytes": {"quarter": small.most, "whole": large.most},
    }
    machine = f"{cores()} cores, load {figures['load']}"
    print(f"{options.megabytes:g} MB, {figures['tokens']:,} tokens, {machine}")
    print("tokens a second         on the clock   of a processor")
    for name in runs:
        print(f"{name:<20}{wall[name]:>16,.0f}{processors[name]:>17,.0f}")
    ratios = (each["ours"] / each["library"] for each in (wall, processors))
    print("ratio               {:>16.2f}{:>17.2f}".format(*ratios))
    print(f"memory: {small.most / 1e6:.0f} MB for a quarter, {large.most / 1e6:.0f} MB for all")
    write_json(options.json, figures)


if __name__ == "__main__":
    main()
