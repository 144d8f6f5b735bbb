"""The probe: losses by which every trainer proves that it computes the swarm's model.

Members check parameters by their hashes. This does not show whether they compute the same function of
them: another release of a library may interpret a configuration differently, an attention kernel may
ignore a soft-cap, a device may have a broken kernel. So `create` computes some losses in float32 and
writes them into the manifest, and a trainer computes them again before its first update.

The losses are not computed with the initial parameters. A member that joins in a later round does not
have those, and with new parameters a model attends to all positions alike, so that a wrong rotary base
changes its losses by no more than bfloat16 does. The probe's parameters are a fixed table of numbers,
repeated and scaled so that every layer adds about as much as it receives. They are written into the
model before a snapshot is loaded over them, so that no extra memory is needed, and the layers, sizes and
splits are those used in training.

docs/protocol.md has the measured differences behind the tolerances.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from importlib.metadata import PackageNotFoundError, version

import torch
from transformers import PreTrainedModel

from ....protocol.wire.manifest import Manifest
from ....protocol.wire.work_specs import ProbeSpec
from ...storage.blob_store import BlobStore
from ...training.architectures import makes_images
from ...training.errors import TrainerFailed
from ...training.task_names import input_tokens
from ...util.first_line import first_line
from ..device import is_out_of_memory
from ..memory.model_shard import ModelShard
from ..tasks.tasks import HasProbe, Task, open_task
from .adapters import build_trained, frozen_parameters
from .classifiers import is_classifier
from .model import check_inputs
from .probe_parameters import ParameterFill

# There is one long sample, for what depends on distance, and several short ones, so that losses do
# not agree by chance.
_SHORT_SAMPLES = 7
_SHORTEST, _LONGEST = 16, 4096
# Approximate number of multiplications of a forward pass through all samples: half a minute on two
# cores.
_OPERATIONS = 1 << 39

PrecisionContext = Callable[[], contextlib.AbstractContextManager[object]]
"""Enter a context in which matrices are multiplied at reduced precision."""


def probe_fills(manifest: Manifest) -> tuple[ParameterFill, ParameterFill | None]:
    """Return the fills of the trained parameters, and of the frozen ones if there are any."""
    adapter = manifest.adapter
    frozen = None if adapter is None else ParameterFill(adapter.base_parameters, manifest.elements)
    return ParameterFill(manifest.parameters), frozen


def make_probe(manifest: Manifest, store: BlobStore) -> ProbeSpec | None:
    """Build a manifest's model on the CPU as its members will, and return its probe; the manifest
    need not have one yet. Return None if the task offers no samples for one.

    Raises `TrainerFailed` as building a session does, and with `bad_model` if the model cannot compute
    the samples or its losses are not finite.
    """
    model, parameters = build_trained(manifest, store, torch.device("cpu"))
    check_inputs(model, manifest)
    task = open_task(manifest, model.config)
    if not isinstance(task, HasProbe):
        return None
    trained, frozen = probe_fills(manifest)
    trained.fill_all(parameters)
    if frozen is not None and manifest.adapter is not None:
        frozen.fill_all(frozen_parameters(model, manifest.adapter))
    lengths = _lengths(manifest)
    try:
        losses = [round(loss, 4) for loss in probe_losses(task, model, lengths)]
    except (ValueError, TypeError, LookupError, RuntimeError) as error:
        # The library notices some omissions of a configuration only when it computes.
        if is_out_of_memory(error):
            raise
        problem = first_line(error, 300)
        raise TrainerFailed("bad_model", f"the model cannot be computed: {problem}") from None
    if not all(map(math.isfinite, losses)):
        raise TrainerFailed("bad_model", "its losses are not finite with parameters of usual size")
    scale = 1.0
    if is_classifier(model.config):
        # The outputs of a deep network without normalisation, and their rounding, grow with its depth.
        scale = max(1.0, math.ceil(max(losses)))
    return ProbeSpec(
        lengths=lengths,
        losses=tuple(losses),
        tolerance=scale * ProbeSpec.tolerance,
        narrow_tolerance=scale * ProbeSpec.narrow_tolerance,
        library=_library(str(manifest.model["model_type"])),
    )


def prove(
    manifest: Manifest,
    model: PreTrainedModel,
    task: Task,
    part: ModelShard,
    *,
    exactly: bool,
    narrow_context: PrecisionContext | None,
) -> None:
    """Compare the losses of a session's model with the manifest's probe. This overwrites the trained
    parameters, which are `part`'s, and the frozen ones.

    `exactly`: the model can compute in float32; a model sharded on GPUs cannot, because its parameters
    are cast as they are gathered. `narrow_context`: the context in which the device trains with reduced
    precision; None: it trains in float32.

    Raises `TrainerFailed`: `other_model`, at all ranks, if one of them computes other losses; `no_task`
    if the installed task has no probe.
    """
    probe = manifest.probe
    if probe is None:
        return
    if not isinstance(task, HasProbe):
        raise TrainerFailed("no_task", f"the installed task {manifest.task!r} has no probe")
    trained, frozen = probe_fills(manifest)
    part.fill(trained)
    if frozen is not None and manifest.adapter is not None:
        frozen.fill_all(frozen_parameters(model, manifest.adapter))
    problem = None
    if exactly:
        found = probe_losses(task, model, probe.lengths)
        problem = _difference(found, probe, probe.tolerance, "float32")
    if problem is None and narrow_context is not None:
        found = probe_losses(task, model, probe.lengths, narrow_context)
        problem = _difference(found, probe, probe.narrow_tolerance, "bfloat16")
    if not part.everywhere(problem is None):
        if problem is None:
            raise TrainerFailed(
                "other_model", "another device of this computer computes different losses"
            )
        here = _library(str(manifest.model["model_type"]))
        kind = next(model.parameters()).device.type
        raise TrainerFailed(
            "other_model",
            f"{problem}, with {here} and torch {torch.__version__} on {kind}; the founder used "
            f"{probe.library}",
        )


@torch.no_grad()
def probe_losses(
    task: HasProbe,
    model: PreTrainedModel,
    lengths: Sequence[int],
    context: PrecisionContext = contextlib.nullcontext,
) -> list[float]:
    """Return the mean loss of each of the probe's samples, with the model's present parameters.
    `lengths`: the number of tokens of each sample."""
    device = next(model.parameters()).device
    was_training = model.training
    model.eval()
    losses = []
    try:
        for number, length in enumerate(lengths):
            batch = {name: each.to(device) for name, each in task.probe(number, length).items()}
            with context(), _exact_convolutions():
                loss = task.loss(model, batch)
            losses.append(float(loss.total) / max(1, loss.count))
    finally:
        model.train(was_training)
    return losses


def _difference(found: Sequence[float], probe: ProbeSpec, allowed: float, kind: str) -> str | None:
    """Return in words how the losses found here differ from the probe's by more than `allowed`; None if
    they do not."""
    differences = [abs(a - b) for a, b in zip(found, probe.losses, strict=True)]
    # Written so that NaN counts as too far off.
    if all(each <= allowed for each in differences):
        return None
    return (
        f"its test losses differ by up to {max(differences):.2g} in {kind}, where {allowed:.2g} is "
        "allowed"
    )


def _lengths(manifest: Manifest) -> tuple[int, ...]:
    """Return the samples' lengths: as long as possible within `_OPERATIONS`."""
    weights = manifest.elements + manifest.frozen_elements
    tokens = min(max(_OPERATIONS // weights, 8 * _SHORTEST), _LONGEST)
    longest = input_tokens(manifest.task, manifest.data.sequence_length)
    long, short = min(longest, tokens // 2), min(longest, max(_SHORTEST, tokens // 16))
    return (long, *[short] * _SHORT_SAMPLES)


def _library(model_type: str) -> str:
    name = "diffusers" if makes_images(model_type) else "transformers"
    try:
        return f"{name} {version(name)}"[:64]
    except PackageNotFoundError:
        return name


@contextlib.contextmanager
def _exact_convolutions() -> Iterator[None]:
    """Compute float32 convolutions in full precision: cuDNN uses TF32 by default."""
    before = torch.backends.cudnn.allow_tf32
    torch.backends.cudnn.allow_tf32 = False
    try:
        yield
    finally:
        torch.backends.cudnn.allow_tf32 = before
