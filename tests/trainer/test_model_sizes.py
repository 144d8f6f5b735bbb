"""The memory of activations that is forecast for a model, beside what the model itself keeps."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from distro_node.node.trainer.models.expert_products import cast_expert_products
from distro_node.node.trainer.models.model import model_config, new_model
from distro_node.node.trainer.optimizer.mixed_precision import MixedPrecision
from distro_node.node.trainer.tasks.packing import document_inputs
from distro_node.node.training.architectures import ARCHITECTURES
from distro_node.node.training.memory_model import Workload, needs
from distro_node.node.training.memory_options import MemoryOptions
from distro_node.node.training.model_sizes import DEFAULTS, model_sizes
from trainer.support import CPU
from transformers.integrations import moe

# Private here: `_grouped_mm`: the library's function that a trainer process replaces.

TOKENS = 256
SIZES: dict[str, Any] = {
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_attention_heads": 8,
    "vocab_size": 256,
    "max_position_embeddings": 512,
    "pad_token_id": 0,
}
GROUPED = SIZES | {"num_key_value_heads": 2}
EXPERTS = GROUPED | {"num_experts": 16, "num_experts_per_tok": 8}
MODELS: dict[str, dict[str, Any]] = {
    "llama": GROUPED,
    "gemma3_text": GROUPED | {"head_dim": 16, "query_pre_attn_scalar": 16},
    "mixtral": GROUPED | {"num_local_experts": 8, "num_experts_per_tok": 2},
    "olmoe": EXPERTS | {"intermediate_size": 64},
    "qwen3_moe": EXPERTS | {"intermediate_size": 256, "moe_intermediate_size": 48},
    "qwen2_moe": EXPERTS
    | {"num_experts_per_tok": 4, "moe_intermediate_size": 88}
    | {"shared_expert_intermediate_size": 352},
    "granite": GROUPED | {"attention_dropout": 0.1},
    "gpt_neox": SIZES | {"attention_dropout": 0.1},
}


def kept_by_layer(config: dict[str, Any], precision: MixedPrecision, *, documents: bool) -> int:
    """Return the bytes that a layer keeps for the backward pass of one sequence, without its weights."""
    found = []
    for layers in (2, 3):
        model = new_model(model_config(config | {"num_hidden_layers": layers}), CPU).train()
        weights = {each.untyped_storage().data_ptr() for each in model.parameters()}
        begins = torch.arange(TOKENS)[None] % 64 == 0
        inputs = document_inputs(begins, model.config) if documents else {}
        kept: dict[int, torch.UntypedStorage] = {}

        def keep(tensor: torch.Tensor, kept=kept, weights=weights) -> torch.Tensor:
            storage = tensor.untyped_storage()
            if storage.data_ptr() not in weights:
                kept[storage.data_ptr()] = storage
            return tensor

        with (
            torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor),
            precision.autocast(),
        ):
            model.base_model(
                input_ids=torch.ones(1, TOKENS, dtype=torch.int64), use_cache=False, **inputs
            )
        size = sum(storage.nbytes() for storage in kept.values())
        if precision.dtype is not None:
            size -= 2 * sum(each.numel() for each in model.parameters())
        found.append(size)
    return found[1] - found[0]


def forecast_by_layer(config: dict[str, Any], device: str, *, documents: bool) -> int:
    def activations(layers: int) -> int:
        work = Workload(
            config=config | {"num_hidden_layers": layers},
            parameters=(),
            sequence_length=TOKENS,
            documents=documents,
        )
        return needs(work, device, MemoryOptions()).phases[0][1].device

    return activations(3) - activations(2)


@pytest.mark.parametrize("documents", [False, True], ids=["sequence", "document"])
@pytest.mark.parametrize("model_type", MODELS)
def test_what_a_layer_keeps_is_forecast(
    model_type: str, documents: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    # What is changed in the library is undone after the test.
    monkeypatch.setattr(moe, "_grouped_mm", moe._grouped_mm)
    cast_expert_products()
    config = MODELS[model_type] | {"model_type": model_type}
    kept = kept_by_layer(config, MixedPrecision(CPU, None), documents=documents)
    assert kept == pytest.approx(forecast_by_layer(config, "cpu", documents=documents), rel=0.06)
    if "attention_dropout" in config:
        # A GPU's kernels drop scores without keeping them, which a CPU's cannot show.
        config |= {"attention_dropout": 0.0}
    kept = kept_by_layer(config, MixedPrecision(CPU, torch.bfloat16), documents=documents)
    assert kept == pytest.approx(forecast_by_layer(config, "cuda", documents=documents), rel=0.06)


def test_dropout_that_a_task_turns_off_keeps_no_scores() -> None:
    for config in ({"model_type": "gpt2"}, {"model_type": "granite", "attention_dropout": 0.1}):
        assert model_sizes(config, "cpu").scores > 0
        assert model_sizes(config, "cpu", dropout=False).scores == 0
    assert model_sizes({"model_type": "granite", "attention_dropout": 0.1}, "cuda").scores == 0


@pytest.mark.parametrize("given", [{}, {"hidden_size": 512, "num_attention_heads": 16}], ids=str)
@pytest.mark.parametrize("model_type", ARCHITECTURES)
def test_sizes_that_a_configuration_leaves_out_are_the_library_s(
    model_type: str, given: dict[str, int]
) -> None:
    assert set(DEFAULTS) == set(ARCHITECTURES)
    if model_type == "gpt2" and given:
        given = {"n_embd": 512, "n_head": 16}
    config = {"model_type": model_type, **given}
    library: Any = model_config(config)
    heads = library.num_attention_heads
    each = getattr(library, "head_dim", None) or library.hidden_size // heads
    found = model_sizes(config, "cpu")
    assert found.layers == library.num_hidden_layers
    assert found.hidden == library.hidden_size
    assert found.vocabulary == library.vocab_size
    assert (found.heads, found.queries) == (heads, heads * each)
    assert found.keys == each * (getattr(library, "num_key_value_heads", None) or heads)
    assert found.experts == (getattr(library, "num_experts", None) or 0)
    if not found.experts:
        inner = getattr(library, "intermediate_size", None) or 4 * library.hidden_size
        assert found.inner == inner
    else:
        expert = getattr(library, "moe_intermediate_size", None) or library.intermediate_size
        shared = getattr(library, "shared_expert_intermediate_size", 0)
        assert found.inner == library.num_experts_per_tok * expert + shared
