"""The devices of one member, and how their processes speak with each other: a *rank* for each.

Rank 0 speaks with the node; the others do what it does, at the same time, in the same order. What they
have to say to each other goes through `torch.distributed`: NCCL between GPUs, gloo otherwise. None of
it is pickled. Every exchange has a time limit but one, in which ranks wait for the next request: so a
rank that hangs ends the trainer, which its supervisor starts again.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any, TypeVar

import msgpack
import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import Store

from .describing import describe
from .device import is_out_of_memory
from .errors import TrainerFailed

T = TypeVar("T")

# As good as for ever, in a number of milliseconds that the libraries hold. Between two requests there
# may be days, when a swarm stands still.
_FOR_EVER = timedelta(days=10_000)


class RankLost(Exception):
    """The other ranks, or one of them, cannot be reached any more, or hang."""


class RankOutOfMemory(RankLost):
    """This rank has no memory left for its part of what all compute together."""


class AgreedFailure(TrainerFailed):
    """A failure that is raised at all ranks; they go on with the next request."""


class Ranks:
    """One rank's end of the group. `group` has the time limit, `waiting` none; both know gloo."""

    def __init__(
        self,
        rank: int,
        size: int,
        device: torch.device,
        group: dist.ProcessGroup,
        waiting: dist.ProcessGroup,
    ) -> None:
        self.rank = rank
        self.size = size
        self.device = device
        self._group = group
        self._waiting = waiting
        self._told: object = None

    def tell(self, request: dict[str, Any]) -> None:
        """Rank 0: have the others do this."""
        # Not waited for: one that hangs takes it when it likes, and is late for what follows.
        bell = torch.ones(1, dtype=torch.int64)
        self._told = bell, self._waiting.broadcast(bell, 0)
        self._broadcast(pack(request))

    def hear(self) -> dict[str, Any]:
        """All but rank 0: wait for the next request."""
        self._wait(lambda: self._waiting.broadcast(torch.zeros(1, dtype=torch.int64), 0))
        return unpack(self._broadcast(b""))

    def exchange(self, value: Any) -> list[Any]:
        """Everybody's value, by rank: what MessagePack can hold."""
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
        """Everybody's bytes, by rank, at rank 0; None elsewhere."""
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
        """Send a tensor in main memory; the other has to `receive` it."""
        self._wait(lambda: self._group.send([tensor], to, 0))

    def receive(self, tensor: torch.Tensor, origin: int) -> None:
        """Fill a tensor in main memory with what another one sends."""
        self._wait(lambda: self._group.recv([tensor], origin, 0))

    def reduce(self, tensor: torch.Tensor, to: int) -> None:
        """Add up everybody's tensor at one rank; what the others have is used up."""
        options = dist.ReduceOptions()
        options.rootRank = to
        self._wait(lambda: self._group.reduce([tensor], options))

    def broadcast(self, tensor: torch.Tensor, origin: int) -> None:
        """Have everybody's tensor be that of one rank."""
        self._wait(lambda: self._group.broadcast(tensor, origin))

    def agreed(self, act: Callable[[], T]) -> T:
        """Do something that may fail at some; then `TrainerFailed` is raised at all, the same.

        In `act` ranks cannot wait for each other: one that has failed does not come.
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
            raise RankLost((str(error).splitlines() or ["no reason"])[0][:300]) from None


def open_ranks(store: Store, rank: int, size: int, device: torch.device, patience: float) -> Ranks:
    """Find the others through `store`, once in a process. Raises `RankLost`."""
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
        waiting = dist.new_group(backend="gloo", timeout=_FOR_EVER)
    except (RuntimeError, ValueError) as error:
        raise RankLost((str(error).splitlines() or ["no reason"])[0][:300]) from None
    group = dist.group.WORLD
    assert group is not None
    assert isinstance(waiting, dist.ProcessGroup)
    return Ranks(rank, size, device, group, waiting)


def pack(value: Any) -> bytes:
    """A value as ranks send it to each other: what MessagePack can hold."""
    return msgpack.packb(value, use_bin_type=True)  # pyright: ignore[reportReturnType]


def unpack(data: bytes) -> Any:
    """The value again."""
    return msgpack.unpackb(data, raw=False, strict_map_key=False)


def _tensor(data: bytes) -> torch.Tensor:
    return (
        torch.frombuffer(bytearray(data), dtype=torch.uint8)
        if data
        else torch.empty(0, dtype=torch.uint8)
    )
