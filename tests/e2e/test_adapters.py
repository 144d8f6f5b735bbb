"""A swarm that trains adapters: a newcomer fetches the base once, and again the parts that its disk
loses."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from distro_node.protocol.wire.blobs import decode_blob_list
from e2e.program import wait_for
from e2e.support import Swarm, check_agreement
from trainer.support import TINY_LLAMA, write_checkpoint

pytestmark = [pytest.mark.e2e, pytest.mark.slow]


def test_a_newcomer_fetches_the_base_and_trains_adapters(tmp_path: Path) -> None:
    with Swarm(tmp_path) as swarm:
        # Its base is by far larger than everything else.
        write_checkpoint(tmp_path / "base", TINY_LLAMA | {"intermediate_size": 16_384})
        file = tmp_path / "swarm.toml"
        model = (
            '[model]\ncheckpoint = "base"\n[model.lora]\nrank = 4\ntargets = ["q_proj"]\n\n[data]'
        )
        file.write_text(re.sub(r"\[model\].*\[data\]", model, file.read_text(), flags=re.S))
        swarm.create()
        manifest = swarm.manifest
        assert manifest.adapter is not None
        weights = 4 * manifest.frozen_elements
        assert weights > 100 * 4 * manifest.elements
        founder, newcomer = swarm.start("founder", "newcomer")
        wait_for(lambda: newcomer.counted(), "the newcomer's first contribution")
        wait_for(lambda: founder.counts(newcomer.peer), "the founder to count it")
        # Once, besides the corpus and some snapshots of adapters.
        assert weights < newcomer.received()["blob"] < 1.5 * weights
        check_agreement([founder, newcomer])

        listed = newcomer.blobs.get(manifest.adapter.base)
        chunk = decode_blob_list(listed or b"", "snapshot", weights).chunks[0]
        newcomer.blobs.remove(chunk)
        began = newcomer.round
        newcomer.trainer().kill()
        wait_for(lambda: newcomer.counted(began + 1), "a contribution with the base mended")
        assert newcomer.blobs.get(chunk) is not None
        check_agreement([founder, newcomer])
