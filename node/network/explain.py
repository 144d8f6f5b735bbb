"""The user errors for a network that cannot start."""

from __future__ import annotations

from ..errors import ExitCode, UserError, address_missing
from .errors import AddressMissing, BadAddress, PortInUse


def explain_network(error: PortInUse | BadAddress) -> UserError:
    """Return the error to show for an address that cannot be listened on or announced."""
    if isinstance(error, PortInUse):
        return UserError(
            ExitCode.PORT_IN_USE,
            str(error),
            "choose another port with --listen; port 0 stands for any free one",
        )
    if isinstance(error, AddressMissing):
        return address_missing(f"cannot listen on {error.text}")
    return UserError(
        ExitCode.BAD_ADDRESS,
        f"{error.text!r} is not a usable address: {error.why}",
        "write an address as /ip4/203.0.113.7/tcp/4001, and a bootstrap peer's with "
        "/p2p/12D3KooW… at the end",
    )
