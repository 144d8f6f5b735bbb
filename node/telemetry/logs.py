"""Logging: lines for people or JSON for machines, on stderr and in a file of bounded size.

Logging has to be configured after libp2p has been imported, because that import clears the handlers of
libp2p's loggers and forces a level on one of them.
"""

from __future__ import annotations

import json
import logging
import logging.handlers
import os
import sys
import time
from pathlib import Path
from typing import Any

from ..settings.components import LogFormat, LogLevel
from ..util.sanitize import MAX_CHARACTERS, harmless

# The current file and one older one, 5 MB each, hold several days of a node's log at level INFO.
MAX_LOG_BYTES = 5_000_000
KEPT_LOG_FILES = 1

LOG_FILE = "distro-node.log"

# libp2p logs broken connections, which are normal in a swarm of home computers, as errors with
# tracebacks; the network module counts the relevant events itself. The other packages log too much.
_LIBRARY_LEVELS = {
    "libp2p": logging.CRITICAL,
    "multiaddr": logging.ERROR,
    "zeroconf": logging.ERROR,
}

_DEBUG_VARIABLE = "DISTRO_NODE_DEBUG"


def configure_logging(
    *,
    log_format: LogFormat = LogFormat.TEXT,
    level: LogLevel = LogLevel.INFO,
    folder: Path | None = None,
    screen: bool = False,
) -> None:
    """Send all log records to stderr, unless a `screen` is drawn there, and to a file in `folder`.

    Replaces any earlier configuration. The file is opened when the first line is written, so a node that
    finds its data directory in use does not touch the other node's log.
    """
    formatter = _JsonFormatter() if log_format is LogFormat.JSON else _TextFormatter()
    handlers: list[logging.Handler] = []
    if not screen:
        handlers.append(logging.StreamHandler(sys.stderr))
    if folder is not None:
        handlers.append(
            logging.handlers.RotatingFileHandler(
                folder / LOG_FILE,
                maxBytes=MAX_LOG_BYTES,
                backupCount=KEPT_LOG_FILES,
                encoding="utf-8",
                errors="backslashreplace",
                delay=True,
            )
        )
    root = logging.getLogger()
    for handler in root.handlers[:]:
        root.removeHandler(handler)
        handler.close()
    for handler in handlers:
        handler.setFormatter(formatter)
        root.addHandler(handler)
    number = logging.getLevelNamesMapping()[level.value.upper()]
    root.setLevel(number)
    for name in list(logging.root.manager.loggerDict):
        if name.partition(".")[0] in _LIBRARY_LEVELS:
            # A logger with a level of its own would ignore the level set on its package.
            logging.getLogger(name).setLevel(logging.NOTSET)
    for name, lowest in _LIBRARY_LEVELS.items():
        # At level DEBUG nearly every line would be from these packages, so their lines need an
        # environment variable as well.
        verbose = level is LogLevel.DEBUG and os.environ.get(_DEBUG_VARIABLE) == "1"
        logging.getLogger(name).setLevel(number if verbose else lowest)
    # If one output fails (a full disk, a closed terminal), the logger's tracebacks about that must not
    # fill the other one.
    logging.raiseExceptions = False
    # Otherwise Python's warnings, which may contain text from a model's file, would go to stderr
    # unsanitized and over the screen.
    logging.captureWarnings(True)


class _TextFormatter(logging.Formatter):
    """`2025-01-31T12:00:00Z INFO message`: UTC, because members of a swarm compare logs."""

    converter = time.gmtime

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)-7s %(message)s", "%Y-%m-%dT%H:%M:%SZ")

    def formatMessage(self, record: logging.LogRecord) -> str:
        """Return one sanitized line, because a message may contain text from a peer."""
        return harmless(super().formatMessage(record))

    def formatException(self, ei: Any) -> str:
        """Return the traceback indented, so that an exception's text cannot pass for a log line."""
        return "\n".join(
            f"    {harmless(line)}" for line in super().formatException(ei).split("\n")
        )


class _JsonFormatter(logging.Formatter):
    """One object per line: time (unix seconds), level, logger, message, and the traceback if any."""

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": round(record.created, 3),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage()[:MAX_CHARACTERS],
        }
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        # `json.dumps` writes plain ASCII by default: terminals obey some characters that JSON allows.
        return json.dumps(line)
