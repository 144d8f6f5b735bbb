"""`distro-node swarms` and `join NAME`: what they show and refuse."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cli.schemas import conforms
from distro_node.node import daemon, memory_fit
from distro_node.node.cli import join as join_command
from distro_node.node.errors import ExitCode
from distro_node.node.listing import directory
from distro_node.node.listing.directory import Directory, PublicSwarm
from distro_node.node.settings.tree import DaemonSettings
from distro_node.node.storage.data_dir import DataDir
from distro_node.node.training.device_probe import Survey
from distro_node.node.training.errors import TrainerFailed
from distro_node.protocol.wire.manifest import Manifest
from distro_node.protocol.wire.swarm_id import swarm_text
from listing.listed import entry, public
from network.support import identity

ADDRESS = "/ip4/192.0.2.1/tcp/4001/p2p/12D3KooWGZNvBSEVqsqAgqtsM1tHNhAqKRjUJrgDbBgAVc45Su7V"
LLAMA = {
    "model_type": "llama",
    "vocab_size": 256,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
}


def listed(manifest: Manifest, **changes: Any) -> PublicSwarm:
    entries = (entry(identity(1), manifest.swarm, **changes),)
    return PublicSwarm(manifest=manifest, entries=entries, bootstrap=(ADDRESS,))


@pytest.fixture
def there(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Return a function that sets the list and the free memory of the device; None: no device."""

    def set_list(*swarms: PublicSwarm, memory: int | None = 10**9, **facts: Any) -> None:
        async def read(addresses: Any, now: float) -> Directory:
            assert tuple(addresses) == (ADDRESS,)
            return Directory(swarms=list(swarms), **facts)

        async def survey(*_: Any) -> Survey:
            if memory is None:
                raise TrainerFailed("no_device", "PyTorch is missing")
            return Survey("cpu", "cpu", memory, 0, ())

        monkeypatch.setattr(directory, "read_directory", read)
        monkeypatch.setattr(memory_fit, "survey", survey)

    return set_list


@pytest.fixture
def joined(monkeypatch: pytest.MonkeyPatch) -> list[DaemonSettings]:
    """Return the settings with which `join` would have run."""
    ran: list[DaemonSettings] = []

    async def run(settings: DaemonSettings, _model: object) -> bool:
        ran.append(settings)
        return False

    monkeypatch.setattr(daemon, "run_daemon", run)
    monkeypatch.setattr(join_command, "prepare_to_run", lambda *_: None)
    return ran


def small(name: str = "meadow", **changes: Any) -> Manifest:
    return public(name, model=LLAMA, **changes)


def test_one_of_a_kind_is_not_several(command, there) -> None:
    there(listed(small(), members=1, rounds_done=1))
    shown = command("swarms", "--bootstrap", ADDRESS).out
    assert "1 member, 1,000 tokens a second, 1 round done" in shown
    assert "the median of 1 report\n" in shown


def test_what_fits_and_what_does_not(command, there) -> None:
    fitting = small()
    elsewhere = small("task", seed=1, task="of_another_package")
    there(
        listed(fitting, members=5, rounds_done=40), listed(elsewhere), other_versions=2, unusable=1
    )
    shown = command("swarms", "--bootstrap", ADDRESS)
    assert shown.code == 0, shown
    for manifest in (fitting, elsewhere):
        assert swarm_text(manifest.swarm) in shown.out
    assert "fits this machine: yes, because it takes" in shown.out
    assert "fits this machine: no, because the swarm trains the task" in shown.out
    assert "5 members, 1,000 tokens a second, 40 rounds done" in shown.out
    assert "2 of another protocol version" in shown.out
    link = listed(fitting).link
    assert f"  distro-node join '{link}'\n" in shown.out
    elsewhere = command("swarms", "--bootstrap", ADDRESS, "--data-dir", "/srv/a node").out
    assert f"  distro-node join '{link}' --data-dir '/srv/a node'\n" in elsewhere
    narrow = command("swarms", "--bootstrap", ADDRESS, "--memory", "1kB").out
    assert "no, because it takes at least" in narrow

    found = json.loads(command("swarms", "--bootstrap", ADDRESS, "--json").out)
    conforms("swarms", found)
    assert [each["fits"] for each in found["swarms"]] == [True, False]
    assert found["swarms"][0]["swarm"] == swarm_text(fitting.swarm)


def test_without_a_device_the_answer_is_unknown(command, there) -> None:
    there(listed(small()), memory=None)
    assert "fits this machine: unknown, because" in command("swarms", "--bootstrap", ADDRESS).out
    found = json.loads(command("swarms", "--bootstrap", ADDRESS, "--json").out)
    conforms("swarms", found)
    assert found["swarms"][0]["fits"] is None


def test_names_of_strangers_are_harmless_and_doubles_are_named(command, there) -> None:
    there(listed(small("a\x1b[31m")), listed(small("a\x1b[31m", seed=1)))
    out = command("swarms", "--bootstrap", ADDRESS).out
    assert "\x1b" not in out
    assert "Warning: several of these swarms have the name" in out


def test_nothing_is_listed(command, there) -> None:
    there(failures={ADDRESS: "it lists no swarms"})
    out = command("swarms", "--bootstrap", ADDRESS).out
    assert "No public swarm is listed." in out
    assert "it lists no swarms" in out


def test_there_is_no_list_without_a_bootstrap_peer(command) -> None:
    command("swarms").refused_with(ExitCode.NO_BOOTSTRAP, "no bootstrap peer to ask")


def test_join_takes_a_name_from_the_list(command, there, joined, home: Path) -> None:
    meadow = small()
    there(listed(meadow), listed(small("other", seed=1)))
    done = command("join", "Meadow", "--bootstrap", ADDRESS)
    assert done.code == 0, done
    assert swarm_text(meadow.swarm) in done.err
    (settings,) = joined
    assert settings.swarm == meadow.swarm
    assert settings.full_invite.bootstrap == (ADDRESS,)


def test_join_refuses_an_ambiguous_or_unknown_name(command, there, joined) -> None:
    real, false = small(), small(seed=1)
    there(listed(real), listed(false))
    refused = command("join", "meadow", "--bootstrap", ADDRESS)
    refused.refused_with(ExitCode.USAGE, "2 swarms with the name 'meadow'")
    for each in (real, false):
        assert swarm_text(each.swarm) in refused.err
    command("join", "x", "--bootstrap", ADDRESS).refused_with(ExitCode.UNKNOWN_SWARM, "'x'")
    command("join", "meadow").refused_with(ExitCode.BAD_SWARM_ID, "'meadow'")
    assert joined == []


def test_an_impersonator_does_not_catch_who_has_joined_before(
    command, there, joined, tmp_path: Path
) -> None:
    ours = small()
    there(listed(small(seed=1)))
    data = DataDir(tmp_path / "data")
    data.create()
    place = data.swarm(ours.swarm)
    place.root.mkdir(parents=True)
    place.manifest.write_bytes(ours.encode())
    done = command("join", "meadow", "--bootstrap", ADDRESS, "--data-dir", data.root)
    assert done.code == 0, done
    assert joined[0].swarm == ours.swarm
