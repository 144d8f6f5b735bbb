"""Words for something that nobody provides at present."""

from __future__ import annotations

WAITING_FOR = "waiting for "
"""Beginning of the description of a progress that waits for a peer."""
