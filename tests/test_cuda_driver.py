"""Whether `--device cuda` is certain to work, by the driver's answers and PyTorch's build alone."""

from __future__ import annotations

import importlib.util
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import trio
from distro_node.node.training import cuda_driver
from distro_node.node.training.cuda_driver import (
    CudaDriver,
    has_cuda,
    is_certain,
    read_driver,
    torch_build,
)
from distro_node.node.training.graphics_cards import gpu_vendor

H200 = CudaDriver(version=(12, 8), capabilities=((9, 0),))


# NVIDIA's library with two GPUs.
_DRIVER = """
#define RESULT(name) (FAILING == name ? 999 : 0)
enum { INIT = 1, VERSION, COUNT, GET, ATTRIBUTE };
int cuInit(unsigned flags) { return flags ? 1 : RESULT(INIT); }
int cuDriverGetVersion(int *to) { *to = 13010; return RESULT(VERSION); }
int cuDeviceGetCount(int *to) { *to = 2; return RESULT(COUNT); }
int cuDeviceGet(int *to, int index) { *to = index + 7; return RESULT(GET); }
int cuDeviceGetAttribute(int *to, int number, int device) {
    *to = device == 7 ? (number == 75 ? 7 : 5) : (number == 75 ? 8 : 6);
    return RESULT(ATTRIBUTE);
}
"""


@pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler here")
def test_what_a_driver_answers(tmp_path: Path) -> None:
    def made(failing: int, text: str = _DRIVER) -> str:
        (tmp_path / "cuda.c").write_text(text)
        library = tmp_path / f"libcuda{failing}.so"
        command = ["cc", "-shared", "-fPIC", f"-DFAILING={failing}", "-o", library, "cuda.c"]
        subprocess.run(command, cwd=tmp_path, check=True)
        return str(library)

    two = CudaDriver(version=(13, 1), capabilities=((7, 5), (8, 6)))
    assert read_driver(made(0)) == two
    for failing in range(1, 6):
        assert read_driver(made(failing)) is None
    # Another library of this name, and none.
    assert read_driver(made(6, "int cuInit(unsigned flags) { return 0; }")) is None
    assert read_driver(str(tmp_path / "libnone.so")) is None


@pytest.mark.parametrize(
    ("devices", "build", "certain"),
    [
        ({"cuda"}, (12, 8), True),
        ({"cuda:0"}, (11, 8), True),
        # A driver runs newer minor versions, and no newer major ones.
        ({"cuda"}, (12, 9), True),
        ({"cuda"}, (13, 0), False),
        # This build has nothing for a GPU as new as this.
        ({"cuda"}, (11, 7), False),
        # There is one GPU.
        ({"cuda:1"}, (12, 8), False),
        ({"cuda:0", "cuda:1"}, (12, 8), False),
        ({"mps"}, (12, 8), False),
        ({"all"}, (12, 8), False),
    ],
)
def test_what_is_certain(devices: set[str], build: tuple[int, int], certain: bool) -> None:
    assert is_certain(devices, build, H200) is certain


@pytest.mark.parametrize(
    ("capability", "certain"), [((6, 1), False), ((7, 5), True), ((12, 1), False)]
)
def test_gpus_that_a_build_may_not_run_on_are_asked_for(
    capability: tuple[int, int], certain: bool
) -> None:
    driver = CudaDriver(version=(12, 8), capabilities=(capability,))
    assert is_certain({"cuda"}, (12, 8), driver) is certain


@pytest.mark.parametrize(
    ("text", "build"),
    [
        ("cuda: Optional[str] = '12.8'\nhip: Optional[str] = None\n", (12, 8)),
        ('cuda = "13.0"\n', (13, 0)),
        ("cuda: Optional[str] = None\nhip: Optional[str] = '6.4.1'\n", None),
        ("__version__ = '2.9.0+cpu'\n", None),
    ],
)
def test_for_what_pytorch_is_built(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, build: tuple[int, int] | None
) -> None:
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("raise ImportError('it was loaded')")
    (tmp_path / "torch" / "version.py").write_text(text)
    spec = importlib.util.spec_from_file_location("torch", tmp_path / "torch" / "__init__.py")
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: spec)
    assert torch_build() == build
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    assert torch_build() is None


@pytest.mark.skipif(gpu_vendor() == "NVIDIA", reason="there is a driver here")
async def test_without_a_driver_nothing_is_certain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_driver, "torch_build", lambda: (12, 8))
    assert not await has_cuda({"cuda"})
    done = await trio.run_process(
        [sys.executable, "-m", "distro_node.node.training.cuda_driver"], capture_stdout=True
    )
    assert json.loads(done.stdout) is None
