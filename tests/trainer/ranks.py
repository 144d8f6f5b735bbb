"""Several ranks in one process, a thread each: for tests of their computation, not of processes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from datetime import timedelta
from operator import attrgetter
from pathlib import Path
from typing import Any, TypeVar

import torch.distributed as dist
from distro_node.crypto.hashing import ContentId
from distro_node.node.storage.blob_store import BlobStore
from distro_node.node.trainer.ranks.rank_session import RankSession, rooms_of
from distro_node.node.trainer.ranks.ranks import Ranks
from distro_node.node.training.memory_options import MemoryOptions
from distro_node.protocol.wire.manifest import Manifest
from trainer.support import CPU

T = TypeVar("T")

_PATIENCE = timedelta(seconds=60)


class Together:
    """The sessions of some ranks; each call goes to all of them at once."""

    def __init__(
        self,
        root: Path,
        manifest: Manifest,
        chunks: Sequence[ContentId],
        size: int,
        micro_batch: int | None = 4,
        options: MemoryOptions | None = None,
    ) -> None:
        new: Any = dist
        stores = new.HashStore(), new.HashStore()
        self.size = size

        def begin(rank: int) -> RankSession:
            group, waiting = (
                dist.ProcessGroupGloo(store, rank, size, _PATIENCE) for store in stores
            )
            ranks: Any = Ranks(rank, size, CPU, group, waiting)  # type: ignore[arg-type]
            store_here, rooms = BlobStore(root), rooms_of(ranks)
            return RankSession(manifest, store_here, ranks, rooms, micro_batch, options=options)

        self.sessions = side_by_side(begin, range(size))
        self.call("load", chunks)

    def call(self, method: str, *arguments: Any, **options: Any) -> list[Any]:
        """Return what each rank's session returns. Raises what rank 0's raises."""
        act = attrgetter(method)
        return side_by_side(lambda session: act(session)(*arguments, **options), self.sessions)

    def train(self, round_: int, samples: Sequence[int]) -> Any:
        """Return rank 0's update."""
        return self.call("train", round_, samples)[0]

    def apply(
        self,
        round_: int,
        bodies: Sequence[bytes],
        rate: float,
        counted: bool,
        update_weights: Sequence[int] | None = None,
    ) -> int:
        """Return the fingerprint, on which all ranks must agree."""
        (found,) = set(self.call("apply", round_, bodies, rate, counted, update_weights))
        return found


def side_by_side(act: Callable[[Any], T], arguments: Sequence[Any]) -> list[T]:
    """Call `act` with each argument in a thread of its own; raise what the first of them raises."""
    results: dict[int, T] = {}
    errors: dict[int, BaseException] = {}

    def run(index: int, argument: Any) -> None:
        try:
            results[index] = act(argument)
        except BaseException as error:
            errors[index] = error

    threads = [
        threading.Thread(target=run, args=pair, daemon=True) for pair in enumerate(arguments)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[min(errors)]
    return [results[index] for index in range(len(threads))]
