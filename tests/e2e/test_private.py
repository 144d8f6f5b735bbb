"""Nodes that train together, each on its own files: what is learned, and what never leaves them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from distro_node.crypto.identity import peer_from_text
from distro_node.node.errors import ExitCode
from distro_node.node.private_data.store import PrivateFolder, read_index
from e2e.program import wait_for
from e2e.support import Node, Swarm, check_agreement, wait_for_round

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

WORDS = {
    "founder": ("copper", "granite", "marble", "quartz", "slate", "basalt"),
    "second": ("violin", "trumpet", "cello", "oboe", "timpani", "bassoon"),
    "third": ("larch", "willow", "poplar", "hazel", "rowan", "alder"),
}


def text(words: tuple[str, ...], count: int) -> str:
    state, chosen = 7, []
    for _ in range(count):
        state = (state * 1103515245 + 12345) % (1 << 31)
        chosen.append(words[(state >> 16) % len(words)])
    return " ".join(chosen)


def make_private(swarm: Swarm, keys: str = "") -> None:
    """Make the swarm one of private data; the public text has a little of every member's."""
    path = swarm.root / "swarm.toml"
    described = path.read_text()
    described = re.sub(
        r"^heldout_fraction.*$", f'policy = "private"\n{keys}', described, flags=re.M
    )
    path.write_text(described)
    public = "\n".join(text(words, 400) for words in WORDS.values())
    (swarm.root / "texts" / "corpus.txt").write_text(public)
    swarm.create()


def private_files(swarm: Swarm, name: str) -> Path:
    folder = swarm.root / "own" / name
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "notes.txt").write_text(text(WORDS[name], 6000))
    return folder


@pytest.fixture(scope="module")
def swarm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Swarm]:
    root = tmp_path_factory.mktemp("private")
    with Swarm(root, start_members=3, snapshot_interval=10) as swarm:
        make_private(swarm)
        yield swarm


@pytest.fixture
def nodes(swarm: Swarm) -> list[Node]:
    """Return three training nodes, each on its own files; the third keeps no state."""
    found = [swarm.node(name) for name in WORDS]
    for node in found:
        if not node.running:
            extra = ("--stateless",) if node.name == "third" else ()
            node.start("--data", private_files(swarm, node.name), *extra)
    swarm.start(*WORDS)
    return found


def test_nothing_of_it_is_in_what_is_served(nodes: list[Node]) -> None:
    for node in nodes:
        own = PrivateFolder(node.directory.private)
        index = read_index(own)
        assert index is not None
        assert index.shards
        kept = own.blobs(index.name)
        assert not {*kept.ids()} & {*node.blobs.ids()}
        words = WORDS[node.name][0].encode() + b" " + WORDS[node.name][1].encode()
        assert any(words in (kept.get(cid) or b"") for cid in kept.ids())
        # The public text has some of it, as the founder chose, but not a whole passage of a member's
        # own.
        passage = text(WORDS[node.name], 6000).encode()[20_000:20_100]
        assert any(passage in (kept.get(cid) or b"") for cid in kept.ids())
        for other in nodes:
            assert not any(passage in (other.blobs.get(cid) or b"") for cid in other.blobs.ids())


def test_a_node_that_comes_back_continues_after_what_it_trained(
    swarm: Swarm, nodes: list[Node]
) -> None:
    second = nodes[1]
    walk = PrivateFolder(second.directory.private).order
    before = walk.read_bytes()
    second.program.kill()
    height = second.round
    second.start("--data", private_files(swarm, "second"))
    wait_for(lambda: second.counted(height), "the restarted node to contribute again")
    # The first update to count may have been announced before it was killed.
    wait_for(lambda: walk.read_bytes() != before, "it to go on in its own data")
    check_agreement(nodes)


def test_a_node_with_a_budget_reports_what_is_spent_and_may_not_go_below(
    swarm: Swarm, nodes: list[Node]
) -> None:
    fourth = swarm.node("fourth")
    folder = swarm.root / "own" / "fourth"
    folder.mkdir(parents=True)
    (folder / "notes.txt").write_text(text(("iron", "tin"), 20_000))
    fourth.start("--data", folder, "--epsilon", "2", "--delta", "1e-4", "--until-round", "100000")
    wait_for(lambda: fourth.counted(), "a first noisy contribution")
    told = fourth.told().privacy
    assert told is not None
    assert 0 < told.epsilon <= told.limit == 2.0
    assert not told.spent
    wait_for_round([fourth], fourth.round + 2)
    assert re.search(r"^distro_privacy_epsilon [0-9.e-]+$", fourth.metrics(), re.MULTILINE)
    shown = swarm.run("status", "status", "--json", "--data-dir", fourth.data.root)
    assert shown.wait() == 0
    assert json.loads(shown.stdout)["privacy"]["delta"] == 1e-4
    # Its loss would reveal something of its data, so it reports none, nor how many sequences it drew.
    ledger = nodes[0].ledger()
    said = [
        (entry.tokens, entry.loss)
        for number in range(len(ledger))
        for entry in ledger[number].record.updates
        if entry.peer == peer_from_text(fourth.peer)
    ]
    assert said
    assert set(said) == {(0, 0.0)}
    fourth.program.kill()
    lower = swarm.run(
        *("lower", "join", swarm.link, "--data-dir", fourth.data.root, "--data", folder),
        *("--no-screen", "--metrics-addr", "off", "--dashboard", "off", "--threads", "1"),
        *("--device", "cpu", "--listen", "/ip4/127.0.0.1/tcp/0", "--epsilon", "0.0001"),
    )
    assert lower.wait() == ExitCode.PRIVACY
    check_agreement(nodes)


def test_they_learn_together_what_each_has_alone(swarm: Swarm, nodes: list[Node]) -> None:
    founder = nodes[0]
    assert swarm.manifest.data.private is not None
    assert swarm.manifest.data.shards == ()
    losses = wait_for(
        lambda: [line["heldout"] for line in founder.history() if "heldout" in line][5:],
        "six measurements of the held-out loss",
    )
    first = next(line["heldout"] for line in founder.history() if "heldout" in line)
    assert losses[-1] < first - 0.5
    assert all(node.counted() for node in nodes)
    # Members with entirely different texts contradict each other: none is left out for it.
    for node in nodes:
        assert re.search(r"^distro_updates_filtered_total 0", node.metrics(), re.MULTILINE)
    check_agreement(nodes)
