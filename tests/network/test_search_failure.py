"""Why a swarm's manifest could not be fetched: each cause has its exit code and its remedy."""

from __future__ import annotations

import pytest
from distro_node.crypto.identity import PeerId
from distro_node.node.content.search_failure import SearchResult, explain_search
from distro_node.node.errors import ExitCode
from distro_node.protocol.wire.manifest import SwarmId
from network.support import identity

BOOTSTRAP, MEMBER, OTHER = (identity(number).peer for number in (1, 2, 3))
ADDRESS = "/ip4/203.0.113.7/tcp/4001/p2p/x"


def result(
    *,
    connected: tuple[PeerId, ...] = (BOOTSTRAP,),
    known: bool = False,
    reason: str = "no answer within 5 s",
    **asked: str,
) -> SearchResult:
    peers = {"bootstrap": BOOTSTRAP, "member": MEMBER, "other": OTHER}
    return SearchResult(
        swarm=SwarmId(bytes(32)),
        connected=frozenset(connected),
        asked={peers[name]: outcome for name, outcome in asked.items()},
        known={MEMBER: {ADDRESS: reason}} if known else {},
    )


BOTH = (BOOTSTRAP, MEMBER)


@pytest.mark.parametrize(
    ("found", "code", "problem", "remedy"),
    [
        (result(bootstrap="refused"), ExitCode.UNKNOWN_SWARM, "no member", "founder"),
        (
            result(bootstrap="refused", known=True),
            ExitCode.MEMBERS_UNREACHABLE,
            f"1 member of the swarm is known, but none can be reached ({ADDRESS}: no answer within 5 s)",
            "relays",
        ),
        (
            result(bootstrap="refused", known=True, reason="connection refused"),
            ExitCode.MEMBERS_UNREACHABLE,
            f"none can be reached ({ADDRESS}: connection refused)",
            "no node listens there",
        ),
        (
            result(bootstrap="refused", member="not connected", known=True),
            ExitCode.MEMBERS_UNREACHABLE,
            "none can be reached",
            "relays",
        ),
        (
            result(connected=BOTH, bootstrap="refused", member="timeout", known=True),
            ExitCode.LARGE_PACKETS_LOST,
            "did not arrive: members are overloaded, or large packets are lost",
            "try again in a minute; if it stays so",
        ),
        (
            result(connected=BOTH, member="timeout", other="busy"),
            ExitCode.NOT_SERVED,
            "2 members answered, but none sent the swarm's manifest (1 × timeout, 1 × busy)",
            "again",
        ),
        (
            result(connected=BOTH, member="wrong content"),
            ExitCode.NOT_SERVED,
            "wrong content",
            "again",
        ),
        (
            result(connected=BOTH, bootstrap="refused", member="not found", known=True),
            ExitCode.NO_DESCRIPTION,
            "none has the swarm's manifest yet",
            "founder",
        ),
        (
            result(connected=BOTH, bootstrap="refused", member="refused", known=True),
            ExitCode.NO_DESCRIPTION,
            "none has the swarm's manifest yet",
            "founder",
        ),
        (result(connected=(), bootstrap="not connected"), ExitCode.NO_BOOTSTRAP, "broke", "again"),
    ],
)
def test_each_cause_has_its_code(
    found: SearchResult, code: ExitCode, problem: str, remedy: str
) -> None:
    error = explain_search(found)
    assert error.code is code
    assert problem in error.problem
    assert remedy in error.remedy
