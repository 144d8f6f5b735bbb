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
from distro_node.node.trainer.optimizer.momentum import load_momentum, save_momentum
from distro_node.node.trainer.training_session import TrainingSession
from distro_node.node.training.errors import TrainerFailed
from distro_node.protocol.wire.blobs import BlobList, decode_blob_list
from distro_node.protocol.wire.encoding import decode
from distro_node.protocol.wire.manifest import (
    MAX_MANIFEST_BYTES,
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


def refusal(manifest: Manifest, root: Path) -> TrainerFailed:
    with pytest.raises(TrainerFailed) as refused:
        TrainingSession(manifest, BlobStore(root), CPU).prove()
    assert "\n" not in str(refused.value)
    return refused.value


class TestStart:
    def test_the_table_names_adapters_alone(self, tmp_path: Path) -> None:
        manifest, chunks = make_manifest(tmp_path, lora=LORA)
        layers = ("self_attn." + n for n in ("q_proj", "k_proj", "v_proj", "o_proj"))
        expected = [
            f"model.layers.0.{layer}.lora_{part}.weight"
            for layer in (*layers, "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj")
            for part in "AB"
        ]
        assert [spec.name for spec in manifest.parameters] == expected
        assert manifest.parameters[-2].shape == (4, 48)
        assert manifest.parameters[-1].shape == (32, 4)
        base = base_of(manifest)
        assert base.targets == tuple(sorted({name.split(".")[-3] for name in expected}))
        assert base.base_elements == sum(
            p.numel() for p in new_model(model_config(TINY_LLAMA), CPU).parameters()
        )
        # Only the adapters are sent and stored.
        assert decode_blob_list(
            BlobStore(tmp_path).get(manifest.initial) or b"", "snapshot", 4 * manifest.elements
        ).chunks == tuple(chunks)
        session = TrainingSession(manifest, BlobStore(tmp_path), CPU)
        assert [tensor.name for tensor in session.layout.tensors] == expected
        assert [tuple(p.shape) for p in session.parameters] == [
            s.shape for s in manifest.parameters
        ]

    def test_a_seed_gives_the_same_bits(self, tmp_path: Path) -> None:
        write_checkpoint(tmp_path / "base", TINY_LLAMA)
        store = BlobStore(tmp_path / "blobs")

        def made(seed: int) -> Any:
            # Earlier draws, and peft's own, change nothing.
            torch.rand(seed + 1)
            return initialise(TINY_LLAMA, seed, tmp_path / "base", store, CPU, LORA)

        first, again, other = made(3), made(3), made(4)
        assert first == again
        assert first.blobs.chunks != other.blobs.chunks
        assert first.adapter == other.adapter

    def test_where_a_seed_begins_is_written_down(self) -> None:
        """The numbers themselves: an implementation that draws others makes other swarms from the
        same file."""
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

    def test_at_the_beginning_the_model_is_the_checkpoint(self, tmp_path: Path) -> None:
        write_checkpoint(tmp_path / "base", TINY_LLAMA)
        base = AutoModelForCausalLM.from_pretrained(tmp_path / "base")
        session = make_session(tmp_path / "blobs", lora=LORA)
        assert torch.equal(logits(session.model), logits(base))

    def test_without_adapters_a_manifest_keeps_its_bytes(self, tmp_path: Path) -> None:
        manifest, _ = make_manifest(tmp_path)
        assert b"adapter" not in manifest.encode()

    def test_a_manifest_with_adapters_comes_back(self, tmp_path: Path) -> None:
        manifest, _ = make_manifest(tmp_path, lora=LORA)
        again = decode(Manifest, manifest.encode(), max_bytes=MAX_MANIFEST_BYTES, named=True)
        assert again == manifest


class TestTraining:
    def test_the_base_stays_and_two_replicas_are_equal_to_the_bit(self, tmp_path: Path) -> None:
        sessions = [make_session(tmp_path / name, lora=LORA) for name in "ab"]
        manifest = sessions[0].manifest
        frozen = [
            {n: p.clone() for n, p in s.model.named_parameters() if not p.requires_grad}
            for s in sessions
        ]
        begun = fingerprint(sessions[0].parameters)
        for round_ in range(1, 5):
            bodies = [
                s.train(round_, [8 * round_ + 4 * i, 8 * round_ + 4 * i + 1]).body
                for i, s in enumerate(sessions)
            ]
            assert all(len(body) == sessions[0].layout.body_bytes for body in bodies)
            # In any order.
            prints = [
                s.apply(round_, bodies[:: 1 if i else -1], RATE, True)
                for i, s in enumerate(sessions)
            ]
            assert prints[0] == prints[1] != begun
        assert sessions[0].snapshot() == sessions[1].snapshot()
        assert sessions[0].snapshot().size == 4 * manifest.elements
        for session, before in zip(sessions, frozen, strict=True):
            after = {n: p for n, p in session.model.named_parameters() if not p.requires_grad}
            assert before.keys() == after.keys()
            assert all(torch.equal(before[name], after[name]) for name in before)

    def test_it_learns(self, tmp_path: Path) -> None:
        session = make_session(tmp_path, lora=LORA)
        before = session.evaluate(16)
        for round_ in range(1, 16):
            body = session.train(round_, [16 * round_ + i for i in range(16)]).body
            session.apply(round_, [body], 2.0**-6, True)
        assert session.evaluate(16) < before - 0.1

    def test_a_restart_goes_on_to_the_same_bits(self, tmp_path: Path) -> None:
        session = trained(tmp_path / "blobs")
        manifest, store = session.manifest, BlobStore(tmp_path / "blobs")
        taken = session.snapshot()
        save_momentum(session.optimizer, manifest.parameters, tmp_path / "momentum")
        again = TrainingSession(manifest, store, CPU)
        assert again.load(taken.chunks) == fingerprint(session.parameters)
        assert load_momentum(again.optimizer, manifest.parameters, tmp_path / "momentum")
        bodies = [s.train(4, [0, 1]).body for s in (session, again)]
        assert bodies[0] == bodies[1]
        assert session.apply(4, bodies[:1], RATE, True) == again.apply(4, bodies[:1], RATE, True)


@pytest.mark.parametrize("config", [TINY_LLAMA, TINY_GPT2], ids=["llama", "gpt2"])
class TestExport:
    def test_peft_opens_the_adapter(self, tmp_path: Path, config: dict[str, Any]) -> None:
        session = trained(tmp_path / "blobs", config)
        export(session, BlobStore(tmp_path / "blobs"), tmp_path / "out")
        assert not (tmp_path / "out" / "model.safetensors").exists()
        write_checkpoint(tmp_path / "base", config)
        base = AutoModelForCausalLM.from_pretrained(tmp_path / "base")
        apart = logits(base)
        opened = PeftModel.from_pretrained(base, tmp_path / "out")
        assert torch.equal(logits(opened), logits(session.model))
        assert not torch.allclose(logits(opened), apart)

    def test_transformers_opens_the_merged_model(
        self, tmp_path: Path, config: dict[str, Any]
    ) -> None:
        session = trained(tmp_path / "blobs", config)
        before = fingerprint(session.parameters)
        export(session, BlobStore(tmp_path / "blobs"), tmp_path / "out", merged=True)
        opened = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
        assert torch.allclose(logits(opened), logits(session.model), rtol=0, atol=2e-6)
        # And the session is unchanged.
        assert fingerprint(session.parameters) == before
        store = BlobStore(tmp_path / "blobs")
        assert compare_export(session, store, tmp_path / "out")["fingerprint"] == before


class TestExamined:
    @pytest.fixture
    def session(self, tmp_path: Path) -> TrainingSession:
        return trained(tmp_path / "blobs")

    def written(self, session: TrainingSession, directory: Path, *, merged: bool) -> Path:
        export(session, BlobStore(directory.parent / "blobs"), directory, merged=merged)
        return directory

    def examined(self, session: TrainingSession, directory: Path) -> dict[str, Any]:
        return compare_export(session, BlobStore(directory.parent / "blobs"), directory)

    def test_it_is_what_was_exported(self, session: TrainingSession, tmp_path: Path) -> None:
        for merged in (False, True):
            place = self.written(session, tmp_path / f"out{merged}", merged=merged)
            found = self.examined(session, place)
            assert found["fingerprint"] == fingerprint(session.parameters)
            assert found["blob_list"] == session.snapshot().encode()
            assert found["differing"] == []

    @pytest.mark.parametrize(("key", "value"), [("lora_alpha", 16.0), ("use_rslora", True)])
    def test_a_configuration_that_was_changed(
        self, session: TrainingSession, tmp_path: Path, key: str, value: Any
    ) -> None:
        place = self.written(session, tmp_path / "out", merged=False)
        said = json.loads((place / "adapter_config.json").read_text())
        said["target_modules"].reverse()
        (place / "adapter_config.json").write_text(json.dumps(said))
        assert self.examined(session, place)["differing"] == []
        (place / "adapter_config.json").write_text(json.dumps(said | {key: value}))
        assert self.examined(session, place)["differing"] == [f"{key} in adapter_config.json"]

    def test_merged_weights_that_are_not_the_adapters(
        self, session: TrainingSession, tmp_path: Path
    ) -> None:
        place = self.written(session, tmp_path / "out", merged=True)
        model = AutoModelForCausalLM.from_pretrained(place)
        with torch.no_grad():
            model.model.layers[0].mlp.up_proj.weight[5, 7] += 1e-5
        model.save_pretrained(place)
        with pytest.raises(TrainerFailed, match=r"up_proj\.weight is not the base's") as refused:
            self.examined(session, place)
        assert refused.value.kind == "bad_model"

    @pytest.mark.parametrize("damage", [b"", b"\xff" * 100, None], ids=["cut", "torn", "gone"])
    def test_a_file_that_is_none(
        self, session: TrainingSession, tmp_path: Path, damage: bytes | None
    ) -> None:
        place = self.written(session, tmp_path / "out", merged=False)
        if damage is None:
            (place / "adapter_model.safetensors").unlink()
        else:
            (place / "adapter_model.safetensors").write_bytes(damage)
        with pytest.raises(TrainerFailed, match=r"adapter_model\.safetensors cannot be read"):
            self.examined(session, place)


class TestRefusals:
    @pytest.mark.parametrize(
        ("lora", "match"),
        [
            (Lora(rank=4, alpha=8.0, targets=("qproj",)), "no linear layer called 'qproj'; it has"),
            (Lora(rank=4, alpha=8.0, targets=("lm_head",)), "no linear layer called 'lm_head'"),
            (Lora(rank=33, alpha=8.0), "a rank of 33 is more than the 32 inputs"),
        ],
    )
    def test_what_a_founder_asks_for(self, tmp_path: Path, lora: Lora, match: str) -> None:
        write_checkpoint(tmp_path / "base", TINY_LLAMA)
        with pytest.raises(TrainerFailed, match=match) as refused:
            initialise(TINY_LLAMA, 0, tmp_path / "base", BlobStore(tmp_path / "blobs"), CPU, lora)
        assert refused.value.kind == "bad_model"

    def test_adapters_without_a_checkpoint(self, tmp_path: Path) -> None:
        with pytest.raises(TrainerFailed, match="need a checkpoint"):
            initialise(TINY_LLAMA, 0, None, BlobStore(tmp_path), CPU, LORA)

    def test_a_base_that_is_missing_can_be_fetched(self, tmp_path: Path) -> None:
        manifest, _ = make_manifest(tmp_path, lora=LORA)
        store, base = BlobStore(tmp_path), base_of(manifest)
        listed = store.get(base.base) or b""
        (chunk,) = decode_blob_list(listed, "snapshot", 4 * base.base_elements).chunks
        weights = store.get(chunk) or b""
        store.remove(chunk)
        missing = refusal(manifest, tmp_path)
        assert missing.kind == "bad_snapshot"
        assert "1 of 1 chunks of the base model are missing" in str(missing)
        # A chunk damaged on disk counts as missing.
        store.path(chunk).write_bytes(weights[:-1] + b"x")
        assert refusal(manifest, tmp_path).kind == "bad_snapshot"
        store.remove(base.base)
        assert refusal(manifest, tmp_path).kind == "bad_snapshot"
        store.put(listed)
        store.put(weights)
        TrainingSession(manifest, store, CPU).prove()

    def test_a_base_that_is_none(self, tmp_path: Path) -> None:
        """Only the swarm's founder can cause this: everything hashes to what the manifest names."""
        manifest, _ = make_manifest(tmp_path, lora=LORA)
        store, base = BlobStore(tmp_path), base_of(manifest)

        def with_base(size: int, chunk: bytes) -> TrainerFailed:
            blobs = BlobList(kind="snapshot", size=size, chunks=(store.put(chunk),))
            changed = dataclasses.replace(base, base=store.put(blobs.encode()))
            return refusal(dataclasses.replace(manifest, adapter=changed), tmp_path)

        whole = 4 * base.base_elements
        cut = with_base(whole - 4, bytes(whole - 4))
        assert (cut.kind, "the base model cannot be used" in str(cut)) == ("bad_model", True)
        short = with_base(whole, bytes(whole - 4))
        assert (short.kind, f"not {whole}" in str(short)) == ("bad_model", True)
        bad = with_base(whole, bytes(whole - 4) + b"\x00\x00\x80\x7f")
        assert (bad.kind, "not finite" in str(bad)) == ("bad_model", True)
        junk = dataclasses.replace(base, base=store.put(b"junk"))
        assert refusal(dataclasses.replace(manifest, adapter=junk), tmp_path).kind == "bad_model"

    def test_a_table_that_is_not_the_adapters(self, tmp_path: Path) -> None:
        manifest, _ = make_manifest(tmp_path, lora=LORA)
        table = manifest.parameters
        for changed, match in (
            (table[:-1], "lacks model"),
            (
                (*table[:-1], dataclasses.replace(table[-1], shape=(4, 32))),
                "is not one of its adapters",
            ),
            ((*table, table[0]), "is not one of its adapters"),
            ((*table, base_of(manifest).base_parameters[0]), "is not one of its adapters"),
        ):
            refused = refusal(dataclasses.replace(manifest, parameters=changed), tmp_path)
            assert refused.kind == "bad_model"
            assert match in str(refused)
        more = dataclasses.replace(base_of(manifest), rank=5)
        assert refusal(dataclasses.replace(manifest, adapter=more), tmp_path).kind == "bad_model"

    def test_targets_have_one_spelling(self, tmp_path: Path) -> None:
        manifest, _ = make_manifest(tmp_path, lora=LORA)
        targets = base_of(manifest).targets
        for wrong in (targets[::-1], (*targets, targets[-1])):
            with pytest.raises(ValueError, match="sorted"):
                dataclasses.replace(base_of(manifest), targets=wrong)


def test_a_rank_may_be_as_large_as_the_smaller_side() -> None:
    model = new_model(model_config(TINY_LLAMA), torch.device("meta"))
    table = adapter_table(model, 32, ("down_proj",))
    assert [spec.shape for spec in table] == [(32, 48), (32, 32)]
