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
from distro_node.node.trainer.training_session import TrainingSession
from distro_node.node.training.tokenizer_settings import TokenizerSettings
from safetensors.torch import save_file
from tokenizers.processors import TemplateProcessing
from trainer.releases import run_here, run_older
from trainer.small_models import SMALL_MODELS
from trainer.support import CPU, make_manifest
from trainer.test_export import bpe, session_with
from trainer.test_probe import GEMMA2, SMALL

pytestmark = pytest.mark.slow

# As transformers 5 saves it.
ROPE = {"rope_parameters": {"rope_theta": 500_000.0, "rope_type": "default"}}
CONFIGURATIONS: dict[str, dict[str, Any]] = {
    "llama": SMALL | ROPE,
    "qwen2": SMALL | ROPE | {"model_type": "qwen2"},
    "qwen3": SMALL | ROPE | {"model_type": "qwen3", "head_dim": 16},
    "mistral": SMALL | ROPE | {"model_type": "mistral"},
    # It falls back to an attention without the soft-capping.
    "gemma2": GEMMA2,
    "smollm3": SMALL | ROPE | {"model_type": "smollm3", "pad_token_id": 0},
}
SAME = {"llama with rope_theta": SMALL | {"rope_theta": 500_000.0}}

MEMBER = """
import json, sys, warnings
from pathlib import Path
warnings.simplefilter("ignore")
import torch, transformers
from distro_node.node.storage.blob_store import BlobStore
from distro_node.node.training.errors import TrainerFailed
from distro_node.node.trainer.training_session import TrainingSession
from distro_node.protocol.wire.encoding import decode
from distro_node.protocol.wire.manifest import MAX_MANIFEST_BYTES, Manifest

found = {"release": transformers.__version__}
for path in sorted(Path(sys.argv[1]).glob("*.manifest")):
    manifest = decode(Manifest, path.read_bytes(), max_bytes=MAX_MANIFEST_BYTES, named=True)
    session = TrainingSession(manifest, BlobStore(Path(sys.argv[1]) / "blobs"), torch.device("cpu"))
    try:
        session.prove()
        found[path.stem] = "same"
    except TrainerFailed as error:
        found[path.stem] = error.kind
print(json.dumps(found))
"""


def test_a_member_with_transformers_4_does_not_train_another_model(tmp_path: Path) -> None:
    for name, config in (CONFIGURATIONS | SAME).items():
        manifest, _ = make_manifest(tmp_path / "blobs", config)
        probe = make_probe(manifest, BlobStore(tmp_path / "blobs"))
        manifest = dataclasses.replace(manifest, probe=probe)
        (tmp_path / f"{name}.manifest").write_bytes(manifest.encode())
    found = json.loads(run_older(MEMBER, tmp_path))
    assert found.pop("release").startswith("4.")
    assert found == dict.fromkeys(CONFIGURATIONS, "other_model") | dict.fromkeys(SAME, "same")


OPENED = """
import json, sys, warnings
from pathlib import Path
warnings.simplefilter("ignore")
import torch, transformers
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoModelForMaskedLM, AutoTokenizer

tokens = torch.tensor([json.loads(sys.argv[2])])
found = {"release": transformers.__version__}
for path in sorted(Path(sys.argv[1]).iterdir()):
    kind = AutoModelForMaskedLM if path.name in ("bert", "roberta") else AutoModelForCausalLM
    # It is the reader's choice, and the default of one release leaves Gemma's soft-capping out.
    model = kind.from_pretrained(path, attn_implementation="eager").float().eval()
    with torch.no_grad():
        logits = model(input_ids=tokens).logits
    meant = load_file(path / "meant.logits")["logits"]
    found[path.name] = float((logits - meant).abs().max())
    AutoTokenizer.from_pretrained(path)
print(json.dumps(found))
"""
TOKENS = [(7 * i * i + 3) % 256 for i in range(40)]


def exported(root: Path) -> Path:
    """Export every architecture, each with the logits that it must compute."""
    for name, config in SMALL_MODELS.items():
        task: dict[str, Any] = {}
        if name in ("bert", "roberta"):
            task = {"task": "masked_lm", "task_settings": {"mask_token": 3}}
        manifest, chunks = make_manifest(root / "blobs", config, **task)
        session = TrainingSession(manifest, BlobStore(root / "blobs"), CPU)
        session.load(chunks)
        # Parameters that attend to something.
        session.part.fill(ParameterFill(manifest.parameters))
        export(session, BlobStore(root / "blobs"), root / "exports" / name)
        session.model.eval()
        with torch.no_grad():
            logits = session.model(input_ids=torch.tensor([TOKENS])).logits
        save_file({"logits": logits.contiguous()}, root / "exports" / name / "meant.logits")
    return root / "exports"


def test_an_export_is_the_same_model_in_both_releases(tmp_path: Path) -> None:
    exports = exported(tmp_path)
    found = json.loads(run_older(OPENED, exports, json.dumps(TOKENS)))
    assert found.pop("release").startswith("4.")
    assert found.keys() == SMALL_MODELS.keys()
    assert {name: off for name, off in found.items() if off > 1e-4} == {}
    here = json.loads(run_here(OPENED, exports, json.dumps(TOKENS)))
    assert here.pop("release").startswith("5.")
    assert {name: off for name, off in here.items() if off > 1e-4} == {}


CUT = """
import json, sys
from pathlib import Path
import transformers
from transformers import AutoTokenizer

found = {"release": transformers.__version__}
for path in sorted(Path(sys.argv[1]).iterdir()):
    tokenizer = AutoTokenizer.from_pretrained(path)
    talk = [{"role": "user", "content": "a"}]
    found[path.name] = [
        tokenizer("ab")["input_ids"],
        tokenizer("a", "b")["input_ids"],
        tokenizer.encode("ab", add_special_tokens=False),
        tokenizer.encode(
            tokenizer.apply_chat_template(talk, tokenize=False), add_special_tokens=False
        ),
    ]
print(json.dumps(found))
"""


def test_a_text_starts_alike_in_both_releases(tmp_path: Path) -> None:
    tokenizer = bpe("<s>", "</s>")
    settings = TokenizerSettings(
        bos_token="<s>", eos_token="</s>", chat_template="{{ bos_token }}{{ messages[0].content }}"
    )
    adds = TemplateProcessing(
        single="<s> $A </s>", pair="<s> $A $B </s>", special_tokens=[("<s>", 0), ("</s>", 1)]
    )
    a, b = (tokenizer.token_to_id(letter) for letter in "ab")
    meant = {}
    for own in (None, adds):
        if own is not None:
            tokenizer.post_processor = own
        for start in (None, 0):
            session = session_with(tmp_path / "blobs", tokenizer, settings)
            data = dataclasses.replace(session.manifest.data, start_token=start, end_token=1)
            session.manifest = dataclasses.replace(session.manifest, data=data)
            name = f"{'adds' if own else 'plain'}-{start}"
            export(session, BlobStore(tmp_path / "blobs"), tmp_path / "exports" / name)
            first = [] if start is None else [start]
            meant[name] = [[*first, a, b], [*first, a, *first, b], [a, b], [0, a]]
    older = json.loads(run_older(CUT, tmp_path / "exports"))
    assert older.pop("release").startswith("4.")
    assert older == meant
    here = json.loads(run_here(CUT, tmp_path / "exports"))
    assert here.pop("release").startswith("5.")
    assert here == meant
