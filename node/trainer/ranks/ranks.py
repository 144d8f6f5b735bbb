"""The devices of one member and the communication of their processes: one *rank* per device.

Rank 0 talks to the node; the others carry out the same requests at the same time, in the same order.
They communicate through `torch.distributed`: NCCL between GPUs, gloo otherwise. Nothing is pickled.
Every exchange has a time limit except one, the wait for the next request. So if a rank hangs, the
trainer ends, and its supervisor restarts it.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any, TypeVar

import msgpack
import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import Store

from ...training.errors import TrainerFailed
from ...util.first_line import first_line
from ..device import is_out_of_memory
from ..error_report import describe

T = TypeVar("T")

# Practically for ever, though a number of milliseconds that the libraries can represent: days may pass
# between two requests if the swarm has stopped.
_UNLIMITED = timedelta(days=10_000)


class RankLost(Exception):
    """Another rank hangs or can no longer be reached."""


class RankOutOfMemory(RankLost):
    """This rank has no memory left for its part of a joint computation."""


class AgreedFailure(TrainerFailed):
    """A failure that is raised at all ranks; they go on with the next request."""


class Ranks:
    """One rank's end of the process groups. Exchanges in `group` have a time limit, those in
    `untimed_group` have none; both include gloo, for tensors in main memory."""

    def __init__(
        self,
        rank: int,
        size: int,
        device: torch.device,
        group: dist.ProcessGroup,
        untimed_group: dist.ProcessGroup,
    ) -> None:
        self.rank = rank
        self.size = size
        self.device = device
        self._group = group
        self._untimed_group = untimed_group
        self._pending_signal: object = None

    def send_request(self, request: dict[str, Any]) -> None:
        """Send a request to all other ranks. Only rank 0 calls this."""
        # This broadcast is not waited for, because it has no time limit. A rank that hangs is late for
        # the exchange after it, which has one.
        signal = torch.ones(1, dtype=torch.int64)
        self._pending_signal = signal, self._untimed_group.broadcast(signal, 0)
        self._broadcast(pack(request))

    def receive_request(self) -> dict[str, Any]:
        """Wait for the next request and return it. All ranks except rank 0 call this."""
        self._wait(lambda: self._untimed_group.broadcast(torch.zeros(1, dtype=torch.int64), 0))
        return unpack(self._broadcast(b""))

    def exchange(self, value: Any) -> list[Any]:
        """All-gather a value that MessagePack can encode: return every rank's, by rank."""
        data = pack(value)
        sizes = [torch.zeros(1, dtype=torch.int64) for _ in range(self.size)]
        own = torch.tensor([len(data)], dtype=torch.int64)
        self._wait(lambda: self._group.allgather([sizes], [own]))
        longest = max(int(size) for size in sizes)
        padded = _tensor(data.ljust(longest, b"\0"))
        received = [torch.empty(longest, dtype=torch.uint8) for _ in range(self.size)]
        self._wait(lambda: self._group.allgather([received], [padded]))
        pairs = zip(received, sizes, strict=True)
        return [unpack(each[: int(size)].numpy().tobytes()) for each, size in pairs]

    def collect(self, data: bytes) -> list[bytes] | None:
        """Gather every rank's bytes at rank 0, by rank; return None elsewhere."""
        sizes = self.exchange(len(data))
        if self.rank > 0:
            if data:
                self.send(_tensor(data), 0)
            return None
        parts = [data]
        for rank in range(1, self.size):
            part = torch.empty(sizes[rank], dtype=torch.uint8)
            if sizes[rank]:
                self.receive(part, rank)
            parts.append(part.numpy().tobytes())
        return parts

    def send(self, tensor: torch.Tensor, to: int) -> None:
        """Send a tensor in main memory; the other rank must `receive` it."""
        self._wait(lambda: self._group.send([tensor], to, 0))

    def receive(self, tensor: torch.Tensor, origin: int) -> None:
        """Fill a tensor in main memory with what another rank sends."""
        self._wait(lambda: self._group.recv([tensor], origin, 0))

    def reduce(self, tensor: torch.Tensor, to: int) -> None:
        """Sum every rank's tensor at one rank; the others' tensors are overwritten."""
        options = dist.ReduceOptions()
        options.rootRank = to
        self._wait(lambda: self._group.reduce([tensor], options))

    def broadcast(self, tensor: torch.Tensor, origin: int) -> None:
        """Copy one rank's tensor into every rank's."""
        self._wait(lambda: self._group.broadcast(tensor, origin))

    def run_together(self, act: Callable[[], T]) -> T:
        """Run a function at every rank. If it fails at any, all ranks raise the same `AgreedFailure`.

        `act` may not wait for other ranks, since one at which it has failed does not arrive.
        """
        result, failure = None, None
        try:
            result = act()
        except RankLost:
            raise
        except Exception as error:
            failure = describe(error)
        for found in self.exchange(failure):
            if found is not None:
                raise AgreedFailure(*found)
        return result  # pyright: ignore[reportReturnType] (there was no failure)

    def _broadcast(self, data: bytes) -> bytes:
        size = torch.tensor([len(data)], dtype=torch.int64)
        self.broadcast(size, 0)
        body = _tensor(data) if self.rank == 0 else torch.empty(int(size), dtype=torch.uint8)
        self.broadcast(body, 0)
        return data if self.rank == 0 else body.numpy().tobytes()

    def _wait(self, begin: Callable[[], dist.Work]) -> None:
        try:
            begin().wait()
        except RuntimeError as error:
            if is_out_of_memory(error):
                raise
            raise RankLost(first_line(error, 300, empty="no reason")) from None


def open_ranks(store: Store, rank: int, size: int, device: torch.device, patience: float) -> Ranks:
    """Join the process groups through `store`, once in a process. Raises `RankLost` if that fails."""
    gpus = device.type == "cuda"
    try:
        if gpus:
            torch.cuda.set_device(device)
        dist.init_process_group(
            "cpu:gloo,cuda:nccl" if gpus else "gloo",
            store=store,
            rank=rank,
            world_size=size,
            timeout=timedelta(seconds=patience),
        )
        untimed_group = dist.new_group(backend="gloo", timeout=_UNLIMITED)
    except (RuntimeError, ValueError) as error:
        raise RankLost(first_line(error, 300, empty="no reason")) from None
    group = dist.group.WORLD
    assert group is not None
    assert isinstance(untimed_group, dist.ProcessGroup)
    return Ranks(rank, size, device, group, untimed_group)


def pack(value: Any) -> bytes:
    """Encode a value that MessagePack can hold for another rank."""
    return msgpack.packb(value, use_bin_type=True)  # pyright: ignore[reportReturnType]


def unpack(data: bytes) -> Any:
    """Decode a value."""
    return msgpack.unpackb(data, raw=False, strict_map_key=False)


def _tensor(data: bytes) -> torch.Tensor:
    return (
        torch.frombuffer(bytearray(data), dtype=torch.uint8)
        if data
        else torch.empty(0, dtype=torch.uint8)
    )
