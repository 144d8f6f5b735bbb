"""A GPU and a CPU in one swarm hold the same bits. Skipped where there is no CUDA device."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from distro_node.node.settings.components import Compile
from distro_node.node.storage.blob_store import BlobStore
from distro_node.node.trainer.device import choose_device
from distro_node.node.trainer.optimizer import blocks, exact_step
from distro_node.node.trainer.optimizer.device_check import check_exactness
from distro_node.node.trainer.optimizer.exact_step import apply_step
from distro_node.node.trainer.optimizer.fingerprint import fingerprint
from distro_node.node.trainer.training_session import TrainingSession
from distro_node.protocol.wire.manifest import Step
from trainer.exactness import (
    SHAPES,
    assert_equal_bits,
    bits_of,
    layout_of,
    random_parameters,
    random_updates,
    reference_step,
)
from trainer.support import CPU, make_manifest, train_beside_a_cpu

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


@pytest.fixture
def cuda() -> torch.device:
    return choose_device("cuda")


def test_a_gpu_multiplies_exactly(cuda: torch.device) -> None:
    check_exactness(cuda, layout_of([(8192, 8192), (32_000, 768), *SHAPES]))


@pytest.mark.parametrize("step", ["sign", "scaled"])
@pytest.mark.parametrize("in_float32", [True, False])
@pytest.mark.parametrize("members", [1, 4, 130])
def test_the_step_and_its_fingerprint_are_the_same_on_both(
    cuda: torch.device,
    members: int,
    in_float32: bool,
    step: Step,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # 130 members are the most for which float32 is exact; float64 must give the same result.
    monkeypatch.setattr(exact_step, "exact_in_float32", lambda *_: in_float32)
    layout = layout_of(SHAPES)
    on_cpu = random_parameters(SHAPES)
    on_gpu = [parameter.to(cuda) for parameter in on_cpu]
    for seed in range(5):
        updates = random_updates(layout, members, seed)
        for parameters in (on_cpu, on_gpu):
            apply_step(parameters, layout, updates, 0.001953125, 0.1, step=step)
        assert fingerprint(on_cpu) == fingerprint(on_gpu)
    for here, there in zip(on_cpu, on_gpu, strict=True):
        assert torch.equal(here.view(torch.int32), there.cpu().view(torch.int32))


@pytest.mark.parametrize("step", ["sign", "scaled"])
@pytest.mark.parametrize("members", [131, 1024])
def test_beyond_the_bound_of_float32_it_is_the_same_too(
    cuda: torch.device, members: int, step: Step
) -> None:
    layout = layout_of(SHAPES)
    few = random_updates(layout, 3)
    updates = [few[0]] * (members - 2) + few[1:]
    results = []
    for device in (CPU, cuda):
        parameters = [parameter.to(device) for parameter in random_parameters(SHAPES)]
        apply_step(parameters, layout, updates, 0.001953125, 0.1, step=step)
        results.append(fingerprint(parameters))
    assert results[0] == results[1]


@pytest.mark.parametrize("step", ["sign", "scaled"])
@pytest.mark.parametrize("limit", [1, 4096, 1 << 24])
def test_strides_orders_and_stripes_do_not_matter_there_either(
    cuda: torch.device, limit: int, step: Step, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blocks, "GPU_STRIPE", limit)
    shapes = [(64, 128), (43, 67), (30, 100)]
    layout = layout_of(shapes)
    updates = random_updates(layout, 8)
    parameters = random_parameters(shapes)
    expected = reference_step(parameters, layout, updates, 0.001953125, 0.1, step)
    columns = [p.T.contiguous().to(cuda).T for p in parameters]
    apply_step(columns, layout, updates[::-1], 0.001953125, 0.1, step=step)
    assert not any(p.is_contiguous() for p in columns)
    assert_equal_bits(bits_of([p.contiguous() for p in columns]), expected)


@pytest.mark.parametrize("size", [1000, 1 << 16, 1 << 22])
def test_the_fingerprint_is_the_same_in_any_pieces(
    cuda: torch.device, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    parameters = random_parameters([(333, 1001), (7,), (), (64, 64)])
    monkeypatch.setattr("distro_node.node.trainer.optimizer.fingerprint._GPU_PIECE", size)
    assert fingerprint([p.to(cuda) for p in parameters]) == fingerprint(parameters)


def test_a_member_on_a_gpu_and_one_on_a_cpu_train_together(
    cuda: torch.device, tmp_path: Path
) -> None:
    train_beside_a_cpu(cuda, tmp_path, rounds=30)


def test_layers_are_compiled_there_unless_that_is_slower(
    cuda: torch.device, tmp_path: Path
) -> None:
    manifest, chunks = make_manifest(tmp_path)
    session = TrainingSession(manifest, BlobStore(tmp_path), cuda, micro_batch=2)
    words = session.compile_layers(Compile.AUTO)
    assert words is not None
    assert "sequences a second instead of" in words
    session.load(chunks)
    # Passes of two and of one.
    assert session.train(1, range(3)).tokens == 3 * manifest.data.sequence_length
    torch.compiler.set_stance("default")
