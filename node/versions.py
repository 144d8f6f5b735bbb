"""What a swarm of another protocol version means to the user, and the way out.

A swarm-id is a hash of a description that names the version with which the swarm begins, so whoever has
another learns it from the description, before anything else is said. Where not even that can be fetched,
peers are asked which version they speak. A later version the swarm's records tell (`outdated`).
"""

from __future__ import annotations

from collections.abc import Collection

from .. import __version__
from ..protocol.wire.manifest import PROTOCOL_VERSION, OtherVersion
from .errors import ExitCode, UserError


def explain_version(error: OtherVersion) -> UserError:
    """The error to show: which of the two is too old, and what to do about it."""
    return explain_too_old(error.version, str(error))


def explain_spoken(versions: Collection[int]) -> UserError | None:
    """Likewise, of the versions that peers say they speak, where the swarm could not be found; None if
    that is not why, as somebody speaks ours or nobody says."""
    if not versions or PROTOCOL_VERSION in versions:
        return None
    newest = max(versions)
    return explain_too_old(
        newest,
        f"the peers that could be reached speak protocol version {newest}, this program "
        f"{PROTOCOL_VERSION}",
    )


def explain_too_old(version: int, problem: str) -> UserError:
    """What to do where the others speak this version, as the `problem` says."""
    if version > PROTOCOL_VERSION:
        return UserError(
            ExitCode.VERSION,
            f"this node is too old: {problem}",
            f"install a distro-node newer than {__version__} (docs/operations.md, Updating) and run the "
            "same command again; identity and data stay",
        )
    return UserError(
        ExitCode.VERSION,
        f"the swarm is too old for this node: {problem}",
        f"take part with the release that it was made with, older than {__version__}, in an "
        "environment of its own; or ask its founder to make it anew",
    )
