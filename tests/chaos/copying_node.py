"""A node that sends another member's update as its own: `distro-node join …` that only copies.

`python copying_node.py PYTHON -P -m distro_node.node ARGUMENTS…`: the command that would run the
node follows the script. It waits until it has received and fetched another member's update for the
round, flips one sign in twenty (identical updates never count twice), and announces the result as
its own. Otherwise it is an ordinary node.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import trio
from distro_node.node import cli
from distro_node.node.session import session
from distro_node.node.session.effect_runner import Runner
from distro_node.node.storage.blob_store import BlobStore
from distro_node.node.training.client import TrainedUpdate as Made
from distro_node.protocol.codec.update import decode_update, encode_update, update_layout
from distro_node.protocol.member.effects import Train

# The others compute for a second or two, and a late update counts for nothing.
_PATIENCE_SECONDS = 6.0
_POLL_SECONDS = 0.1
_TURNED = 20


class CopyingRunner(Runner):
    """A `Runner` that copies the updates it finds."""

    def __init__(self, *, store: BlobStore, **others: Any) -> None:
        super().__init__(store=store, **others)
        self._blobs = store

    async def trained(self, what: Train, made: Made) -> None:
        self._spawn(self._copy, what, made)

    async def _copy(self, what: Train, made: Made) -> None:
        body: bytes | None = None
        with trio.move_on_after(_PATIENCE_SECONDS):
            while (body := self._others_update(what.round)) is None:  # noqa: ASYNC110 - no event tells
                await trio.sleep(_POLL_SECONDS)
        if body is not None:
            await super().trained(what, replace(made, body=self._changed(body)))

    def _changed(self, body: bytes) -> bytes:
        spec = self._manifest.optimizer
        layout = update_layout(self._manifest.parameters, spec.chunk, spec.top_k)
        update, signs = decode_update(layout, body), []
        for sign in update.signs:
            flat = sign.copy().reshape(-1)
            flat[::_TURNED] *= -1
            signs.append(flat.reshape(sign.shape))
        return encode_update(layout, update.positions, signs)

    def _others_update(self, round_: int) -> bytes | None:
        member: Any = self.member
        for peer in sorted(member.view.members):
            heard = member.view.announcement(round_, peer) if peer != member.view.me else None
            body = None if heard is None else self._blobs.get(heard[0].update)
            if body is not None:
                return body
        return None


def main(arguments: Sequence[str]) -> None:
    """Run a node with such a runner."""
    session.Runner = CopyingRunner
    sys.argv = ["distro-node", *arguments[arguments.index("distro_node.node") + 1 :]]
    cli.main()


if __name__ == "__main__":
    main(sys.argv[1:])
