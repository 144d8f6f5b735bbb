"""Logging: lines for people or JSON for machines, on stderr and in a file of bounded size.

Set up after libp2p has been imported: that import clears the handlers of its loggers and forces a level
on one of them.
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
from ..util.sanitize import MOST_CHARACTERS, harmless

# Two files of 5 MB: days of a node at level INFO, and never more than 10 MB.
MAX_LOG_BYTES = 5_000_000
KEPT_LOG_FILES = 1

LOG_FILE = "distro-node.log"

# libp2p logs as errors, with tracebacks, what is normal in a swarm of home computers (lines that break);
# the network module counts the relevant events itself. The others log too much.
_QUIET_BELOW = {"libp2p": logging.CRITICAL, "multiaddr": logging.ERROR, "zeroconf": logging.ERROR}

_LOUD_VARIABLE = "DISTRO_NODE_DEBUG"


def configure_logging(
    *,
    form: LogFormat = LogFormat.TEXT,
    level: LogLevel = LogLevel.INFO,
    folder: Path | None = None,
    screen: bool = False,
) -> None:
    """Send all log records to stderr, unless a `screen` is drawn there, and to a file in `folder`.

    Replaces any earlier configuration. The file is opened with the first line, so a node that finds its
    data directory in use does not touch the other node's log.
    """
    formatter = _JsonFormatter() if form is LogFormat.JSON else _TextFormatter()
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
        if name.partition(".")[0] in _QUIET_BELOW:
            # With levels of their own they would ignore the one set on their package.
            logging.getLogger(name).setLevel(logging.NOTSET)
    for name, lowest in _QUIET_BELOW.items():
        # At level DEBUG nearly every line would be libp2p's, so those need a variable as well.
        loud = level is LogLevel.DEBUG and os.environ.get(_LOUD_VARIABLE) == "1"
        logging.getLogger(name).setLevel(number if loud else lowest)
    # A full disk or a closed terminal must not fill the other output with the logger's tracebacks.
    logging.raiseExceptions = False
    # Otherwise warnings go to stderr unsanitized, over the screen, with text from a model's file in
    # them.
    logging.captureWarnings(True)


class _TextFormatter(logging.Formatter):
    """`2025-01-31T12:00:00Z INFO message`: UTC, because members of a swarm compare logs."""

    converter = time.gmtime

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)-7s %(message)s", "%Y-%m-%dT%H:%M:%SZ")

    def formatMessage(self, record: logging.LogRecord) -> str:
        """Return one sanitized line, whatever text of a peer is in it."""
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
            "message": record.getMessage()[:MOST_CHARACTERS],
        }
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        # Plain ASCII: terminals obey even characters that JSON would not escape.
        return json.dumps(line)
