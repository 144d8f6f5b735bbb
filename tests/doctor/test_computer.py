"""The doctor's examination of the computer: what stops a node, what hurts it, and what it reports
first."""

from __future__ import annotations

import json
import os
import platform
import socket
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import distro_node.node.doctor.computer as computer
import psutil
import pytest
from cli.schemas import conforms
from distro_node.node.doctor.findings import Finding, by_severity, can_train, good
from distro_node.node.errors import ExitCode
from distro_node.node.storage.data_dir import DataDir
from distro_node.node.training.memory_model import Workload
from distro_node.protocol.wire.manifest import ParameterSpec

# Private here: `_has_nvidia`, `_is_synchronised`: what this machine has is not what is tested.

TORCH: dict[str, Any] = {
    "version": "2.9.0",
    "built_for_cuda": False,
    "gpus": [],
    "mps": False,
    "threads": 8,
}
GPU = TORCH | {"built_for_cuda": True, "gpus": [["Some GPU", 8 << 30, 8 << 30]]}


def by_subject(findings: Any) -> dict[str, Finding]:
    return {finding.subject: finding for finding in findings}


def bad(severity: Any) -> Finding:
    return Finding(subject="line", severity=severity, what="w", remedy="r")


def test_what_hurts_most_comes_first() -> None:
    findings = [good("python", "p"), bad("unknown"), bad("hurts"), bad("stops"), good("disk", "d")]
    shown = [finding.severity for finding in by_severity(findings)]
    assert shown == ["stops", "hurts", "unknown", "good", "good"]
    assert not can_train(findings)
    assert can_train([bad("hurts"), bad("unknown")])


def test_what_stops_no_training_comes_last() -> None:
    energy = Finding(subject="energy", severity="unknown", what="no counters", remedy="")
    shown = by_severity([energy, good("disk", "d"), bad("hurts")])
    assert [finding.subject for finding in shown] == ["line", "disk", "energy"]


def test_without_torch_nothing_trains() -> None:
    (found,) = computer.examine_trainer("ModuleNotFoundError: No module named 'torch'", None)
    assert (found.severity, "not installed" in found.what) == ("stops", True)
    assert "distro-node[train]" in found.remedy
    (found,) = computer.examine_trainer("OSError: libc is too old", None)
    assert "libc is too old" in found.what


def test_what_confines_the_trainer_is_reported() -> None:
    (found,) = computer.examine_sandbox(["files", "network"], [], root=False)
    assert (found.severity, "files, network" in found.what) == ("good", True)
    (found,) = computer.examine_sandbox(["files"], ["signals"], root=False)
    assert (found.severity, "but not signals" in found.what) == ("hurts", True)
    found, root = computer.examine_sandbox([], ["files"], root=True)
    assert (found.severity, "cannot sandbox" in found.what) == ("hurts", True)
    assert "root" in root.what
    assert "user of its own" in root.remedy


def test_what_confines_it_here_is_found_out() -> None:
    held, missing = computer.probe_sandbox()
    assert set(held).isdisjoint(missing)
    if platform.system() == "Linux":
        assert "privileges" in held


def work(millions: int) -> Workload:
    """Return a model with that many million parameters, nearly all of them in one table."""
    rows = millions * 10**6 // 256
    config = {
        "model_type": "llama",
        "hidden_size": 256,
        "intermediate_size": 64,
        "num_hidden_layers": 1,
        "num_attention_heads": 1,
        "vocab_size": rows,
    }
    table = (ParameterSpec(name="table", shape=(rows, 256)),)
    return Workload(config=config, parameters=table, sequence_length=128)


def test_a_gpu_is_held_against_the_model(monkeypatch) -> None:
    def device(there: Workload | None) -> Finding:
        return by_subject(computer.examine_trainer(GPU, there))["device"]

    monkeypatch.setattr(
        psutil, "virtual_memory", lambda: SimpleNamespace(available=16 << 30, total=32 << 30)
    )
    assert device(None).what == "Some GPU with 8.6 GB"
    # In float32, and in 8 bits where that is too much.
    assert device(work(100)).severity == device(work(400)).severity == "good"
    assert "the swarm's model takes" in device(work(400)).what
    too_large = device(work(2000))
    assert too_large.severity == "stops"
    assert "takes at least " in too_large.what
    assert "distro-node fit" in too_large.remedy
    monkeypatch.setattr(computer, "_has_nvidia", lambda: True)
    hidden = by_subject(computer.examine_trainer(TORCH, None))["device"]
    assert (hidden.severity, "without CUDA" in hidden.remedy) == ("hurts", True)
    monkeypatch.setattr(computer, "_has_nvidia", lambda: False)
    monkeypatch.setattr(computer, "gpu_vendor", lambda: "AMD")
    for built, remedy in ((False, "without ROCm"), (True, "`render`")):
        hidden = by_subject(computer.examine_trainer(TORCH | {"built_for_cuda": built}, None))[
            "device"
        ]
        assert (hidden.severity, "the AMD GPU" in hidden.what) == ("hurts", True)
        assert remedy in hidden.remedy
    monkeypatch.setattr(computer, "gpu_vendor", lambda: None)
    assert by_subject(computer.examine_trainer(TORCH, None))["device"].severity == "good"
    assert by_subject(computer.examine_trainer(TORCH, work(600)))["memory"].severity == "good"
    assert by_subject(computer.examine_trainer(TORCH, work(20_000)))["memory"].severity == "stops"


def test_a_gpu_that_others_use_or_a_small_first_one_is_not_fine(monkeypatch) -> None:
    """A trainer takes what is free on the first GPU."""
    monkeypatch.setattr(
        psutil, "virtual_memory", lambda: SimpleNamespace(available=1 << 30, total=32 << 30)
    )

    def device(*gpus: list[object]) -> Finding:
        return by_subject(computer.examine_trainer(GPU | {"gpus": [*gpus]}, work(400)))["device"]

    assert device(["Some GPU", 8 << 30, 7 << 30]).severity == "good"
    crowded = device(["Some GPU", 8 << 30, 1 << 30])
    assert crowded.severity == "hurts"
    assert crowded.what.startswith("Some GPU with 8.6 GB, 1.1 GB of them free, but training")
    assert "close the programs" in crowded.remedy
    small = ["Small", 1 << 30, 1 << 30]
    other = device(small, ["Large", 24 << 30, 24 << 30])
    assert (other.severity, other.remedy) == ("hurts", "start the node with --device cuda:1")
    assert device(small).severity == "stops"
    assert device(small, ["Large", 24 << 30, 1 << 30]).severity == "stops"


def test_a_missing_file_of_a_loaded_driver_is_named(monkeypatch) -> None:
    """Without it CUDA finds no card, and a confined trainer cannot make it."""
    monkeypatch.setattr(computer, "missing_device_node", lambda: Path("/dev/nvidia-uvm"))
    monkeypatch.setattr(computer, "_has_nvidia", lambda: False)
    first, *_ = (f for f in computer.examine_trainer(TORCH, None) if f.subject == "device")
    assert (first.severity, "/dev/nvidia-uvm, which CUDA needs, is missing" in first.what) == (
        "hurts",
        True,
    )
    assert "nvidia-modprobe -u" in first.remedy


def test_a_disk_and_what_has_to_fit(tmp_path: Path, monkeypatch) -> None:
    data = DataDir(tmp_path / "a" / "b")
    found = by_subject(computer.examine_disk(data, None))
    assert {each.severity for each in found.values()} == {"good"}
    assert not data.root.exists()
    assert by_subject(computer.examine_disk(data, 10**14))["disk"].severity == "hurts"
    usage = SimpleNamespace(free=1000)
    monkeypatch.setattr(computer.shutil, "disk_usage", lambda _: usage)
    assert by_subject(computer.examine_disk(data, None))["disk"].severity == "stops"
    monkeypatch.undo()
    (tmp_path / "file").touch()
    (found,) = computer.examine_disk(DataDir(tmp_path / "file"), None)
    assert (found.severity, "not a directory" in found.what) == ("stops", True)
    for name, target in (("loop", "loop"), ("gone", "nowhere")):
        (tmp_path / name).symlink_to(target)
        (found,) = computer.examine_disk(DataDir(tmp_path / name), None)
        assert (found.severity, str(tmp_path / name) in found.what) == ("stops", True)


def test_a_clock_that_cannot_be_right(tmp_path: Path, monkeypatch) -> None:
    data = DataDir(tmp_path)
    monkeypatch.setattr(computer, "_is_synchronised", lambda: None)
    written = 2_000_000_000.0
    data.starts.touch()
    os.utime(data.starts, (written, written))
    (found,) = computer.examine_clock(data, written + 5)
    assert found.severity == "good"
    (found,) = computer.examine_clock(data, written - 3600)
    assert (found.severity, "2033-05-18" in found.what) == ("hurts", True)
    (found,) = computer.examine_clock(DataDir(tmp_path / "new"), 0.0)
    assert found.severity == "hurts"
    monkeypatch.setattr(computer, "_is_synchronised", lambda: False)
    (found,) = computer.examine_clock(data, written + 5)
    assert found.severity == "unknown"


def test_ports_that_are_taken(tmp_path: Path, monkeypatch) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen(1)
        taken = other.getsockname()
        monkeypatch.setattr(computer, "DEFAULT_METRICS_ADDRESS", taken)
        (found,) = computer.examine_ports(DataDir(tmp_path))
        assert (found.severity, str(taken[1]) in found.what) == ("good", True)
        assert "metrics at another port" in found.what
    # The user's own running node has taken them, which is fine.
    data = DataDir(tmp_path / "data")
    data.create()
    with data.lock():
        (found,) = computer.examine_ports(data)
        assert (found.severity, "a node runs" in found.what) == ("good", True)
    (found,) = computer.examine_ports(data)
    assert "a node runs" not in found.what


@pytest.fixture
def healthy(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    torch = dict(TORCH)
    monkeypatch.setattr(computer, "probe_torch", lambda: torch)
    monkeypatch.setattr(computer, "_has_nvidia", lambda: False)
    return torch


def test_the_command_reports_to_people_and_programs(
    command, healthy: dict[str, Any], home: Path, monkeypatch
) -> None:
    done = command("doctor", "--data-dir", home / "data")
    assert done.code == 0
    assert "✓ torch" in done.out
    assert not (home / "data").exists()
    told = json.loads(command("doctor", "--data-dir", home / "data", "--json").out)
    assert told["fit"] is True
    conforms("doctor", told)
    monkeypatch.setattr(computer, "probe_torch", lambda: "No module named 'torch'")
    done = command("doctor", "--data-dir", home / "data")
    assert done.code == ExitCode.UNFIT
    assert done.out.startswith("✗ torch")
    assert json.loads(command("doctor", "--json").out)["fit"] is False


def test_a_bad_link_is_a_mistake(command, healthy: dict[str, Any]) -> None:
    command("doctor", "swarm-x").refused_with(ExitCode.BAD_SWARM_ID)


@pytest.mark.slow
def test_torch_is_asked_in_a_process_of_its_own() -> None:
    found = computer.probe_torch()
    assert isinstance(found, dict), found
    assert found.keys() == TORCH.keys()


def test_a_gpu_without_the_package_that_asks_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(computer.importlib.util, "find_spec", lambda name: None)
    (found,) = computer.examine_energy(has_nvidia=True)
    assert "distro-node[nvidia]" in found.remedy
    assert list(computer.examine_energy(has_nvidia=False)) == []


def test_a_gpu_that_reports_no_power_is_not_fine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The package may be there without a driver, or with a card that does not report its power."""
    fake = tmp_path / "pynvml.py"
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(computer.importlib.util, "find_spec", lambda name: object())
    card = "def nvmlInit(): pass\nnvmlDeviceGetCount = lambda: 1\n"
    card += "nvmlDeviceGetHandleByIndex = nvmlDeviceGetPowerUsage = lambda of: 1\n"
    fake.write_text(card)
    (found,) = computer.examine_energy(has_nvidia=True)
    assert found.severity == "good"
    fake.write_text(card + "def nvmlDeviceGetPowerUsage(card): raise OSError('Not Supported')\n")
    (found,) = computer.examine_energy(has_nvidia=True)
    assert (found.severity, "Not Supported" in found.what) == ("unknown", True)
    fake.write_text(card + "def nvmlInit():\n    while True: pass\n")
    monkeypatch.setattr(computer, "_POWER_SECONDS", 0.5)
    (found,) = computer.examine_energy(has_nvidia=True)
    assert (found.severity, "has not answered" in found.what) == ("unknown", True)
