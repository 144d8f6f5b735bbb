"""The demo's output directory: created, taken over from an earlier demo, or refused.

Only files that a demo has written are ever removed.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from ..errors import ExitCode, UserError
from ..storage.data_dir import DataDir
from ..util.operating_system import lock_file

_MARKER = "made-by-distro-node-demo"
_MARKER_TEXT = """\
This directory was made by `distro-node demo`, which overwrites its results when it runs again.
"""


class DemoFolder:
    """The paths below the output directory."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.marker = root / _MARKER
        self.manifest = root / "manifest.toml"
        self.config = root / "config.toml"
        self.text = root / "text"
        self.tokenizer = root / "tokenizer.json"
        self.bootstrap = root / "bootstrap"
        self.logs = root / "logs"
        self.plot = root / "loss.png"
        self.summary = root / "summary.json"

    def node(self, number: int) -> DataDir:
        """Return a node's data directory."""
        return DataDir(self.root / f"node-{number}")


@contextlib.contextmanager
def claim(root: Path) -> Iterator[DemoFolder]:
    """Create the directory, or remove the results of an earlier demo from it; lock it against other
    demos.

    Raises `UserError` with `ExitCode.DATA_DIR` if it contains anything else or cannot be written, and
    with `ExitCode.DATA_DIR_LOCKED` if a demo is running in it.
    """
    folder = DemoFolder(root)
    with contextlib.ExitStack() as stack:
        try:
            if root.exists() and not (root.is_dir() and _is_free(folder)):
                raise UserError(
                    ExitCode.DATA_DIR,
                    f"{root} already exists and was not made by an earlier demo",
                    "give another directory with --out, or move this one away",
                )
            root.mkdir(parents=True, exist_ok=True)
            _lock(stack.enter_context(folder.marker.open("a+")), root)
            _remove_results(folder)
            folder.logs.mkdir()
            folder.text.mkdir()
            # This empty configuration replaces the user's own, so that the demo is the same for every
            # user.
            folder.config.write_text("")
        except PermissionError as error:
            raise UserError(
                ExitCode.DATA_DIR,
                f"{error.filename} cannot be written: {error.strerror}",
                "give a directory that you may write to with --out",
            ) from error
        yield folder


def _is_free(folder: DemoFolder) -> bool:
    return folder.marker.is_file() or not any(folder.root.iterdir())


def _lock(marker: IO[str], root: Path) -> None:
    if not lock_file(marker.fileno()):
        raise UserError(
            ExitCode.DATA_DIR_LOCKED,
            f"another demo is running in {root}",
            "wait until it ends, or give another directory with --out",
        )
    marker.truncate(0)
    marker.write(_MARKER_TEXT)
    marker.flush()


def _remove_results(folder: DemoFolder) -> None:
    for path in (folder.manifest, folder.tokenizer, folder.config, folder.plot, folder.summary):
        path.unlink(missing_ok=True)
    for path in (folder.text, folder.logs, folder.bootstrap, *folder.root.glob("node-*")):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
