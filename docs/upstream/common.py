"""What the programs beside this one share: hosts on loopback, with the library's defaults.

Each of them shows one fault of py-libp2p 0.8.1 and needs nothing but that: `python NAME.py` says whether
the fault is there, and ends with code 1 if it is. NAME.patch mends it.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import trio
from libp2p import new_host
from libp2p.crypto.ed25519 import create_new_key_pair
from libp2p.custom_types import TProtocol
from libp2p.peer.peerinfo import info_from_p2p_addr
from libp2p.pubsub.gossipsub import GossipSub
from libp2p.pubsub.pubsub import Pubsub
from libp2p.tools.anyio_service import background_trio_service
from multiaddr import Multiaddr

LISTEN = [Multiaddr("/ip4/127.0.0.1/tcp/0")]
ECHO = TProtocol("/echo")
GOSSIP = TProtocol("/meshsub/1.1.0")


def keys(number: int) -> Any:
    """The same key pair for a number in every run."""
    return create_new_key_pair(number.to_bytes(4, "big") * 8)


def make_host(number: int) -> Any:
    """A host."""
    return new_host(key_pair=keys(number))


def make_pubsub(host: Any) -> Pubsub:
    """A pubsub with gossipsub below."""
    return Pubsub(host, GossipSub([GOSSIP], 6, 4, 8, heartbeat_interval=1), strict_signing=True)


async def connect(client: Any, server: Any) -> None:
    """Connect one host to another."""
    await client.connect(info_from_p2p_addr(server.get_addrs()[0]))


async def echo(stream: Any) -> None:
    """Say once what is said."""
    await stream.write(await stream.read(10))
    await stream.close()


async def answers(client: Any, server: Any) -> bool:
    """Whether the connection from one host to another works."""
    try:
        with trio.fail_after(5):
            stream = await client.new_stream(server.get_id(), [ECHO])
            await stream.write(b"x")
            return await stream.read(1) == b"x"
    except Exception:
        return False


@asynccontextmanager
async def pair() -> AsyncIterator[tuple[Any, Any]]:
    """Two hosts, the first connected to the second, which echoes."""
    client, server = make_host(1), make_host(2)
    server.set_stream_handler(ECHO, echo)
    async with client.run(LISTEN), server.run(LISTEN):
        await connect(client, server)
        yield client, server


@asynccontextmanager
async def gossiping_pair() -> AsyncIterator[tuple[Any, Any]]:
    """Two hosts with pubsub on top, both subscribed to the topic t."""
    async with AsyncExitStack() as stack:
        hosts = await stack.enter_async_context(pair())
        both = []
        for host in hosts:
            pubsub: Any = make_pubsub(host)
            host.pubsub = pubsub
            await stack.enter_async_context(background_trio_service(pubsub))
            await stack.enter_async_context(background_trio_service(pubsub.router))
            await pubsub.wait_until_ready()
            await pubsub.subscribe("t")
            both.append(pubsub)
        for mine, theirs in (both, both[::-1]):
            await mine.ensure_peer_stream(theirs.my_id)
        for mine, theirs in (both, both[::-1]):
            await mine.wait_for_subscription(theirs.my_id, "t")
        yield hosts


async def ends(setting: Callable[[], Any], attack: Callable[[Any, Any], Awaitable[None]]) -> bool:
    """Whether an attack of the first host on the second ends the program."""
    try:
        async with setting() as (client, server):
            await attack(client, server)
            # The crash cancels this; without one, a few answers later it has had its chance.
            for _ in range(5):
                if not await answers(client, server):
                    return True
                await trio.sleep(0.02)
    except BaseExceptionGroup:
        return True
    return False


def report(fault: Callable[[], Awaitable[bool]]) -> None:
    """Try one fault and tell what came of it."""
    there = trio.run(fault)
    print("the fault is there" if there else "the fault is not there")
    sys.exit(int(there))
