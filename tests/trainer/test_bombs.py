"""Configurations made to keep a trainer busy or to fill its memory: refused before they can."""

from __future__ import annotations

import signal
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from distro_node.node.storage.blob_store import BlobStore
from distro_node.node.trainer.models import model as model_module
from distro_node.node.trainer.models.initial_parameters import initialise
from distro_node.node.trainer.models.model import build_model, model_config, new_model
from distro_node.node.training.architectures import ARCHITECTURES, check_configuration
from distro_node.node.training.errors import TrainerFailed
from distro_node.protocol.wire.manifest import ParameterSpec
from distro_node.protocol.wire.structure import StructureError
from trainer.small_models import SMALL_MODELS
from trainer.support import CPU, TINY_LLAMA, refused
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

TABLE = (ParameterSpec(name="model.embed_tokens.weight", shape=(256, 32)),)


@pytest.mark.parametrize(
    "changes",
    [
        {"num_labels": 30_000_000},
        {"id2label": None, "num_hidden_layers": 3_000_000},
        {"model_type": "bart", "decoder_layers": 3_000_000},
        {"model_type": "mpt", "max_seq_len": 2_000_000_000},
        {"model_type": "mixtral", "num_local_experts": 2**31 - 1},
        {"model_type": "reformer", "axial_pos_shape": [65_536, 65_536]},
        {"model_type": "gpt2", "n_positions": 50_000},
        {"attribute_map": {"zz": "_attn_implementation"}, "zz": "flash_attention_2"},
        {"rope_parameters": {"rope_type": "yarn", "factor": float("inf")}},
        {"rope_parameters": {"rope_type": "longrope", "short_factor": [1.0] * 5000}},
        {"rope_scaling": {"rope_type": "default", "more": {"nested": 1}}},
        {"eos_token_id": [0] * 100},
        {"hidden_act": "somebody/kernel"},
        {"to_dict": "boom"},
        {"vocab_size": 10**30},
        {"initializer_range": float("nan")},
        {"rms_norm_eps": True},
    ],
)
def test_it_is_refused_before_a_library_sees_it(
    monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any]
) -> None:
    def loaded(*_: object, **__: object) -> None:
        pytest.fail("the library was asked")

    monkeypatch.setattr(model_module.AutoConfig, "for_model", loaded)
    with refused("bad_model") as told:
        build_model(TINY_LLAMA | changes, TABLE, CPU)
    assert len(told[0]) < 400


def test_the_message_about_a_huge_value_is_short() -> None:
    for value in ("x" * 10**6, 10**5000, [1] * 10**6, {"a": "b" * 10**6}):
        with pytest.raises(StructureError) as caught:
            check_configuration(TINY_LLAMA | {"hidden_size": value})
        assert len(str(caught.value)) < 200


@pytest.mark.parametrize("model_type", sorted(ARCHITECTURES))
def test_a_checkpoints_own_configuration_is_known(model_type: str) -> None:
    """All keys that transformers writes, except those without an effect on the model."""
    written = CONFIG_MAPPING[model_type](**SMALL_MODELS[model_type]).to_dict()
    kept = check_configuration(written)
    again = new_model(model_config(kept), torch.device("meta"))
    assert again.config.to_dict() | {"dtype": None} == written | {"dtype": None}


def test_tables_beside_the_parameters_are_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, real = initialise(TINY_LLAMA, 0, None, BlobStore(tmp_path), CPU), model_module.new_model

    def with_a_mask(config: Any, device: torch.device) -> Any:
        assert device.type == "meta", "it was built before it was measured"
        model = real(config, device)
        model.register_buffer("mask", torch.empty(1 << 27, dtype=torch.uint8, device=device))
        return model

    monkeypatch.setattr(model_module, "new_model", with_a_mask)
    with pytest.raises(TrainerFailed, match="128 MiB in addition to its parameters"):
        build_model(TINY_LLAMA, made.table, CPU)


def test_laying_out_a_model_has_a_time_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    def endless(*_: object) -> None:
        while True:
            time.sleep(0.01)

    monkeypatch.setattr(model_module, "_BUILD_SECONDS", 0.05)
    monkeypatch.setattr(model_module, "new_model", endless)
    before = signal.getsignal(signal.SIGALRM)
    with pytest.raises(TrainerFailed, match="building it takes more than"):
        build_model(TINY_LLAMA, TABLE * 2, CPU)
    assert signal.getsignal(signal.SIGALRM) is before
