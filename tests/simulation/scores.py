"""What looks see: of each update the samples on which it was really trained, and the scores that follow.

Honest work scores as high as it was measured (docs/checks.md): four times what passes for certain where
a share has one sequence, and less with the root of its size. Work on other samples is the throw of
coins. In one update of thirty there is a sequence in which there is little to learn. The beginning of a
sequence scores a part of what the whole does, and more where nothing else was computed. Chance is drawn
from looker, update and sample, so whoever looks twice sees the same, and a run repeats.
"""

from __future__ import annotations

import math
import random
from collections.abc import Collection

from distro_node.crypto.hashing import ContentId
from distro_node.crypto.identity import PeerId
from distro_node.protocol.wire.messages import Score

HONEST, SCATTER = 30.0, 0.2
"""The mean score of honest work of one sequence, and its deviation as a part of the mean."""
IDLE = 1.0
"""The deviation of a score where nothing was done."""
WIDEST = 2.5
"""Nothing is further from its mean than so many deviations: a swarm's run is too short for what happens
once in a thousand checks."""
LITTLE, LITTLE_EVERY = 0.3, 30
"""Of a sequence in which there is little to learn: the part of the mean, and in how many updates there
is one. An update of a single sequence has none."""
PART, PART_SCATTER = 0.78, 0.2
"""What a beginning's score is of that of the whole, on average, and its deviation as a part of that."""
OF_BEGINNINGS, PART_OF_BEGINNINGS = 0.85, 1.2
"""Where beginnings alone are computed: what is left of a score, and what a beginning's is of it."""
_SQUARES = 1 << 40


class Scores:
    """What the swarm's updates are really made of."""

    def __init__(self) -> None:
        self._samples: dict[ContentId, tuple[int, ...]] = {}
        self._makers: dict[ContentId, PeerId] = {}
        self._cut: set[ContentId] = set()

    def made(
        self, maker: PeerId, update: ContentId, samples: tuple[int, ...], *, cut: bool
    ) -> None:
        """An update was computed on these samples, or on the beginnings of each if they are `cut`; none
        if on others than the swarm has dealt."""
        self._samples[update], self._makers[update] = samples, maker
        if cut:
            self._cut.add(update)

    def samples(self, update: ContentId) -> Collection[int]:
        """On which an update was really trained."""
        return self._samples.get(update, ())

    def maker(self, update: ContentId) -> PeerId | None:
        """Who computed it."""
        return self._makers.get(update)

    def seen(self, looker: PeerId, update: ContentId, sample: int, share: int) -> Score:
        """What a member sees that looks at this sample, one of a share of so many."""
        chance = random.Random(f"{looker.hex()} {update.hex()} {sample}")
        scatter = max(-WIDEST, min(WIDEST, chance.gauss()))
        samples = self._samples.get(update, ())
        if sample not in samples:
            return score(IDLE * scatter)
        mean = HONEST / math.sqrt(share) * (OF_BEGINNINGS if update in self._cut else 1)
        if sample == self._little(update, samples):
            return score(LITTLE * mean + IDLE * scatter)
        return score(mean * (1 + SCATTER * scatter))

    def beginning(self, looker: PeerId, update: ContentId, sample: int, share: int) -> Score:
        """What it sees of the sample's beginning alone."""
        chance = random.Random(f"half {looker.hex()} {update.hex()} {sample}")
        scatter = max(-WIDEST, min(WIDEST, chance.gauss()))
        part = PART_OF_BEGINNINGS if update in self._cut else PART
        whole = self.seen(looker, update, sample, share)
        return score(whole.total / math.isqrt(_SQUARES) * part * (1 + PART_SCATTER * scatter))

    def _little(self, update: ContentId, samples: tuple[int, ...]) -> int | None:
        """The sample in which there is little to learn."""
        chance = random.Random(f"little {update.hex()}")
        if len(samples) < 2 or chance.randrange(LITTLE_EVERY):
            return None
        return chance.choice(samples)


def score(deviations: float) -> Score:
    """A score of so many standard deviations of chance, in whole numbers."""
    return Score(round(deviations * math.isqrt(_SQUARES)), _SQUARES)
