"""Names with several addresses: a dead one costs next to nothing."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import dns.asyncresolver
import dns.message
import dns.resolver
import dns.rrset
import httpcore
import pytest
import trio
import trio.testing
from distro_node.crypto.identity import peer_text
from distro_node.node.network import happy_eyeballs, name_resolution, web
from distro_node.node.network.addresses import parse_dial, versions_of
from distro_node.node.network.errors import BadAddress, DialError
from distro_node.node.network.happy_eyeballs import MAX_CANDIDATES, Candidates, race
from distro_node.node.network.network import Network, NetworkSettings, open_network
from network.support import identity, networks

# Private here: `_public_only`: the addresses of a mirror are not on the public internet in a test.

NAME = "boot.example.org"
PEER = identity(2).peer
NEVER = None
"""A resolver that does not answer."""


@contextmanager
def known_as(*hosts: str | None) -> Iterator[None]:
    """Let a name have these addresses; `NEVER`: queries for IPv6 are not answered."""

    async def look_up(name: str, family: int, *, reported: bool = False) -> list[str]:
        assert name == NAME
        if family == socket.AF_INET6 and NEVER in hosts:
            await trio.sleep_forever()
        known = [each for each in hosts if each is not None]
        fitting = [e for e in known if (":" in e) == (family == socket.AF_INET6)]
        if not fitting:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return fitting

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(name_resolution, "look_up", look_up)
        yield


@asynccontextmanager
async def dead_and_alive() -> AsyncIterator[tuple[Network, int]]:
    """Open a node, and yield the port at which another one is at 127.0.0.1, and silence at 127.0.0.2."""
    with socket.socket() as silent:
        silent.bind(("127.0.0.2", 0))
        silent.listen(8)
        port = silent.getsockname()[1]
        settings = NetworkSettings(listen=(f"/ip4/127.0.0.1/tcp/{port}",))
        async with networks(1) as (a,), open_network(settings, identity(2)):
            yield a, port


@pytest.mark.parametrize(
    ("hosts", "kind"),
    [
        (("127.0.0.2", "127.0.0.1"), "dns4"),
        (("127.0.0.2", "127.0.0.1"), "dns"),
        # Nothing listens there, or this machine has no IPv6.
        (("::1", "127.0.0.1"), "dns"),
        (("2001:db8::1", "127.0.0.2", "127.0.0.1"), "dns"),
        ((NEVER, "127.0.0.1"), "dns"),
    ],
)
async def test_a_second_address_is_tried_while_the_first_is_silent(
    hosts: tuple[str | None, ...], kind: str
) -> None:
    async with dead_and_alive() as (a, port):
        with known_as(*hosts):
            address = f"/{kind}/{NAME}/tcp/{port}/p2p/{peer_text(PEER)}"
            # Waiting for the first would take all of the timeout.
            assert await a.connect(address, timeout=60.0) == PEER


async def test_the_most_telling_error_of_all_addresses_is_reported() -> None:
    async with networks(1) as (a,):
        with socket.socket() as closed:
            closed.bind(("127.0.0.1", 0))
            port = closed.getsockname()[1]
        address = f"/dns/{NAME}/tcp/{port}/p2p/{peer_text(PEER)}"
        with known_as("127.0.0.1", "2001:db8::1"), pytest.raises(DialError, match="refused"):
            await a.connect(address, timeout=60.0)
        with known_as(), pytest.raises(DialError, match="does not resolve"):
            await a.connect(address, timeout=60.0)
        with known_as(NEVER), pytest.raises(DialError, match="within"):
            await a.connect(address, timeout=0.1)
        # The only requested family does not exist.
        with known_as("127.0.0.1"), pytest.raises(DialError, match="does not resolve"):
            await a.connect(address.replace("/dns/", "/dns6/"), timeout=60.0)


async def test_families_alternate_and_a_name_has_no_end_of_addresses() -> None:
    found: Candidates[str] = Candidates()
    for number in range(100):
        found.add(4, f"four{number}")
        if number < 2:
            found.add(6, f"six{number}")
    found.close()
    order = [await found.next() for _ in range(MAX_CANDIDATES + 1)]
    assert order[:6] == ["six0", "four0", "six1", "four1", "four2", "four3"]
    assert order[-1] is None
    assert len({*order}) == MAX_CANDIDATES + 1


async def test_attempts_begin_one_after_the_other(autojump_clock: trio.testing.MockClock) -> None:
    begun: list[tuple[str, float]] = []
    discarded: list[str] = []

    async def attempt(name: str) -> str:
        begun.append((name, trio.current_time() - started))
        if name == "refused":
            raise OSError(name)
        await trio.sleep(1.0 if name == "slow" else 1.0 - happy_eyeballs.ATTEMPT_SECONDS)
        return name

    async def discard(name: str) -> None:
        discarded.append(name)

    found: Candidates[str] = Candidates()
    for name in ("refused", "slow", "same", "late"):
        found.add(4, name)
    started = trio.current_time()
    winner, failures = await race(found, attempt, discard)
    # A refused attempt costs nothing, a silent one its head start.
    assert begun == [("refused", 0.0), ("slow", 0.0), ("same", 0.25), ("late", 0.5)]
    assert winner in ("slow", "same")
    assert len(failures) == 1
    assert len(discarded) <= 1
    assert winner not in discarded


async def test_a_mirrors_second_address_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    class Inner:
        async def connect_tcp(self, host: str, port: int, **options: Any) -> Any:
            if host == "7.7.0.1":
                await trio.sleep_forever()
            return host

    backend = web._public_only(httpcore, Inner())
    with known_as("7.7.0.1", "192.168.1.1", "7.7.0.2"), trio.fail_after(60):
        assert await backend.connect_tcp(NAME, 443) == "7.7.0.2"
    with known_as("192.168.1.1"), pytest.raises(httpcore.ConnectError, match="public"):
        await backend.connect_tcp(NAME, 443)
    with known_as(), pytest.raises(httpcore.ConnectError, match="does not resolve"):
        await backend.connect_tcp(NAME, 443)


@asynccontextmanager
async def records(
    monkeypatch: pytest.MonkeyPatch, texts: dict[str, list[str]]
) -> AsyncIterator[None]:
    """Run a name server on loopback that has these TXT records."""
    server = trio.socket.socket(type=trio.socket.SOCK_DGRAM)
    await server.bind(("127.0.0.1", 0))

    async def serve() -> None:
        while True:
            data, address = await server.recvfrom(4096)
            question = dns.message.from_wire(data)
            answer = dns.message.make_response(question)
            name = question.question[0].name
            for text in texts.get(str(name).rstrip("."), []):
                quoted = f'"{text[:200]}" "{text[200:]}"'
                answer.answer.append(dns.rrset.from_text(name, 60, "IN", "TXT", quoted))
            await server.sendto(answer.to_wire(), address)

    resolver = dns.asyncresolver.Resolver(configure=False)
    resolver.nameservers, resolver.port = ["127.0.0.1"], server.getsockname()[1]
    monkeypatch.setattr(dns.asyncresolver, "Resolver", lambda: resolver)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(serve)
        yield
        nursery.cancel_scope.cancel()
    server.close()


async def test_records_of_dnsaddr_lead_to_a_peer(monkeypatch: pytest.MonkeyPatch) -> None:
    async with dead_and_alive() as (a, port):
        end, other = f"/p2p/{peer_text(PEER)}", f"/p2p/{peer_text(identity(3).peer)}"
        texts = {
            f"_dnsaddr.{NAME}": [
                f"dnsaddr=/ip4/127.0.0.2/tcp/{port}{end}",
                f"dnsaddr=/ip4/127.0.0.1/udp/{port}/quic-v1{end}",
                f"dnsaddr=/ip4/127.0.0.3/tcp/{port}{other}",
                f"dnsaddr=/dnsaddr/far.{NAME}{end}",
                "something else",
            ],
            f"_dnsaddr.far.{NAME}": [f"dnsaddr=/ip4/127.0.0.1/tcp/{port}{end}"],
            "_dnsaddr.round.example": [f"dnsaddr=/dnsaddr/round.example{end}"],
        }
        async with records(monkeypatch, texts):
            address = f"/dnsaddr/{NAME}{end}"
            assert await a.connect(address, timeout=60.0) == PEER
            with pytest.raises(DialError, match="no TCP address of this peer"):
                await a.connect(f"/dnsaddr/{NAME}/p2p/{peer_text(identity(4).peer)}")
            await a.disconnect(PEER)
            with pytest.raises(DialError, match="too many times"):
                await a.connect(f"/dnsaddr/round.example{end}", timeout=60.0)
            with pytest.raises(DialError, match="does not resolve"):
                await a.connect(f"/dnsaddr/nobody.example{end}", timeout=60.0)


async def test_name_servers_are_read_at_each_look_up(monkeypatch: pytest.MonkeyPatch) -> None:
    def unconfigured(*_: Any) -> None:
        raise dns.resolver.NoResolverConfiguration

    async with dead_and_alive() as (a, port):
        end = f"/p2p/{peer_text(PEER)}"
        with monkeypatch.context() as offline:
            offline.setattr(dns.resolver.BaseResolver, "read_resolv_conf", unconfigured)
            with pytest.raises(DialError, match="does not resolve"):
                await a.connect(f"/dnsaddr/{NAME}{end}", timeout=60.0)
        texts = {f"_dnsaddr.{NAME}": [f"dnsaddr=/ip4/127.0.0.1/tcp/{port}{end}"]}
        async with records(monkeypatch, texts):
            assert await a.connect(f"/dnsaddr/{NAME}{end}", timeout=60.0) == PEER


def test_an_address_by_dnsaddr_names_its_peer_and_no_port() -> None:
    address = f"/dnsaddr/{NAME}/p2p/{peer_text(PEER)}"
    assert parse_dial(address)[1] == PEER
    assert versions_of([address]) == {4, 6}
    for wrong in (f"/dnsaddr/{NAME}", f"/dnsaddr/{NAME}/tcp/1/p2p/{peer_text(PEER)}"):
        with pytest.raises(BadAddress):
            parse_dial(wrong)
