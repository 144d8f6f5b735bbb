"""Report of a trainer's start in status and log."""

from __future__ import annotations

import logging

from ..telemetry.telemetry import Telemetry
from .client import TrainerClient
from .sandbox import sandbox_text

_log = logging.getLogger(__name__)


def report_start(trainer: TrainerClient, telemetry: Telemetry) -> None:
    """Report the device of a started trainer, the memory that it takes, and how it is sandboxed."""
    telemetry.device, telemetry.gpus = trainer.device, trainer.gpus
    telemetry.memory_use, telemetry.sandbox = trainer.memory_use, trainer.sandbox
    telemetry.recent.sequence_flops = trainer.sequence_flops
    telemetry.recent.matmul_flops = trainer.matmul_flops
    for words in (f"the trainer takes {trainer.memory_use}", trainer.compiled):
        if words is not None:
            _log.info("%s", words)
    _log.info("%s", sandbox_text(trainer.sandbox))
