"""Two major releases of transformers: a member of the other one trains the same model, or none."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from distro_node.node.storage.blob_store import BlobStore
from distro_node.node.trainer.probe import make_probe
from trainer.releases import run_older
from trainer.support import make_manifest
from trainer.test_probe import GEMMA2, SMALL

pytestmark = pytest.mark.slow

# As transformers 5 saves it.
ROPE = {"rope_parameters": {"rope_theta": 500_000.0, "rope_type": "default"}}
CONFIGURATIONS: dict[str, dict[str, Any]] = {
    "llama": SMALL | ROPE,
    "qwen2": SMALL | ROPE | {"model_type": "qwen2"},
    "qwen3": SMALL | ROPE | {"model_type": "qwen3", "head_dim": 16},
    "mistral": SMALL | ROPE | {"model_type": "mistral"},
    # It falls back to an attention that leaves out the soft-capping.
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
from distro_node.node.trainer.errors import TrainerFailed
from distro_node.node.trainer.session import TrainingSession
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
