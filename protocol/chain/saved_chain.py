"""Saved state of a chain's indexes: what a node needs to open a long chain without following all of its
records again, beside the records themselves.

The bytes come from the node's own disk, which may be damaged or belong to somebody else: decoding takes
time and memory in proportion to them, and raises `ProtocolError` for bytes that are no state. Whether a
well-formed state is true can only be told by following the records, so the node has to know the bytes
as its own (`node/storage/saved_indexes.py`).
"""

from __future__ import annotations

from collections.abc import Iterator

from ...crypto.envelope import Verify
from ..wire.checkpoint import Checkpoint
from ..wire.encoding import decode_plain, encode_plain
from ..wire.errors import ProtocolError
from ..wire.manifest import PROTOCOL_VERSION, Manifest
from ..wire.saved_state import RestoreScope
from ..wire.structure import StructureError
from .chain_index import ChainIndex, ChainView
from .entry_store import EntryStore
from .indexed_chain import IndexedChain
from .indexes import new_indexes
from .ledger import Ledger

MAX_STATE_BYTES = 1 << 28
"""Bound on the state of all indexes. At 32 members it has about 100 bytes for each round."""


class StateTooLong(ValueError):
    """Raised for a chain whose state has more items or bytes than would be decoded."""


def encode_state(ledger: Ledger) -> bytes:
    """Return the state of a ledger's indexes. Raises `StateTooLong`."""
    # Each index by itself, because the number of items in one value is bounded.
    try:
        states = [encode_plain(state) for state in ledger.index_states()]
        for state in states:
            decode_plain(state, max_bytes=MAX_STATE_BYTES)
        data = encode_plain([len(ledger), ledger.head, states])
    except (OverflowError, ValueError, ProtocolError) as error:
        raise StateTooLong(str(error)) from None
    if len(data) > MAX_STATE_BYTES:
        raise StateTooLong(f"{len(data)} bytes")
    return data


def restored_ledger(
    manifest: Manifest,
    state: bytes,
    entries: EntryStore,
    *,
    verify: Verify,
    checkpoint: Checkpoint | None = None,
    max_version: int = PROTOCOL_VERSION,
) -> Ledger:
    """Return the ledger of these `entries` whose indexes have this `state`, without reading the entries.

    Raises `ProtocolError`: `checkpoint` as `Ledger.append` does, and another reason if `state` is no
    state of so many entries.
    """
    try:
        length, head, states = decode_plain(state, max_bytes=MAX_STATE_BYTES)
        if type(states) is not list or length != len(entries):
            raise StructureError("", "the state of another number of entries")
        scope = RestoreScope(len(entries))

        def restored(chain: ChainView) -> Iterator[ChainIndex]:
            indexes = new_indexes(chain, max_version)
            plain = (decode_plain(each, max_bytes=MAX_STATE_BYTES) for each in states)
            for index, saved in zip(indexes, plain, strict=True):
                index.restore(saved, scope)
                yield index

        chain = IndexedChain(manifest, entries, restored)
        ledger = Ledger(manifest, verify=verify, checkpoint=checkpoint, chain=chain)
        if ledger.head != head:
            raise StructureError("", "another last record")
    except (LookupError, TypeError, ValueError, ArithmeticError) as error:
        # A damaged number may be an index or a peer of nothing.
        raise ProtocolError("malformed", f"no state of these entries: {error}") from None
    if checkpoint is not None and checkpoint.round < len(ledger):
        ledger.check_anchor(ledger.parent(checkpoint.round + 1))
    return ledger
