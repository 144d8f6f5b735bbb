"""The file that names the last record of a swarm's chain that this node knew to be final, as links do.

It is replaced atomically and has a checksum: it is correct, missing, or recognisably damaged.
"""

from __future__ import annotations

from pathlib import Path

from ...protocol.wire.checkpoint import Checkpoint
from ...protocol.wire.swarm_id import checkpoint_from_text, checkpoint_text
from ..errors import ExitCode, UserError
from .atomic_write import write_atomically

# More bytes than a checkpoint has, so that trailing ones are detected as damage.
_MAX_BYTES = 128


def read_final(path: Path) -> Checkpoint | None:
    """Return the checkpoint in the file; None if the file does not exist. Raises `UserError` (`FINAL`)
    if it is damaged or unreadable."""
    try:
        with path.open("rb") as file:
            data = file.read(_MAX_BYTES)
        return checkpoint_from_text(data.decode("ascii").rstrip("\n"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError):
        raise UserError(
            ExitCode.FINAL,
            f"{path}, which holds the swarm's latest final record, is damaged",
            "remove it, and join with a new link from a member that you trust (`distro-node "
            "invite`)",
        ) from None


def write_final(path: Path, checkpoint: Checkpoint) -> None:
    """Durably store `checkpoint` in the file. Raises `OSError` as files do."""
    write_atomically(path, f"{checkpoint_text(checkpoint)}\n".encode())
