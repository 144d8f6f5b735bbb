"""The types a device can compute in, which copies may be asynchronous, and GPUs that torch cannot
use."""

from __future__ import annotations

import subprocess
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from distro_node.node.settings.components import Compile, TrainerSettings
from distro_node.node.settings.setting import to_plain_settings
from distro_node.node.storage.blob_store import BlobStore
from distro_node.node.trainer import device, training_session, worker
from distro_node.node.trainer.device import (
    choose_device,
    copies_while_computing,
    device_kind,
    narrow_type,
    spills_to_main_memory,
)
from distro_node.node.trainer.worker import OpenRequest
from distro_node.node.training import graphics_cards
from distro_node.node.training.environment import drop_if_large, environment
from distro_node.node.training.errors import TrainerFailed
from distro_node.node.training.graphics_cards import (
    gpu_vendor,
    make_device_node,
    missing_device_node,
)
from distro_node.node.training.local_policy import DEFAULT_POLICY
from distro_node.node.training.memory_plan import FreeMemory
from distro_node.protocol.wire.structure import to_plain
from trainer.support import make_manifest

CUDA = torch.device("cuda")


@pytest.mark.parametrize(
    ("card", "expected"),
    [
        ((9, 0), torch.bfloat16),  # Hopper
        ((8, 0), torch.bfloat16),  # Ampere
        ((7, 5), torch.float16),  # Turing: RTX 20, GTX 16, T4
        ((7, 0), torch.float16),  # Volta
        ((6, 1), None),  # Pascal
        ("gfx1100", torch.bfloat16),  # RDNA 3
        ("gfx90a:sramecc+:xnack-", torch.bfloat16),  # CDNA 2
        ("gfx1030", torch.float16),  # RDNA 2
        ("gfx906", torch.float16),
    ],
)
def test_layers_compute_in_what_the_card_has_units_for(
    card: tuple[int, int] | str, expected: torch.dtype | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    amd = isinstance(card, str)
    properties = SimpleNamespace(gcnArchName=card, major=9, minor=0)
    if not isinstance(card, str):
        properties = SimpleNamespace(major=card[0], minor=card[1])
    monkeypatch.setattr(torch.version, "hip", "6.2" if amd else None)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: properties)
    assert narrow_type(CUDA) is expected
    assert device_kind(CUDA) == ("cuda-float32" if expected is None else "cuda")


def test_elsewhere_layers_compute_in_float32_and_copies_are_waited_for() -> None:
    assert copies_while_computing(CUDA)
    for kind in ("cpu", "mps"):
        assert narrow_type(torch.device(kind)) is None
        assert device_kind(torch.device(kind)) == kind
        assert not copies_while_computing(torch.device(kind))


@pytest.mark.parametrize(
    ("system", "release", "expected"),
    [
        ("Linux", "5.15.153.1-microsoft-standard-WSL2", True),
        ("Windows", "11", True),
        ("Linux", "6.1.0-18-amd64", False),
    ],
)
def test_memory_is_bounded_where_it_would_spill(
    system: str, release: str, expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    uname = SimpleNamespace(system=system, release=release)
    monkeypatch.setattr(device.platform, "uname", lambda: uname)
    assert spills_to_main_memory(CUDA) is expected
    assert not spills_to_main_memory(torch.device("cpu"))


def test_a_backend_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "_BACKEND_PACKAGES", {"vulkan": "no_such_backend"})
    with pytest.raises(
        TrainerFailed, match=r"'vulkan:0' needs a package that is missing: .*no_such"
    ):
        choose_device("vulkan:0")


@pytest.mark.parametrize("maker", ["NVIDIA", "AMD", None])
def test_a_card_is_seen_where_its_driver_lists_it(maker: str | None, tmp_path: Path) -> None:
    nvidia, amd = tmp_path / "nvidia", tmp_path / "amd"
    if maker == "NVIDIA":
        (nvidia / "gpus" / "0000:01:00.0").mkdir(parents=True)
    # Processors are listed, too.
    for number, units in enumerate((0, 128) if maker == "AMD" else (0,)):
        (amd / str(number)).mkdir(parents=True)
        (amd / str(number) / "properties").write_text(f"cpu_cores_count 8\nsimd_count {units}\n")
    assert gpu_vendor(nvidia, amd) == maker
    assert gpu_vendor(tmp_path / "none", tmp_path / "none") is None


def test_the_file_that_cuda_needs_is_made_before_a_trainer_is_confined(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    driver, node = tmp_path / "nvidia", tmp_path / "nvidia-uvm"
    assert missing_device_node(driver, node) is None
    driver.mkdir()
    assert missing_device_node(driver, node) == node

    helper = tmp_path / "nvidia-modprobe"
    monkeypatch.setenv("PATH", str(tmp_path))
    make_device_node(driver, node)
    assert "install nvidia-modprobe, which creates it" in caplog.text

    helper.write_text("#!/bin/sh\necho no such device >&2\nexit 1\n")
    helper.chmod(0o755)
    make_device_node(driver, node)
    assert f"did not make {node}: no such device" in caplog.text

    helper.write_text(f'#!/bin/sh\n[ "$1 $2" = "-u -c=0" ] && : > {node}\n')
    make_device_node(driver, node)
    assert missing_device_node(driver, node) is None

    def twice(*_: object, **__: object) -> object:
        raise AssertionError("it is there")

    monkeypatch.setattr(subprocess, "run", twice)
    make_device_node(driver, node)
    assert graphics_cards.missing_device_node(driver, node) is None


def test_what_is_compiled_is_kept_and_bounded(tmp_path: Path) -> None:
    kept = tmp_path / "caches"
    variables = environment(None, str(tmp_path / "scratch"), kept)
    compiled = ("CUDA_CACHE_PATH", "TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR")
    assert [variables[name] for name in (*compiled, "MIOPEN_USER_DB_PATH")] == 4 * [str(kept)]
    assert variables["TMPDIR"] == str(tmp_path / "scratch")
    assert environment(None, "scratch")["TRITON_CACHE_DIR"] == "scratch"

    drop_if_large(kept)
    (kept / "triton").mkdir(parents=True)
    (kept / "triton" / "kernel").write_bytes(bytes(1000))
    outside = tmp_path / "mine"
    outside.write_bytes(bytes(10_000))
    (kept / "link").symlink_to(outside)
    drop_if_large(kept, 2000)
    assert (kept / "triton" / "kernel").exists()
    drop_if_large(kept, 999)
    assert not kept.exists()
    assert outside.exists()


@pytest.mark.parametrize(
    "own", ["PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF"]
)
def test_the_allocator_may_grow_its_segments_unless_the_owner_sets_otherwise(
    own: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF")
    for name in names:
        monkeypatch.delenv(name, raising=False)
    assert environment(None, "")["PYTORCH_CUDA_ALLOC_CONF"] == "expandable_segments:True"
    monkeypatch.setenv(own, "max_split_size_mb:64")
    left = environment(None, "")
    assert {name: left[name] for name in names if name in left} == {own: "max_split_size_mb:64"}


@pytest.mark.parametrize(("wanted", "warned"), [("auto", True), ("cpu", False)])
def test_a_card_that_is_left_unused_is_warned_of(
    wanted: str,
    warned: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(worker, "gpu_vendor", lambda: "AMD")
    monkeypatch.setattr(worker, "choose_device", lambda _: torch.device("cpu"))
    manifest, _ = make_manifest(tmp_path)
    request = OpenRequest(
        manifest=manifest.encode(),
        blobs=str(tmp_path),
        settings=to_plain_settings(TrainerSettings(device=wanted, compile=Compile.OFF)),
        policy=to_plain(DEFAULT_POLICY, named=True),
    )
    answer = worker.Worker().answer({"id": 0, "method": "open", "arguments": asdict(request)})
    assert answer is not None
    assert answer["result"]["device"] == "cpu"
    assert ("a graphics card of AMD" in caplog.text) is warned


@pytest.mark.parametrize("shared", [True, False])
def test_where_memory_spills_a_session_takes_no_more_than_is_free(
    shared: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beyond it a driver would take main memory, a hundred times slower, and nothing would fail."""
    limits: list[int] = []
    monkeypatch.setattr(training_session, "spills_to_main_memory", lambda _: shared)
    monkeypatch.setattr(training_session, "free_memory", lambda *_: FreeMemory(device=10**9))
    monkeypatch.setattr(training_session, "limit_memory", lambda _, limit: limits.append(limit))
    manifest, _ = make_manifest(tmp_path)
    training_session.TrainingSession(manifest, BlobStore(tmp_path), torch.device("cpu"))
    assert limits == ([10**9] if shared else [])
