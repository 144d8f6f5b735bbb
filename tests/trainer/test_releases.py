"""Two major releases of transformers: a member with the other one trains the same model, or none."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from distro_node.node.storage.blob_store import BlobStore
from distro_node.node.trainer.models.export import export
from distro_node.node.trainer.models.probe import make_probe
from distro_node.node.trainer.models.probe_parameters import ParameterFill
from distro_node.node.training.tokenizer_settings import TokenizerSettings
from safetensors.torch import save_file
from tokenizers.processors import TemplateProcessing
from trainer.releases import run_here, run_older
from trainer.small_models import SMALL_MODELS
from trainer.support import make_manifest, make_session
from trainer.test_export import bpe, session_with
from trainer.test_probe import GEMMA2, SMALL

pytestmark = pytest.mark.slow

# As transformers 5 saves it.
ROPE = {"rope_parameters": {"rope_theta": 500_000.0, "rope_type": "default"}}
OTHERS: dict[str, dict[str, Any]] = {
    "llama": SMALL | ROPE,
    "qwen3": SMALL | ROPE | {"model_type": "qwen3", "head_dim": 16},
    # It falls back to an attention without the soft-capping.
    "gemma2": GEMMA2,
    "smollm3": SMALL | ROPE | {"model_type": "smollm3", "pad_token_id": 0},
}
SAME = {"llama with rope_theta": SMALL | {"rope_theta": 500_000.0}}
TOKENS = [(7 * i * i + 3) % 256 for i in range(40)]

PROGRAM = """
import json, sys, warnings
from pathlib import Path
warnings.simplefilter("ignore")
import torch, transformers
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoModelForMaskedLM, AutoTokenizer
from distro_node.node.storage.blob_store import BlobStore
from distro_node.node.training.errors import TrainerFailed
from distro_node.node.trainer.training_session import TrainingSession
from distro_node.protocol.wire.encoding import decode
from distro_node.protocol.wire.manifest import MAX_MANIFEST_BYTES, Manifest

root, tokens = Path(sys.argv[1]), torch.tensor([json.loads(sys.argv[2])])
kinds, off, texts = {}, {}, {}
for path in sorted(root.glob("*.manifest")):
    manifest = decode(Manifest, path.read_bytes(), max_bytes=MAX_MANIFEST_BYTES, named=True)
    session = TrainingSession(manifest, BlobStore(root / "blobs"), torch.device("cpu"))
    try:
        session.prove()
        kinds[path.stem] = "same"
    except TrainerFailed as error:
        kinds[path.stem] = error.kind
for path in sorted((root / "exports").iterdir()):
    kind = AutoModelForMaskedLM if path.name in ("bert", "roberta") else AutoModelForCausalLM
    # It is the reader's choice, and the default of one release leaves Gemma's soft-capping out.
    model = kind.from_pretrained(path, attn_implementation="eager").float().eval()
    with torch.no_grad():
        logits = model(input_ids=tokens).logits
    off[path.name] = float((logits - load_file(path / "meant.logits")["logits"]).abs().max())
    AutoTokenizer.from_pretrained(path)
for path in sorted((root / "texts").iterdir()):
    tokenizer = AutoTokenizer.from_pretrained(path)
    talk = tokenizer.apply_chat_template([{"role": "user", "content": "a"}], tokenize=False)
    texts[path.name] = [
        tokenizer("ab")["input_ids"],
        tokenizer("a", "b")["input_ids"],
        tokenizer.encode("ab", add_special_tokens=False),
        tokenizer.encode(talk, add_special_tokens=False),
    ]
print(json.dumps([transformers.__version__, kinds, off, texts]))
"""


def write_manifests(root: Path) -> None:
    """Write manifests with probes, of models that transformers 4 computes otherwise or alike."""
    for name, config in (OTHERS | SAME).items():
        manifest, _ = make_manifest(root / "blobs", config)
        probe = make_probe(manifest, BlobStore(root / "blobs"))
        (root / f"{name}.manifest").write_bytes(dataclasses.replace(manifest, probe=probe).encode())


def export_all(root: Path) -> None:
    """Export every architecture, each with the logits that it must compute."""
    for name, config in SMALL_MODELS.items():
        task: dict[str, Any] = {}
        if name in ("bert", "roberta"):
            task = {"task": "masked_lm", "task_settings": {"mask_token": 3}}
        session = make_session(root / "blobs", config=config, **task)
        # Parameters that attend to something.
        session.part.fill(ParameterFill(session.manifest.parameters))
        export(session, BlobStore(root / "blobs"), root / "exports" / name)
        session.model.eval()
        with torch.no_grad():
            logits = session.model(input_ids=torch.tensor([TOKENS])).logits
        save_file({"logits": logits.contiguous()}, root / "exports" / name / "meant.logits")


def export_tokenizers(root: Path) -> dict[str, list[list[int]]]:
    """Export tokenizers with and without a start token, of which some add one themselves, and return
    the tokens that are meant."""
    tokenizer, meant = bpe("<s>", "</s>"), {}
    settings = TokenizerSettings(
        bos_token="<s>", eos_token="</s>", chat_template="{{ bos_token }}{{ messages[0].content }}"
    )
    adds = TemplateProcessing(
        single="<s> $A </s>", pair="<s> $A $B </s>", special_tokens=[("<s>", 0), ("</s>", 1)]
    )
    a, b = (tokenizer.token_to_id(letter) for letter in "ab")
    for own in (None, adds):
        if own is not None:
            tokenizer.post_processor = own
        for start in (None, 0):
            session = session_with(root / "blobs", tokenizer, settings)
            data = dataclasses.replace(session.manifest.data, start_token=start, end_token=1)
            session.manifest = dataclasses.replace(session.manifest, data=data)
            name = f"{'adds' if own else 'plain'}-{start}"
            export(session, BlobStore(root / "blobs"), root / "texts" / name)
            first = [] if start is None else [start]
            meant[name] = [[*first, a, b], [*first, a, *first, b], [a, b], [0, a]]
    return meant


def test_a_member_trains_the_same_model_or_none_and_exports_are_the_same(tmp_path: Path) -> None:
    write_manifests(tmp_path)
    export_all(tmp_path)
    meant = export_tokenizers(tmp_path)
    for run, release in ((run_older, "4."), (run_here, "5.")):
        found, kinds, off, texts = json.loads(run(PROGRAM, tmp_path, json.dumps(TOKENS)))
        assert found.startswith(release)
        other = "other_model" if run is run_older else "same"
        assert kinds == dict.fromkeys(OTHERS, other) | dict.fromkeys(SAME, "same")
        assert off.keys() == SMALL_MODELS.keys()
        assert {name: each for name, each in off.items() if each > 1e-4} == {}
        assert texts == meant
