"""A trainer that computes another model than the swarm's detects it before its first update."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from distro_node.node.errors import ExitCode
from distro_node.node.settings.components import TrainerSettings
from distro_node.node.storage.blob_store import BlobStore
from distro_node.node.trainer.models.initial_parameters import Lora
from distro_node.node.trainer.models.probe import make_probe, probe_losses
from distro_node.node.trainer.models.probe_parameters import ParameterFill
from distro_node.node.trainer.training_session import TrainingSession
from distro_node.node.training.client import TrainerSpec, open_trainer
from distro_node.node.training.error_messages import explain_trainer
from distro_node.node.training.errors import TrainerFailed
from distro_node.node.training.initial_model import initialise_model
from distro_node.protocol.wire.blobs import decode_blob_list
from distro_node.protocol.wire.manifest import DataSpec, Manifest, ParameterSpec
from distro_node.protocol.wire.work_specs import ProbeSpec
from trainer.support import (
    CPU,
    TINY_LLAMA,
    make_manifest,
    refused,
    store_byte_tokenizer,
    store_shard,
)

SMALL = TINY_LLAMA | {"num_hidden_layers": 2}


def probed(root: Path, config: dict[str, Any] | None = None, **changes: Any) -> Manifest:
    """Return a manifest with its probe."""
    manifest, _ = make_manifest(root, config or SMALL, **changes)
    return dataclasses.replace(manifest, probe=make_probe(manifest, BlobStore(root)))


def proven(manifest: Manifest, root: Path) -> TrainingSession:
    session = TrainingSession(manifest, BlobStore(root), CPU)
    session.prove()
    return session


def refused_as_another(manifest: Manifest, root: Path, words: str = "", **changes: Any) -> None:
    with refused("other_model", words):
        proven(dataclasses.replace(manifest, **changes), root)


GEMMA2 = SMALL | {"model_type": "gemma2", "head_dim": 16, "sliding_window": 8}
GRANITE = SMALL | {"model_type": "granite", "attention_multiplier": 0.5}
SMOLLM3 = SMALL | {"model_type": "smollm3", "no_rope_layers": [1, 0], "pad_token_id": 0}


@pytest.mark.parametrize(
    ("config", "key", "other"),
    [
        (SMALL | {"rope_theta": 500_000.0}, "rope_theta", 10_000.0),
        (SMALL | {"rope_scaling": {"rope_type": "linear", "factor": 4.0}}, "rope_scaling", None),
        (SMALL, "hidden_act", "gelu"),
        (SMALL, "rms_norm_eps", 1e-2),
        (GEMMA2, "attn_logit_softcapping", None),
        (GEMMA2, "final_logit_softcapping", None),
        (GEMMA2, "sliding_window", 32),
        (GEMMA2, "query_pre_attn_scalar", 16),
        (GRANITE, "attention_multiplier", 1.0),
        (SMOLLM3, "no_rope_layers", [1, 1]),
    ],
)
def test_another_function_of_the_same_parameters_is_refused(
    tmp_path: Path, config: dict[str, Any], key: str, other: object
) -> None:
    manifest = probed(tmp_path, config)
    proven(manifest, tmp_path)
    assert manifest.probe is not None
    older = dataclasses.replace(manifest.probe, library="transformers 4.57.6")
    words = "the founder used transformers 4.57.6"
    refused_as_another(manifest, tmp_path, words, probe=older, model=config | {key: other})


def test_the_refusal_states_what_to_do() -> None:
    shown = explain_trainer(TrainerFailed("other_model", "losses differ"))
    assert shown.code == ExitCode.OTHER_MODEL
    assert "computes another model than the swarm's" in shown.problem
    assert "pip install" in shown.remedy


@pytest.mark.parametrize("lora", [None, Lora(rank=2, alpha=4.0)])
def test_after_it_a_session_trains_as_without_it(tmp_path: Path, lora: Lora | None) -> None:
    """Also one with adapters, whose base has its weights again."""
    manifest, chunks = make_manifest(tmp_path, SMALL, lora=lora)
    # A custom task may offer no probe: then there is nothing to prove.
    plain = proven(manifest, tmp_path)
    probe = make_probe(manifest, BlobStore(tmp_path))
    session = proven(dataclasses.replace(manifest, probe=probe), tmp_path)
    with pytest.raises(TrainerFailed, match="no parameters"):
        session.train(1, [0])
    assert plain.load(chunks) == session.load(chunks)
    assert plain.train(1, [0, 1]).body == session.train(1, [0, 1]).body
    assert plain.computation.evaluate(2) == session.computation.evaluate(2)
    if manifest.adapter is not None:
        # An adapter with another scale is another model.
        louder = dataclasses.replace(manifest.adapter, alpha=8.0)
        refused_as_another(manifest, tmp_path, probe=probe, adapter=louder)


def test_every_task_of_language_has_one(tmp_path: Path) -> None:
    store = BlobStore(tmp_path)
    shard = store_shard(store, np.zeros(400, dtype="<u2"))
    data = DataSpec(
        sequence_length=32,
        token_bytes=2,
        vocabulary=256,
        shards=(shard,),
        heldout=shard,
        tokenizer=store_byte_tokenizer(store),
        marked=True,
        attention="document",
    )
    marked = probed(tmp_path, SMALL, task="sft", data=data)
    proven(marked, tmp_path)
    refused_as_another(marked, tmp_path, model=SMALL | {"rope_theta": 50.0})
    # Attention across documents is another function, too.
    across = dataclasses.replace(data, attention="sequence")
    refused_as_another(marked, tmp_path, data=across)
    pairs = {"task": "dpo", "data": dataclasses.replace(data, attention="sequence")}
    preferring = probed(tmp_path, SMALL, **pairs)
    proven(preferring, tmp_path)
    refused_as_another(preferring, tmp_path, model=SMALL | {"rope_theta": 50.0})
    bert = {key: SMALL[key] for key in SMALL if key != "num_key_value_heads"}
    bert |= {"model_type": "bert", "hidden_act": "gelu"}
    gaps = {"task": "masked_lm", "task_settings": {"mask_token": 3, "share": 0.3}}
    masked = probed(tmp_path, bert, **gaps)
    proven(masked, tmp_path)
    refused_as_another(masked, tmp_path, model=bert | {"hidden_act": "relu"})


def test_bfloat16_stays_within_its_tolerance(tmp_path: Path) -> None:
    manifest = probed(tmp_path, SMALL | {"num_hidden_layers": 8})
    assert manifest.probe is not None
    session = TrainingSession(manifest, BlobStore(tmp_path), CPU)
    session.part.fill(ParameterFill(manifest.parameters))
    found = probe_losses(
        session.task,  # type: ignore[arg-type]  # all tasks of language have a probe
        session.model,
        manifest.probe.lengths,
        lambda: torch.autocast("cpu", dtype=torch.bfloat16),
    )
    off = max(abs(a - b) for a, b in zip(found, manifest.probe.losses, strict=True))
    assert manifest.probe.tolerance < off < manifest.probe.narrow_tolerance


def test_its_parameters_are_the_same_in_pieces() -> None:
    """As several devices fill their own bands."""
    table = (ParameterSpec(name="a.weight", shape=(30, 20)), ParameterSpec(name="b", shape=(7,)))
    fill = ParameterFill(table, 999_900)
    whole = [torch.empty(30, 20), torch.empty(7)]
    fill.fill_all(whole)
    pieces = torch.empty(600)
    for start in range(0, 600, 40):
        fill.fill_part(pieces[start : start + 40], 0, start)
    assert torch.equal(pieces, whole[0].view(-1))
    # Fixed for ever: another release of torch must not draw others.
    frozen = [0.5907411, 0.7541249, 0.5538695, 1.1428392, 1.0051587, 1.1914449, 0.7020488]
    assert whole[1].tolist() == pytest.approx(frozen)


def test_a_probe_that_cannot_be_meant_does_not_decode() -> None:
    for wrong in (
        {"lengths": (4,), "losses": (1.0, 2.0)},
        {"lengths": (4,), "losses": (math.nan,)},
        {"lengths": (4,), "losses": (1.0,), "tolerance": math.inf},
    ):
        with pytest.raises(ValueError, match="a probe"):
            ProbeSpec(**wrong)


async def test_a_founder_computes_it_and_a_trainer_process_refuses(tmp_path: Path) -> None:
    manifest, chunks = make_manifest(tmp_path, SMALL)
    made = await initialise_model(SMALL, 0, None, tmp_path, "cpu", describe=lambda _: manifest)
    assert made.probe == make_probe(manifest, BlobStore(tmp_path))
    # The parameters are those of the seed.
    assert made.parameters == manifest.parameters
    blobs = decode_blob_list(made.blob_list, "snapshot", 4 * manifest.elements)
    assert blobs.chunks == tuple(chunks)
    other = dataclasses.replace(manifest, probe=made.probe, model=SMALL | {"rope_theta": 1e6})
    for encoded, kind in ((other.encode(), "other_model"), (b"\x80", "bad_model")):
        spec = TrainerSpec(encoded, tmp_path, TrainerSettings(device="cpu"))
        with refused(kind):
            async with open_trainer(spec):
                pytest.fail("it trains another model")
