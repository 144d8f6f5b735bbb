"""Nodes that nobody can dial: they hold places at relays and make one swarm all the same."""

from __future__ import annotations

from contextlib import AsyncExitStack

import trio
from network.homes import Bootstrap, home
from network.support import until


async def test_homes_find_each_other_through_a_relay_and_survive_its_restart() -> None:
    bootstrap = Bootstrap()
    async with trio.open_nursery() as nursery, AsyncExitStack() as stack:
        addresses = await nursery.start(bootstrap.run)
        homes = [await stack.enter_async_context(home(n, addresses)) for n in (1, 2, 3)]
        # A member that can be dialled, too: to it nobody needs a relay.
        homes.append(await stack.enter_async_context(home(4, addresses, hidden=False)))
        await until(lambda: all(len(each.network.connected()) == 4 for each in homes), 60)
        await until(lambda: [len(each.network.relayed()) for each in homes] == [2, 2, 2, 0], 60)
        await bootstrap.stop()
        await until(lambda: not any(each.network.relayed() for each in homes))
        assert all(homes[3].network.peer in each.network.connected() for each in homes[:3])
        await nursery.start(bootstrap.run)
        await until(lambda: [len(each.network.relayed()) for each in homes] == [2, 2, 2, 0], 60)
        bootstrap.scope.cancel()
