"""`distro-node fit`: what a model takes, whether it fits, and what cannot be asked about."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cli.schemas import conforms
from distro_node.node import fitting
from distro_node.node.errors import ExitCode
from distro_node.node.storage.data_dir import DataDir
from distro_node.node.trainer.errors import TrainerFailed
from distro_node.node.trainer.survey import Survey
from simulation.chain import Chain


@pytest.fixture
def there(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """What a trainer process would say of the device."""

    def say(kind: str, device: int, host: int = 0) -> None:
        async def survey(name: str, config: Any = None) -> Survey:
            return Survey(kind, f"{kind} (a card)", device, host, ())

        monkeypatch.setattr(fitting, "survey", survey)

    return say


@pytest.fixture
def manifest(tmp_path: Path) -> Path:
    """A swarm's, in a file."""
    path = tmp_path / "manifest"
    path.write_bytes(Chain(0).manifest.encode())
    return path


def test_a_manifest_fits(command, there, manifest: Path) -> None:
    there("cuda", 24 * 10**9, 32 * 10**9)
    result = command("fit", manifest)
    assert result.code == 0, result
    assert "24.0 GB may be taken, and 32.0 GB of main memory" in result.out
    assert "A node takes" in result.out
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
    assert "does not fit in any way" in command("fit", manifest, "--memory", "1kB").out


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
    # There is no main memory beside the main memory.
    assert {choice["place"] for choice in found["choices"]} == {"device"}


@pytest.mark.slow
def test_a_founder_s_file(command, checkout: Path) -> None:
    """By a real trainer process, which lays the model out."""
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

    monkeypatch.setattr(fitting, "survey", survey)
    command("fit", manifest, "--device", "cuda").refused_with(ExitCode.NO_DEVICE)
    command("fit", manifest, "--device", "toaster").refused_with(ExitCode.NO_DEVICE)
