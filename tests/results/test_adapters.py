"""The results of a swarm that trains adapters: the adapters alone, or a model with them merged."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from distro_node.node.errors import ExitCode, UserError
from distro_node.node.results.export import ExportSettings, export_swarm
from distro_node.node.results.generate import GenerateSettings, open_writer
from distro_node.node.results.verify import Verified, VerifySettings, verify_model
from distro_node.node.settings.tree import NEWEST, StateSelector
from distro_node.node.storage.blob_store import BlobStore
from distro_node.node.trainer.models.initial_parameters import Lora
from peft import PeftModel
from results.support import LAST, Made, make_swarm
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoTokenizer

# Each export and each verification starts a trainer.
pytestmark = pytest.mark.slow

TOKENS = torch.arange(24).view(2, 12)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """Return a finished run. Tests may not modify it."""
    return make_swarm(tmp_path_factory.mktemp("finished"), lora=Lora(rank=4, alpha=8.0))


def names_in(directory: Path) -> list[str]:
    return [path.name for path in directory.iterdir()]


async def export(made: Made, to: Path, *, merged: bool, selector: StateSelector = NEWEST) -> Path:
    asked = ExportSettings(
        swarm=made.manifest.swarm, data_dir=made.data.root, to=to, selector=selector, merged=merged
    )
    done = await export_swarm(asked)
    assert done.parameters == made.manifest.elements
    return to


async def verify(made: Made, directory: Path) -> Verified:
    return await verify_model(
        VerifySettings(directory=directory, swarm=made.manifest.swarm, data_dir=made.data.root)
    )


async def test_both_ways_out_are_the_same_model_and_the_swarms(
    finished: Made, tmp_path: Path
) -> None:
    apart = await export(finished, tmp_path / "apart", merged=False)
    whole = await export(finished, tmp_path / "whole", merged=True)
    base = await export(finished, tmp_path / "base", merged=True, selector=StateSelector(round=0))
    # Before the first round the merged model equals the base.
    opened = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base), apart)
    merged = AutoModelForCausalLM.from_pretrained(whole)
    with torch.no_grad():
        ours, theirs = opened.eval()(input_ids=TOKENS), merged.eval()(input_ids=TOKENS)
    assert torch.allclose(ours.logits, theirs.logits, rtol=0, atol=2e-6)
    for directory in (apart, whole):
        assert AutoTokenizer.from_pretrained(directory)("round")["input_ids"]
        facts = json.loads((directory / "distro-node.json").read_text())
        assert facts["parameters"] == finished.manifest.elements
        assert facts["adapter"]["base_parameters"] == finished.manifest.frozen_elements
        found = await verify(finished, directory)
        assert found.round == LAST
        assert found.fingerprint == f"{finished.fingerprints[-1]:016x}"
    assert "PeftModel.from_pretrained" in (apart / "README.md").read_text()
    assert "library_name: peft" in (apart / "README.md").read_text()
    assert "PeftModel" not in (whole / "README.md").read_text()


async def test_what_was_changed_is_found_out(finished: Made, tmp_path: Path) -> None:
    directory = await export(finished, tmp_path / "apart", merged=False)
    path = directory / "adapter_model.safetensors"
    tensors = load_file(path)
    flat = tensors[sorted(tensors)[0]].view(-1)
    flat[7] = flat[7].nextafter(flat[7] + 1)
    save_file(tensors, path, {"format": "pt"})
    with pytest.raises(UserError, match="agreed on other parameters") as refused:
        await verify(finished, directory)
    assert refused.value.code == ExitCode.NOT_THE_SWARMS


async def test_the_base_that_is_named_is_not_checked(finished: Made, tmp_path: Path) -> None:
    """Libraries open the base that an adapter names, and put the adapter into it."""
    directory = await export(finished, tmp_path / "apart", merged=False)
    other = await export(finished, tmp_path / "other", merged=True, selector=StateSelector(round=0))
    path = directory / "adapter_config.json"
    said = json.loads(path.read_text())
    assert (await verify(finished, directory)).unchecked == ()
    path.write_text(json.dumps(said | {"base_model_name_or_path": str(other)}))
    assert AutoModelForCausalLM.from_pretrained(directory).num_parameters()
    named = "base_model_name_or_path in adapter_config.json"
    assert (await verify(finished, directory)).unchecked == (named,)


async def test_it_writes(finished: Made) -> None:
    asked = GenerateSettings(
        swarm=finished.manifest.swarm, data_dir=finished.data.root, seed=3, max_tokens=6
    )
    pieces: list[str] = []
    async with open_writer(asked) as writer:
        await writer.write("swarm ", pieces.append)
    assert pieces


async def test_without_the_base_there_is_no_model(tmp_path: Path) -> None:
    made = make_swarm(tmp_path / "data", lora=Lora(rank=4, alpha=8.0))
    assert made.manifest.adapter is not None
    BlobStore(made.data.blobs).remove(made.manifest.adapter.base)
    with pytest.raises(UserError, match="the base model is missing") as refused:
        await export(made, tmp_path / "model", merged=True)
    assert refused.value.code == ExitCode.MANIFEST
    assert not (tmp_path / "model").exists()


async def test_of_a_whole_model_there_is_nothing_to_merge(tmp_path: Path) -> None:
    made = make_swarm(tmp_path / "data", rounds=1)
    with pytest.raises(UserError, match="nothing to merge") as refused:
        await export(made, tmp_path / "model", merged=True)
    assert refused.value.code == ExitCode.USAGE


@pytest.fixture
def full(tmp_path: Path) -> Iterator[Path]:
    """Mount a file system with room for the smaller files, but not for the adapters as well."""
    place = tmp_path / "full"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=8k", "none", str(place)]
    if subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("mounting takes root")
    yield place
    subprocess.run(["umount", str(place)], check=True)


async def test_a_full_disk_is_one_line_and_nothing_stays(finished: Made, full: Path) -> None:
    with pytest.raises(UserError) as refused:
        await export(finished, full / "model", merged=False)
    assert refused.value.code == ExitCode.DISK_FULL
    assert names_in(full) == []
