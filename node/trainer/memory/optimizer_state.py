"""Storage of the optimizer's state: float32, bfloat16 or 8 bits, on the device or in main memory.

The optimizer works on stripes in float32 on its device: it reads some rows, changes them, and writes
them back. Writing back to fewer bits rounds stochastically, so that the expected result is exact (Gupta
et al., arXiv 1502.02551): otherwise a momentum whose decay is smaller than its last digit would never
change. Nothing here reaches the parameters except through the member's own update.

8 bits: 256 neighbours share a scale, their largest magnitude (Dettmers et al., arXiv 2110.02861). A
value is the scale times the square of its code, with the code's sign; in the second moment, whose root
is used, it is the scale times the fourth power. So small numbers next to large ones stay precise.
"""

from __future__ import annotations

import functools
import math
import random
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

import torch

from ...training.memory_options import GROUP, NOISE, SHORTEST_ROW, StateOptions
from ..device import copies_while_computing, synchronize


class StateTensor(ABC):
    """One tensor of the optimizer's state, stored as rows of numbers, initially zero."""

    def __init__(self, shape: Sequence[int], rows: int, device: torch.device) -> None:
        """`shape` is the shape of `read_all`; `rows` is the number of rows into which it is cut for
        storage; they are processed on `device`."""
        self.shape = torch.Size(shape)
        self.rows = rows
        self.columns = math.prod(shape) // rows
        self.device = device
        self._copies_asynchronously = copies_while_computing(device)

    @abstractmethod
    def read(self, rows: slice) -> torch.Tensor:
        """Return some rows, (rows, columns) in float32 on the device. The caller may change them in
        place, and then has to call `write`."""

    @abstractmethod
    def write(self, rows: slice, values: torch.Tensor) -> None:
        """Store the changed result of `read` for these rows."""

    @abstractmethod
    def parts(self) -> dict[str, torch.Tensor]:
        """Return the stored tensors by a short name (`PARTS`): values or codes, in the state's shape,
        and scales, (rows, groups)."""

    def read_all(self) -> torch.Tensor:
        """Return everything in float32, in the state's shape: a view of the stored memory if that is in
        float32 on the device."""
        return self.read(slice(0, self.rows)).view(self.shape)


class FloatState(StateTensor):
    """State in float32 or bfloat16."""

    def __init__(
        self,
        shape: Sequence[int],
        rows: int,
        device: torch.device,
        options: StateOptions,
        noise: Noise,
    ) -> None:
        super().__init__(shape, rows, device)
        self._noise = noise
        dtype = torch.bfloat16 if options.precision == "bfloat16" else torch.float32
        self._values = _zeros((rows, self.columns), dtype, device, options)

    def read(self, rows: slice) -> torch.Tensor:
        """Read as `StateTensor` does; the result is a view of the stored memory if possible."""
        return self._values[rows].to(
            self.device, torch.float32, non_blocking=self._copies_asynchronously
        )

    def write(self, rows: slice, values: torch.Tensor) -> None:
        """Write as `StateTensor` does; does nothing if `read` returned a view."""
        target = self._values[rows]
        if values.data_ptr() == target.data_ptr():
            return
        if target.dtype == torch.bfloat16:
            values = self._noise.rounded(values)
        target.copy_(values, non_blocking=self._copies_asynchronously)

    def parts(self) -> dict[str, torch.Tensor]:
        """Return one part: the values."""
        synchronize(self.device)
        return {"": self._values.view(self.shape)}


class EightBitState(StateTensor):
    """State in 8 bits, with a scale for each group."""

    def __init__(
        self,
        shape: Sequence[int],
        rows: int,
        device: torch.device,
        options: StateOptions,
        noise: Noise,
        *,
        signed: bool,
    ) -> None:
        super().__init__(shape, rows, device)
        self._noise = noise
        self._signed = signed
        self._groups = -(-self.columns // GROUP)
        dtype = torch.int8 if signed else torch.uint8
        self._codes = _zeros((rows, self.columns), dtype, device, options)
        self._scales = _zeros((rows, self._groups), torch.float32, device, options)

    def read(self, rows: slice) -> torch.Tensor:
        """Read as `StateTensor` does, into new memory."""
        codes = self._codes[rows].to(self.device, non_blocking=self._copies_asynchronously)
        scales = self._scales[rows].to(self.device, non_blocking=self._copies_asynchronously)
        return decode_codes(codes, scales)

    def write(self, rows: slice, values: torch.Tensor) -> None:
        """Write as `StateTensor` does. A number that is not finite makes all of its group NaN in later
        reads."""
        codes, scales = self._encode(values)
        self._codes[rows].copy_(codes, non_blocking=self._copies_asynchronously)
        self._scales[rows].copy_(scales, non_blocking=self._copies_asynchronously)

    def parts(self) -> dict[str, torch.Tensor]:
        """Return two parts: codes and scales."""
        synchronize(self.device)
        return {"": self._codes.view(self.shape), ".scales": self._scales}

    def _encode(self, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        grouped = _grouped(values)
        sizes = grouped.abs() if self._signed else grouped
        scales = sizes.amax(dim=2)
        share = sizes.div(scales.clamp(min=torch.finfo(torch.float32).tiny)[:, :, None])
        most = 127 if self._signed else 255
        code = share.sqrt() if self._signed else share.sqrt().sqrt_()
        code.mul_(most).floor_().clamp_(max=most - 1)
        low, high = code.square(), (code + 1).square_()
        share.mul_(most**2)
        if not self._signed:
            low.square_()
            high.square_()
            share.mul_(most**2)
        part = share.sub_(low).div_(high.sub_(low))
        code += self._noise.like(part) < part
        if self._signed:
            code.copysign_(grouped)
        code = code.view(len(values), -1)[:, : self.columns]
        return code.to(self._codes.dtype), scales


def decode_codes(codes: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """Return the float32 numbers of codes, (rows, columns), and scales, (rows, groups)."""
    values = codes.to(torch.float32)
    if codes.dtype == torch.int8:
        values.mul_(values.abs().mul_(1 / 127**2))
    else:
        values.square_().mul_(1 / 255**2).square_()
    columns = values.shape[1]
    if columns % GROUP:
        return values.mul_(scales.repeat_interleave(GROUP, dim=1)[:, :columns])
    values.view(len(values), -1, GROUP).mul_(scales[:, :, None])
    return values


class Noise:
    """The random numbers for rounding: the same sequence in every new instance on a device."""

    def __init__(self, device: torch.device) -> None:
        self._places = random.Random(0)
        try:
            self._generator = torch.Generator(device).manual_seed(0)
        except RuntimeError:
            # A third-party backend may have none: its numbers are drawn on the CPU.
            self._generator = torch.Generator().manual_seed(0)

    def like(self, values: torch.Tensor) -> torch.Tensor:
        """Return numbers uniform in [0, 1), in this shape."""
        count = values.numel()
        if values.device.type != "cpu" or count > NOISE // 2:
            drawn_on = self._generator.device
            drawn = torch.rand(values.shape, device=drawn_on, generator=self._generator)
            return drawn.to(values.device)
        start = self._places.randrange(NOISE - count)
        return noise_table()[start : start + count].view(values.shape)

    def rounded(self, values: torch.Tensor) -> torch.Tensor:
        """Round float32 to bfloat16, up or down, so that the expected result is exact."""
        bits = self.like(values).mul(1 << 16).to(torch.int32)
        bits += values.contiguous().view(torch.int32)
        # The upper half of a float32 is a bfloat16.
        return bits.bitwise_and_(-(1 << 16)).view(torch.float32).to(torch.bfloat16)


def new_state(
    shape: Sequence[int],
    rows: int,
    device: torch.device,
    options: StateOptions,
    noise: Noise,
    *,
    signed: bool,
) -> StateTensor:
    """Return a state of zeros; `signed` states whether negative numbers can occur."""
    if options.precision == "int8" and math.prod(shape) // rows >= SHORTEST_ROW:
        return EightBitState(shape, rows, device, options, noise, signed=signed)
    if options.precision == "int8":
        options = StateOptions(place=options.place)
    return FloatState(shape, rows, device, options, noise)


PARTS = ("", ".scales")
"""The possible names of parts."""


def decode_parts(parts: Mapping[str, torch.Tensor], state: StateTensor) -> torch.Tensor:
    """Decode parts of any precision for this state: float32, (rows, columns), on the parts' device.

    Raises `ValueError` for parts that cannot be this state's in any precision, or are not finite.
    """
    values, scales = parts[""], parts.get(".scales")
    if values.shape != state.shape:
        raise ValueError("another shape")
    values = values.reshape(state.rows, state.columns)
    if scales is None:
        if values.dtype not in (torch.float32, torch.bfloat16):
            raise ValueError("numbers of another kind")
        values = values.to(torch.float32)
    else:
        if values.dtype not in (torch.int8, torch.uint8) or scales.dtype != torch.float32:
            raise ValueError("codes of another kind")
        if scales.shape != (state.rows, -(-state.columns // GROUP)):
            raise ValueError("other scales")
        values = decode_codes(values, scales)
    if not torch.isfinite(values).all():
        raise ValueError("a number that is not finite")
    return values


def restore(state: StateTensor, parts: Mapping[str, torch.Tensor], values: torch.Tensor) -> None:
    """Store `parts`, whose decoded numbers are `values`, in the state: the same bits if both have the
    same precision."""
    own = state.parts()
    if own.keys() == parts.keys() and own[""].dtype == parts[""].dtype:
        for name, part in parts.items():
            own[name].copy_(part)
    else:
        state.write(slice(0, state.rows), values.to(state.device))


def _grouped(values: torch.Tensor) -> torch.Tensor:
    """Return the values as (rows, groups, GROUP), the last group padded with zeros."""
    rows, columns = values.shape
    if columns % GROUP:
        values = torch.nn.functional.pad(values, (0, -columns % GROUP))
    return values.view(rows, -1, GROUP)


def _zeros(
    shape: tuple[int, int], dtype: torch.dtype, device: torch.device, options: StateOptions
) -> torch.Tensor:
    if options.place == "device":
        return torch.zeros(shape, dtype=dtype, device=device)
    return torch.zeros(shape, dtype=dtype, pin_memory=device.type == "cuda")


@functools.cache
def noise_table() -> torch.Tensor:
    """Return the shared table of random numbers; callers must not change it."""
    return torch.rand(NOISE, generator=torch.Generator().manual_seed(0))
