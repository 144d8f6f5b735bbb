"""A short-lived network under a throw-away identity, for `doctor` and `fit`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from ...crypto.identity import Identity
from .addresses import parse_dial
from .errors import BadAddress, PortInUse
from .explain import explain_network
from .network import Network, NetworkSettings, open_network


@asynccontextmanager
async def open_ephemeral_network(
    bootstrap: Sequence[str], listen: tuple[str, ...] = ()
) -> AsyncIterator[tuple[Network, Identity]]:
    """Open a network and return it with its identity. Raises `UserError` with `ExitCode.PORT_IN_USE`,
    with `ADDRESS_MISSING` if this machine lacks an address in `listen`, or with `BAD_ADDRESS` if an
    address, also a bootstrap address, is invalid."""
    settings = NetworkSettings(listen=listen or NetworkSettings().listen)
    identity = Identity.generate()
    try:
        for address in bootstrap:
            parse_dial(address)
        async with open_network(settings, identity) as network:
            yield network, identity
    except (BadAddress, PortInUse) as error:
        raise explain_network(error) from None
