"""Members can run whatever `create` accepts: over all architectures and their switches."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from distro_node.node.create.model_config import complete_model
from distro_node.node.storage.blob_store import BlobStore
from distro_node.node.trainer.models.export import export
from distro_node.node.trainer.models.probe import make_probe
from distro_node.node.trainer.models.read_export import compare_export
from distro_node.node.trainer.training_session import TrainingSession
from distro_node.node.training.architectures import ARCHITECTURES
from distro_node.node.training.errors import TrainerFailed
from distro_node.protocol.wire.structure import StructureError
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from trainer.small_models import SMALL_MODELS
from trainer.support import CPU, make_manifest

pytestmark = pytest.mark.slow

VALUES: dict[str, list[Any]] = {
    "head_dim": [8, 16],
    "num_key_value_heads": [1, 2, 4],
    "rope_scaling": [
        None,
        {"rope_type": "linear", "factor": 2.0},
        {"rope_type": "dynamic", "factor": 2.0},
        {"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 16},
    ],
    "rope_parameters": [{"rope_type": "default", "rope_theta": 5000.0}],
    "sliding_window": [None, 4, 16],
    "hidden_act": ["silu", "gelu", "relu"],
    "hidden_activation": ["gelu_pytorch_tanh", "gelu"],
    "max_window_layers": [0, 1, 2],
    "layer_types": [["full_attention"] * 2, ["sliding_attention", "full_attention"]],
    "clip_qkv": [None, 1.0],
    "attn_logit_softcapping": [None, 20.0],
    "final_logit_softcapping": [None, 20.0],
    "norm_topk_prob": [False, True],
    "decoder_sparse_step": [1, 2],
    "mlp_only_layers": [[], [0]],
    "partial_rotary_factor": [0.5, 1.0],
    "scale_attn_by_inverse_layer_idx": [False, True],
    "position_embedding_type": ["absolute"],
    "tie_word_embeddings": [False, True],
    "attention_bias": [False, True],
    "mlp_bias": [False, True],
    "use_sliding_window": [False, True],
    "qkv_bias": [False, True],
    "qk_layernorm": [False, True],
    "use_qkv_bias": [False, True],
    "use_parallel_residual": [False, True],
    "scale_attn_weights": [False, True],
    "reorder_and_upcast_attn": [False, True],
}


@st.composite
def configurations(draw: st.DrawFn, model_type: str) -> dict[str, Any]:
    """Draw a small configuration with some of its keys at other values."""
    keys = sorted(set(ARCHITECTURES[model_type]) & set(VALUES))
    chosen = draw(st.lists(st.sampled_from(keys), max_size=4, unique=True))
    return SMALL_MODELS[model_type] | {key: draw(st.sampled_from(VALUES[key])) for key in chosen}


def test_every_architecture_is_here() -> None:
    assert SMALL_MODELS.keys() == ARCHITECTURES.keys()


@pytest.mark.parametrize("model_type", ARCHITECTURES)
@settings(
    max_examples=3,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow],
)
@given(data=st.data())
def test_what_create_accepts_trains_and_exports(model_type: str, data: st.DataObject) -> None:
    config = data.draw(configurations(model_type))
    task: dict[str, Any] = {}
    if model_type in ("bert", "roberta"):
        task = {"task": "masked_lm", "task_settings": {"mask_token": 3}}
    with TemporaryDirectory() as directory:
        root = Path(directory)
        store = BlobStore(root / "blobs")
        try:
            # What `create` does, up to the texts.
            known = complete_model(config, vocabulary=256, sequence_length=32, fresh=True)
            manifest, chunks = make_manifest(root / "blobs", known, **task)
            manifest = dataclasses.replace(manifest, probe=make_probe(manifest, store))
        except (StructureError, TrainerFailed):
            return
        # And a member, which has only the manifest's bytes.
        again = dataclasses.replace(manifest, model=json.loads(json.dumps(manifest.model)))
        session = TrainingSession(again, store, CPU)
        session.prove()
        session.load(chunks)
        session.apply(1, [session.train(1, [0, 1]).body], 2.0**-8, True)
        export(session, store, root / "out")
        found = compare_export(session, store, root / "out")
        assert found["differing"] == []
        assert found["fingerprint"] == session.part.fingerprint()
        # The export can be the start of a swarm.
        written = json.loads((root / "out" / "config.json").read_text())
        complete_model(written, vocabulary=256, sequence_length=32)
