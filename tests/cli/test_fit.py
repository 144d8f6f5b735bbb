"""`distro-node fit`: what a model takes, whether it fits, and which targets are refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from chain.committee_chain import AggregatedChain
from cli.schemas import conforms
from create.test_checkpoint import write_tokenizer
from distro_node.crypto.identity import Identity, peer_text
from distro_node.node import memory_fit
from distro_node.node.create.manifest_draft import read_draft
from distro_node.node.errors import ExitCode
from distro_node.node.storage.data_dir import DataDir
from distro_node.node.training.device_probe import Survey
from distro_node.node.training.errors import TrainerFailed
from distro_node.protocol.wire.manifest import AuditsSpec, Manifest, ParameterSpec
from PIL import Image
from simulation.chain import Chain


@pytest.fixture
def there(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Return a function that sets what the trainer process reports of the device."""

    def say(kind: str, device: int, host: int = 0, count: int = 1) -> None:
        async def survey(name: str, config: Any = None, lora: Any = None) -> Survey:
            return Survey(kind, f"{kind} (a card)", device, host, (), count)

        monkeypatch.setattr(memory_fit, "survey", survey)

    return say


BYTES = """
name = "a run"
[model]
model_type = "llama"
hidden_size = 8
num_attention_heads = 2
[data]
sequence_length = 16
"""
FROM_CHECKPOINT = """
name = "a run"
[model]
checkpoint = "base"
[data]
sequence_length = 16
document_end = "<end>"
"""
OF_IMAGES = """
name = "a run"
task = "diffusion"
[task_settings]
size = 8
channels = 1
[model]
block_out_channels = [8, 16]
model_type = "unet2d"
[data]
"""


@pytest.fixture
def manifest(tmp_path: Path) -> Path:
    """Return a file with a swarm's manifest."""
    path = tmp_path / "manifest"
    # Sizes that fit its few parameters: the library's own would be those of 7B.
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "vocab_size": 256}
    model = {"model_type": "llama", "num_attention_heads": 1, **sizes}
    path.write_bytes(replace(Chain(0).manifest, model=model).encode())
    return path


def test_a_manifest_fits(command, there, manifest: Path) -> None:
    there("cuda", 24 * 10**9, 32 * 10**9)
    result = command("fit", manifest)
    assert result.code == 0, result
    assert "24.0 GB can be used, and 32.0 GB of main memory" in result.out
    assert "A node would use" in result.out
    for part in ("parameters", "momentum", "second moment", "working memory"):
        assert part in result.out


def test_what_does_not_fit_is_another_exit_code(command, there, manifest: Path) -> None:
    there("cuda", 24 * 10**9, 32 * 10**9)
    result = command("fit", manifest, "--memory", "1kB", "--json")
    assert result.code == ExitCode.UNFIT
    found = json.loads(result.out)
    conforms("fit", found)
    assert not found["fits"]
    assert found["room"]["device"] == 1000
    assert not any(choice["chosen"] for choice in found["choices"])
    assert "The model does not fit" in command("fit", manifest, "--memory", "1kB").out


@pytest.mark.parametrize(
    ("room", "described", "words"),
    [
        (
            "audit_bytes",
            replace(Chain(0).manifest, audits=AuditsSpec()),
            "audit each other's work",
        ),
        (
            "aggregator_room",
            AggregatedChain(6).manifest,
            "Committees of members aggregate the updates",
        ),
    ],
)
def test_what_else_wants_memory_is_reported_where_there_is_any_of_it(
    command, there, manifest: Path, tmp_path: Path, room: str, described: Manifest, words: str
) -> None:
    there("cuda", 24 * 10**9, 32 * 10**9)
    assert json.loads(command("fit", manifest, "--json").out)[room] == 0
    assert words not in command("fit", manifest).out
    path = tmp_path / "described"
    path.write_bytes(described.encode())
    found = json.loads(command("fit", path, "--json").out)
    conforms("fit", found)
    # Twelve bytes per parameter, whatever the precision of the training state.
    assert found[room] == 12 * found["parameters"]
    assert words in command("fit", path).out


def test_several_devices_have_copies_if_they_fit_or_else_shards(
    command, there, manifest: Path
) -> None:
    def fit(each: int) -> dict[str, Any]:
        there("cuda", each, 32 * 10**9, 4)
        done = command("fit", manifest, "--device", "cuda:0,cuda:1,cuda:2,cuda:3", "--json")
        found = json.loads(done.out)
        conforms("fit", found)
        assert found["devices"] == 4
        return found

    roomy = fit(24 * 10**9)
    assert (roomy["shards"], roomy["fits"]) == (False, True)
    # Training must leave some room free, so this is too little for a copy.
    least = min(choice["device_bytes"] for choice in roomy["choices"])
    assert not fit(2 * least)["shards"]
    narrow = fit(least)
    assert narrow["shards"]
    forced = command("fit", manifest, "--device", "all", "--split", "copies", "--json")
    assert forced.code == ExitCode.UNFIT
    assert not json.loads(forced.out)["shards"]
    out = command("fit", manifest, "--device", "all").out
    assert "Each of the 4 devices would hold a part of the model." in out


def test_a_swarm_that_is_stored_here(command, there, home: Path) -> None:
    there("cpu", 10**12)
    manifest = Chain(0).manifest
    place = DataDir(home).swarm(manifest.swarm).manifest
    place.parent.mkdir(parents=True)
    place.write_bytes(manifest.encode())
    from distro_node.protocol.wire.swarm_id import swarm_text

    result = command("fit", swarm_text(manifest.swarm), "--data-dir", home, "--json")
    found = json.loads(result.out)
    conforms("fit", found)
    assert found["choices"][0]["chosen"]
    # On a CPU there is no other memory besides main memory.
    assert {choice["place"] for choice in found["choices"]} == {"device"}
    # What passes a link on may write its slashes as %2F: then it is longer than a file's name.
    peer = quote(
        f"/dns4/{'a' * 150}/tcp/4001/p2p/{peer_text(Identity.from_seed(bytes(32)).peer)}", ""
    )
    link = f"distro:{swarm_text(manifest.swarm)}?bootstrap={peer}"
    assert command("fit", link, "--data-dir", home).code == 0


@pytest.mark.slow
def test_processors_have_one_memory_together(command, manifest: Path) -> None:
    found = json.loads(command("fit", manifest, "--device", "cpu,cpu", "--json").out)
    assert (found["devices"], found["shards"], found["kind"]) == (2, False, "cpu")
    assert found["device"].endswith("× 2")
    alone = json.loads(command("fit", manifest, "--device", "cpu", "--json").out)
    needed = [each["choices"][0]["device_bytes"] for each in (alone, found)]
    assert needed[1] > needed[0]


@pytest.mark.slow
def test_a_founder_s_file(command, checkout: Path) -> None:
    """With a real trainer process, which builds the model."""
    preset = checkout / "node" / "create" / "manifests" / "llama-1.2b.toml"
    result = command("fit", preset, "--device", "cpu", "--memory", "1TB", "--json")
    assert result.code == 0, result
    found = json.loads(result.out)
    assert found["parameters"] == 1_204_881_408
    assert found["kind"] == "cpu"


def test_what_is_no_manifest(command, there, manifest: Path) -> None:
    there("cpu", 10**12)
    manifest.write_bytes(b"nothing of the kind")
    command("fit", manifest).refused_with(ExitCode.MANIFEST, "cannot be read as a manifest")
    command("fit", "nothing").refused_with(ExitCode.BAD_SWARM_ID)


def test_a_device_that_is_not_there(
    command, manifest: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def survey(*_: Any) -> Survey:
        raise TrainerFailed("no_device", "no device 'cuda' here")

    monkeypatch.setattr(memory_fit, "survey", survey)
    command("fit", manifest, "--device", "cuda").refused_with(ExitCode.NO_DEVICE)
    command("fit", manifest, "--device", "toaster").refused_with(ExitCode.NO_DEVICE)


@pytest.mark.parametrize(
    ("text", "vocabulary"),
    [
        (BYTES, 256),
        (BYTES + 'tokenizer = "few/tokenizer.json"\ndocument_end = "<end>"', 12),
        (BYTES.replace("hidden_size", "vocab_size = 300\nhidden_size"), 300),
        (FROM_CHECKPOINT, 20),
        (FROM_CHECKPOINT.replace("[data]", "[model.lora]\nrank = 2\n[data]"), 20),
        (OF_IMAGES, None),
    ],
    ids=["bytes", "few tokens", "spare rows", "checkpoint", "adapters", "images"],
)
def test_a_founder_s_file_is_asked_about_as_create_will_make_it(
    command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, text: str, vocabulary: int | None
) -> None:
    write_tokenizer(tmp_path / "few" / "tokenizer.json", "<end>", "<begin>")
    write_tokenizer(tmp_path / "base" / "tokenizer.json", "<end>", "<begin>")
    (tmp_path / "base" / "config.json").write_text(
        '{"model_type": "llama", "hidden_size": 8, "num_attention_heads": 2, "vocab_size": 20}'
    )
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "a.txt").write_text("w1 w2 w3")
    Image.new("L", (8, 8)).save(tmp_path / "texts" / "a.png")
    path = tmp_path / "run.toml"
    path.write_text(text)
    asked: list[Any] = []

    async def survey(name: str, config: Any = None, lora: Any = None) -> Survey:
        asked.append((config, lora))
        table = (ParameterSpec(name="weight", shape=(64, 64)),)
        return Survey("cpu", "cpu", 10**12, 0, table, frozen=0 if lora is None else 1000)

    monkeypatch.setattr(memory_fit, "survey", survey)
    done = command("fit", path, "--json")
    assert done.code == 0, done
    conforms("fit", json.loads(done.out))
    draft = read_draft(path, (tmp_path / "texts",))
    wanted = None if draft.lora is None else draft.lora.for_trainer()
    assert asked == [(draft.model, wanted)]
    assert draft.model.get("vocab_size") == vocabulary
    beside = " in adapters, and 1,000 frozen ones" if wanted else ""
    assert command("fit", path).out.startswith(f"{draft.file.name}: 4,096 parameters{beside}\n")


def test_a_tokenizer_that_is_not_there_stops_only_what_depends_on_it(
    command, there, tmp_path: Path
) -> None:
    path = tmp_path / "run.toml"
    path.write_text(BYTES + 'tokenizer = "nowhere.json"')
    command("fit", path).refused_with(ExitCode.MANIFEST, "nowhere.json")


def test_a_founder_s_file_states_what_takes_memory_beside_the_model(
    command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    async def survey(name: str, config: Any = None, lora: Any = None) -> Survey:
        return Survey("cpu", "cpu", 10**12, 0, (ParameterSpec(name="weight", shape=(64, 64)),))

    monkeypatch.setattr(memory_fit, "survey", survey)
    path = tmp_path / "run.toml"

    def least(text: str) -> int:
        path.write_text(text)
        return min(
            choice["device_bytes"]
            for choice in json.loads(command("fit", path, "--json").out)["choices"]
        )

    plain = least(BYTES)
    # A second momentum, in place of the second moment, and a copy of all parameters in float32.
    assert least(BYTES + "[rounds]\nlocal_steps = 4\n") >= plain + 4 * 64 * 64
    # Conversations are kept apart by a mask unless the file wishes otherwise.
    conversations = BYTES.replace("[model]", 'task = "sft"\n[model]')
    in_sequence = least(conversations + 'attention = "sequence"\n')
    assert least(conversations) > in_sequence
    # Preferences are learned without dropout, so that no attention scores are kept.
    dropping = BYTES.replace(
        "num_attention_heads = 2", "num_attention_heads = 2\nattention_dropout = 0.1"
    )
    assert least(dropping.replace("[model]", 'task = "dpo"\n[model]')) < least(dropping)
