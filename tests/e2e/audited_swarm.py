"""Real swarms with audits, for the tests of audits."""

from __future__ import annotations

import re
import sysconfig
from collections.abc import Iterator
from pathlib import Path

from distro_node.crypto.identity import PeerId
from distro_node.protocol.audit.sign_score import SignSums
from distro_node.protocol.chain.audits import AuditLedger
from distro_node.protocol.chain.ledger import Ledger
from e2e.support import Swarm

IDLE_NODE = Path(__file__).with_name("idle_node.py")
# Enough to be distinguished from chance: a share of two, and many coefficients.
TOP_K = 32
_MODEL = """
[model]
model_type = "llama"
hidden_size = 64
intermediate_size = 172
num_hidden_layers = 2
num_attention_heads = 2
max_position_embeddings = 128
tie_word_embeddings = false

"""


def make_audited(swarm: Swarm, round_seconds: float = 3.0) -> None:
    """Rewrite the founder's file: a model large enough for audits, texts with something new in each
    sample, and audits in every round, which takes at least `round_seconds`.

    A re-audit starts a trainer, and has sixteen rounds: fewer seconds suffice for copies of trainers.
    """
    path = swarm.root / "swarm.toml"
    described = re.sub(r"\[model\].*?(?=\[data\])", _MODEL.lstrip(), path.read_text(), flags=re.S)
    described = described.replace("sequence_length = 32", "sequence_length = 128")
    described = described.replace("min_seconds = 0.5", f"min_seconds = {round_seconds}")
    # All members have the same amount of work, whatever their speed.
    described += "max_share = 0.0\n\n[audits]\ninterval = 1\n"
    path.write_text(described)
    sources = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("[a-h]*.py"))
    texts = "\n".join(each.read_text("utf-8", "replace") for each in sources)
    (swarm.root / "texts" / "corpus.txt").write_text(texts[:1_500_000])
    swarm.create()


def audits_of(ledger: Ledger) -> Iterator[tuple[PeerId, PeerId, float]]:
    """Yield auditor, audited member and score of all audits in the chain."""
    for number in range(len(ledger)):
        for entry in ledger[number].record.audits:
            drawn = ledger.index(AuditLedger).drawn(entry.auditor, entry.opening, entry.round)
            assert drawn is not None
            yield entry.auditor, drawn.peer, SignSums(entry.total, entry.squares).score
