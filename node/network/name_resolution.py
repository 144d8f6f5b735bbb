"""Name resolution to IP addresses, by the system resolver and by `dnsaddr` records in DNS.

The two families are queried separately, so that a resolver that never answers for IPv6 does not block
IPv4.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Callable, Collection
from typing import Any, TypeVar

import trio
from multiaddr import Multiaddr

from .addresses import endpoint, parse_dial
from .errors import BadAddress
from .happy_eyeballs import MAX_CANDIDATES, Candidates

C = TypeVar("C")

_FAMILIES = {4: socket.AF_INET, 6: socket.AF_INET6}
_VERSIONS = {"dns": (6, 4), "dns4": (4,), "dns6": (6,)}
# How long IPv4's answer waits for IPv6's: RFC 8305, section 3.
_RESOLUTION_SECONDS = 0.05
# How many names in a row are followed: records of a name may point to further names, by region, then by
# host.
_MAX_DEPTH = 3
_DNS_SECONDS = 4.0
# Look-ups in threads at once. The system resolver cannot be interrupted, and waits for half a minute
# for a silent name server. Names that peers report have threads of their own, so that they delay neither
# our own names nor the rest of the program, which shares trio's default threads.
_MAX_LOOKUPS = 16

Permit = Callable[[], str | None]
"""Returns why no further name may be looked up; None to look one up."""


async def resolve(
    target: Multiaddr, found: Candidates[Multiaddr], permit: Permit | None = None
) -> None:
    """Resolve a target to addresses to dial, add them to `found`, and close it.

    `permit` is called before each look-up for a target that a peer reported; None: the target is our
    own.
    """
    try:
        await _resolve(target, found, 0, permit)
    finally:
        found.close()


async def resolve_host(
    name: str,
    versions: Collection[int],
    found: Candidates[C],
    make: Callable[[str], C | None],
    *,
    reported: bool = False,
) -> None:
    """Resolve a name in these IP versions, and add `make` of each address to `found`, unless it is
    None. `reported`: the name is from a peer."""
    failures: list[str] = []
    answered = {version: trio.Event() for version in versions}

    async def ask(version: int) -> None:
        hosts: list[str] = []
        try:
            hosts = await look_up(name, _FAMILIES[version], reported=reported)
        except (OSError, UnicodeError) as error:
            failures.append(getattr(error, "strerror", None) or str(error))
        answered[version].set()
        if version == 4 and 6 in answered and hosts:
            with trio.move_on_after(_RESOLUTION_SECONDS):
                await answered[6].wait()
        for host in dict.fromkeys(hosts):
            candidate = make(host)
            if candidate is not None:
                found.add(version, candidate)

    async with trio.open_nursery() as nursery:
        for version in versions:
            nursery.start_soon(ask, version)
    if len(failures) == len(answered):
        found.reasons.append(f"the name does not resolve ({failures[0]})")


async def look_up(name: str, family: int, *, reported: bool = False) -> list[str]:
    """Return the IP addresses of a name in one address family, as the system resolves it.

    `reported`: the name is from a peer. Raises `OSError` and `UnicodeError`.
    """
    answer = await trio.to_thread.run_sync(
        socket.getaddrinfo,
        *(name, None, family, socket.SOCK_STREAM),
        limiter=_limiter(_reported_limiter if reported else _own_limiter),
        # The stubs of trio that libp2p depends on are older than this parameter's name.
        abandon_on_cancel=True,  # pyright: ignore[reportCallIssue]
    )
    return [str(entry[4][0]) for entry in answer]


# One limiter for each run of the event loop, as trio's default one.
_own_limiter: trio.lowlevel.RunVar[trio.CapacityLimiter] = trio.lowlevel.RunVar("own_limiter")
_reported_limiter: trio.lowlevel.RunVar[trio.CapacityLimiter] = trio.lowlevel.RunVar(
    "reported_limiter"
)


def _limiter(variable: trio.lowlevel.RunVar[trio.CapacityLimiter]) -> trio.CapacityLimiter:
    try:
        return variable.get()
    except LookupError:
        limiter = trio.CapacityLimiter(_MAX_LOOKUPS)
        variable.set(limiter)
        return limiter


async def _resolve(
    target: Multiaddr, found: Candidates[Multiaddr], depth: int, permit: Permit | None
) -> None:
    kind = next(iter(target.protocols())).name
    if kind in ("ip4", "ip6"):
        host = endpoint(target)[0]
        found.add(ipaddress.ip_address(host).version, target)
        return
    refusal = permit() if permit is not None else None
    if refusal is not None:
        found.reasons.append(refusal)
        return
    name = str(target.value_for_protocol(kind))
    if kind == "dnsaddr":
        await _resolve_records(name, str(target.value_for_protocol("p2p")), found, depth, permit)
        return
    rest = f"/tcp/{target.value_for_protocol('tcp')}/p2p/{target.value_for_protocol('p2p')}"

    def make(host: str) -> Multiaddr | None:
        # A link-local address comes with an interface name, and is not dialled.
        return None if "%" in host else Multiaddr(f"/ip{6 if ':' in host else 4}/{host}{rest}")

    await resolve_host(name, _VERSIONS[kind], found, make, reported=permit is not None)


async def _resolve_records(
    name: str, peer: str, found: Candidates[Multiaddr], depth: int, permit: Permit | None
) -> None:
    """Follow a name's TXT records `dnsaddr=<multiaddress>` that lead to a peer."""
    if depth >= _MAX_DEPTH:
        found.reasons.append("its records refer to further names too many times in a row")
        return
    targets: list[Multiaddr] = []
    try:
        texts = await _texts(f"_dnsaddr.{name}")
    except OSError as error:
        found.reasons.append(f"the name does not resolve ({error})")
        return
    for text in texts:
        key, _, address = text.partition("=")
        try:
            # The records also cover other peers, and transports that we do not have.
            if key == "dnsaddr" and address.endswith(f"/p2p/{peer}"):
                targets.append(parse_dial(address)[0])
        except BadAddress:
            continue
    if not targets:
        found.reasons.append("its records name no TCP address of this peer")
    async with trio.open_nursery() as nursery:
        for target in targets[:MAX_CANDIDATES]:
            nursery.start_soon(_resolve, target, found, depth + 1, permit)


async def _texts(name: str) -> list[str]:
    """Return the TXT records of a name. Raises `OSError` if there are none or DNS does not answer."""
    # Imported lazily: it slows the start of every command, and few addresses need it.
    import dns.asyncresolver
    import dns.exception

    try:
        # Not the default resolver, which keeps the name servers of the network that the machine was in
        # first.
        resolver: Any = dns.asyncresolver.Resolver()
        answer = await resolver.resolve(name, "TXT", lifetime=_DNS_SECONDS)
    except (dns.exception.DNSException, ValueError) as error:
        # ValueError: resolv.conf names a server that is not an IP address.
        raise OSError(str(error) or type(error).__name__) from None
    return [b"".join(record.strings).decode("utf-8", "replace") for record in answer]
