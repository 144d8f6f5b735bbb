"""The errors that users see when a trainer fails."""

from __future__ import annotations

from pathlib import Path

from ..errors import ExitCode, UserError
from ..storage.disk_faults import disk_broken, disk_full
from .errors import TrainerDied, TrainerFailed
from .task_names import no_task


def no_gguf(problem: str) -> UserError:
    """Return the error to show for a model that cannot be written as GGUF."""
    return UserError(
        ExitCode.NO_GGUF,
        f"this model cannot be written as GGUF: {problem}",
        "export it without --gguf: transformers opens it as it is",
    )


def explain_trainer(error: TrainerDied | TrainerFailed, place: Path | None = None) -> UserError:
    """Return the error to show for a trainer that failed or could not be started.

    `place` is the directory to which it wrote. A failure of kind `internal` is a bug in this program: it
    is raised again unchanged.
    """
    if isinstance(error, TrainerDied):
        return UserError(
            ExitCode.TRAINER,
            f"the trainer process ended unexpectedly: {error}",
            "read its output above; make sure that PyTorch is installed (pip install "
            "'distro-node[train]') and that enough memory is free",
        )
    match error.kind:
        case "no_device":
            return UserError(
                ExitCode.NO_DEVICE,
                f"the device cannot be used: {error}",
                "choose another with --device; --device cpu works everywhere",
            )
        case "out_of_memory" | "model_too_large":
            return UserError(
                ExitCode.MODEL_TOO_LARGE,
                f"the model does not fit: {error}",
                "use a device with more memory, or free some; if a step of `join` is too large, "
                "--micro-batch 1 makes it smaller",
            )
        case "bad_model" | "bad_data" | "missing_data" | "bad_snapshot":
            return UserError(
                ExitCode.MANIFEST,
                f"the swarm's model or data cannot be used: {error}",
                "the founder has to correct the founder's file and create a new swarm",
            )
        case "not_convertible":
            return no_gguf(str(error))
        case "other_model":
            return UserError(
                ExitCode.OTHER_MODEL,
                f"this computer computes another model than the swarm's: {error}",
                "install the releases that distro-node is tested with (pip install -U "
                "'distro-node[train]'); if they are installed, train with --device cpu",
            )
        case "no_task":
            return no_task(str(error))
        case "disk_full":
            return disk_full(place)
        case "disk_broken":
            return disk_broken(str(error), place)
        case "internal":
            raise error
