"""A node without training, as a program: it stays connected, and reports its state every second.

    python home_program.py NUMBER LISTEN [BOOTSTRAP … | local]

LISTEN is a multiaddress, several separated by commas, or `default`.

It prints a line of JSON a second: its reach status, and by peer whether the connection is direct and
whether a message of 64 KiB came back over it. With `local` it has no bootstrap peer and searches its
local network; without arguments it is the bootstrap peer.
"""

from __future__ import annotations

import json
import sys

import trio
from distro_node.crypto.identity import Identity, PeerId
from distro_node.node.bootstrap import BootstrapSettings, run_bootstrap
from distro_node.node.network.circuit_relay import MEMBER_CIRCUITS
from distro_node.node.network.discovery.introductions import Introducer
from distro_node.node.network.discovery.mdns import LocalDiscovery
from distro_node.node.network.errors import RequestError
from distro_node.node.network.nat.traversal import NatTraversal
from distro_node.node.network.network import Network, NetworkSettings, open_network
from distro_node.node.settings.components import LineSettings
from distro_node.protocol.wire.manifest import SwarmId

ECHO = "/test/echo/1"
SWARM = SwarmId(bytes(range(32)))


def identity(number: int) -> Identity:
    return Identity.from_seed(number.to_bytes(4, "big") * 8)


def report(facts: object) -> None:
    print(json.dumps(facts), flush=True)


async def run_home(number: int, listen: tuple[str, ...], bootstrap: list[str]) -> None:
    numbers = {identity(other).peer: other for other in range(100)}
    settings = NetworkSettings(listen=listen, circuit_limits=MEMBER_CIRCUITS)
    async with open_network(settings, identity(number)) as network:

        async def echo(peer: PeerId, request: bytes) -> bytes:
            return request

        network.serve(ECHO, echo, max_request=1 << 16, max_concurrent=16)
        local = bootstrap == ["local"]
        introducer = Introducer(network, identity(number), SWARM, [] if local else bootstrap)
        reach = NatTraversal(network, introducer)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(introducer.run)
            nursery.start_soon(reach.run)
            if local:
                nursery.start_soon(LocalDiscovery(network, SWARM, introducer.suggest).run)
            while True:
                await trio.sleep(1.0)
                relayed, came_back = network.relayed(), {}
                for peer in network.connected():
                    if numbers[peer] != 0:
                        came_back[numbers[peer]] = await _echoes(network, peer)
                report(
                    {
                        "verdict": reach.verdict,
                        "mapped": reach.mapped,
                        "relays": len(reach.relays),
                        "direct": sorted(numbers[p] for p in network.connected() - relayed),
                        "relayed": sorted(numbers[p] for p in relayed),
                        "echoes": sorted(n for n, good in came_back.items() if good),
                        "addresses": network.addresses,
                    }
                )


async def _echoes(network: Network, peer: PeerId) -> bool:
    try:
        data = bytes(1 << 16)
        answer = await network.request(peer, ECHO, data, max_response=1 << 16, timeout=10)
    except RequestError:
        return False
    return answer == data


async def main() -> None:
    """Run as the arguments specify."""
    number, told, *bootstrap = sys.argv[1:]
    listen = NetworkSettings().listen if told == "default" else tuple(told.split(","))
    if bootstrap:
        await run_home(int(number), listen, bootstrap)
        return
    settings = BootstrapSettings(identity=identity(int(number)), line=LineSettings(listen=listen))
    await run_bootstrap(settings, ready=lambda addresses: report({"addresses": addresses}))


if __name__ == "__main__":
    trio.run(main)
