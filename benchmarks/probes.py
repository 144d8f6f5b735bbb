"""What distinguishes another model from another precision: losses of the probe, computed in many ways.

    python benchmarks/probes.py --json FILE

For each model: the difference between the losses of the probe (docs/protocol.md) in float32 with the
usual attention and those computed with another attention, with one thread, in bfloat16 (on the CPU,
with float32 sums), and of a configuration that is interpreted differently. And the same with newly
initialised parameters in place of the probe's, which is why the probe has its own.
"""

from __future__ import annotations

import argparse
import json
import logging
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch
from distro_node.node.trainer.models.model import auto_class, parameter_table
from distro_node.node.trainer.models.probe_parameters import ParameterFill
from distro_node.node.trainer.tasks.seeded_random import drawn
from transformers import AutoConfig, PreTrainedModel
from transformers.utils import logging as transformers_logging

LENGTHS = (256, 24, 24, 24, 24)
VOCABULARY = 1024
SIZES: dict[str, Any] = {
    "hidden_size": 256,
    "intermediate_size": 688,
    "num_hidden_layers": 8,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 32,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": 1024,
}
THETA = {"rope_theta": 500_000.0}
EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 172}
MODELS: dict[str, dict[str, Any]] = {
    "llama": THETA,
    "llama, 32 layers": THETA | {"num_hidden_layers": 32},
    "qwen3": THETA,
    "gemma2": THETA | {"sliding_window": 128, "query_pre_attn_scalar": 32},
    "mixtral": THETA | {"num_local_experts": 8, "num_hidden_layers": 4},
    "qwen3_moe": THETA | EXPERTS | {"num_experts": 8, "num_hidden_layers": 4},
}
OTHERS: dict[str, list[dict[str, Any]]] = {
    "llama": [{"rope_theta": 10_000.0}, {"hidden_act": "gelu"}, {"rms_norm_eps": 1e-5}],
    "gemma2": [
        {"rope_theta": 10_000.0},
        {"attn_logit_softcapping": None},
        {"final_logit_softcapping": None},
        {"sliding_window": 1024},
    ],
}


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--json", type=Path, help="write the figures here, too")
    chosen = arguments.parse_args()
    transformers_logging.set_verbosity_error()
    logging.disable()
    found = {name: figures(name) for name in MODELS}
    if chosen.json is not None:
        chosen.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


def figures(name: str) -> dict[str, float]:
    """Return the largest difference of a loss, by what was different."""
    kind = name.partition(",")[0]
    usual = SIZES | MODELS[name]
    attention = "eager" if kind == "gemma2" else "sdpa"
    meant = losses(built(kind, usual, attention))
    new = losses(built(kind, usual, attention, probe=False))
    rows: dict[str, float] = {}

    def row(what: str, values: list[float], against: list[float] = meant) -> None:
        rows[what] = max(abs(a - b) for a, b in zip(values, against, strict=True))
        print(f"{name:18} {what:48} {rows[what]:.2g}", flush=True)

    model = built(kind, usual, attention)
    if attention != "eager":
        row("attention: eager", losses(built(kind, usual, "eager")))
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    row("one thread", losses(model))
    torch.set_num_threads(threads)
    row("bfloat16", losses(model, narrow))
    for other in OTHERS.get(kind, [{"rope_theta": 10_000.0}]):
        ((key, value),) = other.items()
        row(f"{key} = {value}", losses(built(kind, usual | other, attention)))
    fresh = built(kind, usual, attention, probe=False)
    row("new parameters: bfloat16", losses(fresh, narrow), new)
    other = built(kind, usual | {"rope_theta": 10_000.0}, attention, probe=False)
    row("new parameters: rope_theta = 10000.0", losses(other), new)
    return rows


def narrow() -> AbstractContextManager[object]:
    """Return a context in which matrices are multiplied in bfloat16."""
    return torch.autocast("cpu", dtype=torch.bfloat16)


def built(kind: str, config: dict[str, Any], attention: str, *, probe: bool = True) -> Any:
    """Return a model with the probe's parameters, or with newly initialised ones."""
    made = AutoConfig.for_model(kind, **config)
    torch.manual_seed(0)
    model: PreTrainedModel = auto_class(made).from_config(made, attn_implementation=attention)
    model = model.float().eval()
    if probe:
        ParameterFill(parameter_table(model)).whole([*model.parameters()])
    return model


@torch.no_grad()
def losses(
    model: Any, context: Callable[[], AbstractContextManager[object]] = nullcontext
) -> list[float]:
    """Return the mean loss of each sample."""
    found = []
    for number, length in enumerate(LENGTHS):
        ids = torch.from_numpy(drawn("probe tokens 1", (number,), length + 1) % VOCABULARY)[None]
        with context():
            logits = model(input_ids=ids[:, :-1], use_cache=False).logits[0].float()
        found.append(float(torch.nn.functional.cross_entropy(logits, ids[0, 1:])))
    return found


if __name__ == "__main__":
    main()
