"""All that matters about a GPU, in eight minutes on one card: exactness, speed, memory, and a real node.

    python benchmarks/gpu.py [--device cuda] [--parts exact,session,...] [--seconds 470] [--tiny]
        [--json FILE]

Each part is independent: one that fails reports it, and the next one starts; one for which no time
is left is named. `exact` compares the shared step of all shapes, both kinds and 1 to 1,024 members
on the device with the CPU's, and checks that a device that multiplies in TF32 is refused. `session`
and `swarm` train on the device beside the CPU, in one process and as two real nodes on loopback,
with equal fingerprints in each round. `throughput` gives tokens per second of a gradient beside a
plain loop of bfloat16 autocast and fused AdamW, and the peak of memory beside the plan's forecast.
`round` times every part of a round of 32 members beside the gradient: seconds of wall clock, and of
kernels. `sandbox` opens the real, confined trainer process. `memory` takes memory away and returns
it.

    --tiny --device cpu    tries the script itself, without a GPU
"""

from __future__ import annotations

import dataclasses
import gc
import json
import math
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
import trio
from command_line import new_parser, write_json
from distro_node.crypto.identity import PeerId
from distro_node.node.settings.components import Compile, TrainerSettings
from distro_node.node.storage.blob_store import BlobStore
from distro_node.node.trainer.device import choose_device, device_kind, narrow_type, synchronize
from distro_node.node.trainer.models.initial_parameters import initialise
from distro_node.node.trainer.models.model import (
    build_skeleton,
    model_config,
    new_model,
    parameter_table,
)
from distro_node.node.trainer.optimizer import exact_step
from distro_node.node.trainer.optimizer.device_check import check_exactness
from distro_node.node.trainer.optimizer.fingerprint import fingerprint
from distro_node.node.trainer.optimizer.mixed_precision import all_finite
from distro_node.node.trainer.optimizer.optimizer import LocalOptimizer, Taken
from distro_node.node.trainer.speed import matmul_flops, sequence_flops
from distro_node.node.trainer.training_session import TrainingSession
from distro_node.node.training.client import open_trainer
from distro_node.node.training.errors import TrainerFailed
from distro_node.node.training.memory_model import needs
from distro_node.node.training.trainer_spec import TrainerSpec
from distro_node.protocol.codec.update import decode_update, encode_update, update_layout
from distro_node.protocol.wire.manifest import (
    DataSpec,
    Manifest,
    OptimizerSpec,
    ParameterSpec,
    ScheduleSpec,
    Step,
)
from llamas import llama_config

# The exact step's cases, small manifests and nodes are the tests' own.
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
from e2e.support import Swarm, check_agreement
from trainer.exactness import SHAPES, layout_of, random_parameters, random_updates
from trainer.support import make_manifest, store_byte_tokenizer, store_shard

CPU = torch.device("cpu")
RATE = 2.0**-9
MEMBERS = 32
MUON = OptimizerSpec(
    preconditioner="muon", smoothing=0.7, momentum=0.97, step="scaled", weight_decay=0.1
)


@dataclasses.dataclass(frozen=True)
class Size:
    """A Llama of some size, and the tokens of its sequences."""

    name: str
    hidden: int
    inner: int
    layers: int
    vocabulary: int
    sequence: int
    tied: bool

    @property
    def config(self) -> dict[str, Any]:
        return llama_config(
            *(self.hidden, self.inner, self.layers, self.vocabulary, self.sequence), tied=self.tied
        )


TINY = Size("tiny", 64, 128, 2, 512, 128, True)
SMALL = Size("125M", 768, 3072, 12, 32_000, 1024, True)
LARGE = Size("1.2B", 2048, 8192, 16, 32_000, 2048, False)


class Report:
    """The results, printed as they arrive."""

    def __init__(self, device: torch.device, seconds: float, *, tiny: bool) -> None:
        self.device, self.seconds, self.tiny = device, seconds, tiny
        self.parts: dict[str, Any] = {}
        self._began = time.monotonic()

    @property
    def left(self) -> float:
        """Seconds left of the time given to the whole script."""
        return self.seconds - (time.monotonic() - self._began)

    def add(self, part: str, **found: Any) -> None:
        """Add figures to a part."""
        self.parts.setdefault(part, {}).update(found)
        print(
            f"{self.seconds - self.left:6.1f} s  {part}: {json.dumps(found, default=str)}",
            flush=True,
        )


def clean(device: torch.device) -> None:
    """Free unused memory, and reset the peak."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)


def best_seconds(device: torch.device, compute: Callable[[], object], times: int = 3) -> float:
    """Return the wall-clock seconds of the fastest of a few runs, after one that is not counted."""
    compute()
    synchronize(device)
    taken = []
    for _ in range(times):
        started = time.perf_counter()
        compute()
        synchronize(device)
        taken.append(time.perf_counter() - started)
    return min(taken)


def occupation(device: torch.device, compute: Callable[[], object]) -> dict[str, float]:
    """Return the wall-clock milliseconds of one call, and the GPU's work in them."""
    compute()
    synchronize(device)
    started = time.perf_counter()
    compute()
    synchronize(device)
    wall = time.perf_counter() - started
    if device.type != "cuda":
        return {"wall_ms": round(1e3 * wall, 2)}
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as profiled:
        compute()
        synchronize(device)
    spans = [event for event in profiled.events() or () if "CUDA" in str(event.device_type)]
    copied = sum(e.self_device_time_total for e in spans if "Mem" in e.name) / 1e6
    computed = sum(e.self_device_time_total for e in spans if "Mem" not in e.name) / 1e6
    return {
        "wall_ms": round(1e3 * wall, 2),
        "kernel_ms": round(1e3 * computed, 2),
        "copy_ms": round(1e3 * copied, 2),
        "launches": len(spans),
        "idle_share": round(max(0.0, 1 - (computed + copied) / wall), 3),
    }


def machine(report: Report) -> None:
    """Report the machine."""
    found: dict[str, Any] = {
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "hip": torch.version.hip,
        "layers_in": str(narrow_type(report.device) or torch.float32),
    }
    if report.device.type == "cuda":
        properties = torch.cuda.get_device_properties(report.device)
        found |= {
            "name": properties.name,
            "capability": (properties.major, properties.minor),
            "memory_bytes": properties.total_memory,
            "multiprocessors": properties.multi_processor_count,
        }
    report.add("machine", **found)


def differing_bits(
    device: torch.device,
    shapes: Sequence[tuple[int, ...]],
    members: int,
    decay: float,
    step: Step,
) -> int:
    """Count the bits of parameters that differ between the CPU and the device after two steps."""
    layout = layout_of(shapes)
    few = random_updates(layout, min(members, 3))
    updates = [few[0]] * (members - len(few) + 1) + few[1:]
    here = random_parameters(shapes)
    there = [parameter.to(device) for parameter in here]
    for parameters in (here, there):
        for _ in range(2):
            exact_step.apply_step(parameters, layout, updates, RATE, decay, step=step)
    differing = sum(
        int((a.view(torch.int32) != b.cpu().view(torch.int32)).sum())
        for a, b in zip(here, there, strict=True)
    )
    return differing + (fingerprint(here) != fingerprint(there))


def measure_exact_step(report: Report) -> None:
    """Compare the shared step on the device with the CPU's."""
    device = report.device
    large = [(640, 512)] if report.tiny else [(4096, 2048), (2048, 8192), (32_000, 768)]
    check_exactness(device, layout_of(large))
    cases = [(SHAPES, members) for members in (1, 2, 7, 32, 130, 131, 1024)]
    cases += [(large, 2 if report.tiny else MEMBERS)]
    differing, count = 0, 0
    for shapes, members in cases:
        steps: tuple[Step, ...] = ("sign", "scaled")
        for step in steps:
            for decay in (0.0, 0.1):
                differing += differing_bits(device, shapes, members, decay, step)
                count += 1
    report.add("exact", cases=count, differing=differing)
    if device.type != "cuda":
        return
    # The control: a device that multiplies with ten bits must be refused.
    torch.set_float32_matmul_precision("high")
    try:
        check_exactness(device, layout_of(large))
        refused = "not refused"
    except TrainerFailed as error:
        refused = str(error)
    finally:
        torch.set_float32_matmul_precision("highest")
    report.add("exact", with_tf32=refused)


def session(report: Report) -> None:
    """Train a member on the device and one on the CPU for ten rounds."""
    for name, spec in (("muon, scaled", MUON), ("orthogonal, sign", OptimizerSpec())):
        with tempfile.TemporaryDirectory() as folder:
            manifest, chunks = make_manifest(Path(folder), optimizer=spec)
            both = [
                TrainingSession(manifest, BlobStore(Path(folder)), each)
                for each in (CPU, report.device)
            ]
            for member in both:
                member.load(chunks)
            before, equal = both[0].computation.evaluate(8), 0
            for round_ in range(1, 11):
                shares = [range(8 * (2 * round_ + me), 8 * (2 * round_ + me + 1)) for me in (0, 1)]
                bodies = [m.train(round_, s).body for m, s in zip(both, shares, strict=True)]
                equal += len({m.apply(round_, bodies, RATE, own_counted=True) for m in both}) == 1
            same = len({member.snapshot().encode() for member in both}) == 1
            losses = [round(before, 3), round(both[1].computation.evaluate(8), 3)]
            report.add(
                "session", **{name: {"equal_rounds": equal, "of": 10, "equal_snapshots": same}}
            )
            report.add("session", **{f"{name}, loss": losses})


def sandbox(report: Report) -> None:
    """Open the real trainer process, confined and not."""

    async def open_once(confined: bool, folder: Path) -> dict[str, Any]:
        manifest, chunks = make_manifest(folder)
        started = time.monotonic()
        compile_ = Compile.ON if confined and not report.tiny else Compile.OFF
        spec = TrainerSpec(
            manifest=manifest.encode(),
            blobs=folder,
            settings=TrainerSettings(device=str(report.device), sandbox=confined, compile=compile_),
        )
        async with open_trainer(spec) as trainer:
            opened = time.monotonic() - started
            await trainer.load(chunks)
            made = await trainer.train(1, range(8))
            return {
                "open_seconds": round(opened, 1),
                "device": trainer.device,
                "compiled": trainer.compiled,
                "loss": round(made.loss, 3),
                "memory": await trainer.memory(),
            }

    for confined in (True, False):
        with tempfile.TemporaryDirectory() as folder:
            found = trio.run(open_once, confined, Path(folder))
            report.add("sandbox", **{"confined" if confined else "unconfined": found})


@contextmanager
def opened(
    size: Size, device: torch.device, micro_batch: int | None = None
) -> Iterator[TrainingSession]:
    """Yield a session with random parameters on random bytes."""
    with tempfile.TemporaryDirectory() as folder:
        store = BlobStore(Path(folder))
        made = initialise(size.config, 0, None, store, device)
        text = np.random.default_rng(0).integers(0, 256, size.sequence * 130 + 1).astype(np.uint8)
        manifest = Manifest(
            name="timing",
            model=size.config,
            parameters=made.table,
            initial=store.put(made.blobs.encode()),
            data=DataSpec(
                sequence_length=size.sequence,
                token_bytes=1,
                vocabulary=256,
                shards=(store_shard(store, text),),
                heldout=store_shard(store, text[: size.sequence * 8 + 1]),
                tokenizer=store_byte_tokenizer(store),
            ),
            optimizer=MUON,
            schedule=ScheduleSpec(peak=4e-3, warmup_rounds=2, total_rounds=100),
            founder=PeerId(bytes(32)),
        )
        member = TrainingSession(manifest, store, device, micro_batch)
        member.load(made.blobs.chunks)
        yield member


def plain_tokens(size: Size, device: torch.device, sequences: int) -> float:
    """Return tokens per second of the usual loop, at the same micro-batch."""
    model = new_model(model_config(size.config), device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=device.type == "cuda")
    tokens = torch.randint(0, 256, (sequences, size.sequence), device=device)

    def step() -> None:
        narrow = narrow_type(device)
        with torch.autocast(device.type, dtype=narrow, enabled=narrow is not None):
            loss = model(input_ids=tokens, labels=tokens, use_cache=False).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return sequences * size.sequence / best_seconds(device, step, 2)


def throughput(report: Report, size: Size) -> None:
    """Report tokens per second of a gradient beside the plain loop, and memory beside its forecast."""
    device, part = report.device, f"throughput {size.name}"
    with opened(size, device) as member:
        sequences = member.micro_batch
        share = [i % 128 for i in range(sequences if report.tiny else 4 * sequences)]
        forecast = needs(member._workload(), device_kind(device), member.options, sequences).device
        clean(device)
        seconds = best_seconds(device, lambda: member.computation.gradient(1, share), 2)
        rate = len(share) * size.sequence / seconds
        flops, reached = sequence_flops(member.manifest), matmul_flops(device)
        report.add(
            part,
            plan=member.memory,
            micro_batch=sequences,
            tokens_per_second=round(rate),
            utilisation=flops and reached and round(rate / size.sequence * flops / reached, 3),
            forecast_bytes=forecast,
        )
        if device.type == "cuda":
            report.add(
                part,
                allocated_bytes=torch.cuda.max_memory_allocated(device),
                reserved_bytes=torch.cuda.max_memory_reserved(device),
            )
        report.add(part, gradient=occupation(device, lambda: member.computation.gradient(1, share)))
        if device.type == "cuda" and size is SMALL:
            words = member.compile_layers(Compile.ON)
            compiled = best_seconds(device, lambda: member.computation.gradient(1, share), 2)
            report.add(
                part,
                compiling=words,
                compiled_tokens_per_second=round(len(share) * size.sequence / compiled),
            )
            torch.compiler.reset()
    clean(device)
    report.add(part, plain_tokens_per_second=round(plain_tokens(size, device, sequences)))
    clean(device)


def round_parts(report: Report) -> None:
    """Time every part of a round beside the gradient, with 32 members' updates."""
    device = report.device
    size = TINY if report.tiny else LARGE
    if device.type == "cuda" and torch.cuda.mem_get_info(device)[0] < 24e9 and not report.tiny:
        size = SMALL
    table = parameter_table(build_skeleton(size.config))
    layout = update_layout([ParameterSpec(name=s.name, shape=s.shape) for s in table], 64, 8)
    parameters = [torch.randn(spec.shape, device=device) * 0.02 for spec in table]
    gradients = [torch.randn(spec.shape, device=device) for spec in table]
    optimizer = LocalOptimizer(layout, parameters, dataclasses.replace(MUON, damping=0.5))
    report.add(
        "round", model=size.name, elements=sum(math.prod(s.shape) for s in table), members=MEMBERS
    )
    report.add("round", accumulate=occupation(device, lambda: optimizer.accumulate(gradients)))
    report.add("round", finite=occupation(device, lambda: all_finite(gradients)))
    rounds = iter(range(1, 100))
    taken: list[Taken] = []
    report.add("round", take=occupation(device, lambda: taken.append(optimizer.take(next(rounds)))))
    bodies = [encode_update(layout, each.positions, each.signs) for each in taken[:2]]
    started = time.perf_counter()
    two = [decode_update(layout, body) for body in bodies]
    each = (time.perf_counter() - started) / len(two)
    report.add("round", decode_seconds={"each": round(each, 3), "all": round(MEMBERS * each, 1)})
    updates = [two[index % len(two)] for index in range(MEMBERS)]
    for step in ("sign", "scaled"):
        found = occupation(
            device,
            lambda s=step: exact_step.apply_step(parameters, layout, updates, RATE, 0.1, step=s),
        )
        report.add("round", **{f"apply, {step}": found})
    report.add("round", yield_to=occupation(device, lambda: optimizer.damp(updates)))
    report.add("round", fingerprint=occupation(device, lambda: fingerprint(parameters)))
    if device.type == "cuda":
        report.add("round", reserved_bytes=torch.cuda.max_memory_reserved(device))


def swarm(report: Report) -> None:
    """Run two real nodes on loopback, one on the CPU and one on the device."""
    with (
        tempfile.TemporaryDirectory() as folder,
        Swarm(Path(folder) / "swarm", start_members=2, hidden=TINY.hidden) as both,
    ):
        both.create()
        nodes = [both.node(name) for name in ("founder", "other")]
        for node, device in zip(nodes, ("cpu", str(report.device)), strict=True):
            node.start("--device", device)
        # Fails where a fingerprint differs.
        report.add("swarm", equal_until_round=check_agreement(nodes, 12))


def end_of_memory(report: Report) -> None:
    """Take the memory away, and return it."""
    device = report.device
    if device.type != "cuda":
        report.add("memory", left_out="needs a CUDA device")
        return
    with opened(TINY if report.tiny else SMALL, device, micro_batch=32) as member:
        total = torch.cuda.get_device_properties(device).total_memory
        allowed = (torch.cuda.memory_allocated(device) + 5e9) / total
        torch.cuda.set_per_process_memory_fraction(min(1.0, allowed), device)
        started = time.monotonic()
        member.computation.gradient(1, range(64))
        report.add(
            "memory",
            began_with=32,
            ended_with=member.micro_batch,
            seconds=round(time.monotonic() - started, 2),
        )
        torch.cuda.set_per_process_memory_fraction(1.0, device)
        for _ in range(80):
            member.computation.gradient(1, range(2))
        report.add("memory", grew_back_to=member.micro_batch)


PARTS: dict[str, tuple[float, Callable[[Report], None]]] = {
    "machine": (1, machine),
    "exact": (60, measure_exact_step),
    "session": (30, session),
    "sandbox": (60, sandbox),
    "throughput-small": (90, lambda r: throughput(r, TINY if r.tiny else SMALL)),
    "round": (80, round_parts),
    "swarm": (80, swarm),
    "throughput-large": (120, lambda r: None if r.tiny else throughput(r, LARGE)),
    "memory": (20, end_of_memory),
}
"""Each with the seconds that it takes on a card of 2023."""


def main() -> None:
    """Run the parts and print their results."""
    parser = new_parser(__doc__)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--parts", default=",".join(PARTS), help="which, separated by commas")
    parser.add_argument("--seconds", type=float, default=470.0, help="for all of them")
    parser.add_argument("--tiny", action="store_true", help="models that a CPU computes in moments")
    options = parser.parse_args()
    torch.set_float32_matmul_precision("highest")
    report = Report(choose_device(options.device), options.seconds, tiny=options.tiny)
    for name in options.parts.split(","):
        seconds, part = PARTS[name]
        # A third of it may be enough on a faster card.
        if report.left < seconds / 3:
            report.add(name, left_out="no time is left")
            continue
        try:
            part(report)
        except Exception as error:
            where = traceback.format_exc().splitlines()[-6:]
            report.add(name, failed=f"{type(error).__name__}: {error}"[:300], where=where)
        clean(report.device)
    write_json(options.json, json.loads(json.dumps(report.parts, default=str)))


if __name__ == "__main__":
    main()
