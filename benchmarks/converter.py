"""Which exports llama.cpp's converter takes, and whether what it writes computes the same model.

    python benchmarks/converter.py --converter llama.cpp/convert_hf_to_gguf.py [--json FILE]

Exports a small model of every architecture, converts it to GGUF in float32, and compares what the file
says of rotary positions, lengths and the start token. With `--run` the package llama-cpp-python computes
with the file, and its logits are held against the export's. The source distribution of that package on
PyPI has the converter (`vendor/llama.cpp`); its requirements are transformers 4.57, sentencepiece and
protobuf, for which `--python` names an interpreter.

The converter knows tokenizers by a hash of what they make of one text, and refuses others: the one here
is made known to it as GPT-2's. Gemma, Gemma 2 and Phi-3 need the checkpoint's `tokenizer.model` beside
the export: here a vocabulary made by sentencepiece takes its place.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from distro_node.node.storage.blob_store import BlobStore
from distro_node.node.trainer.models.export import export
from distro_node.node.trainer.models.probe_parameters import ParameterFill
from distro_node.node.trainer.session import TrainingSession

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from trainer.small_models import SMALL_MODELS
from trainer.support import CPU, make_manifest

_MASKED = ("bert", "roberta")
_SENTENCEPIECE = ("gemma", "gemma2", "phi3")
_TOKENS = [(7 * i * i + 3) % 200 for i in range(24)]
# Runs the converter with the tokenizer here known to it.
_CONVERT = """
import sys
from pathlib import Path
place = Path(sys.argv[1])
sys.path[:0] = [str(place.parent), str(place.parent / "gguf-py")]
import convert_hf_to_gguf
from conversion import base
for each in vars(base).values():
    if isinstance(each, type) and "get_vocab_base_pre" in vars(each):
        each.get_vocab_base_pre = lambda self, tokenizer: "gpt-2"
sys.argv = sys.argv[1:]
convert_hf_to_gguf.main()
"""
_VOCABULARY = """
import sys, sentencepiece
sentencepiece.SentencePieceTrainer.train(
    input=sys.argv[1], model_prefix=sys.argv[2], vocab_size=200, model_type="bpe",
    character_coverage=0.98, pad_id=3,
)
"""
# Prints the logits of the last token of each beginning.
_RUN = """
import ctypes, json, sys
import llama_cpp
model = llama_cpp.Llama(sys.argv[1], n_ctx=64, logits_all=True, verbose=False, n_threads=1)
model.eval(json.loads(sys.argv[2]))
print(json.dumps(model.scores[: len(json.loads(sys.argv[2]))].tolist()))
"""


def exported(root: Path, name: str) -> np.ndarray:
    """Export a small model with a start token; return its logits: (tokens, vocabulary)."""
    config: dict[str, Any] = dict(SMALL_MODELS[name])
    task: dict[str, Any] = {}
    if name in _MASKED:
        task = {"task": "masked_lm", "task_settings": {"mask_token": 3}}
    manifest, chunks = make_manifest(root / "blobs", config, **task)
    manifest = replace(manifest, data=replace(manifest.data, start_token=1, end_token=2))
    session = TrainingSession(manifest, BlobStore(root / "blobs"), CPU)
    session.load(chunks)
    # Parameters that attend to something.
    session.part.fill(ParameterFill(manifest.parameters))
    export(session, BlobStore(root / "blobs"), root / name)
    session.model.eval()
    with torch.no_grad():
        return session.model(input_ids=torch.tensor([_TOKENS])).logits[0].numpy()


def said(path: Path) -> dict[str, Any]:
    """What a GGUF file says of a model, by the last parts of its keys."""
    fields = gguf.GGUFReader(path).fields
    keys = ("context_length", "rope.freq_base", "rope.scaling.type", "add_bos_token")
    found = {key: field.contents() for key, field in fields.items()}
    return {key: value for key in keys for name, value in found.items() if name.endswith(f".{key}")}


def convert(options: argparse.Namespace, root: Path, name: str) -> dict[str, Any]:
    """Export, convert and compare one architecture."""
    meant = exported(root, name)
    if name in _SENTENCEPIECE:
        text = root / "text"
        text.write_bytes(Path(__file__).read_bytes() * 4)
        made = root / "vocabulary"
        command = [options.python, "-c", _VOCABULARY, str(text), str(made)]
        subprocess.run(command, check=True, capture_output=True)
        made.with_suffix(".model").replace(root / name / "tokenizer.model")
    path = root / f"{name}.gguf"
    command = [options.python, "-c", _CONVERT, options.converter, str(root / name)]
    command += ["--outtype", "f32", "--outfile", str(path)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    if ended.returncode or not path.exists():
        return {"converted": False, "problem": (ended.stderr.splitlines() or ["?"])[-1]}
    result: dict[str, Any] = {"converted": True, **said(path)}
    if options.run and name not in _MASKED:
        command = [options.python, "-c", _RUN, str(path), json.dumps(_TOKENS)]
        ran = subprocess.run(command, capture_output=True, text=True, check=False)
        if ran.returncode:
            result["problem"] = (ran.stderr.splitlines() or [f"exit code {ran.returncode}"])[-1]
        else:
            scores = np.array(json.loads(ran.stdout.splitlines()[-1]))[:, : meant.shape[1]]
            result["largest_difference"] = float(np.abs(scores - meant).max())
            result["spread"] = float(meant.std())
    return result


def main() -> None:
    """Convert every architecture, print a line for each, and write the results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--converter", required=True, help="convert_hf_to_gguf.py")
    parser.add_argument("--python", default=sys.executable, help="runs the converter")
    parser.add_argument("--run", action="store_true", help="run the files with llama-cpp-python")
    parser.add_argument("--only", nargs="*", default=list(SMALL_MODELS))
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    results = {}
    with tempfile.TemporaryDirectory() as place:
        for name in options.only:
            results[name] = convert(options, Path(place), name)
            print(name, results[name], flush=True)
    passed = sum(result["converted"] for result in results.values())
    print(f"{passed} of {len(results)} converted")
    if options.json:
        options.json.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
