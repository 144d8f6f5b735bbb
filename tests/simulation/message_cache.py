"""A cache of decoded messages: in a simulation the same bytes go to hundreds of members and to the
watch."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from unittest.mock import patch

from distro_node.protocol.member import inputs
from distro_node.protocol.wire.messages import decode_message

read = lru_cache(8192)(decode_message)
"""`decode_message` with a cache. Messages are immutable, so members may share them."""


@contextmanager
def shared_reading() -> Iterator[None]:
    """Let members decode through the same cache."""
    with patch.object(inputs, "decode_message", read):
        yield
