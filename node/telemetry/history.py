"""What a history says beside its rounds, as far as who writes it and who reads it have to agree."""

from __future__ import annotations

MAX_SAMPLE_CHARACTERS = 1000
"""Of a text that the model wrote: what is longer is cut off, and not believed when it is read."""
