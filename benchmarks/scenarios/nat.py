"""Four homes behind NAT routers, and a newcomer: all train together, directly or relayed.

Two of the routers keep the ports of outgoing connections, one chooses random ones, and one opens
ports by UPnP (a real miniupnpd; without it that router keeps ports, and the table says so). A
bootstrap peer has a public address. The nodes are real ones with a tiny model. The table shows for
each pair how it is connected, how long each stage took, and the bytes that the bootstrap peer
carried. `measured_seconds` is the time from the first path between each two homes, relayed or not,
to direct paths between all pairs that can have one; `limit_seconds` is 15 s, the longest time that
hole punching took when it was first tried with this library.
"""

from __future__ import annotations

import itertools
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from distro_node.node.telemetry.messages import reachability_text
from e2e.program import wait_for
from e2e.support import Node, Place, Swarm, check_agreement
from street import Router, Street, has_upnpd

_LIMIT_SECONDS = 15.0
_ROUTERS: dict[str, Router] = {
    "founder": "preserving",
    "second": "preserving",
    "random": "random",
    "upnp": "upnp",
    "newcomer": "preserving",
}
_ROUNDS = 5
# Shared machines are slow; an awaited event happens, or the run fails.
_PATIENCE_SECONDS = 600.0
_METRICS = "127.0.0.1:9464"


def measure(members: int | None) -> dict[str, Any]:
    """Run the scenario; `members` is ignored, since its homes are fixed."""
    del members
    routers = dict(_ROUTERS)
    if not has_upnpd():
        print("miniupnpd is missing (Debian: miniupnpd): the home with UPnP goes without a mapping")
        routers["upnp"] = "preserving"
    with (
        Street(["bootstrap"], routers) as street,
        tempfile.TemporaryDirectory() as folder,
    ):
        places = {
            name: Place(prefix=host.prefix, address=host.address)
            for name, host in street.hosts.items()
        }
        with Swarm(
            Path(folder) / "swarm", start_members=4, places=places, lease_seconds=30.0
        ) as swarm:
            return _run(swarm, street, routers)


def _run(swarm: Swarm, street: Street, routers: dict[str, Router]) -> dict[str, Any]:
    began = time.monotonic()
    swarm.create("--metrics-addr", _METRICS)
    first = [swarm.node(name) for name in routers if name != "newcomer"]
    for node in first:
        node.start()
    seconds = {"connected": _until_connected(first, began)}
    seconds["direct"] = _until_direct(first, routers, began)
    seconds["training"] = _until_training(first, began)
    check_agreement(first, _ROUNDS)
    print(f"four homes train, {seconds['training']:.0f} s after the start")

    joined = time.monotonic()
    newcomer = swarm.node("newcomer")
    newcomer.start()
    everybody = [*first, newcomer]
    seconds["newcomer_connected"] = _until_connected(everybody, joined)
    seconds["newcomer_direct"] = _until_direct(everybody, routers, joined)
    seconds["newcomer_training"] = _until_training([newcomer], joined)
    last = check_agreement(everybody, _ROUNDS)
    counted = newcomer.counted()
    print(f"the newcomer trains {seconds['newcomer_training']:.0f} s after its start")

    pairs = _pairs(everybody)
    print(f"\n{'pair':<24}{'routers':<26}way")
    for (one, other), way in pairs.items():
        print(f"{one + ' – ' + other:<24}{routers[one] + ', ' + routers[other]:<26}{way}")
    relayed = _relayed_bytes(street)
    told = {node.name: node.told() for node in everybody}
    reach = {name: status.reach for name, status in told.items() if status.reach is not None}
    upgrade = max(
        seconds["direct"] - seconds["connected"],
        seconds["newcomer_direct"] - seconds["newcomer_connected"],
    )
    print(
        f"\ndirect where it can be: {upgrade:.1f} s after the first way (limit {_LIMIT_SECONDS:g} s)"
    )
    print(f"bytes through the relay: {relayed:,}; round {last}, all fingerprints alike")
    for name, found in reach.items():
        words = reachability_text(found)
        print(f"{name:<12}{found.verdict:<14}{words.meaning}: {words.remedy}")
    return {
        "limit_seconds": _LIMIT_SECONDS,
        "measured_seconds": round(upgrade, 1),
        "seconds": seconds,
        "upload_bytes_max": max(status.line.sent_bytes for status in told.values()),
        "download_bytes_max": max(status.line.received_bytes for status in told.values()),
        "members": len(everybody),
        "rounds": last,
        "newcomer_rounds_counted": len(counted),
        "relayed_bytes": relayed,
        "upnp": routers["upnp"] == "upnp",
        "verdicts": {name: found.verdict for name, found in reach.items()},
        "pairs": {f"{one}-{other}": way for (one, other), way in pairs.items()},
    }


def _until_training(nodes: list[Node], since: float) -> float:
    wait_for(
        lambda: all(node.state == "training" for node in nodes),
        "all to train",
        limit=_PATIENCE_SECONDS,
        describe=lambda: {node.name: node.state for node in nodes},
    )
    return round(time.monotonic() - since, 1)


def _until_connected(nodes: list[Node], since: float) -> float:
    """Return the time until each two are connected in any way."""
    wait_for(
        lambda: "none" not in _pairs(nodes).values(),
        "ways between all homes",
        limit=_PATIENCE_SECONDS,
        describe=lambda: _pairs(nodes),
    )
    return round(time.monotonic() - since, 1)


def _until_direct(nodes: list[Node], routers: dict[str, Router], since: float) -> float:
    """Return the time until all pairs that can be connected directly are."""
    wait_for(
        lambda: all(
            way == "direct" or not _can_be_direct(routers[one], routers[other])
            for (one, other), way in _pairs(nodes).items()
        ),
        "direct ways",
        limit=_PATIENCE_SECONDS,
        describe=lambda: _pairs(nodes),
    )
    return round(time.monotonic() - since, 1)


def _can_be_direct(one: Router, other: Router) -> bool:
    return "random" not in (one, other) or "upnp" in (one, other)


def _pairs(nodes: list[Node]) -> dict[tuple[str, str], str]:
    """Return how each two are connected, as reported by both."""
    ways: dict[tuple[str, str], str] = {}
    told = {}
    for node in nodes:
        status = node.status()
        reach = status.reach if status is not None else None
        told[node.name] = {each.peer: each.way for each in reach.connections} if reach else {}
    for one, other in itertools.combinations(nodes, 2):
        both = {told[one.name].get(other.peer), told[other.name].get(one.peer)}
        ways[one.name, other.name] = both.pop() if len(both) == 1 and None not in both else "none"
    return ways


def _relayed_bytes(street: Street) -> int:
    """Return the bytes that the bootstrap peer has carried, from its metrics."""
    ask = (
        f"import urllib.request as u; print(u.urlopen('http://{_METRICS}/metrics').read().decode())"
    )
    page = subprocess.run(
        [*street.hosts["bootstrap"].prefix, sys.executable, "-c", ask],
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    (line,) = (x for x in page.splitlines() if x.startswith("distro_bootstrap_relayed_bytes_total"))
    return int(float(line.split()[1]))
