"""The requests of a trainer with several devices: rank 0 receives them from the node, the others
from rank 0.

All ranks run the same code with the same arguments. A failure that all ranks know of is reported like
a single process's; after a failure that some ranks may not know of, all of them end, and the node
receives one line with the reason.
"""

from __future__ import annotations

import os
import queue
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

import psutil
import torch
from torch.distributed.distributed_c10d import Store

from ....protocol.wire.manifest import Manifest
from ....protocol.wire.structure import from_plain
from ...storage.blob_store import BlobStore
from ...training.errors import FailureKind, TrainerFailed
from ...training.frames import ExpectedUpdate
from ...training.local_policy import LocalPolicy
from ...training.memory_plan import FreeMemory
from ...training.torchrun import RankAssignment
from ...util.operating_system import wait_for_signal
from ..device import allocated_bytes
from ..error_report import describe
from ..training_session import TrainingSession
from ..worker import OpenRequest, Worker
from .launch import LaunchedRanks, local_device
from .momentum import remove_others, save_part
from .processes import RankProcesses, RankSupervision, connect_ranks, devices_of, rendezvous_store
from .rank_session import RankSession, rooms_of
from .ranks import RankLost, RankOutOfMemory, Ranks

# Requests that need all ranks. Rank 0 handles the others alone: it has the whole model, or refuses a
# request that needs it if the model is in shards.
_JOINT_REQUESTS = frozenset(
    {
        "load",
        "train",
        "train_in_background",
        "audit",
        "judge",
        "apply",
        "snapshot",
        "evaluate",
        "accuracy",
        "save_momentum",
        "load_momentum",
        "memory",
    }
)


class RankWorker(Worker):
    """A `Worker` at one rank. `end` sends the node the reason and, if memory ran out, how many sequences
    at once may be tried next (0 if it was one already); then it ends rank 0's process."""

    def __init__(
        self,
        end: Callable[[str, int | None], NoReturn],
        patience: float,
        launch: RankAssignment | None = None,
        expected: queue.SimpleQueue[ExpectedUpdate] | None = None,
    ) -> None:
        """`patience`: how many seconds ranks wait for each other. `launch`: the other ranks are not
        forked here, but were started by torchrun as it describes. `expected`: see `Worker`."""
        super().__init__(expected)
        self._end = end
        self._patience = patience
        self._launch = launch
        self._ranks: Ranks | None = None
        self._rooms: Sequence[FreeMemory] = ()
        self._supervision: RankSupervision | None = None
        self._is_follower = False
        # Whether rank 0 is handling a request that it has not sent to the others.
        self._rank_0_alone = False

    def answer(self, request: dict[str, Any]) -> dict[str, Any] | None:
        if (
            self._ranks is not None
            and not self._is_follower
            and request["method"] in _JOINT_REQUESTS
        ):
            staged = self._staged if request["id"] == self._staged_for else []
            try:
                self._ranks.send_request({**request, "staged": staged})
            except RankLost as error:
                self._lost(error)
        self._rank_0_alone = request["method"] not in (*_JOINT_REQUESTS, "open")
        return super().answer(request)

    def _open(self, **open_arguments: Any) -> dict[str, Any]:
        device = open_arguments["settings"]["device"]
        if self._launch is not None:
            size = self._launch.size
            self._supervision = launched = LaunchedRanks(self._launch, self._give_up)
            store = launched.start(open_arguments)
            opened = self._take_rank(
                store, 0, size, local_device(device, self._launch), open_arguments
            )
        else:
            devices = devices_of(device)
            size = len(devices)

            def follow(rank: int, rendezvous: Path) -> None:
                self.follow(
                    rendezvous_store(rendezvous, size), rank, size, devices[rank], open_arguments
                )

            self._supervision = processes = RankProcesses(devices, self._give_up)
            rendezvous = processes.start(follow)
            opened = self._take_rank(
                rendezvous_store(rendezvous, size), 0, size, devices[0], open_arguments
            )
        opened["device"] = f"{opened['device']} × {size}"
        if opened["matmul_flops"] is not None:
            opened["matmul_flops"] *= size
        return opened

    def follow(
        self, store: Store, rank: int, size: int, device: str, open_arguments: Mapping[str, Any]
    ) -> NoReturn:
        """Serve as a rank other than the first. Raises `RankLost` when another rank can no longer be
        reached."""
        self._is_follower = True
        try:
            self._take_rank(store, rank, size, device, open_arguments)
        except TrainerFailed:
            # Rank 0 has the same failure, and reports it. When rank 0 ends, so does this process.
            wait_for_signal()
        self._serve()

    def _take_rank(
        self, store: Store, rank: int, size: int, device: str, open_arguments: Mapping[str, Any]
    ) -> dict[str, Any]:
        self._ranks = ranks = connect_ranks(store, rank, size, device, self._patience)
        settings = open_arguments["settings"]
        memory, threads = settings["memory"], settings["threads"]
        local_ranks = size if self._launch is None else self._launch.local_size
        # Measured before any rank allocates memory, because CPU ranks share it.
        self._rooms = rooms_of(ranks, memory)
        if ranks.device.type == "cpu" and threads is None:
            threads = max(1, (os.cpu_count() or 1) // local_ranks)
        given = {**open_arguments, "settings": {**settings, "device": device, "threads": threads}}
        request = OpenRequest(**given)
        ranks.run_together(lambda: self._start_session(request))
        # The ranks wait for each other in it, and what it finds at one of them is raised at all.
        self._current_session.prove()
        opened = ranks.run_together(lambda: self._finish_open(request))
        # Only this machine's GPUs: the first `local_ranks` ranks are on it, with the node.
        opened["gpus"] = [
            gpu for gpus in ranks.exchange(opened["gpus"])[:local_ranks] for gpu in gpus
        ]
        return opened

    def _new_session(
        self, manifest: Manifest, store: BlobStore, device: torch.device, request: OpenRequest
    ) -> TrainingSession:
        assert self._ranks is not None
        settings = request.trainer_settings
        return RankSession(
            manifest,
            store,
            self._ranks,
            self._rooms,
            settings.micro_batch,
            settings.memory,
            split=settings.split,
            policy=from_plain(LocalPolicy, request.policy, named=True),
        )

    def _train_in_background(self, round_number: int, samples: list[int]) -> dict[str, Any] | None:
        # A second thread at each rank would make its exchanges in a different order.
        return self._train(round_number, samples)

    def _serve(self) -> NoReturn:
        """Carry out rank 0's requests, for ever. All ranks except rank 0 call this."""
        assert self._ranks is not None
        while True:
            request = self._ranks.receive_request()
            self._staged, self._staged_for = request.pop("staged"), request["id"]
            self.answer(request)

    def _save_momentum(self, path: str) -> None:
        assert self._ranks is not None
        session, place = self._current_session, self._current_session.part.place
        self._ranks.run_together(lambda: save_part(session.optimizer, place, Path(path)))
        # Only now, because the old files are the valid ones until all new ones are written.
        if self._ranks.rank == 0:
            remove_others(place.division, Path(path))

    def _load_momentum(self, path: str) -> bool:
        assert self._ranks is not None
        # A rank whose saved part is lost starts with an empty one; the others keep theirs.
        return any(self._ranks.exchange(super()._load_momentum(path)))

    @property
    def _current_session(self) -> TrainingSession:
        session = super()._current_session
        if self._rank_0_alone and isinstance(session, RankSession) and session.in_shards:
            raise TrainerFailed("bad_data", "the model is in shards: no device has all of it")
        return session

    def _memory(self) -> dict[str, int]:
        assert self._ranks is not None
        process = psutil.Process().memory_info().rss
        found = self._ranks.exchange([process, allocated_bytes(self._current_session.device)])
        return {
            "process_bytes": sum(each for each, _ in found),
            "device_bytes": sum(each for _, each in found),
        }

    def _failed(self, error: Exception, method: str) -> tuple[FailureKind, str]:
        if isinstance(error, RankLost):
            self._lost(error)
        if isinstance(error, TrainerFailed) or method not in (*_JOINT_REQUESTS, "open"):
            return super()._failed(error, method)
        # The others may have gone on, or wait for a message that will not come.
        kind, problem = describe(error)
        return self._lost((RankOutOfMemory if kind == "out_of_memory" else RankLost)(problem))

    def _lost(self, error: RankLost) -> NoReturn:
        if self._is_follower or self._supervision is None:
            raise error
        if isinstance(error, RankOutOfMemory):
            self._supervision.out_of_memory(str(error))
        self._supervision.lost(str(error))

    def _give_up(self, reason: str, out_of_memory: bool) -> NoReturn:
        # This serves shards: with copies each rank reduces its number of sequences by itself.
        session = self._session
        fitting = None if session is None or not out_of_memory else session.micro_batch // 2
        self._end(reason, fitting)
