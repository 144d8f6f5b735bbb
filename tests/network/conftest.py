"""What the network tests share: networks on loopback, and a way to wait for a condition."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager

import pytest
import trio

from distro_node.crypto.identity import Identity
from distro_node.node.network.network import Network, NetworkSettings, open_network

LOOPBACK = NetworkSettings(listen=("/ip4/127.0.0.1/tcp/0",))


def identity(number: int) -> Identity:
    """The same identity for a number in every run."""
    return Identity.from_seed(bytes([number]) * 32)


@asynccontextmanager
async def networks(count: int) -> AsyncIterator[list[Network]]:
    """Open some networks on loopback, not connected to each other."""
    async with AsyncExitStack() as stack:
        yield [
            await stack.enter_async_context(open_network(LOOPBACK, identity(number + 1)))
            for number in range(count)
        ]


async def until(condition: Callable[[], bool], seconds: float = 10.0) -> None:
    """Wait for a condition, and fail if it does not come true."""
    with trio.fail_after(seconds):
        while not condition():
            await trio.sleep(0.01)


@pytest.fixture(autouse=True)
def _no_user_configuration(monkeypatch: pytest.MonkeyPatch) -> None:
    # The library would print what goes on.
    monkeypatch.delenv("LIBP2P_DEBUG", raising=False)
