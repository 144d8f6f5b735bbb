"""A port in the router: requested when it is useful, announced to others, and released."""

from __future__ import annotations

from typing import Any

import pytest
import trio
from distro_node.crypto.identity import peer_text
from distro_node.node.network.nat import port_mapping
from distro_node.node.network.nat.port_mapping import PortMapping
from distro_node.node.network.network import NetworkSettings, open_network
from multiaddr import Multiaddr
from network.support import identity, until

# Private here: `_host`: the addresses of this machine's interfaces.


class Router:
    """A router as the library sees one."""

    def __init__(self) -> None:
        self.outside: str | None = "7.7.0.1"
        self.willing = True
        self.ports: list[int] = []
        self.asked = 0

    def __call__(self) -> Router:
        return self

    async def discover(self) -> bool:
        self.asked += 1
        return self.outside is not None

    async def add_port_mapping(self, port: int) -> bool:
        if self.willing:
            self.ports.append(port)
        return self.willing

    async def remove_port_mapping(self, port: int) -> bool:
        self.ports.remove(port)
        return True

    def get_external_ip(self) -> str | None:
        return self.outside


@pytest.fixture
def router(monkeypatch: pytest.MonkeyPatch) -> Router:
    router = Router()
    monkeypatch.setattr(port_mapping, "UpnpManager", router)
    monkeypatch.setattr(port_mapping, "_CHECK_SECONDS", 0.01)
    monkeypatch.setattr(port_mapping, "_RETRY_SECONDS", 0.05)
    return router


EVERYWHERE = NetworkSettings(listen=("/ip4/0.0.0.0/tcp/0",))


async def test_a_port_is_opened_when_it_is_wanted_and_given_back(router: Router) -> None:
    wanted, searches = False, 0

    def is_wanted() -> bool:
        nonlocal searches
        searches += 1
        return wanted

    async with open_network(EVERYWHERE, identity(1)) as network, trio.open_nursery() as nursery:
        one = PortMapping(network, is_wanted)
        nursery.start_soon(one.run)
        await until(lambda: searches >= 3)
        assert router.asked == 0
        wanted = True
        await until(lambda: one.address is not None)
        (port,) = network.listening_ports
        assert one.address == f"/ip4/7.7.0.1/tcp/{port}/p2p/{peer_text(network.peer)}"
        assert one.address in network.addresses
        assert router.ports == [port]
        nursery.cancel_scope.cancel()
    assert router.ports == []
    assert one.address is None


@pytest.mark.parametrize("lack", ["outside", "willing"])
async def test_a_router_that_does_not_is_asked_again_later(router: Router, lack: str) -> None:
    setattr(router, lack, None)
    async with open_network(EVERYWHERE, identity(1)) as network, trio.open_nursery() as nursery:
        one = PortMapping(network, lambda: True)
        nursery.start_soon(one.run)
        await until(lambda: router.asked >= 2)
        assert one.address is None
        assert not any("7.7.0.1" in address for address in network.addresses)
        setattr(router, lack, "7.7.0.2")
        await until(lambda: one.address is not None)
        nursery.cancel_scope.cancel()


async def test_the_router_of_another_network_is_asked_at_once(
    router: Router, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_network(EVERYWHERE, identity(1)) as network, trio.open_nursery() as nursery:
        hosts = ["192.168.1.7"]
        monkeypatch.setattr(
            network._host, "get_addrs", lambda: [Multiaddr(f"/ip4/{hosts[0]}/tcp/4001")]
        )
        one = PortMapping(network, lambda: True)
        nursery.start_soon(one.run)
        await until(lambda: one.address is not None)
        hosts[0], router.outside = "10.0.0.7", "7.7.0.2"
        await until(lambda: "7.7.0.2" in (one.address or ""))
        assert router.asked == 2
        nursery.cancel_scope.cancel()


async def test_nobody_is_asked_for_a_node_that_listens_on_loopback_alone(router: Router) -> None:
    settings: Any = NetworkSettings(listen=("/ip4/127.0.0.1/tcp/0",))
    async with open_network(settings, identity(1)) as network:
        await PortMapping(network, lambda: True).run()
    assert router.asked == 0


@pytest.mark.parametrize(
    "lie",
    [
        *("192.168.1.7", "10.0.0.1", "127.0.0.1", "169.254.1.1", "0.0.0.0", "224.0.0.1"),
        *("255.255.255.255", "::1", "2606:2800::1", "", "somewhere", "7.7.0.1/p2p-circuit"),
    ],
)
async def test_an_address_that_nobody_could_dial_is_announced_to_nobody(
    router: Router, lie: str
) -> None:
    router.outside = lie
    async with open_network(EVERYWHERE, identity(1)) as network, trio.open_nursery() as nursery:
        before = network.addresses
        one = PortMapping(network, lambda: True)
        nursery.start_soon(one.run)
        await until(lambda: bool(router.ports))
        assert one.address is None
        assert network.addresses == before
        nursery.cancel_scope.cancel()
