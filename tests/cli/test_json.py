"""`--json`: each command prints what docs/reference.md says, which is frozen with it."""

from __future__ import annotations

import inspect
import json
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import get_type_hints

import pytest
import trio
from cli.schemas import conforms, documented
from distro_node.crypto.keystore import create_identity
from distro_node.node.cli.bootstrap import _print_addresses
from distro_node.node.cli.main import COMMANDS
from distro_node.node.control.command_socket import ask
from distro_node.node.control.supervisor import Supervisor
from distro_node.node.control.work_hours import WorkSchedule
from distro_node.node.results.export import Exported
from distro_node.node.results.verify import Verified
from distro_node.node.storage.data_dir import DataDir
from distro_node.node.telemetry.telemetry import Telemetry
from simulation.chain import Chain
from statuses import TRAINING


def test_every_command_for_programs_is_documented() -> None:
    with_json = {name for name, f in COMMANDS.items() if "json" in inspect.signature(f).parameters}
    # Their tables are on another page.
    elsewhere = {"status", "evaluate"}
    assert with_json - elsewhere == {n for n, fields in documented().items() if fields}


def test_what_is_not_on_the_page_is_found() -> None:
    good = {"fit": True, "findings": []}
    conforms("doctor", good)
    finding = {"subject": "disk", "severity": "good", "what": "w", "remedy": ""}
    conforms("doctor", good | {"findings": [finding]})
    for wrong in (
        {},
        good | {"more": 1},
        good | {"fit": 1},
        good | {"fit": None},
        good | {"findings": [finding | {"what": 3}]},
        good | {"findings": [{"subject": "disk"}]},
        good | {"findings": ["x"]},
    ):
        with pytest.raises(AssertionError):
            conforms("doctor", wrong)


def test_who_one_is_and_a_link(command, home: Path) -> None:
    create_identity(home / "identity.key", None)
    conforms("id", json.loads(command("id", "--json", "--data-dir", home).out))
    manifest = Chain(0).manifest
    place = DataDir(home).swarm(manifest.swarm).manifest
    place.parent.mkdir(parents=True)
    place.write_bytes(manifest.encode())
    from distro_node.protocol.wire.swarm_id import swarm_text

    told = command("invite", swarm_text(manifest.swarm), "--json", "--data-dir", home)
    conforms("invite", json.loads(told.out))


def test_addresses(capsys: pytest.CaptureFixture[str]) -> None:
    _print_addresses(True, ["/ip4/192.0.2.1/tcp/4001"])
    conforms("bootstrap", json.loads(capsys.readouterr().out))


async def test_what_a_node_answers(tmp_path: Path) -> None:
    supervisor = Supervisor(
        socket=tmp_path / "socket",
        schedule=WorkSchedule(None),
        telemetry=Telemetry(b"p" * 32),  # type: ignore[arg-type]  # any 32 bytes
        node=TRAINING.node,
        screen=False,
        link=lambda: {"url": "http://127.0.0.1:1/", "link": "http://127.0.0.1:1/#secret"},
    )
    async with supervisor.open():
        for name in ("dashboard", "pause", "resume", "leave"):
            send = partial(ask, tmp_path / "socket", name, 10.0)
            answer = await trio.to_thread.run_sync(send)
            conforms(name, answer)


def test_what_comes_out() -> None:
    """The commands print these values unchanged."""
    done = Exported(directory=Path("/x"), round=1, parameters=2, record="ab", fingerprint="cd")
    assert get_type_hints(Exported).keys() == asdict(done).keys()
    conforms("export", asdict(done) | {"directory": "/x"})
    conforms("export", asdict(done) | {"directory": "/x", "url": "https://example.org"})
    found = Verified(round=1, record="ab", fingerprint="cd", proof="content", unchecked=())
    conforms("verify", json.loads(json.dumps(asdict(found))))
