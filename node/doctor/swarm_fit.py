"""Whether this machine can train a listed swarm, and why: for `distro-node swarms`.

The memory is computed as by `distro-node fit`, the disk as by `distro-node doctor`.
"""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass

from ...protocol.chain.features import exchange_size
from ...protocol.codec.exchange_size import check_size
from ...protocol.wire.manifest import Manifest
from ..errors import UserError
from ..memory_fit import Survey, Workload, fit_workload, plan_line
from ..settings.tree import FitSettings
from ..storage.data_dir import MINIMUM_FREE_BYTES, DataDir
from ..training.reward_rules import require_rule
from ..training.task_names import require_task
from .computer import DISK_BYTES_PER_PARAMETER


@dataclass(frozen=True)
class SwarmFit:
    """The answer for one swarm."""

    fits: bool | None
    """None: unknown, because the device could not be examined."""
    because: str


def swarm_fit(manifest: Manifest, device: Survey | UserError, settings: FitSettings) -> SwarmFit:
    """Return whether this machine can train a swarm. `device` is its survey, or the reason why there is
    none; `manifest` is a stranger's."""
    try:
        require_task(manifest.task)
        require_rule(manifest.task, manifest.task_settings)
        check_size(manifest, exchange_size(manifest.features))
        if isinstance(device, UserError):
            return SwarmFit(None, device.problem)
        memory, micro_batch = settings.memory, settings.micro_batch
        work = Workload.of(manifest)
        found = fit_workload(manifest.name, work, device, memory, micro_batch, settings.split)
    except UserError as error:
        return SwarmFit(False, error.problem)
    except ValueError as error:
        return SwarmFit(False, f"no node can take part: {error}")
    if found.chosen is None:
        least = found.plan_to_show.needs.device
        return SwarmFit(
            False,
            f"it takes at least {_gigabytes(least)} of memory on the device, and "
            f"{_gigabytes(found.room.device)} can be used",
        )
    needed = (
        DISK_BYTES_PER_PARAMETER * manifest.elements
        + 4 * manifest.frozen_elements
        + MINIMUM_FREE_BYTES
    )
    free = _free_disk(DataDir(settings.data_dir))
    if free is not None and free < needed:
        return SwarmFit(
            False,
            f"it takes about {_gigabytes(needed)} of disk plus training data, and "
            f"{_gigabytes(free)} are free",
        )
    return SwarmFit(True, f"it takes {plan_line(found.chosen, found.room)}")


def _free_disk(data: DataDir) -> int | None:
    """Return the free bytes where the data directory is or will be; None: unknown."""
    folder = data.root
    while not os.path.lexists(folder):
        folder = folder.parent
    try:
        return shutil.disk_usage(folder).free
    except OSError:
        return None


def _gigabytes(count: float) -> str:
    return f"{count / 1e9:.1f} GB"
