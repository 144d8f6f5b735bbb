"""Errors for a swarm that uses another protocol version, with the remedy.

A swarm-id is the hash of a manifest that names the swarm's initial version, so that a program of another
version learns of the difference from the manifest, before any other exchange. If not even the manifest
can be fetched, peers are asked which version they use. Later changes of the version follow from the
swarm's records (`version_watch`).
"""

from __future__ import annotations

from collections.abc import Collection

from ... import __version__
from ...protocol.wire.manifest import PROTOCOL_VERSION, OtherVersion
from ..errors import ExitCode, UserError


def explain_version(error: OtherVersion) -> UserError:
    """Return the error to show: whether this program or the swarm is too old, and what to do."""
    return explain_too_old(error.version, str(error))


def explain_versions(versions: Collection[int]) -> UserError | None:
    """Return the error to show if a swarm was not found and its peers report these versions; None if the
    versions are not the reason, because a peer uses our version or none has reported one."""
    if not versions or PROTOCOL_VERSION in versions:
        return None
    newest = max(versions)
    return explain_too_old(
        newest,
        f"the reachable peers use protocol version {newest}, this program {PROTOCOL_VERSION}",
    )


def explain_too_old(version: int, problem: str) -> UserError:
    """Return the error to show for a swarm that uses this version; `problem` describes the mismatch."""
    if version > PROTOCOL_VERSION:
        return UserError(
            ExitCode.VERSION,
            f"this node is too old: {problem}",
            f"install a distro-node newer than {__version__} (docs/operations.md, Updating) and "
            "run the same command again; identity and data stay",
        )
    return UserError(
        ExitCode.VERSION,
        f"the swarm is too old for this node: {problem}",
        f"install the release with which the swarm was created, older than {__version__}, in a "
        "separate environment, and join with that; or ask the founder to create the swarm again",
    )
