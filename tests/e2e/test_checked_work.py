"""Real nodes that look at each other's work: who does it earns votes, who does not is found out."""

from __future__ import annotations

import re
import sys
import sysconfig
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from statistics import median

import pytest
from distro_node.crypto.identity import PeerId, peer_from_text
from distro_node.protocol.chain.ledger import Ledger
from distro_node.protocol.checks.agreement import Agreement
from e2e.program import wait_for
from e2e.support import Place, Swarm, check_agreement

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

IDLE = Path(__file__).with_name("idle_node.py")
NAMES = ("founder", "second", "third", "idle")
# Enough to be told from chance: a share of two, and many coefficients.
MODEL = """
[model]
model_type = "llama"
hidden_size = 64
intermediate_size = 172
num_hidden_layers = 2
num_attention_heads = 2
max_position_embeddings = 128
tie_word_embeddings = false

"""


def make_checked(swarm: Swarm) -> None:
    """A model large enough for checks, texts with something new in each sample, and looks in every
    round."""
    path = swarm.root / "swarm.toml"
    described = re.sub(r"\[model\].*?(?=\[data\])", MODEL.lstrip(), path.read_text(), flags=re.S)
    described = described.replace("sequence_length = 32", "sequence_length = 128")
    # All have as much to do, whatever they can.
    # A second look starts a trainer, and has sixteen rounds.
    described = described.replace("min_seconds = 0.2", "min_seconds = 3.0")
    described += "max_share = 0.0\n\n[checks]\nevery = 1\n"
    path.write_text(described)
    sources = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("[a-h]*.py"))
    texts = "\n".join(each.read_text("utf-8", "replace") for each in sources)
    (swarm.root / "texts" / "corpus.txt").write_text(texts[:1_500_000])
    swarm.create()


def looks(ledger: Ledger) -> Iterator[tuple[PeerId, PeerId, float]]:
    """Who has looked at whom, and the score, as the chain says."""
    assert ledger.work is not None
    for number in range(len(ledger)):
        for entry in ledger[number].record.looks:
            drawn = ledger.work.drawn(entry.checker, entry.secret, entry.round)
            assert drawn is not None
            yield entry.checker, drawn.peer, Agreement(entry.total, entry.squares).score


def test_who_does_not_do_the_work_is_found_out(tmp_path: Path) -> None:
    places = {"idle": Place(prefix=(sys.executable, str(IDLE)))}
    with Swarm(
        tmp_path / "swarm",
        start_members=4,
        snapshot_interval=8,
        sequences=8,
        top_k=32,
        places=places,
    ) as swarm:
        make_checked(swarm)
        nodes = swarm.start(*NAMES)
        *honest, idle = (peer_from_text(node.peer) for node in nodes)
        second = nodes[1]

        def settled() -> bool:
            work = second.ledger().work
            assert work is not None
            votes = set(work.accounts.votes)
            return not work.accounts.counts(idle) and set(honest) <= votes

        wait_for(settled, "the idle one to be found out, and all others to have votes")
        check_agreement(nodes[:3])
        ledger = second.ledger()
        work = ledger.work
        assert work is not None
        # Whoever is at work has votes by now, and who is not has none.
        assert set(work.accounts.votes) == set(honest)
        assert all(work.accounts.counts(peer) for peer in honest)
        scores: dict[bool, list[float]] = {True: [], False: []}
        for _, peer, score in looks(ledger):
            scores[peer == idle].append(score)
        # Below half of what is usual is low; in the first term, where nothing is usual yet, less is.
        usual = median(scores[False])
        low = {who: sum(each < usual / 2 for each in said) for who, said in scores.items()}
        assert low[False] <= len(scores[False]) / 5
        assert low[True] >= len(scores[True]) * 4 / 5 > 0
        again = Counter(
            entry.looker for n in range(len(ledger)) for entry in ledger[n].record.looks_again
        )
        # Nobody says anything about its own work.
        assert again
        assert again.keys() <= set(honest)
