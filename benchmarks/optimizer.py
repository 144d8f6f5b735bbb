"""The cost of a round's optimizer work, beside AdamW and the same maths done the DeMo way.

    python benchmarks/optimizer.py [--parameters 10M|134M|1.2B] [--updates 32] [--k 8]
                                   [--device auto|cpu|cuda] [--threads 1] [--repeats 5] [--shared]
                                   [--optimizer signs|default] [--json FILE]

Ours: precondition the gradient, fold it into the momentum, take the strongest coefficients, encode
them, decode all updates, filter outliers, apply the updates, damp the momentum, compute the
fingerprint. DeMo's way (arXiv 2411.19870, as in its authors' program): whole tensors in floats,
64-bit positions and values as an all-gather leaves them, `scatter_reduce` to their mean, a float
transform, a sign. The floor is the time in which the memory could move what any such optimizer reads
and writes: the gradient once in; momentum, second moment and parameters in and out.

--optimizer default takes a new swarm's defaults: `muon`, and a scaled step.

With --shared only what follows a record is timed, and only parameters and updates are in memory.

`critical_path_seconds` is the time of one core between a record and the step, in which a GPU waits:
updates decoded on arrival are looked up by their hashes, filtered, and put together for the device.
It is proportional to updates times coefficients, but for the filter, whose cost is bounded; so
"1.2B x 32" is extrapolated from a smaller size.
"""

from __future__ import annotations

import argparse
import platform
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np
import torch
from command_line import new_parser, write_json
from distro_node.crypto.hashing import content_id
from distro_node.node.trainer.device import choose_device
from distro_node.node.trainer.optimizer.blocks import float_basis
from distro_node.node.trainer.optimizer.exact_step import apply_step, weighted_signs
from distro_node.node.trainer.optimizer.fingerprint import fingerprint
from distro_node.node.trainer.optimizer.optimizer import LocalOptimizer, Taken
from distro_node.protocol.codec.outlier_filter import contradicted
from distro_node.protocol.codec.update import (
    DecodedUpdate,
    TensorLayout,
    UpdateLayout,
    decode_update,
    encode_update,
    update_layout,
)
from distro_node.protocol.wire.manifest import OptimizerSpec, ParameterSpec, Step
from learners.local_steps import cut, joined
from learners.program import OPTIMIZERS
from llamas import SIZES, drawn_update, llama

RATE = 2.0**-10
DECAY = 0.1

# Gradient in; momentum, second moment and parameters in and out: 7 float32 per parameter. For the
# shared part alone the parameters in and out.
FLOOR_BYTES = 28
SHARED_FLOOR_BYTES = 8

OURS = {
    "precondition": "precondition the gradient",
    "accumulate": "fold it into the transformed momentum",
    "take": "take the strongest coefficients",
    "encode": "encode them",
    "decode": "decode all updates",
    "find": "find them decoded, by their hashes",
    "audit": "audit all updates",
    "apply": "apply all updates",
    "yield": "yield to them",
    "fingerprint": "fingerprint",
}

_Result = TypeVar("_Result")


class Stopwatch:
    """The shortest of several runs of each step, by name, in milliseconds.

    On one CPU thread it is the process's own time: other load only adds to the wall-clock time.
    """

    def __init__(self, device: torch.device, threads: int) -> None:
        self._device = device
        self._now = (
            time.process_time if device.type == "cpu" and threads == 1 else time.perf_counter
        )
        self.milliseconds: dict[str, float] = {}

    def run(self, name: str, act: Callable[[], _Result]) -> _Result:
        self._synchronize()
        start = self._now()
        result = act()
        self._synchronize()
        taken = 1000 * (self._now() - start)
        self.milliseconds[name] = min(taken, self.milliseconds.get(name, taken))
        return result

    def _synchronize(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize()


class Demo:
    """DeMo's optimizer on whole tensors, in floats."""

    def __init__(
        self,
        layout: UpdateLayout,
        parameters: Sequence[torch.Tensor],
        momentum: Sequence[torch.Tensor],
    ) -> None:
        self._layout = layout
        self._parameters = parameters
        self._momentum = momentum
        self._received: list[tuple[torch.Tensor, torch.Tensor]] = []

    def receive(self, updates: Sequence[DecodedUpdate]) -> None:
        """Store what an all-gather leaves on the device: positions in int64, values in float32."""
        device = self._parameters[0].device
        for index in range(len(self._layout.tensors)):
            places = np.concatenate([u.positions[index] for u in updates], axis=1)
            values = np.concatenate([u.signs[index] for u in updates], axis=1)
            self._received.append(
                (
                    torch.from_numpy(places).to(device).long(),
                    torch.from_numpy(values).to(device).float(),
                )
            )

    @torch.no_grad()
    def extract(self, gradients: Sequence[torch.Tensor]) -> None:
        """Compute momentum, transform and top-k; transform the own part back and subtract it."""
        for tensor, momentum, gradient in zip(
            self._layout.tensors, self._momentum, gradients, strict=True
        ):
            momentum.mul_(0.999).add_(gradient)
            left, right = self._bases(tensor)
            blocks = cut(momentum.view(tensor.rows, tensor.columns), tensor)
            flat = (left @ blocks @ right.T).reshape(tensor.blocks, tensor.elements)
            places = flat.abs().topk(tensor.top_k, dim=1).indices
            sent = torch.zeros_like(flat).scatter_(1, places, flat.gather(1, places))
            own = joined(left.T @ sent.view_as(blocks) @ right, tensor)
            momentum.sub_(own.view_as(momentum))

    @torch.no_grad()
    def apply(self) -> None:
        """Compute mean, float transform, sign and step."""
        for tensor, parameter, (places, values) in zip(
            self._layout.tensors, self._parameters, self._received, strict=True
        ):
            left, right = self._bases(tensor)
            sums = torch.zeros((tensor.blocks, tensor.elements), device=parameter.device)
            sums.scatter_reduce_(1, places, values, reduce="mean", include_self=False)
            blocks = sums.view(-1, tensor.block_rows, tensor.block_columns)
            direction = joined(left.T @ blocks @ right, tensor).view_as(parameter)
            parameter.mul_(1 - RATE * DECAY).sub_(direction.sign_(), alpha=RATE)

    def _bases(self, tensor: TensorLayout) -> tuple[torch.Tensor, torch.Tensor]:
        device = self._parameters[0].device
        return float_basis(tensor.block_rows, device), float_basis(tensor.block_columns, device)


def bandwidth(device: torch.device, threads: int) -> float:
    """Return the bytes per second that a copy moves, read and written, well beyond any cache."""
    source = torch.ones(1 << 26, device=device)
    target = torch.empty_like(source)
    watch = Stopwatch(device, threads)
    for _ in range(5):
        watch.run("copy", lambda: target.copy_(source))
    return 2 * 4 * source.numel() / (watch.milliseconds["copy"] / 1000)


def drawn_parameters(table: Sequence[ParameterSpec]) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(spec.shape, generator=generator).mul_(0.02) for spec in table]


def time_local(
    watch: Stopwatch,
    layout: UpdateLayout,
    parameters: Sequence[torch.Tensor],
    gradients: Sequence[torch.Tensor],
    updates: Sequence[DecodedUpdate],
    spec: OptimizerSpec,
    repeats: int,
) -> None:
    """Time a member's local work."""
    local = LocalOptimizer(layout, parameters, spec)
    plain = LocalOptimizer(layout, parameters, replace(spec, preconditioner="none"))

    def encode(taken: Taken) -> bytes:
        return encode_update(layout, taken.positions, taken.signs)

    for number in range(repeats):
        watch.run("accumulate", lambda: plain.accumulate(list(gradients)))
        watch.run("both", lambda: local.accumulate(list(gradients)))
        taken = watch.run("take", lambda n=number: local.take(n))
        local.forget(number)
        watch.run("encode", lambda t=taken: encode(t))
        watch.run("yield", lambda: local.damp(updates))
    ms = watch.milliseconds
    ms["precondition"] = ms.pop("both") - ms["accumulate"]


def time_shared(
    watch: Stopwatch,
    layout: UpdateLayout,
    parameters: Sequence[torch.Tensor],
    updates: Sequence[DecodedUpdate],
    step: Step,
    repeats: int,
) -> None:
    """Time the work that every member does alike."""
    bodies = [encode_update(layout, u.positions, u.signs) for u in updates]
    decoded = {content_id(body): decode_update(layout, body) for body in bodies}
    updates, weights, device = [*decoded.values()], [1] * len(updates), parameters[0].device
    for _ in range(repeats):
        watch.run("decode", lambda: [decode_update(layout, body) for body in bodies])
        watch.run("find", lambda: [decoded[content_id(body)] for body in bodies])
        watch.run("gather", lambda: weighted_signs(updates, weights, layout, device))
        watch.run("audit", lambda: contradicted(layout, updates, 0))
        watch.run("apply", lambda: apply_step(parameters, layout, updates, RATE, DECAY, step=step))
        watch.run("fingerprint", lambda: fingerprint(parameters))


def time_demo(
    watch: Stopwatch,
    layout: UpdateLayout,
    parameters: Sequence[torch.Tensor],
    gradients: Sequence[torch.Tensor],
    updates: Sequence[DecodedUpdate],
    repeats: int,
) -> None:
    """Time DeMo's way; without gradients the shared part alone."""
    demo = Demo(layout, parameters, [torch.zeros_like(gradient) for gradient in gradients])
    demo.receive(updates)
    for _ in range(repeats):
        if gradients:
            watch.run("DeMo extract", lambda: demo.extract(gradients))
        watch.run("DeMo apply", demo.apply)


def time_adamw(
    watch: Stopwatch,
    parameters: Sequence[torch.Tensor],
    gradients: Sequence[torch.Tensor],
    repeats: int,
) -> None:
    trained = [torch.nn.Parameter(parameter) for parameter in parameters]
    for parameter, gradient in zip(trained, gradients, strict=True):
        parameter.grad = gradient
    adamw = torch.optim.AdamW(trained, lr=RATE, fused=True)
    # The first step creates the state.
    for _ in range(repeats + 1):
        watch.run("AdamW", adamw.step)


def measure(options: argparse.Namespace, device: torch.device) -> dict[str, Any]:
    """Time all ways on one parameter set, and check whether the device's step equals the CPU's."""
    table = llama(options.parameters)
    layout = update_layout(table, 64, options.k)
    updates = [drawn_update(layout, seed) for seed in range(options.updates)]
    spec = replace(OPTIMIZERS[options.optimizer], top_k=options.k)

    parameters = [parameter.to(device) for parameter in drawn_parameters(table)]
    generator = torch.Generator().manual_seed(1)
    gradients = [
        torch.randn(spec.shape, generator=generator).to(device)
        for spec in table
        if not options.shared
    ]
    watch = Stopwatch(device, options.threads)
    ms = watch.milliseconds
    time_shared(watch, layout, parameters, updates, spec.step, options.repeats)
    if not options.shared:
        time_local(watch, layout, parameters, gradients, updates, spec, options.repeats)
    time_demo(watch, layout, parameters, gradients, updates, options.repeats)
    if not options.shared:
        time_adamw(watch, parameters, gradients, options.repeats)
    elements = sum(parameter.numel() for parameter in parameters)
    floor_bytes = SHARED_FLOOR_BYTES if options.shared else FLOOR_BYTES
    speed = bandwidth(device, options.threads)
    waiting = ms["find"] + ms["gather"]
    target = update_layout(llama("1.2B"), 64, options.k).coefficients * 32
    growth = target / (layout.coefficients * options.updates)
    return {
        "critical_path_seconds": {
            f"{options.parameters} x {options.updates}": (waiting + ms["audit"]) / 1000,
            "1.2B x 32": (waiting * growth + ms["audit"]) / 1000,
        },
        "parameters": elements,
        "coefficients": layout.coefficients,
        "updates": options.updates,
        "k": options.k,
        "optimizer": options.optimizer,
        "device": device.type,
        "device_name": (
            torch.cuda.get_device_name(device) if device.type == "cuda" else platform.machine()
        ),
        "threads": options.threads,
        "torch": torch.__version__,
        "milliseconds": ms,
        "ours": sum(ms[name] for name in OURS if name in ms),
        "ours_same": sum(ms[name] for name in ("accumulate", "take", "apply") if name in ms),
        "demo": ms.get("DeMo extract", 0.0) + ms["DeMo apply"],
        "bandwidth": speed,
        "floor_bytes": floor_bytes,
        "floor": 1000 * floor_bytes * elements / speed,
    }


def report(result: dict[str, Any]) -> None:
    ms, updates = result["milliseconds"], result["updates"]
    names = {
        **OURS,
        "take": f"take the strongest {result['coefficients']:,} coefficients",
        "decode": f"decode {updates} updates",
        "find": f"find {updates} updates decoded on arrival",
        "audit": f"audit {updates} updates",
        "apply": f"apply {updates} updates",
        "ours": "ours, all of it",
        "DeMo extract": "momentum, extraction",
        "DeMo apply": f"mean of {updates}, transform, sign, step",
        "demo": "DeMo's way, without any codec",
        "AdamW": "AdamW, fused",
        "floor": (
            f"floor: {result['floor_bytes']} bytes a parameter at "
            f"{result['bandwidth'] / 1e9:.1f} GB/s"
        ),
    }
    print(f"{result['parameters']:,} parameters, {result['device']}; shortest of the repeats, ms")
    for key in (*OURS, "ours", "DeMo extract", "DeMo apply", "demo", "AdamW", "floor"):
        if key in ms:
            indent = "" if key == "AdamW" else "  "
            print(f"{indent + names[key]:56} {ms[key]:10.1f}")
        elif key in result:
            print(f"{names[key]:56} {result[key]:10.1f}")
    ratios = {
        "ours / DeMo's way, all of it": result["ours"] / result["demo"],
        "ours / DeMo's way, what both do": result["ours_same"] / result["demo"],
        "ours / DeMo's way, the shared step alone": ms["apply"] / ms["DeMo apply"],
        "ours / floor": result["ours"] / result["floor"],
    }
    print()
    for name, figure in ratios.items():
        print(f"{name:56} {figure:10.2f}")
    for size, seconds in result["critical_path_seconds"].items():
        print(f"{f'a GPU waits after a record, {size}, s':56} {seconds:10.3f}")


def main() -> None:
    parser = new_parser(__doc__)
    parser.add_argument("--parameters", choices=list(SIZES), default="10M")
    parser.add_argument("--updates", type=int, default=32)
    parser.add_argument("--k", type=int, default=8, help="coefficients of a block of 64 × 64")
    parser.add_argument("--optimizer", choices=OPTIMIZERS, default="signs")
    parser.add_argument("--device", choices=["auto", "cpu", "cuda"], default="auto")
    parser.add_argument("--threads", type=int, default=1, help="threads on the CPU")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--shared", action="store_true", help="only what follows a record")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    result = measure(options, choose_device(options.device))
    report(result)
    write_json(options.json, result)


if __name__ == "__main__":
    main()
