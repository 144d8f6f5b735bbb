"""Adapters beside frozen weights: the table, initial values, training, restarts, exports, refusals."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from distro_node.node.storage.blob_store import BlobStore
from distro_node.node.trainer.models.adapters import adapter_table, draw_adapters
from distro_node.node.trainer.models.export import export
from distro_node.node.trainer.models.initial_parameters import Lora, initialise
from distro_node.node.trainer.models.model import model_config, new_model
from distro_node.node.trainer.models.read_export import compare_export
from distro_node.node.trainer.optimizer.fingerprint import fingerprint
from distro_node.node.trainer.training_session import TrainingSession
from distro_node.node.training.errors import TrainerFailed
from distro_node.protocol.wire.blobs import BlobList, decode_blob_list
from distro_node.protocol.wire.manifest import (
    AdapterSpec,
    Manifest,
    ParameterSpec,
)
from peft import PeftModel
from trainer.support import CPU, TINY_LLAMA, make_manifest, make_session, write_checkpoint
from transformers import AutoModelForCausalLM

LORA = Lora(rank=4, alpha=8.0)
TINY_GPT2: dict[str, Any] = {
    "model_type": "gpt2",
    "n_embd": 32,
    "n_layer": 1,
    "n_head": 2,
    "n_positions": 64,
    "vocab_size": 256,
    # Otherwise its logits differ from one call to the next.
    "attn_pdrop": 0.0,
    "embd_pdrop": 0.0,
    "resid_pdrop": 0.0,
}
RATE = 2.0**-8
TOKENS = torch.arange(24).view(2, 12)


def base_of(manifest: Manifest) -> AdapterSpec:
    assert manifest.adapter is not None
    return manifest.adapter


def trained(root: Path, config: dict[str, Any] = TINY_LLAMA) -> TrainingSession:
    """Return a session after three rounds, so that B is no longer zero."""
    session = make_session(root, config=config, lora=LORA)
    for round_ in (1, 2, 3):
        body = session.train(round_, [4 * round_ + i for i in range(4)]).body
        session.apply(round_, [body], RATE, True)
    return session


def logits(model: Any) -> torch.Tensor:
    with torch.no_grad():
        return model.eval()(input_ids=TOKENS).logits


def prove(manifest: Manifest, store: BlobStore) -> None:
    session = TrainingSession(manifest, store, CPU)
    session.prove()
    session.read_base()


def refused(manifest: Manifest, root: Path, words: str = "", kind: str = "bad_model") -> None:
    with pytest.raises(TrainerFailed, match=words or None) as caught:
        prove(manifest, BlobStore(root))
    assert (caught.value.kind, "\n" in str(caught.value)) == (kind, False)


@pytest.fixture
def session(tmp_path: Path) -> TrainingSession:
    return trained(tmp_path / "blobs")


def test_the_table_names_adapters_alone_and_the_model_begins_as_the_checkpoint(
    tmp_path: Path,
) -> None:
    session, store = make_session(tmp_path, lora=LORA), BlobStore(tmp_path)
    manifest, base = session.manifest, base_of(session.manifest)
    layers = ("self_attn." + n for n in ("q_proj", "k_proj", "v_proj", "o_proj"))
    expected = [
        f"model.layers.0.{layer}.lora_{part}.weight"
        for layer in (*layers, "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj")
        for part in "AB"
    ]
    assert [spec.name for spec in manifest.parameters] == expected
    assert [spec.shape for spec in manifest.parameters[-2:]] == [(4, 48), (32, 4)]
    assert [tensor.name for tensor in session.layout.tensors] == expected
    assert [tuple(p.shape) for p in session.parameters] == [s.shape for s in manifest.parameters]
    assert base.targets == tuple(sorted({name.split(".")[-3] for name in expected}))
    whole = new_model(model_config(TINY_LLAMA), CPU)
    assert base.base_elements == sum(p.numel() for p in whole.parameters())
    # Only the adapters are sent and stored.
    blobs = decode_blob_list(store.get(manifest.initial) or b"", "snapshot", 4 * manifest.elements)
    assert blobs == session.snapshot()

    write_checkpoint(tmp_path / "base", TINY_LLAMA)
    checkpoint = AutoModelForCausalLM.from_pretrained(tmp_path / "base")
    assert torch.equal(logits(session.model), logits(checkpoint))
    other = initialise(TINY_LLAMA, 4, tmp_path / "base", store, CPU, LORA)
    assert other.adapter == manifest.adapter
    assert other.blobs != blobs, "another seed gives the same adapters"


def test_where_a_seed_begins_is_written_down() -> None:
    """The numbers themselves: an implementation that draws others makes other swarms from the same
    file."""
    table = (
        ParameterSpec(name="x.lora_A.weight", shape=(4, 48)),
        ParameterSpec(name="x.lora_B.weight", shape=(32, 4)),
    )
    drawn = [torch.full(spec.shape, 9.0) for spec in table]
    draw_adapters(drawn, table, 0)
    assert f"{fingerprint(drawn):016x}" == "a9f48671ac43fb6a"
    a, b = drawn
    assert 0.9 / 48**0.5 < float(a.abs().max()) <= 1 / 48**0.5
    assert not b.any()


def test_replicas_are_equal_to_the_bit_learn_and_leave_the_base(tmp_path: Path) -> None:
    sessions = [make_session(tmp_path / name, lora=LORA) for name in "ab"]
    manifest = sessions[0].manifest
    before, frozen, prints = (
        sessions[0].computation.evaluate(16),
        frozen_of(sessions[0]),
        set[int](),
    )
    for round_ in range(1, 9):
        shares = (range(16 * round_ + 8 * i, 16 * round_ + 8 * i + 8) for i in range(2))
        bodies = [s.train(round_, share).body for s, share in zip(sessions, shares, strict=True)]
        assert all(len(body) == sessions[0].layout.body_bytes for body in bodies)
        prints = {
            s.apply(round_, bodies[::order], 2.0**-6, True)
            for s, order in zip(sessions, (1, -1), strict=True)
        }
        assert len(prints) == 1
    (taken,) = {session.snapshot() for session in sessions}
    assert taken.size == 4 * manifest.elements
    for session in sessions:
        after = frozen_of(session)
        assert frozen.keys() == after.keys()
        assert all(torch.equal(frozen[name], after[name]) for name in frozen)
    assert sessions[0].computation.evaluate(16) < before - 0.1
    again = TrainingSession(manifest, BlobStore(tmp_path / "a"), CPU)
    assert again.load(taken.chunks) in prints
    assert again.train(9, [0]).tokens == 32


def frozen_of(session: TrainingSession) -> dict[str, torch.Tensor]:
    named = session.model.named_parameters()
    return {name: p.detach().clone() for name, p in named if not p.requires_grad}


@pytest.mark.parametrize("config", [TINY_LLAMA, TINY_GPT2], ids=["llama", "gpt2"])
def test_peft_opens_the_adapter_and_transformers_the_merged_model(
    tmp_path: Path, config: dict[str, Any]
) -> None:
    session, store = trained(tmp_path / "blobs", config), BlobStore(tmp_path / "blobs")
    before = fingerprint(session.parameters)
    for merged in (False, True):
        place = tmp_path / f"out{merged}"
        export(session, store, place, merged=merged)
        found = compare_export(session, store, place)
        assert (found["fingerprint"], found["differing"]) == (before, [])
        assert found["blob_list"] == session.snapshot().encode()
    assert not (tmp_path / "outFalse" / "model.safetensors").exists()
    write_checkpoint(tmp_path / "base", config)
    base = AutoModelForCausalLM.from_pretrained(tmp_path / "base")
    apart, meant = logits(base), logits(session.model)
    opened = PeftModel.from_pretrained(base, tmp_path / "outFalse")
    assert torch.equal(logits(opened), meant)
    assert not torch.allclose(logits(opened), apart)
    merged_model = AutoModelForCausalLM.from_pretrained(tmp_path / "outTrue")
    assert torch.allclose(logits(merged_model), meant, rtol=0, atol=2e-6)


def test_an_adapter_that_was_changed_is_told(session: TrainingSession, tmp_path: Path) -> None:
    store, place = BlobStore(tmp_path / "blobs"), tmp_path / "out"
    export(session, store, place)
    config = json.loads((place / "adapter_config.json").read_text())
    config["target_modules"].reverse()
    for key, value in ((None, None), ("lora_alpha", 16.0), ("use_rslora", True)):
        changed = config | ({} if key is None else {key: value})
        (place / "adapter_config.json").write_text(json.dumps(changed))
        differing = compare_export(session, store, place)["differing"]
        assert differing == ([] if key is None else [f"{key} in adapter_config.json"])
    weights = place / "adapter_model.safetensors"
    for damage in (b"", b"\xff" * 100, None):
        weights.unlink() if damage is None else weights.write_bytes(damage)
        with pytest.raises(TrainerFailed, match=r"adapter_model\.safetensors cannot be read"):
            compare_export(session, store, place)


def test_merged_weights_that_are_not_the_adapters(session: TrainingSession, tmp_path: Path) -> None:
    store, place = BlobStore(tmp_path / "blobs"), tmp_path / "out"
    export(session, store, place, merged=True)
    model = AutoModelForCausalLM.from_pretrained(place)
    with torch.no_grad():
        model.model.layers[0].mlp.up_proj.weight[5, 7] += 1e-5
    model.save_pretrained(place)
    with pytest.raises(TrainerFailed, match=r"up_proj\.weight is not the base's") as refused:
        compare_export(session, store, place)
    assert refused.value.kind == "bad_model"


@pytest.mark.parametrize(
    ("lora", "match"),
    [
        (Lora(rank=4, alpha=8.0, targets=("qproj",)), "no linear layer called 'qproj'; it has"),
        (Lora(rank=4, alpha=8.0, targets=("lm_head",)), "no linear layer called 'lm_head'"),
        (Lora(rank=33, alpha=8.0), "a rank of 33 is more than the 32 inputs"),
    ],
)
def test_what_a_founder_asks_for(tmp_path: Path, lora: Lora, match: str) -> None:
    write_checkpoint(tmp_path / "base", TINY_LLAMA)
    with pytest.raises(TrainerFailed, match=match) as caught:
        initialise(TINY_LLAMA, 0, tmp_path / "base", BlobStore(tmp_path / "blobs"), CPU, lora)
    assert caught.value.kind == "bad_model"
    with pytest.raises(TrainerFailed, match="need a checkpoint"):
        initialise(TINY_LLAMA, 0, None, BlobStore(tmp_path), CPU, LORA)


def test_a_base_that_is_missing_can_be_fetched(tmp_path: Path) -> None:
    manifest, _ = make_manifest(tmp_path, lora=LORA)
    store, base = BlobStore(tmp_path), base_of(manifest)
    listed = store.get(base.base) or b""
    (chunk,) = decode_blob_list(listed, "snapshot", 4 * base.base_elements).chunks
    weights = store.get(chunk) or b""
    store.remove(chunk)
    refused(manifest, tmp_path, "1 of 1 chunks of the base model are missing", "bad_snapshot")
    # A chunk damaged on disk counts as missing.
    store.path(chunk).write_bytes(weights[:-1] + b"x")
    refused(manifest, tmp_path, kind="bad_snapshot")
    store.remove(base.base)
    refused(manifest, tmp_path, kind="bad_snapshot")
    store.put(listed)
    store.put(weights)
    prove(manifest, store)


def test_a_base_that_is_none(tmp_path: Path) -> None:
    """Only the swarm's founder can cause this: everything hashes to what the manifest names."""
    manifest, _ = make_manifest(tmp_path, lora=LORA)
    store, base = BlobStore(tmp_path), base_of(manifest)
    whole = 4 * base.base_elements
    for size, chunk, words in (
        (whole - 4, bytes(whole - 4), "the base model cannot be used"),
        (whole, bytes(whole - 4), f"not {whole}"),
        (whole, bytes(whole - 4) + b"\x00\x00\x80\x7f", "not finite"),
        (None, b"junk", ""),
    ):
        stored = store.put(chunk)
        if size is not None:
            stored = store.put(BlobList(kind="snapshot", size=size, chunks=(stored,)).encode())
        changed = dataclasses.replace(base, base=stored)
        refused(dataclasses.replace(manifest, adapter=changed), tmp_path, words)


def test_a_table_that_is_not_the_adapters(tmp_path: Path) -> None:
    manifest, _ = make_manifest(tmp_path, lora=LORA)
    table, base = manifest.parameters, base_of(manifest)
    reshaped = dataclasses.replace(table[-1], shape=(4, 32))
    for changed, words in (
        (table[:-1], "lacks model"),
        ((*table[:-1], reshaped), "is not one of its adapters"),
        ((*table, table[0]), "is not one of its adapters"),
        ((*table, base.base_parameters[0]), "is not one of its adapters"),
    ):
        refused(dataclasses.replace(manifest, parameters=changed), tmp_path, words)
    more = dataclasses.replace(base, rank=5)
    refused(dataclasses.replace(manifest, adapter=more), tmp_path)


def test_a_rank_may_be_as_large_as_the_smaller_side() -> None:
    model = new_model(model_config(TINY_LLAMA), torch.device("meta"))
    table = adapter_table(model, 32, ("down_proj",))
    assert [spec.shape for spec in table] == [(32, 48), (32, 32)]
