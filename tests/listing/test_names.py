"""Names of swarms: anybody can use any name, so an ambiguous one is refused."""

from __future__ import annotations

import pytest
from distro_node.node.errors import ExitCode, UserError
from distro_node.node.listing.directory import PublicSwarm
from distro_node.node.listing.names import (
    ambiguous_names,
    joined_before,
    listed_swarm,
    same_name,
)
from distro_node.protocol.wire.swarm_id import swarm_text
from listing.listed import entry, public
from network.support import identity

ADDRESSES = ("/ip4/192.0.2.1/tcp/4001/p2p/12D3KooWGZNvBSEVqsqAgqtsM1tHNhAqKRjUJrgDbBgAVc45Su7V",)


def listed(name: str, seed: int = 0) -> PublicSwarm:
    manifest = public(name, seed=seed)
    entries = (entry(identity(1), manifest.swarm),)
    return PublicSwarm(manifest=manifest, entries=entries, bootstrap=ADDRESSES)


def test_a_name_leads_to_the_one_swarm_that_has_it() -> None:
    meadow, other = listed("The Meadow"), listed("another", 1)
    for spelling in ("The Meadow", "the meadow", " the  MEADOW ", "ｔｈｅ meadow"):
        found = listed_swarm(spelling, [other, meadow])
        assert (found.swarm, found.bootstrap) == (meadow.swarm, ADDRESSES)


def test_letters_that_only_look_alike_are_another_name() -> None:
    assert not same_name("meadow", "mеadow")
    real, fake = listed("meadow"), listed("mеadow", 1)
    assert listed_swarm("meadow", [fake, real]).swarm == real.swarm


def test_an_unknown_name_is_refused() -> None:
    with pytest.raises(UserError) as refused:
        listed_swarm("nowhere", [listed("meadow")])
    assert refused.value.code is ExitCode.UNKNOWN_SWARM


def test_two_swarms_of_one_name_are_refused_with_their_ids() -> None:
    swarms = [listed("meadow"), listed("Meadow", 1), listed("third", 2)]
    with pytest.raises(UserError) as refused:
        listed_swarm("meadow", swarms)
    assert refused.value.code is ExitCode.USAGE
    for each in swarms[:2]:
        assert swarm_text(each.swarm) in refused.value.remedy
    assert swarm_text(swarms[2].swarm) not in refused.value.remedy
    assert ambiguous_names(swarms) == ["meadow"]


def test_a_swarm_joined_before_goes_before_every_list() -> None:
    ours = public("meadow")
    assert joined_before("Meadow", [public("third", seed=2), ours]) == ours.swarm
    assert joined_before("fourth", [ours]) is None
    with pytest.raises(UserError) as refused:
        joined_before("meadow", [ours, public("meadow", seed=1)])
    assert swarm_text(ours.swarm) in refused.value.remedy
