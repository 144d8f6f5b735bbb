"""Background services, restarted after errors of the operating system."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable

import trio

from ..errors import leaves
from .system_errors import FULL, is_broken_disk

_log = logging.getLogger(__name__)

_FIRST_PAUSE_SECONDS = 1.0
_LONGEST_PAUSE_SECONDS = 30.0


async def keep_running(service: Callable[[], Awaitable[object]]) -> None:
    """Run a background service until it returns; restart it after an `OSError`.

    Raises the service's other exceptions, and an `OSError` of a full or broken disk, which the owner has
    to fix.
    """
    pause = _FIRST_PAUSE_SECONDS
    while True:
        began = trio.current_time()
        failure: BaseException | None = None
        try:
            await service()
            return
        except (OSError, BaseExceptionGroup) as error:
            if not all(map(_passes, leaves(error))):
                raise
            failure = next(leaves(error))
        if trio.current_time() - began > _LONGEST_PAUSE_SECONDS:
            pause = _FIRST_PAUSE_SECONDS
        _log.warning("%s failed and is started again: %s", _name(service), failure)
        await trio.sleep(pause)
        pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)


def _passes(error: BaseException) -> bool:
    return isinstance(error, OSError) and error.errno not in FULL and not is_broken_disk(error)


def _name(service: Callable[[], object]) -> str:
    return str(getattr(service, "__qualname__", service))
