"""What a swarm of another protocol version means to the user, and the way out.

A swarm-id is a hash of a description that names the version, so all peers of a swarm speak the same one,
and whoever has another learns it from the description, before anything else is said.
"""

from __future__ import annotations

from .. import __version__
from ..protocol.wire.manifest import PROTOCOL_VERSION, OtherVersion
from .errors import ExitCode, UserError


def explain_version(error: OtherVersion) -> UserError:
    """The error to show: which of the two is too old, and what to do about it."""
    if error.version > PROTOCOL_VERSION:
        return UserError(
            ExitCode.VERSION,
            f"this node is too old: {error}",
            f"install a distro-node newer than {__version__} (docs/operations.md, Updating) and run the "
            "same command again; identity and data stay",
        )
    return UserError(
        ExitCode.VERSION,
        f"the swarm is too old for this node: {error}",
        f"take part with the release that it was made with, older than {__version__}, in an "
        "environment of its own; or ask its founder to make it anew",
    )
