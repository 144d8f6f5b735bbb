"""The model on the page of a node: its owner writes with it while it learns.

The model runs in a process of its own, with a low priority and one thread. It is opened when its owner
first uses it, and closed when nobody has used it for some minutes.
"""

from __future__ import annotations

import logging

import trio

from ...protocol.wire.manifest import SwarmId
from ..dashboard.access_control import AccessGuard
from ..dashboard.http import Answer
from ..settings.tree import NEWEST
from ..storage.data_dir import DataDir
from .model_source import ModelSource, SwarmSource
from .routes import CompletionRoutes
from .text_service import ServiceLimits, TextService

_log = logging.getLogger(__name__)

_LIMITS = ServiceLimits(queue=2, seconds=120.0, memory=512 << 20, idle_seconds=180.0)
_MOST_TOKENS = 512
_PAUSE_SECONDS = 60.0


class PageModel:
    """The newest state of a joined swarm, for the owner of the page."""

    def __init__(self, source: ModelSource, limits: ServiceLimits = _LIMITS) -> None:
        self._source = source
        self._service = TextService(limits)

    def routes(self, guard: AccessGuard) -> Answer:
        """Return what answers requests below /v1."""
        return CompletionRoutes(guard, self._service, _MOST_TOKENS).answer

    async def run(self) -> None:
        """Open the model on request, until cancelled."""
        while True:
            try:
                await self._service.run(self._source)
            except Exception:
                # A fault in what the page offers beside the training must not end the node.
                _log.exception("the model of the page failed")
            await trio.sleep(_PAUSE_SECONDS)


def open_page_model(data: DataDir, swarm: SwarmId) -> PageModel:
    """Return the model of a swarm's page; nothing is loaded before its owner uses it."""
    return PageModel(
        SwarmSource(data=data, swarm=swarm, selector=NEWEST, spare_memory=_LIMITS.memory)
    )
