"""What audits see: the samples on which each update was really trained, and the resulting scores.

Honest work scores as high as measured (docs/audits.md): four times what passes for certain where a share
has one sequence, and less with the root of its size. Work on other samples scores by pure chance. In one
update of thirty there is a sequence with little to learn. The beginning of a sequence scores a part of
the whole, and more where nothing else was computed. Chance is drawn from auditor, update and sample, so
a repeated audit sees the same, and a run can be repeated.
"""

from __future__ import annotations

import math
import random
from collections.abc import Collection

from distro_node.crypto.hashing import ContentId
from distro_node.crypto.identity import PeerId
from distro_node.protocol.wire.messages import AuditScore

HONEST, SCATTER = 30.0, 0.2
"""The mean score of honest work of one sequence, and its deviation as a part of the mean."""
IDLE = 1.0
"""The deviation of a score where nothing was computed."""
WIDEST = 2.5
"""No score is more than this many deviations from its mean: a swarm's run is too short for what happens
once in a thousand audits."""
LITTLE, LITTLE_EVERY = 0.3, 30
"""Of a sequence with little to learn: the part of the mean, and in how many updates there is one. An
update of a single sequence has none."""
PART, PART_SCATTER = 0.78, 0.2
"""A beginning's mean score as a part of the whole's, and its deviation as a part of that."""
OF_BEGINNINGS, PART_OF_BEGINNINGS = 0.85, 1.2
"""Where only beginnings are computed: the remaining part of a score, and the beginning's part of it."""
_SQUARES = 1 << 40


class Scores:
    """The true content of the swarm's updates."""

    def __init__(self) -> None:
        self._samples: dict[ContentId, tuple[int, ...]] = {}
        self._makers: dict[ContentId, PeerId] = {}
        self._cut: set[ContentId] = set()

    def made(
        self, maker: PeerId, update: ContentId, samples: tuple[int, ...], *, cut: bool
    ) -> None:
        """Note that an update was computed on these samples, or on their beginnings if they are `cut`;
        empty for samples that the swarm has not assigned."""
        self._samples[update], self._makers[update] = samples, maker
        if cut:
            self._cut.add(update)

    def samples(self, update: ContentId) -> Collection[int]:
        """Return the samples on which an update was really trained."""
        return self._samples.get(update, ())

    def maker(self, update: ContentId) -> PeerId | None:
        """Return the author of an update."""
        return self._makers.get(update)

    def seen(self, reauditor: PeerId, update: ContentId, sample: int, share: int) -> AuditScore:
        """Return the score of an audit of this sample, in a share of `share` samples."""
        chance = random.Random(f"{reauditor.hex()} {update.hex()} {sample}")
        scatter = max(-WIDEST, min(WIDEST, chance.gauss()))
        samples = self._samples.get(update, ())
        if sample not in samples:
            return score(IDLE * scatter)
        mean = HONEST / math.sqrt(share) * (OF_BEGINNINGS if update in self._cut else 1)
        if sample == self._little(update, samples):
            return score(LITTLE * mean + IDLE * scatter)
        return score(mean * (1 + SCATTER * scatter))

    def beginning(
        self, reauditor: PeerId, update: ContentId, sample: int, share: int
    ) -> AuditScore:
        """Return the score of the sample's beginning alone."""
        chance = random.Random(f"half {reauditor.hex()} {update.hex()} {sample}")
        scatter = max(-WIDEST, min(WIDEST, chance.gauss()))
        part = PART_OF_BEGINNINGS if update in self._cut else PART
        whole = self.seen(reauditor, update, sample, share)
        return score(whole.total / math.isqrt(_SQUARES) * part * (1 + PART_SCATTER * scatter))

    def _little(self, update: ContentId, samples: tuple[int, ...]) -> int | None:
        """Return the sample with little to learn."""
        chance = random.Random(f"little {update.hex()}")
        if len(samples) < 2 or chance.randrange(LITTLE_EVERY):
            return None
        return chance.choice(samples)


def score(deviations: float) -> AuditScore:
    """Return a score of this many standard deviations of chance, in integers."""
    return AuditScore(round(deviations * math.isqrt(_SQUARES)), _SQUARES)
