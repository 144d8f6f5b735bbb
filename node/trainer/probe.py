"""The probe: losses by which every trainer proves that it computes the swarm's model.

Members check parameters by their hashes, and nothing of that tells whether they compute the same
function of them: another release of a library may read a configuration otherwise, an attention kernel
may ignore a soft-cap, a device may have a broken kernel. So `create` computes some losses in float32 and
writes them into the manifest, and a trainer computes them again before its first update.

They are not the initial model's. A member that joins in a later round does not have that, and new
parameters attend to everything alike, so that a wrong rotary base changes their losses by no more than
bfloat16 does. The parameters of the probe are a fixed table of numbers, repeated and scaled so that
every layer adds about as much as it receives. They are written into the model before a snapshot is
loaded over them: no memory is needed, and the layers, sizes and splits are those that are trained.

docs/protocol.md has the measured differences behind the tolerances.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from importlib.metadata import PackageNotFoundError, version

import torch
from transformers import PreTrainedModel

from ...protocol.wire.manifest import Manifest
from ...protocol.wire.work_specs import ProbeSpec
from ..storage.blob_store import BlobStore
from .adapters import build_trained, frozen_parameters
from .architectures import makes_images
from .device import is_out_of_memory
from .errors import TrainerFailed
from .model import check_inputs
from .part import Part
from .probe_parameters import ParameterFill
from .tasks import HasProbe, Task, open_task

# One long sample, for what depends on distance, and short ones: several numbers do not agree by chance.
_SHORT_SAMPLES = 7
_SHORTEST, _LONGEST = 16, 4096
# Multiplications of a forward pass through all samples, about: half a minute on two cores.
_OPERATIONS = 1 << 39

Narrow = Callable[[], contextlib.AbstractContextManager[object]]
"""Enters a context in which matrices are multiplied with fewer digits."""


def fills(manifest: Manifest) -> tuple[ParameterFill, ParameterFill | None]:
    """What fills the trained parameters, and the frozen ones where there are some."""
    adapter = manifest.adapter
    frozen = None if adapter is None else ParameterFill(adapter.base_parameters, manifest.elements)
    return ParameterFill(manifest.parameters), frozen


def make_probe(manifest: Manifest, store: BlobStore) -> ProbeSpec | None:
    """Build a manifest's model as its members will, on the CPU, and return its probe, which the manifest
    need not have yet. None if the task offers no samples for one.

    Raises `TrainerFailed`: what building a session raises.
    """
    model, parameters = build_trained(manifest, store, torch.device("cpu"))
    check_inputs(model, manifest.data.vocabulary, manifest.data.sequence_length)
    task = open_task(manifest, model.config)
    if not isinstance(task, HasProbe):
        return None
    trained, frozen = fills(manifest)
    trained.whole(parameters)
    if frozen is not None and manifest.adapter is not None:
        frozen.whole(frozen_parameters(model, manifest.adapter))
    lengths = _lengths(manifest)
    try:
        losses = [round(loss, 4) for loss in probe_losses(task, model, lengths)]
    except (ValueError, TypeError, LookupError, RuntimeError) as error:
        # Some of what a configuration lacks the library finds only when it computes.
        if is_out_of_memory(error):
            raise
        problem = (str(error).splitlines() or [type(error).__name__])[0][:300]
        raise TrainerFailed("bad_model", f"the model cannot be computed: {problem}") from None
    if not all(map(math.isfinite, losses)):
        raise TrainerFailed("bad_model", "its losses are not finite with parameters of usual size")
    return ProbeSpec(
        lengths=lengths, losses=tuple(losses), library=_library(str(manifest.model["model_type"]))
    )


def prove(
    manifest: Manifest,
    model: PreTrainedModel,
    task: Task,
    part: Part,
    *,
    exactly: bool,
    narrow: Narrow | None,
) -> None:
    """Hold the losses of a model in training against the manifest's probe. It overwrites the trained
    parameters, which are `part`'s, and the frozen ones, too.

    `exactly`: the model can compute in float32; where it is in shards on GPUs its parameters are cast as
    they are gathered. `narrow`: in this context the device trains, in bfloat16.

    Raises `TrainerFailed` (`other_model`), at all ranks if one of them computes something else.
    """
    probe = manifest.probe
    if probe is None:
        return
    if not isinstance(task, HasProbe):
        raise TrainerFailed("no_task", f"the task {manifest.task!r} here offers no probe")
    trained, frozen = fills(manifest)
    part.fill(trained)
    if frozen is not None and manifest.adapter is not None:
        frozen.whole(frozen_parameters(model, manifest.adapter))
    problem = None
    if exactly:
        found = probe_losses(task, model, probe.lengths)
        problem = _difference(found, probe, probe.tolerance, "float32")
    if problem is None and narrow is not None:
        found = probe_losses(task, model, probe.lengths, narrow)
        problem = _difference(found, probe, probe.narrow_tolerance, "bfloat16")
    if not part.everywhere(problem is None):
        if problem is None:
            raise TrainerFailed("other_model", "another device of this computer does so")
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
    context: Narrow = contextlib.nullcontext,
) -> list[float]:
    """The mean loss of each of the probe's samples, of so many tokens, with a model's parameters."""
    device = next(model.parameters()).device
    trains = model.training
    model.eval()
    losses = []
    try:
        for number, length in enumerate(lengths):
            batch = {name: each.to(device) for name, each in task.probe(number, length).items()}
            with context(), _exact_convolutions():
                loss = task.loss(model, batch)
            losses.append(float(loss.total) / max(1, loss.count))
    finally:
        model.train(trains)
    return losses


def _difference(found: Sequence[float], probe: ProbeSpec, allowed: float, kind: str) -> str | None:
    """What is wrong with the losses that are computed here; None if nothing is."""
    off = [abs(a - b) for a, b in zip(found, probe.losses, strict=True)]
    # Written so that what is no number is too far off.
    if all(each <= allowed for each in off):
        return None
    return (
        f"its test losses differ by up to {max(off):.2g} in {kind}, where {allowed:.2g} is allowed"
    )


def _lengths(manifest: Manifest) -> tuple[int, ...]:
    """How long the samples are: as long as they can be within `_OPERATIONS`."""
    weights = manifest.elements + manifest.frozen_elements
    tokens = min(max(_OPERATIONS // weights, 8 * _SHORTEST), _LONGEST)
    longest = manifest.data.sequence_length
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
    """Convolutions in float32 are computed so: cuDNN takes shorter numbers unless it is told."""
    before = torch.backends.cudnn.allow_tf32
    torch.backends.cudnn.allow_tf32 = False
    try:
        yield
    finally:
        torch.backends.cudnn.allow_tf32 = before
