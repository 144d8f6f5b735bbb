"""Compilation of layers: kept where it is faster, and otherwise everything stays as before."""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from distro_node.node.settings.components import Compile
from distro_node.node.storage.blob_store import BlobStore
from distro_node.node.trainer import training_session
from distro_node.node.trainer.computation import Computation
from distro_node.node.trainer.models.compilation import CompileTrial, compile_if_faster
from distro_node.node.trainer.models.model import layers_of
from distro_node.node.trainer.training_session import TrainingSession
from distro_node.node.training.client import open_trainer
from trainer.support import CPU, make_manifest, make_session, opened
from trainer.test_classification import BERT, made_of
from trainer.test_client import spec_of
from trainer.test_images import image_manifest
from trainer.test_tasks import masked_manifest, sft_manifest

# Private here: `_call_impl`, `_compiled_call_impl`: a trial without a compiler, and
# what torch compiles, of which it has no public name.

needs_a_compiler = pytest.mark.skipif(
    shutil.which("g++") is None, reason="torch compiles for a processor by g++"
)


@pytest.fixture(autouse=True)
def nothing_stays_compiled() -> Iterator[None]:
    yield
    torch.compiler.set_stance("default")
    torch.compiler.reset()


class Layer(torch.nn.Linear):
    """Records whether it was compiled."""

    compiled = False

    def compile(self, *args: object, **kwargs: object) -> None:
        self.compiled = True
        self._compiled_call_impl = self._call_impl

    @property
    def is_compiled(self) -> bool:
        return self._compiled_call_impl is not None


def pause_of(layer: Layer, before: float, after: float) -> None:
    time.sleep(after if layer.is_compiled else before)


def test_what_is_faster_is_kept() -> None:
    layer = Layer(2, 2)
    sizes: list[int] = []

    def compute(sequences: int) -> None:
        sizes.append(sequences)
        pause_of(layer, 0.05, 0.005)

    outcome = compile_if_faster([layer], compute, 4)
    assert outcome.faster
    assert layer.is_compiled
    # Shares do not divide evenly, so the last pass of a round is a smaller one.
    assert set(sizes) == {1, 4}
    assert re.search(r"compiled, in \d+ s: \S+ sequences a second instead of", outcome.summary)


def test_what_is_not_faster_is_taken_back() -> None:
    layer = Layer(2, 2)
    outcome = compile_if_faster([layer], lambda _: pause_of(layer, 0.02, 0.02), 1, min_gain=1.5)
    assert outcome.summary.startswith("nothing is compiled: it would be ")
    assert not outcome.faster
    assert (layer.compiled, layer.is_compiled) == (True, False)
    assert not compile_if_faster([], lambda _: None, 1).faster


def test_a_compiler_that_fails_is_done_without() -> None:
    layer = Layer(2, 2)

    def compute(_: int) -> None:
        if layer.is_compiled:
            raise RuntimeError("\nno C++ compiler\nand much more")

    outcome = compile_if_faster([layer], compute, 1)
    assert outcome == CompileTrial(False, "nothing is compiled: no C++ compiler")
    assert not layer.is_compiled


def test_a_compiler_without_end_is_interrupted() -> None:
    layer = Layer(2, 2)
    interruptions = 0

    def compute(_: int) -> None:
        nonlocal interruptions
        if not layer.is_compiled:
            return
        for _ in range(2):
            try:
                time.sleep(60)
            except TimeoutError:
                # Like a library that takes it for a failure of its own.
                interruptions += 1
                if interruptions == 2:
                    raise

    outcome = compile_if_faster([layer], compute, 1, seconds=0.2)
    assert outcome == CompileTrial(False, "nothing is compiled: it takes more than 0.2 s")
    assert interruptions == 2
    assert not layer.is_compiled


@pytest.mark.parametrize("made", [make_manifest, sft_manifest, masked_manifest, image_manifest])
def test_every_task_can_be_tried(tmp_path: Path, made: Any) -> None:
    """Zeros are valid samples for all of them, and leave no gradient behind. A processor is asked for it
    alone."""
    manifest, chunks = made(tmp_path)
    session = TrainingSession(manifest, BlobStore(tmp_path), CPU, micro_batch=2)
    session.load(chunks)
    for sequences in (1, 2):
        session.computation.compute_zeros(sequences)
    assert layers_of(session.model)
    assert all(parameter.grad is None for parameter in session.parameters)
    for setting in (Compile.AUTO, Compile.OFF):
        assert session.compile_layers(setting) is None


def test_a_compiled_session_learns_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, compiled = (make_session(tmp_path, micro_batch=2) for _ in range(2))

    def whatever_it_gains(*arguments: Any) -> CompileTrial:
        return compile_if_faster(*arguments, min_gain=0.0)

    def compile_quickly(layer: torch.nn.Module) -> None:
        # The first stage of torch's compiler alone: machine code takes a minute (soak, below).
        layer._compiled_call_impl = torch.compile(layer._call_impl, backend="eager")

    monkeypatch.setattr(torch.nn.Module, "compile", compile_quickly)
    monkeypatch.setattr(training_session, "compile_if_faster", whatever_it_gains)
    words = compiled.compile_layers(Compile.ON)
    assert words is not None
    assert "layers are compiled" in words

    def gradients(computation: Computation, samples: int) -> tuple[float, list[torch.Tensor]]:
        loss, _ = computation.gradient(1, range(samples))
        return loss, [each.grad.clone() for each in computation.parameters if each.grad is not None]

    # Two passes of two, and one of one: both sizes were compiled.
    for computation in (compiled.computation, compiled.computation.shadow()):
        loss, expected = gradients(plain.computation, 5)
        other, found = gradients(computation, 5)
        assert other == pytest.approx(loss, rel=1e-5)
        for here, there in zip(expected, found, strict=True):
            torch.testing.assert_close(there, here, rtol=1e-3, atol=1e-6)
    # An evaluation runs uncompiled: members report it to each other, and it stays the same.
    assert compiled.computation.evaluate(2) == plain.computation.evaluate(2)


def test_where_texts_are_of_many_lengths_nothing_is_tried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[Any] = []
    monkeypatch.setattr(training_session, "compile_if_faster", lambda *all: tried.append(all))
    session = opened(made_of(BERT, tmp_path), tmp_path)
    words = session.compile_layers(Compile.ON)
    assert words is not None
    assert words.startswith("nothing is compiled: ")
    assert not tried


# A minute of computing. `make test` has that a confined process may run a compiler and load what it
# made (tests/trainer/test_sandbox.py), and everything else above.
@pytest.mark.soak
@needs_a_compiler
@pytest.mark.usefixtures("cold_trainers")
async def test_a_confined_trainer_compiles(tmp_path: Path) -> None:
    manifest, _ = make_manifest(tmp_path / "blobs")
    spec = spec_of(tmp_path / "blobs", manifest)
    compiled = replace(spec.settings, compile=Compile.ON, micro_batch=1)
    async with open_trainer(replace(spec, settings=compiled)) as trainer:
        assert trainer.compiled is not None
        # The test does not depend on how fast it is or compiles on this machine, only on the fact
        # that it does.
        assert re.search("sequences a second instead of|takes more than 180 s", trainer.compiled)
    on_a_gpu = replace(compiled, compile=Compile.AUTO)
    async with open_trainer(replace(spec, settings=on_a_gpu)) as trainer:
        assert trainer.compiled is None
